"""The loops between the matrix products, compiled when they are first called.

torch runs each of them as a dozen small operations, and in a step of a few milliseconds these cost as much as the
products do. Numba compiles them once on a machine and keeps the result beside this file, or in the user's cache.
Arrays are C-contiguous, of one floating type; an index is int64. Indices are not checked here: who calls has made sure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """The same function, much faster; sums and products may be taken in another order, and without rounding between."""
    how: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}
    try:
        return cast(Loop, njit(cache=True, **how)(loop))
    except RuntimeError:  # there is no folder to keep it in
        return cast(Loop, njit(**how)(loop))


# -- layers: see networks.py -------------------------------------------------------------------------------------


@compiled
def awake(x: Array) -> Array:
    """The columns [a] of x [B, n] that are not all zero."""
    B, n = x.shape
    silent = np.ones(n, np.bool_)
    for b in range(B):
        for j in range(n):
            silent[j] &= x[b, j] == 0
    return np.flatnonzero(~silent)


@compiled
def relu(h: Array) -> Array:
    """ReLU of h [B, n] in place; the columns [a] that are not all zero after it."""
    (B, n), zero = h.shape, h.dtype.type(0)
    silent = np.ones(n, np.bool_)
    for b in range(B):
        for j in range(n):
            negative = h[b, j] <= 0
            h[b, j] = zero if negative else h[b, j]
            silent[j] &= negative
    return np.flatnonzero(~silent)


@compiled
def columns(h: Array, which: Array) -> Array:
    """h[:, which]."""
    out = np.empty((len(h), len(which)), h.dtype)
    for b in range(len(h)):
        for j in range(len(which)):
            out[b, j] = h[b, which[j]]
    return out


@compiled
def silence(g: Array, h: Array) -> None:
    """The gradient g [B, n] of h = ReLU(…) becomes that of what is in the brackets, in place."""
    zero = g.dtype.type(0)
    for b in range(len(g)):
        for j in range(g.shape[1]):
            g[b, j] = zero if h[b, j] <= 0 else g[b, j]


@compiled
def sum_over_rows(g: Array) -> Array:
    """[B, n] → [1, n]."""
    out = np.zeros((1, g.shape[1]), g.dtype)
    for b in range(len(g)):
        for j in range(g.shape[1]):
            out[0, j] += g[b, j]
    return out


@compiled
def rows_not_zero(g: Array) -> Array:
    """The rows [r] of g [R, C] that are not all zero."""
    silent = np.ones(len(g), np.bool_)
    for r in range(len(g)):
        for c in range(g.shape[1]):
            if g[r, c] != 0:
                silent[r] = False
                break
    return np.flatnonzero(~silent)


# -- pairs: see pairs.py -----------------------------------------------------------------------------------------


@compiled
def choose(q_y: Array, u: Array, tau: float) -> tuple[Array, Array, Array, Array]:
    """Rows, components and probabilities [N] of the pairs that u [K·B], uniform, makes a step visit; best [B]."""
    B, K = q_y.shape
    rows, ks, p = np.empty(B * K, np.int64), np.empty(B * K, np.int64), np.empty(B * K, q_y.dtype)
    best = np.empty(B, np.int64)
    top = np.empty(B, np.int64)
    for b in range(B):
        top[b] = np.argmax(q_y[b])
    n = 0
    for k in range(K):
        for b in range(B):
            p[n] = 1 if top[b] == k else min(q_y[b, k] / tau, 1)
            if u[k * B + b] < p[n]:
                if top[b] == k:
                    best[b] = n
                rows[n], ks[n] = b, k
                n += 1
    return rows[:n], ks[:n], p[:n], best


@compiled
def arrange(rows: Array, ks: Array, K: int) -> tuple[Array, Array, Array]:
    """`Groups`: active [A], gather [A·n] and places [N]."""
    counts = np.zeros(K, np.int64)
    for k in ks:
        counts[k] += 1
    n = counts.max()
    active = np.flatnonzero(counts)
    free = np.zeros(K, np.int64)  # component → its next place
    for line in range(len(active)):
        free[active[line]] = line * n
    gather, places = np.zeros(len(active) * n, np.int64), np.empty(len(ks), np.int64)
    for i in range(len(ks)):
        places[i] = free[ks[i]]
        gather[places[i]] = rows[i]
        free[ks[i]] += 1
    return active, gather, places


# -- latents: see ascent.py --------------------------------------------------------------------------------------


@compiled
def variances(raw: Array, floor: float) -> tuple[Array, Array]:
    """softplus of the second half of each row of raw [N, 2Z], above the floor; and its slope."""
    N, Z = len(raw), raw.shape[1] // 2
    var, slope = np.empty((N, Z), raw.dtype), np.empty((N, Z), raw.dtype)
    for i in range(N):
        for d in range(Z):
            r = raw[i, Z + d]
            e = math.exp(min(r, 20))
            var[i, d] = (r if r > 20 else math.log1p(e)) + floor
            slope[i, d] = 1 if r > 20 else e / (1 + e)
    return var, slope


@compiled
def latents(
    q: Array, q_var: Array, p: Array, p_var: Array, ks: Array, noise: Array, rows: Array
) -> tuple[Array, Array]:
    """z [N, Z] = mean + std · ε of the row's noise, and KL(q ‖ p) [N]; q [N, 2Z], p [K, 2Z]."""
    N, Z = q_var.shape
    z, kl = np.empty((N, Z), q.dtype), np.zeros(N, q.dtype)
    for i in range(N):
        k = ks[i]
        for d in range(Z):
            z[i, d] = q[i, d] + math.sqrt(q_var[i, d]) * noise[rows[i], d]
            quotient = (q_var[i, d] + (q[i, d] - p[k, d]) ** 2) / p_var[k, d]
            kl[i] += 0.5 * (math.log(p_var[k, d] / q_var[i, d]) + quotient - 1)
    return z, kl


@compiled
def latents_pull(
    g_z: Array,
    g_kl: Array,
    q: Array,
    q_var: Array,
    q_slope: Array,
    p: Array,
    p_var: Array,
    p_slope: Array,
    ks: Array,
    noise: Array,
    rows: Array,
) -> tuple[Array, Array]:
    """The gradients of q [N, 2Z] and p [K, 2Z], given those of z [N, Z] and KL [N]."""
    N, Z = q_var.shape
    g_q, g_p = np.empty_like(q), np.zeros_like(p)
    for i in range(N):
        k = ks[i]
        for d in range(Z):
            apart = q[i, d] - p[k, d]
            g_mean = g_kl[i] * apart / p_var[k, d]
            g_q[i, d] = g_z[i, d] + g_mean
            g_p[k, d] -= g_mean
            g_var = 0.5 * g_kl[i] * (1 / p_var[k, d] - 1 / q_var[i, d])
            g_var += 0.5 * g_z[i, d] * noise[rows[i], d] / math.sqrt(q_var[i, d])
            g_q[i, Z + d] = g_var * q_slope[i, d]
            quotient = (q_var[i, d] + apart**2) / p_var[k, d]
            g_p[k, Z + d] += 0.5 * g_kl[i] * (1 - quotient) / p_var[k, d] * p_slope[k, d]
    return g_q, g_p
