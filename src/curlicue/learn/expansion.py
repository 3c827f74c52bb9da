"""D_new: who is poorly modelled, when to grow, whom to copy."""

from __future__ import annotations

import torch
from torch import Tensor

from curlicue.config import ExpansionConfig
from curlicue.model.mixture import MixtureVAE


class PoorlyModelled:
    """D_new: real samples whose bound is below c_new, gathered until they are enough for a component."""

    def __init__(self, config: ExpansionConfig) -> None:
        self.config = config
        self.samples: list[Tensor] = []
        self.real_steps_to_wait = 0  # until D_new may collect again

    @property
    def size(self) -> int:
        """|D_new|."""
        return sum(len(x) for x in self.samples)

    def eligible(self, t: int, K: int) -> bool:
        """Whether step t may add to D_new: after the burn-in, the wait since the last birth, and below the cap."""
        cap = self.config.max_components
        return t >= self.config.burn_in and self.real_steps_to_wait == 0 and (cap is None or cap > K)

    def consider(self, x: Tensor, bound: Tensor, t: int, K: int) -> int:
        """Add the poorly explained of a real batch; return how many they are."""
        poor = x[bound < self.config.c_new] if self.eligible(t, K) else x[:0]
        if len(poor):
            self.samples.append(poor)
        self.real_steps_to_wait = max(0, self.real_steps_to_wait - 1)
        return len(poor)

    @property
    def full(self) -> bool:
        """Whether a component can be born."""
        return self.size >= self.config.n_new

    def empty(self) -> Tensor:
        """Hand over D_new [N, D] and begin the wait for the next."""
        d_new = torch.cat(self.samples)
        self.samples, self.real_steps_to_wait = [], self.config.wait
        return d_new


@torch.no_grad()
def closest_component(model: MixtureVAE, d_new: Tensor) -> int:
    """k* = argmaxₖ Σ_{x ∈ D_new} q(y=k|x)."""
    return int(model.log_q_y(model.encode(d_new)).exp().sum(0).argmax())
