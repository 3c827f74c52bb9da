"""What a model says of samples: components, embeddings, bounds and reconstructions, in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from curlicue.model.elbo import EXACT, elbo
from curlicue.model.mixture import MixtureVAE, eval_mode
from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator

CHUNK = 1000  # rows at a time


def posterior(model: MixtureVAE, x: Tensor) -> Tensor:
    """q(y|x): [N, D] → [N, K]."""
    with eval_mode(model):
        return torch.cat([model.log_q_y(model.encode(part)).exp() for part in _parts(model, x)])


def components(model: MixtureVAE, x: Tensor) -> Tensor:
    """argmaxₖ q(y=k|x): [N, D] → [N]."""
    return posterior(model, x).argmax(1)


def embed(model: MixtureVAE, x: Tensor, sampled: Generator | None = None) -> Tensor:
    """The mean of q(z|x, argmax y) [N, Z]; or, given a generator, z ~ q(z|x, y) with y ~ q(y|x)."""
    with eval_mode(model):
        return torch.cat(list(_embeddings(model, x, sampled)))


def _embeddings(model: MixtureVAE, x: Tensor, sampled: Generator | None) -> Iterator[Tensor]:
    for part in _parts(model, x):
        h = model.encode(part)
        q_y = model.log_q_y(h).exp().cpu()
        y = q_y.argmax(1) if sampled is None else torch.multinomial(q_y, 1, generator=sampled).squeeze(1)
        pairs = Pairs.given(y, model.K, h.device)
        q_z = model.q_z(h, pairs)
        z = q_z.mean if sampled is None else q_z.sample(sampled)[0]
        yield torch.empty_like(z).index_copy_(0, pairs.rows, z)


def bounds(model: MixtureVAE, x: Tensor, rng: Generator, tau: float = EXACT) -> Tensor:
    """L(x) of each row [N], with one draw of z."""
    rows = CHUNK if tau else max(1, CHUNK // model.K)
    with eval_mode(model):
        return torch.cat([elbo(model, part, rng, tau=tau).bound for part in _parts(model, x, rows)])


def mean_bounds(model: MixtureVAE, x: Tensor, z_samples: int = 8) -> Tensor:
    """L(x) of each row [N], exact over components; a row's bound depends on nothing but the row.

    The expectation over z is a mean over draws of ε that are the same for every row and every call.
    """
    rng = named_generator(0, "bounds")
    noise = torch.randn(z_samples, 1, model.n_z, generator=rng)
    with eval_mode(model):
        return torch.cat([_mean_bounds(model, part, noise) for part in _parts(model, x, max(1, CHUNK // model.K))])


def _mean_bounds(model: MixtureVAE, x: Tensor, noise: Tensor) -> Tensor:
    unused = torch.Generator()  # every component is visited, and ε is given
    draws = noise.to(x).expand(-1, len(x), -1)  # [S, B, Z]
    return torch.stack([elbo(model, x, unused, noise=each[None]).bound for each in draws]).mean(0)


def reconstruct(model: MixtureVAE, x: Tensor) -> Tensor:
    """The mean of p(x|z) at the embedding of each row: [N, D] → [N, D]."""
    with eval_mode(model):
        return torch.cat([model.mean(z) for z in embed(model, x).split(CHUNK)])


def _parts(model: MixtureVAE, x: Tensor, rows: int = CHUNK) -> Iterator[Tensor]:
    """So many rows at a time, on the model's device; of no rows one empty part."""
    return (part.to(model.device) for part in x.split(rows))
