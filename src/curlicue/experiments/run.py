"""One run: settings and a data set → a run directory, resumable at any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Generator

from curlicue.config.scenario import Sequential
from curlicue.errors import ConfigError, RunError
from curlicue.evaluate.metrics import forgetting
from curlicue.evaluate.scores import Classifies, final_scores, labelled_accuracy, score
from curlicue.evaluate.view import view
from curlicue.experiments.settings import RunConfig
from curlicue.learn.checkpoint import load_checkpoint, save_checkpoint
from curlicue.learn.events import BirthRefused, ComponentBorn, Event, SnapshotTaken, StepTaken
from curlicue.records import contents
from curlicue.records.directory import LOGS, RunDirectory
from curlicue.records.environment import latest
from curlicue.records.files import Json
from curlicue.records.state import Fields, State
from curlicue.rng import Rng, named_generator
from curlicue.streams.schedule import Schedule, n_tasks, seen
from curlicue.streams.sources import Source, Split
from curlicue.systems.protocol import System

STEPS_PER_LINE = 100  # steps are logged in means over so many
DIGITS = 4  # of the share that each component explains
POSTERIOR_POINTS = 200  # of the shares over time in a result file
VIEWS, MOST_VIEWS = 10, 100  # of the model, over a run: at least, and with a class for each at most
SHOWN = 1000  # test samples in them
WORTH_SHARING = 1_000_000  # weights of a model from which on several threads are faster than one
SUMMED_UP = ("K", "cluster_accuracy", "knn_error", "confusion", "classes")  # what every final result has
TERMS = ("bound", "log_p_x", "kl_z", "kl_y")
CPU = torch.device("cpu")
EVALUATION_TAU = 1.0  # over time, the test bound is the sparse estimate; in the result it is exact


@dataclass(frozen=True)
class Evaluated:
    """A line of metrics.jsonl."""

    t: int
    scores: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """result.json."""

    t: int
    result: dict[str, Any]


class Kept:
    """What a checkpoint of a run keeps: the system, and where the stream is."""

    def __init__(self, system: System, stream: Generator) -> None:
        self.system, self.stream = system, stream

    def state(self) -> State:
        """The state of the system, and of the generator that draws its batches."""
        return {"system": self.system.state(), "stream": self.stream.get_state()}

    def restore(self, fields: Fields) -> None:
        """Go on from `state`."""
        stream = fields.tensor("stream", tuple(self.stream.get_state().shape), torch.uint8)
        self.system.restore(fields.state("system"))
        self.stream.set_state(stream)


class Run:
    """A system on a stream, everything it does written down."""

    def __init__(self, config: RunConfig, source: Source, directory: RunDirectory, device: torch.device = CPU) -> None:
        _check_range(config, source)
        self.config, self.source, self.directory = config.resolved(source.n_classes), source, directory
        rng = Rng.from_seed(config.seed)
        self.system = self.config.system.start(source.shape, rng, device)
        self.schedule = Schedule(source.train, config.scenario, config.steps, config.batch_size, rng.data)
        self.kept = Kept(self.system, rng.data)
        self.pending: list[dict[str, Any]] = []  # steps not yet in a line
        self.seconds = 0.0  # spent before the last start
        self.started = time.monotonic()

    def resume(self) -> None:
        """Go on from the checkpoint; without one, from the beginning."""
        lengths = dict.fromkeys(LOGS, 0)
        if self.directory.checkpoint.is_file():
            extra = load_checkpoint(self.directory.checkpoint, self.kept)
            if extra.keys() != self._extra({}).keys():
                remedy = "Put back the one that the run wrote, or start anew in another directory."
                raise RunError(f"{self.directory.checkpoint} was written by something else than a run. {remedy}")
            self.pending, self.seconds, lengths = extra["pending"], extra["seconds"], extra["lengths"]
        self.directory.rewind(lengths, self.system.K, self.system.t)

    def record_move(self, now: Json) -> list[str]:
        """Write down from which step on the environment is `now`, if it is another than so far and steps are left; what
        differs.
        """
        t, began = self.system.t, contents.read(self.directory, "environment", contents.Environment)
        if t >= self.config.steps:
            return []
        moves = [move for move in began.get("resumed", []) if move["t"] < t]  # what came later was lost
        so_far = latest({**began, "resumed": moves})
        changed = {name: value for name, value in now.items() if value != so_far.get(name)}
        moves += [{"t": t, **changed}] if changed else []
        if moves != began.get("resumed", []):
            self.directory.write("environment", {**began, "resumed": moves})
        return list(changed)

    def events(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Event | Evaluated | Finished]:
        """Learn to the end, or until `stop()`; either way nothing is lost."""
        config, system = self.config, self.system
        if system.t >= config.steps and self.directory.has("timing"):  # written last
            yield Finished(system.t, self.directory.read("result"))
            return
        self._describe()
        steps = system.learn(self._stream())
        while system.t < config.steps and not stop():
            for event in next(steps):
                self._record(event)
                yield event
            if system.t % config.evaluate_every == 0 or system.t == config.steps:
                yield self._evaluate()
            if self._is_time_to_look():
                self._look()
            if system.t % config.checkpoint_every == 0 and system.t < config.steps:
                self.save()
        self.save()
        if system.t >= config.steps:
            yield self._finish()

    def _stream(self) -> Iterator[Any]:
        """The batch of each step; with its labels only for systems that learn from labels."""
        batch = self.schedule.labelled_batch if self.config.system.labelled else self.schedule.batch
        while True:
            yield batch(self.system.t)

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self.directory.checkpoint, self.kept, self._extra(self.directory.sync()))

    def _extra(self, lengths: dict[str, int]) -> dict[str, Any]:
        return {"pending": self.pending, "seconds": self._elapsed(), "lengths": lengths}

    def _record(self, event: Event) -> None:
        match event:
            case StepTaken():
                if not math.isfinite(event.bound):
                    raise RunError(
                        f"The bound of step {event.t} is {event.bound}: learning has diverged. "
                        "Start anew with a lower --learning-rate."
                    )
                self.pending.append(dict(vars(event)))
                if len(self.pending) == STEPS_PER_LINE or event.t + 1 == self.config.steps:
                    self.directory.append("events", _steps_line(self.pending))
                    self.pending = []
            case ComponentBorn() | BirthRefused():
                if isinstance(event, ComponentBorn):
                    self.directory.write_birth(event.component, event.d_new.numpy())
                line = {k: v for k, v in vars(event).items() if k != "d_new"}
                self.directory.append("events", {"event": type(event).__name__, **line, "n": len(event.d_new)})
            case SnapshotTaken():
                self.directory.append("events", {"event": "SnapshotTaken", **asdict(event)})

    def _evaluate(self) -> Evaluated:
        """Scores of this moment; the draws depend on seed and step alone, so measuring changes nothing."""
        t = self.system.t
        rng = named_generator(self.config.seed, f"evaluation/{t}")
        scores = score(self.system, self.source.test, self.source.n_classes, rng, EVALUATION_TAU).to_json()
        scores = {"t": t, **scores, **self._labelled_scores(), **self.system.figures()}
        self.directory.append("metrics", scores)
        return Evaluated(t, scores)

    def _describe(self) -> None:
        """What a reader of the run directory has to know of the data set, and the samples that views show."""
        source, shown = self.source, self._shown()
        self.directory.write_view("rows", {"x": shown.x.numpy(), "labels": shown.labels.numpy()})
        known = {"name": source.name, "classes": list(source.classes), "shape": list(source.shape)}
        self.directory.write("data", known)

    def _shown(self) -> Split:
        """Test samples, the same in all runs on a data set."""
        test = self.source.test
        rows = torch.randperm(len(test.x), generator=named_generator(0, "shown"))[:SHOWN]
        return Split(test.x[rows], test.labels[rows])

    def _is_time_to_look(self) -> bool:
        """After each period of the stream; where these are few, or too many, at other equal distances."""
        t, steps = self.system.t, self.config.steps
        tasks = n_tasks(self.config.scenario, self.source.n_classes)
        views = VIEWS if tasks > MOST_VIEWS else -(-VIEWS // tasks) * tasks
        return t * views // steps > (t - 1) * views // steps

    def _look(self) -> None:
        """Write down what the model looks like; like measuring, it changes nothing."""
        t = self.system.t
        seen = view(self.system, self._shown().x, named_generator(self.config.seed, f"view/{t}"))
        arrays = {name: tensor.numpy() for name, tensor in vars(seen).items() if tensor is not None}
        self.directory.write_view(t, arrays)

    def _labelled_scores(self) -> dict[str, float]:
        if not isinstance(self.system, Classifies) or not isinstance(self.config.scenario, Sequential):
            return {}
        n, C = self.config.scenario.at_once, self.source.n_classes
        tasks = [range(first, min(first + n, C)) for first in range(0, C, n)]
        return labelled_accuracy(self.system, self.source.test, C, tasks)

    def _finish(self) -> Finished:
        rng = named_generator(self.config.seed, "evaluation/final")
        scores = final_scores(self.system, self.source, rng, self.config.sampled_knn)
        result = {"steps": self.system.t, **scores, **self._labelled_scores()}
        self.directory.write("result", result)
        seconds = self._elapsed()
        timing = {"minutes": seconds / 60, "steps_per_second": self.system.t / seconds}
        self.directory.write("timing", timing)
        return Finished(self.system.t, result)

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started


def _check_range(config: RunConfig, source: Source) -> None:
    low = min(float(split.x.min()) for split in (source.train, source.test))
    high = max(float(split.x.max()) for split in (source.train, source.test))
    config.system.check_range(low, high, source.name)


def _steps_line(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over consecutive steps, real and rehearsed apart."""
    line: dict[str, Any] = {"event": "StepsTaken", "t": steps[-1]["t"], "K": steps[-1]["K"], "n": len(steps)}
    line["n_poor"] = sum(step["n_poor"] for step in steps)
    for kind, rehearsed in (("real", False), ("rehearsed", True)):
        chosen = [step for step in steps if step["rehearsed"] is rehearsed]
        if chosen:
            names = [name for name in TERMS if chosen[0][name] is not None]
            line[kind] = {name: sum(step[name] for step in chosen) / len(chosen) for name in names}
            by_component = zip_longest(*(step["q_y"] for step in chosen), fillvalue=0.0)  # some may be born in between
            line[kind]["q_y"] = [round(sum(shares) / len(chosen), DIGITS) for shares in by_component]
    return line


def summary(directory: RunDirectory) -> dict[str, Any]:
    """A finished run in one small JSON object: settings, result, scores and births over time, where and how long."""
    events, metrics = contents.events(directory), contents.metrics(directory, "cluster_accuracy", "class_accuracy")
    result = contents.read(directory, "result", contents.Result, *SUMMED_UP)
    if not result["confusion"] or {len(line["class_accuracy"]) for line in metrics} != {len(result["classes"])}:
        raise contents.damaged(directory.path / "metrics.jsonl", "its lines do not tell of each class of result.json")
    births = [line for line in events if line["event"] == "ComponentBorn"]
    snapshots = [line["t"] for line in events if line["event"] == "SnapshotTaken"]
    names = ("t", "K", "bound", "cluster_accuracy", "hungarian_accuracy", "nmi", "ari", "class_accuracy")
    supervised = ("incremental_class", "incremental_task")
    return {
        "config": contents.read(directory, "config", contents.Settings),
        "result": result,
        "timing": contents.read(directory, "timing", contents.Timing),
        "environment": contents.read(directory, "environment", contents.Environment),
        "births": births,
        "snapshots": snapshots,
        "metrics": [{name: line[name] for name in (*names, *supervised) if name in line} for line in metrics],
        "posterior": _posterior([line for line in events if line["event"] == "StepsTaken" and "real" in line]),
    }


def forgotten(config: RunConfig, metrics: Sequence[Json]) -> float:
    """What classes have lost on average since their best moment; before a class was shown, its accuracy is chance."""
    over_time = torch.from_numpy(np.array([line["class_accuracy"] for line in metrics], dtype=np.float64))  # None: nan
    C = over_time.shape[1]
    shown = torch.stack([seen(config.scenario, line["t"], config.steps, C) for line in metrics])  # [T, C]
    return float(forgetting(over_time.where(shown, torch.nan)).nanmean())


def _posterior(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Which share of the stream each component explains, in at most so many means over time."""
    K = max((len(line["real"]["q_y"]) for line in lines), default=0)
    shares = np.zeros((len(lines), K))
    for place, line in enumerate(lines):
        shares[place, : len(line["real"]["q_y"])] = line["real"]["q_y"]
    parts = np.array_split(np.arange(len(lines)), min(len(lines), POSTERIOR_POINTS)) if lines else []
    return {
        "t": [lines[part[-1]]["t"] + 1 for part in parts],
        "q_y": [shares[part].mean(0).round(3).tolist() for part in parts],
    }


def use_threads(threads: int | None, n_weights: int | None = None) -> int:
    """Set this process up for one run: so many threads, and no time lost on numbers too small to matter.

    Not told how many, a small model gets one: threads that wait for each other cost it more than they save, and on a
    busy machine many times more.
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"The number of threads must be an int in the range [1, inf). Got {threads} instead.")
    torch.set_flush_denormal(True)
    if threads is None and n_weights is not None and n_weights < WORTH_SHARING:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
