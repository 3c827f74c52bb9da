from dataclasses import fields

import pytest
import torch

from curlicue.rng import Rng, named_generator

NAMES = [field.name for field in fields(Rng)]


def draw(rng: Rng, name: str, n: int = 5) -> list[float]:
    return torch.rand(n, generator=getattr(rng, name)).tolist()


def test_the_same_seed_gives_the_same_numbers_under_every_name():
    first, again = Rng.from_seed(3), Rng.from_seed(3)
    assert all(draw(first, name) == draw(again, name) for name in NAMES)


def test_seeds_and_names_all_have_numbers_of_their_own():
    drawn = [tuple(draw(Rng.from_seed(seed), name)) for seed in (0, 1, 2, -1, 2**40) for name in NAMES]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("greedy", NAMES)
def test_drawing_more_from_one_generator_shifts_no_other(greedy):
    undisturbed, disturbed = Rng.from_seed(0), Rng.from_seed(0)
    draw(disturbed, greedy, 1000)
    for name in NAMES:
        assert (draw(disturbed, name) == draw(undisturbed, name)) == (name != greedy)


def test_generators_are_not_correlated():
    numbers = torch.stack([torch.randn(4000, generator=named_generator(0, name)) for name in NAMES])
    assert (torch.corrcoef(numbers) - torch.eye(len(NAMES))).abs().max() < 4.5 * 4000**-0.5


def test_a_restored_state_goes_on_where_it_was():
    rng = Rng.from_seed(0)
    for name in NAMES:
        draw(rng, name)
    state = rng.state()
    expected = {name: draw(rng, name) for name in NAMES}
    elsewhere = Rng.from_seed(99)
    elsewhere.restore(state)
    assert {name: draw(elsewhere, name) for name in NAMES} == expected


def test_torchs_global_chance_is_neither_used_nor_moved():
    before = torch.get_rng_state()
    draw(Rng.from_seed(0), NAMES[0])
    assert torch.equal(torch.get_rng_state(), before)
