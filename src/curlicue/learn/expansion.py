"""D_new: who is poorly modelled, when to grow, whom to copy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curlicue.config import ExpansionConfig
from curlicue.model.mixture import MixtureVAE, looking

MEMORY = 5000  # samples after which what was normal is half forgotten, or so
NOBODY = torch.empty(0, 0), torch.empty(0, dtype=torch.int64)
STD_FLOOR = 1.0  # nats; samples that are all alike have hardly any deviation


@dataclass
class Normal:
    """Mean and variance of the bound, over the latest samples that were not poorly modelled."""

    n: float = 0.0  # samples, as far as they are remembered
    mean: float = 0.0
    var: float = 0.0

    def update(self, bound: Tensor) -> None:
        """Take in the bounds of a batch [B]; what came before weighs as MEMORY samples at most."""
        bound = bound[bound.isfinite()]
        if not len(bound):
            return
        before, now = min(self.n, MEMORY), len(bound)
        self.n = before + now
        mean, var = float(bound.double().mean()), float(bound.double().var(correction=0))
        surprise = mean - self.mean
        self.mean += surprise * now / self.n
        self.var = (before * self.var + now * var + surprise**2 * before * now / self.n) / self.n

    def below(self, deviations: float) -> float:
        """The bound so many standard deviations below the mean; nothing is below it before anything was seen."""
        return self.mean - deviations * max(math.sqrt(self.var), STD_FLOOR) if self.n else -math.inf


class PoorlyModelled:
    """D_new: real samples whose bound is below c_new, gathered until they are enough for a component."""

    def __init__(self, config: ExpansionConfig) -> None:
        self.config = config
        self.samples, self.numbers = NOBODY  # [N, D]; [N], the how-manieth real sample each was
        self.seen = 0  # real samples
        self.normal = Normal()
        self.real_steps_to_wait = 0  # until D_new may collect again

    @property
    def c_new(self) -> float:
        """The threshold: as set, or measured against what is normal now."""
        return self.normal.below(self.config.deviations) if self.config.c_new is None else self.config.c_new

    def eligible(self, t: int) -> bool:
        """Whether step t may add to D_new: after the burn-in and the wait since the last birth."""
        return t >= self.config.burn_in and self.real_steps_to_wait == 0

    def consider(self, x: Tensor, bound: Tensor, t: int) -> int:
        """Add the poorly explained of a real batch; return how many they are."""
        line = self.c_new
        poor = bound < line if self.eligible(t) else torch.zeros_like(bound, dtype=torch.bool)  # [B]
        if self.config.c_new is None:  # while D_new may not collect, what is poor counts as if it lay on the line
            self.normal.update(bound[~poor].clamp_min(line))
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
