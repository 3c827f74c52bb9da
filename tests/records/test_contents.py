import json
from pathlib import Path

import pytest

from curlicue.errors import ConfigError, RunError
from curlicue.records import contents
from curlicue.records.directory import RunDirectory

TIMING = {"minutes": 1, "steps_per_second": 2.5}


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {"steps": 3, "seed": -1, "scenario": {"type": "Iid"}}, {})


def message_of(kind: type, value: dict, *needed: str) -> str:
    with pytest.raises(ConfigError) as error:
        contents.check(kind, value, "file", needed)
    return str(error.value)


def test_a_file_is_read_as_it_is_with_fields_that_nobody_declares(directory):
    directory.write("timing", TIMING | {"more": {"of": [None]}})
    assert contents.read(directory, "timing", contents.Timing) == TIMING | {"more": {"of": [None]}}
    assert contents.read(directory, "config", contents.Settings)["seed"] == -1


def test_what_is_declared_is_checked_at_any_depth_and_what_is_not_is_free():
    moves = [{"t": 1, "commit": "a", "more": 1}, {"t": "late"}]
    contents.check(contents.Environment, {"resumed": moves[:1], "python": 3}, "file")
    assert message_of(contents.Environment, {"resumed": moves}) == (
        "file.resumed.t must be of type int. Got 'late' instead."
    )


def test_fields_without_a_default_and_those_that_are_needed_must_be_there():
    assert message_of(contents.Timing, {}) == "minutes, steps_per_second is missing"
    assert message_of(contents.Result, {"nmi": None, "K": 3}, "K", "nmi", "ari") == "nmi, ari is missing"


WRONG = [
    (contents.Settings, {"steps": 0, "seed": 0, "scenario": {"type": "Iid"}}, "steps must be an int in the range [1,"),
    (contents.Timing, TIMING | {"minutes": float("nan")}, "minutes must be a finite number. Got nan instead."),
    (contents.Timing, TIMING | {"minutes": 1e39}, "minutes must be a finite number. Got 1e+39 instead."),
    (contents.Event, {"event": "", "t": 2**53}, "t must be an int in the range [0, 2⁵³)"),
    (contents.Event, {"event": "", "t": 1, "K": -1}, "K must be an int in the range [0, 2⁵³). Got -1 instead."),
    (contents.Steps, {"event": "", "t": 1, "n": 1, "real": None}, "file.real must be an object. Got None instead."),
    (contents.Means, {"bound": None, "q_y": [0.5, None]}, "q_y must be made of finite numbers. Got None instead."),
    (contents.Means, {"bound": None, "q_y": [True]}, "q_y must be made of finite numbers. Got True instead."),
    (contents.Metrics, {"t": 1, "K": 1, "class_accuracy": [None, "a"]}, "class_accuracy must be made of finite"),
    (contents.Result, {"classes": ["a", "b"], "confusion": [[1]]}, "confusion must be of 2 classes. Got 1 instead."),
    (contents.Result, {"classes": ["a"], "confusion": [[0.5]]}, "confusion must be made of counts. Got 0.5 instead."),
    (contents.Result, {"confusion": [3]}, "confusion must be made of rows of one length. Got 3 instead."),
    (contents.Data, {"shape": [2, 0]}, "shape must be sizes of at least 1. Got [2, 0] instead."),
    (contents.Posterior, {"t": [1], "q_y": []}, "q_y must be of 1 steps. Got 0 instead."),
]


@pytest.mark.parametrize(("kind", "value", "message"), WRONG)
def test_values_that_no_run_writes_are_refused(kind, value, message):
    assert message_of(kind, value).startswith(message)


def test_numbers_that_were_not_finite_and_classes_without_samples_are_null():
    contents.check(contents.Metrics, {"t": 1, "K": 1, "bound": None, "class_accuracy": [None, 1]}, "file")
    contents.check(contents.Means, {"bound": None, "q_y": [1]}, "file")


def test_each_kind_of_event_has_its_own_fields(directory):
    lines = [{"event": "BirthRefused", "t": 1}, {"event": "Unheard", "t": 2}]
    lines += [{"event": "ComponentBorn", "t": 3, "component": k, "parent": 0} for k in (4, 5)]
    for line in lines:
        directory.append("events", line)
    assert contents.events(directory) == lines
    directory.append("events", lines[-1] | {"component": 7})
    with pytest.raises(RunError, match=r"events\.jsonl is damaged \(after component 5 comes component 7\)\. Start"):
        contents.events(directory)


def test_lines_of_scores_tell_of_equally_many_classes(directory):
    log = directory.path / "metrics.jsonl"
    for shares in ([1], [1, None]):
        with log.open("a") as file:
            file.write(json.dumps({"t": 1, "K": 1, "class_accuracy": shares}) + "\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged \(its lines tell of 1 and 2 classes\)"):
        contents.metrics(directory)
    log.write_text('{"t": 1, "K": 1}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged \(nmi is missing\)"):
        contents.metrics(directory, "nmi")
