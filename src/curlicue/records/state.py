"""The state of a learning system as nested dictionaries: each part writes and reads its own.

A state holds tensors, plain JSON values and further states. `split` and `joined` turn it into the two flat
dictionaries that a file holds; `Fields` hands a part what it wrote, after looking at the type and shape of each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from curlicue.errors import CurlicueError

State = dict[str, Any]
Shape = tuple[int | None, ...]


class MisfitError(CurlicueError, ValueError):
    """A state that is not of the part that is asked to go on from it."""


class Fields:
    """Reads a state field by field; a field that is missing or of another kind is a MisfitError.

    `end`, called once on the outermost state, refuses what nobody read.
    """

    def __init__(self, state: object, where: str) -> None:
        if not isinstance(state, dict):
            raise MisfitError(f"{where} is {_kind(state)}, not a state")
        self.rest, self.where = dict(state), where
        self.inner: list[Fields] = []

    def tensor(self, name: str, shape: Shape, dtype: torch.dtype) -> Tensor:
        """A copy of the tensor, which must be of that type; None in the shape stands for any length."""
        lengths = ", ".join("any" if n is None else str(n) for n in shape)
        wanted = f"{str(dtype).removeprefix('torch.')} [{lengths}]"
        value = self._taken(name, wanted)
        fits = isinstance(value, Tensor) and value.dtype == dtype and value.ndim == len(shape)
        if not fits or any(n not in (None, m) for n, m in zip(shape, value.shape, strict=True)):
            self.refuse(name, _kind(value), wanted)
        copied: Tensor = value.clone()
        return copied

    def tensors_like(self, name: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with the names, shapes and types of `like`."""
        fields = self.state(name)
        return {each: fields.tensor(each, tuple(t.shape), t.dtype) for each, t in like.items()}

    def value(self, name: str, kind: type) -> Any:
        """A plain JSON value of that very type: True is no int."""
        value = self._taken(name, kind.__name__)
        if type(value) is not kind:
            self.refuse(name, _kind(value), kind.__name__)
        return value

    def count(self, name: str) -> int:
        """A whole number of at least 0."""
        value: int = self.value(name, int)
        if value < 0:
            self.refuse(name, str(value), "at least 0")
        return value

    def state(self, name: str) -> Fields:
        """A state within this one; an absent one is empty, for a file has no place for what holds nothing."""
        self.inner.append(Fields(self.rest.pop(name, {}), f"{self.where}/{name}"))
        return self.inner[-1]

    def __contains__(self, name: str) -> bool:
        return name in self.rest

    def end(self) -> None:
        """MisfitError if anything here or in an inner state was not asked for."""
        for name, value in self.rest.items():
            self.refuse(name, _kind(value), "absent")
        for fields in self.inner:
            fields.end()

    def refuse(self, name: str, seen: str, wanted: str) -> None:
        """Raise the MisfitError."""
        raise MisfitError(f"{self.where}/{name} is {seen} in it, but these settings make it {wanted}")

    def _taken(self, name: str, wanted: str) -> Any:
        if name not in self.rest:
            self.refuse(name, "absent", wanted)
        return self.rest.pop(name)


def _kind(value: object) -> str:
    """What can be told without looking at values, such as float32 [200, 64]."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "present" if isinstance(value, dict) else type(value).__name__


def split(state: State, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values of a state, each by its path: "memory/snapshot/pi"."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, value in state.items():
        path = f"{prefix}{name.replace('~', '~0').replace('/', '~1')}"  # as in JSON pointers
        if isinstance(value, Tensor):
            tensors[path] = value
        elif isinstance(value, dict):
            inner_tensors, inner_values = split(value, f"{path}/")
            tensors |= inner_tensors
            values |= inner_values
        else:
            values[path] = value
    return tensors, values


def joined(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> State:
    """The inverse of `split`."""
    state: State = {}
    for path, value in (*tensors.items(), *values.items()):
        *parents, name = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
        inner = state
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise MisfitError(f"{path} lies in what is no state")
        if name in inner:
            raise MisfitError(f"{path} is in it twice")
        inner[name] = value
    return state
