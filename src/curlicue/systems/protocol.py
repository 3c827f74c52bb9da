"""What every learning system can do, so that runs, scores, checkpoints and reports work with any."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Generator, Tensor

from curlicue.config.kinds import Kind
from curlicue.learn.events import Event
from curlicue.records.state import Fields, State
from curlicue.rng import Rng

LabelledBatch = tuple[Tensor, Tensor]
"""x [B, D] with the labels [B]: for systems that learn from labels."""


class System(Protocol):
    """A learning system on a stream.

    `evaluate` reads it, and more of those that can say more: `Explains`, `Classifies` and `Generates` there.
    """

    @property
    def t(self) -> int:
        """Steps taken."""

    def learn(self, stream: Iterable[Any]) -> Iterator[list[Event]]:
        """Learn each batch of the stream: x [B, D], or a LabelledBatch if the settings say `labelled`.

        Yields what each step brought about. Between any two the system may be saved, and `learn` called anew.
        """

    @property
    def K(self) -> int:
        """How many components or classes it tells apart."""

    def probabilities(self, x: Tensor) -> Tensor:
        """Of each component or class, for each row: [N, D] → [N, K], on the CPU."""

    def embed(self, x: Tensor, sampled: Generator | None = None) -> Tensor:
        """The embedding of each row, or a sample of it: [N, D] → [N, Z], on the CPU."""

    def figures(self) -> dict[str, Any]:
        """What a line of metrics tells of the system beside its scores."""

    def state(self) -> State:
        """All that it needs to go on bit for bit."""

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""


class SystemConfig(Kind):
    """Settings of a system; a subclass is one system."""

    labelled: ClassVar[bool] = False  # whether it learns from class labels

    @abstractmethod
    def start(self, shape: tuple[int, ...], rng: Rng, device: torch.device) -> System:
        """The system before it has learnt anything, for samples of that shape."""

    def check_range(self, low: float, high: float, name: str) -> None:
        """DataError if it cannot learn from data with values from `low` to `high`."""

    def with_period(self, T: int) -> Self:
        """These settings in a run whose classes last T steps each."""
        return self

    def along(self, scale: Callable[[int], int]) -> Self:
        """These settings in a run of another length: numbers of steps go through `scale`."""
        return self
