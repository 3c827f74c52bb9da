"""A run directory: what was asked, what happened, what came out.

config.json, environment.json   what was asked, and where it runs
events.jsonl                    births, snapshots, and the steps in means over every hundred
metrics.jsonl                   scores over time
births/0007.npy                 D_new of component 7 at its birth
data.json, views/rows.npz       what the data set is, and the test samples that views show
views/00020000.npz              the model at step 20000: what each component dreams, where those samples lie
result.json                     the final scores: the same for the same seed on the same machine
timing.json                     minutes and steps a second, which are not
checkpoint.safetensors          to go on from
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import math
import os
import platform
import re
import subprocess
import zipfile
import zlib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from curlicue.errors import RunError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

Json = dict[str, Any]
Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
LOGS = ("events.jsonl", "metrics.jsonl")
FOLDERS = ("births", "views")
PART = re.compile(r"\.(environment|config)\.json\.\d+\.part")  # what `write_atomically` had not finished


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what is there in the end replaces `path`, unless something went wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, contents: bytes) -> None:
    """The old file or the new one, whole, whatever happens in between."""
    with replacing(path) as part, part.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    if os.name == "posix":  # elsewhere a directory cannot be opened
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)  # the new name is on disk before anybody deletes what it replaces
        os.close(directory)


@contextmanager
def alone_in(path: Path, wait: bool = True) -> Iterator[None]:
    """No other process that asks for this works in the directory meanwhile, where the system has such locks.

    If one does, wait for it, or be refused. A directory that is not there is made.
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


class RunDirectory:
    """Writes and reads one run's files; appended lines are safe once `sync` has returned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"

    @classmethod
    def create(cls, path: Path, config: Json, environment: Json) -> RunDirectory:
        """A new one; an old one is never overwritten."""
        if path.exists() and not _is_free(path):
            raise RunError(f"{path} is not empty. Choose another --out, or go on with the run in it: --resume {path}")
        for folder in FOLDERS:
            (path / folder).mkdir(parents=True, exist_ok=True)
        directory = cls(path)
        directory.write("environment", environment)
        for log in LOGS:
            (path / log).touch()
        directory.write("config", config)  # last: what has it is whole
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing one."""
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run directory (it has no config.json). Start a run with: curlicue train")
        return cls(path)

    def write(self, name: str, value: Json) -> None:
        """`name`.json."""
        write_atomically(self.path / f"{name}.json", (json.dumps(finite(value), indent=2) + "\n").encode())

    def read(self, name: str) -> Json:
        """What `write` wrote."""
        path = self.path / f"{name}.json"
        try:
            return json_object(path.read_text())
        except FileNotFoundError:
            raise RunError(
                f"{path} is missing: the run has not got so far. Go on with it: curlicue train --resume {self.path}"
            ) from None
        except OSError as error:
            raise _unreadable(path, error) from error
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}). Start the run anew in another directory.") from error

    def has(self, name: str) -> bool:
        """Whether `name`.json was written."""
        return (self.path / f"{name}.json").is_file()

    def append(self, log: str, line: Json) -> None:
        """One line of `log`.jsonl."""
        with (self.path / f"{log}.jsonl").open("a") as file:
            file.write(json.dumps(finite(line)) + "\n")

    def lines(self, log: str) -> list[Json]:
        """All whole lines of `log`.jsonl; while a run goes on, or after it was killed, the last one may have no end."""
        path = self.path / f"{log}.jsonl"
        try:
            whole, _, rest = path.read_text().rpartition("\n")
            if rest and self.has("timing"):  # written last
                raise ValueError("its last line has no end, though the run has finished")
            return [_line(text, n) for n, text in enumerate(whole.splitlines(), 1)]
        except OSError as error:
            raise _unreadable(path, error) from error
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}). Start the run anew in another directory.") from error

    def write_birth(self, component: int, d_new: npt.NDArray[np.float32]) -> None:
        """D_new of `component`; values of 0 and 1 take a byte each."""
        binary = ((d_new == 0) | (d_new == 1)).all()
        packed = io.BytesIO()
        np.save(packed, d_new.astype(np.uint8) if binary else d_new)
        write_atomically(self.path / "births" / f"{component:04d}.npy", packed.getvalue())

    def birth(self, component: int) -> npt.NDArray[np.float32]:
        """What `write_birth` wrote."""
        return _loaded(self.path / "births" / f"{component:04d}.npy")[""].astype(np.float32)

    def write_view(self, name: int | str, arrays: Arrays) -> None:
        """What is seen at a step, or under another name; real numbers are cut to half precision: it is for looking."""
        half = {key: _half(array) for key, array in arrays.items()}
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **half)
        write_atomically(self._view(name), packed.getvalue())

    def view(self, name: int | str) -> dict[str, Array]:
        """What `write_view` wrote."""
        return _loaded(self._view(name))

    def _view(self, name: int | str) -> Path:
        return self.path / "views" / (f"{name:08d}.npz" if isinstance(name, int) else f"{name}.npz")

    @property
    def view_steps(self) -> list[int]:
        """The steps of which there is a view."""
        return sorted(int(path.stem) for path in (self.path / "views").glob("*.npz") if path.stem.isdecimal())

    def sync(self) -> dict[str, int]:
        """Bring the logs to disk; returns their lengths, to be kept with a checkpoint."""
        lengths = {}
        for log in LOGS:
            with (self.path / log).open("ab") as file:  # not every system syncs a file that is only read
                os.fsync(file.fileno())
            lengths[log] = (self.path / log).stat().st_size
        return lengths

    def rewind(self, lengths: Mapping[str, int], K: int, t: int) -> None:
        """Forget whatever was logged after a checkpoint of step t, and what a killed process left half written."""
        for log in LOGS:
            path = self.path / log
            size = path.stat().st_size if path.is_file() else 0
            if size < lengths[log]:
                raise RunError(
                    f"{path} has {size} bytes, but {lengths[log]} had been logged by the checkpoint. "
                    "Put the whole file back, or start the run anew in another directory."
                )
        for log in LOGS:
            with (self.path / log).open("ab") as file:
                file.truncate(lengths[log])
        births = [path for path in (self.path / "births").glob("*.npy") if path.stem.isdecimal()]
        later = [path for path in births if int(path.stem) >= K]
        later += [self._view(step) for step in self.view_steps if step > t]
        for path in (*later, *self.path.rglob(".*.part")):
            path.unlink()


def _is_free(path: Path) -> bool:
    """Whether a directory holds nothing but what `RunDirectory.create` left when it was cut off."""
    return path.is_dir() and all(_is_left_over(entry) for entry in path.iterdir())


def _is_left_over(entry: Path) -> bool:
    if entry.name in FOLDERS:
        return entry.is_dir() and not any(entry.iterdir())
    if entry.name == "environment.json":
        return all((entry.parent / folder).is_dir() for folder in FOLDERS)  # made before
    return (entry.name in LOGS and not entry.stat().st_size) or PART.fullmatch(entry.name) is not None


def _half(array: Array) -> Array:
    most = np.finfo(np.float16).max
    return array.clip(-most, most).astype(np.float16) if np.issubdtype(array.dtype, np.floating) else array


def _loaded(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file, or the one of a .npy file under the name ""."""
    try:
        with path.open("rb") as file:
            found = np.load(io.BytesIO(file.read()), allow_pickle=False)
            return dict(found) if isinstance(found, np.lib.npyio.NpzFile) else {"": found}
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(f"{path} is damaged ({error}). It can be made again only by the run itself.") from error


def _unreadable(path: Path, error: OSError) -> RunError:
    return RunError(f"{path} cannot be read ({error.strerror or error}).")


def _line(text: str, n: int) -> Json:
    try:
        return json_object(text)
    except ValueError as error:
        raise ValueError(f"line {n}: {error}") from error


def json_object(text: str) -> Json:
    """What `text` says, if it is an object; else ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value


def finite(value: Any) -> Any:
    """JSON has no NaN or infinity: None instead."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {k: finite(v) for k, v in value.items()}
        case list() | tuple():
            return [finite(v) for v in value]
    return value


def environment(threads: int) -> Json:
    """Where a run takes place: versions, commit, processor, cores, threads."""
    packages = ("curlicue", "torch", "numpy", "numba", "scikit-learn", "safetensors")
    ours = _git("ls-files", "--error-unmatch", __file__) is not None  # not a repository it was merely installed into
    return {
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "commit": _git("rev-parse", "HEAD") if ours else None,
        "modified": _is_modified() if ours else False,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
    }


def latest(environment: Json) -> Json:
    """Where a run took place in the end: how it began, and what changed when it went on."""
    return dict(ChainMap(*reversed(environment.get("resumed", [])), environment))


def _is_modified() -> bool | None:
    """Whether the source tree differs from its commit; None if git cannot say."""
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return None if changes is None else bool(changes)


def _git(*arguments: str) -> str | None:
    """What git says of the source tree this package lies in, if it does."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
