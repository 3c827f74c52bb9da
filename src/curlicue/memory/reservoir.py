"""A reservoir of real rows: what is rehearsed are rows that came, each with the component that explained it.

A row that comes belongs to the component y with the largest q(y|x) s(y), where s are the shares that components have
had in the stream lately. It is rehearsed with that component as its label (Eq. 4). The memory is balanced over
components, so that what was seen long ago weighs as much as what comes now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from curlicue.config.kinds import require
from curlicue.memory.nothing import Nothing
from curlicue.memory.protocol import MemoryConfig, Past
from curlicue.memory.store import Store
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State

PACE = 0.1  # with which shares follow the stream, a batch
NOW = 0.9  # share of what the stream has just turned to
LEAST_SHARE = 0.01  # so that whatever comes back is recognised
WIDE = 64  # features from which on some can be hidden and a row still be recognised
CATCHING_UP = 750  # extra rehearsed batches that a birth is worth
LEARNT = 0.995  # share of rehearsed rows that are explained by their component: no extra batch is needed
SMOOTH = 0.1  # weight of a batch in that share


@dataclass(frozen=True, kw_only=True)
class Reservoir(MemoryConfig):
    """Real rows are kept, and rehearsed with the component that explained them."""

    keeps_rows: ClassVar[bool] = True

    size: int = 10_000  # rows that are kept at most
    emphasis: float = 10.0  # weight of log q(y|x) in what is climbed on a rehearsed row
    hidden: float = 0.2  # share of the values that the encoder is not shown of a rehearsed row, from 64 features on

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 1, "size", self.size, "an int in the range [1, inf)")
        require(0 < self.emphasis <= 1e6, "emphasis", self.emphasis, "a float in the range (0, 1e6]")
        require(0 <= self.hidden < 1, "hidden", self.hidden, "a float in the range [0, 1)")

    def start(self, model: MixtureVAE, rng: Generator) -> ReservoirMemory:
        """The memory, with no row in it."""
        return ReservoirMemory(self, model, rng)


class ReservoirMemory(Nothing):
    """Rows with their components, and how well they are known."""

    def __init__(self, config: Reservoir, model: MixtureVAE, rng: Generator) -> None:
        super().__init__(model)
        self.config, self.rng = config, rng
        self.rows = Store(config.size, model.n_x, model.dtype)
        self.shares = torch.full((model.K,), 1 / model.K)  # [K], of the stream, lately
        self.seen = 0  # rows of the stream
        self.learnt = 0.0  # share of the rows rehearsed lately that their component explains
        self.extra = 0  # rehearsed batches that may be added

    @property
    def store(self) -> Store:
        """The rows that are kept."""
        return self.rows

    def take(self, x: Tensor, terms: ElboTerms, y: Tensor | None = None) -> None:
        """Keep the rows [B, D] with the components that explain them, or with those that they are known to be of."""
        if y is not None:
            now = y.bincount(minlength=self.model.K) / len(y)
            self.shares = torch.lerp(self.shares, now, NOW)
            return self._keep(x, y)
        p = terms.q_y * self.shares.to(terms.q_y).clamp_min(LEAST_SHARE)
        p = p / p.sum(1, keepdim=True)
        self.shares = torch.lerp(self.shares, p.mean(0).float(), PACE)
        return self._keep(x, p.argmax(1))

    def _keep(self, x: Tensor, y: Tensor) -> None:
        self.used += y.bincount(minlength=self.model.K)
        self.rows.add(x, y, torch.arange(self.seen, self.seen + len(x)), self.rng)
        self.seen += len(x)

    def born(self, d_new: Tensor | None = None, members: Tensor | None = None) -> None:
        """D_new belongs to the newborn, which is what the stream shows now if D_new came with it."""
        k = len(self.used)
        self.used = torch.cat([self.used, self.used.new_zeros(1)])
        self.shares = torch.cat([self.shares, self.shares.new_zeros(1)])
        if members is None and d_new is not None:
            self.shares *= 1 - NOW
            self.shares[k] = NOW
            self._keep(d_new, torch.full((len(d_new),), k))
        elif members is not None:
            self.move(members, k)
        self.extra, self.learnt = CATCHING_UP, 0.0

    def move(self, members: Tensor, to: int) -> None:
        """The rows leave their components for another, and with them their part of counts and shares."""
        K = len(self.used)
        moved = self.rows.rows(members).y.bincount(minlength=K) / self.rows.counts(K).clamp_min(1)  # [K]
        for each in (self.used, self.shares):
            part = moved.to(each) * each
            each -= part
            each[to] += part.sum()
        self.rows.relabel(members, to)

    @property
    def ready(self) -> bool:
        """From the first birth on: one component needs no rehearsal."""
        return len(self.used) > 1 and len(self.rows) > 0

    def recall(self, n: int) -> Past:
        """Rows of all components, equally many of each on average."""
        rows = self.rows.draw(n, self.rng)
        return Past(rows.x, rows.y, labelled=True, emphasis=self.config.emphasis, seen=self._partly(rows.x))

    def _partly(self, x: Tensor) -> Tensor | None:
        """The rows [B, D] with some of the values of each taken from another row; None: all are shown."""
        if self.model.n_x < WIDE or not self.config.hidden:
            return None
        hidden = torch.rand(x.shape, generator=self.rng) < self.config.hidden
        return torch.where(hidden, x[torch.randperm(len(x), generator=self.rng)], x)

    def recalled(self, past: Past, terms: ElboTerms) -> None:
        """See how well the components are known."""
        known = (terms.q_y.argmax(1) == past.y).double().mean()
        self.learnt += SMOOTH * (float(known) - self.learnt)
        self.extra = max(0, self.extra - 1)

    @property
    def pressing(self) -> bool:
        """While rows are not known as they should be, and there is something left of what the birth is worth."""
        return self.ready and self.extra > 0 and self.learnt < LEARNT

    def state(self) -> State:
        """The rows, the shares and the counters."""
        counters = {name: getattr(self, name) for name in ("seen", "learnt", "extra")}
        return {**super().state(), "rows": self.rows.state(), "shares": self.shares, **counters}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        super().restore(fields)
        self.rows.restore(fields.state("rows"), self.model.K)
        self.shares = fields.tensor("shares", (self.model.K,), torch.float32)
        self.seen, self.extra = fields.count("seen"), fields.count("extra")
        self.learnt = fields.value("learnt", float)
