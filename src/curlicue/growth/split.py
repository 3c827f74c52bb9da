"""Growth by splitting: a component whose rows fall apart into several clusters becomes as many components.

Clusters of data at rest announce themselves by nothing but where the rows lie. So the rows that the memory keeps of a
family of components, one that was born by itself and those split from it, are looked at from time to time, each time
when they have explained half as many again, and partitioned anew (`communities`). Each cluster goes on with the
component that it shares most rows with, which gets all of its rows: what was mistaken when there were few is mended. Of
a cluster for which no component is left one is born, unless its rows mix with those of another family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from curlicue.config.kinds import require
from curlicue.growth.communities import partition
from curlicue.growth.mixing import apart, chosen, first_of_each, nearest_of, principal
from curlicue.growth.protocol import Asked, Birth, Examples, Growth, GrowthConfig, Move, Tuned
from curlicue.model.elbo import ElboTerms
from curlicue.model.likelihood import GaussianNoise
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State
from curlicue.rng import named_generator

MORE = 1.5  # times as many rows explained as at the latest look: the next is due
LEAST = 20  # different rows that can be looked at
FEW = 10  # fewer rows are no cluster of their own
SAME = 0.65  # share of nearest neighbours of their own kind below which rows are of the component they lie among
COMPARED = 300  # rows of either side
CLEAR = 3.0  # evidence beyond the least that parts what a change of the stream has brought together
MINOR, GAP = 0.05, 2.0  # a cluster with a smaller share lies so many times as far off as neighbours lie from each other


@dataclass(frozen=True, kw_only=True)
class Split(GrowthConfig):
    """A component is split when the rows that are kept of it fall apart into clusters."""

    needs_rows: ClassVar[bool] = True

    first_look: int = 500  # rows that a component explains before it is looked at
    most: int = 5000  # rows of a component that are looked at; the others follow their nearest neighbour
    n_clusters: int | None = None  # into which rows at rest are parted; none: as many as there are
    passes: int = 10  # over D_new, to fit the newborn

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("first_look", "most", "passes"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "an int in the range [1, inf)")
        n = self.n_clusters
        require(n is None or n >= 1, "n_clusters", n, "None or an int in the range [1, inf)")

    def start(self, model: MixtureVAE, examples: Examples | None) -> SplitRule:
        """The rule, for components that have explained nothing yet."""
        assert examples is not None
        return SplitRule(self, model, examples)


class SplitRule(Growth):
    """Looks at the rows of one family of components after the other: of those that were split from one another."""

    at_rest = True

    def __init__(self, config: Split, model: MixtureVAE, examples: Examples) -> None:
        self.config, self.model, self.examples = config, model, examples
        self.scaled = isinstance(model.p_x, GaussianNoise)  # features in [0, 1] have one scale
        self.root = torch.arange(model.K)  # [K], the first of the family that each component is of
        self.explained = torch.zeros(model.K, dtype=torch.int64)  # [K], rows of the stream, by family
        self.next_look = torch.full((model.K,), config.first_look)  # [K], at so many
        self.looks = 0
        self.resting = False  # whether nothing more comes for now
        self.parted: int | None = None  # the family of the component that is being born, if it is split from another
        self.asked: list[Asked] = []

    def look(self, x: Tensor, terms: ElboTerms, t: int) -> int:
        """Count what each family explains."""
        self.explained += self.root[terms.q_y.argmax(1)].bincount(minlength=self.model.K)
        return 0

    def rest(self) -> None:
        """Every family is due to be looked at."""
        self.next_look, self.resting = torch.zeros_like(self.next_look), True

    def due(self) -> Asked | None:
        """What a look at the families that are due to be looked at has shown, one thing after the other."""
        heads = self.root == torch.arange(self.model.K)
        while not self.asked and len(due := (heads & (self.explained >= self.next_look)).nonzero()):
            root = int(due[0])
            self.next_look[root] = max(self.config.first_look, int(MORE * int(self.explained[root])) + 1)
            self._look_at(root)
        asked = self.asked.pop(0) if self.asked else None
        self.resting &= asked is not None
        self.parted = int(self.root[asked.parent]) if isinstance(asked, Birth) and asked.parent is not None else None
        return asked

    def _look_at(self, root: int) -> None:
        """Partition the rows of a family anew, and say where each cluster belongs."""
        family = (self.root == root).nonzero()[:, 0].tolist()
        members, self.looks = torch.cat([self.examples.of(k) for k in family]), self.looks + 1
        rows, rng = self.examples.rows(members), named_generator(self.looks, "split")
        once = first_of_each(rows.x)
        if len(once) < LEAST:
            return
        some = chosen(once, self.config.most, rng)
        u = principal(rows.x, self.scaled)
        cluster = self._clusters(rows.x[some], u[some], root, rng)
        if int(cluster.max()) == 0 and len(family) == 1:
            return
        whole = cluster[nearest_of(u, u[some])]
        home = _matched(whole, rows.y, family)
        for c, k in home.items():
            if len(moved := members[(whole == c) & (rows.y != k)]):
                self.asked.append(Move(moved, k))
        for c in range(int(cluster.max()) + 1):
            if c not in home:
                self._part(root, rows.x, members, whole == c, int(rows.y[whole == c].mode().values), rng)

    def _clusters(self, x: Tensor, u: Tensor, root: int, rng: torch.Generator) -> Tensor:
        """The cluster of each row x [N, D], with principal components u [N, Z], of a family."""
        if self.config.n_clusters is None or not self.resting or bool(self.root.any()):
            return _without_dust(u, partition(x, rng, margin=CLEAR if root else 0.0))
        cluster = partition(x, rng, self.config.n_clusters)
        while (K := int(cluster.max()) + 1) < min(self.config.n_clusters, len(x)):  # the largest is cut in two
            largest = cluster == cluster.mode().values
            along = principal(u[largest], False, 1)[:, 0]
            cluster[largest.nonzero()[along > along.median(), 0]] = K
        return cluster

    def _part(self, root: int, x: Tensor, members: Tensor, mine: Tensor, parent: int, rng: torch.Generator) -> None:
        """Some of the rows leave the family: for a component whose rows they mix with; or are those of a newborn."""
        home = self._home(root, x[mine], rng)
        if home is None:
            self.asked.append(Birth(x[mine], self.config.passes, Tuned.HEADS, parent=parent, members=members[mine]))
        else:
            self.asked.append(Move(members[mine], home))

    def _home(self, root: int, x: Tensor, rng: torch.Generator) -> int | None:
        """The component of another family whose rows these mix with, if there is one."""
        others = (self.root != root).nonzero()[:, 0].tolist()
        pools = {j: chosen(self.examples.of(j), COMPARED, rng) for j in others}
        pools = {j: rows for j, rows in pools.items() if len(rows) >= LEAST}
        if not pools:
            return None
        y = torch.cat([torch.full((len(rows),), j) for j, rows in pools.items()])
        x = x[first_of_each(x)][:COMPARED]
        known = self.examples.rows(torch.cat([*pools.values()])).x
        j = int(y[nearest_of(x, known)].mode().values)
        theirs = known[y == j]
        return j if apart(x, theirs[first_of_each(theirs)], self.scaled).unlike < SAME else None

    def born(self) -> None:
        """The newborn is of the family that it was split from, or the first of its own."""
        root = len(self.root) if self.parted is None else self.parted
        self.root, self.parted = torch.cat([self.root, torch.tensor([root])]), None
        self.explained = torch.cat([self.explained, self.explained.new_zeros(1)])
        self.next_look = torch.cat([self.next_look, self.next_look.new_full((1,), self.config.first_look)])

    def state(self) -> State:
        """The families, what each has explained, and when it is next looked at."""
        return {name: getattr(self, name) for name in ("root", "explained", "next_look", "looks")}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        for name in ("root", "explained", "next_look"):
            setattr(self, name, fields.tensor(name, (self.model.K,), torch.int64))
        self.looks = fields.count("looks")


def _matched(cluster: Tensor, y: Tensor, family: list[int]) -> dict[int, int]:
    """Which component each cluster goes on with: one each, so that most rows stay where they are."""
    shared = torch.stack([cluster[y == k].bincount(minlength=int(cluster.max()) + 1) for k in family])  # [F, C]
    pairs = zip(*(each.tolist() for each in linear_sum_assignment(-shared.numpy())), strict=True)
    return {c: family[f] for f, c in pairs if shared[f, c]}


def _without_dust(x: Tensor, cluster: Tensor) -> Tensor:
    """The clusters [N], small ones that are near to others being given to them, numbered anew."""
    sizes = cluster.bincount()
    keep = [c for c in range(len(sizes)) if sizes[c] >= MINOR * len(x) or (sizes[c] >= FEW and _far(x, cluster == c))]
    firm = torch.isin(cluster, torch.tensor(keep))
    if not keep or bool(firm.all()):
        return cluster if keep else torch.zeros_like(cluster)
    cluster = cluster.clone()
    cluster[~firm] = cluster[firm][nearest_of(x[~firm], x[firm])]
    numbered: Tensor = cluster.unique(return_inverse=True)[1]
    return numbered


def _far(x: Tensor, mine: Tensor) -> bool:
    """Whether some of the rows [N, D] lie much farther from the others than these from each other."""
    others = x[~mine]
    spacing = torch.cdist(others[:COMPARED], others).topk(min(2, len(others)), largest=False).values[:, -1]
    return bool(torch.cdist(x[mine], others).amin(1).median() > GAP * spacing.quantile(0.9))
