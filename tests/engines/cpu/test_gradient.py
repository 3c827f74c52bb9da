import numpy as np
import pytest
import torch

from climbing import dense
from curlicue.engines.cpu.gradient import Gradient, every, matrix_shape, whole

VALUES = np.arange(1.0, 5.0, dtype=np.float32).reshape(2, 2)
ROWS, COLUMNS = np.array([0, 2]), np.array([1, 3])


@pytest.mark.parametrize(
    ("shape", "matrix"), [((3, 4), (3, 4)), ((3, 4, 5), (3, 20)), ((1, 4), (1, 4)), ((5,), (1, 5)), ((), (1, 1))]
)
def test_the_rows_of_a_parameter_are_its_first_axis_and_a_vector_is_one_row(shape, matrix):
    assert matrix_shape(torch.zeros(shape)) == matrix


def test_a_gradient_is_zero_outside_of_its_rows_and_columns():
    expected = [[0.0, 1.0, 0.0, 2.0], [0.0] * 4, [0.0, 3.0, 0.0, 4.0]]
    assert dense(Gradient("it", VALUES, ROWS, COLUMNS), torch.ones(3, 4)).tolist() == expected


def test_a_whole_gradient_has_all_rows_and_columns():
    gradient = whole("it", VALUES)
    assert gradient.name == "it"
    assert gradient.rows.tolist() == gradient.columns.tolist() == [0, 1]
    assert torch.equal(dense(gradient, torch.ones(2, 2)), torch.from_numpy(VALUES))


@pytest.mark.parametrize("shape", [(2, 3, 2), (12,)])
def test_a_whole_gradient_has_the_shape_of_its_parameter(shape):
    parameter = torch.ones(shape)
    values = np.arange(12.0, dtype=np.float32).reshape(matrix_shape(parameter))
    assert torch.equal(dense(whole("it", values), parameter), torch.arange(12.0).view(shape))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_every_index_is_there_once_in_order(n):
    assert every(n).tolist() == list(range(n))
    assert every(n).dtype == np.int64
