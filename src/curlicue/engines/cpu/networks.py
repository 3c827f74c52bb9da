"""The multilayer perceptrons of `model.networks`, forward and backward, without the work that zeros make.

In a trained network most hidden units are inactive for a whole batch, above all when the batch shows one class, and so
are most pixels of MNIST; of the values of active units most are zero, too. A zero adds nothing to the next layer and
gets no gradient. Inactive units are left out, and where enough of the other values are zero the products with these
are skipped, forward and backward: the same numbers, up to rounding, from a fraction of the products.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from curlicue.engines.cpu import layer_kernels as kernels
from curlicue.engines.cpu.compiled import Array
from curlicue.engines.cpu.gradient import Gradient, every
from curlicue.model.networks import Mlp

T = TypeVar("T")
Backward = Generator[Gradient, None, T]
"""Yields the gradient of each parameter as soon as nothing else needs the parameter; returns that of the input."""

GATHER = 0.9  # gathering pays if at most this share of the units is active
SPARSE = 0.5  # skipping zeros pays if at most this share, divided by BLAS's threads, of the gathered values is nonzero
ROWS = 512  # batch rows that the sparse loops are made for: more would not stay in the processor's cache


@dataclass(frozen=True)
class Dense:
    """A layer that BLAS multiplies, for its active inputs only."""

    h: Tensor  # [B, a]
    weight: Tensor  # [a, out]
    active: Array  # [a], which inputs are in h

    def forward(self, bias: Tensor) -> Tensor:
        """h W + b [B, out]."""
        return torch.addmm(bias, self.h, self.weight)

    def input_backward(self, g: Tensor, outputs: Array) -> Tensor:
        """dh = g Wᵀ [B, a], given g [B, o] of some outputs."""
        some = len(outputs) < self.weight.shape[1]
        return g @ (gather(self.weight, every(len(self.weight)), outputs) if some else self.weight).t()

    def weight_backward(self, g: Tensor) -> Tensor:
        """dW = hᵀ g [a, o]."""
        return self.h.t() @ g


@dataclass(frozen=True)
class Sparse:
    """A layer whose inputs are mostly zeros: the products with these are skipped."""

    h: Tensor  # [B, a]
    weight: Tensor  # [in, out]
    active: Array  # [a], which inputs are in h

    def forward(self, bias: Tensor) -> Tensor:
        """h W + b [B, out]."""
        return torch.from_numpy(kernels.sparse_layer(self.h.numpy(), self.active, self.weight.numpy(), bias.numpy()))

    def input_backward(self, g: Tensor, outputs: Array) -> Tensor:
        """dh = g Wᵀ [B, a] where h is not zero, given g [B, o] of some outputs."""
        weight, rows = self.weight, self.active
        if len(outputs) < weight.shape[1]:
            weight, rows = gather(weight, rows, outputs), every(len(rows))
        return torch.from_numpy(kernels.input_backward(g.numpy(), weight.numpy(), rows, self.h.numpy()))

    def weight_backward(self, g: Tensor) -> Tensor:
        """dW = hᵀ g [a, o]."""
        return torch.from_numpy(kernels.weight_backward(self.h.numpy(), g.numpy()))


@dataclass(frozen=True)
class ForwardCache:
    """The output of a network for a batch, and what the backward pass needs."""

    out: Tensor  # [B, out]
    active: Array  # which units of `out` have a gradient
    layers: Sequence[Dense | Sparse]
    relu_last: bool
    x_has_gradient: bool

    def backward(self, g: Tensor, prefix: str) -> Backward[Tensor]:
        """dW = hᵀ g, db = Σ g and dh = g Wᵀ, layer by layer from the last; g [B, out] is overwritten.

        The gradient that is returned is that of the input if the input has one, and otherwise of no use.
        """
        if self.relu_last:
            kernels.mask_gradient(g.numpy(), self.out.numpy())
        outputs = self.active
        g = gather_columns(g, outputs)  # [B, o]
        for number, layer in reversed([*enumerate(self.layers)]):
            g_out = g
            if number or self.x_has_gradient:
                g = layer.input_backward(g_out, outputs)  # [B, a]
            if number and isinstance(layer, Dense):
                kernels.mask_gradient(g.numpy(), layer.h.numpy())
            yield Gradient(f"{prefix}weights.{number}", layer.weight_backward(g_out).numpy(), layer.active, outputs)
            yield Gradient(f"{prefix}biases.{number}", kernels.sum_rows(g_out.numpy()), every(1), outputs)
            outputs = layer.active
        return g


def forward(mlp: Mlp, x: Tensor, x_has_gradient: bool) -> ForwardCache:
    """Run a network on x [B, in], without autograd."""
    h = x.detach().contiguous()
    layers: list[Dense | Sparse] = []
    found = (every(h.shape[1]), h.numel()) if x_has_gradient else kernels.find_active(h.numpy())
    for parameter, bias in zip(mlp.weights, mlp.biases, strict=True):
        weight = parameter.detach().contiguous()
        _check_fit(h, weight)
        if x_has_gradient and not layers:  # a zero in x adds nothing to the layer, but its gradient is not zero
            layers.append(Dense(h, weight, found[0]))
        else:
            layers.append(layer_of(h, weight, *found))
        h = layers[-1].forward(bias.detach())
        has_relu = mlp.relu_last or len(layers) < len(mlp.weights)
        found = kernels.relu(h.numpy()) if has_relu else (every(h.shape[1]), h.numel())
    return ForwardCache(h, worth_gathering(found[0], h), layers, mlp.relu_last, x_has_gradient)


def layer_of(h: Tensor, weight: Tensor, active: Array, n_nonzero: int) -> Dense | Sparse:
    """The faster layer with weight [in, out] for h [B, in], of which the units `active` hold `n_nonzero` nonzeros."""
    active = worth_gathering(active, h)
    h = gather_columns(h, active)
    if len(h) <= ROWS and n_nonzero * torch.get_num_threads() <= SPARSE * h.numel():
        return Sparse(h, weight, active)
    some = len(active) < len(weight)
    return Dense(h, weight.index_select(0, torch.from_numpy(active)) if some else weight, active)


def worth_gathering(active: Array, h: Tensor) -> Array:
    """The active units of h [B, n], or all if they are too many for gathering to pay."""
    n = h.shape[1]
    return active if len(active) <= GATHER * n else every(n)


def gather(w: Tensor, rows: Array, columns: Array) -> Tensor:
    """Copy w[rows][:, columns]."""
    return torch.from_numpy(kernels.gather(w.numpy(), rows, columns))


def gather_columns(h: Tensor, columns: Array) -> Tensor:
    """h[:, columns], which is h itself if these are all."""
    return gather(h, every(len(h)), columns) if len(columns) < h.shape[1] else h


def _check_fit(h: Tensor, weight: Tensor) -> None:
    """RuntimeError if h is not a batch for this layer: compiled loops do not look."""
    if h.shape[1] != len(weight) or h.dtype != weight.dtype:
        takes = f"{len(weight)} numbers of {weight.dtype}"
        raise RuntimeError(f"The layer takes rows of {takes}. Got {h.shape[1]} of {h.dtype}.")
