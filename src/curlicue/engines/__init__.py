"""How a bound is climbed: engines behind one protocol, and the choice between them.

A step has two phases, for growth and memory look at the bound before the model changes: an engine computes the bound
of a batch, and later climbs what it computed.
"""
