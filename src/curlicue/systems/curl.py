"""CURL as a system: the learner of Algorithm 1, and what its model says of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Generator, Tensor

from curlicue.config.model import Likelihood, ModelConfig
from curlicue.errors import DataError
from curlicue.learn.events import Event
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.model.inference import bounds, embed, posterior
from curlicue.model.mixture import MixtureVAE, eval_mode
from curlicue.records.state import Fields, State
from curlicue.rng import Rng
from curlicue.systems.protocol import System, SystemConfig


@dataclass(frozen=True, kw_only=True)
class Curl(SystemConfig):
    """Continual Unsupervised Representation Learning."""

    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)

    def start(self, shape: tuple[int, ...], rng: Rng, device: torch.device) -> System:
        """A model that knows nothing yet, and its learner."""
        return CurlSystem(Learner(self.make_model(shape, rng, device), self.learner, rng))

    def make_model(self, shape: tuple[int, ...], rng: Rng, device: torch.device) -> MixtureVAE:
        """The model as it begins."""
        return MixtureVAE.from_config(self.model, shape, rng.init).to(device)

    def check_range(self, low: float, high: float, name: str) -> None:
        """A Bernoulli likelihood needs values in [0, 1]."""
        if self.model.likelihood is Likelihood.BERNOULLI and not 0 <= low <= high <= 1:
            raise DataError(
                f"A Bernoulli likelihood needs values from 0 to 1, but {name} has values from {low:g} to {high:g}. "
                "Scale them, or choose the Gaussian likelihood."
            )

    def with_period(self, T: int) -> Self:
        """The memory may work by the period."""
        memory = self.learner.memory and self.learner.memory.with_period(T)
        return replace(self, learner=replace(self.learner, memory=memory))

    def along(self, scale: Callable[[int], int]) -> Self:
        """The memory may count steps."""
        memory = self.learner.memory and self.learner.memory.along(scale)
        return replace(self, learner=replace(self.learner, memory=memory))


class CurlSystem:
    """A learner, and what its model says of samples."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.model = learner, learner.model

    @property
    def t(self) -> int:
        """Steps taken."""
        return self.learner.t

    @property
    def K(self) -> int:
        """How many components there are."""
        return self.model.K

    def learn(self, stream: Iterable[Any]) -> Iterator[list[Event]]:
        """Learn each batch of the stream, as Algorithm 1 says."""
        return self.learner.learn(stream)

    def probabilities(self, x: Tensor) -> Tensor:
        """q(y|x) [N, K]."""
        return posterior(self.model, x).cpu()

    def embed(self, x: Tensor, sampled: Generator | None = None) -> Tensor:
        """The mean of q(z|x, argmax y) [N, Z], or a sample of z and y."""
        return embed(self.model, x, sampled).cpu()

    def bounds(self, x: Tensor, rng: Generator, tau: float) -> Tensor:
        """L(x) of each row [N]."""
        return bounds(self.model, x, rng, tau).cpu()

    def generated(self, n: int, rng: Generator) -> Tensor:
        """The mean of p(x|z) for n draws of z ~ p(z|y) of each component [K, n, D]."""
        with eval_mode(self.model):
            z = self.model.p_z(torch.arange(self.K, device=self.model.device).repeat_interleave(n)).sample(rng)[0]
            return self.model.mean(z).view(self.K, n, -1).cpu()

    def centres(self) -> Tensor:
        """The mean of p(z|y) of each component [K, Z]."""
        with eval_mode(self.model):
            return self.model.p_z(torch.arange(self.K, device=self.model.device)).mean.cpu()

    def figures(self) -> dict[str, Any]:
        """How much of the real stream each component stands for."""
        return {"counts": self.learner.memory.counts().tolist()}

    def state(self) -> State:
        """The state of the learner."""
        return self.learner.state()

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        self.learner.restore(fields)
