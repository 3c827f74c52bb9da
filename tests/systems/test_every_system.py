"""Laws of every system that there is, and of each that will be written."""

import pytest
import torch

from curlicue.config.model import ModelConfig
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.rng import Rng, named_generator
from curlicue.systems.protocol import System, SystemConfig
from learning import Stream, facts, moved_on, ours, taught

MODEL = ModelConfig(n_z=2, encoder=(8,), decoder=(7,), K=2)
QUICK = LearnerConfig(growth=None, memory=Snapshot(snapshots=5))  # so that much happens in few steps
SETTINGS = {"curl": {"model": MODEL, "learner": QUICK}, "labelled-curl": {"model": MODEL, "learner": QUICK}}
X = torch.rand(9, 6, generator=named_generator(0, "x")).round()


@pytest.fixture(params=sorted(ours(SystemConfig)))
def config(request: pytest.FixtureRequest) -> SystemConfig:
    return ours(SystemConfig)[request.param](**SETTINGS.get(request.param, {}))


def start(config: SystemConfig, seed: int = 0) -> System:
    return config.start((6,), Rng.from_seed(seed), torch.device("cpu"))


def stream_for(config: SystemConfig) -> Stream:
    def batch(t: int) -> object:
        x = torch.rand(10, 6, generator=named_generator(t, "stream")).round()
        return (x, (x.sum(1) > 3).long()) if config.labelled else x

    return batch


def test_the_same_seed_brings_the_same_events_and_another_seed_others(config):
    first, again, other = (facts(taught(start(config, seed), stream_for(config), 30)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("t", [0, 7, 8, 19])
def test_a_restored_system_goes_on_as_the_first_would_have(config, t):
    first, stream = start(config), stream_for(config)
    taught(first, stream, t)
    second = moved_on(first, start(config, seed=1))
    assert facts(taught(second, stream, 40)) == facts(taught(first, stream, 40))
    for told in ("probabilities", "embed"):
        assert torch.equal(getattr(second, told)(X), getattr(first, told)(X))


def test_what_is_asked_of_a_system_does_not_change_what_it_learns(config):
    quiet, asked = start(config), start(config)
    expected, events = facts(taught(quiet, stream_for(config), 30)), []
    for t in range(1, 31):
        events += taught(asked, stream_for(config), t)
        assert asked.probabilities(X).shape == (9, asked.K)
        assert len(asked.embed(X)) == len(asked.embed(X, named_generator(t, "z"))) == 9
        asked.figures()
    assert facts(events) == expected
