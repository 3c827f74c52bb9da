import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from changed import changed
from curlicue.config.codec import from_json
from curlicue.config.model import Likelihood, ModelConfig
from curlicue.config.scenario import Drift, Iid, Sequential
from curlicue.errors import ConfigError, DataError, RunError
from curlicue.evaluate.scores import final_scores, score
from curlicue.experiments import run as run_module
from curlicue.experiments.run import Evaluated, Finished, Run, forgotten, summary, use_threads
from curlicue.experiments.settings import RunConfig
from curlicue.growth.measured import Measured
from curlicue.growth.protocol import Tuned
from curlicue.growth.threshold import Threshold
from curlicue.learn.checkpoint import save_checkpoint
from curlicue.learn.events import ComponentBorn, SnapshotTaken, StepTaken
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.records import directory as records
from curlicue.records.directory import RunDirectory
from curlicue.rng import named_generator
from curlicue.streams.schedule import class_shares
from curlicue.streams.sources import Source, from_arrays
from curlicue.systems.curl import Curl
from curlicue.systems.labelled import LabelledCurl

STEPS = 130  # a line of a hundred steps, and a rest

MGR = RunConfig(
    dataset="toy",
    steps=STEPS,
    batch_size=10,
    system=Curl(
        model=ModelConfig(n_z=2, encoder=(8,), decoder=(8,)),
        learner=LearnerConfig(
            learning_rate=0.01,
            growth=Threshold(c_new=-4.0, n_new=20, burn_in=15, wait=10, passes=2),
            max_components=6,
            memory=Snapshot(snapshots=30, labelled=False),
        ),
    ),
    evaluate_every=50,
    checkpoint_every=1000,
)
GROWTH, MEMORY = "system.learner.growth", "system.learner.memory"
SMGR = changed(MGR, MEMORY, labelled=True)
OFTEN = Measured(n_new=5, window=20.0, wait=10, passes=2, tuned=Tuned.ALL)
LABELLED = LabelledCurl(model=MGR.system.model, learner=replace(SMGR.system.learner, growth=None, max_components=None))
DYNAMIC = changed(MGR, MEMORY, snapshots="dynamic")
CASES: dict[str, RunConfig] = {
    "MGR, periodic": MGR,
    "SMGR, periodic": SMGR,
    "MGR, dynamic": DYNAMIC,
    "SMGR, dynamic": changed(DYNAMIC, MEMORY, labelled=True),
    "MGR, at changes": changed(
        changed(changed(replace(MGR, batch_size=100), MEMORY, snapshots="change"), GROWTH, passes=60),
        "system.learner",
        max_components=3,
    ),
    "MGR, measured growth": changed(MGR, "system.learner", growth=OFTEN),
    "labelled": replace(SMGR, system=LABELLED),
    "Gaussian": changed(replace(DYNAMIC, sampled_knn=True), "system.model", likelihood=Likelihood.GAUSSIAN),
}


def toy(likelihood: Likelihood = Likelihood.BERNOULLI) -> Source:
    """Three classes in six features: noisy copies of a pattern each."""
    rng = named_generator(0, "toy")
    patterns = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]])

    def split(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(n) % 3
        if likelihood is Likelihood.GAUSSIAN:
            return 4 * patterns[labels] - 2 + torch.randn(n, 6, generator=rng), labels
        return patterns[labels] ^ (torch.rand(n, 6, generator=rng) < 0.05).long(), labels

    return from_arrays("toy", *split(60), *split(21))


def started(config: RunConfig, path: Path) -> Run:
    directory = RunDirectory.create(path, config.to_json(), {"threads": 1})
    return Run(config, toy(config.system.model.likelihood), directory)


def resumed(path: Path) -> Run:
    """From nothing but what is on disk."""
    directory = RunDirectory.open(path)
    config = from_json(RunConfig, directory.read("config"))
    run = Run(config, toy(config.system.model.likelihood), directory)
    run.resume()
    return run


def go_on(run: Run, until: int = STEPS) -> list[Any]:
    return list(run.events(stop=lambda: run.system.t >= until))


def die(run: Run, at: int) -> None:
    """Without a chance to save."""
    events = run.events()
    for event in events:
        if isinstance(event, StepTaken) and event.t + 1 == at:
            break
    events.close()


def left_behind(path: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for time and place."""
    kept = (str(file.relative_to(path)) for folder in ("births", "views") for file in path.glob(f"{folder}/*"))
    files = ("events.jsonl", "metrics.jsonl", "result.json", "data.json", *kept)
    told: dict[str, Any] = {name: (path / name).read_bytes() for name in files}
    with safe_open(path / "checkpoint.safetensors", framework="pt") as file:
        scalars = json.loads(file.metadata()["curlicue"])
        del scalars["sha256"], scalars["extra"]["seconds"]
        told["checkpoint"] = scalars
        for name in file.keys():  # noqa: SIM118
            told[name] = file.get_tensor(name).numpy().tobytes()
    return told


def weights(path: Path) -> dict[str, bytes]:
    return {
        name: value
        for name, value in left_behind(path).items()
        if name.startswith(("system/engine/", "system/rng/", "stream"))
    }


Whole = Callable[[str], tuple[Path, list[Any]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The directory and the events of an uninterrupted run."""
    done: dict[str, tuple[Path, list[Any]]] = {}

    def run(case: str) -> tuple[Path, list[Any]]:
        if case not in done:
            path = tmp_path_factory.mktemp("whole") / "run"
            done[case] = path, go_on(started(CASES[case], path))
        return done[case]

    return run


PLACES: dict[str, Callable[[list[Any]], int]] = {
    "before any snapshot": lambda _: 7,
    "between a real batch and its rehearsal": lambda events: next(
        b.t for a, b in pairwise(e for e in events if isinstance(e, StepTaken)) if b.rehearsed and not a.rehearsed
    ),
    "just after a birth": lambda events: [e.t for e in events if isinstance(e, ComponentBorn)][-1],
    "in the middle of a hundred logged steps": lambda _: 51,
}


# -- exact resume ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_run_here_is_born_rehearses_and_remembers(whole, case):
    _, events = whole(case)
    for kind in (ComponentBorn, SnapshotTaken, Evaluated, Finished):
        assert any(isinstance(event, kind) for event in events)
    assert any(event.rehearsed for event in events if isinstance(event, StepTaken))


def test_one_of_them_remembers_itself_at_a_change_without_a_birth(whole):
    _, events = whole("MGR, at changes")
    born = {event.t for event in events if isinstance(event, ComponentBorn)}
    assert {event.t for event in events if isinstance(event, SnapshotTaken)} > born


@pytest.mark.parametrize("place", PLACES)
def test_a_run_stopped_at_any_place_and_resumed_equals_the_uninterrupted_one(whole, tmp_path, place):
    case = "MGR, dynamic"
    uninterrupted, events = whole(case)
    first = go_on(started(CASES[case], tmp_path / "run"), PLACES[place](events))
    assert not (tmp_path / "run" / "result.json").exists()
    second = go_on(resumed(tmp_path / "run"))
    assert left_behind(tmp_path / "run") == left_behind(uninterrupted)
    assert [str(e) for e in first + second] == [str(e) for e in events]


@pytest.mark.parametrize("case", CASES)
def test_a_run_stopped_and_resumed_equals_the_uninterrupted_one(whole, tmp_path, case):
    uninterrupted, events = whole(case)
    stops = sorted(place(events) for place in PLACES.values())
    seen = go_on(started(CASES[case], tmp_path / "run"), stops[0])
    for stop in (*stops[1:], STEPS):
        seen += go_on(resumed(tmp_path / "run"), stop)
    assert left_behind(tmp_path / "run") == left_behind(uninterrupted)
    assert [str(e) for e in seen] == [str(e) for e in events]


def test_a_run_stopped_and_resumed_after_every_single_step_equals_the_uninterrupted_one(whole, tmp_path):
    path, case = tmp_path / "run", "SMGR, dynamic"
    go_on(started(CASES[case], path), 1)
    for t in range(2, STEPS + 1):
        go_on(resumed(path), t)
    assert left_behind(path) == left_behind(whole(case)[0])


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_died_past_its_checkpoint_goes_on_from_it_as_if_nothing_had_happened(whole, tmp_path, case):
    path, often = tmp_path / "run", replace(CASES[case], checkpoint_every=40)
    births = [e.t + 1 for e in whole(case)[1] if isinstance(e, ComponentBorn)]
    at = next((t for t in births if t > 40 and t % 40 > 1), 87)  # whatever was born since is born again
    die(started(often, path), at + 1)
    with (path / "events.jsonl").open("a") as file:
        file.write('{"event": "StepsTa')
    run = resumed(path)
    assert run.system.t == at // 40 * 40
    go_on(run)
    assert left_behind(path) == left_behind(whole(case)[0])


def test_a_run_that_died_before_its_first_checkpoint_begins_again(whole, tmp_path):
    births = [e.t + 1 for e in whole("MGR, periodic")[1] if isinstance(e, ComponentBorn)]
    die(started(MGR, tmp_path / "run"), births[0] + 2)
    assert list((tmp_path / "run" / "births").iterdir())
    run = resumed(tmp_path / "run")
    assert run.system.t == 0
    assert not list((tmp_path / "run" / "births").iterdir())
    go_on(run)
    assert left_behind(tmp_path / "run") == left_behind(whole("MGR, periodic")[0])


def test_a_run_that_died_between_its_last_step_and_its_result_only_writes_the_result(whole, tmp_path, monkeypatch):
    path = tmp_path / "run"

    def dies() -> None:
        raise KeyboardInterrupt

    run = started(MGR, path)
    monkeypatch.setattr(run, "_finish", dies)
    with pytest.raises(KeyboardInterrupt):
        go_on(run)
    assert [type(event) for event in go_on(resumed(path))] == [Finished]
    assert left_behind(path) == left_behind(whole("MGR, periodic")[0])


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    go_on(started(replace(MGR, steps=20), tmp_path / "run"))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    (finished,) = go_on(resumed(tmp_path / "run"))
    assert finished == Finished(20, RunDirectory(tmp_path / "run").read("result"))
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


# -- seeds and evaluation ----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_run_and_another_seed_another(whole, tmp_path):
    told = left_behind(whole("MGR, periodic")[0])
    go_on(started(MGR, tmp_path / "again"))
    go_on(started(replace(MGR, seed=1), tmp_path / "other"))
    assert left_behind(tmp_path / "again") == told
    other = left_behind(tmp_path / "other")
    for name in ("events.jsonl", "metrics.jsonl", "result.json", "system/engine/model/encoder.weights.0"):
        assert other[name] != told[name], name


@pytest.mark.parametrize("case", ["MGR, periodic", "labelled", "Gaussian"])
def test_evaluation_changes_nothing_however_often(tmp_path, case):
    config = replace(CASES[case], steps=60)
    for name, every in (("often", 1), ("once", 60)):
        go_on(started(replace(config, evaluate_every=every), tmp_path / name))
    assert weights(tmp_path / "often") == weights(tmp_path / "once")
    for name in ("events.jsonl", "result.json"):
        assert (tmp_path / "often" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    often, once = (RunDirectory(tmp_path / name).lines("metrics") for name in ("often", "once"))
    assert [line["t"] for line in often] == list(range(1, 61))
    assert often[-1] == once[-1]
    assert len(once) == 1


def test_saving_often_changes_nothing(whole, tmp_path):
    go_on(started(replace(MGR, checkpoint_every=4), tmp_path / "run"))
    assert left_behind(tmp_path / "run") == left_behind(whole("MGR, periodic")[0])


# -- what is written down ----------------------------------------------------------------------------------------


def test_a_finished_run_has_every_file_the_records_promise_and_no_other(whole):
    promised = {
        name
        for line in records.__doc__.splitlines()
        if (names := re.match(r"(\S+(?:, \S+)*)   *\S", line))
        for name in names[1].split(", ")
    }
    assert {"config.json", "births/0007.npy", "checkpoint.safetensors"} <= promised
    path, _ = whole("MGR, periodic")
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    examples = {r"births/\d{4}": "births/0007", r"views/\d{8}": "views/00020000"}
    for numbered, example in examples.items():
        found = {re.sub(numbered, example, name) for name in found}
    assert found == promised


def test_steps_are_logged_in_means_over_every_hundred_real_and_rehearsed_apart(whole):
    path, events = whole("MGR, periodic")
    lines = [line for line in RunDirectory(path).lines("events") if line["event"] == "StepsTaken"]
    assert [(line["t"], line["n"]) for line in lines] == [(99, 100), (129, 30)]
    steps = [event for event in events if isinstance(event, StepTaken)]
    for line, first in zip(lines, (0, 100), strict=True):
        of_line = steps[first : first + 100]
        assert line["K"] == of_line[-1].K
        assert line["n_poor"] == sum(step.n_poor for step in of_line)
        for kind in ("real", "rehearsed"):
            chosen = [step for step in of_line if step.rehearsed is (kind == "rehearsed")]
            assert line[kind].keys() == {"bound", "log_p_x", "kl_z", "kl_y", "q_y"}
            for name in ("bound", "log_p_x", "kl_z", "kl_y"):
                assert line[kind][name] == pytest.approx(np.mean([getattr(step, name) for step in chosen]))
            shares = np.zeros((len(chosen), line["K"]))  # nobody explains anything before birth
            for row, step in zip(shares, chosen, strict=True):
                row[: step.K] = step.q_y
            assert line[kind]["q_y"] == pytest.approx(shares.mean(0).tolist(), abs=1e-4)
            assert sum(line[kind]["q_y"]) == pytest.approx(1, abs=1e-3)


def test_a_hundred_steps_without_a_rehearsal_have_no_mean_of_it(tmp_path):
    go_on(started(replace(MGR, steps=10), tmp_path / "run"))
    (line,) = RunDirectory(tmp_path / "run").lines("events")
    assert line.keys() == {"event", "t", "K", "n", "n_poor", "real"}


@pytest.mark.parametrize("case", CASES)
def test_births_and_snapshots_are_logged_with_their_steps_and_each_births_samples_kept(whole, case):
    path, events = whole(case)
    lines = RunDirectory(path).lines("events")
    snapshots = [{"event": "SnapshotTaken", **vars(e)} for e in events if isinstance(e, SnapshotTaken)]
    assert [line for line in lines if line["event"] == "SnapshotTaken"] == snapshots
    births = [event for event in events if isinstance(event, ComponentBorn)]
    names = ("t", "component", "parent", "K", "bound_before", "bound_after")
    expected = [
        {"event": "ComponentBorn", **{name: getattr(e, name) for name in names}, "n": len(e.d_new)} for e in births
    ]
    assert [line for line in lines if line["event"] == "ComponentBorn"] == expected
    for birth in births:
        kept = np.load(path / "births" / f"{birth.component:04d}.npy")
        assert kept.dtype == (np.float32 if case == "Gaussian" else np.uint8)
        assert (kept == birth.d_new.numpy()).all()
    assert len(list(path.glob("births/*"))) == len(births)


def test_a_run_that_diverges_ends_with_one_error_and_keeps_its_last_checkpoint(tmp_path):
    run = started(replace(MGR, steps=30, checkpoint_every=10), tmp_path / "run")
    go_on(run, 15)
    with torch.no_grad():
        next(run.system.model.parameters()).fill_(math.nan)
    written = run.directory.checkpoint.read_bytes()
    with pytest.raises(RunError) as error:
        go_on(run)
    assert str(error.value) == (
        "The bound of step 15 is nan: learning has diverged. Start anew with a lower --learning-rate."
    )
    assert run.directory.checkpoint.read_bytes() == written


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(("low", "high"), [(-0.1, 1.0), (0.0, 1.5)])
def test_values_that_no_bernoulli_can_have_are_refused_before_anything_is_written(tmp_path, part, low, high):
    source = toy()
    x = getattr(source, part).x
    x[0, 0], x[0, 1] = low, high
    with pytest.raises(DataError) as error:
        Run(MGR, source, RunDirectory(tmp_path / "run"))
    assert str(error.value) == (
        f"A Bernoulli likelihood needs values from 0 to 1, but {source.name} has values from {low:g} to {high:g}. "
        "Scale them, or choose the Gaussian likelihood."
    )
    assert not (tmp_path / "run").exists()


def test_scores_are_written_every_so_many_steps_and_at_the_end(whole):
    path, events = whole("MGR, periodic")
    metrics = RunDirectory(path).lines("metrics")
    assert [line["t"] for line in metrics] == [50, 100, 130]
    assert metrics == json.loads(json.dumps([e.scores for e in events if isinstance(e, Evaluated)]))
    real_samples = 10 * sum(not e.rehearsed for e in events if isinstance(e, StepTaken))
    assert sum(metrics[-1]["counts"]) == pytest.approx(real_samples)


def test_scores_and_result_are_those_of_the_model_on_the_test_set(tmp_path):
    run = started(replace(MGR, steps=40, seed=5), tmp_path / "run")
    *_, evaluated, finished = go_on(run)
    source, system = toy(), run.system
    scores = score(system, source.test, 3, named_generator(5, "evaluation/40"), run_module.EVALUATION_TAU).to_json()
    assert {name: evaluated.scores[name] for name in scores} == scores
    final = final_scores(system, source, named_generator(5, "evaluation/final"), sampled_knn=False)
    assert finished.result == {"steps": 40, **final}
    assert run.directory.read("result") == json.loads(json.dumps(finished.result))


def test_only_the_supervised_benchmark_is_scored_by_the_components_that_classes_own(whole):
    for case in CASES:
        directory = RunDirectory(whole(case)[0])
        for scores in (directory.read("result"), *directory.lines("metrics")):
            assert ({"incremental_class", "incremental_task"} <= scores.keys()) is (case == "labelled")
            assert {"cluster_accuracy", "hungarian_accuracy", "nmi", "ari", "bound", "K"} <= scores.keys()


@pytest.mark.parametrize(("at_once", "tasks"), [(1, [[0], [1], [2]]), (2, [[0, 1], [2]]), (3, [[0, 1, 2]])])
def test_the_tasks_of_the_supervised_benchmark_are_those_of_the_stream(tmp_path, monkeypatch, at_once, tasks):
    seen = []
    monkeypatch.setattr(
        run_module, "labelled_accuracy", lambda system, split, C, tasks: seen.append([list(t) for t in tasks]) or {}
    )
    go_on(started(replace(CASES["labelled"], scenario=Sequential(at_once), steps=3), tmp_path / "run"))
    assert seen == [tasks, tasks]  # at the end, over time and in the result


def test_a_supervised_run_without_tasks_has_no_accuracy_of_tasks(tmp_path):
    go_on(started(replace(CASES["labelled"], scenario=Iid(), steps=3), tmp_path / "run"))
    assert "incremental_class" not in RunDirectory(tmp_path / "run").read("result")


def test_labels_do_not_reach_an_unsupervised_learner(tmp_path, monkeypatch):
    run = started(replace(MGR, steps=20), tmp_path / "run")

    def labelled_batch(t: int) -> None:
        raise AssertionError("labels were asked for")

    monkeypatch.setattr(run.schedule, "labelled_batch", labelled_batch)
    assert isinstance(go_on(run)[-1], Finished)


def test_time_is_kept_apart_from_the_result_and_adds_up_over_resumes(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    run = started(replace(MGR, steps=20), tmp_path / "run")
    clock.now += 30
    go_on(run, 7)
    clock.now += 1000  # nobody was there
    run = resumed(tmp_path / "run")
    clock.now += 10
    go_on(run)
    assert run.directory.read("timing") == {"minutes": 40 / 60, "steps_per_second": 20 / 40}
    assert not {"seconds", "minutes", "steps_per_second"} & run.directory.read("result").keys()


def test_the_summary_of_a_run_is_one_json_object_with_all_that_a_report_needs(whole):
    path, events = whole("MGR, periodic")
    directory = RunDirectory(path)
    told = json.loads(json.dumps(summary(directory)))
    names = {"config", "result", "timing", "environment", "births", "snapshots", "metrics", "posterior"}
    assert told.keys() == names
    for name in ("config", "result", "timing", "environment"):
        assert told[name] == directory.read(name)
    assert [birth["component"] for birth in told["births"]] == [
        event.component for event in events if isinstance(event, ComponentBorn)
    ]
    assert told["snapshots"] == [event.t for event in events if isinstance(event, SnapshotTaken)]
    for line, scores in zip(told["metrics"], directory.lines("metrics"), strict=True):
        assert line.items() <= scores.items()
        assert {"t", "K", "bound", "cluster_accuracy", "class_accuracy"} <= line.keys()
    assert told["posterior"]["t"] == [100, 130]
    logged = [line["real"]["q_y"] for line in directory.lines("events") if line["event"] == "StepsTaken"]
    assert told["posterior"]["q_y"][1] == pytest.approx(logged[1], abs=1e-3)
    assert {len(shares) for shares in told["posterior"]["q_y"]} == {told["result"]["K"]}


def test_what_was_forgotten_is_the_mean_over_classes_that_have_test_samples_since_they_were_shown():
    over_time = [[0.75, 1.0, None, 1.0], [0.25, 1.0, None, 0.5], [0.5, 0.25, None, 0.25], [0.5, 0.5, None, 0.25]]
    metrics = [{"t": 10 * n, "class_accuracy": shares} for n, shares in enumerate(over_time, 1)]
    for scenario, lost in ((Sequential(), (0.25, 0.5, 0.0)), (Iid(), (0.25, 0.5, 0.75))):
        assert forgotten(replace(MGR, scenario=scenario, steps=40), metrics) == sum(lost) / 3


def test_an_unfinished_run_has_no_summary_and_says_how_to_go_on(tmp_path):
    run = started(MGR, tmp_path / "run")
    go_on(run, 3)
    with pytest.raises(RunError, match=r"result\.json is missing: the run has not got so far\. Go on with it"):
        summary(run.directory)


# -- what cannot be resumed --------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_whose_checkpoint_cannot_be_used_stays_as_it_is(tmp_path):
    path = tmp_path / "run"
    go_on(started(MGR, path), 60)
    RunDirectory(path).append("events", {"event": "later"})
    checkpoint = path / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    before = contents(path)
    with pytest.raises(RunError, match="is not a whole checkpoint"):
        resumed(path)
    assert contents(path) == before


def test_a_checkpoint_of_something_else_than_a_run_is_refused(tmp_path):
    run = started(MGR, tmp_path / "run")
    save_checkpoint(run.directory.checkpoint, run.kept, {"mine": 1})
    before = contents(tmp_path)
    with pytest.raises(RunError) as error:
        run.resume()
    assert str(error.value) == (
        f"{run.directory.checkpoint} was written by something else than a run. "
        "Put back the one that the run wrote, or start anew in another directory."
    )
    assert contents(tmp_path) == before


def test_a_log_that_lacks_lines_of_before_the_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run"
    go_on(started(MGR, path), 60)
    (path / "metrics.jsonl").write_bytes(b"")
    before = contents(path)
    with pytest.raises(RunError, match=r"metrics\.jsonl has 0 bytes, but \d+ had been logged by the checkpoint"):
        resumed(path)
    assert contents(path) == before


# -- threads -----------------------------------------------------------------------------------------------------


@pytest.fixture
def as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("as_before")
def test_a_process_uses_as_many_threads_as_it_is_told_and_says_how_many():
    torch.set_num_threads(2)
    assert use_threads(None) == 2
    assert use_threads(1) == torch.get_num_threads() == 1


@pytest.mark.usefixtures("as_before")
def test_numbers_too_small_to_matter_are_zero():
    torch.set_flush_denormal(False)
    tiny = torch.tensor([1e-39])
    half = (tiny * 0.5).view(torch.int32)
    assert half.item() > 0
    use_threads(None)
    assert (tiny * 0.5).view(torch.int32).item() == 0


@pytest.mark.parametrize("threads", [0, -1])
def test_less_than_one_thread_is_refused(threads):
    with pytest.raises(ConfigError) as error:
        use_threads(threads)
    assert str(error.value) == f"The number of threads must be an int in the range [1, inf). Got {threads} instead."


# -- views --------------------------------------------------------------------------------------------------------


def test_a_run_shows_the_model_after_each_class_and_the_samples_once(whole):
    path, _ = whole("MGR, periodic")
    directory, source = RunDirectory.open(path), toy()
    assert directory.view_steps == [-(-STEPS * part // 12) for part in range(1, 13)]  # three classes, four times each
    rows, last = directory.view("rows"), directory.view(STEPS)
    K, n_test = directory.read("result")["K"], len(source.test.x)
    assert rows["x"].shape == (n_test, 6)
    assert sorted(map(tuple, rows["x"].tolist())) == sorted(map(tuple, source.test.x.tolist()))
    assert last["generated"].shape[::2] == (K, 6)
    assert last["centres"].shape == (K, 2)
    assert np.bincount(last["y"], minlength=K).tolist() == np.sum(directory.read("result")["confusion"], 0).tolist()


def test_a_run_says_what_its_samples_are(whole):
    path, _ = whole("MGR, periodic")
    known = {"name": "toy", "classes": ["0", "1", "2"], "shape": [6]}
    assert RunDirectory.open(path).read("data") == known


@pytest.mark.parametrize(
    ("scenario", "n_classes", "views"),
    [
        (Sequential(), 10, 10),
        (Sequential(), 50, 50),
        (Sequential(at_once=2), 9, 10),
        (Sequential(at_once=2), 14, 14),
        (Sequential(), 101, 10),
        (Drift(), 11, 11),
        (Iid(), 50, 10),
    ],
)
def test_the_model_is_seen_at_the_end_of_each_period_unless_they_are_too_many(tmp_path, scenario, n_classes, views):
    x, labels = np.random.default_rng(0).random((4 * n_classes, 2)), np.arange(4 * n_classes) % n_classes
    source = from_arrays("many", x, labels, x, labels)
    config = replace(MGR, scenario=scenario, steps=1000)
    run = Run(config, source, RunDirectory.create(tmp_path / "run", config.to_json(), {}))
    seen = []
    for run.system.learner.t in range(1, 1001):
        seen += [run.system.t] if run._is_time_to_look() else []
    assert len(seen) == views
    shown = [class_shares(scenario, t, 1000, torch.full((n_classes,), 1 / n_classes)).argmax() for t in range(1000)]
    changes = {t for t in range(1, 1000) if shown[t] != shown[t - 1]}
    assert n_classes > 100 or isinstance(scenario, Drift) or changes <= set(seen)


def test_few_steps_have_as_many_views(tmp_path):
    config = replace(MGR, steps=3)
    go_on(started(config, tmp_path / "run"))
    assert RunDirectory.open(tmp_path / "run").view_steps == [1, 2, 3]
