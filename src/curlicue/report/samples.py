"""The sections of a page about one run that show its samples: latent space, generated samples, lives, D_new."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape

import numpy as np

from curlicue.records.files import Array, Json
from curlicue.report import charts
from curlicue.report.figures import spread
from curlicue.report.latent import Projector, moments
from curlicue.report.page import Page, note, table
from curlicue.report.pictures import Pictures
from curlicue.report.run_data import Life, RunData

GENERATED, NEAREST = 8, 8  # pictures of a component in the table
GENERATED_IN_VIEW, MANY_VIEWS = 4, 20  # where views are many, one generated sample only
SHOWN_OF_D_NEW, D_NEW_COLUMNS = 20, 10


def latent(made: Page, run: RunData, pictures: Pictures, projector: Projector) -> None:
    """Where the test samples lie in the space of embeddings, view after view."""
    if not run.views:
        return
    views = {t: run.views[t] for t in moments(list(run.views), run.steps)}
    places = projector.project(view["z"] for view in views.values())
    buttons = "".join(
        f'<button type="button" id="colour-{name}" data-colour="{name}">{name}</button>'
        for name in ("class", "component")
    )
    choice = f'<span class="choice" role="group" aria-label="Colour by">Colour by {buttons}</span>'
    choice = choice if run.labels is not None else ""
    chart = made.chart(
        "latent", charts.latent(run, views, places, pictures), "The test samples in latent space, by t-SNE"
    )
    box = f'<div class="latent">{chart}<div class="sample" aria-live="polite" hidden></div></div>'
    n = len(places[0])
    words = f"{n:,} test samples, by t-SNE; each view starts from the one before. Point at one to see it."
    legend = '<div class="legend" id="latent-legend"></div>'
    controls = f'<div class="controls">{_slider("latent", list(views))}{choice}</div>'
    made.add("latent", "Latent space", controls, box, legend, note(words))


def _slider(name: str, steps: list[int]) -> str:
    last = len(steps) - 1
    return (
        f'<span class="choice"><button type="button" class="play" id="play-{name}" aria-label="Play">▶</button>'
        f'<input type="range" id="slider-{name}" min="0" max="{last}" value="{last}" data-steps="{json.dumps(steps)}" '
        f'aria-label="View after so many steps"><output>step {steps[-1]:,}</output></span>'
    )


def generated(made: Page, run: RunData, pictures: Pictures) -> None:
    """What each component generates: a panel for each view, of systems that generate."""
    if not run.generates:
        return
    views = {t: view["generated"] for t, view in run.views.items()}  # [K, n, D] each
    n = GENERATED_IN_VIEW if len(views) < MANY_VIEWS else 1
    known = [0, *map(len, views.values())]  # components in the view before each
    panels = [
        _panel(place, samples[:, :n], pictures, known[place] if place else len(samples), place == len(views) - 1)
        for place, samples in enumerate(views.values())
    ]
    words = "What each component generates at that step. Those that are new since the view before are framed."
    controls = f'<div class="controls">{_slider("generated", list(views))}</div>'
    made.add("generated", "What it generates", controls, *panels, note(words))


def _panel(place: int, samples: Array, pictures: Pictures, known: int, shown: bool) -> str:
    """Generated samples [K, n, D] of one view; components from the `known` ones on are new."""
    cells = "".join(_component(k, some, pictures, new=k >= known) for k, some in enumerate(samples))
    return f'<div class="generated" data-view="{place}"{"" if shown else " hidden"}>{cells}</div>'


def _component(k: int, samples: Array, pictures: Pictures, new: bool) -> str:
    picture = pictures.draw(samples, f"samples that component {k} generates", columns=2)
    frame = ' class="new"' if new else ""
    return f"<figure{frame}>{picture}<figcaption>{k}</figcaption></figure>"


def lives(made: Page, run: RunData, pictures: Pictures) -> None:
    """A row for each component: its birth, its class, its samples."""
    columns: dict[str, Callable[[Life], str]] = {
        "component": lambda life: f'<span id="component-{life.component}">{life.component}</span>',
        "born at step": lambda life: "the start" if life.parent is None else f"{life.born:,}",
        "from": lambda life: "" if life.parent is None else f'<a href="#component-{life.parent}">{life.parent}</a>',
    }
    if run.usage is not None:
        columns["share of the stream"] = lambda life: _share(run, life)
    if run.confusion is not None:
        columns["mostly"] = lambda life: _mostly(run, life)
    if run.generates:
        columns["generates"] = lambda life: _generated_last(run, life.component, pictures)
    if run.views and run.x is not None:
        columns["nearest real samples"] = lambda life: _nearest(run, life.component, pictures)
    rows = [[cell(life) for cell in columns.values()] for life in run.lives]
    shares = "Share of the stream: of all real samples so far; the line shows it over time."
    words = note(shares if run.usage is not None else "")
    made.add("components", "The life of each component", table(list(columns), rows), words)


def _share(run: RunData, life: Life) -> str:
    assert life.share is not None
    over_time = run.shares[1][:, life.component]
    parts = np.array_split(over_time, min(len(over_time), 60))
    heights = [float(part.mean()) for part in parts]
    points = " ".join(f"{n:g},{20 - 18 * height:.1f}" for n, height in enumerate(heights))
    line = (
        f'<svg class="spark" viewBox="0 0 {max(1, len(heights) - 1)} 21" preserveAspectRatio="none" aria-hidden="true">'
    )
    return f'<span class="share"><span>{100 * life.share:.1f} %</span>{line}<polyline points="{points}"/></svg></span>'


def _mostly(run: RunData, life: Life) -> str:
    if life.label is None or life.purity is None:
        return '<span class="quiet">no test sample</span>'
    return f'<b>{escape(run.classes[life.label])}</b> <span class="quiet">{100 * life.purity:.0f} %</span>'


def _generated_last(run: RunData, k: int, pictures: Pictures) -> str:
    samples = run.last_view["generated"]
    alt = f"samples that component {k} generates"
    return pictures.draw(samples[k][:GENERATED], alt) if k < len(samples) else ""


def _nearest(run: RunData, k: int, pictures: Pictures) -> str:
    assert run.x is not None
    rows = run.nearest(k, NEAREST)
    if not len(rows):
        return '<span class="quiet">none in the view</span>'
    return pictures.draw(run.x[rows], f"the real samples nearest to the centre of component {k}")


def d_new(made: Page, run: RunData, pictures: Pictures) -> None:
    """The samples that each component was born of."""
    cards = [
        _birth(line, run.d_new[line["component"]], pictures) for line in run.births if line["component"] in run.d_new
    ]
    if cards:
        words = "The samples that were poorly explained when a component was born, and became its first."
        made.add("births", "What was new at each birth", note(words), f'<div class="cards">{"".join(cards)}</div>')


def _birth(line: Json, samples: Array, pictures: Pictures) -> str:
    k, n = line["component"], len(samples)
    chosen = spread(samples, SHOWN_OF_D_NEW)
    before, after = line.get("bound_before"), line.get("bound_after")
    fitted = (
        "" if before is None or after is None else f"; fitting lifts their bound from {before:.0f} to {after:.0f} nats"
    )
    head = f"<b>Component {k}</b>, step {line['t']:,}: {n} samples{fitted.replace('-', '−')}"
    shown = f"{len(chosen)} of the {n} samples that component {k} was born of"
    return f'<div class="card"><p>{head}</p>{pictures.draw(chosen, shown, D_NEW_COLUMNS)}</div>'
