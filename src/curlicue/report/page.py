"""A page as it is put together: sections, charts, tables, and the assets they need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from curlicue.errors import MissingExtraError
from curlicue.records.files import Json


@dataclass
class Page:
    """A page: sections in their order, and the charts in them."""

    title: str
    live: int | None = None  # which version of a page that goes on
    sections: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Json] = field(default_factory=dict)

    def add(self, name: str, title: str, *body: str) -> None:
        """Add a section."""
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


# -- parts of sections ----------------------------------------------------------------------------------------------


def note(words: str) -> str:
    """A remark in small print; nothing if there are no words."""
    return f'<p class="note">{escape(words)}</p>' if words else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML and whose headings are text; where it is too wide, it scrolls by itself."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(values: Mapping[str, str]) -> str:
    """A table of names and their values."""
    return table(["name", "value"], [[f"<code>{escape(k)}</code>", escape(v)] for k, v in values.items()])


def beside(each: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """A table with a column for each, and a row for each name that any has."""
    names = sorted({name for _, some in each for name in some})
    rows = [[f"<code>{escape(name)}</code>", *(escape(some.get(name, "–")) for _, some in each)] for name in names]
    return table(["name", *(column for column, _ in each)], rows)
