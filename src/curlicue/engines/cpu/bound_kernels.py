"""Compiled loops for the mixture: pairs of a row and a component, the heads of q(z|x,y), z, and the cost of z.

Arrays are C-contiguous and of one floating type; an index is int64. The loops do not check indices: their callers make
sure that all are in range.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from curlicue.engines.cpu.compiled import Array, compiled
from curlicue.engines.cpu.layer_kernels import add_rows, nonzeros


class Gaussians(NamedTuple):
    """Diagonal Gaussians as their head gives them, and their variances."""

    raw: Array  # [N, 2Z]; first half: the mean
    var: Array  # [N, Z], softplus of the second half of `raw`, plus a floor
    slope: Array  # [N, Z], the derivative of that softplus


# -- pairs -------------------------------------------------------------------------------------------------------


@compiled
def choose(q_y: Array, u: Array, tau: float) -> tuple[Array, Array, Array, Array]:
    """The pairs that the sparse bound visits, as `model.pairs.choose` chooses them with the uniform draws u [K·B].

    Returns the row, the component and the weight q/p of each pair [N], and which pair is that of each row's most
    probable component [B]. `tau` has the type of q_y [B, K].
    """
    B, K = q_y.shape
    rows, ks, weights = np.empty(B * K, np.int64), np.empty(B * K, np.int64), np.empty(B * K, q_y.dtype)
    best, top, one = np.empty(B, np.int64), np.empty(B, np.int64), q_y.dtype.type(1)
    for b in range(B):
        top[b] = np.argmax(q_y[b])
    n = 0
    for k in range(K):
        for b in range(B):
            p = one if top[b] == k else min(q_y[b, k] / tau, one)
            if u[k * B + b] < p:
                if top[b] == k:
                    best[b] = n
                rows[n], ks[n], weights[n] = b, k, q_y[b, k] / p
                n += 1
    return rows[:n], ks[:n], weights[:n], best


@compiled
def sum_pairs(f: Array, weights: Array, rows: Array, baseline: Array) -> Array:
    """For each row of the batch [B]: baseline + Σ weight (f − baseline) over its pairs, given f [N]."""
    out = baseline.copy()
    for i in range(len(f)):
        out[rows[i]] += weights[i] * (f[i] - baseline[rows[i]])
    return out


@compiled
def q_y_backward(
    q_y: Array, surprise: Array, f: Array, weights: Array, rows: Array, ks: Array, baseline: Array
) -> Array:
    """The gradient of −Σ L / B by the logits of q(y|x) [B, K].

    The derivative of −L by q is log q + log K + 1 − (f − baseline)/p, where f is log p(x|z) − KL of the pairs that were
    visited and `surprise` [B, K] is log q + log K. The softmax cancels the 1, and every other addend that all
    components of a sample have in common.
    """
    B, K = q_y.shape
    g = q_y * surprise
    for i in range(len(f)):
        g[rows[i], ks[i]] -= weights[i] * (f[i] - baseline[rows[i]])
    for b in range(B):
        total = g[b].sum()
        for k in range(K):
            g[b, k] = (g[b, k] - q_y[b, k] * total) / B
    return g


# -- the heads of q(z|x,y) ---------------------------------------------------------------------------------------


@compiled
def heads(h: Array, rows: Array, ks: Array, weight: Array, bias: Array) -> Array:
    """The output W_k h + b_k [N, 2Z] of each pair (row of h [B, H], k); products with a zero in h are skipped."""
    out = np.empty((len(ks), bias.shape[1]), h.dtype)
    which, values, counts = nonzeros(h, np.arange(h.shape[1]))
    for i in range(len(ks)):
        b, k = rows[i], ks[i]
        out[i] = bias[k]
        add_rows(out[i], weight[k], 0, which[b], values[b], counts[b])
    return out


@compiled
def heads_backward(g: Array, h: Array, rows: Array, ks: Array, weight: Array, g_h: Array) -> tuple[Array, Array, Array]:
    """The components [A] that occur and the gradients of their W [A, H · 2Z] and b [A, 2Z], given g [N, 2Z].

    The components ascend. The gradient of h is added to g_h [B, H] wherever h, the output of a ReLU, is not zero.
    """
    H, m = h.shape[1], g.shape[1]
    active = distinct(ks)
    g_weight, g_bias = np.zeros((len(active) * H, m), g.dtype), np.zeros((len(active), m), g.dtype)
    which, values, counts = nonzeros(h, np.arange(H))
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
    """Each value of ks [N] once [A]; ks ascends."""
    first = np.ones(len(ks), np.bool_)
    first[1:] = ks[1:] != ks[:-1]
    return ks[first]


# -- z and its cost ----------------------------------------------------------------------------------------------


@compiled
def softplus(raw: Array, floor: float) -> tuple[Array, Array]:
    """Softplus of the second half of each row of raw [N, 2Z], plus the floor; and its derivative. Both [N, Z]."""
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
def latents(q: Gaussians, p: Gaussians, ks: Array, noise: Array, rows: Array) -> tuple[Array, Array]:
    """z = mean + std · ε [N, Z] and KL(q ‖ p) [N] of each pair: N Gaussians q, K Gaussians p, ε [B, Z]."""
    N, Z = q.var.shape
    z, kl = np.empty((N, Z), q.raw.dtype), np.zeros(N, q.raw.dtype)
    for i in range(N):
        k = ks[i]
        for d in range(Z):
            z[i, d] = q.raw[i, d] + math.sqrt(q.var[i, d]) * noise[rows[i], d]
            quotient = (q.var[i, d] + (q.raw[i, d] - p.raw[k, d]) ** 2) / p.var[k, d]
            kl[i] += 0.5 * (math.log(p.var[k, d] / q.var[i, d]) + quotient - 1)
    return z, kl


@compiled
def latents_backward(
    g_z: Array, g_kl: Array, q: Gaussians, p: Gaussians, ks: Array, noise: Array, rows: Array
) -> tuple[Array, Array]:
    """The gradients of the raw q [N, 2Z] and p [K, 2Z], given those of z [N, Z] and of the KL [N]."""
    N, Z = q.var.shape
    g_q, g_p = np.empty_like(q.raw), np.zeros_like(p.raw)
    for i in range(N):
        k = ks[i]
        for d in range(Z):
            difference = q.raw[i, d] - p.raw[k, d]
            g_mean = g_kl[i] * difference / p.var[k, d]
            g_q[i, d] = g_z[i, d] + g_mean
            g_p[k, d] -= g_mean
            g_var = 0.5 * g_kl[i] * (1 / p.var[k, d] - 1 / q.var[i, d])
            g_var += 0.5 * g_z[i, d] * noise[rows[i], d] / math.sqrt(q.var[i, d])
            g_q[i, Z + d] = g_var * q.slope[i, d]
            quotient = (q.var[i, d] + difference**2) / p.var[k, d]
            g_p[k, Z + d] += 0.5 * g_kl[i] * (1 - quotient) / p.var[k, d] * p.slope[k, d]
    return g_q, g_p
