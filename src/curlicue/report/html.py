"""Run directories → one page that opens anywhere, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np

from curlicue.errors import MissingExtraError
from curlicue.records import Array, Json, write_atomically
from curlicue.report import charts
from curlicue.report.figures import spread
from curlicue.report.latent import Projector, moments
from curlicue.report.pictures import Pictures
from curlicue.report.story import Life, Story, flat, grouped, mean_sd, settings, telling_damage

DREAMS, NEAREST = 8, 8  # pictures of a component in the table
DREAMS_IN_VIEW, MANY_VIEWS = 4, 20  # where views are many, only one dream
SHOWN_OF_D_NEW, D_NEW_COLUMNS = 20, 10
SCENARIOS = {"Iid": "all classes shuffled", "Drift": "each class fading into the next"}


@dataclass
class Page:
    """Sections in their order, and the charts in them."""

    title: str
    live: int | None = None  # which version of a page that goes on
    sections: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Json] = field(default_factory=dict)

    def add(self, name: str, title: str, *body: str) -> None:
        """A section."""
        inside = "\n".join(body)
        self.sections[name] = f'<section id="{name}">\n<h2>{escape(title)}</h2>\n{inside}\n</section>'

    def chart(self, name: str, figure: Json, words: str, narrowest: int = 0) -> str:
        """A place for a chart; where the page is narrower than `narrowest` pixels, it scrolls."""
        self.figures[name] = figure
        size = f"height:{figure['layout']['height']}px;min-width:{narrowest}px"
        where = f'id="chart-{name}" data-figure="{name}" style="{size}"'
        return f'<div class="scroll"><div class="chart" role="img" aria-label="{escape(words)}" {where}></div></div>'

    def html(self) -> str:
        """The whole page."""
        return Template(_asset("page.html")).substitute(
            title=escape(self.title),
            connect="'none'" if self.live is None else "'self'",
            attributes="" if self.live is None else f' data-live="{self.live}"',
            css=_asset("page.css"),
            sections="\n".join(self.sections.values()),
            figures=as_script(self.figures),
            plotly=plotly_js(),
            js=_asset("page.js"),
        )


def write_page(stories: Sequence[Story], out: Path, projector: Projector | None = None) -> int:
    """The page of these runs; returns how many bytes it has."""
    contents = page(stories, projector or Projector()).html().encode()
    write_atomically(out, contents)
    return len(contents)


def page(stories: Sequence[Story], projector: Projector, live: int | None = None) -> Page:
    """Of one run, or of several that are compared."""
    with telling_damage(*(story.path for story in stories)):
        return _page(stories, projector, live)


def _page(stories: Sequence[Story], projector: Projector, live: int | None) -> Page:
    if len(stories) > 1:
        made = Page(f"{len(stories)} runs", live)
        _compare(made, stories)
        return made
    (story,) = stories
    made = Page(story.name, live)
    pictures = Pictures.of(story)
    _headline(made, story)
    for section in (_curves, _class_accuracy, _confusion, _posterior):
        section(made, story)
    _latent(made, story, pictures, projector)
    _dreams(made, story, pictures)
    _lives(made, story, pictures)
    _d_new(made, story, pictures)
    _settings(made, story)
    return made


def as_script(value: object) -> str:
    """JSON that no text in it can break out of."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def plotly_js() -> str:
    """The library that draws the charts."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError("The page needs plotly. Install it: pip install 'curlicue[report]'") from None
    return str(get_plotlyjs())


@cache
def _asset(name: str) -> str:
    return (files("curlicue.report") / name).read_text(encoding="utf-8")


# -- what came out --------------------------------------------------------------------------------------------------


def _headline(made: Page, story: Story) -> None:
    tiles = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class="why">{escape(why)}</dd></div>'
        for name, value, why in _numbers(story)
    )
    state = _state(story)
    made.add("headline", "What came out" if story.finished else "So far", state, f'<dl class="tiles">{tiles}</dl>')


def _state(story: Story) -> str:
    data = escape(str(story.data.get("name", story.config.get("dataset", "data"))))
    words = (
        f"<p>{data}, {escape(_scenario(story))}, {story.steps:,} steps, seed {escape(str(story.config['seed']))}.</p>"
    )
    if story.finished:
        return words
    bar = f'<progress max="{story.steps}" value="{min(story.t, story.steps)}"></progress>'
    return f'{words}<p class="note">The run has not finished: step {story.t:,} of {story.steps:,}. {bar}</p>'


def _scenario(story: Story) -> str:
    kind = story.config["scenario"]["type"]
    in_turn = "one class after the other" if story.at_once == 1 else f"{story.at_once} classes at a time"
    return SCENARIOS.get(kind, in_turn)


def _numbers(story: Story) -> list[tuple[str, str, str]]:
    """Name, value and meaning of the numbers that matter most, as far as there are any."""
    scores, found = story.scores, []
    used = scores.get("n_used")
    K = scores.get("K", story.K) if story.finished else story.K  # births are told before they are scored
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
    if story.timing is not None:
        minutes, speed = story.timing["minutes"], story.timing["steps_per_second"]
        found.append(("Minutes", f"{minutes:,.1f}", f"{speed:,.0f} steps a second"))
    return found


def _curves(made: Page, story: Story) -> None:
    if not story.metrics and not story.real:
        return
    words = "Cluster accuracy, bound and number of components over the steps"
    note = "Click on a name below the chart to hide it."
    if len(story.changes) > 2:
        note += " Class changes are faint: the learner is not told of them."
    made.add("curves", "Over time", made.chart("curves", charts.curves(story), words), _note(note))


def _class_accuracy(made: Page, story: Story) -> None:
    if not story.classes or not any("class_accuracy" in line for line in story.metrics):
        return
    chart = made.chart("class-accuracy", charts.class_accuracy(story), "Accuracy of each class over the steps")
    note = "A component counts for the class that most of its test samples have, shown or not yet shown."
    if len(story.changes) > 2:
        note = f"A frame marks when the stream shows a class: what stays bright to its right is not forgotten. {note}"
    made.add("classes", "Accuracy of each class", chart, _note(note))


def _confusion(made: Page, story: Story) -> None:
    if story.confusion is None or not story.classes:
        return
    chart = _confusion_chart(made, story, "confusion")
    n = int(story.confusion.sum())
    note = f"Where {n:,} test samples lie. Components stand beside those of the same class."
    made.add("confusion", "Classes and components", chart, _note(note))


def _confusion_chart(made: Page, story: Story, name: str) -> str:
    assert story.confusion is not None
    figure, K = charts.confusion(story), int(story.confusion.any(0).sum())
    return made.chart(name, figure, "Share of each class in each component", narrowest=150 + 17 * K)


def _posterior(made: Page, story: Story) -> None:
    if not story.real:
        return
    words = "Share of the stream that the most used components explain, over the steps"
    note = "How much of the real samples of each moment the most used components explain."
    made.add(
        "posterior", "Who explains the stream", made.chart("posterior", charts.posterior(story), words), _note(note)
    )


# -- what it looks like ---------------------------------------------------------------------------------------------


def _latent(made: Page, story: Story, pictures: Pictures, projector: Projector) -> None:
    if not story.views:
        return
    views = {t: story.views[t] for t in moments(list(story.views), story.steps)}
    places = projector.project(view["z"] for view in views.values())
    buttons = "".join(
        f'<button type="button" id="colour-{name}" data-colour="{name}">{name}</button>'
        for name in ("class", "component")
    )
    choice = f'<span class="choice" role="group" aria-label="Colour by">Colour by {buttons}</span>'
    choice = choice if story.labels is not None else ""
    chart = made.chart(
        "latent", charts.latent(story, views, places, pictures), "The test samples in latent space, by t-SNE"
    )
    box = f'<div class="latent">{chart}<div class="sample" aria-live="polite" hidden></div></div>'
    n = len(places[0])
    note = f"{n:,} test samples, by t-SNE; each view starts from the one before. Point at one to see it."
    legend = '<div class="legend" id="latent-legend"></div>'
    controls = f'<div class="controls">{_slider("latent", list(views))}{choice}</div>'
    made.add("latent", "Latent space", controls, box, legend, _note(note))


def _slider(name: str, steps: list[int]) -> str:
    last = len(steps) - 1
    return (
        f'<span class="choice"><button type="button" class="play" id="play-{name}" aria-label="Play">▶</button>'
        f'<input type="range" id="slider-{name}" min="0" max="{last}" value="{last}" data-steps="{json.dumps(steps)}" '
        f'aria-label="View after so many steps"><output>step {steps[-1]:,}</output></span>'
    )


def _dreams(made: Page, story: Story, pictures: Pictures) -> None:
    """A panel for each view."""
    if not story.views:
        return
    panels, before = [], 0
    n = DREAMS_IN_VIEW if len(story.views) < MANY_VIEWS else 1
    for place, view in enumerate(story.views.values()):
        cells = "".join(
            _dream(k, dreams[:n], pictures, new=bool(place) and k >= before) for k, dreams in enumerate(view["dreams"])
        )
        hidden = "" if place == len(story.views) - 1 else " hidden"
        panels.append(f'<div class="dreams" data-view="{place}"{hidden}>{cells}</div>')
        before = len(view["dreams"])
    note = "What each component imagines at that step. Those that are new since the view before are framed."
    controls = f'<div class="controls">{_slider("dreams", list(story.views))}</div>'
    made.add("dreams", "What it dreams", controls, *panels, _note(note))


def _dream(k: int, dreams: Array, pictures: Pictures, new: bool) -> str:
    picture = pictures.draw(dreams, f"dreams of component {k}", columns=2)
    frame = ' class="new"' if new else ""
    return f"<figure{frame}>{picture}<figcaption>{k}</figcaption></figure>"


def _lives(made: Page, story: Story, pictures: Pictures) -> None:
    columns: dict[str, Callable[[Life], str]] = {
        "component": lambda life: f'<span id="component-{life.component}">{life.component}</span>',
        "born at step": lambda life: "the start" if life.parent is None else f"{life.born:,}",
        "from": lambda life: "" if life.parent is None else f'<a href="#component-{life.parent}">{life.parent}</a>',
    }
    if story.usage is not None:
        columns["share of the stream"] = lambda life: _share(story, life)
    if story.confusion is not None:
        columns["mostly"] = lambda life: _mostly(story, life)
    if story.views:
        columns["dreams"] = lambda life: _last_dreams(story, life.component, pictures)
    if story.views and story.x is not None:
        columns["nearest real samples"] = lambda life: _nearest(story, life.component, pictures)
    rows = [[cell(life) for cell in columns.values()] for life in story.lives]
    note = "Share of the stream: of all real samples so far; the line shows it over time."
    made.add("components", "The life of each component", _table(list(columns), rows), _note(note))


def _share(story: Story, life: Life) -> str:
    assert life.share is not None
    over_time = story.shares[1][:, life.component]
    parts = np.array_split(over_time, min(len(over_time), 60))
    heights = [float(part.mean()) for part in parts]
    points = " ".join(f"{n:g},{20 - 18 * height:.1f}" for n, height in enumerate(heights))
    line = (
        f'<svg class="spark" viewBox="0 0 {max(1, len(heights) - 1)} 21" preserveAspectRatio="none" aria-hidden="true">'
    )
    return f'<span class="share"><span>{100 * life.share:.1f} %</span>{line}<polyline points="{points}"/></svg></span>'


def _mostly(story: Story, life: Life) -> str:
    if life.label is None or life.purity is None:
        return '<span class="quiet">no test sample</span>'
    return f'<b>{escape(story.classes[life.label])}</b> <span class="quiet">{100 * life.purity:.0f} %</span>'


def _last_dreams(story: Story, k: int, pictures: Pictures) -> str:
    dreams = story.last_view["dreams"]
    return pictures.draw(dreams[k][:DREAMS], f"dreams of component {k}") if k < len(dreams) else ""


def _nearest(story: Story, k: int, pictures: Pictures) -> str:
    assert story.x is not None
    rows = story.nearest(k, NEAREST)
    if not len(rows):
        return '<span class="quiet">none in the view</span>'
    return pictures.draw(story.x[rows], f"the real samples nearest to the centre of component {k}")


def _d_new(made: Page, story: Story, pictures: Pictures) -> None:
    cards = [
        _birth(line, story.d_new[line["component"]], pictures)
        for line in story.births
        if line["component"] in story.d_new
    ]
    if cards:
        note = "The samples that were poorly explained when a component was born, and became its first."
        made.add("births", "What was new at each birth", _note(note), f'<div class="cards">{"".join(cards)}</div>')


def _birth(line: Json, d_new: Array, pictures: Pictures) -> str:
    k, n = line["component"], len(d_new)
    chosen = spread(d_new, SHOWN_OF_D_NEW)
    before, after = line.get("bound_before"), line.get("bound_after")
    fitted = (
        "" if before is None or after is None else f"; fitting lifts their bound from {before:.0f} to {after:.0f} nats"
    )
    head = f"<b>Component {k}</b>, step {line['t']:,}: {n} samples{fitted.replace('-', '−')}"
    shown = f"{len(chosen)} of the {n} samples that component {k} was born of"
    return f'<div class="card"><p>{head}</p>{pictures.draw(chosen, shown, D_NEW_COLUMNS)}</div>'


# -- how it was made ------------------------------------------------------------------------------------------------


def _settings(made: Page, story: Story) -> None:
    tables = [("settings", flat(story.config)), ("environment", flat(_one_level(story.environment)))]
    boxes = [
        f'<details id="{name}"><summary>{name.capitalize()}</summary>{_pairs(values)}</details>'
        for name, values in tables
        if values
    ]
    made.add("made", "How it was made", *boxes)


def _one_level(environment: Json) -> Json:
    """Where a run went on elsewhere is a list of objects."""
    resumed = environment.get("resumed", [])
    return {k: v for k, v in environment.items() if k != "resumed"} | {
        f"resumed.{n}": where for n, where in enumerate(resumed)
    }


def _pairs(values: Mapping[str, str]) -> str:
    return _table(["name", "value"], [[f"<code>{escape(k)}</code>", escape(v)] for k, v in values.items()])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML, headings are text; where it is too wide, it scrolls by itself."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _note(words: str) -> str:
    return f'<p class="note">{escape(words)}</p>' if words else ""


# -- several runs ---------------------------------------------------------------------------------------------------


def _compare(made: Page, stories: Sequence[Story]) -> None:
    groups = grouped(list(stories))
    made.add("headline", "What came out", _unfinished(stories), _group_table(groups))
    if any(story.metrics for story in stories):
        chart = made.chart("curves", charts.compared(groups), "Scores of each group over the steps")
        note = "Means over the runs of a group; the bands are one standard deviation wide on either side."
        several = any(len(some) > 1 for some in groups.values())
        made.add("curves", "Over time", chart, _note(note if several else ""))
    _side_by_side(made, groups, "classes", "Accuracy of each class", _class_accuracy_of)
    _side_by_side(made, groups, "confusion", "Classes and components", _confusion_of)
    if len(groups) > 1:
        made.add("different", "In what they differ", _differences(groups))
    same = set.intersection(*(set(settings(story).items()) for story in stories))
    boxes = f'<details id="settings"><summary>Settings that all have</summary>{_pairs(dict(sorted(same)))}</details>'
    where = [(story.name, flat(_one_level(story.environment))) for story in stories]
    boxes += f'<details id="environment"><summary>Environment of each run</summary>{_beside(where)}</details>'
    made.add("made", "How they were made", boxes)


def _unfinished(stories: Sequence[Story]) -> str:
    cut = [f"{story.name} (step {story.t:,} of {story.steps:,})" for story in stories if not story.finished]
    return _note(f"Not finished, so that its latest scores count: {', '.join(cut)}.") if cut else ""


def _group_table(groups: Mapping[str, Sequence[Story]]) -> str:
    """Headline numbers, mean ± standard deviation over the runs of each group."""
    columns: dict[str, tuple[int, Callable[[Story], float | None]]] = {
        "K": (1, lambda story: story.scores.get("K", story.K)),
        "cluster accuracy, %": (2, lambda story: charts.percent(story.scores.get("cluster_accuracy"))),
        "10-NN error, %": (2, lambda story: charts.percent(story.scores.get("knn_error", {}).get("10"))),
        "bound, nats": (2, lambda story: story.scores.get("bound")),
        "minutes": (1, lambda story: None if story.timing is None else story.timing["minutes"]),
    }
    rows = []
    for name, stories in groups.items():
        cells = [f'<b class="group">{escape(name)}</b>', ", ".join(escape(story.name) for story in stories)]
        cells.append(", ".join(escape(str(story.config["seed"])) for story in stories))
        for digits, value in columns.values():
            values = [found for story in stories if (found := value(story)) is not None]
            words = mean_sd(values, digits).replace("-", "−") if values else ""
            cells.append(f'<span class="number">{words}</span>')
        rows.append(cells)
    return _table(["group", "runs", "seeds", *columns], rows)


def _side_by_side(
    made: Page,
    groups: Mapping[str, Sequence[Story]],
    name: str,
    title: str,
    chart: Callable[[Page, Story, str], str | None],
) -> None:
    panels, n = [], 0
    for group, stories in groups.items():
        for story in stories:
            n += 1
            if drawn := chart(made, story, f"{name}-{n}"):
                words = f"<b>{escape(story.name)}</b> <span class='quiet'>{escape(group)}</span>"
                panels.append(f'<div class="panel"><h3>{words}</h3>{drawn}</div>')
    if panels:
        made.add(name, title, f'<div class="panels">{"".join(panels)}</div>')


def _class_accuracy_of(made: Page, story: Story, name: str) -> str | None:
    if not story.classes or not any("class_accuracy" in line for line in story.metrics):
        return None
    return made.chart(name, charts.class_accuracy(story), f"Accuracy of each class over the steps, {story.name}")


def _confusion_of(made: Page, story: Story, name: str) -> str | None:
    return None if story.confusion is None or not story.classes else _confusion_chart(made, story, name)


def _differences(groups: Mapping[str, Sequence[Story]]) -> str:
    """A row for each setting that is not the same in all groups."""
    each = {group: settings(stories[0]) for group, stories in groups.items()}
    same = set.intersection(*(set(some.items()) for some in each.values()))
    return _beside([(group, dict(some.items() - same)) for group, some in each.items()])


def _beside(each: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """A column for each, a row for each name that any has."""
    names = sorted({name for _, some in each for name in some})
    rows = [[f"<code>{escape(name)}</code>", *(escape(some.get(name, "–")) for _, some in each)] for name in names]
    return _table(["name", *(column for column, _ in each)], rows)
