import math

import pytest
import torch
from scipy.stats import kstest, truncnorm
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, linear, pad

from curlicue.model.networks import ConvDecoder, ConvEncoder, Mlp, Pixels, init_linear, mlp_decoder, mlp_encoder
from curlicue.rng import named_generator


@pytest.mark.parametrize("fan_in", [4, 25, 300])
def test_weights_are_truncated_normal_with_the_fan_in_setting_their_scale(fan_in):
    weight = init_linear(torch.empty(100, 300), fan_in, named_generator(0, "init"))
    assert_drawn(weight, fan_in)


def assert_drawn(weight: Tensor, fan_in: int) -> None:
    scaled = (weight.detach() * fan_in**0.5).flatten().numpy()
    assert abs(scaled).max() <= 2 + 1e-5
    assert kstest(scaled, truncnorm(-2, 2).cdf).pvalue > 1e-3


def assert_the_generator_alone_decides(make) -> None:
    state = torch.get_rng_state()
    first, again, other = ([*make(named_generator(seed, "init")).parameters()] for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True) if a.any())
    assert torch.equal(torch.get_rng_state(), state)


# -- multilayer perceptrons ---------------------------------------------------------------------------------------


def plain(net: Mlp) -> nn.Sequential:
    """The same layers as torch has them."""
    modules: list[nn.Module] = []
    for weight, bias in zip(net.weights, net.biases, strict=True):
        layer = nn.Linear(*weight.shape).to(weight.dtype)
        layer.weight.data, layer.bias.data = weight.data.t().clone(), bias.data.clone()
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*(modules if net.relu_last else modules[:-1]))


@pytest.mark.parametrize("relu_last", [True, False])
def test_an_mlp_is_linear_layers_with_relus_between_them_in_value_and_in_gradient(relu_last, dtype):
    net = Mlp((12, 30, 20, 10), relu_last, named_generator(0, "init")).to(dtype)
    for bias in net.biases:
        nn.init.normal_(bias, generator=named_generator(1, "bias"))
    x = torch.randn(8, 12, generator=named_generator(0, "x"), dtype=dtype).requires_grad_()
    reference = plain(net)
    out, expected = net(x), reference(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected)
    slopes = torch.autograd.grad(out.square().sum(), [x, *net.biases, *net.weights])
    layers = [layer for layer in reference if isinstance(layer, nn.Linear)]
    inputs = [x, *(layer.bias for layer in layers), *(layer.weight for layer in layers)]
    for slope, theirs in zip(slopes, torch.autograd.grad(expected.square().sum(), inputs), strict=True):
        torch.testing.assert_close(slope, theirs if slope.shape == theirs.shape else theirs.t(), rtol=1e-4, atol=1e-4)


def test_a_layers_fan_in_is_its_input_and_its_bias_begins_at_zero():
    net = Mlp((200, 50), relu_last=False, rng=named_generator(0, "init"))
    (weight,), (bias,) = net.weights, net.biases
    assert_drawn(weight, fan_in=200)
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


def test_the_generator_alone_decides_the_weights_of_an_mlp():
    assert_the_generator_alone_decides(lambda rng: mlp_decoder(2, (3,), 6, rng))


# -- the convolutional pair ---------------------------------------------------------------------------------------

SHAPES = [
    (28, 28),
    (1, 1),
    (2, 3),
    (5, 9),
    (7, 7, 3),
    (16, 13, 4),
    (3, 9, 8),
    (1, 28, 28),
    (4, 5, 5),
    (6, 6, 7),
    (3, 3, 3),
]
any_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
N_Z = 5


def images(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, B: int = 6) -> Tensor:
    return torch.rand(B, math.prod(shape), generator=named_generator(0, "x"), dtype=dtype)


def conv_pair(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[ConvEncoder, ConvDecoder]:
    rng = named_generator(0, "init")
    return ConvEncoder(shape, rng).to(dtype), ConvDecoder(N_Z, shape, rng).to(dtype)


@any_shape
def test_convolutions_map_rows_to_rows_for_images_of_any_size(shape, dtype):
    x, z = images(shape, dtype), torch.ones(6, N_Z, dtype=dtype)
    encoder, decoder = conv_pair(shape, dtype)
    h, out = encoder(x), decoder(z)
    assert (h.dtype, h.ndim, len(h)) == (dtype, 2, 6)
    assert (out.dtype, out.shape) == (dtype, x.shape)
    assert (h >= 0).all()


HALVING = {"stride": 2, "padding": 1}


@any_shape
def test_an_encoder_of_images_halves_them_twice_with_a_relu_after_every_layer(shape, dtype):
    encoder, _ = conv_pair(shape, dtype)
    h = Pixels(shape).image(images(shape, dtype))
    for layer in encoder.layers:
        h = conv2d(h, layer.weight, layer.bias, **HALVING).relu()
    h = linear(h.flatten(1), encoder.last.weight, encoder.last.bias).relu()
    torch.testing.assert_close(encoder(images(shape, dtype)), h)


@any_shape
def test_a_decoder_of_images_doubles_them_twice_with_a_relu_after_every_layer_but_the_last(shape, dtype):
    _, decoder = conv_pair(shape, dtype)
    z = torch.randn(6, N_Z, generator=named_generator(0, "z"), dtype=dtype)
    h = z
    for layer in (decoder.first, decoder.second):
        h = linear(h, layer.weight, layer.bias).relu()
    outer, inner, innermost = Pixels(shape).sizes
    h = h.view(6, -1, *innermost)
    for layer, small, size in zip(decoder.layers, (innermost, inner), (inner, outer), strict=True):
        odd = [n - (2 * m - 1) for n, m in zip(size, small, strict=True)]
        h = conv_transpose2d(h.relu(), layer.weight, layer.bias, output_padding=odd, **HALVING)
    torch.testing.assert_close(decoder(z), Pixels(shape).rows(h))


@any_shape
def test_every_parameter_of_the_convolutions_learns(shape):
    z = torch.randn(6, N_Z, generator=named_generator(0, "z"))
    for network, rows in zip(conv_pair(shape), (images(shape), z), strict=True):
        network(rows).square().sum().backward()
        assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


@any_shape
def test_every_pixel_is_seen_and_every_pixel_is_drawn(shape):
    encoder, decoder = conv_pair(shape)
    x = images(shape).requires_grad_()
    (seen,) = torch.autograd.grad(encoder(x).sum(), x)
    assert seen.any(0).all()
    z = torch.randn(50, N_Z, generator=named_generator(0, "z"))
    assert (decoder(z).std(0) > 0).all()


@any_shape
def test_a_row_is_encoded_and_decoded_whatever_its_neighbours(shape):
    encoder, decoder = conv_pair(shape)
    x, z = images(shape), torch.randn(6, N_Z, generator=named_generator(0, "z"))
    torch.testing.assert_close(encoder(x)[2:3], encoder(x[2:3]))
    torch.testing.assert_close(decoder(z)[2:3], decoder(z[2:3]))


@pytest.mark.parametrize(
    ("shape", "channels", "size"),
    [
        ((28, 20), 1, (28, 20)),
        ((28, 20, 3), 3, (28, 20)),
        ((3, 28, 20), 3, (28, 20)),
        ((4, 5, 5), 4, (5, 5)),
        ((5, 5, 5), 5, (5, 5)),  # who knows: the last
        ((3, 4, 4), 4, (3, 4)),
        ((1, 1), 1, (1, 1)),
    ],
)
def test_an_axis_of_channels_is_the_last_unless_only_the_first_is_short(shape, channels, size):
    pixels = Pixels(shape)
    assert (pixels.channels, pixels.sizes[0]) == (channels, size)


@any_shape
def test_a_row_is_laid_out_as_an_image_and_back(shape):
    pixels, x = Pixels(shape), images(shape)
    image = pixels.image(x)
    assert image.shape == (6, pixels.channels, *pixels.sizes[0])
    assert torch.equal(pixels.rows(image), x)


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 3), (3, 5, 6)])
def test_a_pixel_lies_where_the_shape_says(shape):
    image = Pixels(shape).image(images(shape))  # [B, channels, height, width]
    expected = images(shape).view(-1, *shape)
    if len(shape) == 2:
        expected = expected[:, None]
    elif shape[0] != 3:
        expected = expected.movedim(3, 1)
    assert torch.equal(image, expected)


def test_channels_in_front_or_behind_are_the_same_images():
    first, last = ConvEncoder((3, 8, 9), named_generator(0, "init")), ConvEncoder((8, 9, 3), named_generator(0, "init"))
    x = images((3, 8, 9))
    torch.testing.assert_close(first(x), last(x.view(-1, 3, 8, 9).permute(0, 2, 3, 1).flatten(1)))


def test_convolutions_see_a_shape_wherever_it_is_in_the_image():
    encoder, _ = conv_pair((24, 24))
    blob = torch.rand(1, 1, 8, 8, generator=named_generator(0, "blob"))
    here, there = (pad(blob, (left, 16 - left, 8, 8)) for left in (4, 8))
    features = here, there
    for layer in encoder.layers:
        features = tuple(layer(each).relu() for each in features)
    torch.testing.assert_close(
        features[0][..., 1:4], features[1][..., 2:5]
    )  # 4 pixels are one step of the second layer


def test_convolutions_begin_on_the_scale_of_their_fan_in_with_zero_biases():
    encoder, decoder = conv_pair((28, 28, 3))
    for layer, fan_in in zip(encoder.layers, (9 * 3, 9 * 32), strict=True):
        assert_drawn(layer.weight, fan_in)
    for layer, fan_in in zip(decoder.layers, (9 * 64 // 4, 9 * 32 // 4), strict=True):  # each output sees a quarter
        assert_drawn(layer.weight, fan_in)
    assert_drawn(encoder.last.weight, 64 * 7 * 7)
    assert_drawn(decoder.first.weight, N_Z)
    biases = [p for network in (encoder, decoder) for name, p in network.named_parameters() if name.endswith("bias")]
    assert len(biases) == 7
    assert not any(bias.any() for bias in biases)


def test_the_generator_alone_decides_the_weights_of_convolutions():
    assert_the_generator_alone_decides(lambda rng: ConvEncoder((8, 8), rng))
    assert_the_generator_alone_decides(lambda rng: ConvDecoder(2, (8, 8), rng))


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4, 5)])
def test_what_is_no_image_is_refused_with_its_shape(shape):
    with pytest.raises(ValueError, match=r"an image has 2 or 3 axes, but samples have the shape \(.*5"):
        Pixels(shape)
