"""The sections of a page about one run that tell what came out and how it was made."""

from __future__ import annotations

from html import escape

from curlicue.records.files import Json
from curlicue.report import charts
from curlicue.report.page import Page, note, pairs
from curlicue.report.run_data import RunData, flat

SCENARIOS = {"Iid": "all classes shuffled", "Drift": "each class fading into the next"}


def headline(made: Page, run: RunData) -> None:
    """The numbers that matter most."""
    tiles = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class="why">{escape(why)}</dd></div>'
        for name, value, why in _numbers(run)
    )
    state = _state(run)
    made.add("headline", "What came out" if run.finished else "So far", state, f'<dl class="tiles">{tiles}</dl>')


def _state(run: RunData) -> str:
    data = escape(str(run.data.get("name", run.config.get("dataset", "data"))))
    words = f"<p>{data}, {escape(_scenario(run))}, {run.steps:,} steps, seed {escape(str(run.config['seed']))}.</p>"
    if run.finished:
        return words
    bar = f'<progress max="{run.steps}" value="{min(run.t, run.steps)}"></progress>'
    return f'{words}<p class="note">The run has not finished: step {run.t:,} of {run.steps:,}. {bar}</p>'


def _scenario(run: RunData) -> str:
    kind = run.config["scenario"]["type"]
    in_turn = "one class after the other" if run.at_once == 1 else f"{run.at_once} classes at a time"
    return SCENARIOS.get(kind, in_turn)


def _numbers(run: RunData) -> list[tuple[str, str, str]]:
    """Name, value and meaning of the numbers that matter most, as far as there are any."""
    scores, found = run.scores, []
    used = scores.get("n_used")
    K = scores.get("K", run.K) if run.finished else run.K  # births are told before they are scored
    known = used is not None and scores.get("K") == K  # since the last birth
    found.append(("Components", str(K), f"K, of which {used} are used" if known else "K"))
    if scores.get("cluster_accuracy") is not None:
        why = "of test samples have the most frequent class of their component"
        found.append(("Cluster accuracy", f"{100 * scores['cluster_accuracy']:.1f} %", why))
    if "10" in scores.get("knn_error", {}):
        why = "of test samples are taken for another class by their ten nearest neighbours"
        found.append(("10-NN error", f"{100 * scores['knn_error']['10']:.1f} %", why))
    for name in ("incremental_class", "incremental_task"):
        if scores.get(name) is not None:
            found.append((name.replace("_", " ").capitalize(), f"{100 * scores[name]:.1f} %", "accuracy, with labels"))
    if "bound" in scores:
        bound = "not finite" if scores["bound"] is None else f"{scores['bound']:.1f}".replace("-", "−")
        found.append(("Bound", bound, "nats: below the log-likelihood of a test sample; higher is better"))
    if run.timing is not None:
        minutes, speed = run.timing["minutes"], run.timing["steps_per_second"]
        found.append(("Minutes", f"{minutes:,.1f}", f"{speed:,.0f} steps a second"))
    return found


def curves(made: Page, run: RunData) -> None:
    """Scores, and the number of components, over time."""
    if not run.metrics and not run.real:
        return
    words = "Cluster accuracy, bound and number of components over the steps"
    words_below = "Click on a name below the chart to hide it."
    if len(run.changes) > 2:
        words_below += " Class changes are faint: the learner is not told of them."
    made.add("curves", "Over time", made.chart("curves", charts.curves(run), words), note(words_below))


def class_accuracy(made: Page, run: RunData) -> None:
    """How well each class is known, over time."""
    if not run.classes or not any("class_accuracy" in line for line in run.metrics):
        return
    chart = made.chart("class-accuracy", charts.class_accuracy(run), "Accuracy of each class over the steps")
    words = "A component counts for the class that most of its test samples have, shown or not yet shown."
    if len(run.changes) > 2:
        words = f"A frame marks when the stream shows a class: what stays bright to its right is not forgotten. {words}"
    made.add("classes", "Accuracy of each class", chart, note(words))


def confusion(made: Page, run: RunData) -> None:
    """Which components the classes lie in."""
    if run.confusion is None or not run.classes:
        return
    chart = confusion_chart(made, run, "confusion")
    n = int(run.confusion.sum())
    words = f"Where {n:,} test samples lie. Components stand beside those of the same class."
    made.add("confusion", "Classes and components", chart, note(words))


def confusion_chart(made: Page, run: RunData, name: str) -> str:
    """A place for the chart of classes and components."""
    assert run.confusion is not None
    figure, K = charts.confusion(run), int(run.confusion.any(0).sum())
    return made.chart(name, figure, "Share of each class in each component", narrowest=150 + 17 * K)


def posterior(made: Page, run: RunData) -> None:
    """Which components explain the stream, of systems that tell."""
    if not run.explained:
        return
    shown = "Share of the stream that the most used components explain, over the steps"
    words = "How much of the real samples of each moment the most used components explain."
    chart = made.chart("posterior", charts.posterior(run), shown)
    made.add("posterior", "Who explains the stream", chart, note(words))


def settings(made: Page, run: RunData) -> None:
    """Settings and environment, folded."""
    tables = [("settings", flat(run.config)), ("environment", flat(one_level(run.environment)))]
    boxes = [
        f'<details id="{name}"><summary>{name.capitalize()}</summary>{pairs(values)}</details>'
        for name, values in tables
        if values
    ]
    made.add("made", "How it was made", *boxes)


def one_level(environment: Json) -> Json:
    """The environment of a run, with each place where it went on under a name of its own."""
    resumed = environment.get("resumed", [])
    return {k: v for k, v in environment.items() if k != "resumed"} | {
        f"resumed.{n}": where for n, where in enumerate(resumed)
    }
