"""When which class of a data set is shown."""

from __future__ import annotations

from dataclasses import dataclass

from curlicue.config.kinds import Kind, require


class Scenario(Kind):
    """In which order a stream shows the classes of a data set."""


@dataclass(frozen=True)
class Iid(Scenario):
    """All classes, shuffled."""


@dataclass(frozen=True)
class Sequential(Scenario):
    """Classes one after the other, `at_once` of them together, for equal numbers of steps."""

    at_once: int = 1  # so many classes together

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.at_once >= 1, "at_once", self.at_once, "an int in the range [1, inf)")


@dataclass(frozen=True)
class Drift(Scenario):
    """Classes one after the other, each fading into the next."""
