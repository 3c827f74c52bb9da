"""The equations of the bound, written with torch's distributions and a loop over components."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.nn.functional import softplus

from curlicue.model.gaussian import VAR_FLOOR
from curlicue.model.mixture import MixtureVAE


class Terms(NamedTuple):
    """What the bound of each sample is made of."""

    log_p_x: Tensor  # [B]
    kl_z: Tensor  # [B]
    kl_y: Tensor  # [B]
    q_y: Tensor  # [B, K]

    @property
    def bound(self) -> Tensor:
        """Eq. 3 [B]."""
        return self.log_p_x - self.kl_z - self.kl_y


def normal(raw: Tensor) -> Independent:
    """The first half of the last axis is the mean, softplus of the second the variance."""
    mean, raw_var = raw.chunk(2, -1)
    return Independent(Normal(mean, (softplus(raw_var) + VAR_FLOOR).sqrt()), 1)


def through(network: torch.nn.Module, rows: Tensor) -> Tensor:
    """[..., in] → [..., out]."""
    return network(rows.reshape(-1, rows.shape[-1])).view(*rows.shape[:-1], -1)


def q_y(model: MixtureVAE, x: Tensor) -> Categorical:
    """q(y|x)."""
    h = through(model.encoder, x)
    return Categorical(logits=h @ model.heads["q_y_weight"].T + model.heads["q_y_bias"])


def q_z(model: MixtureVAE, x: Tensor, k: int) -> Independent:
    """q(z|x,k)."""
    return normal(through(model.encoder, x) @ model.heads["q_z_weight"][k] + model.heads["q_z_bias"][k])


def p_z(model: MixtureVAE, k: int) -> Independent:
    """p(z|k)."""
    return normal(model.heads["p_z"][k] + model.p_z_bias)


def log_p_x(model: MixtureVAE, x: Tensor, z: Tensor) -> Tensor:
    """log p(x|z)."""
    out = through(model.decoder, z)
    if hasattr(model.p_x, "raw_var"):
        return Normal(out, model.p_x.var.sqrt()).log_prob(x).sum(-1)
    return torch.distributions.Bernoulli(logits=out).log_prob(x).sum(-1)


def reparametrised(q: Independent, noise: Tensor) -> Tensor:
    """Samples of q, made of standard normal ones."""
    return q.base_dist.loc + q.base_dist.scale * noise


def brute_force_elbo(model: MixtureVAE, x: Tensor, noise: Tensor) -> Terms:
    """Eq. 3 with the noise [K, B, Z] given."""
    posterior, reconstruction, kl_z = q_y(model, x), x.new_zeros(len(x)), x.new_zeros(len(x))
    for k in range(model.K):
        q, p = q_z(model, x, k), p_z(model, k)
        reconstruction = reconstruction + posterior.probs[:, k] * log_p_x(model, x, reparametrised(q, noise[k]))
        kl_z = kl_z + posterior.probs[:, k] * kl_divergence(q, p)
    kl_y = kl_divergence(posterior, Categorical(x.new_ones(model.K) / model.K))
    return Terms(reconstruction, kl_z, kl_y, posterior.probs)


def brute_force_iwae(model: MixtureVAE, x: Tensor, noise: Tensor) -> Tensor:
    """The same with log 1/S Σₛ p(x|zₛ) p(zₛ|k) / q(zₛ|x,k) for each component; noise [K, S, B, Z]."""
    posterior = q_y(model, x)
    bound = -kl_divergence(posterior, Categorical(x.new_ones(model.K) / model.K))
    for k in range(model.K):
        q, p = q_z(model, x, k), p_z(model, k)
        log_w = []
        for eps in noise[k]:
            z = reparametrised(q, eps)
            log_w.append(log_p_x(model, x, z) + p.log_prob(z) - q.log_prob(z))
        bound = bound + posterior.probs[:, k] * torch.stack(log_w).exp().mean(0).log()
    return bound
