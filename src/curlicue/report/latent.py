"""The latent space as a map: 2-D places of the samples that a run's views show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.float32]  # [N, 2]

ITERATIONS = 500
FEWEST = 5  # samples; below that there is nothing to map


def maps(latents: Iterable[npt.NDArray[Any]]) -> Iterator[Places]:
    """t-SNE of each z [N, Z]; each map starts from the one before, so that samples keep their places."""
    before: Places | None = None
    for z in latents:
        before = tsne(z.astype(np.float32), before)
        yield before


def tsne(z: npt.NDArray[np.float32], before: Places | None = None) -> Places:
    """Places of z [N, Z], near where they were before."""
    from sklearn.manifold import TSNE

    if len(z) < FEWEST or not np.ptp(z, axis=0).any():
        return np.zeros((len(z), 2), np.float32)
    init = "pca" if before is None or not before.any() else 1e-4 * before / before[:, 0].std()
    tsne = TSNE(init=init, perplexity=min(30, len(z) // 4), max_iter=ITERATIONS, random_state=0)
    return np.asarray(tsne.fit_transform(z), np.float32)
