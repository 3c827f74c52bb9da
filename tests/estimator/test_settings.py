"""The parameters of CURL: what they mean, how they are copied, and what is refused."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from curlicue.errors import ConfigError
from curlicue.estimator import CURL
from curlicue.growth.measured import Measured
from curlicue.growth.structure import Structure
from curlicue.growth.threshold import Threshold
from curlicue.memory.reservoir import Reservoir
from curlicue.memory.snapshot import Snapshot
from elsewhere import ELSEWHERE
from estimators import eager, refused, rows, small, whole

GOOD = rows(10)
X32 = rows(40).astype(np.float32)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"likelihood": "poisson"}, "The 'likelihood' setting must be one of 'bernoulli', 'gaussian'. Got 'poisson'"),
        ({"memory": Snapshot(snapshots="T")}, "Snapshots of a period (T) are for runs. Give a number of steps instead"),
        ({"on_event": 3}, "The 'on_event' setting must be None or a function. Got 3 instead."),
        ({"n_z": 0}, "The 'n_z' setting must be an int in the range [1, inf). Got 0"),
        ({"batch_size": 0}, "The 'batch_size' setting must be an int in the range [1, inf). Got 0"),
        ({"learning_rate": -1.0}, "The 'learning_rate' setting must be a float in the range (0, inf). Got -1.0"),
        ({"max_components": 0}, "The 'max_components' setting must be None or an int in the range [1, inf). Got 0"),
        ({"encoder": "mlp"}, "The 'encoder' setting must be hidden widths such as (256, 128), 'conv', a torch.nn.Modu"),
        ({"device": None}, "The 'device' setting must be 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto'. Got None instead."),
    ],
)
def test_a_setting_that_cannot_work_is_refused_when_learning_begins(setting, message):
    curl = small(**setting)
    assert refused(lambda: curl.partial_fit(GOOD)).startswith(message)
    with pytest.raises(NotFittedError):
        curl.predict(GOOD)


@pytest.mark.parametrize("value", ["small", 3, Measured, Snapshot()], ids=str)
def test_growth_is_nothing_a_name_or_settings_of_growth(value):
    told = refused(lambda: small(growth=value).partial_fit(GOOD))
    assert told.startswith("The 'growth' setting must be None, one of '")
    assert "'measured'" in told
    assert told.endswith(f"or settings such as Measured(n_new=50). Got {value!r} instead.")


@pytest.mark.parametrize("value", ["all", 3, Snapshot, Measured()], ids=str)
def test_memory_is_nothing_a_name_or_settings_of_a_memory(value):
    told = refused(lambda: small(memory=value).partial_fit(GOOD))
    assert told.startswith("The 'memory' setting must be None, one of '")
    assert "'snapshot'" in told
    assert told.endswith(f"or settings such as Snapshot(labelled=False). Got {value!r} instead.")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Snapshot(snapshots=0), "The 'snapshots' setting must be an int in the range"),
        (lambda: Snapshot(snapshots="often"), "Snapshot.snapshots must be one of 'T', '0.1T', 'dynamic', 'chan"),
        (lambda: Measured(n_new=2.5), "Measured.n_new must be of type int. Got 2.5 instead."),
        (lambda: Measured(n_new=True), "Measured.n_new must be of type int. Got True instead."),
        (lambda: Threshold(c_new=True), "Threshold.c_new must be of type float. Got True instead."),
        (lambda: Threshold(wait=2.5), "Threshold.wait must be of type int. Got 2.5 instead."),
    ],
)
def test_settings_that_cannot_work_are_refused_where_they_are_made(made, message):
    assert refused(made).startswith(message)


@pytest.mark.parametrize(
    "setting",
    [
        {"encoder": 64},
        {"batch_size": True},
        {"n_z": "16"},
        {"learning_rate": "fast"},
    ],
    ids=str,
)
def test_a_setting_of_a_wrong_type_is_one_error(setting):
    with pytest.raises(ConfigError):
        CURL(**setting).partial_fit(rows(10))


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


def test_a_bad_setting_is_refused_by_save_which_writes_nothing(curl, tmp_path):
    curl.set_params(n_z=-1)
    assert refused(lambda: curl.save(tmp_path / "m")).startswith("The 'n_z' setting must be an int")
    assert not (tmp_path / "m").exists()


# -- growth and memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("growth", Measured()),
        ("growth", Threshold()),
        ("memory", Snapshot()),
        ("memory", Reservoir()),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_a_name_stands_for_the_defaults_of_its_settings(name, settings):
    by_name, by_settings = type(settings).__name__.lower(), settings
    assert whole(small(**{name: by_name}).partial_fit(X32)) == whole(small(**{name: by_settings}).partial_fit(X32))


def test_the_defaults_find_structure_and_keep_rows():
    config = CURL(random_state=0).partial_fit(GOOD)._core.learner.config
    assert (config.growth, config.memory, config.max_components) == (Structure(), Reservoir(), 100)


def test_without_growth_no_component_is_born():
    assert eager(growth=None, batch_size=10).partial_fit(rows(2500)).n_components_ == 1


def test_without_memory_nothing_is_rehearsed():
    curl = eager(memory=None, batch_size=10).partial_fit(rows(2500))
    assert curl.n_components_ == 3
    assert curl._core.learner.t == 250


COPIES = {
    "clone": clone,
    "pickle": lambda curl: pickle.loads(pickle.dumps(curl)),
    "deepcopy": copy.deepcopy,
    "get_params": lambda curl: CURL(**curl.get_params()),
    "set_params": lambda curl: CURL().set_params(**curl.get_params()),
}


@pytest.mark.parametrize("how", COPIES)
def test_settings_of_growth_and_memory_are_copied_with_the_estimator(how):
    growth, memory = Threshold(c_new=-9.5, n_new=7), Snapshot(snapshots=3, labelled=False)
    curl = COPIES[how](small(growth=growth, memory=memory))
    assert (curl.growth, curl.memory) == (growth, memory)
    curl.partial_fit(GOOD)
    assert (curl._core.learner.config.growth, curl._core.learner.config.memory) == (growth, memory)


def test_growth_and_memory_of_ones_own_work_once_their_module_is_imported(own):
    curl = small(growth=own.Clockwork(every=2), batch_size=10, max_components=None).partial_fit(rows(100))
    assert curl.n_components_ == 6
    assert small(growth="clockwork", batch_size=10).partial_fit(rows(100)).n_components_ == 3
    assert small(memory=own.Echo(), batch_size=10).partial_fit(rows(100))._core.learner.t == 2 * 10


def test_growth_of_ones_own_that_is_no_dataclass_is_told(own):
    told = refused(lambda: small(growth=own.Careless()).partial_fit(GOOD))
    assert told == "The 'growth' setting is a Careless, which is no dataclass. Make it one."


# -- devices ---------------------------------------------------------------------------------------------------------

NOT_HERE = ["nowhere", "", "cuda:99", "meta", "vulkan", "cpu:x"]


@pytest.mark.parametrize("device", NOT_HERE)
def test_a_device_that_is_not_here_is_one_error_and_changes_nothing(curl, device):
    fresh, state = small(device=device, random_state=np.random.RandomState(0)), np.random.RandomState(0)
    before = dict(vars(fresh))
    told = refused(lambda: fresh.partial_fit(GOOD))
    assert told.startswith(f"There is no device {device!r} here (")
    assert told.endswith("). Choose cpu or auto.")
    assert vars(fresh) == before
    assert fresh.random_state.randint(1000) == state.randint(1000)

    was = whole(curl)
    assert refused(lambda: curl.set_params(device=device).fit(rows(10)[:, :3])) == told
    assert (whole(curl), curl.n_features_in_) == (was, 5)


def test_what_is_refused_draws_nothing_from_the_random_state():
    state = np.random.RandomState(0)
    for setting in ({"encoder": "conv"}, {"decoder": torch.nn.Linear(2, 4)}, {"likelihood": "bernoulli"}):
        with pytest.raises(ValueError, match=r"conv|decoder|bernoulli"):
            small(random_state=state, **setting).partial_fit(GOOD)
    assert state.randint(1000) == np.random.RandomState(0).randint(1000)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="auto means the accelerator where there is one")
def test_auto_is_the_cpu_where_there_is_nothing_faster():
    assert whole(small(device="auto").partial_fit(X32)) == whole(small().partial_fit(X32))


def test_a_model_on_another_device_learns_answers_in_numpy_and_moves_when_it_is_kept(tmp_path):
    growth = replace(eager().growth, burn_in=2, wait=5, passes=2)
    curl = eager(growth=growth, batch_size=10, device=str(ELSEWHERE)).partial_fit(X32)
    assert curl.n_components_ == 2
    assert curl._core.learner.model.device == ELSEWHERE
    answers = [getattr(curl, call)(X32) for call in ("predict_proba", "transform", "score_samples", "reconstruct")]
    assert {type(each) for each in (*answers, *curl.sample(3))} == {np.ndarray}
    curl.save(tmp_path / "m")
    assert CURL.load(tmp_path / "m")._core.learner.model.device == ELSEWHERE
    here = CURL.load(tmp_path / "m", device="cpu")
    assert here._core.learner.model.device == torch.device("cpu")
    np.testing.assert_allclose(here.transform(X32), curl.transform(X32), rtol=1e-5, atol=1e-6)
    assert here.partial_fit(X32).n_components_ >= 2
