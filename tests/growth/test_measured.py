import pytest
import torch
from torch import Tensor

from curlicue.errors import ConfigError
from curlicue.growth.measured import Measured, MeasuredRule, RunningStatistics
from curlicue.rng import named_generator
from learning import moved_on, terms_of

X = torch.arange(24.0).view(4, 6)  # four samples
SPREAD = -100 + 10 * torch.tensor([-1.0, 1.0]).repeat(5000)  # mean −100, standard deviation 10
FAR = torch.full((4,), -400.0)


@pytest.fixture
def make_rule(make_model):
    def make(**settings: object) -> MeasuredRule:
        return Measured(**{"wait": 0} | settings).start(make_model())

    return make


def show(rule: MeasuredRule, bounds: Tensor, y: int = 0) -> int:
    """Show samples with these bounds, in batches; how many of them joined D_new."""
    batches = bounds.split(100)
    ys = (torch.full((len(part),), y) for part in batches)
    return sum(rule.look(torch.zeros(len(part), 6), terms_of(part, k), 0) for part, k in zip(batches, ys, strict=True))


def statistics_of(bounds: Tensor) -> RunningStatistics:
    """Of the first of two components."""
    statistics = RunningStatistics(K=2)
    for part in bounds.split(100):
        statistics.update(part, torch.zeros(len(part), dtype=torch.int64))
    return statistics


# -- running statistics ----------------------------------------------------------------------------------------------


def test_statistics_of_few_samples_are_the_mean_and_deviation_of_the_bounds_of_each_component():
    bounds = torch.randn(2, 300, generator=named_generator(0, "bounds"), dtype=torch.float64) * 7 - 90
    y = torch.rand(2, 300, generator=named_generator(0, "y")).round().long()
    statistics = RunningStatistics(K=2)
    for part, of in zip(bounds, y, strict=True):
        statistics.update(part, of)
    for k in (0, 1):
        own = bounds[y == k]
        n, mean, var = statistics.figures[:, k].tolist()
        assert n == len(own)
        assert mean == pytest.approx(own.mean().item())
        assert var == pytest.approx(own.var(correction=0).item())
        line = statistics.line(4, warm_up=1)[k].item()
        assert line == pytest.approx((own.mean() - 4 * own.std(correction=0)).item())


def test_statistics_follow_a_model_that_gets_better_and_forget_the_rest():
    statistics = statistics_of(torch.cat([torch.full((5000,), -300.0), torch.full((50_000,), -100.0)]))
    assert statistics.figures[1, 0].item() == pytest.approx(-100, abs=0.1)
    assert statistics.figures[0, 0] <= 7500


def test_after_as_many_samples_as_are_remembered_a_third_or_so_of_the_past_is_left():
    """1/e of it is: −300 is to be −100 now, and the mean has come 63 % of the way after five thousand samples."""
    statistics = statistics_of(torch.cat([torch.full((20_000,), -300.0), torch.full((5000,), -100.0)]))
    assert statistics.figures[1, 0].item() == pytest.approx(-100 - 200 * 0.37, abs=5)


def test_bounds_that_are_not_finite_are_not_part_of_the_statistics():
    statistics = statistics_of(torch.tensor([-50.0, torch.nan, -60.0, -torch.inf, torch.inf]))
    assert statistics.figures[:, 0].tolist() == [2, -55, 25]


def test_samples_that_are_all_alike_still_leave_a_nat_a_deviation_below_them():
    assert statistics_of(torch.full((100,), -50.0)).line(5, warm_up=1)[0] == -55


def test_a_newborn_has_explained_nothing_and_forgetting_lets_all_begin_anew():
    statistics = statistics_of(torch.full((100,), -50.0))
    statistics.grow()
    assert statistics.figures[:, 2].tolist() == [0, 0, 0]
    assert statistics.figures[0].tolist() == [100, 0, 0]
    statistics.forget()
    assert not statistics.figures.any()


# -- who joins D_new ---------------------------------------------------------------------------------------------------


def test_samples_more_than_two_deviations_below_the_mean_are_poor_unless_the_settings_say_otherwise(make_rule):
    rule = make_rule()
    show(rule, SPREAD)
    assert show(rule, torch.tensor([-118.0, -100.0, -50.0])) == 0
    assert show(rule, torch.tensor([-122.0, -300.0])) == 2


def test_a_sample_is_measured_against_the_component_that_explains_it(make_rule):
    rule = make_rule(deviations=3.0)
    show(rule, SPREAD)
    show(rule, torch.full((25_000,), -500.0), y=1)
    bound, y = torch.tensor([-131.5, -128.5, -500.0, -700.0]), torch.tensor([0, 0, 1, 1])
    assert rule.look(X, terms_of(bound, y), t=1) == 2
    assert torch.equal(rule.d_new.samples, X[[0, 3]])


@pytest.mark.parametrize(("n", "poor"), [(59, 0), (60, 4)])
def test_a_component_measures_nobody_before_it_has_explained_twenty_times_n_new(make_rule, n, poor):
    rule = make_rule(n_new=3)
    show(rule, torch.full((n,), -50.0))
    assert rule.look(X, terms_of(FAR), t=0) == poor


@pytest.mark.parametrize(("n", "poor"), [(4900, 0), (5000, 4)])
def test_a_component_need_not_explain_more_than_it_remembers(make_rule, n, poor):
    rule = make_rule(n_new=1000)
    show(rule, torch.full((n,), -50.0))
    assert rule.look(X, terms_of(FAR), t=0) == poor


@pytest.mark.parametrize("wait", [0, 50])
def test_poor_samples_never_become_normal_whether_they_may_join_or_not(make_rule, wait):
    rule = make_rule(n_new=2, wait=wait)
    show(rule, torch.linspace(-110, -90, 5000))
    before = rule.normal.figures.clone()
    for t in (1, 2):
        rule.look(X, terms_of(FAR), t)
        assert (rule.due() is not None) == (t == 1 or wait == 0)
    assert torch.equal(rule.normal.figures, before)


# -- when a component is born ------------------------------------------------------------------------------------------


def births(rule: MeasuredRule, one_in: int, rows: int = 2000) -> int:
    """How many components are due when one sample in so many is poorly explained."""
    found = 0
    for n in range(rows):
        show(rule, torch.tensor([-400.0 if n % one_in == 0 else -100.0]))
        found += rule.due() is not None
    return found


def test_a_component_is_due_when_n_new_of_the_latest_five_times_n_new_samples_are_poor(make_rule):
    rule = make_rule(n_new=10)
    show(rule, SPREAD)
    assert births(rule, one_in=4) > 10


def test_a_rule_never_fires_while_poor_samples_are_rarer_than_that(make_rule):
    rule = make_rule(n_new=10)
    show(rule, SPREAD)
    assert births(rule, one_in=8) == 0


def test_a_rule_never_fires_on_a_stream_that_stays_as_it_is(make_rule):
    rule = make_rule(n_new=10, deviations=4.0)
    bounds = -100 + 10 * torch.randn(20_000, generator=named_generator(0, "bounds"))
    for part in bounds.split(100):
        show(rule, part)
        assert rule.due() is None


def test_after_a_birth_the_newborn_measures_nobody_and_the_others_go_on(make_rule):
    rule = make_rule(n_new=2)
    show(rule, SPREAD)
    show(rule, SPREAD, y=2)
    rule.born()
    assert rule.look(X, terms_of(FAR, torch.tensor([0, 2, 3, 3]), K=4), t=0) == 2


def test_after_a_refusal_nobody_is_measured_until_all_have_warmed_up_again(make_rule):
    rule = make_rule(n_new=2)
    show(rule, SPREAD)
    rule.refused()
    assert show(rule, torch.full((39,), -400.0)) == 0
    assert show(rule, torch.full((2,), -800.0)) == 0
    assert show(rule, torch.full((2,), -800.0)) == 2


@pytest.mark.parametrize("n", [0, 700, 1300])
def test_a_restored_rule_goes_on_as_the_first_would_have(make_rule, n):
    """Warming up, with some samples in D_new, and waiting."""
    bounds = torch.cat([SPREAD[:1000], SPREAD[:1000] - 15, SPREAD[:1000]]).split(10)
    settings = {"n_new": 30, "wait": 7, "deviations": 1.5}
    first = make_rule(**settings)
    fired = [(show(first, part), first.due() is not None) for part in bounds[: n // 10]]
    second = moved_on(first, make_rule(**settings))
    for part in bounds[n // 10 :]:
        fired.append((show(first, part), first.due() is not None))
        assert fired[-1] == (show(second, part), second.due() is not None)
    assert any(joined for joined, _ in fired)
    assert any(born for _, born in fired)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("deviations", 0.0), ("deviations", torch.inf), ("n_new", 0), ("window", 0.5), ("wait", -1), ("passes", -1)],
)
def test_settings_that_cannot_work_are_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=f"The '{setting}' setting must be .* Got {value} instead"):
        Measured(**{setting: value})
