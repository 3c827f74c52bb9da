"""Runs to look at: report, watch."""

from __future__ import annotations

import shlex
import time
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tyro.conf import Positional

from curlicue.cli import console
from curlicue.cli.console import Given
from curlicue.errors import ConfigError
from curlicue.experiments.run import summary
from curlicue.records.contents import damaged
from curlicue.records.directory import RunDirectory
from curlicue.records.files import Json
from curlicue.report.figures import need_matplotlib, write_comparison
from curlicue.report.figures import write as write_figures
from curlicue.report.html import write_page
from curlicue.report.latent import Projector
from curlicue.report.live import Live
from curlicue.report.run_data import RunData, grouped, read

PAGE = "report.html"
LOOK_EVERY = 1.0  # seconds
LAST_LOOK = 30.0  # seconds in which the page of a finished run can still be fetched
PORTS = 65_535


def report(runs: Positional[tuple[Path, ...]], /, out: Given[Path] = None, figures: Given[Path] = None) -> None:
    """Write one HTML page: the course of a run, or several runs compared. It opens anywhere, without a network.

    Args:
        runs: run directories; those that differ only in their seeds are put together
        out: the page (default: report.html in the run directory; of several runs, here)
        figures: a folder for figures too, as PNG, SVG and PDF, for print; of several runs, also a folder in it for each
    """
    if not runs:
        raise ConfigError("Say which run. Run directories are under runs/ unless you chose otherwise.")
    runs = tuple({run.resolve(): run for run in runs}.values())  # the same one twice would count twice
    page = out or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
    if page.is_dir():
        raise ConfigError(f"{page} is a directory. Give --out a file, such as {page / PAGE}.")
    names = [run.resolve().name for run in runs]
    if figures is not None and len(set(names)) < len(names):
        raise ConfigError(f"Runs of the same name would share a folder of figures: {', '.join(names)}. Rename one.")
    results = {}
    if figures is not None:  # what cannot work says so before anything is made
        need_matplotlib()
        with _writing(figures, "--figures"):
            results = {run: summary(RunDirectory.open(run)) for run in runs}
            figures.mkdir(parents=True, exist_ok=True)
    projector = Projector()
    with _writing(page, "--out"), console.busy("Making the page: arranging the latent space takes some seconds"):
        known = [read(run) for run in runs]
        if results:
            _refuse_gaps(grouped(known).values(), results)
        size = write_page(known, page, projector)
    console.show(f"{page}: {size / 1e6:.1f} MB. Open it in a browser.")
    if figures is not None:
        with _writing(figures, "--figures"), console.busy("Drawing the figures"):
            _draw(known, results, figures, projector)


@contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    """What cannot be written there is told by the name that was given."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}). Choose another {option}.") from error


def _draw(runs: list[RunData], results: Mapping[Path, Json], folder: Path, projector: Projector) -> None:
    """Figures for print: of each run, and of several together."""
    for run in runs:
        own = folder if len(runs) == 1 else folder / run.name
        _tell(own, write_figures(RunDirectory.open(run.path), results[run.path], own, projector))
    if len(runs) > 1:
        together = {name: [results[run.path] for run in some] for name, some in grouped(runs).items()}
        _tell(folder, write_comparison(together, folder))


def _refuse_gaps(groups: Iterable[Sequence[RunData]], results: Mapping[Path, Json]) -> None:
    """Runs of the same settings were scored at the same steps, unless a line was lost."""
    for first, *others in groups:
        for run in others:
            times, expected = ([line["t"] for line in results[each.path]["metrics"]] for each in (run, first))
            if times != expected:
                raise damaged(run.path / "metrics.jsonl", f"its steps are not those of {first.path}")


def _tell(folder: Path, names: Sequence[str]) -> None:
    console.show(f"{folder}: {', '.join(names)} as PNG, SVG and PDF")


def watch(run: Positional[Path], /, port: int = 0, open: bool = False) -> None:
    """Show the page of a run while it goes on, on this machine only; it ends with the run, or with Ctrl-C.

    Args:
        run: a run directory
        port: of the address (0: one that is free)
        open: also open the page in the browser
    """
    if not 0 <= port <= PORTS:
        raise ConfigError(f"--port must be an int in the range [0, {PORTS}]. Got {port} instead.")
    RunDirectory.open(run)
    with console.busy(f"Reading {run}"):
        watched = Live(run, port)
    with watched as live:
        console.show(f"Watching {run} at {live.address} (Ctrl-C ends it)")
        if open:
            webbrowser.open(live.address)
        while not live.finished:
            time.sleep(max(LOOK_EVERY, 4 * live.seconds))  # most of the time is the run's
            live.update()
        console.show("The run has finished.")
        live.last_look(LAST_LOOK)
    console.show(f"Write the page to a file with: curlicue report {shlex.quote(str(run))}")
