"""Exact save and resume: the state of a learning system in one safetensors file, whole or not at all."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from curlicue.errors import RunError
from curlicue.records.files import Json, json_object, write_atomically
from curlicue.records.state import Fields, MisfitError, State, joined, split

FORMAT = 8


class Keeps(Protocol):
    """What has a state."""

    def state(self) -> State:
        """All that is needed to go on."""

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""


def save_checkpoint(path: Path, system: Keeps, extra: Json) -> None:
    """Write system and `extra` (plain JSON) so that a crash leaves the old file or the new one, never half."""
    write_atomically(path, to_bytes(system, extra))


def load_checkpoint(path: Path, system: Keeps) -> Json:
    """Put `system`, freshly made from the same settings, where it was; returns `extra`.

    A file that cannot be used is a RunError, and `system` stays as it is.
    """
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} is not a whole checkpoint ({error}). Start the run anew without --resume.") from error
    checkpoint = Checkpoint.of(contents, str(path))
    checkpoint.restore(system)
    return checkpoint.extra


def to_bytes(system: Keeps, extra: Json) -> bytes:
    """A safetensors file that holds the state of `system`, and `extra`."""
    tensors, values = split(system.state())
    tensors = {name: _own(tensor) for name, tensor in tensors.items()}
    header = {"format": FORMAT, "values": dict(sorted(values.items())), "extra": extra}
    header["sha256"] = _digest(header, tensors)
    return save(tensors, metadata={"curlicue": json.dumps(header)})


@dataclass(frozen=True)
class Checkpoint:
    """What `to_bytes` wrote, found whole."""

    name: str  # what errors call it
    header: Json
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, contents: bytes, name: str, remedy: str = "Start the run anew without --resume.") -> Checkpoint:
        """RunError if the contents are not as this version would have written them."""
        try:
            tensors, header = load(contents), _header(contents)
        except (SafetensorError, ValueError) as error:
            raise RunError(f"{name} is not a whole checkpoint ({error}). {remedy}") from error
        if header["format"] != FORMAT:
            raise RunError(
                f"{name} has checkpoint format {header['format']}, this version of curlicue reads {FORMAT}. "
                "Go on with the version that wrote it."
            )
        if (flaw := _flaw(header, tensors)) is not None:
            raise RunError(f"{name} is not a whole checkpoint ({flaw}). {remedy}")
        return cls(name, header, tensors)

    @property
    def extra(self) -> Json:
        """As it was given to `to_bytes`."""
        return dict(self.header["extra"])

    def restore(self, system: Keeps, remedy: str = "Resume with the settings it was written with.") -> None:
        """Put `system`, freshly made from the same settings, where it was; RunError if it does not fit.

        A copy tries first, so that a state that does not fit leaves `system` as it is.
        """
        try:
            for each in (copy.deepcopy(system), system):
                fields = Fields(joined(self.tensors, self.header["values"]), "state")
                each.restore(fields)
                fields.end()
        except MisfitError as error:
            raise RunError(f"{self.name} does not fit the settings: {error}. {remedy}") from error


def _own(tensor: Tensor) -> Tensor:
    """A copy on the CPU: safetensors takes no tensors that share memory, as tied weights do."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _header(contents: bytes) -> Json:
    """What `to_bytes` wrote into the header of a safetensors file (its length in 8 bytes, then JSON), or ValueError."""
    written = json_object(contents[8 : 8 + int.from_bytes(contents[:8], "little")].decode())
    if "curlicue" not in written.get("__metadata__", {}):
        raise ValueError("curlicue did not write it")
    header = json_object(written["__metadata__"]["curlicue"])
    if "format" not in header:
        raise ValueError("its metadata name no format")
    return header


def _flaw(header: Json, tensors: Mapping[str, Tensor]) -> str | None:
    """What shows that `to_bytes` did not write a header of this format, or not with these tensors."""
    unsigned = {name: value for name, value in header.items() if name != "sha256"}
    if header.get("sha256") != _digest(unsigned, tensors):
        return "its contents do not have the checksum they were written with"
    if not (isinstance(header.get("values"), dict) and isinstance(header.get("extra"), dict)):
        return "its metadata hold no state"
    return None


def _digest(header: Json, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(header).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
