import dataclasses
import json
import math
from itertools import product

import pytest

from curlicue.config import (
    PRESETS,
    BeforeBirth,
    Counts,
    Drift,
    Emission,
    Every,
    ExpansionConfig,
    Iid,
    LearnerConfig,
    Likelihood,
    ModelConfig,
    Never,
    ReplayConfig,
    RunConfig,
    Sequential,
    Tuned,
    from_json,
    in_steps,
    paper_replay,
    to_json,
)
from curlicue.errors import ConfigError


def through_json(config: object) -> object:
    return from_json(type(config), json.loads(json.dumps(to_json(config))))


def message_of(value: object, hint: object = RunConfig) -> str:
    with pytest.raises(ConfigError) as error:
        from_json(hint, value)
    return str(error.value)


# -- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name):
    assert through_json(PRESETS[name]) == PRESETS[name]


@pytest.mark.parametrize(
    "config",
    [
        *(RunConfig(scenario=scenario) for scenario in (Iid(), Sequential(), Sequential(3), Drift())),
        *(
            ReplayConfig(snapshots=snapshots, labelled=labelled, emission=emission, counts=counts)
            for snapshots, labelled, emission, counts in product(
                (Never(), Every(7), BeforeBirth()), (False, True), Emission, Counts
            )
        ),
        *(ModelConfig(likelihood=likelihood) for likelihood in Likelihood),
        *(ExpansionConfig(tuned=tuned, max_components=cap) for tuned, cap in product(Tuned, (None, 9))),
        LearnerConfig(tau=None, expansion=None, replay=None),
        LearnerConfig(tau=0.25, z_samples=5),
        ModelConfig(encoder=(3,), decoder=()),
        RunConfig(supervised=True, sampled_knn=True, seed=-5),
    ],
)
def test_every_alternative_survives_json(config):
    again = through_json(config)
    assert again == config
    assert repr(again) == repr(config)  # == alone takes "mean" for Emission.MEAN


def test_json_names_the_alternative_and_nothing_more_than_it_needs_to():
    written = to_json(RunConfig(scenario=Sequential(2), learner=LearnerConfig(expansion=None)))
    assert written["scenario"] == {"type": "Sequential", "at_once": 2}
    assert written["learner"]["replay"]["snapshots"] == {"type": "BeforeBirth"}
    assert written["learner"]["expansion"] is None
    assert type(written["model"]["likelihood"]) is str
    assert written["model"] == {
        "n_z": 32,
        "encoder": [1200, 600, 300, 150],
        "decoder": [500, 500],
        "likelihood": "bernoulli",
        "K": 1,
    }


def test_what_json_leaves_out_has_its_default():
    assert from_json(RunConfig, {"model": {"n_z": 5}}) == RunConfig(model=ModelConfig(n_z=5))


def test_a_whole_number_will_do_for_a_float():
    config = from_json(ExpansionConfig, {"c_new": -200})
    assert type(config.c_new) is float


# -- what JSON gets wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"model": {"n_y": 3, "a": 1}},
            "config.model must be made of n_z, encoder, decoder, likelihood, K. Got ['a', 'n_y'] instead.",
        ),
        (
            {"scenario": {"type": "Iid", "at_once": 2}},
            "config.scenario must be made of nothing. Got ['at_once'] instead.",
        ),
        ({"steps": "many"}, "config.steps must be of type int. Got 'many' instead."),
        ({"steps": 1.0}, "config.steps must be of type int. Got 1.0 instead."),
        ({"steps": True}, "config.steps must be of type int. Got True instead."),
        ({"supervised": 1}, "config.supervised must be of type bool. Got 1 instead."),
        ({"dataset": None}, "config.dataset must be of type str. Got None instead."),
        (
            {"learner": {"learning_rate": "fast"}},
            "config.learner.learning_rate must be of type float. Got 'fast' instead.",
        ),
        ({"learner": {"tau": "small"}}, "config.learner.tau must be of type float. Got 'small' instead."),
        ({"model": 3}, "config.model must be an object. Got 3 instead."),
        ({"model": {"encoder": 500}}, "config.model.encoder must be a list. Got 500 instead."),
        ({"model": {"encoder": [500, "x"]}}, "config.model.encoder must be of type int. Got 'x' instead."),
        (
            {"model": {"likelihood": "poisson"}},
            "config.model.likelihood must be one of bernoulli, gaussian. Got 'poisson' instead.",
        ),
        ({"scenario": None}, "config.scenario must be given. Got None instead."),
        (
            {"scenario": {"type": "Random"}},
            "config.scenario must be typed ['Iid', 'Sequential', 'Drift']. Got {'type': 'Random'} instead.",
        ),
        (
            {"scenario": "Iid"},
            "config.scenario must be typed ['Iid', 'Sequential', 'Drift']. Got 'Iid' instead.",
        ),
        (
            {"learner": {"replay": {"snapshots": {"steps": 5}}}},
            "config.learner.replay.snapshots must be typed ['Never', 'Every', 'BeforeBirth', 'AtChange']. "
            "Got {'steps': 5} instead.",
        ),
    ],
)
def test_what_json_gets_wrong_is_told_with_its_place(value, message):
    assert message_of(value) == message


def test_an_alternative_without_what_it_needs_is_told_with_its_place():
    message = message_of({"learner": {"replay": {"snapshots": {"type": "Every"}}}})
    assert "config.learner.replay.snapshots" in message
    assert "steps" in message


def test_an_alternative_of_an_odd_type_is_told_with_its_place():
    assert message_of({"scenario": {"type": ["Iid"]}}).startswith("config.scenario must be typed ")


# -- what cannot work ------------------------------------------------------------------------------------------------

AT_LEAST_1, AT_LEAST_0 = "an int in the range [1, inf)", "an int in the range [0, inf)"


@pytest.mark.parametrize(
    ("kind", "name", "value", "allowed"),
    [
        (ModelConfig, "n_z", 0, AT_LEAST_1),
        (ModelConfig, "K", 0, AT_LEAST_1),
        (ModelConfig, "encoder", (5, 0), "widths in the range [1, inf)"),
        (ModelConfig, "decoder", (-1,), "widths in the range [1, inf)"),
        (ModelConfig, "encoder", (), "at least one width"),
        (ExpansionConfig, "c_new", math.nan, "None or a finite number of nats"),
        (ExpansionConfig, "c_new", -math.inf, "None or a finite number of nats"),
        (ExpansionConfig, "n_new", 0, AT_LEAST_1),
        (ExpansionConfig, "burn_in", -1, AT_LEAST_0),
        (ExpansionConfig, "wait", -1, AT_LEAST_0),
        (ExpansionConfig, "passes", -1, AT_LEAST_0),
        (ExpansionConfig, "max_components", 0, "None or an int in the range [1, inf)"),
        (Every, "steps", 0, AT_LEAST_1),
        (LearnerConfig, "learning_rate", 0.0, "a float in the range (0, inf)"),
        (LearnerConfig, "learning_rate", math.nan, "a float in the range (0, inf)"),
        (LearnerConfig, "learning_rate", math.inf, "a float in the range (0, inf)"),
        (LearnerConfig, "tau", 0.0, "None or a float in the range (0, 1]"),
        (LearnerConfig, "tau", 1.1, "None or a float in the range (0, 1]"),
        (LearnerConfig, "z_samples", 0, AT_LEAST_1),
        (Sequential, "at_once", 0, AT_LEAST_1),
        (RunConfig, "steps", 0, AT_LEAST_1),
        (RunConfig, "batch_size", 0, AT_LEAST_1),
        (RunConfig, "evaluate_every", 0, AT_LEAST_1),
        (RunConfig, "checkpoint_every", 0, AT_LEAST_1),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name_with_what_is_allowed(kind, name, value, allowed):
    with pytest.raises(ConfigError) as error:
        kind(**{name: value})
    assert str(error.value) == f"The '{name}' setting must be {allowed}. Got {value!r} instead."


def test_settings_at_the_edge_of_what_is_allowed_are_taken():
    ModelConfig(n_z=1, K=1, encoder=(1,), decoder=())
    ExpansionConfig(n_new=1, burn_in=0, wait=0, passes=0, max_components=1)
    LearnerConfig(learning_rate=1e-12, tau=1e-12, z_samples=1)
    RunConfig(steps=1, batch_size=1, evaluate_every=1, checkpoint_every=1)


def test_settings_cannot_be_changed_afterwards():
    for config in (RunConfig(), ModelConfig(), LearnerConfig(), ExpansionConfig(), ReplayConfig(), Every(3)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.steps = 5


# -- the paper's set-ups, as its appendix prints them ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n_z", "encoder", "decoder"),
    [
        ("mnist", 32, (1200, 600, 300, 150), (500, 500)),
        ("omniglot", 32, (500, 500), (500,)),
        ("split-mnist", 100, (400, 400), (400, 400)),
        ("iid-mnist", 50, (500, 500), (500,)),
        ("iid-omniglot", 100, (500, 500), (500,)),
    ],
)
def test_networks_are_as_large_as_in_the_paper(name, n_z, encoder, decoder):
    model = PRESETS[name].model
    assert (model.n_z, model.encoder, model.decoder) == (n_z, encoder, decoder)
    assert (model.likelihood, model.K) == (Likelihood.BERNOULLI, 1)


@pytest.mark.parametrize(
    ("name", "learning_rate"), [("mnist", 1e-3), ("omniglot", 5e-4), ("iid-mnist", 5e-4), ("iid-omniglot", 5e-4)]
)
def test_learning_rates_are_those_of_the_paper(name, learning_rate):
    assert PRESETS[name].learner.learning_rate == learning_rate


@pytest.mark.parametrize("name", ["mnist", "omniglot", "iid-mnist", "iid-omniglot"])
def test_expansion_has_the_papers_threshold_and_consolidation(name):
    expansion = PRESETS[name].learner.expansion
    assert (expansion.c_new, expansion.wait, expansion.tuned) == (-200, 100, Tuned.ALL)
    assert (expansion.n_new, expansion.burn_in, expansion.passes) == (100, 100, 10)  # not printed there


@pytest.mark.parametrize(("name", "cap"), [("iid-mnist", 100), ("iid-omniglot", 200)])
def test_the_iid_benchmark_has_the_papers_capacity(name, cap):
    assert PRESETS[name].learner.expansion.max_components == cap


@pytest.mark.parametrize(("name", "at_once", "n_tasks"), [("mnist", 1, 10), ("omniglot", 1, 50), ("split-mnist", 2, 5)])
def test_continual_runs_take_a_hundred_thousand_steps_with_a_snapshot_at_the_end_of_each_task(name, at_once, n_tasks):
    run = PRESETS[name]
    assert run.steps == 100_000
    assert run.scenario == Sequential(at_once)
    assert run.learner.replay.snapshots == Every(100_000 // n_tasks)
    assert run.learner.replay.counts is Counts.DREAMT


@pytest.mark.parametrize(
    ("name", "emission"),
    [
        ("mnist", Emission.THRESHOLD),
        ("omniglot", Emission.SAMPLE),  # images with greys
        ("split-mnist", Emission.SAMPLE),  # classes are told
        ("digits", Emission.SAMPLE),  # not of the paper
    ],
)
def test_dreams_are_rounded_on_mnist_without_labels_and_sampled_otherwise(name, emission):
    assert PRESETS[name].learner.replay.emission is emission
    assert ReplayConfig().emission is Emission.SAMPLE


@pytest.mark.parametrize("labelled", [False, True])
def test_replay_of_the_papers_experiments_rounds_what_has_no_greys(labelled):
    for dataset, emission in (("mnist", Emission.THRESHOLD), ("omniglot", Emission.SAMPLE)):
        found = paper_replay(dataset, Every(7), labelled)
        assert found == ReplayConfig(snapshots=Every(7), labelled=labelled, emission=emission)


@pytest.mark.parametrize("name", ["iid-mnist", "iid-omniglot"])
def test_iid_runs_are_shuffled_and_rehearse_nothing(name):
    run = PRESETS[name]
    assert (run.steps, run.scenario, run.learner.replay) == (100_000, Iid(), None)
    assert run.sampled_knn


def test_the_main_runs_replay_without_labels_and_the_supervised_one_with_them():
    assert not PRESETS["mnist"].learner.replay.labelled
    assert not PRESETS["omniglot"].learner.replay.labelled
    assert PRESETS["split-mnist"].learner.replay.labelled
    assert [name for name, run in PRESETS.items() if run.supervised] == ["split-mnist"]
    assert PRESETS["split-mnist"].learner.expansion is None  # components open as classes appear


@pytest.mark.parametrize(
    ("name", "dataset", "batch_size"),
    [
        ("mnist", "mnist", 100),
        ("omniglot", "omniglot", 15),
        ("split-mnist", "mnist-60k", 100),
        ("iid-mnist", "mnist", 100),
        ("iid-omniglot", "omniglot", 15),
    ],
)
def test_batches_are_as_large_as_in_the_released_code(name, dataset, batch_size):
    assert (PRESETS[name].dataset, PRESETS[name].batch_size) == (dataset, batch_size)


def test_fewer_steps_shrink_every_period():
    whole = PRESETS["mnist"]
    tenth = in_steps(whole, 10_000)
    assert (tenth.steps, tenth.evaluate_every, tenth.checkpoint_every) == (10_000, 200, 200)
    assert tenth.learner.replay.snapshots == Every(1_000)
    assert in_steps(whole, whole.steps) == whole
    one = in_steps(whole, 1)
    assert (one.evaluate_every, one.checkpoint_every, one.learner.replay.snapshots) == (1, 1, Every(1))
    assert in_steps(PRESETS["iid-mnist"], 10_000).learner == PRESETS["iid-mnist"].learner
