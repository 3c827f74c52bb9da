"""Whatever is done to a CURL, in whatever order, and whatever happens to its files."""

import copy
import hashlib
import json
import os
import pickle
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from safetensors.torch import load, save
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from curlicue.errors import ConfigError, RunError
from curlicue.estimator import CURL
from curlicue.growth.measured import Measured
from curlicue.growth.threshold import Threshold
from curlicue.learn.checkpoint import _digest, _header
from curlicue.learn.events import BirthRefused, ComponentBorn, SnapshotTaken
from curlicue.memory.snapshot import Snapshot
from estimators import D, eager, whole

B = 10  # rows of a mini-batch
CAP = 3  # components

LONG = "CURLICUE_SOAK" in os.environ  # `make soak`: more of it, and other examples each time
TIMES = 20 if LONG else 1

STABLE = settings(
    deadline=None,
    derandomize=not LONG,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # to make a failing sequence of calls shorter takes minutes
    suppress_health_check=list(HealthCheck),
)


# -- batches ---------------------------------------------------------------------------------------------------------

DTYPES = ["f8", "f4", "f2", ">f8", "g", "u1", "i1", "i8", "u8", "?", "O"]
FORMS = ["C", "Fortran", "strided", "reversed", "transposed", "read-only", "mapped", "tensor", "lists", "images"]


def numbers(likelihood: str, n: int, dtype: str, scale: float, seed: int) -> np.ndarray:
    """X [n, D] that the likelihood can have."""
    rng = np.random.default_rng(seed)
    if likelihood == "bernoulli":
        if dtype == "u1":
            X = rng.integers(0, 256, (n, D))
            X[0, 0] = 255  # zeros and ones alone are no pixels
            return X.astype(dtype)
        X = rng.random((n, D))
        return (X if np.dtype(dtype).kind in "fO" else X.round()).astype(dtype)
    X = scale * rng.uniform(-1, 1, (n, D)) + rng.integers(3)
    match np.dtype(dtype).kind:
        case "f" if dtype == "f2":
            X = X.clip(-6e4, 6e4)
        case "i" | "u":
            bounds = np.iinfo(dtype)
            X = X.clip(max(bounds.min, -1e6), min(bounds.max, 1e6)).round()
        case "b":
            X = X > 0
    return X.astype(dtype)


def as_float32(likelihood: str, X: np.ndarray) -> np.ndarray:
    """The same numbers in the plainest form; bytes are pixels."""
    return X.astype(np.float32) / (255 if likelihood == "bernoulli" and X.dtype == np.uint8 else np.float32(1))


def formed(X: np.ndarray, form: str, folder: Path) -> Any:
    """The same numbers in some odd form."""
    match form:
        case "Fortran":
            return np.asfortranarray(X)
        case "strided":
            wide = np.zeros((2 * len(X), 3 * D), dtype=X.dtype)
            wide[::2, 1::3] = X
            return wide[::2, 1::3]
        case "reversed":
            return X[::-1, ::-1].copy()[::-1, ::-1]
        case "transposed":
            return X.T.copy().T
        case "read-only":
            X.flags.writeable = False
            return X
        case "mapped" if X.dtype != object:
            np.save(folder / "x.npy", X)
            return np.load(folder / "x.npy", mmap_mode="r")
        case "tensor" if X.dtype.kind in "fib" and X.dtype.isnative and X.dtype.itemsize <= 8:
            return torch.from_numpy(X)
        case "lists" if X.dtype != np.uint8:
            return X.tolist()
        case "images":
            return X.reshape(len(X), 1, D)
    return X


def spoilt(X: np.ndarray, how: str, place: int) -> Any:
    """Something that cannot be learnt from, made of X."""
    X = X.astype(np.float64)
    row, column = place % len(X), place % D
    values = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf, "large": -1e7, "huge": 1e20, "vast": 1e300}
    if how in values:
        X[row, column] = values[how]
        return X
    return {
        "narrow": X[:, 1:],
        "wide": np.c_[X, X],
        "flat": X[0],
        "scalar": 3.0,
        "nothing": None,
        "no rows": X[:0],
        "no features": X[:, :0],
        "no images": np.zeros((0, 1, D)),
        "text": X.astype(str),
        "words": [["a"] * D],
        "objects": np.full((3, D), None),
        "complex": X + 1j,
        "sparse": scipy.sparse.csr_matrix(X),
        "ragged": [[1.0] * D, [2.0]],
        "dates": np.full((2, D), np.datetime64("2020-01-01")),
        "spans": np.full((2, D), np.timedelta64(1, "s")),
        "records": np.zeros((2, D), dtype=[("a", float)]),
        "large integers": np.full((2, D), np.iinfo(np.int64).min),
        "beyond float64": np.full((2, D), np.finfo(np.longdouble).max),
    }[how]


SPOILT = [
    *("NaN", "inf", "-inf", "large", "huge", "vast", "narrow", "wide", "flat", "scalar", "nothing", "no rows"),
    *("no features", "no images", "text", "words", "objects", "complex", "sparse", "ragged", "dates"),
    *("spans", "records", "large integers", "beyond float64"),
]

numbers_given = st.fixed_dictionaries(
    {
        "n": st.one_of(st.just(1), st.integers(1, 30), st.integers(1, 300)),
        "dtype": st.sampled_from(DTYPES),
        "scale": st.sampled_from([0.0, 1e-30, 1.0, 30.0, 1e3, 0.9e6]),
        "seed": st.integers(0, 2**32 - 1),
    }
)

# -- any sequence of calls -------------------------------------------------------------------------------------------

SETTINGS: list[dict[str, Any]] = [
    {"likelihood": "gaussian"},
    {"likelihood": "bernoulli", "memory": Snapshot(labelled=False)},
    {"likelihood": "gaussian", "memory": Snapshot(snapshots=7), "growth": Measured(n_new=5)},
    {"likelihood": "bernoulli", "memory": None, "n_new": 30},
]
AGES = [1, 98 * B, 110 * B, 315 * B]  # rows: at the start, just before the first birth, half grown, at the cap
READING = ["predict", "predict_proba", "transform", "score_samples", "reconstruct"]


@lru_cache
def started(kind: int, age: int) -> CURL:
    curl = eager(batch_size=B, max_components=CAP, **SETTINGS[kind])
    return curl.partial_fit(numbers(curl.likelihood, age, "f4", 1.0, seed=1))


class AnyCalls(RuleBasedStateMachine):
    """A model, and beside it the batches it was given, in their plainest form and with nothing in between."""

    @initialize(kind=st.sampled_from(range(len(SETTINGS))), age=st.sampled_from(AGES))
    def start(self, kind: int, age: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.curl, self.alone = copy.deepcopy(started(kind, age)), copy.deepcopy(started(kind, age))
        self.likelihood = self.curl.likelihood
        self.K, self.events = self.curl.n_components_, [repr(event) for event in self.curl.events_]

    @rule(form=st.sampled_from(FORMS), given=numbers_given)
    def learn(self, form: str, given: dict[str, Any]) -> None:
        X = numbers(self.likelihood, **given)
        plain, before = as_float32(self.likelihood, X), X.copy()
        self.curl.partial_fit(formed(X, form, self.folder))
        assert np.array_equal(X, before)
        self.alone.partial_fit(plain)

    @rule(how=st.sampled_from(SPOILT), place=st.integers(0, 10**6), given=numbers_given, call=st.sampled_from(READING))
    def refuse(self, how: str, place: int, given: dict[str, Any], call: str) -> None:
        X, before = spoilt(numbers(self.likelihood, **given), how, place), whole(self.curl)
        for refused in ("partial_fit", call):
            with pytest.raises((ValueError, TypeError)):
                getattr(self.curl, refused)(X)
        assert whole(self.curl) == before

    @rule(form=st.sampled_from(FORMS), given=numbers_given)
    def read(self, form: str, given: dict[str, Any]) -> None:
        X = numbers(self.likelihood, **given)
        n, K, before = len(X), self.curl.n_components_, whole(self.curl)
        y, q_y, z, bound, again = (getattr(self.curl, call)(formed(X, form, self.folder)) for call in READING)
        assert [a.shape for a in (y, q_y, z, bound)] == [(n,), (n, K), (n, 2), (n,)]
        assert again.reshape(n, -1).shape == (n, D)
        assert all(np.isfinite(a).all() for a in (q_y, z, bound, again))
        np.testing.assert_allclose(q_y.sum(1), 1, rtol=1e-5)
        assert np.array_equal(y, q_y.argmax(1))
        assert whole(self.curl) == before

    @rule(n=st.integers(1, 300), place=st.one_of(st.none(), st.integers(0, CAP)))
    def generate(self, n: int, place: int | None) -> None:
        K, before = self.curl.n_components_, whole(self.curl)
        component = None if place is None else place % K
        X, y = self.curl.sample(n, component)
        assert X.shape == (n, D)
        assert np.isfinite(X).all()
        assert set(y) <= (set(range(K)) if component is None else {component})
        assert whole(self.curl) == before

    @rule(how=st.sampled_from(["save", "pickle", "deepcopy"]))
    def keep(self, how: str) -> None:
        before, told = whole(self.curl), list(map(repr, self.curl.events_))
        match how:
            case "save":
                self.curl.save(self.folder / "m")
                self.curl = CURL.load(self.folder / "m")
            case "pickle":
                self.curl = pickle.loads(pickle.dumps(self.curl))
            case "deepcopy":
                self.curl = copy.deepcopy(self.curl)
        assert whole(self.curl) == before
        assert list(map(repr, self.curl.events_)) == told

    @rule()
    def begin_anew_elsewhere(self) -> None:
        fresh = clone(self.curl)
        assert fresh.get_params() == self.curl.get_params()
        with pytest.raises(NotFittedError):
            fresh.predict(np.zeros((1, D)))

    @invariant()
    def all_numbers_are_finite(self) -> None:
        tensors = load(whole(self.curl)).items()
        assert [name for name, tensor in tensors if not tensor.isfinite().all()] == []

    @invariant()
    def components_only_ever_join(self) -> None:
        assert self.K <= self.curl.n_components_ <= CAP
        self.K = self.curl.n_components_

    @invariant()
    def events_are_never_rewritten_and_tell_of_every_component(self) -> None:
        events = self.curl.events_
        told = list(map(repr, events))
        assert told[: len(self.events)] == self.events
        self.events = told
        births = [event for event in events if isinstance(event, ComponentBorn)]
        assert [birth.component for birth in births] == list(range(1, self.K))
        assert all(birth.parent < birth.component == birth.K - 1 for birth in births)
        assert all(event.K == CAP for event in events if isinstance(event, BirthRefused))
        assert all(event.K <= self.K for event in events if isinstance(event, SnapshotTaken))
        assert [event.t for event in events] == sorted(event.t for event in events)

    def teardown(self) -> None:
        """Nothing but what it was taught has left a trace."""
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)
            assert whole(self.curl) == whole(self.alone)


AnyCalls.TestCase.settings = settings(STABLE, max_examples=16 * TIMES, stateful_step_count=12)
TestAnySequenceOfCallsKeepsTheModelWhole = AnyCalls.TestCase


@pytest.mark.parametrize("kind", range(len(SETTINGS)))
def test_the_models_that_calls_are_tried_on_are_of_every_age(kind):
    assert started(kind, AGES[0]).n_components_ == 1
    if kind == 2:
        return  # its threshold is measured: one cluster is nothing new to it
    assert started(kind, AGES[1]).n_components_ == 1
    assert 1 < started(kind, AGES[2]).n_components_ < CAP
    assert started(kind, AGES[3]).n_components_ == CAP


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"n_z": np.int64(2)},
        {"encoder": np.array([16])},
        {"decoder": [np.int32(16)]},
        {"growth": Measured(n_new=np.int64(5), deviations=np.float32(2.5))},
        {"max_components": np.int8(3)},
        {"growth": "measured", "memory": Snapshot(snapshots=np.int64(3))},
        {"learning_rate": np.float32(0.01)},
        {"growth": Threshold(c_new=np.float32(-5))},
        {"batch_size": np.int64(7)},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_numbers_of_numpy_are_settings_that_can_be_kept(setting, tmp_path):
    curl = CURL(**{"n_z": 2, "encoder": (16,), "decoder": (16,)} | setting).partial_fit(np.zeros((20, D)))
    curl.save(tmp_path / "m")
    assert whole(CURL.load(tmp_path / "m")) == whole(copy.deepcopy(curl)) == whole(curl)


FRACTIONS = {name: {name: 2.5} for name in ("n_z", "max_components", "batch_size", "epochs")}


@pytest.mark.parametrize("name", FRACTIONS)
def test_a_fraction_where_a_whole_number_belongs_is_refused_before_anything_is_learnt(name):
    curl = CURL(**FRACTIONS[name])
    with pytest.raises(ConfigError, match=rf"{name}.* must be .*int.* Got 2.5 instead."):
        curl.partial_fit(np.zeros((20, D)))
    with pytest.raises(NotFittedError):
        curl.predict(np.zeros((1, D)))


# -- how a stream is cut ---------------------------------------------------------------------------------------------


@settings(STABLE, max_examples=10 * TIMES)
@given(
    kind=st.sampled_from(range(len(SETTINGS))),
    age=st.sampled_from(AGES),
    parts=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    tail=st.integers(0, B - 1),
    seed=st.integers(0, 1000),
)
def test_a_stream_teaches_the_same_however_it_is_cut_between_mini_batches(kind, age, parts, tail, seed):
    at_once, in_parts = copy.deepcopy(started(kind, age)), copy.deepcopy(started(kind, age))
    X = numbers(at_once.likelihood, B * sum(parts) + tail, "f4", 1.0, seed)
    at_once.partial_fit(X)
    for part in np.split(X, B * np.cumsum(parts)):
        if len(part):
            in_parts.partial_fit(part)
    assert whole(in_parts) == whole(at_once)


# -- damaged files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m"
    started(0, AGES[2]).save(path)
    return path


def state_of(path: Path) -> Path:
    (state,) = path.glob("state-*")
    return state


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def loaded(path: Path) -> CURL | None:
    """The model, or None if it was refused as it should be."""
    try:
        return CURL.load(path)
    except RunError as error:
        message = str(error)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert message.endswith(".")
    return None


def refused_or_same(path: Path, original: Path) -> None:
    if curl := loaded(path):
        before = CURL.load(original)
        assert whole(curl) == whole(before)
        assert curl.get_params() == before.get_params()
        assert curl.n_features_in_ == before.n_features_in_


places = st.floats(0, 1, exclude_max=True)
damages = st.one_of(
    st.tuples(st.just("flip"), st.lists(st.tuples(places, st.integers(1, 255)), min_size=1, max_size=3)),
    st.tuples(st.just("cut"), places),
    st.tuples(st.just("overwrite"), st.tuples(places, st.binary(min_size=1, max_size=40))),
    st.tuples(st.just("insert"), st.tuples(places, st.binary(min_size=1, max_size=40))),
    st.tuples(st.just("replace"), st.one_of(st.binary(max_size=200), st.text('{}[]":,019.eE-nul \n').map(str.encode))),
)


def damaged(contents: bytes, how: str, what: Any) -> bytes:
    match how:
        case "flip":
            flipped = bytearray(contents)
            for place, bits in what:
                flipped[int(place * len(contents))] ^= bits
            return bytes(flipped)
        case "cut":
            return contents[: int(what * len(contents))]
        case "overwrite" | "insert":
            at = int(what[0] * len(contents))
            return contents[:at] + what[1] + contents[at + (len(what[1]) if how == "overwrite" else 0) :]
    return bytes(what)


@settings(STABLE, max_examples=250 * TIMES)
@given(file=st.sampled_from(["config", "state"]), damage=damages)
def test_a_damaged_file_is_refused_in_one_line_or_means_the_same(saved, file, damage):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(saved, Path(folder) / "m"))
        target = path / "config.json" if file == "config" else state_of(path)
        target.write_bytes(damaged(target.read_bytes(), *damage))
        refused_or_same(path, saved)


@settings(STABLE, max_examples=60 * TIMES)
@given(damage=damages)
def test_a_damaged_checkpoint_is_refused_or_means_the_same(saved, damage):
    """As before, but the name of the file is made to agree with its contents."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(saved, Path(folder) / "m"))
        sign(path, {}, damaged(state_of(path).read_bytes(), *damage))
        refused_or_same(path, saved)


def sign(path: Path, changes: dict[str, Any], state: bytes) -> None:
    """Put these into the directory as if `save` had written them, with checksums."""
    config = json.loads((path / "config.json").read_text()) | changes
    state_of(path).unlink()
    if "state" not in changes:
        config["state"] = f"state-{hashlib.sha256(state).hexdigest()[:16]}.safetensors"
        (path / config["state"]).write_bytes(state)
    del config["sha256"]
    config["sha256"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    (path / "config.json").write_text(json.dumps(config))


nonsense = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 20), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
CONFIG = ["format", "curlicue", "parameters", "n_features_in", "feature_names_in", "state"]


@settings(STABLE, max_examples=60 * TIMES)
@given(name=st.sampled_from(CONFIG), value=nonsense)
def test_nonsense_with_the_right_checksum_in_the_settings_is_a_run_error_at_worst(saved, name, value):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(saved, Path(folder) / "m"))
        sign(path, {name: value}, state_of(path).read_bytes())
        loaded(path)


@settings(STABLE, max_examples=60 * TIMES)
@given(turns=st.lists(st.integers(0, 50), min_size=1, max_size=4), value=nonsense)
def test_nonsense_with_the_right_checksum_in_the_state_is_a_run_error_at_worst(saved, turns, value):
    contents = state_of(saved).read_bytes()
    header, tensors = _header(contents), load(contents)
    del header["sha256"]
    node: Any = header
    for turn in turns[:-1]:
        inner = list(node.values()) if isinstance(node, dict) else node
        inner = [each for each in inner if isinstance(each, dict | list) and each]
        if inner:
            node = inner[turn % len(inner)]
    keys = list(node) if isinstance(node, dict) else range(len(node))
    node[keys[turns[-1] % len(keys)]] = value
    header["sha256"] = _digest(header, tensors)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(saved, Path(folder) / "m"))
        sign(path, {}, save(tensors, metadata={"curlicue": json.dumps(header)}))
        loaded(path)


def test_deep_nesting_is_refused_like_any_other_text(saved, tmp_path):
    path = Path(shutil.copytree(saved, tmp_path / "m"))
    (path / "config.json").write_text("[" * 100_000)
    refused_or_same(path, saved)


@pytest.mark.parametrize("where", ["config", "state", "state with the right checksum", "elsewhere"])
def test_code_in_the_files_is_never_run(saved, tmp_path, where):
    path, made = Path(shutil.copytree(saved, tmp_path / "m")), tmp_path / "made"
    code = pickle.dumps(Payload(made))
    match where:
        case "config":
            (path / "config.json").write_bytes(code)
        case "state":
            state_of(path).write_bytes(code)
        case "state with the right checksum":
            sign(path, {}, code)
        case "elsewhere":
            (tmp_path / "code").write_bytes(code)
            sign(path, {"state": "../code"}, code)
    with pytest.raises(RunError):
        CURL.load(path)
    assert not made.exists()
    pickle.loads(code)
    assert made.exists()


def test_a_state_without_features_is_a_run_error(saved, tmp_path):
    path = Path(shutil.copytree(saved, tmp_path / "m"))
    contents = state_of(saved).read_bytes()
    header, tensors = _header(contents), load(contents)
    del header["sha256"]
    header["extra"]["shape"] = [0]
    header["sha256"] = _digest(header, tensors)
    sign(path, {}, save(tensors, metadata={"curlicue": json.dumps(header)}))
    with pytest.raises(RunError, match=r"cannot be read: The 'shape' setting must be one size or more"):
        CURL.load(path)
