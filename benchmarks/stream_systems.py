"""The systems of benchmarks/streams.py: each learns a stream, and says to which cluster the evaluated rows belong.

CURL is told nothing, but for values in [0, 1] the likelihood. The others get the same batches, standardised with the
mean and deviation of the whole stream, which no system that learns it as it comes could know. Those that need
a number of clusters are told the true one.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import HDBSCAN, Birch, KMeans, MiniBatchKMeans
from sklearn.mixture import BayesianGaussianMixture
from sklearn.preprocessing import StandardScaler

import curlicue
from curlicue import CURL, ComponentBorn
from stream_kinds import Array, Labels, Stream

RIVER_ROWS, RIVER_EVALUATED = 20_000, 2_000  # most rows that systems of river learn, and that they are evaluated on
ALL_ROWS = 20_000  # most rows that systems see which see all at once
FADING = 1e-4  # of DBSTREAM; with its default, 0.01, it forgets a regime within some hundred rows of the next
SUBCLUSTERS = 5_000  # of Birch, beyond which they are joined by k-means: the default needs their square of memory
WIDE_ROWS = 2_500  # most rows of a wide stream that HDBSCAN sees, and that it is evaluated on
WIDE = 100  # features beyond which a stream is wide: a covariance is a diagonal
PATIENCE = 600.0  # seconds of learning after which a system is stopped


class TooSlowError(RuntimeError):
    """A system has learnt for longer than PATIENCE."""


@dataclass(frozen=True)
class Found:
    """What a system made of a stream."""

    labels: Labels  # the cluster of each evaluated row; below 0: of none
    rows: int  # that it learnt
    seconds: float  # of learning
    K: int | None = None  # components of the model, where it has them
    births: tuple[int, ...] | None = None  # rows learnt by each birth, that of the newborn's batch included
    note: str = ""
    thinned: int = 1  # one of so many evaluated rows has a label


@dataclass(frozen=True)
class System:
    """A learning system and what it knows beforehand."""

    learn: Callable[[Stream, int], Found]
    told: str  # what it knows beforehand
    package: str = "scikit-learn"


# -- ours -------------------------------------------------------------------------------------------------------------


class Watched(CURL):
    """CURL that counts its rows, so that a birth within a long batch has its place."""

    rows_learnt: int = 0

    def _learn(self, values: Array, *more: Any, **named: Any) -> None:
        self.rows_learnt += len(values)  # first: births are told within
        super()._learn(values, *more, **named)


def curl(stream: Stream, seed: int) -> Found:
    """CURL with its defaults."""
    warm_up()
    births: list[int] = []

    def told(event: object) -> None:
        if isinstance(event, ComponentBorn):
            births.append(learner.rows_learnt)

    learner = Watched(likelihood=stream.likelihood, on_event=told, random_state=seed)
    if stream.at_rest:
        (x,) = stream.batches()
        rows, seconds = timed(learner.fit, [x])
    else:
        rows, seconds = timed(learner.partial_fit, stream.batches())
    return Found(learner.predict(stream.x), rows, seconds, learner.n_components_, tuple(births))


@cache
def warm_up() -> None:
    """Compile what is compiled at first use."""
    for likelihood in ("gaussian", "bernoulli"):
        CURL(likelihood=likelihood, random_state=0).fit(np.random.default_rng(0).uniform(size=(200, 3)))


def timed(learn: Callable[[Array], object], batches: Iterable[Array]) -> tuple[int, float]:
    """Learn all batches: their rows, and the seconds of learning alone."""
    rows, seconds = 0, 0.0
    for x in batches:
        begin = time.perf_counter()
        learn(x)
        seconds += time.perf_counter() - begin
        rows += len(x)
        if seconds > PATIENCE:
            raise TooSlowError(f"Stopped after {PATIENCE:g} seconds and {rows:,} rows.")
    return rows, seconds


# -- scikit-learn's ---------------------------------------------------------------------------------------------------


def mini_batch_k_means(stream: Stream, seed: int) -> Found:
    """k-means by `partial_fit`."""
    model, stream = MiniBatchKMeans(stream.K, random_state=seed), standardised(stream)
    learn = model.fit if stream.at_rest else model.partial_fit
    rows, seconds = timed(learn, first_of_at_least(stream.K, stream.batches()))
    return Found(model.predict(stream.x), rows, seconds)


def birch(stream: Stream, seed: int) -> Found:
    """A tree of subclusters of a quarter of √D around, which are joined to K in the end."""
    stream = standardised(stream)
    model = Birch(threshold=max(0.25 * stream.x.shape[1] ** 0.5, 0.1), n_clusters=None)
    rows, seconds = timed(model.partial_fit, stream.batches())
    begin, there, note = time.perf_counter(), len(model.subcluster_centers_), ""
    if there > SUBCLUSTERS:
        note = f"more than {SUBCLUSTERS:,} subclusters, joined by k-means"
    if there > 1:
        model.set_params(n_clusters=KMeans(stream.K, random_state=seed) if note else stream.K).partial_fit()
    return Found(model.predict(stream.x), rows, seconds + time.perf_counter() - begin, note=note)


def hdbscan(stream: Stream, seed: int) -> Found:
    """All distinct rows at once; a cluster has at least a hundredth of them, and 5. Few of wide rows: it takes long."""
    wide, z = stream.x.shape[1] > WIDE, standardised(stream).x
    step = -(-len(z) // WIDE_ROWS) if wide else 1
    z, (x, note) = z[::step], all_rows(stream, WIDE_ROWS if wide else ALL_ROWS - len(z))
    rows, place = (
        (z, np.arange(len(z))) if stream.at_rest else np.unique(np.vstack([x, z]), axis=0, return_inverse=True)
    )
    model = HDBSCAN(min_cluster_size=max(len(rows) // 100, 5), copy=True)
    n, seconds = timed(model.fit, [rows])
    return Found(model.labels_[place[-len(z) :]], n, seconds, note=note, thinned=step)


def gaussian_mixture(stream: Stream, seed: int) -> Found:
    """All rows at once; at most twice as many components as there truly are."""
    x, note = all_rows(stream, ALL_ROWS)
    kind = "diag" if x.shape[1] > WIDE else "full"
    model = BayesianGaussianMixture(n_components=2 * stream.K, covariance_type=kind, random_state=seed)
    rows, seconds = timed(model.fit, [x])
    return Found(model.predict(standardised(stream).x), rows, seconds, note=note)


def all_rows(stream: Stream, most: int) -> tuple[Array, str]:
    """The standardised rows of all batches, at most so many, evenly spread; and a note if these are not all."""
    shown = thinned(standardised(stream), most)
    x = np.concatenate(list(shown.batches()))
    return x, seen(len(x), stream)


def seen(rows: int, stream: Stream) -> str:
    """A note, if a system saw so many rows and these are not all."""
    return f"saw {rows:,} of {stream.rows:,} rows" if rows < stream.rows else ""


# -- river's ----------------------------------------------------------------------------------------------------------


def dbstream(stream: Stream, seed: int) -> Found:
    """Microclusters of half of √D around, which fade slowly."""
    radius = 0.5 * stream.x.shape[1] ** 0.5
    return by_river(river().DBSTREAM(clustering_threshold=radius, fading_factor=FADING), stream)


def stream_k_means(stream: Stream, seed: int) -> Found:
    """k-means of the centres of chunks."""
    return by_river(river().STREAMKMeans(n_clusters=stream.K, seed=seed), stream)


def river() -> Any:
    """Its clusterers; river is nothing that this project needs."""
    return importlib.import_module("river.cluster")


def has_river() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("river") is not None


def by_river(model: Any, stream: Stream) -> Found:
    """What a model of river learns, row by row; of long streams and evaluations, evenly spread rows."""
    short = thinned(standardised(stream), RIVER_ROWS)
    rows, seconds = timed(lambda x: [model.learn_one(each) for each in dicts(x)], short.batches())
    step = -(-len(short.x) // RIVER_EVALUATED)
    labels = np.array([model.predict_one(each) for each in dicts(short.x[::step])], np.int64)
    return Found(labels, rows, seconds, note=seen(rows, stream), thinned=step)


def dicts(x: Array) -> Iterator[dict[int, float]]:
    """Rows as river wants them."""
    return (dict(enumerate(row)) for row in x.tolist())


# -- how they get the data --------------------------------------------------------------------------------------------


def standardised(stream: Stream) -> Stream:
    """The same stream with mean 0 and variance 1, over all of it, in each feature."""
    scaler = StandardScaler()
    for x in first_of_at_least(1000, stream.batches()):
        scaler.partial_fit(x)
    return replace(stream, batches=lambda: map(scaler.transform, stream.batches()), x=scaler.transform(stream.x))


def thinned(stream: Stream, most: int) -> Stream:
    """Every n-th row, so that there are at most so many."""
    step = -(-stream.rows // most)

    def batches() -> Iterator[Array]:
        skip = 0
        for x in stream.batches():
            if len(kept := x[skip::step]):
                yield kept
            skip = (skip - len(x)) % step

    return stream if step == 1 else replace(stream, batches=batches, rows=-(-stream.rows // step))


def first_of_at_least(n: int, batches: Iterable[Array]) -> Iterator[Array]:
    """The batches, the first of them together until they have n rows."""
    batches, waiting = iter(batches), 0
    first: list[Array] = []
    while waiting < n and (x := next(batches, None)) is not None:
        first.append(x)
        waiting += len(x)
    yield np.concatenate(first)
    yield from batches


# -- all of them ------------------------------------------------------------------------------------------------------

OURS = "CURL"
SYSTEMS = {
    OURS: System(curl, "nothing", "curlicue"),
    "MiniBatchKMeans": System(mini_batch_k_means, "K"),
    "Birch": System(birch, "K"),
    "HDBSCAN": System(hdbscan, "sees all rows at once"),
    "BayesianGaussianMixture": System(gaussian_mixture, "sees all rows at once; at most 2K components"),
    "DBSTREAM": System(dbstream, "nothing", "river"),
    "STREAMKMeans": System(stream_k_means, "K", "river"),
}


def learnt(stream: Stream, system: str, seed: int) -> Found:
    """What a system finds in a stream; only our own warnings are heard."""
    with warnings.catch_warnings():
        if system != OURS:
            warnings.simplefilter("ignore")
        return SYSTEMS[system].learn(stream, seed)


@cache
def code(system: str) -> str:
    """What decides on a system's scores: a digest of our source, for the others of these files and their version."""
    files = [Path(__file__).with_name(f"stream_{part}.py") for part in ("kinds", "systems", "scores")]
    if system == OURS:
        files += sorted(Path(curlicue.__file__).parent.rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files))
    digest.update(importlib.metadata.version(SYSTEMS[system].package).encode())
    return digest.hexdigest()[:16]
