from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn

from curlicue.evaluate import representation
from curlicue.evaluate.metrics import cluster_scores, confusion, knn_error
from curlicue.evaluate.representation import (
    bounds,
    components,
    embed,
    final_scores,
    knn_errors,
    labelled_accuracy,
    posterior,
    score,
)
from curlicue.learn.expansion import closest_component
from curlicue.model.elbo import elbo
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator
from curlicue.streams.sources import Source, Split, from_arrays

MakeModel = Callable[..., MixtureVAE]
MakeBatch = Callable[..., Tensor]


@pytest.fixture
def model(make_model: MakeModel) -> MixtureVAE:
    return make_model(K=4, seed=1)


@pytest.fixture
def x(model: MixtureVAE, make_batch: MakeBatch) -> Tensor:
    """Its rows do not come in the order of their components, and at least three components have some."""
    x = make_batch(60, grey=True)
    x = 6 * (x - x.mean(0)) + 0.5
    y = components(model, x)
    assert len(y.unique()) >= 3
    assert not torch.equal(y, y.sort().values)
    return x


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(representation, "CHUNK", 7)  # 60 rows: eight chunks and a rest


@pytest.fixture
def source(make_batch: MakeBatch) -> Source:
    labels, test_labels = torch.arange(40) % 3, torch.arange(12) % 3
    return from_arrays(
        "toy", make_batch(40), labels, make_batch(12, seed=1), test_labels, classes=("zero", "one", "two")
    )


def test_the_bound_of_each_row_is_the_exact_one(model, x):
    S = 3000
    with torch.no_grad():
        terms = [elbo(model, x, named_generator(s, "draw")) for s in range(S)]
    draws = torch.stack([each.bound for each in terms])  # [S, N]
    error = draws.std(0) / S**0.5
    found = bounds(model, x, z_samples=S)
    assert ((found - draws.mean(0)).abs() < 4.5 * 2**0.5 * error).all()
    assert (terms[0].kl_y > 4.5 * 2**0.5 * error).any()  # it would be missed


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
    assert torch.allclose(posterior(model, x), expected, atol=1e-6)
    assert torch.equal(components(model, x), expected.argmax(1))


def test_embeddings_are_the_means_of_the_likeliest_component_row_by_row(model, x, small_chunks):
    assert torch.allclose(embed(model, x), row_by_row(model, x), atol=1e-5)


def test_embeddings_do_not_depend_on_the_chunks(model, x, monkeypatch):
    whole = embed(model, x)
    monkeypatch.setattr(representation, "CHUNK", 7)
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


# -- the bound ---------------------------------------------------------------------------------------------------


def mean_bound(model: MixtureVAE, x: Tensor, rng: Generator, tau: float | None = None) -> float:
    return score(model, Split(x, torch.zeros(len(x), dtype=torch.int64)), 1, rng, tau).bound


@pytest.mark.parametrize("tau", [None, 0.3])
def test_the_mean_bound_is_the_mean_of_the_bound(model, x, tau):
    expected = elbo(model, x, named_generator(0, "z"), tau=tau).bound.detach().double().mean()
    assert mean_bound(model, x, named_generator(0, "z"), tau) == pytest.approx(float(expected), rel=1e-12)


def test_the_mean_bound_weighs_every_sample_alike_whatever_the_chunks(model, x, small_chunks):
    rng = named_generator(0, "z")
    rows = 7 // model.K  # all components of a few samples at a time
    expected = torch.cat([elbo(model, part, rng).bound.detach() for part in x.split(rows)]).double().mean()
    assert mean_bound(model, x, named_generator(0, "z")) == pytest.approx(float(expected), rel=1e-12)


def test_more_components_than_fit_a_chunk_still_have_a_bound(make_model, x, small_chunks):
    model = make_model(K=9)
    assert mean_bound(model, x[:3], named_generator(0, "z")) < 0


# -- scores ------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_components_and_of_the_bound(model, source):
    scores = score(model, source.test, source.n_classes, named_generator(0, "z"), tau=None)
    y = components(model, source.test.x)
    assert scores.clusters == cluster_scores(source.test.labels, y, source.n_classes, model.K)
    expected = elbo(model, source.test.x, named_generator(0, "z")).bound.detach().double().mean()
    assert scores.bound == pytest.approx(float(expected), rel=1e-12)
    assert scores.to_json().keys() == {
        *("bound", "cluster_accuracy", "hungarian_accuracy", "nmi", "ari", "class_accuracy", "n_used", "K")
    }


def test_neighbours_are_all_training_points_in_latent_space(model, source):
    z, test_z = embed(model, source.train.x), embed(model, source.test.x)
    expected = knn_error(z, source.train.labels, test_z, source.test.labels, (3, 5, 10))
    assert knn_errors(model, source) == expected
    rng = named_generator(0, "z")
    z, test_z = embed(model, source.train.x, rng), embed(model, source.test.x, rng)
    expected = knn_error(z, source.train.labels, test_z, source.test.labels, (3, 5, 10))
    assert knn_errors(model, source, named_generator(0, "z")) == expected


def test_only_as_many_neighbours_are_asked_as_there_are_training_points(model, make_batch):
    labels = torch.arange(6) % 2
    few = from_arrays("few", make_batch(6), labels, make_batch(4), labels[:4])
    assert knn_errors(model, few).keys() == {3, 5}


def test_final_scores_have_everything_that_is_measured_once(model, source):
    scores = final_scores(model, source, named_generator(0, "z"), sampled_knn=False)
    once = score(model, source.test, source.n_classes, named_generator(0, "z"), tau=None).to_json()
    assert scores.keys() == {*once, "knn_error", "confusion", "classes"}
    assert {name: scores[name] for name in once} == once
    assert scores["knn_error"] == {str(k): error for k, error in knn_errors(model, source).items()}
    y = components(model, source.test.x)
    assert scores["confusion"] == confusion(source.test.labels, y, 3, model.K).tolist()
    assert scores["classes"] == ["zero", "one", "two"]


def test_sampled_neighbours_are_drawn_after_the_bound_from_the_same_generator(model, source):
    rng = named_generator(0, "z")
    scores = final_scores(model, source, rng, sampled_knn=True)
    twin = named_generator(0, "z")
    mean_bound(model, source.test.x, twin)
    errors = knn_errors(model, source, twin)
    assert scores["knn_error"] == {str(k): error for k, error in errors.items()}
    assert torch.equal(rng.get_state(), twin.get_state())


def test_scoring_changes_neither_weights_nor_their_gradients_nor_the_mode_of_the_model(model, source):
    elbo(model, source.train.x, named_generator(0, "z")).bound.mean().backward()
    before = {name: (p.detach().clone(), p.grad.clone()) for name, p in model.named_parameters()}
    training, state = model.training, torch.get_rng_state()
    final_scores(model, source, named_generator(0, "z"), sampled_knn=True)
    labelled_accuracy(model, source.test, {0: 0, 1: 1}, [(0, 1)])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name][0]), name
        assert torch.equal(parameter.grad, before[name][1]), name
        assert parameter.requires_grad, name
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), state)


# -- the supervised benchmark ------------------------------------------------------------------------------------


@pytest.fixture
def given_posterior(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[list[float]]], MixtureVAE]:
    """A model of which nothing is known but q(y|x)."""

    def give(q_y: list[list[float]]) -> MixtureVAE:
        monkeypatch.setattr(representation, "posterior", lambda model, x: torch.tensor(q_y))
        return object.__new__(MixtureVAE)

    return give


def labelled(*labels: int) -> Split:
    return Split(torch.zeros(len(labels), 1), torch.tensor(labels))


TASKS = [(0, 1), (2, 3)]
OWN = {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_sample_is_right_among_all_classes_only_in_the_component_of_its_own(given_posterior):
    model = given_posterior([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1], [0.1, 0.1, 0.2, 0.6], [0.1, 0.1, 0.1, 0.7]])
    accuracy = labelled_accuracy(model, labelled(0, 1, 2, 3), OWN, TASKS)
    # 1 is taken for 2, but among 0 and 1 for 1; 2 is taken for 3 in both
    assert accuracy == {"incremental_class": 0.5, "incremental_task": (1.0 + 0.5) / 2}


def test_classes_are_known_by_the_component_they_own_whatever_its_number(given_posterior):
    model = given_posterior([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]])
    accuracy = labelled_accuracy(model, labelled(0, 1, 1), {1: 0, 0: 1}, [(0, 1)])
    assert accuracy == {"incremental_class": 1.0, "incremental_task": 1.0}


def test_every_task_counts_alike_whatever_its_samples(given_posterior):
    right, wrong = [0.1, 0.1, 0.1, 0.7], [0.1, 0.1, 0.7, 0.1]
    model = given_posterior([[0.7, 0.1, 0.1, 0.1], right, wrong, wrong, wrong])
    accuracy = labelled_accuracy(model, labelled(0, 3, 3, 3, 3), OWN, TASKS)
    assert accuracy == {"incremental_class": 2 / 5, "incremental_task": (1.0 + 0.25) / 2}


def test_classes_that_were_never_seen_are_always_wrong(given_posterior):
    model = given_posterior([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5], [0.5, 0.5]])
    accuracy = labelled_accuracy(model, labelled(0, 1, 2, 3), {0: 0, 1: 1}, TASKS)
    assert accuracy == {"incremental_class": 0.5, "incremental_task": 0.5}


def test_of_a_task_seen_by_half_only_that_half_can_be_right(given_posterior):
    model = given_posterior([[0.9, 0.1], [0.1, 0.9]])
    assert labelled_accuracy(model, labelled(0, 1), {0: 0}, [(0, 1)])["incremental_task"] == 0.5


def test_a_component_without_a_class_is_never_right(given_posterior):
    model = given_posterior([[0.1, 0.1, 0.8], [0.1, 0.1, 0.8]])
    accuracy = labelled_accuracy(model, labelled(0, 1), {0: 0, 1: 1}, [(0, 1)])
    assert accuracy == {"incremental_class": 0.0, "incremental_task": 0.5}  # a tie within the task: the first


def test_tasks_without_test_samples_do_not_count(given_posterior):
    model = given_posterior([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1]])
    assert labelled_accuracy(model, labelled(0, 1), OWN, TASKS)["incremental_task"] == 1.0


def test_scoring_networks_of_your_own_changes_nothing_in_them_and_draws_no_global_number():
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 6))
    model = MixtureVAE(encoder, decoder, Bernoulli(), n_x=6, n_z=2, K=3, rng=named_generator(0, "init"))
    x = torch.rand(20, 6, generator=named_generator(0, "x"))
    before, drawn = {name: t.clone() for name, t in model.state_dict().items()}, torch.get_rng_state()
    for look in (posterior, embed, closest_component, lambda m, x: mean_bound(m, x, named_generator(0, "z"))):
        once, again = look(model, x), look(model, x)
        assert torch.equal(torch.as_tensor(once), torch.as_tensor(again))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(module.training for module in model.modules())
