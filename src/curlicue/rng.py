"""One seed, several independent named generators: what one consumer draws never shifts another's numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Rng:
    """The generators of one run."""

    init: Generator  # weights
    data: Generator  # which samples the stream delivers
    latent: Generator  # z ~ q(z|x,y), and which pairs the sparse bound keeps
    replay: Generator  # what a snapshot generates

    @classmethod
    def from_seed(cls, seed: int) -> Rng:
        """Generators that depend on the seed and on their own name only."""
        return cls(**{f.name: named_generator(seed, f.name) for f in fields(cls)})

    def state(self) -> dict[str, Tensor]:
        """What must be kept for the numbers to go on where they were."""
        return {f.name: getattr(self, f.name).get_state() for f in fields(self)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from `state()`."""
        for f in fields(self):
            getattr(self, f.name).set_state(state[f.name])


def named_generator(seed: int, name: str) -> Generator:
    """A generator of its own for every pair of seed and name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
