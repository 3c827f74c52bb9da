"""Run data as charts: plain dicts of data and layout, as plotly.js takes them; page.js gives them their colours."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from curlicue.records.files import Array, Json
from curlicue.report.figures import COLOURS, FRAME, MAP
from curlicue.report.pictures import Pictures
from curlicue.report.run_data import RunData

BIRTH, SNAPSHOT, CHANGE = COLOURS[1], COLOURS[2], "rgba(128,128,128,0.35)"
NAMED = 15  # as many spans of classes as have room for their names
CROWD = 40  # upright lines, from which on they are fainter
POINTS = 300  # of a curve
MOST = 12  # components in the chart of the posterior
OTHERS = "rgba(128,128,128,0.3)"
SPRITE_COLUMNS = 32

Score = Callable[[Json], float | None]
PANELS: dict[str, Score] = {
    "Cluster accuracy, %": lambda line: percent(line.get("cluster_accuracy")),
    "Bound, nats": lambda line: line.get("bound"),
    "Components K": lambda line: line.get("K"),
}


def label(text: str, most: int | None = None) -> str:
    """Text that plotly shows as it is; shortened to `most` characters."""
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    return escape(text, quote=False)


# -- one run --------------------------------------------------------------------------------------------------------


def curves(run: RunData) -> Json:
    """Accuracy, bound and K over the same time, with births, snapshots and changes of class."""
    panels = {title: _curve(run, title, score) for title, score in PANELS.items()}
    panels = {title: traces for title, traces in panels.items() if traces}
    layout = _stacked(list(panels), run.steps)
    layout["shapes"] = [
        *_lines("class changes", run.changes[1:-1], CHANGE, "solid"),
        *_lines("snapshots", run.snapshots, SNAPSHOT, "dot"),
        *_lines("births", [line["t"] for line in run.births], BIRTH, "solid"),
    ]
    layout["annotations"] += _class_names(run)
    data = [{**trace, "yaxis": _axis(place)} for place, traces in enumerate(panels.values()) for trace in traces]
    return {"data": data, "layout": layout}


def _curve(run: RunData, title: str, score: Score) -> list[Json]:
    if title.startswith("Components"):
        return [_growth(run)]
    scores = [score(line) for line in run.metrics]
    traces = []
    if title.startswith("Bound") and run.real and run.has_bound:
        lines = _thinned(run.real)
        stream = [_rounded(line["real"]["bound"]) for line in lines]
        traces.append(_trace([line["t"] + 1 for line in lines], stream, COLOURS[5], "bound on the stream", width=1))
    if any(value is not None for value in scores):
        name = "cluster accuracy" if title.startswith("Cluster") else "bound on the test set"
        trace = _trace([line["t"] for line in run.metrics], map(_rounded, scores), COLOURS[0], name)
        traces.append(trace | {"showlegend": title.startswith("Bound")})
    return traces


def _growth(run: RunData) -> Json:
    """K as a staircase; what is known of each birth beside it."""
    t, K, told = [0], [run.first_K], ["from the start"]
    for line in run.births:
        t.append(line["t"])
        K.append(line["component"] + 1)
        told.append(f"component {line['component']} is born from {line['parent']}")
    t, K, told = [*t, run.t], [*K, K[-1]], [*told, "now"]
    trace = _trace(t, K, COLOURS[3], "components K")
    trace |= {
        "mode": "lines+markers",
        "showlegend": False,
        "text": told,
        "hovertemplate": "K %{y}: %{text}<extra></extra>",
    }
    sizes = [0, *[6] * len(run.births), 0]
    return trace | {"line": {"shape": "hv", "color": COLOURS[3], "width": 2}, "marker": {"size": sizes}}


def class_accuracy(run: RunData) -> Json:
    """Accuracy of each class over time; a frame where the stream shows it."""
    lines = [line for line in run.metrics if "class_accuracy" in line]
    shares = [[percent(share) for share in line["class_accuracy"]] for line in lines]  # [T, C]
    z = [list(map(_rounded, row)) for row in zip(*shares, strict=True)]
    frames = []
    for task, (begin, end) in enumerate(pairwise(run.changes)):
        y0, y1 = task * run.at_once - 0.5, min((task + 1) * run.at_once, len(z)) - 0.5
        if len(run.changes) > 2:
            box = {"type": "rect", "x0": begin, "x1": end, "y0": y0, "y1": y1}
            frames.append({**box, "line": {"color": FRAME, "width": 2}})
    heat = _heatmap(z, "%{customdata}: %{z:.0f} % up to step %{x}<extra></extra>", "accuracy, %")
    heat |= {"x": [0, *(line["t"] for line in lines)], "xgap": 0}
    heat["customdata"] = [[label(name, 40)] * len(lines) for name in run.classes]
    layout = {"xaxis": _time(run.steps), "yaxis": _names(run.classes), "shapes": frames}
    return {"data": [heat], "layout": layout | {"height": 110 + max(220, 17 * len(z))}}


def confusion(run: RunData) -> Json:
    """Which components each class lies in; components of the same class stand together."""
    counts = run.confusion
    assert counts is not None
    used = np.flatnonzero(counts.sum(0))
    order = used[np.lexsort((used, counts[:, used].argmax(0)))]  # by the class of each component
    shares = 100 * counts[:, order] / counts.sum(1, keepdims=True).clip(min=1)
    told = "%{z:.1f} % of %{customdata} lie in component %{text}<extra></extra>"
    heat = _heatmap(shares.round(1).tolist(), told, "% of the class")
    heat["customdata"] = [[label(name, 40)] * len(order) for name in run.classes]
    heat["text"] = [[str(k) for k in order]] * len(counts)
    ticks = {"tickmode": "array", "tickvals": list(range(len(order))), "ticktext": [str(k) for k in order]}
    across = ticks | {"title": {"text": "component"}, "tickangle": 0, "tickfont": {"size": 10}, "showgrid": False}
    layout = {"xaxis": across, "yaxis": _names(run.classes), "height": 110 + max(220, 17 * len(counts))}
    return {"data": [heat], "layout": layout}


def posterior(run: RunData) -> Json:
    """Which share of the stream the most used components explained, one on top of the other."""
    t, shares = run.shares
    parts = np.array_split(np.arange(len(t)), min(len(t), POINTS))
    means = np.array([shares[part].mean(0) for part in parts])  # [T, K]
    times = [t[part[-1]] for part in parts]
    most = np.flatnonzero(run.ranks < MOST).tolist()
    data = [_layer(f"component {k}", times, means[:, k], int(run.ranks[k])) for k in most]
    if means.shape[1] > len(most):
        data.append(_layer("all others", times, np.delete(means, most, axis=1).sum(1), None))
    up = {"range": [0, 1], "title": {"text": "mean of q(y|x)"}}
    layout = {"xaxis": _time(run.steps), "yaxis": up, "height": 340, "hovermode": "x unified"}
    layout |= {"annotations": _class_names(run), "shapes": _lines("", run.changes[1:-1], CHANGE, "solid")}
    return {"data": data, "layout": layout | {"showlegend": True, "legend": {"traceorder": "normal"}}}


def _layer(name: str, t: list[int], share: Array, rank: int | None) -> Json:
    """In the colour of that rank; when colours come again they are hatched."""
    colour = OTHERS if rank is None else COLOURS[rank % len(COLOURS)]
    trace = _trace(t, share.round(3).tolist(), colour, name, width=0.5)
    trace |= {"stackgroup": "all", "fillcolor": colour, "hovertemplate": "%{y:.2f}"}
    if rank is not None and rank >= len(COLOURS):
        trace["fillpattern"] = {"shape": "/", "bgcolor": colour, "fgcolor": "white", "size": 7, "solidity": 0.2}
    return trace


def latent(run: RunData, views: Mapping[int, Mapping[str, Array]], places: Sequence[Array], pictures: Pictures) -> Json:
    """Where the test samples lie in some views; page.js draws the view and the colours that are asked for."""
    alike = [10 * xy / max(float(xy.std()), 1e-6) for xy in places]  # t-SNE has no unit
    moments = [
        {"t": t, "x": _two(xy[:, 0]), "y": _two(xy[:, 1]), "component": view["y"].tolist()}
        for (t, view), xy in zip(views.items(), alike, strict=True)
    ]
    points = np.concatenate(alike)
    low, high = points.min(0), points.max(0)
    pad = 0.05 * (high - low) + 1e-3
    ranges = [[round(float(a), 2), round(float(b), 2)] for a, b in zip(low - pad, high + pad, strict=True)]
    told: Json = {"views": moments, "ranges": ranges, "colours": COLOURS, "ranks": run.ranks.tolist()}
    if run.labels is not None:
        told |= {"labels": run.labels.tolist(), "classes": [label(name, 30) for name in run.classes]}
    if run.x is not None and pictures.are_images:
        rows = -(-len(run.x) // SPRITE_COLUMNS)
        told["sprite"] = {
            "src": pictures.sprite(run.x, SPRITE_COLUMNS),
            "columns": SPRITE_COLUMNS,
            "rows": rows,
            "small": max(pictures.shape[:2]) < 20,
        }
    return {"latent": told, "layout": {"height": 520}}


# -- several runs ---------------------------------------------------------------------------------------------------


def compared(groups: Mapping[str, Sequence[RunData]]) -> Json:
    """The curves of each group: the mean over its runs, and a band of a standard deviation."""
    panels = [title for title, score in PANELS.items() if any(_over_time(some, score) for some in groups.values())]
    layout = _stacked(panels, max(run.steps for some in groups.values() for run in some))
    some = next(iter(groups.values()))[0]
    if all(run.changes == some.changes for runs in groups.values() for run in runs):
        layout["shapes"] = _lines("class changes", some.changes[1:-1], CHANGE, "solid")
        layout["annotations"] += _class_names(some)
    data: list[Json] = []
    for n, (name, runs) in enumerate(groups.items()):
        for place, title in enumerate(panels):
            traces = _band(_over_time(runs, PANELS[title]), label(name, 60), n)
            data += [
                {**trace, "yaxis": _axis(place), "showlegend": place == 0 and "fill" not in trace} for trace in traces
            ]
    return {"data": data, "layout": layout}


def _over_time(runs: Iterable[RunData], score: Score) -> dict[int, list[float]]:
    """All values at each step."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for line in run.metrics:
            if (value := score(line)) is not None:
                found.setdefault(line["t"], []).append(value)
    return dict(sorted(found.items()))


def _band(values: dict[int, list[float]], name: str, n: int) -> list[Json]:
    colour, dash = COLOURS[n % len(COLOURS)], ("solid", "dash", "dot", "dashdot")[n // len(COLOURS) % 4]
    mean = [statistics.fmean(some) for some in values.values()]
    line = _trace(list(values), map(_rounded, mean), colour, name)
    line["line"] = {"color": colour, "width": 2, "dash": dash}
    line["legendgroup"] = name
    several = {t: some for t, some in values.items() if len(some) > 1}  # one run alone has no deviation
    if not several:
        return [line]
    edges = [
        [_rounded(statistics.fmean(some) + sign * statistics.stdev(some)) for some in several.values()]
        for sign in (-1, 1)
    ]
    quiet = {"legendgroup": name, "hoverinfo": "skip", "line": {"width": 0, "color": colour}, "fill": "none"}
    low, high = (_trace(list(several), edge, colour, name) | quiet for edge in edges)
    return [low, high | {"fill": "tonexty", "fillcolor": _faint(colour)}, line]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"


# -- parts ----------------------------------------------------------------------------------------------------------


def _trace(t: Sequence[float], values: Iterable[float | None], colour: str, name: str, width: float = 2) -> Json:
    look = {"mode": "lines", "line": {"color": colour, "width": width}}
    return {"type": "scatter", "x": list(t), "y": list(values), "name": name, **look}


def _heatmap(z: Sequence[Sequence[float | None]], told: str, title: str) -> Json:
    bar = {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0}
    heat = {"type": "heatmap", "z": z, "zmin": 0, "zmax": 100, "colorscale": MAP.capitalize(), "colorbar": bar}
    return heat | {"hovertemplate": told, "hoverongaps": False, "xgap": 1, "ygap": 1}


def _stacked(titles: Sequence[str], steps: int) -> Json:
    """Panels below each other that share the steps."""
    n, gap = len(titles), 0.09
    height = (1 - gap * (n - 1)) / n
    layout: Json = {"annotations": [], "shapes": [], "height": 190 * n + 80, "showlegend": True}
    layout |= {"hovermode": "x unified", "hoversubplots": "axis"}
    for place, title in enumerate(titles):
        top = 1 - place * (height + gap)
        layout[_axis(place).replace("y", "yaxis")] = {"domain": [max(0.0, top - height), top], "automargin": True}
        if not title.startswith("Bound"):
            layout[_axis(place).replace("y", "yaxis")]["rangemode"] = "tozero"
        words = {"text": f"<b>{title}</b>", "x": 0, "xanchor": "left", "y": top, "yanchor": "bottom"}
        layout["annotations"].append({**words, "xref": "paper", "yref": "paper", "yshift": 2 if place else 20})
        layout["annotations"][-1] |= {"showarrow": False, "font": {"size": 12}}
    layout["xaxis"] = _time(steps) | {"anchor": _axis(n - 1)}
    return layout


def _axis(place: int) -> str:
    return "y" if place == 0 else f"y{place + 1}"


def _time(steps: int) -> Json:
    return {"range": [0, steps], "title": {"text": "step"}, "showgrid": False, "zeroline": False}


def _names(names: Sequence[str]) -> Json:
    ticks = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": [label(name, 16) for name in names]}
    return ticks | {"autorange": "reversed", "showgrid": False, "zeroline": False, "automargin": True}


def _lines(name: str, steps: Sequence[float], colour: str, dash: str) -> list[Json]:
    """Upright lines, the fainter the more there are; a click in the legend hides them."""
    line, opacity = {"color": colour, "width": 1, "dash": dash}, 0.7 * min(1.0, CROWD / max(1, len(steps)))
    shape = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below", "opacity": opacity}
    named = {"name": name, "legendgroup": name} if name else {}
    return [
        {**shape, **named, "x0": t, "x1": t, "showlegend": bool(name) and place == 0} for place, t in enumerate(steps)
    ]


def _class_names(run: RunData) -> list[Json]:
    """Above the time in which the stream shows them."""
    spans = list(pairwise(run.changes))
    if not 1 < len(spans) <= NAMED:
        return []
    place = {"yref": "paper", "y": 1, "yanchor": "bottom", "yshift": 4, "showarrow": False}
    place |= {"font": {"size": 10}, "opacity": 0.75}
    n = run.at_once
    names = [", ".join(run.classes[task * n : (task + 1) * n]) for task in range(len(spans))]
    before = {**place, "xref": "paper", "x": 0, "xanchor": "right", "xshift": -4, "text": "class"}
    return [before] + [
        {**place, "x": (begin + end) / 2, "text": label(name, max(8, 60 // len(spans)))}
        for name, (begin, end) in zip(names, spans, strict=True)
    ]


def _thinned(lines: Sequence[Json]) -> Sequence[Json]:
    return lines[:: max(1, len(lines) // POINTS)]


def percent(share: float | None) -> float | None:
    """Of a share, if there is one."""
    return None if share is None else 100 * share


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _two(values: Array) -> list[float]:
    return [round(float(value), 2) for value in values]
