"""What a learner does, as facts; printing, recording and plotting are readers of these.

`t` of a step is its number, from 0; `t` of anything else is how many steps had been taken by then.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from curlicue.memory.protocol import SnapshotTaken

__all__ = ["BirthRefused", "ComponentBorn", "Event", "SnapshotTaken", "StepTaken"]


@dataclass(frozen=True)
class StepTaken:
    """One batch climbed; all figures are means over the batch, those of the bound in nats.

    A system without a bound tells the negative of its loss; what it has no terms for is None.
    """

    t: int
    K: int
    bound: float
    log_p_x: float | None = None
    kl_z: float | None = None
    kl_y: float | None = None
    q_y: tuple[float, ...] = ()  # [K], how much of the batch each component explains
    rehearsed: bool = False  # from memory, not real
    n_poor: int = 0  # samples of this batch that joined D_new


@dataclass(frozen=True)
class ComponentBorn:
    """A new component, fitted to D_new."""

    t: int
    component: int
    parent: int
    K: int  # with the newborn
    bound_before: float | None  # mean L_sup over D_new with the newborn's label, as a bare copy of its parent
    bound_after: float | None  # the same, after fitting
    d_new: Tensor  # [N, D], on the CPU


@dataclass(frozen=True)
class BirthRefused:
    """D_new was full, but the model has as many components as it may have."""

    t: int
    K: int
    d_new: Tensor  # [N, D], on the CPU


Event = StepTaken | SnapshotTaken | ComponentBorn | BirthRefused
