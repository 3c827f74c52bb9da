"""CURL with labels, for the supervised benchmark (SplitMNIST): Eq. 4 on given labels, each class with its component.

This is the one path by which labels reach a model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from curlicue.errors import ConfigError
from curlicue.learn.events import ComponentBorn, Event
from curlicue.learn.learner import Learner, LearnerConfig, closest_component
from curlicue.model.devices import sent
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, MisfitError, State
from curlicue.rng import Rng
from curlicue.systems.curl import Curl, CurlSystem
from curlicue.systems.protocol import LabelledBatch, System


@dataclass(frozen=True, kw_only=True)
class LabelledCurl(Curl):
    """CURL with a component for each class, opened when the class first appears."""

    labelled: ClassVar[bool] = True

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(growth=None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learner.growth is not None:
            raise ConfigError("With labels a component is opened for each class. Choose no rule of growth.")
        if self.learner.max_components is not None:
            raise ConfigError("With labels each class has a component of its own. Leave out max_components.")

    def start(self, shape: tuple[int, ...], rng: Rng, device: torch.device) -> System:
        """A model that knows no class yet."""
        return LabelledSystem(LabelledLearner(self.make_model(shape, rng, device), self.learner, rng))


class LabelledLearner(Learner):
    """Algorithm 1 with a label for each real sample."""

    def __init__(self, model: MixtureVAE, config: LearnerConfig, rng: Rng) -> None:
        super().__init__(model, config, rng)
        self.component_of: dict[int, int] = {}  # class → component

    def observe(self, batch: Any) -> list[Event]:
        """Open components for new classes, then climb Eq. 4."""
        x, labels = cast(LabelledBatch, batch)
        x, labels = sent(x, self.model.device), labels.cpu()
        events: list[Event] = [*self.memory.begin(self.t)]
        new = [label for label in labels.unique().tolist() if label not in self.component_of]
        if new and self.t > 0:
            events += self.memory.before_birth(self.t)
        for label in new:
            events += self.open(label, x[(labels == label).to(x.device)])
        y = labels.clone().apply_(self.component_of.__getitem__)
        events += self.step(x, self.engine.bound_given(x, y))
        self.rehearsal_due = self.memory.ready
        return events

    def open(self, label: int, x: Tensor) -> list[Event]:
        """Give `label` a component: the first that is free, or a copy of the closest."""
        self.component_of[label] = len(self.component_of)
        if self.component_of[label] < self.model.K:
            return []
        parent = closest_component(self.model, x)
        return [ComponentBorn(self.t, self.grow(parent, x), parent, self.model.K, None, None, x.cpu())]

    def state(self) -> State:
        """The learner's, and the classes in the order of their components."""
        return super().state() | {"classes": [*self.component_of]}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        classes = fields.value("classes", list)
        super().restore(fields)
        whole = all(type(label) is int for label in classes)
        if not whole or len(set(classes)) < len(classes) or len(classes) > self.model.K:
            raise MisfitError(f"{fields.where}/classes are not the labels of the model's {self.model.K} components")
        self.component_of = {label: component for component, label in enumerate(classes)}


class LabelledSystem(CurlSystem):
    """A labelled learner, and what its model says of samples and their classes."""

    def class_probabilities(self, x: Tensor, n_classes: int) -> Tensor:
        """q(y|x) of the component of each class [N, C]; 0 for a class that was never seen."""
        component_of = cast(LabelledLearner, self.learner).component_of
        q_y = self.probabilities(x)
        found = q_y.new_zeros(len(x), n_classes)
        for label, component in component_of.items():
            found[:, label] = q_y[:, component]
        return found
