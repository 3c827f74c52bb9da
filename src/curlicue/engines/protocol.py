"""What every engine can do."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from curlicue.model.elbo import ElboTerms
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields, State


class Ascent(Protocol):
    """The bound of a batch, and the way up: to be climbed once, before anything else changes the model."""

    @property
    def terms(self) -> ElboTerms:
        """The bound of each sample and what it is made of, on the CPU, without gradients."""


class Engine(Protocol):
    """Climbs the bound of a mixture VAE with Adam."""

    model: MixtureVAE

    def bound(self, x: Tensor) -> Ascent:
        """L(x) of a batch x [B, D], as training sees it."""

    def bound_given(self, x: Tensor, y: Tensor, emphasis: float = 1.0, seen: Tensor | None = None) -> Ascent:
        """L_sup(x, y) of a batch (Eq. 4), given the component y [B] of each row.

        `emphasis` weighs log q(y|x) in what is climbed; the encoder is shown `seen` [B, D] in place of x, if given.
        """

    def climb(self, ascent: Ascent, only: Container[str] | None = None) -> None:
        """One step of Adam up the mean bound, on all parameters or `only` some; frozen parameters stay."""

    def grow(self, parent: int) -> None:
        """Add a copy of a component; Adam's moments of the newborn begin at zero, those of all others stay."""

    def state(self) -> State:
        """The model and Adam's moments."""

    def restore(self, fields: Fields) -> None:
        """Go on from the state of any engine."""


@dataclass(frozen=True, kw_only=True)
class Climbing:
    """How every engine climbs."""

    learning_rate: float
    tau: float
    z_samples: int


def check_current(terms: ElboTerms, model: MixtureVAE) -> None:
    """ValueError if the model has grown since the bound was computed."""
    if (K := terms.q_y.shape[1]) != model.K:
        raise ValueError(f"The bound is of a model with {K} components, which has {model.K} now. Compute it anew.")


def restore_model(model: MixtureVAE, fields: Fields) -> None:
    """Put the parameters in place, of however many components."""
    model.load_grown(fields.tensors_like("model", model.like(fields.count("K"))))
