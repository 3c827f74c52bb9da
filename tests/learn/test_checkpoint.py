import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from curlicue.config import (
    AtChange,
    BeforeBirth,
    Every,
    ExpansionConfig,
    LearnerConfig,
    Likelihood,
    ModelConfig,
    ReplayConfig,
)
from curlicue.errors import RunError
from curlicue.learn.checkpoint import FORMAT, load_checkpoint, save_checkpoint
from curlicue.learn.learner import Learner
from curlicue.learn.supervised import LabelledLearner
from curlicue.learn.trainer import Trainer
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng

N_X = 6
MODEL = ModelConfig(n_z=2, encoder=(8,), decoder=(7,))
GROWING = LearnerConfig(
    expansion=ExpansionConfig(c_new=0.0, n_new=30, burn_in=0, wait=3, passes=1),
    replay=ReplayConfig(snapshots=BeforeBirth()),
)
MEASURED = ExpansionConfig(c_new=None, deviations=0.5, n_new=3, burn_in=0, wait=3, passes=1)
LABELLED = LearnerConfig(expansion=None, replay=ReplayConfig(snapshots=Every(5), labelled=True))


def make(
    kind: type[Learner | LabelledLearner] = Learner,
    model: ModelConfig = MODEL,
    config: LearnerConfig = GROWING,
    n_x: int = N_X,
    seed: int = 0,
) -> Learner | LabelledLearner:
    rng = Rng.from_seed(seed)
    return kind(MixtureVAE.from_config(model, n_x, rng.init), config, rng)


def batch(learner: Trainer) -> tuple[Tensor, Tensor]:
    """Drawn from the learner's own generator, as a stream's are."""
    x = torch.rand(10, learner.model.n_x, generator=learner.rng.data).round()
    return x, torch.randint(3, (10,), generator=learner.rng.data)


def taught(learner: Learner | LabelledLearner, steps: int) -> Learner | LabelledLearner:
    while learner.t < steps:
        match learner:
            case Learner():
                learner.advance(lambda _: batch(learner)[0])
            case LabelledLearner():
                learner.advance(lambda _: batch(learner))
    return learner


def whole(learner: Learner | LabelledLearner) -> dict[str, Any]:
    """All that a learner's future depends on, values only."""
    state: dict[str, Any] = {f"model {name}": t.clone() for name, t in learner.model.state_dict().items()}
    state |= {f"rng {name}": t for name, t in learner.rng.state().items()}
    state |= {name: getattr(learner, name) for name in ("t", "snapshot_t", "rehearsal_due", "batch_size")}
    state |= {name: getattr(learner, name).clone() for name in ("counts", "past", "moved")}
    for name, moments in learner.optimiser.moments.items():
        state |= {f"{k} of {name}": t.clone() for k, t in moments.tensors.items()}
    if learner.snapshot:
        state |= {f"snapshot {name}": t.clone() for name, t in learner.snapshot.model.state_dict().items()}
        state["pi"] = learner.snapshot.pi.clone()
    if isinstance(learner, LabelledLearner):
        state["component_of"] = dict(learner.component_of)
    else:
        state["usage"], state["usage_rows"] = learner.usage.shares.clone(), learner.usage.rows
    if isinstance(learner, Learner) and learner.d_new:
        state["d_new"], state["numbers"] = learner.d_new.samples, learner.d_new.numbers
        state["seen"], state["normal"] = learner.d_new.seen, learner.d_new.normal.figures.clone()
        state["wait"] = learner.d_new.real_steps_to_wait
    return state


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    def equal(v: Any, w: Any) -> bool:
        return v.dtype == w.dtype and torch.equal(v, w) if isinstance(v, Tensor) else v == w

    return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)


@pytest.fixture
def learner() -> Learner | LabelledLearner:
    """It has grown twice, remembers itself, and has begun to gather the next D_new."""
    learner = make()
    while learner.model.K < 3 or len(learner.d_new.samples) < 20:
        taught(learner, learner.t + 1)
        assert learner.t < 100
    assert learner.snapshot.model.K == 2
    return learner


@pytest.fixture
def path(tmp_path: Path, learner: Learner | LabelledLearner) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, learner, {"lengths": {"events.jsonl": 3}})
    return path


# -- what was saved comes back -----------------------------------------------------------------------------------


def test_a_loaded_learner_is_the_saved_one(path, learner):
    fresh = make(seed=1)
    extra = load_checkpoint(path, fresh)
    assert same(whole(fresh), whole(learner))
    assert extra == {"lengths": {"events.jsonl": 3}}


@pytest.mark.parametrize(
    ("kind", "config", "model"),
    [
        (Learner, GROWING, MODEL),
        (Learner, GROWING, replace(MODEL, K=3, likelihood=Likelihood.GAUSSIAN)),
        (Learner, replace(GROWING, replay=ReplayConfig(snapshots=Every(7), labelled=True)), MODEL),
        (Learner, replace(GROWING, replay=ReplayConfig(snapshots=AtChange())), MODEL),
        (Learner, replace(GROWING, expansion=MEASURED), MODEL),
        (Learner, replace(GROWING, expansion=None), MODEL),
        (Learner, replace(GROWING, replay=None), MODEL),
        (LabelledLearner, LABELLED, MODEL),
    ],
    ids=["dynamic", "Gaussian", "SMGR", "at changes", "c_new measured", "no expansion", "no replay", "labelled"],
)
@pytest.mark.parametrize("t", [0, 7, 18])
def test_a_loaded_learner_goes_on_as_the_saved_one_would_have(tmp_path, kind, config, model, t):
    learner = taught(make(kind, model, config), t)
    save_checkpoint(tmp_path / "c", learner, {})
    loaded = make(kind, model, config, seed=1)
    load_checkpoint(tmp_path / "c", loaded)
    assert same(whole(loaded), whole(learner))
    assert same(whole(taught(loaded, 30)), whole(taught(learner, 30)))


def test_rows_at_rest_go_on_resting_as_they_would_have(tmp_path):
    config = LearnerConfig(expansion=None, replay=None, learning_rate=1e-9, tau=1.0)  # rows soon rest
    learner = taught(make(model=replace(MODEL, K=8), config=config), 20)
    heads = learner.optimiser.moments["heads.q_z_weight"]
    while not heads.first[heads.rested > 0].any():  # at rest, with something left that has yet to fade
        taught(learner, learner.t + 1)
        assert learner.t < 100
    rested = learner.optimiser.moments["heads.q_z_weight"].rested.clone()
    save_checkpoint(tmp_path / "c", learner, {})
    loaded = make(model=replace(MODEL, K=8), config=config, seed=1)
    load_checkpoint(tmp_path / "c", loaded)
    assert same(whole(taught(loaded, 120)), whole(taught(learner, 120)))
    assert (learner.optimiser.moments["heads.q_z_weight"].rested < rested).any()  # some have returned


def test_what_is_saved_beside_the_learner_comes_back_exactly(tmp_path):
    extra = {"bound": -0.1 - 0.2, "tiny": 5e-324, "seconds": 1 / 3, "pending": [{"t": 3, "rehearsed": False}]}
    save_checkpoint(tmp_path / "c", make(), extra)
    assert load_checkpoint(tmp_path / "c", make()) == extra


def test_a_loaded_snapshot_is_out_of_reach_of_learning(path):
    fresh = make()
    load_checkpoint(path, fresh)
    assert not fresh.snapshot.model.training
    assert not any(p.requires_grad for p in fresh.snapshot.model.parameters())
    own = {p.data_ptr() for p in fresh.model.parameters()}
    assert own.isdisjoint(p.data_ptr() for p in fresh.snapshot.model.parameters())


def test_saving_and_loading_do_not_change_what_was_saved(path, learner):
    before, written = whole(learner), path.read_bytes()
    save_checkpoint(path, learner, {"lengths": {"events.jsonl": 3}})
    assert same(whole(learner), before)
    loaded = make()
    load_checkpoint(path, loaded)
    taught(loaded, loaded.t + 10)
    assert path.read_bytes() == written


def test_the_same_state_gives_the_same_bytes(path, learner, tmp_path):
    loaded = make()
    extra = load_checkpoint(path, loaded)
    save_checkpoint(tmp_path / "again", loaded, extra)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(path, learner, monkeypatch, call):
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    before = path.read_bytes()
    taught(learner, learner.t + 1)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(path, learner, {})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# -- what cannot be used -----------------------------------------------------------------------------------------


def refusal(path: Path, learner: Learner | LabelledLearner) -> str:
    """The error; the file and the learner, and all that it can still become, are as they were."""
    written = path.read_bytes() if path.is_file() else None
    state, optimiser, parameters = whole(learner), learner.optimiser, list(learner.model.parameters())
    with pytest.raises(RunError) as error:
        load_checkpoint(path, learner)
    assert same(whole(learner), state)
    assert learner.optimiser is optimiser
    assert all(now is then for now, then in zip(learner.model.parameters(), parameters, strict=True))
    assert (path.read_bytes() if path.is_file() else None) == written
    assert "\n" not in str(error.value)
    return str(error.value)


def rewritten(path: Path, metadata: Callable[[dict[str, str]], dict[str, str] | None]) -> None:
    """The same tensors with other metadata."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        old = file.metadata()
    save_file(tensors, path, metadata=metadata(old))


@pytest.mark.parametrize("kept", [0.0, 0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(path, kept):
    whole_file = path.read_bytes()
    path.write_bytes(whole_file[: int(kept * len(whole_file))])
    message = refusal(path, make())
    assert message.startswith(f"{path} is not a whole checkpoint (")
    assert message.endswith("). Start the run anew without --resume.")


@pytest.mark.parametrize("where", [0.4, 0.7, 0.95, -1])
def test_a_checkpoint_with_one_bit_changed_is_refused(path, where):
    contents = bytearray(path.read_bytes())
    place = where if where == -1 else int(where * len(contents))
    contents[place] ^= 1
    path.write_bytes(contents)
    assert refusal(path, make()).startswith(f"{path} is not a whole checkpoint (")


def test_a_checkpoint_with_an_edited_number_is_refused(path, learner):
    contents = path.read_bytes()
    edited = contents.replace(rb"\"t\": %d" % learner.t, rb"\"t\": %d" % (learner.t - 1))
    assert len(edited) == len(contents)
    assert edited != contents
    path.write_bytes(edited)
    assert refusal(path, make()) == (
        f"{path} is not a whole checkpoint (its contents do not have the checksum they were written with). "
        "Start the run anew without --resume."
    )


def test_a_checkpoint_without_its_checksum_is_refused(path):
    contents = path.read_bytes()
    edited = contents.replace(b"sha256", b"sha-no")
    assert edited != contents
    path.write_bytes(edited)
    assert "do not have the checksum they were written with" in refusal(path, make())


def test_a_text_is_not_a_checkpoint(path):
    path.write_text("not a checkpoint, but long enough to have a header of eight bytes")
    assert refusal(path, make()).startswith(f"{path} is not a whole checkpoint (")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}], ids=["no metadata", "other metadata"])
def test_a_safetensors_file_of_another_program_is_not_a_checkpoint(path, metadata):
    rewritten(path, lambda _: metadata)
    assert refusal(path, make()) == (
        f"{path} is not a whole checkpoint (curlicue did not write it). Start the run anew without --resume."
    )


@pytest.mark.parametrize(
    ("text", "seen"),
    [("[]", "its metadata name no format"), ("{", "Expecting property name enclosed in double quotes")],
)
def test_a_checkpoint_with_damaged_metadata_is_refused(path, text, seen):
    rewritten(path, lambda old: {**old, "curlicue": text})
    assert refusal(path, make()).startswith(f"{path} is not a whole checkpoint ({seen}")


def test_a_checkpoint_of_a_newer_format_is_refused_without_a_look_inside(path):
    newer = json.dumps({"format": FORMAT + 1, "something": "else", "sha256": "of something else"})
    save_file({"unknown": torch.zeros(1)}, path, metadata={"curlicue": newer})
    assert refusal(path, make()) == (
        f"{path} has checkpoint format {FORMAT + 1}, this version of curlicue reads {FORMAT}. "
        "Go on with the version that wrote it."
    )


def test_a_missing_checkpoint_is_refused(tmp_path):
    assert refusal(tmp_path / "none", make()).startswith(f"{tmp_path / 'none'} is not a whole checkpoint (")


OTHER_SETTINGS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "n_z": ({"model": replace(MODEL, n_z=3)}, "model/decoder.weights.0", "float32 [2, 7]", "float32 [3, 7]"),
    "encoder": ({"model": replace(MODEL, encoder=(9,))}, "model/encoder.biases.0", "float32 [8]", "float32 [9]"),
    "deeper": ({"model": replace(MODEL, encoder=(8, 8))}, "model/encoder.biases.1", "absent", "float32 [8]"),
    "decoder": ({"model": replace(MODEL, decoder=(5,))}, "model/decoder.biases.0", "float32 [7]", "float32 [5]"),
    "features": ({"n_x": 7}, "d_new/samples", "float32 [20, 6]", "float32 [20, 7]"),
    "likelihood": (
        {"model": replace(MODEL, likelihood=Likelihood.GAUSSIAN)},
        *("model/p_x.raw_var", "absent", "float32 [6]"),
    ),
    "no replay": ({"config": replace(GROWING, replay=None)}, "learner/pi", "float64 [2]", "absent"),
    "no expansion": ({"config": replace(GROWING, expansion=None)}, "d_new/numbers", "int64 [20]", "absent"),
}


@pytest.mark.parametrize("change", OTHER_SETTINGS)
def test_a_checkpoint_that_does_not_fit_the_settings_is_refused(path, change):
    settings, name, seen, wanted = OTHER_SETTINGS[change]
    assert refusal(path, make(**settings)) == (
        f"{path} does not fit the settings: {name} is {seen} in it, but these settings make it {wanted}. "
        "Resume with the settings it was written with."
    )


def test_an_unsupervised_checkpoint_cannot_go_on_with_labels_nor_the_other_way_round(tmp_path):
    without, with_labels = make(config=replace(GROWING, expansion=None, replay=None)), make(LabelledLearner)
    save_checkpoint(tmp_path / "c", without, {})
    assert "component_of is absent in it, but these settings make it list" in refusal(tmp_path / "c", with_labels)
    save_checkpoint(tmp_path / "c", with_labels, {})
    assert "component_of is list in it, but these settings make it absent" in refusal(tmp_path / "c", without)


def test_a_checkpoint_from_before_expansion_was_switched_on_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c", make(config=replace(GROWING, expansion=None)), {})
    assert "learner/normal is absent in it, but these settings make it float64 [3, 1]" in refusal(
        tmp_path / "c", make()
    )


def test_a_failed_load_can_be_followed_by_one_that_works(path, learner):
    fresh, whole_file = make(seed=1), path.read_bytes()
    path.write_bytes(whole_file[:-1])
    refusal(path, fresh)
    path.write_bytes(whole_file)
    load_checkpoint(path, fresh)
    assert same(whole(fresh), whole(learner))


def test_generators_are_not_shared_between_learners_by_loading(path, learner):
    fresh = make(seed=1)
    load_checkpoint(path, fresh)
    torch.rand(1, generator=fresh.rng.latent)
    assert not torch.equal(fresh.rng.latent.get_state(), learner.rng.latent.get_state())
