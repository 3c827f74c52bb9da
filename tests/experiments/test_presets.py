"""The paper's set-ups, as its appendix prints them."""

import pytest

from curlicue.config.model import Emission, Likelihood
from curlicue.config.scenario import Iid, Sequential
from curlicue.experiments.presets import PRESETS, paper_memory
from curlicue.growth.protocol import Tuned
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.snapshot import Counts, Snapshot


def learner(name: str) -> LearnerConfig:
    return PRESETS[name].system.learner


@pytest.mark.parametrize(
    ("name", "n_z", "encoder", "decoder"),
    [
        ("mnist", 32, (1200, 600, 300, 150), (500, 500)),
        ("omniglot", 32, (500, 500), (500,)),
        ("split-mnist", 100, (400, 400), (400, 400)),
        ("iid-mnist", 50, (500, 500), (500,)),
        ("iid-omniglot", 100, (500, 500), (500,)),
    ],
)
def test_networks_are_as_large_as_in_the_paper(name, n_z, encoder, decoder):
    model = PRESETS[name].system.model
    assert (model.n_z, model.encoder, model.decoder) == (n_z, encoder, decoder)
    assert (model.likelihood, model.K) == (Likelihood.BERNOULLI, 1)


@pytest.mark.parametrize(
    ("name", "learning_rate"), [("mnist", 1e-3), ("omniglot", 5e-4), ("iid-mnist", 5e-4), ("iid-omniglot", 5e-4)]
)
def test_learning_rates_are_those_of_the_paper(name, learning_rate):
    assert learner(name).learning_rate == learning_rate


@pytest.mark.parametrize("name", ["mnist", "omniglot", "iid-mnist", "iid-omniglot"])
def test_growth_has_the_papers_threshold_and_consolidation(name):
    growth = learner(name).growth
    assert (growth.c_new, growth.wait, growth.tuned) == (-200, 100, Tuned.ALL)
    assert (growth.n_new, growth.burn_in, growth.passes) == (100, 100, 10)  # not printed there


@pytest.mark.parametrize(("name", "cap"), [("iid-mnist", 100), ("iid-omniglot", 200), ("mnist", None)])
def test_the_iid_benchmark_has_the_papers_capacity(name, cap):
    assert learner(name).max_components == cap


@pytest.mark.parametrize(("name", "at_once", "n_tasks"), [("mnist", 1, 10), ("omniglot", 1, 50), ("split-mnist", 2, 5)])
def test_continual_runs_take_a_hundred_thousand_steps_with_a_snapshot_at_the_end_of_each_task(name, at_once, n_tasks):
    run = PRESETS[name]
    assert run.steps == 100_000
    assert run.scenario == Sequential(at_once)
    memory = run.resolved({"omniglot": 50}.get(name, 10)).system.learner.memory
    assert memory.snapshots == 100_000 // n_tasks
    assert memory.counts is Counts.GENERATED


@pytest.mark.parametrize(
    ("name", "emission"),
    [
        ("mnist", Emission.THRESHOLD),
        ("omniglot", Emission.SAMPLE),  # images with greys
        ("split-mnist", Emission.SAMPLE),  # classes are told
        ("digits", Emission.SAMPLE),  # not of the paper
    ],
)
def test_generated_samples_are_rounded_on_mnist_without_labels_and_drawn_otherwise(name, emission):
    assert learner(name).memory.emission is emission
    assert Snapshot().emission is Emission.SAMPLE


@pytest.mark.parametrize("labelled", [False, True])
def test_the_memory_of_the_papers_experiments_rounds_what_has_no_greys(labelled):
    for dataset, emission in (("mnist", Emission.THRESHOLD), ("omniglot", Emission.SAMPLE)):
        found = paper_memory(dataset, 7, labelled)
        assert found == Snapshot(snapshots=7, labelled=labelled, emission=emission)


@pytest.mark.parametrize("name", ["iid-mnist", "iid-omniglot"])
def test_iid_runs_are_shuffled_and_rehearse_nothing(name):
    run = PRESETS[name]
    assert (run.steps, run.scenario, learner(name).memory) == (100_000, Iid(), None)
    assert run.sampled_knn


def test_the_main_runs_rehearse_without_labels_and_the_supervised_one_with_them():
    assert not learner("mnist").memory.labelled
    assert not learner("omniglot").memory.labelled
    assert learner("split-mnist").memory.labelled
    assert [name for name, run in PRESETS.items() if run.system.labelled] == ["split-mnist"]
    assert learner("split-mnist").growth is None  # components open as classes appear


def test_what_mimics_the_released_code_is_one_preset():
    released = learner("mnist-released")
    assert (released.growth.tuned, released.memory.counts, released.max_components) == (Tuned.HEADS, Counts.SEEN, 30)
    others = [
        learner(name) for name in PRESETS if name not in ("mnist-released", "mnist-free", "digits", "digits-free")
    ]
    assert all(each.growth is None or each.growth.tuned is Tuned.ALL for each in others)
    assert all(each.memory is None or each.memory.counts is Counts.GENERATED for each in others)


@pytest.mark.parametrize(
    ("name", "dataset", "batch_size"),
    [
        ("mnist", "mnist", 100),
        ("omniglot", "omniglot", 15),
        ("split-mnist", "mnist-60k", 100),
        ("iid-mnist", "mnist", 100),
        ("iid-omniglot", "omniglot", 15),
    ],
)
def test_batches_are_as_large_as_in_the_released_code(name, dataset, batch_size):
    assert (PRESETS[name].dataset, PRESETS[name].batch_size) == (dataset, batch_size)
