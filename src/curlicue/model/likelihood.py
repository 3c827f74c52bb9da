"""p(x|z): what the decoder's output means."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from curlicue import config
from curlicue.config import Emission


class Bernoulli(nn.Module):
    """x in [0, 1]; the decoder gives logits."""

    def log_p(self, x: Tensor, out: Tensor) -> Tensor:
        """Σ x log μ + (1 − x) log(1 − μ), μ = sigmoid(out); that is, Σ x out − softplus(out)."""
        return (x * out - softplus(out)).sum(-1)

    def pull(self, g: Tensor, x: Tensor, out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradients of `out` and of parameters, by name, given that of `log_p`: [N], [N, D], [N, D] → [N, D]."""
        return (x - out.sigmoid()).mul_(g[:, None]), {}

    def mean(self, out: Tensor) -> Tensor:
        """μ."""
        return out.sigmoid()

    def emit(self, out: Tensor, emission: Emission, rng: Generator) -> Tensor:
        """Mean, rounded mean, or sample."""
        match emission:
            case Emission.MEAN:
                return self.mean(out)
            case Emission.THRESHOLD:
                return (out > 0).to(out.dtype)
            case Emission.SAMPLE:
                return (torch.rand(out.shape, generator=rng) < out.sigmoid()).to(out.dtype)


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

    @torch.no_grad()
    def pull(self, g: Tensor, x: Tensor, out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradients of `out` and of parameters, by name, given that of `log_p`: [N], [N, D], [N, D] → [N, D]."""
        var, apart = self.var, x - out
        g_var = 0.5 * (g @ (apart.square() / var - 1) / var)  # [D]
        slope = self.PACE * (self.PACE * self.raw_var).sigmoid()
        return (apart / var).mul_(g[:, None]), {"raw_var": g_var * slope}

    def mean(self, out: Tensor) -> Tensor:
        """The decoder's output itself."""
        return out

    def emit(self, out: Tensor, emission: Emission, rng: Generator) -> Tensor:
        """The mean, or a sample around it; real values have no threshold, so that means a sample too."""
        if emission is Emission.MEAN:
            return self.mean(out)
        return torch.addcmul(out, self.var.sqrt(), torch.randn(out.shape, generator=rng))


def likelihood(kind: config.Likelihood, n_x: int) -> Bernoulli | GaussianNoise:
    """The module for a setting."""
    match kind:
        case config.Likelihood.BERNOULLI:
            return Bernoulli()
        case config.Likelihood.GAUSSIAN:
            return GaussianNoise(n_x)
