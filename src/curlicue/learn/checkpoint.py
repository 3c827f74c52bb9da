"""Exact save and resume: everything a learner needs to go on bit for bit, in one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from curlicue.errors import RunError
from curlicue.learn.learner import Learner
from curlicue.learn.replay import Snapshot
from curlicue.learn.supervised import LabelledLearner
from curlicue.learn.trainer import Trainer
from curlicue.records import write_atomically

FORMAT = 1


def save_checkpoint(path: Path, learner: Trainer, extra: dict[str, Any]) -> None:
    """Write learner and `extra` (plain JSON) so that a crash leaves the old file or the new one, never half."""
    scalars = {"format": FORMAT, "learner": _scalars(learner), "extra": extra}
    tensors = {name: t.contiguous() for name, t in _tensors(learner).items()}
    write_atomically(path, save(tensors, metadata={"curlicue": json.dumps(scalars)}))


def load_checkpoint(path: Path, learner: Trainer) -> dict[str, Any]:
    """Put `learner`, freshly made from the same settings, where it was; returns `extra`."""
    try:
        with safe_open(path, framework="pt") as file:
            scalars = json.loads(file.metadata()["curlicue"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is not a whole checkpoint ({error}). Start the run anew without --resume.") from error
    if scalars["format"] != FORMAT:
        raise RunError(
            f"{path} has checkpoint format {scalars['format']}, this version of curlicue reads {FORMAT}. "
            "Resume with the version that wrote it."
        )
    _restore(learner, tensors, scalars["learner"])
    return dict(scalars["extra"])


def _tensors(learner: Trainer) -> dict[str, Tensor]:
    groups: dict[str, dict[str, Tensor]] = {
        "model": learner.model.state_dict(),
        "rng": learner.rng.state(),
        "learner": {"counts": learner.counts},
    }
    for name, parameter in learner.model.named_parameters():
        groups[f"optimiser.{name}"] = learner.optimiser.state.get(parameter, {})
    if learner.snapshot:
        groups["snapshot"] = learner.snapshot.model.state_dict()
        groups["learner"]["pi"] = learner.snapshot.pi
    if isinstance(learner, Learner) and learner.d_new and learner.d_new.samples:
        groups["learner"]["d_new"] = torch.cat(learner.d_new.samples)
    return {f"{group}/{name}": tensor for group, items in groups.items() for name, tensor in items.items()}


def _scalars(learner: Trainer) -> dict[str, Any]:
    scalars: dict[str, Any] = {
        "t": learner.t,
        "snapshot_t": learner.snapshot_t,
        "rehearsal_due": learner.rehearsal_due,
        "batch_size": learner.batch_size,
    }
    match learner:
        case Learner(d_new=d_new) if d_new:
            scalars["real_steps_to_wait"] = d_new.real_steps_to_wait
        case LabelledLearner():
            scalars["component_of"] = list(learner.component_of.items())
    return scalars


def _restore(learner: Trainer, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, name = key.split("/")
        groups.setdefault(group, {})[name] = tensor
    own = groups["learner"]
    learner.model.load_grown(groups["model"])
    learner.optimiser = learner.new_optimiser()
    learner.rng.restore(groups["rng"])
    for name, parameter in learner.model.named_parameters():
        if state := groups.get(f"optimiser.{name}"):
            learner.optimiser.state[parameter] = state
    learner.counts = own["counts"]
    for name in ("t", "snapshot_t", "rehearsal_due", "batch_size"):
        setattr(learner, name, scalars[name])
    if "snapshot" in groups:
        learner.snapshot = Snapshot.of(learner.model, own["counts"])
        learner.snapshot.model.load_grown(groups["snapshot"])
        learner.snapshot = Snapshot(learner.snapshot.model, own["pi"])
    match learner:
        case Learner(d_new=d_new) if d_new:
            d_new.real_steps_to_wait = scalars["real_steps_to_wait"]
            d_new.samples = [own["d_new"]] if "d_new" in own else []
        case LabelledLearner():
            learner.component_of = dict(map(tuple, scalars["component_of"]))
