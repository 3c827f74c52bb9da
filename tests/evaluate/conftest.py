"""A small system that has seen nothing, whose components divide samples unevenly."""

import pytest

from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.rng import Rng
from curlicue.systems.curl import CurlSystem


@pytest.fixture
def system(make_model) -> CurlSystem:
    """CURL with four components, which neither grows nor rehearses."""
    return CurlSystem(Learner(make_model(K=4, seed=1), LearnerConfig(growth=None, memory=None), Rng.from_seed(0)))
