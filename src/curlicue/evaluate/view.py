"""What a system looks like at one moment: where samples lie in its space, and what its components generate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Generator, Tensor

from curlicue.evaluate.scores import Scored

SAMPLES = 8  # generated of each component


@runtime_checkable
class Generates(Protocol):
    """A system whose components generate samples."""

    def generated(self, n: int, rng: Generator) -> Tensor:
        """n means of p(x|z) of each component [K, n, D]."""

    def centres(self) -> Tensor:
        """The centre of each component in the space of embeddings [K, Z]."""


@dataclass(frozen=True)
class View:
    """A system's view of N samples, and of itself."""

    z: Tensor  # [N, Z], the embeddings
    y: Tensor  # [N], the components
    generated: Tensor | None = None  # [K, n, D]
    centres: Tensor | None = None  # [K, Z]


def view(system: Scored, x: Tensor, rng: Generator) -> View:
    """The view of the samples x [N, D]."""
    z, y = system.embed(x), system.probabilities(x).argmax(1)
    if not isinstance(system, Generates):
        return View(z, y)
    return View(z, y, system.generated(SAMPLES, rng), system.centres())
