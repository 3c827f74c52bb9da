"""What a run directory tells, finished or not; whatever it lacks is None or empty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from curlicue.config.kinds import as_option
from curlicue.records import contents
from curlicue.records.contents import damaged
from curlicue.records.directory import RunDirectory
from curlicue.records.files import Array, Json
from curlicue.report.figures import boundaries

MOST_COMPONENTS = 1_000_000  # that anything can be told of
NUMBERS = "fiub"  # kinds of arrays
MAYBE = {  # files that a run writes at some time
    "result": contents.Result,
    "timing": contents.Timing,
    "data": contents.Data,
    "environment": contents.Environment,
}


@dataclass(frozen=True)
class Life:
    """What is known of one component of a run."""

    component: int
    born: int  # steps that had been taken
    parent: int | None  # None: it was there from the start
    share: float | None  # of the stream that it has explained in all
    label: int | None  # the class of most test samples in it
    purity: float | None  # their share


@dataclass(frozen=True)
class RunData:
    """What the directory of a run holds, read and checked."""

    path: Path
    config: Json
    environment: Json
    data: Json
    events: list[Json]
    metrics: list[Json]
    result: Json | None
    timing: Json | None
    x: Array | None  # [N, D], the test samples that views show
    labels: Array | None  # [N]
    views: Mapping[int, Mapping[str, Array]]  # by step
    d_new: Mapping[int, Array]  # [n, D], by the component born of it

    @property
    def name(self) -> str:
        """The name of the run directory."""
        return self.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.timing is not None  # written last

    @property
    def steps(self) -> int:
        """In all, when it will have finished."""
        return int(self.config["steps"])

    @cached_property
    def t(self) -> int:
        """Steps taken, as far as is known."""
        taken = [line["t"] + (line["event"] == "StepsTaken") for line in self.events[-1:]]
        return max([0, *map(int, taken), *(int(line["t"]) for line in self.metrics[-1:]), *self.views])

    @cached_property
    def births(self) -> list[Json]:
        """The births of the run, in their order."""
        return [line for line in self.events if line["event"] == "ComponentBorn"]

    @cached_property
    def snapshots(self) -> list[int]:
        """The steps at which they were taken."""
        return [line["t"] for line in self.events if line["event"] == "SnapshotTaken"]

    @cached_property
    def real(self) -> list[Json]:
        """The lines of steps in which there are real ones."""
        return [line for line in self.events if line["event"] == "StepsTaken" and "real" in line]

    @cached_property
    def first_K(self) -> int:
        """Components at the start, as the first line with their number tells; before there is one, those asked for."""
        if self.births:
            return int(self.births[0]["component"])
        told = [int(line["K"]) for line in (*self.events, *self.metrics) if "K" in line]
        asked = flat(self.config).get("system.model.K", "")
        return told[0] if told else int(asked) if asked.isdecimal() else 1

    @cached_property
    def K(self) -> int:
        """The number of components so far."""
        return max([self.first_K, *(int(line["component"]) + 1 for line in self.births)])

    @cached_property
    def scores(self) -> Json:
        """The final scores of the run, or the latest ones if it has not finished."""
        return self.result or (self.metrics[-1] if self.metrics else {})

    @cached_property
    def classes(self) -> list[str]:
        """The names of the classes; none if the data have no labels."""
        named = self.data.get("classes") or (self.result or {}).get("classes") or []
        if not named and self.labels is not None and self.labels.size:
            named = range(int(self.labels.max()) + 1)
        return [str(name) for name in named]

    @cached_property
    def changes(self) -> list[float]:
        """Where the stream goes on to its next classes, with the first and the last step."""
        return boundaries(self.config, len(self.classes)) if self.classes else [0, self.steps]

    @cached_property
    def at_once(self) -> int:
        """Classes that the stream shows together."""
        return int(self.config["scenario"].get("at_once", 1))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        known = self.data.get("shape")
        return tuple(known) if known else (() if self.x is None else self.x.shape[1:])

    @cached_property
    def explained(self) -> list[Json]:
        """The lines of real steps that tell which components explain them; not every system does."""
        return [line for line in self.real if len(line["real"]["q_y"])]

    @cached_property
    def shares(self) -> tuple[list[int], Array]:
        """Which share of the stream each component explained: steps [T] and shares [T, K]."""
        shares = np.zeros((len(self.explained), max([self.K, *(len(line["real"]["q_y"]) for line in self.explained)])))
        for row, line in zip(shares, self.explained, strict=True):
            row[: len(line["real"]["q_y"])] = line["real"]["q_y"]
        return [line["t"] + 1 for line in self.explained], shares

    @cached_property
    def usage(self) -> Array | None:
        """The share of each component over the whole stream so far: [K]."""
        weights = [line["n"] / (2 if "rehearsed" in line else 1) for line in self.explained]  # every other step is real
        return np.average(self.shares[1], axis=0, weights=weights) if sum(weights) else None

    @cached_property
    def ranks(self) -> Array:
        """Of each component among all, the most used first: [K]. Colours follow it."""
        usage = np.zeros(self.shares[1].shape[1]) if self.usage is None else self.usage
        return np.argsort(np.argsort(-usage, kind="stable"), kind="stable")

    @cached_property
    def confusion(self) -> Array | None:
        """Test samples of each class in each component, [C, K]: all in the end, those of the last view before."""
        if self.result and self.result.get("confusion"):
            return np.array(self.result["confusion"])
        if self.labels is None or not self.views or not self.classes:
            return None
        y = self.last_view["y"]
        K = len(self.last_view["centres"]) if "centres" in self.last_view else max(self.K, int(y.max(initial=0)) + 1)
        counts = np.zeros((len(self.classes), K), dtype=int)
        np.add.at(counts, (self.labels, y), 1)
        return counts

    @property
    def has_bound(self) -> bool:
        """Whether the system has a bound on log p(x), as far as scores tell; others tell a loss at each step."""
        return not self.metrics or any("bound" in line for line in self.metrics)

    @property
    def generates(self) -> bool:
        """Whether views show samples that the components generate."""
        return bool(self.views) and "generated" in self.last_view

    @property
    def last_view(self) -> Mapping[str, Array]:
        """The newest view of the system."""
        return self.views[max(self.views)]

    @cached_property
    def lives(self) -> list[Life]:
        """The life of each component, by age."""
        born = {line["component"]: line for line in self.births}
        return [self._life(k, born.get(k)) for k in range(self.K)]

    def _life(self, k: int, birth: Json | None) -> Life:
        share = None if self.usage is None else float(self.usage[k])
        label = purity = None
        if self.confusion is not None and k < self.confusion.shape[1] and self.confusion[:, k].any():
            counts = self.confusion[:, k]
            label, purity = int(counts.argmax()), float(counts.max() / counts.sum())
        return Life(k, birth["t"] if birth else 0, birth["parent"] if birth else None, share, label, purity)

    def nearest(self, k: int, n: int) -> Array:
        """The n samples of component k in the last view that lie nearest to its centre, as rows of x.

        Where a system has no centres, the mean of the component's samples is its centre.
        """
        view = self.last_view
        rows = np.flatnonzero(view["y"] == k)
        if not len(rows):
            return rows
        z = view["z"][rows].astype(np.float64)
        far = np.square(z - (view["centres"][k].astype(np.float64) if "centres" in view else z.mean(0))).sum(1)
        return np.asarray(rows[far.argsort(kind="stable")[:n]])


# -- reading --------------------------------------------------------------------------------------------------------


def read(path: Path) -> RunData:
    """The data of the run in `path`, as far as it has come; RunError if a file in it holds what no run writes."""
    directory = RunDirectory.open(path)
    config = contents.read(directory, "config", contents.Settings)
    maybe = {name: contents.read(directory, name, kind) for name, kind in MAYBE.items() if directory.has(name)}
    events, metrics = contents.events(directory), contents.metrics(directory)
    rows = directory.view("rows") if directory.has_view("rows") else {}
    views = {step: directory.view(step) for step in directory.view_steps}
    born = [line["component"] for line in events if line["event"] == "ComponentBorn"]
    run = RunData(
        path=path,
        config=config,
        environment=maybe.get("environment", {}),
        data=maybe.get("data", {}),
        events=events,
        metrics=metrics,
        result=maybe.get("result"),
        timing=maybe.get("timing"),
        x=rows.get("x"),
        labels=rows.get("labels"),
        views=views,
        d_new={k: directory.birth(k) for k in born if directory.has_birth(k)},
    )
    _check_arrays(run)
    _check_counts(run)
    return run


def _check_counts(run: RunData) -> None:
    """There are no more components than can be told of, and classes are those of the confusion."""
    if run.K > MOST_COMPONENTS:
        raise damaged(run.path / "events.jsonl", f"it tells of {run.K:,} components")
    rows = (run.result or {}).get("confusion")
    if rows and len(rows) != len(run.classes):
        raise damaged(run.path / "result.json", f"confusion has {len(rows)} rows for {len(run.classes)} classes")


def _check_arrays(run: RunData) -> None:
    """Views, samples and births fit each other."""
    n_features = math.prod(run.shape)
    _check_rows(run, n_features)
    for step, view in run.views.items():
        if not (_fits(view, n_features) and _is_alike(view, run)):
            arrays = {name: list(array.shape) for name, array in view.items()}
            raise damaged(run.path / "views" / f"{step:08d}.npz", f"its arrays are {arrays}")
    for k, d_new in run.d_new.items():
        if not _is_table(d_new, n_features):
            raise damaged(run.path / "births" / f"{k:04d}.npy", f"it is {list(d_new.shape)}")


def _check_rows(run: RunData, n_features: int) -> None:
    """The samples that views show, and their labels."""
    rows, x, labels = run.path / "views" / "rows.npz", run.x, run.labels
    if x is not None and not _is_table(x, n_features):
        raise damaged(rows, f"x is {list(x.shape)}, but a sample has {n_features} values")
    if labels is None:
        return
    if x is None or labels.shape != (len(x),):
        raise damaged(rows, "there must be one label for each sample")
    if labels.dtype.kind not in "iu":
        raise damaged(rows, f"labels are {labels.dtype}, not whole numbers")
    if not ((labels >= 0) & (labels < len(run.classes))).all():
        raise damaged(rows, f"a label is none of the {len(run.classes)} classes")


def _fits(view: Mapping[str, Array], n_features: int) -> bool:
    """Whether the arrays of a view are of one system: z [N, Z], y [N], centres [K, Z], generated [K, n, D]."""
    if not {"z", "y"} <= view.keys():
        return False
    z, y, generated, centres = view["z"], view["y"], view.get("generated"), view.get("centres")
    fits = z.ndim == 2 and _is_table(z, z.shape[1]) and bool(np.isfinite(z).all())
    fits = fits and y.shape == (len(z),) and y.dtype.kind in "iu" and bool(((y >= 0) & (y < MOST_COMPONENTS)).all())
    if centres is not None:
        fits = fits and _is_table(centres, z.shape[1]) and bool((y < len(centres)).all())
    if generated is not None:
        fits = fits and generated.ndim == 3 and generated.dtype.kind in NUMBERS
        fits = fits and generated.shape[1] > 0 and generated.shape[2] == n_features
        fits = fits and (centres is None or len(centres) == len(generated))
    return fits


def _is_alike(view: Mapping[str, Array], run: RunData) -> bool:
    """Whether a view has the arrays of the last one, for as many samples."""
    if view.keys() != run.last_view.keys():
        return False
    return view["z"].shape[:1] == (run.last_view["z"] if run.x is None else run.x).shape[:1]


def _is_table(array: Array, n_columns: int) -> bool:
    """Whether an array holds at least one row of so many numbers."""
    return array.ndim == 2 and len(array) > 0 and array.shape[1] == n_columns and array.dtype.kind in NUMBERS


# -- several --------------------------------------------------------------------------------------------------------


def grouped(runs: list[RunData]) -> dict[str, list[RunData]]:
    """Runs that differ in nothing but the seed, under what tells them from the others."""
    groups: dict[tuple[tuple[str, str], ...], list[RunData]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(settings(run).items())), []).append(run)
    return dict(zip(_names([settings(some[0]) for some in groups.values()]), groups.values(), strict=True))


def _names(each: list[dict[str, str]]) -> list[str]:
    """As few settings as tell all apart, in the order of the configuration."""
    if len(each) == 1:
        return [each[0].get("dataset", "all")]
    order = list(dict.fromkeys(key.split(".")[0] for some in each for key in some))
    names = [""] * len(each)
    for key in sorted({key for some in each for key in some}, key=lambda key: (order.index(key.split(".")[0]), key)):
        values = [some.get(key) for some in each]
        if len(set(values)) == 1:
            continue
        names = [_joined(name, key.split(".")[-1], value) for name, value in zip(names, values, strict=True)]
        if all(names) and len(set(names)) == len(names):
            break
    return names


def _joined(name: str, words: str, value: str | None) -> str:
    if value is None:
        return name
    return f"{name}, {words} {value}" if name else f"{words} {value}"


def settings(run: RunData) -> dict[str, str]:
    """All settings but the seed, flat; those of several kinds as the command line names them: `threshold`."""
    found = {}
    for name, value in flat(run.config).items():
        is_kind = name.split(".")[-1] == "type"
        found[name.removesuffix(".type")] = as_option(value) if is_kind else value
    return {name: value for name, value in found.items() if name != "seed"}


def flat(value: Json, prefix: str = "") -> dict[str, str]:
    """{"a": {"b": 1}} as {"a.b": "1"}."""
    found: dict[str, str] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            found |= flat(inner, f"{prefix}{name}.")
        else:
            found[prefix + name] = _text(inner)
    return found


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case list():
            return " ".join(map(_text, value))
    return str(value)


def mean_sd(values: list[float], digits: int) -> str:
    """Mean ± standard deviation; a single value as it is."""
    if len(values) == 1:
        return f"{values[0]:,}" if isinstance(values[0], int) else f"{values[0]:,.{digits}f}"
    return f"{statistics.fmean(values):,.{digits}f} ± {statistics.stdev(values):,.{digits}f}"
