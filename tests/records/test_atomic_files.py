import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from curlicue.errors import RunError
from curlicue.records.files import alone_in, finite, json_object, write_atomically


def fail(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# -- files that are never half -----------------------------------------------------------------------------------


def test_an_atomic_write_makes_the_folders_it_needs_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "a" / "b.bin"
    for written in (b"first, and longer", b"second"):
        write_atomically(path, written)
        assert contents(tmp_path) == {"a/b.bin": written}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_whole_and_nothing_beside_it(tmp_path, monkeypatch, call):
    path = tmp_path / "b.bin"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert contents(tmp_path) == {"b.bin": b"old"}


def test_an_atomic_write_is_on_disk_before_it_takes_the_old_ones_place(tmp_path, monkeypatch):
    order: list[str] = []
    for name in ("fsync", "replace"):
        real: Callable[..., None] = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (order.append(name), real(*a))[1])
    write_atomically(tmp_path / "b.bin", b"x")
    assert order == ["fsync", "replace", "fsync"]  # the last one of the directory: the new name stays too


# -- one process at a time ---------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from curlicue.records.files import alone_in
with alone_in(Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process is at work in `path` until its input ends."""
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holds\n"
        try:
            yield process
        finally:
            process.kill()


def test_where_another_process_is_at_work_one_may_be_refused_at_once(tmp_path):
    with held(tmp_path / "run"):
        began = time.monotonic()
        with pytest.raises(RunError) as error, alone_in(tmp_path / "run", wait=False):
            pass
        assert time.monotonic() - began < 1
    assert str(error.value) == (
        f"Another process is at work in {tmp_path / 'run'}. Wait until it has ended, or stop it."
    )


@pytest.mark.parametrize("is_killed", [False, True])
def test_one_may_wait_until_the_other_process_ends(tmp_path, is_killed):
    with held(tmp_path) as process:
        end = threading.Timer(0.3, process.kill if is_killed else process.stdin.close)
        end.start()
        with alone_in(tmp_path):
            assert end.finished.is_set()
        assert process.wait(30) == (-signal.SIGKILL if is_killed else 0)


def test_a_second_thread_of_this_process_is_refused_too_and_nothing_is_left_in_the_directory(tmp_path):
    with alone_in(tmp_path):
        with pytest.raises(RunError, match="Another process is at work"), alone_in(tmp_path, wait=False):
            pass
        assert list(tmp_path.iterdir()) == []
    with alone_in(tmp_path, wait=False):
        pass
    assert list(tmp_path.iterdir()) == []


# -- JSON --------------------------------------------------------------------------------------------------------


def test_lists_and_dictionaries_are_searched_for_numbers_that_json_lacks():
    value = {"a": [1.5, float("nan")], "b": {"c": (float("inf"), 2)}, "d": "nan", "e": True}
    assert finite(value) == {"a": [1.5, None], "b": {"c": [None, 2]}, "d": "nan", "e": True}


@pytest.mark.parametrize("text", ["[]", "7", "", "{", "[" * 100_000, '{"a":' * 100_000])
def test_anything_but_an_object_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"expected an object|Expecting|nested too deeply"):
        json_object(text)
