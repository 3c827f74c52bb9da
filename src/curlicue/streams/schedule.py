"""When which class is seen: iid, one after the other, or drifting into each other."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from curlicue.config.scenario import Drift, Iid, Scenario, Sequential
from curlicue.errors import ConfigError
from curlicue.streams.sources import Split


def n_tasks(scenario: Scenario, C: int) -> int:
    """Into how many periods of equal length a stream of C classes falls."""
    match scenario:
        case Iid():
            return 1
        case Sequential(at_once):
            return -(-C // at_once)
        case Drift():
            return C
    raise _unknown(scenario)


def class_shares(scenario: Scenario, t: int, steps: int, frequencies: Tensor) -> Tensor:
    """The share of each class [C] in the batch of step t of `steps`."""
    C = len(frequencies)
    t = min(t, steps - 1)  # afterwards the last class stays
    match scenario:
        case Iid():
            return frequencies
        case Sequential(at_once):
            task = t * n_tasks(scenario, C) // steps
            classes = torch.arange(C)
            shown = (classes // at_once == task).to(frequencies.dtype)
            return shown / shown.sum()
        case Drift():
            return _drifting_shares(t * C / steps, C)
    raise _unknown(scenario)


def seen(scenario: Scenario, t: int, steps: int, C: int) -> Tensor:
    """Which of C classes [C] have had a share in the first t of `steps` batches, t ≥ 1."""
    classes, latest = torch.arange(C), min(t, steps) - 1
    match scenario:
        case Iid():
            return torch.ones(C, dtype=torch.bool)
        case Sequential(at_once):
            return classes // at_once <= latest * n_tasks(scenario, C) // steps
        case Drift():
            return classes < latest * C / steps + 0.25  # the next class comes in the last quarter of a period
    raise _unknown(scenario)


def _unknown(scenario: Scenario) -> ConfigError:
    return ConfigError(f"No stream is known for {scenario}. Choose Iid, Sequential or Drift.")


def _drifting_shares(position: float, C: int) -> Tensor:
    """Position c + f, 0 ≤ f < 1: class c, with its neighbours at the edges of its period.

    Over the first quarter the share of the previous class falls from ½ to 0; over the last quarter that of the
    next class rises from 0 to ½.
    """
    c = int(position)
    f = position - c
    shares = torch.zeros(C, dtype=torch.float64)
    if c > 0:
        shares[c - 1] = max(0.0, 0.5 - 2 * f)
    if c < C - 1:
        shares[c + 1] = max(0.0, 2 * f - 1.5)
    shares[c] = 1 - shares.sum()
    return shares


class Schedule:
    """A data set as a stream: the batch of step t, its classes drawn by their shares, samples with replacement."""

    def __init__(self, split: Split, scenario: Scenario, steps: int, batch_size: int, rng: Generator) -> None:
        self.split, self.scenario, self.steps = split, scenario, steps
        self.batch_size, self.rng = batch_size, rng
        self.sizes = torch.bincount(split.labels)  # [C]
        self.frequencies = self.sizes / self.sizes.sum()  # [C]
        self.by_class = torch.argsort(split.labels, stable=True)  # [N], class after class
        self.starts = self.sizes.cumsum(0) - self.sizes  # [C]
        if not self.sizes.all():
            empty = (self.sizes == 0).nonzero().squeeze(1).tolist()
            raise ConfigError(f"Every class needs samples to be streamed. Classes {empty} have none: renumber them.")
        if isinstance(scenario, Sequential) and scenario.at_once > len(self.sizes):
            raise ConfigError(
                f"The 'at_once' setting must be at most {len(self.sizes)}, the number of classes. "
                f"Got {scenario.at_once} instead."
            )

    def batch(self, t: int) -> Tensor:
        """x [B, D], and nothing else."""
        return self.split.x.index_select(0, self.draw(t))

    def labelled_batch(self, t: int) -> tuple[Tensor, Tensor]:
        """x [B, D] with its labels [B]: for the supervised benchmark only."""
        index = self.draw(t)
        return self.split.x.index_select(0, index), self.split.labels.index_select(0, index)

    def draw(self, t: int) -> Tensor:
        """Which samples [B] step t shows."""
        shares = class_shares(self.scenario, t, self.steps, self.frequencies)
        c = torch.multinomial(shares, self.batch_size, replacement=True, generator=self.rng)  # [B]
        u = torch.rand(self.batch_size, dtype=torch.float64, generator=self.rng)
        return self.by_class[self.starts[c] + (u * self.sizes[c]).long()]
