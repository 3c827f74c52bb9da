"""Encoders and decoders: the paper's MLPs; anything that maps a batch of rows to a batch of rows will do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Generator, Tensor, nn


def init_linear(weight: Tensor, fan_in: int, rng: Generator) -> Tensor:
    """Truncated normal of standard deviation 1/√fan_in."""
    std = fan_in**-0.5
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=rng)


def linear(n_in: int, n_out: int, rng: Generator) -> nn.Linear:
    """A linear layer with zero bias."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
    init_linear(layer.weight, n_in, rng)
    nn.init.zeros_(layer.bias)
    return layer


def mlp_encoder(n_x: int, widths: Sequence[int], rng: Generator) -> nn.Sequential:
    """x → h: every layer followed by a ReLU."""
    layers = [(linear(a, b, rng), nn.ReLU()) for a, b in pairwise((n_x, *widths))]
    return nn.Sequential(*(module for layer in layers for module in layer))


def mlp_decoder(n_z: int, widths: Sequence[int], n_x: int, rng: Generator) -> nn.Sequential:
    """z → the parameters of p(x|z): ReLU after every layer but the last."""
    return nn.Sequential(*mlp_encoder(n_z, widths, rng), linear((n_z, *widths)[-1], n_x, rng))
