"""The paper's figures, out of results (`summary` of a run) and run directories; readable in print and by any eye."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from curlicue.config.codec import from_json
from curlicue.config.scenario import Scenario
from curlicue.errors import MissingExtraError
from curlicue.evaluate import metrics
from curlicue.records.directory import RunDirectory
from curlicue.records.environment import latest
from curlicue.records.files import Array, Json
from curlicue.report.latent import Projector, moments
from curlicue.streams.schedule import n_tasks, seen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Painters = dict[str, tuple[float, float, Callable[[Figure], None]]]  # width and height in inches, and how

COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#737373"  # colour-blind eyes tell apart
POINT_COLOURS = *COLOURS, "#000000", "#882255", "#999933"  # ten, for points that lie side by side
DASHES = "-", "--", ":"  # when there are more lines than colours
MAP = "cividis"  # alike for all eyes, and in grey
FRAME = COLOURS[1]  # is seen on all of it
FAINT = "#dddddd"
MOST_ROWS = 40  # births or components that one sheet shows
MANY = 20  # classes, from which on their names are small
KINDS = ".svg", ".pdf"  # of files, besides PNG
LABELLED = 0.02  # share of the samples from which on a kind's number is shown


def need_matplotlib() -> None:
    """Say so where it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError("Figures need matplotlib. Install it: pip install 'curlicue[report]'") from None


@contextmanager
def figure(path: Path, width: float, height: float, *others: str, about: str = "") -> Iterator[Figure]:
    """A figure of so many inches, written to `path` (its ending says how) when it is drawn, and with other endings.

    What it is `about` is kept in the file.
    """
    need_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "pdf.fonttype": 42}):
        drawn = Figure(figsize=(width, height), dpi=200, layout="constrained")
        yield drawn
        path.parent.mkdir(parents=True, exist_ok=True)
        for ending in (path.suffix, *others):
            dated = {".png": "Software", ".pdf": "CreationDate"}.get(ending, "Date")  # the same file each time
            told = {"Subject" if ending == ".pdf" else "Description": about} if about else {}
            drawn.savefig(path.with_suffix(ending), metadata={dated: None, **told}, bbox_inches="tight")


def write(directory: RunDirectory, result: Json, folder: Path, projector: Projector | None = None) -> list[str]:
    """All figures of one finished run, each in every kind of file; their names."""
    C = len(result["result"]["classes"])
    painters: Painters = {
        "accuracy": (5, 3.2, lambda drawn: accuracy_over_time(drawn.subplots(), {"accuracy": [result]})),
        "classes": (5, max(3.2, 0.11 * C), lambda drawn: class_accuracy(drawn.subplots(), result)),
        "confusion": (max(4, 0.13 * C), max(4, 0.13 * C), lambda drawn: confusion(drawn.subplots(), result)),
    }
    if _told(result):
        painters["posterior"] = 6, 2.6, lambda drawn: posterior(drawn.subplots(), result)
    return _paint(painters | _life(directory, projector), folder)


def write_life(directory: RunDirectory, folder: Path, prefix: str, note: str = "") -> list[str]:
    """Draw what only a run directory can show: generated samples, D_new and the latent space over time.

    Each has `note` above it. Returns the names of the files.
    """
    seed, commit = directory.read("config")["seed"], latest(directory.read("environment")).get("commit")
    return _paint(_life(directory, None), folder, prefix, note, f"seed {seed}, commit {str(commit)[:10]}")


def _life(directory: RunDirectory, projector: Projector | None) -> Painters:
    images = len(directory.read("data")["shape"]) == 2
    born = min(MOST_ROWS, len(_born(directory)))
    steps = moments(directory.view_steps, directory.read("config")["steps"])[::-2][::-1]  # every other, and the last
    painters: Painters = {}
    if steps and "labels" in directory.view("rows"):
        latent = (
            2 * len(steps),
            4.2,
            lambda drawn: latent_maps(drawn.subplots(2, len(steps), squeeze=False), directory, steps, projector),
        )
        painters["latent"] = latent
    last = directory.view(steps[-1]) if steps else {}
    if images and "generated" in last:
        K = min(MOST_ROWS, len(last["generated"]))
        side = min(0.4, 7 / K)  # inches of an image
        size = side * K + 1.2, side * len(directory.view_steps) + 0.6
        painters["dreams"] = *size, lambda drawn: generated(drawn.subplots(), directory)
    if images and born:
        painters["d-new"] = 7, 0.23 * born + 0.6, lambda drawn: d_new(drawn.subplots(), directory)
    return painters


def changes(result: Json) -> list[float]:
    """The steps at which the stream goes on to its next classes, with the first and the last step."""
    return boundaries(result["config"], len(result["result"]["classes"]))


def boundaries(config: Json, C: int) -> list[float]:
    """The same, of settings and a number of classes."""
    tasks = n_tasks(from_json(Scenario, config["scenario"]), C)
    return [config["steps"] * task / tasks for task in range(tasks + 1)]


def write_comparison(groups: Mapping[str, Sequence[Json]], folder: Path) -> list[str]:
    """Figures of several finished runs, put together by their settings; their names."""
    first = {name: results[0] for name, results in groups.items()}
    painters: Painters = {
        "variants": (6, 3.6, lambda drawn: accuracy_over_time(drawn.subplots(), groups)),
    }
    if told := {name: result for name, result in first.items() if _told(result)}:
        painters["posteriors"] = 4.5 * len(told), 2.6, lambda drawn: posteriors(drawn, told)
    by_threshold: dict[str, dict[float, list[Json]]] = {}
    for result in (each for results in groups.values() for each in results):
        if (c_new := _c_new(result["config"])) is not None:
            scenario = by_threshold.setdefault(result["config"]["scenario"]["type"], {})
            scenario.setdefault(c_new, []).append(result)
    if any(len(thresholds) > 1 for thresholds in by_threshold.values()):
        painters["c-new"] = 9, 2.8, lambda drawn: thresholds(list(drawn.subplots(1, 3)), by_threshold)
    return _paint(painters, folder)


def _told(result: Json) -> bool:
    """Whether the system of a run tells which share of the stream each component explains."""
    return any(result["posterior"]["q_y"])


def _c_new(config: Json) -> float | None:
    """The threshold of growth, where a run has one."""
    found: Any = config
    for name in ("system", "learner", "growth", "c_new"):  # other systems have other settings
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int | float) else None


def _paint(painters: Painters, folder: Path, prefix: str = "", note: str = "", about: str = "") -> list[str]:
    """Each in every kind of file; their names."""
    for name, (width, height, paint) in painters.items():
        with figure(folder / f"{prefix}{name}.png", width, height, *KINDS, about=about) as drawn:
            paint(drawn)
            if note:
                drawn.suptitle(note, fontsize=9)
    return [prefix + name for name in painters]


def accuracy_over_time(axes: Axes, runs: Mapping[str, Sequence[Json]]) -> None:
    """Cluster accuracy of each variant: the mean over its seeds, and a band of a standard deviation."""
    everyone = [each for results in runs.values() for each in results]
    if len({tuple(changes(each)) for each in everyone}) == 1:
        mark_changes(axes, everyone[0])
    for (label, results), (dash, colour) in zip(runs.items(), cycle(product(DASHES, COLOURS)), strict=False):
        t = [line["t"] for line in results[0]["metrics"]]
        curves = np.array([[100 * line["cluster_accuracy"] for line in each["metrics"]] for each in results])  # [S, T]
        accuracy, K = (statistics.fmean(each["result"][name] for each in results) for name in ("cluster_accuracy", "K"))
        label = f"{label}: {100 * accuracy:.0f} %, K = {K:.0f}"
        axes.plot(t, curves.mean(0), dash, color=colour, linewidth=1.6, label=label)
        if len(results) > 1:
            mean, sd = curves.mean(0), curves.std(0, ddof=1)
            axes.fill_between(t, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)
    longest = max(each["config"]["steps"] for each in everyone)
    axes.set(xlim=(0, longest), ylim=(0, 100), ylabel="cluster accuracy, %")
    axes.legend(loc="upper left", framealpha=1, edgecolor="none", borderpad=0.2)
    in_thousands(axes)


def births(axes: Axes, runs: Mapping[str, Sequence[Json]]) -> None:
    """A tick for each birth, in a line for the first seed of each variant, in the colours of `accuracy_over_time`."""
    times = [[birth["t"] for birth in results[0]["births"]] for results in runs.values()]
    places = range(len(times))
    colours = [COLOURS[place % len(COLOURS)] for place in places]
    axes.eventplot(times, lineoffsets=places, linelengths=0.7, linewidths=0.9, colors=colours)
    axes.set(ylim=(len(times) - 0.5, -0.5), yticks=[])
    axes.set_ylabel("births", rotation=0, ha="right", va="center")
    axes.spines["left"].set_visible(False)
    in_thousands(axes)


def class_accuracy(axes: Axes, result: Json) -> None:
    """Accuracy of each class over time; a frame around the time in which the stream shows it."""
    from matplotlib.patches import Rectangle

    lines, names = result["metrics"], result["result"]["classes"]
    shares = [[float("nan") if a is None else 100 * a for a in line["class_accuracy"]] for line in lines]
    edges = [0, *(line["t"] for line in lines)]
    mesh = axes.pcolormesh(edges, range(len(names) + 1), list(zip(*shares, strict=True)), cmap=MAP, vmin=0, vmax=100)
    height = result["config"]["scenario"].get("at_once", 1)
    for task, (begin, end) in enumerate(pairwise(changes(result))):
        frame: dict[str, Any] = {"fill": False, "edgecolor": FRAME, "linewidth": 1.2}
        axes.add_patch(Rectangle((begin, task * height), end - begin, height, **frame))
    axes.set_yticks([c + 0.5 for c in range(len(names))], _short(names), fontsize=_size(names))
    axes.tick_params(left=False)
    axes.invert_yaxis()
    axes.set_ylabel("class")
    axes.figure.colorbar(mesh, ax=axes, label="accuracy, %", pad=0.02).outline.set_visible(False)
    in_thousands(axes)


def class_confusion(result: Json) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Share of each class [C] that lies in components of which class [C] most samples are: [C, C]."""
    joined = metrics.class_confusion(torch.tensor(result["result"]["confusion"]))  # [C, C], counts
    shares: np.ndarray[Any, np.dtype[np.float64]] = (joined.double() / joined.sum(1, keepdim=True).clamp_min(1)).numpy()
    return shares


def confusion(axes: Axes, result: Json) -> None:
    """What is taken for what in the end, in % of each class."""
    shares, names = 100 * class_confusion(result), result["result"]["classes"]
    axes.imshow(shares, cmap=MAP, vmin=0, vmax=100)
    for (i, j), share in np.ndenumerate(shares):
        if share >= 1 and len(names) < MANY:
            axes.text(j, i, f"{share:.0f}", ha="center", va="center", fontsize=6, color="k" if share > 50 else "w")
    axes.set(xlabel="class of the component", ylabel="class")
    axes.set_xticks(range(len(names)), _short(names), fontsize=_size(names), rotation=90 if len(names) > 10 else 0)
    axes.set_yticks(range(len(names)), _short(names), fontsize=_size(names))


def _short(names: Sequence[str]) -> list[str]:
    """For the side of a figure; a dollar sign would begin a formula."""
    return [(name if len(name) <= 14 else f"{name[:13]}…").replace("$", r"\$") for name in names]


def _size(names: Sequence[str]) -> float:
    return 9 if len(names) < MANY else 5.5


def thresholds(
    all_axes: Sequence[Axes],
    runs: Mapping[str, Mapping[float, Sequence[Json]]],
    fixed: Mapping[str, Sequence[Json]] | None = None,
) -> None:
    """Cluster accuracy, 10-NN error and K against c_new, a line for each scenario, and across it the `fixed` runs, in
    which nobody is born; bars of a standard deviation over seeds.
    """
    scores: dict[str, Callable[[Json], float]] = {
        "cluster accuracy, %": lambda score: 100 * score["cluster_accuracy"],
        "10-NN error, %": lambda score: 100 * score["knn_error"].get("10", float("nan")),
        "K": lambda score: score["K"],
    }
    for axes, (name, value) in zip(all_axes, scores.items(), strict=True):
        for (label, by_threshold), colour in zip(runs.items(), COLOURS, strict=False):
            found = {c: [value(each["result"]) for each in results] for c, results in sorted(by_threshold.items())}
            means = [statistics.fmean(v) for v in found.values()]
            deviations = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in found.values()]
            axes.errorbar(list(found), means, deviations, fmt="o-", color=colour, label=label)
            if same := (fixed or {}).get(label):
                mean = statistics.fmean(value(each["result"]) for each in same)
                axes.axhline(mean, color=colour, linestyle="--", linewidth=1, label=f"{label}, no births")
        axes.set(xlabel="c_new, nats", ylabel=name)
        axes.set_ylim(bottom=0)
    lines = all_axes[0].get_legend_handles_labels()
    all_axes[0].figure.legend(*lines, loc="outside lower center", ncols=4, edgecolor="none")


def posterior(axes: Axes, result: Json, most: int = 5) -> None:
    """Which share of the stream each of the most used components explains, over time."""
    shares = np.array(result["posterior"]["q_y"])  # [T, K]
    mark_changes(axes, result)
    for k, colour in zip(np.argsort(-shares.sum(0))[:most], COLOURS, strict=False):
        axes.plot(result["posterior"]["t"], shares[:, k], color=colour, linewidth=1.2, label=f"component {k}")
    axes.set(xlim=(0, result["config"]["steps"]), ylim=(0, 1), ylabel="mean of q(y|x)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), edgecolor="none", fontsize=7)
    in_thousands(axes)


def posteriors(drawn: Figure, results: Mapping[str, Json]) -> None:
    """The same of several runs, beside each other."""
    for axes, (name, result) in zip(drawn.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        posterior(axes, result)
        axes.set_title(f"{name}, seed {result['config']['seed']}", fontsize=9)


def generated(axes: Axes, directory: RunDirectory) -> None:
    """One generated sample of each component, from view to view; of many components, of the first."""
    views = {f"{t:,}": list(directory.view(t)["generated"][:MOST_ROWS, 0]) for t in directory.view_steps}
    pictures(axes, views, directory.read("data")["shape"])
    axes.set(xlabel="component, in the order of birth", ylabel="after step")


def d_new(axes: Axes, directory: RunDirectory, most: int = 20) -> None:
    """Some of D_new at each birth; of many births, at the first."""
    rows = {}
    for born in _born(directory)[:MOST_ROWS]:
        name = f"{born['component']} from {born['parent']}, step {born['t']:,}"
        rows[name] = list(spread(directory.birth(born["component"]), most))
    pictures(axes, rows, directory.read("data")["shape"])
    axes.set_xlabel("samples of D_new at the birth of each component")


def spread(samples: Array, most: int) -> Array:
    """At most so many, evenly from the first to the last: D_new begins with what is oldest."""
    n = len(samples)
    return samples[np.linspace(0, n - 1, min(n, most)).round().astype(int)] if n else samples


def pictures(axes: Axes, rows: Mapping[str, Sequence[Array]], shape: tuple[int, int]) -> None:
    """Images of one shape in named rows of any length."""
    height, width = (side + 1 + side // 8 for side in shape)  # with a gap to the next
    sheet = np.full((height * len(rows), width * max(map(len, rows.values()), default=0)), np.nan)
    for i, row in enumerate(rows.values()):
        for j, image in enumerate(row):
            sheet[i * height : i * height + shape[0], j * width : j * width + shape[1]] = image.reshape(shape)
    edges = 0, sheet.shape[1], len(sheet), 0
    axes.imshow(sheet, cmap="gray_r", interpolation="nearest", vmin=0, vmax=1, extent=edges)
    axes.set_yticks([i * height + shape[0] / 2 for i in range(len(rows))], list(rows))
    axes.set_xticks([])
    axes.tick_params(left=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def latent_maps(
    all_axes: Sequence[Sequence[Axes]],
    directory: RunDirectory,
    steps: Sequence[int],
    projector: Projector | None = None,
) -> None:
    """Samples of the classes so far in the latent space at some steps: above coloured by class; below, by component."""
    labels, config = directory.view("rows")["labels"], directory.read("config")
    views = {t: directory.view(t) for t in moments(directory.view_steps, config["steps"])}
    projected = (projector or Projector()).project(view["z"] for view in views.values())
    places = dict(zip(views, projected, strict=True))
    for column, t in enumerate(steps):
        come = seen(from_json(Scenario, config["scenario"]), t, config["steps"], int(labels.max()) + 1).numpy()[labels]
        for axes, kinds in zip((row[column] for row in all_axes), (labels, views[t]["y"]), strict=True):
            scatter(axes, places[t][come], kinds[come])
        all_axes[0][column].set_title(f"after step {t:,}", fontsize=9)
    for row, name in zip(all_axes, ("by class", "by component"), strict=True):
        row[0].set_ylabel(name)


def scatter(axes: Axes, places: Array, kinds: Array) -> None:
    """Samples coloured by kind; colours come again, so each kind's number stands in its midst."""
    from matplotlib.patheffects import withStroke

    outline = [withStroke(linewidth=1.5, foreground="w")]
    for kind in np.unique(kinds):
        mine = places[kinds == kind]
        axes.plot(*mine.T, ".", color=POINT_COLOURS[kind % len(POINT_COLOURS)], markersize=2.5)
        if len(mine) >= LABELLED * len(places):
            x, y = np.median(mine, axis=0)
            axes.text(x, y, str(kind), ha="center", va="center", fontsize=7, path_effects=outline)
    axes.set(xticks=[], yticks=[])


def _born(directory: RunDirectory) -> list[Json]:
    return [line for line in directory.lines("events") if line["event"] == "ComponentBorn"]


def mark_changes(axes: Axes, result: Json) -> None:
    """A faint line where the stream goes on to another class."""
    for t in changes(result)[1:-1]:
        axes.axvline(t, color=FAINT, linewidth=0.8, zorder=0)


def in_thousands(axes: Axes) -> None:
    """Steps along the bottom."""
    axes.set_xlabel("step, thousands")
    axes.xaxis.set_major_formatter(lambda t, _: f"{t / 1000:g}")
