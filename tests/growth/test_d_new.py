import pytest
import torch
from torch import Tensor

from curlicue.growth.d_new import Buffer
from curlicue.growth.protocol import Birth, Tuned
from learning import moved_on

X = torch.arange(24.0).view(4, 6)  # four samples
FIRST_AND_LAST = torch.tensor([True, False, False, True])
ALL, NONE = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


@pytest.fixture
def make_buffer(make_model):
    def make(n_new: int = 100, wait: int = 0, window: int | None = None) -> Buffer:
        return Buffer(make_model(), n_new, wait, window)

    return make


def handed_over(d_new: Buffer) -> Birth | None:
    return d_new.due(passes=7, tuned=Tuned.HEADS)


def emptied(d_new: Buffer) -> Tensor:
    """What D_new holds, as a birth would be given it."""
    d_new.n_new = 1
    return handed_over(d_new).d_new


def test_poor_samples_join_d_new_and_no_others(make_buffer):
    d_new = make_buffer()
    assert d_new.add(X, FIRST_AND_LAST) == 2
    assert d_new.add(X, NONE) == 0
    assert torch.equal(emptied(d_new), X[[0, 3]])


def test_d_new_keeps_its_order_over_batches(make_buffer):
    d_new = make_buffer()
    d_new.add(X, FIRST_AND_LAST)
    d_new.add(X + 10, FIRST_AND_LAST)
    assert torch.equal(emptied(d_new), torch.cat([X[[0, 3]], X[[0, 3]] + 10]))


def test_d_new_holds_what_the_samples_were_even_if_the_batch_is_overwritten(make_buffer):
    d_new, x = make_buffer(), X.clone()
    d_new.add(x, ALL)
    x.zero_()
    assert torch.equal(emptied(d_new), X)


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_nothing_joins_for_so_many_real_batches_after_a_birth(make_buffer, wait):
    d_new = make_buffer(n_new=2, wait=wait)
    d_new.add(X, FIRST_AND_LAST)
    assert handed_over(d_new) is not None
    joined = [d_new.add(X, FIRST_AND_LAST) for _ in range(wait + 2)]
    assert joined == [0] * wait + [2, 2]


def test_d_new_is_handed_over_when_it_has_reached_its_size_and_with_it_how_to_fit_the_newborn(make_buffer):
    d_new = make_buffer(n_new=4)
    d_new.add(X, FIRST_AND_LAST)
    assert handed_over(d_new) is None
    d_new.add(X, FIRST_AND_LAST)
    birth = handed_over(d_new)
    assert len(birth.d_new) == 4
    assert (birth.passes, birth.tuned) == (7, Tuned.HEADS)


def test_handing_d_new_over_leaves_it_empty(make_buffer):
    d_new = make_buffer(n_new=2)
    d_new.add(X, FIRST_AND_LAST)
    assert handed_over(d_new) is not None
    assert handed_over(d_new) is None
    d_new.add(X + 10, FIRST_AND_LAST)
    assert torch.equal(handed_over(d_new).d_new, X[[0, 3]] + 10)


def test_with_a_window_samples_leave_d_new_after_so_many_later_ones(make_buffer):
    d_new = make_buffer(window=7)
    d_new.add(X, FIRST_AND_LAST)
    d_new.add(X + 10, FIRST_AND_LAST)  # the first sample of all is the eighth from the end
    assert torch.equal(d_new.samples, torch.cat([X[[3]], X[[0, 3]] + 10]))
    d_new.add(X + 20, NONE)
    assert torch.equal(d_new.samples, X[[3]] + 10)
    d_new.add(X + 30, NONE)
    assert d_new.samples is None


@pytest.mark.parametrize(("window", "kept"), [(8, [0, 3]), (7, [3])])
def test_the_last_of_a_window_of_samples_is_still_in_it(make_buffer, window, kept):
    d_new = make_buffer(window=window)
    d_new.add(X, FIRST_AND_LAST)
    d_new.add(X, NONE)  # the first sample of all is the eighth from the end
    assert torch.equal(d_new.samples, X[kept])


def test_without_a_window_samples_stay(make_buffer):
    d_new = make_buffer()
    d_new.add(X, FIRST_AND_LAST)
    for _ in range(100):
        d_new.add(X, NONE)
    assert torch.equal(emptied(d_new), X[[0, 3]])


@pytest.mark.parametrize("batches", range(7))
def test_a_restored_d_new_goes_on_as_the_first_would_have(make_buffer, batches):
    """Empty, half full, waiting, and with samples about to leave the window."""
    first = make_buffer(n_new=6, wait=2, window=9)
    shown = [(X + 10 * t, FIRST_AND_LAST) for t in range(12)]
    for x, poor in shown[:batches]:
        first.add(x, poor)
        handed_over(first)
    second = moved_on(first, make_buffer(n_new=6, wait=2, window=9))
    for x, poor in shown[batches:]:
        assert first.add(x, poor) == second.add(x, poor)
        one, other = handed_over(first), handed_over(second)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.d_new, other.d_new)


def test_an_empty_d_new_restored_over_a_full_one_is_empty(make_buffer):
    full = make_buffer()
    full.add(X, ALL)
    assert moved_on(make_buffer(), full).samples is None
