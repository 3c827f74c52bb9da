"""A system that is neither CURL nor has a bound, births or generated samples: all that reads runs works with it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from curlicue.config.codec import from_json
from curlicue.experiments.run import Run
from curlicue.experiments.settings import RunConfig
from curlicue.learn.events import StepTaken
from curlicue.records.directory import RunDirectory
from curlicue.records.environment import environment
from curlicue.report import latent, page
from curlicue.streams.sources import load
from curlicue.systems.protocol import SystemConfig

pytestmark = pytest.mark.usefixtures("as_before")

CLASSES, FEATURES = 10, 64
SECTIONS = ["headline", "curves", "classes", "confusion", "posterior"]
SECTIONS += ["latent", "generated", "components", "births", "made"]


@dataclass(frozen=True, kw_only=True)
class ClassMeans(SystemConfig):
    """Each sample belongs to the class with the nearest mean."""

    labelled: ClassVar[bool] = True
    forget: float = 0.0  # share of the past that each batch makes it forget

    def start(self, shape: tuple[int, ...], rng: Any, device: torch.device) -> "MeansSystem":
        return MeansSystem(self.forget)


class MeansSystem:
    K = CLASSES

    def __init__(self, forget: float) -> None:
        self.t, self.keep = 0, 1 - forget
        self.sums, self.counts = torch.zeros(CLASSES, FEATURES), torch.zeros(CLASSES)

    def learn(self, stream: Any) -> Iterator[list[StepTaken]]:
        for x, labels in stream:
            self.sums = (self.keep * self.sums).index_add(0, labels, x)
            self.counts = self.keep * self.counts + labels.bincount(minlength=CLASSES)
            self.t += 1
            yield [StepTaken(self.t - 1, self.K, bound=-float(self.distances(x).amin(1).mean()))]

    def distances(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, self.sums / self.counts.clamp_min(1e-6)[:, None])

    def probabilities(self, x: torch.Tensor) -> torch.Tensor:
        return (-self.distances(x)).softmax(1)

    def class_probabilities(self, x: torch.Tensor, n_classes: int) -> torch.Tensor:
        return self.probabilities(x)

    def embed(self, x: torch.Tensor, sampled: torch.Generator | None = None) -> torch.Tensor:
        return self.distances(x)

    def figures(self) -> dict[str, Any]:
        return {"counts": self.counts.tolist()}

    def state(self) -> dict[str, Any]:
        return {"t": self.t, "sums": self.sums, "counts": self.counts}

    def restore(self, fields: Any) -> None:
        self.t = fields.count("t")
        self.sums = fields.tensor("sums", (CLASSES, FEATURES), torch.float32)
        self.counts = fields.tensor("counts", (CLASSES,), torch.float32)
        fields.end()


TRAIN = ("train", "--preset", "digits", "--system", "class-means", "--steps", "200", "--threads", "1")


@pytest.fixture
def trained(command, monkeypatch) -> Path:
    """A whole run of this system."""
    monkeypatch.setattr(page, "plotly_js", lambda: "/* plotly */")
    monkeypatch.setattr(latent, "_project", lambda z, before: z[:, :2])  # no t-SNE
    assert command(*TRAIN, "--out", "means").code == 0
    return Path("means")


def test_it_is_trained_and_scored_by_the_command(command, trained):
    result = RunDirectory.open(trained).read("result")
    assert result["cluster_accuracy"] > 0.85
    assert result["incremental_class"] > 0.85
    assert result["knn_error"]["10"] < 0.15
    assert "bound" not in result
    answer = command("result", trained, "--out", "means.json")
    assert answer.code == 0
    assert "cluster accuracy" in answer.out
    assert "bound" not in answer.out
    assert json.loads(Path("means.json").read_text())["config"]["system"] == {"type": "ClassMeans", "forget": 0.0}


def test_its_settings_are_options_and_go_with_it_alone(command):
    assert "share of the past that each batch makes it forget (class-means)" in " ".join(
        command("train", "--help").out.replace("│", " ").split()
    )
    answer = command("train", "--preset", "digits", "--forget", "0.5")
    assert (answer.code, answer.err) == (
        1,
        "curlicue: --forget goes with --system class-means. Leave it out, or add that.\n",
    )
    answer = command(*TRAIN, "--growth", "measured")
    assert answer.code == 1
    assert answer.err == (
        "curlicue: --growth goes with --system curl or --system labelled-curl. Leave it out, or add one of these.\n"
    )


def test_stopped_and_resumed_it_ends_as_if_never_stopped(command, trained):
    config: RunConfig = from_json(RunConfig, RunDirectory.open(trained).settings())
    stopped = RunDirectory.create(Path("stopped"), config.to_json(), environment(threads=1))
    run = Run(config, load("digits"), stopped)
    assert all(run.system.t <= 77 for _ in run.events(stop=lambda: run.system.t >= 77))
    assert command("train", "--resume", stopped.path).code == 0
    assert left_behind(stopped) == left_behind(RunDirectory.open(trained))


def left_behind(run: RunDirectory) -> dict[str, bytes]:
    """All that is neither time nor place."""
    names = ("events.jsonl", "metrics.jsonl", "result.json", *(f"views/{view:08d}.npz" for view in run.view_steps))
    tensors = load_file(run.checkpoint)
    return {name: (run.path / name).read_bytes() for name in names} | {
        name: tensor.numpy().tobytes() for name, tensor in tensors.items()
    }


def test_a_checkpoint_of_another_system_is_refused(command, trained):
    config = RunDirectory.open(trained).read("config")
    config["system"] = {"type": "Curl", "model": {"n_z": 2, "encoder": [8], "decoder": [8]}}
    RunDirectory.open(trained).write("config", config)
    answer = command("train", "--resume", trained)
    assert answer.code == 1
    assert answer.err.startswith("curlicue: means/checkpoint.safetensors does not fit the settings: state/")
    assert answer.err.count("\n") == 1


def test_its_page_shows_what_it_has_and_nothing_that_it_has_not(command, trained):
    answer = command("report", trained, "--figures", "figures")
    assert (answer.code, answer.err) == (0, "")
    text = (trained / "report.html").read_text()
    shown = [name for name in SECTIONS if f'<section id="{name}">' in text]
    assert shown == ["headline", "curves", "classes", "confusion", "latent", "components", "made"]
    for words in ("share of the stream", "Bound, nats", "nats:"):
        assert words not in text
    assert "nearest real samples" in text
    written = {path.stem for path in Path("figures").iterdir()}
    assert written == {"accuracy", "classes", "confusion", "latent"}


def test_its_runs_are_compared_with_each_other_and_with_curl(command, trained):
    assert command(*TRAIN, "--seed", 1, "--out", "seed1").code == 0
    assert command(*TRAIN, "--forget", "0.5", "--out", "forgetful").code == 0
    assert command("train", "--preset", "digits", "--steps", "40", "--out", "curl").code == 0
    answer = command("report", trained, "seed1", "forgetful", "curl", "--out", "all.html", "--figures", "figures")
    assert (answer.code, answer.err) == (0, "")
    text = Path("all.html").read_text()
    for group in ("class-means, forget 0.0", "class-means, forget 0.5", "system curl"):
        assert f"{group}</b>" in text
    assert {path.stem for path in Path("figures").glob("*.png")} == {"variants", "posteriors"}


def test_tensorboard_is_told_what_there_is(command, monkeypatch):
    pytest.importorskip("torch.utils.tensorboard")
    assert command(*TRAIN, "--tensorboard", "--out", "board").code == 0
    assert list(Path("board", "tensorboard").iterdir())
