"""Are two samples of one kind? Asked of nearest neighbours (Schilling's test).

In the union of two samples of one kind, as large as each other, half of a row's neighbours are of its own sample; of
two kinds, more are. Nothing is assumed about the shape of either, and no model is asked that learns. Neighbours are
found in three views of the rows, and that counts in which the samples mix least: their principal components; how far a
row is from the middle, for samples that differ in spread; and the direction in which the means differ, for samples that
differ in few of many features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

NEIGHBOURS = 10
DIMENSIONS = 50  # principal components that distances are measured in


@dataclass(frozen=True)
class Apart:
    """How far two samples are apart."""

    unlike: float  # share of neighbours of one's own sample, mean over both samples; 0.5 if they mix
    own: Tensor  # [N], for each row of the first, the share of the first among its neighbours' neighbours
    foreign: Tensor  # [M], for each row of the second, the share of the first among its neighbours


def apart(first: Tensor, second: Tensor, standardise: bool) -> Apart:
    """How far two samples, [N, D] and [M, D], are apart, in the view in which they mix least."""
    mine = torch.arange(len(first) + len(second)) < len(first)
    views = _views(torch.cat([first, second]), mine, standardise)
    return max((_apart(neighbours(view), mine) for view in views), key=lambda found: found.unlike)


def _apart(near: Tensor, mine: Tensor) -> Apart:
    """Neighbours are weighed as if both samples were as large."""
    ours = float(mine.double().mean())
    weight = torch.where(mine, 1 / ours, 1 / (1 - ours))[near]  # [N + M, n]
    share = (weight * (mine[near] == mine[:, None])).sum(1) / weight.sum(1)
    unlike = float(share[mine].mean() + share[~mine].mean()) / 2
    return Apart(unlike, torch.where(mine, share, 1 - share)[near[mine]].mean(1), 1 - share[~mine])


def _views(x: Tensor, mine: Tensor, standardise: bool) -> Iterator[Tensor]:
    u = principal(x, standardise)
    yield u
    yield (u - u[~mine].mean(0)).norm(dim=1, keepdim=True).clamp_min(1e-12).log()
    yield _along_means(x, mine)


def _along_means(x: Tensor, mine: Tensor) -> Tensor:
    """Each row along the direction in which the means of both samples differ clearly: [N, D] → [N, 1].

    For one half of the rows the direction is that of the other half; it is zero where no feature differs clearly.
    """
    out, half = x.new_zeros(len(x), 1), torch.arange(len(x)) % 2 == 0
    for seen, others in ((half, ~half), (~half, half)):
        a, b = x[seen & mine], x[seen & ~mine]
        if min(len(a), len(b)) < 2:
            continue
        var = (a.var(0) + b.var(0)) / 2
        t = (a.mean(0) - b.mean(0)) / (var * (1 / len(a) + 1 / len(b)) + 1e-12).sqrt()
        way = torch.where(t.abs() > math.sqrt(2 * math.log(x.shape[1] + 10)), t / (var + 1e-12).sqrt(), 0.0)
        out[others] = ((x[others] - x[seen].mean(0)) @ way)[:, None]
    return out


def principal(x: Tensor, standardise: bool, n: int = DIMENSIONS) -> Tensor:
    """The first principal components of the rows: [N, D] → [N, at most n]."""
    x = x.double() - x.double().mean(0)
    if standardise:
        std = x.std(0, correction=0)
        x = x / torch.where(std > 0, std, 1.0)
    if len(x) <= x.shape[1]:  # the smaller of the two products
        values, vectors = torch.linalg.eigh(x @ x.t())
        scores: Tensor = vectors * values.clamp_min(0).sqrt()
        return scores[:, -n:].float()
    scores = x @ torch.linalg.eigh(x.t() @ x).eigenvectors[:, -n:]
    return scores.float()


def neighbours(x: Tensor, n: int = NEIGHBOURS) -> Tensor:
    """The indices of the nearest other rows of each row: [N, Z] → [N, at most n]."""
    distance = torch.cdist(x, x).fill_diagonal_(math.inf)
    nearest: Tensor = distance.topk(min(n, len(x) - 1), largest=False).indices
    return nearest


def nearest_of(x: Tensor, others: Tensor) -> Tensor:
    """For each row [N, Z], which of the others [M, Z] is nearest [N]."""
    middle = others.mean(0)  # far from zero, differences would be lost in rounding
    others = others - middle
    return torch.cat([torch.cdist(part - middle, others).argmin(1) for part in x.split(1000)])


def chosen(indices: Tensor, n: int, rng: Generator) -> Tensor:
    """So many of the indices [N] at random, or all in random order if there are fewer."""
    return indices[torch.randperm(len(indices), generator=rng)[:n]]


def first_of_each(x: Tensor) -> Tensor:
    """Indices of rows [N, D] of which no two are equal, and that every row is equal to one of."""
    _, kind = x.unique(dim=0, return_inverse=True)
    first = torch.full((int(kind.max()) + 1,), len(x))
    return first.scatter_reduce(0, kind, torch.arange(len(x)), "amin").sort().values
