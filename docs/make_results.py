"""docs/results.md and its figures, out of the files in results/ and nothing else.

Run it after a result was added: python docs/make_results.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tyro

from curlicue.experiments.paper import C_NEWS, EXPERIMENTS, Experiment
from curlicue.experiments.reproduce import Job, read_result
from curlicue.experiments.tables import SHORT_OF, header, lines
from curlicue.records import Json
from curlicue.report import figures

ROOT = Path(__file__).parent.parent
SEEDS = 20  # looked for
SCALES = (1.0, 0.2)  # of the steps: full runs are shown where there are any
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
    drawn = draw(results, out.parent / "results")
    out.write_text(page(results, drawn))


def page(results: Path, drawn: dict[str, str]) -> str:
    """The text; `drawn` has the file of each figure."""
    parts = [INTRODUCTION]
    for name, experiment in EXPERIMENTS.items():
        parts.append(f"## {experiment.title}\n\n{experiment.where}. `curlicue reproduce {name} --seeds 5`\n")
        if name in drawn:
            parts.append(f"![{experiment.title}](results/{drawn[name]})\n")
        parts.append(table(experiment, results))
    return "\n".join(parts)


def table(experiment: Experiment, results: Path) -> str:
    """In Markdown; then what was not run at full length, and where and when the rest was."""
    found = {name: find(name, results) for name in experiment.setups}
    rows = [header(experiment), *lines(experiment, lambda name: found[name])]
    rows.insert(1, ["---", *["--:"] * (len(rows[0]) - 1)])
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    short = [row.name for row in experiment.rows if row.setup and any(map(is_short, found[row.setup]))]
    if short:
        text += f"\nWith fewer steps than the paper's 100,000: {'; '.join(short)}.\n"
    return text + provenance([each for some in found.values() for each in some])


def provenance(found: Sequence[Json]) -> str:
    """The commits and the machines that it comes from."""
    commits = sorted({str(each["environment"]["commit"])[:10] for each in found})
    machines = sorted({f"{each['environment']['processor']}, {each['environment']['cores']} cores" for each in found})
    return f"\nCommits: {', '.join(commits)}. Machine: {'; '.join(machines)}.\n" if found else ""


def find(name: str, results: Path) -> list[Json]:
    """The results of a set-up by seed: full runs, or else shorter ones."""
    for scale in SCALES:
        jobs = [Job.of(name, seed, scale) for seed in range(SEEDS)]
        if found := [each for job in jobs if (each := read_result(job, results)) is not None]:
            return found
    return []


def steps(result: Json) -> int:
    """How many were taken; 0 where nothing was learnt."""
    return int(result["config"].get("steps", 0))


def is_short(result: Json) -> bool:
    """Whether it has fewer steps than the paper's."""
    return 0 < steps(result) < 100_000


# -- figures ----------------------------------------------------------------------------------------------------------


def draw(results: Path, folder: Path) -> dict[str, str]:
    """Those of which there are results; the file of each."""
    drawn = {}
    for name, painter in (
        ("figure-variants", draw_variants),
        ("figure-c-new", draw_thresholds),
        ("figure-posterior", draw_posterior),
    ):
        path = folder / f"{name}.png"
        if painter(results, path):
            drawn[name] = path.name
    return drawn


def draw_variants(results: Path, path: Path) -> bool:
    """Accuracy of the variants over time, of each class over time, and what is confused in the end."""
    rows = EXPERIMENTS["figure-variants"].rows
    runs = {row.name: found for row in rows if row.setup and (found := find(row.setup, results))}
    if rows[0].name not in runs:
        return False
    with figures.figure(path, 11, 3.2) as drawn:
        over_time, by_class, confused = drawn.subplots(1, 3, width_ratios=(4, 4, 3))
        figures.accuracy_over_time(over_time, runs)
        figures.class_accuracy(by_class, runs[rows[0].name][0])
        figures.confusion(confused, runs[rows[0].name][0])
    return True


def draw_thresholds(results: Path, path: Path) -> bool:
    """What c_new does."""
    runs = {
        label: {float(c): found for c in C_NEWS if (found := find(f"{name}{c}", results))}
        for label, name in (("one after the other", "mnist-c-new"), ("shuffled", "mnist-iid-c-new"))
    }
    runs = {label: found for label, found in runs.items() if len(found) > 1}
    if not runs:
        return False
    with figures.figure(path, 9, 2.8) as drawn:
        figures.thresholds(list(drawn.subplots(1, 3)), runs)
    return True


def draw_posterior(results: Path, path: Path) -> bool:
    """The most used components, with discrete changes and with drift."""
    rows = EXPERIMENTS["figure-posterior"].rows
    found = {row.name: some[0] for row in rows if row.setup and (some := find(row.setup, results))}
    found = {name: result for name, result in found.items() if result.get("posterior", {}).get("t")}
    if not found:
        return False
    with figures.figure(path, 9, 2.6) as drawn:
        for axes, (name, result) in zip(drawn.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
            figures.posterior(axes, result)
            axes.set_title(name, fontsize=9)
    return True


if __name__ == "__main__":
    tyro.cli(main)
