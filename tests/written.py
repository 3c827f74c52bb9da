"""Run directories as a run would write them, without a run."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from curlicue.config.codec import to_json
from curlicue.experiments.presets import PRESETS
from curlicue.records.directory import RunDirectory

STEPS = 400
CLASSES = ("a", "b", "<script>alert(1)</script>", "%{x}</b>&amp;")


def write_run(
    path: Path,
    *,
    seed: int = 0,
    labelled: bool = True,
    until: int = STEPS,
    shape: tuple[int, ...] = (4, 3),
    N: int = 30,
    n_views: int = 4,
    **config: Any,
) -> Path:
    """A small run of four classes in turn; `until` says how far it has come, `labelled` whether classes are known."""
    settings = to_json(PRESETS["digits"]) | {"steps": STEPS, "seed": seed} | config
    run = RunDirectory.create(path, settings, {"python": "3", "versions": {"torch": "2"}, "threads": 1})
    rng = np.random.default_rng(seed)
    D = math.prod(shape)
    labels = rng.integers(0, len(CLASSES), size=N)
    run.write_view("rows", {"x": rng.random((N, D)), **({"labels": labels} if labelled else {})})
    classes = {"classes": list(CLASSES)} if labelled else {}
    run.write("data", {"name": "four <i>", "shape": list(shape), **classes})
    for t in range(100, until + 1, 100):
        write_steps(run, rng, t, D, labelled)
        if t % (STEPS // n_views) == 0:
            write_view(run, rng, t, N, D)
    if until == STEPS:
        write_end(run, labels if labelled else None, -20.5 - seed, 0.75 + seed / 10)
    return path


def write_end(run: RunDirectory, labels: np.ndarray | None, bound: float = -20.5, accuracy: float = 0.75) -> None:
    """The run finishes."""
    scores: dict[str, Any] = {"K": 4, "n_used": 4, "bound": bound}
    if labels is not None:
        confusion = np.zeros((4, 4), int)
        np.add.at(confusion, (labels, labels), 1)
        scores |= {"cluster_accuracy": accuracy, "knn_error": {"10": 0.125}, "classes": list(CLASSES)}
        scores["confusion"] = confusion.tolist()
    run.write("result", {"steps": STEPS, **scores})
    run.write("timing", {"minutes": 1.5, "steps_per_second": 42.0})


def write_steps(run: RunDirectory, rng: np.random.Generator, t: int, D: int, labelled: bool = True) -> None:
    """A hundred steps up to t: a snapshot, a birth, what the components explain, and scores."""
    K = t // 100
    if K > 1:
        run.append("events", {"event": "SnapshotTaken", "t": t - 100, "K": K - 1})
        run.write_birth(K - 1, rng.random((7, D)).round().astype(np.float32))
        born = {"component": K - 1, "parent": 0, "K": K, "bound_before": -40.0, "bound_after": -30.0, "n": 7}
        run.append("events", {"event": "ComponentBorn", "t": t - 99, **born})
    real = {"bound": -30.0 + K, "q_y": [1 / K] * K}
    run.append("events", {"event": "StepsTaken", "t": t - 1, "K": K, "n": 100, "real": real})
    scores = {"t": t, "K": K, "n_used": K, "bound": -30.0 + K, "counts": [100.0] * K}
    if labelled:
        scores |= {"cluster_accuracy": K / 5, "class_accuracy": [1.0] * K + [None] * (len(CLASSES) - K)}
    run.append("metrics", scores)


def write_view(run: RunDirectory, rng: np.random.Generator, t: int, N: int, D: int) -> None:
    """What is seen at step t."""
    K = -(-t // 100)
    y = rng.integers(0, K, size=N)
    centres = 5 * rng.normal(size=(K, 3))
    z = centres[y] + rng.normal(size=(N, 3))
    run.write_view(t, {"generated": rng.random((K, 8, D)), "centres": centres, "z": z, "y": y})
