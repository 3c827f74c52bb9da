"""A device that is not the CPU, for machines that have no other; and a count of what crosses between devices.

Tensors of the device `elsewhere` hold a tensor of the CPU, on which every operation is done after a look at where its
arguments are. What would fail on a GPU fails here: an operation on tensors of both devices, a tensor handed to NumPy,
a draw by a generator of the CPU. A draw by the device's own generator fails too, for it would decide what is learnt.

Autograd has a thread for the device from the import of this module on: a process that forks cannot go on learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

CPU = torch.device("cpu")
COPIES = ("aten::copy_", "aten::_to_copy")
WAITS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # the host must know values to go on
MASKED = ("aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class Backend(_DummyBackendModule):
    """torch.elsewhere; `auto` finds the device only while it is offered."""

    offered = False

    def is_available(self) -> bool:
        return self.offered


_backend = Backend()
_setup_privateuseone_for_python_backend("elsewhere", backend_module=_backend)
ELSEWHERE = torch.device("elsewhere:0")


@contextmanager
def offered() -> Iterator[None]:
    """`elsewhere` is the fastest device of this machine."""
    _backend.offered = True
    try:
        yield
    finally:
        _backend.offered = False


class Remote(Tensor):
    """A tensor of the device `elsewhere`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor) -> Remote:
        size, strides, offset = raw.size(), raw.stride(), raw.storage_offset()
        how = {"strides": strides, "storage_offset": offset, "dtype": raw.dtype, "device": ELSEWHERE}
        return torch.Tensor._make_wrapper_subclass(cls, size, **how)

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    def __deepcopy__(self, memo: dict[int, Any]) -> Remote:
        copied = Remote(self.raw.clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied._is_param = True
        return memo.setdefault(id(self), copied)

    def __repr__(self, **_: Any) -> str:
        return f"Remote({self.raw})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert elsewhere:0 device type tensor to numpy")
        return self.detach().cpu().numpy()

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        _refuse(op, given)
        to = given[1].get("device") or (args[0].device if op.name() == "aten::copy_" else ELSEWHERE)
        raw_args, raw_kwargs = _mapped(_raw, given)
        out = op(*raw_args, **raw_kwargs)
        if to.type == "cpu":
            return out
        known = {id(t.raw): t for t in _tensors(given) if isinstance(t, Remote)}  # changed in place, it stays itself
        return _mapped(lambda t: known[id(t)] if id(t) in known else Remote(t) if isinstance(t, Tensor) else t, out)


def _raw(leaf: Any) -> Any:
    if isinstance(leaf, Remote):
        return leaf.raw
    return CPU if isinstance(leaf, torch.device) else leaf


def _mapped(f: Callable[[Any], Any], nested: Any) -> Any:
    """Tuples, lists and dictionaries with f of each leaf."""
    if isinstance(nested, tuple | list):
        return type(nested)([_mapped(f, each) for each in nested])
    return {name: _mapped(f, each) for name, each in nested.items()} if isinstance(nested, dict) else f(nested)


def _tensors(nested: Any) -> list[Tensor]:
    """The tensors in tuples, lists and dictionaries."""
    if isinstance(nested, dict):
        nested = [*nested.values()]
    if isinstance(nested, tuple | list):
        return [tensor for each in nested for tensor in _tensors(each)]
    return [nested] if isinstance(nested, Tensor) else []


def _refuse(op: Any, given: Any) -> None:
    """RuntimeError for what a GPU cannot do, and for draws of its own."""
    tensors = _tensors(given)
    pointwise = torch.Tag.pointwise in op.tags  # only there may a CPU tensor stand for a number
    local = [t for t in tensors if not isinstance(t, Remote) and not (pointwise and t.ndim == 0)]
    if local and op.name() not in COPIES:
        raise RuntimeError(
            f"{op.name()} was given tensors of both devices, such as {tuple(local[0].shape)} of the CPU."
        )
    if torch.Tag.nondeterministic_seeded in op.tags:
        raise RuntimeError(f"{op.name()} draws elsewhere. What decides what is learnt is drawn on the CPU.")


_library = torch.library.Library("aten", "IMPL")


def _empty(size: Any, dtype: torch.dtype | None = None, **_: Any) -> Remote:
    return Remote(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype | None = None, **_: Any) -> Remote:
    return Remote(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Remote, non_blocking: bool = False) -> Remote:
    target.raw.copy_(source)  # torch.tensor goes this way, past the dispatch of Remote
    return target


_library.impl("_copy_from", _copy_from, "PrivateUse1")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")


class Traffic(TorchDispatchMode):
    """Counts what crosses between the CPU and any other device, and how often the host waits for that device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []  # operations for whose outcome the host waits, such as copies to the CPU
        self.sent: list[str] = []  # copies to the device
        self.awaited = 0  # of these, such as do not return before they are done
        self.bytes = 0  # in both directions
        self.dtypes: set[torch.dtype] = set()  # of all that was made on the device

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        if op.name() in COPIES:
            source, blocking = _source(op, args), not _non_blocking(op, args, kwargs or {})
            self._copied(op.name(), source, out, blocking)
        elif _waits(op, args, kwargs):
            self.waits.append(op.name())
        self.dtypes |= {t.dtype for t in _tensors(out) if t.device.type != "cpu"}
        return out

    def _copied(self, name: str, source: Tensor, out: Tensor, blocking: bool) -> None:
        if (source.device.type == "cpu") == (out.device.type == "cpu"):
            return
        self.bytes += out.nbytes
        if out.device.type == "cpu":
            self.waits.append(name)
        else:
            self.sent.append(name)
            self.awaited += blocking


def _source(op: Any, args: Any) -> Tensor:
    return args[1] if op.name() == "aten::copy_" else args[0]


def _non_blocking(op: Any, args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking", args[2] if op.name() == "aten::copy_" and len(args) > 2 else False))


def _waits(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the outcome, or its size, depends on values that lie on another device than the CPU."""
    if op.name() in MASKED:
        return any(isinstance(t, Tensor) and t.dtype == torch.bool and t.device.type != "cpu" for t in args[1])
    far = any(t.device.type != "cpu" for t in _tensors((args, kwargs)))
    return far and any(tag in op.tags for tag in WAITS)
