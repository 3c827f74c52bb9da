"""How the loops of this engine are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Compile a loop at its first call.

    Numba keeps the result beside the file of the loop, or in the user's cache. Sums and products may be taken in
    another order than written, and without rounding in between.
    """
    how: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}
    try:
        return cast(Loop, njit(cache=True, **how)(loop))
    except RuntimeError:  # Numba found no folder to keep the result in
        return cast(Loop, njit(**how)(loop))
