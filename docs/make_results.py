"""The README's table and picture, docs/results.md and its figures, out of the files in results/ and nothing else.

Run it after a result was added: python docs/make_results.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tyro
from PIL import Image

from curlicue.cli.drawing import PAINTERS
from curlicue.cli.drawing import draw as paint
from curlicue.errors import RunError
from curlicue.experiments.paper import EXPERIMENTS, LIFE, Experiment
from curlicue.experiments.reproduce import Job, read_result
from curlicue.experiments.settings import RunConfig
from curlicue.experiments.setups import SETUPS
from curlicue.experiments.tables import QUOTED, SHORT_OF, header, lines
from curlicue.records.files import Json
from curlicue.report import figures

ROOT = Path(__file__).parent.parent
Runs = Mapping[str, Sequence[Json]]  # the results of set-ups, by seed
Found = Mapping[float, Runs]  # the same by the share of the steps that they took
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"  # in the README
VARIANTS = {  # those in the README: what it calls them, and the command with their settings
    "mnist-mgr": ("growth and replay", "curlicue train --preset mnist --threads 1"),
    "mnist-no-replay": ("growth, no replay", "curlicue train --preset mnist --memory none --threads 1"),
    "mnist-no-expansion": (
        "replay, no growth",
        "curlicue train --preset mnist --growth none --K 25 --tau 0.1 --threads 1",
    ),
}
FULL = "mnist-mgr"
LEGEND = f"""K is the number of components; used are those that are the likeliest of at least one test sample.
± is the standard deviation over seeds (the paper has five; all its runs take 100,000 steps); minutes are a run's mean.
{SHORT_OF} marks an accuracy or error that is worse than the paper's by more than two of its standard deviations."""
ROUNDED = "Generated samples are rounded before they are rehearsed ([why](docs/decisions/0015-dreams-are-rounded.md))."
LIVES = {  # what is drawn from a run directory, and where it shows what
    "dreams": "One generated sample of each component, from class to class",
    "d-new": "Samples of D_new at each birth",
    "latent": "The latent space over time, above coloured by class, below by component",
}
INTRODUCTION = f"""# Results

Every table and figure of the paper, with our numbers beside its own. This page is made of the files in `results/` by
`python docs/make_results.py`; no number is typed by hand. Minutes depend on what else the machine did meanwhile.
{LEGEND}
{QUOTED} are systems that the paper quotes from others, as we do.
T is the time of a class: snapshots are taken every T steps, every 0.1T, or before each birth (dyn).

What is rehearsed is the mean of p(x|z), rounded, on MNIST, and a sample of it on SplitMNIST and Omniglot, unless a row
says otherwise; the last table has both ([decision 15](decisions/0015-dreams-are-rounded.md)).
What else the paper leaves open, and what we chose: [deviations.md](deviations.md).
"""


def main(root: Path = ROOT) -> None:
    """Write the page and the README's table, and draw what they show.

    Args:
        root: where README.md, docs/ and results/ are
    """
    docs, readme, results = root / "docs", root / "README.md", root / "results"
    try:
        found = read(results)
        if not comparable(VARIANTS, found)[FULL]:
            raise RunError(f"There is no {FULL}-seed*.json in {results}. Make one: curlicue reproduce figure-variants")
        front = with_table(readme.read_text(), found)
        text = page(found, draw(found, results / "figures"), results / "figures")
    except RunError as error:
        raise SystemExit(str(error)) from error
    (docs / "results.md").write_text(text)
    readme.write_text(front)
    draw_picture(found, docs / "picture.png")


def read(results: Path) -> Found:
    """All of them."""
    jobs = [job for path in results.glob("*.json") if (job := Job.called(path.stem))]
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
        apart = " --results mine --runs runs/mine" if name == LIFE else ""  # it needs a run directory
        command = f"curlicue reproduce {name} --seeds 5{short}{apart}"
        parts.append(f"## {experiment.title}\n\n{experiment.where}. `{command}`\n")
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
    legend = f"{LEGEND}\n{ROUNDED}\nThe settings of each row:"
    text = f"{table(replace(variants, rows=rows), runs)}\n{legend}\n\n```sh\n{commands}```"
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
    files = {name: file_of(name, length(runs[name], found)) for name in PAINTERS}
    drawn = {name: [file] for name, file in files.items() if paint(name, runs[name].__getitem__, folder / file)}
    life = [f"{LIFE}-{part}.png" for part in LIVES]
    return drawn | {LIFE: [name for name in life if runs[LIFE][FULL] and (folder / name).is_file()]}


def file_of(name: str, scale: float) -> str:
    """What `curlicue reproduce` calls it, too."""
    return f"{name}.png" if scale == 1 else f"{name}-scale{scale:g}.png"


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
        seed = f"seed {variants[FULL][0]['config']['seed']}"
        by_class.set_title(f"{VARIANTS[FULL][0]}, class by class, {seed} (framed: now shown)", fontsize=9)


if __name__ == "__main__":
    tyro.cli(main)
