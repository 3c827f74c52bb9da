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

from curlicue.model.devices import sent


@dataclass(frozen=True)
class Choice:
    """The pairs that the sparse bound visits, on the CPU, ordered by component."""

    rows: Tensor  # [N] int64
    ks: Tensor  # [N] int64, ascending
    p: Tensor  # [N], the probability with which each was chosen
    best: Tensor  # [B], which pair is that of the row's k*


def choose(q_y: Tensor, tau: float, rng: Generator) -> Choice:
    """k* of each row of q_y [B, K], and the pair (b, k) with probability p = min(1, q/τ). One copy to the CPU."""
    q = q_y.detach().cpu()
    B, K = q.shape
    u = torch.rand(B * K, generator=rng, dtype=q.dtype).view(K, B)
    top = q.argmax(1)  # [B]
    p = (q.t() / tau).clamp_max(1)  # [K, B]
    p.scatter_(0, top[None], 1.0)
    ks, rows = (u < p).nonzero().unbind(1)
    place = torch.empty(K, B, dtype=torch.int64)
    place[ks, rows] = torch.arange(len(ks))
    return Choice(rows, ks, p[ks, rows], place.gather(0, top[None])[0])


def by_component(y: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The pairs (row b, component y_b), ordered by component: rows [B] and components [B], given y [B] on the CPU."""
    ks, rows = torch.sort(y, stable=True)
    if len(ks) and not 0 <= ks[0] <= ks[-1] < K:
        raise IndexError(f"Components must be in the range [0, {K - 1}]. Got {ks[0]} to {ks[-1]}.")
    return rows, ks


@dataclass(frozen=True)
class Pairs:
    """N pairs (row b of the batch, component k), ordered by component; all tensors are on the model's device."""

    rows: Tensor  # [N] int64
    ks: Tensor  # [N] int64, ascending
    groups: Groups
    weights: Tensor | None = None  # [N]; None: all 1
    best: Tensor | None = None  # [B], which pair is that of the row's k*; None: all pairs of a row are here

    @classmethod
    def every(cls, q_y: Tensor) -> Pairs:
        """All B·K pairs, weighed by q(y|x): the exact sum."""
        B, K = q_y.shape
        rows, ks = torch.arange(B).repeat(K), torch.arange(K).repeat_interleave(B)
        groups, weights = Groups.of(rows, ks, q_y.device), q_y.t().reshape(-1)
        return cls(sent(rows, q_y.device), sent(ks, q_y.device), groups, weights)

    @classmethod
    def sparse(cls, q_y: Tensor, tau: float, rng: Generator) -> Pairs:
        """k* of each row, and the pair (b, k) with probability p = min(1, q/τ), weighed by q/p."""
        chosen = choose(q_y, tau, rng)
        groups = Groups.of(chosen.rows, chosen.ks, q_y.device)
        rows, ks, p, best = (sent(each, q_y.device) for each in (chosen.rows, chosen.ks, chosen.p, chosen.best))
        # index_select, whose backward is far cheaper than that of fancy indexing
        weights = q_y.reshape(-1).index_select(0, rows * q_y.shape[1] + ks) / p
        return cls(rows, ks, groups, weights, best)

    @classmethod
    def given(cls, y: Tensor, K: int, device: torch.device) -> Pairs:
        """One pair a sample: the component y [B], each in the range [0, K − 1]."""
        rows, ks = by_component(y.cpu(), K)
        return cls(sent(rows, device), sent(ks, device), Groups.of(rows, ks, device))

    def sum_rows(self, f: Tensor, B: int) -> Tensor:
        """Σₖ q f for each row, or its estimate: [N] → [B]."""
        if self.weights is None:
            return f.new_zeros(B).index_copy(0, self.rows, f)
        if self.best is None:
            return f.new_zeros(B).index_add(0, self.rows, self.weights * f)
        f_best = f.detach().index_select(0, self.best)  # [B]
        surplus = f - f_best.index_select(0, self.rows)  # [N]
        return f_best.index_add(0, self.rows, self.weights * surplus)


@dataclass(frozen=True)
class Groups:
    """The pairs laid out as [A, n]: one line for each of the A components that occur, padded to the longest."""

    active: Tensor  # [A], the components that occur, ascending
    gather: Tensor  # [A·n], the batch row in each place (row 0 where there is none)
    places: Tensor  # [N], where each pair lies

    @classmethod
    def of(cls, rows: Tensor, ks: Tensor, device: torch.device) -> Groups:
        """The layout of the pairs (rows [N], ks [N] ascending), computed on the CPU and moved to `device`."""
        active, line, counts = torch.unique_consecutive(ks, return_inverse=True, return_counts=True)
        n = int(counts.max()) if len(counts) else 0
        first = counts.cumsum(0) - counts  # [A], of each component's pairs
        places = line * n + torch.arange(len(ks)) - first[line]
        gather = torch.zeros(len(active) * n, dtype=torch.int64)
        gather[places] = rows
        return cls(sent(active, device), sent(gather, device), sent(places, device))
