import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from curlicue.model.gaussian import VAR_FLOOR, Gaussian, gaussian_kl
from curlicue.rng import named_generator


def random_gaussian(seed: int, *shape: int) -> Gaussian:
    return Gaussian.from_raw(2 * torch.randn(*shape, generator=named_generator(seed, "raw")))


def as_normal(gaussian: Gaussian) -> Normal:
    return Normal(gaussian.mean, gaussian.var.sqrt())


def test_the_first_half_is_the_mean_and_softplus_of_the_second_the_variance():
    raw = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    gaussian = Gaussian.from_raw(raw)
    assert torch.equal(gaussian.mean, raw[:, :2])
    torch.testing.assert_close(gaussian.var, softplus(raw[:, 2:]), atol=2 * VAR_FLOOR, rtol=0)


def test_the_kl_matches_torchs():
    q, p = random_gaussian(0, 50, 8), random_gaussian(1, 50, 8)
    torch.testing.assert_close(gaussian_kl(q, p), kl_divergence(as_normal(q), as_normal(p)).sum(-1))


def test_a_gaussian_is_at_no_distance_from_itself():
    q = random_gaussian(0, 50, 8)
    torch.testing.assert_close(gaussian_kl(q, q), torch.zeros(50))


def test_the_density_matches_torchs_for_one_and_for_many_samples():
    gaussian, z = random_gaussian(0, 10, 8), torch.randn(6, 10, 4, generator=named_generator(0, "z"))
    torch.testing.assert_close(gaussian.log_density(z), as_normal(gaussian).log_prob(z).sum(-1))
    torch.testing.assert_close(gaussian.log_density(z[0]), as_normal(gaussian).log_prob(z[0]).sum(-1))


def test_samples_have_the_mean_and_variance_they_were_asked_for_and_are_independent():
    gaussian, n = random_gaussian(0, 2, 6), 100_000
    z = gaussian.sample(named_generator(0, "z"), n)
    assert z.shape == (n, 2, 3)
    standard = ((z - gaussian.mean) / gaussian.var.sqrt()).flatten(1)  # [n, 6]
    assert (standard.mean(0).abs() < 4.5 * n**-0.5).all()
    moments = standard.T @ standard / n  # the variance of x² is 2, that of xx' is 1
    assert ((moments - torch.eye(6)).abs() < 4.5 * (2 / n) ** 0.5).all()


def test_samples_carry_gradients_to_mean_and_variance():
    mean, var = torch.tensor([1.0, -1.0], requires_grad=True), torch.tensor([4.0, 0.25], requires_grad=True)
    z = Gaussian(mean, var).sample(named_generator(0, "z"))[0]
    z.sum().backward()
    noise = (z - mean).detach() / var.detach().sqrt()
    torch.testing.assert_close(mean.grad, torch.ones(2))
    torch.testing.assert_close(var.grad, noise / (2 * var.detach().sqrt()))


def test_a_variance_never_vanishes():
    collapsed = Gaussian.from_raw(torch.full((1, 4), -1e4))
    assert (collapsed.var > 0).all()
    assert gaussian_kl(collapsed, random_gaussian(0, 1, 4)).isfinite().all()
    assert gaussian_kl(random_gaussian(0, 1, 4), collapsed).isfinite().all()
