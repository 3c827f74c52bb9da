"""D_new: who is poorly modelled, when to grow, whom to copy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from curlicue.config import ExpansionConfig
from curlicue.model.mixture import MixtureVAE, looking

MEMORY = 5000  # samples after which what was normal is half forgotten, or so
WARM_UP = 20  # times n_new: samples that a component must have explained before others are measured against them
NOBODY = torch.empty(0, 0), torch.empty(0, dtype=torch.int64)
STD_FLOOR = 1.0  # nats; samples that are all alike have hardly any deviation


class Normal:
    """Mean and variance of the bound for each component, over the latest samples it explained and explained well."""

    def __init__(self, K: int) -> None:
        self.figures = torch.zeros(3, K, dtype=torch.float64)  # n as far as they are remembered, mean, variance

    def update(self, bound: Tensor, y: Tensor) -> None:
        """Take in the bounds [B] of samples explained by y [B]; what came before weighs as MEMORY samples at most."""
        finite = bound.isfinite()
        bound, y = bound[finite].double(), y[finite]
        n, mean, var = self.figures
        zeros = torch.zeros_like(n)
        before, now = n.clamp_max(MEMORY), zeros.index_add(0, y, torch.ones_like(bound))
        new_mean = zeros.index_add(0, y, bound) / now.clamp_min(1)
        new_var = zeros.index_add(0, y, (bound - new_mean[y]).square()) / now.clamp_min(1)
        n, surprise = before + now, new_mean - mean
        share = now / n.clamp_min(1)
        var = (1 - share) * var + share * new_var + share * (1 - share) * surprise.square()
        self.figures = torch.where(now > 0, torch.stack([n, mean + share * surprise, var]), self.figures)

    def below(self, deviations: float, warm_up: int) -> Tensor:
        """For each component [K], the bound so many standard deviations below the mean; −∞ until it has explained
        `warm_up` samples: before that nobody can tell what is normal.
        """
        n, mean, var = self.figures
        line = mean - deviations * var.sqrt().clamp_min(STD_FLOOR)
        return torch.where(n >= min(warm_up, MEMORY), line, -math.inf).float()

    def grow(self) -> None:
        """A component is born, and has explained nothing yet."""
        self.figures = torch.cat([self.figures, torch.zeros_like(self.figures[:, :1])], 1)

    def forget(self) -> None:
        """All components begin to warm up again."""
        self.figures = torch.zeros_like(self.figures)


class PoorlyModelled:
    """D_new: real samples whose bound is below c_new, gathered until they are enough for a component."""

    def __init__(self, config: ExpansionConfig, K: int) -> None:
        self.config = config
        self.samples, self.numbers = NOBODY  # [N, D]; [N], the how-manieth real sample each was
        self.seen = 0  # real samples
        self.normal = Normal(K)
        self.real_steps_to_wait = 0  # until D_new may collect again

    def poor(self, bound: Tensor, y: Tensor) -> Tensor:
        """Which samples [B] lie below c_new as set, or as measured for the component y [B] that explains them best."""
        if self.config.c_new is not None:
            return bound < self.config.c_new
        return bound < self.normal.below(self.config.deviations, WARM_UP * self.config.n_new)[y]

    def eligible(self, t: int) -> bool:
        """Whether step t may add to D_new: after the burn-in and the wait since the last birth."""
        return t >= self.config.burn_in and self.real_steps_to_wait == 0

    def consider(self, x: Tensor, bound: Tensor, y: Tensor, t: int) -> int:
        """Add the poorly explained of a real batch; return how many they are."""
        poor = self.poor(bound, y)  # [B]
        if self.config.c_new is None:
            self.normal.update(bound[~poor], y[~poor])
        poor &= self.eligible(t)
        places = poor.nonzero().squeeze(1)
        if len(places):
            kept = self.samples if len(self.samples) else x[:0]
            self.samples = torch.cat([kept, x.index_select(0, places)])
            self.numbers = torch.cat([self.numbers, self.seen + places])
        self.seen += len(x)
        if self.config.window is not None and len(self.samples):
            recent = self.numbers >= self.seen - self.config.window
            self.samples, self.numbers = self.samples[recent], self.numbers[recent]
        self.real_steps_to_wait = max(0, self.real_steps_to_wait - 1)
        return len(places)

    @property
    def full(self) -> bool:
        """Whether a component can be born."""
        return len(self.samples) >= self.config.n_new

    def empty(self) -> Tensor:
        """Hand over D_new [N, D] and begin the wait for the next."""
        d_new, (self.samples, self.numbers) = self.samples, NOBODY
        self.real_steps_to_wait = self.config.wait
        return d_new


def closest_component(model: MixtureVAE, d_new: Tensor) -> int:
    """k* = argmaxₖ Σ_{x ∈ D_new} q(y=k|x)."""
    with looking(model):
        return int(model.log_q_y(model.encode(d_new)).exp().sum(0).argmax())
