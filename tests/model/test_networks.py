from collections.abc import Iterator

import pytest
import torch
from scipy.stats import kstest, truncnorm
from torch import Tensor, nn

from curlicue.model import networks
from curlicue.model.networks import Dense, ReluNet, Sparse, init_linear, mlp_decoder, mlp_encoder
from curlicue.rng import named_generator


@pytest.mark.parametrize("fan_in", [4, 25, 300])
def test_weights_are_truncated_normal_with_the_fan_in_setting_their_scale(fan_in):
    weight = init_linear(torch.empty(100, 300), fan_in, named_generator(0, "init"))
    scaled = (weight * fan_in**0.5).flatten().numpy()
    assert abs(scaled).max() <= 2 + 1e-5
    assert kstest(scaled, truncnorm(-2, 2).cdf).pvalue > 1e-3


def plain(net: ReluNet) -> nn.Sequential:
    """The same layers as torch has them."""
    modules: list[nn.Module] = []
    for weight, bias in zip(net.weights, net.biases, strict=True):
        layer = nn.Linear(*weight.shape).to(weight.dtype)
        layer.weight.data, layer.bias.data = weight.data.t().clone(), bias.data.clone()
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*(modules if net.relu_last else modules[:-1]))


def partly_silent_net(relu_last: bool, silent: float) -> ReluNet:
    """Double precision; about so many of each hidden layer's units never fire."""
    rng = named_generator(0, f"{silent}")
    net = ReluNet((12, 30, 20, 10), relu_last, rng).double()
    for bias in net.biases:
        bias.data = torch.where(torch.rand(bias.shape, generator=rng) < silent, -100.0, 0.1).double()
    return net


def some_input(zero_columns: float) -> Tensor:
    rng = named_generator(1, "x")
    x = torch.randn(8, 12, generator=rng).double()
    x[:, torch.rand(12, generator=rng) < zero_columns] = 0
    return x


@pytest.mark.parametrize("sparse", [-1.0, torch.inf])
@pytest.mark.parametrize("relu_last", [True, False])
@pytest.mark.parametrize("silent", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("zero_columns", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("input_grad", [True, False])
def test_leaving_out_silent_units_and_zeros_changes_neither_values_nor_gradients(
    relu_last, silent, zero_columns, input_grad, sparse, monkeypatch
):
    monkeypatch.setattr(networks, "SPARSE", sparse)
    net = partly_silent_net(relu_last, silent)
    reference = plain(net)
    x, x_reference = (some_input(zero_columns).requires_grad_(input_grad) for _ in range(2))
    out, expected = net(x), reference(x_reference)
    torch.testing.assert_close(out, expected)
    for y in (out, expected):
        (y * torch.arange(80.0).view(8, 10)).sum().backward()
    for layer, linear in enumerate(module for module in reference if isinstance(module, nn.Linear)):
        torch.testing.assert_close(net.weights[layer].grad, linear.weight.grad.t())
        torch.testing.assert_close(net.biases[layer].grad, linear.bias.grad)
    if input_grad:
        torch.testing.assert_close(x.grad, x_reference.grad)


def test_zeros_are_passed_over_where_most_numbers_are_zeros(one_thread):
    net, x = partly_silent_net(relu_last=True, silent=0.3), some_input(0.0).abs()
    assert isinstance(net.run(x, x_has_gradient=False).layers[0], Dense)
    x[torch.rand(x.shape, generator=named_generator(0, "zeros")) < 0.7] = 0
    assert isinstance(net.run(x, x_has_gradient=False).layers[0], Sparse)
    assert isinstance(net.run(x, x_has_gradient=True).layers[0], Dense)  # a zero has a gradient of its own


def test_the_loop_over_what_is_not_zero_has_one_thread_and_blas_has_all(one_thread):
    net, x = partly_silent_net(relu_last=True, silent=0.0), torch.zeros(8, 12).double()
    x[:, :] = torch.tensor([1.0, 0.0, 0.0]).repeat(4)  # eight columns are silent
    x[1::2, [0, 3]], x[::2, [6, 9]] = 0, 0  # and half of the others' numbers are zero
    kinds = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        kinds.append(type(net.run(x, x_has_gradient=False).layers[0]))
    assert kinds == [Sparse, Dense]


def test_blas_has_what_is_too_large_for_the_cache(one_thread):
    net = partly_silent_net(relu_last=True, silent=0.3)
    x = (torch.rand(513, 12, generator=named_generator(0, "x")) < 0.2).double()
    for rows, kind in ((512, Sparse), (513, Dense)):
        assert isinstance(net.run(x[:rows], x_has_gradient=False).layers[0], kind)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("x", [torch.ones(2, 13).double(), torch.zeros(2, 11).double(), torch.ones(2, 12)])
def test_rows_of_another_width_or_type_are_an_error(x):
    message = rf"The layer takes rows of 12 numbers of torch.float64. Got {x.shape[1]} of {x.dtype}"
    with pytest.raises(RuntimeError, match=message):
        partly_silent_net(relu_last=True, silent=0.0)(x)


def test_rows_may_be_stacked():
    net = partly_silent_net(relu_last=False, silent=0.3)
    x = some_input(0.0)
    torch.testing.assert_close(net(x.view(2, 4, 12)), net(x).view(2, 4, 10))


def test_a_constant_column_is_not_silent():
    net = partly_silent_net(relu_last=True, silent=0.0)
    x = torch.zeros(8, 12).double()
    x[:, 3] = -1.0
    torch.testing.assert_close(net(x), plain(net)(x))


def test_a_layers_fan_in_is_its_input_and_its_bias_begins_at_zero():
    net = ReluNet((200, 50), relu_last=False, rng=named_generator(0, "init"))
    (weight,), (bias,) = net.weights, net.biases
    assert kstest((weight.detach() * 200**0.5).flatten().numpy(), truncnorm(-2, 2).cdf).pvalue > 1e-3
    assert torch.equal(bias, torch.zeros(50))
    assert weight.requires_grad
    assert bias.requires_grad


def test_an_encoder_has_its_widths_and_a_relu_after_every_layer():
    encoder = mlp_encoder(6, (5, 4, 3), named_generator(0, "init"))
    assert [tuple(weight.shape) for weight in encoder.weights] == [(6, 5), (5, 4), (4, 3)]
    assert encoder.relu_last


def test_a_decoder_has_its_widths_and_no_relu_after_the_last_layer():
    decoder = mlp_decoder(2, (3, 4), 6, named_generator(0, "init"))
    assert [tuple(weight.shape) for weight in decoder.weights] == [(2, 3), (3, 4), (4, 6)]
    assert not decoder.relu_last


def test_a_decoder_without_hidden_layers_is_linear():
    decoder = mlp_decoder(2, (), 6, named_generator(0, "init"))
    assert [tuple(weight.shape) for weight in decoder.weights] == [(2, 6)]


def test_the_generator_alone_decides_the_weights():
    state = torch.get_rng_state()
    first, again = (mlp_decoder(2, (3,), 6, named_generator(0, "init")) for _ in range(2))
    other = mlp_decoder(2, (3,), 6, named_generator(1, "init"))
    assert torch.equal(first.weights[0], again.weights[0])
    assert not torch.equal(first.weights[0], other.weights[0])
    assert torch.equal(torch.get_rng_state(), state)
