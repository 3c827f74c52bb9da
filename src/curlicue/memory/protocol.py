"""What every memory can do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Generator, Tensor

from curlicue.config.kinds import Kind
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


class Memory(Protocol):
    """Takes in real batches and gives back batches of the past."""

    def begin(self, t: int) -> list[SnapshotTaken]:
        """Step t, on a real batch, begins."""

    def look(self, terms: ElboTerms, t: int) -> list[SnapshotTaken]:
        """The bound of the real batch is known, and the step not yet taken."""

    def take(self, x: Tensor, terms: ElboTerms) -> None:
        """The step on the real batch x [B, D] is taken."""

    def before_birth(self, t: int) -> list[SnapshotTaken]:
        """A component is about to be born, after t steps."""

    def born(self) -> None:
        """The model has one component more."""

    @property
    def ready(self) -> bool:
        """Whether there is anything to rehearse."""

    def recall(self, n: int) -> Past:
        """A batch of n samples to rehearse."""

    def recalled(self, past: Past, terms: ElboTerms) -> None:
        """What the model made of the rehearsed batch."""

    def counts(self) -> Tensor:
        """How much of the real stream each component stands for by now [K], float64."""

    def state(self) -> State:
        """All that the memory holds."""

    def restore(self, fields: Fields) -> None:
        """Go on from `state`; the model is already as it was."""


class MemoryConfig(Kind):
    """Settings of a memory; a subclass is one memory."""

    @abstractmethod
    def start(self, model: MixtureVAE, rng: Generator) -> Memory:
        """The memory, with nothing in it yet; `rng` draws what is rehearsed."""

    def with_period(self, T: int) -> Self:
        """These settings in a run whose classes last T steps each."""
        return self

    def along(self, scale: Callable[[int], int]) -> Self:
        """These settings in a run of another length: numbers of steps go through `scale`."""
        return self
