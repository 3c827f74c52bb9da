"""The paper's experiments: train, demo, data, result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rich.progress import Progress, TaskID
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from curlicue.cli import console
from curlicue.cli.board import Board, require_tensorboard
from curlicue.cli.console import Given
from curlicue.cli.report import report
from curlicue.config import (
    PRESETS,
    AtChange,
    BeforeBirth,
    Counts,
    Drift,
    Emission,
    Every,
    ExpansionConfig,
    Iid,
    Never,
    ReplayConfig,
    RunConfig,
    Scenario,
    Sequential,
    Snapshots,
    Tuned,
    from_json,
    in_steps,
    paper_replay,
)
from curlicue.errors import ConfigError, MissingExtraError
from curlicue.experiments.run import Evaluated, Run, config_json, forgotten, summary, use_threads
from curlicue.learn.events import ComponentBorn, StepTaken
from curlicue.records import Json, RunDirectory, alone_in, environment, latest, write_atomically
from curlicue.report.story import telling_damage
from curlicue.streams.fetch import fetch, status
from curlicue.streams.sources import Source, load

SCENARIOS: dict[str, Scenario] = {"iid": Iid(), "sequential": Sequential(), "drift": Drift()}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to change of a preset; what is not given is as there."""

    preset: Literal["mnist", "omniglot", "split-mnist", "iid-mnist", "iid-omniglot", "digits"] = "mnist"
    """a set-up of the paper's appendix, or the small one for scikit-learn's digits"""
    dataset: Given[Literal["mnist", "mnist-60k", "mnist-grey", "omniglot", "digits"]] = None
    """where the samples come from; mnist-60k trains on all 60,000, mnist-grey keeps their greys"""
    scenario: Given[Literal["iid", "sequential", "drift"]] = None
    """all classes shuffled, one after the other, or each fading into the next"""
    at_once: Given[int] = None
    """sequential: so many classes together"""
    steps: Given[int] = None
    """real and replayed batches together; snapshot and evaluation periods of the preset scale along"""
    seed: int = 0
    """of all that is random"""
    batch_size: Given[int] = None
    """samples in a batch"""
    expansion: Given[bool] = None
    """whether components are born"""
    c_new: Given[float] = None
    """nats: a sample whose bound is lower joins D_new"""
    n_new: Given[int] = None
    """size of D_new that triggers a birth"""
    tuned: Given[Literal["all", "heads"]] = None
    """which parameters fit a newborn"""
    components: Given[int] = None
    """how many to begin with"""
    max_components: Given[int] = None
    """at this number none is born any more"""
    replay: Given[Literal["none", "mgr", "smgr"]] = None
    """no rehearsal, of dreams, or of dreams labelled with their components"""
    emission: Given[Literal["mean", "threshold", "sample"]] = None
    """how a replayed sample is made of p(x|z)"""
    counts: Given[Literal["seen", "dreamt"]] = None
    """replay favours components by the real samples they explained, or by the dreams of these they explain since"""
    snapshots: Given[str] = None
    """never, dynamic (just before each birth), change (also when other components explain the stream than did before),
    T (at the end of each class), 0.1T, or a number of steps"""
    n_z: Given[int] = None
    """dimensions of z"""
    z_samples: Given[int] = None
    """importance samples of z"""
    tau: Given[float] = None
    """of the sparse bound: a component other than the likeliest is visited with probability q/tau"""
    exact: bool = False
    """visit every component of every sample in training, instead of the sparse bound"""
    learning_rate: Given[float] = None
    """of Adam"""


def train(
    settings: OmitArgPrefixes[Settings],
    out: Given[Path] = None,
    resume: Given[Path] = None,
    data_dir: Given[Path] = None,
    threads: Given[int] = None,
    tensorboard: bool = False,
) -> None:
    """Learn from a stream; everything goes to a run directory.

    Args:
        out: the run directory (default: a new one under runs/)
        resume: go on with the run in this directory, with the settings it has
        data_dir: where the official data files are (default: $CURLICUE_DATA, the cache, a download)
        threads: for one run (default: all cores; one for a small network, which more would slow down)
        tensorboard: write event files for TensorBoard too, to a folder `tensorboard` in the run directory
    """
    if tensorboard:
        require_tensorboard()  # first: nothing is left behind where it is missing
    if resume is not None:
        _refuse(settings, out)
        begun = _resumed(RunDirectory.open(resume), data_dir, threads)
    else:
        begun = _new(settings, out, data_dir, threads)
    with begun as run, ExitStack() as opened:
        readers = []
        if tensorboard:
            board = opened.enter_context(closing(Board(run.directory.path / "tensorboard", run.learner.t)))
            readers.append(board.take)
        _watch(run, readers)


@contextmanager
def _new(settings: Settings, out: Path | None, data_dir: Path | None, threads: int | None) -> Iterator[Run]:
    """A run in a directory of its own."""
    use_threads(threads)  # before torch starts any: a thread keeps what is set when it begins
    preset = PRESETS[settings.preset]
    source = _load(settings.dataset or preset.dataset, data_dir)
    config = configure(preset, settings, source.n_classes)
    path = out or _fresh(Path("runs") / f"{settings.preset}-seed{config.seed}")
    run = Run(config, source, RunDirectory(path))  # first: settings that cannot work leave nothing behind
    n_threads = use_threads(threads, sum(p.numel() for p in run.learner.model.parameters()))
    with alone_in(path, wait=False):
        RunDirectory.create(path, config_json(config), environment(n_threads))
        yield run


@contextmanager
def _resumed(directory: RunDirectory, data_dir: Path | None, threads: int | None) -> Iterator[Run]:
    """The run in `directory` where it was; with as many threads as it had, for sums depend on them."""
    config: RunConfig = from_json(RunConfig, directory.read("config"))
    had = latest(directory.read("environment")).get("threads")
    now = environment(use_threads(had if threads is None else threads))
    run = Run(config, _load(config.dataset, data_dir), directory)
    with alone_in(directory.path, wait=False):
        run.resume()
        if changed := ", ".join(run.record_move(now)):
            console.say(f"So far the run had other {changed}: from here on it may not go bit for bit as it would have.")
        yield run


def _refuse(settings: Settings, out: Path | None) -> None:
    """A run keeps its settings."""
    given = [field.name for field in fields(settings) if getattr(settings, field.name) != field.default]
    if out is not None:
        given.append("out")
    if given:
        raise ConfigError(f"--resume goes on with the settings the run has. Leave out {console.options(given)}.")


def demo(out: Given[Path] = None) -> None:
    """A minute's run on scikit-learn's digits, one class after the other, without labels; and a page that shows it.

    Args:
        out: the run directory (default: a new one under runs/)
    """
    path = out or _fresh(Path("runs/demo"))
    train(Settings(preset="digits"), out=path)
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
    with telling_damage(run):
        whole = summary(RunDirectory.open(run))
        lost = forgotten(from_json(RunConfig, whole["config"]), whole["metrics"])
        table = _result_table(whole["result"], lost)
    console.show(table)
    if out is not None:
        write_atomically(out, (json.dumps(whole) + "\n").encode())


def configure(preset: RunConfig, settings: Settings, n_classes: int) -> RunConfig:
    """The preset with everything that was asked for changed."""
    if preset.supervised:
        _refuse_growth(settings)
    if settings.exact and settings.tau is not None:
        raise ConfigError("--exact visits every component, and --tau says how few. Leave one of them out.")
    if settings.steps is not None:
        preset = in_steps(preset, settings.steps)
    dataset = settings.dataset or preset.dataset
    scenario = _scenario(preset.scenario, settings)
    period = preset.steps // -(-n_classes // (scenario.at_once if isinstance(scenario, Sequential) else 1))
    learner, replay = preset.learner, preset.learner.replay
    if settings.dataset is not None and replay is not None and not preset.supervised:
        replay = replace(replay, emission=paper_replay(dataset, replay.snapshots).emission)
    learner = replace(
        learner,
        expansion=_expansion(learner.expansion, settings),
        replay=_replay(replay, settings, period, dataset),
        **({"tau": None} if settings.exact else _given(settings, "tau")),
        **_given(settings, "learning_rate", "z_samples"),
    )
    model = replace(preset.model, **_given(settings, "n_z"))
    if settings.components is not None:
        model = replace(model, K=settings.components)
    return replace(
        preset,
        dataset=dataset,
        scenario=scenario,
        seed=settings.seed,
        model=model,
        learner=learner,
        **_given(settings, "batch_size"),
    )


def _refuse_growth(settings: Settings) -> None:
    """With labels, a component is opened for each class, and Eq. 4 visits that one alone."""
    given = _given(settings, "expansion", "c_new", "n_new", "tuned", "max_components", "tau")
    if given or settings.exact:
        names = [*given, *(["exact"] if settings.exact else [])]
        raise ConfigError(
            f"{console.options(names)} has no effect where labels say which component it is. Leave it out."
        )


def _given(settings: Settings, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def _scenario(preset: Scenario, settings: Settings) -> Scenario:
    asked = preset if settings.scenario is None else SCENARIOS[settings.scenario]
    scenario = preset if type(asked) is type(preset) else asked  # a sequential preset knows how many at once
    if settings.at_once is None:
        return scenario
    if not isinstance(scenario, Sequential):
        raise ConfigError("--at-once goes with a sequential scenario. Add --scenario sequential.")
    return Sequential(settings.at_once)


def _expansion(preset: ExpansionConfig | None, settings: Settings) -> ExpansionConfig | None:
    given = _given(settings, "c_new", "n_new", "tuned", "max_components")
    if settings.expansion is False or (preset is None and not settings.expansion):
        if given:
            raise ConfigError(f"{console.options(given)} only matters where components are born. Add --expansion.")
        return None
    if "tuned" in given:
        given["tuned"] = Tuned(given["tuned"])
    return replace(preset or ExpansionConfig(), **given)


def _replay(preset: ReplayConfig | None, settings: Settings, period: int, dataset: str) -> ReplayConfig | None:
    if settings.replay == "none" or (preset is None and settings.replay is None):
        if given := _given(settings, "snapshots", "emission", "counts"):
            raise ConfigError(f"{console.options(given)} only matters with replay. Add --replay mgr or --replay smgr.")
        return None
    replay = preset or paper_replay(dataset, BeforeBirth())
    if isinstance(replay.snapshots, Every):  # the period of all presets is T
        replay = replace(replay, snapshots=Every(max(1, period)))
    if settings.snapshots is not None:
        replay = replace(replay, snapshots=_snapshots(settings.snapshots, period))
    if settings.emission is not None:
        replay = replace(replay, emission=Emission(settings.emission))
    if settings.counts is not None:
        replay = replace(replay, counts=Counts(settings.counts))
    return replay if settings.replay is None else replace(replay, labelled=settings.replay == "smgr")


def _snapshots(text: str, period: int) -> Snapshots:
    match text:
        case "never":
            return Never()
        case "change":
            return AtChange()
        case "dynamic":
            return BeforeBirth()
        case "T":
            return Every(max(1, period))
        case "0.1T":
            return Every(max(1, period // 10))
    if not (text.isdecimal() and int(text)):
        kinds = "never, dynamic, change, T, 0.1T or a number of steps"
        raise ConfigError(f"--snapshots must be {kinds}. Got {text!r} instead.")
    return Every(int(text))


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
        task = line.add_task("", total=steps, completed=run.learner.t, K=run.learner.model.K, bound=0.0, score="")
        for event in run.events(stop=lambda: bool(stopped)):
            _show(event, line, task, steps, run.config.evaluate_every)
            for read in readers:
                read(event)
    if run.learner.t < steps:
        command = f"curlicue train --resume {shlex.quote(str(path))}"
        console.say(f"Stopped at step {run.learner.t}; nothing is lost. Go on with: {command}")
        raise SystemExit(130)
    lost = forgotten(run.config, run.directory.lines("metrics"))
    console.show(_result_table(run.directory.read("result"), lost))
    console.show(f"Everything is in {path}")


def _show(event: object, line: Progress, task: TaskID, steps: int, every: int) -> None:
    match event:
        case StepTaken():
            line.update(task, advance=1, K=event.K)
            if not event.rehearsed:  # dreams would make it jump
                line.update(task, bound=event.bound)
        case ComponentBorn():
            line.console.print(f"step {event.t}: component {event.component} is born from {event.parent}")
        case Evaluated():
            accuracy = 100 * event.scores["cluster_accuracy"]
            line.update(task, score=f"accuracy {accuracy:.1f} %")
            if not console.out.is_terminal and event.t * 10 // steps > (event.t - every) * 10 // steps:
                console.show(f"step {event.t}/{steps}: K {event.scores['K']}, cluster accuracy {accuracy:.2f} %")


def _result_table(result: Json, lost: float) -> Table:
    table = Table("score", "on the test set", title=f"after {result['steps']} steps")
    table.add_row("components K (used)", f"{result['K']} ({result['n_used']})")
    for name in ("cluster_accuracy", "hungarian_accuracy", "incremental_class", "incremental_task"):
        if name in result:
            table.add_row(name.replace("_", " "), f"{100 * result[name]:.2f} %")
    table.add_row("lost since its best, mean over classes", f"{100 * lost:.2f} %")
    for k, error in result["knn_error"].items():
        table.add_row(f"{k}-NN error", f"{100 * error:.2f} %")
    for name in ("nmi", "ari"):
        table.add_row(name.upper(), f"{result[name]:.3f}")
    bound = result["bound"]  # null in result.json if it is not a number
    table.add_row("bound", "not finite" if bound is None else f"{bound:.2f} nats")
    return table
