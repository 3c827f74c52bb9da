from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from curlicue.evaluate.metrics import cluster_scores, confusion, knn_error
from curlicue.evaluate.scores import Classifies, Explains, final_scores, knn_errors, labelled_accuracy, score
from curlicue.model.elbo import EXACT, elbo
from curlicue.model.inference import components, embed
from curlicue.rng import named_generator
from curlicue.streams.sources import Source, Split, from_arrays
from equations import brute_force_elbo


@pytest.fixture
def source(make_batch) -> Source:
    labels, test_labels = torch.arange(40) % 3, torch.arange(12) % 3
    return from_arrays(
        "toy", make_batch(40), labels, make_batch(12, seed=1), test_labels, classes=("zero", "one", "two")
    )


class Corners:
    """A system with neither a bound nor classes nor samples: the signs of the first two features, as a component."""

    K = 4

    def probabilities(self, x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot((x[:, :2] > 0.5).long() @ torch.tensor([2, 1]), 4).float()

    def embed(self, x: Tensor, sampled: Generator | None = None) -> Tensor:
        return x if sampled is None else x + torch.randn(x.shape, generator=sampled)


# -- the bound ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [EXACT, 0.3])
def test_the_mean_bound_is_the_mean_of_the_bound_that_training_climbs(system, source, tau):
    expected = elbo(system.model, source.test.x, named_generator(0, "z"), tau=tau).bound.detach().double().mean()
    found = score(system, source.test, source.n_classes, named_generator(0, "z"), tau).bound
    assert found == pytest.approx(float(expected), rel=1e-12)


def test_the_mean_bound_is_that_of_the_equation(system, source):
    x = source.test.x
    noise = torch.randn(len(x), 2, generator=named_generator(0, "z"))
    expected = brute_force_elbo(system.model, x, noise.expand(system.K, -1, -1)).bound.mean().item()
    found = score(system, source.test, source.n_classes, named_generator(0, "z"), tau=EXACT).bound
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_system_without_a_bound_has_all_other_scores(source):
    scores = score(Corners(), source.test, source.n_classes, named_generator(0, "z"), tau=EXACT)
    y = Corners().probabilities(source.test.x).argmax(1)
    assert scores.bound is None
    assert scores.clusters == cluster_scores(source.test.labels, y, source.n_classes, 4)
    assert "bound" not in scores.to_json()
    final = final_scores(Corners(), source, named_generator(0, "z"), sampled_knn=False)
    assert final.keys() == {*scores.to_json(), "knn_error", "confusion", "classes"}


def test_a_system_says_by_its_methods_what_it_can_be_asked(system):
    assert isinstance(system, Explains)
    assert not isinstance(system, Classifies)
    assert not isinstance(Corners(), Explains | Classifies)
    assert isinstance(Given(torch.eye(2)), Classifies)


# -- scores ------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_components_and_of_the_bound(system, source):
    scores = score(system, source.test, source.n_classes, named_generator(0, "z"), tau=EXACT)
    y = components(system.model, source.test.x)
    assert scores.clusters == cluster_scores(source.test.labels, y, source.n_classes, system.K)
    expected = elbo(system.model, source.test.x, named_generator(0, "z")).bound.detach().double().mean()
    assert scores.bound == pytest.approx(float(expected), rel=1e-12)
    assert scores.to_json().keys() == {
        *("bound", "cluster_accuracy", "hungarian_accuracy", "nmi", "ari", "class_accuracy", "n_used", "K")
    }


def test_neighbours_are_all_training_points_in_latent_space(system, source):
    z, test_z = embed(system.model, source.train.x), embed(system.model, source.test.x)
    expected = knn_error(z, source.train.labels, test_z, source.test.labels, (3, 5, 10))
    assert knn_errors(system, source) == expected
    rng = named_generator(0, "z")
    z, test_z = embed(system.model, source.train.x, rng), embed(system.model, source.test.x, rng)
    expected = knn_error(z, source.train.labels, test_z, source.test.labels, (3, 5, 10))
    assert knn_errors(system, source, named_generator(0, "z")) == expected


def test_only_as_many_neighbours_are_asked_as_there_are_training_points(system, make_batch):
    labels = torch.arange(6) % 2
    few = from_arrays("few", make_batch(6), labels, make_batch(4), labels[:4])
    assert knn_errors(system, few).keys() == {3, 5}


def test_final_scores_have_everything_that_is_measured_once(system, source):
    scores = final_scores(system, source, named_generator(0, "z"), sampled_knn=False)
    once = score(system, source.test, source.n_classes, named_generator(0, "z"), tau=EXACT).to_json()
    assert scores.keys() == {*once, "knn_error", "confusion", "classes"}
    assert {name: scores[name] for name in once} == once
    assert scores["knn_error"] == {str(k): error for k, error in knn_errors(system, source).items()}
    y = components(system.model, source.test.x)
    assert scores["confusion"] == confusion(source.test.labels, y, 3, system.K).tolist()
    assert scores["classes"] == ["zero", "one", "two"]


def test_sampled_neighbours_are_drawn_after_the_bound_from_the_same_generator(system, source):
    rng = named_generator(0, "z")
    scores = final_scores(system, source, rng, sampled_knn=True)
    twin = named_generator(0, "z")
    score(system, source.test, source.n_classes, twin, tau=EXACT)
    errors = knn_errors(system, source, twin)
    assert scores["knn_error"] == {str(k): error for k, error in errors.items()}
    assert torch.equal(rng.get_state(), twin.get_state())


def test_scoring_changes_neither_weights_nor_their_gradients_nor_the_mode_of_the_model(system, source):
    model = system.model
    elbo(model, source.train.x, named_generator(0, "z")).bound.mean().backward()
    before = {name: (p.detach().clone(), p.grad.clone()) for name, p in model.named_parameters()}
    training, drawn, own = model.training, torch.get_rng_state(), system.learner.rng.state()
    final_scores(system, source, named_generator(0, "z"), sampled_knn=True)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name][0]), name
        assert torch.equal(parameter.grad, before[name][1]), name
        assert parameter.requires_grad, name
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(state, own[name]) for name, state in system.learner.rng.state().items())


# -- the supervised benchmark ------------------------------------------------------------------------------------


@dataclass
class Given:
    """A system of which nothing is known but the probability of each class for each row."""

    p: Tensor

    def class_probabilities(self, x: Tensor, n_classes: int) -> Tensor:
        assert self.p.shape == (len(x), n_classes)
        return self.p


def accuracy(p: list[list[float]], *labels: int, tasks: tuple[tuple[int, ...], ...]) -> dict[str, float]:
    split = Split(torch.zeros(len(labels), 1), torch.tensor(labels))
    return labelled_accuracy(Given(torch.tensor(p)), split, len(p[0]), tasks)


TASKS = ((0, 1), (2, 3))


def test_a_sample_is_right_among_all_classes_only_in_its_own():
    p = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1], [0.1, 0.1, 0.2, 0.6], [0.1, 0.1, 0.1, 0.7]]
    # 1 is taken for 2, but among 0 and 1 for 1; 2 is taken for 3 in both
    expected = {"incremental_class": 0.5, "incremental_task": (1.0 + 0.5) / 2}
    assert accuracy(p, 0, 1, 2, 3, tasks=TASKS) == expected


def test_the_classes_of_a_task_come_in_any_order():
    p = [[0.1, 0.2, 0.0, 0.7], [0.2, 0.6, 0.1, 0.1], [0.0, 0.1, 0.5, 0.4], [0.3, 0.4, 0.2, 0.1]]
    expected = {"incremental_class": 0.75, "incremental_task": (1.0 + 0.5) / 2}
    assert accuracy(p, 3, 1, 2, 2, tasks=((3, 1), (2, 0))) == expected


def test_every_task_counts_alike_whatever_its_samples():
    right, wrong = [0.1, 0.1, 0.1, 0.7], [0.1, 0.1, 0.7, 0.1]
    found = accuracy([[0.7, 0.1, 0.1, 0.1], right, wrong, wrong, wrong], 0, 3, 3, 3, 3, tasks=TASKS)
    assert found == {"incremental_class": 2 / 5, "incremental_task": (1.0 + 0.25) / 2}


def test_classes_that_were_never_seen_are_always_wrong():
    p = [[0.9, 0.1, 0, 0], [0.1, 0.9, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0]]
    expected = {"incremental_class": 0.5, "incremental_task": 0.5}
    assert accuracy(p, 0, 1, 2, 3, tasks=TASKS) == expected


def test_of_a_task_seen_by_half_only_that_half_can_be_right():
    assert accuracy([[0.9, 0], [0.1, 0]], 0, 1, tasks=((0, 1),))["incremental_task"] == 0.5


def test_tasks_without_test_samples_do_not_count():
    p = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1]]
    assert accuracy(p, 0, 1, tasks=TASKS)["incremental_task"] == 1.0
