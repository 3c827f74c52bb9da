import pytest
import torch
from scipy.stats import kstest, truncnorm
from torch import Tensor, nn

from curlicue.model.networks import ReluNet, init_linear, mlp_decoder, mlp_encoder
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


@pytest.mark.parametrize("relu_last", [True, False])
@pytest.mark.parametrize("silent", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("zero_columns", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("input_grad", [True, False])
def test_leaving_out_silent_units_changes_neither_values_nor_gradients(relu_last, silent, zero_columns, input_grad):
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
