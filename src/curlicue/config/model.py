"""Settings of the model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from curlicue.config.kinds import require


class Likelihood(StrEnum):
    """p(x|z)."""

    BERNOULLI = "bernoulli"  # x in [0, 1]
    GAUSSIAN = "gaussian"  # real x, one learnt variance for each feature


class Emission(StrEnum):
    """How p(x|z) becomes a generated sample."""

    THRESHOLD = "threshold"  # its mean, rounded to 0 or 1
    SAMPLE = "sample"


Network = tuple[int, ...] | Literal["conv"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The mixture VAE; MLPs in the paper's main MNIST sizes."""

    n_z: int = 32  # dimensions of z
    encoder: Network = (1200, 600, 300, 150)  # widths x → h, or conv: small convolutions for images
    decoder: Network = (500, 500)  # hidden widths z → x, or conv
    likelihood: Likelihood = Likelihood.BERNOULLI  # of values in [0, 1], or gaussian: of real values
    K: int = 1  # components to begin with

    def __post_init__(self) -> None:
        require(self.n_z >= 1, "n_z", self.n_z, "an int in the range [1, inf)")
        require(self.K >= 1, "K", self.K, "an int in the range [1, inf)")
        for name in ("encoder", "decoder"):
            widths = getattr(self, name)
            if isinstance(widths, str):
                require(widths == "conv", name, widths, "widths in the range [1, inf) or 'conv'")
            else:
                require(all(w >= 1 for w in widths), name, widths, "widths in the range [1, inf) or 'conv'")
        require(len(self.encoder) >= 1, "encoder", self.encoder, "at least one width")
