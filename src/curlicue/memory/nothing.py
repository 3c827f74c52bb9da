"""No memory: nothing is rehearsed, and only how often each component was used is known."""

from __future__ import annotations

import torch
from torch import Tensor

from curlicue.memory.protocol import Memory, Past, SnapshotTaken
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


class Nothing(Memory):
    """Counts the real samples that each component explains."""

    def __init__(self, model: MixtureVAE) -> None:
        self.model = model
        self.used = torch.zeros(model.K, dtype=torch.float64)  # [K], Σ q(y|x) over real samples

    def begin(self, t: int) -> list[SnapshotTaken]:
        """Nothing happens."""
        return []

    def look(self, terms: ElboTerms, t: int) -> list[SnapshotTaken]:
        """Nothing happens."""
        return []

    def take(self, x: Tensor, terms: ElboTerms, y: Tensor | None = None) -> None:
        """Count the real samples that each component explains."""
        self.used += terms.q_y.sum(0, dtype=torch.float64)

    def before_birth(self, t: int) -> list[SnapshotTaken]:
        """Nothing happens."""
        return []

    def born(self, d_new: Tensor | None = None, members: Tensor | None = None) -> None:
        """The newborn has explained nothing yet."""
        self.used = torch.cat([self.used, self.used.new_zeros(1)])

    @property
    def ready(self) -> bool:
        """There is never anything to rehearse."""
        return False

    def recall(self, n: int) -> Past:
        """There is nothing to recall."""
        raise LookupError("This learner keeps nothing of the past.")

    def recalled(self, past: Past, terms: ElboTerms) -> None:
        """Nothing was recalled."""

    def counts(self) -> Tensor:
        """Σ q(y|x) over the real stream."""
        return self.used

    def state(self) -> State:
        """The counts."""
        return {"used": self.used}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        self.used = fields.tensor("used", (self.model.K,), torch.float64)
