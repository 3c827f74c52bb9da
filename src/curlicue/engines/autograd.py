"""The engine for any encoder and decoder on any device: autograd and torch's own Adam."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor, nn

from curlicue.engines.protocol import Ascent, Climbing, check_current, restore_model
from curlicue.model.elbo import ElboTerms, elbo, elbo_given
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State

BETAS = (0.9, 0.999)  # TensorFlow's defaults, which are torch's too
FUSED = ("cpu", "cuda", "mps", "xpu")  # devices on which torch's Adam is one kernel
MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}  # our names and torch's


@dataclass(frozen=True)
class GraphAscent:
    """A bound with the graph that autograd recorded."""

    terms: ElboTerms
    loss: Tensor  # the negative mean of what is climbed


class AutogradEngine:
    """Lets autograd find the gradient of the bound."""

    def __init__(self, model: MixtureVAE, climbing: Climbing, rng: Generator) -> None:
        self.model, self.climbing, self.rng = model, climbing, rng
        parameters, fused = [*model.parameters()], model.device.type in FUSED
        self.optimiser = torch.optim.Adam(parameters, lr=climbing.learning_rate, betas=BETAS, fused=fused)

    def bound(self, x: Tensor) -> GraphAscent:
        """L(x)."""
        tau, z_samples = self.climbing.tau, self.climbing.z_samples
        return self._ascent(elbo(self.model, x, self.rng, tau=tau, z_samples=z_samples))

    def bound_given(self, x: Tensor, y: Tensor, emphasis: float = 1.0, seen: Tensor | None = None) -> GraphAscent:
        """L_sup(x, y)."""
        z_samples = self.climbing.z_samples
        return self._ascent(elbo_given(self.model, x, y, self.rng, z_samples=z_samples, seen=seen), emphasis)

    @staticmethod
    def _ascent(terms: ElboTerms, emphasis: float = 1.0) -> GraphAscent:
        return GraphAscent(terms.on_host(), -(terms.bound - (emphasis - 1) * terms.kl_y).mean())

    def climb(self, ascent: Ascent, only: Container[str] | None = None) -> None:
        """Backward, then one step of Adam."""
        check_current(ascent.terms, self.model)
        self.optimiser.zero_grad()
        named = self.model.named_parameters()
        moving = [p for name, p in named if p.requires_grad and (only is None or name in only)]
        if moving:
            cast(GraphAscent, ascent).loss.backward(inputs=moving)
        self.optimiser.step()

    def grow(self, parent: int) -> None:
        """Add a copy of a component."""
        before = {name: self.optimiser.state.get(p, {}) for name, p in self.model.named_parameters()}
        self.model.grow(parent)
        owned = self.model.component_parameters()
        self._follow({name: _grown(moments) if name in owned else moments for name, moments in before.items()})

    def state(self) -> State:
        """The model and Adam's moments."""
        moments = {name: _state(self.optimiser.state[p]) for name, p in self._moved()}
        return {"K": self.model.K, "model": self.model.state_dict(), "optimiser": moments}

    def restore(self, fields: Fields) -> None:
        """Go on from the state of any engine."""
        restore_model(self.model, fields)
        optimiser = fields.state("optimiser")
        named = self.model.named_parameters()
        self._follow({name: self._moments(optimiser.state(name), p) for name, p in named if name in optimiser})
        optimiser.end()

    def _moments(self, fields: Fields, parameter: Tensor) -> dict[str, Tensor]:
        """Torch's moments from those of any engine."""
        fused = self.optimiser.param_groups[0]["fused"]
        step = torch.tensor(float(fields.count("steps")), device=parameter.device if fused else "cpu")
        found = {name: t.to(parameter.device, copy=True) for name, t in _faded(fields, parameter).items()}
        fields.end()
        return {"step": step, **found}

    def _moved(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if self.optimiser.state.get(p))

    def _follow(self, moments: dict[str, dict[str, Tensor]]) -> None:
        """Go on with the model's parameters as they are now and with these moments, by name."""
        named = dict(self.model.named_parameters())
        self.optimiser.param_groups[0]["params"] = [*named.values()]
        self.optimiser.state.clear()
        self.optimiser.state.update({named[name]: each for name, each in moments.items() if each})


def _grown(moments: dict[str, Tensor]) -> dict[str, Tensor]:
    """The moments of a parameter after the birth of a component that has never moved."""
    return {name: torch.cat([t, torch.zeros_like(t[:1])]) if t.ndim else t for name, t in moments.items()}


def _state(moments: dict[str, Tensor]) -> State:
    return {"steps": int(moments["step"]), **{ours: moments[theirs] for ours, theirs in MOMENTS.items()}}


def _faded(fields: Fields, parameter: Tensor) -> dict[str, Tensor]:
    """Both moments by torch's names; those of the CPU engine's resting rows fade by the steps they have skipped."""
    shape = tuple(parameter.shape)
    found = {theirs: fields.tensor(ours, shape, parameter.dtype) for ours, theirs in MOMENTS.items()}
    if "skipped" not in fields:
        return found
    rows = (shape[0] if len(shape) > 1 else 1,)
    skipped, _ = fields.tensor("skipped", rows, torch.int64), fields.tensor("resting", rows, torch.bool)
    for name, beta in zip(MOMENTS.values(), BETAS, strict=True):
        fade = (beta ** skipped.double()).view(-1, *[1] * (len(shape) - 1))
        found[name] = (found[name] * fade).to(parameter.dtype).view(shape)
    return found
