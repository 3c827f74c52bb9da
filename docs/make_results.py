"""docs/results.md and its figures, out of the files in results/ and nothing else.

Run it after a result was added: python docs/make_results.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import tyro

from curlicue.experiments.paper import C_NEWS, EXPERIMENTS, SETUPS, Experiment
from curlicue.experiments.reproduce import Job, read_result
from curlicue.experiments.tables import SHORT_OF, header, lines
from curlicue.records import Json
from curlicue.report import figures

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"(.+)-seed(\d+)(?:-scale(.+))?")  # of a result file: set-up, seed, share of the steps
Found = Mapping[str, Sequence[Json]]  # the results of every set-up, by seed
INTRODUCTION = f"""# Results

Every table and figure of the paper, with our numbers beside its own. This page is made of the files in `results/` by
`python docs/make_results.py`; no number is typed by hand. ± is the standard deviation over seeds (the paper has five).
{SHORT_OF} marks what is worse than the paper by more than two of its standard deviations. Minutes depend on what else
the machine did meanwhile; how many threads a run had is in its file. What the paper leaves open, and what we chose:
[deviations.md](deviations.md).
"""


def main(results: Path = ROOT / "results", out: Path = ROOT / "docs" / "results.md") -> None:
    """Write the page, and its figures beside it.

    Args:
        results: where the result files are
        out: where the page goes; figures go to a folder `results` beside it
    """
    found = read(results)
    out.write_text(page(found, draw(found, out.parent / "results")))


def read(results: Path) -> Found:
    """Full runs where there are any, or else the longest."""
    names = (NAME.fullmatch(path.stem) for path in results.glob("*.json"))
    jobs = [Job.of(name[1], int(name[2]), float(name[3] or 1)) for name in names if name and name[1] in SETUPS]
    jobs.sort(key=lambda job: (job.name, job.scale, job.seed))
    found: dict[str, list[Json]] = {name: [] for name in SETUPS}
    for (name, _), some in groupby(jobs, key=lambda job: (job.name, job.scale)):  # the longest last
        found[name] = [result for job in some if (result := read_result(job, results))] or found[name]
    return found


def page(found: Found, drawn: dict[str, str]) -> str:
    """The text; `drawn` has the file of each figure."""
    parts = [INTRODUCTION]
    for name, experiment in EXPERIMENTS.items():
        parts.append(f"## {experiment.title}\n\n{experiment.where}. `curlicue reproduce {name} --seeds 5`\n")
        if name in drawn:
            parts.append(f"![{experiment.title}](results/{drawn[name]})\n")
        parts.append(table(experiment, found))
    return "\n".join(parts)


def table(experiment: Experiment, found: Found) -> str:
    """In Markdown; then what was not run at full length, and where and when the rest was."""
    rows = [header(experiment), *lines(experiment, found.__getitem__)]
    rows.insert(1, ["---", *["--:"] * (len(rows[0]) - 1)])
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    short = [row.name for row in experiment.rows if row.setup and any(map(is_short, found[row.setup]))]
    if short:
        text += f"\nWith fewer steps than the paper's 100,000: {'; '.join(short)}.\n"
    return text + provenance([each for name in experiment.setups for each in found[name]])


def provenance(found: Sequence[Json]) -> str:
    """The commits and the machines that it comes from."""
    commits = sorted({str(each["environment"]["commit"])[:10] for each in found})
    machines = sorted({f"{each['environment']['processor']}, {each['environment']['cores']} cores" for each in found})
    return f"\nCommits: {', '.join(commits)}. Machine: {'; '.join(machines)}.\n" if found else ""


def steps(result: Json) -> int:
    """How many were taken; 0 where nothing was learnt."""
    return int(result["config"].get("steps", 0))


def is_short(result: Json) -> bool:
    """Whether it has fewer steps than the paper's."""
    return 0 < steps(result) < 100_000


# -- figures ----------------------------------------------------------------------------------------------------------


def draw(found: Found, folder: Path) -> dict[str, str]:
    """Those of which there are results; the file of each."""
    drawn = {}
    for name, painter in (
        ("figure-variants", draw_variants),
        ("figure-c-new", draw_thresholds),
        ("figure-posterior", draw_posterior),
    ):
        path = folder / f"{name}.png"
        if painter(found, path):
            drawn[name] = path.name
    return drawn


def draw_variants(found: Found, path: Path) -> bool:
    """Accuracy of the variants over time, of each class over time, and what is confused in the end."""
    rows = EXPERIMENTS["figure-variants"].rows
    runs = {row.name: found[row.setup] for row in rows if row.setup and found[row.setup]}
    if rows[0].name not in runs:
        return False
    with figures.figure(path, 11, 3.2) as drawn:
        over_time, by_class, confused = drawn.subplots(1, 3, width_ratios=(4, 4, 3))
        figures.accuracy_over_time(over_time, runs)
        figures.class_accuracy(by_class, runs[rows[0].name][0])
        figures.confusion(confused, runs[rows[0].name][0])
    return True


def draw_thresholds(found: Found, path: Path) -> bool:
    """What c_new does."""
    runs = {
        label: {float(c): found[f"{name}{c}"] for c in C_NEWS if found[f"{name}{c}"]}
        for label, name in (("one after the other", "mnist-c-new"), ("shuffled", "mnist-iid-c-new"))
    }
    runs = {label: by_threshold for label, by_threshold in runs.items() if len(by_threshold) > 1}
    if not runs:
        return False
    with figures.figure(path, 9, 2.8) as drawn:
        figures.thresholds(list(drawn.subplots(1, 3)), runs)
    return True


def draw_posterior(found: Found, path: Path) -> bool:
    """The most used components, with discrete changes and with drift."""
    rows = EXPERIMENTS["figure-posterior"].rows
    first = {row.name: found[row.setup][0] for row in rows if row.setup and found[row.setup]}
    first = {name: result for name, result in first.items() if result.get("posterior", {}).get("t")}
    if not first:
        return False
    with figures.figure(path, 9, 2.6) as drawn:
        for axes, (name, result) in zip(drawn.subplots(1, len(first), squeeze=False)[0], first.items(), strict=True):
            figures.posterior(axes, result)
            axes.set_title(name, fontsize=9)
    return True


if __name__ == "__main__":
    tyro.cli(main)
