"""How well a system found the clusters and the changes of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from curlicue.evaluate.metrics import cluster_scores
from curlicue.records.files import Json
from stream_kinds import Labels, Stream
from stream_systems import Found


@dataclass(frozen=True)
class Births:
    """How births answer changes."""

    births: int
    births_per_change: float | None  # of those within the window after a change
    delays: tuple[int | None, ...]  # for each change: rows to the first birth before the next one; None: there was none
    false_births: int  # within no window, beyond those for the clusters that are there from the first row on


def scores(stream: Stream, found: Found) -> Json:
    """All scores of a system, as JSON."""
    labels = stream.labels[:: found.thinned]
    result = {**agreement(labels, found.labels), "n_components": found.K, "true_K": stream.K}
    result |= {"rows": found.rows, "seconds": found.seconds, "rows_per_second": found.rows / found.seconds}
    if found.births is not None:
        result |= asdict(answers(found.births, stream.changes, stream.window, stream.at_first))
    few = f"evaluated on {len(labels):,} of {len(stream.labels):,} rows" if found.thinned > 1 else ""
    return result | {"notes": [note for note in (found.note, few) if note]}


def agreement(labels: Labels, found: Labels) -> Json:
    """Of clusters with the true ones; rows of none are a cluster of their own, which K does not count."""
    _, true = np.unique(labels, return_inverse=True)
    names, place = np.unique(found, return_inverse=True)
    measured = cluster_scores(torch.from_numpy(true), torch.from_numpy(place), int(true.max()) + 1, len(names))
    K = int((names >= 0).sum())
    return {"ari": measured.ari, "nmi": measured.nmi, "purity": measured.cluster_accuracy, "K": K}


def answers(births: Sequence[int], changes: Sequence[int], window: int, at_first: int = 1) -> Births:
    """Births as answers to changes; both are numbers of rows, and a birth at a change's row belongs to what was before.

    >>> answers([150, 180, 900], changes=[100, 500], window=100)
    Births(births=3, births_per_change=1.0, delays=(50, 400), false_births=1)
    """
    ends = [*changes[1:], float("inf")]
    delays = tuple(
        next((birth - change for birth in sorted(births) if change < birth <= end), None)
        for change, end in zip(changes, ends, strict=False)
    )
    within = sum(any(change < birth <= change + window for change in changes) for birth in births)
    per_change = within / len(changes) if changes else None
    return Births(len(births), per_change, delays, max(len(births) - within - (at_first - 1), 0))
