"""Has the stream changed? From which components explain it, lately and for some time."""

from __future__ import annotations

import torch
from torch import Tensor

from curlicue.records.state import Fields, State


class ChangeDetector:
    """Compares the shares of the components, lately and for some time; after a change both begin anew."""

    ROWS = torch.tensor([[500.0], [5000.0]])  # real samples that either share remembers, or so,
    BATCHES = torch.tensor([[1.0], [10.0]])  # but at least so many batches
    APART = 0.25  # share of the stream that has moved from some components to others: a change

    def __init__(self, K: int) -> None:
        self.shares = torch.zeros(2, K)  # lately; for some time
        self.rows = 0  # since the latest change

    def update(self, q_y: Tensor) -> bool:
        """Take in q(y|x) of a batch [B, K]; whether with it the stream has changed."""
        now, self.rows = q_y.mean(0).float(), self.rows + len(q_y)
        remembered = torch.maximum(self.ROWS, len(q_y) * self.BATCHES).clamp_max(self.rows)
        self.shares = torch.lerp(self.shares, now, len(q_y) / remembered)
        lately, for_some_time = self.shares
        changed = 0.5 * float((lately - for_some_time).abs().sum()) > self.APART
        if changed:
            self.shares, self.rows = now.repeat(2, 1), len(q_y)
        return changed

    def grow(self) -> None:
        """A component is born: that is a change."""
        self.shares, self.rows = torch.zeros(2, self.shares.shape[1] + 1), 0

    def state(self) -> State:
        """The shares, and since how many samples."""
        return {"shares": self.shares, "rows": self.rows}

    def restore(self, fields: Fields, K: int) -> None:
        """Go on from `state`."""
        self.shares, self.rows = fields.tensor("shares", (2, K), torch.float32), fields.count("rows")
