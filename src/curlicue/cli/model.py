"""Your own data: fit, embed, sample."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from curlicue.cli import console
from curlicue.cli.console import Given
from curlicue.cli.learning import Learning, Pupil, is_saved, teach
from curlicue.cli.options import Values, apply, default_notes, given, options, options_type
from curlicue.cli.pieces import check, check_files, named, pieces_of, rest
from curlicue.errors import ConfigError, DataError, RunError
from curlicue.estimator import CURL
from curlicue.experiments.run import use_threads
from curlicue.streams.files import Part, check_kind, write, write_csv, write_grid

ROWS = 2000  # embedded at a time
LEARNING = options(Learning, taken=("files", "out", "update", "skip", "epochs", "threads"))
NOTES = default_notes(LEARNING) | {"likelihood": "default: bernoulli for images and other uint8 or bool, else gaussian"}


def learning_type() -> type:
    """The options of a new model: every field of its settings."""
    return options_type("Settings of a new model.", LEARNING, NOTES)


def fit(
    files: Positional[tuple[Path, ...]],
    /,
    settings: Annotated[Any, arg(constructor_factory=learning_type), OmitArgPrefixes],
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
        update: go on with the model that is there, with the settings it has, but for --device
        skip: pass over so many rows first
        epochs: how often to go through all files
        threads: for learning; more may pay for wide networks, while the other cores are idle (default: 1)
    """
    values = given(settings)
    _check_call(files, values, out, update, skip, epochs)
    learning = apply(Learning(), values)
    _check_seed(learning.seed)
    use_threads(1 if threads is None else threads)
    pupil = Pupil(out, learning, _load(out, values.get("device")) if update else None, row=skip)
    repeated = ["--epochs", str(epochs)] if epochs > 1 else []
    repeated += [] if threads is None else ["--threads", str(threads)]
    words = ["curlicue", "fit", *map(str, files), "--out", str(out), *repeated, "--update", "--skip"]
    pieces = pieces_of(files, epochs, pupil.rows)
    teach(pupil, rest(pieces, skip, pupil.likelihood), shlex.join(words))


def embed(
    model: Positional[Path],
    files: Positional[tuple[Path, ...]],
    /,
    out: Given[Path] = None,
    bound: bool = False,
    device: Given[str] = None,
) -> None:
    """The component and the embedding of each row of files.

    Args:
        model: what `curlicue fit` saved
        files: .npy, .npz, .csv, .parquet, or folders of images
        out: a .csv, .parquet, .npz, or .npy (the embedding alone) file (default: CSV to the standard output)
        bound: also the bound on the log-likelihood of each row, in nats
        device: where to compute (default: where the model was learnt)
    """
    check_files(files)
    if out is not None:
        check_kind(out)
    _write(out, _embedded(_load(model, device), files, bound), "z")


def sample(
    model: Positional[Path],
    /,
    n: Annotated[int, arg(aliases=["-n"])] = 10,
    component: Given[int] = None,
    seed: int = 0,
    out: Given[Path] = None,
    device: Given[str] = None,
) -> None:
    """New samples as the model imagines them, and the component of each.

    Args:
        model: what `curlicue fit` saved
        n: how many
        component: of this one only (default: of all, as often as they have been used)
        seed: another one gives other samples
        out: a .csv, .parquet, .npz, .npy (samples alone) or .png (of images) file (default: CSV to the standard output)
        device: where to compute (default: where the model was learnt)
    """
    if out is not None:
        check_kind(out, ".png")
    _check_seed(seed)
    x, y = _load(model, device).sample(n, component, random_state=seed)
    if out is None or out.suffix.lower() != ".png":
        _write(out, iter([{"component": y, "x": x}]), "x")
    elif x.ndim == 3:
        write_grid(out, x)
    else:
        shape = " × ".join(map(str, x.shape[1:]))
        raise DataError(
            f"A .png shows images [h, w], but {model} learnt samples of {shape} values. Choose .csv or .npy."
        )


# -- what cannot work ----------------------------------------------------------------------------------------------


def _check_call(files: Sequence[Path], values: Values, out: Path, update: bool, skip: int, epochs: int) -> None:
    if update and (others := [name for name in values if name != "device"]):
        raise ConfigError(f"--update goes on with the settings the model has. Leave out {console.options(others)}.")
    if not update and not _is_free(out):
        remedy = "Go on learning with --update, or choose" if is_saved(out) else "It holds no saved model: choose"
        raise RunError(f"{out} is there already. {remedy} another --out.")
    for name, value, low in (("skip", skip, 0), ("epochs", epochs, 1)):
        if value < low:
            raise ConfigError(f"The '{name}' setting must be an int in the range [{low}, inf). Got {value} instead.")
    check_files(files)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise ConfigError(f"The 'seed' setting must be an int in the range [0, {2**32 - 1}]. Got {seed} instead.")


def _is_free(out: Path) -> bool:
    """Whether nothing is there, or only what a save that was killed left behind: the next one clears it away."""
    if not out.is_dir():
        return not out.exists()
    return all(path.name.startswith(".") and path.suffix == ".part" for path in out.iterdir())


# -- what was learnt ----------------------------------------------------------------------------------------------


def _load(path: Path, device: str | None) -> CURL:
    if not is_saved(path):
        raise RunError(f"{path} holds no saved model. Make one with: curlicue fit FILE --out {shlex.quote(str(path))}")
    return CURL.load(path, device=device)


def _embedded(curl: CURL, files: Sequence[Path], bound: bool) -> Iterator[Part]:
    for piece in rest(pieces_of(files, 1, ROWS), 0, curl.likelihood):
        check(piece, curl)
        with named(piece):
            part: Part = {"component": curl.predict(piece.x), "embedding": curl.transform(piece.x)}
            if bound:
                part["bound"] = curl.score_samples(piece.x)
        yield part


def _write(out: Path | None, samples: Iterator[Part], letter: str) -> None:
    if out is None:
        write_csv(sys.stdout, samples, letter)
    else:
        write(out, samples, letter)
