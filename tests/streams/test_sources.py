import hashlib
import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from curlicue.errors import DataError
from curlicue.experiments.presets import GREY
from curlicue.streams import fetch, sources
from curlicue.streams.fetch import OfficialFile
from curlicue.streams.sources import Source, from_arrays, load, parse_idx

FULL_DATA = Path(os.environ.get("CURLICUE_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()
NAMES = tuple(fetch.FILES)  # of all data sets


@pytest.fixture(autouse=True)
def _an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURLICUE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CURLICUE_DATA", raising=False)


def needs_full(dataset: str) -> pytest.MarkDecorator:
    names = [file.name for file in fetch.FILES[dataset]]
    found = any(all((folder / name).exists() for name in names) for folder in (FULL_DATA, FULL_DATA / dataset))
    return pytest.mark.skipif(not found, reason=f"needs {', '.join(names)} in $CURLICUE_DATA")


def publish(monkeypatch: pytest.MonkeyPatch, folder: Path, dataset: str, files: dict[str, bytes]) -> None:
    """Put the files into a folder and make them the official ones."""
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    table = tuple(OfficialFile(dataset, n, (hashlib.sha256(c).hexdigest(),)) for n, c in files.items())
    monkeypatch.setattr(
        fetch,
        "FILES",
        fetch.FILES | dict.fromkeys((dataset, *(f"{dataset}-{kind}" for kind in ("60k", "grey", "validation"))), table),
    )


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def check_is_sound(source: Source) -> None:
    for split in (source.train, source.test):
        assert split.x.shape == (len(split.labels), source.n_features)
        assert (split.x.dtype, split.labels.dtype) == (torch.float32, torch.int64)
        assert split.x.min() == 0
        assert split.x.max() == 1
        assert split.labels.unique().tolist() == list(range(source.n_classes))


def is_binary(source: Source) -> bool:
    return bool(((source.train.x == 0) | (source.train.x == 1)).all())


# digits


def test_digits_are_binary_and_split_80_to_20_within_every_class():
    digits = load("digits")
    check_is_sound(digits)
    assert is_binary(digits)
    assert (digits.shape, digits.classes) == ((8, 8), tuple("0123456789"))
    train, test = digits.train.labels.bincount(), digits.test.labels.bincount()
    assert (train + test).sum() == 1797
    assert torch.allclose(test / (train + test), torch.tensor(0.2), atol=0.005)


def test_digits_are_always_the_same_and_leave_global_randomness_alone():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first = load("digits")
    np.testing.assert_array_equal(before, np.random.get_state()[1])
    torch.manual_seed(2)
    assert torch.equal(first.test.x, load("digits").test.x)
    assert first.train.x.sum() == 27_048


# MNIST


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """12 + 10 images of 2×2 pixels; image i has label i % 10."""
    images = np.array([127, 128, 0, 255], np.uint8) * np.ones((12, 1), np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    files = {
        "train-images-idx3-ubyte": idx(images.reshape(12, 2, 2)),
        "train-labels-idx1-ubyte": idx(labels),
        "t10k-images-idx3-ubyte": idx(images[:10].reshape(10, 2, 2)),
        "t10k-labels-idx1-ubyte": idx(labels[:10]),
    }
    publish(monkeypatch, tmp_path, "mnist", files)
    return tmp_path


def test_mnist_keeps_the_last_sixth_of_the_training_images_for_validation(small_mnist):
    mnist, validation = load("mnist", small_mnist), load("mnist-validation", small_mnist)
    assert mnist.train.labels.tolist() == list(range(10))
    assert mnist.test.labels.tolist() == list(range(10))
    assert torch.equal(validation.train.x, mnist.train.x)
    assert validation.test.labels.tolist() == [0, 1]


def test_mnist_60k_trains_on_all_training_images(small_mnist):
    mnist = load("mnist-60k", small_mnist)
    assert (mnist.name, len(mnist.train.x)) == ("mnist-60k", 12)


def test_mnist_pixels_are_one_above_half_of_255(small_mnist):
    assert load("mnist", small_mnist).train.x[0].tolist() == [0, 1, 0, 1]


def test_mnist_grey_keeps_the_greys(small_mnist):
    grey, binary = load("mnist-grey", small_mnist), load("mnist", small_mnist)
    assert len(set(grey.train.x.flatten().tolist())) > 2
    assert grey.train.x.amax() <= 1
    for name in ("train", "test"):
        mine, other = getattr(grey, name), getattr(binary, name)
        assert torch.equal((mine.x > 0.5).float(), other.x)
        assert torch.equal(mine.labels, other.labels)


@needs_full("mnist")
def test_the_full_mnist_is_the_one_everybody_knows():
    mnist = load("mnist", FULL_DATA)
    check_is_sound(mnist)
    assert is_binary(mnist)
    assert (len(mnist.train.x), len(mnist.test.x)) == (50_000, 10_000)
    assert mnist.shape == (28, 28)
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.train.x.mean().item() == pytest.approx(0.13256, abs=1e-5)


def test_idx_bytes_come_back_as_they_were_written():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(parse_idx(idx(array), 3, "a.idx"), array)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "a.idx is no IDX file .* header of 8 bytes that begins with 00000801, saw nothing in 0 bytes"),
        (b"\0\0\x08\x01\0\0", "saw 00000801 in 6 bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "saw 00000d01"),
        (idx(np.zeros((2, 2), np.uint8)), "saw 00000802"),
        (
            idx(np.zeros(5, np.uint8))[:-1],
            "promises 5 values after a header of 8 bytes, but has 12 bytes in all",
        ),
        (idx(np.zeros(5, np.uint8)) + b"\0", "promises 5 values .* has 14 bytes in all. Replace it"),
    ],
)
def test_an_idx_file_that_is_not_one_is_refused(raw, message):
    with pytest.raises(DataError, match=message):
        parse_idx(raw, 1, "a.idx")


# Omniglot


def png(black_rows: int) -> bytes:
    """A white 105×105 drawing with black rows at its top."""
    pixels = np.full((105, 105), True)
    pixels[:black_rows] = False
    raw = io.BytesIO()
    Image.fromarray(pixels).save(raw, "PNG")
    return raw.getvalue()


def archive(folder: str, alphabets: dict[str, int], shift: int) -> bytes:
    """So many characters of 20 drawings each, the last one first; drawing d has d + shift black rows."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as opened:
        opened.writestr(f"{folder}/", b"")
        opened.writestr(f"__MACOSX/{folder}/Greek/character01/._0700_01.png", b"no picture")
        for alphabet, n_characters in alphabets.items():
            for character in range(n_characters):
                for d in reversed(range(20)):
                    name = f"{folder}/{alphabet}/character{character + 1:02}/{character + 700:04}_{d + 1:02}.png"
                    opened.writestr(name, png(d + shift))
    return raw.getvalue()


@pytest.fixture
def small_omniglot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "images_background.zip": archive("images_background", {"Greek": 2, "Braille": 1}, shift=1),
        "images_evaluation.zip": archive("images_evaluation", {"Keble": 1}, shift=41),
    }
    publish(monkeypatch, tmp_path, "omniglot", files)
    return tmp_path


def test_omniglot_has_alphabets_as_classes_and_15_to_5_drawings_of_each_character(small_omniglot):
    omniglot = load("omniglot", small_omniglot)
    assert (omniglot.classes, omniglot.shape) == (("Braille", "Greek", "Keble"), (28, 28))
    assert omniglot.train.labels.bincount().tolist() == [15, 30, 15]
    assert omniglot.test.labels.bincount().tolist() == [5, 10, 5]


def test_the_first_15_drawings_by_file_name_are_for_training(small_omniglot):
    omniglot = load("omniglot", small_omniglot)
    inked_rows = omniglot.train.x[omniglot.train.labels == 2].mean(1) * 105
    assert torch.allclose(inked_rows, torch.arange(41.0, 56.0), atol=0.5)
    inked_rows = omniglot.test.x[omniglot.test.labels == 2].mean(1) * 105
    assert torch.allclose(inked_rows, torch.arange(56.0, 61.0), atol=0.5)


def test_omniglot_strokes_are_averaged_and_white_on_black(small_omniglot):
    image = load("omniglot", small_omniglot).train.x[4].reshape(28, 28)  # 5 black rows
    assert image[0].unique().tolist() == [1]
    assert torch.allclose(image[1], torch.tensor(1 / 3), atol=0.5 / 255)  # rows 3.75 to 5 of 3.75 to 7.5
    assert image[2:].unique().tolist() == [0]


def test_the_data_sets_that_settings_take_for_grey_are_those_with_greys(small_mnist, small_omniglot):
    assert {name for name in (*NAMES, "digits") if not is_binary(load(name, small_omniglot))} == set(GREY)


def cached_arrays(folder: Path) -> Path:
    (path,) = (folder / "cache").rglob("*.npz")
    return path


def test_omniglot_is_decoded_once(small_omniglot, monkeypatch):
    first = load("omniglot", small_omniglot)
    monkeypatch.setattr(sources, "_decode", None)
    second = load("omniglot", small_omniglot)
    assert second.classes == first.classes
    for a, b in ((first.train, second.train), (first.test, second.test)):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.labels, b.labels)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other"])
def test_a_damaged_cache_of_decoded_drawings_is_just_rebuilt(small_omniglot, damage):
    first = load("omniglot", small_omniglot)
    path = cached_arrays(small_omniglot)
    intact = path.read_bytes()
    if damage == "other":
        np.savez(path, images=np.zeros(3))
    else:
        flipped = intact[:5000] + bytes((intact[5000] ^ 255,)) + intact[5001:]
        path.write_bytes({"empty": b"", "cut": intact[:-100], "flipped": flipped}[damage])
    assert torch.equal(load("omniglot", small_omniglot).train.x, first.train.x)
    with np.load(path) as rebuilt:
        assert rebuilt["images"].shape == (80, 28, 28)


def test_other_archives_do_not_meet_the_drawings_of_these(small_omniglot, monkeypatch):
    load("omniglot", small_omniglot)
    files = {
        "images_background.zip": archive("images_background", {"Latin": 1}, shift=1),
        "images_evaluation.zip": archive("images_evaluation", {"Keble": 1}, shift=41),
    }
    publish(monkeypatch, small_omniglot, "omniglot", files)
    assert load("omniglot", small_omniglot).classes == ("Keble", "Latin")


def test_a_cache_that_cannot_be_written_only_costs_time(small_omniglot, monkeypatch):
    (small_omniglot / "file").touch()
    monkeypatch.setenv("CURLICUE_CACHE", str(small_omniglot / "file"))
    assert load("omniglot", small_omniglot).n_classes == 3


@needs_full("omniglot")
def test_the_full_omniglot_has_1623_characters_of_50_alphabets():
    omniglot = load("omniglot", FULL_DATA)
    check_is_sound(omniglot)
    assert (len(omniglot.train.x), len(omniglot.test.x)) == (1623 * 15, 1623 * 5)
    assert (omniglot.n_classes, omniglot.shape) == (50, (28, 28))
    assert torch.equal(omniglot.train.labels.bincount(), 3 * omniglot.test.labels.bincount())
    assert omniglot.test.labels.bincount()[omniglot.classes.index("Greek")] == 24 * 5
    assert 0.07 < omniglot.train.x.mean() < 0.09  # white strokes on black


# arrays

X, LABELS = np.arange(12).reshape(3, 2, 2) / 12, np.array([0, 1, 1])


def test_arrays_and_tensors_and_lists_make_the_same_source():
    from_numpy = from_arrays("mine", X, LABELS, X, LABELS)
    assert (from_numpy.name, from_numpy.shape, from_numpy.classes) == ("mine", (2, 2), ("0", "1"))
    assert (from_numpy.n_features, from_numpy.n_classes) == (4, 2)
    tensor = torch.tensor(X, requires_grad=True)
    for x, labels in ((tensor, torch.tensor(LABELS)), (X.tolist(), LABELS.tolist())):
        other = from_arrays("mine", x, labels, x, labels)
        assert torch.equal(other.train.x, from_numpy.train.x)
        assert torch.equal(other.test.labels, from_numpy.test.labels)
        assert not other.train.x.requires_grad


def test_flat_samples_take_the_shape_and_the_names_they_are_given():
    flat = X.reshape(3, 4)
    assert from_arrays("mine", flat, LABELS, flat, LABELS).shape == (4,)
    named = from_arrays("mine", flat, LABELS, flat, LABELS, shape=[2, 2], classes=["cat", "dog", "unseen"])
    assert (named.shape, named.classes) == ((2, 2), ("cat", "dog", "unseen"))


def test_a_source_does_not_change_with_the_arrays_it_came_from():
    for x in (X.astype(np.float32), torch.tensor(X, dtype=torch.float32)):
        labels = LABELS.astype(np.int64)
        source = from_arrays("mine", x, labels, x, labels)
        x[:], labels[:] = 7, 7
        assert source.train.x.max() < 1
        assert source.train.labels.tolist() == [0, 1, 1]


def test_read_only_arrays_are_welcome():
    x = X.copy()
    x.setflags(write=False)
    assert len(from_arrays("mine", x, LABELS, x, LABELS).train.x) == 3


def with_value(value: float) -> np.ndarray:
    x = X.copy()
    x[1, 0, 1] = value
    return x


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": with_value(np.nan)}, "^x holds NaN or infinite values in 1 of 3 samples. Remove"),
        ({"test_x": with_value(1e300)}, "^test_x holds NaN or infinite values in 1 of 3"),
        ({"x": X[:0], "labels": LABELS[:0]}, r"^x must hold at least one sample .* its shape is \[0, 2, 2\]"),
        ({"test_x": X[0, 0]}, r"^test_x must hold .* its shape is \[2\]. Reshape it"),
        ({"x": [["a", "b"]]}, "^x does not hold numbers"),
        ({"x": [[1, 2], [3]]}, "^x does not hold numbers"),
        (
            {"labels": LABELS[:2]},
            r"^labels must hold one label for each of the 3 samples; its shape is \[2\]",
        ),
        ({"test_labels": np.eye(3, dtype=int)}, r"^test_labels must hold one label .* its shape is \[3, 3\]"),
        ({"labels": LABELS - 1}, "^labels must be whole numbers from 0; saw values from -1. Number"),
        ({"labels": LABELS / 2}, "^labels must be whole numbers from 0; saw type float64"),
        ({"labels": ["a", "b", "c"]}, "^labels must be whole numbers from 0; saw type <U1"),
        ({"test_x": X[:, 0]}, r"shape \(2, 2\) has 4 features, but each of test_x has 2"),
        ({"shape": (3, 3)}, r"shape \(3, 3\) has 9 features, but each of x has 4"),
        ({"classes": ["cat"]}, "There are 1 class names, but the labels go up to 1. Name every class"),
    ],
)
def test_arrays_that_cannot_be_a_source_are_refused_with_the_reason(changed, message):
    good = {"x": X, "labels": LABELS, "test_x": X, "test_labels": LABELS}
    with pytest.raises(DataError, match=message):
        from_arrays("mine", **(good | changed))


def test_an_unknown_name_is_refused():
    with pytest.raises(DataError, match=r"no data set called 'cifar'.*from_arrays"):
        load("cifar")
