"""Our results beside the paper's numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from curlicue.experiments.paper import Column, Experiment, Number, Row
from curlicue.records.files import Json

Results = Callable[[str], Sequence[Json]]
"""The results of a set-up, by seed."""

NOT_RUN = "not run"
QUOTED = "–"  # the paper took it from others, and so do we
SHORT_OF = "▼"  # worse than the paper by more than two of its standard deviations


@dataclass(frozen=True)
class Cell:
    """What we measured, seed by seed, and what the paper says."""

    column: Column
    values: tuple[float, ...]
    paper: Number | None

    @property
    def short(self) -> bool:
        """Whether our mean is worse than the paper's by more than two of its standard deviations."""
        mean, sd = self.paper or (0.0, None)
        if not self.values or not sd or self.column.higher_is_better is None:
            return False
        ahead = round(statistics.fmean(self.values) - mean, 9)
        return (ahead if self.column.higher_is_better else -ahead) < -2 * sd

    def ours(self) -> str:
        """Mean ± standard deviation, marked if it falls short."""
        if not self.values:
            return ""
        text = shown(self.values, digits=2 if self.column.percent else 0)
        return text + (f" {SHORT_OF}" if self.short else "")

    def theirs(self) -> str:
        """As the paper prints it: with two decimals, or as a whole number."""
        numbers = [number for number in self.paper or () if number is not None]
        return " ± ".join(str(number) if isinstance(number, int) else f"{number:.2f}" for number in numbers)


def shown(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± standard deviation over seeds; a single value with so many digits."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def cells(experiment: Experiment, row: Row, results: Sequence[Json]) -> list[Cell]:
    """One for each column."""
    paper = (*row.paper, *(None for _ in experiment.columns))
    return [
        Cell(column, tuple(map(column.of, results)), number)
        for column, number in zip(experiment.columns, paper, strict=False)
    ]


def header(experiment: Experiment) -> list[str]:
    """The names of the columns; the paper's beside each that it has numbers for."""
    named = [[column.name, "paper"] for column in experiment.columns]
    return ["", "seeds", *_beside(experiment, named), "minutes"]


def lines(experiment: Experiment, results: Results) -> list[list[str]]:
    """The rows as text, under `header`."""
    return [_line(experiment, row, results(row.setup) if row.setup else ()) for row in experiment.rows]


def _line(experiment: Experiment, row: Row, results: Sequence[Json]) -> list[str]:
    numbers = _beside(experiment, [[cell.ours(), cell.theirs()] for cell in cells(experiment, row, results)])
    if row.setup is None:
        return [row.name, QUOTED, *numbers, ""]
    if not results:
        return [row.name, NOT_RUN, *numbers, ""]
    minutes = statistics.fmean(result["timing"]["minutes"] for result in results)
    return [row.name, str(len(results)), *numbers, f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}"]


def _beside(experiment: Experiment, pairs: Sequence[Sequence[str]]) -> list[str]:
    """Ours and the paper's, column by column; ours alone where the paper has no number in any row."""
    texts: list[str] = []
    for place, (ours, theirs) in enumerate(pairs):
        printed = any(row.paper[place : place + 1] not in ((), (None,)) for row in experiment.rows)
        texts += [ours, theirs] if printed else [ours]
    return texts
