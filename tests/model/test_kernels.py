import copy
from typing import Any

import numba
import numpy as np
import pytest
from scipy.special import expit

from curlicue.learn import adam
from curlicue.model import kernels

NAN = np.nan


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def layer(silent: list[int], dtype: type = np.float32) -> np.ndarray:
    """[5, 7], of both signs, with columns that ReLU silences."""
    h = rng().normal(size=(5, 7)).astype(dtype)
    h[:, silent] = -abs(h[:, silent])
    h[2, silent] = 0
    return h


some_silent = pytest.mark.parametrize("silent", [[], [2], [0, 3, 6], list(range(7))])
floats = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# -- layers --------------------------------------------------------------------------------------------------------


@floats
@some_silent
def test_a_column_is_awake_if_it_is_not_all_zero(silent, dtype):
    x = abs(layer([], dtype))
    x[1:] = 0  # one sample is enough
    x[:, silent] = 0
    awake, not_zero = kernels.awake(x)
    assert not_zero == np.count_nonzero(x)
    assert awake.tolist() == [j for j in range(7) if j not in silent]
    assert awake.dtype == np.int64


@floats
@some_silent
def test_relu_is_numpys_maximum_in_place_and_tells_who_is_awake(silent, dtype):
    h = layer(silent, dtype)
    expected = np.maximum(h, 0)
    awake, not_zero = kernels.relu(h)
    np.testing.assert_array_equal(h, expected)
    assert h.dtype == dtype
    assert awake.tolist() == np.flatnonzero(expected.any(0)).tolist()
    assert not_zero == np.count_nonzero(expected)


def test_what_is_no_number_is_awake_and_stays_none():
    h = np.array([[-1.0, NAN, -1.0], [-1.0, -1.0, -1.0]], np.float32)
    assert kernels.awake(np.where(h == -1, 0, h))[0].tolist() == [1]
    assert kernels.relu(h)[0].tolist() == [1]
    np.testing.assert_array_equal(h, np.array([[0, NAN, 0], [0, 0, 0]], np.float32))


def indices(which: list[int]) -> np.ndarray:
    return np.array(which, np.int64)


@pytest.mark.parametrize("columns", [[], [3], [0, 2, 6]])
@pytest.mark.parametrize("rows", [[], [4], [1, 2]])
def test_a_part_of_a_matrix_is_numpys(rows, columns):
    h, rows, columns = layer([]), indices(rows), indices(columns)
    np.testing.assert_array_equal(kernels.part(h, rows, columns), h[np.ix_(rows, columns)])
    np.testing.assert_array_equal(kernels.part(h, kernels.ALL, columns), h[:, columns])


def test_all_is_told_from_any_list_of_indices():
    assert kernels.is_all(kernels.ALL)
    assert not any(kernels.is_all(indices(which)) for which in ([], [0], [3], [0, 1]))


def test_a_gradient_is_silenced_where_relu_was_and_only_there():
    h, g = layer([1, 4]), rng().normal(size=(5, 7)).astype(np.float32)
    kernels.relu(h)
    h[0, 0] = NAN  # may be anything: its gradient stays
    expected = np.where((h > 0) | np.isnan(h), g, 0)
    kernels.silence(g, h)
    np.testing.assert_array_equal(g, expected)


def test_a_gradient_that_is_no_number_is_silenced_with_its_unit():
    g = np.full((1, 2), NAN, np.float32)
    kernels.silence(g, np.array([[0, 1]], np.float32))
    np.testing.assert_array_equal(g, np.array([[0, NAN]], np.float32))


@floats
@pytest.mark.parametrize("B", [0, 1, 5])
def test_the_sum_over_rows_is_numpys(B, dtype):
    g = layer([], dtype)[:B]
    total = kernels.sum_over_rows(g)
    np.testing.assert_allclose(total, g.sum(0, keepdims=True), rtol=1e-5)
    assert total.dtype == dtype


@some_silent
def test_rows_are_not_zero_if_anything_in_them_is_not(silent):
    g = np.zeros((7, 3), np.float32)
    g[:, 2] = -1e-30
    g[silent] = 0
    assert kernels.rows_not_zero(g).tolist() == [r for r in range(7) if r not in silent]


def test_a_row_with_a_number_that_is_none_is_not_zero():
    assert kernels.rows_not_zero(np.array([[0, 0], [0, NAN]], np.float32)).tolist() == [1]


# -- products with mostly zeros ------------------------------------------------------------------------------------


def mostly_zeros(B: int, a: int, share: float, dtype: type = np.float64) -> np.ndarray:
    """[B, a], not negative, as after a ReLU; about `share` of it is not zero."""
    h = abs(rng().normal(size=(B, a))).astype(dtype)
    h[np.random.default_rng(1).random((B, a)) >= share] = 0
    return h


shares = pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
SIZES = [(6, 9, 5), (3, 140, 530), (1, 1, 1), (0, 4, 3), (4, 0, 3), (5, 70, 0)]  # some more than a block of a loop


@shares
@pytest.mark.parametrize(("B", "a", "o"), SIZES)
def test_passing_over_zeros_gives_the_products_of_a_layer_and_of_its_gradients(B, a, o, share):
    h, rows = mostly_zeros(B, a, share), np.sort(rng().permutation(2 * a + 1)[:a])
    weight, bias, g = (np.random.default_rng(2).normal(size=shape) for shape in ((2 * a + 1, o), (o,), (B, o)))
    np.testing.assert_allclose(kernels.layer(h, rows, weight, bias), h @ weight[rows] + bias, atol=1e-12)
    np.testing.assert_allclose(kernels.weight_pull(h, g), h.T @ g, atol=1e-12)
    expected = np.where(h > 0, g @ weight[rows].T, 0)
    np.testing.assert_allclose(kernels.input_pull(g, weight, rows, h), expected, atol=1e-12)


def test_all_rows_of_a_weight_may_be_meant():
    h, weight, g = mostly_zeros(6, 9, 0.5), rng().normal(size=(9, 5)), rng().normal(size=(6, 5))
    out = kernels.layer(h, kernels.ALL, weight, np.zeros(5))
    np.testing.assert_allclose(out, h @ weight, atol=1e-12)
    pulled = kernels.input_pull(g, weight, kernels.ALL, h)
    np.testing.assert_allclose(pulled, np.where(h > 0, g @ weight.T, 0), atol=1e-12)


def test_single_numbers_stay_single():
    h, weight = mostly_zeros(6, 9, 0.5, np.float32), rng().normal(size=(9, 5)).astype(np.float32)
    out = kernels.layer(h, kernels.ALL, weight, np.zeros(5, np.float32))
    assert out.dtype == kernels.weight_pull(h, out).dtype == np.float32
    assert kernels.input_pull(out, weight, kernels.ALL, h).dtype == np.float32


def test_what_is_no_number_is_not_passed_over():
    h, weight = mostly_zeros(2, 3, 0.0), np.ones((3, 2))
    h[0, 1] = NAN
    assert np.isnan(kernels.layer(h, kernels.ALL, weight, np.zeros(2))).tolist() == [[True, True], [False, False]]
    assert np.isnan(kernels.weight_pull(h, np.ones((2, 2))))[1].all()


# -- pairs ---------------------------------------------------------------------------------------------------------


def posteriors(B: int = 40, K: int = 6) -> tuple[np.ndarray, np.ndarray]:
    q_y = rng().dirichlet(np.full(K, 0.4), B).astype(np.float32)
    return q_y, rng().random(B * K).astype(np.float32)


@pytest.mark.parametrize("tau", [0.01, 0.3, 2.0])
def test_a_pair_is_chosen_if_its_draw_is_below_its_probability(tau):
    q_y, u = posteriors()
    B, K = q_y.shape
    p = np.minimum(q_y / np.float32(tau), 1)
    p[np.arange(B), q_y.argmax(1)] = 1
    pairs = [(b, k) for k in range(K) for b in range(B) if u[k * B + b] < p[b, k]]
    rows, ks, seen, best = kernels.choose(q_y, u, tau)
    assert list(zip(rows.tolist(), ks.tolist(), strict=True)) == pairs
    np.testing.assert_allclose(seen, [p[pair] for pair in pairs], rtol=1e-6)
    assert best.tolist() == [pairs.index((b, q_y[b].argmax())) for b in range(B)]
    assert len(pairs) < B * K or tau < 0.1


def test_of_components_just_as_probable_the_first_is_the_best():
    rows, ks, _, best = kernels.choose(np.full((2, 4), 0.25, np.float32), np.full(8, 0.99, np.float32), 0.9)
    assert (rows.tolist(), ks.tolist(), best.tolist()) == ([0, 1], [0, 0], [0, 1])


def test_a_sample_whose_posterior_is_no_number_is_visited_once():
    q_y = np.array([[0.5, 0.5], [NAN, NAN]], np.float32)
    rows, ks, p, best = kernels.choose(q_y, np.zeros(4, np.float32), 0.1)
    assert list(zip(rows.tolist(), ks.tolist(), strict=True)) == [(0, 0), (1, 0), (0, 1)]
    assert p.tolist() == [1, 1, 1]
    assert best.tolist() == [0, 1]


def test_pairs_are_laid_out_by_component_in_lines_as_long_as_the_longest():
    ks, rows = np.array([1, 1, 3, 4, 4, 4]), np.array([5, 2, 0, 1, 2, 3])
    active, gather, places = kernels.arrange(rows, ks, 6)
    assert active.tolist() == [1, 3, 4]
    assert gather.reshape(3, 3).tolist() == [[5, 2, 0], [0, 0, 0], [1, 2, 3]]
    assert places.tolist() == [0, 1, 3, 6, 7, 8]


# -- latents -------------------------------------------------------------------------------------------------------

FLOOR = 1e-3
N, Z, K, B = 9, 3, 4, 5


def raw(rows: int, seed: int = 0) -> np.ndarray:
    return 2 * np.random.default_rng(seed).normal(size=(rows, 2 * Z))


@floats
def test_variances_are_softplus_above_the_floor_with_its_slope(dtype):
    r = np.array([-200.0, -30, -3, 0, 2, 19.9, 20.1, 500]).astype(dtype)
    var, slope = kernels.variances(np.stack([NAN * r, r], 1), FLOOR)  # the means have no part in it
    assert var.dtype == slope.dtype == dtype
    np.testing.assert_allclose(var[:, 0], np.logaddexp(0, r.astype(np.float64)) + FLOOR, rtol=1e-6)
    np.testing.assert_allclose(slope[:, 0], expit(r.astype(np.float64)), rtol=1e-6, atol=1e-30)


def test_the_variance_of_no_number_is_none():
    var, slope = kernels.variances(np.array([[0, NAN]], np.float32), FLOOR)
    assert np.isnan(var).all()
    assert np.isnan(slope).all()


HEADS = np.array([3, 0, 2, 2, 1, 0]), np.array([0, 0, 2, 2, 2, 4])  # rows, components: 1 and 3 have none


def heads() -> dict[str, np.ndarray]:
    """What `heads` takes, by name: pairs with five components."""
    h, weight, bias = mostly_zeros(4, 7, 0.4), rng().normal(size=(5, 7, 6)), rng().normal(size=(5, 6))
    return {"h": h, "rows": HEADS[0], "ks": HEADS[1], "weight": weight, "bias": bias}


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
    active, g_weight, g_bias = kernels.heads_pull(g, h, *HEADS, weight, g_h)
    assert active.tolist() == [0, 2, 4]
    np.testing.assert_allclose(g_weight, of_weight[active].reshape(3, -1), atol=1e-12)
    np.testing.assert_allclose(g_bias, of_bias[active], atol=1e-12)
    np.testing.assert_allclose(g_h, 2 + np.where(h > 0, of_h, 0), atol=1e-12)


@pytest.mark.parametrize("ks", [[], [3], [0, 0, 0], [0, 1, 1, 4]])
def test_components_that_occur_are_told_once(ks):
    assert kernels.distinct(indices(ks)).tolist() == sorted(set(ks))


def latents() -> dict[str, np.ndarray]:
    """What `latents` takes, by name."""
    q, p = raw(N, 1), raw(K, 2)
    which = {"ks": np.sort(rng().integers(0, K - 1, N)), "rows": rng().integers(0, B, N)}  # the last is not visited
    return {
        "q": q,
        "q_var": kernels.variances(q, FLOOR)[0],
        "p": p,
        "p_var": kernels.variances(p, FLOOR)[0],
        "ks": which["ks"],
        "noise": rng().normal(size=(B, Z)),
        "rows": which["rows"],
    }


def test_z_is_mean_and_noise_of_its_row_and_kl_that_of_two_gaussians():
    given = latents()
    z, kl = kernels.latents(**given)
    mean, var = given["q"][:, :Z], given["q_var"]
    np.testing.assert_allclose(z, mean + np.sqrt(var) * given["noise"][given["rows"]], rtol=1e-12)
    p_mean, p_var = given["p"][given["ks"], :Z], given["p_var"][given["ks"]]
    expected = 0.5 * (np.log(p_var) - np.log(var) + (var + (mean - p_mean) ** 2) / p_var - 1)
    np.testing.assert_allclose(kl, expected.sum(1), rtol=1e-12)


def value(q: np.ndarray, p: np.ndarray, g_z: np.ndarray, g_kl: np.ndarray) -> float:
    """Σ g_z · z + Σ g_kl · KL."""
    q_var, p_var = (kernels.variances(each, FLOOR)[0] for each in (q, p))
    z, kl = kernels.latents(**latents() | {"q": q, "q_var": q_var, "p": p, "p_var": p_var})
    return float((g_z * z).sum() + (g_kl * kl).sum())


def pulled(g_z: np.ndarray, g_kl: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    given = latents()
    slopes = {f"{name}_slope": kernels.variances(given[name], FLOOR)[1] for name in ("q", "p")}
    return kernels.latents_pull(g_z, g_kl, **given | slopes)


def test_the_gradients_of_latents_are_those_of_finite_differences():
    g_z, g_kl, eps = rng().normal(size=(N, Z)), rng().normal(size=N), 1e-6
    at = latents()
    for name, g in zip(("q", "p"), pulled(g_z, g_kl), strict=True):
        for place in np.ndindex(g.shape):
            sides = []
            for step in (eps, -eps):
                moved = {"q": at["q"].copy(), "p": at["p"].copy()}
                moved[name][place] += step
                sides.append(value(**moved, g_z=g_z, g_kl=g_kl))
            assert g[place] == pytest.approx((sides[0] - sides[1]) / (2 * eps), rel=1e-5, abs=1e-6)


def test_a_component_that_nobody_visits_has_no_gradient():
    _, g_p = pulled(np.ones((N, Z)), np.ones(N))
    assert not g_p[K - 1].any()
    assert g_p[: K - 1].all()


# -- as Python -----------------------------------------------------------------------------------------------------


def adams(rows: list[int], columns: list[int]) -> tuple[np.ndarray, ...]:
    """Row 1 rests and row 2 is about to."""
    weight, first, second = rng().normal(size=(3, 4, 5)).astype(np.float32)
    first[2] = 1e-9
    g = rng().normal(size=(4 if rows == [-1] else len(rows), 5 if columns == [-1] else len(columns)))
    constants = np.array((0.1, 0.9, 0.1, 0.999, 0.001, 1e-8, 1.5, 1e-8), np.float32)
    which = np.array(rows, np.int64), np.array(columns, np.int64)
    return weight, first, abs(second), np.array([-1, 7, -1, -1]), g.astype(np.float32), *which, constants


def calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Every kernel, with something to do."""
    h, g = layer([1, 4]), rng().normal(size=(5, 7)).astype(np.float32)
    given = latents()
    slopes = kernels.variances(given["q"], FLOOR)[1], kernels.variances(given["p"], FLOOR)[1]
    q, q_var, p, p_var, *where = given.values()
    pull = rng().normal(size=(N, Z)), rng().normal(size=N), q, q_var, slopes[0], p, p_var, slopes[1], *where
    q_y, u = posteriors()
    rows, ks, p, best = kernels.choose(q_y, u, 0.3)
    f, weights = rng().normal(size=len(ks)).astype(np.float32), q_y[rows, ks] / p
    few, weight = mostly_zeros(5, 7, 0.4), rng().normal(size=(7, 6))
    *pull_heads, _ = heads().values()
    return {
        "awake": (kernels.awake, (np.maximum(h, 0),)),
        "relu": (kernels.relu, (h,)),
        "part": (kernels.part, (h, np.array([1, 3]), np.array([0, 5]))),
        "is_all": (kernels.is_all, (kernels.ALL,)),
        "layer": (kernels.layer, (few, kernels.ALL, weight, weight[0])),
        "weight_pull": (kernels.weight_pull, (few, weight[:5])),
        "input_pull": (kernels.input_pull, (weight[:5], weight, kernels.ALL, few)),
        "not_zero": (kernels.not_zero, (few, np.arange(3, 10))),
        "add_rows": (kernels.add_rows, (np.ones(3), weight, 2, np.array([1, 4, 0, 0, 0]), weight[0], 2)),
        "heads": (kernels.heads, tuple(heads().values())),
        "heads_pull": (kernels.heads_pull, (rng().normal(size=(6, 6)), *pull_heads, np.ones((4, 7)))),
        "distinct": (kernels.distinct, (HEADS[1],)),
        "estimate": (kernels.estimate, (f, weights, rows, best, 40)),
        "posterior_pull": (kernels.posterior_pull, (q_y, np.log(q_y), f, weights, rows, ks, best)),
        "silence": (kernels.silence, (g, h)),
        "sum_over_rows": (kernels.sum_over_rows, (g,)),
        "rows_not_zero": (kernels.rows_not_zero, (np.maximum(h, 0).T.copy(),)),
        "choose": (kernels.choose, (*posteriors(), 0.3)),
        "arrange": (kernels.arrange, (rows, ks, 6)),
        "variances": (kernels.variances, (raw(N), FLOOR)),
        "latents": (kernels.latents, tuple(given.values())),
        "latents_pull": (kernels.latents_pull, pull),
        "adam": (adam._step, adams([-1], [-1])),
        "adam, some rows": (adam._step, adams([0, 1], [-1])),
        "adam, some columns": (adam._step, adams([-1], [1, 4])),
        "adam, some of both": (adam._step, adams([1, 3], [0, 2, 3])),
        "adam, no row": (adam._step, adams([], [-1])),
        "adam, no column": (adam._step, adams([0, 3], [])),
    }


def done(function: Any, arguments: tuple[Any, ...]) -> list[np.ndarray]:
    """What it gives, and what it makes of its arguments."""
    arguments = copy.deepcopy(arguments)
    result = function(*arguments)
    given = () if result is None else result if isinstance(result, tuple) else (result,)
    return [np.asarray(each) for each in (*given, *arguments)]


@pytest.mark.parametrize("name", calls())
def test_compiled_a_kernel_does_what_it_says_in_python(name):
    kernel, arguments = calls()[name]
    for fast, plain in zip(done(kernel, arguments), done(kernel.py_func, arguments), strict=True):
        assert fast.dtype == plain.dtype
        np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=1e-7)


def test_every_kernel_is_called_here():
    compiled = {name for module in (kernels, adam) for name, each in vars(module).items() if hasattr(each, "py_func")}
    assert {kernel.__name__ for kernel, _ in calls().values()} == compiled


# -- compiling -----------------------------------------------------------------------------------------------------


def third(x: float) -> float:
    """Of x."""
    return x / 3


def test_without_a_folder_to_keep_them_in_kernels_are_compiled_all_the_same(monkeypatch):
    asked = []

    def njit(*, cache: bool = False, **how: object) -> Any:
        asked.append((cache, how))
        if cache:
            raise RuntimeError("cannot cache function 'third': no locator available for file 'kernels.py'")
        return numba.njit(**how)

    monkeypatch.setattr(kernels, "njit", njit)
    compiled = kernels.compiled(third)
    assert compiled(1.0) == third(1.0)
    assert compiled.signatures  # by the machine, not by Python
    (first, how), (second, same) = asked
    assert (first, second) == (True, False)
    assert how == same


def test_kernels_are_kept_from_one_process_to_the_next_where_there_is_a_folder():
    kernels.awake(np.zeros((1, 1), np.float32))
    stats = kernels.awake.stats
    assert stats.cache_path
    assert sum(stats.cache_hits.values()) + sum(stats.cache_misses.values()) > 0
