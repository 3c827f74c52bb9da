"""Adam, which leaves alone what rests.

A row of weights without a gradient, because its unit is silent or its component not visited, is moved by what is left
of its first moment, by less and less. Once that is lost in the rounding of each of its weights, all that Adam does to
it is to let its moments fade by β₁ and β₂ a step, which can be done for many steps at once when it moves again. The
numbers are Adam's up to rounding. What is saved is memory traffic: a trained network has many units that no sample of
a batch wakes, and of many components few are ever on the move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from curlicue.model.gradient import Gradient, matrix_shape
from curlicue.model.kernels import ALL, Array, compiled

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # TensorFlow's defaults, which are torch's too
FADED = 1e-30  # of a first moment: it counts as zero
MOVING = -1  # in place of the number of steps rested


class Moments:
    """What Adam knows of one parameter."""

    def __init__(self, steps: Tensor, first: Tensor, second: Tensor, rested: Tensor) -> None:
        self.steps = int(steps)  # taken with it
        self.first, self.second = first, second  # as the parameter
        self.rested = rested  # [R], steps that the moments of each row have yet to fade by, or MOVING
        self.shape = matrix_shape(first)
        self.arrays = first.view(self.shape).numpy(), second.view(self.shape).numpy(), rested.numpy()

    @classmethod
    def none(cls, parameter: Tensor) -> Moments:
        """Of a parameter that has never moved."""
        first, second = torch.zeros(2, *parameter.shape, dtype=parameter.dtype)
        return cls(torch.tensor(0), first, second, torch.full(matrix_shape(parameter)[:1], MOVING))

    def __reduce__(self) -> tuple[type[Moments], tuple[Tensor, ...]]:
        """For copies: their arrays are views of their own tensors."""
        return Moments, tuple(self.tensors.values())

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What it can be made of again."""
        return {"steps": torch.tensor(self.steps), "first": self.first, "second": self.second, "rested": self.rested}

    def grown(self) -> Moments:
        """With a component that has never moved."""
        first, second = (torch.cat([moment, torch.zeros_like(moment[:1])]) for moment in (self.first, self.second))
        newborn = torch.full((len(first) - len(self.first) if first.ndim > 1 else 0,), MOVING)
        return Moments(torch.tensor(self.steps), first, second, torch.cat([self.rested, newborn]))


class Adam:
    """With a constant learning rate."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.moments: dict[str, Moments] = {}  # by the parameters' names

    def move(self, name: str, parameter: Tensor, gradient: Gradient) -> None:
        """One step down with one parameter."""
        if name not in self.moments:
            self.moments[name] = Moments.none(parameter)
        moments = self.moments[name]
        _check_fit(name, parameter, moments, gradient)
        moments.steps += 1
        weight = parameter.detach()
        if other_layout := not weight.is_contiguous():  # of a network of the user's own
            weight = weight.contiguous()
        _step(
            weight.numpy().reshape(moments.shape),
            *moments.arrays,
            gradient.values.numpy(),
            ALL if gradient.rows is None else gradient.rows.numpy(),
            ALL if gradient.columns is None else gradient.columns.numpy(),
            _constants(self.learning_rate, moments.steps, moments.arrays[0].dtype),
        )
        if other_layout:
            parameter.detach().copy_(weight)

    def grow(self, names: Iterable[str]) -> None:
        """A component is born, of which these parameters have a slice; what is known of everything else stays."""
        self.moments |= {name: self.moments[name].grown() for name in names if name in self.moments}


@lru_cache(8)  # most parameters have taken as many steps
def _constants(learning_rate: float, t: int, dtype: np.dtype[Any]) -> Array:
    rate, correction = learning_rate / (1 - BETA1**t), 1 / math.sqrt(1 - BETA2**t)
    return np.array((rate, BETA1, 1 - BETA1, BETA2, 1 - BETA2, EPS, correction, FADED), dtype)


def _check_fit(name: str, parameter: Tensor, moments: Moments, gradient: Gradient) -> None:
    """The loop below does not look where it reads and writes."""
    R, C = moments.shape
    shape = (
        R if gradient.rows is None else gradient.rows.shape[0],
        C if gradient.columns is None else gradient.columns.shape[0],
    )
    if moments.first.shape != parameter.shape or gradient.values.shape != shape:
        seen = f"moments of {list(moments.first.shape)} and a gradient of {list(gradient.values.shape)}"
        raise ValueError(
            f"{name} is {list(parameter.shape)} and wants a gradient of {list(shape)}, but there are {seen}. "
            "Let the model grow by Trainer.grow, which lets Adam's moments grow with it."
        )


@compiled
def _step(
    weight: Array, first: Array, second: Array, rested: Array, g: Array, rows: Array, columns: Array, constants: Array
) -> None:
    """One step on weight [R, C], with the gradient g in the given rows and columns ([-1]: all; an empty list: none)."""
    rate, beta1, rest1, beta2, rest2, eps, correction, faded = constants
    (R, C), zero = weight.shape, weight.dtype.type(0)
    all_rows, all_columns = len(rows) == 1 and rows[0] < 0, len(columns) == 1 and columns[0] < 0
    spread = np.zeros(C, weight.dtype)
    i = 0  # rows of g before this one
    for r in range(R):
        if not all_rows and not (i < len(rows) and rows[i] == r):
            if rested[r] >= 0:
                rested[r] += 1
                continue
            lost = True
            for j in range(C):
                m, v, before = beta1 * first[r, j], beta2 * second[r, j], weight[r, j]
                m = zero if abs(m) <= faded else m
                first[r, j], second[r, j] = m, v
                weight[r, j] -= rate * m / (math.sqrt(v) * correction + eps)
                lost &= weight[r, j] == before
            if lost:
                rested[r] = 0
            continue
        if rested[r] >= 0:
            first[r] *= weight.dtype.type(beta1 ** rested[r])
            second[r] *= weight.dtype.type(beta2 ** rested[r])
            rested[r] = -1
        if all_columns:
            spread[:] = g[i]
        else:
            for j in range(len(columns)):
                spread[columns[j]] = g[i, j]
        i += 1
        for j in range(C):
            m = beta1 * first[r, j] + rest1 * spread[j]
            m = zero if abs(m) <= faded else m  # or it would go on as a denormal number, which is slow
            v = beta2 * second[r, j] + rest2 * spread[j] * spread[j]
            first[r, j], second[r, j] = m, v
            weight[r, j] -= rate * m / (math.sqrt(v) * correction + eps)
