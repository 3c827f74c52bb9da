from collections.abc import Callable

import pytest
import torch
from torch import nn

from curlicue.config.model import Emission
from curlicue.errors import ConfigError
from curlicue.memory.protocol import Past, SnapshotTaken
from curlicue.memory.snapshot import ComponentCounts, Counts, Snapshot, SnapshotMemory
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import split
from curlicue.rng import named_generator
from learning import moved_on, terms_of

COUNTS = [300.0, 0.0, 100.0]


@pytest.fixture
def remember(make_model) -> Callable[..., SnapshotMemory]:
    """A memory that has just taken a snapshot of a model whose components stand for so many samples."""

    def make(model: MixtureVAE | None = None, used: list[float] = COUNTS, **settings: object) -> SnapshotMemory:
        settings = {"snapshots": "dynamic"} | settings
        memory = Snapshot(**settings).start(model or make_model(K=len(used)), named_generator(0, "replay"))
        memory.usage.used = torch.tensor(used, dtype=torch.float64)
        assert memory.before_birth(t=7) == [SnapshotTaken(7, len(used))]
        return memory

    return make


def redrawn(memory: SnapshotMemory, n: int) -> Past:
    """A batch of the past as if it were the first."""
    memory.rng.set_state(named_generator(0, "replay").get_state())
    return memory.recall(n)


# -- what is rehearsed -----------------------------------------------------------------------------------------------


def test_pi_is_the_share_of_each_component_in_the_counts(remember):
    torch.testing.assert_close(remember().pi, torch.tensor([0.75, 0.0, 0.25], dtype=torch.float64))


def test_pi_is_floored_so_that_no_component_is_impossible(remember):
    assert remember().pi[1].item() == pytest.approx(1e-12 / 400, rel=1e-9, abs=0)
    untouched = remember(used=[0.0, 0.0, 0.0]).pi
    torch.testing.assert_close(untouched, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("emission", list(Emission))
def test_the_past_comes_from_the_weights_and_counts_of_the_snapshot_whatever_becomes_of_the_model(
    remember, make_batch, emission
):
    memory = remember(emission=emission)
    before = redrawn(memory, 50)
    with torch.no_grad():
        for parameter in memory.model.parameters():
            parameter.mul_(-2).add_(1)
    memory.model.grow(0)
    memory.born()
    memory.take(make_batch(9), terms_of(torch.zeros(9), torch.ones(9).long(), K=4))
    after = redrawn(memory, 50)
    assert torch.equal(before.x, after.x)
    assert torch.equal(before.y, after.y)
    assert memory.snapshot.K == 3


def test_components_are_rehearsed_as_often_as_pi_says(remember):
    n = 20_000
    y = remember(used=[1.0, 5.0, 2.0]).recall(n).y
    pi = torch.tensor([1.0, 5.0, 2.0]) / 8
    assert ((y.bincount(minlength=3) / n - pi).abs() < 4.5 * (pi * (1 - pi) / n).sqrt()).all()


def test_each_generated_sample_has_the_component_that_it_was_generated_of(remember):
    model = MixtureVAE(nn.Identity(), nn.Identity(), Bernoulli(), n_x=2, n_z=2, K=3, rng=named_generator(0, "init"))
    far = torch.tensor([[9.0, 9.0], [-9.0, 9.0], [-9.0, -9.0]])
    with torch.no_grad():
        model.heads["p_z"][:] = torch.cat([far, torch.full((3, 2), -9.0)], 1)  # x = sigmoid(z), z hardly varies
    past = remember(model, [1.0, 1.0, 1.0], emission=Emission.THRESHOLD).recall(100)
    assert torch.equal(past.x, (far[past.y] > 0).float())
    assert len(past.y.unique()) == 3


def test_thresholded_samples_are_the_rounded_mean(remember):
    memory = remember(emission=Emission.THRESHOLD)
    past = memory.recall(100)
    assert set(past.x.unique().tolist()) == {0.0, 1.0}
    rng = named_generator(0, "replay")
    y = torch.multinomial(memory.pi, 100, replacement=True, generator=rng)
    with torch.no_grad():
        mean = memory.snapshot.mean(memory.snapshot.p_z(y).sample(rng)[0])
    assert torch.equal(past.x, (mean > 0.5).float())


@pytest.mark.parametrize("labelled", [False, True])
def test_the_past_says_whether_its_components_are_labels(remember, labelled):
    assert remember(labelled=labelled).recall(3).labelled is labelled


def test_a_snapshot_cannot_learn_and_leaves_its_model_able_to(remember):
    memory = remember()
    assert not any(p.requires_grad for p in memory.snapshot.parameters())
    assert not memory.snapshot.training
    assert all(p.requires_grad for p in memory.model.parameters())
    assert memory.model.training


# -- when snapshots are taken ----------------------------------------------------------------------------------------


def moments_of(memory: SnapshotMemory, steps: int) -> list[int]:
    """When snapshots are taken of a stream that one component explains; at step 12 another takes over."""
    taken = []
    for t in range(steps):
        terms = terms_of(torch.zeros(400), torch.full((400,), int(t >= 12)))
        taken += [each.t for each in (*memory.begin(t), *memory.look(terms, t))]
        memory.take(torch.zeros(400, 6), terms)
    return taken


@pytest.mark.parametrize(
    ("snapshots", "taken"), [(5, [5, 10, 15]), (1, list(range(1, 20))), ("dynamic", []), ("change", [12])]
)
def test_snapshots_are_taken_each_so_many_steps_or_at_changes_of_the_stream(make_model, snapshots, taken):
    memory = Snapshot(snapshots=snapshots).start(make_model(K=3), named_generator(0, "replay"))
    assert moments_of(memory, 20) == taken
    assert memory.ready == (len(taken) > 0)


@pytest.mark.parametrize(("snapshots", "is_taken"), [(5, False), ("dynamic", True), ("change", True)])
def test_before_a_birth_all_but_periodic_memories_take_a_snapshot(make_model, snapshots, is_taken):
    memory = Snapshot(snapshots=snapshots).start(make_model(K=3), named_generator(0, "replay"))
    assert memory.before_birth(t=3) == [SnapshotTaken(3, 3)] * is_taken
    assert memory.ready == is_taken


@pytest.mark.parametrize(
    ("snapshots", "T", "every"), [("T", 700, 700), ("0.1T", 700, 70), ("0.1T", 5, 1), (30, 700, 30)]
)
def test_periods_of_a_run_become_numbers_of_steps(snapshots, T, every):
    assert Snapshot(snapshots=snapshots).with_period(T).snapshots == every


def test_births_and_changes_have_no_period_and_no_length():
    for snapshots in ("dynamic", "change"):
        settings = Snapshot(snapshots=snapshots)
        assert settings.with_period(700) == settings.along(lambda steps: 2 * steps) == settings


def test_numbers_of_steps_scale_with_the_length_of_a_run():
    assert Snapshot(snapshots=30).along(lambda steps: 2 * steps).snapshots == 60


@pytest.mark.parametrize("snapshots", ["T", "0.1T"])
def test_periods_need_a_run(make_model, snapshots):
    with pytest.raises(ConfigError, match=rf"Snapshots of a period \({snapshots}\) are for runs\. Give a number of"):
        Snapshot(snapshots=snapshots).start(make_model(), named_generator(0, "replay"))


def test_snapshots_each_zero_steps_are_refused():
    with pytest.raises(ConfigError, match=r"The 'snapshots' setting must be .* Got 0 instead"):
        Snapshot(snapshots=0)


# -- what components stand for ---------------------------------------------------------------------------------------


def taught(usage: ComponentCounts, *rows: list[float]) -> ComponentCounts:
    usage.take(torch.tensor(rows))
    return usage


def test_counts_of_the_past_move_to_the_components_that_explain_what_was_generated_of_it():
    usage = taught(ComponentCounts(K=2, follow=True), *[[1.0, 0.0]] * 30, *[[0.0, 1.0]] * 10)
    usage.renew()
    taught(usage, [0.0, 1.0])
    usage.recalled(torch.tensor([0, 0, 0]), torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.25, 0.75]]))
    usage.recalled(torch.tensor([1]), torch.tensor([[1.0, 0.0]]))
    assert usage.counts().tolist() == [30 / 4 + 10, 3 / 4 * 30 + 1]  # a quarter of the first, all of the second; 1 new
    assert usage.renew().tolist() == usage.counts().tolist() == [17.5, 23.5]


def test_counts_of_components_that_were_not_generated_stay():
    usage = taught(ComponentCounts(K=2, follow=True), [1.0, 0.0], [0.0, 1.0])
    usage.renew()
    usage.recalled(torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    assert usage.counts().tolist() == [0, 2]


def test_a_newborn_takes_over_what_it_explains_of_the_past():
    usage = taught(ComponentCounts(K=1, follow=True), *[[1.0]] * 8)
    usage.renew()
    usage.grow()
    usage.recalled(torch.tensor([0, 0]), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    assert usage.counts().tolist() == [6, 2]


@pytest.mark.parametrize(
    ("settings", "follows"),
    [
        ({"labelled": False}, True),
        ({"labelled": True}, False),
        ({"labelled": False, "counts": Counts.SEEN}, False),
    ],
    ids=["MGR", "SMGR", "MGR, counts as seen"],
)
def test_counts_follow_the_components_only_where_these_may_change_their_meaning(remember, settings, follows):
    memory = remember(**settings)
    generated = terms_of(torch.zeros(3), torch.tensor([1, 1, 1]))
    memory.recalled(Past(torch.zeros(3, 6), torch.tensor([0, 0, 0]), labelled=False), generated)
    assert memory.counts().tolist() == ([0, 300, 100] if follows else COUNTS)


# -- memory and resume -----------------------------------------------------------------------------------------------


def n_numbers(memory: SnapshotMemory) -> int:
    tensors, values = split(memory.state())
    return sum(tensor.numel() for tensor in tensors.values()) + len(values)


def test_a_memory_holds_one_model_and_a_few_numbers_a_component_however_long_the_stream(make_model):
    model = make_model(K=3)
    memory = Snapshot(snapshots=5).start(model, named_generator(0, "replay"))
    moments_of(memory, 6)
    held = n_numbers(memory)
    assert held == sum(t.numel() for t in model.state_dict().values()) + 3 + 3 + 3 + 9 + 1  # π, used, past, moved, t
    for _ in range(10):
        moments_of(memory, 20)
        memory.recalled(memory.recall(5), terms_of(torch.zeros(5)))
        assert n_numbers(memory) == held


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("snapshots", [4, "dynamic", "change"])
@pytest.mark.parametrize("grown", [False, True], ids=["", "grown"])
def test_a_restored_memory_recalls_and_counts_as_the_first_would_have(make_model, snapshots, labelled, grown):
    settings, model = Snapshot(snapshots=snapshots, labelled=labelled), make_model(K=3)
    first = settings.start(model, named_generator(0, "replay"))
    moments_of(first, 16)
    if grown:
        first.before_birth(t=16)
        model.grow(1)
        first.born()
    second = moved_on(first, settings.start(model, named_generator(0, "replay")))
    if first.ready:
        second.rng.set_state(first.rng.get_state())
        for past, again in ((first.recall(20), second.recall(20)) for _ in range(2)):
            assert torch.equal(past.x, again.x)
            assert torch.equal(past.y, again.y)
            for memory in (first, second):
                memory.recalled(past, terms_of(torch.zeros(20), K=3 + grown))
    assert torch.equal(first.counts(), second.counts())
    assert first.taken_at == second.taken_at


def test_a_memory_restored_from_before_the_first_snapshot_has_nothing_to_rehearse(remember, make_model):
    fresh = Snapshot(snapshots="dynamic").start(make_model(K=3), named_generator(0, "replay"))
    assert not moved_on(fresh, remember()).ready
