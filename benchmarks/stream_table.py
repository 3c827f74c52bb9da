"""The page docs/streams.md, out of benchmarks/streams.json and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from curlicue.records.files import Json
from stream_kinds import KINDS
from stream_systems import OURS, PATIENCE, SYSTEMS

Rows = Sequence[Json]
Cells = Mapping[tuple[str, str], Rows]  # rows of all seeds, by stream and system
TIED = 0.005  # of ARI: what is nearer to the best is as good
LOST = 0.02  # of ARI: what another system is ahead where we lose
MARKS = {"K": "†", "sees all rows at once": "‡", "sees all rows at once; at most 2K components": "‡"}
INTRODUCTION = """# What CURL finds

On streams and on data at rest, with its defaults and told nothing, beside systems that are told more. This page is made
of [benchmarks/streams.json](../benchmarks/streams.json); no number is typed by hand. Measure and write it:

```sh
OMP_NUM_THREADS=1 python benchmarks/streams.py --seeds 5 --jobs 2  # --help shows all options
```
"""
LEGEND = f"""A cell is the mean adjusted Rand index (ARI) of the clusters of labelled rows; in brackets the mean number
of clusters found, of which there truly are K. ± is the standard deviation over seeds. The best are in bold.
{MARKS["K"]} is told K, ‡ sees all rows at once, and the others learn the batches as they come. All but CURL get
them standardised with the mean and deviation of the whole stream. Where one cluster is true, the ARI is 1 if one is
found, else 0, and – stands for those who are told. For the births of CURL:

- *births a change*: births in time after a change, over changes; the streams below say what is in time;
- *false*: births at any other time, beyond those for the clusters that are there from the beginning;
- *delay*: rows from a change to the first birth before the next one, on average;
- *missed*: the share of changes without any.
"""


def page(report: Json) -> str:
    """The text."""
    cells: dict[tuple[str, str], list[Json]] = {}
    for row in report["rows"]:
        cells.setdefault((row["stream"], row["system"]), []).append(row)
    systems = [name for name in SYSTEMS if any(name == system for _, system in cells)]
    found = {stream for stream, _ in cells}
    streams = [*(name for name in KINDS if name in found), *sorted(found - KINDS.keys())]
    parts = [INTRODUCTION, LEGEND, results(streams, systems, cells)]
    parts += ["## Where we lose\n", losses(streams, systems, cells), "## Speed\n", speeds(systems, cells)]
    parts += ["## The streams\n", descriptions(streams, report["rows"]), "## Notes\n", notes(report["rows"])]
    return "\n".join([*parts, provenance(report)])


# -- the table --------------------------------------------------------------------------------------------------------


def results(streams: Iterable[str], systems: Sequence[str], cells: Cells) -> str:
    """A row for each stream, a column for each system."""
    others = [name for name in systems if name != OURS]
    births = ["births a change", "false", "delay, rows", "missed"]
    head = ["stream", "K", OURS, *births, *map(marked, others)]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for stream in streams:
        of = {name: cells.get((stream, name), ()) for name in (OURS, *others)}
        asked = {name: rows for name, rows in of.items() if not is_told(name, rows)}
        best = max((score for rows in asked.values() if (score := mean(rows, "ari")) is not None), default=None)
        K = next(row["true_K"] for rows in of.values() for row in rows)
        answers = [per_change(of[OURS]), number(mean(of[OURS], "false_births"), 1), *delays(of[OURS])]
        shown = [agreement(of[name], best) if name in asked else "–" for name in others]
        lines.append([stream, str(K), agreement(of[OURS], best, ours=True), *answers, *shown])
    return markdown(lines)


def marked(system: str) -> str:
    """A system's name with the sign for what it knows beforehand."""
    return system + MARKS.get(SYSTEMS[system].told, "")


def is_told(system: str, rows: Rows) -> bool:
    """Whether the only question is how many clusters there are, and the system is told."""
    return SYSTEMS[system].told == "K" and any(row["true_K"] == 1 for row in rows)


def agreement(rows: Rows, best: float | None, ours: bool = False) -> str:
    """ARI and number of clusters; of ours the spread and the number of components too."""
    ari = mean(rows, "ari")
    if ari is None or best is None:
        return "fails" if rows else ""
    text, K = number(ari, 2), number(mean(rows, "K"), 1)
    if ours:
        text += f" ± {statistics.stdev(row['ari'] for row in scored(rows)):.2f}" if len(scored(rows)) > 1 else ""
        K += f" of {number(mean(rows, 'n_components'), 1)}"
    text = f"**{text}**" if ari > best - TIED else text
    failed = len(rows) - len(scored(rows))
    return f"{text} ({K})" + (f", {failed} of {len(rows)} fail" if failed else "")


def per_change(rows: Rows) -> str:
    """Births in time; without changes nothing."""
    return number(mean(rows, "births_per_change"), 2)


def delays(rows: Rows) -> tuple[str, str]:
    """The mean delay of changes that a birth answered, and the share of those that none did."""
    each = [delay for row in scored(rows) for delay in row.get("delays", ())]
    answered = [delay for delay in each if delay is not None]
    delay = f"{statistics.mean(answered):,.0f}" if answered else ""
    return delay, number(1 - len(answered) / len(each), 2) if each else ""


def scored(rows: Rows) -> Rows:
    """Those that did not fail."""
    return [row for row in rows if "error" not in row]


def mean(rows: Rows, name: str) -> float | None:
    """The mean of a score over seeds; None if no row has it."""
    values = [row[name] for row in scored(rows) if row.get(name) is not None]
    return statistics.mean(values) if values else None


def number(value: float | None, digits: int) -> str:
    """A number, without digits that say nothing; nothing for None."""
    if value is None:
        return ""
    text = f"{value:.{digits}f}"
    return text.removesuffix(".0") if digits == 1 else text.replace("-0.00", "0.00")


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


# -- beside it --------------------------------------------------------------------------------------------------------


def losses(streams: Iterable[str], systems: Sequence[str], cells: Cells) -> str:
    """The streams on which another system is ahead of ours, those first where it is most; what fails has nothing."""
    behind: list[tuple[float, str]] = []
    for stream in streams:
        if not (rows := cells.get((stream, OURS))):
            continue
        ours = mean(rows, "ari")
        rivals = {name: cells.get((stream, name), ()) for name in systems if name != OURS}
        theirs = {name: mean(rows, "ari") or 0.0 for name, rows in rivals.items() if not is_told(name, rows)}
        ahead = {name: ari for name, ari in theirs.items() if ari > (ours or 0.0) + LOST}
        if names := sorted(ahead, key=lambda name: -ahead[name]):
            told = ", ".join(f"{marked(name)} {ahead[name]:.2f}" for name in names)
            own = "fails" if ours is None else f"{ours:.2f}"
            behind.append(((ours or 0.0) - ahead[names[0]], f"- {stream}: {OURS} {own}; {told}\n"))
    heading = f"Another system has a mean ARI that is higher by more than {LOST}:\n\n"
    return heading + "".join(line for _, line in sorted(behind)) if behind else "Nowhere, by the mean ARI.\n"


def speeds(systems: Iterable[str], cells: Cells) -> str:
    """Rows a second of each system, over streams."""
    lines = [["system", "told", "rows a second: median", "slowest"], ["---", "---", "--:", "--:"]]
    for name in systems:
        rows = [row for (_, system), rows in cells.items() if system == name for row in rows]
        if rates := [row["rows_per_second"] for row in scored(rows)]:
            lines.append([name, SYSTEMS[name].told, f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f}"])
    return markdown(lines) + f"\nLearning alone, one thread. What takes longer than {PATIENCE:g} seconds is stopped.\n"


def descriptions(streams: Iterable[str], rows: Rows) -> str:
    """Each stream in words."""
    of = {row["stream"]: row for row in rows}
    in_time = {stream: f"; in time: {row['window']:,} rows" if row["window"] else "" for stream, row in of.items()}
    return "".join(f"- `{stream}`: {of[stream]['told']}{in_time[stream]}\n" for stream in streams)


def notes(rows: Rows) -> str:
    """What did not go as with the others: rows that were left out, and failures."""
    told: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for note in [row["error"]] if "error" in row else row["notes"]:
            told.setdefault((row["stream"], note), []).append(row["system"])
    return (
        "".join(f"- {stream}, {', '.join(sorted({*by}))}: {note}\n" for (stream, note), by in told.items()) or "None.\n"
    )


def provenance(report: Json) -> str:
    """Commits, seeds, machine and versions."""
    rows, where = report["rows"], report["environment"]

    def names(of: Callable[[Json], object]) -> str:
        return ", ".join(sorted({str(of(row)) for row in rows}))

    commits = names(lambda row: str(row["commit"])[:10] + (" with changes" if row["modified"] else ""))
    versions = ", ".join(f"{name} {number}" for name, number in where.get("versions", {}).items())
    machine = f"{where.get('processor', '?')}, {where.get('cores', '?')} cores, one thread a process"
    return f"Commits: {commits}. Seeds: {names(lambda row: row['seed'])}. Machine: {machine}. {versions}.\n"
