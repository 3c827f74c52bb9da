"""The settings of one run, completely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from curlicue.config.codec import to_json
from curlicue.config.kinds import require
from curlicue.config.scenario import Iid, Scenario, Sequential
from curlicue.streams.schedule import n_tasks
from curlicue.systems.curl import Curl
from curlicue.systems.protocol import SystemConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: a system on a stream."""

    dataset: str = "mnist"  # or mnist-60k (trains on all of it), mnist-grey, mnist-validation, omniglot, digits
    scenario: Scenario = field(default_factory=Sequential)  # classes shuffled, one after the other, or fading
    steps: int = 100_000  # real and rehearsed batches together
    batch_size: int = 100  # samples in a batch
    seed: int = 0  # of all that is random
    system: SystemConfig = field(default_factory=Curl)  # what learns
    sampled_knn: bool = False  # k-NN on sampled y and z instead of the means
    evaluate_every: int = 2000  # steps between two scores
    checkpoint_every: int = 2000  # steps between two checkpoints

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "checkpoint_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "an int in the range [1, inf)")

    def resolved(self, n_classes: int) -> RunConfig:
        """The same run on so many classes: the period T, in which classes are shown together, is a number of steps.

        Of a shuffled stream T is as long as if its classes came in turn.
        """
        periods = n_classes if isinstance(self.scenario, Iid) else n_tasks(self.scenario, n_classes)
        T = max(1, self.steps // periods)
        return replace(self, system=self.system.with_period(T))

    def to_json(self) -> dict[str, Any]:
        """config.json."""
        return dict(to_json(self))


def in_steps(config: RunConfig, steps: int) -> RunConfig:
    """The same run in so many steps: the periods of snapshots, evaluation and checkpoints go along."""

    def along(period: int) -> int:
        return max(1, period * steps // config.steps)

    return replace(
        config,
        steps=steps,
        system=config.system.along(along),
        evaluate_every=along(config.evaluate_every),
        checkpoint_every=along(config.checkpoint_every),
    )
