"""Which (sample, component) pairs of a batch are visited, and with what weight.

Σₖ q(y=k|x) f(x, k) is a sum over K components of which almost all have almost no mass. The pair (b, k) is visited
with probability p = min(1, q/τ) and weighed by w = q/p, p held constant: value and gradient stay unbiased. A row's
most probable component k* is always visited, and its f, held constant, is what the others are measured against:

    Σₖ q f  =  f* + Σₖ q (f − f*)  ≈  f* + Σ over visited pairs of w (f − f*),

unbiased too, for f* does not depend on which other pairs are drawn, and far less noisy, for f − f* is small where
several components explain a sample about equally well.
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
    weights: Tensor | None = None  # [N]; None: all 1
    best: Tensor | None = None  # [B], which pair is that of the row's k*; None: all pairs of a row are here

    @classmethod
    def every(cls, q_y: Tensor) -> Pairs:
        """All B·K pairs, weighed by q(y|x): the exact sum."""
        B, K = q_y.shape
        ks = torch.arange(K).repeat_interleave(B)
        return cls(torch.arange(B).repeat(K), ks, q_y.t().reshape(-1))

    @classmethod
    def sparse(cls, q_y: Tensor, tau: float, rng: Generator) -> Pairs:
        """k* of each row, and the pair (b, k) with probability p = min(1, q/τ), weighed by q/p."""
        B, K = q_y.shape
        flat_q = q_y.t().reshape(-1)  # [K·B], components first
        with torch.no_grad():
            p = (flat_q / tau).clamp_max_(1.0)
            best = q_y.argmax(1) * B + torch.arange(B)  # [B], places in flat_q
            p.index_fill_(0, best, 1.0)
            visited = torch.rand(B * K, generator=rng) < p
            places = visited.nonzero().squeeze(1)  # [N]
            rank = visited.cumsum(0) - 1  # place → pair
        # index_select, whose backward is far cheaper than that of fancy indexing
        weights = flat_q.index_select(0, places) / p.index_select(0, places)
        return cls(places % B, places // B, weights, rank.index_select(0, best))

    @classmethod
    def given(cls, y: Tensor) -> Pairs:
        """One pair a sample: the component y [B]."""
        ks, rows = torch.sort(y, stable=True)
        return cls(rows, ks)

    def sum_rows(self, f: Tensor, B: int) -> Tensor:
        """Σₖ q f for each row, or its estimate: [N] → [B]."""
        if self.weights is None:
            return torch.zeros(B).index_copy(0, self.rows, f)
        if self.best is None:
            return torch.zeros(B).index_add(0, self.rows, self.weights * f)
        f_best = f.detach().index_select(0, self.best)  # [B]
        surplus = f - f_best.index_select(0, self.rows)  # [N]
        return f_best.index_add(0, self.rows, self.weights * surplus)


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
