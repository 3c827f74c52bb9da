import pytest
import torch

from curlicue.config.model import Likelihood, ModelConfig
from curlicue.errors import DataError
from curlicue.growth.threshold import Threshold
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.model.elbo import elbo
from curlicue.rng import Rng, named_generator
from curlicue.systems.curl import Curl, CurlSystem
from learning import taught

TINY = ModelConfig(n_z=2, encoder=(8,), decoder=(7,), K=3)


@pytest.fixture
def system(make_batch) -> CurlSystem:
    """It has learnt a little."""
    quick = Threshold(c_new=1e6, n_new=20, burn_in=0, wait=10)
    config = Curl(model=TINY, learner=LearnerConfig(growth=quick, memory=Snapshot(snapshots="dynamic")))
    system = config.start((6,), Rng.from_seed(0), torch.device("cpu"))
    taught(system, lambda t: make_batch(20, seed=t), 30)
    return system


def test_a_system_tells_how_far_its_learner_has_come_and_how_much_it_has_grown(system):
    assert system.t == system.learner.t == 30
    assert system.K == system.learner.model.K == 5


def test_the_components_that_explain_samples_are_those_of_q_y(system, make_batch):
    x = make_batch(9)
    q_y = elbo(system.model, x, named_generator(0, "z")).q_y
    torch.testing.assert_close(system.probabilities(x), q_y)


def test_a_sample_is_embedded_at_the_mean_of_z_under_its_likeliest_component(system, make_batch):
    x = make_batch(9)
    embedded, drawn = system.embed(x), system.embed(x, named_generator(0, "z"))
    assert embedded.shape == drawn.shape == (9, 2)
    assert torch.equal(system.embed(x), embedded)
    assert not torch.equal(drawn, embedded)


def test_bounds_are_those_that_training_climbs(system, make_batch):
    x = make_batch(9)
    expected = elbo(system.model, x, named_generator(0, "z"), tau=0.3).bound
    torch.testing.assert_close(system.bounds(x, named_generator(0, "z"), tau=0.3), expected.detach())


def test_samples_are_generated_of_every_component_around_its_own_centre(system):
    with torch.no_grad():
        system.model.heads["p_z"][:, 2:] = -30.0  # z hardly varies
        system.model.p_z_bias[2:] = 0.0
        expected = system.model.mean(system.centres())  # [K, D]
    generated = system.generated(4, named_generator(0, "z"))
    assert generated.shape == (5, 4, 6)
    torch.testing.assert_close(generated, expected[:, None].expand(5, 4, 6), atol=0.01, rtol=0)


def test_figures_are_how_much_of_the_real_stream_each_component_stands_for(system):
    counts = system.figures()["counts"]
    assert len(counts) == 5
    assert sum(counts) == pytest.approx(20 * 15)  # every other step is real


@pytest.mark.parametrize(("low", "high"), [(-0.1, 1.0), (0.0, 1.1), (0.0, float("nan"))])
def test_a_bernoulli_likelihood_wants_values_from_0_to_1(low, high):
    with pytest.raises(DataError, match=rf"but digits has values from {low:g} to {high:g}\. Scale them, or"):
        Curl().check_range(low, high, "digits")
    Curl().check_range(0.0, 1.0, "digits")
    Curl(model=ModelConfig(likelihood=Likelihood.GAUSSIAN)).check_range(-50.0, 50.0, "digits")


def test_a_run_tells_the_memory_its_period_and_its_length():
    config = Curl(learner=LearnerConfig(memory=Snapshot(snapshots="0.1T")))
    assert config.with_period(700).learner.memory.snapshots == 70
    assert config.with_period(700).along(lambda steps: steps // 7).learner.memory.snapshots == 10


def test_a_system_without_a_memory_has_no_period():
    config = Curl(learner=LearnerConfig(memory=None))
    assert config.with_period(700) == config.along(lambda steps: steps // 7) == config
