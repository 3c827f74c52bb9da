"""What a fitted CURL consists of: a learner, its lock, and what it has told."""

from __future__ import annotations

import math
import secrets
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_type_hints

import torch
from torch import Generator, Tensor

from curlicue.config.codec import from_json, to_json
from curlicue.config.kinds import require
from curlicue.config.model import Emission, Likelihood, ModelConfig
from curlicue.errors import ConfigError, RunError
from curlicue.estimator.networks import Own
from curlicue.estimator.rows import Array, tensor
from curlicue.estimator.saving import REMEDY
from curlicue.estimator.settings import Json, Settings
from curlicue.learn.checkpoint import Checkpoint, to_bytes
from curlicue.learn.events import BirthRefused, ComponentBorn, Event, SnapshotTaken, StepTaken
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.model.devices import device_of
from curlicue.model.inference import CHUNK
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng, named_generator

Fact = ComponentBorn | SnapshotTaken | BirthRefused
"""What `events_` and `on_event` tell: everything but the single steps."""

LATEST = 10_000  # events that are kept
RARELY = 1e-12  # how often a component is sampled that stands for nothing, beside one that stands for one sample
NOBODY = torch.empty(0, 0)  # the samples of a fact that is remembered
FACTS = {kind.__name__: kind for kind in (ComponentBorn, SnapshotTaken, BirthRefused)}


@dataclass(frozen=True)
class Kept:
    """What is kept of a `Core` beside the state of its learner."""

    model: ModelConfig
    learner: LearnerConfig
    own: Json  # what torch writes of the user's own networks
    shape: tuple[int, ...]  # of one sample
    pixels: bool
    events: tuple[Json, ...]

    def __post_init__(self) -> None:
        sizes = "one size or more, each an int in the range [1, inf)"
        require(len(self.shape) > 0 and min(self.shape) >= 1, "shape", self.shape, sizes)


class Core:
    """A learner with its lock: one thread at a time learns, or reads all rows of a call."""

    def __init__(
        self, settings: Settings, shape: tuple[int, ...], *, seed: int, device: torch.device, pixels: bool
    ) -> None:
        self.settings, self.shape = settings, shape
        self.pixels = pixels  # whether it began with uint8, pixels of 0 to 255
        rng = Rng.from_seed(seed)
        encoder, decoder = settings.own.made(math.prod(shape), settings.model.n_z, seed)
        model = MixtureVAE.from_config(settings.model, shape, rng.init, encoder, decoder).to(device)
        self.learner = Learner(model, settings.learner, rng)
        self.events: deque[Fact] = deque(maxlen=LATEST)
        self.lock = threading.RLock()
        self.sampling = named_generator(seed, "sampling")

    @property
    def likelihood(self) -> Likelihood:
        """p(x|z)."""
        return self.settings.model.likelihood

    @property
    def own(self) -> dict[str, str]:
        """What torch writes of the user's own networks."""
        return self.settings.own.described(self.learner.model)

    def learn(self, values: Array, least: int) -> list[Fact]:
        """A mini-batch of rows [n, D] and the rehearsal that is then due; fewer than `least` rows wait for more."""
        return self._brought_about(lambda: self.learner.gather(tensor(values, self.likelihood), least))

    def review(self, values: Array, first: bool) -> list[Fact]:
        """A mini-batch [n, D] of data at rest, for the first time or again."""
        if self.finds_at_rest:
            return self._brought_about(lambda: self.learner.review(tensor(values, self.likelihood), first))
        return self.learn(values, least=1)

    def settle(self) -> list[Fact]:
        """Nothing more comes for now."""
        return self._brought_about(self.learner.settle)

    @property
    def finds_at_rest(self) -> bool:
        """Whether growth finds what is there in data that never change."""
        return self.learner.growth is not None and self.learner.growth.at_rest

    def _brought_about(self, act: Callable[[], Iterator[list[Event]]]) -> list[Fact]:
        """Let the learner act, undisturbed, and keep what it tells."""
        with undisturbed(), self.lock:
            facts = [*_facts(act())]
            self.events.extend(_without_samples(fact) for fact in facts)
        return facts

    def read(self, values: Array, what: Callable[[MixtureVAE, Tensor], Tensor]) -> Array:
        """What the model says of rows [n, D]."""
        with self.lock:
            starts = range(0, len(values), CHUNK)
            parts = (tensor(values[start : start + CHUNK], self.likelihood) for start in starts)
            return torch.cat([what(self.learner.model, part).cpu() for part in parts]).numpy()

    def sample(self, n: int, component: int | None, rng: Generator | None = None) -> tuple[Array, Array]:
        """n new samples [n, D], and the component of each [n]."""
        rng = self.sampling if rng is None else rng
        with self.lock:
            counts = self.learner.memory.counts() + RARELY
            y = torch.multinomial(counts, n, replacement=True, generator=rng)
            y = y if component is None else torch.full((n,), component)
            return self.learner.model.sample(y, Emission.SAMPLE, rng).cpu().numpy(), y.numpy()

    def to_bytes(self) -> bytes:
        """Everything but the lock, the generator of `sample` and the code of the user's own networks."""
        with self.lock:
            events = tuple(_to_line(fact) for fact in self.events)
            kept = Kept(self.settings.model, self.settings.learner, self.own, self.shape, self.pixels, events)
            return to_bytes(self.learner, to_json(kept))

    @classmethod
    def from_bytes(cls, contents: bytes, name: str, own: Own, device: str) -> Core:
        """The inverse of `to_bytes`; `own` are the user's own networks where the saved model has some."""
        checkpoint, place = Checkpoint.of(contents, name, remedy=REMEDY), device_of(device)
        try:
            kept: Kept = from_json(Kept, checkpoint.extra, "The state")
            events = [_from_line(line) for line in kept.events]
            settings = Settings(kept.model, kept.learner, own)
            core = cls(settings, kept.shape, seed=secrets.randbits(31), device=place, pixels=kept.pixels)
        except ConfigError as error:
            raise RunError(f"{name} cannot be read: {error}") from error
        own.check_alike(core.learner.model, kept.own, name)
        checkpoint.restore(
            core.learner, f"Give the {' and the '.join(core.own)} it was saved with." if core.own else REMEDY
        )
        core.events.extend(events)
        return core


def _facts(steps: Iterable[list[Event]]) -> Iterator[Fact]:
    """The events of steps but the steps themselves; RunError if learning diverges."""
    for event in (event for events in steps for event in events):
        if not isinstance(event, StepTaken):
            yield event
        elif not math.isfinite(event.bound):
            remedy = "Scale X or lower learning_rate, and begin anew or with what was saved before."
            raise RunError(f"Learning has diverged: the bound is {event.bound} nats. {remedy}")


# -- facts without samples ----------------------------------------------------------------------------------------


def _without_samples(fact: Fact) -> Fact:
    return fact if isinstance(fact, SnapshotTaken) else replace(fact, d_new=NOBODY)


def _to_line(fact: Fact) -> Json:
    """A fact as JSON."""
    return {"type": type(fact).__name__, **{name: each for name, each in vars(fact).items() if name != "d_new"}}


def _from_line(line: Json) -> Fact:
    """The inverse of `_to_line`."""
    kind = FACTS.get(str(line.get("type")))
    hints = get_type_hints(kind) if kind else {}
    figures: Json = {"d_new": NOBODY} if "d_new" in hints else {}
    if kind is None or set(line) != set(hints) - set(figures) | {"type"}:
        raise ConfigError(f"The state holds an event that CURL.save never wrote: {line!r}. {REMEDY}")
    for name in set(line) - {"type"}:
        figures[name] = from_json(hints[name], line[name], f"An event's {name}")
    return kind(**figures)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until this is over, so that nothing is left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if handler is None else handler)
    if caught:
        signal.raise_signal(signal.SIGINT)
