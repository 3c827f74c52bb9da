"""The latent space in two dimensions, view after view; points keep their places as far as they can."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from curlicue.records.files import Array

MOMENTS = 10  # of a run
PERPLEXITY = 30.0
FIRST, NEXT = 500, 300  # iterations of t-SNE: from nothing, and from the view before
ANGLE = 0.8  # of Barnes and Hut: as good as their 0.5 here, in half the time
EXAGGERATION = 4.0  # of a view that has one before: enough to part what has become two clusters


def moments(views: Sequence[int], steps: int) -> list[int]:
    """Of the steps of views, the first after each tenth of the run, and the last: as many as t-SNE has time for.

    Those chosen stay so when views are added, but for the last.
    """
    tenths = [0, *(t * MOMENTS // steps for t in views)]
    return [t for t, (before, now) in zip(views, pairwise(tenths), strict=True) if now > before or t == views[-1]]


class Projector:
    """t-SNE of each view, started from the one before; remembers what it has done."""

    def __init__(self) -> None:
        self.known: dict[str, Array] = {}

    def project(self, views: Iterable[Array]) -> list[Array]:
        """Embeddings [N, Z] of the same N samples in each view → [N, 2] for each."""
        done: list[Array] = []
        key = ""
        for z in views:
            z = np.ascontiguousarray(z, dtype=np.float32)
            key = hashlib.sha256(key.encode() + z.tobytes()).hexdigest()  # of this view and all before it
            if key not in self.known:
                self.known[key] = _project(z, done[-1] if done else None)
            done.append(self.known[key])
        return done


def _project(z: Array, before: Array | None) -> Array:
    if len(z) < 4 or z.shape[1] < 2 or (z == z[:1]).all():  # too little to arrange
        return np.pad(z, ((0, 0), (0, 2)))[:, :2]
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, (len(z) - 1) / 3)
    settings = (
        {"init": "pca", "max_iter": FIRST}
        if before is None
        else {"init": before.astype(np.float32), "max_iter": NEXT, "early_exaggeration": EXAGGERATION}
    )
    with threadpool_limits(1):  # several would crawl where the machine has other work, such as the run itself
        xy = TSNE(perplexity=perplexity, angle=ANGLE, random_state=0, **settings).fit_transform(z)
    return np.asarray(xy - xy.mean(0), dtype=np.float32)
