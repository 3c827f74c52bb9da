"""The rows of files, a piece at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from curlicue.errors import ConfigError, DataError
from curlicue.estimator import CURL, Array
from curlicue.streams.files import names, parts


@dataclass(frozen=True)
class Piece:
    """Some rows of a file."""

    path: Path
    first: int  # rows before it in the file
    before: int  # rows before it in the whole stream
    x: Array  # [n, …]
    names: tuple[str, ...] | None = None  # of the columns, if the file says so

    @property
    def end(self) -> int:
        """Rows of the stream when this piece is over."""
        return self.before + len(self.x)

    @property
    def where(self) -> str:
        """The place of the rows, for messages; rows count from 1."""
        return f"{self.path}, rows {self.first + 1} to {self.first + len(self.x)}"

    def after(self, row: int) -> Piece:
        """The rows of this piece that come after so many rows of the stream."""
        n = max(0, row - self.before)
        return replace(self, first=self.first + n, before=self.before + n, x=self.x[n:])


def pieces_of(files: Sequence[Path], epochs: int, rows: int) -> Iterator[Piece]:
    """The rows of files in their order, at most `rows` at a time, `epochs` times."""
    before = 0
    for _ in range(epochs):
        for path in files:
            first, called = 0, names(path)
            for x in parts(path, rows):
                yield Piece(path, first, before, x, called)
                first, before = first + len(x), before + len(x)
        if not before:
            raise DataError(f"There are no rows in {', '.join(map(str, files))}. Give files that have some.")


def rest(pieces: Iterator[Piece], skip: int, likelihood: str | None) -> Iterator[Piece]:
    """All pieces without the rows to be skipped; zeros and ones of uint8 as bool, for as pixels all would be black.

    Whether they are such zeros and ones is seen in the first piece that is not all 0, be it skipped or not.
    """
    bits = False if likelihood == "gaussian" else None
    for whole in pieces:
        piece, small = whole.after(skip), whole.x.dtype == np.uint8
        if bits is None and small and whole.x.any():
            bits = bool(whole.x.max() == 1)
        if bits and small:
            if (high := piece.x.max(initial=0)) > 1:
                seen = f"a value is {high}, but the first rows of uint8 are all of 0 and 1"
                raise DataError(f"{piece.where}: {seen}. Give either zeros and ones or pixels of 0 to 255.")
            piece = replace(piece, x=piece.x.astype(np.bool_))
        yield piece


def check(piece: Piece, curl: CURL | None) -> None:
    """DataError for a value that is no finite number or columns that the model does not know, with their place."""
    n_features = None if curl is None else curl.n_features_in_
    if piece.x.dtype.kind not in "fiub":
        raise DataError(f"{piece.where}: not all values are numbers ({piece.x.dtype}). Leave out what is none.")
    x = piece.x.reshape(len(piece.x), -1)  # [n, D]
    if n_features is not None and x.shape[1] != n_features:
        remedy = "Give files with the same columns."
        raise DataError(f"{piece.path} has {x.shape[1]} values a row, the model learnt from {n_features}. {remedy}")
    learnt = getattr(curl, "feature_names_in_", piece.names)
    for n, (name, known) in enumerate(zip(piece.names or (), () if learnt is None else learnt, strict=False)):
        if name != known:
            remedy = "Give the same columns in the same order."
            raise DataError(f"Column {n + 1} of {piece.path} is {name!r}, where the model learnt {known!r}. {remedy}")
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        row, column = bad[0]
        place = f"{piece.path}, row {piece.first + row + 1}, column {column + 1}"
        raise DataError(f"{place}: a value is {x[row, column]}. Fill it in, or leave out the row.")


@contextmanager
def named(piece: Piece) -> Iterator[None]:
    """What a model refuses about the rows becomes a DataError of one line, with their place."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # they were compared before
            yield
    except ConfigError:
        raise
    except ValueError as error:
        raise DataError(f"{piece.where}: {str(error).splitlines()[0]}") from error


def check_files(files: Sequence[Path]) -> None:
    """DataError if there are no files, or one that cannot be read."""
    if not files:
        raise DataError("No files were named. Give .npy, .npz, .csv, .parquet files or folders of images.")
    for path in files:
        parts(path)
