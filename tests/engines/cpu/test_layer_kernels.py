import numpy as np
import pytest

from curlicue.engines.cpu import layer_kernels as kernels
from loops import NAN, indices, layer, mostly_zeros, rng

some_inactive = pytest.mark.parametrize("inactive", [[], [2], [0, 3, 6], list(range(7))])
floats = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# -- layers --------------------------------------------------------------------------------------------------------


@floats
@some_inactive
def test_a_column_is_active_if_it_is_not_all_zero(inactive, dtype):
    x = abs(layer([], dtype))
    x[1:] = 0  # one sample is enough
    x[:, inactive] = 0
    active, n_nonzero = kernels.find_active(x)
    assert n_nonzero == np.count_nonzero(x)
    assert active.tolist() == [j for j in range(7) if j not in inactive]
    assert active.dtype == np.int64


@floats
@some_inactive
def test_relu_is_numpys_maximum_in_place_and_tells_who_is_active(inactive, dtype):
    h = layer(inactive, dtype)
    expected = np.maximum(h, 0)
    active, n_nonzero = kernels.relu(h)
    np.testing.assert_array_equal(h, expected)
    assert h.dtype == dtype
    assert active.tolist() == np.flatnonzero(expected.any(0)).tolist()
    assert n_nonzero == np.count_nonzero(expected)


def test_what_is_no_number_is_active_and_stays_none():
    h = np.array([[-1.0, NAN, -1.0], [-1.0, -1.0, -1.0]], np.float32)
    assert kernels.find_active(np.where(h == -1, 0, h))[0].tolist() == [1]
    assert kernels.relu(h)[0].tolist() == [1]
    np.testing.assert_array_equal(h, np.array([[0, NAN, 0], [0, 0, 0]], np.float32))


@pytest.mark.parametrize("columns", [[], [3], [0, 2, 6]])
@pytest.mark.parametrize("rows", [[], [4], [1, 2]])
def test_gathering_some_rows_and_columns_is_numpys(rows, columns):
    h, rows, columns = layer([]), indices(rows), indices(columns)
    np.testing.assert_array_equal(kernels.gather(h, rows, columns), h[np.ix_(rows, columns)])


def test_a_gradient_is_zero_where_the_relu_was_and_only_there():
    h, g = layer([1, 4]), rng().normal(size=(5, 7)).astype(np.float32)
    kernels.relu(h)
    h[0, 0] = NAN  # may be anything: its gradient stays
    expected = np.where((h > 0) | np.isnan(h), g, 0)
    kernels.mask_gradient(g, h)
    np.testing.assert_array_equal(g, expected)


def test_a_gradient_that_is_no_number_is_masked_with_its_unit():
    g = np.full((1, 2), NAN, np.float32)
    kernels.mask_gradient(g, np.array([[0, 1]], np.float32))
    np.testing.assert_array_equal(g, np.array([[0, NAN]], np.float32))


@floats
@pytest.mark.parametrize("B", [0, 1, 5])
def test_the_sum_of_rows_is_numpys(B, dtype):
    g = layer([], dtype)[:B]
    total = kernels.sum_rows(g)
    np.testing.assert_allclose(total, g.sum(0, keepdims=True), rtol=1e-5)
    assert total.dtype == dtype


# -- products with mostly zeros ------------------------------------------------------------------------------------

shares = pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
SIZES = [(6, 9, 5), (3, 140, 530), (1, 1, 1), (0, 4, 3), (4, 0, 3), (5, 70, 0)]  # some more than a block of a loop


@shares
@pytest.mark.parametrize(("B", "a", "o"), SIZES)
def test_skipping_zeros_gives_the_products_of_a_layer_and_of_its_gradients(B, a, o, share):
    h, rows = mostly_zeros(B, a, share), np.sort(rng().permutation(2 * a + 1)[:a])
    weight, bias, g = (rng(2).normal(size=shape) for shape in ((2 * a + 1, o), (o,), (B, o)))
    np.testing.assert_allclose(kernels.sparse_layer(h, rows, weight, bias), h @ weight[rows] + bias, atol=1e-12)
    np.testing.assert_allclose(kernels.weight_backward(h, g), h.T @ g, atol=1e-12)
    expected = np.where(h > 0, g @ weight[rows].T, 0)
    np.testing.assert_allclose(kernels.input_backward(g, weight, rows, h), expected, atol=1e-12)


def test_single_numbers_stay_single():
    h, weight, rows = mostly_zeros(6, 9, 0.5, np.float32), rng().normal(size=(9, 5)).astype(np.float32), np.arange(9)
    out = kernels.sparse_layer(h, rows, weight, np.zeros(5, np.float32))
    assert out.dtype == kernels.weight_backward(h, out).dtype == np.float32
    assert kernels.input_backward(out, weight, rows, h).dtype == np.float32


def test_what_is_no_number_is_not_skipped():
    h, weight = mostly_zeros(2, 3, 0.0), np.ones((3, 2))
    h[0, 1] = NAN
    out = kernels.sparse_layer(h, np.arange(3), weight, np.zeros(2))
    assert np.isnan(out).tolist() == [[True, True], [False, False]]
    assert np.isnan(kernels.weight_backward(h, np.ones((2, 2))))[1].all()


@shares
def test_the_nonzeros_of_each_row_are_listed_with_their_indices_and_three_zeros_after_them(share):
    h, names = mostly_zeros(6, 9, share), np.arange(10, 19)
    which, values, counts = kernels.nonzeros(h, names)
    for b, n in enumerate(counts):
        assert which[b, :n].tolist() == names[h[b] > 0].tolist()
        assert values[b, : n + 3].tolist() == [*h[b][h[b] > 0], 0, 0, 0]
        assert (which[b, n : n + 3] == which[b, 0]).all()
