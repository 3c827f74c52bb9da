"""What users give as X: checked, as rows of numbers, and as the tensors that a model learns from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from curlicue.config.model import Likelihood
from curlicue.errors import DataError

Array = npt.NDArray[Any]
LARGEST = 1e6  # |x|; Adam squares gradients that go with x²: x⁴ leaves float32 room for sums and small variances
REMEDIES = {
    "contains NaN": "Input X contains NaN. Fill such values in, as SimpleImputer does, or leave their rows out.",
    "contains infinity": "Input X contains infinity or a value too large. Clip such values, or leave their rows out.",
    "inhomogeneous": "X has samples of different sizes (inhomogeneous). Give all of them the same number of values.",
}


@dataclass(frozen=True)
class Rows:
    """X, checked; nothing is copied that need not be."""

    X: Any  # [n, D] as it was given: a frame has the names of its columns
    values: Array  # [n, D]
    shape: tuple[int, ...]  # of one sample

    @classmethod
    def of(cls, X: Any, estimator: object) -> Rows:
        """The rows of an array, a tensor on any device, a frame, lists, or images."""
        X = _one_array(_on_host(X))
        if np.ma.is_masked(X):
            raise DataError("X has masked values. Fill them in, or leave these rows out.")
        if isinstance(X, Iterator):
            raise DataError(f"X must be an array, not a {type(X).__name__}. Learn from an iterator with fit_stream.")
        shape = X.shape[1:] if isinstance(X, np.ndarray) and X.ndim > 2 else None
        if shape is not None:
            X = X.reshape(len(X), -1) if X.size else X.reshape(0, max(1, int(np.prod(shape))))
        values = _checked(X, estimator)
        return cls(X, values, tuple(shape or values.shape[1:]))

    def check_shape(self, learnt: tuple[int, ...]) -> None:
        """DataError for images of another shape than those that the model learnt; flat rows fit any."""
        if len(self.shape) > 1 and len(learnt) > 1 and self.shape != learnt:
            raise DataError(f"X has samples of the shape {self.shape}, the model learnt {learnt}. Give them like that.")

    def check_range(self, likelihood: Likelihood, pixels: bool) -> None:
        """DataError for values that the likelihood cannot have; `pixels`: whether the model has learnt from uint8."""
        if likelihood is Likelihood.GAUSSIAN:
            self._check_largest()
        elif self.values.dtype == np.uint8:
            if self.values.max() == 1 and not pixels:
                raise DataError(
                    "X is uint8 with values of 0 and 1, but uint8 is read as pixels of 0 to 255. "
                    "Give zeros and ones as bool or as floats."
                )
        elif (low := self.values.min()) < 0 or self.values.max() > 1:
            raise DataError(
                f"likelihood='bernoulli' needs values in [0, 1]; X has values from {low:.4g} to "
                f"{self.values.max():.4g}. Scale them, or use likelihood='gaussian'."
            )

    def _check_largest(self) -> None:
        largest = max(abs(float(self.values.min())), abs(float(self.values.max())))
        if largest > LARGEST:
            raise DataError(
                f"X has values up to {largest:.3g}: to learn from them takes more than float32 holds. Scale them."
            )


def tensor(values: Array, likelihood: Likelihood) -> Tensor:
    """Rows [n, D] as the model learns them, float32, a copy; uint8 are pixels to a Bernoulli likelihood."""
    x = torch.from_numpy(np.array(values, dtype=np.float32))
    return x / 255 if likelihood is Likelihood.BERNOULLI and values.dtype == np.uint8 else x


def first_of(batch: Any) -> Any:
    """The samples of what a DataLoader gives, with labels or without; anything else as it is."""
    if not isinstance(batch, tuple | list) or not len(batch) or len(getattr(batch[0], "shape", ())) < 2:
        return batch
    alike = len(batch) > 2 and len({getattr(each, "shape", None) for each in batch}) == 1  # images
    return batch if alike else batch[0]


def _on_host(X: Any) -> Any:
    """A tensor as an array; numpy knows no bfloat16."""
    if not isinstance(X, Tensor):
        return X
    X = X.detach().cpu().resolve_conj().resolve_neg()
    return (X.float() if X.dtype is torch.bfloat16 else X).numpy()


def _one_array(X: Any) -> Any:
    """A list of tensors, of images, or of anything that has two axes or more, as one array."""
    if not isinstance(X, tuple | list) or not len(X):
        return X
    if not isinstance(X[0], Tensor) and np.ndim(X[0]) < 2:
        return X
    return _stacked([_on_host(each) for each in X])


def _stacked(images: Sequence[Any]) -> Array:
    try:
        return np.asarray(images)
    except ValueError as error:
        raise _with_remedy(error) from error


def _checked(X: Any, estimator: object) -> Array:
    """X [n, D] as an array of finite numbers."""
    try:
        values: Array = check_array(X, dtype="numeric", estimator=estimator, input_name="X")
    except ValueError as error:
        raise _with_remedy(error) from error
    if values.dtype.kind not in "biuf":
        raise DataError(f"X must hold numbers. Got {values.dtype} instead. Convert it.")
    _refuse_words(X)
    return values


def _with_remedy(error: ValueError) -> ValueError:
    """The same error in fewer words, with what to do; an error that is not known here as it is."""
    return next((DataError(text) for seen, text in REMEDIES.items() if seen in str(error)), error)


def _refuse_words(X: Any) -> None:
    """DataError if there are strings in X, be it of digits."""
    values = np.asarray(X)
    if values.dtype.kind in "OSU" and (word := next((v for v in values.flat if isinstance(v, str)), None)) is not None:
        raise DataError(f"X must hold numbers. Got the string {word!r} instead. Convert it.")
