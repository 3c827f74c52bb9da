import pytest
import torch
from torch import Tensor

from curlicue.memory.change import ChangeDetector
from curlicue.rng import named_generator
from learning import written


def one_hot(k: int, B: int) -> Tensor:
    return torch.eye(3)[torch.full((B,), k)]


def moved(share: float, B: int) -> Tensor:
    """So much of what the first component explained, the second explains now."""
    return torch.tensor([1 - share, share, 0.0]).repeat(B, 1)


def changes(detector: ChangeDetector, q_y: Tensor, rows: int) -> list[int]:
    """After how many rows of such batches the stream has changed."""
    B = len(q_y)
    return [n for n in range(B, rows + 1, B) if detector.update(q_y)]


@pytest.mark.parametrize("B", [1, 10, 100])
def test_a_stream_changes_once_each_time_another_component_begins_to_explain_it(B):
    detector = ChangeDetector(K=3)
    assert changes(detector, one_hot(0, B), 4000) == []
    for k in (1, 0, 2):
        (after,) = changes(detector, one_hot(k, B), 4000)
        assert after <= 400


@pytest.mark.parametrize("B", [1, 10])
def test_when_another_component_explains_all_that_is_known_after_a_hundred_samples_or_two(B):
    detector = ChangeDetector(K=3)
    changes(detector, one_hot(0, B), 8000)
    (after,) = changes(detector, one_hot(1, B), 4000)
    assert 120 <= after <= 250


@pytest.mark.parametrize(("share", "is_change"), [(0.33, False), (0.4, True), (1.0, True)])
def test_a_change_is_one_when_more_than_about_a_third_of_the_stream_has_moved_for_good(share, is_change):
    """With shares that remember 500 and 5000 samples they differ by 70 % of what has moved at most: by 0.25 if 36 %."""
    detector = ChangeDetector(K=3)
    assert changes(detector, moved(0.0, B=10), 10_000) == []
    assert len(changes(detector, moved(share, B=10), 6000)) == is_change


def test_a_stream_that_drifts_slowly_does_not_change():
    detector = ChangeDetector(K=3)
    assert not any(detector.update(moved(t / 4000, B=10)) for t in range(4001))


@pytest.mark.parametrize("B", [700, 1000, 6000])
def test_a_change_is_one_with_the_largest_batches_too(B):
    detector = ChangeDetector(K=3)
    assert changes(detector, one_hot(0, B), 10 * B) == []
    assert changes(detector, one_hot(1, B), 10 * B) == [B]


@pytest.mark.parametrize("B", [1000, 6000])
@pytest.mark.parametrize(("share", "found"), [(0.27, []), (0.3, [1])])
def test_with_the_largest_batches_the_latest_is_compared_with_the_latest_ten(B, share, found):
    """They differ by 90 % of what has moved: by 0.25 if 28 % of the stream have."""
    detector = ChangeDetector(K=3)
    changes(detector, moved(0.0, B), 20 * B)
    assert changes(detector, moved(share, B), 20 * B) == [B * n for n in found]


@pytest.mark.parametrize("B", [1, 100])
def test_a_stream_that_several_components_share_does_not_change(B):
    detector, rng = ChangeDetector(K=3), named_generator(0, "shares")
    batches = (torch.randint(3, (B,), generator=rng) for _ in range(10_000 // B))
    assert not any(detector.update(torch.eye(3)[y]) for y in batches)


def test_a_birth_is_no_second_change():
    detector = ChangeDetector(K=2)
    changes(detector, torch.tensor([[1.0, 0.0]]).repeat(100, 1), 5000)
    detector.grow()
    assert changes(detector, one_hot(2, B=100), 5000) == []


@pytest.mark.parametrize("rows", [0, 150, 300])
def test_a_restored_detector_finds_the_changes_that_the_first_would_have(rows):
    first = ChangeDetector(K=3)
    changes(first, one_hot(0, B=10), 4000)
    changes(first, one_hot(1, B=10), rows)
    second = ChangeDetector(K=1)
    second.restore(written(first.state()), K=3)
    for k in (1, 2):
        assert changes(first, one_hot(k, B=10), 4000) == changes(second, one_hot(k, B=10), 4000)
