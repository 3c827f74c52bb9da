"""CURL as a scikit-learn estimator."""

from curlicue.estimator.core import Fact
from curlicue.estimator.curl import CURL
from curlicue.estimator.rows import Array

__all__ = ["CURL", "Array", "Fact"]
