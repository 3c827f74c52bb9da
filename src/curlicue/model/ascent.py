"""The bound of elbo.py with its gradient written out: what a training step computes.

The numbers are those of `elbo` and `elbo_given` and of autograd, up to rounding, and the draws are the same. Autograd
needs a node and several small operations for each sign in the equations, and writes out the zeros of all gradients:
without it a step takes two thirds of the time, and about half in small networks. It is there for the paper's networks
with one sample of z; the learner takes `elbo` for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn

from curlicue.model import kernels
from curlicue.model.elbo import ElboTerms
from curlicue.model.gaussian import VAR_FLOOR
from curlicue.model.gradient import Gradient, Slope
from curlicue.model.likelihood import Bernoulli, GaussianNoise
from curlicue.model.mixture import MixtureVAE
from curlicue.model.networks import ReluNet, Tape, as_array
from curlicue.model.pairs import Pairs

NONE = np.empty(0, np.int64)


def can_ascend(model: MixtureVAE, z_samples: int) -> bool:
    """Whether the gradient of its bound is written out here.

    Where h is zero the gradient that the heads have of it is left out, which is right only behind a ReLU.
    """
    ours = type(model) is MixtureVAE and type(model.p_x) in (Bernoulli, GaussianNoise)
    nets = type(model.encoder) is type(model.decoder) is ReluNet and model.encoder.relu_last
    return ours and nets and z_samples == 1


@dataclass(frozen=True)
class Ascent:
    """The bound of a batch, and the way up: to be climbed once, before anything else changes the model."""

    terms: ElboTerms
    slopes: Callable[[], Iterator[Slope]]
    """Of the loss −Σ L(x)/B: each comes as soon as nothing else needs the parameter."""

    @classmethod
    def by_autograd(cls, model: MixtureVAE, terms: ElboTerms) -> Ascent:
        """Of any model."""

        def slopes() -> Iterator[Slope]:
            parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
            found = torch.autograd.grad(-terms.bound.mean(), [*parameters.values()], allow_unused=True)
            for name, g in zip(parameters, found, strict=True):
                if g is not None:
                    yield name, Gradient.of(g)

        return cls(terms.detached, slopes)


@torch.no_grad()
def ascend(model: MixtureVAE, x: Tensor, rng: Generator, *, tau: float | None = None) -> Ascent:
    """L(x), as `elbo` has it."""
    encoder = _network(model.encoder).run(x, x_has_gradient=False)
    log_q_y = model.log_q_y(encoder.out)  # [B, K]
    q_y = log_q_y.exp()
    pairs = Pairs.every(q_y) if tau is None else Pairs.sparse(q_y, tau, rng)
    latent = _Latent.of(model, x, encoder, pairs, rng)
    surprise = log_q_y + math.log(model.K)  # [B, K]
    assert pairs.weights is not None
    weights, rows, best = pairs.weights.numpy(), pairs.rows.numpy(), NONE if pairs.best is None else pairs.best.numpy()
    log_p_x, kl_z = (
        torch.from_numpy(kernels.estimate(f.numpy(), weights, rows, best, len(x)))
        for f in (latent.log_p_x, latent.kl_z)
    )
    terms = ElboTerms(log_p_x, kl_z, (q_y * surprise).sum(-1), q_y)

    def slopes() -> Iterator[Slope]:
        f = (latent.log_p_x - latent.kl_z).numpy()  # [N]
        g = kernels.posterior_pull(q_y.numpy(), surprise.numpy(), f, weights, rows, pairs.ks.numpy(), best)
        return latent.pull(torch.from_numpy(weights / len(x)), torch.from_numpy(g))

    return Ascent(terms, slopes)


@torch.no_grad()
def ascend_given(model: MixtureVAE, x: Tensor, y: Tensor, rng: Generator) -> Ascent:
    """L_sup(x, y), as `elbo_given` has it."""
    if len(y) != len(x):
        raise ValueError(f"Each sample needs a component. Got {len(y)} components for {len(x)} samples.")
    encoder = _network(model.encoder).run(x, x_has_gradient=False)
    log_q_y = model.log_q_y(encoder.out)  # [B, K]
    q_y = log_q_y.exp()
    pairs = Pairs.given(y)
    latent = _Latent.of(model, x, encoder, pairs, rng)
    B, at_y = len(x), y[:, None]
    kl_y = -log_q_y.gather(1, at_y).squeeze(1)
    terms = ElboTerms(pairs.sum_rows(latent.log_p_x, B), pairs.sum_rows(latent.kl_z, B), kl_y, q_y)

    def slopes() -> Iterator[Slope]:
        g_logits = q_y.scatter_add(1, at_y, -torch.ones(B, 1))  # of −log q(y|x)
        return latent.pull(torch.full((B,), 1 / B), g_logits.div_(B))

    return Ascent(terms, slopes)


@dataclass(frozen=True)
class _Latent:
    """log p(x|z) and KL(q(z|x,y) ‖ p(z|y)) of each pair, and what their gradients need."""

    model: MixtureVAE
    encoder: Tape
    decoder: Tape
    pairs: Pairs
    arguments: tuple[kernels.Array, ...]  # of q(z|x,y) and p(z|y), as `latents_pull` takes them
    x: Tensor  # [N, D]
    log_p_x: Tensor  # [N]
    kl_z: Tensor  # [N]

    @classmethod
    def of(cls, model: MixtureVAE, x: Tensor, encoder: Tape, pairs: Pairs, rng: Generator) -> _Latent:
        """One z for each pair; all components of a sample get the same ε."""
        pairs.check(model.K)
        rows, ks = pairs.rows.numpy(), pairs.ks.numpy()
        weight, bias = (as_array(model.heads[name]) for name in ("q_z_weight", "q_z_bias"))
        q = kernels.heads(encoder.out.numpy(), rows, ks, weight, bias)  # [N, 2Z]
        p = (model.heads["p_z"] + model.p_z_bias).numpy()  # [K, 2Z]
        noise = torch.randn(1, len(x), model.n_z, generator=rng)[0].numpy()  # [B, Z]
        (q_var, q_slope), (p_var, p_slope) = kernels.variances(q, VAR_FLOOR), kernels.variances(p, VAR_FLOOR)
        z, kl_z = map(torch.from_numpy, kernels.latents(q, q_var, p, p_var, ks, noise, rows))
        decoder = _network(model.decoder).run(z, x_has_gradient=True)
        x = x.index_select(0, pairs.rows)
        arguments = (q, q_var, q_slope, p, p_var, p_slope, ks, noise, rows)
        log_p_x = model.p_x.log_p(x, decoder.out)
        return cls(model, encoder, decoder, pairs, arguments, x, log_p_x, kl_z)

    def pull(self, weights: Tensor, g_logits: Tensor) -> Iterator[Slope]:
        """Of Σ weights · (KL − log p(x|z)) over the pairs [N], given that of the logits of q(y|x) [B, K]."""
        model, h = self.model, self.encoder.out
        g_out, of_p_x = model.p_x.pull(-weights, self.x, self.decoder.out)
        g_z = yield from self.decoder.pull(g_out, "decoder.")
        assert g_z is not None
        g_q, of_p_z = kernels.latents_pull(g_z.numpy(), weights.numpy(), *self.arguments)
        g_h = g_logits @ model.heads["q_y_weight"].detach()  # [B, H]
        rows, ks, weight = self.pairs.rows.numpy(), self.pairs.ks.numpy(), as_array(model.heads["q_z_weight"])
        found = kernels.heads_pull(g_q, h.numpy(), rows, ks, weight, g_h.numpy())
        active, of_weight, of_bias, g_p = map(torch.from_numpy, (*found, of_p_z))
        yield "heads.q_z_weight", Gradient(of_weight, active)
        yield "heads.q_z_bias", Gradient(of_bias, active)
        yield "heads.q_y_weight", Gradient(g_logits.t() @ h)
        yield "heads.q_y_bias", Gradient(g_logits.sum(0, keepdim=True))
        yield "heads.p_z", Gradient(g_p)
        yield "p_z_bias", Gradient(g_p.sum(0, keepdim=True))
        for name, g in of_p_x.items():
            yield f"p_x.{name}", Gradient(g[None])
        yield from self.encoder.pull(g_h, "encoder.")


def _network(module: nn.Module) -> ReluNet:
    assert isinstance(module, ReluNet)
    return module
