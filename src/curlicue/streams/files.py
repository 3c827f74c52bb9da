"""Samples in files, read in parts: .npy, .npz, .csv, .parquet, and folders of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from curlicue.errors import DataError

Array = npt.NDArray[Any]
ROWS = 10_000  # at a time
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})


def parts(path: Path, rows: int = ROWS) -> Iterator[Array]:
    """The samples in `path`, at most `rows` at a time: [n, D], or [n, h, w] for images."""
    if path.is_dir():
        return _folder(path, rows)
    if not path.is_file():
        raise DataError(f"There is no file or folder {path}. Check the name.")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(READERS)
        raise DataError(f"{path} is of no kind that can be read. Give {known}, or a folder of images.")
    return _told(reader(path, rows), path)


def _told(samples: Iterator[Array], path: Path) -> Iterator[Array]:
    """Whatever a reader stumbles over, as one error that names the file."""
    try:
        yield from samples
    except DataError:
        raise
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read: {reason} Repair or leave it out.") from error


def _npy(path: Path, rows: int) -> Iterator[Array]:
    yield from _cut(np.lib.format.open_memmap(path, mode="r"), rows, str(path))


def _npz(path: Path, rows: int) -> Iterator[Array]:
    with ZipFile(path):  # an archive, whole: where it is none, np.load would leave the file open
        pass
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            yield from _cut(arrays[name], rows, f"{name} in {path}")


def _cut(array: Array, rows: int, where: str) -> Iterator[Array]:
    if array.ndim < 2:
        raise DataError(f"{where} has the shape {array.shape}. Give one row a sample: [n, D], or [n, h, w] for images.")
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _csv(path: Path, rows: int) -> Iterator[Array]:
    """Numbers between commas, with or without a line of names above them."""
    with path.open(encoding="utf-8", errors="strict") as file:
        if _is_numbers(file.readline()):
            file.seek(0)
        while lines := list(islice(file, rows)):
            yield np.loadtxt(lines, delimiter=",", ndmin=2)


def _is_numbers(line: str) -> bool:
    try:
        [float(value) for value in line.split(",")]
    except ValueError:
        return False
    return True


def _parquet(path: Path, rows: int) -> Iterator[Array]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DataError("Parquet files need pyarrow. Install it with: pip install 'curlicue[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(rows):
                yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _folder(path: Path, rows: int) -> Iterator[Array]:
    """All images below `path` in the order of their names, in greys, all of one size."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES)
    if not files:
        raise DataError(f"{path} holds no images ({', '.join(sorted(PICTURES))}). Check the name.")
    size = None
    for start in range(0, len(files), rows):
        images = []
        for file in files[start : start + rows]:
            images.append(_grey(file))
            size = size or images[-1].shape
            if images[-1].shape != size:
                seen, first = ("×".join(map(str, reversed(shape))) for shape in (images[-1].shape, size))
                raise DataError(f"{file} has {seen} pixels, {files[0]} has {first}. Bring all images to one size.")
        yield np.stack(images)


def _grey(file: Path) -> npt.NDArray[np.uint8]:
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("L"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is no image that can be read ({error}). Repair or remove it.") from error


READERS: dict[str, Callable[[Path, int], Iterator[Array]]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}
