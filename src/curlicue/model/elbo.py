"""The bound L(x), its terms, and the component-constrained variant (Eq. 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from curlicue.model.gaussian import gaussian_kl
from curlicue.model.mixture import MixtureVAE
from curlicue.model.pairs import Pairs


@dataclass(frozen=True)
class ElboTerms:
    """The bound of each sample, in nats, higher is better; and what it is made of."""

    log_p_x: Tensor  # [B], reconstruction
    kl_z: Tensor  # [B], what coding z costs
    kl_y: Tensor  # [B], what coding y costs
    q_y: Tensor  # [B, K], detached

    @property
    def bound(self) -> Tensor:
        """L(x) [B]."""
        return self.log_p_x - self.kl_z - self.kl_y

    @property
    def detached(self) -> ElboTerms:
        """The same numbers, for those who do not climb."""
        return ElboTerms(self.log_p_x.detach(), self.kl_z.detach(), self.kl_y.detach(), self.q_y)


def elbo(model: MixtureVAE, x: Tensor, rng: Generator, *, tau: float | None = None, z_samples: int = 1) -> ElboTerms:
    """L(x) = Σₖ q(y=k|x) [log p(x|zₖ) − KL(q(z|x,k) ‖ p(z|k))] − KL(q(y|x) ‖ p(y)).

    `tau=None` visits every component; otherwise the sum over k is an unbiased estimate from the pairs that
    `Pairs.sparse` keeps. KL(q(y|x) ‖ p(y)) is exact in both.
    """
    h = model.encode(x)
    log_q_y = model.log_q_y(h)  # [B, K]
    q_y = log_q_y.exp()
    pairs = Pairs.every(q_y) if tau is None else Pairs.sparse(q_y, tau, rng)
    log_p_x, kl_z = _componentwise(model, x, h, pairs, rng, z_samples)  # [N], [N]
    kl_y = (q_y * (log_q_y + math.log(model.K))).sum(-1)  # [B], p(y) = 1/K
    B = len(x)
    return ElboTerms(pairs.sum_rows(log_p_x, B), pairs.sum_rows(kl_z, B), kl_y, q_y.detach())


def elbo_given(model: MixtureVAE, x: Tensor, y: Tensor, rng: Generator, *, z_samples: int = 1) -> ElboTerms:
    """L_sup(x, y) = log p(x|z_y) − KL(q(z|x,y) ‖ p(z|y)) + log q(y|x)  (Eq. 4).

    The term of y is −log q(y|x) = KL(one-hot y ‖ q(y|x)).
    """
    h = model.encode(x)
    log_q_y = model.log_q_y(h)  # [B, K]
    pairs = Pairs.given(y)
    log_p_x, kl_z = _componentwise(model, x, h, pairs, rng, z_samples)  # [B], [B]
    kl_y = -log_q_y.gather(1, y[:, None]).squeeze(1)  # [B]
    B = len(x)
    return ElboTerms(pairs.sum_rows(log_p_x, B), pairs.sum_rows(kl_z, B), kl_y, log_q_y.detach().exp())


def _componentwise(
    model: MixtureVAE, x: Tensor, h: Tensor, pairs: Pairs, rng: Generator, z_samples: int
) -> tuple[Tensor, Tensor]:
    """log p(x|z) and the cost of z for each pair [N].

    All components of a sample get the same ε: each z is distributed as it should be, and what chance adds to one
    component it adds to the others too, so that it hardly disturbs the comparison that q(y|x) learns from.
    With S > 1 samples their difference is the importance-weighted bound log 1/S Σₛ p(x|zₛ) p(zₛ|k) / q(zₛ|x,k).
    """
    q_z, p_z = model.q_z(h, pairs), model.p_z(pairs.ks)  # [N, Z]
    noise = torch.randn(z_samples, len(x), model.n_z, generator=rng)  # [S, B, Z]
    z = q_z.at(noise.index_select(1, pairs.rows))  # [S, N, Z]
    log_p_x = model.log_p_x(x.index_select(0, pairs.rows), z)  # [S, N]
    if z_samples == 1:
        return log_p_x.squeeze(0), gaussian_kl(q_z, p_z)
    log_w = log_p_x + p_z.log_density(z) - q_z.log_density(z)  # [S, N]
    bound = torch.logsumexp(log_w, 0) - math.log(z_samples)
    mean = log_p_x.mean(0)
    return mean, mean - bound
