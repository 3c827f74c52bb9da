"""The gradients of log p(x|z)."""

from __future__ import annotations

import torch
from torch import Tensor

from curlicue.model.likelihood import Bernoulli, GaussianNoise

P_x = Bernoulli | GaussianNoise
LIKELIHOODS = (Bernoulli, GaussianNoise)


def log_p_backward(p_x: P_x, g: Tensor, x: Tensor, out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradients of `out` [N, D] and of the likelihood's parameters, given that of log p(x|z) g [N]; x [N, D]."""
    match p_x:
        case Bernoulli():
            return (x - out.sigmoid()).mul_(g[:, None]), {}
        case GaussianNoise():
            return _noise_backward(p_x, g, x, out)


@torch.no_grad()
def _noise_backward(p_x: GaussianNoise, g: Tensor, x: Tensor, out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    var, error = p_x.var, x - out
    g_var = 0.5 * (g @ (error.square() / var - 1) / var)  # [D]
    slope = p_x.PACE * (p_x.PACE * p_x.raw_var).sigmoid()
    return (error / var).mul_(g[:, None]), {"raw_var": g_var * slope}
