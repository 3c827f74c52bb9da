"""What tests of learners, rules of growth and memories share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor

from curlicue.config.kinds import Kind, by_option
from curlicue.learn.events import Event, StepTaken
from curlicue.model.elbo import ElboTerms
from curlicue.records.state import Fields, State, joined, split

Stream = Callable[[int], Any]
"""The real batch of step t."""


def ours(family: type[Kind]) -> dict[str, type[Any]]:
    """The kinds of a family that ship, by their options; a test of another file may have a kind of its own."""
    return {name: kind for name, kind in by_option(family).items() if kind.__module__.startswith("curlicue.")}


def endless(learner: Any, stream: Stream) -> Iterator[Any]:
    """The batches that the learner asks for."""
    return (stream(learner.t) for _ in count())


def taught(learner: Any, stream: Stream, steps: int) -> list[Event]:
    """What happens until so many steps have been taken in all."""
    learning, events = learner.learn(endless(learner, stream)), []
    while learner.t < steps:
        events += next(learning)
    return events


def of_type(kind: type, events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def rehearsed(events: list[Event]) -> list[bool]:
    """Of each step, whether it was rehearsed."""
    return [step.rehearsed for step in of_type(StepTaken, events)]


def facts(events: list[Event]) -> list[tuple[object, ...]]:
    """The same events are equal."""
    return [
        (type(event), *(v.tolist() if isinstance(v, Tensor) else v for v in vars(event).values())) for event in events
    ]


def terms_of(bound: Tensor, y: Tensor | None = None, K: int = 3) -> ElboTerms:
    """Of samples with these bounds [B], which the components y [B] explain."""
    y = torch.zeros(len(bound), dtype=torch.int64) if y is None else y
    return ElboTerms(bound, 0 * bound, 0 * bound, torch.eye(K)[y])


def written(state: State) -> Fields:
    """The state as a file gives it back."""
    tensors, values = split(state)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    return Fields(joined(tensors, json.loads(json.dumps(values))), "state")


def moved_on(part: Any, fresh: Any) -> Any:
    """A fresh part that goes on from where the first one is, and has left nothing unread."""
    fields = written(part.state())
    fresh.restore(fields)
    fields.end()
    return fresh
