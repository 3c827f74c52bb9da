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

from curlicue.model import kernels


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
        u = torch.rand(B * K, generator=rng)
        chosen = kernels.choose(q_y.detach().numpy(), u.numpy(), tau)
        rows, ks, p, best = map(torch.from_numpy, chosen)
        # index_select, whose backward is far cheaper than that of fancy indexing
        return cls(rows, ks, q_y.reshape(-1).index_select(0, rows * K + ks) / p, best)

    @classmethod
    def given(cls, y: Tensor) -> Pairs:
        """One pair a sample: the component y [B]."""
        ks, rows = torch.sort(y, stable=True)
        return cls(rows, ks)

    def check(self, K: int) -> None:
        """An error if there are no such components: compiled loops do not look."""
        ks = self.ks.numpy()
        if len(ks) and not 0 <= ks[0] <= ks[-1] < K:
            raise IndexError(f"Components must be in the range [0, {K - 1}]. Got {ks[0]} to {ks[-1]}.")

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
        pairs.check(K)
        return cls(*map(torch.from_numpy, kernels.arrange(pairs.rows.numpy(), pairs.ks.numpy(), K)))
