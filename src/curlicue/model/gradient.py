"""The gradient of a parameter of which only some rows and columns have one."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from curlicue.model import kernels


@dataclass(frozen=True)
class Gradient:
    """`values` in the given rows and columns of a matrix (None: all), zeros elsewhere."""

    values: Tensor  # [r, c]
    rows: Tensor | None = None  # [r]
    columns: Tensor | None = None  # [c]

    @classmethod
    def of(cls, whole: Tensor) -> Gradient:
        """That of a parameter, without the rows that are zero."""
        values = whole.contiguous().view(matrix_shape(whole))
        rows = torch.from_numpy(kernels.rows_not_zero(values.numpy()))
        return cls(values) if len(rows) == len(values) else cls(values.index_select(0, rows), rows)

    def dense(self, parameter: Tensor) -> Tensor:
        """All of it, in the shape of its parameter."""
        R, C = matrix_shape(parameter)
        rows = torch.arange(R) if self.rows is None else self.rows
        columns = torch.arange(C) if self.columns is None else self.columns
        whole = self.values.new_zeros(R * C)
        whole[(rows[:, None] * C + columns).view(-1)] = self.values.reshape(-1)
        return whole.view(parameter.shape)


Slope = tuple[str, Gradient]
"""A parameter's name, and its gradient."""

T = TypeVar("T")


def exhausted(slopes: Generator[Slope, None, T]) -> tuple[dict[str, Gradient], T]:
    """All that it yields, and what it returns."""
    found: dict[str, Gradient] = {}
    while True:
        try:
            name, gradient = next(slopes)
        except StopIteration as end:
            return found, end.value
        found[name] = gradient


def matrix_shape(parameter: Tensor) -> tuple[int, int]:
    """A parameter as a matrix [R, C]: its first axis is the rows; a vector is one row."""
    R = len(parameter) if parameter.ndim > 1 else 1
    return R, parameter.numel() // max(R, 1)
