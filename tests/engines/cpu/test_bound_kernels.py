import numpy as np
import pytest
from scipy.special import expit

from curlicue.engines.cpu import bound_kernels as kernels
from loops import FLOOR, HEADS, NAN, B, K, N, Z, gaussians, heads, indices, latents, posteriors, rng

floats = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# -- pairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.01, 0.3, 2.0])
def test_a_pair_is_chosen_if_its_draw_is_below_its_probability(tau):
    q_y, u = posteriors()
    B, K = q_y.shape
    p = np.minimum(q_y / np.float32(tau), 1)
    p[np.arange(B), q_y.argmax(1)] = 1
    pairs = [(b, k) for k in range(K) for b in range(B) if u[k * B + b] < p[b, k]]
    rows, ks, weights, best = kernels.choose(q_y, u, np.float32(tau))
    assert list(zip(rows.tolist(), ks.tolist(), strict=True)) == pairs
    np.testing.assert_allclose(weights, [q_y[pair] / p[pair] for pair in pairs], rtol=1e-6)
    assert weights.dtype == np.float32
    assert best.tolist() == [pairs.index((b, q_y[b].argmax())) for b in range(B)]
    assert len(pairs) < B * K or tau < 0.1


def test_of_components_just_as_probable_the_first_is_the_best():
    rows, ks, _, best = kernels.choose(np.full((2, 4), 0.25, np.float32), np.full(8, 0.99, np.float32), np.float32(0.9))
    assert (rows.tolist(), ks.tolist(), best.tolist()) == ([0, 1], [0, 0], [0, 1])


def test_a_sample_whose_posterior_is_no_number_is_visited_once():
    q_y = np.array([[0.5, 0.5], [NAN, NAN]], np.float32)
    rows, ks, weights, best = kernels.choose(q_y, np.zeros(4, np.float32), np.float32(0.1))
    assert list(zip(rows.tolist(), ks.tolist(), strict=True)) == [(0, 0), (1, 0), (0, 1)]
    np.testing.assert_array_equal(weights, np.array([0.5, NAN, 0.5], np.float32))
    assert best.tolist() == [0, 1]


def test_the_sum_over_pairs_is_measured_against_the_baseline_of_each_row():
    f, weights, rows = np.array([3.0, 5.0, 7.0]), np.array([0.5, 0.25, 2.0]), indices([1, 0, 1])
    assert kernels.sum_pairs(f, weights, rows, np.array([4.0, 1.0, 9.0])).tolist() == [4.25, 14.0, 9.0]


def test_the_gradient_of_the_logits_is_that_of_finite_differences():
    """Of −Σ L / B where every pair is visited, weighed by q(y|x)."""
    B, K, eps = 5, 4, 1e-6
    logits, f = rng().normal(size=(B, K)), rng(1).normal(size=B * K)
    rows, ks = np.tile(np.arange(B), K), np.repeat(np.arange(K), B)

    def q(at: np.ndarray) -> np.ndarray:
        return np.exp(at) / np.exp(at).sum(1, keepdims=True)

    def loss(at: np.ndarray) -> float:
        return -(q(at)[rows, ks] * f).sum() / B + (q(at) * np.log(K * q(at))).sum() / B

    q_y = q(logits)
    g = kernels.q_y_backward(q_y, np.log(K * q_y), f, q_y[rows, ks], rows, ks, np.zeros(B))
    for place in np.ndindex(B, K):
        step = np.zeros((B, K))
        step[place] = eps
        assert g[place] == pytest.approx((loss(logits + step) - loss(logits - step)) / (2 * eps), rel=1e-5, abs=1e-8)


# -- the heads of q(z|x,y) -----------------------------------------------------------------------------------------


def test_every_pair_has_the_head_of_its_component():
    given = heads()
    expected = [given["h"][b] @ given["weight"][k] + given["bias"][k] for b, k in zip(*HEADS, strict=True)]
    np.testing.assert_allclose(kernels.heads(**given), expected, atol=1e-12)


def test_the_gradients_of_heads_are_sums_over_their_pairs():
    given, g, g_h = heads(), rng().normal(size=(6, 6)), np.full((4, 7), 2.0)
    h, weight = given["h"], given["weight"]
    of_weight, of_bias, of_h = np.zeros_like(weight), np.zeros((5, 6)), np.zeros_like(h)
    for b, k, g_i in zip(*HEADS, g, strict=True):
        of_weight[k] += np.outer(h[b], g_i)
        of_bias[k] += g_i
        of_h[b] += weight[k] @ g_i
    active, g_weight, g_bias = kernels.heads_backward(g, h, *HEADS, weight, g_h)
    assert active.tolist() == [0, 2, 4]
    np.testing.assert_allclose(g_weight, of_weight[active].reshape(3, -1), atol=1e-12)
    np.testing.assert_allclose(g_bias, of_bias[active], atol=1e-12)
    np.testing.assert_allclose(g_h, 2 + np.where(h > 0, of_h, 0), atol=1e-12)


@pytest.mark.parametrize("ks", [[], [3], [0, 0, 0], [0, 1, 1, 4]])
def test_components_that_occur_are_told_once(ks):
    assert kernels.distinct(indices(ks)).tolist() == sorted(set(ks))


# -- z and its cost ------------------------------------------------------------------------------------------------


@floats
def test_variances_are_softplus_above_the_floor_with_its_slope(dtype):
    r = np.array([-200.0, -30, -3, 0, 2, 19.9, 20.1, 500]).astype(dtype)
    var, slope = kernels.softplus(np.stack([NAN * r, r], 1), FLOOR)  # the means have no part in it
    assert var.dtype == slope.dtype == dtype
    np.testing.assert_allclose(var[:, 0], np.logaddexp(0, r.astype(np.float64)) + FLOOR, rtol=1e-6)
    np.testing.assert_allclose(slope[:, 0], expit(r.astype(np.float64)), rtol=1e-6, atol=1e-30)


def test_the_variance_of_no_number_is_none():
    var, slope = kernels.softplus(np.array([[0, NAN]], np.float32), FLOOR)
    assert np.isnan(var).all()
    assert np.isnan(slope).all()


def test_z_is_mean_and_noise_of_its_row_and_kl_that_of_two_gaussians():
    given = latents()
    q, p, ks = given["q"], given["p"], given["ks"]
    z, kl = kernels.latents(**given)
    mean, p_mean, p_var = q.raw[:, :Z], p.raw[ks, :Z], p.var[ks]
    np.testing.assert_allclose(z, mean + np.sqrt(q.var) * given["noise"][given["rows"]], rtol=1e-12)
    expected = 0.5 * (np.log(p_var) - np.log(q.var) + (q.var + (mean - p_mean) ** 2) / p_var - 1)
    np.testing.assert_allclose(kl, expected.sum(1), rtol=1e-12)


def value(q: np.ndarray, p: np.ndarray, g_z: np.ndarray, g_kl: np.ndarray) -> float:
    """Σ g_z · z + Σ g_kl · KL."""
    z, kl = kernels.latents(**latents() | {"q": gaussians(q), "p": gaussians(p)})
    return float((g_z * z).sum() + (g_kl * kl).sum())


def test_the_gradients_of_latents_are_those_of_finite_differences():
    g_z, g_kl, eps, at = rng().normal(size=(N, Z)), rng().normal(size=N), 1e-6, latents()
    for name, g in zip(("q", "p"), kernels.latents_backward(g_z, g_kl, **at), strict=True):
        for place in np.ndindex(g.shape):
            sides = []
            for step in (eps, -eps):
                moved = {"q": at["q"].raw.copy(), "p": at["p"].raw.copy()}
                moved[name][place] += step
                sides.append(value(**moved, g_z=g_z, g_kl=g_kl))
            assert g[place] == pytest.approx((sides[0] - sides[1]) / (2 * eps), rel=1e-5, abs=1e-6)


def test_a_component_that_nobody_visits_has_no_gradient():
    _, g_p = kernels.latents_backward(np.ones((N, Z)), np.ones(N), **latents())
    assert not g_p[K - 1].any()
    assert g_p[: K - 1].all()


def test_rows_of_a_batch_share_their_noise_among_components():
    given = latents() | {"rows": np.zeros(N, np.int64), "noise": np.ones((B, Z))}
    z, _ = kernels.latents(**given)
    np.testing.assert_allclose(z, given["q"].raw[:, :Z] + np.sqrt(given["q"].var))
