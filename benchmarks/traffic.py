"""What a training step moves: bytes between processor and memory, and how often it waits for a device.

Bytes are counted, not measured: each operation reads its tensors and writes its results, as if there were no caches.
What is only looked at in another shape is not moved. Where rows are selected, only these are moved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from curlicue.config.model import ModelConfig
from curlicue.engines.cpu import adam, bound, networks
from curlicue.engines.cpu.compiled import Array
from curlicue.growth.threshold import Threshold
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng, named_generator

TESTS = Path(__file__).parent.parent / "tests"
FILLS = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "zero_", "fill_"}
SELECTS = {"index_select", "gather", "index"}  # (tensor, …, indices)
PLACES = {"index_add_", "index_copy_", "scatter_", "scatter_add_"}  # (tensor, axis, indices, what is placed there)
ROWS_READ = {  # of the compiled loops: which argument is a matrix, and which says what rows of it are read
    "gather": (0, 1),
    "sparse_layer": (2, 1),
    "input_backward": (1, 2),
    "heads": (3, 2),
    "heads_backward": (4, 3),
}
IN_PLACE = {"relu": 0, "mask_gradient": 0, "heads_backward": 5}  # of the compiled loops: the argument that is changed


# -- bytes ------------------------------------------------------------------------------------------------------


def bytes_moved(learner: Learner, x: Tensor) -> int:
    """Bytes that the step on x reads and writes."""
    traffic = MemoryTraffic()
    with traffic, watched_loops(traffic):
        learner.observe(x)
    return traffic.bytes


class MemoryTraffic(TorchDispatchMode):
    """Counts the bytes that torch's operations read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation and count."""
        out = op(*args, **(kwargs or {}))
        self.bytes += operation_bytes(op, args, kwargs or {}, out)
        return out


def operation_bytes(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Bytes that an operation of torch reads and writes."""
    name, given = op.name().removeprefix("aten::").split(".")[0], tensors((args, kwargs))
    known = {t.untyped_storage()._cdata for t in given}
    made = [t for t in tensors(out) if t.untyped_storage()._cdata not in known]
    changed = changed_tensors(op, args, kwargs)
    if "empty" in name or not (made or changed):
        return 0
    if name in FILLS:
        return size(made + changed)
    if name in SELECTS:
        return size(given[1:]) + 2 * size(made)
    if name in PLACES:
        return size(given[1:]) + 2 * size(given[-1:])
    return size(given) + size(made) + size(changed)


def changed_tensors(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operation writes to, by its schema."""
    given = dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)) | kwargs
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tensors([given[name] for name in written if name in given])


def tensors(tree: Any) -> list[Tensor]:
    """All tensors in a tree."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def size(several: list[Tensor]) -> int:
    """Their bytes; what an expanded tensor repeats is there once."""
    return sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in several)


# -- bytes of the loops that torch does not know of -------------------------------------------------------------


class Watched:
    """The compiled loops of a module, counted."""

    def __init__(self, loops: Any, traffic: MemoryTraffic) -> None:
        self.loops, self.traffic = loops, traffic

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def loop(*args: Any) -> Any:
            out = getattr(self.loops, name)(*args)
            self.traffic.bytes += loop_bytes(name, args, out)
            return out

        return loop


@contextmanager
def watched_loops(traffic: MemoryTraffic) -> Iterator[None]:
    """Within, the CPU engine's loops are counted."""
    step = adam._step

    def counted_step(*args: Any) -> None:
        traffic.bytes += adam_bytes(*args)
        step(*args)

    with ExitStack() as stack:
        for module in (bound, networks):
            stack.enter_context(patch.object(module, "kernels", Watched(module.kernels, traffic)))
        stack.enter_context(patch.object(adam, "_step", counted_step))
        yield


def loop_bytes(name: str, args: tuple[Any, ...], out: Any) -> int:
    """Bytes that a compiled loop reads and writes."""
    moved = sum(leaf.nbytes for leaf in tree_leaves((args, out)) if isinstance(leaf, np.ndarray))
    if name in ROWS_READ:
        matrix, rows = (args[place] for place in ROWS_READ[name])
        moved -= matrix.nbytes - len(np.unique(rows)) * matrix[0].nbytes
    if name in IN_PLACE:
        moved += args[IN_PLACE[name]].nbytes
    return int(moved)


def adam_bytes(weight: Array, first: Array, second: Array, skipped: Array, resting: Array, *rest: Array) -> int:
    """Bytes of a step of Adam: the gradient is read; rows that do not rest and their moments are read and written."""
    g, rows = rest[:2]
    moving = np.count_nonzero(~resting) + np.count_nonzero(resting[rows])
    return int(g.nbytes + moving * 2 * sum(matrix[0].nbytes for matrix in (weight, first, second)))


# -- waiting ----------------------------------------------------------------------------------------------------


def synchronisations() -> dict[str, int]:
    """How often a real and a rehearsed step of CURL wait for a device that is not the CPU, at most.

    The device is the one of the tests, which does on the CPU what it is told, and tells what crosses between the two.
    torch has to know it before the first gradient of a process: so a process of its own counts.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    counted = subprocess.run([sys.executable, __file__], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, int] = json.loads(counted.stdout)
    return found


def count_synchronisations(steps: int = 6) -> dict[str, int]:
    """The count, in this process."""
    elsewhere = import_module("elsewhere")
    learner = learner_on(elsewhere.ELSEWHERE)
    found = {"real": 0, "rehearsed": 0}
    x = torch.rand(20, 6, generator=named_generator(0, "x")).round()
    for _ in range(steps):
        kind = "rehearsed" if learner.rehearsal_due else "real"
        with elsewhere.Traffic() as traffic:
            learner.rehearse() if learner.rehearsal_due else learner.observe(x)
        found[kind] = max(found[kind], len(traffic.waits))
    return found


def learner_on(device: torch.device) -> Learner:
    """A small learner with all that the paper's has, whose samples are poorly explained but too few for a birth."""
    rng = Rng.from_seed(0)
    model = MixtureVAE.from_config(ModelConfig(n_z=2, encoder=(8,), decoder=(7,), K=3), 6, rng.init)
    growth = Threshold(c_new=-1.0, n_new=1000, burn_in=0)
    config = LearnerConfig(growth=growth, memory=Snapshot(snapshots=2, labelled=False))
    return Learner(model.to(device), config, rng)


if __name__ == "__main__":
    print(json.dumps(count_synchronisations()))
