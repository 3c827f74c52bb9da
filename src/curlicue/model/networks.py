"""Encoders and decoders: the paper's MLPs; anything that maps a batch of rows to a batch of rows will do.

In a trained network most hidden units are silent for a whole batch, above all when the batch shows one class, and so
are most pixels of MNIST. A silent unit adds nothing to the next layer and gets no gradient, so `ReluNet` multiplies
only the others, forwards and backwards: the same numbers, up to rounding, from a fraction of the products.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from curlicue.model import kernels
from curlicue.model.gradient import Gradient, Slope, exhausted

SPARE = 0.9  # gathering pays if at most this share of the units is awake


def init_linear(weight: Tensor, fan_in: int, rng: torch.Generator) -> Tensor:
    """Truncated normal of standard deviation 1/√fan_in."""
    std = fan_in**-0.5
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=rng)


class ReluNet(nn.Module):
    """Linear layers of the given widths with ReLUs between them, and after the last one if `relu_last`."""

    def __init__(self, widths: Sequence[int], relu_last: bool, rng: torch.Generator) -> None:
        super().__init__()
        self.relu_last = relu_last
        layers = [(init_linear(torch.empty(n_in, n_out), n_in, rng), n_out) for n_in, n_out in pairwise(widths)]
        self.weights = nn.ParameterList([weight for weight, _ in layers])  # [in, out]
        self.biases = nn.ParameterList([torch.zeros(n_out) for _, n_out in layers])

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = _Differentiable.apply(self, rows, *self.parameters())  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], -1)

    @torch.no_grad()
    def run(self, x: Tensor, x_has_gradient: bool) -> Tape:
        """y = … ReLU(ReLU(x W₁ + b₁) W₂ + b₂) … of x [B, in], with what its gradient will need."""
        out = x.detach().contiguous()
        # a silent input has no part in the product, but its own gradient is not zero
        awake = None if x_has_gradient else few(kernels.awake(out.numpy()), out)
        layers = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            h = out if awake is None else _columns(out, awake)  # [B, a]
            w = weight.detach() if awake is None else weight.index_select(0, awake)  # [a, out]
            layers.append(Layer(h, w, awake))
            out = torch.addmm(bias, h, w)
            is_last = len(layers) == len(self.weights)
            awake = None if is_last and not self.relu_last else few(kernels.relu(out.numpy()), out)
        return Tape(out, awake, layers, self.relu_last, x_has_gradient)


def mlp_encoder(n_x: int, widths: Sequence[int], rng: torch.Generator) -> ReluNet:
    """x → h: every layer followed by a ReLU."""
    return ReluNet((n_x, *widths), relu_last=True, rng=rng)


def mlp_decoder(n_z: int, widths: Sequence[int], n_x: int, rng: torch.Generator) -> ReluNet:
    """z → the parameters of p(x|z): ReLU after every layer but the last."""
    return ReluNet((n_z, *widths, n_x), relu_last=False, rng=rng)


@dataclass(frozen=True)
class Layer:
    """What a layer multiplied: only the columns and rows of the inputs that were awake."""

    h: Tensor  # [B, a]
    w: Tensor  # [a, out]
    awake: Tensor | None  # [a], which inputs; None: all


@dataclass(frozen=True)
class Tape:
    """What a network did with a batch."""

    out: Tensor  # [B, out]
    awake: Tensor | None  # which of `out` were; None: all
    layers: Sequence[Layer]
    relu_last: bool
    x_has_gradient: bool

    def pull(self, g: Tensor, prefix: str = "") -> Generator[Slope, None, Tensor | None]:
        """dW = hᵀ g, db = Σ g, dh = g Wᵀ, layer by layer from the last; `g` [B, out] is made use of.

        Yields each parameter's slope as soon as the parameter is not needed any more, and returns the gradient of the
        input, if it has one.
        """
        awake = self.awake
        if self.relu_last:
            kernels.silence(g.numpy(), self.out.numpy())
        g = g if awake is None else _columns(g, awake)  # [B, o]
        for number, layer in reversed([*enumerate(self.layers)]):
            passed, outputs, awake = g, awake, layer.awake
            if number or self.x_has_gradient:
                g = g @ (layer.w if outputs is None else _columns(layer.w, outputs)).t()  # [B, a]
            if number:
                kernels.silence(g.numpy(), layer.h.numpy())
            yield f"{prefix}weights.{number}", Gradient(layer.h.t() @ passed, layer.awake, outputs)
            of_bias = torch.from_numpy(kernels.sum_over_rows(passed.numpy()))
            yield f"{prefix}biases.{number}", Gradient(of_bias, None, outputs)
        return g if self.x_has_gradient else None


class _Differentiable(torch.autograd.Function):
    """A network for autograd, with gradients of the whole weights."""

    @staticmethod
    def forward(ctx: Any, net: ReluNet, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.tape = net.run(x, ctx.needs_input_grad[1])
        ctx.parameters = dict(zip((name for name, _ in net.named_parameters()), parameters, strict=True))
        out: Tensor = ctx.tape.out
        return out.detach()  # not the very tensor that ctx holds: the two would hold each other

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        slopes, g_x = exhausted(ctx.tape.pull(g.clone(memory_format=torch.contiguous_format)))
        return None, g_x, *(slopes[name].dense(parameter) for name, parameter in ctx.parameters.items())


def few(awake: kernels.Array, h: Tensor) -> Tensor | None:
    """The units that are awake, of those of h [B, n]; None if they are too many for gathering to pay."""
    return torch.from_numpy(awake) if len(awake) <= SPARE * h.shape[1] else None


def _columns(h: Tensor, which: Tensor) -> Tensor:
    return torch.from_numpy(kernels.columns(h.detach().numpy(), which.numpy()))
