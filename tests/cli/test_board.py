import json
import sys
from pathlib import Path
from typing import Any

import pytest

from curlicue.cli import main

pytestmark = pytest.mark.usefixtures("as_before")

SMALL = ("train", "--preset", "digits", "--steps", "600", "--n-z", "2", "--threads", "1", "--tensorboard")


def board(path: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return found


def scalars(path: Path, name: str) -> dict[int, float]:
    return {point.step: point.value for point in board(path).Scalars(name)}


def lines(path: Path, log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"{log}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("board") / "run"
    main([*SMALL, "--out", str(path)])
    return path


def test_tensorboard_gets_the_scores_of_every_evaluation(run):
    for name in ("cluster_accuracy", "bound", "nmi"):
        told = {line["t"]: line[name] for line in lines(run, "metrics")}
        assert scalars(run, f"test/{name}") == pytest.approx(told, rel=1e-6)


def test_tensorboard_gets_a_real_and_a_rehearsed_step_of_every_hundred(run):
    real, rehearsed = scalars(run, "real/bound"), scalars(run, "rehearsed/bound")
    assert {t // 100 for t in real} == set(range(6))
    assert {t // 100 for t in rehearsed} == set(range(1, 6))  # after the first snapshot
    assert all(value < 0 for value in (*real.values(), *rehearsed.values()))


def test_tensorboard_tells_births_and_snapshots(run):
    tags = board(run).Tags()["tensors"]
    born = any(line["event"] == "ComponentBorn" for line in lines(run, "events"))
    assert ("births/text_summary" in tags) == born
    assert "snapshots/text_summary" in tags


def test_a_run_without_it_writes_no_files_for_tensorboard(tmp_path):
    main([*SMALL[:-1], "--steps", "20", "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_without_tensorboard_one_error_says_how_to_get_it_and_nothing_is_left(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    answer = command(*SMALL, "--out", str(tmp_path / "run"))
    assert answer.code == 1
    assert answer.err == (
        "curlicue: --tensorboard needs TensorBoard. Install it: pip install 'curlicue[tensorboard]'\n"
    )
    assert list(tmp_path.iterdir()) == []
