import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from changed import changed
from curlicue.config.model import ModelConfig
from curlicue.errors import RunError
from curlicue.experiments import reproduce as module
from curlicue.experiments.paper import EXPERIMENTS
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.reproduce import Job, Places, jobs_of, read_result, reproduce, setup_json, work
from curlicue.experiments.run import Run
from curlicue.experiments.settings import RunConfig
from curlicue.experiments.setups import SETUPS, RawPixels, Untrained
from curlicue.records.directory import LOGS, RunDirectory
from curlicue.records.environment import environment
from curlicue.records.files import alone_in
from curlicue.streams.sources import load

pytestmark = pytest.mark.usefixtures("as_before")

TINY = replace(
    changed(PRESETS["digits"], "system", model=ModelConfig(n_z=2, encoder=(8,), decoder=(8,))),
    steps=300,
    evaluate_every=100,
    checkpoint_every=100,
).resolved(10)
LONG = replace(TINY, steps=2000, evaluate_every=1000)
SMALL = Untrained("digits", TINY.system.model)


@pytest.fixture
def places(tmp_path) -> Places:
    return Places(tmp_path / "runs", tmp_path / "results")


def last_states(jobs: list[Job], places: Places, **how: object) -> dict[str, str]:
    return {each.job.key: each.state for each in reproduce(jobs, places, 2, **how)}


def test_every_job_ends_in_a_result_file_and_is_not_done_again(places, monkeypatch):
    jobs = [Job("a", TINY), Job("a", replace(TINY, seed=1), 1), Job("random", SMALL), Job("raw", RawPixels("digits"))]
    assert last_states(jobs, places) == dict.fromkeys(["a-seed0", "a-seed1", "random-seed0", "raw-seed0"], "done")
    results = [read_result(job, places.results) for job in jobs]
    assert [result["result"]["knn_error"]["10"] < 0.95 for result in results] == [True] * 4
    assert results[0]["result"] == RunDirectory(places.runs / "a-seed0").read("result")
    assert results[0]["result"] != results[1]["result"]
    assert all({"minutes"} <= result["timing"].keys() for result in results)
    monkeypatch.setattr(module, "_started", lambda *_: pytest.fail("done already"))
    assert set(last_states(jobs, places).values()) == {"done"}


def test_a_result_of_other_settings_does_not_count(places):
    job = Job("raw", RawPixels("digits"))
    places.results.mkdir()
    path = places.results / f"{job.key}.json"
    path.write_text(json.dumps({"config": {"raw_pixels": {"dataset": "mnist"}}}))
    assert read_result(job, places.results) is None
    for damaged in ("{", "[]", json.dumps({"config": {"raw_pixels": {"dataset": "digits"}}})):
        path.write_text(damaged)
        with pytest.raises(
            RunError, match=r"raw-seed0.json is damaged .* Delete it; `curlicue reproduce` can measure it again."
        ):
            read_result(job, places.results)


SPOILT = {
    "no number": ({"result": {"knn_error": {"3": "few"}}}, r"result\.knn_error\.3 is 'few' and no number"),
    "no errors": ({"result": {"knn_error": None}}, r"it has no '3'"),
    "no minutes": ({"timing": []}, r"it has no 'minutes'"),
    "a commit of nothing": ({"environment": {"commit": 7}}, r"result\.environment\.commit must be of type str"),
    "a ragged posterior": (
        {"posterior": {"t": [1, 2], "q_y": [[1], [0, 1]]}},
        r"q_y must be made of rows of one length",
    ),
    "a score in words": ({"metrics": [{"t": 1, "K": "one"}]}, r"result\.metrics\.K must be of type int"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_result_file_that_holds_something_else_is_one_line_of_error(places, spoilt):
    job, (values, message) = Job.of("raw-pixels-mnist", 0, 1.0), SPOILT[spoilt]
    whole = {"result": {"knn_error": {"3": 0.1, "5": 0.1, "10": 0.1}}, "timing": {"minutes": 1}, "environment": {}}
    places.results.mkdir()
    path = places.results / f"{job.key}.json"
    path.write_text(json.dumps(whole | {"config": setup_json(job.setup)}))
    assert read_result(job, places.results)
    path.write_text(json.dumps(whole | {"config": setup_json(job.setup)} | values))
    with pytest.raises(RunError, match=rf"raw-pixels-mnist-seed0\.json is damaged \({message}"):
        read_result(job, places.results)


def test_our_own_mistakes_do_not_read_as_a_damaged_result_file(places, monkeypatch):
    def mistaken(*_: object) -> None:
        raise TypeError("ours")

    places.results.mkdir()
    (places.results / "raw-seed0.json").write_text("{}")
    monkeypatch.setattr(module, "setup_json", mistaken)
    with pytest.raises(TypeError, match=r"^ours$"):
        read_result(Job("raw", RawPixels("digits")), places.results)


def test_a_killed_worker_is_started_again_and_ends_where_an_undisturbed_one_does(places, tmp_path):
    job, killed = Job("a", LONG), []
    for standing in reproduce([job], places, 1):
        if standing.t >= 200 and not killed:
            killed.append(standing.t)
            os.kill(standing.process.pid, signal.SIGKILL)
    assert killed
    assert standing.state == "done"
    undisturbed = Places(tmp_path / "runs2", tmp_path / "results2")
    work(job, undisturbed, os.getppid())
    assert read_result(job, places.results)["result"] == read_result(job, undisturbed.results)["result"]


def test_stopping_saves_and_the_same_call_goes_on(places):
    job, seen = Job("a", LONG), []

    def stop() -> bool:
        return bool(seen) and seen[-1].t >= 100

    for standing in reproduce([job, Job("b", LONG)], places, 1, stop):
        seen.append(standing)
    assert seen[-1].state == "stopped"
    assert (places.runs / job.key / "checkpoint.safetensors").is_file()
    assert not (places.runs / "b-seed0").exists()
    assert last_states([job], places) == {"a-seed0": "done"}


def test_an_error_that_would_come_again_is_told_and_not_tried_again(places, capfd):
    bad, seen = Job("bad", replace(TINY, dataset="nothing of this name")), {}
    for standing in reproduce([bad, Job("raw", RawPixels("digits"))], places, 2):
        seen[standing.job.name] = standing
    assert (seen["bad"].state, seen["raw"].state) == ("failed", "done")
    assert "nothing of this name" in seen["bad"].error
    assert seen["bad"].attempts == 1
    assert capfd.readouterr().err == ""


def test_files_that_cannot_be_written_are_told_and_not_tried_again(places, capfd):
    places.runs.write_text("no directory")
    (standing,) = {id(each): each for each in reproduce([Job("a", TINY)], places, 1)}.values()
    assert (standing.state, standing.attempts) == ("failed", 1)
    assert str(places.runs) in standing.error
    assert capfd.readouterr().err == ""


def test_a_run_whose_process_dies_again_and_again_is_given_up(places):
    for standing in reproduce([Job("a", TINY)], places, 1):
        if standing.state == "running":
            standing.process.kill()
    assert (standing.state, standing.attempts) == ("failed", module.ATTEMPTS)
    assert standing.error == f"Its process ended {module.ATTEMPTS} times without getting any further."


def test_a_line_of_steps_is_found_however_many_components_it_tells_of(places):
    directory = RunDirectory.create(places.runs / "a-seed0", {}, {})
    shares = {"q_y": [0.1234] * 3000}
    directory.append("events", {"event": "StepsTaken", "t": 99, "K": 3000, "real": shares, "rehearsed": shares})
    standing = module.Standing(Job("a", LONG), attempts=1)
    module._look(standing, places)
    assert (standing.t, standing.K) == (100, 3000)


def test_steps_taken_again_are_no_progress(places):
    directory = RunDirectory.create(places.runs / "a-seed0", {}, {})

    def look(*steps: int) -> int:
        directory.rewind(dict.fromkeys(LOGS, 0), 1, 0)
        for t in steps:
            directory.append("events", {"event": "StepsTaken", "t": t - 1, "K": 2})
            module._look(standing, places)
        return standing.attempts

    standing = module.Standing(Job("a", LONG), attempts=1)
    assert look(100, 200, 300) == 1
    standing.attempts = 2  # it died, and goes on from its checkpoint
    assert look(100, 200) == 2
    assert (standing.t, standing.K) == (200, 2)
    assert look(100, 200, 300) == 2
    assert look(100, 200, 300, 400) == 1


def test_a_worker_whose_parent_is_no_more_stops(places):
    with pytest.raises(SystemExit):
        work(Job("a", LONG), places, parent=-1)
    assert not places.results.exists()


def test_a_run_directory_of_other_settings_is_left_alone(places):
    work(Job("a", TINY), places, os.getppid())
    with pytest.raises(RunError, match="is a run with other settings"):
        work(Job("a", replace(TINY, seed=5)), places, os.getppid())


def test_going_on_with_another_commit_is_recorded_in_the_result(places):
    job, directory = Job("a", TINY), RunDirectory(places.runs / "a-seed0")
    run = Run(TINY, load("digits"), directory)
    RunDirectory.create(directory.path, TINY.to_json(), {**environment(1), "commit": "an old one"})
    for _ in run.events(stop=lambda: run.system.learner.t >= 150):
        pass
    work(job, places, os.getppid())
    told = read_result(job, places.results)["environment"]
    assert told["commit"] == "an old one"
    assert told["resumed"] == [{"t": 150, "commit": environment(1)["commit"]}]


def test_each_move_is_recorded_against_the_one_before_and_forgotten_if_its_steps_were_lost(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", TINY.to_json(), {"commit": "a", "cores": 2})
    run = Run(TINY, load("digits"), directory)
    moves = [(0, "a", []), (10, "b", ["commit"]), (20, "b", []), (30, "a", ["commit"]), (40, "a", [])]
    for t, commit, moved in moves:
        run.system.learner.t = t
        assert run.record_move({"commit": commit, "cores": 2}) == moved
    assert directory.read("environment")["resumed"] == [{"t": 10, "commit": "b"}, {"t": 30, "commit": "a"}]
    run.system.learner.t = 25  # killed, and back at its checkpoint
    assert run.record_move({"commit": "b", "cores": 2}) == []
    assert directory.read("environment")["resumed"] == [{"t": 10, "commit": "b"}]


def test_a_run_directory_in_which_another_process_is_at_work_is_left_alone(places):
    path = places.runs / "a-seed0"
    with alone_in(path), pytest.raises(RunError, match="Another process is at work in"):
        work(Job("a", TINY), places, os.getppid())
    assert not any(path.iterdir())
    work(Job("a", TINY), places, os.getppid())


def test_jobs_are_each_there_once_and_named_by_seed_and_scale():
    tables = [EXPERIMENTS["table-mgr-mnist"], EXPERIMENTS["table-drift-mnist"], EXPERIMENTS["table-iid-mnist"]]
    jobs = jobs_of(tables, 2, 0.1)
    keys = [job.key for job in jobs]
    assert len(keys) == len(set(keys))
    assert "mnist-mgr-seed1-scale0.1" in keys
    assert "raw-pixels-mnist-seed0" in keys
    assert "raw-pixels-mnist-seed1" not in keys
    assert Job.of("mnist-mgr", 0, 1.0).key == "mnist-mgr-seed0"
    assert [isinstance(SETUPS[job.name], RunConfig) or job.scale == 1 for job in jobs] == [True] * len(jobs)


@pytest.fixture(autouse=True)
def signals():
    """`work` is made for a process of its own."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


STOPPED_EARLY = """
import os, signal, sys, time
from pathlib import Path
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.reproduce import Job, Places, reproduce
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
places = Places(Path(sys.argv[1], "runs"), Path(sys.argv[1], "results"))
for standing in reproduce([Job("a", PRESETS["digits"])], places, 1, stop=lambda: bool(stopped)):
    if not stopped:
        os.killpg(0, signal.SIGINT)
        time.sleep(1)  # by when it would have been told
print(standing.state)
"""


def test_a_stop_while_a_run_is_yet_to_begin_is_told_by_no_traceback(tmp_path):
    command = [sys.executable, "-c", STOPPED_EARLY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert (done.stdout, done.stderr) == ("stopped\n", "")
