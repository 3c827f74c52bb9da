"""The law of the two engines: whichever climbs, the same is learnt."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from climbing import BOUNDS, EMPHASISED, ENGINES, B, K, assert_engines_agree
from curlicue.config.model import Likelihood, ModelConfig
from curlicue.growth.threshold import Threshold
from curlicue.learn import learner as learning
from curlicue.learn.events import ComponentBorn, Event, StepTaken
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.model.elbo import ElboTerms
from curlicue.model.inference import posterior
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng, named_generator

pytestmark = pytest.mark.usefixtures("in_double")
both_likelihoods = pytest.mark.parametrize("likelihood", list(Likelihood))
STEPS, N_X = 300, 12
C_NEW = {Likelihood.BERNOULLI: -12.0, Likelihood.GAUSSIAN: -25.0}  # nats
MARGINS = {"nats": 1e-3, "share of D_new": 0.05}  # from every decision: rounding cannot take it otherwise


@pytest.mark.parametrize("kind", [*BOUNDS, EMPHASISED])
@both_likelihoods
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("either_layer")
def test_engines_give_the_same_terms_and_gradients(make_model, make_batch, kind, likelihood, seed):
    assert_engines_agree(make_model(K, likelihood, seed=seed), make_batch(B, seed), kind, 1e-9, 1e-12, seed)


@dataclass
class Trial:
    """What a learner has come to with one engine."""

    learner: Learner
    events: list[Event] = field(default_factory=list)
    margins: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MARGINS})

    @property
    def births(self) -> list[ComponentBorn]:
        return [event for event in self.events if isinstance(event, ComponentBorn)]

    @property
    def rehearsed(self) -> int:
        return sum(isinstance(event, StepTaken) and event.rehearsed for event in self.events)


def regimes(likelihood: Likelihood) -> Iterator[Tensor]:
    """Batches [20, 12] of three kinds of samples, one kind after another."""
    rng = named_generator(0, "stream")
    for kind, steps in enumerate((80, 55, 60)):
        centre = torch.arange(N_X) // 4 == kind
        for _ in range(steps):
            if likelihood is Likelihood.BERNOULLI:
                yield (centre ^ (torch.rand(20, N_X, generator=rng) < 0.03)).double()
            else:
                yield 3.0 * centre + 0.3 * torch.randn(20, N_X, generator=rng)


def make_trial(engine: str, likelihood: Likelihood, labelled: bool) -> Trial:
    """A learner that will grow and rehearse, and the engine of that name."""
    rng = Rng.from_seed(0)
    networks = ModelConfig(n_z=2, encoder=(16,), decoder=(12,), likelihood=likelihood)
    model = MixtureVAE.from_config(networks, N_X, rng.init)
    growth = Threshold(c_new=C_NEW[likelihood], n_new=100, burn_in=60, wait=30, passes=2)
    memory = Snapshot(snapshots="dynamic", labelled=labelled)
    learner = Learner(model, LearnerConfig(learning_rate=0.01, growth=growth, memory=memory), rng)
    learner.engine = ENGINES[engine](model, learner.engine.climbing, rng.latent)
    return Trial(learner)


def watch(monkeypatch: pytest.MonkeyPatch, trial: Trial) -> None:
    """Write down how far each decision is from being another one."""
    rule, closest = trial.learner.growth, learning.closest_component
    look, settings = rule.look, rule.config

    def watched_look(x: Tensor, terms: ElboTerms, t: int) -> int:
        trial.margins["nats"] += (terms.bound - settings.c_new).abs().tolist() if t >= settings.burn_in else []
        return look(x, terms, t)

    def watched_closest(model: MixtureVAE, d_new: Tensor) -> int:
        first, second = (*posterior(model, d_new).mean(0).sort(descending=True).values.tolist(), 0.0)[:2]
        trial.margins["share of D_new"].append(first - second)
        return closest(model, d_new)

    monkeypatch.setattr(rule, "look", watched_look)
    monkeypatch.setattr(learning, "closest_component", watched_closest)


def learn(engine: str, likelihood: Likelihood, labelled: bool) -> Trial:
    """300 steps on the stream."""
    trial = make_trial(engine, likelihood, labelled)
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch(monkeypatch, trial)
        steps = itertools.islice(trial.learner.learn(regimes(likelihood)), STEPS)
        trial.events += [event for step in steps for event in step]
    return trial


@both_likelihoods
@pytest.mark.parametrize("labelled", [True, False], ids=["SMGR", "MGR"])
def test_after_300_steps_with_two_births_and_replay_the_parameters_are_the_same(likelihood, labelled):
    cpu, autograd = (learn(name, likelihood, labelled) for name in ("cpu", "autograd"))
    for trial in (cpu, autograd):
        assert (trial.learner.t, len(trial.births)) == (STEPS, 2)
        assert trial.rehearsed > 80
        assert all(min(trial.margins[name]) > margin for name, margin in MARGINS.items())
    assert [(b.t, b.parent) for b in cpu.births] == [(b.t, b.parent) for b in autograd.births]
    expected = dict(autograd.learner.model.named_parameters())
    for name, value in cpu.learner.model.named_parameters():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-9, msg=name)
