"""What is kept of a model, and who is refused."""

import copy
import hashlib
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest

from curlicue.errors import RunError
from curlicue.estimator import CURL
from estimators import refused, rows, small, whole

GOOD = rows(10)
X32 = rows(40).astype(np.float32)


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
            config.write_text(json.dumps(json.loads(config.read_text()) | {"format": 3}))
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
        ("newer", "has format 3, this version of curlicue reads 2. Load it with the version that saved it."),
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


def test_a_model_of_the_version_before_is_refused_in_one_clear_sentence(tmp_path):
    parameters = {
        "batch_size": 100, "c_new": "auto", "decoder": [8], "encoder": [8], "epochs": 10, "learning_rate": 0.001,
        "likelihood": "gaussian", "max_components": 100, "n_new": 100, "n_z": 2, "random_state": 0, "replay": "smgr",
        "snapshots": "change",
    }  # fmt: skip
    old = {"format": 1, "curlicue": "0.1.0", "parameters": parameters, "n_features_in": 5, "feature_names_in": None}
    old |= {"pixels": False, "state": "state-c6becfc412393698.safetensors"}
    digest = hashlib.sha256(json.dumps(old, sort_keys=True).encode()).hexdigest()
    (tmp_path / "config.json").write_text(json.dumps(old | {"sha256": digest}))
    (tmp_path / old["state"]).write_bytes(b"whatever it held")
    with pytest.raises(RunError) as error:
        CURL.load(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'config.json'} has format 1, this version of curlicue reads 2. "
        "Load it with the version that saved it."
    )


@pytest.mark.parametrize("named", [True, False], ids=["by its name", "by its settings"])
def test_growth_of_ones_own_is_kept_and_refused_where_it_has_not_been_imported(own, tmp_path, named):
    growth = "clockwork" if named else own.Clockwork(every=3)
    curl = small(growth=growth, batch_size=10, max_components=None).partial_fit(rows(95))
    curl.save(tmp_path / "m")
    again = CURL.load(tmp_path / "m")
    assert whole(again.partial_fit(rows(50))) == whole(curl.partial_fit(rows(50)))
    assert again.n_components_ == (4 if named else 6)

    del curl, again, growth
    own.forget()
    what = "'clockwork'" if named else "a Clockwork"
    assert refused(lambda: CURL.load(tmp_path / "m"), RunError) == (
        f"{tmp_path / 'm'} cannot be read: growth is {what}, which nothing imported so far defines. "
        "Import the module that does."
    )


def test_a_memory_of_ones_own_is_kept_with_what_it_remembers(own, tmp_path):
    curl = small(memory=own.Echo(), batch_size=10).partial_fit(rows(95))
    curl.save(tmp_path / "m")
    again = CURL.load(tmp_path / "m")
    assert again.get_params() == curl.get_params()
    assert whole(again.partial_fit(rows(50))) == whole(curl.partial_fit(rows(50)))


def test_what_config_says_of_the_features_must_agree_with_the_model(curl, tmp_path):
    curl.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for wrong in ({"n_features_in": 4}, {"feature_names_in": ["a", "b"]}):
        changed = {name: each for name, each in (config | wrong).items() if name != "sha256"}
        digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
        (tmp_path / "config.json").write_text(json.dumps(changed | {"sha256": digest}))
        assert refused(lambda: CURL.load(tmp_path), RunError).startswith(f"{tmp_path} ")
