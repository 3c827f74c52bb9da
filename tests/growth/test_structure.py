from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from curlicue.config.model import Likelihood, ModelConfig
from curlicue.errors import ConfigError
from curlicue.growth.change import Change
from curlicue.growth.protocol import Asked, Birth, Familiar
from curlicue.growth.split import Split
from curlicue.growth.structure import Structure
from curlicue.learn.events import BirthRefused, ComponentBorn, Event
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.memory.reservoir import Reservoir
from curlicue.memory.snapshot import Snapshot
from curlicue.memory.store import Store
from curlicue.model.inference import posterior
from curlicue.model.likelihood import GaussianNoise
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import MisfitError
from curlicue.rng import Rng, named_generator
from learning import moved_on, of_type, terms_of, written

D = 5


def normal(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, D, generator=named_generator(seed, "normal"))


def mixed(x: Tensor) -> Tensor:
    return x[torch.randperm(len(x), generator=named_generator(0, "order"))]


# -- two rules ---------------------------------------------------------------------------------------------------------


class Scene:
    """One component with these rows, and both rules."""

    def __init__(self, x: Tensor, **split: object) -> None:
        self.store, self.rng = Store(10_000, D), named_generator(0, "store")
        self.model = SimpleNamespace(K=1, n_x=D, dtype=torch.float32, p_x=GaussianNoise(D))
        self.config = Structure(split=Split(**split))
        self.keep(x, 0)
        self.rule = self.config.start(self.model, self.store)

    def keep(self, x: Tensor, k: int) -> None:
        self.store.add(x, torch.full((len(x),), k), torch.arange(len(x)), self.rng)

    def sees(self, x: Tensor, k: int = 0) -> list[bool]:
        """Fifty at a time, of component k: whether each batch is held back. Nothing is done about what is due."""
        told = []
        for batch in x.split(50):
            y = torch.full((len(batch),), k)
            held = self.rule.look(batch, terms_of(torch.zeros(len(batch)), y, self.model.K), 0)
            assert held == self.rule.holding * len(batch)
            told.append(self.rule.holding)
        return told

    def heeds(self) -> list[Asked]:
        """All that is due, done."""
        asked = []
        while each := self.rule.due():
            asked.append(each)
            if isinstance(each, Birth):
                if each.members is None:
                    self.keep(each.d_new, self.model.K)
                else:
                    self.store.relabel(each.members, self.model.K)
                self.model.K += 1
                self.rule.born()
        return asked

    def rests(self) -> list[Asked]:
        self.rule.rest()
        return self.heeds()


TWO = mixed(torch.cat([normal(300), normal(200, 1) + 8]))
FAR = mixed(torch.cat([normal(150, 2), normal(150, 3) + 30]))
NEAR = mixed(torch.cat([normal(200, 5), normal(200, 6) + 1.6]))


def test_what_is_held_back_is_no_reason_to_split():
    scene = Scene(TWO, first_look=500)
    assert scene.sees(torch.cat([normal(450), normal(150, 1) + 5])) == [False] * 9 + [True] * 3
    assert scene.rule.due() is None


def test_what_is_not_held_back_is_explained():
    scene = Scene(TWO, first_look=500)
    scene.sees(normal(450))
    assert scene.rule.due() is None
    assert scene.sees(normal(50, 1)) == [False]
    assert isinstance(scene.rule.due(), Birth)


def test_changes_come_first():
    scene = Scene(TWO)
    scene.sees(torch.cat([normal(500), normal(150, 2) - 9]))
    first, second = scene.rests()
    assert (first.members, second.parent) == (None, 0)
    assert second.members is not None


def test_what_a_change_brought_at_once_is_parted_only_by_clear_gaps():
    assert len(Scene(NEAR).rests()) == 1
    scene = Scene(normal(300) - 30)
    scene.sees(torch.cat([normal(500, 1) - 30, NEAR[:200]]))
    assert len(scene.heeds()) == 1
    scene.keep(NEAR[200:], 1)
    scene.sees(NEAR[200:], 1)
    assert not scene.rests()


def test_a_component_split_from_one_that_a_change_brought_is_of_its_family():
    scene = Scene(normal(300) - 30)
    scene.sees(torch.cat([normal(500, 1) - 30, FAR[:200]]))
    assert len(scene.heeds()) == len(scene.rests()) == 1
    assert scene.rule.split.root.tolist() == [0, 1, 1]


def test_what_is_born_at_rest_is_looked_at_at_once():
    scene = Scene(normal(300) - 30)
    scene.sees(torch.cat([normal(500, 1) - 30, FAR[:150]]))
    assert len(scene.rests()) == 2


def test_what_is_familiar_is_said_before_what_is_to_be_split():
    scene = Scene(TWO)
    scene.sees(torch.cat([normal(500), normal(50, 2) - 9, normal(100, 3)]))
    assert [type(asked) for asked in scene.rests()] == [Familiar, Birth]


def test_a_refused_birth_by_change_is_familiar_and_a_refused_split_is_nothing():
    scene = Scene(TWO)
    scene.sees(torch.cat([normal(500), normal(150, 2) - 9]))
    scene.rule.rest()
    birth = scene.rule.due()
    scene.rule.refused()
    again = scene.rule.due()
    assert isinstance(again, Familiar)
    assert torch.equal(again.x, birth.d_new)
    assert scene.rule.due().members is not None
    scene.rule.refused()
    assert scene.rule.due() is None


@pytest.mark.parametrize("n", [0, 300, 550, 700])
def test_a_resumed_rule_goes_on_as_both_would_have(n):
    """Before and while rows are held back, and after the birth."""
    x = torch.cat([normal(500, 2), normal(200, 3) - 9, normal(500, 4) - 9])

    def goes_on(scene: Scene, x: Tensor) -> list[object]:
        told: list[object] = []
        for batch in x.split(50) if len(x) else ():
            told += scene.sees(batch, scene.model.K - 1)
            told += [(type(asked), vars(asked).get("d_new", batch).tolist()) for asked in scene.heeds()]
        return told

    one, other = Scene(TWO), Scene(TWO)
    whole = goes_on(one, x)
    first = goes_on(other, x[:n])
    other.rule = moved_on(other.rule, other.config.start(other.model, other.store))
    assert first + goes_on(other, x[n:]) == whole
    assert sum(not isinstance(each, bool) for each in whole) >= 2
    assert str(one.rule.state()) == str(other.rule.state())


def test_the_state_of_one_rule_alone_is_refused():
    scene = Scene(TWO)
    with pytest.raises(MisfitError, match="state/change/recent is absent in it"):
        scene.rule.restore(written({"split": scene.rule.split.state()}))


@pytest.mark.parametrize("memory", [None, Snapshot()])
@pytest.mark.parametrize("growth", [Structure(), Change(), Split()])
def test_growth_that_looks_at_rows_wants_a_memory_that_keeps_them(growth, memory):
    name = type(growth).__name__.lower()
    message = f"Growth by '{name}' looks at rows that a memory keeps. Choose the memory 'reservoir', or another growth"
    with pytest.raises(ConfigError, match=message):
        LearnerConfig(growth=growth, memory=memory)
    assert LearnerConfig(growth=growth, memory=Reservoir()).growth == growth


# -- with a learner ----------------------------------------------------------------------------------------------------


def learner_of(seed: int, **settings: object) -> Learner:
    rng = Rng.from_seed(seed)
    config = ModelConfig(n_z=4, encoder=(32,), decoder=(32,), likelihood=Likelihood.GAUSSIAN)
    model = MixtureVAE.from_config(config, D, rng.init)
    return Learner(model, LearnerConfig(growth=Structure(), memory=Reservoir(), **settings), rng)


def learnt(learner: Learner, x: Tensor, B: int = 100) -> list[Event]:
    """The whole stream; then nothing more comes."""
    steps = [*learner.learn(x.split(B)), *learner.settle()]
    return [event for events in steps for event in events]


def agreement(learner: Learner, x: Tensor, y: Tensor) -> float:
    """Adjusted Rand index of the likeliest components."""
    return float(adjusted_rand_score(y, posterior(learner.model, x).argmax(1)))


def regimes(*means: float, seed: int = 0, n: int = 500) -> tuple[Tensor, Tensor]:
    x = torch.cat([normal(n, 10 * seed + k) + mean for k, mean in enumerate(means)])
    return x, torch.tensor([sorted({*means}).index(mean) for mean in means]).repeat_interleave(n)


@pytest.mark.parametrize("seed", [0, 2])
def test_each_regime_of_a_stream_becomes_a_component_and_none_is_forgotten(seed):
    learner, (x, y) = learner_of(seed), regimes(0, 8, -8, 16, seed=seed)
    births = of_type(ComponentBorn, learnt(learner, x))
    assert [round(float(birth.d_new.mean())) for birth in births] == [8, -8, 16]
    assert learner.model.K == 4
    assert agreement(learner, x, y) >= 0.97


@pytest.mark.parametrize("seed", range(2))
def test_two_blobs_at_once_from_the_start_become_two_components(seed):
    learner, (x, y) = learner_of(seed), regimes(0, 5, seed=seed)
    by = torch.randperm(1000, generator=named_generator(seed, "order"))
    learnt(learner, x[by])
    assert learner.model.K == 2
    assert agreement(learner, x, y) >= 0.97


def test_one_regime_stays_one_component():
    learner = learner_of(0)
    assert not of_type(ComponentBorn, learnt(learner, normal(1500)))
    assert learner.model.K == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_regime_that_returns_gives_no_birth(seed):
    learner, (x, y) = learner_of(seed), regimes(0, 8, 0, 8, seed=seed)
    assert len(of_type(ComponentBorn, learnt(learner, x))) == 1
    assert agreement(learner, x, y) >= 0.97


def test_every_row_of_a_stream_that_changes_and_returns_is_in_the_memory():
    learner, (x, _) = learner_of(0), regimes(0, 8, 0, n=250)
    learnt(learner, x[:650], B=50)
    rows = learner.memory.store.rows(torch.arange(len(learner.memory.store))).x
    assert len(rows) == 650
    assert torch.allclose(rows.sort(0).values, x[:650].sort(0).values, atol=0.01)


def test_at_the_cap_a_birth_is_refused_and_its_rows_are_kept_none_the_less():
    learner, (x, _) = learner_of(0, max_components=1), regimes(0, 8)
    events = learnt(learner, x)
    assert of_type(BirthRefused, events)
    assert not of_type(ComponentBorn, events)
    assert learner.model.K == 1
    assert len(learner.memory.store) == len(x)
