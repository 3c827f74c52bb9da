"""What every rule of growth can do."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor

from curlicue.config.kinds import Kind
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


class Tuned(StrEnum):
    """Which parameters fit a newborn component to D_new."""

    ALL = "all"  # as the paper says
    HEADS = "heads"  # q(y|x), q(z|x,y) and p(z|y) only, as the released code does


@dataclass(frozen=True)
class Birth:
    """Who belongs to a newborn, and how it is fitted to them."""

    d_new: Tensor  # [N, D]
    passes: int  # over D_new
    tuned: Tuned


class Growth(Protocol):
    """A rule of growth: it looks at real batches and says who belongs to a newborn. It never touches parameters."""

    def look(self, x: Tensor, terms: ElboTerms, t: int) -> int:
        """Take in the real batch x [B, D] of step t with its bound, before the step is taken.

        Returns how many samples joined D_new.
        """

    def due(self) -> Birth | None:
        """After the step: hand over D_new if a component is to be born now."""

    def born(self) -> None:
        """A component was born, as asked."""

    def refused(self) -> None:
        """No component was born, for there are as many as there may be."""

    def state(self) -> State:
        """All that the rule remembers."""

    def restore(self, fields: Fields) -> None:
        """Go on from `state`; the model is already as it was."""


class GrowthConfig(Kind):
    """Settings of a rule of growth; a subclass is one rule."""

    @abstractmethod
    def start(self, model: MixtureVAE) -> Growth:
        """The rule, for a model without a past; the rule may read the model, and never changes it."""
