"""The bound L(x), its terms, and the component-constrained variant (Eq. 4): training climbs it, scoring reports it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from curlicue.model.devices import sent
from curlicue.model.gaussian import gaussian_kl, normal
from curlicue.model.mixture import MixtureVAE
from curlicue.model.pairs import Pairs

EXACT = 0.0  # the τ with which every component is visited


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

    def on_host(self) -> ElboTerms:
        """The same numbers without gradients, on the CPU; one copy from the model's device."""
        if self.kl_y.device.type == "cpu":
            return ElboTerms(self.log_p_x.detach(), self.kl_z.detach(), self.kl_y.detach(), self.q_y)
        terms = torch.stack((self.log_p_x, self.kl_z, self.kl_y), 1).detach()
        log_p_x, kl_z, kl_y, *_ = (packed := torch.cat((terms, self.q_y), 1).cpu()).unbind(1)
        return ElboTerms(log_p_x, kl_z, kl_y, packed[:, 3:])


def elbo(
    model: MixtureVAE,
    x: Tensor,
    rng: Generator,
    *,
    tau: float = EXACT,
    z_samples: int = 1,
    noise: Tensor | None = None,
) -> ElboTerms:
    """L(x) = Σₖ q(y=k|x) [log p(x|zₖ) − KL(q(z|x,k) ‖ p(z|k))] − KL(q(y|x) ‖ p(y)).

    Parameters
    ----------
    tau : 0 visits every component; otherwise the sum over k is an unbiased estimate from the pairs that
        `Pairs.sparse` keeps. KL(q(y|x) ‖ p(y)) is exact in both.
    z_samples : S > 1 gives the importance-weighted bound, S samples of z for each pair.
    noise : [S, B, Z], what makes z = mean + std · ε; drawn from `rng` if not given.
    """
    h = model.encode(x)
    log_q_y = model.log_q_y(h)  # [B, K]
    q_y = log_q_y.exp()
    pairs = Pairs.every(q_y) if tau == EXACT else Pairs.sparse(q_y, tau, rng)
    noise = normal((z_samples, len(x), model.n_z), rng, h) if noise is None else noise
    log_p_x, kl_z = _of_pairs(model, x, h, pairs, noise)  # [N], [N]
    kl_y = (q_y * (log_q_y + math.log(model.K))).sum(-1)  # [B], p(y) = 1/K
    B = len(x)
    return ElboTerms(pairs.sum_rows(log_p_x, B), pairs.sum_rows(kl_z, B), kl_y, q_y.detach())


def elbo_given(
    model: MixtureVAE, x: Tensor, y: Tensor, rng: Generator, *, z_samples: int = 1, seen: Tensor | None = None
) -> ElboTerms:
    """L_sup(x, y) = log p(x|z_y) − KL(q(z|x,y) ‖ p(z|y)) + log q(y|x)  (Eq. 4).

    The term of y is −log q(y|x) = KL(one-hot y ‖ q(y|x)). The encoder is shown `seen` [B, D] in place of x, if given.
    """
    if len(y) != len(x):
        raise ValueError(f"Each sample needs a component. Got {len(y)} components for {len(x)} samples.")
    h = model.encode(x if seen is None else seen)
    log_q_y = model.log_q_y(h)  # [B, K]
    pairs = Pairs.given(y, model.K, h.device)
    noise = normal((z_samples, len(x), model.n_z), rng, h)
    log_p_x, kl_z = _of_pairs(model, x, h, pairs, noise)  # [B], [B]
    kl_y = -log_q_y.gather(1, sent(y, h.device)[:, None]).squeeze(1)  # [B]
    B = len(x)
    return ElboTerms(pairs.sum_rows(log_p_x, B), pairs.sum_rows(kl_z, B), kl_y, log_q_y.detach().exp())


def _of_pairs(model: MixtureVAE, x: Tensor, h: Tensor, pairs: Pairs, noise: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x|z) and the cost of z for each pair [N], given ε [S, B, Z].

    All components of a sample get the same ε: each z is distributed as it should be, and what chance adds to one
    component it adds to the others too, so that it hardly disturbs the comparison that q(y|x) learns from.
    With S > 1 samples their difference is the importance-weighted bound log 1/S Σₛ p(x|zₛ) p(zₛ|k) / q(zₛ|x,k).
    """
    q_z, p_z = model.q_z(h, pairs), model.p_z(pairs.ks)  # [N, Z]
    z = q_z.at(noise.index_select(1, pairs.rows))  # [S, N, Z]
    log_p_x = model.log_p_x(x.index_select(0, pairs.rows), z)  # [S, N]
    if len(noise) == 1:
        return log_p_x.squeeze(0), gaussian_kl(q_z, p_z)
    log_w = log_p_x + p_z.log_density(z) - q_z.log_density(z)  # [S, N]
    bound = torch.logsumexp(log_w, 0) - math.log(len(noise))
    mean = log_p_x.mean(0)
    return mean, mean - bound
