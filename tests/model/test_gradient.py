import pytest
import torch

from curlicue.model.gradient import Gradient, exhausted, matrix_shape

VALUES = torch.arange(1.0, 5.0).view(2, 2)
ROWS, COLUMNS = torch.tensor([0, 2]), torch.tensor([1, 3])
NONE = torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize(
    ("shape", "matrix"), [((3, 4), (3, 4)), ((3, 4, 5), (3, 20)), ((1, 4), (1, 4)), ((5,), (1, 5)), ((), (1, 1))]
)
def test_the_rows_of_a_parameter_are_its_first_axis_and_a_vector_is_one_row(shape, matrix):
    assert matrix_shape(torch.zeros(shape)) == matrix


def test_a_gradient_is_zero_outside_of_its_rows_and_columns():
    expected = [[0.0, 1.0, 0.0, 2.0], [0.0] * 4, [0.0, 3.0, 0.0, 4.0]]
    assert Gradient(VALUES, ROWS, COLUMNS).dense(torch.ones(3, 4)).tolist() == expected


def test_where_rows_or_columns_are_not_told_a_gradient_has_all():
    assert torch.equal(Gradient(VALUES).dense(torch.ones(2, 2)), VALUES)
    assert Gradient(VALUES, ROWS).dense(torch.ones(3, 2)).tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]
    expected = [[0.0, 1.0, 0.0, 2.0], [0.0, 3.0, 0.0, 4.0]]
    assert Gradient(VALUES, None, COLUMNS).dense(torch.ones(2, 4)).tolist() == expected


@pytest.mark.parametrize("gradient", [Gradient(torch.zeros(0, 4), NONE), Gradient(torch.zeros(3, 0), None, NONE)])
def test_a_gradient_without_rows_or_without_columns_is_zero(gradient):
    assert torch.equal(gradient.dense(torch.ones(3, 4)), torch.zeros(3, 4))


def test_a_whole_gradient_has_the_shape_of_its_parameter():
    slices = Gradient(torch.arange(6.0).view(1, 6), torch.tensor([1])).dense(torch.ones(2, 3, 2))
    assert torch.equal(slices, torch.stack([torch.zeros(3, 2), torch.arange(6.0).view(3, 2)]))
    vector = Gradient(torch.tensor([[7.0]]), None, torch.tensor([2])).dense(torch.ones(4))
    assert vector.tolist() == [0.0, 0.0, 7.0, 0.0]


@pytest.mark.parametrize("silent", [[], [1], [0, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2)])
def test_what_is_made_of_a_whole_gradient_leaves_out_the_rows_that_are_zero_and_nothing_else(shape, silent):
    whole = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    whole[:, 0] = 0  # a zero alone does not silence a row
    whole[silent] = 0
    gradient = Gradient.of(whole)
    assert torch.equal(gradient.dense(whole), whole)
    assert len(gradient.values) == 4 - len(silent)
    if silent:
        assert gradient.rows.tolist() == [r for r in range(4) if r not in silent]
    else:
        assert gradient.rows is None


def test_a_row_that_is_no_number_is_not_zero():
    whole = torch.zeros(3, 2)
    whole[1, 1] = torch.nan
    assert Gradient.of(whole).rows.tolist() == [1]


def test_a_whole_gradient_may_lie_in_memory_as_it_likes():
    whole = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(Gradient.of(whole).dense(torch.ones(4, 3)), whole)


@pytest.mark.parametrize("shape", [(), (5,)])
def test_a_whole_vector_is_one_row(shape):
    assert torch.equal(Gradient.of(torch.ones(shape)).dense(torch.zeros(shape)), torch.ones(shape))
    assert torch.equal(Gradient.of(torch.zeros(shape)).dense(torch.ones(shape)), torch.zeros(shape))


def test_all_slopes_are_collected_and_what_comes_at_the_end_of_them():
    first, second = Gradient(VALUES), Gradient(2 * VALUES)

    def slopes():
        yield "a", first
        yield "b", second
        return "the input's"

    found, end = exhausted(slopes())
    assert found["a"] is first
    assert found["b"] is second
    assert found.keys() == {"a", "b"}
    assert end == "the input's"
