import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import save_file

import curlicue
from changed import changed
from curlicue.cli import console, main, train
from curlicue.cli.model import LEARNING
from curlicue.cli.options import given, options
from curlicue.cli.train import configure
from curlicue.config.codec import from_json, to_json
from curlicue.config.model import Emission, Likelihood
from curlicue.config.scenario import Drift, Iid, Sequential
from curlicue.errors import ConfigError
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.run import forgotten, use_threads
from curlicue.experiments.settings import RunConfig
from curlicue.experiments.setups import SETUPS
from curlicue.growth.protocol import Tuned
from curlicue.growth.threshold import Threshold
from curlicue.memory.snapshot import Counts, Snapshot
from curlicue.records.files import alone_in
from curlicue.systems.labelled import LabelledCurl

SMALL = ("train", "--preset", "digits", "--steps", "20", "--n-z", "2", "--threads", "1")


pytestmark = pytest.mark.usefixtures("as_before")


def contents(path: Path) -> dict[str, bytes | None]:
    files = (p for p in path.rglob("*"))
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    main([*SMALL, "--out", str(path)])
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# -- help --------------------------------------------------------------------------------------------------------

TRAIN = [
    *("preset", "dataset", "scenario", "at_once", "steps", "batch_size", "seed", "system", "n_z", "encoder"),
    *("decoder", "likelihood", "K", "learning_rate", "tau", "z_samples", "growth", "c_new", "n_new"),
    *("burn_in", "wait", "passes", "tuned", "deviations", "window", "max_components", "memory", "snapshots"),
    *("labelled", "emission", "counts", "sampled_knn", "evaluate_every", "checkpoint_every", "out", "resume"),
    *("data_dir", "device", "threads", "tensorboard"),
]
NOT_OF_FIT = {"preset", "dataset", "scenario", "at_once", "steps", "system", "K", "tau", "z_samples", "sampled_knn"}
NOT_OF_FIT |= {"evaluate_every", "checkpoint_every", "resume", "data_dir", "tensorboard"}
FIT = {*TRAIN, "update", "skip", "epochs"} - NOT_OF_FIT
OPTIONS = {
    "fit": {*FIT},
    "embed": {"out", "bound", "device"},
    "sample": {"n", "component", "seed", "out", "device"},
    "train": {*TRAIN},
    "demo": {"out"},
    "data": {"data_dir"},
    "result": {"out"},
    "report": {"out", "figures"},
    "watch": {"port", "open"},
    "reproduce": {"list", "show", "seeds", "scale", "jobs", "runs", "results", "data_dir"},
}


@pytest.mark.parametrize("subcommand", OPTIONS)
def test_help_names_every_option_and_no_other(command, subcommand):
    answer = command(subcommand, "--help")
    assert (answer.code, answer.err) == (0, "")
    named = set(re.findall(r"^[│ ] +(?:-\w \w+, )?--([a-zA-Z][a-z-]*)", answer.out, re.MULTILINE))
    settings = {"train": options(RunConfig), "fit": LEARNING}.get(subcommand, {})
    foreign = settings.keys() - {*TRAIN}  # of kinds that are not named here
    assert named == {name.replace("_", "-") for name in OPTIONS[subcommand] | foreign}
    assert "None" not in answer.out


@pytest.mark.parametrize(
    "words",
    [
        "standard deviations below the mean at which a sample is poorly explained (measured; default: 2.0)",
        "nats; a real sample whose bound is lower joins D_new (threshold; default: -200.0)",
        "default: 20 with --growth measured, 100 with --growth threshold)",
        "none} what is rehearsed between real batches",
        "so many classes together (sequential; default: 1)",
        "a set-up of the paper's appendix, or one beside them (default: mnist)",
    ],
)
def test_help_says_what_an_option_means_which_kind_it_goes_with_and_what_that_kind_has_without(command, words):
    assert words in " ".join(command("train", "--help").out.replace("│", " ").split())


def test_help_says_what_every_option_means(command):
    told = re.split(r"^│ --", command("train", "--help").out, flags=re.MULTILINE)[1:]
    told = [" ".join(each.replace("│", " ").split()) for each in told]
    silent = [each for each in told if not re.search(r"(?:[A-Z]+|\}|--no-[a-z-]+) [a-zA-Zx(].{5,}", each)]
    assert silent == []


def test_help_names_every_subcommand(command):
    answer = command("--help")
    assert answer.code == 0
    assert set(re.findall(r"• (\w+)", answer.out)) == OPTIONS.keys()


def test_the_version_is_that_of_the_package(command):
    answer = command("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"{curlicue.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("train", "--nope"), "--nope"),
        (("train", "--preset", "nope"), "nope"),
        (("train", "--steps", "many"), "many"),
        (("nope",), "nope"),
        ((), "train"),
        (("result",), "PATH"),
    ],
)
def test_what_the_command_does_not_know_ends_it_with_code_2(command, tmp_path, arguments, named):
    answer = command(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert named in answer.err
    assert not contents(tmp_path)


# -- settings ----------------------------------------------------------------------------------------------------


def asked(preset: str = "digits", **settings: Any) -> RunConfig:
    return configure({"preset": preset, **settings})


GROWTH, MEMORY, LEARNER, MODEL = "system.learner.growth", "system.learner.memory", "system.learner", "system.model"
DIGITS = PRESETS["digits"]
MEANINGS: dict[str, list[tuple[Any, RunConfig]]] = {
    "preset": [("digits", DIGITS)],
    "dataset": [
        ("mnist-grey", replace(DIGITS, dataset="mnist-grey")),
        ("mnist", changed(replace(DIGITS, dataset="mnist"), MEMORY, emission=Emission.THRESHOLD)),  # black and white
    ],
    "scenario": [
        ("iid", replace(DIGITS, scenario=Iid())),
        ("sequential", replace(DIGITS, scenario=Sequential(1))),
        ("drift", replace(DIGITS, scenario=Drift())),
    ],
    "at_once": [(2, replace(DIGITS, scenario=Sequential(2)))],
    "steps": [(10_000, DIGITS)],
    "seed": [(7, replace(DIGITS, seed=7))],
    "batch_size": [(32, replace(DIGITS, batch_size=32))],
    "system": [("curl", DIGITS), ("labelled-curl", replace(DIGITS, system=LabelledCurl()))],
    "growth": [
        ("measured", DIGITS),
        ("threshold", changed(DIGITS, LEARNER, growth=Threshold())),
        ("none", changed(DIGITS, LEARNER, growth=None)),
    ],
    "deviations": [(3.0, changed(DIGITS, GROWTH, deviations=3.0))],
    "window": [(9.0, changed(DIGITS, GROWTH, window=9.0))],
    "n_new": [(7, changed(DIGITS, GROWTH, n_new=7))],
    "wait": [(7, changed(DIGITS, GROWTH, wait=7))],
    "passes": [(7, changed(DIGITS, GROWTH, passes=7))],
    "tuned": [(tuned, changed(DIGITS, GROWTH, tuned=Tuned(tuned))) for tuned in ("all", "heads")],
    "K": [(3, changed(DIGITS, MODEL, K=3))],
    "max_components": [
        (25, changed(DIGITS, LEARNER, max_components=25)),
        ("none", changed(DIGITS, LEARNER, max_components=None)),
    ],
    "memory": [("snapshot", DIGITS), ("none", changed(DIGITS, LEARNER, memory=None))],
    "labelled": [(labelled, changed(DIGITS, MEMORY, labelled=labelled)) for labelled in (False, True)],
    "emission": [(each, changed(DIGITS, MEMORY, emission=Emission(each))) for each in ("threshold", "sample")],
    "counts": [(counts, changed(DIGITS, MEMORY, counts=Counts(counts))) for counts in ("seen", "generated")],
    "snapshots": [(each, changed(DIGITS, MEMORY, snapshots=each)) for each in ("dynamic", "change", "T", "0.1T", 77)],
    "n_z": [(5, changed(DIGITS, MODEL, n_z=5))],
    "encoder": [((7, 3), changed(DIGITS, MODEL, encoder=(7, 3))), ("conv", changed(DIGITS, MODEL, encoder="conv"))],
    "decoder": [((), changed(DIGITS, MODEL, decoder=())), ("conv", changed(DIGITS, MODEL, decoder="conv"))],
    "likelihood": [("gaussian", changed(DIGITS, MODEL, likelihood=Likelihood.GAUSSIAN))],
    "z_samples": [(4, changed(DIGITS, LEARNER, z_samples=4))],
    "tau": [(tau, changed(DIGITS, LEARNER, tau=tau)) for tau in (0.1, 0.0)],
    "learning_rate": [(0.25, changed(DIGITS, LEARNER, learning_rate=0.25))],
    "sampled_knn": [(True, replace(DIGITS, sampled_knn=True))],
    "evaluate_every": [(3, replace(DIGITS, evaluate_every=3))],
    "checkpoint_every": [(3, replace(DIGITS, checkpoint_every=3))],
}
OF_THRESHOLD = {"c_new": -50.0, "burn_in": 7}


def test_the_meaning_of_every_option_is_tested():
    assert MEANINGS.keys() | OF_THRESHOLD.keys() == {name for name in options(RunConfig) if name in TRAIN} | {"preset"}


@pytest.mark.parametrize("option", MEANINGS)
def test_an_option_changes_what_it_names_and_nothing_else(option):
    for value, expected in MEANINGS[option]:
        assert configure({"preset": "digits", option: value}) == expected


@pytest.mark.parametrize("option", OF_THRESHOLD)
def test_an_option_of_the_papers_threshold_changes_what_it_names_and_nothing_else(option):
    found = configure({"preset": "mnist", option: OF_THRESHOLD[option]})
    assert found == changed(PRESETS["mnist"], GROWTH, **{option: OF_THRESHOLD[option]})


@pytest.mark.parametrize("preset", PRESETS)
def test_without_options_a_preset_stays_as_it_is(preset):
    assert asked(preset) == PRESETS[preset]


GIVEN = """
    --preset mnist --scenario sequential --at-once 2 --steps 30 --seed 4 --batch-size 5 --growth threshold --c-new -12.5
    --n-new 6 --tuned heads --K 2 --max-components 9 --memory snapshot --labelled --emission sample --counts seen
    --snapshots 0.1T --n-z 3 --encoder 7 5 --decoder conv --z-samples 2 --tau 0.25 --learning-rate 0.01 --no-sampled-knn
"""
ARRIVED = {
    "preset": "mnist",
    "scenario": "sequential",
    "at_once": 2,
    "steps": 30,
    "seed": 4,
    "batch_size": 5,
    "growth": "threshold",
    "c_new": -12.5,
    "n_new": 6,
    "tuned": "heads",
    "K": 2,
    "max_components": 9,
    "memory": "snapshot",
    "labelled": True,
    "emission": "sample",
    "counts": "seen",
    "snapshots": "0.1T",
    "n_z": 3,
    "encoder": (7, 5),
    "decoder": "conv",
    "z_samples": 2,
    "tau": 0.25,
    "learning_rate": 0.01,
    "sampled_knn": False,
}


def test_options_of_the_command_line_arrive(monkeypatch, command):
    seen: list[dict[str, Any]] = []

    def stop(values: dict[str, Any]) -> RunConfig:
        seen.append(dict(values))
        raise ConfigError("far enough")

    monkeypatch.setattr(train, "configure", stop)
    assert command("train", *GIVEN.split()).err == "curlicue: far enough\n"
    assert command("train", "--snapshots", 77, "--max-components", "none").err == "curlicue: far enough\n"
    assert seen == [ARRIVED, {"snapshots": 77, "max_components": "none"}]


@pytest.mark.parametrize(
    ("steps", "snapshots", "evaluate", "checkpoint"), [(20_000, 2000, 1000, 4000), (500, 50, 25, 100), (3, 1, 1, 1)]
)
def test_periods_scale_with_the_steps(steps, snapshots, evaluate, checkpoint):
    config = asked(steps=steps).resolved(10)
    assert config.system.learner.memory.snapshots == snapshots
    assert (config.steps, config.evaluate_every, config.checkpoint_every) == (steps, evaluate, checkpoint)


def test_a_number_of_steps_between_snapshots_that_is_asked_for_does_not_scale():
    assert asked(steps=500, snapshots=77).system.learner.memory.snapshots == 77
    assert asked(steps=500, evaluate_every=77).evaluate_every == 77


@pytest.mark.parametrize(
    ("settings", "emission"),
    [
        ({"preset": "iid-mnist"}, Emission.THRESHOLD),
        ({"preset": "iid-omniglot"}, Emission.SAMPLE),
        ({"preset": "iid-mnist", "dataset": "mnist-grey"}, Emission.SAMPLE),
        ({"preset": "iid-omniglot", "emission": "threshold"}, Emission.THRESHOLD),
    ],
)
def test_a_memory_can_be_added_to_a_preset_without_and_rounds_where_images_have_no_greys_unless_asked(
    settings, emission
):
    config = asked(**settings, memory="snapshot")
    assert config.system.learner.memory == Snapshot(emission=emission)


@pytest.mark.parametrize(
    ("preset", "settings", "emission"),
    [
        ("mnist", {"dataset": "omniglot"}, Emission.SAMPLE),
        ("mnist", {"dataset": "mnist-grey"}, Emission.SAMPLE),
        ("mnist", {"dataset": "omniglot", "emission": "threshold"}, Emission.THRESHOLD),
        ("mnist", {"dataset": "mnist-60k"}, Emission.THRESHOLD),
        ("omniglot", {"dataset": "mnist"}, Emission.THRESHOLD),
        ("split-mnist", {"dataset": "mnist-60k"}, Emission.SAMPLE),
        ("split-mnist", {"dataset": "mnist"}, Emission.SAMPLE),  # classes are told
    ],
)
def test_generated_samples_suit_the_data_set_that_is_asked_for(preset, settings, emission):
    assert asked(preset, **settings).system.learner.memory.emission is emission


@pytest.mark.parametrize(("data", "n_classes"), [("mnist", 10), ("omniglot", 50)])
def test_the_sequential_benchmark_is_an_iid_preset_with_its_classes_in_turn_and_replay(data, n_classes):
    config = asked(f"iid-{data}", scenario="sequential", memory="snapshot", labelled=False, snapshots="dynamic")
    assert config.resolved(n_classes) == SETUPS[f"benchmark-{data}-in-turn"]


@pytest.mark.parametrize("growth", ["threshold", "measured"])
def test_where_labels_say_which_component_it_is_a_rule_of_growth_is_refused(growth):
    with pytest.raises(ConfigError, match="With labels a component is opened for each class"):
        asked("split-mnist", growth=growth)


@pytest.mark.parametrize("option", [{"n_new": 3}, {"tuned": "all"}, {"c_new": -3.0}])
def test_options_of_growth_are_refused_where_nothing_grows(option):
    with pytest.raises(ConfigError, match=f"--{next(iter(option)).replace('_', '-')} goes with --growth"):
        asked("split-mnist", **option)


def test_a_preset_keeps_its_classes_at_once_when_asked_for_the_scenario_it_has():
    assert asked("split-mnist", scenario="sequential").scenario == Sequential(2)


def test_another_kind_than_that_of_the_preset_begins_with_its_defaults_and_the_same_kind_with_the_presets():
    assert asked("digits", growth="threshold").system.learner.growth == Threshold()
    assert asked("mnist-released", growth="threshold").system.learner.growth == Threshold(tuned=Tuned.HEADS)


def test_the_snapshots_of_a_preset_stay_at_the_ends_of_what_is_shown_together():
    assert asked("mnist", at_once=2).resolved(10).system.learner.memory.snapshots == 20_000


def test_mgr_takes_the_labels_from_a_preset_with_smgr():
    assert PRESETS["split-mnist"].system.learner.memory.labelled
    assert not asked("split-mnist", labelled=False).system.learner.memory.labelled
    assert asked("split-mnist").system.learner.memory.labelled


# -- settings that cannot work -----------------------------------------------------------------------------------

AT_LEAST_1 = "The '{}' setting must be an int in the range [1, inf). Got {} instead."
REFUSED: list[tuple[str, str]] = [
    ("--steps 0", AT_LEAST_1.format("steps", 0)),
    ("--steps -5", AT_LEAST_1.format("steps", -5)),
    ("--batch-size 0", AT_LEAST_1.format("batch_size", 0)),
    ("--n-z 0", AT_LEAST_1.format("n_z", 0)),
    ("--K 0", AT_LEAST_1.format("K", 0)),
    ("--n-new 0", AT_LEAST_1.format("n_new", 0)),
    ("--z-samples 0", AT_LEAST_1.format("z_samples", 0)),
    ("--at-once 0", AT_LEAST_1.format("at_once", 0)),
    ("--scenario sequential --at-once 0", AT_LEAST_1.format("at_once", 0)),
    ("--at-once 11", "The 'at_once' setting must be at most 10, the number of classes. Got 11 instead."),
    (
        "--max-components 0",
        "The 'max_components' setting must be None or an int in the range [1, inf). Got 0 instead.",
    ),
    (
        "--growth threshold --c-new nan",
        "The 'c_new' setting must be a finite number of nats. Got nan instead.",
    ),
    ("--learning-rate 0", "The 'learning_rate' setting must be a float in the range (0, inf). Got 0.0 instead."),
    (
        "--snapshots 0",
        "The 'snapshots' setting must be an int in the range [1, inf), 'dynamic' or 'change'. Got 0 instead.",
    ),
    ("--encoder 5 0", "The 'encoder' setting must be widths in the range [1, inf) or 'conv'. Got (5, 0) instead."),
    ("--memory none --snapshots T", "--snapshots goes with --memory snapshot. Leave it out, or add that."),
    (
        "--memory none --emission sample --counts seen",
        "--emission, --counts go with --memory snapshot. Leave them out, or add that.",
    ),
    (
        "--growth none --n-new 3 --tuned all",
        "--n-new, --tuned go with --growth measured or --growth threshold. Leave them out, or add one of these.",
    ),
    ("--c-new -3", "--c-new goes with --growth threshold. Leave it out, or add that."),
    ("--growth threshold --deviations 3", "--deviations goes with --growth measured. Leave it out, or add that."),
    ("--scenario iid --at-once 2", "--at-once goes with --scenario sequential. Leave it out, or add that."),
    (
        "--system labelled-curl --growth measured",
        "With labels a component is opened for each class. Choose no rule of growth.",
    ),
    ("--tau -0.1", "The 'tau' setting must be a float in the range [0, 1]. Got -0.1 instead."),
    ("--threads 0", "The number of threads must be an int in the range [1, inf). Got 0 instead."),
    ("--threads -1", "The number of threads must be an int in the range [1, inf). Got -1 instead."),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[options for options, _ in REFUSED])
def test_settings_that_cannot_work_are_one_line_of_error_and_leave_nothing_behind(command, tmp_path, options, message):
    answer = command("train", "--preset", "digits", *options.split())
    assert (answer.code, answer.out, answer.err) == (1, "", f"curlicue: {message}\n")
    assert not contents(tmp_path)


def test_options_that_a_preset_would_ignore_are_refused():
    with pytest.raises(ConfigError, match="--at-once goes with --scenario sequential"):
        asked("iid-mnist", at_once=2)
    with pytest.raises(ConfigError, match="--snapshots goes with --memory snapshot"):
        asked("iid-mnist", snapshots="T")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--steps 40", "--steps"),
        ("--preset digits --n-z 3", "--preset, --n-z"),
        ("--out elsewhere", "--out"),
    ],
)
def test_a_resumed_run_keeps_its_settings(command, run, options, named):
    before = contents(run.parent)
    answer = command("train", "--resume", run, *options.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"curlicue: --resume goes on with the settings the run has. Leave out {named}.\n"
    assert contents(run.parent) == before


# -- run directories that cannot be used -------------------------------------------------------------------------


def edit_config(run: Path, *keys: str, value: object) -> None:
    config = json.loads((run / "config.json").read_text())
    inner = config
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (run / "config.json").write_text(json.dumps(config))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    spoiled = bytearray(path.read_bytes())
    spoiled[-3] ^= 0x10
    path.write_bytes(spoiled)


def newer(path: Path) -> None:
    save_file({"x": torch.zeros(1)}, path, metadata={"curlicue": json.dumps({"format": 999})})


CHECKPOINT = "checkpoint.safetensors"
EARLIER = {"dataset": "digits", "scenario": {"type": "Iid"}, "steps": 20, "seed": 0, "supervised": False}
EARLIER |= {"model": {"n_z": 2, "K": 1}, "learner": {"tau": 0.5, "expansion": None, "replay": None}}
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated checkpoint": (lambda run: cut(run / CHECKPOINT), "{run}/checkpoint.safetensors is not a whole"),
    "an edited checkpoint": (lambda run: flip(run / CHECKPOINT), "{run}/checkpoint.safetensors is not a whole"),
    "a foreign checkpoint": (
        lambda run: (run / CHECKPOINT).write_text("a shopping list"),
        "{run}/checkpoint.safetensors is not a whole checkpoint",
    ),
    "a newer checkpoint": (
        lambda run: newer(run / CHECKPOINT),
        "{run}/checkpoint.safetensors has checkpoint format 999",
    ),
    "no settings": (lambda run: (run / "config.json").unlink(), "{run} is not a run directory (it has no config.json)"),
    "half the settings": (lambda run: cut(run / "config.json"), "{run}/config.json is damaged ("),
    "a list of settings": (lambda run: (run / "config.json").write_text("[]"), "{run}/config.json is damaged ("),
    "other n_z": (
        lambda run: edit_config(run, "system", "model", "n_z", value=3),
        "{run}/checkpoint.safetensors does not fit the settings: "
        "state/system/engine/model/p_z_bias is float32 [4] in it, "
        "but these settings make it float32 [6]. Resume with the settings it was written with.",
    ),
    "other widths": (
        lambda run: edit_config(run, "system", "model", "encoder", value=[50]),
        "{run}/checkpoint.safetensors does not fit the settings: state/system/engine/model/encoder.weights.0 is "
        "float32 [64, 64] in it, but these settings make it float32 [64, 50].",
    ),
    "labels from now on": (
        lambda run: edit_config(run, "system", value=to_json(RunConfig(system=LabelledCurl()))["system"]),
        "{run}/checkpoint.safetensors does not fit the settings: state/system/classes is absent in it",
    ),
    "a setting of the wrong type": (
        lambda run: edit_config(run, "system", "model", "n_z", value="many"),
        "config.system.model.n_z must be of type int. Got 'many' instead.",
    ),
    "an unknown setting": (lambda run: edit_config(run, "magic", value=1), "config must be made of dataset, scenario"),
    "an impossible setting": (lambda run: edit_config(run, "steps", value=0), AT_LEAST_1.format("steps", 0)),
    "an unknown data set": (
        lambda run: edit_config(run, "dataset", value="nope"),
        "There is no data set called 'nope'. "
        "Choose one of digits, mnist, mnist-60k, mnist-grey, mnist-validation, omniglot",
    ),
    "settings of an earlier version": (
        lambda run: (run / "config.json").write_text(json.dumps(EARLIER)),
        "{run} is a run of an earlier version of curlicue, whose settings this version cannot read. Look at it, or go "
        "on with it, with the version that wrote it",
    ),
    "half a log": (lambda run: cut(run / "metrics.jsonl"), "{run}/metrics.jsonl has "),
    "no environment": (lambda run: (run / "environment.json").unlink(), "{run}/environment.json is missing"),
}


@pytest.mark.parametrize("damage", SPOILT)
def test_a_run_that_cannot_be_resumed_is_one_line_of_error_and_stays_as_it_is(command, run, damage):
    spoil, message = SPOILT[damage]
    spoil(run)
    before = contents(run.parent)
    answer = command("train", "--resume", run)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"curlicue: {message.format(run=run)}")
    assert answer.err.count("\n") == 1
    assert contents(run.parent) == before


def test_a_directory_with_anything_in_it_is_never_overwritten(command, run):
    before = contents(run.parent)
    answer = command(*SMALL, "--out", run)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"curlicue: {run} is not empty. Choose another --out, or go on with the run in it: --resume {run}\n"
    )
    assert contents(run.parent) == before


def test_a_place_that_cannot_be_written_is_one_line_of_error(command, tmp_path):
    (tmp_path / "file").touch()
    answer = command(*SMALL, "--out", tmp_path / "file" / "run")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"curlicue: [Errno 20] Not a directory: '{tmp_path}/file/run'\n"


def test_missing_data_are_an_error_that_names_the_place(command, tmp_path):
    answer = command("train", "--preset", "mnist", "--data-dir", tmp_path / "none")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"curlicue: The data directory {tmp_path}/none does not exist. Create it, or correct the one you gave.\n"
    )


# -- data --------------------------------------------------------------------------------------------------------


def test_data_says_what_is_missing_without_a_network(command, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("CURLICUE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("went to the network"))
    answer = command("data")
    assert (answer.code, answer.err) == (0, "")
    rows = {(cells[0], cells[2]) for line in answer.out.splitlines() if len(cells := line.split("│")[1:-1]) == 6}
    rows = {(name.strip(), state.strip()) for name, state in rows}
    assert rows == {("mnist", "missing"), ("omniglot", "missing"), ("digits", "ok")}
    assert answer.out.endswith("Fetch what is missing with: curlicue data mnist omniglot\n")


def test_data_says_where_a_damaged_file_lies(command, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-images-idx3-ubyte").write_bytes(b"not these")
    answer = command("data", "--data-dir", "data")
    row = next(line for line in answer.out.splitlines() if "train-images" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["mnist", "train-images-idx3-ubyte.gz", "damaged", "given", "9", "data/train-images-idx3-ubyte"]


def test_the_path_of_a_file_is_whole_where_there_is_no_terminal(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    place = tmp_path / ("a-long-[bold]-name-" * 9)  # no markup
    place.mkdir()
    (place / "train-images-idx3-ubyte").write_bytes(b"not these")
    assert str(place / "train-images-idx3-ubyte") in command("data", "--data-dir", place).out


def test_a_missing_data_directory_is_an_error_that_names_the_variable(command, tmp_path, monkeypatch):
    monkeypatch.setenv("CURLICUE_DATA", str(tmp_path / "none"))
    answer = command("data")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"curlicue: The data directory {tmp_path}/none does not exist. Create it, or correct CURLICUE_DATA.\n"
    )


def test_an_unknown_data_set_is_an_error_that_names_the_known(command):
    answer = command("data", "cifar")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("curlicue: There is no data set called 'cifar'. Choose one of digits, mnist,")


def test_a_download_is_shown_beside_the_output_and_its_absence_is_not(capsys):
    with console.download_bar() as progress:
        pass
    assert capsys.readouterr() == ("", "")
    with console.download_bar() as progress:
        progress("images.gz", 10, 100)
        progress("images.gz", 100, 100)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "images.gz" in shown.err
    assert "100/100 bytes" in shown.err


# -- runs --------------------------------------------------------------------------------------------------------


def test_a_run_says_where_it_writes_how_far_it_is_and_what_came_out(command, tmp_path):
    answer = command(*SMALL, "--out", "runs [bold]")  # no markup
    lines = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert lines[0] == "Run directory: runs [bold]"
    assert [line.split(":")[0] for line in lines[1:11]] == [f"step {t}/20" for t in range(2, 21, 2)]
    result = json.loads((tmp_path / "runs [bold]" / "result.json").read_text())
    assert lines[10] == f"step 20/20: K 1, cluster accuracy {100 * result['cluster_accuracy']:.2f} %"
    assert lines[11].strip() == "after 20 steps"
    assert f"{result['bound']:.2f} nats" in answer.out
    assert lines[-2].startswith("└")
    assert lines[-1] == "Everything is in runs [bold]"


def test_a_run_has_a_place_of_its_own_by_default(command, tmp_path):
    (tmp_path / "runs" / "digits-seed3").mkdir(parents=True)
    (tmp_path / "runs" / "digits-seed3-2").mkdir()
    answer = command("train", "--preset", "digits", "--steps", "1", "--seed", "3")
    assert answer.out.startswith("Run directory: runs/digits-seed3-3\n")
    assert (tmp_path / "runs" / "digits-seed3-3" / "result.json").is_file()


def test_the_demo_is_the_digits(command, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(train, "train", lambda settings, out: seen.append((settings, out)))
    monkeypatch.setattr(train, "report", lambda runs: None)
    assert command("demo").code == command("demo", "--out", "here").code == 0
    assert [(given(settings), out) for settings, out in seen] == [
        ({"preset": "digits-free"}, Path("runs/demo")),
        ({"preset": "digits-free"}, Path("here")),
    ]


def test_a_birth_is_told(capsys):
    line = console.progress_line()
    task = line.add_task("", K=1, bound=0.0, score="")
    born = train.ComponentBorn(41, 3, 1, 4, None, None, torch.zeros(1, 1))
    train._show(born, line, task, 100, 10)
    assert capsys.readouterr().out == "step 41: component 3 is born from 1\n"


def test_a_resumed_run_has_the_threads_it_had_unless_told_otherwise(command, run, monkeypatch):
    seen: list[int] = []
    monkeypatch.setattr(train, "use_threads", lambda threads: seen.append(threads) or threads)
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**environment, "threads": 3}))
    assert command("train", "--resume", run).code == 0
    assert command("train", "--resume", run, "--threads", 2).code == 0
    moved = {**environment, "threads": 3, "resumed": [{"t": 1, "threads": 4}, {"t": 2, "commit": "another"}]}
    (run / "environment.json").write_text(json.dumps(moved))
    assert command("train", "--resume", run).code == 0
    assert seen == [3, 2, 4]


SEVERAL = """
import torch
from curlicue.cli.train import settings_type, train
train(settings_type()(preset="digits", steps=2), threads=2)
tiny = torch.full((1 << 20,), 700_000, dtype=torch.int32).view(torch.float32)  # 1e-39, enough for two threads
print("left", int(((tiny * 0.5).view(torch.int32) != 0).sum()))
"""


def test_numbers_too_small_to_matter_are_zero_in_every_thread_of_a_new_run():
    process = subprocess.run([sys.executable, "-c", SEVERAL], capture_output=True, text=True, check=True)
    assert process.stdout.endswith("left 0\n")


def test_going_on_elsewhere_is_told_and_recorded(command, run):
    config, began = (json.loads((run / f"{name}.json").read_text()) for name in ("config", "environment"))
    (run / "config.json").write_text(json.dumps({**config, "steps": config["steps"] + 2}))  # not finished after all
    (run / "environment.json").write_text(json.dumps({**began, "processor": "another"}))
    told = "So far the run had other processor: from here on it may not go bit for bit as it would have.\n"
    assert command("train", "--resume", run).err == told
    resumed = {"t": config["steps"], "processor": began["processor"]}
    environment = json.loads((run / "environment.json").read_text())
    assert environment == {**began, "processor": "another", "resumed": [resumed]}


def test_a_run_in_which_another_process_is_at_work_is_not_resumed(command, run):
    with alone_in(run):
        answer = command("train", "--resume", run)
    told = f"curlicue: Another process is at work in {run}. Wait until it has ended, or stop it.\n"
    assert (answer.code, answer.out, answer.err) == (1, "", told)
    assert command("train", "--resume", run).code == 0


def test_nobody_else_is_at_work_in_a_run_while_it_goes_on(command, monkeypatch):
    monkeypatch.setattr(train, "_watch", lambda run, readers: alone_in(run.directory.path, wait=False).__enter__())
    for words in ((*SMALL, "--out", "run"), ("train", "--resume", "run")):
        answer = command(*words)
        assert (answer.code, answer.err.split(".")[0]) == (1, "curlicue: Another process is at work in run")


def test_a_small_network_learns_in_one_thread(command):
    torch.set_num_threads(2)
    assert command("train", "--preset", "digits", "--steps", "2", "--n-z", "2", "--out", "run").code == 0
    assert json.loads(Path("run", "environment.json").read_text())["threads"] == 1


def test_a_large_network_learns_in_as_many_threads_as_there_are():
    torch.set_num_threads(2)
    assert use_threads(None, 10**6) == 2
    assert use_threads(3, 10) == 3


def test_the_environment_of_a_run_has_its_threads(finished):
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["cores"] == os.cpu_count()
    assert environment["versions"]["torch"] == torch.__version__
    assert "commit" in environment


# -- results -----------------------------------------------------------------------------------------------------


def test_the_result_of_a_run_is_shown_and_written_as_one_file(command, finished, tmp_path):
    answer = command("result", finished, "--out", tmp_path / "new" / "a.json")
    assert (answer.code, answer.err) == (0, "")
    told = json.loads((tmp_path / "new" / "a.json").read_text())
    names = {"config", "result", "metrics", "births", "snapshots", "posterior", "environment", "timing"}
    assert told.keys() == names
    for name in ("config", "result", "environment", "timing"):
        assert told[name] == json.loads((finished / f"{name}.json").read_text())
    assert [line["t"] for line in told["metrics"]] == list(range(1, 21))

    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in answer.out.splitlines() if "│" in line]
    result, config = told["result"], from_json(RunConfig, told["config"])
    assert dict(cells) == {
        "components K (used)": f"{result['K']} ({result['n_used']})",
        "cluster accuracy": f"{100 * result['cluster_accuracy']:.2f} %",
        "hungarian accuracy": f"{100 * result['hungarian_accuracy']:.2f} %",
        "lost since its best, mean over classes": f"{100 * forgotten(config, told['metrics']):.2f} %",
        **{f"{k}-NN error": f"{100 * result['knn_error'][k]:.2f} %" for k in ("3", "5", "10")},
        "NMI": f"{result['nmi']:.3f}",
        "ARI": f"{result['ari']:.3f}",
        "bound": f"{result['bound']:.2f} nats",
    }


def test_without_a_file_to_write_the_result_is_only_shown(command, run):
    before = contents(run.parent)
    assert "cluster accuracy" in command("result", run).out
    assert contents(run.parent) == before


def test_a_bound_that_is_not_a_number_is_shown_as_such(command, run):
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "bound": None}))
    assert re.search(r"bound +│ not finite", command("result", run).out)


def test_an_unfinished_run_has_no_result_and_says_how_to_go_on(command, run):
    (run / "result.json").unlink()
    answer = command("result", run, "--out", "a.json")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"curlicue: {run}/result.json is missing: the run has not got so far. "
        f"Go on with it: curlicue train --resume {run}\n"
    )
    assert not Path("a.json").exists()


def test_a_folder_that_is_no_run_has_no_result(command, tmp_path):
    answer = command("result", tmp_path)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"curlicue: {tmp_path} is not a run directory (it has no config.json). Start a run with: curlicue train\n"
    )


def test_a_damaged_log_has_no_result(command, run):
    cut(run / "metrics.jsonl")
    answer = command("result", run)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"curlicue: {run}/metrics.jsonl is damaged (")


HOLLOW = {
    "a score in words": ("result", {"nmi": "high"}, "result.nmi must be of type float. Got 'high' instead."),
    "no errors": ("result", {"knn_error": None}, "knn_error is missing"),
    "no classes": ("result", {"classes": [], "confusion": []}, "its lines do not tell of each class of result.json"),
    "no minutes": ("timing", {"minutes": None}, "timing.minutes must be of type float. Got None instead."),
}


@pytest.mark.parametrize("damage", HOLLOW)
def test_a_result_of_something_else_is_one_line_of_error(command, run, damage):
    name, values, message = HOLLOW[damage]
    path = run / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    answer = command("result", run)
    where = run / "metrics.jsonl" if damage == "no classes" else path
    told = f"curlicue: {where} is damaged ({message}). Start the run anew in another directory.\n"
    assert (answer.code, answer.out, answer.err) == (1, "", told)


def test_our_own_mistakes_do_not_read_as_a_damaged_run(command, run, monkeypatch):
    def mistaken(*_: object) -> None:
        raise TypeError("ours")

    monkeypatch.setattr(train, "forgotten", mistaken)
    with pytest.raises(TypeError, match=r"^ours$"):
        command("result", run)


# -- in a terminal -----------------------------------------------------------------------------------------------


def terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> StringIO:
    screen = StringIO()
    wide = Console(file=screen, force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})
    monkeypatch.setattr(console, "out", wide)
    return screen


def frames(screen: StringIO) -> list[str]:
    """What the live line has shown, one after the other."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    return [frame for frame in re.split(r"[\r\n]+", text) if re.search(r"step \d+/", frame)]


LIVE = r"step \d+/{}  K \d+  bound -?\d+\.\d +(accuracy \d+\.\d %)? +(\d+ steps/s)? +(\d+:\d\d:\d\d|-:--:--)\s*$"


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize(("t", "K", "bound"), [(1, 1, 0.0), (54_321, 25, -98.7), (99_999, 125, -1234.5)])
def test_the_live_line_is_whole_in_any_usual_terminal(monkeypatch, width, t, K, bound):
    screen = terminal(monkeypatch, width)
    clock = [0.0]
    line = console.progress_line()
    line.get_time = lambda: clock[0]
    task = line.add_task("", total=100_000, completed=t - 1, K=K, bound=bound, score="accuracy 100.0 %")
    clock[0] = 1 / 1234
    line.update(task, advance=1)
    clock[0] = 2 / 1234
    line.update(task, advance=1)
    console.out.print(line.get_renderable())
    (shown,) = screen.getvalue().splitlines()
    assert len(shown) <= width
    assert f"step {t + 1}/100000  K {K}  bound {bound:.1f} accuracy 100.0 % 1234 steps/s " in shown
    assert re.search(LIVE.format(100_000), shown)


def test_where_there_is_room_the_bar_has_it(monkeypatch):
    screen = terminal(monkeypatch, 100)
    line = console.progress_line()
    line.add_task("", total=100, completed=50, K=1, bound=0.0, score="")
    console.out.print(line.get_renderable())
    assert re.match(r"[━╸╺ ]{20} step", screen.getvalue())


def test_a_run_in_a_terminal_is_one_live_line_with_what_happens_above_it(monkeypatch, command, tmp_path):
    screen = terminal(monkeypatch, 80)
    assert command(*SMALL, "--out", "run").code == 0
    shown = frames(screen)
    assert all(len(frame) <= 80 for frame in shown)
    assert all(re.search(LIVE.format(20), frame) for frame in shown)
    accuracy = json.loads((tmp_path / "run" / "result.json").read_text())["cluster_accuracy"]
    assert re.search(rf"step 20/20  K 1  bound -\d+\.\d accuracy {100 * accuracy:.1f} % \d+ steps/s 0:00:00", shown[-1])
    assert "step 2/20: K" not in screen.getvalue()  # the lines for where there is no terminal
    assert "after 20 steps" in screen.getvalue()


# -- stopping ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_one_ends(number):
    before = signal.getsignal(number)
    with console.stoppable() as stopped:
        signal.raise_signal(number)
        assert stopped == [number]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_an_impatient_interrupt_ends_without_a_traceback(monkeypatch, command):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "status", interrupted)
    answer = command("data")
    assert (answer.code, answer.out, answer.err) == (130, "", "")


LONG = (
    *("train", "--preset", "digits", "--steps", "400", "--threads", "1"),
    *("--growth", "threshold", "--c-new", "-30", "--n-new", "40"),
)


def spawn(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "curlicue", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def lengths(path: Path) -> dict[str, int]:
    """How long the logs were at the last checkpoint."""
    with safe_open(path / CHECKPOINT, framework="pt") as file:
        return dict(json.loads(file.metadata()["curlicue"])["extra"]["lengths"])


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, "the run ended before it could be disturbed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def evaluations(path: Path) -> int:
    log = path / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def left_behind(path: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for time and place."""
    kept = (str(file.relative_to(path)) for folder in ("births", "views") for file in path.glob(f"{folder}/*"))
    files = ("events.jsonl", "metrics.jsonl", "result.json", "data.json", *kept)
    told: dict[str, Any] = {name: (path / name).read_bytes() for name in files}
    with safe_open(path / CHECKPOINT, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            told[name] = file.get_tensor(name).numpy().tobytes()
    return told


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    process = spawn(*LONG, "--out", path)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert list(path.glob("births/*"))
    return path


def test_a_killed_run_goes_on_from_its_checkpoint_and_ends_as_if_never_killed(uninterrupted, tmp_path):
    path = tmp_path / "run"
    process = spawn(*LONG, "--out", path)
    past_a_checkpoint = False
    while not past_a_checkpoint:
        wait_for(process, lambda: evaluations(path) >= 5 and (path / CHECKPOINT).exists())
        process.send_signal(signal.SIGSTOP)  # so that it is not yet at the next one when it is killed
        past_a_checkpoint = (path / "metrics.jsonl").stat().st_size > lengths(path)["metrics.jsonl"]
        process.send_signal(signal.SIGCONT if not past_a_checkpoint else signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (path / "result.json").exists()

    process = spawn("train", "--resume", path)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert left_behind(path) == left_behind(uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_saves_says_how_to_go_on_and_ends_as_if_never_stopped(
    uninterrupted, tmp_path, command, number
):
    path = tmp_path / "run"
    process = spawn(*LONG, "--out", path)
    wait_for(process, lambda: evaluations(path) >= 2)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 130
    stopped = re.fullmatch(r"Stopped at step (\d+); nothing is lost\. Go on with: curlicue (train .*)\n", errors)
    assert stopped
    assert stopped[2] == f"train --resume {path}"
    assert int(stopped[1]) < 400
    assert not (path / "result.json").exists()

    answer = command(*stopped[2].split())
    assert (answer.code, answer.err) == (0, "")
    assert left_behind(path) == left_behind(uninterrupted)
