import dataclasses
import math

import pytest

from curlicue.config.scenario import Drift, Iid, Scenario, Sequential
from curlicue.errors import ConfigError
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.settings import RunConfig, in_steps
from curlicue.growth.measured import Measured
from curlicue.growth.protocol import GrowthConfig
from curlicue.growth.threshold import Threshold
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.protocol import MemoryConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.systems.protocol import SystemConfig
from learning import ours

AT_LEAST_1, AT_LEAST_0 = "an int in the range [1, inf)", "an int in the range [0, inf)"
POSITIVE = "a float in the range (0, inf)"


@pytest.mark.parametrize(
    ("kind", "name", "value", "allowed"),
    [
        (Threshold, "c_new", math.nan, "a finite number of nats"),
        (Threshold, "c_new", -math.inf, "a finite number of nats"),
        (Threshold, "burn_in", -1, AT_LEAST_0),
        *((kind, "n_new", 0, AT_LEAST_1) for kind in (Threshold, Measured)),
        *((kind, name, -1, AT_LEAST_0) for kind in (Threshold, Measured) for name in ("wait", "passes")),
        *((Measured, "deviations", value, POSITIVE) for value in (0.0, math.inf, math.nan)),
        *((Measured, "window", value, "a float in the range [1, inf)") for value in (0.9, math.inf, math.nan)),
        (Snapshot, "snapshots", 0, "an int in the range [1, inf), 'dynamic' or 'change'"),
        *((LearnerConfig, "learning_rate", value, POSITIVE) for value in (0.0, math.nan, math.inf)),
        *((LearnerConfig, "tau", value, "a float in the range [0, 1]") for value in (-0.1, 1.1, math.nan)),
        (LearnerConfig, "z_samples", 0, AT_LEAST_1),
        (LearnerConfig, "max_components", 0, "None or an int in the range [1, inf)"),
        *((RunConfig, name, 0, AT_LEAST_1) for name in ("steps", "batch_size", "evaluate_every", "checkpoint_every")),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name_with_what_is_allowed(kind, name, value, allowed):
    with pytest.raises(ConfigError) as error:
        kind(**{name: value})
    assert str(error.value) == f"The '{name}' setting must be {allowed}. Got {value!r} instead."


def test_settings_at_the_edge_of_what_is_allowed_are_taken():
    Threshold(n_new=1, burn_in=0, wait=0, passes=0)
    Measured(deviations=1e-12, n_new=1, window=1.0, wait=0, passes=0)
    Snapshot(snapshots=1)
    LearnerConfig(learning_rate=1e-12, tau=0.0, z_samples=1, max_components=1)
    LearnerConfig(tau=1.0)
    RunConfig(steps=1, batch_size=1, evaluate_every=1, checkpoint_every=1)


@pytest.mark.parametrize("family", [Scenario, GrowthConfig, MemoryConfig, SystemConfig])
def test_settings_cannot_be_changed_afterwards(family):
    for config in (RunConfig(), LearnerConfig(), *(kind() for kind in ours(family).values())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.steps = 5


# -- periods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "n_classes", "T"),
    [
        (Sequential(), 10, 60),
        (Sequential(2), 10, 120),
        (Sequential(3), 10, 150),  # three, three, three and one: four tasks
        (Sequential(10), 10, 600),
        (Drift(), 50, 12),
        (Iid(), 10, 60),
    ],
)
def test_the_period_T_of_a_run_is_how_long_its_stream_shows_the_same_classes(scenario, n_classes, T):
    config = dataclasses.replace(PRESETS["mnist"], scenario=scenario, steps=600)
    assert config.resolved(n_classes).system.learner.memory.snapshots == T


def test_fewer_steps_shrink_every_period():
    whole = PRESETS["mnist"].resolved(10)
    tenth = in_steps(whole, 10_000)
    assert (tenth.steps, tenth.evaluate_every, tenth.checkpoint_every) == (10_000, 200, 200)
    assert tenth.system.learner.memory.snapshots == 1_000
    assert in_steps(whole, whole.steps) == whole
    one = in_steps(whole, 1)
    assert (one.evaluate_every, one.checkpoint_every, one.system.learner.memory.snapshots) == (1, 1, 1)
    assert in_steps(PRESETS["iid-mnist"], 10_000).system == PRESETS["iid-mnist"].system


def test_periods_scale_alike_before_and_after_the_classes_are_known():
    known_later = in_steps(PRESETS["mnist"], 10_000).resolved(10)
    assert known_later == in_steps(PRESETS["mnist"].resolved(10), 10_000)
