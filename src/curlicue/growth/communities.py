"""Clusters at rest: communities of the rows' neighbour graph, joined wherever no valley parts them.

Features scaled by their range → principal components → graph of near neighbours, weighed by how many they have in
common → communities of high modularity, too many on purpose → the pair with the shallowest valley is joined, again and
again, until every pair that is left has a valley.

The valley between two communities a, b is read off their subgraph alone. A random walk from both orders the rows from
deep in a to deep in b; cut(t) is the weight of the edges that pass rank t. One cluster cut in two has its largest cut
in the middle; two clusters have a smaller cut there than further inside each: q = min cut / smaller of the two inner
maxima. The graph is scipy's, for torch has no sparse products that are fast enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

Rows = NDArray[np.int64]
Pair = tuple[int, int]

PCS = 30  # principal components kept
K_NEAREST = 15  # neighbours of a row, when features are many
RESOLUTION = 2.0  # of the modularity; higher means more and smaller communities
STEPS = 5  # of the random walk that orders the rows of two communities
SPAN_MAX = 10.0  # standard deviations; a feature with a longer range is scaled by that many
Q_MAX = 0.6  # a cut this close to the inner cuts is no valley, however many rows attest it
PARTNERS = 4  # best connected communities that a community is compared with


@dataclass(frozen=True)
class Valley:
    """What parts two communities."""

    q: float  # the cut at the bottom, relative to the inner cuts
    z: float  # standard errors by which q is below 1
    dimension: float  # intrinsic dimension of the rows on both sides

    @property
    def excess(self) -> float:
        """Evidence for two clusters beyond that of one cut in two: few dimensions allow deeper valleys by chance."""
        return self.z * (1 - self.q / Q_MAX) - (0.2 + 6 / self.dimension)


def partition(x: Tensor, rng: Generator, K: int | None = None, margin: float = 0.0) -> Tensor:
    """Label each row of x with its cluster, 0..K-1.

    Parameters
    ----------
    x : Tensor
        Rows of raw features, [N, D].
    rng : Generator
        Source of the order in which rows choose their communities.
    K : int, optional
        Number of clusters wanted; by default the valleys decide. If there are fewer communities, as many as there are.
    margin : float
        Evidence that it takes to part two clusters, beyond what it takes at least.

    Returns
    -------
    Tensor
        Labels, [N] int64.
    """
    z = principal_components(scaled(x))
    if z.shape[1] == 0 or len(z) < 3 * 4:
        return torch.zeros(len(x), dtype=torch.int64)
    graph, inverse_dimension = neighbour_graph(z)
    numpy_rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=rng)))
    return torch.from_numpy(joined(graph, communities(graph, numpy_rng), inverse_dimension, K, margin))


def scaled(x: Tensor) -> Tensor:
    """Centred features divided by their range: a standard deviation would shrink what has several modes."""
    x = x.double() - x.double().mean(0)
    scale = torch.minimum(x.amax(0) - x.amin(0), SPAN_MAX * x.std(0, correction=0))  # [D]
    varies = scale > 1e-9
    return x[:, varies] / scale[varies]


def principal_components(x: Tensor) -> Tensor:
    """Coordinates of centred rows along the directions of largest variance, [N, min(N, D, PCS)]."""
    N, D = x.shape
    if D <= N:
        scores: Tensor = x @ torch.linalg.eigh(x.T @ x)[1].flip(1)[:, :PCS]
        return scores
    variance, u = torch.linalg.eigh(x @ x.T)
    scores = u * variance.clamp_min(0).sqrt()
    return scores.flip(1)[:, :PCS]


def neighbour_graph(z: Tensor) -> tuple[sp.csr_array, NDArray[np.float64]]:
    """Graph of nearest neighbours weighted by the share of common ones, and each row's inverse intrinsic dimension.

    Few coordinates need more neighbours: a random gap on a line would otherwise part it.
    """
    N, D = z.shape
    k = min(int(K_NEAREST + 2 * N**0.5 / D**1.5), N // 3)
    distance, index = nearest(z, k + 1)  # a row is its own neighbour: [N, k+1]
    near = sp.csr_array((np.ones(index.numel()), index.numpy().ravel(), np.arange(N + 1) * (k + 1)), (N, N))
    common = (near @ near.T).multiply(near.maximum(near.T)).tocoo()
    weight = common.data / (2 * (k + 1) - common.data)  # Jaccard
    other = common.row != common.col
    r = distance[:, 1 : min(k, K_NEAREST) + 1].clamp_min(1e-9)
    inverse_dimension = (r[:, -1:] / r[:, :-1]).log().sum(1) / max(r.shape[1] - 2, 1)  # Levina & Bickel
    return sp.csr_array((weight[other], (common.row[other], common.col[other])), (N, N)), inverse_dimension.numpy()


def nearest(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and indices of the k rows nearest to each row, itself included, [N, k] each."""
    found = [torch.cdist(rows, z).topk(k, largest=False) for rows in z.split(1000)]
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def communities(graph: sp.csr_array, rng: np.random.Generator) -> Rows:
    """Louvain's method: rows move, communities become rows, until nothing moves; then single rows move once more."""
    label, coarse = np.arange(graph.shape[0]), graph
    while True:
        found = moved(coarse, np.arange(coarse.shape[0]), rng)
        if found.max() + 1 == coarse.shape[0]:
            return moved(graph, label, rng)
        label, member = found[label], indicator(found)
        coarse = (member.T @ coarse @ member).tocsr()


def moved(graph: sp.csr_array, label: Rows, rng: np.random.Generator, rounds: int = 60) -> Rows:
    """Each round, half of the nodes that would gain modularity by it join their best neighbouring community."""
    degree = np.asarray(graph.sum(1))
    others = graph - sp.diags_array(graph.diagonal())
    for _ in range(rounds):
        volume = np.bincount(label, degree, minlength=len(label))
        link = (others @ indicator(label) + 1e-12 * indicator(label)).tocoo()  # of node (row) with community (column)
        rest = volume[link.col] - degree[link.row] * (link.col == label[link.row])
        gain = link.data - RESOLUTION * degree[link.row] * rest / degree.sum()
        order = np.lexsort((gain, link.row))
        best = order[np.append(np.diff(link.row[order]) > 0, True)]  # last of each node
        target = label.copy()
        target[link.row[best]] = link.col[best]
        if (target == label).all():
            break
        label = np.where(rng.random(len(label)) < 0.5, target, label)
    return np.unique(label, return_inverse=True)[1]


def indicator(label: Rows) -> sp.csr_array:
    """Sparse one-hot rows of labels, [N, largest label + 1]."""
    return sp.csr_array((np.ones(len(label)), label, np.arange(len(label) + 1)))


def joined(
    graph: sp.csr_array, label: Rows, inverse_dimension: NDArray[np.float64], K: int | None, margin: float
) -> Rows:
    """Join the pair of the shallowest valley until all that is left is parted, or K are left."""
    member = {c: np.flatnonzero(label == c) for c in range(label.max() + 1)}
    link = (indicator(label).T @ graph @ indicator(label)).toarray()  # [C, C], a joined community keeps its first name
    known: dict[Pair, Valley] = {}
    while len(member) > (K or 1):
        pairs = neighbours(link, list(member))
        for a, b in pairs - known.keys():
            known[a, b] = valley(graph, member[a], member[b], inverse_dimension)
        alike = [p for p in pairs if known[p].excess <= margin]
        if alike:
            a, b = max(alike, key=lambda p: known[p].q)
        elif K is None:
            break
        elif pairs:
            a, b = min(pairs, key=lambda p: known[p].excess)
        else:  # nothing connects those that are left
            a, b = sorted(sorted(member, key=lambda c: len(member[c]))[:2])
        member[a] = np.concatenate([member[a], member.pop(b)])
        link[a] += link[b]
        link[:, a] += link[:, b]
        known = {p: v for p, v in known.items() if not {a, b} & set(p)}
    for c, rows in enumerate(member.values()):
        label[rows] = c
    return label


def neighbours(link: NDArray[np.float64], names: list[int]) -> set[Pair]:
    """Pairs of communities one of which is among the best connected partners of the other."""
    share = link[np.ix_(names, names)] / link[np.ix_(names, names)].sum(1)  # by the volume of the partner
    np.fill_diagonal(share, 0)
    best = np.argsort(-share, axis=1, kind="stable")[:, :PARTNERS]
    pairs = {(min(i, j), max(i, j)) for i in range(len(names)) for j in best[i].tolist() if share[i, j] > 0}
    return {(names[i], names[j]) for i, j in sorted(pairs)}


def valley(graph: sp.csr_array, a: Rows, b: Rows, inverse_dimension: NDArray[np.float64]) -> Valley:
    """The deepest relative cut near the boundary of the row sets a and b."""
    rows, middle = np.concatenate([a, b]), len(a) - 1
    part = graph[rows][:, rows]
    rank, first, last = walk_order(part, len(a))
    edge = sp.triu(part, 1).tocoo()
    low, high = np.sort([rank[edge.row], rank[edge.col]], axis=0)
    cut = np.cumsum(np.bincount(low, edge.data, len(rows)) - np.bincount(high, edge.data, len(rows)))[first:last]
    inner = np.minimum(np.maximum.accumulate(cut), np.maximum.accumulate(cut[::-1])[::-1])
    ratio = cut / np.maximum(inner, 1e-12)
    reach = max(1, min(len(a), len(b)) // 2)
    start = max(0, middle - first - reach)
    t = start + int(np.argmin(ratio[start : middle - first + reach + 1]))
    tops = first + int(np.argmax(cut[: t + 1])), first + t + int(np.argmax(cut[t:]))
    support = min(rows_attesting(edge, (low <= top) & (high > top)) for top in tops)
    q = float(ratio[t])
    return Valley(q, (1 - q) * (support / (1 + q)) ** 0.5, 1 / max(float(inverse_dimension[rows].mean()), 1e-3))


def walk_order(part: sp.csr_array, n_a: int) -> tuple[Rows, int, int]:
    """Ranks of the rows from deep in the first n_a to deep in the others, and the range that a walk reaches."""
    n = part.shape[0]
    mass = np.stack([np.arange(n) < n_a, np.arange(n) >= n_a], 1).astype(float)  # [n, 2], of a walk from a, from b
    degree = np.asarray(part.sum(1))[:, None] + 1e-9
    for _ in range(STEPS):
        mass = (mass + part @ mass / degree) / 2
    odds = np.log(mass[:, 1] + 1e-300) - np.log(mass[:, 0] + 1e-300)
    order = np.argsort(odds, kind="stable")
    first, last = np.searchsorted(odds[order], [-500.0, 500.0])
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    return rank, min(int(first), n_a - 1), min(max(int(last), n_a), n - 1)


def rows_attesting(edge: sp.coo_array, passes: NDArray[np.bool_]) -> float:
    """Effective number of rows that carry the edges of a cut: (Σ w)² / Σ w² over the rows' weights."""
    ends = np.concatenate([edge.row[passes], edge.col[passes]])
    weight = np.bincount(ends, np.tile(edge.data[passes], 2), minlength=1)
    return float(weight.sum() ** 2 / max((weight**2).sum(), 1e-12))
