import pytest
import torch
from torch import Tensor

from curlicue.errors import ConfigError
from curlicue.growth.threshold import Threshold
from curlicue.learn.events import ComponentBorn, SnapshotTaken
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.model.elbo import elbo_given
from curlicue.systems.labelled import LabelledCurl, LabelledLearner, LabelledSystem
from learning import Stream, facts, moved_on, of_type, rehearsed, taught

PROTOTYPES = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1.0]])


@pytest.fixture
def make_labelled(make_learner):
    def make(K: int = 1, **settings: object) -> LabelledLearner:
        unlabelled: Learner = make_learner(K=K, **settings)
        return LabelledLearner(unlabelled.model, unlabelled.config, unlabelled.rng)

    return make


def two_at_a_time(steps: int, B: int = 8) -> Stream:
    """Classes 30 and 10 in the first half, then 20 and 40; each class is one picture."""
    names = torch.tensor([30, 10, 20, 40])

    def batch(t: int) -> tuple[Tensor, Tensor]:
        c = torch.arange(B) % 2 + (2 if t >= steps / 2 else 0)
        return PROTOTYPES[c], names[c]

    return batch


def test_components_open_as_classes_appear(make_labelled):
    learner = make_labelled()
    births = of_type(ComponentBorn, taught(learner, two_at_a_time(10), 10))
    assert [(birth.t, birth.component, birth.K) for birth in births] == [(0, 1, 2), (5, 2, 3), (5, 3, 4)]
    assert learner.component_of == {10: 0, 30: 1, 20: 2, 40: 3}
    assert learner.model.K == 4


def test_components_that_are_free_are_taken_before_any_is_born(make_labelled):
    learner = make_labelled(K=3)
    events = taught(learner, two_at_a_time(10), 10)
    assert [event.K for event in of_type(ComponentBorn, events)] == [4]
    assert learner.component_of == {10: 0, 30: 1, 20: 2, 40: 3}


def test_a_class_keeps_its_component(make_labelled):
    learner = make_labelled()
    taught(learner, two_at_a_time(10), 10)
    for label in (40, 10, 30, 20):
        learner.observe((PROTOTYPES[:2], torch.full((2,), label)))
    assert learner.component_of == {10: 0, 30: 1, 20: 2, 40: 3}
    assert learner.model.K == 4


@pytest.mark.parametrize("c", [0, 1, 2])
def test_a_new_class_copies_the_component_closest_to_its_own_samples(make_labelled, c):
    learner = make_labelled(K=3, learning_rate=0.02)
    for _ in range(150):
        learner.observe((PROTOTYPES[:3], torch.tensor([0, 1, 2])))
    other = (c + 1) % 3
    x = PROTOTYPES[[c] + 7 * [other]]  # the new class looks like class c, and most of the batch does not
    birth, _ = learner.observe((x, torch.tensor([100] + 7 * [other])))
    assert (birth.parent, birth.component) == (c, 3)
    assert torch.equal(birth.d_new, x[:1])


def test_a_real_step_climbs_the_constrained_bound_of_each_labels_component(make_labelled):
    learner = make_labelled(K=4)
    x, labels = PROTOTYPES, torch.tensor([40, 10, 30, 10])
    components = torch.tensor([2, 0, 1, 0])
    rng = torch.Generator().set_state(learner.rng.latent.get_state())
    expected = elbo_given(learner.model, x, components, rng).bound.mean().item()
    (step,) = learner.observe((x, labels))
    assert step.bound == pytest.approx(expected)
    assert not step.rehearsed


def test_labels_are_left_as_they_were(make_labelled):
    labels = torch.tensor([40, 10, 30, 10])
    make_labelled(K=4).observe((PROTOTYPES, labels))
    assert labels.tolist() == [40, 10, 30, 10]


def test_snapshots_are_taken_and_rehearsed_as_by_any_learner(make_labelled):
    learner = make_labelled(memory=Snapshot(snapshots=4))
    events = taught(learner, two_at_a_time(12), 12)
    assert [event.t for event in of_type(SnapshotTaken, events)] == [4, 8]
    assert rehearsed(events) == [False] * 5 + [True, False] * 3 + [True]


def test_dynamic_snapshots_are_taken_once_before_each_batch_with_new_classes_but_the_first(make_labelled):
    learner = make_labelled(memory=Snapshot(snapshots="dynamic"))
    events = taught(learner, two_at_a_time(12), 12)
    assert [(event.t, event.K) for event in of_type(SnapshotTaken, events)] == [(6, 2)]
    assert rehearsed(events) == [False] * 7 + [True, False] * 2 + [True]


def test_classes_are_told_apart_after_learning_them_two_at_a_time(make_labelled):
    learner = make_labelled(learning_rate=0.02, memory=Snapshot(snapshots=150))
    taught(learner, two_at_a_time(300), 450)
    said = LabelledSystem(learner).class_probabilities(PROTOTYPES, n_classes=50).argmax(1)
    assert said.tolist() == [30, 10, 20, 40]


def test_the_probability_of_a_class_is_that_of_its_component_and_zero_before_it_was_seen(make_labelled):
    learner = make_labelled()
    taught(learner, two_at_a_time(20), 10)
    system = LabelledSystem(learner)
    classes, components = (f(PROTOTYPES) for f in (lambda x: system.class_probabilities(x, 50), system.probabilities))
    assert torch.equal(classes[:, 10], components[:, 0])
    assert torch.equal(classes[:, 30], components[:, 1])
    assert not classes[:, [20, 40]].any()


@pytest.mark.parametrize("t", [3, 9, 14])
def test_a_restored_learner_knows_the_classes_and_goes_on_as_the_first_would_have(make_labelled, t):
    settings = {"memory": Snapshot(snapshots=4)}
    first = make_labelled(**settings)
    taught(first, two_at_a_time(20), t)
    second = moved_on(first, make_labelled(**settings))
    assert second.component_of == first.component_of
    assert facts(taught(second, two_at_a_time(20), 30)) == facts(taught(first, two_at_a_time(20), 30))


def test_with_labels_no_rule_of_growth_is_taken():
    with pytest.raises(ConfigError, match=r"a component is opened for each class\. Choose no rule of growth\."):
        LabelledCurl(learner=LearnerConfig(growth=Threshold()))


def test_with_labels_there_is_no_cap_on_components():
    with pytest.raises(ConfigError, match=r"each class has a component of its own\. Leave out max_components\."):
        LabelledCurl(learner=LearnerConfig(growth=None, max_components=3))
