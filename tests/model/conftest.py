"""Every law of the model holds for float32 and for float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from curlicue.model.mixture import MixtureVAE


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """A type of numbers that models and data may have."""
    return request.param


@pytest.fixture
def make_model(make_model: Callable[..., MixtureVAE], dtype: torch.dtype) -> Callable[..., MixtureVAE]:
    """The tiny model in numbers of this type."""
    return lambda *sizes, **settings: make_model(*sizes, **settings).to(dtype)


@pytest.fixture
def make_batch(make_batch: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    """The tiny batch in numbers of this type."""
    return lambda *sizes, **settings: make_batch(*sizes, **settings).to(dtype)
