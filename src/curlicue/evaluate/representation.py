"""A model and labelled data → scores. Reads the model, changes nothing, draws from a generator of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from curlicue.evaluate.metrics import ClusterScores, cluster_scores, confusion, knn_error
from curlicue.model.elbo import elbo
from curlicue.model.gaussian import gaussian_kl
from curlicue.model.mixture import MixtureVAE, looking
from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator
from curlicue.streams.sources import Source, Split

CHUNK = 1000  # rows at a time
NEIGHBOURS = (3, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How well the components and the bound explain a data set."""

    clusters: ClusterScores
    bound: float  # mean, in nats

    def to_json(self) -> dict[str, Any]:
        """Flat, for a line of metrics."""
        return {"bound": self.bound, **asdict(self.clusters)}


def posterior(model: MixtureVAE, x: Tensor) -> Tensor:
    """q(y|x): [N, D] → [N, K]."""
    with looking(model):
        return torch.cat([model.log_q_y(model.encode(part)).exp() for part in x.split(CHUNK)])


def components(model: MixtureVAE, x: Tensor) -> Tensor:
    """argmaxₖ q(y=k|x): [N, D] → [N]."""
    return posterior(model, x).argmax(1)


def embed(model: MixtureVAE, x: Tensor, sampled: Generator | None = None) -> Tensor:
    """The mean of q(z|x, argmax y) [N, Z]; or, given a generator, z ~ q(z|x, y) with y ~ q(y|x)."""
    with looking(model):
        return torch.cat(list(_embeddings(model, x, sampled)))


def _embeddings(model: MixtureVAE, x: Tensor, sampled: Generator | None) -> Iterator[Tensor]:
    for part in x.split(CHUNK):
        h = model.encode(part)
        q_y = model.log_q_y(h).exp()
        y = q_y.argmax(1) if sampled is None else torch.multinomial(q_y, 1, generator=sampled).squeeze(1)
        pairs = Pairs.given(y)
        q_z = model.q_z(h, pairs)
        z = q_z.mean if sampled is None else q_z.sample(sampled)[0]
        yield torch.empty_like(z).index_copy_(0, pairs.rows, z)


def bounds(model: MixtureVAE, x: Tensor, z_samples: int = 8) -> Tensor:
    """L(x) of each row [N], exact over components.

    The expectation over z is a mean over draws of ε that are the same for every row and every call, so that a row's
    bound depends on nothing but the row.
    """
    noise = torch.randn(z_samples, 1, model.n_z, generator=named_generator(0, "bounds"))
    with looking(model):
        return torch.cat([_bounds(model, part, noise) for part in x.split(max(1, CHUNK // (model.K * z_samples)))])


def _bounds(model: MixtureVAE, x: Tensor, noise: Tensor) -> Tensor:
    h = model.encode(x)
    log_q_y = model.log_q_y(h)  # [B, K]
    q_y = log_q_y.exp()
    pairs = Pairs.every(q_y)
    q_z, p_z = model.q_z(h, pairs), model.p_z(pairs.ks)
    z = q_z.at(noise)  # [S, N, Z]
    log_p_x = model.log_p_x(x.index_select(0, pairs.rows), z).mean(0)  # [N]
    kl_y = (q_y * (log_q_y + math.log(model.K))).sum(-1)  # [B]
    return pairs.sum_rows(log_p_x - gaussian_kl(q_z, p_z), len(x)) - kl_y


def reconstruct(model: MixtureVAE, x: Tensor) -> Tensor:
    """The mean of p(x|z) at the embedding of each row: [N, D] → [N, D]."""
    with looking(model):
        return torch.cat([model.mean(z) for z in embed(model, x).split(CHUNK)])


def _bound_and_components(model: MixtureVAE, x: Tensor, rng: Generator, tau: float | None) -> tuple[float, Tensor]:
    """The mean of L(x), and argmaxₖ q(y=k|x) [N], in one pass."""
    rows = CHUNK if tau else max(1, CHUNK // model.K)
    with looking(model):
        terms = [elbo(model, part, rng, tau=tau) for part in x.split(rows)]
    parts = [(each.bound, each.q_y.argmax(1)) for each in terms]
    total = math.fsum(float(bound.double().sum()) for bound, _ in parts)
    return total / len(x), torch.cat([y for _, y in parts])


def score(model: MixtureVAE, split: Split, n_classes: int, rng: Generator, tau: float | None) -> Scores:
    """Cluster scores and mean bound on labelled data."""
    return _scores(model, split, n_classes, rng, tau)[0]


def _scores(
    model: MixtureVAE, split: Split, n_classes: int, rng: Generator, tau: float | None
) -> tuple[Scores, Tensor]:
    """The scores, and the component of each sample [N]."""
    bound, y = _bound_and_components(model, split.x, rng, tau)
    return Scores(clusters=cluster_scores(split.labels, y, n_classes, model.K), bound=bound), y


def knn_errors(model: MixtureVAE, source: Source, sampled: Generator | None = None) -> dict[int, float]:
    """k-NN error in latent space, all training points as neighbours."""
    train_z, test_z = (embed(model, split.x, sampled) for split in (source.train, source.test))
    ks = [k for k in NEIGHBOURS if k <= len(train_z)]
    return knn_error(train_z, source.train.labels, test_z, source.test.labels, ks)


def final_scores(model: MixtureVAE, source: Source, rng: Generator, sampled_knn: bool) -> dict[str, Any]:
    """Everything that is measured once, at the end."""
    test, C = source.test, source.n_classes
    scores, y = _scores(model, test, C, rng, tau=None)
    errors = knn_errors(model, source, rng if sampled_knn else None)
    return {
        **scores.to_json(),
        "knn_error": {str(k): error for k, error in errors.items()},
        "confusion": confusion(test.labels, y, C, model.K).tolist(),
        "classes": list(source.classes),
    }


def labelled_accuracy(
    model: MixtureVAE, split: Split, component_of: Mapping[int, int], tasks: Sequence[Sequence[int]]
) -> dict[str, float]:
    """The supervised benchmark: accuracy among all classes, and among those of the sample's own task."""
    q_y = posterior(model, split.x)  # [N, K]
    own = torch.tensor([component_of.get(c, -1) for c in range(int(split.labels.max()) + 1)])
    y = own[split.labels]  # [N], the component that would be right
    right = float((q_y.argmax(1) == y).double().mean())
    shown = [task for task in tasks if torch.isin(split.labels, torch.tensor(list(task))).any()]
    within = [_accuracy_within(q_y, y, split.labels, task, component_of) for task in shown]
    return {"incremental_class": right, "incremental_task": sum(within) / len(within)}


def _accuracy_within(
    q_y: Tensor, y: Tensor, labels: Tensor, task: Sequence[int], component_of: Mapping[int, int]
) -> float:
    """Accuracy on the samples of `task` when only its classes are in question; 0 if it was never seen."""
    open_components = torch.tensor([component_of[c] for c in task if c in component_of], dtype=torch.int64)
    mine = torch.isin(labels, torch.tensor(list(task)))
    if not len(open_components):
        return 0.0
    chosen = open_components[q_y[mine][:, open_components].argmax(1)]
    return float((chosen == y[mine]).double().mean())
