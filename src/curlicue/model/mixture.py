"""The mixture VAE of section 2.1: q(y|x), q(z|x,y), p(z|y), p(x|z)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import linear

from curlicue.config.model import Emission, ModelConfig
from curlicue.errors import ConfigError
from curlicue.model.devices import sent
from curlicue.model.gaussian import Gaussian
from curlicue.model.likelihood import Bernoulli, GaussianNoise, likelihood
from curlicue.model.networks import ConvDecoder, ConvEncoder, init_linear, mlp_decoder, mlp_encoder
from curlicue.model.pairs import Pairs

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
    def from_config(
        cls,
        config: ModelConfig,
        shape: int | Sequence[int],
        rng: Generator,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
    ) -> MixtureVAE:
        """The networks that `config` names, for samples of `shape` or of so many values; or networks of one's own."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        n_x = math.prod(shape)
        encoder = _encoder(config, shape, rng) if encoder is None else encoder
        decoder = _decoder(config, shape, rng) if decoder is None else decoder
        p_x = likelihood(config.likelihood, n_x)
        return cls(encoder, decoder, p_x, n_x=n_x, n_z=config.n_z, K=config.K, rng=rng)

    @property
    def device(self) -> torch.device:
        """Where the parameters are, and where `encode` wants its rows."""
        return self.p_z_bias.device

    @property
    def K(self) -> int:
        """The number of components."""
        return len(self.heads["q_y_bias"])

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the parameters."""
        return self.p_z_bias.dtype

    def encode(self, x: Tensor) -> Tensor:
        """The shared representation h: [B, D] → [B, H]."""
        return cast(Tensor, self.encoder(x))

    def log_q_y(self, h: Tensor) -> Tensor:
        """log q(y|x): [B, H] → [B, K]."""
        return linear(h, self.heads["q_y_weight"], self.heads["q_y_bias"]).log_softmax(-1)

    def q_z(self, h: Tensor, pairs: Pairs) -> Gaussian:
        """q(z|x,y) for the given pairs only: one batched product over the components that occur."""
        groups = pairs.groups
        weight, bias = self.heads["q_z_weight"], self.heads["q_z_bias"]  # [K, H, 2Z], [K, 2Z]
        if (A := len(groups.active)) < self.K:
            weight, bias = weight.index_select(0, groups.active), bias.index_select(0, groups.active)
        n = len(groups.gather) // max(1, A)
        lines = h.index_select(0, groups.gather).view(A, n, h.shape[1])  # [A, n, H]
        raw = torch.baddbmm(bias.unsqueeze(1), lines, weight)  # [A, n, 2Z]
        return Gaussian.from_raw(raw.view(-1, 2 * self.n_z).index_select(0, groups.places))

    def p_z(self, ks: Tensor) -> Gaussian:
        """p(z|y=k): linear in one-hot y with a shared bias; [N] → [N, Z]."""
        return Gaussian.from_raw(self.heads["p_z"].index_select(0, ks) + self.p_z_bias)

    def log_p_x(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z): [N, D], [S, N, Z] → [S, N]."""
        return self.p_x.log_p(x, self.decoder(z.flatten(0, 1)).unflatten(0, z.shape[:2]))

    def mean(self, z: Tensor) -> Tensor:
        """The mean of p(x|z): [N, Z] → [N, D]."""
        return self.p_x.mean(self.decoder(z))

    @torch.no_grad()
    def sample(self, y: Tensor, emission: Emission, rng: Generator) -> Tensor:
        """x ~ p(x|z), z ~ p(z|y): [N] → [N, D]."""
        z = self.p_z(sent(y, self.device)).sample(rng)[0]
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
            self.heads[name] = nn.Parameter(torch.cat([old, old[parent : parent + 1]]), old.requires_grad)

    def like(self, K: int) -> dict[str, Tensor]:
        """Tensors as `state_dict` has them with K components; their values mean nothing."""
        return {
            name: t.new_empty(K, *t.shape[1:]) if name.startswith("heads.") else t
            for name, t in self.state_dict().items()
        }

    def load_grown(self, state: dict[str, Tensor]) -> None:
        """Like `load_state_dict`, for a state with any number of components."""
        for name, old in list(self.heads.items()):
            empty = torch.empty_like(state[f"heads.{name}"], device=self.device)
            self.heads[name] = nn.Parameter(empty, old.requires_grad)
        self.load_state_dict(state)


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Without gradients and in evaluation mode; afterwards every module's mode is as it was."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _encoder(config: ModelConfig, shape: Sequence[int], rng: Generator) -> nn.Module:
    if isinstance(config.encoder, tuple):
        return mlp_encoder(math.prod(shape), config.encoder, rng)
    return _for_images(shape, lambda: ConvEncoder(shape, rng))


def _decoder(config: ModelConfig, shape: Sequence[int], rng: Generator) -> nn.Module:
    if isinstance(config.decoder, tuple):
        return mlp_decoder(config.n_z, config.decoder, math.prod(shape), rng)
    return _for_images(shape, lambda: ConvDecoder(config.n_z, shape, rng))


def _for_images(shape: Sequence[int], network: Callable[[], nn.Module]) -> nn.Module:
    if len(shape) not in (2, 3):
        raise ConfigError(
            f"A 'conv' network takes images [height, width] or [height, width, channels]. "
            f"Samples have the shape {tuple(shape)}: give images, or widths such as (256, 128)."
        )
    return network()


def _width_of(network: nn.Module, n_in: int, name: str) -> int:
    """How many values `network` gives for a row of `n_in`."""
    try:
        with eval_mode(network):
            out = network(torch.zeros(1, n_in))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(f"The {name} must take rows of {n_in} values. It fails on one: {reason}.") from error
    if not isinstance(out, Tensor) or out.ndim != 2:
        seen = f"an output of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(f"The {name} must map rows to rows. Got {seen} instead.")
    return int(out.shape[1])
