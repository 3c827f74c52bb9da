"""How well components match classes, how well embeddings separate classes, and how much of each class was forgotten.

The accuracies read one table, n[c, k]: how many samples of class c lie in component k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits
from torch import Tensor

from curlicue.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ClusterScores:
    """The agreement of one assignment of samples to components with the classes of the samples."""

    cluster_accuracy: float  # many-to-one; it rises with K, so print K beside it
    hungarian_accuracy: float  # one-to-one
    nmi: float
    ari: float
    class_accuracy: tuple[float | None, ...]  # per class; None for a class without samples
    n_used: int  # components that hold at least one sample
    K: int


def cluster_scores(labels: Tensor, components: Tensor, n_classes: int, K: int) -> ClusterScores:
    """Every clustering score of `components` [N] against `labels` [N].

    >>> scores = cluster_scores(torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2, 0, 1]), n_classes=2, K=5)
    >>> scores.cluster_accuracy, scores.hungarian_accuracy, scores.n_used
    (1.0, 0.75, 3)
    """
    table = confusion(labels, components, n_classes, K)
    return ClusterScores(
        cluster_accuracy=cluster_accuracy(table),
        hungarian_accuracy=hungarian_accuracy(table),
        nmi=float(normalized_mutual_info_score(labels.numpy(force=True), components.numpy(force=True))),
        ari=float(adjusted_rand_score(labels.numpy(force=True), components.numpy(force=True))),
        class_accuracy=tuple(None if math.isnan(a) else a for a in class_accuracy(table).tolist()),
        n_used=int((table.sum(0) > 0).sum()),
        K=K,
    )


def confusion(labels: Tensor, components: Tensor, n_classes: int, K: int) -> Tensor:
    """n[c, k] = |{i : label_i = c, y_i = k}|, int64 [n_classes, K]."""
    labels = _indices("labels", labels, n_classes)
    components = _indices("components", components, K)
    _check_same_length("labels", labels, "components", components)
    return torch.bincount(labels * K + components, minlength=n_classes * K).reshape(n_classes, K)


def cluster_accuracy(confusion: Tensor) -> float:
    """Σₖ max_c n[c, k] / N: the share of samples that have the most frequent class of their component."""
    n = _table(confusion, needs_samples=True)
    return int(n.amax(0).sum()) / int(n.sum())


def class_confusion(confusion: Tensor) -> Tensor:
    """Counts of true class × most frequent class of the component, [n_classes, n_classes]; ties: lowest class."""
    n = _table(confusion)
    vote = n.argmax(0)  # [K], the first of equal maxima
    return n.new_zeros(len(n), len(n)).index_add_(1, vote, n)


def class_accuracy(confusion: Tensor) -> Tensor:
    """For each class, the share of its samples in components that vote for it, [n_classes]; nan without samples."""
    n = class_confusion(confusion).double()  # [true, voted]; rows still count the samples of a class
    return n.diagonal() / n.sum(1)


def hungarian_accuracy(confusion: Tensor) -> float:
    """max over one-to-one matchings c ↔ k of Σ n[c, k] / N; unmatched components count as wrong."""
    n = _table(confusion, needs_samples=True)
    c, k = linear_sum_assignment(n.numpy(), maximize=True)
    return int(n[c, k].sum()) / int(n.sum())


def knn_error(
    train_z: Tensor, train_labels: Tensor, test_z: Tensor, test_labels: Tensor, k: Sequence[int] = (10,)
) -> dict[int, float]:
    """For each k, the share of rows of `test_z` [N, Z] that the k nearest rows of `train_z` [M, Z] outvote.

    Distances are Euclidean; of equally frequent labels the lowest wins. One search serves every k.
    """
    train_z, train_labels = _labelled("train", train_z, train_labels)
    test_z, test_labels = _labelled("test", test_z, test_labels)
    _check_neighbours(train_z, test_z, k)

    classes, train_class = torch.unique(train_labels, return_inverse=True)  # ascending [C], [M]
    nearest = train_class[_nearest(train_z, test_z, max(k))]  # [N, max k]
    votes = {j: classes[_majority(nearest[:, :j])] for j in k}
    return {j: int((vote != test_labels).sum()) / len(test_z) for j, vote in votes.items()}


def forgetting(class_accuracy_over_time: Tensor) -> Tensor:
    """max_t a[t, c] − a[T, c], [n_classes]: the accuracy that each class has lost since its best moment.

    Moments without a value (nan) are skipped; a class whose final accuracy is nan has no known loss: nan.
    """
    a = class_accuracy_over_time  # [T, n_classes]
    remedy = "Stack one class_accuracy(…) per evaluation."
    _check_kind("class_accuracy_over_time", a, "floats", "T", "n_classes", remedy=remedy)
    return a.masked_fill(a.isnan(), -torch.inf).amax(0) - a[-1]


def _nearest(a: Tensor, b: Tensor, k: int) -> Tensor:
    """For each row of b the k nearest rows of a, nearest first, [len(b), k].

    Distances come from |a|² − 2ab + |b|²; centred float64 loses fewer digits in this difference of large numbers.
    """
    centre = a.mean(0)
    with threadpool_limits(torch.get_num_threads()):
        found = NearestNeighbors(n_neighbors=k, algorithm="brute").fit((a - centre).numpy())
        return torch.from_numpy(found.kneighbors((b - centre).numpy(), return_distance=False))


def _majority(votes: Tensor) -> Tensor:
    """The most frequent class in each row of `votes` [N, k], the lowest of equally frequent ones, [N]."""
    counts = votes.new_zeros(len(votes), int(votes.max()) + 1)  # [N, C]
    return counts.scatter_add_(1, votes, torch.ones_like(votes)).argmax(1)


def _table(confusion: Tensor, needs_samples: bool = False) -> Tensor:
    remedy = "Make it with confusion(labels, components, n_classes, K)."
    _check_kind("confusion", confusion, "integers", "n_classes", "K", remedy=remedy)
    if (low := int(confusion.min())) < 0:
        raise DataError(f"confusion must hold counts, which are at least 0, got {low}. {remedy}")
    if needs_samples and not confusion.any():
        raise DataError("confusion counts no samples, so no share is defined. Pass at least one sample.")
    return confusion.to("cpu", torch.int64)


def _indices(name: str, x: Tensor, n: int | None = None) -> Tensor:
    _check_kind(name, x, "integers", "N", remedy="Pass one index per sample.")
    low, high = int(x.min()), int(x.max())
    if n is not None and (low < 0 or high >= n):
        remedy = "Number them from 0, or raise that bound."
        raise DataError(f"{name} must be at least 0 and below {n}, got {low} … {high}. {remedy}")
    return x.to("cpu", torch.int64)


def _labelled(name: str, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    _check_kind(f"{name}_z", z, "floats", "N", "Z", remedy="Pass one embedding per sample.")
    if bad := int((~z.isfinite()).any(1).sum()):
        remedy = "Check the model that embedded them."
        raise DataError(f"{name}_z has nan or infinite values in {bad} of {len(z)} rows. {remedy}")
    labels = _indices(f"{name}_labels", labels)
    _check_same_length(f"{name}_z", z, f"{name}_labels", labels)
    return z.detach().to("cpu", torch.float64), labels


def _check_kind(name: str, x: Tensor, numbers: str, *axes: str, remedy: str) -> None:
    kind = "floats" if x.is_floating_point() else "integers"
    if kind != numbers or x.ndim != len(axes) or x.numel() == 0:
        wanted, seen = f"{numbers} [{', '.join(axes)}]", f"{x.dtype} {list(x.shape)}"
        raise DataError(f"{name} must be {wanted} and not empty, got {seen}. {remedy}")


def _check_same_length(name: str, x: Tensor, other: str, y: Tensor) -> None:
    if len(x) != len(y):
        raise DataError(f"{name} has {len(x)} samples but {other} has {len(y)}. Pass one of each per sample.")


def _check_neighbours(train_z: Tensor, test_z: Tensor, k: Sequence[int]) -> None:
    M, Z = train_z.shape
    if test_z.shape[1] != Z:
        seen = f"train_z has {Z} dimensions but test_z has {test_z.shape[1]}"
        raise DataError(f"{seen}. Embed both with the same model.")
    if len(k) == 0 or min(k) < 1 or max(k) > M:
        remedy = "Ask for fewer neighbours, or pass more training points."
        raise DataError(f"k must list numbers from 1 to {M}, the training points, got {list(k)}. {remedy}")
