import pytest
import torch
from torch import Tensor

from curlicue.config.scenario import Drift, Iid, Scenario, Sequential
from curlicue.errors import ConfigError
from curlicue.rng import named_generator
from curlicue.streams.schedule import Schedule, class_shares, seen
from curlicue.streams.sources import Split

SIZES = [50, 10, 30, 10]  # samples of each class
FREQUENCIES = torch.tensor([0.5, 0.1, 0.3, 0.1], dtype=torch.float64)
STEPS = 400  # 100 for each class


@pytest.fixture
def split() -> Split:
    """Sample i is the number i; classes lie scattered."""
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))
    labels = labels[torch.randperm(100, generator=named_generator(0, "labels"))]
    return Split(torch.arange(100.0)[:, None], labels)


def schedule(split: Split, scenario: Scenario, batch_size: int = 10, seed: int = 0) -> Schedule:
    return Schedule(split, scenario, STEPS, batch_size, named_generator(seed, "data"))


def shares(scenario: Scenario, t: int) -> list[float]:
    return class_shares(scenario, t, STEPS, FREQUENCIES).tolist()


# -- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", [Iid(), Sequential(), Sequential(2), Sequential(3), Drift()])
@pytest.mark.parametrize("steps", [400, 397, 4])
def test_shares_sum_to_one_at_all_times(scenario, steps):
    for t in range(steps):
        now = class_shares(scenario, t, steps, FREQUENCIES)
        assert now.sum().item() == pytest.approx(1)
        assert now.min() >= 0


@pytest.mark.parametrize("scenario", [Iid(), Sequential(), Sequential(2), Sequential(3), Drift()])
@pytest.mark.parametrize("steps", [400, 397, 16])
def test_a_class_has_been_seen_once_it_has_had_a_share(scenario, steps):
    so_far = torch.zeros(4, dtype=torch.bool)
    for t in range(1, steps + 3):
        so_far |= class_shares(scenario, t - 1, steps, FREQUENCIES) > 0
        assert seen(scenario, t, steps, 4).tolist() == so_far.tolist()


def test_shuffled_classes_are_seen_as_often_as_they_occur():
    for t in (0, 123, STEPS - 1):
        assert shares(Iid(), t) == FREQUENCIES.tolist()


@pytest.mark.parametrize(("t", "shown"), [(0, 0), (99, 0), (100, 1), (250, 2), (300, 3), (399, 3)])
def test_classes_come_one_after_the_other_for_equal_numbers_of_steps(t, shown):
    assert shares(Sequential(), t) == [float(c == shown) for c in range(4)]


@pytest.mark.parametrize(("t", "shown"), [(0, [0.5, 0.5, 0, 0]), (199, [0.5, 0.5, 0, 0]), (200, [0, 0, 0.5, 0.5])])
def test_classes_may_come_several_at_once(t, shown):
    assert shares(Sequential(at_once=2), t) == shown


def test_the_last_classes_have_their_time_even_if_fewer_are_left():
    assert shares(Sequential(at_once=3), 199) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert shares(Sequential(at_once=3), 200) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (0, [1, 0, 0, 0]),  # the first class has nobody before it
        (25, [1, 0, 0, 0]),
        (75, [1, 0, 0, 0]),
        (80, [0.9, 0.1, 0, 0]),
        (95, [0.6, 0.4, 0, 0]),
        (100, [0.5, 0.5, 0, 0]),  # half and half where a class gives way to the next
        (105, [0.4, 0.6, 0, 0]),
        (125, [0, 1, 0, 0]),
        (150, [0, 1, 0, 0]),
        (175, [0, 1, 0, 0]),
        (195, [0, 0.6, 0.4, 0]),
        (200, [0, 0.5, 0.5, 0]),
        (300, [0, 0, 0.5, 0.5]),
        (325, [0, 0, 0, 1]),
        (375, [0, 0, 0, 1]),
        (399, [0, 0, 0, 1]),  # the last class has nobody after it
    ],
)
def test_drifting_classes_fade_into_each_other_over_the_quarters_at_their_borders(t, expected):
    assert shares(Drift(), t) == pytest.approx(expected, abs=1e-12)


def test_drift_never_jumps():
    over_time = torch.stack([class_shares(Drift(), t, STEPS, FREQUENCIES) for t in range(STEPS)])
    assert over_time.diff(dim=0).abs().max() <= 2 / 100 + 1e-9


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "t"), [(Iid(), 7), (Sequential(2), 250), (Drift(), 90), (Drift(), 100), (Drift(), 399)]
)
def test_batches_have_the_classes_their_shares_promise(split, scenario, t):
    n = 20_000
    drawn = schedule(split, scenario, batch_size=n).draw(t)
    expected = class_shares(scenario, t, STEPS, FREQUENCIES)
    seen = split.labels[drawn].bincount(minlength=4) / n
    assert ((seen - expected).abs() <= 4.5 * (expected * (1 - expected) / n).sqrt() + 1e-9).all()


@pytest.mark.parametrize("scenario", [Iid(), Sequential(4), Drift()])
def test_every_sample_of_a_class_is_as_likely_as_any_other(split, scenario):
    n = 100_000
    drawn = schedule(split, scenario, batch_size=n).draw(100 if scenario == Drift() else 0)
    times = drawn.bincount(minlength=100)
    for c in split.labels[drawn].unique():
        among = times[split.labels == c]
        mean = among.double().mean()
        assert ((among - mean).abs() < 4.5 * mean.sqrt()).all()


def test_a_batch_is_samples_and_nothing_else(split):
    x = schedule(split, Iid()).batch(0)
    assert isinstance(x, Tensor)
    assert x.shape == (10, 1)


def test_a_labelled_batch_has_the_same_samples_with_their_own_labels(split):
    x, labels = schedule(split, Iid()).labelled_batch(0)
    assert torch.equal(x, schedule(split, Iid()).batch(0))
    assert torch.equal(labels, split.labels[x.squeeze(1).long()])


def test_the_same_seed_delivers_the_same_batches_and_another_seed_others(split):
    first, again, other = (
        torch.cat([schedule_.batch(t) for t in range(20)])
        for schedule_ in (schedule(split, Drift(), seed=seed) for seed in (0, 0, 1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_drawing_leaves_torchs_global_chance_alone(split):
    before = torch.get_rng_state()
    schedule(split, Drift()).batch(90)
    assert torch.equal(torch.get_rng_state(), before)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_class_without_samples_is_refused_by_name():
    gappy = Split(torch.zeros(3, 1), torch.tensor([0, 2, 5]))
    with pytest.raises(ConfigError) as error:
        schedule(gappy, Iid())
    assert str(error.value) == ("Every class needs samples to be streamed. Classes [1, 3, 4] have none: renumber them.")


def test_more_classes_at_once_than_there_are_is_refused_with_both_numbers(split):
    with pytest.raises(ConfigError) as error:
        schedule(split, Sequential(at_once=5))
    assert str(error.value) == ("The 'at_once' setting must be at most 4, the number of classes. Got 5 instead.")
