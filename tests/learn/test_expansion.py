import pytest
import torch
from torch import nn

from curlicue.config import ExpansionConfig
from curlicue.learn.expansion import MEMORY, STD_FLOOR, Normal, PoorlyModelled, closest_component
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

X = torch.arange(8.0).view(4, 2)  # four samples
BOUND = torch.tensor([-300.0, -100.0, -200.0, -201.0])  # the first and the last are below c_new = −200


def buffer(**settings: object) -> PoorlyModelled:
    return PoorlyModelled(ExpansionConfig(**{"burn_in": 0, "wait": 0} | settings))


def test_samples_whose_bound_is_below_the_threshold_join_d_new_and_no_others():
    d_new = buffer()
    assert d_new.consider(X, BOUND, t=0) == 2
    assert len(d_new.samples) == 2
    assert torch.equal(d_new.empty(), X[[0, 3]])


def test_d_new_keeps_its_order_over_batches():
    d_new = buffer()
    d_new.consider(X, BOUND, t=0)
    d_new.consider(X + 10, BOUND, t=1)
    assert torch.equal(d_new.empty(), torch.cat([X[[0, 3]], X[[0, 3]] + 10]))


def test_d_new_holds_what_the_samples_were_even_if_the_batch_is_overwritten():
    d_new, x = buffer(), X.clone()
    d_new.consider(x, torch.full((4,), -300.0), t=0)
    x.zero_()
    assert torch.equal(d_new.empty(), X)


@pytest.mark.parametrize(("t", "joined"), [(0, 0), (99, 0), (100, 2), (101, 2)])
def test_nothing_joins_in_the_burn_in(t, joined):
    d_new = buffer(burn_in=100)
    assert d_new.consider(X, BOUND, t=t) == joined
    assert len(d_new.samples) == joined


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_nothing_joins_for_so_many_real_batches_after_a_birth(wait):
    d_new = buffer(wait=wait)
    d_new.consider(X, BOUND, t=0)
    d_new.empty()
    joined = [d_new.consider(X, BOUND, t=t) for t in range(1, wait + 3)]
    assert joined == [0] * wait + [2, 2]


def test_d_new_is_full_when_it_has_reached_its_size():
    d_new = buffer(n_new=4)
    d_new.consider(X, BOUND, t=0)
    assert not d_new.full
    d_new.consider(X, BOUND, t=1)
    assert d_new.full


def test_handing_d_new_over_leaves_it_empty():
    d_new = buffer(n_new=2)
    d_new.consider(X, BOUND, t=0)
    d_new.empty()
    assert len(d_new.samples) == 0
    assert not d_new.full


def test_with_a_window_what_came_longer_ago_leaves_d_new():
    d_new = buffer(window=7, n_new=3)
    d_new.consider(X, BOUND, t=0)
    d_new.consider(X + 10, BOUND, t=1)  # the first sample of all is the eighth from the end
    assert torch.equal(d_new.samples, torch.cat([X[[3]], X[[0, 3]] + 10]))
    d_new.consider(X + 20, torch.zeros(4), t=2)
    assert torch.equal(d_new.samples, X[[3]] + 10)


# -- what is normal --------------------------------------------------------------------------------------------------


def test_what_is_normal_is_the_mean_and_deviation_of_all_bounds_while_they_are_few():
    bounds = torch.randn(300, generator=named_generator(0, "bounds"), dtype=torch.float64) * 7 - 90
    normal = Normal()
    for part in bounds.split([1, 99, 150, 50]):
        normal.update(part)
    assert normal.mean == pytest.approx(bounds.mean().item())
    assert normal.var == pytest.approx(bounds.var(correction=0).item())
    assert normal.below(4) == pytest.approx((bounds.mean() - 4 * bounds.std(correction=0)).item())


def test_what_is_normal_follows_a_model_that_gets_better_and_forgets_the_rest():
    normal = Normal()
    normal.update(torch.full((MEMORY,), -300.0))
    for _ in range(20):
        normal.update(torch.full((MEMORY // 2,), -100.0))
    assert normal.mean == pytest.approx(-100, abs=0.1)
    assert normal.n <= 1.5 * MEMORY


def test_samples_that_are_all_alike_still_leave_some_room_below_them():
    normal = Normal()
    normal.update(torch.full((100,), -50.0))
    assert normal.below(5) == -50 - 5 * STD_FLOOR


def test_nothing_is_poor_before_anything_was_normal():
    assert buffer(c_new=None).consider(X, BOUND, t=0) == 0


def test_a_measured_threshold_takes_what_is_far_below_normal_and_learns_only_from_the_rest():
    d_new = buffer(c_new=None, deviations=3.0)
    d_new.consider(torch.zeros(100, 2), -100 + 10 * torch.arange(-50, 50).sign(), t=0)  # −110 and −90
    mean = d_new.normal.mean
    assert d_new.c_new == pytest.approx(mean - 30, abs=0.2)
    assert d_new.consider(X, torch.tensor([-131.0, -129.0, -100.0, -500.0]), t=1) == 2
    assert torch.equal(d_new.samples, X[[0, 3]])
    assert d_new.normal.n == 102


def test_while_nothing_may_join_what_is_poor_is_taken_for_normal_but_only_as_far_as_the_line():
    d_new, expected = buffer(c_new=None, wait=50), Normal()
    d_new.consider(torch.zeros(100, 2), torch.linspace(-110, -90, 100), t=0)
    d_new.consider(X, torch.full((4,), -300.0), t=1)
    d_new.empty()
    expected.update(torch.linspace(-110, -90, 100))
    expected.update(torch.tensor([d_new.c_new] * 4))
    d_new.consider(X, torch.full((4,), -300.0), t=2)
    assert vars(d_new.normal) == pytest.approx(vars(expected))


def test_the_parent_has_the_greatest_summed_posterior():
    model = MixtureVAE(nn.Identity(), nn.Linear(2, 3), Bernoulli(), n_x=3, n_z=2, K=3, rng=named_generator(0, "init"))
    with torch.no_grad():
        model.heads["q_y_weight"].copy_(torch.eye(3))  # q(y|x) = softmax(x)
    q_y = torch.tensor([[0.45, 0.35, 0.2], [0.45, 0.35, 0.2], [1e-4, 0.8, 0.1999], [0.5, 1e-6, 0.499999]])
    assert closest_component(model, q_y.log()) == 1  # the most votes has 0, the greatest product 2
