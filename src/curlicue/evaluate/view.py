"""What a model looks like at one moment: what each component dreams, and where samples lie in its latent space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from curlicue.config import Emission
from curlicue.evaluate.representation import components, embed
from curlicue.model.mixture import MixtureVAE, looking

DREAMS = 8  # of each component


@dataclass(frozen=True)
class View:
    """A model's view of N samples, and of itself."""

    dreams: Tensor  # [K, n, D], the mean of p(x|z) for n draws of z ~ p(z|y)
    centres: Tensor  # [K, Z], the mean of p(z|y)
    z: Tensor  # [N, Z], the embeddings
    y: Tensor  # [N], the components


def view(model: MixtureVAE, x: Tensor, rng: Generator) -> View:
    """Of the samples x [N, D]."""
    ks = torch.arange(model.K)
    with looking(model):
        dreams = model.sample(ks.repeat_interleave(DREAMS), Emission.MEAN, rng)
        centres = model.p_z(ks).mean
    return View(dreams.view(model.K, DREAMS, -1), centres, embed(model, x), components(model, x))
