"""Exact save and resume: everything a learner needs to go on bit for bit, in one safetensors file."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from curlicue.errors import RunError
from curlicue.learn.adam import Moments
from curlicue.learn.expansion import NOBODY
from curlicue.learn.learner import Learner
from curlicue.learn.replay import Snapshot
from curlicue.learn.supervised import LabelledLearner
from curlicue.learn.trainer import Trainer
from curlicue.records import write_atomically

FORMAT = 7
COUNTS = ("counts", "past", "moved")


def save_checkpoint(path: Path, learner: Trainer, extra: dict[str, Any]) -> None:
    """Write learner and `extra` (plain JSON) so that a crash leaves the old file or the new one, never half."""
    write_atomically(path, to_bytes(learner, extra))


def load_checkpoint(path: Path, learner: Trainer) -> dict[str, Any]:
    """Put `learner`, freshly made from the same settings, where it was; returns `extra`.

    A file that cannot be used is a RunError, and `learner` stays as it is.
    """
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} is not a whole checkpoint ({error}). Start the run anew without --resume.") from error
    checkpoint = Checkpoint.of(contents, str(path))
    checkpoint.restore(learner)
    return checkpoint.extra


def to_bytes(learner: Trainer, extra: dict[str, Any]) -> bytes:
    """A safetensors file that holds `learner` and `extra`."""
    scalars = {"format": FORMAT, "learner": _scalars(learner), "extra": extra}
    tensors = {name: t.contiguous() for name, t in _tensors(learner).items()}
    scalars["sha256"] = _digest(scalars, tensors)
    return save(tensors, metadata={"curlicue": json.dumps(scalars)})


@dataclass(frozen=True)
class Checkpoint:
    """What `to_bytes` wrote, found whole."""

    name: str  # what errors call it
    scalars: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, contents: bytes, name: str, remedy: str = "Start the run anew without --resume.") -> Checkpoint:
        """RunError if the contents are not as this version would have written them."""
        try:
            scalars, tensors = _read(contents)
        except (SafetensorError, ValueError) as error:
            raise RunError(f"{name} is not a whole checkpoint ({error}). {remedy}") from error
        if scalars["format"] != FORMAT:
            raise RunError(
                f"{name} has checkpoint format {scalars['format']}, this version of curlicue reads {FORMAT}. "
                "Go on with the version that wrote it."
            )
        return cls(name, scalars, tensors)

    @property
    def extra(self) -> dict[str, Any]:
        """As it was given to `to_bytes`."""
        return dict(self.scalars["extra"])

    def restore(self, learner: Trainer) -> None:
        """Put `learner`, freshly made from the same settings, where it was; RunError if it does not fit."""
        _check_fit(self.name, learner, self.tensors, self.scalars["learner"])
        _restore(learner, self.tensors, self.scalars["learner"])


def _read(contents: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Scalars and, of the format that is known, tensors; ValueError if they are not as they were written."""
    tensors = load(contents)
    scalars = _metadata(contents)
    if scalars["format"] != FORMAT:
        return scalars, {}
    if scalars.pop("sha256", None) != _digest(scalars, tensors):
        raise ValueError("its contents do not have the checksum they were written with")
    return scalars, tensors


def _metadata(contents: bytes) -> dict[str, Any]:
    """What `to_bytes` wrote into the header of a safetensors file: its length in 8 bytes, then JSON."""
    header = json.loads(contents[8 : 8 + int.from_bytes(contents[:8], "little")])
    if "curlicue" not in header.get("__metadata__", {}):
        raise ValueError("curlicue did not write it")
    scalars = json.loads(header["__metadata__"]["curlicue"])
    if not isinstance(scalars, dict) or "format" not in scalars:
        raise ValueError("its metadata name no format")
    return scalars


def _digest(scalars: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(scalars).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(learner: Trainer) -> dict[str, Tensor]:
    groups: dict[str, dict[str, Tensor]] = {
        "model": learner.model.state_dict(),
        "rng": learner.rng.state(),
        "learner": {name: getattr(learner, name) for name in COUNTS},
    }
    groups |= {f"optimiser.{name}": moments.tensors for name, moments in learner.optimiser.moments.items()}
    if learner.snapshot:
        groups["snapshot"] = learner.snapshot.model.state_dict()
        groups["learner"]["pi"] = learner.snapshot.pi
    if isinstance(learner, Learner):
        groups["learner"]["usage"] = learner.usage.shares
    if isinstance(learner, Learner) and learner.d_new:
        groups["learner"]["normal"] = learner.d_new.normal.figures
    if isinstance(learner, Learner) and learner.d_new and len(learner.d_new.samples):
        groups["d_new"] = {"samples": learner.d_new.samples, "numbers": learner.d_new.numbers}
    return {f"{group}/{name}": tensor for group, items in groups.items() for name, tensor in items.items()}


def _scalars(learner: Trainer) -> dict[str, Any]:
    scalars: dict[str, Any] = {
        "t": learner.t,
        "snapshot_t": learner.snapshot_t,
        "rehearsal_due": learner.rehearsal_due,
        "batch_size": learner.batch_size,
    }
    if isinstance(learner, Learner):
        scalars["usage_rows"] = learner.usage.rows
    match learner:
        case Learner(d_new=d_new) if d_new:
            scalars |= {"real_steps_to_wait": d_new.real_steps_to_wait, "seen": d_new.seen}
        case LabelledLearner():
            scalars["component_of"] = list(learner.component_of.items())
    return scalars


def _check_fit(where: str, learner: Trainer, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    """Whether all that is in the file, and nothing else, has a place in `learner`."""
    seen = _kinds(tensors, scalars)
    wanted = _kinds(_as_tensors_of(learner, tensors), _scalars(learner))
    for name in sorted(seen.keys() | wanted.keys()):
        if seen.get(name) != wanted.get(name):
            raise RunError(
                f"{where} does not fit the settings: {name} is {seen.get(name, 'absent')} in it, but these settings "
                f"make it {wanted.get(name, 'absent')}. Resume with the settings it was written with."
            )


def _kinds(tensors: dict[str, Tensor], scalars: dict[str, Any]) -> dict[str, str]:
    """Of each name, what can be told without looking at values, such as float32 [200, 64]."""
    kinds = {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors.items()}
    return kinds | {name: type(value).__name__ for name, value in scalars.items()}


def _as_tensors_of(learner: Trainer, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors like those that `learner` would have saved at the moment of `tensors`; their values mean nothing."""
    K = len(tensors.get("learner/counts", learner.counts))
    state = learner.model.state_dict()
    like = {f"model/{name}": _with_components(name, t, K) for name, t in state.items()}
    like |= {f"rng/{name}": t for name, t in learner.rng.state().items()}
    J = len(tensors.get("learner/past", learner.past))
    shapes = (K,), (J,), (J, K)
    like |= {f"learner/{name}": learner.counts.new_empty(shape) for name, shape in zip(COUNTS, shapes, strict=True)}
    for name, parameter in learner.model.named_parameters():
        if f"optimiser.{name}/steps" in tensors:
            moments = Moments.none(_with_components(name, parameter, K))
            like |= {f"optimiser.{name}/{k}": v for k, v in moments.tensors.items()}
    if learner.config.replay is not None and "learner/pi" in tensors:
        past_K = len(tensors["learner/pi"])
        like |= {f"snapshot/{name}": _with_components(name, t, past_K) for name, t in state.items()}
        like["learner/pi"] = learner.counts.new_empty(past_K)
    if isinstance(learner, Learner):
        like["learner/usage"] = torch.empty(2, K)
    if isinstance(learner, Learner) and learner.d_new:
        like["learner/normal"] = learner.counts.new_empty(3, K)
    if isinstance(learner, Learner) and learner.d_new and "d_new/samples" in tensors:
        n = len(tensors["d_new/samples"])
        like |= {"d_new/samples": torch.empty(n, learner.model.n_x), "d_new/numbers": torch.empty(n, dtype=torch.int64)}
    return like


def _with_components(name: str, tensor: Tensor, K: int) -> Tensor:
    return tensor.new_empty(K, *tensor.shape[1:]) if name.startswith("heads.") else tensor


def _restore(learner: Trainer, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, name = key.split("/")
        groups.setdefault(group, {})[name] = tensor
    own = groups["learner"]
    learner.model.load_grown(groups["model"])
    learner.optimiser.moments = {
        name: Moments(**groups[f"optimiser.{name}"])
        for name, _ in learner.model.named_parameters()
        if f"optimiser.{name}" in groups
    }
    learner.rng.restore(groups["rng"])
    for name in COUNTS:
        setattr(learner, name, own[name])
    for name in ("t", "snapshot_t", "rehearsal_due", "batch_size"):
        setattr(learner, name, scalars[name])
    if "snapshot" in groups:
        past = copy.deepcopy(learner.model)
        past.load_grown(groups["snapshot"])
        learner.snapshot = Snapshot(past.eval().requires_grad_(False), own["pi"])
    if isinstance(learner, Learner):
        learner.usage.shares, learner.usage.rows = own["usage"], scalars["usage_rows"]
    match learner:
        case Learner(d_new=d_new) if d_new:
            d_new.real_steps_to_wait, d_new.seen = scalars["real_steps_to_wait"], scalars["seen"]
            d_new.normal.figures = own["normal"]
            held = groups.get("d_new")
            d_new.samples, d_new.numbers = (held["samples"], held["numbers"]) if held else NOBODY
        case LabelledLearner():
            learner.component_of = dict(map(tuple, scalars["component_of"]))
