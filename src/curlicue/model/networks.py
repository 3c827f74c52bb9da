"""Encoders and decoders: the paper's MLPs; anything that maps a batch of rows to a batch of rows will do.

In a trained network most hidden units are silent for a whole batch, above all when the batch shows one class, and so
are most pixels of MNIST; and of what is left most numbers are zero. A zero adds nothing to the next layer and gets no
gradient, so `ReluNet` leaves out units that are silent, and where enough of the others' numbers are zero it passes over
these too, forwards and backwards: the same numbers, up to rounding, from a fraction of the products.
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
SPARSE = 0.5  # passing over zeros pays if at most this share, divided by BLAS's threads, of what is left is not zero
ROWS = 512  # of a batch that the loops over what is not zero are made for: more would not stay in the processor's cache


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
        # a zero input has no part in the product, but its own gradient is not zero
        found = None if x_has_gradient else kernels.awake(out.numpy())
        layers: list[Dense | Sparse] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layers.append(layer_of(out, weight.detach().contiguous(), found))
            out = layers[-1].run(bias.detach())
            is_last = len(layers) == len(self.weights)
            found = None if is_last and not self.relu_last else kernels.relu(out.numpy())
        return Tape(out, None if found is None else few(found[0], out), layers, self.relu_last, x_has_gradient)


def mlp_encoder(n_x: int, widths: Sequence[int], rng: torch.Generator) -> ReluNet:
    """x → h: every layer followed by a ReLU."""
    return ReluNet((n_x, *widths), relu_last=True, rng=rng)


def mlp_decoder(n_z: int, widths: Sequence[int], n_x: int, rng: torch.Generator) -> ReluNet:
    """z → the parameters of p(x|z): ReLU after every layer but the last."""
    return ReluNet((n_z, *widths, n_x), relu_last=False, rng=rng)


@dataclass(frozen=True)
class Dense:
    """A layer that BLAS multiplies: only the columns and rows of the inputs that are awake."""

    h: Tensor  # [B, a]
    w: Tensor  # [a, out]
    awake: Tensor | None  # [a], which inputs; None: all

    def run(self, bias: Tensor) -> Tensor:
        """h W + b [B, out]."""
        return torch.addmm(bias, self.h, self.w)

    def pull(self, g: Tensor, outputs: Tensor | None) -> Tensor:
        """dh = g Wᵀ [B, a], given g [B, o] of some outputs."""
        return g @ (self.w if outputs is None else _part(self.w, None, outputs)).t()

    def pull_weight(self, g: Tensor) -> Tensor:
        """dW = hᵀ g [a, o]."""
        return self.h.t() @ g


@dataclass(frozen=True)
class Sparse:
    """A layer whose inputs are mostly zeros, which are passed over."""

    h: Tensor  # [B, a]
    w: Tensor  # [in, out]
    awake: Tensor | None  # [a], which inputs; None: all

    def run(self, bias: Tensor) -> Tensor:
        """h W + b [B, out]."""
        out = kernels.layer(self.h.numpy(), _indices(self.awake), self.w.numpy(), bias.numpy())
        return torch.from_numpy(out)

    def pull(self, g: Tensor, outputs: Tensor | None) -> Tensor:
        """dh = g Wᵀ [B, a] where h is not zero, given g [B, o] of some outputs."""
        w, rows = (self.w, self.awake) if outputs is None else (_part(self.w, self.awake, outputs), None)
        return torch.from_numpy(kernels.input_pull(g.numpy(), w.numpy(), _indices(rows), self.h.numpy()))

    def pull_weight(self, g: Tensor) -> Tensor:
        """dW = hᵀ g [a, o]."""
        return torch.from_numpy(kernels.weight_pull(self.h.numpy(), g.numpy()))


def layer_of(h: Tensor, weight: Tensor, found: tuple[kernels.Array, int] | None) -> Dense | Sparse:
    """That of weight [in, out] for h [B, in], of which was `found` what is awake and how many numbers are not zero."""
    if h.shape[1] != len(weight) or h.dtype != weight.dtype:
        takes = f"{len(weight)} numbers of {weight.dtype}"
        raise RuntimeError(f"The layer takes rows of {takes}. Got {h.shape[1]} of {h.dtype}.")
    if found is None:
        return Dense(h, weight, None)
    awake, not_zero = few(found[0], h), found[1]
    h = h if awake is None else _part(h, None, awake)
    if len(h) <= ROWS and not_zero * torch.get_num_threads() <= SPARSE * h.numel():
        return Sparse(h, weight, awake)
    return Dense(h, weight if awake is None else weight.index_select(0, awake), awake)


@dataclass(frozen=True)
class Tape:
    """What a network did with a batch."""

    out: Tensor  # [B, out]
    awake: Tensor | None  # which of `out` were; None: all
    layers: Sequence[Dense | Sparse]
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
        g = g if awake is None else _part(g, None, awake)  # [B, o]
        for number, layer in reversed([*enumerate(self.layers)]):
            passed, outputs, awake = g, awake, layer.awake
            if number or self.x_has_gradient:
                g = layer.pull(passed, outputs)  # [B, a]
            if number and isinstance(layer, Dense):
                kernels.silence(g.numpy(), layer.h.numpy())
            yield f"{prefix}weights.{number}", Gradient(layer.pull_weight(passed), layer.awake, outputs)
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


def _part(w: Tensor, rows: Tensor | None, columns: Tensor) -> Tensor:
    return torch.from_numpy(kernels.part(w.numpy(), _indices(rows), columns.numpy()))


def _indices(which: Tensor | None) -> kernels.Array:
    return kernels.ALL if which is None else which.numpy()


def as_array(weight: Tensor) -> kernels.Array:
    """The very numbers, unless they lie in another order."""
    array: kernels.Array = weight.detach().contiguous().numpy()
    return array
