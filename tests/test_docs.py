"""What the documents say is so: links, names, commands, examples, numbers."""

import ast
import doctest
import functools
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curlicue import cli
from curlicue.config import PRESETS, RunConfig, from_json, to_json
from curlicue.experiments.reproduce import Job, setup_json
from curlicue.version import __version__

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text()
PICTURE = ROOT / "docs" / "picture.png"
make_picture = runpy.run_path(str(ROOT / "docs" / "make_picture.py"))
make_results = runpy.run_path(str(ROOT / "docs" / "make_results.py"))
RUNS = make_picture["read"](ROOT / "results")
needs_results = pytest.mark.skipif(not RUNS, reason="results/ has none of the runs of the README's table yet")


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
    drawn = {PICTURE} if not RUNS else set()  # it is made out of results
    assert [str(to) for _, to in links(document) if not to.exists() and to not in drawn] == []


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
    return list(dict.fromkeys(line for b in blocks for line in b.splitlines() if line.startswith(f"{program} ")))


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
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    texts = [(ROOT / "docs" / "deviations.md").read_text(), *(d.read_text() for d in ROOT.glob("docs/decisions/*.md"))]
    assert {o for text in texts for o in re.findall(r"`(--[a-z][a-z-]*)", text)} <= known


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_the_examples_print_what_they_say(document):
    assert doctest.testfile(str(ROOT / document), module_relative=False).failed == 0


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
    assert make_picture["with_table"](README, make_picture["table"](RUNS)) == README


@needs_results
@pytest.mark.parametrize("row", make_picture["ROWS"], ids=lambda row: row.name)
def test_results_have_the_settings_of_the_command_beside_them(parse, row):
    for run in RUNS.get(row.name, []):
        _, _, called = parse(f"{row.command} --seed {run['config']['seed']}")
        settings = called["settings"]
        asked = cli.configure(PRESETS[settings.preset], settings, len(run["result"]["classes"]))
        assert from_json(RunConfig, run["config"]) == asked


def test_the_page_of_results_is_that_of_the_result_files(tmp_path):
    make_results["main"](ROOT / "results", tmp_path / "results.md")
    assert (tmp_path / "results.md").read_text() == (ROOT / "docs" / "results.md").read_text()
    drawn, kept = ({path.name for path in (folder / "results").glob("*")} for folder in (tmp_path, ROOT / "docs"))
    assert drawn == kept


def test_every_result_file_is_of_a_set_up_and_in_the_page():
    found = make_results["read"](ROOT / "results")
    assert sum(map(len, found.values())) == len(list((ROOT / "results").glob("*.json")))


def test_full_runs_are_shown_where_there_are_any_or_else_the_longest(tmp_path):
    for seed, scale in ((1, 1.0), (0, 1.0), (0, 0.2)):
        for job in (Job.of("mnist-mgr", seed, scale), Job.of("omniglot-mgr", seed, scale / 10)):
            (tmp_path / f"{job.key}.json").write_text(json.dumps({"config": setup_json(job.setup)}))
    found = make_results["read"](tmp_path)
    for name, steps in (("mnist-mgr", 100_000), ("omniglot-mgr", 10_000)):
        assert [(each["config"]["seed"], each["config"]["steps"]) for each in found[name]] == [(0, steps), (1, steps)]


@pytest.fixture
def results(tmp_path) -> Path:
    """Files of two seeds of the full run and of one of another, as `curlicue result --out` writes them."""
    for name, seed in (("mnist-mgr", 0), ("mnist-mgr", 1), ("mnist-no-replay", 0)):
        config = to_json(PRESETS["mnist"]) | {"seed": seed, "steps": 200}
        scores = {"K": 20 + seed, "cluster_accuracy": 0.5 + 0.2 * seed, "class_accuracy": [0.5] * 9 + [None]}
        result = scores | {"knn_error": {"10": 0.125}, "confusion": [[3, 1]] * 10, "classes": list("0123456789")}
        whole = {
            "config": config,
            "result": result,
            "timing": {"minutes": 61.2},
            "environment": {"processor": "A Processor", "threads": 1},
            "births": [{"t": 7}, {"t": 150}],
            "snapshots": [],
            "metrics": [{"t": t, **scores} for t in (100, 200)],
        }
        (tmp_path / f"{name}-seed{seed}.json").write_text(json.dumps(whole))
    return tmp_path


def test_picture_and_table_come_from_the_files_alone(results, tmp_path):
    picture, readme = tmp_path / "picture.png", tmp_path / "README.md"
    readme.write_text(f"Before.\n{make_picture['BEGIN']}\nold\n{make_picture['END']}\nAfter.\n")
    make_picture["main"](results, picture, readme)
    lines = readme.read_text().splitlines()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert lines[0] == "Before."
    assert lines[-1] == "After."
    assert "old" not in lines
    assert lines[4:6] == [
        "| growth and replay | 0; 1 | 200 | 20.50 ± 0.71 | 25.20 ± 2.23 | 60.00 ± 14.14 | 77.74 ± 1.37 "
        "| 12.50 ± 0.00 | 6.29 ± 0.50 | 61 |",
        "| growth, no replay | 0 | 200 | 20 | 55.80 ± 1.94 | 50.00 | 45.35 ± 1.50 | 12.50 | 17.46 ± 1.25 | 61 |",
    ]
    assert "Measured on A Processor, 1 thread(s) a run. The settings of each row:" in lines


def test_writing_the_table_twice_changes_nothing(results):
    once = make_picture["with_table"](README, make_picture["table"](make_picture["read"](results)))
    assert make_picture["with_table"](once, make_picture["table"](make_picture["read"](results))) == once


def test_without_the_full_run_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(SystemExit, match=r"no mnist-mgr-seed\*\.json in .* curlicue result RUN --out FILE"):
        make_picture["main"](tmp_path, tmp_path / "picture.png", tmp_path / "README.md")
