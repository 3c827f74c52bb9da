"""Growth by a measured threshold: a sample is poorly explained if its bound is far below what its component had lately.

For streams of which no number of nats is known. Each component has running statistics of the bounds of the samples
that it explained well; the line lies `deviations` standard deviations below their mean, and n_new of the latest
`window` samples below it make a component (docs/decisions/0011-defaults-of-the-estimator.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curlicue.config.kinds import require
from curlicue.growth.d_new import Buffer
from curlicue.growth.protocol import Birth, Examples, Growth, GrowthConfig, Tuned
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State

REMEMBERED = 5000  # samples by which the running statistics forget half, or so
WARM_UP = 20  # times n_new: samples that a component must have explained before others are measured against them
STD_FLOOR = 1.0  # nats; samples that are all alike have hardly any deviation


@dataclass(frozen=True, kw_only=True)
class Measured(GrowthConfig):
    """A component is born when n_new of the latest `window` samples lie far below what is normal."""

    deviations: float = 2.0  # standard deviations below the mean at which a sample is poorly explained
    n_new: int = 100  # size of D_new that triggers a birth
    window: float = 5.0  # times n_new: real samples after which a sample leaves D_new
    wait: int = 20  # real steps after a birth before D_new collects again
    passes: int = 100  # over D_new, to fit the newborn
    tuned: Tuned = Tuned.HEADS  # which parameters fit a newborn: all, or its heads only

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.deviations < math.inf, "deviations", self.deviations, "a float in the range (0, inf)")
        require(self.n_new >= 1, "n_new", self.n_new, "an int in the range [1, inf)")
        require(1 <= self.window < math.inf, "window", self.window, "a float in the range [1, inf)")
        for name in ("wait", "passes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "an int in the range [0, inf)")

    def start(self, model: MixtureVAE, examples: Examples | None = None) -> MeasuredRule:
        """The rule, for components that have explained nothing yet."""
        return MeasuredRule(self, model)


class MeasuredRule(Growth):
    """Gathers the real samples that lie below the line of their component."""

    def __init__(self, config: Measured, model: MixtureVAE) -> None:
        self.config, self.model = config, model
        self.d_new = Buffer(model, config.n_new, config.wait, int(config.window * config.n_new))
        self.normal = RunningStatistics(model.K)

    def look(self, x: Tensor, terms: ElboTerms, t: int) -> int:
        """Samples below their component's line join D_new; all others move the line."""
        bound, y = terms.bound, terms.q_y.argmax(1)
        poor = bound < self.normal.line(self.config.deviations, WARM_UP * self.config.n_new)[y]
        self.normal.update(bound[~poor], y[~poor])
        return self.d_new.add(x, poor)

    def due(self) -> Birth | None:
        """A birth when D_new is full."""
        return self.d_new.due(self.config.passes, self.config.tuned)

    def born(self) -> None:
        """The newborn has explained nothing yet."""
        self.normal.grow()

    def refused(self) -> None:
        """What the components learn of the refused samples becomes normal."""
        self.normal.forget()

    def state(self) -> State:
        """D_new and the running statistics."""
        return {"d_new": self.d_new.state(), "normal": self.normal.figures}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        self.normal.figures = fields.tensor("normal", (3, self.model.K), torch.float64)
        self.d_new.restore(fields.state("d_new"))


class RunningStatistics:
    """Mean and variance of the bound for each component, over the latest samples that it explained well."""

    def __init__(self, K: int) -> None:
        self.figures = torch.zeros(3, K, dtype=torch.float64)  # samples as far as remembered, mean, variance

    def update(self, bound: Tensor, y: Tensor) -> None:
        """Take in the bounds [B] of samples explained by y [B]; earlier samples weigh as REMEMBERED ones at most."""
        finite = bound.isfinite()
        bound, y = bound[finite].double(), y[finite]
        n, mean, var = self.figures
        zeros = torch.zeros_like(n)
        before, now = n.clamp_max(REMEMBERED), zeros.index_add(0, y, torch.ones_like(bound))
        new_mean = zeros.index_add(0, y, bound) / now.clamp_min(1)
        new_var = zeros.index_add(0, y, (bound - new_mean[y]).square()) / now.clamp_min(1)
        n, surprise = before + now, new_mean - mean
        share = now / n.clamp_min(1)
        var = (1 - share) * var + share * new_var + share * (1 - share) * surprise.square()
        self.figures = torch.where(now > 0, torch.stack([n, mean + share * surprise, var]), self.figures)

    def line(self, deviations: float, warm_up: int) -> Tensor:
        """For each component [K], the bound so many standard deviations below the mean.

        −∞ for a component that has explained fewer than `warm_up` samples: nobody can tell yet what is normal for it.
        """
        n, mean, var = self.figures
        line = mean - deviations * var.sqrt().clamp_min(STD_FLOOR)
        return torch.where(n >= min(warm_up, REMEMBERED), line, -math.inf).float()

    def grow(self) -> None:
        """Add a component that has explained nothing yet."""
        self.figures = torch.cat([self.figures, torch.zeros_like(self.figures[:, :1])], 1)

    def forget(self) -> None:
        """All components begin to warm up again."""
        self.figures = torch.zeros_like(self.figures)
