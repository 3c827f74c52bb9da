"""Which (sample, component) pairs of a batch are visited, and with what weight.

Σₖ q(y=k|x) f(x, k) is a sum over K components of which almost all have almost no mass. Visiting the pair (b, k)
with probability p = min(1, q/τ) and weighing it by q/p leaves value and gradient unbiased (p is held constant),
and visits little more than one pair a sample once q(y|x) is peaked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Pairs:
    """N pairs (row b of the batch, component k), ordered by component."""

    rows: Tensor  # [N] int64
    ks: Tensor  # [N] int64, ascending
    weights: Tensor | None  # [N], None: all 1

    @classmethod
    def every(cls, q_y: Tensor) -> Pairs:
        """All B·K pairs, weighed by q(y|x): the exact sum."""
        B, K = q_y.shape
        ks = torch.arange(K).repeat_interleave(B)
        return cls(torch.arange(B).repeat(K), ks, q_y.t().reshape(-1))

    @classmethod
    def sparse(cls, q_y: Tensor, tau: float, rng: Generator) -> Pairs:
        """The pair (b, k) with probability p = min(1, q/τ), weighed by q/p."""
        q_t = q_y.t()  # [K, B]: components first
        with torch.no_grad():
            p = (q_t / tau).clamp_max_(1.0)
            ks, rows = (torch.rand(p.shape, generator=rng) < p).nonzero().unbind(1)
            flat = rows * q_y.shape[1] + ks  # index_select's backward is far cheaper than fancy indexing's
            p_kept = p.reshape(-1).index_select(0, ks * q_y.shape[0] + rows)
        return cls(rows, ks, q_y.reshape(-1).index_select(0, flat) / p_kept)

    @classmethod
    def given(cls, y: Tensor) -> Pairs:
        """One pair a sample: the component y [B]."""
        ks, rows = torch.sort(y, stable=True)
        return cls(rows, ks, None)

    def sum_rows(self, values: Tensor, B: int) -> Tensor:
        """Σ over a row's pairs of weight · value: [N] → [B]."""
        weighed = values if self.weights is None else self.weights * values
        return torch.zeros(B).index_add(0, self.rows, weighed)


@dataclass(frozen=True)
class Groups:
    """The pairs laid out as [A, n]: one line for each of the A components that occur, padded to the longest."""

    active: Tensor  # [A], the components
    gather: Tensor  # [A·n], the batch row in each place (row 0 where there is none)
    places: Tensor  # [N], where each pair lies

    @classmethod
    def of(cls, pairs: Pairs, K: int) -> Groups:
        """Lay out `pairs`."""
        counts = torch.bincount(pairs.ks, minlength=K)  # [K]
        n = int(counts.max())
        occurs = counts > 0
        line = occurs.cumsum(0) - 1  # [K], component → line
        start = counts.cumsum(0) - counts  # [K], component → its first pair
        places = torch.arange(len(pairs.ks)) + (line * n - start).index_select(0, pairs.ks)
        active = occurs.nonzero().squeeze(1)
        gather = torch.zeros(len(active) * n, dtype=torch.int64).index_copy_(0, places, pairs.rows)
        return cls(active, gather, places)
