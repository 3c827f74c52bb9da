"""What the compiled loops of the CPU engine are given, in their tests."""

from typing import Any

import numpy as np

from curlicue.engines.cpu import bound_kernels as kernels

NAN = np.nan
FLOOR = 1e-3
N, Z, K, B = 9, 3, 4, 5
HEADS = np.array([3, 0, 2, 2, 1, 0]), np.array([0, 0, 2, 2, 2, 4])  # rows, components: 1 and 3 have none


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def indices(which: list[int]) -> np.ndarray:
    return np.array(which, np.int64)


def layer(inactive: list[int], dtype: type = np.float32) -> np.ndarray:
    """[5, 7], of both signs, with columns that a ReLU sets to zero."""
    h = rng().normal(size=(5, 7)).astype(dtype)
    h[:, inactive] = -abs(h[:, inactive])
    h[2, inactive] = 0
    return h


def mostly_zeros(B: int, a: int, share: float, dtype: type = np.float64) -> np.ndarray:
    """[B, a], not negative, as after a ReLU; about `share` of it is not zero."""
    h = abs(rng().normal(size=(B, a))).astype(dtype)
    h[rng(1).random((B, a)) >= share] = 0
    return h


def posteriors(B: int = 40, K: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """q(y|x) [B, K], and a uniform draw for each of its entries."""
    q_y = rng().dirichlet(np.full(K, 0.4), B).astype(np.float32)
    return q_y, rng().random(B * K).astype(np.float32)


def raw(rows: int, seed: int = 0) -> np.ndarray:
    return 2 * rng(seed).normal(size=(rows, 2 * Z))


def gaussians(of: np.ndarray) -> kernels.Gaussians:
    return kernels.Gaussians(of, *kernels.softplus(of, FLOOR))


def heads() -> dict[str, np.ndarray]:
    """What `heads` takes, by name: pairs with five components."""
    h, weight, bias = mostly_zeros(4, 7, 0.4), rng().normal(size=(5, 7, 6)), rng().normal(size=(5, 6))
    return {"h": h, "rows": HEADS[0], "ks": HEADS[1], "weight": weight, "bias": bias}


def latents() -> dict[str, Any]:
    """What `latents` takes, by name."""
    ks = np.sort(rng().integers(0, K - 1, N))  # the last component is not visited
    noise, rows = rng().normal(size=(B, Z)), rng().integers(0, B, N)
    return {"q": gaussians(raw(N, 1)), "p": gaussians(raw(K, 2)), "ks": ks, "noise": noise, "rows": rows}
