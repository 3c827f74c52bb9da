"""Diagonal Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from curlicue.model.devices import sent

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
        return self.at(normal((n, *self.mean.shape), rng, self.mean))

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


def normal(shape: tuple[int, ...], rng: Generator, like: Tensor) -> Tensor:
    """Standard normal numbers with the type and on the device of `like`, drawn by a generator on the CPU.

    The same seed draws the same numbers for every device.
    """
    return sent(torch.randn(shape, generator=rng, dtype=like.dtype), like.device)


def uniform(shape: tuple[int, ...], rng: Generator, like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), drawn as `normal` draws its own."""
    return sent(torch.rand(shape, generator=rng, dtype=like.dtype), like.device)
