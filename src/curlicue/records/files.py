"""Files that are never half written, directories that one process works in at a time, and JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy.typing as npt

from curlicue.errors import RunError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

Json = dict[str, Any]
Array = npt.NDArray[Any]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The name of a new file, which takes the place of `path` in the end unless something went wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, contents: bytes) -> None:
    """Write a file; whatever happens meanwhile, `path` is the whole old file or the whole new one."""
    with replacing(path) as part, part.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    if os.name == "posix":  # elsewhere a directory cannot be opened
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)  # the new name is on disk before anybody deletes the file it replaces
        os.close(directory)


@contextmanager
def alone_in(path: Path, wait: bool = True) -> Iterator[None]:
    """Lock the directory `path`, which is made if it is missing, against every other process that asks for this lock.

    If another process holds the lock, wait for it, or raise RunError at once. The lock ends with the process that
    holds it. Windows has no locks on directories, and nobody waits there.
    """
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(directory)
        raise RunError(f"Another process is at work in {path}. Wait until it has ended, or stop it.") from None
    try:
        yield
    finally:
        os.close(directory)


def json_object(text: str) -> Json:
    """The JSON object in `text`; ValueError if there is none."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value


def finite(value: Any) -> Any:
    """A value for JSON, which has no NaN and no infinity: they become None."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {k: finite(v) for k, v in value.items()}
        case list() | tuple():
            return [finite(v) for v in value]
    return value
