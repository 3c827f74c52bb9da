"""The README's picture and table of results, out of the files in results/ and nothing else.

Run it after a result was added: python docs/make_picture.py
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
COLUMNS = "run", "seeds", "steps", "K", "paper", "cluster accuracy, %", "paper", "10-NN error, %", "paper", "minutes"
Result = dict[str, Any]  # what `curlicue result RUN --out FILE` writes


@dataclass(frozen=True, kw_only=True)
class Row:
    """One experiment, in the files NAME-seed0.json, NAME-seed1.json, …; and what the paper says of it."""

    name: str
    label: str
    command: str
    colour: str  # of a palette that colour-blind eyes can tell apart
    paper_components: str
    paper_accuracy: str  # %
    paper_error: str  # %


ROWS = (
    Row(
        name="mnist-mgr",
        label="growth and replay",
        command="curlicue train --preset mnist",
        colour="#0072B2",
        paper_components="25.20 ± 2.23",
        paper_accuracy="77.74 ± 1.37",
        paper_error="6.29 ± 0.50",
    ),
    Row(
        name="mnist-no-replay",
        label="growth, no replay",
        command="curlicue train --preset mnist --replay none",
        colour="#D55E00",
        paper_components="55.80 ± 1.94",
        paper_accuracy="45.35 ± 1.50",
        paper_error="17.46 ± 1.25",
    ),
    Row(
        name="mnist-no-expansion",
        label="replay, no growth",
        command="curlicue train --preset mnist --no-expansion --components 25",
        colour="#737373",
        paper_components="25",
        paper_accuracy="≈ 51",
        paper_error="not given",
    ),
)
FULL = ROWS[0]


def main(
    results: Path = ROOT / "results",
    picture: Path = ROOT / "docs" / "picture.png",
    readme: Path = ROOT / "README.md",
) -> None:
    """Draw the picture and write the table into the README.

    Args:
        results: where the result files are
        picture: where the picture goes
        readme: whose table is rewritten
    """
    runs = read(results)
    if FULL.name not in runs:
        raise SystemExit(f"There is no {FULL.name}-seed*.json in {results}. Write one: curlicue result RUN --out FILE")
    draw(runs, picture)
    readme.write_text(with_table(readme.read_text(), table(runs)))


def read(results: Path) -> dict[str, list[Result]]:
    """The runs of each row that has any, by seed."""
    files = {row.name: results.glob(f"{row.name}-seed*.json") for row in ROWS}
    runs = {name: [json.loads(path.read_text()) for path in paths] for name, paths in files.items()}
    return {name: sorted(some, key=lambda run: run["config"]["seed"]) for name, some in runs.items() if some}


# -- the table --------------------------------------------------------------------------------------------------------


def with_table(readme: str, lines: str) -> str:
    """The README with `lines` between its markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


def table(runs: dict[str, list[Result]]) -> str:
    """Ours beside the paper's, then where it was measured and how to measure it again."""
    rows = [row for row in ROWS if row.name in runs]
    everyone = [run for row in rows for run in runs[row.name]]
    machines = {f"{run['environment']['processor']}, {run['environment']['threads']} thread(s)" for run in everyone}
    n_test = {f"{sum(map(sum, run['result']['confusion'])):,}" for run in everyone}
    lines = [
        _line(COLUMNS),
        _line(["---", *["--:"] * (len(COLUMNS) - 1)]),
        *(_row(row, runs[row.name]) for row in rows),
        "",
        f"Scored on {_each(n_test)} test images; ± is the standard deviation over seeds (the paper has five).",
        f"Measured on {_each(machines)} a run. The settings of each row:",
        "",
        "```sh",
        *(f"{row.command}  # {row.label}" for row in rows),
        "```",
    ]
    return "\n".join(lines)


def _row(row: Row, runs: Sequence[Result]) -> str:
    scores = [run["result"] for run in runs]
    cells = [
        row.label,
        _each(str(run["config"]["seed"]) for run in runs),
        _each({f"{run['config']['steps']:,}" for run in runs}),
        _mean([score["K"] for score in scores]),
        row.paper_components,
        _mean([100 * score["cluster_accuracy"] for score in scores]),
        row.paper_accuracy,
        _mean([100 * score["knn_error"]["10"] for score in scores]),
        row.paper_error,
        f"{statistics.fmean(run['timing']['minutes'] for run in runs):.0f}",
    ]
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _each(values: Iterable[str]) -> str:
    return "; ".join(sorted(values))


def _mean(values: Sequence[float]) -> str:
    """A single value as it is, several as mean ± standard deviation."""
    if len(values) > 1:
        return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
    return str(values[0]) if isinstance(values[0], int) else f"{values[0]:.2f}"


# -- the picture ------------------------------------------------------------------------------------------------------


def draw(runs: dict[str, list[Result]], picture: Path) -> None:
    """Left: accuracy over time and the moments of birth. Right: the full run, class by class. First seeds only."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    first = {name: some[0] for name, some in runs.items()}
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 3.4), dpi=200, layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=(9, 1), width_ratios=(5, 4))
        over_time = figure.add_subplot(grid[0, 0])
        draw_accuracy(over_time, first)
        draw_births(figure.add_subplot(grid[1, 0], sharex=over_time), first)
        draw_classes(figure.add_subplot(grid[:, 1]), first[FULL.name])
        figure.savefig(picture, metadata={"Software": None})


def draw_accuracy(axes: Axes, runs: dict[str, Result]) -> None:
    """Cluster accuracy of each run over its steps; a faint line where the stream goes on to another class."""
    for t in _changes(runs[FULL.name])[1:-1]:
        axes.axvline(t, color="#dddddd", linewidth=0.8, zorder=0)
    for row in ROWS:
        if run := runs.get(row.name):
            t, accuracy = ([line[name] for line in run["metrics"]] for name in ("t", "cluster_accuracy"))
            label = f"{row.label}: {100 * run['result']['cluster_accuracy']:.0f} %, K = {run['result']['K']}"
            axes.plot(t, [100 * a for a in accuracy], color=row.colour, linewidth=1.6, label=label)
    axes.set(xlim=(0, runs[FULL.name]["config"]["steps"]), ylim=(0, 100), ylabel="cluster accuracy, %")
    axes.tick_params(labelbottom=False)
    axes.legend(loc="upper left", framealpha=1, edgecolor="none", borderpad=0.2)


def draw_births(axes: Axes, runs: dict[str, Result]) -> None:
    """A tick for each birth, in a line for each run that grew."""
    grew = [row for row in ROWS if row.name in runs and runs[row.name]["births"]]
    for y, row in enumerate(reversed(grew)):
        t = [birth["t"] for birth in runs[row.name]["births"]]
        axes.plot(t, [y] * len(t), "|", color=row.colour, markersize=6, clip_on=False)
    axes.set(ylim=(-0.6, max(1, len(grew)) - 0.4), yticks=[])
    axes.set_ylabel("births", rotation=0, ha="right", va="center")
    axes.spines["left"].set_visible(False)
    _label_steps(axes)


def draw_classes(axes: Axes, run: Result) -> None:
    """Accuracy of each class over time; a frame around the time in which the stream shows it."""
    from matplotlib.patches import Rectangle

    lines, names = run["metrics"], run["result"]["classes"]
    shares = [[float("nan") if a is None else 100 * a for a in line["class_accuracy"]] for line in lines]
    by_class = list(zip(*shares, strict=True))  # [C, T]
    edges = [0, *(line["t"] for line in lines)]
    mesh = axes.pcolormesh(edges, range(len(names) + 1), by_class, cmap="cividis", vmin=0, vmax=100)
    height = run["config"]["scenario"].get("at_once", 1)
    for task, (begin, end) in enumerate(pairwise(_changes(run))):
        frame = {"fill": False, "edgecolor": "white", "linewidth": 1.2}
        axes.add_patch(Rectangle((begin, task * height), end - begin, height, **frame))
    axes.set_yticks([c + 0.5 for c in range(len(names))], names)
    axes.tick_params(left=False)
    axes.invert_yaxis()
    axes.set_ylabel("class")
    axes.set_title(f"{FULL.label}, class by class (framed: now shown)", fontsize=9)
    axes.figure.colorbar(mesh, ax=axes, label="accuracy, %", pad=0.02).outline.set_visible(False)
    _label_steps(axes)


def _label_steps(axes: Axes) -> None:
    axes.set_xlabel("step, thousands")
    axes.xaxis.set_major_formatter(lambda t, _: f"{t / 1000:g}")


def _changes(run: Result) -> list[float]:
    """The steps at which the stream goes on to its next classes, with the first and the last step."""
    scenario, steps, C = run["config"]["scenario"], run["config"]["steps"], len(run["result"]["classes"])
    tasks = 1 if scenario["type"] == "Iid" else -(-C // scenario.get("at_once", 1))
    return [steps * task / tasks for task in range(tasks + 1)]


if __name__ == "__main__":
    tyro.cli(main)
