"""Diagonal Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

VAR_FLOOR = 1e-6  # keeps a Gaussian fitted to identical samples finite


@dataclass(frozen=True)
class Gaussian:
    """N(mean, var), independent over the last axis."""

    mean: Tensor  # [..., Z]
    var: Tensor  # [..., Z], the variance

    @classmethod
    def from_raw(cls, raw: Tensor) -> Gaussian:
        """First half of the last axis: the mean; softplus of the second half: the variance."""
        mean, raw_var = raw.chunk(2, dim=-1)
        return cls(mean, softplus(raw_var) + VAR_FLOOR)

    def sample(self, rng: Generator, n: int = 1) -> Tensor:
        """Samples [n, ..., Z]."""
        return self.at(torch.randn(n, *self.mean.shape, generator=rng))

    def at(self, noise: Tensor) -> Tensor:
        """Samples by reparametrisation: mean + std · ε."""
        return torch.addcmul(self.mean, self.var.sqrt(), noise)

    def log_density(self, z: Tensor) -> Tensor:
        """log N(z; mean, var), summed over the last axis."""
        squares = (z - self.mean).square() / self.var
        return -0.5 * (squares + self.var.log() + math.log(2 * math.pi)).sum(-1)


def gaussian_kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q ‖ p) = ½ Σ [log(var_p/var_q) + (var_q + (mean_q − mean_p)²)/var_p − 1]."""
    quotient = (q.var + (q.mean - p.mean).square()) / p.var
    return 0.5 * (p.var.log() - q.var.log() + quotient - 1).sum(-1)
