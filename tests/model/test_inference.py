import pytest
import torch
from torch import Tensor, nn

from curlicue.model import inference
from curlicue.model.elbo import EXACT, elbo
from curlicue.model.inference import bounds, components, embed, mean_bounds, posterior, reconstruct
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator
from equations import brute_force_elbo


@pytest.fixture
def model(make_model) -> MixtureVAE:
    return make_model(K=4, seed=1)


@pytest.fixture
def x(model, make_batch) -> Tensor:
    """Its rows do not come in the order of their components, and at least three components have some."""
    x = make_batch(60, grey=True)
    x = 6 * (x - x.mean(0)) + 0.5
    y = components(model, x)
    assert len(y.unique()) >= 3
    assert not torch.equal(y, y.sort().values)
    return x


@pytest.fixture
def small_chunks(monkeypatch) -> None:
    monkeypatch.setattr(inference, "CHUNK", 7)  # 60 rows: eight chunks and a rest


def row_by_row(model: MixtureVAE, x: Tensor) -> Tensor:
    """The mean of q(z|x, argmax y), one sample at a time, straight from the weights."""
    rows = []
    for row in x:
        h = model.encode(row[None])
        k = int(model.log_q_y(h)[0].argmax())
        raw = h[0] @ model.heads["q_z_weight"][k] + model.heads["q_z_bias"][k]
        rows.append(raw[: model.n_z])
    return torch.stack(rows)


# -- q(y|x) and z ------------------------------------------------------------------------------------------------


def test_the_posterior_is_that_of_the_model_whatever_the_chunks(model, x, small_chunks):
    expected = model.log_q_y(model.encode(x)).exp()
    torch.testing.assert_close(posterior(model, x), expected.detach())
    assert torch.equal(components(model, x), expected.argmax(1))


def test_embeddings_are_the_means_of_the_likeliest_component_row_by_row(model, x, small_chunks):
    torch.testing.assert_close(embed(model, x), row_by_row(model, x).detach(), atol=1e-5, rtol=1e-5)


def test_embeddings_do_not_depend_on_the_chunks(model, x, monkeypatch):
    whole = embed(model, x)
    monkeypatch.setattr(inference, "CHUNK", 7)
    assert torch.allclose(embed(model, x), whole, atol=1e-6)


def test_embedding_rows_follow_their_samples(model, x):
    order = torch.randperm(len(x), generator=named_generator(0, "order"))
    assert torch.allclose(embed(model, x[order]), embed(model, x)[order], atol=1e-6)


def test_sampled_embeddings_repeat_with_the_seed_and_differ_without(model, x):
    first, again, other = (embed(model, x, named_generator(seed, "z")) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()
    assert not torch.isclose(first, embed(model, x)).any()


def test_sampled_embeddings_draw_y_from_its_posterior_and_z_around_its_mean_in_the_order_of_rows(model, x):
    n = 4000
    for row in x[:2]:
        q_y = posterior(model, row[None])[0]  # [K]
        q_z = model.q_z(model.encode(row[None]), Pairs.every(q_y[None]))  # [K, Z]
        mean = q_y @ q_z.mean  # [Z]
        var = q_y @ (q_z.var + q_z.mean.square()) - mean.square()
        alternating = torch.stack([row, 1 - row]).repeat(n, 1)
        sampled = embed(model, alternating, named_generator(0, "z"))[::2]  # [n, Z]
        assert torch.allclose(sampled.mean(0), mean, atol=5 * (var / n).sqrt().max().item())
        assert torch.allclose(sampled.var(0), var, rtol=0.15)


def test_a_reconstruction_is_the_decoded_embedding_whatever_the_chunks(model, x, small_chunks):
    expected = model.decoder(row_by_row(model, x)).sigmoid().detach()
    torch.testing.assert_close(reconstruct(model, x), expected, atol=1e-5, rtol=1e-5)


# -- the bound ---------------------------------------------------------------------------------------------------


def test_scored_bounds_are_the_sum_over_components_whatever_the_chunks(model, make_batch, small_chunks):
    x, rng = make_batch(60), named_generator(0, "z")
    noise = torch.cat([torch.randn(part.shape[0], 2, generator=rng, dtype=x.dtype) for part in x.split(7 // model.K)])
    expected = brute_force_elbo(model, x, noise.expand(model.K, -1, -1)).bound.detach()
    torch.testing.assert_close(bounds(model, x, named_generator(0, "z")), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tau", [EXACT, 0.3])
def test_the_bound_of_each_row_is_the_one_that_training_climbs(model, x, tau):
    expected = elbo(model, x, named_generator(0, "z"), tau=tau).bound.detach()
    assert torch.equal(bounds(model, x, named_generator(0, "z"), tau), expected)


def test_bounds_are_of_all_components_of_a_few_rows_at_a_time(model, x, small_chunks):
    rng = named_generator(0, "z")
    expected = torch.cat([elbo(model, part, rng).bound.detach() for part in x.split(7 // model.K)])
    assert torch.equal(bounds(model, x, named_generator(0, "z")), expected)


def test_more_components_than_fit_a_chunk_still_have_a_bound(make_model, x, small_chunks):
    model = make_model(K=9)
    assert (bounds(model, x[:3], named_generator(0, "z")) < 0).all()
    assert (mean_bounds(model, x[:3]) < 0).all()


def test_the_mean_bound_of_each_row_is_the_exact_one(model, make_batch):
    x, S, rng = make_batch(60), 500, named_generator(0, "draw")
    with torch.no_grad():
        draws = torch.randn(S, len(x), 2, generator=rng, dtype=x.dtype)
        terms = [brute_force_elbo(model, x, noise.expand(model.K, -1, -1)) for noise in draws]
    each = torch.stack([drawn.bound for drawn in terms])  # [S, N]
    error = each.std(0) / S**0.5
    found = mean_bounds(model, x, z_samples=S)
    assert found.dtype == x.dtype
    assert ((found - each.mean(0)).abs() < 4.5 * 2**0.5 * error).all()
    assert (terms[0].kl_y > 4.5 * 2**0.5 * error).any()  # it would be missed


def test_the_mean_bound_of_a_row_depends_on_nothing_but_the_row(model, x, small_chunks):
    found = mean_bounds(model, x)
    assert torch.equal(mean_bounds(model, x), found)
    torch.testing.assert_close(mean_bounds(model, x[17:18]), found[17:18])
    torch.testing.assert_close(mean_bounds(model, x.flip(0)), found.flip(0))


# -- reading ------------------------------------------------------------------------------------------------------

LOOKS = {
    "posterior": posterior,
    "components": components,
    "embed": embed,
    "sampled embed": lambda model, x: embed(model, x, named_generator(0, "z")),
    "reconstruct": reconstruct,
    "exact bounds": lambda model, x: bounds(model, x, named_generator(0, "z")),
    "sparse bounds": lambda model, x: bounds(model, x, named_generator(0, "z"), 0.3),
    "mean bounds": mean_bounds,
}


@pytest.fixture(params=LOOKS)
def look(request):
    """Something that a model says of samples."""
    return LOOKS[request.param]


def test_of_no_rows_nothing_is_said(model, x, look):
    found = look(model, x[:0])
    assert found.shape == (0, *look(model, x[:2]).shape[1:])


def test_looking_at_networks_of_your_own_changes_nothing_in_them_and_draws_no_global_number(look):
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 6))
    model = MixtureVAE(encoder, decoder, Bernoulli(), n_x=6, n_z=2, K=3, rng=named_generator(0, "init"))
    x = torch.rand(20, 6, generator=named_generator(0, "x"))
    before, drawn = {name: t.clone() for name, t in model.state_dict().items()}, torch.get_rng_state()
    once, again = look(model, x), look(model, x)
    assert torch.equal(once, again)
    assert not once.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(module.training for module in model.modules())
