"""What a training step costs: exact against sparse, many components against one, and its bare matrix products.

All are measured in one process, in turns: the machine's moods hit each alike, and cancel in the ratios.
"""

from __future__ import annotations

import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from curlicue.config.scenario import Sequential
from curlicue.experiments.run import use_threads
from curlicue.learn.learner import Learner
from curlicue.model.elbo import EXACT
from curlicue.records.environment import environment
from curlicue.records.files import write_atomically
from curlicue.rng import named_generator
from curlicue.streams.schedule import Schedule
from curlicue.streams.sources import Split
from models import SMALL, B, by_autograd, exact, of_run, plain, q_y_and_pairs, small_data, trained, training_data
from products import compute, operations_ratio, step_products
from traffic import bytes_moved, synchronisations

T = TypeVar("T")
Action = Callable[[Sequence[Tensor]], float]
"""Does something with batches; returns the seconds that a step of it took."""
PROCESS = Path("/proc/self")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many steps."""

    training: int = 5000  # steps over all ten classes
    rounds: int = 25
    sparse: int = 8  # steps in a turn
    exact: int = 2  # steps in a turn
    small: int = 80  # steps of the small network in a turn


QUICK = Plan(training=200, rounds=3, sparse=2, exact=1, small=4)


# -- measuring --------------------------------------------------------------------------------------------------


def seconds(action: Callable[[T], object], inputs: Sequence[T]) -> float:
    """Mean time of the action; it is done once before, to warm the caches."""
    action(inputs[0])
    start = time.perf_counter()
    for each in inputs:
        action(each)
    return (time.perf_counter() - start) / len(inputs)


def take_turns(actions: dict[str, Action], stream: Schedule, plan: Plan) -> dict[str, list[float]]:
    """Seconds of a step of each action, in each round.

    Cases go on learning from the stream, all from the same batches: q(y|x) stays as peaked as it is.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in track(range(plan.rounds), "Measuring"):
        batches = [stream.batch(plan.training) for _ in range(plan.sparse)]
        for name, action in actions.items():
            times[name].append(action(batches))
    return times


def last_class(split: Split, plan: Plan) -> Schedule:
    """A stream that has come to its last class."""
    return Schedule(split, Sequential(), plan.training, B, named_generator(0, "batches"))


def stepping(learner: Learner, plan: Plan) -> Action:
    """Steps of the learner."""
    steps = plan.exact if learner.config.tau == EXACT else plan.sparse
    return lambda batches: seconds(learner.observe, batches[:steps])


def multiplying(learner: Learner, dense: bool) -> Action:
    """The products of the learner's step, as often as there are batches."""
    return lambda batches: seconds(compute, [step_products(learner, batches[0], dense)] * len(batches))


def peak_bytes(learner: Learner, x: Tensor) -> int | None:
    """The most memory that a step takes at any moment, whoever asks for it, beyond what is held between steps.

    Where Linux tells; None elsewhere.
    """
    if not PROCESS.is_dir():
        return None
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, to be counted when it is taken again
    (PROCESS / "clear_refs").write_text("5")  # the highest so far is what is held now
    before = memory("VmRSS")
    learner.observe(x)
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """Bytes of this process, by the name that Linux has for them."""
    lines = (PROCESS / "status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


# -- telling ----------------------------------------------------------------------------------------------------

RATIOS = {
    "exact_over_sparse_k25": ("exact_k25", "sparse_k25"),
    "plain_exact_over_sparse_k25": ("plain_exact_k25", "sparse_k25"),
    "sparse_k100_over_k1": ("sparse_k100", "sparse_k1"),
    "gemm_fraction": ("gemm", "sparse_k25"),
    "dense_gemm_fraction": ("dense_gemm", "sparse_k25"),
    "autograd_over_cpu": ("autograd_k25", "sparse_k25"),
    "small_autograd_over_cpu": ("small_autograd_k10", "small_k10"),
}
OPERATIONS = {  # what exact_over_sparse_k25 would be if products were all: of the active units, of whole layers
    "exact_over_sparse_operations": False,
    "exact_over_sparse_dense_operations": True,
}


def with_spread(name: str, values: Sequence[float]) -> dict[str, Any]:
    """The median over the rounds, and beside it the quartiles."""
    low, median, high = (round(q, 4) for q in statistics.quantiles(values, n=4, method="inclusive"))
    return {name: median, f"{name}_quartiles": [low, high]}


def described(learner: Learner, x: Tensor, times: list[float]) -> dict[str, Any]:
    """A case: what a step takes, how peaked q(y|x) is, and how many pairs it therefore visits."""
    q_y, pairs = q_y_and_pairs(learner, x)
    return with_spread("ms", [1e3 * t for t in times]) | {
        "peak_bytes": peak_bytes(learner, x[:B]),
        "bytes_moved": bytes_moved(learner, x[:B]),
        "pairs_per_sample": round(len(pairs.rows) / len(x), 3),
        "mean_max_q_y": round(q_y.max(1).values.mean().item(), 3),
    }


def all_described(
    cases: dict[str, Learner], batches: Sequence[Tensor], times: dict[str, list[float]]
) -> dict[str, dict[str, Any]]:
    """All cases, on the same batches."""
    x = torch.cat([*batches])
    return {name: described(learner, x, times[name]) for name, learner in cases.items()}


def ratios(times: dict[str, list[float]]) -> dict[str, Any]:
    """All ratios of what was measured."""
    found: dict[str, Any] = {}
    for name, (of, to) in RATIOS.items():
        if of in times and to in times:
            found |= with_spread(name, [a / b for a, b in zip(times[of], times[to], strict=True)])
    return found


def print_tables(report: dict[str, Any], console: Console) -> None:
    """The report, for people."""
    columns = ("ms a step", "peak MB", "MB moved", "pairs a sample", "mean max q(y|x)")
    cases = Table("case", *columns, title=report["data"])
    for name, case in report["cases"].items():
        megabytes = ((case[key] or math.nan) / 1e6 for key in ("peak_bytes", "bytes_moved"))
        numbers = (case["ms"], *megabytes, case["pairs_per_sample"], case["mean_max_q_y"])
        cases.add_row(name, *(f"{number:.2f}" for number in numbers))
    others = Table("ratio", "median", "quartiles")
    for name in (name for name in RATIOS if name in report):
        others.add_row(name, f"{report[name]:.3f}", "{:.3f} – {:.3f}".format(*report[f"{name}_quartiles"]))
    for name in OPERATIONS:
        others.add_row(name, f"{report[name]:.3f}", "counted")
    for kind, n in report["synchronisations"].items():
        others.add_row(f"synchronisations of a {kind} step", str(n), "counted")
    console.print(cases, others)


# -- the two networks -------------------------------------------------------------------------------------------


def measure_main(split: Split, run: Path | None, plan: Plan) -> dict[str, Any]:
    """Ratios and cases of the MNIST network."""
    if run is None:
        cases = {f"sparse_k{K}": trained(K, split, plan.training) for K in (25, 100, 1)}
    else:
        cases = {"sparse_k25": of_run(run, 25)}
    sparse, all_visited = cases["sparse_k25"], exact(cases["sparse_k25"])
    cases = {"exact_k25": all_visited, "plain_exact_k25": plain(all_visited), **cases}
    actions = {name: stepping(learner, plan) for name, learner in cases.items()}
    actions |= {"gemm": multiplying(sparse, dense=False), "dense_gemm": multiplying(sparse, dense=True)}
    cases["autograd_k25"] = by_autograd(sparse)
    actions["autograd_k25"] = stepping(cases["autograd_k25"], plan)
    stream = last_class(split, plan)
    times = take_turns(actions, stream, plan)
    batches = [stream.batch(plan.training) for _ in range(10)]
    counted = {
        name: round(operations_ratio(all_visited, sparse, batches, dense), 4) for name, dense in OPERATIONS.items()
    }
    return {**ratios(times), **counted, "cases": all_described(cases, batches, times)}


def measure_small(plan: Plan) -> dict[str, Any]:
    """Ratio and cases of a small network."""
    split, plan = small_data(), replace(plan, sparse=plan.small)
    learner = trained(10, split, plan.training, SMALL)
    cases = {"small_k10": learner, "small_autograd_k10": by_autograd(learner)}
    stream = last_class(split, plan)
    times = take_turns({name: stepping(each, plan) for name, each in cases.items()}, stream, plan)
    batches = [stream.batch(plan.training) for _ in range(10)]
    return {**ratios(times), "cases": all_described(cases, batches, times)}


def main(out: Path | None = None, threads: int = 1, run: Path | None = None, quick: bool = False) -> None:
    """Measure a training step of the MNIST network, and of a small one.

    Args:
        out: a JSON file to write
        threads: for torch to use; the runs of all tables have one
        run: a run directory whose model is measured, instead of models trained here
        quick: only try the script out; the numbers mean nothing
    """
    n_threads, plan = use_threads(threads), QUICK if quick else Plan()
    data, split = training_data()
    report, small = measure_main(split, run, plan), measure_small(plan)
    report |= small | {"cases": report["cases"] | small["cases"], "synchronisations": synchronisations()}
    report |= {"data": data, "quick": quick, "batch_size": B, "environment": environment(n_threads)}
    print_tables(report, Console())
    if out is not None:
        write_atomically(out, (json.dumps(report, indent=2) + "\n").encode())


if __name__ == "__main__":
    tyro.cli(main)
