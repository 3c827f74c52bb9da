import pytest
import torch
from torch.distributions import Normal

from curlicue import config
from curlicue.config import Emission
from curlicue.model.likelihood import Bernoulli, GaussianNoise, likelihood
from curlicue.rng import named_generator

N, D, S = 7, 5, 3


@pytest.fixture
def out() -> torch.Tensor:
    """What a decoder might give for S samples of z for each of N rows."""
    return 2 * torch.randn(S, N, D, generator=named_generator(0, "out"))


@pytest.fixture
def noise() -> GaussianNoise:
    noise = GaussianNoise(D)
    torch.nn.init.normal_(noise.raw_var, generator=named_generator(0, "noise"))
    return noise


def test_bernoulli_matches_torchs_for_zeros_and_ones(out):
    x = torch.rand(N, D, generator=named_generator(0, "x")).round()
    expected = torch.distributions.Bernoulli(logits=out).log_prob(x.expand(S, N, D)).sum(-1)
    torch.testing.assert_close(Bernoulli().log_p(x, out), expected)


def test_bernoulli_is_the_cross_entropy_for_greys(out):
    x, mu = torch.rand(N, D, generator=named_generator(0, "x")), out.sigmoid()
    expected = (x * mu.log() + (1 - x) * (1 - mu).log()).sum(-1)
    torch.testing.assert_close(Bernoulli().log_p(x, out), expected)


def test_bernoulli_stays_finite_where_the_mean_rounds_to_zero_or_one():
    out = torch.tensor([[200.0, -200.0]])
    torch.testing.assert_close(Bernoulli().log_p(torch.tensor([[0.0, 1.0]]), out), torch.tensor([-400.0]))


def test_gaussian_noise_matches_torchs(out, noise):
    x = torch.randn(N, D, generator=named_generator(0, "x"))
    expected = Normal(out, noise.var.sqrt()).log_prob(x.expand(S, N, D)).sum(-1)
    torch.testing.assert_close(noise.log_p(x, out), expected)


def test_the_variance_of_each_feature_is_learnt(out, noise):
    x = torch.randn(N, D, generator=named_generator(0, "x"))
    noise.log_p(x, out).sum().backward()
    assert (noise.raw_var.grad != 0).all()


def test_a_constant_feature_cannot_push_the_bound_to_infinity():
    noise = GaussianNoise(1)
    torch.nn.init.constant_(noise.raw_var, -1e4)
    assert noise.var.item() == pytest.approx(GaussianNoise.VAR_FLOOR)
    assert noise.log_p(torch.zeros(1, 1), torch.zeros(1, 1)).item() < 10


def test_bernoulli_emits_its_mean_or_the_mean_rounded(out):
    rng = named_generator(0, "emit")
    mean = Bernoulli().emit(out, Emission.MEAN, rng)
    torch.testing.assert_close(mean, out.sigmoid())
    assert torch.equal(Bernoulli().emit(out, Emission.THRESHOLD, rng), (mean > 0.5).float())


def test_bernoulli_samples_are_zeros_and_ones_as_often_as_the_mean_says():
    out, n = torch.tensor([-2.0, 0.0, 1.0]), 20_000
    x = Bernoulli().emit(out.expand(n, 3), Emission.SAMPLE, named_generator(0, "emit"))
    assert ((x == 0) | (x == 1)).all()
    mu = out.sigmoid()
    assert ((x.mean(0) - mu).abs() < 4.5 * (mu * (1 - mu) / n).sqrt()).all()


def test_gaussian_noise_emits_its_mean(out, noise):
    assert torch.equal(noise.emit(out, Emission.MEAN, named_generator(0, "emit")), out)


@pytest.mark.parametrize("emission", [Emission.SAMPLE, Emission.THRESHOLD])
def test_gaussian_noise_samples_around_its_mean(noise, emission):
    out, n = torch.arange(float(D)), 20_000
    x = noise.emit(out.expand(n, D), emission, named_generator(0, "emit"))
    standard = ((x - out) / noise.var.sqrt()).detach()
    assert (standard.mean(0).abs() < 4.5 * n**-0.5).all()
    assert ((standard.var(0) - 1).abs() < 4.5 * (2 / n) ** 0.5).all()


def test_every_setting_has_its_module():
    assert isinstance(likelihood(config.Likelihood.BERNOULLI, D), Bernoulli)
    noise = likelihood(config.Likelihood.GAUSSIAN, D)
    assert isinstance(noise, GaussianNoise)
    assert noise.var.shape == (D,)
