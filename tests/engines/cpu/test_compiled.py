import copy
from typing import Any

import numba
import numpy as np
import pytest

from curlicue.engines.cpu import adam, bound_kernels, compiled, layer_kernels
from loops import FLOOR, HEADS, N, Z, heads, latents, layer, mostly_zeros, posteriors, raw, rng

MODULES = layer_kernels, bound_kernels, adam


# -- as Python -----------------------------------------------------------------------------------------------------


def adams(rows: list[int], columns: list[int]) -> tuple[np.ndarray, ...]:
    """Row 1 rests and row 2 is about to."""
    weight, first, second = rng().normal(size=(3, 4, 5)).astype(np.float32)
    first[2] = 1e-9
    g = rng().normal(size=(len(rows), len(columns))).astype(np.float32)
    constants = np.array((0.1, 0.9, 0.1, 0.999, 0.001, 1e-8, 1.5, 1e-8), np.float32)
    skipped, resting = np.array([0, 7, 0, 0]), np.array([False, True, False, False])
    which = np.array(rows, np.int64), np.array(columns, np.int64)
    return weight, first, abs(second), skipped, resting, g, *which, constants


def calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Every loop, with something to do."""
    return {name: call for part in (of_layers(), of_the_bound(), of_adam()) for name, call in part.items()}


def of_layers() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    h, g = layer([1, 4]), rng().normal(size=(5, 7)).astype(np.float32)
    few, weight, rows = mostly_zeros(5, 7, 0.4), rng().normal(size=(7, 6)), np.arange(7)
    return {
        "find_active": (layer_kernels.find_active, (np.maximum(h, 0),)),
        "relu": (layer_kernels.relu, (h,)),
        "mask_gradient": (layer_kernels.mask_gradient, (g, h)),
        "gather": (layer_kernels.gather, (h, np.array([1, 3]), np.array([0, 5]))),
        "sum_rows": (layer_kernels.sum_rows, (g,)),
        "sparse_layer": (layer_kernels.sparse_layer, (few, rows, weight, weight[0])),
        "weight_backward": (layer_kernels.weight_backward, (few, weight[:5])),
        "input_backward": (layer_kernels.input_backward, (weight[:5], weight, rows, few)),
        "nonzeros": (layer_kernels.nonzeros, (few, np.arange(3, 10))),
        "add_rows": (layer_kernels.add_rows, (np.ones(3), weight, 2, np.array([1, 4, 0, 0, 0]), weight[0], 2)),
    }


def of_the_bound() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    q_y, u = posteriors()
    rows, ks, weights, best = bound_kernels.choose(q_y, u, np.float32(0.3))
    f = rng().normal(size=len(ks)).astype(np.float32)
    heads_given = [heads()[name] for name in ("h", "rows", "ks", "weight")]
    pairs = f, weights, rows, ks, f[best]
    g_z, g_kl = rng().normal(size=(N, Z)), rng().normal(size=N)
    return {
        "choose": (bound_kernels.choose, (q_y, u, np.float32(0.3))),
        "sum_pairs": (bound_kernels.sum_pairs, (f, weights, rows, f[best])),
        "q_y_backward": (bound_kernels.q_y_backward, (q_y, np.log(q_y), *pairs)),
        "heads": (bound_kernels.heads, tuple(heads().values())),
        "heads_backward": (bound_kernels.heads_backward, (rng().normal(size=(6, 6)), *heads_given, np.ones((4, 7)))),
        "distinct": (bound_kernels.distinct, (HEADS[1],)),
        "softplus": (bound_kernels.softplus, (raw(N), FLOOR)),
        "latents": (bound_kernels.latents, tuple(latents().values())),
        "latents_backward": (bound_kernels.latents_backward, (g_z, g_kl, *latents().values())),
    }


def of_adam() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    row, zero = np.full(5, 2.0, np.float32), np.zeros(5, np.float32)
    constants = adams([], [])[-1]
    return {
        "a whole step": (adam._step, adams([0, 1, 2, 3], [0, 1, 2, 3, 4])),
        "a step on some rows": (adam._step, adams([0, 1], [0, 1, 2, 3, 4])),
        "a step on some columns": (adam._step, adams([0, 1, 2, 3], [1, 4])),
        "a step on some of both": (adam._step, adams([1, 3], [0, 2, 3])),
        "a step on no row": (adam._step, adams([], [0, 1, 2, 3, 4])),
        "a step on no column": (adam._step, adams([0, 3], [])),
        "fade": (adam._fade, (row, row.copy(), 5, constants)),
        "move": (adam._move, (row, zero, zero.copy(), row.copy(), constants)),
        "coast": (adam._coast, (row, row.copy(), row.copy(), constants)),
        "coast without a move": (adam._coast, (row, zero, row.copy(), constants)),
    }


def done(function: Any, arguments: tuple[Any, ...]) -> list[np.ndarray]:
    """What it gives, and what it makes of its arguments."""
    arguments = copy.deepcopy(arguments)
    result = function(*arguments)
    given = () if result is None else result if isinstance(result, tuple) else (result,)
    flat = [part for each in (*given, *arguments) for part in (each if isinstance(each, tuple) else (each,))]
    return [np.asarray(each) for each in flat]


@pytest.mark.parametrize("name", calls())
def test_compiled_a_loop_does_what_it_says_in_python(name):
    loop, arguments = calls()[name]
    for fast, plain in zip(done(loop, arguments), done(loop.py_func, arguments), strict=True):
        assert fast.dtype == plain.dtype
        np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=1e-7)


def test_every_loop_is_called_here():
    loops = {name for module in MODULES for name, each in vars(module).items() if hasattr(each, "py_func")}
    assert {loop.__name__ for loop, _ in calls().values()} == loops


# -- compiling -----------------------------------------------------------------------------------------------------


def third(x: float) -> float:
    """Of x."""
    return x / 3


def test_without_a_folder_to_keep_them_in_loops_are_compiled_all_the_same(monkeypatch):
    asked = []

    def njit(*, cache: bool = False, **how: object) -> Any:
        asked.append((cache, how))
        if cache:
            raise RuntimeError("cannot cache function 'third': no locator available for file 'layer_kernels.py'")
        return numba.njit(**how)

    monkeypatch.setattr(compiled, "njit", njit)
    loop = compiled.compiled(third)
    assert loop(1.0) == third(1.0)
    assert loop.signatures  # by the machine, not by Python
    (first, how), (second, same) = asked
    assert (first, second) == (True, False)
    assert how == same


def test_loops_are_kept_from_one_process_to_the_next_where_there_is_a_folder():
    layer_kernels.find_active(np.zeros((1, 1), np.float32))
    stats = layer_kernels.find_active.stats
    assert stats.cache_path
    assert sum(stats.cache_hits.values()) + sum(stats.cache_misses.values()) > 0
