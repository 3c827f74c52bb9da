"""Which models the CPU engine can climb; this can be asked without Numba."""

from __future__ import annotations

import torch

from curlicue.engines.cpu.likelihood import LIKELIHOODS
from curlicue.engines.protocol import Climbing
from curlicue.model.mixture import MixtureVAE
from curlicue.model.networks import Mlp


def can_climb(model: MixtureVAE, climbing: Climbing) -> bool:
    """Whether the gradient of this very model is written out.

    Where h is zero, the gradient that the heads have of h is left out, which is right only behind a ReLU.
    """
    ours = type(model) is MixtureVAE and type(model.p_x) in LIKELIHOODS
    networks = type(model.encoder) is type(model.decoder) is Mlp and model.encoder.relu_last
    return ours and networks and climbing.z_samples == 1 and _fits_the_loops(model)


def _fits_the_loops(model: MixtureVAE) -> bool:
    """Whether all parameters are on the CPU and of one type that the loops are compiled for."""
    kinds = {(parameter.device.type, parameter.dtype) for parameter in model.parameters()}
    return len(kinds) == 1 and kinds <= {("cpu", torch.float32), ("cpu", torch.float64)}
