import json
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import pytest

from curlicue.config.codec import from_json, to_json
from curlicue.config.kinds import Kind
from curlicue.config.model import Emission, Likelihood, ModelConfig
from curlicue.config.scenario import Drift, Iid, Sequential
from curlicue.errors import ConfigError
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.settings import RunConfig
from curlicue.growth.measured import Measured
from curlicue.growth.protocol import Tuned
from curlicue.growth.threshold import Threshold
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.snapshot import Counts, Snapshot
from curlicue.systems.curl import Curl


class Animal(Kind):
    """A family of two kinds."""


@dataclass(frozen=True)
class Cat(Animal):
    """One kind."""

    lives: int = 9


@dataclass(frozen=True)
class GuideDog(Animal):
    """Another, without a default."""

    name: str


@dataclass(frozen=True)
class Ark:
    """Settings of every sort that there is."""

    cargo: Animal = field(default_factory=Cat)
    guest: Animal | None = None
    doors: int | Literal["many"] = 1
    decks: tuple[int, ...] | Literal["open"] = (1, 2)
    length: float = 300.0


def through_json(config: object) -> object:
    return from_json(type(config), json.loads(json.dumps(to_json(config))))


def message_of(value: object, hint: object = RunConfig) -> str:
    with pytest.raises(ConfigError) as error:
        from_json(hint, value)
    return str(error.value)


# -- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name):
    assert through_json(PRESETS[name]) == PRESETS[name]


@pytest.mark.parametrize(
    "config",
    [
        *(RunConfig(scenario=scenario) for scenario in (Iid(), Sequential(), Sequential(3), Drift())),
        *(
            Snapshot(snapshots=snapshots, labelled=labelled, emission=emission, counts=counts)
            for snapshots, labelled, emission, counts in product(
                (7, "T", "0.1T", "dynamic", "change"), (False, True), Emission, Counts
            )
        ),
        *(ModelConfig(likelihood=likelihood) for likelihood in Likelihood),
        *(LearnerConfig(growth=kind(tuned=tuned)) for kind, tuned in product((Threshold, Measured), Tuned)),
        *(LearnerConfig(max_components=cap) for cap in (None, 9)),
        LearnerConfig(tau=0.0, growth=None, memory=None),
        LearnerConfig(tau=0.25, z_samples=5),
        ModelConfig(encoder=(3,), decoder=()),
        ModelConfig(encoder="conv", decoder="conv"),
        RunConfig(system=Curl(), sampled_knn=True, seed=-5),
        Ark(cargo=GuideDog("Rex"), guest=Cat(3), doors="many", decks="open"),
        Ark(doors=4, decks=(7,), length=1e-9),
    ],
)
def test_every_alternative_survives_json(config):
    again = through_json(config)
    assert again == config
    assert repr(again) == repr(config)  # == alone takes "sample" for Emission.SAMPLE


def test_json_names_the_alternative_and_nothing_more_than_it_needs_to():
    written = to_json(RunConfig(scenario=Sequential(2), system=Curl(learner=LearnerConfig(growth=None))))
    assert written["scenario"] == {"type": "Sequential", "at_once": 2}
    assert written["system"]["type"] == "Curl"
    assert written["system"]["learner"]["memory"]["type"] == "Snapshot"
    assert written["system"]["learner"]["growth"] is None
    assert type(written["system"]["model"]["likelihood"]) is str
    assert written["system"]["model"] == {
        "n_z": 32,
        "encoder": [1200, 600, 300, 150],
        "decoder": [500, 500],
        "likelihood": "bernoulli",
        "K": 1,
    }


def test_what_json_leaves_out_has_its_default():
    assert from_json(RunConfig, {"system": {"type": "Curl", "model": {"n_z": 5}}}) == RunConfig(
        system=Curl(model=ModelConfig(n_z=5))
    )


def test_a_whole_number_will_do_for_a_float():
    config = from_json(Threshold, {"c_new": -200})
    assert type(config.c_new) is float


# -- what JSON gets wrong --------------------------------------------------------------------------------------------

WRONG = [
    ({"model": {}}, "config must be made of dataset, scenario, steps, batch_size, seed, system, sampled_knn, "),
    ({"scenario": {"type": "Iid", "at_once": 2}}, "config.scenario must be made of nothing. Got ['at_once'] instead."),
    ({"steps": "many"}, "config.steps must be of type int. Got 'many' instead."),
    ({"steps": 1.0}, "config.steps must be of type int. Got 1.0 instead."),
    ({"steps": True}, "config.steps must be of type int. Got True instead."),
    (
        {"system": {"type": "Curl", "learner": {"tau": 10**400}}},
        f"config.system.learner.tau must be of type float. Got {10**400} instead.",
    ),
    ({"sampled_knn": 1}, "config.sampled_knn must be of type bool. Got 1 instead."),
    ({"dataset": None}, "config.dataset must be of type str. Got None instead."),
    ({"scenario": None}, "config.scenario must be given. Got None instead."),
    (
        {"scenario": {"type": "Random"}},
        "config.scenario must be of an imported type (Iid, Sequential, Drift). Got {'type': 'Random'} instead.",
    ),
    (
        {"scenario": "Iid"},
        "config.scenario must be of an imported type (Iid, Sequential, Drift). Got 'Iid' instead.",
    ),
]
WRONG_IN_MODEL = [
    ({"n_y": 3, "a": 1}, "config must be made of n_z, encoder, decoder, likelihood, K. Got ['a', 'n_y'] instead."),
    (3, "config must be an object. Got 3 instead."),
    ({"encoder": [500, "x"]}, "config.encoder must be of type int. Got 'x' instead."),
    ({"encoder": 500}, "config.encoder must be a list. Got 500 instead."),
    ({"encoder": "deep"}, "config.encoder must be one of 'conv'. Got 'deep' instead."),
    ({"likelihood": "poisson"}, "config.likelihood must be one of bernoulli, gaussian. Got 'poisson' instead."),
]
WRONG_IN_LEARNER = [
    ({"learning_rate": "fast"}, "config.learning_rate must be of type float. Got 'fast' instead."),
    ({"tau": "small"}, "config.tau must be of type float. Got 'small' instead."),
    ({"growth": {"n_new": 5}}, "config.growth must be of an imported type ("),
    ({"memory": {"type": "Snapshot", "snapshots": "often"}}, "config.memory.snapshots must be one of 'T', '0.1T', "),
    ({"memory": {"type": "Snapshot", "snapshots": 0.5}}, "config.memory.snapshots must be of type int. Got 0.5 "),
]


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        *((RunConfig, *each) for each in WRONG),
        *((ModelConfig, *each) for each in WRONG_IN_MODEL),
        *((LearnerConfig, *each) for each in WRONG_IN_LEARNER),
    ],
)
def test_what_json_gets_wrong_is_told_with_its_place(hint, value, message):
    assert message_of(value, hint).startswith(message)


def test_the_place_of_an_error_deep_inside_is_its_whole_path():
    wrong = {"system": {"type": "Curl", "learner": {"growth": {"type": "Threshold", "n_new": "few"}}}}
    assert message_of(wrong) == "config.system.learner.growth.n_new must be of type int. Got 'few' instead."


def test_an_alternative_without_what_it_needs_is_told_with_its_place():
    assert message_of({"cargo": {"type": "GuideDog"}}, Ark) == "config.cargo must be given with name. Got {} instead."


def test_an_alternative_of_an_odd_type_is_told_with_its_place():
    assert message_of({"scenario": {"type": ["Iid"]}}).startswith("config.scenario must be of an imported type (")
