"""The paper, again: reproduce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from tyro.conf import Positional

from curlicue.cli import console
from curlicue.cli.console import Given
from curlicue.cli.drawing import draw, short_of_the_paper
from curlicue.config.codec import from_json
from curlicue.errors import ConfigError, RunError
from curlicue.experiments.paper import EXPERIMENTS, LIFE, Experiment
from curlicue.experiments.reproduce import Job, Places, Standing, jobs_of, read_result, read_seeds, reproduce
from curlicue.experiments.settings import RunConfig
from curlicue.experiments.tables import SHORT_OF, Results, header, lines
from curlicue.records.directory import RunDirectory
from curlicue.report.figures import KINDS, need_matplotlib, write_life
from curlicue.report.run_data import read
from curlicue.streams.sources import load

LEGEND = f"{SHORT_OF} worse than the paper by more than two of its standard deviations"


def reproduce_paper(
    names: Positional[tuple[str, ...]] = (),
    /,
    list: bool = False,
    show: bool = False,
    seeds: int = 1,
    scale: float = 1.0,
    jobs: int = 2,
    runs: Path = Path("runs/paper"),
    results: Path = Path("results"),
    data_dir: Given[Path] = None,
) -> None:
    """Run tables and figures of the paper, and show our numbers beside its own; figures are drawn too.

    What is done is not done again; what was cut off goes on. All seeds that have results are shown.

    Args:
        names: tables and figures, as --list shows them
        list: show what there is to reproduce
        show: only the tables of what is done; nothing is run or drawn
        seeds: how many runs of each row, with seeds 0, 1, …
        scale: this share of the steps, for a first look; results are kept apart
        jobs: runs side by side, with one thread each
        runs: where the run directories are
        results: where the result files are; figures go to figures/ in it
        data_dir: where the official data files are (default: $CURLICUE_DATA, the cache, a download)
    """
    if list:
        console.show(_listed())
        return
    experiments = {name: _experiment(name) for name in names}
    if not experiments:
        raise ConfigError("Say which table or figure. See them all: curlicue reproduce --list")
    _check(seeds=seeds, jobs=jobs)
    if not 0 < scale <= 1:
        raise ConfigError(f"--scale must be a number in the range (0, 1]. Got {scale:g} instead.")
    todo, places = jobs_of(experiments.values(), seeds, scale), Places(runs, results, data_dir)
    if show:
        if not results.is_dir():
            console.say(f"There is no folder {results}, so nothing is done. --results names another.")
        for name, experiment in experiments.items():
            console.show(_table(name, experiment, todo, results))
        return
    if any(name.startswith("figure-") for name in names):
        need_matplotlib()  # said before hours of runs, not after
    _tell_of_done(todo, results)
    if LIFE in experiments:
        _need_run(todo, places)
    standings = _run(todo, places, jobs, experiments)
    for name, experiment in experiments.items():
        console.show(_table(name, experiment, todo, results))
        _draw(name, todo, places)
    _close(standings.values())


def _prepare(left: Sequence[Job], places: Places) -> None:
    """Obtain the data sets of what is `left` to do; what is missing or cannot be written is said before any run."""
    if left:
        _need_writable(places)
    for name in dict.fromkeys(job.setup.dataset for job in left):
        with console.download_bar() as progress:
            load(name, places.data_dir, progress)


def _need_writable(places: Places) -> None:
    for option, folder in (("--results", places.results), ("--runs", places.runs)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(f"{folder} cannot be written ({error.strerror}). Choose another {option}.") from error


def _tell_of_done(todo: Sequence[Job], results: Path) -> None:
    """Whose numbers they are: a clone of this repository has results already."""
    done = [found for job in todo if (found := read_result(job, results)) is not None]
    if done:
        commits = ", ".join(sorted({(found["environment"].get("commit") or "unknown")[:10] for found in done}))
        remedy = "To measure all of them yourself, give another --results and another --runs."
        there = f"{len(done)} of {len(todo)} results are in {results} already (of commits {commits}{_short(todo)})"
        console.say(f"{there}. {remedy}")


def _close(standings: Iterable[Standing]) -> None:
    """Say what is not done, and end accordingly."""
    keys: dict[str, list[str]] = {}
    for standing in standings:
        keys.setdefault(standing.state, []).append(standing.job.key)
    failed, cut_off = keys.get("failed", []), keys.get("stopped", []) + keys.get("waiting", [])
    if failed:
        console.say(f"Failed: {', '.join(failed)}, as said above. Mend that, and the same command goes on.")
    if cut_off:
        console.say(f"Not finished: {', '.join(cut_off)}. Nothing is lost; the same command goes on.")
    if failed or cut_off:
        raise SystemExit(130 if cut_off else 1)


def _draw(name: str, todo: Sequence[Job], places: Places) -> None:
    """A figure, as far as its runs have come."""
    folder = places.results / "figures"
    short = "".join({f"-scale{job.scale:g}" for job in todo if job.scale != 1})
    if name == LIFE:
        drawn = _draw_life(todo, places, folder, f"{name}{short}-")
    else:
        done = draw(name, _found(todo, places.results), folder / f"{name}{short}.png", *KINDS)
        drawn = [name + short] if done else []
    if drawn:
        console.show(f"{folder}: {', '.join(drawn)} as PNG, SVG and PDF")


def _draw_life(todo: Sequence[Job], places: Places, folder: Path, prefix: str) -> Sequence[str]:
    """What only a run directory can show, of the first seed."""
    job, run = _lived(todo, places)
    if read_result(job, places.results) is None:
        return []
    with console.busy("Arranging the latent space"):
        read(run.path)  # what is damaged says so
        return write_life(run, folder, prefix, short_of_the_paper([job.steps]))


def _need_run(todo: Sequence[Job], places: Places) -> None:
    """Say, before hours of other runs, if a result is here without the run directory that its figure is drawn from."""
    job, run = _lived(todo, places)
    if read_result(job, places.results) is None:
        return
    if not run.has("timing") or from_json(RunConfig, run.settings()) != job.setup:
        remedy = "To make it, give another --results and another --runs."
        raise RunError(f"{LIFE} is drawn from {run.path}, which is not there or another run. {remedy}")


def _lived(todo: Sequence[Job], places: Places) -> tuple[Job, RunDirectory]:
    """The run that figures of samples show."""
    job = next(job for job in todo if job.name in EXPERIMENTS[LIFE].setups)
    return job, RunDirectory(places.runs / job.key)


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"--{name} must be an int in the range [1, inf). Got {value} instead.")


def _experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError(f"There is no {name!r} in the paper. Choose from: {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]


def _listed() -> Table:
    table = Table(Column("name", no_wrap=True), "where", "what", "runs a seed")
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.where, experiment.title, str(len(experiment.setups)))
    return table


def _run(todo: Sequence[Job], places: Places, jobs: int, experiments: dict[str, Experiment]) -> dict[str, Standing]:
    """Do them, with a line for each that runs, and the tables as they fill; without a terminal, with some lines."""
    _prepare([job for job in todo if read_result(job, places.results) is None], places)
    standings: dict[str, Standing] = {job.key: Standing(job) for job in todo}
    tables = [_table(name, experiment, todo, places.results) for name, experiment in experiments.items()]
    done, tenths = 0, dict.fromkeys(standings, 0)
    with console.stoppable() as stopped, Live(console=console.out, auto_refresh=False) as live:
        for standing in reproduce(todo, places, jobs, stop=lambda: bool(stopped)):
            standings[standing.job.key] = standing
            finished = sum(each.state == "done" for each in standings.values())
            if finished != done:
                done = finished
                tables = [_table(name, each, todo, places.results) for name, each in experiments.items()]
            if standing.state == "failed":
                live.update(Group(), refresh=True)  # what is said stays above
                console.say(f"{standing.job.key}: {standing.error}")
            if console.out.is_terminal:
                live.update(Group(*_progress(standings), *tables), refresh=True)
            else:
                _tell(standing, tenths)
        live.update(Group(), refresh=True)
    return standings


def _progress(standings: dict[str, Standing]) -> tuple[Table, str]:
    """One line for each run that goes on now, and how many are left; first, for a long table may not fit below."""
    table = Table.grid(padding=(0, 1))
    for standing in standings.values():
        if standing.state in ("running", "failed"):
            steps = standing.job.steps
            share = f"{100 * standing.t / steps:.0f} %" if steps else ""
            doing = "scoring" if standing.state == "running" and standing.t >= steps > 0 else standing.state
            table.add_row(standing.job.key, doing, share, *_steps(standing))
    counts = {state: sum(each.state == state for each in standings.values()) for state in ("done", "waiting")}
    short = _short(standing.job for standing in standings.values())
    return table, f"{counts['done']} of {len(standings)} done, {counts['waiting']} waiting{short}"


def _tell(standing: Standing, tenths: dict[str, int]) -> None:
    """A line for each tenth of a run that goes on; of what has no steps, when it is done."""
    key, steps = standing.job.key, standing.job.steps
    tenth = 10 * standing.t // steps if steps else 10 * (standing.state == "done")
    if standing.process is not None and tenth > tenths[key]:
        tenths[key] = tenth
        console.show(f"{key}: {', '.join(_steps(standing)) or standing.state}")


def _steps(standing: Standing) -> tuple[str, ...]:
    """How far it is, where there are steps."""
    steps = standing.job.steps
    return (f"step {standing.t}/{steps}", f"K {standing.K or ''}") if steps else ()


def _short(todo: Iterable[Job]) -> str:
    """Which share of the steps they take, unless it is all."""
    return "".join(f"; ours in {scale:g} of the steps" for scale in {job.scale for job in todo} if scale != 1)


def _found(todo: Sequence[Job], results: Path) -> Results:
    """Of the set-ups in `todo` what is done, with every seed."""
    first = {job.name: job for job in reversed(todo)}
    return lambda setup: read_seeds(first[setup], results) if setup in first else []


def _table(name: str, experiment: Experiment, todo: Sequence[Job], results: Path) -> Table:
    """Ours beside the paper's."""
    short = _short(job for job in todo if job.name in experiment.setups)
    rows = lines(experiment, _found(todo, results))
    behind = any(SHORT_OF in cell for row in rows for cell in row)
    columns = _columns([header(experiment), *rows], console.out.width)
    table = Table(
        *columns,
        padding=0,
        width=len(columns) + 1 + sum(column.width or 0 for column in columns),
        title=f"{name}: {experiment.title} ({experiment.where}{short})",
        caption=" ".join([experiment.note, *([LEGEND] if behind else [])]).strip() or None,
    )
    for row in rows:
        table.add_row(*row)
    return table


def _columns(rows: Sequence[Sequence[str]], width: int) -> list[Column]:
    """As wide as their texts; on a narrow screen headers break between words, then names, and last numbers."""
    texts = [*zip(*rows, strict=True)]
    words = [_longest_word(column) for column in texts]
    whole = [max(map(len, column)) for column in texts]
    cells = [max(map(len, (*column[0].split(), *column[1:]))) for column in texts]
    room = width - len(texts) - 1
    ways = [(whole[0], whole[1:]), (whole[0], cells[1:]), (words[0], cells[1:]), (words[0], words[1:])]
    _, others = next((way for way in ways if way[0] + sum(way[1]) <= room), ways[-1])
    first = min(whole[0], max(words[0], room - sum(others)))
    return [Column(column[0], width=wide) for column, wide in zip(texts, (first, *others), strict=True)]


def _longest_word(texts: Iterable[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)
