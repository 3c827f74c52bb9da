"""The paper's experiments: train, demo, data, result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.progress import Progress, TaskID
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from curlicue.cli import console
from curlicue.cli.board import Board, require_tensorboard
from curlicue.cli.console import Given
from curlicue.cli.options import Place, apply, choice, default_notes, given, options, options_type
from curlicue.cli.report import report
from curlicue.config.codec import from_json
from curlicue.config.kinds import by_option
from curlicue.errors import ConfigError, MissingExtraError
from curlicue.experiments.presets import PRESETS, emission_for
from curlicue.experiments.run import Evaluated, Run, forgotten, summary, use_threads
from curlicue.experiments.settings import RunConfig, in_steps
from curlicue.learn.events import ComponentBorn, StepTaken
from curlicue.model.devices import device_of
from curlicue.records import contents
from curlicue.records.directory import RunDirectory
from curlicue.records.environment import environment, latest
from curlicue.records.files import alone_in, write_atomically
from curlicue.streams.fetch import fetch, status
from curlicue.streams.sources import Source, load
from curlicue.systems.curl import Curl
from curlicue.systems.protocol import System, SystemConfig

PRESET = "mnist"  # unless another one is asked for
SHOWN = ("steps", "K", "n_used", "cluster_accuracy", "hungarian_accuracy", "knn_error", "nmi", "ari")  # of a result


def settings_type() -> type:
    """The options that change a preset: the preset's name, and every field of the settings of a run."""
    preset = choice(tuple(PRESETS), f"a set-up of the paper's appendix, or one beside them (default: {PRESET})")
    doc = "What to change of a preset; what is not given is as there. A default is of a kind that the preset has not."
    found = options(RunConfig, taken=("preset", *signature(train).parameters))
    notes = {name: note for name, note in default_notes(found).items() if all(map(_is_of_a_kind, found[name]))}
    notes["emission"] = "default: what suits the data set"
    return options_type(doc, found, notes, preset=preset)


def _is_of_a_kind(place: Place) -> bool:
    """Whether only one kind of scenario, growth or memory has a field, so that a preset of another kind lacks it."""
    return place.goes_with is not None and place.goes_with.family != "system"


def train(
    settings: Annotated[Any, arg(constructor_factory=settings_type), OmitArgPrefixes],
    out: Given[Path] = None,
    resume: Given[Path] = None,
    data_dir: Given[Path] = None,
    device: Given[str] = None,
    threads: Given[int] = None,
    tensorboard: bool = False,
) -> None:
    """Learn from a stream; everything goes to a run directory.

    Args:
        out: the run directory (default: a new one under runs/)
        resume: go on with the run in this directory, with the settings it has
        data_dir: where the official data files are (default: $CURLICUE_DATA, the cache, a download)
        device: cpu, cuda, cuda:1, mps, or auto for the fastest (default: cpu; of a resumed run, the one it had)
        threads: for one run (default: all cores; one for a small network, which more would slow down)
        tensorboard: write event files for TensorBoard too, to a folder `tensorboard` in the run directory
    """
    if tensorboard:
        require_tensorboard()  # first: nothing is left behind where it is missing
    values = given(settings)
    if resume is not None:
        _refuse([*values, *(["out"] if out is not None else [])])
        begun = _resumed(RunDirectory.open(resume), data_dir, device, threads)
    else:
        begun = _new(values, out, data_dir, device, threads)
    with begun as run, ExitStack() as opened:
        readers = []
        if tensorboard:
            board = opened.enter_context(closing(Board(run.directory.path / "tensorboard", run.system.t)))
            readers.append(board.take)
        _watch(run, readers)


@contextmanager
def _new(
    values: Mapping[str, Any], out: Path | None, data_dir: Path | None, device: str | None, threads: int | None
) -> Iterator[Run]:
    """A run in a directory of its own."""
    use_threads(threads)  # before torch starts any: a thread keeps what is set when it begins
    config, place = configure(values), device_of(device or "cpu")
    path = out or _fresh(Path("runs") / f"{values.get('preset', PRESET)}-seed{config.seed}")
    run = Run(config, _load(config.dataset, data_dir), RunDirectory(path), place)  # first: what fails leaves nothing
    n_threads = use_threads(threads, _n_weights(run.system))
    with alone_in(path, wait=False):
        RunDirectory.create(path, run.config.to_json(), environment(n_threads, str(place)))
        yield run


@contextmanager
def _resumed(directory: RunDirectory, data_dir: Path | None, device: str | None, threads: int | None) -> Iterator[Run]:
    """The run in `directory` where it was; with as many threads as it had, for sums depend on them."""
    config: RunConfig = from_json(RunConfig, directory.settings())
    had = latest(contents.read(directory, "environment", contents.Environment))
    place = device_of(device or had.get("device", "cpu"))
    now = environment(use_threads(had.get("threads") if threads is None else threads), str(place))
    run = Run(config, _load(config.dataset, data_dir), directory, place)
    with alone_in(directory.path, wait=False):
        run.resume()
        if changed := ", ".join(run.record_move(now)):
            console.say(f"So far the run had other {changed}: from here on it may not go bit for bit as it would have.")
        yield run


def _refuse(names: Sequence[str]) -> None:
    """ConfigError if any settings were given: a run keeps its own."""
    if names:
        raise ConfigError(f"--resume goes on with the settings the run has. Leave out {console.options(names)}.")


def _n_weights(system: System) -> int:
    """How many parameters the model of a system has; 0 if it has no model that can tell."""
    model = getattr(system, "model", None)
    return sum(p.numel() for p in model.parameters()) if isinstance(model, torch.nn.Module) else 0


def configure(values: Mapping[str, Any]) -> RunConfig:
    """The preset with everything changed that was asked for; with another number of steps all periods go along."""
    changes = dict(values)
    preset = PRESETS[changes.pop("preset", PRESET)]
    scaled = in_steps(preset, changes["steps"]) if "steps" in changes else preset
    return apply(scaled, changes, _suggested(preset, changes))


def _suggested(preset: RunConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """How generated samples suit the data set, if the preset has another one or no memory; labels need no suiting."""
    system = by_option(SystemConfig).get(values.get("system", ""), type(preset.system))
    dataset = values.get("dataset", preset.dataset)
    remembers = type(preset.system) is system and isinstance(preset.system, Curl) and preset.system.learner.memory
    if system.labelled or (remembers and dataset == preset.dataset):
        return {}
    return {"emission": emission_for(dataset)}


def demo(out: Given[Path] = None) -> None:
    """A minute's run on scikit-learn's digits, one class after the other, without labels; and a page that shows it.

    Args:
        out: the run directory (default: a new one under runs/)
    """
    path = out or _fresh(Path("runs/demo"))
    train(settings_type()(preset="digits-free"), out=path)
    try:
        report((path,))
    except MissingExtraError as error:  # the run is whole without
        console.say(str(error))


def data(names: Positional[tuple[str, ...]] = (), /, data_dir: Given[Path] = None) -> None:
    """Say which data are here; fetch those named (mnist, omniglot), verified by checksum.

    Args:
        names: data sets to fetch
        data_dir: where to look first (default: $CURLICUE_DATA)
    """
    for name in names:
        with console.download_bar() as progress:
            fetch(name, data_dir, progress)
    table = Table("data set", "file", "state", "where", "bytes", "path")
    files = status(data_dir)
    for file in files:
        place = str(file.path or "")
        table.add_row(file.dataset, file.file, file.state, file.where, str(file.n_bytes or ""), place)
    table.add_row("digits", "(with scikit-learn)", "ok", "", "", "")
    console.show(table)
    if any(file.state == "missing" for file in files):
        console.show("Fetch what is missing with: curlicue data mnist omniglot")


def result(run: Positional[Path], /, out: Given[Path] = None) -> None:
    """Show a finished run's result; with --out, write it as one small JSON file.

    Args:
        run: a run directory
        out: the JSON file: settings, result, scores and births over time, machine, minutes
    """
    directory = RunDirectory.open(run)
    whole = summary(directory)
    console.show(_result_table(directory, forgotten(from_json(RunConfig, whole["config"]), whole["metrics"])))
    if out is not None:
        write_atomically(out, (json.dumps(whole) + "\n").encode())


def _fresh(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, … that is free."""
    n, free = 1, path
    while free.exists():
        n, free = n + 1, path.with_name(f"{path.name}-{n + 1}")
    return free


def _load(name: str, data_dir: Path | None) -> Source:
    with console.download_bar() as progress:
        return load(name, data_dir, progress)


# -- what is shown ------------------------------------------------------------------------------------------------


def _watch(run: Run, readers: Sequence[Callable[[object], None]] = ()) -> None:
    """Run to the end with a live line, all events told to `readers` too; Ctrl-C saves and says how to go on."""
    path, steps = run.directory.path, run.config.steps
    console.show(f"Run directory: {path}")
    with console.stoppable() as stopped, console.progress_line() as line:
        task = line.add_task("", total=steps, completed=run.system.t, K=run.system.K, bound=0.0, score="")
        for event in run.events(stop=lambda: bool(stopped)):
            _show(event, line, task, steps, run.config.evaluate_every)
            for read in readers:
                read(event)
    if run.system.t < steps:
        command = f"curlicue train --resume {shlex.quote(str(path))}"
        console.say(f"Stopped at step {run.system.t}; nothing is lost. Go on with: {command}")
        raise SystemExit(130)
    console.show(_result_table(run.directory, forgotten(run.config, contents.metrics(run.directory, "class_accuracy"))))
    console.show(f"Everything is in {path}")


def _show(event: object, line: Progress, task: TaskID, steps: int, every: int) -> None:
    """Bring the live line up to date; tell of births and, where there is no terminal, now and then of the accuracy."""
    match event:
        case StepTaken():
            line.update(task, advance=1, K=event.K)
            if not event.rehearsed:  # generated samples would make it jump
                line.update(task, bound=event.bound)
        case ComponentBorn():
            line.console.print(f"step {event.t}: component {event.component} is born from {event.parent}")
        case Evaluated():
            accuracy = 100 * event.scores["cluster_accuracy"]
            line.update(task, score=f"accuracy {accuracy:.1f} %")
            if not console.out.is_terminal and event.t * 10 // steps > (event.t - every) * 10 // steps:
                console.show(f"step {event.t}/{steps}: K {event.scores['K']}, cluster accuracy {accuracy:.2f} %")


def _result_table(directory: RunDirectory, lost: float) -> Table:
    result = contents.read(directory, "result", contents.Result, *SHOWN)
    table = Table("score", "on the test set", title=f"after {result['steps']} steps")
    table.add_row("components K (used)", f"{result['K']} ({result['n_used']})")
    for name in ("cluster_accuracy", "hungarian_accuracy", "incremental_class", "incremental_task"):
        if result.get(name) is not None:
            table.add_row(name.replace("_", " "), f"{100 * result[name]:.2f} %")
    table.add_row("lost since its best, mean over classes", f"{100 * lost:.2f} %")
    for k, error in result["knn_error"].items():
        table.add_row(f"{k}-NN error", f"{100 * error:.2f} %")
    for name in ("nmi", "ari"):
        table.add_row(name.upper(), f"{result[name]:.3f}")
    if "bound" in result:  # null if it is not a number
        table.add_row("bound", "not finite" if result["bound"] is None else f"{result['bound']:.2f} nats")
    return table
