"""The one path by which labels reach a model: the supervised benchmark (SplitMNIST), Eq. 4 on given labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from curlicue.config import LearnerConfig
from curlicue.learn.events import ComponentBorn, Event
from curlicue.learn.expansion import closest_component
from curlicue.learn.trainer import Trainer
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng

LabelledStream = Callable[[int], tuple[Tensor, Tensor]]
"""The batch x [B, D] of step t with its labels [B]."""


class LabelledLearner(Trainer):
    """Each class owns a component, opened when the class first appears."""

    def __init__(self, model: MixtureVAE, config: LearnerConfig, rng: Rng) -> None:
        super().__init__(model, config, rng)
        self.component_of: dict[int, int] = {}  # class → component

    def advance(self, stream: LabelledStream) -> list[Event]:
        """One step, on a real batch with its labels or on a dreamt one, and what it brings about."""
        return [self.rehearse()] if self.rehearsal_due else self.observe(*stream(self.t))

    def observe(self, x: Tensor, labels: Tensor) -> list[Event]:
        """Open components for new classes, then climb Eq. 4."""
        new = [label for label in labels.unique().tolist() if label not in self.component_of]
        due = self.snapshot_due or (self.snapshot_before_birth and new and self.t > 0)
        events: list[Event] = [self.take_snapshot()] if due else []
        for label in new:
            events.extend(self.open(label, x[labels == label]))
        y = labels.clone().apply_(self.component_of.__getitem__)
        events.append(self.real_step(self.elbo_given(x, y)))
        return events

    def open(self, label: int, x: Tensor) -> Iterator[Event]:
        """Give `label` a component: the first that is free, or a copy of the closest."""
        self.component_of[label] = len(self.component_of)
        if self.component_of[label] < self.model.K:
            return
        parent = closest_component(self.model, x)
        newborn = self.grow(parent)
        yield ComponentBorn(self.t, newborn, parent, self.model.K, None, None, x)
