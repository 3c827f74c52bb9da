import pytest
import torch
from torch import nn

from curlicue.config import ExpansionConfig
from curlicue.learn.expansion import PoorlyModelled, closest_component
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

X = torch.arange(8.0).view(4, 2)  # four samples
BOUND = torch.tensor([-300.0, -100.0, -200.0, -201.0])  # the first and the last are below c_new = −200


def buffer(**settings: object) -> PoorlyModelled:
    return PoorlyModelled(ExpansionConfig(**{"burn_in": 0, "wait": 0} | settings))


def test_samples_whose_bound_is_below_the_threshold_join_d_new_and_no_others():
    d_new = buffer()
    assert d_new.consider(X, BOUND, t=0, K=1) == 2
    assert d_new.size == 2
    assert torch.equal(d_new.empty(), X[[0, 3]])


def test_d_new_keeps_its_order_over_batches():
    d_new = buffer()
    d_new.consider(X, BOUND, t=0, K=1)
    d_new.consider(X + 10, BOUND, t=1, K=1)
    assert torch.equal(d_new.empty(), torch.cat([X[[0, 3]], X[[0, 3]] + 10]))


def test_d_new_holds_what_the_samples_were_even_if_the_batch_is_overwritten():
    d_new, x = buffer(), X.clone()
    d_new.consider(x, torch.full((4,), -300.0), t=0, K=1)
    x.zero_()
    assert torch.equal(d_new.empty(), X)


@pytest.mark.parametrize(("t", "joined"), [(0, 0), (99, 0), (100, 2), (101, 2)])
def test_nothing_joins_in_the_burn_in(t, joined):
    d_new = buffer(burn_in=100)
    assert d_new.consider(X, BOUND, t=t, K=1) == joined
    assert d_new.size == joined


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_nothing_joins_for_so_many_real_batches_after_a_birth(wait):
    d_new = buffer(wait=wait)
    d_new.consider(X, BOUND, t=0, K=1)
    d_new.empty()
    joined = [d_new.consider(X, BOUND, t=t, K=2) for t in range(1, wait + 3)]
    assert joined == [0] * wait + [2, 2]


@pytest.mark.parametrize(("K", "joined"), [(4, 2), (5, 0), (6, 0)])
def test_nothing_joins_once_the_cap_is_reached(K, joined):
    assert buffer(max_components=5).consider(X, BOUND, t=0, K=K) == joined


def test_d_new_is_full_when_it_has_reached_its_size():
    d_new = buffer(n_new=4)
    d_new.consider(X, BOUND, t=0, K=1)
    assert not d_new.full
    d_new.consider(X, BOUND, t=1, K=1)
    assert d_new.full


def test_handing_d_new_over_leaves_it_empty():
    d_new = buffer(n_new=2)
    d_new.consider(X, BOUND, t=0, K=1)
    d_new.empty()
    assert d_new.size == 0
    assert not d_new.full


def test_the_parent_has_the_greatest_summed_posterior():
    model = MixtureVAE(nn.Identity(), nn.Linear(2, 3), Bernoulli(), n_x=3, n_z=2, K=3, rng=named_generator(0, "init"))
    with torch.no_grad():
        model.heads["q_y_weight"].copy_(torch.eye(3))  # q(y|x) = softmax(x)
    q_y = torch.tensor([[0.45, 0.35, 0.2], [0.45, 0.35, 0.2], [1e-4, 0.8, 0.1999], [0.5, 1e-6, 0.499999]])
    assert closest_component(model, q_y.log()) == 1  # the most votes has 0, the greatest product 2
