"""Teaching a model the rows of files: settings, what is told meanwhile, when it is saved, and how it is stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.progress import Progress

from curlicue.cli import console
from curlicue.cli.pieces import Piece, check, named
from curlicue.config.model import Likelihood, Network
from curlicue.errors import ConfigError, DataError, RunError
from curlicue.estimator import CURL, Array, Fact
from curlicue.growth.protocol import GrowthConfig
from curlicue.growth.structure import Structure
from curlicue.learn.events import BirthRefused, ComponentBorn
from curlicue.memory.protocol import MemoryConfig
from curlicue.memory.reservoir import Reservoir

BATCHES = 20  # learnt between two looks at whether to stop
SAVE_EVERY = 60.0  # seconds
STD = (0.01, 100.0)  # of columns that need no scaling, roughly
FAR = 100.0  # standard deviations from 0 at which a mean is too far off
SIGNALLED = 128  # and the number of the signal: what a shell reports of a program that was ended by one


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Settings of a new model: what `CURL` is given."""

    likelihood: Likelihood | None = None  # of real values (gaussian), or of values in [0, 1] (bernoulli)
    n_z: int = 16  # dimensions of the embedding
    encoder: Network = (256, 128)  # hidden widths x → h, or conv: small convolutions for images
    decoder: Network = (256,)  # hidden widths z → x, or conv
    growth: GrowthConfig | None = field(default_factory=Structure)  # when a component is born
    max_components: int | None = 100  # at this number none is born any more
    memory: MemoryConfig | None = field(default_factory=Reservoir)  # what is rehearsed between real batches
    learning_rate: float = 1e-3  # of Adam
    batch_size: int = 100  # rows of a mini-batch
    device: str = "cpu"  # where the model lies: cpu, cuda, cuda:1, mps, or auto for the fastest there is
    seed: int = 0  # of all that is random in learning


def _new(learning: Learning, x: Array) -> CURL:
    """A model with the settings asked for, and for the kind of values in x."""
    parameters = dict(vars(learning))
    pixels = x.dtype in (np.uint8, np.bool_)
    fitting = Likelihood.BERNOULLI if pixels else Likelihood.GAUSSIAN
    parameters["likelihood"] = str(fitting if learning.likelihood is None else learning.likelihood)
    return CURL(random_state=parameters.pop("seed"), **parameters)


def _warn_of_scale(piece: Piece) -> None:
    x = piece.x.reshape(len(piece.x), -1).astype(np.float64)
    mean, std = x.mean(0), x.std(0)
    odd = (std > 0) & ((std < STD[0]) | (std > STD[1]) | (np.abs(mean) > FAR * std))
    if odd.any():
        column = int(odd.argmax())
        seen = f"mean {mean[column]:.3g} and standard deviation {std[column]:.3g}"
        remedy = "Standardise all columns (mean 0, deviation 1), or little will be learnt."
        console.say(f"Column {column + 1} of {piece.path} has {seen}. {remedy}")


class Pupil:
    """A model in the making: how far it is in the stream, and when it was saved."""

    def __init__(self, out: Path, learning: Learning, curl: CURL | None, row: int) -> None:
        self.out, self.learning, self.curl = out, learning, curl
        self.likelihood = learning.likelihood if curl is None else curl.likelihood  # None: as the values are
        self.heading: str | None = None  # to be shown when the settings are found good
        self.row, self.n = row, 0  # rows of the stream that are done; learnt now
        self.saved, self.saved_row = time.monotonic(), row
        self.rows = BATCHES * max(1, learning.batch_size if curl is None else curl.batch_size)

    def learn(self, piece: Piece) -> None:
        """Go on with some rows; if they are bad, nothing changes."""
        check(piece, self.curl)
        curl = self.curl or self._begin(piece)
        curl.on_event = lambda fact: self._tell(fact, piece)
        try:
            with named(piece):
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

    def _begin(self, piece: Piece) -> CURL:
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

    def _tell(self, fact: Fact, piece: Piece) -> None:
        self._introduce()
        if isinstance(fact, ComponentBorn):
            console.show(f"{piece.where}: component {fact.component} is born from {fact.parent}")
        if isinstance(fact, BirthRefused):
            console.show(f"{piece.where}: no component is born, for there are {fact.K} already")

    def settle(self) -> None:
        """The last row has come: decide what can be decided."""
        assert self.curl is not None
        self.curl.settle()

    def save(self) -> None:
        """Save the model if it has learnt anything since the latest save."""
        if self.curl is not None and self.saved_row < self.row:
            self.curl.save(self.out)
        self.saved, self.saved_row = time.monotonic(), self.row

    def save_now_and_then(self) -> None:
        """Save the model from time to time, and say so: a killed process says nothing any more."""
        if self.n and not self.out.exists():
            self.out.mkdir(parents=True)  # if that cannot be done, it is told now
        if self.curl is not None and time.monotonic() - self.saved > SAVE_EVERY:
            self.save()
            console.show(f"row {self.row}: K {self.curl.n_components_}, saved")


def teach(pupil: Pupil, pieces: Iterator[Piece], go_on: str) -> None:
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
        console.say(f"Stopped after row {pupil.row}; {kept if is_saved(pupil.out) else 'nothing was learnt yet.'}")
        raise SystemExit(SIGNALLED + stopped[0])
    if pupil.curl is None or not pupil.n:
        raise ConfigError(f"--skip {skip} passes over all rows there are. Nothing was learnt; choose a smaller number.")
    pupil.settle()
    pupil.save()
    K = pupil.curl.n_components_
    console.show(f"{pupil.n} rows, {K} component{'s' * (K > 1)}, saved in {pupil.out}")


def _lessons(pupil: Pupil, pieces: Iterator[Piece], stopped: list[int], line: Progress) -> bool:
    """Teach the pieces until a signal comes; returns whether all were taught."""
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


def is_saved(path: Path) -> bool:
    """Whether a model was saved there."""
    return (path / "config.json").is_file()
