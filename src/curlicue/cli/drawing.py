"""The paper's figures, out of results; those of samples and the latent space out of a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from curlicue.experiments.paper import EXPERIMENTS
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.setups import C_NEWS, threshold
from curlicue.experiments.tables import Results
from curlicue.records.files import Json
from curlicue.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL_LENGTH = PRESETS["mnist"].steps


def draw(name: str, results: Results, path: Path, *others: str) -> bool:
    """Figure `name`, as far as there are results for it; whether there are any. Tables have none."""
    painter = PAINTERS.get(name)
    return painter is not None and painter(results, path, *others)


def draw_variants(results: Results, path: Path, *others: str) -> bool:
    """Accuracy of the variants over time, of each class over time, and what is confused in the end."""
    runs = {row.name: results(row.setup) for row in EXPERIMENTS["figure-variants"].rows if row.setup}
    full = next(iter(runs.values()))
    if not full:
        return False
    with figures.figure(path, 11, 3.2, *others) as drawn:
        over_time, by_class, confused = drawn.subplots(1, 3, width_ratios=(4, 4, 3))
        figures.accuracy_over_time(over_time, {label: some for label, some in runs.items() if some})
        figures.class_accuracy(by_class, full[0])
        figures.confusion(confused, full[0])
        seed = f"seed {full[0]['config']['seed']}"
        over_time.set_title("a) mean over seeds ± a standard deviation", fontsize=9)
        by_class.set_title(f"b) class by class, {seed} (framed: now shown)", fontsize=9)
        confused.set_title(f"c) % of each class, {seed}", fontsize=9)
        _say_if_short(drawn, [each for some in runs.values() for each in some])
    return True


def draw_thresholds(results: Results, path: Path, *others: str) -> bool:
    """What c_new does."""
    scenarios = {"one after the other": "", "shuffled": "iid-"}
    runs = {
        label: {float(c): some for c in C_NEWS if (some := results(threshold(c, scenario)))}
        for label, scenario in scenarios.items()
    }
    runs = {label: by_threshold for label, by_threshold in runs.items() if len(by_threshold) > 1}
    if not runs:
        return False
    fixed = {label: results(f"mnist-{scenarios[label]}no-expansion") for label in runs}
    with figures.figure(path, 9, 2.8, *others) as drawn:
        figures.thresholds(list(drawn.subplots(1, 3)), runs, fixed)
        shown = [some for label in runs for some in (*runs[label].values(), fixed[label])]
        _say_if_short(drawn, [each for some in shown for each in some])
    return True


def draw_posterior(results: Results, path: Path, *others: str) -> bool:
    """The most used components, with discrete changes and with drift."""
    rows = EXPERIMENTS["figure-posterior"].rows
    first = {row.name: some[0] for row in rows if row.setup and (some := results(row.setup))}
    first = {name: result for name, result in first.items() if result.get("posterior", {}).get("t")}
    if not first:
        return False
    with figures.figure(path, 9, 2.6, *others) as drawn:
        figures.posteriors(drawn, first)
        _say_if_short(drawn, list(first.values()))
    return True


def _say_if_short(drawn: Figure, results: Sequence[Json]) -> None:
    """Above a figure whose runs are not as long as the paper's."""
    if note := short_of_the_paper(result["config"]["steps"] for result in results):
        drawn.suptitle(note, fontsize=9)


def short_of_the_paper(steps: Iterable[int]) -> str:
    """How many steps runs took, if some took fewer than the paper's."""
    taken = sorted(set(steps))
    if taken[0] >= FULL_LENGTH:
        return ""
    return f"{', '.join(f'{n:,}' for n in taken)} of the paper's {FULL_LENGTH:,} steps"


PAINTERS: dict[str, Callable[..., bool]] = {
    "figure-variants": draw_variants,
    "figure-c-new": draw_thresholds,
    "figure-posterior": draw_posterior,
}
