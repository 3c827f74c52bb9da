"""What readers may rely on in the JSON of run directories and result files, checked where a file is read.

Each class declares the fields that readers use of one kind of object; further fields are free. A number that was not
finite when it was written is null.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from curlicue.config.codec import from_json, required_fields
from curlicue.config.scenario import Scenario
from curlicue.errors import ConfigError, RunError
from curlicue.records.directory import RunDirectory
from curlicue.records.files import Json

EXACT = 2**53  # JSON's readers, such as a browser, know smaller whole numbers exactly
LARGEST = 1e38  # about the largest number of float32, from which all others come


@dataclass(frozen=True, kw_only=True)
class Settings:
    """config.json of a run of any system."""

    steps: int
    scenario: Scenario
    seed: int

    def __post_init__(self) -> None:
        _expect(1 <= self.steps < EXACT, "steps", "an int in the range [1, 2⁵³)", self.steps)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The base of all that holds counts and measurements."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int):
                _expect(0 <= value < EXACT, name, "an int in the range [0, 2⁵³)", value)
            if isinstance(value, float):
                _expect(abs(value) <= LARGEST, name, "a finite number", value)


@dataclass(frozen=True, kw_only=True)
class Machine(Contents):
    """Where a run takes place."""

    commit: str | None = None
    threads: int | None = None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Move(Machine):
    """Where a run went on, and from which step on."""

    t: int


@dataclass(frozen=True, kw_only=True)
class Environment(Machine):
    """environment.json."""

    resumed: tuple[Move, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Data(Contents):
    """data.json."""

    shape: tuple[int, ...]  # of a sample
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _expect(bool(self.shape) and min(self.shape) >= 1, "shape", "sizes of at least 1", list(self.shape))


@dataclass(frozen=True, kw_only=True)
class Timing(Contents):
    """timing.json."""

    minutes: float
    steps_per_second: float


@dataclass(frozen=True, kw_only=True)
class Moment(Contents):
    """Anything that happens after t steps."""

    t: int


@dataclass(frozen=True, kw_only=True)
class Event(Moment):
    """A line of events.jsonl."""

    event: str
    K: int = 1


@dataclass(frozen=True, kw_only=True)
class Birth(Event):
    """The line of a ComponentBorn."""

    component: int
    parent: int
    bound_before: float | None = None
    bound_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Means(Contents):
    """Means over real steps."""

    bound: float | None
    q_y: list[Any]  # [K]

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_numbers(self.q_y, "q_y")


@dataclass(frozen=True, kw_only=True)
class Steps(Event):
    """The line of StepsTaken."""

    n: int
    real: Means = field(default_factory=lambda: Means(bound=None, q_y=[]))


@dataclass(frozen=True, kw_only=True)
class Scores(Contents):
    """Scores of a system; which ones there are depends on it."""

    n_used: int | None = None
    bound: float | None = None
    cluster_accuracy: float | None = None
    hungarian_accuracy: float | None = None
    nmi: float | None = None
    ari: float | None = None
    incremental_class: float | None = None
    incremental_task: float | None = None
    knn_error: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_numbers(self.knn_error.values(), "knn_error")


@dataclass(frozen=True, kw_only=True)
class Metrics(Scores):
    """A line of metrics.jsonl."""

    t: int
    K: int
    class_accuracy: list[Any] = field(default_factory=list)  # [C], null for a class without test samples

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_numbers([share for share in self.class_accuracy if share is not None], "class_accuracy")


@dataclass(frozen=True, kw_only=True)
class Result(Scores):
    """result.json."""

    K: int = 1
    steps: int = 0
    classes: tuple[str, ...] = ()
    confusion: list[Any] = field(default_factory=list)  # [C, K]

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_table(self.confusion, "confusion")
        fits = len(self.confusion) in (0, len(self.classes))
        _expect(fits, "confusion", f"of {len(self.classes)} classes", len(self.confusion))
        for count in (count for row in self.confusion for count in row):
            _expect(type(count) is int and 0 <= count < EXACT, "confusion", "made of counts", count)


@dataclass(frozen=True, kw_only=True)
class Posterior(Contents):
    """How much of the stream each component explained, in a result file."""

    t: tuple[int, ...] = ()
    q_y: list[Any] = field(default_factory=list)  # [T, K]

    def __post_init__(self) -> None:
        _expect_table(self.q_y, "q_y")
        _expect(len(self.q_y) == len(self.t), "q_y", f"of {len(self.t)} steps", len(self.q_y))


@dataclass(frozen=True, kw_only=True)
class ResultFile(Contents):
    """A result file: `summary` of a run, or the errors of what has not learnt."""

    result: Result
    environment: Environment
    births: tuple[Moment, ...] = ()
    metrics: tuple[Metrics, ...] = ()
    posterior: Posterior = field(default_factory=Posterior)


# -- reading ----------------------------------------------------------------------------------------------------------

EVENTS = {"ComponentBorn": Birth, "StepsTaken": Steps}


def damaged(path: Path, why: object) -> RunError:
    """The error about a file of a run directory that holds what no run writes."""
    return RunError(f"{path} is damaged ({why}). Start the run anew in another directory.")


def read(directory: RunDirectory, name: str, kind: type, *needed: str) -> Json:
    """`name`.json, which has what `kind` declares, and of the fields that may be absent those that are `needed`."""
    value = directory.settings() if name == "config" else directory.read(name)
    return _checked(kind, value, directory.path / f"{name}.json", needed)


def events(directory: RunDirectory) -> list[Json]:
    """The lines of events.jsonl, whose components are born one after the other."""
    path = directory.path / "events.jsonl"
    found = [_checked(EVENTS.get(str(line.get("event")), Event), line, path) for line in directory.lines("events")]
    born = [line["component"] for line in found if line["event"] == "ComponentBorn"]
    for before, after in pairwise(born):
        if after != before + 1:
            raise damaged(path, f"after component {before} comes component {after}")
    return found


def metrics(directory: RunDirectory, *needed: str) -> list[Json]:
    """The lines of metrics.jsonl, which tell of equally many classes."""
    path = directory.path / "metrics.jsonl"
    found = [_checked(Metrics, line, path, needed) for line in directory.lines("metrics")]
    told = {len(line["class_accuracy"]) for line in found if "class_accuracy" in line}
    if len(told) > 1:
        raise damaged(path, f"its lines tell of {' and '.join(map(str, sorted(told)))} classes")
    return found


def check(kind: type, value: Json, where: str, needed: Sequence[str] = ()) -> None:
    """ConfigError unless an object has what `kind` declares, and a value for each field that is `needed`."""
    missing = [name for name in required_fields(kind) if name not in value]
    missing += [name for name in needed if value.get(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is missing")
    from_json(kind, _declared(kind, value), where)


def _checked(kind: type, value: Json, path: Path, needed: Sequence[str] = ()) -> Json:
    try:
        check(kind, value, path.stem, needed)
    except ConfigError as error:
        raise damaged(path, error) from error
    return value


_hints: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)


def _declared(hint: Any, value: Any) -> Any:
    """The part of a JSON value that a type declares."""
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return {name: _declared(inner, value[name]) for name, inner in _hints(hint).items() if name in value}
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return [_declared(typing.get_args(hint)[0], each) for each in value]
    return value


def _expect(condition: bool, name: str, what: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{name} must be {what}. Got {value!r} instead.")


def _expect_numbers(values: Iterable[Any], name: str) -> None:
    """Long lists are looked at here: `from_json` takes its time for each number."""
    for value in values:
        _expect(type(value) in (int, float) and abs(value) < EXACT, name, "made of finite numbers", value)


def _expect_table(rows: list[Any], name: str) -> None:
    """Rows of numbers, of one length."""
    for row in rows:
        _expect(isinstance(row, list) and len(row) == len(rows[0]), name, "made of rows of one length", row)
        _expect_numbers(row, name)
