"""A model that has grown, remembers itself and is in the middle of a stream; and what users write themselves."""

import gc
import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from curlicue.estimator import CURL
from estimators import eager, rows


@pytest.fixture(scope="session")
def kept() -> bytes:
    grown = eager(batch_size=10).partial_fit(rows(2500))
    assert grown.n_components_ > 1
    return pickle.dumps(grown)


@pytest.fixture
def curl(kept: bytes) -> CURL:
    return pickle.loads(kept)


OWN = """
from dataclasses import dataclass

from curlicue.growth.protocol import Birth, Growth, GrowthConfig, Tuned
from curlicue.memory.nothing import Nothing
from curlicue.memory.protocol import MemoryConfig, Past


@dataclass(frozen=True, kw_only=True)
class Clockwork(GrowthConfig):
    every: int = 5

    def start(self, model, examples):
        return ClockworkRule(self.every)


class Careless(GrowthConfig):
    def start(self, model, examples):
        return ClockworkRule(1)


class ClockworkRule(Growth):
    def __init__(self, every):
        self.every, self.seen, self.latest = every, 0, None

    def look(self, x, terms, t):
        self.seen, self.latest = self.seen + 1, x
        return 0

    def due(self):
        d_new, self.latest = self.latest, None
        ripe = d_new is not None and self.seen % self.every == 0
        return Birth(d_new, passes=1, tuned=Tuned.HEADS) if ripe else None

    def state(self):
        return {"seen": self.seen}

    def restore(self, fields):
        self.seen = fields.count("seen")


@dataclass(frozen=True, kw_only=True)
class Echo(MemoryConfig):
    def start(self, model, rng):
        return EchoMemory(model)


class EchoMemory(Nothing):
    latest = None
    ready = property(lambda self: self.latest is not None)

    def take(self, x, terms):
        super().take(x, terms)
        self.latest = x, terms.q_y.argmax(1)

    def recall(self, n):
        return Past(*self.latest, labelled=False)

    def state(self):
        return super().state() | {"x": self.latest[0], "y": self.latest[1]}

    def restore(self, fields):
        x = fields.tensor("x", (None, self.model.n_x), self.model.dtype)
        self.latest = x, fields.tensor("y", (len(x),), self.used.long().dtype)
        super().restore(fields)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module with a rule of growth and a memory, which is forgotten again."""
    (tmp_path / "users_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("users_own")
    module.forget = lambda: forget(module)
    yield module
    forget(module)


def forget(module: ModuleType) -> None:
    """As if the module had never been imported."""
    sys.modules.pop(module.__name__, None)
    for name in [name for name in vars(module) if not name.startswith("__")]:
        delattr(module, name)
    gc.collect()
