"""Encoders and decoders: anything that maps rows to rows will do.

The paper's multilayer perceptrons (`Mlp`) and a small convolutional pair for images. Every network is a plain
`torch.nn.Module` whose weights are drawn from a named generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Generator, Tensor, nn

CHANNELS = (32, 64)  # of the convolutional pair, from the image inwards
HIDDEN = 128  # units between the convolutions and the latent space
Layer = TypeVar("Layer", nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
KERNEL = {"kernel_size": 3, "stride": 2, "padding": 1}


def init_linear(weight: Tensor, fan_in: int, rng: Generator) -> Tensor:
    """Fill `weight` with a truncated normal of standard deviation 1/√fan_in."""
    std = fan_in**-0.5
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=rng)


class Mlp(nn.Module):
    """Linear layers of the given widths with ReLUs between them, and after the last one if `relu_last`."""

    def __init__(self, widths: Sequence[int], relu_last: bool, rng: Generator) -> None:
        super().__init__()
        self.relu_last = relu_last
        layers = [(init_linear(torch.empty(n_in, n_out), n_in, rng), n_out) for n_in, n_out in pairwise(widths)]
        self.weights = nn.ParameterList([weight for weight, _ in layers])  # [in, out]
        self.biases = nn.ParameterList([torch.zeros(n_out) for _, n_out in layers])

    def forward(self, x: Tensor) -> Tensor:
        """[B, in] → [B, out]."""
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias, x, weight)
            if layer < last or self.relu_last:
                x = x.relu()
        return x


def mlp_encoder(n_x: int, widths: Sequence[int], rng: Generator) -> Mlp:
    """x → h: every layer followed by a ReLU."""
    return Mlp((n_x, *widths), relu_last=True, rng=rng)


def mlp_decoder(n_z: int, widths: Sequence[int], n_x: int, rng: Generator) -> Mlp:
    """z → the parameters of p(x|z): ReLU after every layer but the last."""
    return Mlp((n_z, *widths, n_x), relu_last=False, rng=rng)


class ConvEncoder(nn.Module):
    """Images, as rows of pixels, to h: convolutions that each halve height and width, then one linear layer."""

    def __init__(self, shape: Sequence[int], rng: Generator) -> None:
        super().__init__()
        self.pixels = Pixels(shape)
        channels = (self.pixels.channels, *CHANNELS)
        self.layers = nn.ModuleList(
            _drawn(nn.utils.skip_init(nn.Conv2d, n_in, n_out, **KERNEL), 9 * n_in, rng)
            for n_in, n_out in pairwise(channels)
        )
        n_flat = CHANNELS[-1] * math.prod(self.pixels.sizes[-1])
        self.last = _drawn(nn.utils.skip_init(nn.Linear, n_flat, HIDDEN), n_flat, rng)

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] → [B, H]."""
        h = self.pixels.image(x)
        for layer in self.layers:
            h = layer(h).relu()
        out: Tensor = self.last(h.flatten(1)).relu()
        return out


class ConvDecoder(nn.Module):
    """z to images as rows of pixels: the convolutional encoder in reverse."""

    def __init__(self, n_z: int, shape: Sequence[int], rng: Generator) -> None:
        super().__init__()
        self.pixels = Pixels(shape)
        self.small = CHANNELS[-1], *self.pixels.sizes[-1]
        n_flat = math.prod(self.small)
        self.first = _drawn(nn.utils.skip_init(nn.Linear, n_z, HIDDEN), n_z, rng)
        self.second = _drawn(nn.utils.skip_init(nn.Linear, HIDDEN, n_flat), HIDDEN, rng)
        channels = (*reversed(CHANNELS), self.pixels.channels)
        self.layers = nn.ModuleList(
            _drawn(nn.utils.skip_init(nn.ConvTranspose2d, n_in, n_out, **KERNEL), 9 * n_in // 4, rng)
            for n_in, n_out in pairwise(channels)
        )

    def forward(self, z: Tensor) -> Tensor:
        """[N, Z] → [N, D]."""
        h = self.second(self.first(z).relu()).relu().view(-1, *self.small)
        for layer, size in zip(self.layers, self.pixels.sizes[-2::-1], strict=True):
            h = layer(h, output_size=size)
            h = h if layer is self.layers[-1] else h.relu()
        return self.pixels.rows(h)


class Pixels:
    """How a row of numbers is an image: [height, width], [height, width, channels] or [channels, height, width].

    The axis of channels is the last one, unless only the first is no longer than four.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        if len(shape) not in (2, 3):
            raise ValueError(f"an image has 2 or 3 axes, but samples have the shape {tuple(shape)}")
        self.shape = tuple(shape)
        self.channels_first = len(shape) == 3 and shape[0] <= 4 < shape[2]
        height, width, self.channels = shape[0], shape[1], shape[2] if len(shape) == 3 else 1
        if self.channels_first:
            self.channels, height, width = shape
        self.sizes = [(-(-height // 2**n), -(-width // 2**n)) for n in range(len(CHANNELS) + 1)]  # outermost first

    def image(self, x: Tensor) -> Tensor:
        """[B, D] → [B, channels, height, width]."""
        if self.channels_first:
            return x.view(-1, *self.shape)
        return x.view(-1, *self.sizes[0], self.channels).permute(0, 3, 1, 2)

    def rows(self, image: Tensor) -> Tensor:
        """[B, channels, height, width] → [B, D]."""
        return (image if self.channels_first else image.permute(0, 2, 3, 1)).flatten(1)


def _drawn(layer: Layer, fan_in: int, rng: Generator) -> Layer:
    """`layer` with weights drawn from `rng` and biases of zero."""
    init_linear(layer.weight.data, max(1, fan_in), rng)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
