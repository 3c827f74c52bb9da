"""What the documents say is so: links, names, commands, examples, numbers."""

import ast
import functools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from curlicue import cli
from curlicue.cli.options import given
from curlicue.cli.train import configure
from curlicue.experiments.paper import EXPERIMENTS, LIFE
from curlicue.experiments.reproduce import Job, setup_json
from curlicue.experiments.setups import SETUPS
from curlicue.report import figures
from curlicue.version import __version__

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()
make_results = runpy.run_path(str(ROOT / "docs" / "make_results.py"))
FOUND = make_results["read"](ROOT / "results")
needs_results = pytest.mark.skipif(not FOUND[1.0].get(make_results["FULL"]), reason="results/ has no full run yet")


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


# -- links ------------------------------------------------------------------------------------------------------------


def links(document: Path) -> list[tuple[str, Path]]:
    """The text and the file of each link that stays within the project."""
    found = re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", document.read_text())
    return [(text, (document.parent / to).resolve()) for text, to in found if not to.startswith("http")]


def names_in(path: Path) -> set[str]:
    """What a Python file defines: functions, classes, and constants, with the class they belong to."""

    def names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            match node:
                case ast.FunctionDef(name=name):
                    yield prefix + name
                case ast.ClassDef(name=name):
                    yield prefix + name
                    yield from names(node.body, f"{prefix}{name}.")
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    yield prefix + name

    return set(names(ast.parse(path.read_text()).body, ""))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(document):
    assert [str(to) for _, to in links(document) if not to.exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_name_is_defined_in_the_file_it_links_to(document):
    named = [(text.strip("`"), to) for text, to in links(document) if text.startswith("`") and to.suffix == ".py"]
    assert [(name, to.name) for name, to in named if name not in names_in(to) | {to.name}] == []


def test_the_check_of_names_knows_what_is_not_there():
    names = names_in(ROOT / "src/curlicue/model/pairs.py")
    assert {"Pairs", "Pairs.sparse", "Pairs.rows"} <= names
    assert names.isdisjoint({"sparse", "Pairs.dense", "torch"})


# -- commands and examples --------------------------------------------------------------------------------------------


def shell_lines(program: str) -> list[str]:
    blocks = [b for d in DOCUMENTS for b in re.findall(r"```sh\n(.*?)```", d.read_text(), re.DOTALL)]
    lines = [line for b in blocks for line in b.splitlines()] + re.findall("`(.*?)`", RESULTS)
    return list(dict.fromkeys(line for line in lines if line.startswith(f"{program} ")))


@pytest.fixture
def parse(monkeypatch) -> Any:
    """What a command line would call, and with what, without doing it."""
    called: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def record_instead(name: str) -> None:
        @functools.wraps(cli.COMMANDS[name])
        def record(*args: Any, **kwargs: Any) -> None:
            called.append((name, args, kwargs))

        monkeypatch.setitem(cli.COMMANDS, name, record)

    for name in cli.COMMANDS:
        record_instead(name)

    def parse(command: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        cli.main(shlex.split(command, comments=True)[1:])
        return called.pop()

    return parse


@pytest.mark.parametrize("command", [line for line in shell_lines("curlicue") if "--help" not in line])
def test_every_command_parses(parse, command):
    assert parse(command)[0] == command.split()[1]


def test_a_command_with_an_unknown_option_would_be_noticed(parse):
    with pytest.raises(SystemExit):
        parse("curlicue train --no-such-option 3")


def test_every_make_target_is_in_the_makefile():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {line.split()[1] for line in shell_lines("make")} <= set(targets)


def test_every_option_in_the_text_is_one_of_train(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    known = set(re.findall(r"--[a-zA-Z][a-z-]*", capsys.readouterr().out))
    texts = [(ROOT / "docs" / "deviations.md").read_text(), *(d.read_text() for d in ROOT.glob("docs/decisions/*.md"))]
    assert {o for text in texts for o in re.findall(r"`(--[a-zA-Z][a-z-]*)", text)} <= known


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if ">>> " in d.read_text()], ids=name_of)
def test_the_examples_print_what_they_say(document):
    """In a process of its own: the kinds of rules and systems that a document defines stay there."""
    doctest = [sys.executable, "-W", "error", "-m", "doctest", "-o", "ELLIPSIS", str(document)]
    ran = subprocess.run(doctest, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# -- what must not be left out ----------------------------------------------------------------------------------------


def test_deviations_are_numbered_and_complete():
    text = (ROOT / "docs" / "deviations.md").read_text()
    entries = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert [int(entry.split(".")[0]) for entry in entries] == list(range(1, len(entries) + 1))
    for entry in entries:
        assert re.findall(r"^- \*\*(\w+):\*\* ", entry, re.MULTILINE) == ["Paper", "Here", "Why", "Switch", "Effect"]


def test_the_changelog_has_this_version():
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


# -- results ----------------------------------------------------------------------------------------------------------


@needs_results
def test_the_readmes_table_is_that_of_the_result_files():
    assert make_results["with_table"](README, FOUND) == README


@needs_results
def test_the_page_of_results_is_that_of_the_result_files(tmp_path):
    kept = ROOT / "results" / "figures"
    for path in kept.glob(f"{LIFE}-*.png"):  # drawn from a run directory
        shutil.copy(path, tmp_path)
    drawn = make_results["draw"](FOUND, tmp_path)
    assert make_results["page"](FOUND, drawn, tmp_path) == RESULTS
    shown = {name for names in drawn.values() for name in names}
    assert {path.name for path in kept.glob("*.png") if "-scale" not in path.name} <= shown  # those may be one's own
    for name in shown:
        assert_alike(tmp_path / name, kept / name)


@needs_results
def test_the_readmes_picture_is_that_of_the_result_files(tmp_path):
    make_results["draw_picture"](FOUND, tmp_path / "picture.png")
    assert_alike(tmp_path / "picture.png", ROOT / "docs" / "picture.png")


def assert_alike(drawn: Path, kept: Path) -> None:
    """Hardly any pixel differs; processors may round differently."""
    drawn_pixels, kept_pixels = (np.asarray(Image.open(path).convert("L"), dtype=int) for path in (drawn, kept))
    assert drawn_pixels.shape == kept_pixels.shape
    assert (abs(drawn_pixels - kept_pixels) > 16).mean() < 1e-4


@pytest.mark.parametrize(("setup", "label", "command"), [(n, *row) for n, row in make_results["VARIANTS"].items()])
def test_a_command_of_the_readme_has_the_settings_of_its_row(parse, setup, label, command):
    config = configure(given(parse(command)[2]["settings"]))
    assert config.resolved(n_classes=10) == SETUPS[setup]


def test_every_result_file_is_of_a_set_up_and_in_the_page():
    shown = [make_results["comparable"](experiment.setups, FOUND) for experiment in EXPERIMENTS.values()]
    once = {id(result) for runs in shown for results in runs.values() for result in results}
    assert len(once) == len(list((ROOT / "results").glob("*.json")))


NOUGHTS = {"K": 0, "n_used": 0, "cluster_accuracy": 0, "knn_error": {"3": 0, "5": 0, "10": 0}}
HOLLOW = {"result": NOUGHTS, "timing": {"minutes": 0}, "environment": {}}


def test_runs_of_one_length_are_compared_that_of_most_rows_and_of_several_the_longest(tmp_path):
    both = "mnist-mgr", "mnist-no-replay"
    runs = [(name, seed, scale) for name in both for seed in (1, 0) for scale in (0.2, 0.1)]
    for name, seed, scale in [*runs, ("mnist-mgr", 0, 1.0)]:
        job = Job.of(name, seed, scale)
        (tmp_path / f"{job.key}.json").write_text(json.dumps(HOLLOW | {"config": setup_json(job.setup)}))
    found = make_results["read"](tmp_path)
    assert [make_results["length"](names, found) for names in (both, both[:1])] == [0.2, 1.0]

    def shown(*names: str) -> dict[str, list[tuple[int, int]]]:
        chosen = make_results["comparable"](names, found)
        return {name: [(each["config"]["seed"], each["config"]["steps"]) for each in chosen[name]] for name in names}

    assert shown(*both) == {name: [(0, 20_000), (1, 20_000)] for name in both}
    assert shown("mnist-mgr") == {"mnist-mgr": [(0, 100_000)]}
    assert shown("omniglot-mgr") == {"omniglot-mgr": []}


@pytest.fixture
def results(tmp_path) -> Path:
    """Files of two seeds of the full run and of one of another, as `curlicue result --out` writes them."""
    folder = tmp_path / "results"
    folder.mkdir()
    for name, seed in (("mnist-mgr", 0), ("mnist-mgr", 1), ("mnist-no-replay", 0)):
        job = Job.of(name, seed, 1.0)
        scores = {"K": 20 + seed, "cluster_accuracy": 0.5 + 0.2 * seed, "class_accuracy": [0.5] * 9 + [None]}
        scores |= {"n_used": 10 + seed}
        result = scores | {"knn_error": {"10": 0.125}, "confusion": [[3, 1]] * 10, "classes": list("0123456789")}
        whole = {
            "config": setup_json(job.setup),
            "result": result,
            "timing": {"minutes": 61.2},
            "environment": {"processor": "A Processor", "cores": 4, "threads": 1, "commit": "0123456789abc"},
            "births": [{"t": 7}, {"t": 150}],
            "snapshots": [],
            "metrics": [{"t": t, **scores} for t in (50_000, 100_000)],
        }
        (folder / f"{job.key}.json").write_text(json.dumps(whole))
    return folder


def test_pictures_and_tables_come_from_the_files_alone(results, tmp_path):
    (tmp_path / "docs").mkdir()
    readme = tmp_path / "README.md"
    readme.write_text(f"Before.\n{make_results['BEGIN']}\nold\n{make_results['END']}\nAfter.\n")
    make_results["main"](tmp_path)
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("Before.", "After.")
    assert "old" not in lines
    full = "2 | 100,000 | 20.50 ± 0.71 | 25.20 ± 2.23 | 60.00 ± 14.14 ▼ | 77.74 ± 1.37 | 12.50 ± 0.00 ▼ | 6.29 ± 0.50"
    full += " | 10.50 ± 0.71"
    other = "1 | 100,000 | 20 | 55.80 ± 1.94 | 50.00 | 45.35 ± 1.50 | 12.50 | 17.46 ± 1.25 | 10"
    assert lines[4:6] == [f"| growth and replay | {full} | 61 |", f"| growth, no replay | {other} | 61 |"]
    assert "Commits: 0123456789. Machine: A Processor, 4 cores, 1 thread(s) a run." in lines
    assert "curlicue train --preset mnist --memory none --threads 1  # growth, no replay" in lines
    page = (tmp_path / "docs" / "results.md").read_text().splitlines()
    assert {f"| MGR & exp | {full} | 61 |", f"| exp, no MGR | {other} | 61 |"} <= set(page)
    assert "](../results/figures/figure-variants.png)" in "".join(page)
    for picture in (tmp_path / "docs" / "picture.png", results / "figures" / "figure-variants.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_figure_of_a_run_directory_says_of_which_run_it_is(tmp_path):
    path = tmp_path / f"{LIFE}-dreams.png"
    with figures.figure(path, 1, 1, about="seed 3, commit 0123456789"):
        pass
    shown = make_results["shown"](path, EXPERIMENTS[LIFE])
    told = "One generated sample of each component, from class to class (seed 3, commit 0123456789):"
    assert shown.startswith(f"{told}\n\n![One generated sample")


def test_writing_the_table_twice_changes_nothing(results):
    found = make_results["read"](results)
    once = make_results["with_table"](README, found)
    assert make_results["with_table"](once, found) == once


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, r"no mnist-mgr-seed\*\.json in .* curlicue reproduce figure-variants"),
        ("{", "mnist-mgr-seed0.json is damaged"),
        (
            json.dumps({"result": {}, "timing": {}, "environment": {}, "config": setup_json(SETUPS["mnist-mgr"])}),
            r"mnist-mgr-seed0.json is damaged \(it has no 'minutes'\). Delete it; `curlicue reproduce` can measure it",
        ),
    ],
)
def test_without_a_whole_full_run_the_documents_stay_as_they_are(tmp_path, contents, message):
    for folder in ("docs", "results"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text(f"{make_results['BEGIN']}{make_results['END']}")
    if contents is not None:
        (tmp_path / "results" / "mnist-mgr-seed0.json").write_text(contents)
    with pytest.raises(SystemExit, match=message):
        make_results["main"](tmp_path)
    assert list((tmp_path / "docs").iterdir()) == []
    assert not (tmp_path / "results" / "figures").exists()


def test_no_result_is_of_code_that_no_commit_holds():
    environments = [json.loads(path.read_text())["environment"] for path in (ROOT / "results").glob("*.json")]
    assert all(each["commit"] and each["modified"] is False for each in environments)
    moves = [move for each in environments for move in each.get("resumed", [])]
    assert all(move.get("commit", "as before") and move.get("modified", False) is False for move in moves)


def test_what_has_no_length_is_shown_beside_runs_of_any_length(tmp_path):
    for job in (Job.of("iid-mnist", 0, 0.1), Job.of("raw-pixels-mnist", 0, 0.1)):
        (tmp_path / f"{job.key}.json").write_text(json.dumps(HOLLOW | {"config": setup_json(job.setup)}))
    shown = make_results["comparable"](EXPERIMENTS["table-iid-mnist"].setups, make_results["read"](tmp_path))
    assert {name for name, results in shown.items() if results} == {"iid-mnist", "raw-pixels-mnist"}
