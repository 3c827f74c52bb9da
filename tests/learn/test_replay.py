import pytest
import torch
from torch import nn

from curlicue.config import Emission
from curlicue.learn.replay import Snapshot, Usage
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

COUNTS = torch.tensor([300.0, 0.0, 100.0], dtype=torch.float64)


def test_pi_is_the_share_of_each_component_in_the_counts(make_model):
    pi = Snapshot.of(make_model(K=3), COUNTS).pi
    torch.testing.assert_close(pi, torch.tensor([0.75, 0.0, 0.25], dtype=torch.float64))


def test_pi_is_floored_so_that_no_component_is_impossible(make_model):
    pi = Snapshot.of(make_model(K=3), COUNTS).pi
    assert pi[1].item() == pytest.approx(1e-12 / 400, rel=1e-9)
    untouched = Snapshot.of(make_model(K=3), torch.zeros(3, dtype=torch.float64)).pi
    torch.testing.assert_close(untouched, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("emission", list(Emission))
def test_dreams_come_from_the_weights_and_counts_of_the_snapshot_whatever_becomes_of_the_model(make_model, emission):
    model, counts = make_model(K=3), COUNTS.clone()
    snapshot = Snapshot.of(model, counts)
    x, y = snapshot.dream(50, emission, named_generator(0, "replay"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-2).add_(1)
    model.grow(0)
    counts += torch.tensor([0.0, 1e6, 0.0])
    again_x, again_y = snapshot.dream(50, emission, named_generator(0, "replay"))
    assert torch.equal(x, again_x)
    assert torch.equal(y, again_y)
    assert snapshot.model.K == 3


def test_components_dream_as_often_as_pi_says(make_model):
    n = 20_000
    counts = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    _, y = Snapshot.of(make_model(K=3), counts).dream(n, Emission.THRESHOLD, named_generator(0, "replay"))
    pi = counts / 8
    assert ((y.bincount(minlength=3) / n - pi).abs() < 4.5 * (pi * (1 - pi) / n).sqrt()).all()


def test_each_dream_is_labelled_with_the_component_that_dreamt_it():
    model = MixtureVAE(nn.Identity(), nn.Identity(), Bernoulli(), n_x=2, n_z=2, K=3, rng=named_generator(0, "init"))
    far = torch.tensor([[9.0, 9.0], [-9.0, 9.0], [-9.0, -9.0]])
    with torch.no_grad():
        model.heads["p_z"][:] = torch.cat([far, torch.full((3, 2), -9.0)], 1)  # x = sigmoid(z), z hardly varies
    x, y = Snapshot.of(model, torch.ones(3)).dream(100, Emission.THRESHOLD, named_generator(0, "replay"))
    assert torch.equal(x, (far[y] > 0).float())
    assert len(y.unique()) == 3


def test_thresholded_dreams_are_zeros_and_ones(make_model):
    snapshot = Snapshot.of(make_model(K=3), COUNTS)
    x, _ = snapshot.dream(100, Emission.THRESHOLD, named_generator(0, "replay"))
    mean, _ = snapshot.dream(100, Emission.MEAN, named_generator(0, "replay"))
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(x, (mean > 0.5).float())


def test_a_snapshot_cannot_learn_and_leaves_its_model_able_to(make_model):
    model = make_model(K=3)
    snapshot = Snapshot.of(model, COUNTS)
    assert not any(p.requires_grad for p in snapshot.model.parameters())
    assert not snapshot.model.training
    assert all(p.requires_grad for p in model.parameters())
    assert model.training


# -- a stream that changes -------------------------------------------------------------------------------------------


def shown(usage: Usage, k: int, rows: int, B: int) -> list[int]:
    """After how many of these rows, all explained by component k, the stream has changed."""
    q_y = torch.zeros(B, 3)
    q_y[:, k] = 1
    return [n for n in range(B, rows + 1, B) if usage.update(q_y)]


@pytest.mark.parametrize("B", [1, 10, 100])
def test_a_stream_changes_once_each_time_another_component_begins_to_explain_it(B):
    usage = Usage(K=3)
    assert shown(usage, 0, 4000, B) == []
    for k in (1, 0, 2):
        (after,) = shown(usage, k, 4000, B)
        assert after <= 400


@pytest.mark.parametrize("B", [700, 1000, 6000])
def test_a_change_is_one_with_the_largest_batches_too(B):
    usage = Usage(K=3)
    assert shown(usage, 0, 10 * B, B) == []
    assert shown(usage, 1, 10 * B, B) == [B]


@pytest.mark.parametrize("B", [1, 100])
def test_a_stream_that_several_components_share_does_not_change(B):
    usage, rng = Usage(K=3), named_generator(0, "shares")
    batches = (torch.randint(3, (B,), generator=rng) for _ in range(10_000 // B))
    assert not any(usage.update(torch.eye(3)[y]) for y in batches)


def test_a_birth_is_no_second_change():
    usage = Usage(K=2)
    usage.update(torch.tensor([[1.0, 0.0]]))
    usage.grow()
    assert shown(usage, 2, 5000, 100) == []
