"""Adam, which skips the rows of weights that it would not change.

A row of weights without a gradient, because its unit is inactive or its component not visited, is moved by what is left
of its first moment, by less and less. Once the move is lost in the rounding of each of its weights, the row rests: all
that Adam would do to it is to let its moments fade by β₁ and β₂ a step, and that can be done for all skipped steps at
once when the row next has a gradient. The numbers are Adam's up to rounding. What is saved is memory traffic: a trained
network has many units that no sample of a batch activates, and of many components few move at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from curlicue.engines.cpu.compiled import Array, compiled
from curlicue.engines.cpu.gradient import Gradient, matrix_shape
from curlicue.records.state import Fields, State

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # TensorFlow's defaults, which are torch's too
FADED = 1e-30  # a smaller first moment counts as zero


@dataclass
class Moments:
    """What Adam knows of one parameter, which is seen as a matrix [R, C]."""

    shape: tuple[int, ...]  # of the parameter
    steps: int  # taken with the parameter
    first: Array  # [R, C]
    second: Array  # [R, C]
    skipped: Array  # [R] int64, steps by which the moments of a resting row have yet to fade
    resting: Array  # [R] bool, which rows are skipped while they have no gradient

    @classmethod
    def zero(cls, parameter: Tensor) -> Moments:
        """The moments of a parameter that has never moved."""
        R, C = matrix_shape(parameter)
        first, second = torch.zeros(2, R, C, dtype=parameter.dtype).numpy()
        return cls(tuple(parameter.shape), 0, first, second, np.zeros(R, np.int64), np.zeros(R, np.bool_))

    @classmethod
    def restored(cls, fields: Fields, parameter: Tensor) -> Moments:
        """The moments in the state of any engine; with other engines no row rests."""
        steps, moments = fields.count("steps"), cls.zero(parameter)
        for name, moment in (("first", moments.first), ("second", moments.second)):
            moment[:] = fields.tensor(name, moments.shape, parameter.dtype).reshape(moment.shape).cpu().numpy()
        if "skipped" in fields:
            rows = moments.skipped.shape
            moments.skipped[:] = fields.tensor("skipped", rows, torch.int64).cpu().numpy()
            moments.resting[:] = fields.tensor("resting", rows, torch.bool).cpu().numpy()
        fields.end()
        moments.steps = steps
        return moments

    def state(self) -> State:
        """What `restored` reads."""
        first, second = (torch.from_numpy(moment).view(self.shape) for moment in (self.first, self.second))
        rests = {"skipped": torch.from_numpy(self.skipped), "resting": torch.from_numpy(self.resting)}
        return {"steps": self.steps, "first": first, "second": second, **rests}

    def grown(self) -> Moments:
        """The moments with those of one component more, which are zero."""
        parameter = torch.empty(self.shape[0] + 1, *self.shape[1:], dtype=torch.from_numpy(self.first).dtype)
        grown = Moments.zero(parameter)
        grown.steps = self.steps
        for now, before in zip(grown._arrays(), self._arrays(), strict=True):
            now.reshape(-1)[: before.size] = before.reshape(-1)
        return grown

    def _arrays(self) -> tuple[Array, Array, Array, Array]:
        return self.first, self.second, self.skipped, self.resting


class Adam:
    """Adam with a constant learning rate."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.moments: dict[str, Moments] = {}  # by the names of the parameters that have moved

    def step(self, parameter: Tensor, gradient: Gradient) -> None:
        """Take one step down with one parameter."""
        name = gradient.name
        if name not in self.moments:
            self.moments[name] = Moments.zero(parameter)
        moments = self.moments[name]
        _check_fit(parameter, moments, gradient)
        moments.steps += 1
        weight = parameter.detach()
        if other_layout := not weight.is_contiguous():
            weight = weight.contiguous()
        matrix = weight.numpy().reshape(moments.first.shape)
        constants = _constants(self.learning_rate, moments.steps, matrix.dtype)
        _step(matrix, *moments._arrays(), gradient.values, gradient.rows, gradient.columns, constants)
        if other_layout:
            parameter.detach().copy_(weight)

    def grow(self, names: Iterable[str]) -> None:
        """A component is born, of which each of the named parameters has a slice."""
        self.moments |= {name: self.moments[name].grown() for name in names if name in self.moments}


@lru_cache(8)  # most parameters have taken equally many steps
def _constants(learning_rate: float, t: int, dtype: np.dtype[Any]) -> Array:
    rate, correction = learning_rate / (1 - BETA1**t), 1 / math.sqrt(1 - BETA2**t)
    return np.array((rate, BETA1, 1 - BETA1, BETA2, 1 - BETA2, EPS, correction, FADED), dtype)


def _check_fit(parameter: Tensor, moments: Moments, gradient: Gradient) -> None:
    """ValueError if the shapes do not fit: the compiled loop does not check indices."""
    shape = len(gradient.rows), len(gradient.columns)
    if moments.shape != parameter.shape or gradient.values.shape != shape:
        seen = f"moments of {list(moments.shape)} and a gradient of {list(gradient.values.shape)}"
        raise ValueError(
            f"{gradient.name} is {list(parameter.shape)} and wants a gradient of {list(shape)}, but there are {seen}. "
            "Let the model grow by Engine.grow, which lets Adam's moments grow with it."
        )


@compiled
def _step(
    weight: Array,
    first: Array,
    second: Array,
    skipped: Array,
    resting: Array,
    g: Array,
    rows: Array,
    columns: Array,
    constants: Array,
) -> None:
    """One step with weight [R, C], given its gradient g [r, c] in the given rows and columns."""
    C, i = weight.shape[1], 0
    g_row = np.zeros(C, weight.dtype)
    for r in range(len(weight)):
        if i < len(rows) and rows[i] == r:
            if resting[r]:
                _fade(first[r], second[r], skipped[r], constants)
                skipped[r], resting[r] = 0, False
            if len(columns) == C:
                g_row[:] = g[i]
            else:
                for j in range(len(columns)):
                    g_row[columns[j]] = g[i, j]
            _move(weight[r], first[r], second[r], g_row, constants)
            i += 1
        elif resting[r]:
            skipped[r] += 1
        else:
            resting[r] = _coast(weight[r], first[r], second[r], constants)


@compiled
def _fade(first: Array, second: Array, steps: int, constants: Array) -> None:
    """Let the moments of a row fade by so many steps without a gradient."""
    _, beta1, _, beta2, _, _, _, _ = constants
    first *= first.dtype.type(beta1**steps)
    second *= second.dtype.type(beta2**steps)


@compiled
def _move(weight: Array, first: Array, second: Array, g: Array, constants: Array) -> None:
    """One step with a row of weights, given its gradient."""
    rate, beta1, rest1, beta2, rest2, eps, correction, faded = constants
    zero = weight.dtype.type(0)
    for j in range(len(weight)):
        m = beta1 * first[j] + rest1 * g[j]
        m = zero if abs(m) <= faded else m  # or it would go on as a denormal number, which is slow
        v = beta2 * second[j] + rest2 * g[j] * g[j]
        first[j], second[j] = m, v
        weight[j] -= rate * m / (math.sqrt(v) * correction + eps)


@compiled
def _coast(weight: Array, first: Array, second: Array, constants: Array) -> bool:
    """One step with a row of weights whose gradient is zero; whether the step was lost in the rounding of each."""
    rate, beta1, _, beta2, _, eps, correction, faded = constants
    zero, lost = weight.dtype.type(0), True
    for j in range(len(weight)):
        m, v, before = beta1 * first[j], beta2 * second[j], weight[j]
        m = zero if abs(m) <= faded else m
        first[j], second[j] = m, v
        weight[j] -= rate * m / (math.sqrt(v) * correction + eps)
        lost &= weight[j] == before
    return lost
