"""CURL as a scikit-learn estimator: it learns from batches as they come, for as long as they come."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Generator, Tensor

from curlicue.config import (
    AtChange,
    BeforeBirth,
    Emission,
    Every,
    ExpansionConfig,
    LearnerConfig,
    Likelihood,
    ModelConfig,
    Never,
    ReplayConfig,
    Snapshots,
    from_json,
    measured_expansion,
    to_json,
)
from curlicue.errors import ConfigError, DataError, RunError
from curlicue.evaluate.representation import CHUNK, bounds, embed, posterior, reconstruct
from curlicue.learn.checkpoint import Checkpoint, to_bytes
from curlicue.learn.events import BirthRefused, ComponentBorn, Event, SnapshotTaken, StepTaken
from curlicue.learn.expansion import NOBODY
from curlicue.learn.learner import Learner
from curlicue.learn.replay import PI_FLOOR
from curlicue.model.mixture import MixtureVAE
from curlicue.records import alone_in, write_atomically
from curlicue.rng import Rng, named_generator
from curlicue.version import __version__

Array = npt.NDArray[Any]
Fact = ComponentBorn | SnapshotTaken | BirthRefused
"""What `events_` and `on_event` tell: everything but the single steps."""

FORMAT = 1  # of a saved directory
LATEST = 10_000  # events that are kept
STATE = re.compile(r"state-[0-9a-f]{16}\.safetensors")  # named after its contents
PART = re.compile(rf"\.({STATE.pattern}|config\.json)\.\d+\.part")  # what `write_atomically` had not finished
TRIES = 5  # to load while others save
BEGINNING = threading.Lock()  # of any model: two threads that find none yet must not make two
LARGEST = 1e6  # |x|; Adam squares gradients that go with x²: x⁴ leaves float32 room for sums and small variances


class CURL(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Clusters and embeddings of an unlabelled, shifting stream, without forgetting what it showed before.

    Component ids count births, from 0: none is removed, merged or reused, and with "smgr" replay holds each to what it
    stood for at the latest snapshot. Settings are read when learning begins, later only `batch_size` and `on_event`.
    `partial_fit` and predictions may be called from several threads. A lock keeps them apart: learning holds it for one
    mini-batch at a time, a prediction for all of its rows, so that these come from one and the same model. Ctrl-C in
    the main thread takes effect between two mini-batches.

    Parameters
    ----------
    likelihood : p(x|z), "gaussian" for real values (standardise them), "bernoulli" for values in [0, 1] such as pixels;
        uint8 is then read as pixels of 0 to 255.
    n_z : dimensions of the embedding.
    encoder, decoder : hidden widths of the networks.
    c_new : nats; a sample whose bound is lower is poorly explained. "auto" measures it against what is normal now.
    n_new : so many poorly explained samples make a new component.
    max_components : at this number none is born any more, and the components there are learn what comes.
    replay : "smgr" (components keep to what they dreamt), "mgr" (they may change their meaning) or None.
    snapshots : "change" (before each birth, and when other components explain the stream than did before), "dynamic"
        (before each birth only, as in the paper), "never", or every so many steps.
    learning_rate : of Adam.
    batch_size : rows of a mini-batch.
    epochs : how often `fit` goes through X, in random order.
    on_event : is called with each birth, refused birth and snapshot.
    random_state : as in scikit-learn.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> curl = CURL(random_state=0)
    >>> for batch in np.split(X, 5):
    ...     curl = curl.partial_fit(batch)
    >>> curl.transform(X).shape
    (500, 16)
    """

    _pixels = True  # whether it began with uint8, pixels of 0 to 255; older models do not say

    def __init__(
        self,
        *,
        likelihood: Literal["gaussian", "bernoulli"] = "gaussian",
        n_z: int = 16,
        encoder: tuple[int, ...] = (256, 128),
        decoder: tuple[int, ...] = (256,),
        c_new: float | Literal["auto"] = "auto",
        n_new: int = 100,
        max_components: int | None = 100,
        replay: Literal["mgr", "smgr"] | None = "smgr",
        snapshots: Literal["change", "dynamic", "never"] | int = "change",
        learning_rate: float = 1e-3,
        batch_size: int = 100,
        epochs: int = 10,
        on_event: Callable[[Fact], object] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.likelihood = likelihood
        self.n_z = n_z
        self.encoder = encoder
        self.decoder = decoder
        self.c_new = c_new
        self.n_new = n_new
        self.max_components = max_components
        self.replay = replay
        self.snapshots = snapshots
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.on_event = on_event
        self.random_state = random_state

    # -- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: object = None) -> Self:
        """Learn from X anew, in random order, `epochs` times. `y` is ignored."""
        size, rows = _whole("batch_size", self.batch_size), self._begin(X)
        for _ in range(self.epochs):
            order = torch.randperm(len(rows), generator=self._engine.learner.rng.data).numpy()
            for start in range(0, len(rows), size):
                self._learn(self._tensor(rows[np.sort(order[start : start + size])]))
        self.labels_ = self.predict(X)
        return self

    def partial_fit(self, X: Any, y: object = None) -> Self:
        """Go on learning, from the rows of X in their order. `y` is ignored."""
        size = _whole("batch_size", self.batch_size)
        with BEGINNING:
            rows = None if hasattr(self, "_engine") else self._begin(X)
        if rows is None:
            rows, _ = self._rows(X, reset=False)
        for start in range(0, len(rows), size):
            self._learn(self._tensor(rows[start : start + size]))
        return self

    def fit_stream(self, stream: Iterable[Any], progress: bool = False) -> Self:
        """Go on learning from any iterable of batches; of a pair, as a DataLoader gives with labels, only the first."""
        for batch in _shown(stream, self) if progress else stream:
            self.partial_fit(_samples_of(batch))
        return self

    def _settings(self) -> tuple[ModelConfig, LearnerConfig]:
        """Checked, types and all."""
        _whole("epochs", self.epochs)
        if self.on_event is not None and not callable(self.on_event):
            raise ConfigError(f"The 'on_event' setting must be None or a function. Got {self.on_event!r} instead.")
        try:
            model, learner = to_json(self._model_config()), to_json(self._learner_config())
        except TypeError as error:
            raise ConfigError(f"A setting is of a type that it cannot have: {error}. See help(CURL).") from error
        return from_json(ModelConfig, model, "model"), from_json(LearnerConfig, learner, "learner")

    def _begin(self, X: Any) -> Array:
        """A model that knows nothing yet, for samples like those of X; returns its rows."""
        settings, state = self._settings(), self.random_state
        chance = None if state is None else check_random_state(state)  # all that can be wrong, before anything changes
        rows, shape = self._rows(X, reset=True)
        seed = secrets.randbits(31) if chance is None else chance.randint(np.iinfo(np.int32).max)
        self._pixels = rows.dtype == np.uint8
        self._engine = _Engine(*settings, rows.shape[1], shape, int(seed))
        return rows

    def _model_config(self) -> ModelConfig:
        _one_of("likelihood", self.likelihood, tuple(map(str, Likelihood)))
        return ModelConfig(
            n_z=_plain(self.n_z),
            encoder=tuple(_plain(self.encoder)),
            decoder=tuple(_plain(self.decoder)),
            likelihood=Likelihood(self.likelihood),
        )

    def _learner_config(self) -> LearnerConfig:
        measured = isinstance(self.c_new, str) and _one_of("c_new", self.c_new, ("auto",)) == "auto"
        expansion = measured_expansion(_plain(self.n_new), _plain(self.max_components))
        if not measured:
            expansion = replace(expansion, c_new=float(self.c_new), window=None, burn_in=ExpansionConfig.burn_in)
        labelled = _one_of("replay", self.replay, ("mgr", "smgr", None)) == "smgr"
        replay = ReplayConfig(snapshots=_snapshots(_plain(self.snapshots)), labelled=labelled)
        return LearnerConfig(
            learning_rate=_plain(self.learning_rate),
            expansion=expansion,
            replay=None if self.replay is None else replay,
        )

    def _learn(self, x: Tensor) -> None:
        """One mini-batch and the rehearsal that follows it; events are told when the lock is free again."""
        with _undisturbed():
            facts = self._engine.learn(x)
        if self.on_event is not None:
            for fact in facts:
                self.on_event(fact)

    # -- what was learnt --------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """The likeliest component of each row [n]."""
        return np.asarray(self.predict_proba(X).argmax(1), dtype=np.int64)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """q(y|x) of each row [n, n_components_]."""
        return self._read(X, posterior)

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """The embedding of each row [n, n_z]: the mean of q(z|x,y) at its likeliest y."""
        return self._read(X, embed)

    def score_samples(self, X: Any) -> npt.NDArray[np.float32]:
        """The bound on log p(x) of each row [n], in nats, exact over components."""
        return self._read(X, bounds)

    def score(self, X: Any, y: object = None) -> float:
        """The mean of `score_samples`. `y` is ignored."""
        return float(self.score_samples(X).mean())

    def reconstruct(self, X: Any) -> npt.NDArray[np.float32]:
        """X as the model sees it: the mean of p(x|z) at the embedding of each row, in the shape it learnt."""
        return self._shaped(self._read(X, reconstruct))

    def sample(
        self, n: int = 1, component: int | None = None, random_state: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """n new samples, of one component or of all as often as they have been used; and the component of each.

        With the same `random_state` they are the same; without one, others at each call.
        """
        check_is_fitted(self)
        known = range(self.n_components_)
        if component is not None and not (isinstance(component, int | np.integer) and component in known):
            raise ConfigError(f"There are the components 0 to {len(known) - 1}. Got {component!r} instead.")
        rng = None if random_state is None else named_generator(_whole("random_state", random_state, 0), "sampling")
        x, y = self._engine.sample(_whole("n", n), component, rng)
        return self._shaped(x.numpy()), y.numpy()

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        check_is_fitted(self)
        return self._engine.learner.model.K

    @property
    def events_(self) -> list[Fact]:
        """Births, refused births and snapshots, the latest 10,000; without the samples that `on_event` is given."""
        check_is_fitted(self)
        with self._engine.lock:
            return list(self._engine.events)

    def _read(self, X: Any, what: Callable[[MixtureVAE, Tensor], Tensor]) -> Array:
        check_is_fitted(self)
        engine, (rows, _) = self._engine, self._rows(X, reset=False)
        with engine.lock:
            model, starts = engine.learner.model, range(0, len(rows), CHUNK)
            return torch.cat([what(model, self._tensor(rows[start : start + CHUNK])) for start in starts]).numpy()

    def _shaped(self, rows: Array) -> Array:
        return rows.reshape(len(rows), *self._engine.shape)

    # -- input ------------------------------------------------------------------------------------------------------

    def _rows(self, X: Any, reset: bool) -> tuple[Array, tuple[int, ...]]:
        """X as a checked array [n, D], copied only if need be, and the shape of one sample; if bad, nothing changes."""
        if isinstance(X, Tensor):
            X = (X.float() if X.dtype is torch.bfloat16 else X).detach().cpu().numpy()  # numpy knows no bfloat16
        if np.ma.is_masked(X):
            raise DataError("X has masked values. Fill them in, or leave these rows out.")
        if isinstance(X, Iterator):
            raise DataError(f"X must be an array, not a {type(X).__name__}. Learn from an iterator with fit_stream.")
        if isinstance(X, tuple | list) and len(X) and np.ndim(X[0]) > 1:
            X = _array(X)  # of images
        shape = X.shape[1:] if isinstance(X, np.ndarray) and X.ndim > 2 else None
        if shape is not None:
            X = X.reshape(len(X), -1) if X.size else X.reshape(0, max(1, int(np.prod(shape))))
        try:
            rows = check_array(X, dtype="numeric", estimator=self, input_name="X")
        except ValueError as error:
            raise _with_remedy(error) from error
        if rows.dtype.kind not in "biuf":
            raise DataError(f"X must hold numbers. Got {rows.dtype} instead. Convert it.")
        _refuse_words(X)
        self._check_range(rows, reset)
        validate_data(self, X, reset=reset, skip_check_array=True)
        learnt = self._engine.shape if not reset and shape is not None else None
        if learnt is not None and len(learnt) > 1 and shape != learnt:
            raise DataError(f"X has samples of the shape {shape}, the model learnt {learnt}. Give them like that.")
        return rows, tuple(shape or rows.shape[1:])

    def _check_range(self, rows: Array, reset: bool) -> None:
        low, high = rows.min(), rows.max()
        if (self.likelihood if reset else self._engine.model.likelihood) != "bernoulli":
            if (largest := max(abs(float(low)), abs(float(high)))) > LARGEST:
                raise DataError(
                    f"X has values up to {largest:.3g}: to learn from them takes more than float32 holds. Scale them."
                )
        elif rows.dtype == np.uint8:
            if high == 1 and (reset or not self._pixels):
                raise DataError(
                    "X is uint8 with values of 0 and 1, but uint8 is read as pixels of 0 to 255. "
                    "Give zeros and ones as bool or as floats."
                )
        elif low < 0 or high > 1:
            raise DataError(
                f"likelihood='bernoulli' needs values in [0, 1]; X has values from {low:.4g} to {high:.4g}. "
                "Scale them, or use likelihood='gaussian'."
            )

    def _tensor(self, rows: Array) -> Tensor:
        """float32 [n, D], a copy."""
        x = torch.from_numpy(np.array(rows, dtype=np.float32))
        return x / 255 if self._engine.model.likelihood == "bernoulli" and rows.dtype == np.uint8 else x

    # -- scikit-learn -----------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_engine")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32
        return tags

    @property
    def _n_features_out(self) -> int:
        return self._engine.learner.model.n_z

    # -- keeping ----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "_engine" in state:
            state["_engine"] = state["_engine"].to_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_engine" in state:
            state = state | {"_engine": _Engine.from_bytes(state["_engine"], "The pickle")}
        super().__setstate__(state)

    def save(self, path: str | Path) -> None:
        """Keep everything in the directory `path`; a crash leaves what was there before, or this, whole.

        `on_event`, `labels_` and `set_output` are not kept, and of `random_state` only a number.
        """
        check_is_fitted(self)
        path, contents = Path(path), self._engine.to_bytes()
        config = self._config(_state_name(contents))
        path.mkdir(parents=True, exist_ok=True)
        with alone_in(path):
            _refuse_what_is_not_ours(path)
            write_atomically(path / config["state"], contents)
            write_atomically(path / "config.json", (json.dumps(config, indent=2) + "\n").encode())
            for other in path.iterdir():  # states before this one, and parts of saves that were killed
                if other.name != config["state"] and (STATE.fullmatch(other.name) or PART.fullmatch(other.name)):
                    other.unlink()

    def _config(self, state: str) -> dict[str, Any]:
        """config.json."""
        parameters = {name: value for name, value in self.get_params().items() if name != "on_event"}
        if not isinstance(self.random_state, int | np.integer):
            parameters["random_state"] = None
        config = {
            "format": FORMAT,
            "curlicue": __version__,
            "parameters": {name: _plain(value) for name, value in parameters.items()},
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])) or None,
            "pixels": self._pixels,
            "state": state,
        }
        return {**config, "sha256": _digest(config)}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What `save` kept. No code in the files is run, whatever they hold."""
        path = Path(path)
        for tries_left in reversed(range(TRIES)):
            config = _read_config(path)
            try:
                contents = (path / config["state"]).read_bytes()
                break
            except OSError as error:
                if not tries_left:  # otherwise another save has just replaced it
                    raise RunError(f"{path} is not whole: {error}. Save the model again, or take a backup.") from error
        if _state_name(contents) != config["state"]:
            raise RunError(f"{path / config['state']} is not as it was saved. Save the model again, or take a backup.")
        try:
            return cls._of(config, contents, str(path / config["state"]))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, MemoryError) as error:
            raise RunError(f"{path} holds what CURL.save never wrote ({error!r}). Take a backup.") from error

    @classmethod
    def _of(cls, config: dict[str, Any], contents: bytes, name: str) -> Self:
        parameters: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in config["parameters"].items()
        }
        curl = cls(**parameters)
        curl.n_features_in_ = config["n_features_in"]
        if config["feature_names_in"]:
            curl.feature_names_in_ = np.array(config["feature_names_in"], dtype=object)
        curl._pixels = config.get("pixels", cls._pixels)
        curl._engine = _Engine.from_bytes(contents, name)
        return curl


class _Engine:
    """A learner with its lock, and what it has told."""

    def __init__(self, model: ModelConfig, learner: LearnerConfig, n_x: int, shape: tuple[int, ...], seed: int) -> None:
        self.model, self.n_x, self.shape = model, n_x, shape
        rng = Rng.from_seed(seed)
        self.learner = Learner(MixtureVAE.from_config(model, n_x, rng.init), learner, rng)
        self.events: deque[Fact] = deque(maxlen=LATEST)
        self.lock = threading.RLock()
        self.sampling = named_generator(seed, "sampling")

    def learn(self, x: Tensor) -> list[Fact]:
        """A mini-batch, and the rehearsal that is then due; what they brought about."""
        with self.lock:
            events = self.learner.observe(x)
            _check_that_it_converges(events)
            if self.learner.rehearsal_due:
                events.append(self.learner.rehearse())
            facts = [event for event in events if not isinstance(event, StepTaken)]
            self.events.extend(_without_samples(fact) for fact in facts)
        return facts

    def sample(self, n: int, component: int | None, rng: Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [n, D] and y [n]."""
        rng = self.sampling if rng is None else rng
        with self.lock:
            counts = self.learner.recounted() + PI_FLOOR
            y = torch.multinomial(counts, n, replacement=True, generator=rng)
            y = y if component is None else torch.full((n,), component)
            return self.learner.model.sample(y, Emission.SAMPLE, rng), y

    def to_bytes(self) -> bytes:
        """Everything but the lock and the generator of `sample`."""
        with self.lock:
            extra = {
                "model": to_json(self.model),
                "learner": to_json(self.learner.config),
                "n_x": self.n_x,
                "shape": list(self.shape),
                "events": [{"type": type(e).__name__, **_figures(e)} for e in self.events],
            }
            return to_bytes(self.learner, extra)

    @classmethod
    def from_bytes(cls, contents: bytes, name: str) -> _Engine:
        """The inverse of `to_bytes`."""
        checkpoint = Checkpoint.of(contents, name, remedy="Save the model again, or take a backup.")
        extra = checkpoint.extra
        model = from_json(ModelConfig, extra["model"])
        engine = cls(
            model, from_json(LearnerConfig, extra["learner"]), extra["n_x"], tuple(extra["shape"]), secrets.randbits(31)
        )
        checkpoint.restore(engine.learner)
        engine.events.extend(_fact(**event) for event in extra["events"])
        return engine


def _check_that_it_converges(events: list[Event]) -> None:
    """RunError if not: what comes after is of no use."""
    for event in events:
        if isinstance(event, StepTaken) and not math.isfinite(event.bound):
            remedy = "Scale X or lower learning_rate, and begin anew or with what was saved before."
            raise RunError(f"Learning has diverged: the bound is {event.bound} nats. {remedy}")


def _figures(fact: Fact) -> dict[str, Any]:
    return {name: value for name, value in vars(fact).items() if name != "d_new"}


def _without_samples(fact: Fact) -> Fact:
    return fact if isinstance(fact, SnapshotTaken) else replace(fact, d_new=NOBODY[0])


def _fact(type: str, **figures: Any) -> Fact:
    match type:
        case "ComponentBorn":
            return ComponentBorn(**figures, d_new=NOBODY[0])
        case "BirthRefused":
            return BirthRefused(**figures, d_new=NOBODY[0])
    return SnapshotTaken(**figures)


def _samples_of(batch: Any) -> Any:
    """The first of what a DataLoader gives, with labels or without; anything else as it is."""
    if not isinstance(batch, tuple | list) or not len(batch) or len(getattr(batch[0], "shape", ())) < 2:
        return batch
    alike = len(batch) > 2 and len({getattr(each, "shape", None) for each in batch}) == 1  # images
    return batch if alike else batch[0]


def _array(several: Sequence[Any]) -> Array:
    """Images, or whatever has two axes or more, as one array."""
    try:
        return np.asarray(several)
    except ValueError as error:
        raise _with_remedy(error) from error


REMEDIES = {
    "contains NaN": "Input X contains NaN. Fill such values in, as SimpleImputer does, or leave their rows out.",
    "contains infinity": "Input X contains infinity or a value too large. Clip such values, or leave their rows out.",
    "inhomogeneous": "X has samples of different sizes (inhomogeneous). Give all of them the same number of values.",
}


def _with_remedy(error: ValueError) -> ValueError:
    """The same in fewer words, with what to do; an error that is not known here as it is."""
    return next((DataError(text) for seen, text in REMEDIES.items() if seen in str(error)), error)


def _shown(stream: Iterable[Any], curl: CURL) -> Iterator[Any]:
    """The batches of `stream` with a line that tells how many there were."""
    columns = (SpinnerColumn(), TextColumn("{task.completed} batches, K {task.fields[K]}"), TimeElapsedColumn())
    with Progress(*columns) as line:
        task = line.add_task("", total=None, K=1)
        for batch in stream:
            yield batch
            line.update(task, advance=1, K=curl.n_components_)


def _refuse_words(X: Any) -> None:
    """DataError if there are strings in X, be it of digits."""
    values = np.asarray(X)
    if values.dtype.kind in "OSU" and (word := next((v for v in values.flat if isinstance(v, str)), None)) is not None:
        raise DataError(f"X must hold numbers. Got the string {word!r} instead. Convert it.")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits until this is over, so that nothing is left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if handler is None else handler)
    if caught:
        signal.raise_signal(signal.SIGINT)


def _refuse_what_is_not_ours(path: Path) -> None:
    """RunError if the directory has a config.json that no `save` wrote."""
    file = path / "config.json"
    try:
        state = json.loads(file.read_text())["state"] if file.exists() else "state-0000000000000000.safetensors"
        ours = STATE.fullmatch(state) is not None
    except (ValueError, KeyError, TypeError):
        ours = any(STATE.fullmatch(other.name) for other in path.iterdir())  # a damaged one may be replaced
    if not ours:
        raise RunError(f"{file} belongs to something else. Choose another directory for the model.")


def _state_name(contents: bytes) -> str:
    return f"state-{hashlib.sha256(contents).hexdigest()[:16]}.safetensors"


def _whole(name: str, value: object, low: int = 1) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        raise ConfigError(f"The {name!r} setting must be an int in the range [{low}, inf). Got {value!r} instead.")
    return int(value)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> object:
    if value not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise ConfigError(f"The {name!r} setting must be one of {choices}. Got {value!r} instead.")
    return value


def _snapshots(value: object) -> Snapshots:
    match value:
        case "change":
            return AtChange()
        case "dynamic":
            return BeforeBirth()
        case "never":
            return Never()
        case int() if value >= 1:
            return Every(value)
    raise ConfigError(
        f"The 'snapshots' setting must be 'change', 'dynamic', 'never' or a number of steps. Got {value!r} instead."
    )


def _plain(value: Any) -> Any:
    """Numbers of numpy and tuples as JSON has them."""
    match value:
        case np.generic() | np.ndarray():
            return value.tolist()
        case tuple() | list():
            return [_plain(each) for each in value]
    return value


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _read_config(path: Path) -> dict[str, Any]:
    """config.json of a saved directory, as it was saved."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
        sha256, seen = config.pop("sha256"), _digest(config)
        version = config["format"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} holds no saved model ({error}). Save one there first: CURL.save.") from error
    if version != FORMAT:
        remedy = "Load it with the version that saved it."
        raise RunError(f"{file} has format {version!r}, this version of curlicue reads {FORMAT}. {remedy}")
    if sha256 != seen or not STATE.fullmatch(str(config.get("state"))):
        raise RunError(f"{file} is not as it was saved. Save the model again, or take a backup.")
    return dict(config)
