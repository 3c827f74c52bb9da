"""Labelled data sets, and the order in which a stream shows them."""
