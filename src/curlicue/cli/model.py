"""Your own data: fit, embed, sample."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from rich.progress import Progress
from tyro.conf import OmitArgPrefixes, Positional, arg

from curlicue.cli import console
from curlicue.cli.console import Given
from curlicue.errors import ConfigError, DataError, RunError
from curlicue.estimator import CURL, Array, Fact
from curlicue.experiments.run import use_threads
from curlicue.learn.events import BirthRefused, ComponentBorn
from curlicue.streams.files import Part, check_kind, names, parts, write, write_csv, write_grid

BATCHES = 20  # learnt between two looks at whether to stop
ROWS = 2000  # embedded at a time
SAVE_EVERY = 60.0  # seconds
STD = (0.01, 100.0)  # of columns that need no scaling, roughly
SIGNALLED = 128  # and the number of the signal: what a shell reports of a program that was ended by one
FAR = 100.0  # standard deviations from 0 at which a mean is too far off


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Settings of a new model."""

    likelihood: Given[Literal["gaussian", "bernoulli"]] = None
    """of real values, or of values in [0, 1] (default: bernoulli for images and other uint8 or bool, else gaussian)"""
    n_z: Given[int] = None
    """dimensions of the embedding (default: 16)"""
    encoder: Given[tuple[int, ...]] = None
    """hidden widths (default: 256 128)"""
    decoder: Given[tuple[int, ...]] = None
    """hidden widths (default: 256)"""
    c_new: Given[float | Literal["auto"]] = None
    """nats: a sample whose bound is lower is poorly explained; auto measures what is normal (default: auto)"""
    n_new: Given[int] = None
    """so many poorly explained samples make a new component (default: 100)"""
    max_components: Given[int] = None
    """at this number none is born any more (default: 100)"""
    replay: Given[Literal["mgr", "smgr", "none"]] = None
    """how it rehearses what it knows (default: smgr)"""
    snapshots: Given[str] = None
    """what it rehearses from is renewed at each change, dynamic (before births only), never, or after a number of steps
    (default: change)"""
    learning_rate: Given[float] = None
    """of Adam (default: 0.001)"""
    batch_size: Given[int] = None
    """rows of a mini-batch (default: 100)"""
    seed: Given[int] = None
    """of all that is random in learning (default: 0)"""


def fit(
    files: Positional[tuple[Path, ...]],
    /,
    learning: OmitArgPrefixes[Learning],
    *,
    out: Path,
    update: bool = False,
    skip: int = 0,
    epochs: int = 1,
    threads: Given[int] = None,
) -> None:
    """Learn from the rows of files in their order, as a stream; Ctrl-C saves and says how to go on.

    Args:
        files: .npy, .npz, .csv, .parquet, or folders of images
        out: the folder for the model
        update: go on with the model that is there, with the settings it has
        skip: pass over so many rows first
        epochs: how often to go through all files
        threads: for learning; more may pay for wide networks, while the other cores are idle (default: 1)
    """
    _check_call(files, learning, out, update, skip, epochs)
    use_threads(1 if threads is None else threads)
    pupil = _Pupil(out, learning, _load(out) if update else None, row=skip)
    repeated = ["--epochs", str(epochs)] if epochs > 1 else []
    repeated += [] if threads is None else ["--threads", str(threads)]
    words = ["curlicue", "fit", *map(str, files), "--out", str(out), *repeated, "--update", "--skip"]
    pieces = _pieces(files, epochs, pupil.rows)
    _teach(pupil, _rest(pieces, skip, pupil.likelihood), shlex.join(words))


def embed(
    model: Positional[Path], files: Positional[tuple[Path, ...]], /, out: Given[Path] = None, bound: bool = False
) -> None:
    """The component and the embedding of each row of files.

    Args:
        model: what `curlicue fit` saved
        files: .npy, .npz, .csv, .parquet, or folders of images
        out: a .csv, .parquet, .npz, or .npy (the embedding alone) file (default: CSV to the standard output)
        bound: also the bound on the log-likelihood of each row, in nats
    """
    _check_files(files)
    if out is not None:
        check_kind(out)
    _write(out, _embedded(_load(model), files, bound), "z")


def sample(
    model: Positional[Path],
    /,
    n: Annotated[int, arg(aliases=["-n"])] = 10,
    component: Given[int] = None,
    seed: int = 0,
    out: Given[Path] = None,
) -> None:
    """New samples as the model imagines them, and the component of each.

    Args:
        model: what `curlicue fit` saved
        n: how many
        component: of this one only (default: of all, as often as they have been used)
        seed: another one gives other samples
        out: a .csv, .parquet, .npz, .npy (samples alone) or .png (of images) file (default: CSV to the standard output)
    """
    if out is not None:
        check_kind(out, ".png")
    _check_seed(seed)
    x, y = _load(model).sample(n, component, random_state=seed)
    if out is None or out.suffix.lower() != ".png":
        _write(out, iter([{"component": y, "x": x}]), "x")
    elif x.ndim == 3:
        write_grid(out, x)
    else:
        shape = " × ".join(map(str, x.shape[1:]))
        raise DataError(
            f"A .png shows images [h, w], but {model} learnt samples of {shape} values. Choose .csv or .npy."
        )


# -- rows of files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """Some rows of a file."""

    path: Path
    first: int  # rows before it in the file
    before: int  # rows before it in the whole stream
    x: Array  # [n, …]
    names: tuple[str, ...] | None = None  # of the columns, if the file says so

    @property
    def end(self) -> int:
        """Rows in the stream when it is over."""
        return self.before + len(self.x)

    @property
    def where(self) -> str:
        """For messages; rows count from 1."""
        return f"{self.path}, rows {self.first + 1} to {self.first + len(self.x)}"

    def after(self, row: int) -> _Piece:
        """What of it comes after so many rows of the stream."""
        n = max(0, row - self.before)
        return replace(self, first=self.first + n, before=self.before + n, x=self.x[n:])


def _pieces(files: Sequence[Path], epochs: int, rows: int) -> Iterator[_Piece]:
    before = 0
    for _ in range(epochs):
        for path in files:
            first, called = 0, names(path)
            for x in parts(path, rows):
                yield _Piece(path, first, before, x, called)
                first, before = first + len(x), before + len(x)
        if not before:
            raise DataError(f"There are no rows in {', '.join(map(str, files))}. Give files that have some.")


def _rest(pieces: Iterator[_Piece], skip: int, likelihood: str | None) -> Iterator[_Piece]:
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


def _check(piece: _Piece, curl: CURL | None) -> None:
    """DataError, with the place of what is wrong."""
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
def _named(piece: _Piece) -> Iterator[None]:
    """Whatever a model has against the rows, with their place and on one line."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # they were compared before
            yield
    except ConfigError:
        raise
    except ValueError as error:
        raise DataError(f"{piece.where}: {str(error).splitlines()[0]}") from error


def _check_files(files: Sequence[Path]) -> None:
    if not files:
        raise DataError("No files were named. Give .npy, .npz, .csv, .parquet files or folders of images.")
    for path in files:
        parts(path)


# -- learning -----------------------------------------------------------------------------------------------------


def _check_call(files: Sequence[Path], learning: Learning, out: Path, update: bool, skip: int, epochs: int) -> None:
    given = _given(learning)
    if update and given:
        raise ConfigError(f"--update goes on with the settings the model has. Leave out {console.options(given)}.")
    if not update and not _is_free(out):
        remedy = "Go on learning with --update, or choose" if _is_saved(out) else "It holds no saved model: choose"
        raise RunError(f"{out} is there already. {remedy} another --out.")
    for name, value, low in (("skip", skip, 0), ("epochs", epochs, 1)):
        if value < low:
            raise ConfigError(f"The '{name}' setting must be an int in the range [{low}, inf). Got {value} instead.")
    _check_seed(learning.seed or 0)
    if learning.replay == "none" and learning.snapshots is not None:
        raise ConfigError("--snapshots only matters with replay. Add --replay mgr or --replay smgr.")
    _check_files(files)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise ConfigError(f"The 'seed' setting must be an int in the range [0, {2**32 - 1}]. Got {seed} instead.")


def _is_free(out: Path) -> bool:
    """Whether nothing is there, or only what a save that was killed left behind: the next one clears it away."""
    if not out.is_dir():
        return not out.exists()
    return all(path.name.startswith(".") and path.suffix == ".part" for path in out.iterdir())


def _given(learning: Learning) -> dict[str, Any]:
    return {name: value for name, value in asdict(learning).items() if value is not None}


def _new(learning: Learning, x: Array) -> CURL:
    """A model with the settings asked for, and for the kind of values in x."""
    given = _given(learning)
    if learning.likelihood is None:
        given["likelihood"] = "bernoulli" if x.dtype in (np.uint8, np.bool_) else "gaussian"
    if learning.replay == "none":
        given["replay"] = None
    if str(learning.snapshots).isdecimal():
        given["snapshots"] = int(str(learning.snapshots))
    return CURL(random_state=given.pop("seed", 0), **given)


def _warn_of_scale(piece: _Piece) -> None:
    x = piece.x.reshape(len(piece.x), -1).astype(np.float64)
    mean, std = x.mean(0), x.std(0)
    odd = (std > 0) & ((std < STD[0]) | (std > STD[1]) | (np.abs(mean) > FAR * std))
    if odd.any():
        column = int(odd.argmax())
        seen = f"mean {mean[column]:.3g} and standard deviation {std[column]:.3g}"
        remedy = "Standardise all columns (mean 0, deviation 1), or little will be learnt."
        console.say(f"Column {column + 1} of {piece.path} has {seen}. {remedy}")


class _Pupil:
    """A model in the making: how far it is in the stream, and when it was saved."""

    def __init__(self, out: Path, learning: Learning, curl: CURL | None, row: int) -> None:
        self.out, self.learning, self.curl = out, learning, curl
        self.likelihood = learning.likelihood if curl is None else curl.likelihood  # None: as the values are
        self.heading: str | None = None  # to be shown when the settings are found good
        self.row, self.n = row, 0  # rows of the stream that are done; learnt now
        self.saved, self.saved_row = time.monotonic(), row
        batch_size = learning.batch_size if learning.batch_size is not None else CURL().batch_size
        self.rows = BATCHES * max(1, batch_size if curl is None else curl.batch_size)

    def learn(self, piece: _Piece) -> None:
        """Go on with some rows; if they are bad, nothing changes."""
        _check(piece, self.curl)
        curl = self.curl or self._begin(piece)
        curl.on_event = lambda fact: self._tell(fact, piece)
        try:
            with _named(piece):
                curl.partial_fit(piece.x)
        except RunError as error:
            raise RunError(
                f"{piece.where}: learning has diverged. Start anew with a lower --learning-rate or with other scales; "
                f"what is saved in {self.out}, if anything, is as it was after row {self.saved_row}."
            ) from error
        if self.curl is None and piece.names is not None:
            curl.feature_names_in_ = np.array(piece.names, dtype=object)
        self._introduce()
        self.curl, self.row, self.n = curl, piece.end, self.n + len(piece.x)

    def _begin(self, piece: _Piece) -> CURL:
        curl = _new(self.learning, piece.x)
        if self.learning.likelihood is None:
            values = f"for the values are {piece.x.dtype}"
            self.heading = f"Likelihood: {curl.likelihood}, {values}; --likelihood sets another"
        if curl.likelihood == "gaussian":
            _warn_of_scale(piece)
        return curl

    def _introduce(self) -> None:
        if self.heading is not None:
            console.show(self.heading)
            self.heading = None

    def _tell(self, fact: Fact, piece: _Piece) -> None:
        self._introduce()
        if isinstance(fact, ComponentBorn):
            console.show(f"{piece.where}: component {fact.component} is born from {fact.parent}")
        if isinstance(fact, BirthRefused):
            console.show(f"{piece.where}: no component is born, for there are {fact.K} already")

    def save(self) -> None:
        """If there is anything new."""
        if self.curl is not None and self.saved_row < self.row:
            self.curl.save(self.out)
        self.saved, self.saved_row = time.monotonic(), self.row

    def save_now_and_then(self) -> None:
        """From time to time, and say so: a killed process says nothing any more."""
        if self.n and not self.out.exists():
            self.out.mkdir(parents=True)  # if that cannot be done, it is told now
        if self.curl is not None and time.monotonic() - self.saved > SAVE_EVERY:
            self.save()
            console.show(f"row {self.row}: K {self.curl.n_components_}, saved")


def _teach(pupil: _Pupil, pieces: Iterator[_Piece], go_on: str) -> None:
    """Show the pupil all pieces, unless it is stopped or one is bad: then what it learnt before is saved.

    If it diverges, cannot be saved, or is stopped a second time, only what was saved now and then is there.
    """
    skip = pupil.row
    with console.stoppable() as stopped, console.rows_line() as line:
        try:
            whole = _lessons(pupil, pieces, stopped, line)
        except DataError as error:
            if not pupil.n:
                raise
            pupil.save()
            told = f"What came before is learnt and saved. Go on with: {go_on} {pupil.row}"
            raise DataError(f"{error} {told}") from error
        except KeyboardInterrupt:  # the second signal, whichever it was
            raise SystemExit(SIGNALLED + stopped[-1]) from None
    if not whole:
        pupil.save()
        kept = f"nothing is lost. Go on with: {go_on} {pupil.row}"
        console.say(f"Stopped after row {pupil.row}; {kept if _is_saved(pupil.out) else 'nothing was learnt yet.'}")
        raise SystemExit(SIGNALLED + stopped[0])
    if pupil.curl is None or not pupil.n:
        raise ConfigError(f"--skip {skip} passes over all rows there are. Nothing was learnt; choose a smaller number.")
    pupil.save()
    K = pupil.curl.n_components_
    console.show(f"{pupil.n} rows, {K} component{'s' * (K > 1)}, saved in {pupil.out}")


def _lessons(pupil: _Pupil, pieces: Iterator[_Piece], stopped: list[int], line: Progress) -> bool:
    """Whether it came to the end."""
    task = line.add_task("", total=None, completed=pupil.row, K=1)
    for piece in pieces:
        if stopped:
            return False
        if not len(piece.x):  # skipped
            continue
        pupil.learn(piece)
        pupil.save_now_and_then()
        line.update(task, completed=pupil.row, K=pupil.curl.n_components_ if pupil.curl else 1)
    return True


# -- what was learnt ----------------------------------------------------------------------------------------------


def _is_saved(path: Path) -> bool:
    return (path / "config.json").is_file()


def _load(path: Path) -> CURL:
    if not _is_saved(path):
        raise RunError(f"{path} holds no saved model. Make one with: curlicue fit FILE --out {shlex.quote(str(path))}")
    return CURL.load(path)


def _embedded(curl: CURL, files: Sequence[Path], bound: bool) -> Iterator[Part]:
    for piece in _rest(_pieces(files, 1, ROWS), 0, curl.likelihood):
        _check(piece, curl)
        with _named(piece):
            part: Part = {"component": curl.predict(piece.x), "embedding": curl.transform(piece.x)}
            if bound:
                part["bound"] = curl.score_samples(piece.x)
        yield part


def _write(out: Path | None, samples: Iterator[Part], letter: str) -> None:
    if out is None:
        write_csv(sys.stdout, samples, letter)
    else:
        write(out, samples, letter)
