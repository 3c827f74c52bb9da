"""The bound of `model.elbo` with its gradient written out.

Value and draws are those of `elbo` and `elbo_given`, and the gradient is that of autograd, up to rounding. Autograd
needs a node and several small operations for each sign in the equations, and writes out the zeros of all gradients:
without autograd a step takes two thirds of the time, and about half of it in small networks. Written out are the
paper's networks with one sample of z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Generator, Tensor

from curlicue.engines.cpu import bound_kernels as kernels
from curlicue.engines.cpu.bound_kernels import Gaussians
from curlicue.engines.cpu.compiled import Array
from curlicue.engines.cpu.gradient import Gradient, every, whole
from curlicue.engines.cpu.likelihood import log_p_backward
from curlicue.engines.cpu.networks import ForwardCache, forward
from curlicue.model.elbo import EXACT, ElboTerms
from curlicue.model.gaussian import VAR_FLOOR, normal
from curlicue.model.mixture import MixtureVAE
from curlicue.model.networks import Mlp
from curlicue.model.pairs import by_component


@dataclass(frozen=True)
class CpuAscent:
    """The bound of a batch, and the backward pass of the loss −Σ L(x)/B."""

    terms: ElboTerms
    backward: Callable[[], Iterator[Gradient]]
    """Yields the gradient of each parameter as soon as nothing else needs the parameter."""


@torch.no_grad()
def bound(model: MixtureVAE, x: Tensor, rng: Generator, tau: float) -> CpuAscent:
    """L(x), see `elbo`."""
    B, encoder = len(x), forward(cast(Mlp, model.encoder), x, x_has_gradient=False)
    log_q_y = model.log_q_y(encoder.out)  # [B, K]
    q_y = log_q_y.exp()
    visits = Visits.every(q_y) if tau == EXACT else Visits.sparse(q_y, tau, rng)
    pairs = PairTerms.of(model, x, encoder, visits, rng)
    surprise = log_q_y + math.log(model.K)  # [B, K]
    kl_y = (q_y * surprise).sum(-1)  # [B], p(y) = 1/K
    terms = ElboTerms(visits.sum_rows(pairs.log_p_x, B), visits.sum_rows(pairs.kl_z, B), kl_y, q_y)

    def backward() -> Iterator[Gradient]:
        f = (pairs.log_p_x - pairs.kl_z).numpy()  # [N]
        weights, rows, ks, baseline = visits.weights, visits.rows, visits.ks, visits.baseline(f, B)
        g_logits = kernels.q_y_backward(q_y.numpy(), surprise.numpy(), f, weights, rows, ks, baseline)
        return pairs.backward(torch.from_numpy(g_logits))

    return CpuAscent(terms, backward)


@torch.no_grad()
def bound_given(
    model: MixtureVAE, x: Tensor, y: Tensor, rng: Generator, emphasis: float = 1.0, seen: Tensor | None = None
) -> CpuAscent:
    """L_sup(x, y), see `elbo_given`."""
    if len(y) != len(x):
        raise ValueError(f"Each sample needs a component. Got {len(y)} components for {len(x)} samples.")
    B, encoder = len(x), forward(cast(Mlp, model.encoder), x if seen is None else seen, x_has_gradient=False)
    log_q_y = model.log_q_y(encoder.out)  # [B, K]
    q_y = log_q_y.exp()
    visits = Visits.given(y, q_y)
    pairs = PairTerms.of(model, x, encoder, visits, rng)
    kl_y = -log_q_y.gather(1, y[:, None]).squeeze(1)  # [B]
    terms = ElboTerms(visits.sum_rows(pairs.log_p_x, B), visits.sum_rows(pairs.kl_z, B), kl_y, q_y)

    def backward() -> Iterator[Gradient]:
        g_logits = q_y.scatter_add(1, y[:, None], -q_y.new_ones(B, 1))  # of −log q(y|x)
        return pairs.backward(g_logits.div_(B / emphasis))

    return CpuAscent(terms, backward)


@dataclass(frozen=True)
class Visits:
    """The N pairs (row of the batch, component) that a bound visits, ordered by component; see `model.pairs`."""

    rows: Array  # [N]
    ks: Array  # [N], ascending
    weights: Array  # [N]
    best: Array | None = None  # [B], which pair is that of the row's k*; None: all pairs of a row are here

    @classmethod
    def every(cls, q_y: Tensor) -> Visits:
        """All B·K pairs, weighed by q(y|x): the exact sum."""
        B, K = q_y.shape
        return cls(np.tile(np.arange(B), K), np.repeat(np.arange(K), B), q_y.t().reshape(-1).numpy())

    @classmethod
    def sparse(cls, q_y: Tensor, tau: float, rng: Generator) -> Visits:
        """k* of each row, and the pair (b, k) with probability p = min(1, q/τ), weighed by q/p."""
        q, u = q_y.numpy(), torch.rand(q_y.numel(), generator=rng, dtype=q_y.dtype).numpy()
        return cls(*kernels.choose(q, u, q.dtype.type(tau)))

    @classmethod
    def given(cls, y: Tensor, q_y: Tensor) -> Visits:
        """One pair a sample: the component y [B]."""
        rows, ks = by_component(y, q_y.shape[1])
        return cls(rows.numpy(), ks.numpy(), np.ones(len(y), q_y.numpy().dtype))

    def baseline(self, f: Array, B: int) -> Array:
        """What f [N] of the pairs of each row is measured against [B]: f of k*, or zero where all pairs are here."""
        return np.zeros(B, f.dtype) if self.best is None else f[self.best]

    def sum_rows(self, f: Tensor, B: int) -> Tensor:
        """Σₖ q f for each row, or its estimate: [N] → [B]."""
        values = f.numpy()
        return torch.from_numpy(kernels.sum_pairs(values, self.weights, self.rows, self.baseline(values, B)))


@dataclass(frozen=True)
class PairTerms:
    """log p(x|z) and KL(q(z|x,y) ‖ p(z|y)) of each pair, and what the backward pass needs."""

    model: MixtureVAE
    visits: Visits
    encoder: ForwardCache
    decoder: ForwardCache
    q: Gaussians  # q(z|x,y) of each pair
    p: Gaussians  # p(z|y) of each component
    noise: Array  # [B, Z]
    x: Tensor  # [N, D]
    log_p_x: Tensor  # [N]
    kl_z: Tensor  # [N]

    @classmethod
    def of(cls, model: MixtureVAE, x: Tensor, encoder: ForwardCache, visits: Visits, rng: Generator) -> PairTerms:
        """Draw one z for each pair; all components of a sample get the same ε."""
        rows, ks = visits.rows, visits.ks
        weight, bias = (_as_array(model.heads[name]) for name in ("q_z_weight", "q_z_bias"))
        q = _gaussians(kernels.heads(encoder.out.numpy(), rows, ks, weight, bias))
        p = _gaussians((model.heads["p_z"] + model.p_z_bias).numpy())
        noise = normal((1, len(x), model.n_z), rng, x)[0].numpy()
        z, kl_z = map(torch.from_numpy, kernels.latents(q, p, ks, noise, rows))
        decoder = forward(cast(Mlp, model.decoder), z, x_has_gradient=True)
        x = x.index_select(0, torch.from_numpy(rows))
        log_p_x = model.p_x.log_p(x, decoder.out)
        return cls(model, visits, encoder, decoder, q, p, noise, x, log_p_x, kl_z)

    def backward(self, g_logits: Tensor) -> Iterator[Gradient]:
        """The gradients of the loss, given that of the logits of q(y|x) [B, K]."""
        model, weights = self.model, self.visits.weights / len(g_logits)  # [N]
        g_out, g_p_x = log_p_backward(model.p_x, -torch.from_numpy(weights), self.x, self.decoder.out)
        g_z = yield from self.decoder.backward(g_out, "decoder.")
        rows, ks = self.visits.rows, self.visits.ks
        g_q, g_p = kernels.latents_backward(g_z.numpy(), weights, self.q, self.p, ks, self.noise, rows)
        g_h = g_logits @ model.heads["q_y_weight"].detach()  # [B, H]
        yield from self._heads_backward(g_logits, g_q, g_p, g_h)
        for name, g in g_p_x.items():
            yield whole(f"p_x.{name}", g[None].numpy())
        yield from self.encoder.backward(g_h, "encoder.")

    def _heads_backward(self, g_logits: Tensor, g_q: Array, g_p: Array, g_h: Tensor) -> Iterator[Gradient]:
        """The gradients of all heads; what q(z|x,y) adds to that of h is added to g_h [B, H]."""
        h, weight = self.encoder.out, _as_array(self.model.heads["q_z_weight"])
        found = kernels.heads_backward(g_q, h.numpy(), self.visits.rows, self.visits.ks, weight, g_h.numpy())
        active, g_weight, g_bias = found
        yield Gradient("heads.q_z_weight", g_weight, active, every(g_weight.shape[1]))
        yield Gradient("heads.q_z_bias", g_bias, active, every(g_bias.shape[1]))
        yield whole("heads.q_y_weight", (g_logits.t() @ h).numpy())
        yield whole("heads.q_y_bias", g_logits.sum(0, keepdim=True).numpy())
        yield whole("heads.p_z", g_p)
        yield whole("p_z_bias", torch.from_numpy(g_p).sum(0, keepdim=True).numpy())


def _gaussians(raw: Array) -> Gaussians:
    return Gaussians(raw, *kernels.softplus(raw, VAR_FLOOR))


def _as_array(parameter: Tensor) -> Array:
    """The parameter's own memory, unless its values are in another order."""
    array: Array = parameter.detach().contiguous().numpy()
    return array
