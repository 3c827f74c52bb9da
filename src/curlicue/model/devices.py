"""Devices by name, and the way from the CPU, where everything random is drawn, to the device of a model."""

from __future__ import annotations

import torch
from torch import Tensor

from curlicue.errors import ConfigError

AWAITED = ("cpu", "mps")  # MPS may read a tensor that is gone by then (pytorch/pytorch#139550)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on that device; the host does not wait for the copy where it need not."""
    return tensor.to(device, non_blocking=device.type not in AWAITED)


def device_of(name: str) -> torch.device:
    """The device of that name: cpu, cuda, cuda:1, mps, or auto for the fastest there is."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(f"There is no device {name!r} here ({reason}). Choose cpu or auto.") from error
    return device
