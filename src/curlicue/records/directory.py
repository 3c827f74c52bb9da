"""A run directory: the settings of a run, its events and its results.

config.json, environment.json   the settings, and where the run takes place
events.jsonl                    births, snapshots, and the steps in means over every hundred
metrics.jsonl                   scores over time
births/0007.npy                 D_new of component 7 at its birth
data.json, views/rows.npz       the data set, and the test samples that views show
views/00020000.npz              the system at step 20000: z and y of these samples, embeddings and components; of
                                systems that have them also the centres and generated samples of each component
result.json                     the final scores: the same for the same seed on the same machine
timing.json                     minutes and steps a second, which differ from run to run
checkpoint.safetensors          the state to go on from
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from curlicue.errors import RunError
from curlicue.records.files import Array, Json, finite, json_object, write_atomically

Arrays = Mapping[str, Array]
LOGS = ("events.jsonl", "metrics.jsonl")
FOLDERS = ("births", "views")
PART = re.compile(r"\.(environment|config)\.json\.\d+\.part")  # a file that `write_atomically` had not finished
UNREADABLE = (  # the errors of numpy and zipfile on damaged files
    ValueError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
)


class RunDirectory:
    """Writes and reads one run's files; appended lines are safe once `sync` has returned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"

    @classmethod
    def create(cls, path: Path, config: Json, environment: Json) -> RunDirectory:
        """Make a new run directory; RunError if anything lies at `path`."""
        if path.exists() and not _is_free(path):
            raise RunError(f"{path} is not empty. Choose another --out, or go on with the run in it: --resume {path}")
        for folder in FOLDERS:
            (path / folder).mkdir(parents=True, exist_ok=True)
        directory = cls(path)
        directory.write("environment", environment)
        for log in LOGS:
            (path / log).touch()
        directory.write("config", config)  # last: a directory that has it is whole
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run directory."""
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run directory (it has no config.json). Start a run with: curlicue train")
        return cls(path)

    def write(self, name: str, value: Json) -> None:
        """Write `name`.json."""
        write_atomically(self.path / f"{name}.json", (json.dumps(finite(value), indent=2) + "\n").encode())

    def settings(self) -> Json:
        """config.json; RunError if it is of an earlier version of curlicue, which wrote no `system`."""
        config = self.read("config")
        if "model" in config and "learner" in config:
            commit = self.read("environment").get("commit") if self.has("environment") else None
            version = f"the version that wrote it{f' (commit {commit})' if commit else ''}"
            raise RunError(
                f"{self.path} is a run of an earlier version of curlicue, whose settings this version cannot read. "
                f"Look at it, or go on with it, with {version}."
            )
        return config

    def read(self, name: str) -> Json:
        """Read `name`.json."""
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
        """Append a line to `log`.jsonl."""
        with (self.path / f"{log}.jsonl").open("a") as file:
            file.write(json.dumps(finite(line)) + "\n")

    def lines(self, log: str) -> list[Json]:
        """All whole lines of `log`.jsonl; a running or a killed run may have left the last one unfinished."""
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
        """Write D_new of `component`; an array of zeros and ones takes a byte for each value."""
        binary = ((d_new == 0) | (d_new == 1)).all()
        packed = io.BytesIO()
        np.save(packed, d_new.astype(np.uint8) if binary else d_new)
        write_atomically(self.path / "births" / f"{component:04d}.npy", packed.getvalue())

    def birth(self, component: int) -> npt.NDArray[np.float32]:
        """Read D_new of `component`."""
        path = self.path / "births" / f"{component:04d}.npy"
        d_new = _loaded(path).get("")
        if d_new is None or d_new.dtype.kind not in "fiub":
            raise _damaged_array(path, "it holds no array of numbers")
        return d_new.astype(np.float32)

    def has_birth(self, component: int) -> bool:
        """Whether D_new of `component` was written."""
        return (self.path / "births" / f"{component:04d}.npy").is_file()

    def write_view(self, name: int | str, arrays: Arrays) -> None:
        """Write the view of a step, or arrays under another name; real numbers are cut to half precision."""
        half = {key: _half(array) for key, array in arrays.items()}
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **half)
        write_atomically(self._view(name), packed.getvalue())

    def view(self, name: int | str) -> dict[str, Array]:
        """Read the view of a step, or the arrays under another name."""
        return _loaded(self._view(name))

    def has_view(self, name: int | str) -> bool:
        """Whether a view was written."""
        return self._view(name).is_file()

    def _view(self, name: int | str) -> Path:
        return self.path / "views" / (f"{name:08d}.npz" if isinstance(name, int) else f"{name}.npz")

    @property
    def view_steps(self) -> list[int]:
        """The steps that have a view, in their order."""
        return sorted(int(path.stem) for path in (self.path / "views").glob("*.npz") if path.stem.isdecimal())

    def sync(self) -> dict[str, int]:
        """Bring the logs to disk, and return their lengths for a checkpoint to keep."""
        lengths = {}
        for log in LOGS:
            with (self.path / log).open("ab") as file:  # not every system syncs a file that is only read
                os.fsync(file.fileno())
            lengths[log] = (self.path / log).stat().st_size
        return lengths

    def rewind(self, lengths: Mapping[str, int], K: int, t: int) -> None:
        """Delete whatever was logged after the checkpoint of step t with K components, and half-written files."""
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
    """Whether a directory is empty, or holds nothing but the beginnings of a `RunDirectory.create` that was cut off."""
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
    """The arrays of a .npz file by name, or the array of a .npy file under the name ""."""
    try:
        with path.open("rb") as file:
            found = np.load(io.BytesIO(file.read()), allow_pickle=False)
            return dict(found) if isinstance(found, np.lib.npyio.NpzFile) else {"": found}
    except OSError as error:
        raise _unreadable(path, error) from error
    except UNREADABLE as error:
        raise _damaged_array(path, str(error).partition("\n")[0]) from error


def _damaged_array(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged ({why}). It can be made again only by the run itself.")


def _unreadable(path: Path, error: OSError) -> RunError:
    return RunError(f"{path} cannot be read ({error.strerror or error}).")


def _line(text: str, n: int) -> Json:
    try:
        return json_object(text)
    except ValueError as error:
        raise ValueError(f"line {n}: {error}") from error
