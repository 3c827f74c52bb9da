import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Generator, Tensor, nn

from curlicue.config import Likelihood
from curlicue.model import networks
from curlicue.model.ascent import Ascent, ascend, ascend_given, can_ascend
from curlicue.model.elbo import ElboTerms, elbo, elbo_given
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.model.networks import ReluNet
from curlicue.rng import named_generator

Y = torch.tensor([0, 2, 2, 0, 4, 2])  # of five components, two are not visited
K, B = 5, len(Y)

KINDS: dict[str, tuple[Callable[..., Ascent], Callable[..., ElboTerms]]] = {
    "exact": (ascend, elbo),
    "sparse": (
        lambda model, x, rng: ascend(model, x, rng, tau=0.3),
        lambda model, x, rng: elbo(model, x, rng, tau=0.3),
    ),
    "given": (
        lambda model, x, rng: ascend_given(model, x, Y[: len(x)], rng),
        lambda model, x, rng: elbo_given(model, x, Y[: len(x)], rng),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
both_likelihoods = pytest.mark.parametrize("likelihood", list(Likelihood))


@pytest.fixture(params=[-1.0, torch.inf], ids=["Dense", "Sparse"])
def either_layer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers that can be are of one type."""
    monkeypatch.setattr(networks, "SPARSE", request.param)


@pytest.fixture
def in_double() -> Iterator[None]:
    """New numbers are double: a wrong term cannot hide behind rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def draws(seed: int = 0) -> Generator:
    return named_generator(seed, "latent")


def slopes_of(model: MixtureVAE, ascent: Ascent) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    slopes = [(name, gradient.dense(named[name])) for name, gradient in ascent.slopes()]
    assert len(dict(slopes)) == len(slopes)  # no parameter comes twice
    return dict(slopes)


def by_autograd(model: MixtureVAE, terms: ElboTerms) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(-terms.bound.mean(), list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}


def assert_same(model: MixtureVAE, x: Tensor, kind: str, rtol: float, atol: float, seed: int = 0) -> None:
    written_out, plain = KINDS[kind]
    rng, twin = draws(seed), draws(seed)
    ascent, terms = written_out(model, x, rng), plain(model, x, twin)
    assert torch.equal(rng.get_state(), twin.get_state())
    for name in ("log_p_x", "kl_z", "kl_y", "q_y", "bound"):
        seen, expected = getattr(ascent.terms, name), getattr(terms, name).detach()
        torch.testing.assert_close(seen, expected, rtol=rtol, atol=atol, msg=name)
        assert not seen.requires_grad
    slopes, expected = slopes_of(model, ascent), by_autograd(model, terms)
    assert slopes.keys() == expected.keys()
    for name, g in expected.items():
        torch.testing.assert_close(slopes[name], g, rtol=rtol, atol=atol, msg=name)


# -- the numbers ---------------------------------------------------------------------------------------------------


@every_kind
@both_likelihoods
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("in_double", "either_layer")
def test_terms_and_gradients_are_those_of_the_bound_and_of_autograd(make_model, make_batch, kind, likelihood, seed):
    assert_same(make_model(K, likelihood, seed=seed), make_batch(B, seed), kind, 1e-9, 1e-12, seed)


@every_kind
@both_likelihoods
def test_in_single_precision_they_differ_by_no_more_than_rounding(make_model, make_batch, kind, likelihood):
    assert_same(make_model(K, likelihood), make_batch(B, grey=True), kind, 1e-5, 1e-6)


@every_kind
@pytest.mark.usefixtures("in_double", "either_layer")
def test_they_agree_where_units_and_features_are_silent(make_model, make_batch, kind):
    model, x = make_model(K), make_batch(B)
    x[:, [1, 4]] = 0
    with torch.no_grad():
        model.encoder.biases[0][:4] = -100
        model.decoder.biases[0][2:6] = -100
    assert_same(model, x, kind, 1e-9, 1e-12)


@every_kind
@pytest.mark.parametrize("network", ["encoder", "decoder"])
@pytest.mark.usefixtures("in_double", "either_layer")
def test_they_agree_where_a_whole_layer_or_a_whole_batch_is_silent(make_model, make_batch, kind, network):
    model, x = make_model(K), make_batch(B)
    assert_same(model, torch.zeros_like(x), kind, 1e-9, 1e-12)
    with torch.no_grad():
        getattr(model, network).biases[0].fill_(-100)
    assert_same(model, x, kind, 1e-9, 1e-12)


@every_kind
@pytest.mark.usefixtures("in_double", "either_layer")
def test_they_agree_for_a_single_sample(make_model, make_batch, kind):
    assert_same(make_model(K), make_batch(1), kind, 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["exact", "sparse"])
@pytest.mark.usefixtures("in_double", "either_layer")
def test_they_agree_for_a_single_component(make_model, make_batch, kind):
    assert_same(make_model(1), make_batch(B), kind, 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["exact", "given"])  # the sparse one's is right in expectation: see test_pairs.py
@both_likelihoods
@pytest.mark.usefixtures("in_double")
def test_the_gradient_is_that_of_finite_differences(make_model, make_batch, kind, likelihood):
    model, x, eps = make_model(K, likelihood), make_batch(B), 1e-6
    written_out, _ = KINDS[kind]
    slopes = slopes_of(model, written_out(model, x, draws()))
    rng = named_generator(0, "direction")
    for name, parameter in model.named_parameters():
        direction, at = torch.randn(parameter.shape, generator=rng), parameter.detach().clone()
        losses = []
        for step in (eps, -eps):
            parameter.data = at + step * direction
            losses.append(-written_out(model, x, draws()).terms.bound.mean())
        parameter.data = at
        along = (slopes[name] * direction).sum()
        torch.testing.assert_close((losses[0] - losses[1]) / (2 * eps), along, rtol=1e-5, atol=1e-7, msg=name)


# -- the way -------------------------------------------------------------------------------------------------------


def test_components_that_nobody_visits_are_not_in_the_gradient_of_their_heads(make_model, make_batch):
    model = make_model(K)
    slopes = dict(ascend_given(model, make_batch(B), Y, draws()).slopes())
    for name in ("heads.q_z_weight", "heads.q_z_bias"):
        assert slopes[name].rows.tolist() == [0, 2, 4]
        assert all(row.any() for row in slopes[name].values)


@every_kind
@pytest.mark.usefixtures("either_layer")
def test_a_parameter_may_move_as_soon_as_its_slope_has_come(make_model, make_batch, kind):
    model, x = make_model(K), make_batch(B)
    expected = slopes_of(model, KINDS[kind][0](model, x, draws()))
    named = dict(model.named_parameters())
    for name, gradient in KINDS[kind][0](model, x, draws()).slopes():
        assert torch.equal(gradient.dense(named[name]), expected[name]), name
        named[name].data.fill_(torch.nan)


@every_kind
def test_looking_at_the_slopes_changes_neither_the_model_nor_the_terms_nor_the_batch(make_model, make_batch, kind):
    model, x = make_model(K), make_batch(B)
    state, seen = copy.deepcopy(model.state_dict()), x.clone()
    ascent = KINDS[kind][0](model, x, draws())
    terms = copy.deepcopy(ascent.terms)
    first, again = (slopes_of(model, ascent) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, vars(terms)[name]) for name, value in vars(ascent.terms).items())
    assert torch.equal(x, seen)


@every_kind
@pytest.mark.parametrize("whole", [True, False])
def test_a_sample_that_is_no_number_spoils_the_bound_and_the_gradient(make_model, make_batch, kind, whole):
    model, x = make_model(K), make_batch(B)
    x[3, slice(None) if whole else 2] = torch.nan
    ascent = KINDS[kind][0](model, x, draws())
    assert ascent.terms.bound.isnan().tolist() == [b == 3 for b in range(B)]
    assert slopes_of(model, ascent)["decoder.biases.1"].isnan().any()


# -- other models --------------------------------------------------------------------------------------------------


def with_networks(encoder: nn.Module, decoder: nn.Module) -> MixtureVAE:
    return MixtureVAE(encoder, decoder, Bernoulli(), n_x=6, n_z=2, K=K, rng=named_generator(0, "heads"))


@pytest.mark.parametrize("n", [B - 1, B + 1])
def test_every_sample_needs_a_component(make_model, make_batch, n):
    message = f"Each sample needs a component. Got {n} components for {B} samples."
    with pytest.raises(ValueError, match=message):
        ascend_given(make_model(K), make_batch(B), torch.zeros(n, dtype=torch.int64), draws())


def test_only_the_papers_networks_with_one_sample_of_z_have_their_gradient_written_out(make_model):
    model = make_model(K)
    assert can_ascend(model, 1)
    assert not can_ascend(model, 2)
    assert not can_ascend(with_networks(nn.Linear(6, 8), model.decoder), 1)
    assert not can_ascend(with_networks(model.encoder, nn.Linear(2, 6)), 1)
    assert not can_ascend(with_networks(ReluNet((6, 8), relu_last=False, rng=draws()), model.decoder), 1)
    assert can_ascend(with_networks(model.encoder, model.decoder), 1)
    model.p_x = type("Louder", (Bernoulli,), {})()
    assert not can_ascend(model, 1)


def test_a_batch_that_would_have_a_gradient_is_climbed_like_any_other(make_model, make_batch):
    model, x = make_model(K), make_batch(B)
    terms = [
        ascend(model, x.requires_grad_(requires), draws()).terms for x, requires in ((x, False), (x.clone(), True))
    ]
    assert torch.equal(terms[0].bound, terms[1].bound)


@pytest.mark.parametrize("z_samples", [1, 3])
def test_others_go_by_autograd_without_a_graph_in_their_terms(make_batch, z_samples):
    model, x = with_networks(nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(2, 6)), make_batch(B)
    terms, same = (elbo(model, x, draws(), tau=0.3, z_samples=z_samples) for _ in range(2))
    ascent = Ascent.by_autograd(model, terms)
    for name, value in vars(ascent.terms).items():
        assert torch.equal(value, getattr(terms, name))
        assert not value.requires_grad
    slopes, expected = slopes_of(model, ascent), by_autograd(model, same)
    assert slopes.keys() == expected.keys()
    assert all(torch.equal(slopes[name], g) for name, g in expected.items())


def test_what_is_frozen_or_not_used_has_no_slope(make_batch):
    encoder = nn.Linear(6, 8)
    encoder.unused = nn.Parameter(torch.ones(3))
    encoder.bias.requires_grad_(False)
    model = with_networks(encoder, nn.Linear(2, 6))
    slopes = slopes_of(model, Ascent.by_autograd(model, elbo(model, make_batch(B), draws())))
    named = {name for name, _ in model.named_parameters()}
    assert named - slopes.keys() == {"encoder.bias", "encoder.unused"}
