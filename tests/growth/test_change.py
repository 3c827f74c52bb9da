from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from curlicue.errors import ConfigError
from curlicue.growth.change import Change, surprise
from curlicue.growth.mixing import nearest_of
from curlicue.growth.protocol import Asked, Birth, Familiar, Tuned
from curlicue.memory.store import Store
from curlicue.model.likelihood import GaussianNoise
from curlicue.records.state import MisfitError
from curlicue.rng import named_generator
from learning import moved_on, written

SEEDS = range(5)
D = 5


class World:
    """A learner that learns nothing: a rule of growth, and a store that has what was not held back."""

    def __init__(self, known: tuple[Tensor, ...] = (), n_x: int = D, **settings: object) -> None:
        self.config, self.store, self.rng = Change(**settings), Store(10_000, n_x), named_generator(0, "store")
        self.model = SimpleNamespace(K=max(1, len(known)), n_x=n_x, dtype=torch.float32, p_x=GaussianNoise(n_x))
        self.now = 0  # the component that explains the stream
        for k, x in enumerate(known):
            self.keep(x, k)
        self.rule = self.config.start(self.model, self.store)
        self.asked: list[tuple[int, Asked]] = []  # with the number of rows that had been seen
        self.learnt: list[Tensor] = []
        self.rows = 0

    def keep(self, x: Tensor, k: int) -> None:
        self.store.add(x, torch.full((len(x),), k), torch.arange(len(x)), self.rng)

    def sees(self, x: Tensor, B: int = 50) -> World:
        for batch in x.split(B):
            held = self.rule.look(batch, None, 0)
            assert held == self.rule.holding * len(batch)
            self.rows += len(batch)
            if not held:
                self.learnt.append(batch)
                self.keep(batch, self.now)
            self.heed()
        return self

    def rests(self) -> World:
        self.rule.rest()
        self.heed()
        return self

    def heed(self) -> None:
        while asked := self.rule.due():
            self.asked.append((self.rows, asked))
            if isinstance(asked, Birth):
                self.now, self.model.K = self.model.K, self.model.K + 1
                self.keep(asked.d_new, self.now)
                self.rule.born()
            else:
                held = self.store.rows(torch.arange(len(self.store)))
                self.now = int(held.y[nearest_of(asked.x, held.x)].mode().values)
                self.keep(asked.x, self.now)

    def resumes(self) -> World:
        """The rule is saved, and another goes on from there."""
        self.rule = moved_on(self.rule, self.config.start(self.model, self.store))
        return self

    @property
    def births(self) -> list[Birth]:
        return [asked for _, asked in self.asked if isinstance(asked, Birth)]

    @property
    def familiar(self) -> list[Familiar]:
        return [asked for _, asked in self.asked if isinstance(asked, Familiar)]

    @property
    def log(self) -> list[tuple[int, str, list[list[float]]]]:
        return [(n, type(a).__name__, (a.d_new if isinstance(a, Birth) else a.x).tolist()) for n, a in self.asked]

    @property
    def everything(self) -> Tensor:
        """All rows that were learnt or came out of those held back, in a definite order."""
        out = [*self.learnt, *(birth.d_new for birth in self.births), *(each.x for each in self.familiar)]
        return rows_sorted(torch.cat(out))


def rows_sorted(x: Tensor) -> Tensor:
    return torch.tensor(sorted(x.tolist()))


def normal(n: int, seed: int = 0, n_x: int = D) -> Tensor:
    return torch.randn(n, n_x, generator=named_generator(seed, "normal"))


def shuffled(x: Tensor, seed: int = 0) -> Tensor:
    return x[torch.randperm(len(x), generator=named_generator(seed, "order"))]


def together(n: int, r: float, seed: int) -> Tensor:
    """The first two of the features are correlated."""
    x = normal(n, seed)
    x[:, 1] = r * x[:, 0] + (1 - r * r) ** 0.5 * x[:, 1]
    return x


def restless(n: int, B: int, seed: int, by: float = 1.0) -> Tensor:
    """Each batch has means of its own."""
    return by * normal(n // B, seed).repeat_interleave(B, 0) + normal(n, seed + 50)


# -- what is a change --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("B", [20, 50, 100, 150])
@pytest.mark.parametrize("shift", [1.0, 4.0, -4.0])
def test_a_component_is_born_of_the_first_rows_of_a_new_regime(shift, B):
    old, new = normal(1200, 1), normal(600, 2) + shift
    world = World().sees(torch.cat([old, new]), B)
    assert len(world.births) == 1
    ((seen, birth),) = [(n, asked) for n, asked in world.asked if isinstance(asked, Birth)]
    assert torch.isin(birth.d_new, new).all()
    assert 200 <= seen - 1200 < 200 + 2 * B
    assert (birth.parent, birth.members, birth.tuned, birth.passes) == (None, None, Tuned.HEADS, 25)


@pytest.mark.parametrize("held", [50, 400])
def test_as_many_rows_are_held_back_as_the_settings_say_and_two_batches_at_least(held):
    for B in (30, 300):
        world = World(held=held, passes=3).sees(torch.cat([normal(1200, 1), normal(900, 2) + 4]), B)
        (birth,) = world.births
        assert len(birth.d_new) == max(2, -(-held // B)) * B
        assert birth.passes == 3


@pytest.mark.parametrize("factor", [0.5, 1.6])
def test_rows_that_only_spread_otherwise_are_new(factor):
    new = factor * normal(600, 2)
    births = World().sees(torch.cat([normal(1000, 1), new])).births
    assert births
    assert all(torch.isin(birth.d_new, new).all() for birth in births)


def test_rows_whose_features_only_go_together_otherwise_are_new():
    new = together(600, -0.95, 2)
    births = World().sees(torch.cat([together(1000, 0.95, 1), new])).births
    assert births
    assert torch.isin(births[0].d_new, new).all()


def test_binary_rows_are_new_when_other_bits_are_set():
    def bits(n: int, p: Tensor, seed: int) -> Tensor:
        return (torch.rand(n, len(p), generator=named_generator(seed, "bits")) < p).float()

    p = torch.linspace(0.05, 0.95, 30)
    new = bits(400, p.flip(0), 2)
    (birth,) = World(n_x=30).sees(torch.cat([bits(1000, p, 1), new])).births
    assert torch.isin(birth.d_new, new).all()


def test_a_regime_of_one_repeated_row_is_new_unless_the_row_is_known():
    row = torch.tensor([1.0, 0, 1, 0, 1])
    world = World().sees(torch.cat([normal(1000, 1), row.expand(300, -1), normal(300, 2), row.expand(300, -1)]))
    assert len(world.births) == 1
    assert (world.births[0].d_new == row).all()


def test_a_repeated_row_of_any_values_is_known_when_it_returns():
    row = torch.tensor([0.1, 0.7, 1 / 3, 5.1, 1.1])
    world = World().sees(torch.cat([normal(1000, 1), row.expand(300, -1), normal(300, 2), row.expand(300, -1)]))
    assert len(world.births) == 1


def test_regimes_one_after_the_other_are_each_born_once():
    world = World().sees(torch.cat([normal(500, k) + mean for k, mean in enumerate((0, 8, -8, 16))]), 100)
    assert [round(float(birth.d_new.mean())) for birth in world.births] == [8, -8, 16]


def test_changes_that_follow_hard_upon_each_other_are_not_taken_for_what_is_usual():
    """Five batches each, four of which are held back."""
    means = (0, 8, -8, 16, -16, 24, -24)
    world = World().sees(torch.cat([normal(250, k) + mean for k, mean in enumerate(means)]))
    assert [round(float(birth.d_new.mean())) for birth in world.births] == [*means[1:]]


# -- what is none ------------------------------------------------------------------------------------------------------


def student(n: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(3, (n, D))).float()


def trend(n: int, seed: int) -> Tensor:
    """A deviation in three thousand rows."""
    return normal(n, seed) + torch.linspace(0, n / 3000, n)[:, None]


def heavy(n: int, seed: int) -> Tensor:
    return 10 ** normal(n, seed)


@pytest.mark.parametrize("B", [20, 50, 100])
@pytest.mark.parametrize("stream", [normal, student, trend, heavy])
def test_nothing_is_born_of_a_stream_that_stays_as_it_is_or_drifts_slowly(stream, B):
    for seed in SEEDS:
        assert not World().sees(stream(3000, seed), B).births


@pytest.mark.parametrize("n_x", [1, 20, 100])
def test_batches_of_one_kind_hardly_ever_surprise(n_x):
    levels = [surprise(normal(50, s, n_x), normal(500, s + 1000, n_x)) for s in range(300)]
    assert sum(level > 5 for level in levels) <= 6


def test_features_that_go_together_surprise_no_more_than_one():
    """As if each of fifty features were the same."""
    levels = []
    for seed in range(200):
        now, before = (normal(n, s, 1) + 0.1 * normal(n, s + 7, 50) for n, s in ((50, seed), (500, seed + 1000)))
        levels.append(surprise(now, before))
    assert sum(level > 5 for level in levels) <= 12


def test_a_single_wild_row_surprises_nobody():
    for seed in SEEDS:
        now = normal(50, seed)
        now[7] = 1e6
        assert surprise(now, normal(500, seed + 100)) < 8


def never_seen(n_x: int) -> float:
    """The surprise where one row of a batch has a value in one feature that had none but zero; mean over some."""
    levels = []
    for seed in SEEDS:
        now, before = normal(50, seed, n_x), normal(500, seed + 100, n_x)
        now[:, 0], before[:, 0] = (torch.arange(50) == 3).float(), 0.0
        levels.append(surprise(now, before))
    return sum(levels) / len(levels)


def test_a_value_that_was_never_seen_surprises_nobody_in_one_of_many_features():
    assert never_seen(784) < 5


def test_a_value_that_was_never_seen_surprises_nobody_in_one_of_few_features():
    assert never_seen(30) < 5


def test_half_a_deviation_in_each_feature_is_surprising():
    assert min(surprise(normal(50, seed) + 0.5, normal(500, seed + 100)) for seed in SEEDS) > 5


def test_one_row_in_eight_three_deviations_off_is_surprising():
    for seed in SEEDS:
        now = normal(50, seed)
        now[:6] = 3 * now[:6].sign()
        assert surprise(now, normal(500, seed + 100)) > 5


def test_of_twenty_features_any_two_that_begin_to_go_together_are_surprising():
    for i, j in ((0, 1), (0, 19), (3, 17), (18, 19), (5, 6), (9, 12), (2, 14), (11, 16)):
        now = normal(500, 1, 20)
        now[:, j] = now[:, i]
        assert surprise(now, normal(500, 2, 20)) > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_born_of_a_stream_whose_batches_have_always_differed(seed):
    world = World(known=(shuffled(restless(1000, 20, seed + 200)),))
    assert not world.sees(restless(3000, 20, seed), 20).births


@pytest.mark.parametrize("B", [50, 100])
def test_nothing_is_born_in_the_first_batches_of_a_stream_whose_batches_all_differ(B):
    assert not any(World().sees(restless(8 * B, B, seed, by=3.0), B).births for seed in SEEDS)


def test_in_a_stream_whose_batches_differ_a_far_larger_change_is_seen():
    world = World().sees(restless(2500, 50, 1, by=0.3))
    before = len(world.births)
    new = restless(500, 50, 2, by=0.3) + 6
    world.sees(new)
    assert len(world.births) == before + 1
    assert torch.isin(world.births[-1].d_new, new).all()


def test_what_the_components_stand_for_is_familiar_when_it_returns():
    for seed in SEEDS:
        world = World(known=(normal(1000, 1), normal(1000, 2) + 5, normal(1000, 3) - 5))
        world.sees(torch.cat([normal(600, seed + 10), normal(600, seed + 20) + 5, normal(600, seed + 30) - 5]))
        assert not world.births
        assert len(world.familiar[0].x) == 200


def test_what_lies_among_all_components_in_their_proportions_is_familiar():
    known = (normal(1000, 1), normal(1000, 2) + 6)
    mixed = shuffled(torch.cat([normal(300, 3), normal(300, 4) + 6]))
    assert not World(known=known).sees(torch.cat([normal(600, 5), mixed])).births


@pytest.mark.parametrize("pattern", ["n...", "n.n.", "nn..", "nnn.", "nmn."])
def test_what_passes_before_it_is_decided_is_familiar_and_what_follows_is_learnt(pattern):
    """Batches of a new kind, and of another, before all is as it was."""
    batches = [normal(50, 10 + i) + {"n": 5, "m": -5, ".": 0}[each] for i, each in enumerate(pattern)]
    old = normal(1000, 1)
    world = World().sees(torch.cat([old, *batches]))
    passed = torch.cat([x for x, each in zip(batches, pattern, strict=True) if each != "."])
    assert not world.births
    assert torch.equal(torch.cat([each.x for each in world.familiar]), passed)
    stayed = [x for x, each in zip(batches, pattern, strict=True) if each == "."]
    assert torch.equal(torch.cat(world.learnt), torch.cat([old, *stayed]))


@pytest.mark.parametrize(("surprised", "born"), [([1, 0, 0], False), ([1, 1, 0], True)])
def test_of_the_batches_held_back_more_than_half_must_have_surprised(surprised, born):
    """The fourth of them surprises, too."""
    world = World().sees(torch.cat([normal(1000, 1), normal(150, 2) + 5]))
    world.rule.surprises = [bool(each) for each in surprised]
    world.sees(normal(50, 3) + 5)
    assert bool(world.births) == born
    assert bool(world.familiar) != born


@pytest.mark.parametrize("old", [50, 100])
def test_of_rows_some_of_which_are_new_only_those_are_born(old):
    """In each batch, as many rows of what there was in all."""
    new, rest = normal(200 - old, 2) + 6, normal(old, 3)
    world = World().sees(torch.cat([normal(1000, 1), shuffled(torch.cat([new, rest]))]))
    (birth,) = world.births
    assert torch.equal(rows_sorted(birth.d_new), rows_sorted(new))
    assert torch.equal(rows_sorted(torch.cat([each.x for each in world.familiar])), rows_sorted(rest))


def test_a_new_regime_that_overlaps_with_the_old_is_new_as_a_whole():
    for seed in SEEDS:
        world = World().sees(torch.cat([normal(1000, seed), normal(400, seed + 100) + 1]))
        assert [len(birth.d_new) for birth in world.births] == [200]
        assert not world.familiar


@pytest.mark.parametrize(("n", "born"), [(10, False), (25, True)])
def test_fewer_than_twenty_new_rows_give_birth_to_nothing(n, born):
    new, rest = normal(n, 2) + 30, normal(200 - n, 3)
    world = World(unlike=0.501).sees(torch.cat([normal(1000, 1), shuffled(torch.cat([new, rest]))]))
    assert [len(birth.d_new) for birth in world.births] == [n] * born
    assert [len(each.x) for each in world.familiar] == [200 - n * born]


def test_how_unlike_rows_must_be_to_be_new_is_a_setting():
    x = torch.cat([normal(1000, 1), normal(400, 2) + 1])
    assert World().sees(x).births
    assert not World(unlike=0.95).sees(x).births


def test_how_surprising_a_change_must_be_is_a_setting():
    x = torch.cat([normal(1000, 1), normal(400, 2) + 1])
    assert not World(surprise=1000.0).sees(x).asked


# -- when it can be told -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "told"), [(40, False), (60, True)])
def test_fifty_rows_must_have_been_seen_before_a_batch_can_surprise(n, told):
    world = World().sees(normal(n, 1), 10)
    world.rule.look(normal(10, 2) + 10, None, 0)
    assert world.rule.holding == told


@pytest.mark.parametrize(("calm", "told"), [(15, False), (42, True)])
def test_a_wild_past_is_forgotten_after_some_fifty_batches(calm, told):
    """Levels of the latest fifty batches count, and of these mostly the lower half."""
    world = World()
    world.rule.levels.extend([1e4] * 60)
    world.sees(normal(50 * calm, 1))
    assert not world.asked
    world.rule.look(normal(50, 2) + 1.5, None, 0)
    assert world.rule.holding == told


@pytest.mark.parametrize(("n", "told"), [(4, True), (6, False)])
def test_what_is_usual_is_told_by_five_batches_at_least(n, told):
    world = World().sees(normal(1000, 1))
    world.rule.levels.clear()
    world.rule.levels.extend([1e6] * n)
    world.rule.look(normal(50, 2) + 3, None, 0)
    assert world.rule.holding == told


@pytest.mark.parametrize(("wild", "told"), [(0.5, True), (0.7, False)])
def test_a_change_is_told_while_less_than_three_in_five_batches_are_wild(wild, told):
    world = World().sees(normal(1000, 1))
    world.rule.levels.extend([1.0] * 50)
    world.rule.levels.extend([1e6] * int(50 * wild))
    world.rule.look(normal(50, 2) + 3, None, 0)
    assert world.rule.holding == told


@pytest.mark.parametrize(("usual", "told"), [(0.6, True), (1.5, False)])
def test_a_change_is_a_level_of_four_times_what_is_usual(usual, told):
    """So many quarters of the level of this batch are usual: four times that is less than the level, or more."""
    world, new = World().sees(normal(1000, 1)), normal(50, 2) + 3
    level = surprise(new, world.rule.recent)
    world.rule.levels.extend([usual * level / 4] * 50)
    world.rule.look(new, None, 0)
    assert world.rule.holding == told


def test_from_eight_deviations_on_a_batch_is_held_back_unless_the_settings_say_otherwise():
    told = []
    for shift in torch.linspace(0, 0.7, 30).tolist():
        world, new = World().sees(normal(1000, 1)), normal(50, 2) + shift
        level = surprise(new, world.rule.recent)
        world.rule.look(new, None, 0)
        assert world.rule.holding == (level > 8)
        told.append(level)
    assert sum(4 < level < 8 for level in told) >= 2
    assert sum(8 < level < 16 for level in told) >= 2


def test_a_small_level_never_surprises_however_small_what_is_usual():
    world = World().sees(normal(1000, 1))
    world.rule.levels.extend([-0.5] * 50)
    assert not world.sees(normal(500, 2)).births


# -- nothing is lost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_learnt_or_comes_out_exactly_once(seed):
    parts = [normal(330, seed), normal(330, seed + 10) + 6, restless(500, 50, seed + 20), 4 * normal(170, seed + 30)]
    world = World().sees(torch.cat(parts)).rests()
    assert world.asked
    assert torch.equal(world.everything, rows_sorted(torch.cat(parts)))


def test_a_batch_is_held_back_be_it_the_one_by_which_it_is_decided():
    world = World().sees(torch.cat([normal(1000, 1), normal(150, 2) + 5]))
    assert world.rule.holding
    assert not world.asked
    world.sees(normal(50, 3) + 5)
    assert world.rule.holding
    assert world.births
    world.sees(normal(50, 4) + 5)
    assert not world.rule.holding


@pytest.mark.parametrize("n", [50, 100])
def test_at_rest_it_is_decided_at_once_what_is_held(n):
    new = normal(n, 2) + 6
    world = World().sees(torch.cat([normal(1000, 1), new]))
    assert not world.asked
    assert torch.equal(world.rests().births[0].d_new, new)
    assert len(world.rests().asked) == 1


def test_at_rest_with_nothing_held_nothing_happens():
    assert not World().rests().sees(normal(300)).rests().asked


def test_a_birth_or_its_refusal_changes_nothing_that_is_remembered():
    world = World().sees(torch.cat([normal(1000, 1), normal(100, 2) + 6]))
    before = str(written(world.rule.state()).rest)
    world.rule.born()
    world.rule.refused()
    assert str(written(world.rule.state()).rest) == before


@pytest.mark.parametrize("n", [0, 30, 450, 500, 550, 600, 700, 950, 1150])
def test_a_rule_that_is_resumed_goes_on_bit_for_bit(n):
    """At the start, before and while rows are held back, and after the birth; then there is another change."""
    mixed = shuffled(torch.cat([normal(200, 3) - 6, normal(200, 4)]))
    x = torch.cat([normal(500, 1), normal(500, 2) + 6, mixed, normal(210, 5)])
    first, second = World().sees(x), World().sees(x[:n]).resumes().sees(x[n:])
    if n % 50 == 0:
        assert first.log == second.log
        assert str(first.rule.state()) == str(second.rule.state())
    assert torch.equal(first.rests().everything, second.rests().everything)
    assert len(first.births) >= 2


@pytest.mark.parametrize(("B", "kept"), [(10, 500), (70, 500), (250, 1250)])
def test_memory_is_bounded_by_the_window_or_five_batches_and_the_rows_held(B, kept):
    world = World()
    for seed in range(8):
        world.sees(normal(1250, seed) + 5 * (seed % 2), B)
        assert len(world.rule.recent) <= kept
        assert sum(map(len, world.rule.suspects)) < 200 + B
        assert len(world.rule.levels) <= 50
    world.sees(normal(2000, 9) + 5, B)
    assert len(world.rule.recent) == kept


def test_the_state_of_a_rule_for_other_rows_is_refused():
    state = World().sees(normal(300)).rule.state()
    with pytest.raises(MisfitError, match=r"recent is float32 \[300, 5\] in it, but .* float32 \[any, 6\]"):
        World(n_x=6).rule.restore(written(state))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("window", 49),
        ("held", 49),
        ("surprise", 0.0),
        ("surprise", torch.inf),
        ("surprise", torch.nan),
        ("unlike", 0.5),
        ("unlike", 1.0),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=f"The '{setting}' setting must be .* Got {value} instead"):
        Change(**{setting: value})


def test_the_least_settings_work():
    config = {"window": 50, "held": 50, "unlike": 0.51}
    assert World(**config).sees(torch.cat([normal(300, 1), normal(100, 2) + 8]), 25).births
