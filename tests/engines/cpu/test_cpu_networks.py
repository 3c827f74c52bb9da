from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from climbing import dense
from curlicue.engines.cpu import networks
from curlicue.engines.cpu.gradient import Gradient
from curlicue.engines.cpu.networks import Dense, ForwardCache, Sparse, forward
from curlicue.model.networks import Mlp
from curlicue.rng import named_generator


def partly_inactive(relu_last: bool, inactive: float) -> Mlp:
    """Double precision; about so many of each hidden layer's units never fire."""
    rng = named_generator(0, f"{inactive}")
    mlp = Mlp((12, 30, 20, 10), relu_last, rng).double().requires_grad_(True)
    for bias in mlp.biases:
        bias.data = torch.where(torch.rand(bias.shape, generator=rng) < inactive, -100.0, 0.1).double()
    return mlp


def some_input(zero_columns: float) -> Tensor:
    rng = named_generator(1, "x")
    x = torch.randn(8, 12, generator=rng).double()
    x[:, torch.rand(12, generator=rng) < zero_columns] = 0
    return x


def backward(cache: ForwardCache, g: Tensor) -> tuple[dict[str, Gradient], Tensor]:
    """The gradients of all parameters, and that of the input."""
    steps, found = cache.backward(g, "net."), {}
    while True:
        try:
            gradient = next(steps)
        except StopIteration as end:
            return found, end.value
        assert gradient.name not in found
        found[gradient.name] = gradient


# -- values and gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [-1.0, torch.inf], ids=["Dense", "Sparse"])
@pytest.mark.parametrize("relu_last", [True, False])
@pytest.mark.parametrize("inactive", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("zero_columns", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("input_grad", [True, False])
def test_leaving_out_inactive_units_and_zeros_changes_neither_values_nor_gradients(
    relu_last, inactive, zero_columns, input_grad, sparse, monkeypatch
):
    monkeypatch.setattr(networks, "SPARSE", sparse)
    mlp, x = partly_inactive(relu_last, inactive), some_input(zero_columns).requires_grad_(input_grad)
    cache, expected = forward(mlp, x, input_grad), mlp(x)
    torch.testing.assert_close(cache.out, expected.detach())
    g = torch.arange(80.0).view(8, 10).double()
    (expected * g).sum().backward()
    found, of_x = backward(cache, g.clone())
    for name, parameter in mlp.named_parameters():
        torch.testing.assert_close(dense(found.pop(f"net.{name}"), parameter), parameter.grad)
    assert not found
    if input_grad:
        torch.testing.assert_close(of_x, x.grad)


@pytest.mark.parametrize("sparse", [-1.0, torch.inf], ids=["Dense", "Sparse"])
def test_inactive_units_are_not_in_the_gradient(sparse, monkeypatch):
    monkeypatch.setattr(networks, "SPARSE", sparse)
    mlp = partly_inactive(relu_last=True, inactive=0.7)
    active = [(bias > 0).nonzero().squeeze(1).tolist() for bias in mlp.biases]
    assert all(len(units) < 0.6 * len(bias) for units, bias in zip(active, mlp.biases, strict=True))
    cache = forward(mlp, some_input(0.0), x_has_gradient=False)
    found, _ = backward(cache, torch.ones(8, 10).double())
    for number in (1, 2):
        assert set(found[f"net.weights.{number}"].rows.tolist()) <= set(active[number - 1])
        assert set(found[f"net.weights.{number}"].columns.tolist()) <= set(active[number])


def test_a_constant_column_is_not_inactive():
    mlp = partly_inactive(relu_last=True, inactive=0.0)
    x = torch.zeros(8, 12).double()
    x[:, 3] = -1.0
    torch.testing.assert_close(forward(mlp, x, x_has_gradient=False).out, mlp(x).detach())


@pytest.mark.parametrize("x", [torch.ones(2, 13).double(), torch.zeros(2, 11).double(), torch.ones(2, 12)])
def test_rows_of_another_width_or_type_are_an_error(x):
    message = rf"The layer takes rows of 12 numbers of torch.float64. Got {x.shape[1]} of {x.dtype}"
    for x_has_gradient in (False, True):
        with pytest.raises(RuntimeError, match=message):
            forward(partly_inactive(relu_last=True, inactive=0.0), x, x_has_gradient)


# -- which layer ---------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def first_layer(mlp: Mlp, x: Tensor, x_has_gradient: bool = False) -> Dense | Sparse:
    return forward(mlp, x, x_has_gradient).layers[0]


@pytest.mark.usefixtures("one_thread")
def test_zeros_are_skipped_where_most_numbers_are_zeros():
    mlp, x = partly_inactive(relu_last=True, inactive=0.3), some_input(0.0).abs()
    assert isinstance(first_layer(mlp, x), Dense)
    x[torch.rand(x.shape, generator=named_generator(0, "zeros")) < 0.7] = 0
    assert isinstance(first_layer(mlp, x), Sparse)
    assert isinstance(first_layer(mlp, x, x_has_gradient=True), Dense)  # a zero has a gradient of its own


@pytest.mark.usefixtures("one_thread")
def test_the_sparse_loop_has_one_thread_and_blas_has_all():
    mlp, x = partly_inactive(relu_last=True, inactive=0.0), torch.zeros(8, 12).double()
    x[:, :] = torch.tensor([1.0, 0.0, 0.0]).repeat(4)  # eight columns are inactive
    x[1::2, [0, 3]], x[::2, [6, 9]] = 0, 0  # and half of the others' numbers are zero
    kinds = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        kinds.append(type(first_layer(mlp, x)))
    assert kinds == [Sparse, Dense]


@pytest.mark.usefixtures("one_thread")
def test_blas_has_what_is_too_large_for_the_cache():
    mlp = partly_inactive(relu_last=True, inactive=0.3)
    x = (torch.rand(513, 12, generator=named_generator(0, "x")) < 0.2).double()
    for rows, kind in ((512, Sparse), (513, Dense)):
        assert isinstance(first_layer(mlp, x[:rows]), kind)
