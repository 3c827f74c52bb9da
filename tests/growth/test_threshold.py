import pytest
import torch

from curlicue.errors import ConfigError
from curlicue.growth.protocol import Tuned
from curlicue.growth.threshold import Threshold, ThresholdRule
from learning import moved_on, terms_of

X = torch.arange(24.0).view(4, 6)  # four samples
BOUND = torch.tensor([-300.0, -100.0, -200.0, -201.0])  # the first and the last are below c_new = −200
TERMS = terms_of(BOUND)


@pytest.fixture
def make_rule(make_model):
    def make(**settings: object) -> ThresholdRule:
        return Threshold(**{"burn_in": 0, "wait": 0, "c_new": -200.0} | settings).start(make_model())

    return make


def test_samples_whose_bound_is_below_the_threshold_join_d_new_and_no_others(make_rule):
    rule = make_rule(n_new=2)
    assert rule.look(X, TERMS, t=0) == 2
    assert torch.equal(rule.due().d_new, X[[0, 3]])


@pytest.mark.parametrize(("t", "joined"), [(0, 0), (99, 0), (100, 2), (101, 2)])
def test_nothing_joins_in_the_burn_in(make_rule, t, joined):
    rule = make_rule(burn_in=100, n_new=1)
    assert rule.look(X, TERMS, t=t) == joined
    assert (rule.due() is not None) == (joined > 0)


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_a_component_is_due_again_only_when_the_wait_is_over_and_d_new_is_full(make_rule, wait):
    rule = make_rule(wait=wait, n_new=4)
    fired = []
    for t in range(3 * (wait + 2)):
        rule.look(X, TERMS, t)
        fired += [t] if rule.due() else []
    assert fired == [1, wait + 3, 2 * wait + 5]


@pytest.mark.parametrize("bound", [-200.0, 0.0, torch.inf, torch.nan])
def test_a_rule_never_fires_while_no_bound_is_below_the_threshold(make_rule, bound):
    rule = make_rule(n_new=1)
    for t in range(100):
        assert rule.look(X, terms_of(torch.full((4,), bound)), t) == 0
        assert rule.due() is None


def test_a_birth_or_its_refusal_leaves_the_threshold_where_it_is(make_rule):
    rule = make_rule(n_new=2)
    for told in (rule.born, rule.refused):
        assert rule.look(X, TERMS, t=0) == 2
        assert rule.due() is not None
        told()
    assert rule.look(X, TERMS, t=0) == 2


def test_newborns_are_fitted_as_the_settings_say(make_rule):
    rule = make_rule(n_new=1, passes=3, tuned=Tuned.HEADS)
    rule.look(X, TERMS, t=0)
    birth = rule.due()
    assert (birth.passes, birth.tuned) == (3, Tuned.HEADS)


@pytest.mark.parametrize("steps", range(6))
def test_a_restored_rule_fires_when_the_first_would_have(make_rule, steps):
    first = make_rule(n_new=5, wait=1)
    for t in range(steps):
        first.look(X, TERMS, t)
        first.due()
    second = moved_on(first, make_rule(n_new=5, wait=1))
    for t in range(steps, 12):
        assert first.look(X, TERMS, t) == second.look(X, TERMS, t)
        assert (first.due() is None) == (second.due() is None)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("c_new", torch.nan), ("c_new", -torch.inf), ("n_new", 0), ("burn_in", -1), ("wait", -1), ("passes", -1)],
)
def test_settings_that_cannot_work_are_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=f"The '{setting}' setting must be .* Got {value} instead"):
        Threshold(**{setting: value})
