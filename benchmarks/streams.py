"""What CURL finds with its defaults, beside others that are told more, on many streams and on data at rest.

    OMP_NUM_THREADS=1 python benchmarks/streams.py --seeds 5 --jobs 2

Writes benchmarks/streams.json, row by row as they come, and docs/streams.md from it. Rows of the same code are not
measured again: for CURL that is everything in src/curlicue, for the others their version and the files beside this one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from threadpoolctl import threadpool_limits

from curlicue.records.environment import environment
from curlicue.records.files import Json, alone_in, write_atomically
from stream_kinds import KINDS, Kind, has_mnist, mnist_kinds
from stream_scores import scores
from stream_systems import SYSTEMS, code, has_river, learnt
from stream_table import page

HERE = Path(__file__).parent
OUT, TABLE = HERE / "streams.json", HERE.parent / "docs" / "streams.md"
NO_RIVER = "river is not installed, so DBSTREAM and STREAMKMeans are left out. Install it: pip install river"
NO_MNIST = "MNIST is not on this machine, so its streams are left out. Fetch it: curlicue data mnist"
Say = Callable[[str], object]


@dataclass(frozen=True)
class Job:
    """A row to measure."""

    stream: str
    system: str
    seed: int
    code: str  # of the system, as `stream_systems.code` tells it
    commit: str | None
    modified: bool | None  # whether tracked files differed from the commit
    scale: float = 1.0  # of MNIST's streams

    def is_place_of(self, row: Json) -> bool:
        """Whether a row is of this stream, system and seed, of whatever code."""
        return all(row[name] == getattr(self, name) for name in ("stream", "system", "seed"))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Let systems learn streams, and make a table of what they find."""

    seeds: int = 5  # how many, from 0; of data and systems alike
    only: tuple[str, ...] = ()  # names of streams; without any, all
    systems: tuple[str, ...] = ()  # names of systems; without any, all
    out: Path = OUT  # the JSON file of all rows
    table: Path = TABLE  # the page in Markdown
    jobs: int = 1  # processes at a time, each with one thread
    mnist: bool = False  # with the streams of MNIST
    scale: float = 0.1  # of the batches of MNIST's streams: 1,000 a digit, or a single pass
    fresh: bool = False  # measure anew what has rows already
    show: bool = False  # only make the table


def main(options: Options) -> None:
    """Measure what has not been measured, and write the page."""
    say = Console().print
    if options.show and not options.out.exists():
        raise SystemExit(f"There is no {options.out}. Measure first, without --show.")
    if not options.show:
        kinds = chosen("stream", options.only, KINDS | with_mnist(options.mnist, options.scale, say))
        systems = chosen("system", options.systems, with_river(say))
        wanted = wanted_jobs(options.seeds, kinds, systems, options.scale)
        run(left(wanted, options.out, options.fresh), options.out, options.jobs, say)
    write_atomically(options.table, page(read(options.out)).encode())
    say(f"{options.table} is written, from {options.out}.")


# -- what there is to do ----------------------------------------------------------------------------------------------


def with_mnist(wanted: bool, scale: float, say: Say) -> dict[str, Kind]:
    """The streams of MNIST, if they are wanted and can be had."""
    if wanted and not has_mnist():
        say(NO_MNIST)
    return mnist_kinds(scale) if wanted and has_mnist() else {}


def with_river(say: Say) -> list[str]:
    """The systems, those of river only where it is installed."""
    if has_river():
        return [*SYSTEMS]
    say(NO_RIVER)
    return [name for name, system in SYSTEMS.items() if system.package != "river"]


def chosen(what: str, names: Sequence[str], there: Iterable[str]) -> list[str]:
    """Those of `there` that were asked for; all if none was."""
    there = [*there]
    if unknown := set(names) - {*there, *(name.split("@")[0] for name in there)}:
        raise SystemExit(f"There is no {what} {', '.join(sorted(unknown))}. Choose from: {', '.join(there)}.")
    return [name for name in there if not names or name in names or name.split("@")[0] in names]


def wanted_jobs(seeds: int, streams: Iterable[str], systems: Sequence[str], scale: float) -> list[Job]:
    """Every stream, system and seed, one seed of everything before the next."""
    where, streams = environment(1), [*streams]
    places = [(stream, system, seed) for seed in range(seeds) for stream in streams for system in systems]
    return [Job(*place, code(place[1]), where["commit"], where["modified"], scale) for place in places]


def left(jobs: Sequence[Job], out: Path, fresh: bool) -> list[Job]:
    """Jobs without a row. Rows of other code leave the file, lest a mean mix codes; if `fresh`, all rows of these."""
    codes = {(job.stream, job.system): "" if fresh else job.code for job in jobs}
    with alone_in(out.parent):
        report = read(out)
        rows = [row for row in report["rows"] if codes.get((row["stream"], row["system"]), row["code"]) == row["code"]]
        if len(rows) < len(report["rows"]):
            write(out, report | {"rows": rows})
    return [job for job in jobs if not any(job.is_place_of(row) for row in rows)]


# -- doing it ---------------------------------------------------------------------------------------------------------


def run(jobs: Sequence[Job], out: Path, processes: int, say: Say) -> None:
    """Measure rows and write each when it is there."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("", total=len(jobs))
        for job, row in measured(jobs, processes):
            keep(job, row, out)
            progress.update(task, advance=1, description=f"{job.stream}, {job.system}, seed {job.seed}")
            if "error" in row:
                say(f"{job.system} failed on {job.stream}, seed {job.seed}. {row['error']}")


def measured(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Json]]:
    """Jobs and their rows, as they are done; what was not begun when something went wrong is not done."""
    if processes == 1:
        one_thread()
        yield from ((job, measure(job)) for job in jobs)
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # before the libraries of a new process start
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=one_thread)
    try:
        waiting = {pool.submit(measure, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def one_thread() -> None:
    """This process computes with one thread: others have the rest."""
    threadpool_limits(1)
    torch.set_num_threads(1)


def measure(job: Job) -> Json:
    """A row; if the system fails, this is the result."""
    stream = {**KINDS, **mnist_kinds(job.scale)}[job.stream](job.seed)
    place = asdict(job) | {
        "told": stream.told,
        "true_K": stream.K,
        "changes": len(stream.changes),
        "window": stream.window,
    }
    try:
        return place | scores(stream, learnt(stream, job.system, job.seed))
    except Exception as error:
        return place | {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


# -- the file ---------------------------------------------------------------------------------------------------------


def read(out: Path) -> Json:
    """All rows measured so far, and where."""
    empty: Json = {"environment": {}, "rows": []}
    return empty | json.loads(out.read_text()) if out.exists() else empty


def keep(job: Job, row: Json, out: Path) -> None:
    """Put a row into the file, in the place of an older one; other processes may do so too."""
    where = environment(1)
    packages = {system.package for name, system in SYSTEMS.items() if system.package != "river" or has_river()}
    where["versions"] |= {package: version(package) for package in sorted(packages)}
    with alone_in(out.parent):
        others = [each for each in read(out)["rows"] if not job.is_place_of(each)]
        rows = sorted([*others, row], key=lambda each: (each["stream"], each["system"], each["seed"]))
        write(out, {"environment": where, "rows": rows})


def write(out: Path, report: Json) -> None:
    """Replace the file at once."""
    write_atomically(out, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    try:
        main(tyro.cli(Options))
    except KeyboardInterrupt:
        raise SystemExit("Stopped. Rows that were done are kept, and the same command goes on.") from None
