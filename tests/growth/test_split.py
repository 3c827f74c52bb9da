from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from curlicue.errors import ConfigError
from curlicue.growth.protocol import Asked, Birth, Move, Tuned
from curlicue.growth.split import Split, SplitRule
from curlicue.memory.store import Store
from curlicue.model.likelihood import Bernoulli, GaussianNoise
from curlicue.records.state import MisfitError
from curlicue.rng import named_generator
from learning import moved_on, terms_of, written

SEEDS = range(3)
D = 5


def normal(n: int, seed: int = 0, n_x: int = D) -> Tensor:
    return torch.randn(n, n_x, generator=named_generator(seed, "normal"))


def at(distance: float, n: int, seed: int = 1, n_x: int = D) -> Tensor:
    """Normal rows around a point that is so far from 0."""
    return normal(n, seed, n_x) + distance * torch.eye(n_x)[0]


def mixed(*parts: Tensor) -> Tensor:
    x = torch.cat(parts)
    return x[torch.randperm(len(x), generator=named_generator(0, "order"))]


def kept(*of_each: Tensor) -> Store:
    """A store that has these rows of each component; every value comes back as it is."""
    store, rng = Store(20_000, of_each[0].shape[1], torch.float32), named_generator(0, "store")
    store.add(torch.full((1, store.n_x), 1e6), torch.tensor([0]), torch.tensor([0]), rng)
    for k, x in enumerate(of_each):
        store.add(x, torch.full((len(x),), k), torch.arange(len(x)), rng)
    store.discard((held(store) > 1e5).any(1).nonzero()[:, 0])
    return store


def held(store: Store) -> Tensor:
    return store.rows(torch.arange(len(store))).x


def rule_of(store: Store, K: int = 1, bernoulli: bool = False, **settings: object) -> SplitRule:
    p_x = Bernoulli() if bernoulli else GaussianNoise(store.n_x)
    model = SimpleNamespace(K=K, n_x=store.n_x, dtype=torch.float32, p_x=p_x)
    return Split(**settings).start(model, store)


def explain(rule: SplitRule, *counts: int) -> SplitRule:
    """The stream brings so many rows of each component."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    assert rule.look(torch.zeros(len(y), D), terms_of(torch.zeros(len(y)), y, rule.model.K), 0) == 0
    assert not rule.holding
    return rule


def all_due(rule: SplitRule) -> list[Asked]:
    return [*iter(rule.due, None)]


def done(rule: SplitRule) -> list[Asked]:
    """What is due, done as a learner does it."""
    asked = []
    while each := rule.due():
        to = rule.model.K if isinstance(each, Birth) else each.to
        rule.examples.relabel(each.members, to)
        if isinstance(each, Birth):
            rule.model.K += 1
            rule.born()
        asked.append(each)
    return asked


def by_change(rule: SplitRule, x: Tensor) -> SplitRule:
    """A component is born of these rows, which the stream brought when it changed."""
    k = rule.model.K
    rule.examples.add(x, torch.full((len(x),), k), torch.arange(len(x)), named_generator(k, "change"))
    rule.model.K = k + 1
    rule.born()
    return rule


def at_rest(rule: SplitRule) -> list[Asked]:
    rule.rest()
    return all_due(rule)


def is_rows(found: Tensor, expected: Tensor) -> bool:
    """The same rows, in any order."""
    return sorted(found.tolist()) == sorted(expected.tolist())


# -- when a component is looked at -------------------------------------------------------------------------------------


def looks_while(explained: list[int], **settings: object) -> list[bool]:
    """After each part of the stream, whether a component with two blobs is due to be split."""
    rule = rule_of(kept(mixed(normal(150), at(9, 50))), **settings)
    return [bool(all_due(explain(rule, n))) for n in explained]


def test_a_component_is_looked_at_once_it_has_explained_enough_and_then_each_time_half_as_many_again():
    assert looks_while([499, 1, 249, 2, 374, 3]) == [False, True, False, True, False, True]


def test_how_many_rows_are_explained_before_the_first_look_is_a_setting():
    assert looks_while([99, 1, 49, 2], first_look=100) == [False, True, False, True]


def test_at_rest_all_components_are_looked_at_and_once_only():
    store = kept(mixed(normal(150), at(9, 50)), mixed(at(100, 150), at(109, 50)))
    rule = rule_of(store, K=2)
    assert not all_due(rule)
    assert [asked.parent for asked in at_rest(rule)] == [0, 1]
    assert not all_due(rule)
    assert [asked.parent for asked in at_rest(rule)] == [0, 1]


def test_after_a_rest_the_next_look_is_not_before_as_much_as_the_first_wants():
    rule = rule_of(kept(mixed(normal(150), at(9, 50))))
    assert at_rest(explain(rule, 10))
    assert not all_due(explain(rule, 489))
    assert all_due(explain(rule, 1))


def test_each_component_is_counted_for_itself():
    store = kept(mixed(normal(150), at(9, 50)), mixed(at(100, 150), at(109, 50)))
    rule = rule_of(store, K=2)
    assert not all_due(explain(rule, 300, 499))
    assert [asked.parent for asked in all_due(explain(rule, 0, 1))] == [1]
    assert [asked.parent for asked in all_due(explain(rule, 200, 0))] == [0]


def test_components_split_from_one_another_are_counted_and_looked_at_together():
    rule = explain(rule_of(kept(mixed(normal(150), at(9, 50)))), 500)
    assert [type(asked) for asked in done(rule)] == [Birth]
    rule.examples.relabel(rule.examples.of(1)[:7], 0)  # of the smaller blob
    assert not done(explain(rule, 100, 150))
    (move,) = done(explain(rule, 0, 1))
    assert (type(move), move.to, len(move.members)) == (Move, 1, 7)


def test_a_component_that_a_change_brought_is_counted_for_itself():
    rule = by_change(rule_of(kept(normal(200))), mixed(at(100, 150), at(130, 50)))
    assert not done(explain(rule, 1500, 499))
    (birth,) = done(explain(rule, 0, 1))
    assert birth.parent == 1
    assert not done(explain(rule, 0, 100, 150))
    assert rule.root.tolist() == [0, 1, 1]


def test_a_refused_birth_is_asked_for_again_only_with_the_next_look():
    rule = explain(rule_of(kept(mixed(normal(150), at(9, 50)))), 500)
    assert all_due(rule)
    rule.refused()
    assert not all_due(explain(rule, 200))
    assert all_due(explain(rule, 60))


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_blobs_in_a_component_the_smaller_is_born_of_it(seed):
    large, small = normal(300, seed), at(9, 120, seed + 10)
    store = kept(mixed(large, small))
    (birth,) = at_rest(rule_of(store, passes=7))
    assert isinstance(birth, Birth)
    assert is_rows(birth.d_new, small)
    assert torch.equal(store.rows(birth.members).x, birth.d_new)
    assert (birth.parent, birth.passes, birth.tuned) == (0, 7, Tuned.HEADS)


def test_of_several_clusters_the_largest_keeps_the_component_and_the_others_are_born():
    parts = [normal(n, i) + 8 * torch.eye(D)[i] for i, n in enumerate((60, 200, 120, 90))]
    births = at_rest(rule_of(kept(mixed(*parts))))
    assert sorted(len(birth.d_new) for birth in births) == [60, 90, 120]
    assert {birth.parent for birth in births} == {0}
    for birth in births:
        assert any(is_rows(birth.d_new, part) for part in parts)


def test_only_rows_of_the_component_itself_are_looked_at():
    store = kept(at(-50, 100, 5), mixed(normal(200), at(9, 80)))
    rule = explain(rule_of(store, K=2), 0, 600)
    (birth,) = all_due(rule)
    assert is_rows(birth.d_new, at(9, 80))
    assert (store.rows(birth.members).y == 1).all()
    assert birth.parent == 1


def test_rows_beyond_those_that_are_looked_at_follow_their_nearest_neighbour():
    small = at(12, 400)
    (birth,) = at_rest(rule_of(kept(mixed(normal(1200), small)), most=200))
    assert is_rows(birth.d_new, small)


@pytest.mark.parametrize(("most", "found"), [(60, 0), (5000, 1)])
def test_how_many_rows_are_looked_at_is_a_setting(most, found):
    """Of the small cluster there are two or three then."""
    assert len(at_rest(rule_of(kept(mixed(normal(1500), at(9, 60))), most=most))) == found


@pytest.mark.parametrize("bernoulli", [False, True])
def test_rows_that_mix_with_those_of_another_component_move_there(bernoulli):
    lost = at(9, 100, 3)
    store = kept(mixed(normal(300), lost), at(-20, 300, 4), at(9, 300, 5))
    rule = explain(rule_of(store, K=3, bernoulli=bernoulli), 600, 0, 0)
    (move,) = all_due(rule)
    assert isinstance(move, Move)
    assert move.to == 2
    assert is_rows(store.rows(move.members).x, lost)


def test_few_rows_move_as_well_as_many():
    for seed in range(12):
        store = kept(mixed(normal(300), at(9, 40, seed + 10)), at(9, 300, seed + 50))
        (move,) = all_due(explain(rule_of(store, K=2), 600, 0))
        assert move.to == 1


@pytest.mark.parametrize("shift", [1.0, 4.0])
def test_rows_beside_those_of_another_component_are_born_none_the_less(shift):
    store = kept(mixed(normal(300), at(9, 100, 3) + shift), at(9, 300, 5))
    (birth,) = all_due(explain(rule_of(store, K=2), 600, 0))
    assert isinstance(birth, Birth)


@pytest.mark.parametrize(("n", "kind"), [(15, Birth), (30, Move)])
def test_of_a_component_with_fewer_than_twenty_rows_nobody_can_tell(n, kind):
    store = kept(mixed(normal(300), at(9, 100, 3)), at(9, n, 5))
    (asked,) = all_due(explain(rule_of(store, K=2), 600, 0))
    assert type(asked) is kind


def student(n: int, seed: int) -> Tensor:
    return normal(n, seed) / torch.stack([normal(n, seed + k, 1).square() for k in (10, 20, 30)]).mean(0).sqrt()


def uniform(n: int, seed: int) -> Tensor:
    return torch.rand(n, D, generator=named_generator(seed, "uniform"))


@pytest.mark.parametrize("noise", [normal, student, uniform])
def test_noise_asks_for_nothing(noise):
    for seed in SEEDS:
        assert not at_rest(rule_of(kept(noise(500, seed))))


# -- small clusters, clear gaps, equal rows ----------------------------------------------------------------------------


@pytest.mark.parametrize(("distance", "n_x", "found"), [(30.0, 5, 1), (6.5, 20, 0)])
def test_a_tiny_cluster_counts_only_if_it_lies_far_off(distance, n_x, found):
    """Two rows in a hundred."""
    x = mixed(normal(980, 0, n_x), 0.2 * normal(20, 1, n_x) + distance * torch.eye(n_x)[0])
    births = at_rest(rule_of(kept(x)))
    assert [len(birth.d_new) for birth in births] == [20] * found


def test_a_tiny_cluster_that_does_not_count_goes_where_it_is_nearest():
    """Twenty rows beside each of two large clusters."""
    tiny, aside = 0.2 * normal(20, 2, 20), 6.5 * torch.eye(20)[1]
    store = kept(mixed(normal(500, 0, 20), at(12, 460, 1, 20), tiny + aside, tiny + aside + 12 * torch.eye(20)[0]))
    (birth,) = at_rest(rule_of(store))
    assert is_rows(birth.d_new, held(store)[held(store)[:, 0] > 6])


def test_a_cluster_that_is_no_tiny_one_may_lie_as_near():
    x = mixed(normal(500, 0, 20), 0.2 * normal(70, 1, 20) + 6.5 * torch.eye(20)[0])
    (birth,) = at_rest(rule_of(kept(x)))
    assert 68 <= len(birth.d_new) <= 72


@pytest.mark.parametrize(("n", "found"), [(19, 0), (24, 1)])
def test_fewer_than_twenty_different_rows_are_not_looked_at(n, found):
    x = mixed(normal(n - n // 2), at(60, n // 2))
    assert len(at_rest(rule_of(kept(x.repeat(5, 1))))) == found * (n // 2 >= 10)


@pytest.mark.parametrize(("distance", "least", "most"), [(3.75, 0, 0), (4.75, 6, 6)])
def test_only_clear_gaps_part_what_a_change_has_brought(distance, least, most):
    """A change tells that what comes with it belongs together."""
    blobs = [mixed(normal(150, seed), at(distance, 150, seed + 10)) for seed in range(6)]
    assert sum(len(at_rest(rule_of(kept(x)))) for x in blobs) >= 4
    brought = [at_rest(by_change(rule_of(kept(normal(300) - 200)), x)) for x in blobs]
    assert least <= sum(map(len, brought)) <= most


def test_equal_rows_are_no_clusters_and_all_of_them_go_where_one_goes():
    x = normal(300)
    x[:150] = x[0]
    assert not at_rest(rule_of(kept(mixed(x, x[10:60], x[200:230]))))
    small = at(9, 100)
    (birth,) = at_rest(rule_of(kept(mixed(x, small, small[:50], small[:50]))))
    assert is_rows(birth.d_new, torch.cat([small, small[:50], small[:50]]))


def test_the_cluster_of_most_rows_keeps_the_component_though_many_are_equal():
    few, many = at(9, 60), normal(200)
    (birth,) = at_rest(rule_of(kept(mixed(many, *[few] * 10))))
    assert is_rows(birth.d_new, many)


# -- mistakes are mended -----------------------------------------------------------------------------------------------


def family(*of_each: Tensor) -> SplitRule:
    """Components with these rows, all of them split from the first."""
    rule = rule_of(kept(*of_each), K=len(of_each))
    rule.root = torch.zeros(len(of_each), dtype=torch.int64)
    return rule


def test_each_cluster_goes_on_with_the_component_that_it_shares_most_rows_with():
    left, right = normal(200), at(9, 200)
    rule = family(mixed(left[:150], right[:40]), mixed(left[150:], right[40:]))
    moves = at_rest(rule)
    assert sorted((move.to, len(move.members)) for move in moves) == [(0, 50), (1, 40)]
    done(rule)
    rule.rest()
    done(rule)
    assert is_rows(rule.examples.rows(rule.examples.of(0)).x, left)
    assert is_rows(rule.examples.rows(rule.examples.of(1)).x, right)


def test_a_cluster_that_was_cut_in_two_is_joined():
    x = normal(400)
    rule = family(x[:250], x[250:])
    rule.rest()
    (move,) = done(rule)
    assert (move.to, len(move.members)) == (0, 150)
    rule.rest()
    assert not done(rule)


def test_a_new_cluster_is_born_of_the_component_that_has_most_of_its_rows():
    third = normal(100, 7) + 9 * torch.eye(D)[1]
    rule = family(mixed(normal(200), third[:30]), mixed(at(9, 200), third[30:]))
    (birth,) = at_rest(rule)
    assert birth.parent == 1
    assert is_rows(birth.d_new, third)


def test_a_cluster_of_which_no_component_has_a_row_is_born_though_one_is_empty():
    (asked,) = at_rest(family(mixed(normal(200), at(9, 100)), torch.empty(0, D)))
    assert isinstance(asked, Birth)


def test_a_family_that_is_as_it_should_be_asks_for_nothing():
    rule = family(normal(200), at(12, 100), at(-12, 150))
    assert not at_rest(rule)


# -- the rule goes on --------------------------------------------------------------------------------------------------


def test_the_rule_draws_from_nothing_but_its_own_looks():
    store = kept(mixed(normal(400), at(6, 200)))
    first, second = (at_rest(rule_of(store, most=150))[0] for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first.members, second.members)


@pytest.mark.parametrize("n", [0, 400, 500, 700, 800])
def test_a_resumed_rule_goes_on_as_the_first_would_have(n):
    store = kept(mixed(normal(900), at(5, 300)))
    first = rule_of(store, most=200)
    for _ in range(n // 100):
        explain(first, 100)
        all_due(first)
    second = moved_on(first, rule_of(store, most=200))
    told = []
    for _ in range(20):
        told.append([[a.members.tolist() for a in all_due(explain(rule, 100))] for rule in (first, second)])
    assert all(one == other for one, other in told)
    assert any(one for one, _ in told)
    assert str(first.state()) == str(second.state())


def test_a_state_of_another_model_is_refused():
    state = rule_of(kept(normal(50), normal(50)), K=2).state()
    with pytest.raises(MisfitError, match=r"root is int64 \[2\] in it, but .* int64 \[1\]"):
        rule_of(kept(normal(50))).restore(written(state))


@pytest.mark.parametrize("setting", ["first_look", "most", "passes"])
def test_settings_that_cannot_work_are_refused_by_name(setting):
    with pytest.raises(ConfigError, match=rf"The '{setting}' setting must be an int in the range \[1, inf\). Got 0"):
        Split(**{setting: 0})
