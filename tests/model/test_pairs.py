import pytest
import torch
from torch import Tensor

from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator

TAU = 0.2
Q_Y = torch.tensor([[0.90, 0.05, 0.03, 0.02], [0.25, 0.25, 0.25, 0.25], [0.01, 0.02, 0.37, 0.60]])  # [B, K]
B, K = Q_Y.shape
P = (Q_Y / TAU).clamp_max(1)  # the probability of a visit; each row's most probable component is above TAU
F = torch.tensor([[1.0, -50.0, 30.0, 7.0], [2.0, 4.0, -4.0, 9.0], [-80.0, 60.0, 1.0, -3.0]])  # of each pair


CPU = torch.device("cpu")


def sparse(seed: int, q_y: Tensor = Q_Y) -> Pairs:
    return Pairs.sparse(q_y, TAU, named_generator(seed, "pairs"))


def some_pairs() -> dict[str, Pairs]:
    y = torch.tensor([3, 1, 1, 6, 3, 1])
    return {
        "every": Pairs.every(Q_Y),
        "sparse": sparse(0),
        "given": Pairs.given(y, 8, CPU),
        "one component": Pairs.every(torch.ones(5, 1)),
        "one pair": Pairs.given(torch.tensor([2]), 8, CPU),
    }


@pytest.fixture(params=some_pairs())
def pairs(request) -> Pairs:
    return some_pairs()[request.param]


def test_pairs_are_ordered_by_component(pairs):
    assert (pairs.ks.diff() >= 0).all()


def test_every_pair_is_visited_once_and_weighed_by_its_posterior():
    pairs = Pairs.every(Q_Y)
    visited = set(zip(pairs.rows.tolist(), pairs.ks.tolist(), strict=True))
    assert visited == {(b, k) for b in range(B) for k in range(K)}
    assert len(pairs.rows) == B * K
    assert torch.equal(pairs.weights, Q_Y[pairs.rows, pairs.ks])


def test_a_threshold_below_all_posteriors_keeps_every_pair_as_the_exact_sum_does():
    every, kept = Pairs.every(Q_Y), Pairs.sparse(Q_Y, 0.009, named_generator(0, "pairs"))
    assert torch.equal(kept.rows, every.rows)
    assert torch.equal(kept.ks, every.ks)
    assert torch.equal(kept.weights, every.weights)


def test_no_pair_is_visited_twice():
    pairs = sparse(0)
    assert len(set(zip(pairs.rows.tolist(), pairs.ks.tolist(), strict=True))) == len(pairs.rows)


def test_each_pair_is_kept_as_often_as_its_posterior_over_tau_says():
    n = 4000
    draws = Pairs.sparse(Q_Y.repeat(n, 1), TAU, named_generator(0, "pairs"))
    kept = torch.zeros(B, K).index_put_((draws.rows % B, draws.ks), torch.tensor(1.0), accumulate=True) / n
    assert torch.equal(kept[P == 1], P[P == 1])
    assert ((kept - P).abs() <= 4.5 * (P * (1 - P) / n).sqrt()).all()
    spread = (P * (1 - P)).sum().sqrt() * n**0.5
    assert abs(len(draws.rows) - n * P.sum()) < 4.5 * spread


def test_a_pair_kept_against_the_odds_weighs_tau_and_a_sure_one_its_posterior():
    pairs = sparse(0, Q_Y.repeat(50, 1))
    q = Q_Y.repeat(50, 1)[pairs.rows, pairs.ks]
    assert (q < TAU).any()
    torch.testing.assert_close(pairs.weights, q.clamp_min(TAU))


def test_a_rows_most_probable_component_is_always_visited_and_weighs_its_posterior():
    even = torch.tensor([[0.24, 0.25, 0.27, 0.24], [0.3, 0.2, 0.2, 0.3]]).repeat(500, 1)
    pairs = Pairs.sparse(even, 0.9, named_generator(0, "pairs"))
    assert torch.equal(pairs.rows[pairs.best], torch.arange(1000))
    assert torch.equal(even[pairs.rows, pairs.ks][pairs.best], even.max(1).values)
    torch.testing.assert_close(pairs.weights[pairs.best], even.max(1).values)


def sparse_sums(logits: Tensor, tau: float = TAU) -> Tensor:
    """Σₖ q f for each row, estimated."""
    pairs = Pairs.sparse(logits.softmax(1), tau, named_generator(0, "pairs"))
    return pairs.sum_rows(F[pairs.rows % B, pairs.ks], len(logits))


@pytest.mark.parametrize("tau", [0.05, TAU, 1.0])
def test_the_sparse_sum_is_unbiased_in_value_and_in_gradient(tau):
    n = 20_000
    one, many = Q_Y.log().requires_grad_(), Q_Y.log().repeat(n, 1).requires_grad_()
    exact, sums = (one.softmax(1) * F).sum(1), sparse_sums(many, tau)
    exact.sum().backward()
    sums.sum().backward()
    for draws, expected in ((sums.detach().view(n, B), exact.detach()), (many.grad.view(n, B, K), one.grad)):
        error = (draws.mean(0) - expected).abs()
        assert (error <= 4.5 * draws.std(0) / n**0.5 + 1e-4).all()


def test_what_all_components_have_in_common_costs_the_sparse_sum_no_noise():
    pairs = Pairs.sparse(Q_Y.repeat(500, 1), 0.9, named_generator(0, "pairs"))
    sums = pairs.sum_rows(torch.full((len(pairs.rows),), -150.0), 500 * B)
    torch.testing.assert_close(sums, torch.full((500 * B,), -150.0))


def test_the_gradient_of_a_row_sum_in_each_visited_value_is_the_weight_of_its_pair(pairs):
    f = torch.randn(len(pairs.rows), generator=named_generator(0, "values")).requires_grad_()
    (slope,) = torch.autograd.grad(pairs.sum_rows(f, int(pairs.rows.max()) + 1).sum(), f)
    torch.testing.assert_close(slope, torch.ones(len(f)) if pairs.weights is None else pairs.weights)


def test_given_components_make_one_pair_a_sample_of_weight_one():
    y = torch.tensor([3, 1, 1, 6, 3, 1])
    pairs = Pairs.given(y, 8, CPU)
    assert sorted(pairs.rows.tolist()) == list(range(6))
    assert torch.equal(y[pairs.rows], pairs.ks)
    assert torch.equal(pairs.sum_rows(pairs.rows + 1.0, 6), torch.arange(6) + 1.0)


@pytest.mark.parametrize("pairs", [Pairs.every(Q_Y), Pairs.given(torch.tensor([3, 1, 1, 6, 3, 1]), 7, CPU)])
def test_sums_over_rows_equal_a_loop(pairs):
    values = torch.randn(len(pairs.rows), generator=named_generator(0, "values"))
    weights = torch.ones(len(values)) if pairs.weights is None else pairs.weights
    expected = [0.0] * (int(pairs.rows.max()) + 1)
    for b, w, v in zip(pairs.rows.tolist(), weights.tolist(), values.tolist(), strict=True):
        expected[b] += w * v
    torch.testing.assert_close(pairs.sum_rows(values, len(expected)), torch.tensor(expected))


def test_a_sparse_sum_is_the_best_value_and_the_weighed_surplus_of_the_others():
    pairs = sparse(0)
    f = F[pairs.rows, pairs.ks]
    expected = []
    for b in range(B):
        f_best = F[b, Q_Y[b].argmax()]
        own = pairs.rows == b
        expected.append(f_best + (pairs.weights[own] * (f[own] - f_best)).sum())
    torch.testing.assert_close(pairs.sum_rows(f, B), torch.stack(expected))


def test_the_layout_has_one_place_for_each_pair_in_the_line_of_its_component(pairs):
    groups = pairs.groups
    occurring = pairs.ks.unique()
    assert torch.equal(groups.active, occurring)
    places = groups.places
    assert len(places.unique()) == len(places) == len(pairs.rows)
    assert torch.equal(groups.gather[places], pairs.rows)
    n = len(groups.gather) // len(groups.active)
    assert torch.equal(groups.active[places // n], pairs.ks)


def test_the_layout_is_no_longer_than_its_longest_line(pairs):
    groups = pairs.groups
    assert len(groups.gather) == len(pairs.ks.unique()) * int(pairs.ks.bincount().max())


def test_empty_places_gather_a_row_that_exists(pairs):
    assert pairs.groups.gather.max() <= pairs.rows.max()
    assert pairs.groups.gather.min() >= 0


@pytest.mark.parametrize("y", [[0, 4], [-1, 2], [3_000_000]])
def test_a_component_that_is_not_there_is_refused_before_anything_is_laid_out(y):
    with pytest.raises(IndexError, match=rf"must be in the range \[0, 3\]\. Got {min(y)} to {max(y)}\."):
        Pairs.given(torch.tensor(y), 4, CPU)
