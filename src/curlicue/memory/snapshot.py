"""Mixture generative replay (the paper's): a snapshot of the model generates batches of the past (MGR, SMGR).

A component of the snapshot is drawn from π, which is proportional to how much of the real stream it stands for; then
z ~ p(z|y) and x from p(x|z). With SMGR the component is the label of the sample (Eq. 4).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import torch
from torch import Generator, Tensor

from curlicue.config.kinds import require
from curlicue.config.model import Emission
from curlicue.errors import ConfigError
from curlicue.memory.change import ChangeDetector
from curlicue.memory.protocol import Memory, MemoryConfig, Past, SnapshotTaken
from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State

PI_FLOOR = 1e-12


Moments = int | Literal["T", "0.1T", "dynamic", "change"]
"""When snapshots are taken: each time so many steps have passed, before the next real batch; at the end of each period
T of a run, or ten times in it; just before each birth ("dynamic"); or just before each birth and when other components
explain the stream than did for some time ("change")."""


class Counts(StrEnum):
    """For which components the past counts in π, where MGR lets them change their meaning."""

    SEEN = "seen"  # for those that explained the real samples when they were seen, as the released code does
    GENERATED = "generated"  # for those that have explained the samples generated of them since


@dataclass(frozen=True, kw_only=True)
class Snapshot(MemoryConfig):
    """A copy of the model generates what is rehearsed."""

    snapshots: Moments = "change"  # every so many steps, T, 0.1T, dynamic (births) or change (births and changes)
    labelled: bool = True  # SMGR: the component that generated a sample is its label (Eq. 4); else MGR
    emission: Emission = Emission.SAMPLE  # how p(x|z) becomes a sample; threshold: its mean, rounded to 0 or 1
    counts: Counts = Counts.GENERATED  # past samples count for those that explained them when seen, or their like now

    def __post_init__(self) -> None:
        super().__post_init__()
        every = not isinstance(self.snapshots, int) or self.snapshots >= 1
        require(every, "snapshots", self.snapshots, "an int in the range [1, inf), 'dynamic' or 'change'")

    def start(self, model: MixtureVAE, rng: Generator) -> SnapshotMemory:
        """The memory, before the first snapshot."""
        return SnapshotMemory(self, model, rng)

    def with_period(self, T: int) -> Snapshot:
        """Snapshots at periods of a run whose classes last T steps each."""
        every = {"T": T, "0.1T": T // 10}.get(str(self.snapshots))
        return self if every is None else replace(self, snapshots=max(1, every))

    def along(self, scale: Callable[[int], int]) -> Snapshot:
        """Snapshots as often in a run of another length."""
        return replace(self, snapshots=scale(self.snapshots)) if isinstance(self.snapshots, int) else self


class SnapshotMemory(Memory):
    """A snapshot, and how much of the stream each component stands for."""

    def __init__(self, config: Snapshot, model: MixtureVAE, rng: Generator) -> None:
        if config.snapshots in ("T", "0.1T"):
            raise ConfigError(
                f"Snapshots of a period ({config.snapshots}) are for runs. Give a number of steps instead."
            )
        self.config, self.model, self.rng = config, model, rng
        self.usage = ComponentCounts(model.K, follow=config.counts is Counts.GENERATED and not config.labelled)
        self.change = ChangeDetector(model.K) if config.snapshots == "change" else None
        self.snapshot: MixtureVAE | None = None
        self.pi = torch.empty(0, dtype=torch.float64)  # [J], how often each of the snapshot's components is drawn
        self.taken_at = 0  # step of the snapshot

    def begin(self, t: int) -> list[SnapshotTaken]:
        """A periodic snapshot falls on the first real step of its period."""
        every = self.config.snapshots
        due = isinstance(every, int) and t // every > self.taken_at // every
        return [self._take_snapshot(t)] if due else []

    def look(self, terms: ElboTerms, t: int) -> list[SnapshotTaken]:
        """A snapshot when other components explain the stream than did for some time."""
        changed = self.change is not None and self.change.update(terms.q_y)
        return [self._take_snapshot(t)] if changed else []

    def take(self, x: Tensor, terms: ElboTerms, y: Tensor | None = None) -> None:
        """The real samples count for the components that explain them."""
        self.usage.take(terms.q_y)

    def before_birth(self, t: int) -> list[SnapshotTaken]:
        """Dynamic snapshots remember the model as it was before the birth."""
        return [self._take_snapshot(t)] if self.config.snapshots in ("dynamic", "change") else []

    def born(self, d_new: Tensor | None = None, members: Tensor | None = None) -> None:
        """The newborn has explained nothing yet."""
        self.usage.grow()
        if self.change is not None:
            self.change.grow()

    def _take_snapshot(self, t: int) -> SnapshotTaken:
        """A copy that later learning cannot touch; π ∝ counts."""
        counts = self.usage.renew()
        self.snapshot = copy.deepcopy(self.model).eval().requires_grad_(False)
        pi = counts.clamp_min(PI_FLOOR)
        self.pi, self.taken_at = pi / pi.sum(), t
        return SnapshotTaken(t, self.model.K)

    @property
    def ready(self) -> bool:
        """From the first snapshot on."""
        return self.snapshot is not None

    def recall(self, n: int) -> Past:
        """y ~ π, z ~ p(z|y), x from p(x|z)."""
        assert self.snapshot is not None
        y = torch.multinomial(self.pi, n, replacement=True, generator=self.rng)
        return Past(self.snapshot.sample(y, self.config.emission, self.rng), y, self.config.labelled)

    def recalled(self, past: Past, terms: ElboTerms) -> None:
        """Generated samples show which components explain now what others stood for."""
        self.usage.recalled(past.y, terms.q_y)

    def counts(self) -> Tensor:
        """How much of the real stream each component stands for by now [K]."""
        return self.usage.counts()

    def state(self) -> State:
        """The snapshot with its π, the counts, and what the change detector knows."""
        snapshot = {} if self.snapshot is None else {"snapshot": self.snapshot.state_dict(), "pi": self.pi}
        change = {} if self.change is None else {"change": self.change.state()}
        return {"taken_at": self.taken_at, "usage": self.usage.state(), **change, **snapshot}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        self.taken_at = fields.count("taken_at")
        if self.change is not None:
            self.change.restore(fields.state("change"), self.model.K)
        self.snapshot, self.pi = None, self.pi[:0]
        if "pi" in fields:
            self.pi = fields.tensor("pi", (None,), torch.float64)
            self.snapshot = copy.deepcopy(self.model).eval().requires_grad_(False)
            self.snapshot.load_grown(fields.tensors_like("snapshot", self.model.like(len(self.pi))))
        self.usage.restore(fields.state("usage"), J=len(self.pi), K=self.model.K)


class ComponentCounts:
    """How many real samples each component stands for.

    With MGR a component may come to explain what another one stood for. If `follow`, the counts of the past move
    along: counts − past + Σⱼ pastⱼ · movedⱼ / Σₖ movedⱼₖ; what was never generated stays.
    """

    def __init__(self, K: int, follow: bool) -> None:
        self.follow = follow
        self.used = torch.zeros(K, dtype=torch.float64)  # [K], Σ q(y|x) over real samples
        self.past = self.used[:0]  # [J], the counts when the snapshot with its J components was taken
        self.moved = torch.zeros(0, K, dtype=torch.float64)  # [J, K], Σ q(y|x) over what each of the J generated

    def take(self, q_y: Tensor) -> None:
        """Count a real batch [B, K]."""
        self.used += q_y.sum(0, dtype=torch.float64)

    def recalled(self, y: Tensor, q_y: Tensor) -> None:
        """Samples generated by y [B] are explained as q_y [B, K] says."""
        self.moved.index_add_(0, y, q_y.double())

    def counts(self) -> Tensor:
        """The counts by now [K]."""
        if not self.follow or not len(self.past):
            return self.used
        moved = torch.where(self.moved.any(1, keepdim=True), self.moved, torch.eye(*self.moved.shape))
        recent = self.used.clone()
        recent[: len(self.past)] -= self.past
        return recent + self.past @ (moved / moved.sum(1, keepdim=True))

    def renew(self) -> Tensor:
        """A snapshot is taken: the counts by now are its past."""
        self.used = self.counts()
        K = len(self.used)
        self.past, self.moved = self.used.clone(), self.used.new_zeros(K, K)
        return self.used

    def grow(self) -> None:
        """A component is born, and has explained nothing yet."""
        self.used = torch.cat([self.used, self.used.new_zeros(1)])
        self.moved = torch.cat([self.moved, self.moved.new_zeros(len(self.moved), 1)], 1)

    def state(self) -> State:
        """The counts, those of the snapshot, and how they have moved."""
        return {"used": self.used, "past": self.past, "moved": self.moved}

    def restore(self, fields: Fields, J: int, K: int) -> None:
        """Go on from `state`, with J components in the snapshot and K in the model."""
        self.used = fields.tensor("used", (K,), torch.float64)
        self.past = fields.tensor("past", (J,), torch.float64)
        self.moved = fields.tensor("moved", (J, K), torch.float64)
