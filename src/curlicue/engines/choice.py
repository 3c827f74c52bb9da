"""Which engine climbs a model: the CPU engine the paper's networks on the CPU, the autograd engine all others."""

from __future__ import annotations

import warnings

from torch import Generator

from curlicue.engines.autograd import AutogradEngine
from curlicue.engines.cpu.scope import can_climb
from curlicue.engines.protocol import Climbing, Engine
from curlicue.model.mixture import MixtureVAE


def engine_for(model: MixtureVAE, climbing: Climbing, rng: Generator) -> Engine:
    """The fastest engine that can climb the model where it is; `rng` draws z and the pairs that are visited."""
    if not can_climb(model, climbing):
        return AutogradEngine(model, climbing, rng)
    try:
        from curlicue.engines.cpu.engine import CpuEngine
    except ImportError as error:  # there is no Numba, or none that works
        if (error.name or "").startswith("curlicue"):
            raise
        warnings.warn(f"Numba cannot be imported ({error}): learning takes about twice as long.", stacklevel=2)
        return AutogradEngine(model, climbing, rng)
    return CpuEngine(model, climbing, rng)
