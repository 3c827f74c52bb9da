"""Growth by change: a component is born when the stream turns, all of a sudden, to what no component stands for.

*Has the stream changed?* The mean of each feature, of its square and of products of two of them, over a batch, is
compared with the rows just before (`surprise`). While that speaks of a change, batches are held back: nobody learns
them. When enough of them say the same, neighbours decide *whether they are new* (`mixing`): rows of the components that
explain them best are laid beside them, and if both do not mix, a component is born of those that are new.

What learns along hides a change, so nothing here asks the model what it thinks of the rows; a stream that changes with
every batch is not surprising; and a change within the range of what is known is none.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from curlicue.config.kinds import require
from curlicue.growth.mixing import NEIGHBOURS, apart, chosen, first_of_each, nearest_of, principal
from curlicue.growth.protocol import Asked, Birth, Examples, Familiar, Growth, GrowthConfig, Tuned
from curlicue.model.elbo import ElboTerms
from curlicue.model.likelihood import GaussianNoise
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State
from curlicue.rng import named_generator

BATCHES = 5  # that `window` rows are at least
LEAST = 50  # rows before which nobody can tell what is usual
PRODUCTS = 200  # of two features, at most
CLIPPED = 3.0  # standard deviations: no row says more
VAR_FLOOR = 0.01  # of clipped features: rare values do not surprise
LATEST, ENOUGH = 50, 5  # batches by whose surprise the next is judged, at most and at least
USUAL, TIMES = 0.4, 4.0  # a change surprises so many times as much as this quantile of theirs
AGREE = 0.6  # share of the batches held back that must surprise
COMMON = 0.15  # a component is still there if the neighbours of its median row are so often from the rows held back
NEW = 0.75  # share of such neighbours from which on a row is new where some of the others are not
FEW = 20  # fewer rows give birth to no component
PACKED = 2e-3  # by which a row that the memory keeps may differ from what it was
POOL = 4000  # rows of the memory that are looked through for those that are alike


@dataclass(frozen=True, kw_only=True)
class Change(GrowthConfig):
    """A component is born when the stream suddenly turns to something that no component stands for."""

    needs_rows: ClassVar[bool] = True

    window: int = 500  # rows just before a batch that it is compared with
    surprise: float = 8.0  # standard deviations by which moments of a batch differ from them where the stream changes
    held: int = 200  # rows that are held back before it is decided what they are
    passes: int = 25  # over D_new, to fit the newborn
    unlike: float = 0.65  # share of nearest neighbours of their own kind from which on rows are new; 0.5: they mix

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("window", "held"):
            require(getattr(self, name) >= LEAST, name, getattr(self, name), f"an int in the range [{LEAST}, inf)")
        require(0 < self.surprise < math.inf, "surprise", self.surprise, "a float in the range (0, inf)")
        require(0.5 < self.unlike < 1, "unlike", self.unlike, "a float in the range (0.5, 1)")

    def start(self, model: MixtureVAE, examples: Examples | None) -> ChangeRule:
        """The rule, for a stream of which nothing has been seen."""
        assert examples is not None
        return ChangeRule(self, model, examples)


class ChangeRule(Growth):
    """Holds back what surprises, and decides what it is."""

    def __init__(self, config: Change, model: MixtureVAE, examples: Examples) -> None:
        self.config, self.model, self.examples = config, model, examples
        self.scaled = isinstance(model.p_x, GaussianNoise)  # features in [0, 1] have one scale
        self.recent = torch.empty(0, model.n_x, dtype=model.dtype)  # rows just before, the latest last
        self.levels: deque[float] = deque(maxlen=LATEST)  # surprise of the latest batches
        self.suspects: list[Tensor] = []  # batches held back
        self.surprises: list[bool] = []  # whether each of them surprised
        self.asked: list[Asked] = []
        self.held = False  # whether the latest batch is held back
        self.handed: Asked | None = None  # what was asked for last
        self.decisions = 0

    # -- has the stream changed? ------------------------------------------------------------------------------------

    def look(self, x: Tensor, terms: ElboTerms, t: int) -> int:
        """Hold the batch back if it surprises, or if those before it are held back; decide when they are enough."""
        x, self.held = x.cpu(), False
        if len(self.recent) < LEAST:
            self._pass(x)
            return 0
        level, line = surprise(x, self.recent), self.line
        step = surprise(x, torch.cat(self.suspects)) if self.suspects else level  # from one batch to the next
        self.levels.append(step)
        if step > line and sum(map(len, self.suspects)) >= LEAST:  # what was held back is not what comes now
            self.asked.append(Familiar(torch.cat(self.suspects)))
            self.suspects, self.surprises = [], []
        if not self.suspects and level <= line:
            self._pass(x)
            return 0
        self.held = True
        self.suspects.append(x)
        self.surprises.append(level > line)
        if len(self.suspects) > 1 and sum(map(len, self.suspects)) >= self.config.held:
            self._decide()
        return len(x)

    @property
    def holding(self) -> bool:
        """Whether the latest batch is held back, be it that it was decided just now what it is."""
        return self.held

    @property
    def line(self) -> float:
        """The surprise from which on a batch speaks of a change."""
        usual = sorted(self.levels)[int(USUAL * len(self.levels))] if len(self.levels) >= ENOUGH else 0.0
        return max(self.config.surprise, TIMES * usual)

    def _pass(self, x: Tensor) -> None:
        self.recent = torch.cat([self.recent, x])[-max(self.config.window, BATCHES * len(x)) :]

    def rest(self) -> None:
        """Decide what the batches held back are."""
        if self.suspects:
            self._decide()

    # -- is it new? -------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        x, agree = torch.cat(self.suspects), sum(self.surprises) >= AGREE * len(self.surprises)
        self.suspects, self.surprises, self.decisions = [], [], self.decisions + 1
        new, y = self._new(x) if agree else (torch.zeros(len(x), dtype=torch.bool), None)
        if int(new.sum()) < FEW:
            new = torch.zeros_like(new)
        else:
            self.asked.append(Birth(x[new], self.config.passes, Tuned.HEADS))
        if not bool(new.all()):
            self.asked.append(Familiar(x[~new], None if y is None else y[~new]))
        self.recent = self.recent[:0]
        self._pass(x[new] if bool(new.any()) else x)

    def _new(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the rows [N, D] are new [N], and the component of those that are not [N]."""
        known, y = self._alike(x)
        ours, theirs = principal(torch.cat([x, known]), self.scaled).split([len(x), len(known)])
        nearest = nearest_of(ours, theirs)
        once, place = x.unique(dim=0, return_inverse=True)
        if min(len(once), len(known)) <= NEIGHBOURS:  # rows that are all alike have no neighbours
            return ~torch.isclose(x, known[nearest], rtol=PACKED, atol=1e-6).all(1), y[nearest]
        found = apart(once, known, self.scaled)
        if found.unlike < self.config.unlike:
            return torch.zeros(len(x), dtype=torch.bool), y[nearest]
        there = any(float(found.foreign[y == k].median()) > COMMON for k in y.unique().tolist())
        return (found.own > NEW if there else torch.ones(len(once), dtype=torch.bool))[place], y[nearest]

    def _alike(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As many rows as x [N, D] of the components that are nearest to them, in their proportions; and whose."""
        K, rng = self.model.K, named_generator(self.decisions, "alike")
        n = max(FEW, min(len(x), POOL // K))
        pool = self.examples.rows(torch.cat([chosen(self.examples.of(k), n, rng) for k in range(K)]))
        ours, theirs = principal(torch.cat([x, pool.x]), self.scaled).split([len(x), len(pool.x)])
        nearest = pool.y[nearest_of(ours, theirs)].bincount(minlength=K)  # [K]
        indices = [chosen(self.examples.of(k), m, rng) for k, m in enumerate(nearest.tolist())]
        alike = self.examples.rows(torch.cat(indices))
        once = first_of_each(alike.x)
        return alike.x[once], alike.y[once]

    # -- the rule ---------------------------------------------------------------------------------------------------

    def due(self) -> Asked | None:
        """What was decided, one thing after the other."""
        self.handed = self.asked.pop(0) if self.asked else None
        return self.handed

    def refused(self) -> None:
        """The components that there are learn what would have been a newborn's."""
        if isinstance(self.handed, Birth):
            self.asked.append(Familiar(self.handed.d_new))

    def state(self) -> State:
        """The rows just before, those held back, and what the latest batches were like."""
        sizes = [len(x) for x in self.suspects]
        held = {"suspects": torch.cat(self.suspects)} if sizes else {}
        counters = {"levels": [*self.levels], "surprises": self.surprises, "decisions": self.decisions}
        return {"recent": self.recent, "sizes": sizes, **held, **counters}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        rows = (None, self.model.n_x)
        self.recent, self.decisions = fields.tensor("recent", rows, self.model.dtype), fields.count("decisions")
        self.levels = deque(fields.value("levels", list), LATEST)
        self.surprises, sizes = fields.value("surprises", list), fields.value("sizes", list)
        self.suspects = []
        if sizes:
            held = fields.tensor("suspects", rows, self.model.dtype)
            if sum(sizes) != len(held):
                fields.refuse("sizes", str(sizes), f"sizes that add up to {len(held)}")
            self.suspects = [*held.split(sizes)]


def surprise(x: Tensor, recent: Tensor) -> float:
    """By how many standard deviations the moments of a batch [B, D] differ from those of the rows before it [N, D].

    The means of features, of their squares, and of products of two are three groups: that which differs most counts.
    """
    mean, std = recent.mean(0), recent.std(0, correction=0)
    usual = std[std > 0].median() if bool((std > 0).any()) else torch.ones(())
    std = std.clamp_min(0.1 * float(usual))
    now, before = (((each - mean) / std).clamp(-CLIPPED, CLIPPED) for each in (x, recent))
    i, j = _pairs(x.shape[1])
    groups = (now, before), (now.square(), before.square()), (now[:, i] * now[:, j], before[:, i] * before[:, j])
    floors = VAR_FLOOR, CLIPPED**2 * VAR_FLOOR, CLIPPED**2 * VAR_FLOOR
    return max(_excess(a, b, floor) for (a, b), floor in zip(groups, floors, strict=True) if a.shape[1])


def _excess(now: Tensor, before: Tensor, var_floor: float) -> float:
    """How far the mean square z-score of the means [F] is above 1, in its own standard deviations.

    Features that go together count as fewer: the variance of the mean square is 2 ‖C‖² / F², where C is their
    correlation, and ‖C‖² the mean square product of two rows.
    """
    centre, F = before.mean(0), now.shape[1]
    std = before.var(0, correction=0).clamp_min(var_floor).sqrt()
    z = (now.mean(0) - centre) / std * (1 / len(now) + 1 / len(before)) ** -0.5
    some = ((before - centre) / std)[:: max(1, len(before) // 100)]
    products = (some @ some.t()).fill_diagonal_(0).square().sum() / (len(some) * (len(some) - 1))
    return float((z.square().mean() - 1) * F / (2 * products.clamp_min(F)).sqrt())


@lru_cache(8)
def _pairs(D: int) -> tuple[Tensor, Tensor]:
    """The pairs of features that are multiplied: all of them, or some."""
    i, j = torch.triu_indices(D, D, 1) if D * (D - 1) // 2 <= PRODUCTS else _some_pairs(D)
    return i, j


def _some_pairs(D: int) -> Tensor:
    rng = named_generator(D, "pairs")
    i = torch.randint(D, (PRODUCTS,), generator=rng)
    return torch.stack([i, (i + torch.randint(1, D, (PRODUCTS,), generator=rng)) % D])
