import pytest
import torch
from torch import Tensor

from curlicue.config import Every, ReplayConfig
from curlicue.learn.events import ComponentBorn, Event, SnapshotTaken, StepTaken
from curlicue.learn.learner import Learner
from curlicue.learn.supervised import LabelledLearner, LabelledStream
from curlicue.model.elbo import elbo_given

PROTOTYPES = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1.0]])


@pytest.fixture
def make_labelled(make_learner):
    def make(K: int = 1, **settings: object) -> LabelledLearner:
        unlabelled: Learner = make_learner(K=K, **settings)
        return LabelledLearner(unlabelled.model, unlabelled.config, unlabelled.rng)

    return make


def two_at_a_time(steps: int, B: int = 8) -> LabelledStream:
    """Classes 30 and 10 in the first half, then 20 and 40; each class is one picture."""
    names = torch.tensor([30, 10, 20, 40])

    def batch(t: int) -> tuple[Tensor, Tensor]:
        c = torch.arange(B) % 2 + (2 if t >= steps / 2 else 0)
        return PROTOTYPES[c], names[c]

    return batch


def advanced(learner: LabelledLearner, stream: LabelledStream, steps: int) -> list[Event]:
    events: list[Event] = []
    while learner.t < steps:
        events += learner.advance(stream)
    return events


def test_components_open_as_classes_appear(make_labelled):
    learner = make_labelled()
    events = advanced(learner, two_at_a_time(10), 10)
    births = [event for event in events if isinstance(event, ComponentBorn)]
    assert [(birth.t, birth.component, birth.K) for birth in births] == [(0, 1, 2), (5, 2, 3), (5, 3, 4)]
    assert learner.component_of == {10: 0, 30: 1, 20: 2, 40: 3}
    assert learner.model.K == 4


def test_components_that_are_free_are_taken_before_any_is_born(make_labelled):
    learner = make_labelled(K=3)
    events = advanced(learner, two_at_a_time(10), 10)
    assert [event.K for event in events if isinstance(event, ComponentBorn)] == [4]
    assert learner.component_of == {10: 0, 30: 1, 20: 2, 40: 3}


def test_a_class_keeps_its_component(make_labelled):
    learner = make_labelled()
    advanced(learner, two_at_a_time(10), 10)
    for label in (40, 10, 30, 20):
        learner.observe(PROTOTYPES[:2], torch.full((2,), label))
    assert learner.component_of == {10: 0, 30: 1, 20: 2, 40: 3}
    assert learner.model.K == 4


@pytest.mark.parametrize("c", [0, 1, 2])
def test_a_new_class_copies_the_component_closest_to_its_own_samples(make_labelled, c):
    learner = make_labelled(K=3, learning_rate=0.02)
    for _ in range(150):
        learner.observe(PROTOTYPES[:3], torch.tensor([0, 1, 2]))
    other = (c + 1) % 3
    x = PROTOTYPES[[c] + 7 * [other]]  # the new class looks like class c, and most of the batch does not
    birth, _ = learner.observe(x, torch.tensor([100] + 7 * [other]))
    assert (birth.parent, birth.component) == (c, 3)
    assert torch.equal(birth.d_new, x[:1])


def test_a_real_step_climbs_the_constrained_bound_of_each_labels_component(make_labelled):
    learner = make_labelled(K=4)
    x, labels = PROTOTYPES, torch.tensor([40, 10, 30, 10])
    components = torch.tensor([2, 0, 1, 0])
    rng = torch.Generator().set_state(learner.rng.latent.get_state())
    expected = elbo_given(learner.model, x, components, rng).bound.mean().item()
    (step,) = learner.observe(x, labels)
    assert step.bound == pytest.approx(expected)
    assert not step.rehearsed


def test_labels_are_left_as_they_were(make_labelled):
    labels = torch.tensor([40, 10, 30, 10])
    make_labelled(K=4).observe(PROTOTYPES, labels)
    assert labels.tolist() == [40, 10, 30, 10]


def test_snapshots_are_taken_and_rehearsed_as_by_any_learner(make_labelled):
    learner = make_labelled(replay=ReplayConfig(snapshots=Every(4), labelled=True))
    events = advanced(learner, two_at_a_time(12), 12)
    assert [event.t for event in events if isinstance(event, SnapshotTaken)] == [4, 8]
    steps = [event for event in events if isinstance(event, StepTaken)]
    assert [step.rehearsed for step in steps] == [False] * 5 + [True, False] * 3 + [True]


def test_classes_are_told_apart_after_learning_them_two_at_a_time(make_labelled):
    learner = make_labelled(learning_rate=0.02, replay=ReplayConfig(snapshots=Every(150), labelled=True))
    advanced(learner, two_at_a_time(300), 450)
    said = learner.model.log_q_y(learner.model.encode(PROTOTYPES)).argmax(1)
    assert said.tolist() == [learner.component_of[label] for label in (30, 10, 20, 40)]
