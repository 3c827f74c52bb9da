"""The engine for the paper's multilayer perceptrons on the CPU."""

from __future__ import annotations

from collections.abc import Container
from typing import cast

from torch import Generator, Tensor

from curlicue.engines.cpu.adam import Adam, Moments
from curlicue.engines.cpu.bound import CpuAscent, bound, bound_given
from curlicue.engines.protocol import Ascent, Climbing, check_current, restore_model
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


class CpuEngine:
    """Climbs with the written-out gradient and an Adam that skips what it would not change."""

    def __init__(self, model: MixtureVAE, climbing: Climbing, rng: Generator) -> None:
        self.model, self.climbing, self.rng = model, climbing, rng
        self.optimiser = Adam(climbing.learning_rate)

    def bound(self, x: Tensor) -> CpuAscent:
        """L(x)."""
        return bound(self.model, x, self.rng, self.climbing.tau)

    def bound_given(self, x: Tensor, y: Tensor, emphasis: float = 1.0, seen: Tensor | None = None) -> CpuAscent:
        """L_sup(x, y)."""
        return bound_given(self.model, x, y, self.rng, emphasis, seen)

    def climb(self, ascent: Ascent, only: Container[str] | None = None) -> None:
        """Backward, each parameter taking its step of Adam as soon as its gradient is known."""
        check_current(ascent.terms, self.model)
        parameters = dict(self.model.named_parameters())
        for gradient in cast(CpuAscent, ascent).backward():
            parameter, name = parameters[gradient.name], gradient.name
            if parameter.requires_grad and (only is None or name in only):
                self.optimiser.step(parameter, gradient)

    def grow(self, parent: int) -> None:
        """Add a copy of a component."""
        self.model.grow(parent)
        self.optimiser.grow(self.model.component_parameters())

    def state(self) -> State:
        """The model and Adam's moments."""
        moments = {name: each.state() for name, each in self.optimiser.moments.items()}
        return {"K": self.model.K, "model": self.model.state_dict(), "optimiser": moments}

    def restore(self, fields: Fields) -> None:
        """Go on from the state of any engine."""
        restore_model(self.model, fields)
        found, parameters = fields.state("optimiser"), dict(self.model.named_parameters())
        self.optimiser.moments = {n: Moments.restored(found.state(n), p) for n, p in parameters.items() if n in found}
        found.end()
