"""How far the estimator's defaults get without tuning: kinds that come one after the other, and the same shuffled.

The table of docs/decisions/0011-defaults-of-the-estimator.md is what this prints.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_blobs
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from curlicue import CURL
from curlicue.evaluate.metrics import cluster_scores

Array = npt.NDArray[np.float64]
LOADED = {"wine": load_wine, "iris": load_iris, "breast cancer": load_breast_cancer}
BLOBS = {"blobs, 2 dimensions": 2, "blobs, 10 dimensions": 10, "blobs, 50 dimensions": 50}
B = 100  # rows of a batch


def data(name: str, seed: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Rows as the likelihood wants them, and their classes."""
    if name == "digits":
        x, labels = load_digits(return_X_y=True)
        return x / 16, labels
    if name in BLOBS:
        x, labels = make_blobs(3000, BLOBS[name], centers=6, center_box=(-8, 8), random_state=seed + 3)
    else:
        x, labels = LOADED[name](return_X_y=True)
    return StandardScaler().fit_transform(x), labels


def stream(x: Array, labels: npt.NDArray[np.int64], in_turn: bool, batches: int, seed: int) -> Iterator[Array]:
    """So many batches for each class."""
    rng = np.random.default_rng(seed)
    for label in np.unique(labels):
        shown = x[labels == label] if in_turn else x
        for _ in range(batches):
            yield shown[rng.integers(len(shown), size=B)]


def learnt(name: str, in_turn: bool, batches: int, seed: int) -> str:
    """K, and the cluster accuracy on a quarter of the rows that was never shown."""
    x, labels = data(name, seed)
    x, x_test, labels, labels_test = train_test_split(x, labels, test_size=0.25, random_state=0, stratify=labels)
    curl = CURL(likelihood="bernoulli" if name == "digits" else "gaussian", random_state=seed)
    curl.fit_stream(stream(x, labels, in_turn, batches, seed))
    found, K = torch.from_numpy(curl.predict(x_test)), curl.n_components_
    scores = cluster_scores(torch.from_numpy(labels_test), found, len(np.unique(labels)), K)
    return f"{K}, {100 * scores.cluster_accuracy:.0f} %"


def main(seeds: tuple[int, ...] = (0, 1), batches: int = 150) -> None:
    """Learn each data set in turn and shuffled.

    Args:
        seeds: of data, stream and model
        batches: of 100 rows, for each class
    """
    table = Table("data", "in turn: K, cluster accuracy", "shuffled: K, cluster accuracy")
    for name in track([*LOADED, *BLOBS, "digits"], "Learning"):
        cells = ["; ".join(learnt(name, in_turn, batches, seed) for seed in seeds) for in_turn in (True, False)]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    tyro.cli(main)
