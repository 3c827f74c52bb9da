"""Learns clusters and embeddings from an unlabelled, shifting stream of data, and does not forget.

>>> import curlicue as cq
>>> digits = cq.load("digits").train
>>> zeros, ones = (digits.x[digits.labels == label] for label in (0, 1))
>>> rng = cq.Rng.from_seed(0)
>>> model = cq.MixtureVAE.from_config(cq.ModelConfig(n_z=8, encoder=(64,), decoder=(64,)), 64, rng.init)
>>> learner = cq.Learner(model, cq.LearnerConfig(growth=cq.Threshold(c_new=-35.0)), rng)
>>> steps = learner.learn(zeros if t < 300 else ones for t in range(600))
>>> events = [event for step in steps for event in step]
>>> [(birth.t, birth.component, birth.parent) for birth in events if isinstance(birth, cq.ComponentBorn)]
[(301, 1, 0)]
"""

from curlicue.config.model import ModelConfig
from curlicue.config.scenario import Drift, Iid, Sequential
from curlicue.errors import CurlicueError
from curlicue.estimator import CURL
from curlicue.experiments.settings import RunConfig
from curlicue.growth.change import Change
from curlicue.growth.measured import Measured
from curlicue.growth.split import Split
from curlicue.growth.structure import Structure
from curlicue.growth.threshold import Threshold
from curlicue.learn.events import BirthRefused, ComponentBorn, SnapshotTaken, StepTaken
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.memory.reservoir import Reservoir
from curlicue.memory.snapshot import Snapshot
from curlicue.model.elbo import elbo, elbo_given
from curlicue.model.inference import components, embed, posterior
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng
from curlicue.streams.schedule import Schedule
from curlicue.streams.sources import Source, from_arrays, load
from curlicue.systems.curl import Curl
from curlicue.systems.labelled import LabelledCurl, LabelledLearner
from curlicue.version import __version__

__all__ = [
    "CURL",
    "BirthRefused",
    "Change",
    "ComponentBorn",
    "Curl",
    "CurlicueError",
    "Drift",
    "Iid",
    "LabelledCurl",
    "LabelledLearner",
    "Learner",
    "LearnerConfig",
    "Measured",
    "MixtureVAE",
    "ModelConfig",
    "Reservoir",
    "Rng",
    "RunConfig",
    "Schedule",
    "Sequential",
    "Snapshot",
    "SnapshotTaken",
    "Source",
    "Split",
    "StepTaken",
    "Structure",
    "Threshold",
    "__version__",
    "components",
    "elbo",
    "elbo_given",
    "embed",
    "from_arrays",
    "load",
    "posterior",
]
