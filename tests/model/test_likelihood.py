import pytest
import torch
from torch.distributions import Normal

from curlicue.config.model import Emission, Likelihood
from curlicue.model.likelihood import Bernoulli, GaussianNoise, likelihood
from curlicue.rng import named_generator

N, D, S = 7, 5, 3


@pytest.fixture
def out(dtype) -> torch.Tensor:
    """What a decoder might give for S samples of z for each of N rows."""
    return 2 * torch.randn(S, N, D, generator=named_generator(0, "out"), dtype=dtype)


@pytest.fixture
def noise(dtype) -> GaussianNoise:
    noise = GaussianNoise(D).to(dtype)
    torch.nn.init.normal_(noise.raw_var, std=1 / GaussianNoise.PACE, generator=named_generator(0, "noise"))
    return noise


def test_bernoulli_matches_torchs_for_zeros_and_ones_in_value_and_in_gradient(out, dtype):
    x = torch.rand(N, D, generator=named_generator(0, "x"), dtype=dtype).round()
    out.requires_grad_()
    expected = torch.distributions.Bernoulli(logits=out).log_prob(x.expand(S, N, D)).sum(-1)
    found = Bernoulli().log_p(x, out)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(each.sum(), out)[0] for each in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_bernoulli_is_the_cross_entropy_for_greys(out, dtype):
    x, mu = torch.rand(N, D, generator=named_generator(0, "x"), dtype=dtype), out.sigmoid()
    expected = (x * mu.log() + (1 - x) * (1 - mu).log()).sum(-1)
    torch.testing.assert_close(Bernoulli().log_p(x, out), expected)


def test_bernoulli_stays_finite_where_the_mean_rounds_to_zero_or_one(dtype):
    out, x = torch.tensor([[200.0, -200.0]], dtype=dtype), torch.tensor([[0.0, 1.0]], dtype=dtype)
    torch.testing.assert_close(Bernoulli().log_p(x, out), torch.tensor([-400.0], dtype=dtype))


def test_gaussian_noise_matches_torchs(out, noise, dtype):
    x = torch.randn(N, D, generator=named_generator(0, "x"), dtype=dtype)
    expected = Normal(out, noise.var.sqrt()).log_prob(x.expand(S, N, D)).sum(-1)
    torch.testing.assert_close(noise.log_p(x, out), expected)


def test_the_variance_of_each_feature_is_learnt(out, noise, dtype):
    x = torch.randn(N, D, generator=named_generator(0, "x"), dtype=dtype)
    noise.log_p(x, out).sum().backward()
    assert (noise.raw_var.grad != 0).all()


def test_the_variance_moves_twenty_times_as_fast_as_its_parameter(dtype):
    noise = GaussianNoise(3).to(dtype)
    noise.raw_var.data = torch.tensor([-0.1, 0.0, 0.1], dtype=dtype)
    expected = torch.tensor([-2.0, 0.0, 2.0], dtype=dtype).exp().log1p() + 1e-3
    torch.testing.assert_close(noise.var, expected)


def test_a_constant_feature_cannot_push_the_bound_to_infinity():
    noise = GaussianNoise(1)
    torch.nn.init.constant_(noise.raw_var, -1e4)
    assert noise.var.item() == pytest.approx(1e-3)
    assert noise.log_p(torch.zeros(1, 1), torch.zeros(1, 1)).item() < 10


def test_the_mean_is_the_sigmoid_of_the_logits_or_the_output_itself(out, noise):
    assert torch.equal(Bernoulli().mean(out), out.sigmoid())
    assert torch.equal(noise.mean(out), out)


def test_bernoulli_emits_its_mean_rounded(out, dtype):
    rounded = Bernoulli().emit(out, Emission.THRESHOLD, named_generator(0, "emit"))
    assert torch.equal(rounded, (out.sigmoid() > 0.5).to(dtype))


def test_bernoulli_samples_are_zeros_and_ones_as_often_as_the_mean_says(dtype):
    out, n = torch.tensor([-2.0, 0.0, 1.0], dtype=dtype), 20_000
    x = Bernoulli().emit(out.expand(n, 3), Emission.SAMPLE, named_generator(0, "emit"))
    assert x.dtype == dtype
    assert ((x == 0) | (x == 1)).all()
    mu = out.sigmoid()
    assert ((x.mean(0) - mu).abs() < 4.5 * (mu * (1 - mu) / n).sqrt()).all()


@pytest.mark.parametrize("emission", list(Emission))
def test_gaussian_noise_samples_around_its_mean_whatever_the_emission(noise, emission, dtype):
    out, n = torch.arange(D, dtype=dtype), 20_000
    x = noise.emit(out.expand(n, D), emission, named_generator(0, "emit"))
    assert x.dtype == dtype
    standard = ((x - out) / noise.var.sqrt()).detach()
    assert (standard.mean(0).abs() < 4.5 * n**-0.5).all()
    assert ((standard.var(0) - 1).abs() < 4.5 * (2 / n) ** 0.5).all()


def test_every_setting_has_its_module():
    assert isinstance(likelihood(Likelihood.BERNOULLI, D), Bernoulli)
    noise = likelihood(Likelihood.GAUSSIAN, D)
    assert isinstance(noise, GaussianNoise)
    assert noise.var.shape == (D,)
