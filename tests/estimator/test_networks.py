"""Networks of one's own and by name: learnt with, saved, loaded, and refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from curlicue.errors import RunError
from curlicue.estimator import CURL
from curlicue.growth.protocol import Tuned
from curlicue.growth.threshold import Threshold
from estimators import D, refused, rows, small, whole

X32 = rows(40).astype(np.float32)
Z = 2  # dimensions of z


def encoder(n_x: int = D) -> nn.Module:
    return nn.Sequential(nn.Linear(n_x, 6), nn.BatchNorm1d(6), nn.Tanh())


def decoder(n_z: int = Z, n_x: int = D) -> nn.Module:
    return nn.Sequential(nn.Linear(n_z, 7), nn.ReLU(), nn.Linear(7, n_x))


class Shifted(nn.Module):
    """Of torch's words on it, the name of the class is all."""

    def __init__(self, n_x: int = D, n_h: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, n_x * n_h).view(n_x, n_h))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Squared(Shifted):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square()


def growing(**settings: Any) -> CURL:
    """It has three components after 40 mini-batches."""
    growth = Threshold(c_new=1e6, n_new=1, burn_in=5, wait=5, passes=2, tuned=Tuned.ALL)
    return small(**{"growth": growth, "max_components": 3, "batch_size": 10} | settings)


OWN: dict[str, dict[str, Any]] = {
    "modules": {"encoder": encoder(), "decoder": decoder()},
    "functions": {"encoder": encoder, "decoder": decoder},
    "an encoder alone": {"encoder": encoder()},
    "a decoder alone": {"decoder": decoder},
    "no torch names": {"encoder": Shifted()},
}

# -- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("networks", OWN.values(), ids=OWN)
def test_networks_of_ones_own_learn_grow_and_answer(networks):
    curl = growing(**networks).partial_fit(rows(20))
    before = curl.score(rows(100, seed=1))
    curl.partial_fit(rows(2000))
    assert curl.n_components_ == 3
    assert curl.score(rows(100, seed=1)) > before
    assert curl.transform(X32).shape == (40, Z)
    assert curl.reconstruct(X32).shape == (40, D)


def test_a_module_is_copied_and_stays_as_it_was():
    module = encoder().double()
    before = copy.deepcopy(module.state_dict())
    once, again = (growing(encoder=module).partial_fit(rows(200)) for _ in range(2))
    assert whole(once) == whole(again)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


def test_frozen_parameters_of_a_module_stay():
    module = encoder().requires_grad_(False)
    curl = growing(encoder=module).partial_fit(rows(200))
    learnt = curl._core.learner.model.encoder
    assert all(torch.equal(a, b) for a, b in zip(learnt.parameters(), module.parameters(), strict=True))


def test_what_a_function_draws_depends_on_the_random_state_alone():
    taught = []
    for seed in (0, 0, 1):
        torch.rand(1)  # the user's own
        state = torch.get_rng_state()
        taught.append(whole(growing(encoder=encoder, decoder=decoder, random_state=seed).partial_fit(rows(50))))
        assert torch.equal(torch.get_rng_state(), state)
    assert taught[0] == taught[1] != taught[2]


def test_functions_are_given_the_sizes_of_what_goes_in_and_comes_out():
    told: list[tuple[int, ...]] = []
    noted = lambda make: lambda *sizes: (told.append(sizes), make(*sizes))[1]  # noqa: E731
    growing(encoder=noted(encoder), decoder=noted(decoder)).partial_fit(X32)
    assert told == [(D,), (Z, D)]


# -- conv ------------------------------------------------------------------------------------------------------------

IMAGES = [(8, 8), (7, 5), (1, 1), (2, 3), (8, 6, 3), (5, 4, 2), (30, 1, 1), (3, 8, 6), (1, 9, 13)]  # two channels first


@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_conv_takes_images_of_any_height_width_and_channels(shape):
    images = 0.2 * np.random.default_rng(0).random((60, *shape)).astype(np.float32)
    curl = growing(encoder="conv", decoder="conv", likelihood="bernoulli", growth=None).partial_fit(images[:10])
    before = curl.score(images)
    for _ in range(5):
        curl.partial_fit(images)
    assert curl.score(images) > before
    assert curl.transform(images).shape == (60, Z)
    assert curl.reconstruct(images).shape == images.shape
    assert curl.sample(4)[0].shape == (4, *shape)


def test_channels_first_and_channels_last_are_the_same_images():
    images = np.random.default_rng(0).random((40, 3, 8, 6)).astype(np.float32)
    first, last = (
        small(encoder="conv", decoder="conv", likelihood="bernoulli").partial_fit(x)
        for x in (images, images.transpose(0, 2, 3, 1))
    )
    seen = last.reconstruct(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(first.reconstruct(images), seen, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", ["encoder", "decoder"])
@pytest.mark.parametrize("X", [X32, np.zeros((9, 2, 2, 2, 2))], ids=["rows", "four axes"])
def test_conv_is_for_images_and_says_so_of_anything_else(which, X):
    curl = small(**{which: "conv"})
    before = dict(vars(curl))
    assert refused(lambda: curl.partial_fit(X)) == (
        "A 'conv' network takes images [height, width] or [height, width, channels]. "
        f"Samples have the shape {X.shape[1:]}: give images, or widths such as (256, 128)."
    )
    assert vars(curl) == before


# -- what does not fit -----------------------------------------------------------------------------------------------

MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "features": ({"encoder": nn.Linear(4, 3)}, "The encoder must take rows of 5 values. It fails on one: "),
    "n_z": ({"decoder": nn.Linear(3, D)}, "The decoder must take rows of 2 values. It fails on one: "),
    "output": ({"decoder": nn.Linear(Z, 4)}, "The decoder must give 5 values a row, as x has. Got 4 instead."),
    "no rows": ({"encoder": nn.Flatten(0)}, "The encoder must map rows to rows. Got an output of shape (5,) instead."),
    "several": ({"encoder": nn.LSTM(D, 3)}, "The encoder must map rows to rows. Got a tuple instead."),
    "no module": ({"encoder": lambda n: n}, "The 'encoder' function must return a torch.nn.Module. Got 5 instead."),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_network_that_does_not_fit_is_told_and_leaves_nothing_behind(case):
    networks, message = MISFITS[case]
    curl = small(**networks)
    before = dict(vars(curl))
    assert refused(lambda: curl.partial_fit(X32)).startswith(message)
    assert vars(curl) == before


# -- keeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("networks", OWN.values(), ids=OWN)
@pytest.mark.parametrize("keep", ["save", "pickle", "deepcopy"])
def test_networks_of_ones_own_are_kept_and_go_on_as_they_would_have(tmp_path, networks, keep):
    curl = growing(**networks).partial_fit(rows(300))
    match keep:
        case "save":
            curl.save(tmp_path / "m")
            again = CURL.load(tmp_path / "m", **networks)
        case "pickle":
            again = pickle.loads(pickle.dumps(curl))
        case "deepcopy":
            again = copy.deepcopy(curl)
    assert np.array_equal(again.score_samples(X32), curl.score_samples(X32))
    assert whole(again) == whole(curl)
    assert whole(again.partial_fit(rows(100, seed=1))) == whole(curl.partial_fit(rows(100, seed=1)))


def test_a_saved_function_may_come_back_as_a_module_and_the_other_way_round(tmp_path):
    curl = growing(encoder=encoder, decoder=decoder()).partial_fit(X32)
    curl.save(tmp_path / "m")
    assert whole(CURL.load(tmp_path / "m", encoder=encoder(), decoder=decoder)) == whole(curl)


def test_a_loaded_model_begins_anew_with_the_networks_given(tmp_path):
    growing(encoder=encoder).partial_fit(X32).save(tmp_path / "m")
    again = CURL.load(tmp_path / "m", encoder=encoder)
    assert again.get_params()["encoder"] is encoder
    assert whole(again.fit(X32)) == whole(growing(encoder=encoder).fit(X32))


def test_a_conv_pair_needs_nobody_to_come_back(tmp_path):
    images = np.random.default_rng(0).random((30, 7, 5)).astype(np.float32)
    curl = growing(encoder="conv", decoder="conv", likelihood="bernoulli").partial_fit(images)
    curl.save(tmp_path / "m")
    assert whole(CURL.load(tmp_path / "m")) == whole(curl)


def saved(path: Path, **networks: Any) -> Path:
    growing(**networks).partial_fit(X32).save(path / "m")
    return path / "m"


WORDS = "Sequential( (0): Linear(in_features=5, out_features=6, bias=True) (1): BatchNorm1d("
RELU = nn.Sequential(nn.Linear(D, 6), nn.BatchNorm1d(6), nn.ReLU())
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "missing": ({"encoder": encoder}, {}, f"The model in PATH needs the encoder it was saved with: {WORDS}"),
    "no network": ({"encoder": encoder}, {"encoder": (16,)}, "The model in PATH needs the encoder it was saved with: "),
    "not needed": (
        {"encoder": encoder},
        {"encoder": encoder, "decoder": decoder},
        "The model in PATH has the decoder [16], none of your own. Leave out decoder=….",
    ),
    "other activation": (
        {"encoder": encoder},
        {"encoder": RELU},
        f"The model in PATH was saved with another encoder: {WORDS}",
    ),
    "other class": (
        {"encoder": Shifted()},
        {"encoder": Squared()},
        "The model in PATH was saved with another encoder: Shifted(). Got Squared() instead. Give the one it was",
    ),
    "other width": (
        {"encoder": Shifted()},
        {"encoder": Shifted(n_h=4)},
        "PATH does not fit the settings: state/engine/model/",
    ),
    "other features": (
        {"encoder": Shifted()},
        {"encoder": Shifted(n_x=4)},
        "PATH cannot be read: The encoder must take rows of 5 values. It fails on one: ",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_network_than_was_saved_is_one_clear_sentence(tmp_path, case):
    was, now, message = WRONG[case]
    path = saved(tmp_path, **was)
    told = refused(lambda: CURL.load(path, **now), RunError)
    assert told.startswith(message.replace("PATH", str(path)))
    assert told.endswith((".", "…)."))


def test_what_is_missing_is_asked_for_by_name(tmp_path):
    path = saved(tmp_path, encoder=encoder, decoder=decoder)
    for given, wanted in (({}, "encoder"), ({"encoder": encoder}, "decoder")):
        told = refused(lambda given=given: CURL.load(path, **given), RunError)
        assert f"needs the {wanted} it was saved with: Sequential(" in told
        assert told.endswith(f"Give it as a module, or as a function that makes one: CURL.load(path, {wanted}=…).")


def test_weights_of_other_shapes_are_told_with_what_to_give(tmp_path):
    path = saved(tmp_path, encoder=Shifted())
    told = refused(lambda: CURL.load(path, encoder=Shifted(n_h=4)), RunError)
    assert told.endswith(" Give the encoder it was saved with.")


def test_neither_save_nor_load_ever_pickles(tmp_path, monkeypatch):
    def never(*args: object, **more: object) -> None:
        raise AssertionError("something was pickled")

    curl = growing(encoder=encoder, decoder=decoder()).partial_fit(rows(300))
    ways: dict[Any, tuple[str, ...]] = {
        pickle: ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"),
        torch: ("save", "load"),
    }
    for module, names in ways.items():
        for name in names:
            monkeypatch.setattr(module, name, never)
    curl.save(tmp_path / "m")
    assert whole(CURL.load(tmp_path / "m", encoder=encoder, decoder=decoder)) == whole(curl)
