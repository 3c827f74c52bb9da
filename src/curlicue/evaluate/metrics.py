"""How well components match classes, how well embeddings separate them, and what was forgotten.

Every clustering score reads one table, n[c, k] = how many samples of class c lie in component k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from curlicue.errors import DataError

DISTANCES_AT_ONCE = 8_000_000  # entries of one float64 block of distances: 64 MB


@dataclass(frozen=True, kw_only=True)
class ClusterScores:
    """How one assignment of samples to components agrees with their classes."""

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
        nmi=nmi(table),
        ari=ari(table),
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
    """Σₖ max_c n[c, k] / N: the share of samples whose class is the most frequent one of their component."""
    n = _table(confusion, needs_samples=True)
    return int(n.amax(0).sum()) / int(n.sum())


def class_confusion(confusion: Tensor) -> Tensor:
    """Counts of true class × class voted by the component, [n_classes, n_classes]; ties: lowest class."""
    n = _table(confusion)
    vote = n.argmax(0)  # [K], the first of equal maxima
    return n.new_zeros(len(n), len(n)).index_add_(1, vote, n)


def class_accuracy(confusion: Tensor) -> Tensor:
    """Per class, the share of its samples in components that vote for it, [n_classes]; nan if it has none."""
    n = class_confusion(confusion).double()  # [true, voted]; rows still count the samples of a class
    return n.diagonal() / n.sum(1)


def hungarian_accuracy(confusion: Tensor) -> float:
    """max over one-to-one matchings c ↔ k of Σ n[c, k] / N; unmatched components count as wrong."""
    n = _table(confusion, needs_samples=True)
    c, k = linear_sum_assignment(n.numpy(), maximize=True)
    return int(n[c, k].sum()) / int(n.sum())


def nmi(confusion: Tensor) -> float:
    """I(c; k) / ½(H(c) + H(k)) = 2 − 2 H(c, k) / (H(c) + H(k)); 1 if neither side is divided at all."""
    n = _table(confusion)
    h_class, h_component, h_joint = _entropy(n.sum(1)), _entropy(n.sum(0)), _entropy(n)
    if h_class + h_component == 0:
        return 1.0
    return min(max(2 - 2 * h_joint / (h_class + h_component), 0.0), 1.0)  # beyond [0, 1] lies only rounding


def ari(confusion: Tensor) -> float:
    """(S − E) / (½(A + B) − E) with E = AB/T; 1 where that is 0/0, as then both partitions are the same.

    Of all T pairs of samples, A share the class, B the component, and S both.
    """
    n = _table(confusion)
    S, A, B, T = _pairs(n), _pairs(n.sum(1)), _pairs(n.sum(0)), _pairs(n.sum())
    denominator = (A + B) * T - 2 * A * B  # Python integers: exact, and they cannot overflow
    return 2 * (S * T - A * B) / denominator if denominator else 1.0


def knn_error(
    train_z: Tensor, train_labels: Tensor, test_z: Tensor, test_labels: Tensor, k: Sequence[int] = (10,)
) -> dict[int, float]:
    """Share of `test_z` [N, Z] whose label is not the most frequent one of its k nearest in `train_z` [M, Z].

    Nearest is Euclidean; of equally frequent labels the lowest wins. One pass serves every k.
    """
    train_z, train_labels = _labelled("train", train_z, train_labels)
    test_z, test_labels = _labelled("test", test_z, test_labels)
    _check_neighbours(train_z, test_z, k)

    classes, train_class = torch.unique(train_labels, return_inverse=True)  # ascending [C], [M]
    centre = train_z.mean(0)
    a, b = train_z - centre, test_z - centre
    wrong = dict.fromkeys(k, 0)
    rows = max(1, DISTANCES_AT_ONCE // len(a))
    for i in range(0, len(b), rows):
        nearest = train_class[_nearest(a, b[i : i + rows], max(k))]  # [rows, max k]
        for j in wrong:
            wrong[j] += int((classes[_majority(nearest[:, :j])] != test_labels[i : i + rows]).sum())
    return {j: n / len(b) for j, n in wrong.items()}


def forgetting(class_accuracy_over_time: Tensor) -> Tensor:
    """max_t a[t, c] − a[T, c], [n_classes]: what each class has lost since its best moment.

    Moments without a value (nan) are skipped; a class whose final accuracy is nan has no known loss: nan.
    """
    a = class_accuracy_over_time  # [T, n_classes]
    remedy = "Stack one class_accuracy(…) per evaluation."
    _check_kind("class_accuracy_over_time", a, "floats", "T", "n_classes", remedy=remedy)
    return a.masked_fill(a.isnan(), -torch.inf).amax(0) - a[-1]


def _nearest(a: Tensor, b: Tensor, k: int) -> Tensor:
    """For each row of b the k nearest rows of a, nearest first, [len(b), k].

    |a − b|² = |a|² − 2ab + |b|², without |b|², which is the same for every a. The difference of large numbers
    loses digits: hence centred data in float64.
    """
    return torch.addmm(a.square().sum(1), b, a.T, alpha=-2).topk(k, largest=False).indices


def _majority(votes: Tensor) -> Tensor:
    """The most frequent class in each row of `votes` [N, k], the lowest of equally frequent ones, [N]."""
    counts = votes.new_zeros(len(votes), int(votes.max()) + 1)  # [N, C]
    return counts.scatter_add_(1, votes, torch.ones_like(votes)).argmax(1)


def _entropy(counts: Tensor) -> float:
    """−Σ p log p in nats, p = n / N; 0 without samples."""
    return float(torch.special.entr(counts.double() / counts.sum().clamp(min=1)).sum())


def _pairs(counts: Tensor) -> int:
    """Σ n(n − 1)/2: pairs of samples that share a cell."""
    return int((counts * (counts - 1) // 2).sum())


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
