import copy
import json
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.utils.data import DataLoader, TensorDataset

from curlicue.errors import ConfigError, DataError, RunError
from curlicue.estimator import CURL
from curlicue.learn.events import BirthRefused, ComponentBorn, SnapshotTaken

D = 5  # features


def small(**settings: Any) -> CURL:
    return CURL(**{"n_z": 2, "encoder": (16,), "decoder": (16,), "random_state": 0} | settings)


def eager(**settings: Any) -> CURL:
    """Everything is poorly explained, so that every eligible mini-batch brings a birth."""
    return small(**{"c_new": 1e6, "n_new": 1, "max_components": 3} | settings)


def rows(n: int, centre: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, 1, size=(n, D))


def whole(curl: CURL) -> bytes:
    """All that its future depends on."""
    return curl._engine.to_bytes()


@pytest.fixture(scope="module")
def kept() -> bytes:
    """A model that has grown, remembers itself and is in the middle of a stream."""
    grown = eager(batch_size=10).partial_fit(rows(2500))
    assert grown.n_components_ > 1
    return pickle.dumps(grown)


@pytest.fixture
def curl(kept: bytes) -> CURL:
    return pickle.loads(kept)


# -- scikit-learn ----------------------------------------------------------------------------------------------------

EXPECTED_FAILURES = {
    "check_clustering": "it grows when a stream shows something new; 50 shuffled rows are nothing new to one component"
}


@parametrize_with_checks([small(epochs=1)], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_it_works_in_a_pipeline_and_names_its_outputs():
    X = pd.DataFrame(rows(200), columns=list("abcde"))
    pipeline = make_pipeline(StandardScaler(), small(epochs=1)).set_output(transform="pandas")
    embedding = pipeline.fit_transform(X)
    assert list(embedding.columns) == ["curl0", "curl1"]
    assert pipeline.predict(X).shape == (200,)


def test_fit_begins_anew_and_partial_fit_goes_on():
    X = rows(300)
    once, again = small(epochs=2).fit(X), small(epochs=2).partial_fit(rows(50)).fit(X)
    assert whole(once) == whole(again)
    assert whole(again.partial_fit(X)) != whole(once)
    assert np.array_equal(once.labels_, once.predict(X))


# -- kinds of input --------------------------------------------------------------------------------------------------

X32 = rows(40).astype(np.float32)
SAME: dict[str, Any] = {
    "float64": X32.astype(np.float64),
    "tensor": torch.from_numpy(X32),
    "tensor with gradient": torch.from_numpy(X32).requires_grad_(),
    "lists": X32.tolist(),
    "Fortran order": np.asfortranarray(X32),
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_numbers_teach_the_same_in_whatever_form(kind):
    taught = small().partial_fit(SAME[kind])
    assert whole(taught) == whole(small().partial_fit(X32))
    assert np.array_equal(taught.predict_proba(SAME[kind]), taught.predict_proba(X32))


def test_frames_of_polars_are_learnt_from():
    frame = pl.DataFrame(X32)
    taught = small().partial_fit(frame)
    assert whole(taught) == whole(small().partial_fit(X32))
    assert list(taught.feature_names_in_) == frame.columns


def test_a_memory_mapped_array_is_learnt_from(tmp_path):
    np.save(tmp_path / "x.npy", X32)
    assert whole(small().partial_fit(np.load(tmp_path / "x.npy", mmap_mode="r"))) == whole(small().partial_fit(X32))


def test_images_are_learnt_as_rows_and_come_back_as_images():
    images = np.random.default_rng(0).random((30, 4, 3)).astype(np.float32)
    curl, flat = (small(likelihood="bernoulli").partial_fit(x) for x in (images, images.reshape(30, 12)))
    assert np.array_equal(curl.transform(images), flat.transform(images.reshape(30, 12)))
    assert curl.n_features_in_ == 12
    assert curl.reconstruct(images).shape == (30, 4, 3)
    assert curl.sample(7)[0].shape == (7, 4, 3)


def test_bytes_are_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6), dtype=np.uint8)
    bytes_, floats = (small(likelihood="bernoulli").partial_fit(x) for x in (pixels, pixels / np.float32(255)))
    assert whole(bytes_) == whole(floats)


def test_truth_values_are_zeros_and_ones():
    x = np.random.default_rng(0).random((20, 6)) < 0.5
    assert whole(small(likelihood="bernoulli").partial_fit(x)) == whole(
        small(likelihood="bernoulli").partial_fit(x.astype(float))
    )


def test_a_batch_of_any_size_is_cut_into_mini_batches():
    X = rows(95)
    at_once = small(batch_size=30).partial_fit(X)
    in_parts = small(batch_size=30)
    for part in np.split(X, [30, 60, 90]):
        in_parts.partial_fit(part)
    assert whole(at_once) == whole(in_parts)
    assert at_once._engine.learner.t == 4


def test_once_replay_has_begun_each_mini_batch_is_followed_by_a_rehearsal():
    curl = small(snapshots=3, batch_size=10).partial_fit(rows(30))
    assert curl._engine.learner.t == 3
    curl.partial_fit(rows(20))
    assert curl._engine.learner.t == 3 + 2 * 2


def test_a_list_of_images_is_an_array_of_images():
    images = rows(40).reshape(40, 5, 1)
    expected = whole(small().partial_fit(images))
    assert whole(small().partial_fit(list(images))) == expected
    assert whole(small().fit_stream([list(images)])) == expected


def test_bfloat16_is_read():
    x = torch.from_numpy(X32).bfloat16()
    assert whole(small().partial_fit(x)) == whole(small().partial_fit(x.float()))


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.from_numpy(X32), torch.arange(40)), batch_size=10)


def generator() -> Iterator[np.ndarray]:
    yield from np.split(X32, 4)


@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("stream", [generator, loader, lambda: list(generator())], ids=["generator", "loader", "list"])
def test_any_iterable_is_a_stream(stream, progress):
    taught = small(batch_size=10).fit_stream(stream(), progress=progress)
    assert whole(taught) == whole(small(batch_size=10).partial_fit(X32))


# -- bad input changes nothing ---------------------------------------------------------------------------------------

GOOD = rows(10)
NAN, INF = GOOD.copy(), GOOD.copy()
NAN[3, 2], INF[3, 2] = np.nan, -np.inf
BAD: dict[str, tuple[Any, str]] = {
    "NaN": (
        NAN,
        "Input X contains NaN. Fill such values in, as SimpleImputer does, or leave their rows out.",
    ),
    "infinite": (INF, "Input X contains infinity or a value too large. Clip such values, or leave their rows out."),
    "too large": (GOOD * 1e300, "more than float32 holds. Scale them."),
    "features": (rows(10)[:, :4], "X has 4 features, but CURL is expecting 5 features as input"),
    "no rows": (GOOD[:0], "Found array with 0 sample(s)"),
    "one row, flat": (GOOD[0], "Expected 2D array, got 1D array instead"),
    "strings": (np.full((3, D), "a"), "dtype='numeric' is not compatible with arrays of bytes/strings"),
    "objects": (np.full((3, D), None), "Input X contains NaN"),
    "sparse": (scipy.sparse.csr_matrix(GOOD), "Sparse data was passed for X"),
    "ragged": (
        [[1.0, 2.0], [3.0]],
        "X has samples of different sizes (inhomogeneous). Give all of them the same number",
    ),
    "ragged images": ([np.ones((2, 3)), np.ones((3, 3))], "X has samples of different sizes (inhomogeneous). Give all"),
    "iterator": (iter(GOOD), "Learn from an iterator with fit_stream."),
    "masked": (np.ma.masked_less(GOOD, GOOD.mean()), "X has masked values. Fill them in, or leave these rows out."),
    "complex": (GOOD + 1j, "Complex data not supported"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("call", ["partial_fit", "predict", "transform", "score_samples", "reconstruct"])
def test_bad_input_is_one_error_and_the_model_is_what_it_was(curl, case, call):
    X, message = BAD[case]
    before = whole(curl)
    with pytest.raises((ValueError, TypeError)) as error:
        getattr(curl, call)(X)
    assert message in str(error.value)
    assert whole(curl) == before


@pytest.mark.parametrize("case", [case for case in BAD if case != "features"])
def test_bad_input_at_first_leaves_nothing_behind(case):
    curl = small()
    before = dict(vars(curl))
    with pytest.raises((ValueError, TypeError)):
        curl.partial_fit(BAD[case][0])
    assert vars(curl) == before


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.array([[0.5, -0.1]]), "needs values in [0, 1]; X has values from -0.1 to 0.5. Scale them, or use"),
        (np.array([[0.5, 1.25]]), "needs values in [0, 1]; X has values from 0.5 to 1.25. Scale them, or use"),
        (np.array([[0, 255]]), "needs values in [0, 1]; X has values from 0 to 255. Scale them, or use"),
        (np.array([[0, 1]], dtype=np.uint8), "uint8 is read as pixels of 0 to 255. Give zeros and ones as bool or as"),
    ],
)
def test_values_that_no_bernoulli_can_have_are_refused(X, message):
    with pytest.raises(DataError) as error:
        small(likelihood="bernoulli").partial_fit(X)
    assert message in str(error.value)


def test_zeros_and_ones_of_uint8_are_black_pixels_to_a_model_of_pixels_and_refused_by_any_other(tmp_path):
    ones, pixels = np.eye(20, 6, dtype=np.uint8), np.full((20, 6), 255, dtype=np.uint8)
    for first, refused in ((pixels, False), (ones.astype(bool), True)):
        curl = small(likelihood="bernoulli").partial_fit(first)
        curl.save(tmp_path / "model")
        for model in (curl, CURL.load(tmp_path / "model"), pickle.loads(pickle.dumps(curl))):
            if refused:
                with pytest.raises(DataError, match="Give zeros and ones as bool or as floats"):
                    model.predict_proba(ones)
            else:
                assert np.array_equal(model.predict_proba(ones), model.predict_proba(ones / np.float32(255)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"likelihood": "poisson"}, "The 'likelihood' setting must be one of 'bernoulli', 'gaussian'. Got 'poisson'"),
        ({"c_new": "small"}, "The 'c_new' setting must be one of 'auto'. Got 'small'"),
        ({"replay": "all"}, "The 'replay' setting must be one of 'mgr', 'smgr', None. Got 'all'"),
        (
            {"snapshots": "often"},
            "The 'snapshots' setting must be 'change', 'dynamic', 'never' or a number of steps. Got 'often'",
        ),
        (
            {"snapshots": 0},
            "The 'snapshots' setting must be 'change', 'dynamic', 'never' or a number of steps. Got 0",
        ),
        ({"on_event": 3}, "The 'on_event' setting must be None or a function. Got 3 instead."),
        ({"n_z": 0}, "The 'n_z' setting must be an int in the range [1, inf). Got 0"),
        ({"batch_size": 0}, "The 'batch_size' setting must be an int in the range [1, inf). Got 0"),
        ({"learning_rate": -1.0}, "The 'learning_rate' setting must be a float in the range (0, inf). Got -1.0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_when_learning_begins(setting, message):
    curl = small(**setting)
    with pytest.raises(ConfigError) as error:
        curl.partial_fit(GOOD)
    assert str(error.value).startswith(message)
    with pytest.raises(NotFittedError):
        curl.predict(GOOD)


# -- what it says ----------------------------------------------------------------------------------------------------


def test_a_row_is_judged_by_itself_alone(curl):
    X = rows(60, seed=3)
    order = np.random.default_rng(0).permutation(60)
    for call in ("predict_proba", "transform", "score_samples", "reconstruct"):
        ask = getattr(curl, call)
        np.testing.assert_allclose(ask(X[order]), ask(X)[order], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.concatenate([ask(X[:1]), ask(X[1:])]), ask(X), rtol=1e-4, atol=1e-5)


def test_asking_changes_nothing(curl):
    before = whole(curl)
    for call in ("predict", "predict_proba", "transform", "score_samples", "reconstruct"):
        getattr(curl, call)(GOOD)
    curl.sample(3)
    assert whole(curl) == before


def test_posteriors_are_probabilities_and_the_component_is_the_likeliest(curl):
    q_y = curl.predict_proba(GOOD)
    assert q_y.shape == (10, curl.n_components_)
    np.testing.assert_allclose(q_y.sum(1), 1, rtol=1e-5)
    assert np.array_equal(curl.predict(GOOD), q_y.argmax(1))


def test_samples_come_from_the_component_asked_for(curl):
    X, y = curl.sample(20, component=1)
    assert X.shape == (20, D)
    assert set(y) == {1}
    assert not np.array_equal(curl.sample(20, component=1)[0], X)
    with pytest.raises(ConfigError, match=r"There are the components 0 to 2. Got 3 instead."):
        curl.sample(1, component=3)


def test_what_was_learnt_is_more_likely_than_what_was_never_seen():
    curl = small().partial_fit(np.concatenate([rows(100, seed=s) for s in range(30)]))
    assert curl.score_samples(rows(50, seed=99)).mean() > curl.score_samples(rows(50, centre=6, seed=99)).mean() + 10


# -- growth ----------------------------------------------------------------------------------------------------------


def test_births_are_told_with_their_samples_and_remembered_without():
    told: list[Any] = []
    curl = eager(batch_size=10, on_event=told.append).partial_fit(rows(2500))
    births = [event for event in told if isinstance(event, ComponentBorn)]
    assert [birth.component for birth in births] == [1, 2]
    assert all(len(birth.d_new) == 10 for birth in births)
    assert [type(event) for event in curl.events_] == [type(event) for event in told]
    assert all(len(e.d_new) == 0 for e in curl.events_ if not isinstance(e, SnapshotTaken))


def test_at_the_cap_births_are_refused_and_told_and_learning_goes_on():
    curl = eager(batch_size=10).partial_fit(rows(4000))
    assert curl.n_components_ == 3
    assert any(isinstance(event, BirthRefused) for event in curl.events_)
    before = whole(curl)
    assert whole(curl.partial_fit(rows(10))) != before


def test_a_new_world_brings_a_birth_and_the_old_one_keeps_its_component():
    curl = CURL(random_state=0)
    for seed in range(150):
        curl.partial_fit(rows(100, seed=seed))
    assert curl.n_components_ == 1
    for seed in range(150):
        curl.partial_fit(rows(100, centre=8, seed=1000 + seed))
    assert 2 <= curl.n_components_ <= 4
    old, new = curl.predict(rows(200, seed=5000)), curl.predict(rows(200, centre=8, seed=5001))
    assert np.mean(old == 0) > 0.9
    assert np.mean(new == 0) < 0.1


def kinds(n: int, dimensions: int, batches: int) -> list[np.ndarray]:
    """Rows of n clusters, standardised as a whole; for each cluster so many batches of 100."""
    X, y = make_blobs(3000, n_features=dimensions, centers=n, center_box=(-8, 8), random_state=3)
    X, rng = StandardScaler().fit_transform(X), np.random.default_rng(0)
    return [rng.choice(X[y == kind], 100 * batches) for kind in range(n)]


def test_the_defaults_find_each_kind_that_comes_and_tell_all_apart_in_the_end():
    shown = kinds(4, dimensions=10, batches=100)
    curl = CURL(random_state=0)
    for X in shown:
        curl.partial_fit(X)
    assert curl.n_components_ == 4
    assert [np.bincount(curl.predict(X)).argmax() for X in shown] == [0, 1, 2, 3]
    assert all(np.mean(curl.predict(X) == kind) > 0.9 for kind, X in enumerate(shown))


def test_with_the_defaults_what_never_changes_brings_no_birth():
    X = np.concatenate(kinds(4, dimensions=10, batches=100))
    assert CURL(random_state=0).partial_fit(np.random.default_rng(0).permutation(X)).n_components_ == 1


@pytest.mark.parametrize(
    "X",
    [np.ones((6000, 3)), np.tile(rows(1), (6000, 1)), np.c_[rows(6000), np.zeros(6000)], np.tile(rows(50), (120, 1))],
    ids=["constant", "one sample", "constant column", "duplicates"],
)
def test_dull_data_leave_it_finite_and_small(X):
    curl = small().partial_fit(np.tile(X, (5, 1)))
    assert np.isfinite(curl.score_samples(X[:100])).all()
    assert np.isfinite(curl.transform(X[:100])).all()
    assert curl.n_components_ == 1


# -- keeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["save", "pickle", "joblib", "deepcopy"])
def test_what_is_kept_goes_on_as_it_would_have(curl, tmp_path, keep):
    match keep:
        case "save":
            curl.save(tmp_path / "model")
            again = CURL.load(tmp_path / "model")
        case "pickle":
            again = pickle.loads(pickle.dumps(curl))
        case "joblib":
            joblib.dump(curl, tmp_path / "model")
            again = joblib.load(tmp_path / "model")
        case "deepcopy":
            again = copy.deepcopy(curl)
    assert again.get_params() == curl.get_params()
    assert [repr(event) for event in again.events_] == [repr(event) for event in curl.events_]
    assert whole(again.partial_fit(rows(500, seed=1))) == whole(curl.partial_fit(rows(500, seed=1)))
    assert np.array_equal(again.transform(GOOD), curl.transform(GOOD))


def test_names_and_shapes_are_kept(tmp_path):
    X = pd.DataFrame(rows(20), columns=list("abcde"))
    small().partial_fit(X).save(tmp_path / "m")
    again = CURL.load(tmp_path / "m")
    assert list(again.feature_names_in_) == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        again.partial_fit(X.rename(columns={"a": "z"}))


def test_saving_again_leaves_one_model_and_a_crash_the_old_one(curl, tmp_path, monkeypatch):
    curl.save(tmp_path / "m")
    before = whole(CURL.load(tmp_path / "m"))
    curl.partial_fit(GOOD)
    replaced = Path.replace

    def crash(self: Path, target: Path) -> Path:
        if target.name == "config.json":
            raise KeyboardInterrupt
        return replaced(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            curl.save(tmp_path / "m")
    assert whole(CURL.load(tmp_path / "m")) == before
    curl.save(tmp_path / "m")
    assert whole(CURL.load(tmp_path / "m")) == whole(curl)
    assert len(list((tmp_path / "m").iterdir())) == 2


def spoil(path: Path, change: str) -> None:
    config, (state,) = path / "config.json", path.glob("state-*")
    match change:
        case "no config":
            config.unlink()
        case "no state":
            state.unlink()
        case "truncated state":
            state.write_bytes(state.read_bytes()[:-1])
        case "edited state":
            state.write_bytes(state.read_bytes()[:-1] + b"x")
        case "truncated config":
            config.write_text(config.read_text()[:-20])
        case "edited config":
            config.write_text(config.read_text().replace('"n_new": 1', '"n_new": 2'))
        case "newer":
            config.write_text(json.dumps(json.loads(config.read_text()) | {"format": 2}))
        case "not an object":
            config.write_text("[]")
        case "state elsewhere":
            config.write_text(config.read_text().replace(state.name, "../../etc/passwd"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no config", "holds no saved model"),
        ("no state", "is not whole"),
        ("truncated state", "is not as it was saved"),
        ("edited state", "is not as it was saved"),
        ("truncated config", "holds no saved model"),
        ("edited config", "config.json is not as it was saved"),
        ("newer", "has format 2, this version of curlicue reads 1. Load it with the version that saved it."),
        ("not an object", "holds no saved model"),
        ("state elsewhere", "is not as it was saved"),
    ],
)
def test_a_spoilt_model_is_refused(curl, tmp_path, change, message):
    curl.save(tmp_path / "m")
    spoil(tmp_path / "m", change)
    with pytest.raises(RunError) as error:
        CURL.load(tmp_path / "m")
    assert message in str(error.value)


def test_a_clone_has_the_settings_and_nothing_learnt(curl):
    fresh = clone(curl)
    assert fresh.get_params() == curl.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(GOOD)


def test_fit_predict_says_what_predict_says():
    X = np.r_[rows(500) - 5, rows(500) + 5]
    curl = eager(batch_size=20, max_components=4, epochs=5)
    found = curl.fit_predict(X)
    assert np.array_equal(found, curl.labels_)
    assert np.array_equal(found, curl.predict(X))
    assert len(set(found)) > 1


# -- threads and other models ----------------------------------------------------------------------------------------


def test_one_thread_may_ask_while_another_learns():
    curl, alone = (eager(batch_size=20, max_components=8).partial_fit(rows(20)) for _ in range(2))
    asked, done = [], threading.Event()

    def ask() -> None:
        while not done.is_set():
            asked.append(curl.predict_proba(GOOD))

    thread = threading.Thread(target=ask)
    thread.start()
    curl.partial_fit(rows(5000))
    done.set()
    thread.join()
    states = [alone.predict_proba(GOOD)]
    for part in np.split(rows(5000), 250):
        states.append(alone.partial_fit(part).predict_proba(GOOD))
    assert whole(curl) == whole(alone)
    assert curl.n_components_ > 2
    assert asked
    for answer in asked:  # that of the model between two mini-batches, never of one half changed
        alike = [state for state in states if state.shape == answer.shape]
        assert min(abs(state - answer).max() for state in alike) < 1e-5


def test_models_beside_each_other_share_neither_random_numbers_nor_threads():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    alone = whole(small().partial_fit(rows(300)))
    one, other = small(), small(random_state=1)
    for part in np.split(rows(300), 3):
        one.partial_fit(part)
        other.partial_fit(part)
    assert whole(one) == alone
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_what_it_holds_does_not_grow_with_the_number_of_batches():
    def size(curl: CURL) -> int:
        curl._engine.events.clear()
        return len(whole(curl))

    curl = eager(n_new=10).partial_fit(rows(250 * 100))
    before = size(curl)
    assert abs(size(curl.partial_fit(rows(200 * 100))) - before) < 1000


# -- hardened --------------------------------------------------------------------------------------------------------


def test_a_directory_of_something_else_is_not_overwritten(curl, tmp_path):
    (tmp_path / "config.json").write_text('{"dataset": "mnist"}')
    with pytest.raises(RunError) as error:
        curl.save(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'config.json'} belongs to something else. Choose another directory for the model."
    )
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_saving_removes_only_what_saves_have_left(curl, tmp_path):
    mine = {"state-of-the-art.safetensors", ".mine.part", "notes.txt"}
    left = {"state-0123456789abcdef.safetensors", ".config.json.123.part", ".state-0123456789abcdef.safetensors.1.part"}
    for name in mine | left:
        (tmp_path / name).touch()
    curl.save(tmp_path)
    assert mine < {file.name for file in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == len(mine) + 2
    assert whole(CURL.load(tmp_path)) == whole(curl)


def test_several_may_save_to_one_place_and_others_load_meanwhile(curl, tmp_path):
    curl.save(tmp_path)
    errors: list[Exception] = []

    def often(what: Callable[[], object]) -> None:
        try:
            for _ in range(10):
                what()
        except Exception as error:
            errors.append(error)

    other = pickle.loads(pickle.dumps(curl)).partial_fit(X32)
    works = [lambda: curl.save(tmp_path), lambda: other.save(tmp_path), lambda: CURL.load(tmp_path)]
    threads = [threading.Thread(target=often, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert whole(CURL.load(tmp_path)) in (whole(curl), whole(other))


@pytest.fixture
def heard():
    """Ctrl-C as in a terminal: what is started in the background of a script has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_takes_effect_between_two_mini_batches(curl, monkeypatch):
    observe = curl._engine.learner.observe

    def interrupted(x):
        signal.raise_signal(signal.SIGINT)
        return observe(x)

    reference = pickle.loads(pickle.dumps(curl)).partial_fit(X32[:10])
    monkeypatch.setattr(curl._engine.learner, "observe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        curl.partial_fit(X32)
    assert whole(curl) == whole(reference)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_a_program_that_leaves_it_to_the_system():
    program = """
import os, signal, numpy as np
from curlicue import CURL
signal.signal(signal.SIGINT, signal.SIG_DFL)
curl = CURL(n_z=2, encoder=(8,), decoder=(8,)).partial_fit(np.ones((10, 5)))
observe = curl._engine.learner.observe
curl._engine.learner.observe = lambda x: (os.kill(os.getpid(), signal.SIGINT), observe(x))[1]
curl.partial_fit(np.ones((10_000, 5)))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGINT


def test_a_birth_takes_no_longer_where_mini_batches_are_small():
    curl, steps = eager(batch_size=100, n_new=100), []
    curl.partial_fit(rows(10_000))
    climb = curl._engine.learner.climb
    curl._engine.learner.climb = lambda *given: (steps.append(1), climb(*given))
    before = curl.n_components_
    while curl.n_components_ == before:
        steps.clear()
        curl.partial_fit(rows(1))
    assert len(steps) <= 2 + 100 * 2


@pytest.mark.parametrize(
    "X",
    [np.array([["1", "2"]], dtype=object), pd.DataFrame({"a": ["1", "2"], "b": ["3", "4"]}), [["1", 2.0]]],
    ids=type,
)
def test_strings_of_digits_are_no_numbers(X):
    with pytest.raises(ValueError, match=r"string|convert"):
        small().partial_fit(X)


def test_images_of_another_shape_are_refused_though_they_have_as_many_pixels():
    curl = small().partial_fit(rows(20).reshape(20, 5, 1))
    with pytest.raises(DataError) as error:
        curl.predict(rows(20).reshape(20, 1, 5))
    assert str(error.value) == "X has samples of the shape (1, 5), the model learnt (5, 1). Give them like that."


def test_settings_changed_after_learning_began_do_not_change_what_x_means(curl):
    embedding = curl.transform(X32)
    curl.set_params(likelihood="bernoulli")
    np.testing.assert_array_equal(curl.transform(X32), embedding)


def test_a_bad_setting_leaves_a_fitted_model_alone(curl):
    before = whole(curl), curl.n_features_in_
    with pytest.raises(ConfigError):
        curl.set_params(n_z=-1).fit(rows(50)[:, :3])
    with pytest.raises(ValueError, match="cannot be used to seed"):
        curl.set_params(n_z=2, random_state="a").fit(rows(50)[:, :3])
    assert (whole(curl), curl.n_features_in_) == before


@pytest.mark.parametrize(
    "setting",
    [{"encoder": 64}, {"batch_size": True}, {"n_z": "16"}, {"n_new": None}, {"c_new": None}, {"learning_rate": "fast"}],
    ids=str,
)
def test_a_setting_of_a_wrong_type_is_one_error(setting):
    with pytest.raises(ConfigError):
        CURL(**setting).partial_fit(rows(10))


def test_learning_that_diverges_is_told():
    with pytest.raises(RunError, match=r"^Learning has diverged: the bound is .* Scale X or lower learning_rate"):
        small(learning_rate=1e30).partial_fit(rows(1000))


def test_without_a_random_state_nothing_of_numpys_own_is_drawn():
    before = np.random.get_state()[2]
    CURL(n_z=2, encoder=(4,), decoder=(4,)).partial_fit(rows(10))
    assert np.random.get_state()[2] == before


def test_two_threads_that_begin_at_once_teach_one_model():
    curl = small()
    threads = [threading.Thread(target=curl.partial_fit, args=(rows(100, seed=seed),)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert curl._engine.learner.d_new.seen == 400


def test_regimes_that_return_are_known_and_all_are_remembered():
    centres = {"a": np.zeros(6), "b": np.array([5, -4, 6, 3, 0, 0.0]), "c": np.array([-3, 3, 0, 2, -2, 1.0])}
    rng, curl = np.random.default_rng(0), CURL(random_state=0)
    for regime in "abcabc":
        curl.partial_fit(centres[regime] + rng.normal(size=(5000, 6)))
    assert curl.n_components_ == 3
    for component, centre in enumerate(centres.values()):
        assert np.mean(curl.predict(centre + rng.normal(size=(300, 6))) == component) > 0.6
