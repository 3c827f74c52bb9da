"""CURL as a scikit-learn estimator: it learns from batches as they come, for as long as they come."""

from __future__ import annotations

import inspect
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from curlicue.errors import ConfigError, RunError
from curlicue.estimator import saving
from curlicue.estimator.core import Core, Fact
from curlicue.estimator.networks import Decoder, Encoder, Own, Source
from curlicue.estimator.rows import Array, Rows, first_of
from curlicue.estimator.settings import (
    device_name,
    parameters_from_json,
    parameters_to_json,
    settings_of,
    whole,
)
from curlicue.growth.protocol import GrowthConfig
from curlicue.memory.protocol import MemoryConfig
from curlicue.model.devices import device_of
from curlicue.model.inference import embed, mean_bounds, posterior, reconstruct
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator
from curlicue.version import __version__

BEGINNING = threading.Lock()  # of any model: two threads that find none yet must not make two


class CURL(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Clusters and embeddings of an unlabelled, shifting stream, without forgetting what it showed before.

    Component ids count births, from 0: none is removed, merged or reused. With the default memory, which keeps some of
    the rows that came, each component is held to the rows it stands for. Settings are read when learning begins, later
    only `batch_size` and `on_event`. `partial_fit` and predictions may be called from several threads. A lock keeps
    them apart: learning holds it for one mini-batch at a time, a prediction for all of its rows, so that these come
    from one and the same model. Ctrl-C in the main thread takes effect between two mini-batches.

    Parameters
    ----------
    likelihood : p(x|z), "gaussian" for real values (standardise them), "bernoulli" for values in [0, 1] such as pixels;
        uint8 is then read as pixels of 0 to 255.
    n_z : dimensions of the embedding.
    encoder, decoder : hidden widths of the networks; or "conv", a small convolutional pair for images [n, height,
        width] or [n, height, width, channels]; or a `torch.nn.Module` that maps rows to rows, which is copied; or a
        function that makes one, given the number of features (encoder), or n_z and the number of features (decoder).
    growth : when a component is born: "structure" (when the stream changes, and when a component holds several things),
        "change" or "split" (one of both), "measured" (by what bound is normal lately), "threshold" (the paper's),
        settings such as `Threshold(c_new=-200.0)`, or None: never.
    n_components : how many components `fit` finds, where that is known, and no stream will have more; None: as many as
        there are. Growth that does not look at data at rest, unlike "structure" and "split", may find fewer.
    max_components : at this number none is born any more, and the components there are learn what comes.
    memory : what is rehearsed: "reservoir" (rows that came), "snapshot" (a copy of the model generates it, as in the
        paper), settings such as `Snapshot(labelled=False)`, or None: nothing is.
    memory_size : rows that the memory keeps at most, if it keeps rows; None: as its settings say, 10,000 by default.
    learning_rate : of Adam.
    batch_size : rows of a mini-batch. If `partial_fit` is given fewer than half as many, they wait for the next call.
    epochs : how often `fit` goes through X, in random order.
    device : where the model lies: "cpu", "cuda", "cuda:1", "mps", or "auto" for the fastest there is. Inputs may lie on
        any device; outputs are arrays of numpy.
    on_event : is called with each birth, refused birth and snapshot.
    random_state : as in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> curl = CURL(random_state=0)
    >>> for batch in np.split(X, 5):
    ...     curl = curl.partial_fit(batch)
    >>> curl.transform(X).shape
    (500, 16)
    """

    _core: Core

    def __init__(
        self,
        *,
        likelihood: Literal["gaussian", "bernoulli"] = "gaussian",
        n_z: int = 16,
        encoder: Encoder = (256, 128),
        decoder: Decoder = (256,),
        growth: str | GrowthConfig | None = "structure",
        n_components: int | None = None,
        max_components: int | None = 100,
        memory: str | MemoryConfig | None = "reservoir",
        memory_size: int | None = None,
        learning_rate: float = 1e-3,
        batch_size: int = 100,
        epochs: int = 10,
        device: str | torch.device = "cpu",
        on_event: Callable[[Fact], object] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.likelihood = likelihood
        self.n_z = n_z
        self.encoder = encoder
        self.decoder = decoder
        self.growth = growth
        self.n_components = n_components
        self.max_components = max_components
        self.memory = memory
        self.memory_size = memory_size
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.device = device
        self.on_event = on_event
        self.random_state = random_state

    # -- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: object = None) -> Self:
        """Learn from X anew, in random order, `epochs` times. `y` is ignored."""
        size, values = whole("batch_size", self.batch_size), self._begin(X)
        for epoch in range(self.epochs):
            order = torch.randperm(len(values), generator=self._core.learner.rng.data).numpy()
            for start in range(0, len(values), size):
                self._tell(self._core.review(values[np.sort(order[start : start + size])], first=epoch == 0))
            if epoch == 0:
                self.settle()
        self.labels_ = self.predict(X)
        return self

    def partial_fit(self, X: Any, y: object = None) -> Self:
        """Go on learning, from the rows of X in their order. `y` is ignored."""
        size = whole("batch_size", self.batch_size)
        with BEGINNING:
            values = None if hasattr(self, "_core") else self._begin(X)
        values = self._rows(X) if values is None else values
        for start in range(0, len(values), size):
            self._learn(values[start : start + size])
        return self

    def settle(self) -> Self:
        """Decide now what else would be decided when more rows come: what rows are that wait or are held back, and
        whether components hold several things. `fit` and `fit_stream` end with it.
        """
        check_is_fitted(self)
        self._tell(self._core.settle())
        return self

    def fit_stream(self, stream: Iterable[Any], progress: bool = False) -> Self:
        """Go on learning from any iterable of batches; of a pair, as a DataLoader gives with labels, only the first."""
        for batch in _shown(stream, self) if progress else stream:
            self.partial_fit(first_of(batch))
        return self.settle() if hasattr(self, "_core") else self

    def _begin(self, X: Any) -> Array:
        """Make a model that knows nothing yet, for samples like those of X; returns the rows of X."""
        settings, device = settings_of(self.get_params(deep=False)), device_of(device_name(self.device))
        with _drawn(self.random_state) as seed:
            rows = Rows.of(X, self)
            rows.check_range(settings.model.likelihood, pixels=False)
            pixels = rows.values.dtype == np.uint8
            core = Core(settings, rows.shape, seed=seed, device=device, pixels=pixels)
            validate_data(self, rows.X, reset=True, skip_check_array=True)
        self._core = core  # last: whatever is refused changes nothing
        return rows.values

    def _learn(self, values: Array) -> None:
        """A mini-batch and the rehearsal that follows it; fewer than half as many rows wait for more."""
        self._tell(self._core.learn(values, least=-(-self.batch_size // 2)))

    def _tell(self, facts: list[Fact]) -> None:
        """Events are told when the lock is free again."""
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
        return self._read(X, mean_bounds)

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
        known = range(self.n_components_)
        if component is not None and not (isinstance(component, int | np.integer) and component in known):
            raise ConfigError(f"There are the components 0 to {len(known) - 1}. Got {component!r} instead.")
        rng = None if random_state is None else named_generator(whole("random_state", random_state, 0), "sampling")
        x, y = self._core.sample(whole("n", n), component, rng)
        return self._shaped(x), y

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        check_is_fitted(self)
        return self._core.learner.model.K

    @property
    def memory_bytes_(self) -> int:
        """Bytes of the rows that the memory keeps."""
        check_is_fitted(self)
        store = self._core.learner.memory.store
        return 0 if store is None else store.n_bytes

    @property
    def events_(self) -> list[Fact]:
        """Births, refused births and snapshots, the latest 10,000; without the samples that `on_event` is given."""
        check_is_fitted(self)
        with self._core.lock:
            return list(self._core.events)

    def _read(self, X: Any, what: Callable[[MixtureVAE, Tensor], Tensor]) -> Array:
        check_is_fitted(self)
        core, values = self._core, self._rows(X)
        return core.read(values, what)

    def _rows(self, X: Any) -> Array:
        """The rows of X, checked against what was learnt; if X is bad, nothing changes."""
        rows = Rows.of(X, self)
        rows.check_range(self._core.likelihood, self._core.pixels)
        validate_data(self, rows.X, reset=False, skip_check_array=True)
        rows.check_shape(self._core.shape)
        return rows.values

    def _shaped(self, values: Array) -> Array:
        return values.reshape(len(values), *self._core.shape)

    # -- scikit-learn -----------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_core")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32
        return tags

    @property
    def _n_features_out(self) -> int:
        return self._core.learner.model.n_z

    # -- keeping ----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "_core" in state:
            core: Core = state.pop("_core")
            state["_kept"] = core.to_bytes(), core.settings.own, str(core.learner.model.device)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "_kept" in state:
            contents, own, device = state.pop("_kept")
            state["_core"] = Core.from_bytes(contents, "The pickle", own, device)
        super().__setstate__(state)

    def save(self, path: str | Path) -> None:
        """Keep everything in the directory `path`; a crash leaves what was there before, or this, whole.

        `on_event`, `labels_`, `set_output` and the code of networks of one's own are not kept, and of `random_state`
        only a number.
        """
        check_is_fitted(self)
        parameters, core = self.get_params(deep=False), self._core
        settings_of(parameters)  # what cannot be read again is not written
        names = getattr(self, "feature_names_in_", None)
        kept = parameters_to_json(parameters, core.settings.model, core.own)
        card = saving.Card(__version__, kept, self.n_features_in_, None if names is None else tuple(names))
        saving.save(Path(path), card, core.to_bytes())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        encoder: Source | None = None,
        decoder: Source | None = None,
        device: str | torch.device | None = None,
    ) -> Self:
        """Read what `save` kept. No code in the files is run, whatever they hold.

        Parameters
        ----------
        path : the directory.
        encoder, decoder : the networks of one's own that the model was made with, as modules or functions; they get the
            weights that were saved.
        device : where the model is to lie, if not on the device that it was saved from.
        """
        path, own = Path(path), Own(encoder, decoder)
        card, contents = saving.load(path)
        own.check_needed(card.parameters, str(path))
        try:
            curl = cls(**parameters_from_json(card.parameters, cls._names(), own))
        except ConfigError as error:
            raise RunError(f"{path} cannot be read: {error}") from error
        if device is not None:
            curl.device = device
        core = Core.from_bytes(contents, str(path), own, device_name(curl.device))
        card.check_features(core.learner.model.n_x, str(path))
        curl._take(card, core)
        return curl

    @classmethod
    def _names(cls) -> set[str]:
        return set(inspect.signature(cls.__init__).parameters) - {"self"}

    def _take(self, card: saving.Card, core: Core) -> None:
        """Go on with a saved model."""
        self.n_features_in_ = card.n_features_in
        if card.feature_names_in is not None:
            self.feature_names_in_ = np.array(card.feature_names_in, dtype=object)
        self._core = core


@contextmanager
def _drawn(random_state: int | np.random.RandomState | None) -> Iterator[int]:
    """A seed; if what needs it is refused, the random state is as it was before."""
    if random_state is None:
        yield secrets.randbits(31)
        return
    chance = check_random_state(random_state)
    before = chance.get_state()
    try:
        yield int(chance.randint(np.iinfo(np.int32).max))
    except Exception:
        chance.set_state(before)
        raise


def _shown(stream: Iterable[Any], curl: CURL) -> Iterator[Any]:
    """The batches of `stream` with a line that tells how many there were."""
    columns = (SpinnerColumn(), TextColumn("{task.completed} batches, K {task.fields[K]}"), TimeElapsedColumn())
    with Progress(*columns) as line:
        task = line.add_task("", total=None, K=1)
        for batch in stream:
            yield batch
            line.update(task, advance=1, K=curl.n_components_)
