"""Settings: frozen dataclasses and JSON both ways.

What every layer shares stands here; the settings of a growth rule, a memory or a system stand beside its code.
"""
