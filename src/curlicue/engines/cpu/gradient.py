"""The gradient of a parameter that is zero outside of some rows and columns."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from curlicue.engines.cpu.compiled import Array


class Gradient(NamedTuple):
    """The `values` in the given rows and columns of a parameter seen as a matrix; all others are zero.

    Rows and columns ascend, each at most once: as many as the matrix has are all of them.
    """

    name: str  # of the parameter
    values: Array  # [r, c]
    rows: Array  # [r] int64
    columns: Array  # [c] int64


def whole(name: str, values: Array) -> Gradient:
    """The gradient [R, C] of a parameter with all its rows and columns."""
    return Gradient(name, values, every(values.shape[0]), every(values.shape[1]))


@lru_cache(256)
def every(n: int) -> Array:
    """The indices 0 … n − 1 [n]: one array for all who ask, not to be written to."""
    return np.arange(n)


def matrix_shape(parameter: Tensor) -> tuple[int, int]:
    """A parameter as a matrix [R, C]: the first axis is the rows; a vector is one row."""
    R = len(parameter) if parameter.ndim > 1 else 1
    return R, parameter.numel() // max(R, 1)
