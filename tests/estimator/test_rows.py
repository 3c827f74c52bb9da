"""What users give as X."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch

from curlicue.errors import DataError
from curlicue.estimator import CURL
from elsewhere import ELSEWHERE
from estimators import D, learnt, rows, small, whole

X32 = rows(40).astype(np.float32)
SAME: dict[str, Any] = {
    "float64": X32.astype(np.float64),
    "tensor": torch.from_numpy(X32),
    "tensor with gradient": torch.from_numpy(X32).requires_grad_(),
    "lists": X32.tolist(),
    "list of tensors": list(torch.from_numpy(X32).requires_grad_()),
    "negative view": (torch.complex(torch.from_numpy(X32), -torch.from_numpy(X32)).conj()).imag,
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
    assert learnt(bytes_) == learnt(floats)


def test_truth_values_are_zeros_and_ones():
    x = np.random.default_rng(0).random((20, 6)) < 0.5
    assert whole(small(likelihood="bernoulli").partial_fit(x)) == whole(
        small(likelihood="bernoulli").partial_fit(x.astype(float))
    )


def test_a_list_of_images_is_an_array_of_images():
    images = rows(60).reshape(60, 5, 1)
    expected = whole(small().partial_fit(images))
    assert whole(small().partial_fit(list(images))) == expected
    assert whole(small().fit_stream([list(images)])) == expected


def test_rows_may_lie_on_any_device(curl):
    there = torch.from_numpy(X32).to(ELSEWHERE)
    assert whole(small().partial_fit(there)) == whole(small().partial_fit(X32))
    for call in ("predict", "predict_proba", "transform", "score_samples", "reconstruct"):
        answer = getattr(curl, call)(there)
        assert type(answer) is np.ndarray
        assert np.array_equal(answer, getattr(curl, call)(X32))


def test_bfloat16_is_read():
    x = torch.from_numpy(X32).bfloat16()
    expected = whole(small().partial_fit(x.float()))
    for form in (x, x.requires_grad_(), [*x], x.to(ELSEWHERE)):
        assert whole(small().partial_fit(form)) == expected


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
