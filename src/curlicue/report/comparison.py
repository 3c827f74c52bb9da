"""The sections of a page that compares several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from curlicue.report import charts
from curlicue.report.page import Page, beside, note, pairs, table
from curlicue.report.run_data import RunData, flat, grouped, mean_sd, settings
from curlicue.report.scores import confusion_chart, one_level


def compare(made: Page, runs: Sequence[RunData]) -> None:
    """All sections of the page."""
    groups = grouped(list(runs))
    made.add("headline", "What came out", _unfinished(runs), _group_table(groups))
    if any(run.metrics for run in runs):
        chart = made.chart("curves", charts.compared(groups), "Scores of each group over the steps")
        words = "Means over the runs of a group; the bands are one standard deviation wide on either side."
        several = any(len(some) > 1 for some in groups.values())
        made.add("curves", "Over time", chart, note(words if several else ""))
    _side_by_side(made, groups, "classes", "Accuracy of each class", _class_accuracy_of)
    _side_by_side(made, groups, "confusion", "Classes and components", _confusion_of)
    if len(groups) > 1:
        made.add("different", "In what they differ", _differences(groups))
    same = set.intersection(*(set(settings(run).items()) for run in runs))
    boxes = f'<details id="settings"><summary>Settings that all have</summary>{pairs(dict(sorted(same)))}</details>'
    where = [(run.name, flat(one_level(run.environment))) for run in runs]
    boxes += f'<details id="environment"><summary>Environment of each run</summary>{beside(where)}</details>'
    made.add("made", "How they were made", boxes)


def _unfinished(runs: Sequence[RunData]) -> str:
    cut = [f"{run.name} (step {run.t:,} of {run.steps:,})" for run in runs if not run.finished]
    return note(f"Not finished, so that its latest scores count: {', '.join(cut)}.") if cut else ""


def _group_table(groups: Mapping[str, Sequence[RunData]]) -> str:
    """Headline numbers, mean ± standard deviation over the runs of each group."""
    columns: dict[str, tuple[int, Callable[[RunData], float | None]]] = {
        "K": (1, lambda run: run.scores.get("K", run.K)),
        "cluster accuracy, %": (2, lambda run: charts.percent(run.scores.get("cluster_accuracy"))),
        "10-NN error, %": (2, lambda run: charts.percent(run.scores.get("knn_error", {}).get("10"))),
        "bound, nats": (2, lambda run: run.scores.get("bound")),
        "minutes": (1, lambda run: None if run.timing is None else run.timing["minutes"]),
    }
    rows = []
    for name, runs in groups.items():
        cells = [f'<b class="group">{escape(name)}</b>', ", ".join(escape(run.name) for run in runs)]
        cells.append(", ".join(escape(str(run.config["seed"])) for run in runs))
        for digits, value in columns.values():
            values = [found for run in runs if (found := value(run)) is not None]
            words = mean_sd(values, digits).replace("-", "−") if values else ""
            cells.append(f'<span class="number">{words}</span>')
        rows.append(cells)
    return table(["group", "runs", "seeds", *columns], rows)


def _side_by_side(
    made: Page,
    groups: Mapping[str, Sequence[RunData]],
    name: str,
    title: str,
    chart: Callable[[Page, RunData, str], str | None],
) -> None:
    panels, n = [], 0
    for group, runs in groups.items():
        for run in runs:
            n += 1
            if drawn := chart(made, run, f"{name}-{n}"):
                words = f"<b>{escape(run.name)}</b> <span class='quiet'>{escape(group)}</span>"
                panels.append(f'<div class="panel"><h3>{words}</h3>{drawn}</div>')
    if panels:
        made.add(name, title, f'<div class="panels">{"".join(panels)}</div>')


def _class_accuracy_of(made: Page, run: RunData, name: str) -> str | None:
    if not run.classes or not any("class_accuracy" in line for line in run.metrics):
        return None
    return made.chart(name, charts.class_accuracy(run), f"Accuracy of each class over the steps, {run.name}")


def _confusion_of(made: Page, run: RunData, name: str) -> str | None:
    return None if run.confusion is None or not run.classes else confusion_chart(made, run, name)


def _differences(groups: Mapping[str, Sequence[RunData]]) -> str:
    """A row for each setting that is not the same in all groups."""
    each = {group: settings(runs[0]) for group, runs in groups.items()}
    same = set.intersection(*(set(some.items()) for some in each.values()))
    return beside([(group, dict(some.items() - same)) for group, some in each.items()])
