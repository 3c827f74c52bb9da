"""Algorithm 1: learn from an unlabelled stream, grow when it is poorly explained, rehearse what was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from curlicue.config.kinds import option, require
from curlicue.engines.choice import engine_for
from curlicue.engines.protocol import Ascent, Climbing
from curlicue.errors import ConfigError
from curlicue.growth.protocol import Birth, Familiar, GrowthConfig, Move, Tuned
from curlicue.growth.threshold import Threshold
from curlicue.learn.events import BirthRefused, ComponentBorn, Event, StepTaken
from curlicue.memory.nothing import Nothing
from curlicue.memory.protocol import MemoryConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.model.devices import sent
from curlicue.model.elbo import ElboTerms, elbo_given
from curlicue.model.inference import posterior
from curlicue.model.mixture import MixtureVAE, eval_mode
from curlicue.records.state import Fields, MisfitError, State
from curlicue.rng import Rng, named_generator

MOST_BATCHES = 10  # that D_new is cut into, however small those of the stream are


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How the bound is climbed, when the model grows and what it rehearses."""

    learning_rate: float = 1e-3  # of Adam
    tau: float = 0.5  # of the sparse bound: a component is visited with probability q/tau; 0: all components are
    z_samples: int = 1  # importance samples of z (IWAE)
    growth: GrowthConfig | None = field(default_factory=Threshold)  # when a component is born
    max_components: int | None = None  # at this number none is born any more
    memory: MemoryConfig | None = field(default_factory=Snapshot)  # what is rehearsed between real batches

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < math.inf, "learning_rate", self.learning_rate, "a float in the range (0, inf)")
        require(0 <= self.tau <= 1, "tau", self.tau, "a float in the range [0, 1]")
        require(self.z_samples >= 1, "z_samples", self.z_samples, "an int in the range [1, inf)")
        cap = self.max_components
        require(cap is None or cap >= 1, "max_components", cap, "None or an int in the range [1, inf)")
        if self.growth and self.growth.needs_rows and not (self.memory and self.memory.keeps_rows):
            name = option(type(self.growth))
            remedy = "Choose the memory 'reservoir', or another growth, such as 'measured'."
            raise ConfigError(f"Growth by {name!r} looks at rows that a memory keeps. {remedy}")


class Learner:
    """CURL: it alone decides when the model grows and what it rehearses."""

    def __init__(self, model: MixtureVAE, config: LearnerConfig, rng: Rng) -> None:
        self.model, self.config, self.rng = model, config, rng
        climbing = Climbing(learning_rate=config.learning_rate, tau=config.tau, z_samples=config.z_samples)
        self.engine = engine_for(model, climbing, rng.latent)
        self.memory = config.memory.start(model, rng.replay) if config.memory else Nothing(model)
        self.growth = config.growth.start(model, self.memory.store) if config.growth else None
        self.t = 0  # steps taken, real and rehearsed together
        self.batch_size = 0  # of the largest real batch so far: rehearsed batches are as large
        self.rehearsal_due = False
        self.waiting = torch.empty(0, model.n_x, dtype=model.dtype)  # rows too few for a batch, on the CPU

    def learn(self, stream: Iterable[Tensor]) -> Iterator[list[Event]]:
        """Take a step on each real batch x [B, D] and, once there is a past, steps on rehearsed ones after it.

        Yields what each step brought about. Between any two steps the learner may be saved, and `learn` called anew.
        """
        while self.rehearsal_due:
            yield self.rehearse()
        for x in stream:
            yield self.observe(x)
            while self.rehearsal_due:
                yield self.rehearse()

    def gather(self, x: Tensor, least: int) -> Iterator[list[Event]]:
        """Learn rows that come in any number, [n, D]: fewer than `least` wait for the next."""
        self.waiting = torch.cat([self.waiting, x.to(self.waiting)])
        if len(self.waiting) >= least:
            batch, self.waiting = self.waiting, self.waiting[:0]
            yield from self.learn([batch])

    def observe(self, x: Tensor) -> list[Event]:
        """The step on a real batch: look at its bound, climb it, and give birth if growth asks for it."""
        x = sent(x, self.model.device)
        events: list[Event] = [*self.memory.begin(self.t)]
        ascent = self.engine.bound(x)
        n_poor = self.growth.look(x, ascent.terms, self.t) if self.growth else 0
        held = self.growth is not None and self.growth.holding
        events += [self.step_taken(ascent.terms, n_poor=n_poor)] if held else self.step(x, ascent, n_poor)
        events += self.heed()
        self.rehearsal_due = self.memory.ready
        return events

    def heed(self) -> list[Event]:
        """Do what growth asks for."""
        events: list[Event] = []
        while self.growth and (asked := self.growth.due()):
            match asked:
                case Birth():
                    events += self.refuse(asked) if self.at_cap else self.expand(asked)
                case Familiar(x, y):
                    self.memory.take(x, self.engine.bound(sent(x, self.model.device)).terms, y)
                case Move(members, to):
                    self.memory.move(members, to)
        return events

    def review(self, x: Tensor, first: bool) -> Iterator[list[Event]]:
        """Steps on rows of data at rest: growth does not look at them; the memory takes them in the `first` time."""
        x = sent(x, self.model.device)
        ascent = self.engine.bound(x)
        self.engine.climb(ascent)
        if first:
            self.memory.take(x, ascent.terms)
        self.batch_size, self.rehearsal_due = max(self.batch_size, len(x)), self.memory.ready
        yield [self.step_taken(ascent.terms)]
        yield from self.learn(())

    def settle(self) -> Iterator[list[Event]]:
        """Nothing more comes for now: the rows that wait are learnt, and growth decides what it can."""
        yield from self.gather(self.waiting[:0], least=1)
        if self.growth:
            self.growth.rest()
        yield self.heed()
        self.rehearsal_due = self.rehearsal_due or self.memory.pressing
        yield from self.learn(())

    def step(self, x: Tensor, ascent: Ascent, n_poor: int = 0) -> list[Event]:
        """Climb the bound of a real batch, which the memory sees before and takes in after."""
        events: list[Event] = [*self.memory.look(ascent.terms, self.t)]
        self.engine.climb(ascent)
        self.memory.take(x, ascent.terms)
        self.batch_size = max(self.batch_size, len(x))
        return [*events, self.step_taken(ascent.terms, n_poor=n_poor)]

    def rehearse(self) -> list[Event]:
        """The step on a batch of the past: MGR, or with its components as labels: SMGR."""
        past, engine = self.memory.recall(self.batch_size), self.engine
        x = sent(past.x, self.model.device)
        seen = None if past.seen is None else sent(past.seen, self.model.device)
        ascent = engine.bound_given(x, past.y, past.emphasis, seen) if past.labelled else engine.bound(x)
        engine.climb(ascent)
        self.memory.recalled(past, ascent.terms)
        self.rehearsal_due = self.memory.pressing
        return [self.step_taken(ascent.terms, rehearsed=True)]

    def expand(self, birth: Birth) -> list[Event]:
        """A component is born, as a copy of the one that explains most of D_new, and fitted to D_new."""
        events: list[Event] = [*self.memory.before_birth(self.t)]
        parent = closest_component(self.model, birth.d_new) if birth.parent is None else birth.parent
        newborn = self.grow(parent, birth.d_new, birth.members)
        before, after = self.fit(newborn, birth)
        return [*events, ComponentBorn(self.t, newborn, parent, self.model.K, before, after, birth.d_new.cpu())]

    def refuse(self, birth: Birth) -> list[Event]:
        """No component is born at the cap."""
        assert self.growth is not None
        self.growth.refused()
        return [BirthRefused(self.t, self.model.K, birth.d_new.cpu())]

    @property
    def at_cap(self) -> bool:
        """Whether the model has as many components as it may have."""
        return self.config.max_components is not None and self.config.max_components <= self.model.K

    def grow(self, parent: int, d_new: Tensor | None = None, members: Tensor | None = None) -> int:
        """Add a copy of `parent` to the model and tell all who keep something of each component; returns its id."""
        self.engine.grow(parent)
        self.memory.born(d_new, members)
        if self.growth:
            self.growth.born()
        return self.model.K - 1

    def fit(self, newborn: int, birth: Birth) -> tuple[float, float]:
        """Climb Eq. 4 with the newborn's label over the last full batches of D_new; mean bound before, after."""
        d_new = sent(birth.d_new, self.model.device)
        only = self.model.component_parameters() if birth.tuned is Tuned.HEADS else None
        B = min(max(self.batch_size, len(d_new) // MOST_BATCHES), len(d_new))
        batches, label = d_new[len(d_new) % B :].split(B), torch.full((B,), newborn)
        before = self._mean_bound(d_new, newborn)
        for _ in range(birth.passes):
            for x in batches:
                self.engine.climb(self.engine.bound_given(x, label), only)
        return before, self._mean_bound(d_new, newborn)

    def _mean_bound(self, x: Tensor, y: int) -> float:
        """Of Eq. 4; the draws are its own, so that measuring changes nothing."""
        rng = named_generator(self.t, "birth")
        with eval_mode(self.model):
            return float(elbo_given(self.model, x, torch.full((len(x),), y), rng).bound.mean())

    def step_taken(self, terms: ElboTerms, rehearsed: bool = False, n_poor: int = 0) -> StepTaken:
        """Count the step, and tell its figures."""
        figures = torch.stack((terms.bound, terms.log_p_x, terms.kl_z, terms.kl_y)).mean(1)
        bound, log_p_x, kl_z, kl_y, *q_y = torch.cat([figures, terms.q_y.mean(0)]).tolist()
        self.t += 1
        return StepTaken(self.t - 1, self.model.K, bound, log_p_x, kl_z, kl_y, tuple(q_y), rehearsed, n_poor)

    def state(self) -> State:
        """Everything that a learner made from the same settings needs to go on bit for bit."""
        return {
            "t": self.t,
            "batch_size": self.batch_size,
            "rehearsal_due": self.rehearsal_due,
            "rng": self.rng.state(),
            "engine": self.engine.state(),
            "memory": self.memory.state(),
            "growth": self.growth.state() if self.growth else {},
            **({"waiting": self.waiting} if len(self.waiting) else {}),
        }

    def restore(self, fields: Fields) -> None:
        """Go on from `state`; a learner that refuses some part of it may have taken others already."""
        self.t, self.batch_size = fields.count("t"), fields.count("batch_size")
        self.rehearsal_due = fields.value("rehearsal_due", bool)
        try:
            self.rng.restore(fields.tensors_like("rng", self.rng.state()))
        except RuntimeError as error:  # of `Generator.set_state`
            raise MisfitError(f"{fields.where}/rng holds no state of a generator") from error
        self.engine.restore(fields.state("engine"))
        self.memory.restore(fields.state("memory"))
        if self.growth:
            self.growth.restore(fields.state("growth"))
        self.waiting = self.waiting[:0]
        if "waiting" in fields:
            self.waiting = fields.tensor("waiting", (None, self.model.n_x), self.model.dtype)
        if self.rehearsal_due and not self.memory.ready:
            raise MisfitError(f"{fields.where} holds nothing of the past, but says that it is to be rehearsed next")


def closest_component(model: MixtureVAE, d_new: Tensor) -> int:
    """k* = argmaxₖ Σ_{x ∈ D_new} q(y=k|x)."""
    return int(posterior(model, d_new).sum(0).argmax())
