"""Learns clusters and embeddings from an unlabelled, shifting stream of data, and does not forget.

>>> import curlicue as cq
>>> digits = cq.load("digits").train
>>> zeros, ones = (digits.x[digits.labels == label] for label in (0, 1))
>>> rng = cq.Rng.from_seed(0)
>>> model = cq.MixtureVAE.from_config(cq.ModelConfig(n_z=8, encoder=(64,), decoder=(64,)), n_x=64, rng=rng.init)
>>> learner = cq.Learner(model, cq.LearnerConfig(expansion=cq.ExpansionConfig(c_new=-35.0)), rng)
>>> events = list(learner.learn(lambda t: zeros if t < 300 else ones, steps=600))
>>> [(birth.t, birth.component, birth.parent) for birth in events if isinstance(birth, cq.ComponentBorn)]
[(301, 1, 0)]
"""

from curlicue.config import (
    AtChange,
    BeforeBirth,
    Drift,
    Every,
    ExpansionConfig,
    Iid,
    LearnerConfig,
    ModelConfig,
    Never,
    ReplayConfig,
    RunConfig,
    Sequential,
)
from curlicue.errors import CurlicueError
from curlicue.estimator import CURL
from curlicue.evaluate.representation import components, embed, posterior
from curlicue.learn.events import BirthRefused, ComponentBorn, SnapshotTaken, StepTaken
from curlicue.learn.learner import Learner
from curlicue.learn.supervised import LabelledLearner
from curlicue.model.elbo import elbo, elbo_given
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng
from curlicue.streams.schedule import Schedule
from curlicue.streams.sources import Source, from_arrays, load
from curlicue.version import __version__

__all__ = [
    "CURL",
    "AtChange",
    "BeforeBirth",
    "BirthRefused",
    "ComponentBorn",
    "CurlicueError",
    "Drift",
    "Every",
    "ExpansionConfig",
    "Iid",
    "LabelledLearner",
    "Learner",
    "LearnerConfig",
    "MixtureVAE",
    "ModelConfig",
    "Never",
    "ReplayConfig",
    "Rng",
    "RunConfig",
    "Schedule",
    "Sequential",
    "SnapshotTaken",
    "Source",
    "StepTaken",
    "__version__",
    "components",
    "elbo",
    "elbo_given",
    "embed",
    "from_arrays",
    "load",
    "posterior",
]
