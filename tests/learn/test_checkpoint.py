import copy
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from curlicue.config.kinds import option
from curlicue.config.model import Likelihood, ModelConfig
from curlicue.errors import RunError
from curlicue.growth.change import Change
from curlicue.growth.measured import Measured
from curlicue.growth.protocol import GrowthConfig
from curlicue.growth.split import Split
from curlicue.growth.threshold import Threshold
from curlicue.learn.checkpoint import FORMAT, Checkpoint, load_checkpoint, save_checkpoint, to_bytes
from curlicue.learn.events import ComponentBorn, SnapshotTaken
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.memory.protocol import MemoryConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import State, split
from curlicue.rng import Rng
from curlicue.systems.labelled import LabelledLearner
from learning import facts, ours, taught

N_X = 6
MODEL = ModelConfig(n_z=2, encoder=(8,), decoder=(7,))
THRESHOLD = Threshold(c_new=0.0, n_new=30, burn_in=0, wait=3, passes=1)
MEASURED = Measured(deviations=0.5, n_new=3, wait=3, passes=1)
DYNAMIC = Snapshot(snapshots="dynamic", labelled=False)
GROWING = LearnerConfig(growth=THRESHOLD, memory=DYNAMIC)
LABELLED = LearnerConfig(growth=None, memory=Snapshot(snapshots=5))


def make(
    kind: type[Learner] = Learner,
    model: ModelConfig = MODEL,
    config: LearnerConfig = GROWING,
    n_x: int = N_X,
    seed: int = 0,
) -> Learner:
    rng = Rng.from_seed(seed)
    return kind(MixtureVAE.from_config(model, n_x, rng.init), config, rng)


def go_on(learner: Learner, steps: int) -> list[tuple[object, ...]]:
    """What happens until so many steps have been taken; batches are drawn from the learner's own generator."""

    def batch(t: int) -> Any:
        x = torch.rand(10, learner.model.n_x, generator=learner.rng.data).round()
        labels = torch.randint(3, (10,), generator=learner.rng.data)
        return (x, labels) if isinstance(learner, LabelledLearner) else x

    return facts(taught(learner, batch, steps))


def whole(learner: Learner) -> State:
    """All that a learner has to say of itself, as it is now."""
    tensors, values = split(learner.state())
    return copy.deepcopy({name: t.detach() for name, t in tensors.items()} | values)


def same(a: State, b: State) -> bool:
    def equal(v: Any, w: Any) -> bool:
        return v.dtype == w.dtype and torch.equal(v, w) if isinstance(v, Tensor) else v == w

    return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)


@pytest.fixture
def learner() -> Learner:
    """It has grown twice, remembers itself, and has begun to gather the next D_new."""
    learner = make()
    while learner.model.K < 3 or "growth/d_new/samples" not in whole(learner):
        go_on(learner, learner.t + 1)
        assert learner.t < 100
    assert learner.memory.snapshot.K == 2
    go_on(learner, learner.t + 2)  # another real batch has joined
    return learner


@pytest.fixture
def path(tmp_path: Path, learner: Learner) -> Path:
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
        (Learner, replace(GROWING, z_samples=2), MODEL),
        (LabelledLearner, LABELLED, MODEL),
        (LabelledLearner, replace(LABELLED, memory=None), MODEL),
    ],
    ids=["dynamic", "Gaussian", "by autograd", "labelled", "labelled without a past"],
)
@pytest.mark.parametrize("t", [0, 7, 18])
def test_a_loaded_learner_goes_on_as_the_saved_one_would_have(tmp_path, kind, config, model, t):
    learner = make(kind, model, config)
    go_on(learner, t)
    save_checkpoint(tmp_path / "c", learner, {})
    loaded = make(kind, model, config, seed=1)
    load_checkpoint(tmp_path / "c", loaded)
    assert same(whole(loaded), whole(learner))
    assert go_on(loaded, 30) == go_on(learner, 30)
    assert same(whole(loaded), whole(learner))


# -- every rule of growth with every memory ------------------------------------------------------------------------

QUICK = {  # so that much happens in few steps; a kind that is not named here is as its defaults say
    "threshold": [vars(THRESHOLD)],
    "measured": [vars(MEASURED)],
    "change": [{"window": 50, "held": 50}],
    "split": [{"first_look": 100}],
    "structure": [{"change": Change(window=50, held=50), "split": Split(first_look=100)}],
    "reservoir": [{"size": 60}],
    "snapshot": [{"snapshots": s, "labelled": y} for s in (7, "dynamic", "change") for y in (True, False)],
}


def every(family: type[GrowthConfig] | type[MemoryConfig]) -> list[Any]:
    """Each kind of a family, and none."""
    kinds = ours(family).items()
    return [None, *(kind(**settings) for name, kind in kinds for settings in QUICK.get(name, [{}]))]


in_every_combination = pytest.mark.parametrize(
    "config",
    [
        LearnerConfig(growth=g, memory=m, max_components=5)
        for g in every(GrowthConfig)
        for m in every(MemoryConfig)
        if not (g and g.needs_rows) or (m and m.keeps_rows)
    ],
    ids=lambda config: f"{option(type(config.growth))}-{option(type(config.memory))}",
)


@in_every_combination
@pytest.mark.parametrize("t", [1, 13, 38])
def test_a_killed_and_resumed_learner_equals_an_uninterrupted_one(config, t):
    uninterrupted, killed = make(config=config), make(config=config)
    events, lost = go_on(uninterrupted, 80), go_on(killed, t)
    saved = to_bytes(killed, {})
    go_on(killed, t + 9)  # what it does after the checkpoint is lost with it
    resumed = make(config=config, seed=1)
    Checkpoint.of(saved, "c").restore(resumed)
    assert lost + go_on(resumed, 80) == events
    assert to_bytes(resumed, {}) == to_bytes(uninterrupted, {})


@in_every_combination
def test_the_same_seed_brings_the_same_events(config):
    first, again, other = (go_on(make(config=config, seed=seed), 40) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@in_every_combination
def test_the_bytes_of_a_checkpoint_are_bounded(config):
    learner, held = make(config=config), []
    for t in range(10, 310, 10):
        go_on(learner, t)
        held.append(sum(tensor.nbytes for tensor in split(learner.state())[0].values()))
    d_new = 4 * 10 * N_X * 10  # it is fuller at some times than at others, by several batches
    assert max(held[15:]) <= max(held[:15]) + d_new


@in_every_combination
def test_two_learners_that_go_on_from_one_checkpoint_do_not_touch_each_other(config):
    learner = make(config=config)
    go_on(learner, 23)
    checkpoint, loaded = Checkpoint.of(to_bytes(learner, {}), "c"), []
    for seed in (1, 2):
        loaded.append(make(config=config, seed=seed))
        checkpoint.restore(loaded[-1])
        loaded.append(go_on(loaded.pop(), 50))
    assert loaded[0] == loaded[1] == go_on(learner, 50)


def test_the_combinations_above_grow_and_remember():
    events = []
    for growth, memory in ((THRESHOLD, DYNAMIC), (MEASURED, Snapshot(snapshots="change"))):
        learner = make(config=LearnerConfig(growth=growth, memory=memory, max_components=5))
        events.append({kind for kind, *_ in go_on(learner, 80)})
    assert all({ComponentBorn, SnapshotTaken} <= kinds for kinds in events)


# -- what else comes back ----------------------------------------------------------------------------------------------


def test_rows_at_rest_go_on_resting_as_they_would_have(tmp_path):
    config = LearnerConfig(growth=None, memory=None, learning_rate=1e-9, tau=1.0)  # rows soon rest
    learner, rests = make(model=replace(MODEL, K=8), config=config), "engine/optimiser/heads.q_z_weight"
    go_on(learner, 20)
    while not (held := whole(learner))[f"{rests}/first"][held[f"{rests}/skipped"] > 0].any():
        go_on(learner, learner.t + 1)  # until some rest, with something left that has yet to fade
        assert learner.t < 100
    save_checkpoint(tmp_path / "c", learner, {})
    loaded = make(model=replace(MODEL, K=8), config=config, seed=1)
    load_checkpoint(tmp_path / "c", loaded)
    assert go_on(loaded, 120) == go_on(learner, 120)
    assert same(whole(loaded), whole(learner))
    assert (whole(learner)[f"{rests}/skipped"] < held[f"{rests}/skipped"]).any()  # some have returned


def test_networks_that_share_weights_can_be_saved(tmp_path):
    def tied() -> Learner:
        rng, layer = Rng.from_seed(0), nn.Linear(N_X, N_X)
        encoder = nn.ModuleDict({"a/b~1": layer, "c": layer})  # any names will do
        encoder.forward = lambda x: layer(layer(x).relu())
        return Learner(MixtureVAE.from_config(MODEL, N_X, rng.init, encoder=encoder), GROWING, rng)

    learner, loaded = tied(), tied()
    go_on(learner, 10)
    save_checkpoint(tmp_path / "c", learner, {})
    load_checkpoint(tmp_path / "c", loaded)
    assert same(whole(loaded), whole(learner))


def test_what_is_saved_beside_the_learner_comes_back_exactly(tmp_path):
    extra = {"bound": -0.1 - 0.2, "tiny": 5e-324, "seconds": 1 / 3, "pending": [{"t": 3, "rehearsed": False}]}
    save_checkpoint(tmp_path / "c", make(), extra)
    assert load_checkpoint(tmp_path / "c", make()) == extra


def test_a_loaded_snapshot_is_out_of_reach_of_learning(path):
    fresh = make()
    load_checkpoint(path, fresh)
    assert not fresh.memory.snapshot.training
    assert not any(p.requires_grad for p in fresh.memory.snapshot.parameters())
    own = {p.data_ptr() for p in fresh.model.parameters()}
    assert own.isdisjoint(p.data_ptr() for p in fresh.memory.snapshot.parameters())


def test_saving_and_loading_do_not_change_what_was_saved(path, learner):
    before, written = whole(learner), path.read_bytes()
    save_checkpoint(path, learner, {"lengths": {"events.jsonl": 3}})
    assert same(whole(learner), before)
    loaded = make()
    load_checkpoint(path, loaded)
    go_on(loaded, loaded.t + 10)
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
    go_on(learner, learner.t + 1)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(path, learner, {})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# -- what cannot be used -----------------------------------------------------------------------------------------


def refusal(path: Path, learner: Learner) -> str:
    """The error; the file and the learner, and all that it can still become, are as they were."""
    written = path.read_bytes() if path.is_file() else None
    state, parameters = whole(learner), list(learner.model.parameters())
    with pytest.raises(RunError) as error:
        load_checkpoint(path, learner)
    assert same(whole(learner), state)
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
    [
        ("[]", "expected an object, got list"),
        ("{}", "its metadata name no format"),
        ("{", "Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
    ids=["list", "empty", "cut", "deep"],
)
def test_a_checkpoint_with_damaged_metadata_is_refused(path, text, seen):
    rewritten(path, lambda old: {**old, "curlicue": text})
    assert refusal(path, make()).startswith(f"{path} is not a whole checkpoint ({seen}")


@pytest.mark.parametrize("format", [FORMAT - 1, FORMAT + 1], ids=["older", "newer"])
def test_a_checkpoint_of_another_format_is_refused_without_a_look_inside(path, format):
    other = json.dumps({"format": format, "something": "else", "sha256": "of something else"})
    save_file({"unknown": torch.zeros(1)}, path, metadata={"curlicue": other})
    assert refusal(path, make()) == (
        f"{path} has checkpoint format {format}, this version of curlicue reads {FORMAT}. "
        "Go on with the version that wrote it."
    )


def test_a_checkpoint_of_the_version_before_is_refused_in_a_sentence(path):
    """Its header as it was, with fewer tensors."""
    learner = {"t": 9, "snapshot_t": 0, "rehearsal_due": False, "batch_size": 10, "usage_rows": 90, "seen": 90}
    scalars = {"format": 7, "learner": learner, "extra": {}, "sha256": "5d41402abc4b2a76b9719d911017c592"}
    tensors = {"learner/counts": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}
    header = json.dumps({"__metadata__": {"curlicue": json.dumps(scalars)}, **tensors}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<d", 90.0))
    assert refusal(path, make()) == (
        f"{path} has checkpoint format 7, this version of curlicue reads 8. Go on with the version that wrote it."
    )


def test_a_missing_checkpoint_is_refused(tmp_path):
    assert refusal(tmp_path / "none", make()).startswith(f"{tmp_path / 'none'} is not a whole checkpoint (")


OTHER_SETTINGS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "n_z": ({"model": replace(MODEL, n_z=3)}, "engine/model/p_z_bias", "float32 [4]", "float32 [6]"),
    "encoder": (
        {"model": replace(MODEL, encoder=(9,))},
        *("engine/model/encoder.weights.0", "float32 [6, 8]", "float32 [6, 9]"),
    ),
    "deeper": (
        {"model": replace(MODEL, encoder=(8, 8))},
        *("engine/model/encoder.weights.1", "absent", "float32 [8, 8]"),
    ),
    "decoder": (
        {"model": replace(MODEL, decoder=(5,))},
        *("engine/model/decoder.weights.0", "float32 [2, 7]", "float32 [2, 5]"),
    ),
    "features": ({"n_x": 7}, "engine/model/encoder.weights.0", "float32 [6, 8]", "float32 [7, 8]"),
    "likelihood": (
        {"model": replace(MODEL, likelihood=Likelihood.GAUSSIAN)},
        *("engine/model/p_x.raw_var", "absent", "float32 [6]"),
    ),
    "no memory": ({"config": replace(GROWING, memory=None)}, "memory/used", "absent", "float64 [3]"),
    "other snapshots": (
        {"config": replace(GROWING, memory=Snapshot(snapshots="change"))},
        *("memory/change/shares", "absent", "float32 [2, 3]"),
    ),
    "no growth": ({"config": replace(GROWING, growth=None)}, "growth", "present", "absent"),
    "other growth": ({"config": replace(GROWING, growth=MEASURED)}, "growth/normal", "absent", "float64 [3, 3]"),
}


@pytest.mark.parametrize("change", OTHER_SETTINGS)
def test_a_checkpoint_that_does_not_fit_the_settings_is_refused(path, change):
    settings, name, seen, wanted = OTHER_SETTINGS[change]
    assert refusal(path, make(**settings)) == (
        f"{path} does not fit the settings: state/{name} is {seen} in it, but these settings make it {wanted}. "
        "Resume with the settings it was written with."
    )


def test_an_unsupervised_checkpoint_cannot_go_on_with_labels_nor_the_other_way_round(tmp_path):
    without, with_labels = (make(kind, config=LABELLED) for kind in (Learner, LabelledLearner))
    save_checkpoint(tmp_path / "c", without, {})
    assert "classes is absent in it, but these settings make it list" in refusal(tmp_path / "c", with_labels)
    save_checkpoint(tmp_path / "c", with_labels, {})
    assert "classes is list in it, but these settings make it absent" in refusal(tmp_path / "c", without)


def test_a_checkpoint_from_before_growth_was_switched_on_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c", make(config=replace(GROWING, growth=None)), {})
    assert "growth/d_new/seen is absent in it, but these settings make it int" in refusal(tmp_path / "c", make())


# -- damaged states with the right checksum ------------------------------------------------------------------------


class Told:
    """It says of itself what it is told to."""

    def __init__(self, state: State) -> None:
        self.state = lambda: state


def forged(path: Path, learner: Learner, name: str, value: Any) -> str:
    """The refusal of a checkpoint in which one field is another."""
    state = learner.state()
    *parents, last = name.split("/")
    inner = state
    for parent in parents:
        inner[parent] = dict(inner[parent])
        inner = inner[parent]
    inner[last] = value
    save_checkpoint(path, Told(state), {})
    fresh = make(type(learner), config=learner.config)
    message = refusal(path, fresh)
    assert message.endswith(". Resume with the settings it was written with.")
    return message


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("t", -1, "state/t is -1 in it, but these settings make it at least 0"),
        ("t", True, "state/t is bool in it, but these settings make it int"),
        ("t", {"a": 1}, "state/t is present in it, but these settings make it int"),
        ("rehearsal_due", 1, "state/rehearsal_due is int in it, but these settings make it bool"),
        ("rng/latent", torch.zeros(5056, dtype=torch.uint8), "state/rng holds no state of a generator"),
        ("rng", 3, "state/rng is int, not a state"),
        ("surplus", 3, "state/surplus is int in it, but these settings make it absent"),
        ("growth/d_new/surplus", 3, "state/growth/d_new/surplus is int in it, but these settings make it absent"),
        ("memory/usage/used", torch.zeros(3), "used is float32 [3] in it, but these settings make it float64 [3]"),
        (
            "memory/usage/past",
            torch.zeros(1).double(),
            "past is float64 [1] in it, but these settings make it float64 [2]",
        ),
        ("memory/pi", torch.zeros(1).double(), "p_z is float32 [2, 4] in it, but these settings make it float32 [1"),
        (
            "growth/d_new/numbers",
            torch.zeros(3).long(),
            "numbers is int64 [3] in it, but these settings make it int64 [",
        ),
    ],
)
def test_a_state_with_the_right_checksum_and_a_wrong_field_is_refused(tmp_path, learner, name, value, seen):
    assert seen in forged(tmp_path / "c", learner, name, value)


def test_a_state_that_wants_to_rehearse_without_a_past_is_refused(tmp_path):
    assert "holds nothing of the past, but says" in forged(tmp_path / "c", make(), "rehearsal_due", True)


@pytest.mark.parametrize("classes", [["zero"], [4, 4], [4, 5, 6, 7], [[4, 0]]])
def test_classes_that_are_not_one_label_a_component_are_refused(tmp_path, classes):
    learner = make(LabelledLearner, model=replace(MODEL, K=3), config=LABELLED)
    seen = forged(tmp_path / "c", learner, "classes", classes)
    assert "state/classes are not the labels of the model's 3 components" in seen


def test_our_own_mistakes_do_not_read_as_a_damaged_file(path):
    class Mistaken(Learner):
        def restore(self, fields: Any) -> None:
            raise TypeError("a mistake")

    with pytest.raises(TypeError, match="a mistake"):
        load_checkpoint(path, make(Mistaken))


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
