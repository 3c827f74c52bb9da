"""Settings with something changed deep inside."""

from dataclasses import replace
from typing import TypeVar

S = TypeVar("S")


def changed(settings: S, part: str, **changes: object) -> S:
    """The settings with fields changed of a part of them: changed(config, "system.learner.growth", n_new=3)."""
    name, _, rest = part.partition(".")
    inner = getattr(settings, name)
    return replace(settings, **{name: changed(inner, rest, **changes) if rest else replace(inner, **changes)})
