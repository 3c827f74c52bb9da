"""What every learner does: climb the bound, grow, take snapshots, rehearse."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor

from curlicue.config import AtChange, BeforeBirth, Counts, Every, LearnerConfig, ReplayConfig
from curlicue.learn.adam import Adam
from curlicue.learn.events import SnapshotTaken, StepTaken
from curlicue.learn.replay import Snapshot
from curlicue.model.ascent import Ascent, ascend, ascend_given, can_ascend
from curlicue.model.elbo import ElboTerms, elbo, elbo_given
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng


class Trainer:
    """A model, its optimiser, and its memory of itself. Subclasses say what a real batch is."""

    def __init__(self, model: MixtureVAE, config: LearnerConfig, rng: Rng) -> None:
        self.model, self.config, self.rng = model, config, rng
        self.optimiser = Adam(config.learning_rate)
        self.t = 0  # steps taken, real and rehearsed together
        self.counts = torch.zeros(model.K, dtype=torch.float64)  # [K], how many real samples each explains; for π
        self.past = self.counts[:0]  # [J], the counts when the snapshot with its J components was taken
        self.moved = torch.zeros(0, model.K, dtype=torch.float64)  # [J, K], Σ q(y|x) over what each of the J dreamt
        self.snapshot: Snapshot | None = None
        self.snapshot_t = 0  # when it was taken
        self.rehearsal_due = False  # real and dreamt batches alternate
        self.batch_size = 0  # of the largest real batch so far: dreams are as large

    def elbo(self, x: Tensor) -> Ascent:
        """The bound as training sees it, and the way up."""
        if can_ascend(self.model, self.config.z_samples):
            return ascend(self.model, x, self.rng.latent, tau=self.config.tau)
        terms = elbo(self.model, x, self.rng.latent, tau=self.config.tau, z_samples=self.config.z_samples)
        return Ascent.by_autograd(self.model, terms)

    def elbo_given(self, x: Tensor, y: Tensor) -> Ascent:
        """Eq. 4."""
        if can_ascend(self.model, self.config.z_samples):
            return ascend_given(self.model, x, y, self.rng.latent)
        terms = elbo_given(self.model, x, y, self.rng.latent, z_samples=self.config.z_samples)
        return Ascent.by_autograd(self.model, terms)

    def climb(self, ascent: Ascent, only: Container[str] | None = None) -> None:
        """One step of Adam up the mean bound, on all parameters or `only` some; what is frozen stays."""
        if (K := ascent.terms.q_y.shape[1]) != self.model.K:
            raise ValueError(
                f"The bound is of a model with {K} components, which has {self.model.K} now. Compute it anew."
            )
        parameters = dict(self.model.named_parameters())
        for name, gradient in ascent.slopes():
            if parameters[name].requires_grad and (only is None or name in only):
                self.optimiser.move(name, parameters[name], gradient)

    def real_step(self, ascent: Ascent, n_poor: int = 0) -> StepTaken:
        """Climb a real batch; it counts towards π, and a rehearsal may follow."""
        terms = ascent.terms
        self.climb(ascent)
        self.counts += terms.q_y.sum(0, dtype=torch.float64)
        self.batch_size = max(self.batch_size, len(terms.kl_y))
        self.rehearsal_due = self.snapshot is not None
        return self._step_taken(terms, rehearsed=False, n_poor=n_poor)

    def rehearse(self) -> StepTaken:
        """One step on a batch that the snapshot dreams: MGR, or with its components as labels: SMGR."""
        assert self.snapshot is not None
        assert self.config.replay is not None
        x, y = self.snapshot.dream(self.batch_size, self.config.replay.emission, self.rng.replay)
        ascent = self.elbo_given(x, y) if self.config.replay.labelled else self.elbo(x)
        self.climb(ascent)
        self.moved.index_add_(0, y, ascent.terms.q_y.double())
        self.rehearsal_due = False
        return self._step_taken(ascent.terms, rehearsed=True)

    @property
    def snapshot_due(self) -> bool:
        """Whether the periodic snapshot falls on this step."""
        match self.config.replay:
            case ReplayConfig(snapshots=Every(steps)):
                return self.t // steps > self.snapshot_t // steps
        return False

    @property
    def snapshot_before_birth(self) -> bool:
        """Whether snapshots are taken just before each birth."""
        return self.config.replay is not None and isinstance(self.config.replay.snapshots, BeforeBirth | AtChange)

    def take_snapshot(self) -> SnapshotTaken:
        """Remember the model as it is now."""
        self.counts = self.recounted()
        self.past, self.moved = self.counts.clone(), self.counts.new_zeros(self.model.K, self.model.K)
        self.snapshot, self.snapshot_t = Snapshot.of(self.model, self.counts), self.t
        return SnapshotTaken(self.t, self.model.K)

    def recounted(self) -> Tensor:
        """The counts [K], those of the past moved to the components that its dreams have been explained by since.

        counts − past + Σⱼ pastⱼ · movedⱼ / Σₖ movedⱼₖ; what was never dreamt stays. Labelled dreams do not move.
        """
        match self.config.replay:
            case ReplayConfig(labelled=False, counts=Counts.DREAMT) if len(self.past):
                moved = torch.where(self.moved.any(1, keepdim=True), self.moved, torch.eye(*self.moved.shape))
                recent = self.counts.clone()
                recent[: len(self.past)] -= self.past
                return recent + self.past @ (moved / moved.sum(1, keepdim=True))
        return self.counts

    def grow(self, parent: int) -> int:
        """Add a copy of `parent`; the optimiser's state of everything else stays. Returns the newborn's id."""
        self.model.grow(parent)
        self.optimiser.grow(self.model.component_parameters())
        self.counts = _with_newborn(self.counts)
        self.moved = _with_newborn(self.moved.t()).t().contiguous()
        return self.model.K - 1

    def _step_taken(self, terms: ElboTerms, rehearsed: bool, n_poor: int = 0) -> StepTaken:
        figures = (terms.bound, terms.log_p_x, terms.kl_z, terms.kl_y)
        means = torch.stack(figures).mean(1)
        bound, log_p_x, kl_z, kl_y, *q_y = torch.cat([means, terms.q_y.mean(0)]).tolist()
        self.t += 1
        return StepTaken(self.t - 1, self.model.K, bound, log_p_x, kl_z, kl_y, tuple(q_y), rehearsed, n_poor)


def _with_newborn(kept: Tensor) -> Tensor:
    """What is kept of each component, of one more: zero."""
    return torch.cat([kept, torch.zeros_like(kept[:1])])
