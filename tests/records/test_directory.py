import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from curlicue.errors import RunError
from curlicue.records.directory import RunDirectory
from curlicue.records.files import finite


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {"steps": 3}, {"cores": 2})


def fail(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def refusal(read: Callable[[], object]) -> str:
    """The message of the RunError, if there is one."""
    try:
        read()
    except RunError as error:
        return str(error)
    return ""


# -- a new directory, an old one ---------------------------------------------------------------------------------


def test_a_new_run_directory_has_settings_environment_empty_logs_and_room_for_births(directory):
    assert contents(directory.path).keys() == {"config.json", "environment.json", "events.jsonl", "metrics.jsonl"}
    assert directory.read("config") == {"steps": 3}
    assert directory.read("environment") == {"cores": 2}
    assert directory.lines("events") == directory.lines("metrics") == []
    assert (directory.path / "births").is_dir()


def test_an_empty_folder_will_do_for_a_new_run(tmp_path):
    assert RunDirectory.create(tmp_path, {}, {}).has("config")


def test_a_directory_with_anything_in_it_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("chapter one")
    with pytest.raises(RunError) as error:
        RunDirectory.create(tmp_path, {}, {})
    assert str(error.value) == (
        f"{tmp_path} is not empty. Choose another --out, or go on with the run in it: --resume {tmp_path}"
    )
    assert contents(tmp_path) == {"thesis.txt": b"chapter one"}


def test_a_file_is_no_place_for_a_run(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match="is not empty"):
        RunDirectory.create(tmp_path / "run", {}, {})


def test_settings_are_written_last_so_that_whatever_has_them_can_be_resumed(tmp_path, monkeypatch):
    write = RunDirectory.write

    def die_at_the_settings(self: RunDirectory, name: str, value: dict) -> None:
        if name == "config":
            raise KeyboardInterrupt
        write(self, name, value)

    monkeypatch.setattr(RunDirectory, "write", die_at_the_settings)
    with pytest.raises(KeyboardInterrupt):
        RunDirectory.create(tmp_path / "run", {}, {})
    assert contents(tmp_path / "run").keys() == {"environment.json", "events.jsonl", "metrics.jsonl"}


@pytest.mark.parametrize("n_synced", range(3))
def test_what_a_full_disk_cut_off_before_it_was_a_run_can_be_begun_again(tmp_path, monkeypatch, n_synced):
    calls = [lambda _: None] * n_synced + [fail]
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda file: calls.pop(0)(file))
        with pytest.raises(OSError, match="no space left"):
            RunDirectory.create(tmp_path / "run", {"steps": 1}, {"cores": 2})
    (tmp_path / "run" / ".config.json.123.part").write_bytes(b"half")  # or it was killed
    assert RunDirectory.create(tmp_path / "run", {"steps": 1}, {"cores": 3}).read("environment") == {"cores": 3}


@pytest.mark.parametrize(
    "file",
    ["environment.json", "events.jsonl", "births/0001.npy", "births/environment.json", "config.json", ".my.part"],
)
def test_what_may_be_somebody_s_is_not_taken_for_something_cut_off(tmp_path, file):
    (tmp_path / "births").mkdir()
    (tmp_path / file).write_text("theirs")
    before = contents(tmp_path)
    with pytest.raises(RunError, match="is not empty"):
        RunDirectory.create(tmp_path, {}, {})
    assert contents(tmp_path) == before


def test_a_folder_without_settings_is_not_a_run(tmp_path):
    with pytest.raises(RunError) as error:
        RunDirectory.open(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} is not a run directory (it has no config.json). Start a run with: curlicue train"
    )


# -- JSON --------------------------------------------------------------------------------------------------------


def test_a_file_the_run_has_not_written_yet_is_an_error_that_says_how_to_go_on(directory):
    assert not directory.has("result")
    with pytest.raises(RunError) as error:
        directory.read("result")
    path = directory.path
    assert str(error.value) == (
        f"{path / 'result.json'} is missing: the run has not got so far. Go on with it: curlicue train --resume {path}"
    )


@pytest.mark.parametrize(
    ("damaged", "seen"),
    [
        (b'{"steps": 3', "Expecting ',' delimiter: line 1 column 12 (char 11)"),
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "expected an object, got list"),
        (b"null", "expected an object, got NoneType"),
        (b'{"a": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 7: invalid start byte"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_where(directory, damaged, seen):
    path = directory.path / "config.json"
    path.write_bytes(damaged)
    with pytest.raises(RunError) as error:
        directory.read("config")
    assert str(error.value) == f"{path} is damaged ({seen}). Start the run anew in another directory."


@pytest.mark.parametrize("damaged", [b'{"t": 1}\n{"t": \n', b'{"t": 1}\n\x00\x00\n', b"7\n"])
def test_a_damaged_log_is_an_error_that_says_where(directory, damaged):
    path = directory.path / "events.jsonl"
    path.write_bytes(damaged)
    with pytest.raises(RunError) as error:
        directory.lines("events")
    assert str(error.value).startswith(f"{path} is damaged (")
    assert str(error.value).endswith("). Start the run anew in another directory.")


def test_a_line_that_was_not_written_to_its_end_is_not_there_yet(directory):
    directory.append("events", {"t": 1})
    with (directory.path / "events.jsonl").open("a") as file:
        file.write('{"t": ')
    assert directory.lines("events") == [{"t": 1}]
    directory.write("timing", {})
    with pytest.raises(RunError, match="its last line has no end, though the run has finished"):
        directory.lines("events")


def test_lines_come_back_in_the_order_they_were_appended(directory):
    lines = [{"t": t, "bound": -0.1 * t} for t in range(5)]
    for line in lines:
        directory.append("metrics", line)
    assert directory.lines("metrics") == lines
    assert directory.lines("events") == []


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_null_in_logs_and_files(directory, number):
    value = {"bound": number, "deep": {"list": [1.5, number], "pair": (number, 2)}, "name": "nan", "flag": True}
    expected = {"bound": None, "deep": {"list": [1.5, None], "pair": [None, 2]}, "name": "nan", "flag": True}
    assert finite(value) == expected
    directory.append("events", value)
    directory.write("result", value)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for file in ("events.jsonl", "result.json"):
        assert json.loads((directory.path / file).read_text(), parse_constant=refuse) == expected


# -- births ------------------------------------------------------------------------------------------------------


def test_births_of_zeros_and_ones_take_a_byte_each(directory):
    d_new = np.array([[0, 1, 1], [1, 0, 0]], dtype=np.float32)
    directory.write_birth(7, d_new)
    kept = np.load(directory.path / "births" / "0007.npy")
    assert kept.dtype == np.uint8
    assert (kept == d_new).all()


@pytest.mark.parametrize("value", [0.5, -1.0, 2.0, 255.0, 3e10, np.nan])
def test_births_of_other_values_are_kept_as_they_are(directory, value):
    d_new = np.array([[0, 1], [1, value]], dtype=np.float32)
    directory.write_birth(12, d_new)
    kept = np.load(directory.path / "births" / "0012.npy")
    assert kept.dtype == np.float32
    assert np.array_equal(kept, d_new, equal_nan=True)


@pytest.mark.parametrize("value", [1.0, 0.5])
def test_births_are_read_as_they_were(directory, value):
    d_new = np.array([[0, 1], [1, value]], dtype=np.float32)
    directory.write_birth(3, d_new)
    assert directory.birth(3).dtype == np.float32
    assert (directory.birth(3) == d_new).all()


@pytest.mark.parametrize("array", [np.array(["a"]), "an archive"])
def test_a_birth_that_is_no_array_of_numbers_is_one_clear_error(directory, array):
    path = directory.path / "births" / "0003.npy"
    if isinstance(array, str):
        directory.write_view("other", {"y": np.arange(3)})
        path.write_bytes((directory.path / "views" / "other.npz").read_bytes())
    else:
        np.save(path, array)
    with pytest.raises(RunError) as error:
        directory.birth(3)
    assert str(error.value) == (
        f"{path} is damaged (it holds no array of numbers). It can be made again only by the run itself."
    )


# -- views -------------------------------------------------------------------------------------------------------


def test_views_keep_whole_numbers_exactly_and_others_to_three_digits(directory):
    z = np.random.default_rng(0).normal(0, 3, size=(50, 2)).astype(np.float32)
    directory.write_view(2000, {"y": np.arange(50), "z": z})
    seen = directory.view(2000)
    assert seen.keys() == {"y", "z"}
    assert (seen["y"] == np.arange(50)).all()
    np.testing.assert_allclose(seen["z"], z, rtol=1e-3)


def test_values_too_large_for_a_view_stay_finite(directory):
    directory.write_view("rows", {"x": np.array([3e10, -3e10, 1.0])})
    assert directory.view("rows")["x"].tolist() == [65504, -65504, 1]


def test_the_steps_of_views_are_in_their_order_whatever_else_lies_there(directory):
    assert directory.view_steps == []
    for name in (100_000_000, 20, "rows", 3):
        directory.write_view(name, {"y": np.arange(3)})
    assert directory.view_steps == [3, 20, 100_000_000]


@pytest.mark.parametrize("harm", ["missing", "cut short", "empty", "pickled"])
def test_a_view_that_cannot_be_read_is_one_clear_error(directory, harm):
    path = directory.path / "views" / "00000007.npz"
    directory.write_view(7, {"y": np.arange(300)})
    match harm:
        case "missing":
            path.unlink()
        case "cut short":
            path.write_bytes(path.read_bytes()[:-30])
        case "empty":
            path.write_bytes(b"")
        case "pickled":
            np.savez(path, y=np.array([{}], dtype=object))
    with pytest.raises(RunError, match=rf"^{re.escape(str(path))} (is damaged|cannot be read) \("):
        directory.view(7)


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_a_file_of_arrays_in_which_any_byte_is_another_is_read_or_one_clear_error(directory, kind):
    rng = np.random.default_rng(0)
    directory.write_view(7, {"y": np.arange(30), "z": np.ones((30, 2))})
    directory.write_birth(3, np.ones((5, 7), np.float32) / 3)
    path = directory.path / ("views/00000007.npz" if kind == "npz" else "births/0003.npy")
    whole = path.read_bytes()
    for _ in range(1000):
        spoilt = bytearray(whole)
        spoilt[rng.integers(len(whole))] = rng.integers(256)
        path.write_bytes(spoilt)
        if told := refusal(lambda: directory.view(7) if kind == "npz" else directory.birth(3)):
            assert told.startswith(str(path))
            assert "\n" not in told


def test_a_file_that_may_not_be_read_is_not_called_damaged(directory, monkeypatch):
    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    directory.write_view(7, {"y": np.arange(3)})
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    for read in (lambda: directory.read("config"), lambda: directory.lines("events"), lambda: directory.view(7)):
        with pytest.raises(RunError, match=r"cannot be read \(Permission denied\)\.$"):
            read()


def test_a_damaged_line_is_named(directory):
    (directory.path / "metrics.jsonl").write_text('{"t": 1}\n{"t"\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged \(line 2: "):
        directory.lines("metrics")


# -- going back to a checkpoint ----------------------------------------------------------------------------------


def test_rewinding_removes_later_lines_births_views_and_half_written_files(directory):
    births = directory.path / "births"
    for name in ("rows", 20):
        directory.write_view(name, {"y": np.arange(3)})
    directory.append("events", {"t": 1})
    directory.append("metrics", {"t": 1})
    directory.write_birth(1, np.ones((2, 2), np.float32))
    before = contents(directory.path)
    lengths = directory.sync()
    assert lengths == {"events.jsonl": 9, "metrics.jsonl": 9}

    directory.append("events", {"t": 2})
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"t": 2, "bou')
    directory.write_birth(2, np.ones((2, 2), np.float32))
    directory.write_birth(10, np.ones((2, 2), np.float32))
    directory.write_view(21, {"y": np.arange(3)})
    (directory.path / ".checkpoint.safetensors.123.part").write_bytes(b"half")
    (births / ".0011.npy.123.part").write_bytes(b"half")
    directory.rewind(lengths, K=2, t=20)
    assert contents(directory.path) == before


def test_rewinding_leaves_files_of_others_alone(directory):
    for name in ("births/notes.npy", "views/notes.npz", "notes.txt"):
        (directory.path / name).write_text("mine")
    before = contents(directory.path)
    directory.rewind(directory.sync(), K=0, t=0)
    assert contents(directory.path) == before


@pytest.mark.parametrize("lost", ["cut short", "removed"])
def test_a_log_that_lacks_what_the_checkpoint_remembers_is_an_error_and_nothing_is_touched(directory, lost):
    directory.append("events", {"t": 1})
    directory.append("metrics", {"t": 1})
    lengths = directory.sync()
    directory.append("events", {"t": 2})
    directory.write_birth(5, np.ones((2, 2), np.float32))
    metrics = directory.path / "metrics.jsonl"
    if lost == "cut short":
        metrics.write_bytes(metrics.read_bytes()[:4])
    else:
        metrics.unlink()
    before = contents(directory.path)
    with pytest.raises(RunError) as error:
        directory.rewind(lengths, K=1, t=0)
    assert str(error.value) == (
        f"{metrics} has {4 if lost == 'cut short' else 0} bytes, but 9 had been logged by the checkpoint. "
        "Put the whole file back, or start the run anew in another directory."
    )
    assert contents(directory.path) == before


def test_syncing_brings_both_logs_to_disk(directory, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    directory.sync()
    assert synced == [(directory.path / log).stat().st_ino for log in ("events.jsonl", "metrics.jsonl")]


# -- settings ----------------------------------------------------------------------------------------------------


def test_settings_of_an_earlier_version_are_refused_with_its_commit(tmp_path):
    earlier = {"model": {"K": 1}, "learner": {"tau": 0.5}}
    directory = RunDirectory.create(tmp_path / "run", earlier, {"commit": "abc"})
    with pytest.raises(RunError) as error:
        directory.settings()
    assert str(error.value) == (
        f"{tmp_path}/run is a run of an earlier version of curlicue, whose settings this version cannot read. "
        "Look at it, or go on with it, with the version that wrote it (commit abc)."
    )
    directory.write("config", {"system": {"type": "Curl"}})
    assert directory.settings() == {"system": {"type": "Curl"}}
