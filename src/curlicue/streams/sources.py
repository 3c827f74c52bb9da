"""Labelled data sets: scikit-learn's digits, MNIST, Omniglot and your own arrays."""

import hashlib
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from curlicue.errors import DataError
from curlicue.records.files import write_atomically
from curlicue.streams.fetch import Held, Progress, cache_dir, obtain

Array = Tensor | npt.ArrayLike

SIDE = 28  # pixels; Omniglot's 105×105 drawings are averaged down to MNIST's size
TRAIN_DRAWINGS = 15  # of each Omniglot character's 20; the rest are for testing
DRAWING = "images_*/*/character*/[0-9]*.png"  # set, alphabet, character, drawing


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and, for evaluation only, their classes."""

    x: Tensor  # [N, D] float32
    labels: Tensor  # [N] int64, 0 .. n_classes - 1


@dataclass(frozen=True, eq=False)
class Source:
    """A labelled data set; labels order the stream and score the result, and never reach the learner."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]  # names
    shape: tuple[int, ...]  # of one sample, e.g. (28, 28)

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def n_features(self) -> int:
        """D, the numbers in one sample."""
        return math.prod(self.shape)


def load(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Source:
    """The data set called digits, mnist, mnist-60k, mnist-grey, mnist-validation or omniglot, fetched if need be.

    >>> digits = load("digits")
    >>> digits.n_classes, digits.n_features
    (10, 64)
    """
    files = obtain(name, data_dir, progress)
    match name:
        case "digits":
            return _digits()
        case "omniglot":
            return _omniglot(files)
        case _:
            return _mnist(name, files)


def from_arrays(
    name: str,
    x: Array,
    labels: Array,
    test_x: Array,
    test_labels: Array,
    shape: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
) -> Source:
    """A source out of your own samples [N, ...] and labels [N]; the arrays are copied."""
    samples, test_samples = _samples(x, "x"), _samples(test_x, "test_x")
    known = _labels(labels, "labels", len(samples))
    test_known = _labels(test_labels, "test_labels", len(test_samples))
    shape = tuple(samples.shape[1:] if shape is None else shape)
    for what, each in (("x", samples), ("test_x", test_samples)):
        if math.prod(shape) != math.prod(each.shape[1:]):
            raise DataError(
                f"A sample of shape {shape} has {math.prod(shape)} features, but each of {what} has "
                f"{math.prod(each.shape[1:])}. Give x and test_x the same features, and the shape they have."
            )
    n_labels = int(max(known.max(), test_known.max())) + 1
    classes = tuple(map(str, range(n_labels)) if classes is None else classes)
    if n_labels > len(classes):
        raise DataError(
            f"There are {len(classes)} class names, but the labels go up to {n_labels - 1}. Name every class."
        )
    train, test = Split(samples.flatten(1), known), Split(test_samples.flatten(1), test_known)
    return Source(name, train, test, classes, shape)


def _samples(x: Array, what: str) -> Tensor:
    """A copy of the samples as finite float32 numbers, [N, ...]."""
    try:
        array = x.detach().cpu().float().clone() if isinstance(x, Tensor) else _float_tensor(x)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} does not hold numbers ({error}). Give an array of shape [N, D].") from error
    if array.ndim < 2 or array.numel() == 0:
        raise DataError(
            f"{what} must hold at least one sample with at least one feature, in shape [N, D] or [N, ...]; "
            f"its shape is {list(array.shape)}. Reshape it, or add samples."
        )
    damaged = int((~array.isfinite()).flatten(1).any(1).sum())
    if damaged:
        raise DataError(
            f"{what} holds NaN or infinite values in {damaged} of {len(array)} samples. Remove or repair them."
        )
    return array


def _float_tensor(x: npt.ArrayLike) -> Tensor:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        return torch.from_numpy(np.array(x, dtype=np.float32))


def _labels(labels: Array, what: str, n: int) -> Tensor:
    """A copy of the labels as int64, [N]."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.shape != (n,):
        raise DataError(
            f"{what} must hold one label for each of the {n} samples; its shape is {list(array.shape)}. "
            f"Give an array of shape [{n}]."
        )
    if array.dtype.kind not in "iub" or array.min() < 0:
        seen = f"values from {array.min()}" if array.dtype.kind in "iub" else f"type {array.dtype}"
        raise DataError(
            f"{what} must be whole numbers from 0; saw {seen}. Number your classes with "
            "numpy.unique(labels, return_inverse=True)."
        )
    return torch.from_numpy(array.astype(np.int64))


def _digits() -> Source:
    """Every fifth drawing of each digit is for testing."""
    digits = load_digits()
    rank = np.empty(len(digits.target), dtype=int)  # of a drawing among those of its digit
    for label in range(10):
        of_digit = digits.target == label
        rank[of_digit] = np.arange(of_digit.sum())
    x, test = digits.images / 16 > 0.5, rank % 5 == 4
    return from_arrays("digits", x[~test], digits.target[~test], x[test], digits.target[test])


def _mnist(name: str, files: list[Held]) -> Source:
    """The official order.

    All but "mnist-60k" leave out the last 10,000 training images, on which "mnist-validation" tests.
    """
    images, labels, test_images, test_labels = (
        parse_idx(file.contents, n_dims, str(file.path)) for file, n_dims in zip(files, (3, 1, 3, 1), strict=True)
    )
    pixels, test_pixels = (
        each / np.float32(255) if name == "mnist-grey" else each > 0.5 * 255 for each in (images, test_images)
    )
    whole = from_arrays(name, pixels, labels, test_pixels, test_labels)
    if name == "mnist-60k":
        return whole
    x, known = whole.train.x, whole.train.labels
    cut = len(x) * 5 // 6
    test = Split(x[cut:], known[cut:]) if name == "mnist-validation" else whole.test
    return replace(whole, train=Split(x[:cut], known[:cut]), test=test)


def parse_idx(raw: bytes, n_dims: int, origin: str) -> npt.NDArray[np.uint8]:
    """An IDX file of bytes: 0, 0, 8, n_dims; then n_dims big-endian sizes; then the values."""
    start, magic = 4 + 4 * n_dims, bytes((0, 0, 8, n_dims))
    if raw[:4] != magic or len(raw) < start:
        raise DataError(
            f"{origin} is no IDX file of bytes in {n_dims} dimensions: expected a header of {start} bytes "
            f"that begins with {magic.hex()}, saw {raw[:4].hex() or 'nothing'} in {len(raw)} bytes. "
            "Replace it by the official file."
        )
    sizes = struct.unpack(f">{n_dims}I", raw[4:start])
    if len(raw) != start + math.prod(sizes):
        raise DataError(
            f"{origin} promises {'×'.join(map(str, sizes))} values after a header of {start} bytes, "
            f"but has {len(raw)} bytes in all. Replace it by the official file."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)


def _omniglot(files: list[Held]) -> Source:
    """Strokes are 1 on 0, with greys between; the alphabets are the classes."""
    decoded = _decoded(files)
    x, labels, test = decoded["images"] / np.float32(255), decoded["labels"], decoded["test"]
    classes = [str(alphabet) for alphabet in decoded["alphabets"]]
    return from_arrays("omniglot", x[~test], labels[~test], x[test], labels[test], classes=classes)


Decoded = dict[str, npt.NDArray[Any]]  # images, labels, test, alphabets


def _decoded(files: list[Held]) -> Decoded:
    """The drawings as arrays; kept in the cache, for decoding takes a while."""
    sums = [hashlib.sha256(file.contents).hexdigest() for file in files]
    key = hashlib.sha256("".join(sums).encode()).hexdigest()[:16]
    cached = cache_dir() / "omniglot" / f"area-{SIDE}x{SIDE}-{key}.npz"
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return _read_arrays(cached)
    decoded = _decode(files)
    packed = io.BytesIO()
    np.savez(packed, **decoded)  # type: ignore[arg-type]
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_atomically(cached, packed.getvalue())
    return decoded


def _read_arrays(path: Path) -> Decoded:
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in ("images", "labels", "test", "alphabets")}


def _decode(files: list[Held]) -> Decoded:
    drawings = [drawing for file in files for drawing in _drawings(file.contents)]
    names, tests, images = zip(*drawings, strict=True)
    alphabets, labels = np.unique(names, return_inverse=True)
    return {"images": np.stack(images), "labels": labels, "test": np.array(tests), "alphabets": alphabets}


def _drawings(archive: bytes) -> Iterator[tuple[str, bool, npt.NDArray[np.uint8]]]:
    """Alphabet, whether for testing, and pixels of each drawing, by character and file name."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        paths = sorted(path for path in map(PurePosixPath, opened.namelist()) if path.match(DRAWING))
        for character, drawings in groupby(paths, key=lambda path: path.parent):
            for rank, path in enumerate(drawings):
                yield character.parent.name, rank >= TRAIN_DRAWINGS, _shrunk(opened.read(str(path)))


def _shrunk(png: bytes) -> npt.NDArray[np.uint8]:
    """Each pixel the mean over its area, black strokes on white turned to white on black."""
    with Image.open(io.BytesIO(png)) as image:
        ink = 1.0 - np.asarray(image.convert("L"), np.float64) / 255
    down, across = (_area_weights(side) for side in ink.shape)
    return np.rint(255 * (down @ ink @ across.T)).astype(np.uint8)


@cache
def _area_weights(n: int) -> npt.NDArray[np.float64]:
    """[SIDE, n]: the share that each of n pixels has in each of SIDE equal stretches."""
    edges = np.linspace(0, n, SIDE + 1)
    begins, ends, pixels = edges[:-1, None], edges[1:, None], np.arange(n)
    overlap = np.minimum(ends, pixels + 1) - np.maximum(begins, pixels)
    return np.asarray(np.clip(overlap, 0, None) * SIDE / n)
