"""Small estimators, and rows to teach them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from curlicue.errors import ConfigError
from curlicue.estimator import CURL
from curlicue.growth.protocol import Tuned
from curlicue.growth.threshold import Threshold
from curlicue.learn.checkpoint import to_bytes

D = 5  # features


def small(**settings: Any) -> CURL:
    """A small network; its growth and memory are such that they bring nothing about in few rows."""
    quiet = {"growth": "measured", "memory": "snapshot"}
    return CURL(**{"n_z": 2, "encoder": (16,), "decoder": (16,), "random_state": 0} | quiet | settings)


def eager(n_new: int = 1, **settings: Any) -> CURL:
    """Everything is poorly explained, so that every eligible mini-batch brings a birth."""
    growth = Threshold(c_new=1e6, n_new=n_new, wait=20, passes=100, tuned=Tuned.HEADS)
    return small(**{"growth": growth, "max_components": 3} | settings)


def rows(n: int, centre: float = 0.0, seed: int = 0, width: int = D) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, 1, size=(n, width))


def whole(curl: CURL) -> bytes:
    """All that its future depends on."""
    return curl._core.to_bytes()


def learnt(curl: CURL) -> bytes:
    """All that it has learnt, whatever kind of numbers taught it."""
    return to_bytes(curl._core.learner, {})


def refused(call: Callable[[], object], kind: type[Exception] = ConfigError) -> str:
    """The one line that says why."""
    with pytest.raises(kind) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)
