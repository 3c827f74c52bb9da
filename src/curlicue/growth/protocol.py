"""What every rule of growth can do."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

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
    parent: int | None = None  # whom it begins as a copy of; None: the component that explains most of D_new
    members: Tensor | None = None  # [N], which rows of the memory D_new is; None: rows of the stream


@dataclass(frozen=True)
class Familiar:
    """Rows that were held back, and turn out to be of components that there are."""

    x: Tensor  # [N, D]
    y: Tensor | None = None  # [N], which; None: as the model says


@dataclass(frozen=True)
class Move:
    """Rows of the memory that belong to another component than the memory thinks."""

    members: Tensor  # [N], which rows
    to: int


Asked = Birth | Familiar | Move
"""What a rule of growth asks the learner to do."""


class Kept(Protocol):
    """Some rows, each with its `x` and its component `y`."""

    @property
    def x(self) -> Tensor:
        """The rows [N, D]."""

    @property
    def y(self) -> Tensor:
        """The component of each [N]."""


class Examples(Protocol):
    """What a memory keeps of each component: rows that are known by their indices until rows are added."""

    def of(self, k: int) -> Tensor:
        """The indices of the rows of component k."""

    def rows(self, indices: Tensor) -> Kept:
        """The rows with these indices."""

    def counts(self, K: int) -> Tensor:
        """How many rows there are of each of K components [K]."""


class Growth(Protocol):
    """A rule of growth: it looks at real batches and says who belongs to a newborn. It never touches parameters.

    A rule that inherits from it learns every batch at once, and need not listen to what became of what it asked for.
    """

    def look(self, x: Tensor, terms: ElboTerms, t: int) -> int:
        """Take in the real batch x [B, D] of step t with its bound, before the step is taken.

        Returns how many samples joined D_new.
        """

    at_rest: bool = False
    """Whether it finds what is there in data that never change."""

    def rest(self) -> None:
        """Nothing more comes for now: what can be decided is to be `due`."""
        return

    @property
    def holding(self) -> bool:
        """Whether the batch just looked at is held back: it is not learnt until `due` says what it is."""
        return False

    def due(self) -> Asked | None:
        """After the step, until it is None: what is to be done now."""

    def born(self) -> None:
        """A component was born, as asked."""
        return

    def refused(self) -> None:
        """No component was born, for there are as many as there may be."""
        return

    def state(self) -> State:
        """All that the rule remembers."""

    def restore(self, fields: Fields) -> None:
        """Go on from `state`; the model is already as it was."""


class GrowthConfig(Kind):
    """Settings of a rule of growth; a subclass is one rule."""

    needs_rows: ClassVar[bool] = False  # whether it works only with a memory that keeps rows

    @abstractmethod
    def start(self, model: MixtureVAE, examples: Examples | None) -> Growth:
        """The rule, for a model without a past, which it may read and never changes.

        `examples` are the rows that the memory keeps, None for a memory that keeps none.
        """
