"""Growth by structure: components are born where the stream changes, and where a component holds several things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from curlicue.growth.change import Change
from curlicue.growth.protocol import Asked, Examples, Growth, GrowthConfig
from curlicue.growth.split import Split
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


@dataclass(frozen=True, kw_only=True)
class Structure(GrowthConfig):
    """A component is born when the stream changes, and when one holds several things."""

    needs_rows: ClassVar[bool] = True

    change: Change = field(default_factory=Change)
    split: Split = field(default_factory=Split)

    def start(self, model: MixtureVAE, examples: Examples | None) -> StructureRule:
        """Both rules, for a model that knows nothing yet."""
        return StructureRule(self, model, examples)


class StructureRule(Growth):
    """Asks both rules; what is held back by one is not seen by the other."""

    at_rest = True

    def __init__(self, config: Structure, model: MixtureVAE, examples: Examples | None) -> None:
        self.change, self.split = config.change.start(model, examples), config.split.start(model, examples)
        self.resting = False

    def look(self, x: Tensor, terms: ElboTerms, t: int) -> int:
        """How many rows are held back because the stream changes."""
        held = self.change.look(x, terms, t)
        return held if self.change.holding else self.split.look(x, terms, t)

    @property
    def holding(self) -> bool:
        """Whether the stream seems to change."""
        return self.change.holding

    def rest(self) -> None:
        """Decide what can be decided, and then look at what has come of it."""
        self.change.rest()
        self.resting = True

    def due(self) -> Asked | None:
        """What either rule asks for, changes first."""
        if (asked := self.change.due()) is not None:
            return asked
        if self.resting:
            self.resting = False
            self.split.rest()
        return self.split.due()

    def born(self) -> None:
        """Both are told."""
        self.change.born()
        self.split.born()

    def refused(self) -> None:
        """The rule that asked for the birth is told; the other one does not mind."""
        self.change.refused()

    def state(self) -> State:
        """Of both."""
        return {"change": self.change.state(), "split": self.split.state()}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        self.change.restore(fields.state("change"))
        self.split.restore(fields.state("split"))
