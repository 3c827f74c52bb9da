"""Set-ups and seeds → result files: side by side, gone on with after a cut-off, each once."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from curlicue.config.codec import from_json
from curlicue.errors import CurlicueError, RunError
from curlicue.evaluate.metrics import knn_error
from curlicue.evaluate.scores import NEIGHBOURS, knn_errors
from curlicue.experiments.paper import Experiment, columns
from curlicue.experiments.run import CPU, Run, summary, use_threads
from curlicue.experiments.settings import RunConfig
from curlicue.experiments.setups import SETUPS, RawPixels, Setup, Untrained, seeded
from curlicue.records.contents import ResultFile, check
from curlicue.records.directory import RunDirectory
from curlicue.records.environment import environment
from curlicue.records.files import Json, alone_in, finite, json_object, write_atomically
from curlicue.rng import Rng
from curlicue.streams.sources import Source, load
from curlicue.systems.curl import Curl

ATTEMPTS = 3  # without any progress in between, before a run is given up
POLL = 0.5  # seconds between two looks at the runs
HOLDS = hasattr(signal, "pthread_sigmask")  # not everywhere
KEY = re.compile(r"(.+)-seed(\d+)(?:-scale(\d+(?:\.\d+)?(?:e-\d+)?))?")  # set-up, seed, share of the steps
TAIL = 1 << 17  # bytes; the last line of steps is shorter up to some 8,000 components


@dataclass(frozen=True)
class Job:
    """One run of a set-up."""

    name: str  # of the set-up
    setup: Setup
    seed: int = 0
    scale: float = 1.0  # of the steps

    @classmethod
    def of(cls, name: str, seed: int, scale: float) -> Job:
        """That of a set-up of the paper; where nothing is learnt there are no steps to save."""
        setup = SETUPS[name]
        scale = scale if isinstance(setup, RunConfig) else 1.0
        return cls(name, seeded(setup, seed, scale), seed, scale)

    @classmethod
    def called(cls, key: str) -> Job | None:
        """The one whose files are called so, if any."""
        parts = KEY.fullmatch(key)
        if parts is None or parts[1] not in SETUPS:
            return None
        job = cls.of(parts[1], int(parts[2]), float(parts[3] or 1))
        return job if job.key == key and not (job.seed and isinstance(job.setup, RawPixels)) else None

    @property
    def key(self) -> str:
        """What its files are called."""
        return f"{self.name}-seed{self.seed}" + ("" if self.scale == 1 else f"-scale{self.scale:g}")

    @property
    def steps(self) -> int:
        """How many it takes; none where nothing is learnt."""
        return self.setup.steps if isinstance(self.setup, RunConfig) else 0


@dataclass(frozen=True)
class Places:
    """Where data, runs and results are."""

    runs: Path  # run directories
    results: Path  # result files
    data_dir: Path | None = None


def jobs_of(experiments: Iterable[Experiment], seeds: int, scale: float) -> list[Job]:
    """Every run that they need, each once; what no seed can change only for the first."""
    names = dict.fromkeys(name for experiment in experiments for name in experiment.setups)
    return [
        Job.of(name, seed, scale)
        for seed in range(seeds)
        for name in names
        if seed == 0 or not isinstance(SETUPS[name], RawPixels)
    ]


# -- result files -----------------------------------------------------------------------------------------------------


def read_result(job: Job, results: Path) -> Json | None:
    """What was measured, if it was, with these very settings."""
    path = results / f"{job.key}.json"
    try:
        found = json_object(path.read_text())
        if found.get("config") != setup_json(job.setup):
            return None
        if missing := [name for name in ("result", "timing", "environment") if name not in found]:
            raise ValueError(f"it has no {' and no '.join(missing)}")
        for place in ("timing.minutes", *(f"result.{column.score}" for column in columns(job.name))):
            _expect_number(found, place)
        check(ResultFile, found, "result")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:  # of JSON and of `check`
        raise RunError(f"{path} is damaged ({error}). Delete it; `curlicue reproduce` can measure it again.") from error
    return found


def _expect_number(found: Json, place: str) -> None:
    """ValueError unless there is a number at this place, such as "result.knn_error.10"."""
    value: object = found
    for name in place.split("."):
        if not isinstance(value, dict) or name not in value:
            raise ValueError(f"it has no {name!r}")
        value = value[name]
    if type(value) not in (int, float):
        raise ValueError(f"{place} is {value!r} and no number")


def read_seeds(job: Job, results: Path) -> list[Json]:
    """What was measured with all seeds that there are, by seed."""
    there = (Job.called(path.stem) for path in results.glob(f"{job.name}-seed*.json"))
    seeds = {each.seed: each for each in there if each and (each.name, each.scale) == (job.name, job.scale)}
    found = (read_result(seeds[seed], results) for seed in sorted(seeds))
    return [result for result in found if result is not None]


def setup_json(setup: Setup) -> Json:
    """Settings as a result file has them."""
    match setup:
        case RunConfig():
            return setup.to_json()
        case Untrained():
            return {"untrained": json.loads(json.dumps(asdict(setup)))}
        case RawPixels():
            return {"raw_pixels": asdict(setup)}


# -- one run, in a process of its own ---------------------------------------------------------------------------------


def work(job: Job, places: Places, parent: int) -> None:
    """Do `job`, from where it was cut off, to its result file; stop when asked to, or when `parent` is no more."""
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.append(number))
    if HOLDS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    began = time.monotonic()
    threads = use_threads(1)
    setup = job.setup
    source = load(setup.dataset, places.data_dir)
    match setup:
        case RunConfig():
            run = Run(setup, source, RunDirectory(places.runs / job.key))
            result = _learnt(run, threads, stop=lambda: bool(stopped) or os.getppid() != parent)
        case Untrained() | RawPixels():
            score = {"knn_error": {str(k): error for k, error in _errors(setup, source).items()}}
            minutes = {"minutes": (time.monotonic() - began) / 60}
            result = {"result": score, "timing": minutes, "environment": environment(threads)}
    contents = {**result, "config": setup_json(setup)}
    write_atomically(places.results / f"{job.key}.json", (json.dumps(finite(contents)) + "\n").encode())


def _work(job: Job, places: Places, parent: int, teller: Connection) -> None:
    """The same; what cannot be done is told, for it would come again."""
    try:
        work(job, places, parent)
    except (CurlicueError, OSError) as error:
        teller.send(str(error))


def _learnt(run: Run, threads: int, stop: Callable[[], bool]) -> Json:
    """What comes out of `run`, unless it is stopped before."""
    with alone_in(run.directory.path, wait=False):
        _begin(run, environment(threads))
        for _ in run.events(stop):
            pass
        if run.system.t < run.config.steps:
            raise SystemExit(1)
        return summary(run.directory)


def _begin(run: Run, now: Json) -> None:
    """Where it was, or anew."""
    directory = run.directory
    if not directory.has("config"):
        RunDirectory.create(directory.path, run.config.to_json(), now)
    elif from_json(RunConfig, directory.settings()) != run.config:
        raise RunError(f"{directory.path} is a run with other settings. Move it away, or choose another --runs.")
    else:
        run.resume()
        run.record_move(now)


def _errors(setup: Untrained | RawPixels, source: Source) -> dict[int, float]:
    """k-NN errors of what has not learnt."""
    if isinstance(setup, RawPixels):
        train, test = source.train, source.test
        return knn_error(train.x, train.labels, test.x, test.labels, NEIGHBOURS)
    system = Curl(model=setup.model).start(source.shape, Rng.from_seed(setup.seed), CPU)
    return knn_errors(system, source)


# -- many -------------------------------------------------------------------------------------------------------------


@dataclass
class Standing:
    """How far a job is."""

    job: Job
    state: str = "waiting"  # running, done, failed, stopped
    t: int = 0
    K: int | None = None
    furthest: int = 0  # step ever reached: after a cut-off a run begins at its checkpoint
    attempts: int = 0  # since it last got any further
    error: str = ""  # why it failed
    process: BaseProcess | None = field(default=None, repr=False)
    told: Connection | None = field(default=None, repr=False)  # by the process: an error


def reproduce(
    jobs: Sequence[Job], places: Places, side_by_side: int, stop: Callable[[], bool] = lambda: False
) -> Iterator[Standing]:
    """Do `jobs`; yields what has changed, again and again, until all are done, given up or stopped."""
    standings = [Standing(job) for job in jobs]
    for standing in standings:
        if read_result(standing.job, places.results) is not None:
            standing.state, standing.t = "done", standing.job.steps
            yield standing
    waiting = [standing for standing in standings if standing.state == "waiting"]
    running: list[Standing] = []
    try:
        while (waiting and not stop()) or running:
            while waiting and len(running) < side_by_side and not stop():
                running.append(_started(waiting.pop(0), places))
            if stop():
                _end(running)
            time.sleep(POLL)
            for standing in list(running):
                _look(standing, places)
                assert standing.process is not None
                if not standing.process.is_alive():
                    running.remove(standing)
                    if _judged(standing, places, stopped=stop()):
                        waiting.insert(0, standing)
                yield standing
    finally:
        _end(running)


def _started(standing: Standing, places: Places) -> Standing:
    """A new process is a clean one: what another has set of torch is not inherited."""
    context = multiprocessing.get_context("spawn")
    standing.told, teller = context.Pipe(duplex=False)
    arguments = (standing.job, places, os.getpid(), teller)
    standing.process = context.Process(target=_work, args=arguments, name=standing.job.key)
    with _holding_back(signal.SIGINT):  # as it inherits: until it can save, Ctrl-C waits
        standing.process.start()
    teller.close()
    standing.state, standing.attempts = "running", standing.attempts + 1
    return standing


@contextmanager
def _holding_back(number: signal.Signals) -> Iterator[None]:
    """The signal comes afterwards."""
    if not HOLDS:
        yield
        return
    resource_tracker.ensure_running()  # which, when it starts, lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _look(standing: Standing, places: Places) -> None:
    """Read how far it is from the last whole line of steps."""
    try:
        with (places.runs / standing.job.key / "events.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return
    steps = [line for line in lines if line.startswith('{"event": "StepsTaken"')]
    if steps:
        last = json.loads(steps[-1])
        standing.t, standing.K = last["t"] + 1, last["K"]
        if standing.t > standing.furthest:
            standing.furthest, standing.attempts = standing.t, min(standing.attempts, 1)


def _judged(standing: Standing, places: Places, stopped: bool) -> bool:
    """What the end of its process means; whether to try again."""
    error = _error(standing)
    if read_result(standing.job, places.results) is not None:
        standing.state = "done"
    elif error:
        standing.state, standing.error = "failed", error
    elif stopped:
        standing.state = "stopped"
    elif standing.attempts < ATTEMPTS:
        standing.state = "waiting"
    else:
        standing.state, standing.error = "failed", f"Its process ended {ATTEMPTS} times without getting any further."
    return standing.state == "waiting"


def _error(standing: Standing) -> str:
    """What its process, which has ended, said it cannot do; nothing if it was killed, or did it."""
    assert standing.told is not None
    with standing.told as told:
        try:
            return str(told.recv())
        except EOFError:
            return ""


def _end(running: Iterable[Standing]) -> None:
    """Ask them to stop; each saves first."""
    for standing in running:
        if standing.process is not None and standing.process.is_alive():
            standing.process.terminate()
