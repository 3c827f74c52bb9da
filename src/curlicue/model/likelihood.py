"""p(x|z): what the decoder's output means."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from curlicue.config.model import Emission, Likelihood
from curlicue.model.gaussian import normal, uniform


class Bernoulli(nn.Module):
    """x in [0, 1]; the decoder gives logits."""

    def log_p(self, x: Tensor, out: Tensor) -> Tensor:
        """Σ x log μ + (1 − x) log(1 − μ), μ = sigmoid(out); that is, Σ x out − softplus(out)."""
        return (x * out - softplus(out)).sum(-1)

    def mean(self, out: Tensor) -> Tensor:
        """μ."""
        return out.sigmoid()

    def emit(self, out: Tensor, emission: Emission, rng: Generator) -> Tensor:
        """A sample of p(x|z), or its mean rounded to 0 or 1."""
        match emission:
            case Emission.THRESHOLD:
                return (out > 0).to(out.dtype)
            case Emission.SAMPLE:
                return (uniform(out.shape, rng, out) < out.sigmoid()).to(out.dtype)


class GaussianNoise(nn.Module):
    """Real x; the decoder gives the mean, and each feature has one learnt variance."""

    VAR_FLOOR = 1e-3  # of standardised data: a constant feature cannot push the bound to infinity
    PACE = 20.0  # Adam moves any parameter by so much a step: without it the noise would be far off for long

    def __init__(self, n_x: int) -> None:
        super().__init__()
        self.raw_var = nn.Parameter(torch.zeros(n_x))

    @property
    def var(self) -> Tensor:
        """The variance of each feature around its mean."""
        return softplus(self.PACE * self.raw_var) + self.VAR_FLOOR

    def log_p(self, x: Tensor, out: Tensor) -> Tensor:
        """Σ log N(x; out, var)."""
        return -0.5 * ((x - out).square() / self.var + self.var.log() + math.log(2 * math.pi)).sum(-1)

    def mean(self, out: Tensor) -> Tensor:
        """The decoder's output itself."""
        return out

    def emit(self, out: Tensor, emission: Emission, rng: Generator) -> Tensor:
        """A sample around the decoder's output, whatever the emission: real values have no threshold."""
        return torch.addcmul(out, self.var.sqrt(), normal(out.shape, rng, out))


def likelihood(kind: Likelihood, n_x: int) -> Bernoulli | GaussianNoise:
    """The module for a setting."""
    match kind:
        case Likelihood.BERNOULLI:
            return Bernoulli()
        case Likelihood.GAUSSIAN:
            return GaussianNoise(n_x)
