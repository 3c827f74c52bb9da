import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.nn.functional import softplus

from curlicue.config import Likelihood
from curlicue.model.elbo import ElboTerms, elbo, elbo_given
from curlicue.model.gaussian import VAR_FLOOR
from curlicue.model.mixture import MixtureVAE
from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator

SIGMAS = 4.5  # standard errors beyond which we do not believe in chance


def latent_rng(seed: int = 0) -> Generator:
    return named_generator(seed, "latent")


# -- the equations, written with torch's distributions and loops -------------------------------------------------


def normal(raw: Tensor) -> Independent:
    mean, raw_var = raw.chunk(2, -1)
    return Independent(Normal(mean, (softplus(raw_var) + VAR_FLOOR).sqrt()), 1)


def q_y(model: MixtureVAE, x: Tensor) -> Categorical:
    h = model.encoder(x)
    return Categorical(logits=h @ model.heads["q_y_weight"].T + model.heads["q_y_bias"])


def q_z(model: MixtureVAE, x: Tensor, k: int) -> Independent:
    return normal(model.encoder(x) @ model.heads["q_z_weight"][k] + model.heads["q_z_bias"][k])


def p_z(model: MixtureVAE, k: int) -> Independent:
    return normal(model.heads["p_z"][k] + model.p_z_bias)


def log_p_x(model: MixtureVAE, x: Tensor, z: Tensor) -> Tensor:
    out = model.decoder(z)
    if hasattr(model.p_x, "raw_var"):
        return Normal(out, model.p_x.var.sqrt()).log_prob(x).sum(-1)
    return torch.distributions.Bernoulli(logits=out).log_prob(x).sum(-1)


def reparametrised(q: Independent, noise: Tensor) -> Tensor:
    return q.base_dist.loc + q.base_dist.scale * noise


def brute_force_elbo(model: MixtureVAE, x: Tensor, noise: Tensor) -> ElboTerms:
    """Eq. 3 with the noise [K, B, Z] given."""
    posterior, reconstruction, kl_z = q_y(model, x), torch.zeros(len(x)), torch.zeros(len(x))
    for k in range(model.K):
        q, p = q_z(model, x, k), p_z(model, k)
        reconstruction = reconstruction + posterior.probs[:, k] * log_p_x(model, x, reparametrised(q, noise[k]))
        kl_z = kl_z + posterior.probs[:, k] * kl_divergence(q, p)
    kl_y = kl_divergence(posterior, Categorical(torch.ones(model.K) / model.K))
    return ElboTerms(reconstruction, kl_z, kl_y, posterior.probs)


def brute_force_iwae(model: MixtureVAE, x: Tensor, noise: Tensor) -> Tensor:
    """The same with log 1/S Σₛ p(x|zₛ) p(zₛ|k) / q(zₛ|x,k) for each component; noise [K, S, B, Z]."""
    posterior = q_y(model, x)
    bound = -kl_divergence(posterior, Categorical(torch.ones(model.K) / model.K))
    for k in range(model.K):
        q, p = q_z(model, x, k), p_z(model, k)
        log_w = []
        for eps in noise[k]:
            z = reparametrised(q, eps)
            log_w.append(log_p_x(model, x, z) + p.log_prob(z) - q.log_prob(z))
        bound = bound + posterior.probs[:, k] * torch.stack(log_w).exp().mean(0).log()
    return bound


def assert_same_terms(terms: ElboTerms, expected: ElboTerms) -> None:
    for name in ("log_p_x", "kl_z", "kl_y", "q_y", "bound"):
        torch.testing.assert_close(getattr(terms, name), getattr(expected, name), rtol=1e-4, atol=1e-5, msg=name)


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
    noise = torch.randn(len(x), 2, generator=latent_rng())
    expected = brute_force_elbo(model, x, noise.expand(K, -1, -1))
    assert_same_terms(terms, expected)
    torch.testing.assert_close(gradient(model, terms.bound), gradient(model, expected.bound), rtol=1e-3, atol=1e-5)


def test_components_that_are_alike_explain_a_sample_just_as_one_of_them_does(make_model, make_batch):
    model, x = make_model(K=1), make_batch()
    alone = elbo(model, x, latent_rng()).bound
    for _ in range(2):
        model.grow(parent=0)
    torch.testing.assert_close(elbo(model, x, latent_rng()).bound, alone)  # chance is the same for all of them


def test_one_component_pays_nothing_for_y(make_model, make_batch):
    assert not elbo(make_model(K=1), make_batch(), latent_rng()).kl_y.any()


def test_an_even_posterior_pays_nothing_for_y_and_a_sure_one_log_K(make_model, make_batch):
    model = make_model(K=4)
    torch.nn.init.zeros_(model.heads["q_y_weight"])
    torch.nn.init.zeros_(model.heads["q_y_bias"])
    torch.testing.assert_close(elbo(model, make_batch(), latent_rng()).kl_y, torch.zeros(5))
    with torch.no_grad():
        model.heads["q_y_bias"][2] = 1000
    torch.testing.assert_close(elbo(model, make_batch(), latent_rng()).kl_y, torch.full((5,), math.log(4)))


def test_the_bound_is_reconstruction_less_the_costs_of_z_and_y():
    terms = ElboTerms(torch.tensor([-5.0]), torch.tensor([2.0]), torch.tensor([0.5]), torch.ones(1, 1))
    assert terms.bound.item() == -7.5


@pytest.mark.parametrize("tau", [None, 0.1])
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
        torch.testing.assert_close(terms.q_y.sum(1), torch.ones(5))


# -- the component-constrained bound (Eq. 4) ---------------------------------------------------------------------


@both_likelihoods
def test_the_constrained_bound_is_that_of_the_given_component(make_model, make_batch, likelihood):
    model, x, y = make_model(4, likelihood), make_batch(6), torch.tensor([3, 0, 0, 2, 3, 0])
    noise = torch.randn(6, 2, generator=latent_rng())
    expected = []
    for b, k in enumerate(y.tolist()):
        q, x_b = q_z(model, x[b], k), x[b]
        log_p = log_p_x(model, x_b, reparametrised(q, noise[b]))
        expected.append(log_p - kl_divergence(q, p_z(model, k)) + q_y(model, x_b).probs[k].log())
    terms = elbo_given(model, x, y, latent_rng())
    torch.testing.assert_close(terms.bound, torch.stack(expected))
    torch.testing.assert_close(terms.kl_y, -q_y(model, x).log_prob(y))
    torch.testing.assert_close(
        gradient(model, terms.bound), gradient(model, torch.stack(expected)), rtol=1e-3, atol=1e-5
    )


def test_with_one_component_the_constrained_bound_is_the_plain_one(make_model, make_batch):
    model, x = make_model(K=1), make_batch()
    constrained = elbo_given(model, x, torch.zeros(5, dtype=torch.int64), latent_rng())
    torch.testing.assert_close(constrained.bound, elbo(model, x, latent_rng()).bound)


# -- the sparse bound --------------------------------------------------------------------------------------------

TAU = 0.3


def visits(model: MixtureVAE) -> list[int]:
    """Grows by the number of rows whenever the decoder is called."""
    seen: list[int] = []
    model.decoder.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    return seen


@both_likelihoods
def test_a_sparse_bound_that_keeps_every_pair_is_the_exact_one(make_model, make_batch, likelihood):
    model, x, late = make_model(7, likelihood), make_batch(), latent_rng()
    torch.rand(7, 5, generator=late)  # the draws that decide which pairs are kept
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

    def bound(seed: int, tau: float | None) -> Tensor:
        return elbo(model, many, latent_rng(seed), tau=tau, z_samples=z_samples).bound.view(copies, -1)

    exact, exact_gradients = draws(lambda seed: bound(seed, None), model)
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


# -- several samples of z ----------------------------------------------------------------------------------------


@both_likelihoods
@pytest.mark.parametrize("K", [1, 3])
def test_the_importance_weighted_bound_is_the_log_of_the_mean_weight(make_model, make_batch, K, likelihood):
    model, x, S = make_model(K, likelihood), make_batch(), 4
    noise = torch.randn(S, len(x), 2, generator=latent_rng())
    terms = elbo(model, x, latent_rng(), z_samples=S)
    expected = brute_force_iwae(model, x, noise.expand(K, -1, -1, -1))
    torch.testing.assert_close(terms.bound, expected)
    torch.testing.assert_close(gradient(model, terms.bound), gradient(model, expected), rtol=1e-3, atol=1e-5)


def test_the_reconstruction_reported_with_several_samples_is_their_mean(make_model, make_batch):
    model, x, S = make_model(K=1), make_batch(), 4
    noise = torch.randn(S, 5, 2, generator=latent_rng())
    expected = log_p_x(model, x, reparametrised(q_z(model, x, 0), noise)).mean(0)
    torch.testing.assert_close(elbo(model, x, latent_rng(), z_samples=S).log_p_x, expected)


def test_the_constrained_bound_is_importance_weighted_too(make_model, make_batch):
    model, x, S = make_model(K=3), make_batch(), 4
    y = torch.full((5,), 1)
    noise = torch.randn(S, 5, 2, generator=latent_rng())
    q, p = q_z(model, x, 1), p_z(model, 1)
    z = reparametrised(q, noise)
    log_w = log_p_x(model, x, z) + p.log_prob(z) - q.log_prob(z)
    expected = log_w.exp().mean(0).log() + q_y(model, x).log_prob(y)
    torch.testing.assert_close(elbo_given(model, x, y, latent_rng(), z_samples=S).bound, expected)


@torch.no_grad()
def evidence(model: MixtureVAE, x: Tensor, n: int = 50_000) -> tuple[Tensor, Tensor]:
    """log p(x) [B] by importance sampling, y and z drawn from the model's own posterior; with standard errors."""
    rng, posterior = latent_rng(99), q_y(model, x)
    y = torch.multinomial(posterior.probs, n, replacement=True, generator=rng).T  # [n, B]
    log_w = torch.empty(y.shape)
    for k in range(model.K):
        q, p, drawn = q_z(model, x, k), p_z(model, k), y == k
        z = reparametrised(q, torch.randn(*y.shape, model.n_z, generator=rng))
        weight = log_p_x(model, x, z) + p.log_prob(z) - q.log_prob(z) - math.log(model.K) - posterior.logits[:, k]
        log_w[drawn] = weight[drawn]
    log_p = log_w.logsumexp(0) - math.log(n)
    return log_p, (log_w - log_p).exp().std(0) / n**0.5


@torch.no_grad()
def integrated_evidence(model: MixtureVAE, x: Tensor) -> Tensor:
    """log p(x) [B] for a one-dimensional z, by summing over a fine grid."""
    z = torch.linspace(-30, 30, 6001)[:, None]
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
