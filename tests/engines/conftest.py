"""Both engines are compared in double precision, and the CPU engine with either kind of layer."""

from collections.abc import Iterator

import pytest
import torch

from curlicue.engines.cpu import networks


@pytest.fixture
def in_double() -> Iterator[None]:
    """New numbers are double: a wrong term cannot hide behind rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=[-1.0, torch.inf], ids=["Dense", "Sparse"])
def either_layer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of the CPU engine that can be are of one type."""
    monkeypatch.setattr(networks, "SPARSE", request.param)
