"""Encoders and decoders: the paper's MLPs; anything that maps a batch of rows to a batch of rows will do.

In a trained network most hidden units are silent for a whole batch, above all when the batch shows one class, and so
are most pixels of MNIST. A silent unit adds nothing to the next layer and gets no gradient, so `ReluNet` multiplies
only the others, forwards and backwards: the same numbers, up to rounding, from a fraction of the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable

SPARE = 0.75  # gathering pays if at most this share of the units is awake


def init_linear(weight: Tensor, fan_in: int, rng: Generator) -> Tensor:
    """Truncated normal of standard deviation 1/√fan_in."""
    std = fan_in**-0.5
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=rng)


class ReluNet(nn.Module):
    """Linear layers of the given widths with ReLUs between them, and after the last one if `relu_last`."""

    def __init__(self, widths: Sequence[int], relu_last: bool, rng: Generator) -> None:
        super().__init__()
        self.relu_last = relu_last
        layers = [(init_linear(torch.empty(n_in, n_out), n_in, rng), n_out) for n_in, n_out in pairwise(widths)]
        self.weights = nn.ParameterList([weight for weight, _ in layers])  # [in, out]
        self.biases = nn.ParameterList([torch.zeros(n_out) for _, n_out in layers])

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = _ReluLayers.apply(  # type: ignore[no-untyped-call]
            rows, self.relu_last, len(self.weights), *self.weights, *self.biases
        )
        return out.view(*x.shape[:-1], -1)


def mlp_encoder(n_x: int, widths: Sequence[int], rng: Generator) -> ReluNet:
    """x → h: every layer followed by a ReLU."""
    return ReluNet((n_x, *widths), relu_last=True, rng=rng)


def mlp_decoder(n_z: int, widths: Sequence[int], n_x: int, rng: Generator) -> ReluNet:
    """z → the parameters of p(x|z): ReLU after every layer but the last."""
    return ReluNet((n_z, *widths, n_x), relu_last=False, rng=rng)


class _ReluLayers(torch.autograd.Function):
    """All layers at once; `h`, `w` and `g` hold only the columns, rows and columns of the units that are awake."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, relu_last: bool, n: int, *parameters: Tensor) -> Tensor:
        """y = … ReLU(ReLU(x W₁ + b₁) W₂ + b₂) …"""
        # a silent input has no part in the product, but its own gradient is not zero
        awake, out = None if x.requires_grad else awake_units(x.abs()), x
        kept: list[Tensor | None] = []
        for layer, (weight, bias) in enumerate(zip(parameters[:n], parameters[n:], strict=True)):
            h = out if awake is None else out.index_select(1, awake)  # [B, a]
            w = weight if awake is None else weight.index_select(0, awake)  # [a, out]
            kept += [h, w, awake]
            out = torch.addmm(bias, h, w)
            if layer < n - 1 or relu_last:
                out.clamp_min_(0)
                awake = awake_units(out)
        ctx.n, ctx.relu_last, ctx.shapes = n, relu_last, [weight.shape for weight in parameters[:n]]
        ctx.save_for_backward(out, awake, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """dW = hᵀ g, db = Σ g, dh = g Wᵀ, layer by layer from the last."""
        out, awake, *kept = ctx.saved_tensors
        if ctx.relu_last:
            g = torch.ops.aten.threshold_backward(g, out, 0)
        else:
            awake = None
        g = g if awake is None else g.index_select(1, awake)  # [B, o]
        grads: list[Tensor | None] = [None] * (2 * ctx.n)
        for layer in reversed(range(ctx.n)):
            h, w, below = kept[3 * layer : 3 * layer + 3]
            grads[layer] = _spread(h.t() @ g, below, awake, ctx.shapes[layer])
            grads[ctx.n + layer] = _spread(g.sum(0), awake, None, ctx.shapes[layer][1:])
            if layer == 0 and not ctx.needs_input_grad[0]:
                return None, None, None, *grads
            g = g @ (w if awake is None else w.index_select(1, awake)).t()  # [B, a]
            if layer:
                g = torch.ops.aten.threshold_backward(g, h, 0)
            awake = below
        return g, None, None, *grads


def awake_units(h: Tensor) -> Tensor | None:
    """The columns [a] of h [B, n], h ≥ 0, that are not all zero; None if they are too many for gathering to pay."""
    awake = h.amax(0).nonzero().squeeze(1)
    return awake if len(awake) <= SPARE * h.shape[1] else None


def _spread(values: Tensor, rows: Tensor | None, columns: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Zeros of `shape` with `values` in the given rows and columns (None: all)."""
    if columns is None:
        return values if rows is None else values.new_zeros(*shape).index_copy_(0, rows, values)
    rows = torch.arange(shape[0]) if rows is None else rows
    places = rows[:, None] * shape[1] + columns
    flat = values.new_zeros(shape[0] * shape[1])
    return flat.scatter_(0, places.reshape(-1), values.reshape(-1)).view(*shape)
