"""A system and labelled data → scores. Reads the system, changes nothing, draws from a generator of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from curlicue.evaluate.metrics import ClusterScores, cluster_scores, confusion, knn_error
from curlicue.streams.sources import Source, Split

NEIGHBOURS = (3, 5, 10)


class Scored(Protocol):
    """What scores read of every system."""

    @property
    def K(self) -> int:
        """How many components or classes it tells apart."""

    def probabilities(self, x: Tensor) -> Tensor:
        """Of each component or class, for each row: [N, D] → [N, K]."""

    def embed(self, x: Tensor, sampled: Generator | None = None) -> Tensor:
        """The embedding of each row, or a sample of it: [N, D] → [N, Z]."""


@runtime_checkable
class Explains(Protocol):
    """A system with a bound on log p(x)."""

    def bounds(self, x: Tensor, rng: Generator, tau: float) -> Tensor:
        """L(x) of each row [N], in nats; with τ > 0 an estimate from the components that matter."""


@runtime_checkable
class Classifies(Protocol):
    """A system that learns from labels."""

    def class_probabilities(self, x: Tensor, n_classes: int) -> Tensor:
        """Of each class, for each row: [N, D] → [N, C]; 0 for a class that was never seen."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How well the components and the bound explain a data set."""

    clusters: ClusterScores
    bound: float | None  # mean, in nats; None if the system has none

    def to_json(self) -> dict[str, Any]:
        """Flat, for a line of metrics."""
        bound = {} if self.bound is None else {"bound": self.bound}
        return {**bound, **asdict(self.clusters)}


def score(system: Scored, split: Split, n_classes: int, rng: Generator, tau: float) -> Scores:
    """Cluster scores and mean bound on labelled data."""
    return _scores(system, split, n_classes, rng, tau)[0]


def _scores(system: Scored, split: Split, n_classes: int, rng: Generator, tau: float) -> tuple[Scores, Tensor]:
    """The scores, and the component of each sample [N]."""
    y = system.probabilities(split.x).argmax(1)
    bound = None
    if isinstance(system, Explains):
        bound = math.fsum(system.bounds(split.x, rng, tau).double().tolist()) / len(split.x)
    return Scores(clusters=cluster_scores(split.labels, y, n_classes, system.K), bound=bound), y


def knn_errors(system: Scored, source: Source, sampled: Generator | None = None) -> dict[int, float]:
    """k-NN error in the space of embeddings, all training points as neighbours."""
    train_z, test_z = (system.embed(split.x, sampled) for split in (source.train, source.test))
    ks = [k for k in NEIGHBOURS if k <= len(train_z)]
    return knn_error(train_z, source.train.labels, test_z, source.test.labels, ks)


def final_scores(system: Scored, source: Source, rng: Generator, sampled_knn: bool) -> dict[str, Any]:
    """Everything that is measured once, at the end."""
    test, C = source.test, source.n_classes
    scores, y = _scores(system, test, C, rng, tau=0.0)
    errors = knn_errors(system, source, rng if sampled_knn else None)
    return {
        **scores.to_json(),
        "knn_error": {str(k): error for k, error in errors.items()},
        "confusion": confusion(test.labels, y, C, system.K).tolist(),
        "classes": list(source.classes),
    }


def labelled_accuracy(
    system: Classifies, split: Split, n_classes: int, tasks: Sequence[Sequence[int]]
) -> dict[str, float]:
    """The supervised benchmark: accuracy among all classes, and among those of the sample's own task."""
    p = system.class_probabilities(split.x, n_classes)  # [N, C]
    shown = [task for task in tasks if torch.isin(split.labels, torch.tensor(list(task))).any()]
    within = [_accuracy_within(p, split.labels, list(task)) for task in shown]
    return {
        "incremental_class": _accuracy_within(p, split.labels, list(range(n_classes))),
        "incremental_task": sum(within) / len(within),
    }


def _accuracy_within(p: Tensor, labels: Tensor, task: list[int]) -> float:
    """Accuracy on the samples of `task` when only its classes are in question; a class never seen is never right."""
    mine = torch.isin(labels, torch.tensor(task))
    among = p[mine][:, task]  # [n, classes of the task]
    chosen = torch.tensor(task)[among.argmax(1)]
    return float(((chosen == labels[mine]) & (among.amax(1) > 0)).double().mean())
