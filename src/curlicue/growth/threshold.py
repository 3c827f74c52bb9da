"""Growth by a fixed threshold (the paper's): a sample whose bound is below c_new is poorly explained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from curlicue.config.kinds import require
from curlicue.growth.d_new import Buffer
from curlicue.growth.protocol import Birth, Examples, Growth, GrowthConfig, Tuned
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


@dataclass(frozen=True, kw_only=True)
class Threshold(GrowthConfig):
    """A component is born of n_new real samples with a bound below c_new."""

    c_new: float = -200.0  # nats; a real sample whose bound is lower joins D_new
    n_new: int = 100  # size of D_new that triggers a birth
    burn_in: int = 100  # steps before D_new begins to collect
    wait: int = 100  # real steps after a birth before D_new collects again
    passes: int = 10  # over D_new, to fit the newborn
    tuned: Tuned = Tuned.ALL  # which parameters fit a newborn: all, or its heads only

    def __post_init__(self) -> None:
        super().__post_init__()
        require(math.isfinite(self.c_new), "c_new", self.c_new, "a finite number of nats")
        require(self.n_new >= 1, "n_new", self.n_new, "an int in the range [1, inf)")
        for name in ("burn_in", "wait", "passes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "an int in the range [0, inf)")

    def start(self, model: MixtureVAE, examples: Examples | None = None) -> ThresholdRule:
        """The rule, with an empty D_new."""
        return ThresholdRule(self, model)


class ThresholdRule(Growth):
    """Gathers the real samples whose bound is below c_new."""

    def __init__(self, config: Threshold, model: MixtureVAE) -> None:
        self.config = config
        self.d_new = Buffer(model, config.n_new, config.wait)

    def look(self, x: Tensor, terms: ElboTerms, t: int) -> int:
        """Samples below c_new join D_new once the burn-in is over."""
        return self.d_new.add(x, (terms.bound < self.config.c_new) & (t >= self.config.burn_in))

    def due(self) -> Birth | None:
        """A birth when D_new is full."""
        return self.d_new.due(self.config.passes, self.config.tuned)

    def state(self) -> State:
        """D_new, which is all that this rule remembers."""
        return {"d_new": self.d_new.state()}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        self.d_new.restore(fields.state("d_new"))
