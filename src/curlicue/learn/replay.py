"""Mixture generative replay: a snapshot of the model dreams batches of the past."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from curlicue.config import Emission
from curlicue.model.mixture import MixtureVAE

PI_FLOOR = 1e-12


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
