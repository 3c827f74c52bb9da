"""The README's table and picture, docs/results.md and its figures, out of the files in results/ and nothing else.

Run it after a result was added: python docs/make_results.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tyro
from PIL import Image

from curlicue.cli.drawing import PAINTERS
from curlicue.cli.drawing import draw as paint
from curlicue.config import RunConfig
from curlicue.experiments.paper import EXPERIMENTS, LIFE, SETUPS, Experiment
from curlicue.experiments.reproduce import Job, read_result
from curlicue.experiments.tables import SHORT_OF, header, lines
from curlicue.records import Json
from curlicue.report import figures

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"(.+)-seed(\d+)(?:-scale(.+))?")  # of a result file: set-up, seed, share of the steps
Runs = Mapping[str, Sequence[Json]]  # the results of set-ups, by seed
Found = Mapping[float, Runs]  # the same by the share of the steps that they took
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"  # in the README
VARIANTS = {  # those in the README: what it calls them, and the command with their settings
    "mnist-mgr": ("growth and replay", "curlicue train --preset mnist --threads 1"),
    "mnist-no-replay": ("growth, no replay", "curlicue train --preset mnist --replay none --threads 1"),
    "mnist-no-expansion": (
        "replay, no growth",
        "curlicue train --preset mnist --no-expansion --components 25 --tau 0.1 --threads 1",
    ),
}
FULL = "mnist-mgr"
LEGEND = f"""± is the standard deviation over seeds (the paper has five; all its runs take 100,000 steps).
{SHORT_OF} marks what is worse than the paper by more than two of its standard deviations.
Used are the components that are the likeliest of any test sample."""
LIVES = {  # what is drawn from a run directory, and where it shows what
    "dreams": "One dream of each component, from class to class",
    "d-new": "Samples of D_new at each birth",
    "latent": "The latent space over time, above coloured by class, below by component",
}
INTRODUCTION = f"""# Results

Every table and figure of the paper, with our numbers beside its own. This page is made of the files in `results/` by
`python docs/make_results.py`; no number is typed by hand. Minutes depend on what else the machine did meanwhile.
{LEGEND}
What the paper leaves open, and what we chose: [deviations.md](deviations.md).
"""


def main(results: Path = ROOT / "results", root: Path = ROOT) -> None:
    """Write the page and the README's table, and draw what they show.

    Args:
        results: where the result files are
        root: where README.md and docs/ are
    """
    found, docs, readme = read(results), root / "docs", root / "README.md"
    drawn = draw(found, results / "figures")
    (docs / "results.md").write_text(page(found, drawn, results / "figures"))
    if not comparable(VARIANTS, found)[FULL]:
        raise SystemExit(f"There is no {FULL}-seed*.json in {results}. Make one: curlicue reproduce figure-variants")
    draw_picture(found, docs / "picture.png")
    readme.write_text(with_table(readme.read_text(), found))


def read(results: Path) -> Found:
    """All of them."""
    names = (NAME.fullmatch(path.stem) for path in results.glob("*.json"))
    jobs = [Job.of(name[1], int(name[2]), float(name[3] or 1)) for name in names if name and name[1] in SETUPS]
    found: dict[float, dict[str, list[Json]]] = {1.0: {}}
    for job in sorted(jobs, key=lambda job: job.seed):
        if result := read_result(job, results):
            found.setdefault(job.scale, {}).setdefault(job.name, []).append(result)
    return found


def comparable(setups: Iterable[str], found: Found) -> Runs:
    """Those of `setups`, all of one length."""
    names = list(setups)
    scale, learning = length(names, found), learners(names)
    return {name: found[scale if name in learning else 1.0].get(name, ()) for name in names}


def length(setups: Iterable[str], found: Found) -> float:
    """The share of the steps in which most of `setups` have been run; of several, the largest."""
    learning = learners(setups)
    return max(found, key=lambda scale: (len(learning & found[scale].keys()), scale))


def learners(setups: Iterable[str]) -> set[str]:
    """What does not learn has no length."""
    return {name for name in setups if isinstance(SETUPS[name], RunConfig)}


def page(found: Found, drawn: Mapping[str, Sequence[str]], folder: Path) -> str:
    """The text; `drawn` has the files of each figure in `folder`."""
    parts = [INTRODUCTION]
    for name, experiment in EXPERIMENTS.items():
        scale = length(experiment.setups, found)
        short = "" if scale == 1 else f" --scale {scale:g}"
        parts.append(f"## {experiment.title}\n\n{experiment.where}. `curlicue reproduce {name} --seeds 5{short}`\n")
        parts += [shown(folder / file, experiment) for file in drawn.get(name, ())]
        parts.append(table(experiment, comparable(experiment.setups, found)))
    return "\n".join(parts)


def shown(path: Path, experiment: Experiment) -> str:
    """A figure; what is drawn from a run directory says what it shows, and of which run."""
    part = path.stem.removeprefix(f"{LIFE}-")
    told = ""
    if part in LIVES:
        with Image.open(path) as picture:
            told = f"{LIVES[part]} ({picture.info.get('Description', 'seed 0')}):\n\n"
    return f"{told}![{LIVES.get(part, experiment.title)}](../results/figures/{path.name})\n"


def with_table(readme: str, found: Found) -> str:
    """The README with the variants that were run, and how to run them again, between its markers."""
    variants = EXPERIMENTS["figure-variants"]
    runs = comparable(variants.setups, found)
    run = [row for row in variants.rows if row.setup in VARIANTS and runs[row.setup]]
    rows = tuple(replace(row, name=VARIANTS[row.setup][0]) for row in run)
    commands = "".join(f"{VARIANTS[row.setup][1]}  # {row.name}\n" for row in rows)
    before, after = readme.split(BEGIN)[0], readme.split(END)[1]
    text = f"{table(replace(variants, rows=rows), runs)}\n{LEGEND}\nThe settings of each row:\n\n```sh\n{commands}```"
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def table(experiment: Experiment, runs: Runs) -> str:
    """In Markdown; then where and when it was measured."""
    rows = [header(experiment), *lines(experiment, runs.__getitem__)]
    steps = ["steps", *(taken(runs.get(row.setup, ())) for row in experiment.rows)]
    rows = [[name, seeds, n, *scores] for (name, seeds, *scores), n in zip(rows, steps, strict=True)]
    rows.insert(1, ["---", *["--:"] * (len(rows[0]) - 1)])
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    note = f"\n{experiment.note}\n" if experiment.note else ""
    return text + note + provenance([each for name in experiment.setups for each in runs[name]])


def taken(results: Sequence[Json]) -> str:
    """How many steps; nothing where nothing was learnt."""
    return "; ".join({f"{each['config']['steps']:,}" for each in results if "steps" in each["config"]})


def provenance(results: Sequence[Json]) -> str:
    """The commits and the machines that they come from."""
    told = [each["environment"] for each in results]
    begun = sorted({str(each["commit"])[:10] for each in told})
    later = sorted(
        {str(went_on["commit"])[:10] for each in told for went_on in each.get("resumed", ()) if "commit" in went_on}
    )
    commits = ", ".join(begun) + (f" (gone on with: {', '.join(later)})" if later else "")
    machines = sorted({"{processor}, {cores} cores, {threads} thread(s) a run".format(**each) for each in told})
    return f"\nCommits: {commits}. Machine: {'; '.join(machines)}.\n" if told else ""


# -- figures ----------------------------------------------------------------------------------------------------------


def draw(found: Found, folder: Path) -> dict[str, list[str]]:
    """Those of which there are results; the files of each. What a run directory showed lies there already."""
    runs = {name: comparable(EXPERIMENTS[name].setups, found) for name in (*PAINTERS, LIFE)}
    drawn = {name: [f"{name}.png"] for name in PAINTERS if paint(name, runs[name].__getitem__, folder / f"{name}.png")}
    life = [f"{LIFE}-{part}.png" for part in LIVES]
    return drawn | {LIFE: [name for name in life if runs[LIFE][FULL] and (folder / name).is_file()]}


def draw_picture(found: Found, path: Path) -> None:
    """The README's: accuracy of the variants over time and their births, and the full run class by class."""
    variants = comparable(VARIANTS, found)
    runs = {label: variants[name] for name, (label, _) in VARIANTS.items() if variants[name]}
    with figures.figure(path, 9, 3.4) as drawn:
        grid = drawn.add_gridspec(2, 2, height_ratios=(9, 1), width_ratios=(5, 4))
        over_time, by_class = drawn.add_subplot(grid[0, 0]), drawn.add_subplot(grid[:, 1])
        figures.accuracy_over_time(over_time, runs)
        over_time.label_outer()
        figures.births(drawn.add_subplot(grid[1, 0], sharex=over_time), runs)
        figures.class_accuracy(by_class, variants[FULL][0])
        by_class.set_title(f"{VARIANTS[FULL][0]}, class by class (framed: now shown)", fontsize=9)


if __name__ == "__main__":
    tyro.cli(main)
