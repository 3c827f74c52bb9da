"""The mixture VAE of section 2.1: q(y|x), q(z|x,y), p(z|y), p(x|z)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import linear

from curlicue.config import Emission, ModelConfig
from curlicue.errors import ConfigError
from curlicue.model.gaussian import Gaussian
from curlicue.model.likelihood import Bernoulli, GaussianNoise, likelihood
from curlicue.model.networks import init_linear, mlp_decoder, mlp_encoder
from curlicue.model.pairs import Groups, Pairs

PRIOR_FAN_IN = 25  # p(z|y) is linear in one-hot y: the paper's 25 components set the scale of its start


class MixtureVAE(nn.Module):
    """A shared encoder and decoder around a latent mixture of K Gaussians; K grows at run time.

    What belongs to a component is one slice of each tensor in `heads`; everything else is shared.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        p_x: Bernoulli | GaussianNoise,
        *,
        n_x: int,
        n_z: int,
        K: int,
        rng: Generator,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.p_x = encoder, decoder, p_x
        self.n_x, self.n_z = n_x, n_z
        H = _width_of(encoder, n_x, "encoder")
        if (width := _width_of(decoder, n_z, "decoder")) != n_x:
            raise ConfigError(f"The decoder must give {n_x} values a row, as x has. Got {width} instead.")
        self.heads = nn.ParameterDict(
            {
                "q_y_weight": init_linear(torch.empty(K, H), H, rng),
                "q_y_bias": torch.zeros(K),
                "q_z_weight": init_linear(torch.empty(K, H, 2 * n_z), H, rng),
                "q_z_bias": torch.zeros(K, 2 * n_z),
                "p_z": init_linear(torch.empty(K, 2 * n_z), PRIOR_FAN_IN, rng),
            }
        )
        self.p_z_bias = nn.Parameter(torch.zeros(2 * n_z))

    @classmethod
    def from_config(cls, config: ModelConfig, n_x: int, rng: Generator) -> MixtureVAE:
        """The paper's MLPs in the sizes of `config`."""
        encoder = mlp_encoder(n_x, config.encoder, rng)
        decoder = mlp_decoder(config.n_z, config.decoder, n_x, rng)
        p_x = likelihood(config.likelihood, n_x)
        return cls(encoder, decoder, p_x, n_x=n_x, n_z=config.n_z, K=config.K, rng=rng)

    @property
    def K(self) -> int:
        """The number of components."""
        return len(self.heads["q_y_bias"])

    def encode(self, x: Tensor) -> Tensor:
        """The shared representation h: [B, D] → [B, H]."""
        return cast(Tensor, self.encoder(x))

    def log_q_y(self, h: Tensor) -> Tensor:
        """log q(y|x): [B, H] → [B, K]."""
        return linear(h, self.heads["q_y_weight"], self.heads["q_y_bias"]).log_softmax(-1)

    def q_z(self, h: Tensor, pairs: Pairs) -> Gaussian:
        """q(z|x,y) for the given pairs only: one batched product over the components that occur."""
        groups = Groups.of(pairs, self.K)
        weight, bias = self.heads["q_z_weight"], self.heads["q_z_bias"]  # [K, H, 2Z], [K, 2Z]
        if (A := len(groups.active)) < self.K:
            weight, bias = weight.index_select(0, groups.active), bias.index_select(0, groups.active)
        lines = h.index_select(0, groups.gather).view(A, -1, h.shape[1])  # [A, n, H]
        raw = torch.baddbmm(bias.unsqueeze(1), lines, weight)  # [A, n, 2Z]
        return Gaussian.from_raw(raw.view(-1, 2 * self.n_z).index_select(0, groups.places))

    def p_z(self, ks: Tensor) -> Gaussian:
        """p(z|y=k): linear in one-hot y with a shared bias; [N] → [N, Z]."""
        return Gaussian.from_raw(self.heads["p_z"].index_select(0, ks) + self.p_z_bias)

    def log_p_x(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z): [N, D], [S, N, Z] → [S, N]."""
        return self.p_x.log_p(x, self.decoder(z.flatten(0, 1)).view(*z.shape[:2], -1))

    def mean(self, z: Tensor) -> Tensor:
        """The mean of p(x|z): [N, Z] → [N, D]."""
        return self.p_x.mean(self.decoder(z))

    @torch.no_grad()
    def sample(self, y: Tensor, emission: Emission, rng: Generator) -> Tensor:
        """x ~ p(x|z), z ~ p(z|y): [N] → [N, D]."""
        z = self.p_z(y).sample(rng)[0]
        return self.p_x.emit(self.decoder(z), emission, rng)

    def component_parameters(self) -> set[str]:
        """The names of those of which every component has a slice of its own."""
        return {f"heads.{name}" for name in self.heads}

    @torch.no_grad()
    def grow(self, parent: int) -> None:
        """θ⁽ᴷ⁺¹⁾ = θ⁽ᵖᵃʳᵉⁿᵗ⁾.

        The parameters of `heads` are replaced, not resized: a graph that still holds the old ones would cut the
        new ones' gradients to the old shape.
        """
        for name, old in list(self.heads.items()):
            self.heads[name] = nn.Parameter(torch.cat([old, old[parent : parent + 1]]))

    def load_grown(self, state: dict[str, Tensor]) -> None:
        """Like `load_state_dict`, for a state with any number of components."""
        for name in list(self.heads):
            self.heads[name] = nn.Parameter(torch.empty_like(state[f"heads.{name}"]))
        self.load_state_dict(state)


@contextmanager
def looking(network: nn.Module) -> Iterator[None]:
    """Without gradients and in evaluation mode, after which the modes are as they were: looking changes nothing."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _width_of(network: nn.Module, n_in: int, name: str) -> int:
    """How many values `network` gives for a row of `n_in`."""
    try:
        with looking(network):
            out = network(torch.zeros(1, n_in))
    except RuntimeError as error:
        raise ConfigError(f"The {name} must take rows of {n_in} values. It fails on one: {error}") from error
    if out.ndim != 2:
        raise ConfigError(f"The {name} must map rows to rows. Got an output of shape {tuple(out.shape)} instead.")
    return int(out.shape[1])
