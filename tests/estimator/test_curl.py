"""CURL as a scikit-learn estimator: learning, what it says, growth, threads and Ctrl-C."""

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.utils.data import DataLoader, TensorDataset

from curlicue.errors import ConfigError, RunError
from curlicue.estimator import CURL
from curlicue.learn.events import BirthRefused, ComponentBorn, SnapshotTaken
from curlicue.memory.snapshot import Snapshot
from estimators import D, eager, refused, rows, small, whole

GOOD = rows(10)
X32 = rows(40).astype(np.float32)

FOUND = {"growth": "structure", "memory": "reservoir"}
EXPECTED_FAILURES = {
    "check_clustering": "of 50 rows in two dimensions nobody can tell whether a valley between them is chance"
}


@parametrize_with_checks([small(epochs=1, **FOUND)], expected_failed_checks=lambda _: EXPECTED_FAILURES)
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


def test_a_batch_of_any_size_is_cut_into_mini_batches():
    X = rows(105)
    at_once = small(batch_size=30).partial_fit(X)
    in_parts = small(batch_size=30)
    for part in np.split(X, [30, 60, 90]):
        in_parts.partial_fit(part)
    assert whole(at_once) == whole(in_parts)
    assert at_once._core.learner.t == 4


def test_rows_that_are_too_few_for_half_a_mini_batch_wait_for_more(tmp_path):
    X = rows(40)
    one_by_one, at_once = small(batch_size=20), small(batch_size=20)
    for x in X:
        one_by_one.partial_fit(x[None])
    for part in np.split(X, 4):
        at_once.partial_fit(part)
    assert one_by_one._core.learner.t == at_once._core.learner.t == 4
    assert whole(one_by_one) == whole(at_once)
    waiting = small(batch_size=20).partial_fit(X[:9])
    waiting.save(tmp_path)
    for curl in (waiting, CURL.load(tmp_path)):
        assert curl._core.learner.t == 0
        assert curl.partial_fit(X[9:10])._core.learner.t == 1
    assert small(batch_size=20).partial_fit(X[:9]).settle()._core.learner.t == 1


def test_once_replay_has_begun_each_mini_batch_is_followed_by_a_rehearsal():
    curl = small(memory=Snapshot(snapshots=3), batch_size=10).partial_fit(rows(30))
    assert curl._core.learner.t == 3
    curl.partial_fit(rows(20))
    assert curl._core.learner.t == 3 + 2 * 2


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.from_numpy(X32), torch.arange(40)), batch_size=10)


def generator() -> Iterator[np.ndarray]:
    yield from np.split(X32, 4)


@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("stream", [generator, loader, lambda: list(generator())], ids=["generator", "loader", "list"])
def test_any_iterable_is_a_stream(stream, progress):
    taught = small(batch_size=10).fit_stream(stream(), progress=progress)
    assert whole(taught) == whole(small(batch_size=10).partial_fit(X32))


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


def test_with_the_defaults_kinds_that_come_together_are_told_apart_and_one_kind_is_left_whole():
    shown = kinds(4, dimensions=10, batches=100)
    curl = CURL(random_state=0).partial_fit(np.random.default_rng(0).permutation(np.concatenate(shown)))
    found = [np.bincount(curl.predict(X), minlength=4) / len(X) for X in shown]
    assert np.shape(found) == (4, 4)
    assert sorted(np.argmax(found, 1)) == [0, 1, 2, 3]
    assert np.min(np.max(found, 1)) > 0.95
    assert CURL(random_state=0).partial_fit(shown[0]).n_components_ == 1


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
        curl._core.events.clear()
        return len(whole(curl))

    curl = eager(n_new=10).partial_fit(rows(250 * 100))
    before = size(curl)
    assert abs(size(curl.partial_fit(rows(200 * 100))) - before) < 1000


@pytest.fixture
def heard():
    """Ctrl-C as in a terminal: what is started in the background of a script has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_takes_effect_between_two_mini_batches(curl, monkeypatch):
    observe = curl._core.learner.observe

    def interrupted(x):
        signal.raise_signal(signal.SIGINT)
        return observe(x)

    reference = pickle.loads(pickle.dumps(curl)).partial_fit(X32[:10])
    monkeypatch.setattr(curl._core.learner, "observe", interrupted)
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
observe = curl._core.learner.observe
curl._core.learner.observe = lambda x: (os.kill(os.getpid(), signal.SIGINT), observe(x))[1]
curl.partial_fit(np.ones((10_000, 5)))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGINT


def test_a_birth_takes_no_longer_where_mini_batches_are_small():
    curl, steps = eager(batch_size=100, n_new=100), []
    curl.partial_fit(rows(10_000))
    engine = curl._core.learner.engine
    climb = engine.climb
    engine.climb = lambda *given: (steps.append(1), climb(*given))
    before = curl.n_components_
    while curl.n_components_ == before:
        steps.clear()
        curl.partial_fit(rows(1))
    assert len(steps) <= 2 + 100 * 2


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
    assert curl._core.learner.growth.d_new.seen == 400


def test_regimes_that_return_are_known_and_all_are_remembered():
    centres = {"a": np.zeros(6), "b": np.array([5, -4, 6, 3, 0, 0.0]), "c": np.array([-3, 3, 0, 2, -2, 1.0])}
    rng, curl = np.random.default_rng(0), CURL(random_state=0)
    for regime in "abcabc":
        curl.partial_fit(centres[regime] + rng.normal(size=(5000, 6)))
    assert curl.n_components_ == 3
    for component, centre in enumerate(centres.values()):
        assert np.mean(curl.predict(centre + rng.normal(size=(300, 6))) == component) > 0.6


# -- what is there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "least"), [(load_iris, 0.5), (load_wine, 0.7)])
@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_are_found_in_data_at_rest(load, least, seed):
    X, kinds = load(return_X_y=True)
    found = CURL(random_state=seed).fit_predict(StandardScaler().fit_transform(X))
    assert adjusted_rand_score(kinds, found) > least


@pytest.mark.parametrize("X", [rows(1500), np.random.default_rng(0).standard_t(3, (1500, 5)), np.ones((200, 3))])
def test_one_thing_at_rest_stays_one(X):
    assert CURL(random_state=0).fit(X).n_components_ == 1


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_as_many_components_as_are_known_to_be_there_are_found_at_rest(K):
    X = StandardScaler().fit_transform(load_wine(return_X_y=True)[0])
    curl = CURL(n_components=K, random_state=0)
    assert len(set(curl.fit_predict(X))) == curl.n_components_ == K


def test_no_stream_brings_more_components_than_are_known_to_be_there():
    regimes = [rows(500, centre) for centre in (0, 8, -8)]
    curl = CURL(n_components=2, random_state=0).fit_stream(regimes)
    assert curl.n_components_ == 2


@pytest.mark.parametrize("n", [2000, 200])
def test_regimes_are_told_apart_however_short_and_recognised_when_they_return(n):
    regimes = [rows(n, centre, seed=k) for k, centre in enumerate((0, 8, -8, 16))]
    curl = CURL(random_state=0)
    for X in 2 * regimes:
        curl.partial_fit(X)
    assert curl.n_components_ == 4
    assert all((curl.predict(X) == k).mean() > 0.97 for k, X in enumerate(regimes))


def test_the_size_of_the_memory_is_stated_and_bounded():
    curl = CURL(memory_size=100, random_state=0).partial_fit(rows(50))
    half = curl.memory_bytes_
    assert half == 50 * (2 * 5 + 24)  # float16, and what belongs to a row
    assert curl.partial_fit(rows(2000)).memory_bytes_ == 2 * half
    assert small().partial_fit(rows(60)).memory_bytes_ == 0
    assert "memory_size" in refused(lambda: small(memory_size=10).partial_fit(rows(60)))
    assert "memory 'reservoir'" in refused(lambda: small(growth="structure").partial_fit(rows(60)))
