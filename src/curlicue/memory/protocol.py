"""What every memory can do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from torch import Generator, Tensor

from curlicue.config.kinds import Kind
from curlicue.memory.store import Store
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


@dataclass(frozen=True)
class SnapshotTaken:
    """From now on the memory generates from the model of this moment, after t steps."""

    t: int
    K: int


@dataclass(frozen=True)
class Past:
    """A batch to rehearse."""

    x: Tensor  # [B, D]
    y: Tensor  # [B], on the CPU: the component each sample stands for
    labelled: bool  # whether the components are given to the model (Eq. 4), or for it to find
    emphasis: float = 1.0  # weight of log q(y|x) where they are given; Eq. 4 has 1
    seen: Tensor | None = None  # [B, D], what the encoder is shown in place of x where they are given


class Memory(Protocol):
    """Takes in real batches and gives back batches of the past.

    A memory that inherits from it keeps no rows, and gives back one batch after each real one.
    """

    def begin(self, t: int) -> list[SnapshotTaken]:
        """Step t, on a real batch, begins."""

    def look(self, terms: ElboTerms, t: int) -> list[SnapshotTaken]:
        """The bound of the real batch is known, and the step not yet taken."""

    def take(self, x: Tensor, terms: ElboTerms, y: Tensor | None = None) -> None:
        """The step on the real batch x [B, D] is taken; y [B] are its components, where growth knows them."""

    def before_birth(self, t: int) -> list[SnapshotTaken]:
        """A component is about to be born, after t steps."""

    def born(self, d_new: Tensor | None = None, members: Tensor | None = None) -> None:
        """The model has one component more, of D_new [N, D]: rows of the stream, or `members` of `store`, or none."""

    def move(self, members: Tensor, to: int) -> None:
        """These rows of `store` belong to another component than they did."""
        return

    @property
    def store(self) -> Store | None:
        """The rows that are kept, if any are."""
        return None

    @property
    def ready(self) -> bool:
        """Whether there is anything to rehearse."""

    def recall(self, n: int) -> Past:
        """A batch of n samples to rehearse."""

    def recalled(self, past: Past, terms: ElboTerms) -> None:
        """What the model made of the rehearsed batch."""

    @property
    def pressing(self) -> bool:
        """Whether one more batch is to be rehearsed before the next real one."""
        return False

    def counts(self) -> Tensor:
        """How much of the real stream each component stands for by now [K], float64."""

    def state(self) -> State:
        """All that the memory holds."""

    def restore(self, fields: Fields) -> None:
        """Go on from `state`; the model is already as it was."""


class MemoryConfig(Kind):
    """Settings of a memory; a subclass is one memory."""

    keeps_rows: ClassVar[bool] = False

    @abstractmethod
    def start(self, model: MixtureVAE, rng: Generator) -> Memory:
        """The memory, with nothing in it yet; `rng` draws what is rehearsed."""

    def with_period(self, T: int) -> Self:
        """These settings in a run whose classes last T steps each."""
        return self

    def along(self, scale: Callable[[int], int]) -> Self:
        """These settings in a run of another length: numbers of steps go through `scale`."""
        return self
