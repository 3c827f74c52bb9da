import json
import multiprocessing
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from changed import changed
from curlicue.cli import console, paper
from curlicue.cli.drawing import PAINTERS, draw
from curlicue.config.model import ModelConfig
from curlicue.experiments.paper import EXPERIMENTS, LIFE, Column, Experiment, Row
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.reproduce import Job, Standing, jobs_of
from curlicue.experiments.setups import SETUPS, RawPixels
from curlicue.experiments.tables import header, lines
from curlicue.records.directory import RunDirectory
from curlicue.records.environment import environment

pytestmark = pytest.mark.usefixtures("as_before")

TINY = changed(PRESETS["digits"], "system", model=ModelConfig(n_z=2, encoder=(8,), decoder=(8,)))
TINY = replace(TINY, steps=1000).resolved(10)
ACCURACY = Column("10-NN error, %", "knn_error.10", False)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the smallest runs, besides the paper's."""
    monkeypatch.setitem(SETUPS, "tiny", TINY)
    monkeypatch.setitem(SETUPS, "raw", RawPixels("digits"))
    rows = (
        Row("learnt", "tiny", ((1.0, 0.1),)),
        Row("pixels", "raw"),
        Row("quoted", None, ((12.34, None),)),
    )
    monkeypatch.setitem(EXPERIMENTS, "table-toy", Experiment("Toy", "nowhere", (ACCURACY,), rows, "It says more."))


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_all_tables_and_figures_are_listed(command):
    answer = command("reproduce", "--list")
    assert (answer.code, answer.err) == (0, "")
    assert [row[0] for row in cells(answer.out)] == list(EXPERIMENTS)


def found(how_many: str) -> str:
    """What is said of results of this very commit, in a tenth of the steps."""
    commit = (environment(1)["commit"] or "unknown")[:10]
    told = f"{how_many} results are in results already (of commits {commit}; ours in 0.1 of the steps). "
    return f"{told}To measure all of them yourself, give another --results and another --runs.\n"


def test_a_table_is_run_shown_and_kept(command, toy, tmp_path):
    answer = command("reproduce", "table-toy", "--seeds", 2, "--scale", 0.1)
    assert answer.code == 0
    assert "ours in 0.1 of the steps" in " ".join(answer.out.split())
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"tiny-seed0-scale0.1.json", "tiny-seed1-scale0.1.json", "raw-seed0.json"}
    kept = json.loads((tmp_path / "results" / "tiny-seed1-scale0.1.json").read_text())
    assert (kept["config"]["steps"], kept["config"]["seed"]) == (100, 1)
    learnt, pixels, quoted = cells(answer.out)[-3:]
    assert learnt[:2] == ["learnt", "2"]
    assert learnt[2].endswith("▼")
    assert "It says more. ▼ worse than the paper by more than two of its standard deviations" in " ".join(
        answer.out.split()
    )
    assert learnt[3] == "1.00 ± 0.10"
    assert pixels[:2] == ["pixels", "1"]
    assert quoted == ["quoted", "–", "", "12.34", ""]
    for key in ("tiny-seed0-scale0.1", "tiny-seed1-scale0.1"):
        assert re.search(rf"^{key}: step 100/100, K \d+$", answer.out, re.MULTILINE)
    assert "raw-seed0: done\n" in answer.out
    assert answer.err == ""
    again = command("reproduce", "table-toy", "--seeds", 2, "--scale", 0.1)
    assert again.err == found("3 of 3")
    assert "seed" not in again.out.replace("seeds", "")
    assert cells(again.out) == cells(answer.out)


def test_all_seeds_that_are_there_are_shown_and_nothing_is_run_for_it(command, toy, monkeypatch, tmp_path):
    command("reproduce", "table-toy", "--seeds", 2, "--scale", 0.1)
    results = tmp_path / "results"
    for name in (
        "tiny-seed7-scale0.1",
        "tiny-seed01-scale0.1",
        "tiny-seed1-scale0.10",
        "tiny-seed1-scale.",
        "raw-seed1",
    ):
        shutil.copy(
            results / ("raw-seed0.json" if "raw" in name else "tiny-seed1-scale0.1.json"), results / f"{name}.json"
        )
    for name in ("reproduce", "load"):
        monkeypatch.setattr(paper, name, lambda *_, **__: pytest.fail("something is run"))
    answer = command("reproduce", "table-toy", "--scale", 0.1, "--show")
    assert (answer.code, answer.err) == (0, "")
    assert [row[:2] for row in cells(answer.out)[-3:]] == [["learnt", "2"], ["pixels", "1"], ["quoted", "–"]]
    answer = command("reproduce", "table-toy", "--show", "--results", "none")
    assert [row[1] for row in cells(answer.out)[-3:]] == ["not run", "not run", "–"]
    assert answer.err == "There is no folder none, so nothing is done. --results names another.\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("option", ["--results", "--runs"])
def test_what_cannot_be_written_is_told_before_any_run(command, toy, monkeypatch, tmp_path, option):
    monkeypatch.setattr(paper, "reproduce", lambda *_, **__: pytest.fail("a run"))
    (tmp_path / "file").write_text("")
    answer = command("reproduce", "table-toy", option, "file/folder")
    message = f"curlicue: file/folder cannot be written (Not a directory). Choose another {option}.\n"
    assert (answer.code, answer.out, answer.err) == (1, "", message)


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_narrow_terminal_breaks_lines_but_no_words_and_numbers(name, width, monkeypatch):
    def seeds(*_: object) -> list[dict]:
        scores = {column.score.split(".")[0]: 0.123 for column in experiment.columns}
        scores |= {"K": 101, "n_used": 99, "knn_error": {"3": 0.8765, "5": 0.8765, "10": 0.8765}}
        return [{"result": scores, "timing": {"minutes": 75}}] * 3

    experiment, screen = EXPERIMENTS[name], StringIO()
    monkeypatch.setattr(paper, "read_seeds", seeds)
    monkeypatch.setattr(console, "out", Console(width=width, file=screen))
    console.show(paper._table(name, experiment, jobs_of([experiment], 1, 1.0), Path()))
    printed = screen.getvalue()
    assert max(map(len, printed.splitlines())) <= 80
    cells = [cell for line in (header(experiment), *lines(experiment, seeds)) for cell in line]
    assert {word for cell in cells for word in cell.split()} <= set(re.split(r"[\s│┃]+", printed))


def test_a_wide_terminal_breaks_nothing(monkeypatch):
    screen = StringIO()
    monkeypatch.setattr(console, "out", Console(width=150, file=screen))
    console.show(paper._table("table-mgr-mnist", EXPERIMENTS["table-mgr-mnist"], [], Path()))
    assert "│MGR (ours: snapshots at changes)│not run│" in screen.getvalue()


@pytest.fixture
def small_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's figures, of the smallest runs."""
    for name in ("mnist-mgr", "mnist-drift-mgr"):
        monkeypatch.setitem(SETUPS, name, TINY)


def test_figures_are_drawn_of_their_runs(command, small_paper, tmp_path):
    answer = command("reproduce", "figure-posterior", "figure-life", "--scale", 0.1)
    assert answer.code == 0
    names = ["figure-posterior-scale0.1", "figure-life-scale0.1-latent", "figure-life-scale0.1-dreams"]
    found = {path.name for path in (tmp_path / "results" / "figures").iterdir()}
    assert found == {f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")}
    assert f"results/figures: {names[0]} as PNG, SVG and PDF" in answer.out
    assert f"results/figures: {names[1]}, {names[2]} as PNG, SVG and PDF" in answer.out
    for name in names:
        drawn = (tmp_path / "results" / "figures" / f"{name}.svg").read_text()
        assert "<!-- 100 of the paper's 100,000 steps -->" in drawn


def test_what_is_drawn_from_a_run_directory_needs_it(command, small_paper, tmp_path):
    command("reproduce", "figure-life", "--scale", 0.1)
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "results" / "figures")
    answer = command("reproduce", "figure-life", "--scale", 0.1)
    assert answer.code == 1
    assert answer.err == found("1 of 1") + (
        "curlicue: figure-life is drawn from runs/paper/mnist-mgr-seed0-scale0.1, which is not there or another run. "
        "To make it, give another --results and another --runs.\n"
    )
    assert (answer.out, (tmp_path / "results" / "figures").exists()) == ("", False)  # said before anything is done


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 99}])
def test_a_figure_is_not_drawn_of_another_run(command, small_paper, tmp_path, change):
    command("reproduce", "figure-life", "--scale", 0.1)
    shutil.rmtree(tmp_path / "results" / "figures")
    config = tmp_path / "runs" / "paper" / "mnist-mgr-seed0-scale0.1" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    assert "which is not there or another run" in command("reproduce", "figure-life", "--scale", 0.1).err
    assert not (tmp_path / "results" / "figures").exists()


def test_every_figure_can_be_drawn():
    assert {name for name in EXPERIMENTS if name.startswith("figure-")} == {*PAINTERS, LIFE}


def result(K: int, steps: int = 100) -> list[dict]:
    scores = {"cluster_accuracy": 0.5, "knn_error": {"10": 0.1}, "K": K}
    return [{"result": scores, "config": {"steps": steps}}]


def test_the_figure_of_thresholds_needs_two_of_them(tmp_path):
    path = tmp_path / "c-new.png"
    some = {"mnist-mgr": result(20), "mnist-iid-c-new-100": result(7)}
    assert not draw("figure-c-new", lambda name: some.get(name, []), path)
    assert not path.exists()
    some["mnist-c-new-400"] = result(3)
    assert draw("figure-c-new", lambda name: some.get(name, []), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_thresholds_says_if_a_run_without_births_is_short(tmp_path):
    path, some = tmp_path / "c-new.svg", {name: result(9, 100_000) for name in ("mnist-mgr", "mnist-c-new-400")}
    note = "of the paper's 100,000 steps"
    some["mnist-iid-no-expansion"] = result(25)  # not drawn: nothing shuffled is
    assert draw("figure-c-new", lambda name: some.get(name, []), path)
    assert note not in path.read_text()
    some["mnist-no-expansion"] = result(25)
    assert draw("figure-c-new", lambda name: some.get(name, []), path)
    assert f"100, 100,000 {note}" in path.read_text()


def test_a_figure_without_matplotlib_is_refused_before_the_runs(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer = command("reproduce", "figure-posterior")
    message = "curlicue: Figures need matplotlib. Install it: pip install 'curlicue[report]'\n"
    assert (answer.code, answer.out, answer.err) == (1, "", message)
    assert not (tmp_path / "runs").exists()


def test_what_fails_is_told_and_the_rest_is_shown(command, toy, tmp_path):
    path = tmp_path / "runs" / "paper" / "tiny-seed0-scale0.1"
    RunDirectory.create(path, replace(TINY, seed=5).to_json(), {})
    answer = command("reproduce", "table-toy", "--scale", 0.1)
    assert answer.code == 1
    assert answer.err == (
        f"{path.name}: {path.relative_to(tmp_path)} is a run with other settings. Move it away, or choose another "
        f"--runs.\nFailed: {path.name}, as said above. Mend that, and the same command goes on.\n"
    )
    assert [row[:2] for row in cells(answer.out)[-3:-1]] == [["learnt", "not run"], ["pixels", "1"]]


def test_missing_data_are_one_error_before_any_run(command, toy, monkeypatch, tmp_path):
    monkeypatch.setattr(paper, "reproduce", lambda *_, **__: pytest.fail("a run"))
    monkeypatch.setitem(SETUPS, "tiny", replace(TINY, dataset="nothing"))
    answer = command("reproduce", "table-toy", "--seeds", 2)
    assert (answer.code, answer.out) == (1, "")
    assert re.fullmatch("curlicue: .*nothing.*\n", answer.err)


def test_each_data_set_that_is_still_needed_is_loaded_once(command, toy, monkeypatch):
    loaded: list[tuple[str, Path | None]] = []
    monkeypatch.setattr(paper, "load", lambda name, data_dir, progress: loaded.append((name, data_dir)))
    assert command("reproduce", "table-toy", "--scale", 0.1, "--data-dir", "d").code == 0
    assert command("reproduce", "table-toy", "--scale", 0.1).code == 0
    assert loaded == [("digits", Path("d"))]


def test_what_was_stopped_goes_on_and_what_failed_has_to_be_mended(command, toy, monkeypatch):
    def reproduced(jobs: list[Job], *_: object, **__: object) -> Iterator[Standing]:
        yield Standing(jobs[0], "failed", error="It cannot be.")
        yield Standing(jobs[1], "stopped")

    monkeypatch.setattr(paper, "reproduce", reproduced)
    answer = command("reproduce", "table-toy", "--seeds", 2)
    assert answer.code == 130
    assert answer.err == (
        "tiny-seed0: It cannot be.\n"
        "Failed: tiny-seed0, as said above. Mend that, and the same command goes on.\n"
        "Not finished: raw-seed0, tiny-seed1. Nothing is lost; the same command goes on.\n"
    )


def test_without_a_terminal_each_tenth_of_a_run_is_a_line(command, toy, monkeypatch):
    def reproduced(jobs: list[Job], *_: object, **__: object) -> Iterator[Standing]:
        standing = Standing(jobs[0], "running", process=multiprocessing.current_process())
        for standing.t in (0, 50, 100, 150, 300, 200, 300, 400):  # once cut off
            standing.K = 1 + standing.t // 100
            yield standing
        yield Standing(jobs[1], "running", process=standing.process)
        yield Standing(jobs[1], "done", process=standing.process)

    monkeypatch.setattr(paper, "reproduce", reproduced)
    told = [line for line in command("reproduce", "table-toy").out.splitlines() if "-seed0: " in line]
    steps = [f"tiny-seed0: step {t}/1000, K {1 + t // 100}" for t in (100, 300, 400)]
    assert told == [*steps, "raw-seed0: done"]


def test_in_a_terminal_the_lines_of_the_runs_stand_above_the_tables(command, toy, monkeypatch):
    def reproduced(jobs: list[Job], *_: object, **__: object) -> Iterator[Standing]:
        yield Standing(jobs[-1], "done")
        yield Standing(jobs[0], "running", 50, 7)
        yield Standing(jobs[0], "running", 100, 8)

    screen = StringIO()
    how = {"force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}}
    monkeypatch.setattr(console, "out", Console(file=screen, width=80, height=24, **how))
    monkeypatch.setattr(paper, "load", lambda *_: None)
    monkeypatch.setattr(paper, "reproduce", reproduced)
    command("reproduce", "table-toy", "table-mgr-mnist", "table-mgr-omniglot", "--scale", 0.1)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    frame = re.split(r"(?=\d of \d+ done)", shown)
    assert re.search(r"tiny-seed0-scale0\.1 running +50 % +step 50/100 +K 7 *\n$", frame[-3])
    assert re.search(r"tiny-seed0-scale0\.1 scoring +100 % +step 100/100 +K 8 *\n$", frame[-2])
    left, *tables = frame[-1].split(" ...")[0].splitlines()  # there the screen ends
    assert len(tables) < 24
    assert re.fullmatch(r"1 of \d+ done, \d+ waiting; ours in 0\.1 of the steps *", left)
    assert "table-toy: Toy" in " ".join(tables)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Say which table or figure. See them all: curlicue reproduce --list"),
        (("table-99",), f"There is no 'table-99' in the paper. Choose from: {', '.join(EXPERIMENTS)}."),
        (("table-random", "--seeds", 0), "--seeds must be an int in the range [1, inf). Got 0 instead."),
        (("table-random", "--jobs", 0), "--jobs must be an int in the range [1, inf). Got 0 instead."),
        (("table-random", "--scale", 1.5), "--scale must be a number in the range (0, 1]. Got 1.5 instead."),
        (("table-random", "--scale", 0), "--scale must be a number in the range (0, 1]. Got 0 instead."),
    ],
)
def test_a_mistake_is_one_line(command, arguments, message):
    answer = command("reproduce", *arguments)
    assert (answer.code, answer.out, answer.err) == (1, "", f"curlicue: {message}\n")
