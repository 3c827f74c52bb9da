"""Algorithm 1: learn from an unlabelled stream, grow when it is poorly explained, rehearse what was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from curlicue.config import AtChange, LearnerConfig, ReplayConfig, Tuned
from curlicue.learn.events import BirthRefused, ComponentBorn, Event
from curlicue.learn.expansion import PoorlyModelled, closest_component
from curlicue.learn.replay import Usage
from curlicue.learn.trainer import Trainer
from curlicue.model.elbo import elbo_given
from curlicue.model.mixture import MixtureVAE, looking
from curlicue.rng import Rng, named_generator

MOST_BATCHES = 10  # that D_new is cut into, however small those of the stream are

Stream = Callable[[int], Tensor]
"""The real batch x [B, D] of step t. No label fits through."""


class Learner(Trainer):
    """CURL. It alone decides when the model grows, what it rehearses and when it takes a snapshot."""

    def __init__(self, model: MixtureVAE, config: LearnerConfig, rng: Rng) -> None:
        super().__init__(model, config, rng)
        self.d_new = PoorlyModelled(config.expansion, model.K) if config.expansion else None
        self.usage = Usage(model.K)

    def learn(self, stream: Stream, steps: int) -> Iterator[Event]:
        """Take steps until `steps` have been taken in all, real and rehearsed batches in turn."""
        while self.t < steps:
            yield from self.advance(stream)

    def advance(self, stream: Stream) -> list[Event]:
        """One step, and what it brings about."""
        return [self.rehearse()] if self.rehearsal_due else self.observe(stream(self.t))

    def observe(self, x: Tensor) -> list[Event]:
        """Everything that one real batch brings about, but for the rehearsal that is then due."""
        events: list[Event] = [self.take_snapshot()] if self.snapshot_due else []
        ascent = self.elbo(x)
        terms = ascent.terms
        if self.snapshot_at_change and self.usage.update(terms.q_y):
            events.append(self.take_snapshot())
        n_poor = 0
        if self.d_new is not None:
            n_poor = self.d_new.consider(x, terms.bound, terms.q_y.argmax(1), self.t)
        events.append(self.real_step(ascent, n_poor))
        if self.d_new is not None and self.d_new.full:
            events.extend(self.refuse(self.d_new) if self.at_cap else self.expand(self.d_new))
        return events

    def expand(self, buffer: PoorlyModelled) -> Iterator[Event]:
        """A component is born; with dynamic snapshots the model is remembered as it was before."""
        if self.snapshot_before_birth:
            yield self.take_snapshot()
            self.rehearsal_due = True
        d_new = buffer.empty()
        parent = closest_component(self.model, d_new)
        newborn = self.grow(parent)
        buffer.normal.grow()
        self.usage.grow()
        before, after = self.fit(newborn, d_new, buffer.config.passes, buffer.config.tuned)
        yield ComponentBorn(self.t, newborn, parent, self.model.K, before, after, d_new)

    @property
    def snapshot_at_change(self) -> bool:
        """Whether snapshots are taken when the stream changes."""
        match self.config.replay:
            case ReplayConfig(snapshots=AtChange()):
                return True
        return False

    @property
    def at_cap(self) -> bool:
        """Whether the model has as many components as it may have."""
        cap = self.config.expansion.max_components if self.config.expansion else None
        return cap is not None and cap <= self.model.K

    def refuse(self, buffer: PoorlyModelled) -> Iterator[Event]:
        """Nobody is born at the cap: D_new is emptied, and what the components there are learn of it becomes normal."""
        buffer.normal.forget()
        yield BirthRefused(self.t, self.model.K, buffer.empty())

    def fit(self, newborn: int, d_new: Tensor, passes: int, tuned: Tuned) -> tuple[float, float]:
        """Climb Eq. 4 with the newborn's label over the last full batches of D_new; mean bound before, after."""
        only = self.model.component_parameters() if tuned is Tuned.HEADS else None
        B = min(max(self.batch_size, len(d_new) // MOST_BATCHES), len(d_new))
        batches = d_new[len(d_new) % B :].split(B)
        label = torch.full((B,), newborn)
        before = self._mean_bound(d_new, newborn)
        for _ in range(passes):
            for x in batches:
                self.climb(self.elbo_given(x, label), only)
        return before, self._mean_bound(d_new, newborn)

    def _mean_bound(self, x: Tensor, y: int) -> float:
        """Of Eq. 4; the draws are its own, so that measuring changes nothing."""
        rng = named_generator(self.t, "birth")
        with looking(self.model):
            return float(elbo_given(self.model, x, torch.full((len(x),), y), rng).bound.mean())
