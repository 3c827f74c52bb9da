"""The events of a run for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from curlicue.errors import ConfigError
from curlicue.experiments.run import Evaluated
from curlicue.learn.events import ComponentBorn, SnapshotTaken, StepTaken

EVERY = 100  # steps
TERMS = "bound", "log_p_x", "kl_z", "kl_y"
SCORES = "bound", "cluster_accuracy", "hungarian_accuracy", "nmi", "ari"


def require_tensorboard() -> Any:
    """What writes its files; ConfigError where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs TensorBoard. Install it: pip install 'curlicue[tensorboard]'") from error
    return SummaryWriter


class Board:
    """TensorBoard's event files in `path`; what they hold from step `t` on is written anew."""

    def __init__(self, path: Path, t: int) -> None:
        self.writer = require_tensorboard()(str(path), purge_step=t)

    def take(self, event: object) -> None:
        """Write down an event."""
        match event:
            case StepTaken() if event.t // 2 % (EVERY // 2) == 0:  # one real step of so many and, if any, its rehearsal
                kind = "rehearsed" if event.rehearsed else "real"
                self._scalars(kind, {name: getattr(event, name) for name in TERMS}, event.t)
                self._scalars("model", {"K": event.K}, event.t)
            case ComponentBorn():
                self.writer.add_text("births", f"component {event.component}, born from {event.parent}", event.t)
            case SnapshotTaken():
                self.writer.add_text("snapshots", f"of {event.K} components", event.t)
            case Evaluated():
                self._scalars("test", {name: event.scores[name] for name in SCORES if name in event.scores}, event.t)

    def _scalars(self, group: str, values: dict[str, float | None], t: int) -> None:
        """Write down the values that there are."""
        for name, value in values.items():
            if value is None:
                continue
            self.writer.add_scalar(f"{group}/{name}", value, t)

    def close(self) -> None:
        """All is on disk."""
        self.writer.close()
