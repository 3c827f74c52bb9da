"""The loops between the matrix products and those over mostly zeros, compiled when they are first called.

torch runs each of the former as a dozen small operations, and in a step of a few milliseconds these cost as much as the
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
ALL = np.full(1, -1, np.int64)  # rows or columns; an empty list has none of them
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
def awake(x: Array) -> tuple[Array, int]:
    """The columns [a] of x [B, n] that are not all zero, and how many numbers in them are not."""
    B, n = x.shape
    counts = np.zeros(n, np.int64)
    for b in range(B):
        for j in range(n):
            counts[j] += x[b, j] != 0
    return np.flatnonzero(counts), counts.sum()


@compiled
def relu(h: Array) -> tuple[Array, int]:
    """ReLU of h [B, n] in place; after it, what `awake` tells."""
    (B, n), zero = h.shape, h.dtype.type(0)
    counts = np.zeros(n, np.int64)
    for b in range(B):
        for j in range(n):
            negative = h[b, j] <= 0
            h[b, j] = zero if negative else h[b, j]
            counts[j] += not negative
    return np.flatnonzero(counts), counts.sum()


@compiled
def part(w: Array, rows: Array, columns: Array) -> Array:
    """w[rows][:, columns]; the rows may be `ALL`."""
    every = is_all(rows)
    out = np.empty((len(w) if every else len(rows), len(columns)), w.dtype)
    for i in range(len(out)):
        line = w[i if every else rows[i]]
        for j in range(len(columns)):
            out[i, j] = line[columns[j]]
    return out


@compiled
def is_all(which: Array) -> bool:
    """Whether that is `ALL`."""
    return len(which) == 1 and which[0] < 0


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


# -- products with mostly zeros: see networks.py -------------------------------------------------------------------


@compiled
def layer(h: Array, rows: Array, weight: Array, bias: Array) -> Array:
    """h W[rows] + b [B, n] of h [B, a]: what is zero in h is passed over."""
    B, n = len(h), weight.shape[1]
    out = np.empty((B, n), h.dtype)
    which, values, counts = not_zero(h, rows)
    for first in range(0, n, 512):  # columns whose weights the processor's cache can hold
        end = min(first + 512, n)
        for b in range(B):
            out[b, first:end] = bias[first:end]
            add_rows(out[b, first:end], weight, first, which[b], values[b], counts[b])
    return out


@compiled
def weight_pull(h: Array, g: Array) -> Array:
    """hᵀ g [a, o] of h [B, a] and g [B, o]: what is zero in h is passed over."""
    out = np.zeros((h.shape[1], g.shape[1]), g.dtype)
    which, values, counts = not_zero(np.ascontiguousarray(h.T), ALL)
    for i in range(len(out)):
        add_rows(out[i], g, 0, which[i], values[i], counts[i])
    return out


@compiled
def not_zero(h: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Of each line of h [B, a]: the `rows` [B, a + 4] that what is not zero stands for, the values, and how many.

    After them come three zeros, as if of the first row: they are taken by fours.
    """
    (B, a), every = h.shape, is_all(rows)
    which, values, counts = np.zeros((B, a + 4), np.int64), np.zeros((B, a + 4), h.dtype), np.empty(B, np.int64)
    for b in range(B):
        n = 0
        for i in range(a):  # without a branch: a zero is overwritten by the next number
            which[b, n], values[b, n] = i if every else rows[i], h[b, i]
            n += h[b, i] != 0
        counts[b], which[b, n : n + 3] = n, which[b, 0]
    return which, values, counts


@compiled
def add_rows(out: Array, w: Array, first: int, which: Array, values: Array, n: int) -> None:
    """out [m] += Σᵢ values[i] w[which[i], first : first + m] over the first n, and the zeros after them."""
    end = first + len(out)
    for i in range(0, n, 4):  # four at once: `out` is read and written less often
        w0, w1 = w[which[i], first:end], w[which[i + 1], first:end]
        w2, w3 = w[which[i + 2], first:end], w[which[i + 3], first:end]
        v0, v1, v2, v3 = values[i], values[i + 1], values[i + 2], values[i + 3]
        for j in range(len(out)):
            out[j] += v0 * w0[j] + v1 * w1[j] + v2 * w2[j] + v3 * w3[j]


@compiled
def input_pull(g: Array, weight: Array, rows: Array, h: Array) -> Array:
    """g W[rows]ᵀ [B, a] of g [B, o] where h [B, a], a ReLU, is not zero; zero elsewhere."""
    (B, a), o, every, zero = h.shape, g.shape[1], is_all(rows), g.dtype.type(0)
    out = np.zeros((B, a), g.dtype)
    which = np.empty(64 + 4, np.int64)
    for first in range(0, a, 64):  # rows of W that the processor's cache can hold
        for b in range(B):
            n = 0
            for i in range(first, min(first + 64, a)):
                which[n] = i
                n += h[b, i] != 0
            which[n : n + 3] = which[0]
            for i in range(0, n, 4):  # four at once: g is read less often
                i0, i1, i2, i3 = which[i], which[i + 1], which[i + 2], which[i + 3]
                w0, w1 = weight[i0 if every else rows[i0]], weight[i1 if every else rows[i1]]
                w2, w3 = weight[i2 if every else rows[i2]], weight[i3 if every else rows[i3]]
                s0 = s1 = s2 = s3 = zero
                for j in range(o):
                    s0 += g[b, j] * w0[j]
                    s1 += g[b, j] * w1[j]
                    s2 += g[b, j] * w2[j]
                    s3 += g[b, j] * w3[j]
                out[b, i0], out[b, i1], out[b, i2], out[b, i3] = s0, s1, s2, s3
    return out


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


@compiled
def estimate(f: Array, weights: Array, rows: Array, best: Array, B: int) -> Array:
    """Σₖ q f for each row [B], as `Pairs.sum_rows` has it; without `best`, all pairs of a row are here."""
    out = np.zeros(B, f.dtype)
    for b in range(len(best)):
        out[b] = f[best[b]]
    for i in range(len(f)):
        out[rows[i]] += weights[i] * (f[i] - f[best[rows[i]]] if len(best) else f[i])
    return out


@compiled
def posterior_pull(q_y: Array, surprise: Array, f: Array, weights: Array, rows: Array, ks: Array, best: Array) -> Array:
    """The gradient of −Σ L / B by the logits of q(y|x) [B, K].

    d/dq of −L is log q + log K + 1 − f/p, f for the pairs that were visited: log p(x|z) − KL, or its surplus over that
    of `best`. The softmax cancels the 1, and whatever else is the same for all components of a sample.
    """
    B, K = q_y.shape
    g = q_y * surprise
    for i in range(len(f)):
        g[rows[i], ks[i]] -= weights[i] * (f[i] - f[best[rows[i]]] if len(best) else f[i])
    for b in range(B):
        total = g[b].sum()
        for k in range(K):
            g[b, k] = (g[b, k] - q_y[b, k] * total) / B
    return g


# -- latents: see ascent.py --------------------------------------------------------------------------------------


@compiled
def heads(h: Array, rows: Array, ks: Array, weight: Array, bias: Array) -> Array:
    """W_k h + b_k [N, 2Z] of the pairs (row of h [B, H], k): what is zero in h is passed over."""
    out = np.empty((len(ks), bias.shape[1]), h.dtype)
    which, values, counts = not_zero(h, ALL)
    for i in range(len(ks)):
        b, k = rows[i], ks[i]
        out[i] = bias[k]
        add_rows(out[i], weight[k], 0, which[b], values[b], counts[b])
    return out


@compiled
def heads_pull(g: Array, h: Array, rows: Array, ks: Array, weight: Array, g_h: Array) -> tuple[Array, Array, Array]:
    """The components [A] that occur and the gradients of their W [A, H · 2Z] and b [A, 2Z], given g [N, 2Z].

    That of h is added to g_h [B, H] where h, a ReLU, is not zero. The components ascend.
    """
    H, m = h.shape[1], g.shape[1]
    active = distinct(ks)
    g_weight, g_bias = np.zeros((len(active) * H, m), g.dtype), np.zeros((len(active), m), g.dtype)
    which, values, counts = not_zero(h, ALL)
    a = 0
    for i in range(len(ks)):
        b, k, g_i = rows[i], ks[i], g[i]
        a += k != active[a]
        for j in range(m):
            g_bias[a, j] += g_i[j]
        for c in range(counts[b]):
            value, unit = values[b, c], which[b, c]
            of_weight, w = g_weight[a * H + unit], weight[k, unit]
            total = g.dtype.type(0)
            for j in range(m):
                of_weight[j] += value * g_i[j]
                total += w[j] * g_i[j]
            g_h[b, unit] += total
    return active, g_weight.reshape(len(active), H * m), g_bias


@compiled
def distinct(ks: Array) -> Array:
    """Each of ks [N], which ascend, once: [A]."""
    first = np.ones(len(ks), np.bool_)
    first[1:] = ks[1:] != ks[:-1]
    return ks[first]


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
