"""The paper's set-ups by name."""

from __future__ import annotations

from dataclasses import replace

from curlicue.config.model import Emission, ModelConfig
from curlicue.config.scenario import Iid, Sequential
from curlicue.experiments.settings import RunConfig
from curlicue.growth.measured import Measured
from curlicue.growth.protocol import Tuned
from curlicue.growth.structure import Structure
from curlicue.growth.threshold import Threshold
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.reservoir import Reservoir
from curlicue.memory.snapshot import Counts, Moments, Snapshot
from curlicue.systems.curl import Curl
from curlicue.systems.labelled import LabelledCurl

GREY = "mnist-grey", "omniglot"  # data sets whose images are not black and white


def emission_for(dataset: str) -> Emission:
    """How samples are generated that suit a data set: rounded where its images are black and white, drawn where they
    have greys (docs/decisions/0015-dreams-are-rounded.md).
    """
    return Emission.SAMPLE if dataset in GREY else Emission.THRESHOLD


def paper_memory(dataset: str, snapshots: Moments, labelled: bool = False) -> Snapshot:
    """Replay in the paper's experiments without class labels."""
    return Snapshot(snapshots=snapshots, labelled=labelled, emission=emission_for(dataset))


MNIST = LearnerConfig(memory=paper_memory("mnist", "T"))
OMNIGLOT = LearnerConfig(learning_rate=5e-4, memory=paper_memory("omniglot", "T"))
IID_MODEL = ModelConfig(n_z=50, encoder=(500, 500), decoder=(500,))
IID_MNIST = LearnerConfig(learning_rate=5e-4, max_components=100, memory=None)

DIGITS_MODEL = ModelConfig(n_z=8, encoder=(64,), decoder=(64,))

PRESETS: dict[str, RunConfig] = {
    # Appendix, "Main setup", MNIST; snapshots at the end of each class (fixed T)
    "mnist": RunConfig(system=Curl(learner=MNIST)),
    # the same with the choices of the released code where the paper says otherwise (docs/deviations.md)
    "mnist-released": RunConfig(
        system=Curl(
            learner=replace(
                MNIST,
                growth=Threshold(tuned=Tuned.HEADS),
                max_components=30,
                memory=replace(paper_memory("mnist", "T"), counts=Counts.SEEN),
            )
        )
    ),
    # Appendix, "Main setup", Omniglot
    "omniglot": RunConfig(
        dataset="omniglot",
        batch_size=15,
        system=Curl(model=ModelConfig(encoder=(500, 500), decoder=(500,)), learner=OMNIGLOT),
    ),
    # Appendix, "Supervised continual learning benchmark": five tasks of two classes
    "split-mnist": RunConfig(
        dataset="mnist-60k",
        scenario=Sequential(at_once=2),
        system=LabelledCurl(
            model=ModelConfig(n_z=100, encoder=(400, 400), decoder=(400, 400)),
            learner=LearnerConfig(growth=None, memory=Snapshot(snapshots="T", labelled=True)),
        ),
    ),
    # Appendix, "Unsupervised i.i.d learning benchmark"
    "iid-mnist": RunConfig(scenario=Iid(), system=Curl(model=IID_MODEL, learner=IID_MNIST), sampled_knn=True),
    "iid-omniglot": RunConfig(
        dataset="omniglot",
        scenario=Iid(),
        batch_size=15,
        system=Curl(model=replace(IID_MODEL, n_z=100), learner=replace(IID_MNIST, max_components=200)),
        sampled_knn=True,
    ),
    # not of the paper: nobody says when classes change, and real rows are kept; growth and memory as `CURL` has them
    "mnist-free": RunConfig(system=Curl(learner=LearnerConfig(growth=Structure(), memory=Reservoir()))),
    # not of the paper: scikit-learn's 8×8 digits, for a first minute without a download
    "digits": RunConfig(
        dataset="digits",
        steps=10_000,
        system=Curl(
            model=DIGITS_MODEL,
            learner=LearnerConfig(learning_rate=3e-3, growth=Measured(), memory=Snapshot(snapshots="T", labelled=True)),
        ),
        evaluate_every=500,
    ),
    # the same, not told when classes change, as in the demo
    "digits-free": RunConfig(
        dataset="digits",
        steps=10_000,
        system=Curl(
            model=DIGITS_MODEL,
            learner=LearnerConfig(learning_rate=3e-3, growth=Structure(), memory=Reservoir()),
        ),
        evaluate_every=500,
    ),
}
