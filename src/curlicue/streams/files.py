"""Samples in files, read and written in parts: .npy, .npz, .csv, .parquet; folders of images are read, too."""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TextIO
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.TiffImagePlugin import BITSPERSAMPLE, SAMPLEFORMAT

from curlicue.errors import DataError
from curlicue.records.files import replacing

Array = npt.NDArray[Any]
ROWS = 10_000  # at a time
# what the libraries raise on files that are damaged, or made to do damage
UNREADABLE = (
    OSError,
    ValueError,
    ArithmeticError,
    EOFError,
    MemoryError,
    RuntimeError,
    TypeError,
    BadZipFile,
    zlib.error,
)
SIGNED = 2  # in the sample format of a TIFF
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})


def parts(path: Path, rows: int = ROWS) -> Iterator[Array]:
    """The samples in `path`, at most `rows` at a time: [n, D], or [n, h, w] for images."""
    if path.is_dir():
        return _folder(path, rows)
    if not path.exists():
        raise DataError(f"There is no file or folder {path}. Check the name.")
    if not path.is_file():
        raise DataError(f"{path} is no file. Learn from what comes in live with CURL.partial_fit or fit_stream.")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(READERS)
        raise DataError(f"{path} is of no kind that can be read. Give {known}, or a folder of images.")
    return _told(reader(path, rows), path)


def names(path: Path) -> tuple[str, ...] | None:
    """What the columns are called, if the file says so; None for one that cannot be read, of which `parts` tells."""
    try:
        match path.suffix.lower():
            case ".csv":
                with path.open(encoding="utf-8-sig") as file:
                    first = next((line for line in file if line.strip()), "")
                return tuple(name.strip() for name in next(csv.reader([first]))) if _is_names(first) else None
            case ".parquet":
                return tuple(_arrow().parquet.read_schema(path).names)
    except UNREADABLE:
        pass
    return None


def _told(samples: Iterator[Array], path: Path) -> Iterator[Array]:
    """Whatever a reader stumbles over, as one error that names the file."""
    try:
        yield from samples
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}. Repair or leave it out.") from error


def _reason(error: Exception) -> str:
    """On one line, without a full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__


def _npy(path: Path, rows: int) -> Iterator[Array]:
    yield from _cut(np.lib.format.open_memmap(path, mode="r"), rows, str(path))


def _npz(path: Path, rows: int) -> Iterator[Array]:
    """All tables in an archive; vectors beside them, such as labels, are passed over."""
    with ZipFile(path) as archive:
        members = archive.namelist()
        tables = [member for member in members if len(_shape(archive, member)) >= 2]
        for member in tables or members:
            with archive.open(member) as file:
                yield from _unpacked(file, rows, f"{member.removesuffix('.npy')} in {path}")


def _shape(archive: ZipFile, member: str) -> tuple[int, ...]:
    with archive.open(member) as file:
        return _header(file)[0]


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Of an .npy file: the shape, whether it lies by columns, and the kind of its values."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _unpacked(file: IO[bytes], rows: int, where: str) -> Iterator[Array]:
    """The array in an .npy file that cannot be mapped into memory, in parts."""
    shape, by_columns, dtype = _header(file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded: they may hold code.")
    if by_columns:  # its rows are nowhere in one piece
        whole = np.frombuffer(file.read(), dtype, math.prod(shape)).reshape(shape[::-1]).T
        yield from _cut(whole, rows, where)
        return
    _check_shape(shape, where)
    for start in range(0, shape[0], rows):
        part = (min(rows, shape[0] - start), *shape[1:])
        yield np.frombuffer(file.read(math.prod(part) * dtype.itemsize), dtype, math.prod(part)).reshape(part)


def _cut(array: Array, rows: int, where: str) -> Iterator[Array]:
    _check_shape(array.shape, where)
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _check_shape(shape: tuple[int, ...], where: str) -> None:
    if len(shape) < 2:
        raise DataError(f"{where} has the shape {shape}. Give one row a sample: [n, D], or [n, h, w] for images.")


def _csv(path: Path, rows: int) -> Iterator[Array]:
    """Numbers between commas, with or without a line of names above them; blank lines do not count."""
    with path.open(encoding="utf-8-sig", errors="strict") as file:
        table, width = _below_names(line for line in file if line.strip()), 0
        for n in count():
            if not (lines := list(islice(table, rows))):
                return
            width = width or len(lines[0].split(","))
            try:
                yield np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
            except ValueError as error:
                raise ValueError(_first_bad(lines, n * rows + 1, width) or str(error)) from error


def _first_bad(lines: list[str], start: int, width: int) -> str | None:
    """What is wrong with the first of these rows, counted from `start`, that is not `width` numbers."""
    for n, line in enumerate(lines, start):
        values = [value.strip() for value in line.split(",")]
        word = next((value for value in values if not _is_number(value)), None)
        if word is not None:
            return f"row {n} has {word!r} where a number should be" if word else f"row {n} lacks a value"
        if len(values) != width:
            return f"row {n} has {len(values)} values, those before it {width}"
    return None


def _below_names(lines: Iterator[str]) -> Iterator[str]:
    first = list(islice(lines, 2))
    if first and (_is_names(first[0]) or (len(first) > 1 and _is_count(first[0]))):
        n_names, width = len(next(csv.reader([first.pop(0)]))), len(first[0].split(",")) if first else None
        if width not in (None, n_names):
            raise ValueError(f"there are {n_names} names above rows of {width} values")
    return chain(first, lines)


def _is_names(line: str) -> bool:
    """Words, and not one number: a number beside them makes it a row with something wrong in it."""
    values = line.split(",")
    return any(value.strip() for value in values) and not any(map(_is_number, values))


def _is_count(line: str) -> bool:
    """Whether it is 0,1,2 and so on, as pandas calls columns without names; 0 or 0,1 may well be a sample."""
    values = line.split(",")
    return len(values) > 2 and all(value.strip() == str(n) for n, value in enumerate(values))


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return value.isascii() and "_" not in value  # Python alone reads others


def _parquet(path: Path, rows: int) -> Iterator[Array]:
    arrow = _arrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(rows):
                yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])
    except arrow.ArrowException as error:
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
            image.load()
            if image.mode != "F":
                return _deep(image) if image.mode.startswith("I") else np.asarray(image.convert("L"))
    except Exception as error:  # a damaged image may make PIL raise anything
        raise DataError(f"{file} is no image that can be read ({_reason(error)}). Repair or remove it.") from error
    raise DataError(f"{file} has floats for pixels: what is black and white is not known. Convert it to 8-bit greys.")


def _deep(image: Image.Image) -> npt.NDArray[np.uint8]:
    """The upper 8 of the 16 or 32 bits of each pixel; what is below 0 is black."""
    pixels = np.asarray(image).astype(np.int64)
    tags = getattr(image, "tag_v2", {})  # only TIFF has 32 bits, or a sign
    bits: int = tags.get(BITSPERSAMPLE, (16,))[0]
    if tags.get(SAMPLEFORMAT, (1,))[0] == SIGNED:
        bits -= 1
    elif bits == 32:
        pixels &= 0xFFFFFFFF  # PIL takes the upper half for negative
    return np.asarray(np.clip(pixels >> (bits - 8), 0, 255), dtype=np.uint8)


READERS: dict[str, Callable[[Path, int], Iterator[Array]]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}


# -- writing ------------------------------------------------------------------------------------------------------

Part = dict[str, Array]
"""A few samples: by name, what there is of each, [n] or [n, D] or [n, h, w]; one row each in every array."""


def check_kind(path: Path, *others: str) -> None:
    """DataError if `path` is named as nothing that `write`, or whoever else writes `others`, can make of it."""
    kinds = (*WRITERS, *others)
    if path.suffix.lower() not in kinds:
        raise DataError(f"{path} is of no kind that can be written. Give a name that ends in {', '.join(kinds)}.")
    if path.suffix.lower() == ".parquet":
        _arrow()
    if path.is_dir():
        raise DataError(f"{path} is a folder. Give the name of a file.")


def write(path: Path, samples: Iterable[Part], letter: str) -> None:
    """All parts as one file, which is there when it is whole and not before.

    .csv and .parquet have a column for each value, those of an array of several called `letter`0, `letter`1 and so on;
    .npz has the arrays under their names, .npy has the array of several values alone.
    """
    check_kind(path)
    with replacing(path) as part:
        WRITERS[path.suffix.lower()](part, iter(samples), letter)


def write_csv(file: TextIO, samples: Iterable[Part], letter: str) -> None:
    """A line of names, and one for each sample; numbers have the digits that give them back exactly."""
    for n, columns in enumerate(_columns(part, letter) for part in samples):
        if n == 0:
            file.write(",".join(columns) + "\n")
        formats = [_digits(column.dtype) for column in columns.values()]
        np.savetxt(file, np.column_stack([c.astype(np.float64) for c in columns.values()]), formats, delimiter=",")


def write_grid(path: Path, images: Array) -> None:
    """Images [n, h, w] side by side as one picture; black is 0 and white is 1, or whatever lies beyond these."""
    n, h, w = images.shape
    across = math.ceil(math.sqrt(n))
    down = math.ceil(n / across)
    low, high = min(0.0, float(images.min())), max(1.0, float(images.max()))
    tiles = np.full((down * across, h + 1, w + 1), 128, np.uint8)  # with a grey line after each
    tiles[:n, :h, :w] = np.rint((images - low) * (255 / (high - low)))
    grid = tiles.reshape(down, across, h + 1, w + 1).swapaxes(1, 2).reshape(down * (h + 1), across * (w + 1))
    with replacing(path) as part:
        Image.fromarray(grid[:-1, :-1]).save(part, format="PNG")


def _columns(part: Part, letter: str) -> Part:
    columns = {}
    for name, values in part.items():
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{letter}{i}": v for i, v in enumerate(values.reshape(len(values), -1).T)}
    return columns


def _digits(dtype: np.dtype[Any]) -> str:
    return "%d" if dtype.kind in "iub" else "%.9g" if dtype == np.float32 else "%.17g"


def _to_csv(path: Path, samples: Iterator[Part], letter: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        write_csv(file, samples, letter)


class _Growing:
    """An .npy file in the making: its header is written anew when the number of rows is known."""

    def __init__(self, file: IO[bytes], like: Array) -> None:
        self.file, self.n, self.row, self.dtype = file, 0, like.shape[1:], like.dtype
        self._header()

    def extend(self, values: Array) -> None:
        """Append rows to the file."""
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.n += len(values)

    def end(self) -> None:
        """No more rows come."""
        self.file.seek(0)
        self._header()

    def _header(self) -> None:
        """It takes the same place for any number of rows: numpy leaves room for growth."""
        descr, shape = np.lib.format.dtype_to_descr(self.dtype), (self.n, *self.row)
        np.lib.format.write_array_header_1_0(self.file, {"descr": descr, "fortran_order": False, "shape": shape})


def _to_npy(path: Path, samples: Iterator[Part], letter: str) -> None:
    _grow(lambda name: path, ({k: v for k, v in part.items() if v.ndim > 1} for part in samples))


def _grow(path_of: Callable[[str], Path], samples: Iterator[Part]) -> list[str]:
    """An .npy file for each array, all growing side by side; their names."""
    with ExitStack() as opened:
        files: dict[str, _Growing] = {}
        for part in samples:
            for name, values in part.items():
                if name not in files:
                    files[name] = _Growing(opened.enter_context(path_of(name).open("wb")), values)
                files[name].extend(values)
        for growing in files.values():
            growing.end()
    return list(files)


def _to_npz(path: Path, samples: Iterator[Part], letter: str) -> None:
    with TemporaryDirectory(dir=path.parent, prefix=path.name) as folder, ZipFile(path, "w") as archive:
        for name in _grow(lambda name: Path(folder) / f"{name}.npy", samples):
            archive.write(Path(folder) / f"{name}.npy", f"{name}.npy")


def _arrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet files need pyarrow. Install it with: pip install 'curlicue[parquet]'") from error
    return pyarrow


def _to_parquet(path: Path, samples: Iterator[Part], letter: str) -> None:
    arrow = _arrow()
    tables = (arrow.table({k: np.ascontiguousarray(v) for k, v in _columns(p, letter).items()}) for p in samples)
    first = next(tables)
    with arrow.parquet.ParquetWriter(path, first.schema) as file:
        for table in chain([first], tables):
            file.write_table(table)


WRITERS: dict[str, Callable[[Path, Iterator[Part], str], None]] = {
    ".csv": _to_csv,
    ".parquet": _to_parquet,
    ".npz": _to_npz,
    ".npy": _to_npy,
}
