"""Compiled loops for the layers of a network: ReLU, gathering, and products with matrices that are mostly zeros.

torch runs each of them as several small operations, and in a step of a few milliseconds these cost as much as the
matrix products do. Arrays are C-contiguous and of one floating type; an index is int64. The loops do not check
indices: their callers make sure that all are in range.
"""

from __future__ import annotations

import numpy as np

from curlicue.engines.cpu.compiled import Array, compiled


@compiled
def find_active(x: Array) -> tuple[Array, int]:
    """The columns [a] of x [B, n] that hold any nonzero value, and the number of nonzero values."""
    B, n = x.shape
    counts = np.zeros(n, np.int64)
    for b in range(B):
        for j in range(n):
            counts[j] += x[b, j] != 0
    return np.flatnonzero(counts), counts.sum()


@compiled
def relu(h: Array) -> tuple[Array, int]:
    """Apply ReLU to h [B, n] in place; returns what `find_active` returns for the result."""
    (B, n), zero = h.shape, h.dtype.type(0)
    counts = np.zeros(n, np.int64)
    for b in range(B):
        for j in range(n):
            negative = h[b, j] <= 0
            h[b, j] = zero if negative else h[b, j]
            counts[j] += not negative
    return np.flatnonzero(counts), counts.sum()


@compiled
def mask_gradient(g: Array, h: Array) -> None:
    """Set the gradient g [B, n] to zero in place wherever the ReLU's output h [B, n] is zero."""
    zero = g.dtype.type(0)
    for b in range(len(g)):
        for j in range(g.shape[1]):
            g[b, j] = zero if h[b, j] <= 0 else g[b, j]


@compiled
def gather(w: Array, rows: Array, columns: Array) -> Array:
    """Copy the submatrix of w in the given rows and columns: w[rows][:, columns]."""
    out = np.empty((len(rows), len(columns)), w.dtype)
    for i in range(len(rows)):
        line = w[rows[i]]
        for j in range(len(columns)):
            out[i, j] = line[columns[j]]
    return out


@compiled
def sum_rows(g: Array) -> Array:
    """The sum of all rows of g: [B, n] → [1, n]."""
    out = np.zeros((1, g.shape[1]), g.dtype)
    for b in range(len(g)):
        for j in range(g.shape[1]):
            out[0, j] += g[b, j]
    return out


@compiled
def sparse_layer(h: Array, rows: Array, weight: Array, bias: Array) -> Array:
    """The layer h W[rows] + b [B, n] for h [B, a] that is mostly zeros: products with a zero are skipped."""
    B, n = len(h), weight.shape[1]
    out = np.empty((B, n), h.dtype)
    which, values, counts = nonzeros(h, rows)
    for first in range(0, n, 512):  # columns whose weights fit the processor's cache
        end = min(first + 512, n)
        for b in range(B):
            out[b, first:end] = bias[first:end]
            add_rows(out[b, first:end], weight, first, which[b], values[b], counts[b])
    return out


@compiled
def weight_backward(h: Array, g: Array) -> Array:
    """The weight's gradient hᵀ g [a, o] for h [B, a] that is mostly zeros and g [B, o]."""
    out = np.zeros((h.shape[1], g.shape[1]), g.dtype)
    which, values, counts = nonzeros(np.ascontiguousarray(h.T), np.arange(len(h)))
    for i in range(len(out)):
        add_rows(out[i], g, 0, which[i], values[i], counts[i])
    return out


@compiled
def input_backward(g: Array, weight: Array, rows: Array, h: Array) -> Array:
    """The gradient g W[rows]ᵀ [B, a] of a ReLU's output h [B, a] where h is not zero, and zero elsewhere; g [B, o]."""
    (B, a), o, zero = h.shape, g.shape[1], g.dtype.type(0)
    out = np.zeros((B, a), g.dtype)
    which = np.empty(64 + 4, np.int64)
    for first in range(0, a, 64):  # rows of W that fit the processor's cache
        for b in range(B):
            n = 0
            for i in range(first, min(first + 64, a)):
                which[n] = i
                n += h[b, i] != 0
            which[n : n + 3] = which[0]
            for i in range(0, n, 4):  # four at once, so that g is read less often
                i0, i1, i2, i3 = which[i], which[i + 1], which[i + 2], which[i + 3]
                w0, w1, w2, w3 = weight[rows[i0]], weight[rows[i1]], weight[rows[i2]], weight[rows[i3]]
                s0 = s1 = s2 = s3 = zero
                for j in range(o):
                    s0 += g[b, j] * w0[j]
                    s1 += g[b, j] * w1[j]
                    s2 += g[b, j] * w2[j]
                    s3 += g[b, j] * w3[j]
                out[b, i0], out[b, i1], out[b, i2], out[b, i3] = s0, s1, s2, s3
    return out


@compiled
def nonzeros(h: Array, indices: Array) -> tuple[Array, Array, Array]:
    """For each row of h [B, a]: indices [B, a + 4] and values [B, a + 4] of its nonzeros, and their count [B].

    The index of a nonzero is the entry of `indices` [a] for its column. Three zeros follow the nonzeros of a row, each
    with the index of the row's first nonzero, so that `add_rows` can take four at a time.
    """
    B, a = h.shape
    which, values, counts = np.zeros((B, a + 4), np.int64), np.zeros((B, a + 4), h.dtype), np.empty(B, np.int64)
    for b in range(B):
        n = 0
        for i in range(a):  # without a branch: the next value overwrites a zero
            which[b, n], values[b, n] = indices[i], h[b, i]
            n += h[b, i] != 0
        counts[b], which[b, n : n + 3] = n, which[b, 0]
    return which, values, counts


@compiled
def add_rows(out: Array, w: Array, first: int, which: Array, values: Array, n: int) -> None:
    """Add Σᵢ values[i] w[which[i], first : first + m] over the first n indices to out [m]; see `nonzeros`."""
    end = first + len(out)
    for i in range(0, n, 4):  # four at once, so that `out` is read and written less often
        w0, w1 = w[which[i], first:end], w[which[i + 1], first:end]
        w2, w3 = w[which[i + 2], first:end], w[which[i + 3], first:end]
        v0, v1, v2, v3 = values[i], values[i + 1], values[i + 2], values[i + 3]
        for j in range(len(out)):
            out[j] += v0 * w0[j] + v1 * w1[j] + v2 * w2[j] + v3 * w3[j]
