import pytest
import torch
from scipy.stats import kstest, truncnorm
from torch import nn

from curlicue.model.networks import init_linear, linear, mlp_decoder, mlp_encoder
from curlicue.rng import named_generator


@pytest.mark.parametrize("fan_in", [4, 25, 300])
def test_weights_are_truncated_normal_with_the_fan_in_setting_their_scale(fan_in):
    weight = init_linear(torch.empty(100, 300), fan_in, named_generator(0, "init"))
    scaled = (weight * fan_in**0.5).flatten().numpy()
    assert abs(scaled).max() <= 2 + 1e-5
    assert kstest(scaled, truncnorm(-2, 2).cdf).pvalue > 1e-3


def test_a_linear_layers_fan_in_is_its_input_and_its_bias_begins_at_zero():
    layer = linear(200, 50, named_generator(0, "init"))
    assert layer.weight.shape == (50, 200)
    assert kstest((layer.weight.detach() * 200**0.5).flatten().numpy(), truncnorm(-2, 2).cdf).pvalue > 1e-3
    assert torch.equal(layer.bias, torch.zeros(50))
    assert layer.weight.requires_grad
    assert layer.bias.requires_grad


def test_an_encoder_has_its_widths_and_a_relu_after_every_layer():
    encoder = mlp_encoder(6, (5, 4, 3), named_generator(0, "init"))
    assert [type(module) for module in encoder] == [nn.Linear, nn.ReLU] * 3
    assert [tuple(layer.weight.shape) for layer in encoder[::2]] == [(5, 6), (4, 5), (3, 4)]


def test_a_decoder_has_its_widths_and_no_relu_after_the_last_layer():
    decoder = mlp_decoder(2, (3, 4), 6, named_generator(0, "init"))
    assert [type(module) for module in decoder] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(layer.weight.shape) for layer in decoder[::2]] == [(3, 2), (4, 3), (6, 4)]


def test_a_decoder_without_hidden_layers_is_linear():
    decoder = mlp_decoder(2, (), 6, named_generator(0, "init"))
    assert [tuple(module.weight.shape) for module in decoder] == [(6, 2)]


def test_the_generator_alone_decides_the_weights():
    state = torch.get_rng_state()
    first, again = (mlp_decoder(2, (3,), 6, named_generator(0, "init")) for _ in range(2))
    other = mlp_decoder(2, (3,), 6, named_generator(1, "init"))
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)
    assert torch.equal(torch.get_rng_state(), state)
