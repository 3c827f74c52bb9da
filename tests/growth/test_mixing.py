import pytest
import torch
from torch import Tensor

from curlicue.growth.mixing import apart, first_of_each, nearest_of, neighbours, principal
from curlicue.rng import named_generator

SEEDS = range(5)


def normal(n: int, D: int, seed: int = 0) -> Tensor:
    return torch.randn(n, D, generator=named_generator(seed, "normal"))


def unlike(first: Tensor, second: Tensor, standardise: bool = True) -> float:
    return apart(first, second, standardise).unlike


def signs(n: int, seed: int) -> Tensor:
    return normal(n, 1, seed)[:, 0].sign()


# -- two samples of one kind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("D", [1, 2, 20, 500])
@pytest.mark.parametrize(("n", "m"), [(200, 200), (1000, 100), (40, 400), (400, 40)])
def test_two_samples_of_one_kind_mix_whatever_their_sizes(n, m, D, standardise):
    found = [unlike(normal(n, D, seed), normal(m, D, seed + 100), standardise) for seed in SEEDS]
    assert 0.45 < min(found) <= max(found) < 0.6
    assert sum(found) / len(found) < 0.55


def test_samples_of_twenty_rows_of_one_kind_are_hardly_ever_taken_for_two():
    found = [unlike(normal(20, 3, seed), normal(20, 3, seed + 1000)) for seed in range(300)]
    assert sum(each > 0.6 for each in found) <= 3


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize(("n", "m"), [(30, 30), (30, 5), (5, 200), (1, 30)])
def test_rows_that_are_all_equal_mix(n, m, standardise):
    assert unlike(torch.ones(n, 4), torch.ones(m, 4), standardise) <= 0.5 + 1e-6


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (2, 2), (2, 40), (11, 3)])
def test_tiny_samples_can_be_asked_about(n, m, standardise):
    found = apart(normal(n, 3), normal(m, 3, seed=1), standardise)
    assert 0 <= found.unlike <= 1
    assert (found.own.shape, found.foreign.shape) == ((n,), (m,))
    assert found.own.isfinite().all()
    assert found.foreign.isfinite().all()


# -- two kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(200, 200), (40, 400), (400, 40)])
def test_a_sample_that_is_shifted_does_not_mix(n, m):
    assert min(unlike(normal(n, 5, seed) + 1, normal(m, 5, seed + 100)) for seed in SEEDS) > 0.7


@pytest.mark.parametrize("D", [5, 20, 50])
@pytest.mark.parametrize("factor", [0.5, 2])
def test_a_sample_that_is_wider_or_narrower_does_not_mix(D, factor):
    assert min(unlike(factor * normal(200, D, seed), normal(200, D, seed + 100)) for seed in SEEDS) > 0.7


def test_a_sample_whose_features_go_together_otherwise_does_not_mix():
    """Means and variances of both are the same."""
    x, y = normal(200, 2), normal(200, 2, seed=1)
    x[:, 1], y[:, 1] = 0.9 * x[:, 0] + 0.4 * x[:, 1], -0.9 * y[:, 0] + 0.4 * y[:, 1]
    assert unlike(x, y) > 0.7


@pytest.mark.parametrize("shift", [1.0, 2.0])
def test_a_sample_that_is_shifted_in_five_of_five_hundred_features_does_not_mix(shift):
    for seed in SEEDS:
        x = normal(200, 500, seed)
        x[:, 7:12] += shift
        assert unlike(x, normal(200, 500, seed + 100)) > 0.7


def test_a_sample_that_is_wider_in_the_weakest_of_fifty_features_does_not_mix():
    scale = torch.ones(50).index_fill(0, torch.arange(25, 50), 0.5)
    for seed in SEEDS:
        x, y = scale * normal(200, 50, seed), scale * normal(200, 50, seed + 100)
        x[:, 25:] *= 1.6
        assert unlike(x, y, standardise=False) > 0.6


def test_what_differs_in_a_small_feature_counts_if_and_only_if_features_are_standardised():
    """One sample has the values −1 and 1, the other −√2, 0, 0 and √2: means and spreads are the same."""
    x, y = normal(200, 3), normal(200, 3, seed=1)
    x[:, 0], y[:, 0] = signs(200, 2), 2**0.5 * signs(200, 3) * (torch.arange(200) % 2)
    scale = torch.tensor([1.0, 100, 100])
    assert unlike(x * scale, y * scale, standardise=True) > 0.7
    assert unlike(x * scale, y * scale, standardise=False) < 0.6


def test_of_a_half_new_sample_the_rows_of_the_other_kind_are_told_from_the_others():
    first, second = normal(100, 4), normal(100, 4, seed=1)
    first[50:] += 8
    found = apart(first, second, True)
    assert (found.own[50:] > 0.95).all()
    assert (found.own[:50] < 0.75).all()
    assert found.foreign.mean() < 0.5


def test_a_clump_of_a_dozen_rows_is_seen():
    """All their neighbours are their own."""
    first, second = normal(100, 4), normal(100, 4, seed=1)
    first[:12] = first[:12] / 10 + 20
    assert (apart(first, second, True).own[:12] > 0.99).all()


def test_rows_of_the_second_sample_see_the_first_only_where_it_lies():
    """The first lies where one half of the second does."""
    first, second = normal(100, 3), normal(200, 3, seed=1)
    second[:100] += 12
    foreign = apart(first, second, True).foreign
    assert (foreign[:100] == 0).all()
    assert foreign[100:].median() > 0.5


def test_samples_are_as_far_apart_when_they_change_places_as_before():
    x, y = normal(60, 3) + 1, normal(150, 3, seed=1)
    assert unlike(x, y) == pytest.approx(unlike(y, x), abs=0.03)


# -- distances ---------------------------------------------------------------------------------------------------------


def distances(x: Tensor) -> Tensor:
    return (x[:, None] - x).double().norm(dim=2)


@pytest.mark.parametrize(("n", "D"), [(80, 7), (30, 30), (10, 40)])
def test_principal_components_keep_all_distances_where_there_is_room_for_all(n, D):
    x = normal(n, D) * torch.arange(1, D + 1) + 100
    z = (x - x.mean(0)) / x.std(0, correction=0)
    for standardise, expected in ((False, x), (True, z)):
        found = principal(x, standardise)
        assert torch.allclose(distances(found), distances(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "D"), [(80, 7), (6, 40)])
def test_the_components_that_are_kept_are_those_of_the_largest_variance(n, D):
    x = normal(n, D) * torch.logspace(2, -2, D)
    expected = torch.linalg.svdvals((x - x.mean(0)).double())[:3] ** 2
    found = principal(x, False, n=3).double().square().sum(0).sort(descending=True).values
    assert torch.allclose(found, expected, rtol=1e-3)


def test_a_feature_that_never_varies_does_not_count():
    x = normal(50, 4).index_fill(1, torch.tensor([2]), 7.0)
    assert torch.allclose(
        principal(x, True).square().sum(1), principal(x[:, [0, 1, 3]], True).square().sum(1), atol=1e-4
    )


@pytest.mark.parametrize("n", [2, 8, 100])
def test_neighbours_are_the_nearest_other_rows(n):
    x = normal(n, 3)
    expected = torch.stack([(x - row).norm(dim=1).argsort()[1:7] for row in x])
    assert torch.equal(neighbours(x, 6), expected)


@pytest.mark.parametrize(("n", "m"), [(3, 1), (50, 70), (2500, 300)])
def test_the_nearest_of_others_is_found_for_each_of_few_rows_or_many(n, m):
    x, others = normal(n, 4), normal(m, 4, seed=1)
    expected = torch.stack([(others - row).norm(dim=1).argmin() for row in x])
    assert torch.equal(nearest_of(x, others), expected)


def test_the_first_of_each_distinct_row_is_found_once_and_in_order():
    x = torch.tensor([[3.0, 1], [0, 0], [3, 1], [1, 3], [0, 0], [3, 1]])
    assert first_of_each(x).tolist() == [0, 1, 3]
    assert first_of_each(x.flip(0)).tolist() == [0, 1, 2]
    assert torch.equal(first_of_each(normal(100, 3)), torch.arange(100))
    assert first_of_each(torch.zeros(9, 2)).tolist() == [0]
