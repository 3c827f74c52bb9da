import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from curlicue.config.model import Likelihood
from curlicue.model.elbo import EXACT, ElboTerms, elbo, elbo_given
from curlicue.model.gaussian import VAR_FLOOR
from curlicue.model.likelihood import GaussianNoise
from curlicue.model.mixture import MixtureVAE
from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator
from equations import Terms, brute_force_elbo, brute_force_iwae, log_p_x, p_z, q_y, q_z, reparametrised

SIGMAS = 4.5  # standard errors beyond which we do not believe in chance
TAU = 0.3


def latent_rng(seed: int = 0) -> Generator:
    return named_generator(seed, "latent")


def draw(x: Tensor, *samples: int, n_z: int = 2) -> Tensor:
    """The ε [*samples, B, Z] that makes z of the batch x when nothing was drawn before."""
    return torch.randn(*samples, len(x), n_z, generator=latent_rng(), dtype=x.dtype)


ROUNDING = {
    torch.float32: {"rtol": 1e-3, "atol": 1e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-12},
}


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal up to the rounding of their type."""
    torch.testing.assert_close(found, expected, **ROUNDING[expected.dtype])


def assert_same_terms(terms: ElboTerms, expected: Terms | ElboTerms) -> None:
    for name in ("log_p_x", "kl_z", "kl_y", "q_y", "bound"):
        assert_same(getattr(terms, name), getattr(expected, name))


def gradient(model: MixtureVAE, bound: Tensor) -> Tensor:
    """Of the mean bound, for every parameter, in one row."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(bound.mean(), list(model.parameters()))])


# -- the exact bound ---------------------------------------------------------------------------------------------

both_likelihoods = pytest.mark.parametrize("likelihood", list(Likelihood))


@both_likelihoods
@pytest.mark.parametrize("K", [1, 3, 7])
def test_the_exact_bound_is_the_sum_over_components_in_value_and_in_gradient(make_model, make_batch, K, likelihood):
    model, x = make_model(K, likelihood), make_batch()
    terms = elbo(model, x, latent_rng())
    expected = brute_force_elbo(model, x, draw(x).expand(K, -1, -1))
    assert_same_terms(terms, expected)
    assert_same(gradient(model, terms.bound), gradient(model, expected.bound))


def test_components_that_are_alike_explain_a_sample_just_as_one_of_them_does(make_model, make_batch):
    model, x = make_model(K=1), make_batch()
    alone = elbo(model, x, latent_rng()).bound
    for _ in range(2):
        model.grow(parent=0)
    torch.testing.assert_close(elbo(model, x, latent_rng()).bound, alone)  # chance is the same for all of them


def test_one_component_pays_nothing_for_y(make_model, make_batch):
    assert not elbo(make_model(K=1), make_batch(), latent_rng()).kl_y.any()


def test_an_even_posterior_pays_nothing_for_y_and_a_sure_one_log_K(make_model, make_batch):
    model, x = make_model(K=4), make_batch()
    torch.nn.init.zeros_(model.heads["q_y_weight"])
    torch.nn.init.zeros_(model.heads["q_y_bias"])
    torch.testing.assert_close(elbo(model, x, latent_rng()).kl_y, x.new_zeros(5))
    with torch.no_grad():
        model.heads["q_y_bias"][2] = 1000
    torch.testing.assert_close(elbo(model, x, latent_rng()).kl_y, x.new_full((5,), math.log(4)))


def test_the_bound_is_reconstruction_less_the_costs_of_z_and_y():
    terms = ElboTerms(torch.tensor([-5.0]), torch.tensor([2.0]), torch.tensor([0.5]), torch.ones(1, 1))
    assert terms.bound.item() == -7.5


@pytest.mark.parametrize("tau", [EXACT, 0.1])
def test_a_samples_bound_does_not_depend_on_its_neighbours(make_model, make_batch, tau):
    model, x = make_model(K=3), make_batch(400)
    with torch.no_grad():
        model.heads["q_z_bias"][:, 2:] = -1000  # z hardly varies
        model.heads["q_y_bias"][:2] = -1000  # q(y|x) is one-hot
    together = elbo(model, x, latent_rng(), tau=tau).bound
    alone = elbo(model, x[7:8], latent_rng(), tau=tau).bound
    torch.testing.assert_close(together[7:8], alone, atol=0.05, rtol=0)


def test_the_posteriors_handed_out_are_detached_from_the_graph(make_model, make_batch):
    y = torch.tensor([0, 1, 2, 0, 1])
    for terms in (
        elbo(make_model(), make_batch(), latent_rng()),
        elbo_given(make_model(), make_batch(), y, latent_rng()),
    ):
        assert not terms.q_y.requires_grad
        assert terms.bound.requires_grad
        torch.testing.assert_close(terms.q_y.sum(1), terms.bound.new_ones(5))


# -- one definition -----------------------------------------------------------------------------------------------


@both_likelihoods
@pytest.mark.parametrize("z_samples", [1, 4])
def test_the_exact_bound_is_made_of_those_of_the_given_components(make_model, make_batch, likelihood, z_samples):
    model, x = make_model(3, likelihood), make_batch()
    terms = elbo(model, x, latent_rng(), z_samples=z_samples)
    q, each = terms.q_y, [torch.full((len(x),), k) for k in range(3)]
    given = [elbo_given(model, x, y, latent_rng(), z_samples=z_samples) for y in each]
    assert_same(terms.log_p_x, sum(q[:, k] * of_k.log_p_x for k, of_k in enumerate(given)))
    assert_same(terms.kl_z, sum(q[:, k] * of_k.kl_z for k, of_k in enumerate(given)))
    assert_same(terms.kl_y, math.log(3) - sum(q[:, k] * of_k.kl_y for k, of_k in enumerate(given)))


def test_all_bounds_of_a_sample_are_in_numbers_of_the_models_own_type(make_model, make_batch, dtype):
    model, x, y = make_model(), make_batch(), torch.zeros(5, dtype=torch.int64)
    ways = [{}, {"tau": TAU}, {"z_samples": 3}, {"tau": TAU, "z_samples": 3}]
    bounds = [elbo(model, x, latent_rng(), **way) for way in ways] + [elbo_given(model, x, y, latent_rng())]
    for terms in bounds:
        assert {getattr(terms, name).dtype for name in ("log_p_x", "kl_z", "kl_y", "q_y", "bound")} == {dtype}


@both_likelihoods
@pytest.mark.parametrize("z_samples", [1, 4])
def test_the_type_of_the_numbers_changes_bound_and_gradient_by_rounding_alone(
    make_model, make_batch, dtype, likelihood, z_samples
):
    model, x = make_model(3, likelihood), make_batch()
    noise = draw(x, z_samples)
    terms = elbo(model, x, latent_rng(), noise=noise)
    slope = gradient(model, terms.bound)
    precise = elbo(model.double(), x.double(), latent_rng(), noise=noise.double())
    assert_same(terms.bound, precise.bound.to(dtype))
    assert_same(slope, gradient(model, precise.bound).to(dtype))


def test_noise_that_is_given_is_the_noise_that_is_drawn(make_model, make_batch):
    model, x, unused = make_model(), make_batch(), latent_rng(1)
    given = elbo(model, x, unused, noise=draw(x, 4)).bound
    assert torch.equal(given, elbo(model, x, latent_rng(), z_samples=4).bound)
    assert torch.equal(unused.get_state(), latent_rng(1).get_state())


def test_terms_on_the_host_are_the_same_numbers_without_a_graph(make_model, make_batch):
    terms = elbo(make_model(), make_batch(), latent_rng())
    host = terms.on_host()
    for name in ("log_p_x", "kl_z", "kl_y", "q_y", "bound"):
        assert torch.equal(getattr(host, name), getattr(terms, name))
        assert not getattr(host, name).requires_grad
        assert getattr(host, name).device.type == "cpu"


# -- the component-constrained bound (Eq. 4) ---------------------------------------------------------------------


@both_likelihoods
def test_the_constrained_bound_is_that_of_the_given_component(make_model, make_batch, likelihood):
    model, x, y = make_model(4, likelihood), make_batch(6), torch.tensor([3, 0, 0, 2, 3, 0])
    noise, expected = draw(x), []
    for b, k in enumerate(y.tolist()):
        q, x_b = q_z(model, x[b], k), x[b]
        log_p = log_p_x(model, x_b, reparametrised(q, noise[b]))
        expected.append(log_p - kl_divergence(q, p_z(model, k)) + q_y(model, x_b).probs[k].log())
    terms = elbo_given(model, x, y, latent_rng())
    assert_same(terms.bound, torch.stack(expected))
    assert_same(terms.kl_y, -q_y(model, x).log_prob(y))
    assert_same(gradient(model, terms.bound), gradient(model, torch.stack(expected)))


def test_the_encoder_may_be_shown_other_rows_than_those_that_are_decoded(make_model, make_batch):
    model, x, y = make_model(4), make_batch(6), torch.tensor([3, 0, 0, 2, 3, 0])
    shown = elbo_given(model, x, y, latent_rng(), seen=x.flip(0))
    others = elbo_given(model, x.flip(0), y, latent_rng())
    assert_same(shown.kl_z, others.kl_z)
    assert_same(shown.q_y, others.q_y)
    expected, noise = [], draw(x)
    for b, k in enumerate(y.tolist()):
        z = reparametrised(q_z(model, x.flip(0)[b], k), noise[b])
        expected.append(log_p_x(model, x[b], z))
    assert_same(shown.log_p_x, torch.stack(expected))


def test_with_one_component_the_constrained_bound_is_the_plain_one(make_model, make_batch):
    model, x = make_model(K=1), make_batch()
    constrained = elbo_given(model, x, torch.zeros(5, dtype=torch.int64), latent_rng())
    torch.testing.assert_close(constrained.bound, elbo(model, x, latent_rng()).bound)


def test_each_sample_needs_a_component(make_model, make_batch):
    with pytest.raises(ValueError, match=r"Each sample needs a component\. Got 4 components for 5 samples\."):
        elbo_given(make_model(), make_batch(), torch.zeros(4, dtype=torch.int64), latent_rng())


# -- the sparse bound --------------------------------------------------------------------------------------------


def visits(model: MixtureVAE) -> list[int]:
    """Grows by the number of rows whenever the decoder is called."""
    seen: list[int] = []
    model.decoder.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    return seen


@both_likelihoods
def test_a_sparse_bound_that_keeps_every_pair_is_the_exact_one(make_model, make_batch, likelihood):
    model, x, late = make_model(7, likelihood), make_batch(), latent_rng()
    torch.rand(7, 5, generator=late, dtype=x.dtype)  # the draws that decide which pairs are kept
    assert_same_terms(elbo(model, x, latent_rng(), tau=1e-6), elbo(model, x, late))


def test_the_exact_bound_visits_all_pairs_and_the_sparse_one_as_many_as_tau_says(make_model, make_batch):
    model, x = make_model(K=7), make_batch(2000)
    seen = visits(model)
    elbo(model, x, latent_rng())
    elbo(model, x, latent_rng(), tau=TAU)
    q = q_y(model, x).probs
    p = (q / TAU).clamp_max(1).scatter(1, q.argmax(1, keepdim=True), 1)  # the most probable one is always visited
    assert seen[0] == 7 * 2000
    assert abs(seen[1] - p.sum()) < SIGMAS * (p * (1 - p)).sum().sqrt()


def test_a_peaked_posterior_costs_the_sparse_bound_little_more_than_one_pair_a_sample(make_model, make_batch):
    model, x = make_model(K=7), make_batch(1000)
    with torch.no_grad():
        model.heads["q_y_weight"] *= 300
    seen = visits(model)
    elbo(model, x, latent_rng(), tau=0.01)
    assert 1000 <= seen[0] < 1250


def draws(bound: Callable[[int], Tensor], model: MixtureVAE, n: int = 120) -> tuple[Tensor, Tensor]:
    """Mean bounds of the samples [n, B], and gradients for every parameter [n, P]."""
    bounds = [bound(seed) for seed in range(n)]  # each [copies, B]
    gradients = torch.stack([gradient(model, b) for b in bounds])
    return torch.stack([b.detach().mean(0) for b in bounds]), gradients


def deviation(a: Tensor, b: Tensor) -> float:
    """By how many standard errors the means of two sets of draws differ, in the worst coordinate."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    return float(((a.mean(0) - b.mean(0)).abs() / error.clamp_min(1e-6)).max())


def sparse_against_exact(model: MixtureVAE, x: Tensor, z_samples: int = 1) -> tuple[float, float]:
    """How far the sparse bound deviates from the exact one, in value and in gradient."""
    copies = 60
    many = x.repeat(copies, 1)

    def bound(seed: int, tau: float) -> Tensor:
        return elbo(model, many, latent_rng(seed), tau=tau, z_samples=z_samples).bound.view(copies, -1)

    exact, exact_gradients = draws(lambda seed: bound(seed, EXACT), model)
    sparse, sparse_gradients = draws(lambda seed: bound(1000 + seed, TAU), model)
    return deviation(sparse, exact), deviation(sparse_gradients, exact_gradients)


def test_these_posteriors_are_neither_even_nor_one_hot(make_model, make_batch):
    q = q_y(make_model(K=5), make_batch(3)).probs
    assert (q < TAU / 2).any(1).all()
    assert ((q > TAU).sum(1) >= 1).all()
    assert q.max() < 0.9
    assert q.max(1).values.min() > 0.3


@both_likelihoods
@pytest.mark.parametrize("z_samples", [1, 3])
def test_the_sparse_bound_is_unbiased_in_value_and_in_gradient(make_model, make_batch, likelihood, z_samples):
    value, gradients = sparse_against_exact(make_model(5, likelihood), make_batch(3), z_samples)
    assert value < SIGMAS
    assert gradients < SIGMAS


def unweighed(q: Tensor) -> Tensor:
    return q


def with_p_not_held_constant(q: Tensor) -> Tensor:
    return q / (q / TAU).clamp_max(1)


@pytest.mark.parametrize(("mistake", "shows_in_value"), [(unweighed, True), (with_p_not_held_constant, False)])
def test_a_mistake_in_the_sparse_weights_would_be_noticed(make_model, make_batch, monkeypatch, mistake, shows_in_value):
    right = Pairs.sparse

    def wrong(q_y: Tensor, tau: float, rng: Generator) -> Pairs:
        kept = right(q_y, tau, rng)
        return replace(kept, weights=mistake(q_y[kept.rows, kept.ks]))

    monkeypatch.setattr(Pairs, "sparse", wrong)
    value, gradients = sparse_against_exact(make_model(K=5), make_batch(3))
    assert (value > 2 * SIGMAS) == shows_in_value
    assert gradients > 2 * SIGMAS


def test_one_sample_has_a_bound_even_if_no_component_reaches_tau(make_model, make_batch):
    model, x = make_model(K=9), make_batch(1)
    torch.nn.init.zeros_(model.heads["q_y_weight"])
    assert q_y(model, x).probs.max() < 0.5
    for seed in range(50):
        assert elbo(model, x, latent_rng(seed), tau=0.9).bound.isfinite()


# -- where the posterior is exact ----------------------------------------------------------------------------------

PRIOR_VAR, NOISE_VAR = torch.tensor([[0.5, 2.0], [0.3, 1.5]], dtype=torch.float64)
CENTRES = torch.tensor([[0.0, 1.0], [-2.0, 0.5], [1.0, -1.0]], dtype=torch.float64)


def raw(var: Tensor, floor: float = VAR_FLOOR) -> Tensor:
    """What softplus and the floor make `var` of."""
    return (var - floor).expm1().log()


@torch.no_grad()
def exactly_inferred(dtype: torch.dtype) -> MixtureVAE:
    """x is z with noise, and q(y|x) and q(z|x,y) are the posteriors of the model itself."""
    identity = torch.nn.Identity()
    model = MixtureVAE(identity, identity, GaussianNoise(2), n_x=2, n_z=2, K=3, rng=latent_rng()).double()
    posterior_var, var = 1 / (1 / PRIOR_VAR + 1 / NOISE_VAR), PRIOR_VAR + NOISE_VAR
    weight = torch.cat([torch.diag(posterior_var / NOISE_VAR), CENTRES.new_zeros(2, 2)], 1)  # [H, 2Z]
    model.heads["q_z_weight"].copy_(weight.expand(3, 2, 4))
    model.heads["q_z_bias"].copy_(torch.cat([CENTRES * posterior_var / PRIOR_VAR, raw(posterior_var).expand(3, 2)], 1))
    model.heads["p_z"].copy_(torch.cat([CENTRES, raw(PRIOR_VAR).expand(3, 2)], 1))
    model.heads["q_y_weight"].copy_(CENTRES / var)
    model.heads["q_y_bias"].copy_(-(CENTRES.square() / var).sum(1) / 2)
    model.p_x.raw_var.copy_(raw(NOISE_VAR, GaussianNoise.VAR_FLOOR) / GaussianNoise.PACE)
    return model.to(dtype)


def exact_evidence(x: Tensor) -> Tensor:
    """log p(x|k) [B, K]: each component is a Gaussian in x."""
    of_each = MultivariateNormal(CENTRES, torch.diag(PRIOR_VAR + NOISE_VAR))
    return of_each.log_prob(x.double()[:, None])


@pytest.fixture
def spread(dtype) -> Tensor:
    """x [20, 2] around the three centres and between them."""
    return 2 * torch.randn(20, 2, generator=named_generator(0, "spread"), dtype=dtype)


def test_the_bound_is_the_evidence_where_the_posterior_is_exact(spread, dtype):
    model, ones = exactly_inferred(dtype), torch.ones(1, 20, 2, dtype=dtype)
    # ε = 1 and ε = −1 have the mean and the variance of a standard normal ε, and the bound is quadratic in it
    bounds = [elbo(model, spread, latent_rng(), noise=noise).bound for noise in (ones, -ones)]
    evidence = exact_evidence(spread).logsumexp(1) - math.log(3)
    assert_same(torch.stack(bounds).mean(0), evidence.to(dtype))


@pytest.mark.parametrize("z_samples", [2, 7])
def test_the_importance_weighted_bound_is_the_evidence_at_every_draw_where_the_posterior_is_exact(
    spread, dtype, z_samples
):
    bound = elbo(exactly_inferred(dtype), spread, latent_rng(), z_samples=z_samples).bound
    assert_same(bound, (exact_evidence(spread).logsumexp(1) - math.log(3)).to(dtype))


@pytest.mark.parametrize("z_samples", [1, 7])
def test_the_constrained_bound_is_the_evidence_of_x_and_the_posterior_of_y_where_these_are_exact(
    spread, dtype, z_samples
):
    model, y, of_each = exactly_inferred(dtype), torch.arange(20) % 3, exact_evidence(spread)
    expected = (of_each + of_each.log_softmax(1)).gather(1, y[:, None]).squeeze(1)
    many = [elbo_given(model, spread, y, latent_rng(s), z_samples=z_samples).bound for s in range(500)]
    bounds = torch.stack(many).detach()
    error = bounds.std(0) / len(many) ** 0.5 + 1e-4
    assert ((bounds.mean(0) - expected).abs() < SIGMAS * error).all()


@pytest.mark.parametrize("tau", [0.2, 0.9])
def test_the_sparse_bound_is_the_evidence_on_average_where_the_posterior_is_exact(spread, dtype, tau):
    copies = 2000
    with torch.no_grad():
        many = elbo(exactly_inferred(dtype), spread.repeat(copies, 1), latent_rng(), tau=tau).bound.view(copies, 20)
    error = many.std(0) / copies**0.5 + 1e-4
    expected = exact_evidence(spread).logsumexp(1) - math.log(3)
    assert ((many.mean(0) - expected).abs() < SIGMAS * error).all()


@both_likelihoods
def test_the_cost_of_z_is_what_its_draws_cost_on_average(make_model, make_batch, likelihood):
    model, x, S = make_model(3, likelihood), make_batch(), 20_000
    with torch.no_grad():
        costs = []
        for k in range(3):
            q, p = q_z(model, x, k), p_z(model, k)
            z = reparametrised(q, draw(x, S))  # [S, B, Z]
            costs.append(q_y(model, x).probs[:, k] * (q.log_prob(z) - p.log_prob(z)))
        cost = sum(costs)  # [S, B]
        found = elbo(model, x, latent_rng()).kl_z
    assert ((found - cost.mean(0)).abs() < SIGMAS * cost.std(0) / S**0.5).all()


# -- several samples of z ----------------------------------------------------------------------------------------


@both_likelihoods
@pytest.mark.parametrize("K", [1, 3])
def test_the_importance_weighted_bound_is_the_log_of_the_mean_weight(make_model, make_batch, K, likelihood):
    model, x, S = make_model(K, likelihood), make_batch(), 4
    terms = elbo(model, x, latent_rng(), z_samples=S)
    expected = brute_force_iwae(model, x, draw(x, S).expand(K, -1, -1, -1))
    assert_same(terms.bound, expected)
    assert_same(gradient(model, terms.bound), gradient(model, expected))


def test_the_reconstruction_reported_with_several_samples_is_their_mean(make_model, make_batch):
    model, x, S = make_model(K=1), make_batch(), 4
    expected = log_p_x(model, x, reparametrised(q_z(model, x, 0), draw(x, S))).mean(0)
    assert_same(elbo(model, x, latent_rng(), z_samples=S).log_p_x, expected)


def test_the_constrained_bound_is_importance_weighted_too(make_model, make_batch):
    model, x, S = make_model(K=3), make_batch(), 4
    y = torch.full((5,), 1)
    q, p = q_z(model, x, 1), p_z(model, 1)
    z = reparametrised(q, draw(x, S))
    log_w = log_p_x(model, x, z) + p.log_prob(z) - q.log_prob(z)
    expected = log_w.exp().mean(0).log() + q_y(model, x).log_prob(y)
    assert_same(elbo_given(model, x, y, latent_rng(), z_samples=S).bound, expected)


@torch.no_grad()
def evidence(model: MixtureVAE, x: Tensor, n: int = 50_000) -> tuple[Tensor, Tensor]:
    """log p(x) [B] by importance sampling, y and z drawn from the model's own posterior; with standard errors."""
    rng, posterior = latent_rng(99), q_y(model, x)
    y = torch.multinomial(posterior.probs, n, replacement=True, generator=rng).T  # [n, B]
    log_w = x.new_empty(y.shape)
    for k in range(model.K):
        q, p, drawn = q_z(model, x, k), p_z(model, k), y == k
        z = reparametrised(q, torch.randn(*y.shape, model.n_z, generator=rng, dtype=x.dtype))
        weight = log_p_x(model, x, z) + p.log_prob(z) - q.log_prob(z) - math.log(model.K) - posterior.logits[:, k]
        log_w[drawn] = weight[drawn]
    log_p = log_w.logsumexp(0) - math.log(n)
    return log_p, (log_w - log_p).exp().std(0) / n**0.5


@torch.no_grad()
def integrated_evidence(model: MixtureVAE, x: Tensor) -> Tensor:
    """log p(x) [B] for a one-dimensional z, by summing over a fine grid."""
    z = torch.linspace(-30, 30, 6001, dtype=x.dtype)[:, None]
    log_p_z = torch.stack([p_z(model, k).log_prob(z) for k in range(model.K)]).logsumexp(0) - math.log(model.K)
    joint = torch.stack([log_p_x(model, x_b, z) for x_b in x], 1) + log_p_z[:, None]  # [grid, B]
    return joint.logsumexp(0) + math.log(60 / 6000)


def trained(model: MixtureVAE, x: Tensor) -> MixtureVAE:
    """So that the bound comes close to what it must stay below."""
    optimiser, rng = torch.optim.Adam(model.parameters(), lr=0.01), latent_rng(7)
    for _ in range(300):
        optimiser.zero_grad()
        (-elbo(model, x.repeat(10, 1), rng).bound.mean()).backward()
        optimiser.step()
    return model


def test_the_bound_rises_with_the_samples_of_z_and_stays_below_the_evidence(make_model, make_batch):
    x, copies = make_batch(4), 2000
    model = trained(make_model(K=2, n_z=1), x)
    log_p, error = evidence(model, x)
    assert ((log_p - integrated_evidence(model, x)).abs() < SIGMAS * error + 1e-3).all()
    means, errors = [], []
    for S in (1, 5, 50):
        with torch.no_grad():
            bounds = elbo(model, x.repeat(copies, 1), latent_rng(S), z_samples=S).bound.view(copies, 4)
        means.append(bounds.mean(0))
        errors.append(bounds.std(0) / copies**0.5)
    one, five, fifty = means
    assert (five >= one - SIGMAS * (errors[0] ** 2 + errors[1] ** 2).sqrt()).all()
    assert (fifty >= five - SIGMAS * (errors[1] ** 2 + errors[2] ** 2).sqrt()).all()
    assert (fifty <= log_p + SIGMAS * (errors[2] ** 2 + error**2).sqrt()).all()
    assert (log_p - fifty).mean() < 0.5  # and not far below
