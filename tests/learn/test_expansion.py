import pytest
import torch
from torch import nn

from curlicue.config import ExpansionConfig
from curlicue.learn.expansion import MEMORY, STD_FLOOR, WARM_UP, Normal, PoorlyModelled, closest_component
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

X = torch.arange(8.0).view(4, 2)  # four samples
Y = torch.zeros(4, dtype=torch.int64)  # all are explained best by the first component
BOUND = torch.tensor([-300.0, -100.0, -200.0, -201.0])  # the first and the last are below c_new = −200


def buffer(**settings: object) -> PoorlyModelled:
    return PoorlyModelled(ExpansionConfig(**{"burn_in": 0, "wait": 0} | settings), K=2)


def test_samples_whose_bound_is_below_the_threshold_join_d_new_and_no_others():
    d_new = buffer()
    assert d_new.consider(X, BOUND, Y, t=0) == 2
    assert len(d_new.samples) == 2
    assert torch.equal(d_new.empty(), X[[0, 3]])


def test_d_new_keeps_its_order_over_batches():
    d_new = buffer()
    d_new.consider(X, BOUND, Y, t=0)
    d_new.consider(X + 10, BOUND, Y, t=1)
    assert torch.equal(d_new.empty(), torch.cat([X[[0, 3]], X[[0, 3]] + 10]))


def test_d_new_holds_what_the_samples_were_even_if_the_batch_is_overwritten():
    d_new, x = buffer(), X.clone()
    d_new.consider(x, torch.full((4,), -300.0), Y, t=0)
    x.zero_()
    assert torch.equal(d_new.empty(), X)


@pytest.mark.parametrize(("t", "joined"), [(0, 0), (99, 0), (100, 2), (101, 2)])
def test_nothing_joins_in_the_burn_in(t, joined):
    d_new = buffer(burn_in=100)
    assert d_new.consider(X, BOUND, Y, t=t) == joined
    assert len(d_new.samples) == joined


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_nothing_joins_for_so_many_real_batches_after_a_birth(wait):
    d_new = buffer(wait=wait)
    d_new.consider(X, BOUND, Y, t=0)
    d_new.empty()
    joined = [d_new.consider(X, BOUND, Y, t=t) for t in range(1, wait + 3)]
    assert joined == [0] * wait + [2, 2]


def test_d_new_is_full_when_it_has_reached_its_size():
    d_new = buffer(n_new=4)
    d_new.consider(X, BOUND, Y, t=0)
    assert not d_new.full
    d_new.consider(X, BOUND, Y, t=1)
    assert d_new.full


def test_handing_d_new_over_leaves_it_empty():
    d_new = buffer(n_new=2)
    d_new.consider(X, BOUND, Y, t=0)
    d_new.empty()
    assert len(d_new.samples) == 0
    assert not d_new.full


def test_with_a_window_what_came_longer_ago_leaves_d_new():
    d_new = buffer(window=7, n_new=3)
    d_new.consider(X, BOUND, Y, t=0)
    d_new.consider(X + 10, BOUND, Y, t=1)  # the first sample of all is the eighth from the end
    assert torch.equal(d_new.samples, torch.cat([X[[3]], X[[0, 3]] + 10]))
    d_new.consider(X + 20, torch.zeros(4), Y, t=2)
    assert torch.equal(d_new.samples, X[[3]] + 10)


# -- what is normal --------------------------------------------------------------------------------------------------


def normal_of(bounds: torch.Tensor, y: int = 0) -> Normal:
    normal = Normal(K=2)
    for part in bounds.split(100):
        normal.update(part, torch.full((len(part),), y))
    return normal


def test_what_is_normal_for_a_component_is_the_mean_and_deviation_of_its_bounds_while_they_are_few():
    bounds = torch.randn(2, 300, generator=named_generator(0, "bounds"), dtype=torch.float64) * 7 - 90
    y = torch.rand(2, 300, generator=named_generator(0, "y")).round().long()
    normal = Normal(K=2)
    for part, of in zip(bounds, y, strict=True):
        normal.update(part, of)
    for k in (0, 1):
        own = bounds[y == k]
        n, mean, var = normal.figures[:, k].tolist()
        assert n == len(own)
        assert mean == pytest.approx(own.mean().item())
        assert var == pytest.approx(own.var(correction=0).item())
        assert normal.below(4, warm_up=1)[k].item() == pytest.approx((own.mean() - 4 * own.std(correction=0)).item())


def test_what_is_normal_follows_a_model_that_gets_better_and_forgets_the_rest():
    normal = normal_of(torch.cat([torch.full((MEMORY,), -300.0), torch.full((10 * MEMORY,), -100.0)]))
    assert normal.figures[1, 0].item() == pytest.approx(-100, abs=0.1)
    assert normal.figures[0, 0] <= 1.5 * MEMORY


def test_samples_that_are_all_alike_still_leave_some_room_below_them():
    assert normal_of(torch.full((100,), -50.0)).below(5, warm_up=1)[0] == -50 - 5 * STD_FLOOR


@pytest.mark.parametrize(("n", "poor"), [(WARM_UP * 3 - 1, 0), (WARM_UP * 3, 4)])
def test_nobody_is_measured_against_a_component_that_has_not_explained_enough_yet(n, poor):
    d_new = buffer(c_new=None, n_new=3)
    d_new.normal = normal_of(torch.full((n,), -50.0))
    assert d_new.consider(X, torch.full((4,), -400.0), Y, t=0) == poor


def test_a_sample_is_measured_against_what_is_normal_for_the_component_that_explains_it():
    d_new = buffer(c_new=None, deviations=3.0)
    d_new.normal = normal_of(-100 + 10 * torch.tensor([-1.0, 1.0]).repeat(5000))  # −110 and −90
    d_new.normal.update(torch.full((25_000,), -500.0), torch.ones(25_000, dtype=torch.int64))
    assert d_new.consider(X, torch.tensor([-131.5, -128.5, -500.0, -700.0]), torch.tensor([0, 0, 1, 1]), t=1) == 2
    assert torch.equal(d_new.samples, X[[0, 3]])


@pytest.mark.parametrize("wait", [0, 50])
def test_what_is_poor_never_becomes_normal_whether_it_may_join_or_not(wait):
    d_new = buffer(c_new=None, n_new=2, wait=wait)
    d_new.normal = normal_of(torch.linspace(-110, -90, 5000))
    d_new.consider(X, torch.full((4,), -300.0), Y, t=1)
    d_new.empty()
    before = d_new.normal.figures.clone()
    d_new.consider(X, torch.full((4,), -300.0), Y, t=2)
    assert torch.equal(d_new.normal.figures, before)


def test_a_newborn_has_explained_nothing_and_at_the_cap_all_begin_anew():
    normal = normal_of(torch.full((100,), -50.0))
    normal.grow()
    assert normal.figures[:, 2].tolist() == [0, 0, 0]
    assert normal.figures[0].tolist() == [100, 0, 0]
    normal.forget()
    assert not normal.figures.any()


def test_the_parent_has_the_greatest_summed_posterior():
    model = MixtureVAE(nn.Identity(), nn.Linear(2, 3), Bernoulli(), n_x=3, n_z=2, K=3, rng=named_generator(0, "init"))
    with torch.no_grad():
        model.heads["q_y_weight"].copy_(torch.eye(3))  # q(y|x) = softmax(x)
    q_y = torch.tensor([[0.45, 0.35, 0.2], [0.45, 0.35, 0.2], [1e-4, 0.8, 0.1999], [0.5, 1e-6, 0.499999]])
    assert closest_component(model, q_y.log()) == 1  # the most votes has 0, the greatest product 2
