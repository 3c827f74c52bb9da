"""Mixture generative replay: a snapshot of the model dreams batches of the past."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from curlicue.config import Emission
from curlicue.model.mixture import MixtureVAE

PI_FLOOR = 1e-12


class Usage:
    """Which components explain the stream: lately, and for some time. After a change both begin anew."""

    ROWS = torch.tensor([[500.0], [5000.0]])  # that either remembers, or so,
    BATCHES = torch.tensor([[1.0], [10.0]])  # but at least so many batches
    APART = 0.25  # share of the stream that has moved from some components to others: a change

    def __init__(self, K: int) -> None:
        self.shares = torch.zeros(2, K)  # lately; for some time
        self.rows = 0  # since the latest change

    def update(self, q_y: Tensor) -> bool:
        """Take in a batch [B, K]; whether with it the stream has changed."""
        now, self.rows = q_y.mean(0), self.rows + len(q_y)
        remembered = torch.maximum(self.ROWS, len(q_y) * self.BATCHES).clamp_max(self.rows)
        self.shares = torch.lerp(self.shares, now, len(q_y) / remembered)
        lately, for_some_time = self.shares
        changed = 0.5 * float((lately - for_some_time).abs().sum()) > self.APART
        if changed:
            self.shares, self.rows = now.repeat(2, 1), len(q_y)
        return changed

    def grow(self) -> None:
        """A component is born: that is a change."""
        self.shares, self.rows = torch.zeros(2, self.shares.shape[1] + 1), 0


@dataclass(frozen=True)
class Snapshot:
    """The model at one moment, with how much each component had been used by then."""

    model: MixtureVAE
    pi: Tensor  # [K]

    @classmethod
    def of(cls, model: MixtureVAE, counts: Tensor) -> Snapshot:
        """A copy that later learning cannot touch; π ∝ counts."""
        frozen = copy.deepcopy(model).eval().requires_grad_(False)
        pi = counts.clamp_min(PI_FLOOR)
        return cls(frozen, pi / pi.sum())

    def dream(self, n: int, emission: Emission, rng: Generator) -> tuple[Tensor, Tensor]:
        """y ~ π, z ~ p(z|y), x from p(x|z): x [n, D] and the component y [n] that dreamt it."""
        y = torch.multinomial(self.pi, n, replacement=True, generator=rng)
        return self.model.sample(y, emission, rng), y
