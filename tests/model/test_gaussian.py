import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from curlicue.model.gaussian import VAR_FLOOR, Gaussian, gaussian_kl, normal, uniform
from curlicue.rng import named_generator


def random_gaussian(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Gaussian:
    return Gaussian.from_raw(2 * torch.randn(*shape, generator=named_generator(seed, "raw"), dtype=dtype))


def as_normal(gaussian: Gaussian) -> Normal:
    return Normal(gaussian.mean, gaussian.var.sqrt())


def gradients(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value.sum(), inputs, retain_graph=True)


def test_the_first_half_is_the_mean_and_softplus_of_the_second_the_variance(dtype):
    raw = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=dtype)
    gaussian = Gaussian.from_raw(raw)
    assert torch.equal(gaussian.mean, raw[:, :2])
    torch.testing.assert_close(gaussian.var, softplus(raw[:, 2:]), atol=2 * VAR_FLOOR, rtol=0)


def test_the_kl_matches_torchs_in_value_and_in_gradient(dtype):
    raws = [2 * torch.randn(50, 8, generator=named_generator(seed, "raw"), dtype=dtype) for seed in (0, 1)]
    q, p = (Gaussian.from_raw(raw.requires_grad_()) for raw in raws)
    kl, expected = gaussian_kl(q, p), kl_divergence(as_normal(q), as_normal(p)).sum(-1)
    assert kl.dtype == dtype
    torch.testing.assert_close(kl, expected)
    for ours, torchs in zip(gradients(kl, *raws), gradients(expected, *raws), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)


def test_a_gaussian_is_at_no_distance_from_itself(dtype):
    q = random_gaussian(0, 50, 8, dtype=dtype)
    torch.testing.assert_close(gaussian_kl(q, q), torch.zeros(50, dtype=dtype))


def test_the_density_matches_torchs_for_one_and_for_many_samples(dtype):
    gaussian = random_gaussian(0, 10, 8, dtype=dtype)
    z = torch.randn(6, 10, 4, generator=named_generator(0, "z"), dtype=dtype)
    torch.testing.assert_close(gaussian.log_density(z), as_normal(gaussian).log_prob(z).sum(-1))
    torch.testing.assert_close(gaussian.log_density(z[0]), as_normal(gaussian).log_prob(z[0]).sum(-1))


def test_samples_have_the_mean_and_variance_they_were_asked_for_and_are_independent(dtype):
    gaussian, n = random_gaussian(0, 2, 6, dtype=dtype), 100_000
    z = gaussian.sample(named_generator(0, "z"), n)
    assert (z.shape, z.dtype) == ((n, 2, 3), dtype)
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


def test_a_variance_never_vanishes(dtype):
    collapsed = Gaussian.from_raw(torch.full((1, 4), -1e4, dtype=dtype))
    torch.testing.assert_close(collapsed.var, torch.full((1, 2), 1e-6, dtype=dtype))
    assert gaussian_kl(collapsed, random_gaussian(0, 1, 4, dtype=dtype)).isfinite().all()
    assert gaussian_kl(random_gaussian(0, 1, 4, dtype=dtype), collapsed).isfinite().all()


@pytest.mark.parametrize("draw", [normal, uniform])
def test_draws_have_the_type_of_the_tensor_they_are_for_and_come_from_the_generator_alone(draw, dtype):
    like, drawn = torch.empty(0, dtype=dtype), torch.get_rng_state()
    first, again, other = (draw((4, 3), named_generator(seed, "draw"), like) for seed in (0, 0, 1))
    assert (first.shape, first.dtype, first.device) == ((4, 3), dtype, like.device)
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()
    assert torch.equal(torch.get_rng_state(), drawn)
