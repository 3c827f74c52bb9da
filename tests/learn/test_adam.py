import copy

import pytest
import torch
from torch import Tensor

from curlicue.learn import adam
from curlicue.learn.adam import Adam
from curlicue.model import mixture
from curlicue.model.elbo import elbo_given
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

K = 4


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Components rest however small they are."""
    monkeypatch.setattr(adam, "WORTH_RESTING", 1)
    monkeypatch.setattr(mixture, "WORTH_RESTING", 1)


def give(model: MixtureVAE, gradients: list[Tensor], visited: list[int]) -> None:
    """Gradients in which a component that is not visited has none; those of the heads of q(z|x,y) are sparse."""
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()
    for name in ("q_z_weight", "q_z_bias", "p_z"):
        grad = model.heads[name].grad
        grad[[k for k in range(K) if k not in visited]] = 0
    weight = model.heads["q_z_weight"]
    places = torch.tensor([visited])
    weight.grad = torch.sparse_coo_tensor(places, weight.grad[visited], weight.shape, check_invariants=True)


def densely(model: MixtureVAE) -> None:
    model.heads["q_z_weight"].grad = model.heads["q_z_weight"].grad.to_dense()


@pytest.mark.usefixtures("resting")
def test_with_components_that_rest_and_return_the_numbers_are_those_of_torchs_adam(make_model):
    ours, torchs = make_model(K), make_model(K)
    optimiser, reference = Adam(ours, 1e-2), torch.optim.Adam(torchs.parameters(), lr=1e-2)
    rng = named_generator(0, "gradients")
    for t in range(1350):
        gradients = [torch.randn(p.shape, generator=rng) for p in ours.parameters()]
        visited = [0, 3] if 50 <= t < 1250 else [0, 1, 3] if 1250 <= t < 1300 else [0, 1, 2, 3]  # 2 rests longer than 1
        if t in (1250, 1300):
            assert optimiser.rested[visited].max() > 300  # the law is about them
        for model, step in ((ours, optimiser.step), (torchs, reference.step)):
            give(model, gradients, visited)
            if model is torchs:
                densely(model)
            step()
    for (name, a), b in zip(ours.named_parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
        for moment in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(optimiser.state[a][moment], reference.state[b][moment], rtol=1e-4, atol=1e-6)


def moved(model: MixtureVAE, optimiser: Adam, steps: int, visited: list[int], sparse: bool = True) -> None:
    """Steps in which only some components are visited."""
    rng = named_generator(steps, "gradients")
    for _ in range(steps):
        give(model, [torch.randn(p.shape, generator=rng) for p in model.parameters()], visited)
        if not sparse:
            densely(model)
        optimiser.step()


def all_but_the_first_resting(model: MixtureVAE) -> Adam:
    """An optimiser under which all components have moved once, and then component 0 alone."""
    optimiser = Adam(model, 1e-2)
    moved(model, optimiser, 1, [0, 1, 2, 3])
    moved(model, optimiser, 1000, [0])
    assert all(optimiser.rested[1:] > 0)
    return optimiser


def held(model: MixtureVAE, optimiser: Adam) -> list[Tensor]:
    """The weights of component 1, and their moments."""
    weight = model.heads["q_z_weight"]
    return [weight[1], optimiser.state[weight]["exp_avg"][1], optimiser.state[weight]["exp_avg_sq"][1]]


@pytest.mark.usefixtures("resting")
def test_a_component_at_rest_is_not_touched(make_model):
    model = make_model(K)
    optimiser = all_but_the_first_resting(model)
    before, rested = [slice_.clone() for slice_ in held(model, optimiser)], optimiser.rested.clone()
    moved(model, optimiser, 100, [0])
    assert all(torch.equal(a, b) for a, b in zip(before, held(model, optimiser), strict=True))
    assert torch.equal(optimiser.rested, rested + torch.tensor([0, 100, 100, 100]))


@pytest.mark.usefixtures("resting")
def test_the_gradient_of_heads_that_nobody_visits_is_not_there_and_that_of_the_others_as_it_is(
    make_model, make_batch, monkeypatch
):
    model, x, y = make_model(K), make_batch(6), torch.tensor([0, 2, 2, 0, 2, 0])
    elbo_given(model, x, y, named_generator(0, "z")).bound.mean().backward()
    sparse = model.heads["q_z_weight"].grad
    assert sparse.is_sparse
    assert sparse.coalesce().indices().tolist() == [[0, 2]]
    model.zero_grad()
    monkeypatch.setattr(mixture, "WORTH_RESTING", 10**9)
    elbo_given(model, x, y, named_generator(0, "z")).bound.mean().backward()
    dense = model.heads["q_z_weight"].grad
    assert not dense.is_sparse
    assert torch.equal(sparse.to_dense(), dense)
    assert dense[0].any()


def test_few_small_components_do_not_rest(make_model):
    model = make_model(K)
    optimiser = Adam(model, 1e-2)
    moved(model, optimiser, 1, [0, 1, 2, 3], sparse=False)
    moved(model, optimiser, 1000, [0], sparse=False)
    assert not optimiser.rested.any()


@pytest.mark.usefixtures("resting")
def test_who_gets_no_number_does_not_rest(make_model):
    model = make_model(K)
    optimiser = all_but_the_first_resting(model)
    give(model, [torch.full(p.shape, torch.nan) for p in model.parameters()], [0])
    optimiser.step()
    assert model.heads["q_z_weight"][0].isnan().all()
    assert not model.heads["q_z_weight"][1:].isnan().any()


@pytest.mark.usefixtures("resting")
def test_weights_without_a_gradient_stay_as_they_are(make_model):
    model = make_model(K)
    optimiser = all_but_the_first_resting(model)
    weight, bias = (model.heads[name].clone() for name in ("q_z_weight", "q_z_bias"))
    model.heads["q_z_weight"].grad = None
    optimiser.step()
    assert torch.equal(model.heads["q_z_weight"], weight)
    assert not torch.equal(model.heads["q_z_bias"], bias)


@pytest.mark.usefixtures("resting")
def test_a_copy_of_a_learner_goes_on_as_it_would_itself(make_learner, make_batch, monkeypatch):
    monkeypatch.setattr(adam, "FADED", 10.0)  # whoever is not visited rests at once
    learner = make_learner(K=8, learning_rate=0.1)
    for t in range(20):
        learner.observe(make_batch(seed=t))
    assert learner.optimiser.rested.any()
    twin = copy.deepcopy(learner)
    for each in (learner, twin):
        for t in range(20, 60):
            each.observe(make_batch(seed=t))
    assert torch.equal(twin.optimiser.rested, learner.optimiser.rested)
    assert all(map(torch.equal, twin.model.parameters(), learner.model.parameters()))
