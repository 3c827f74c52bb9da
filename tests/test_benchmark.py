"""The benchmark at a size at which its numbers mean nothing: it runs, and writes what it promises."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from curlicue.config import LearnerConfig, ModelConfig, RunConfig
from curlicue.experiments.run import Run, config_json
from curlicue.model.ascent import can_ascend
from curlicue.records import RunDirectory
from curlicue.rng import named_generator
from curlicue.streams.sources import load

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "step.py"
FRACTIONS = ("gemm_fraction", "dense_gemm_fraction")
RATIOS = ("exact_over_sparse_k25", "plain_exact_over_sparse_k25", "sparse_k100_over_k1", *FRACTIONS)


@pytest.fixture
def step(monkeypatch):
    """The script, with a few components instead of many, and without MNIST."""
    spec = importlib.util.spec_from_file_location("step", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "step", script)  # dataclasses look there
    spec.loader.exec_module(script)
    trained = script.trained
    monkeypatch.setattr(script, "trained", lambda K, split, plan: trained(min(K, 3), split, plan))
    monkeypatch.setattr(script, "status", lambda: [type("Missing", (), {"dataset": "mnist", "state": "missing"})])
    monkeypatch.setattr(script, "QUICK", script.Plan(training=20, rounds=2, sparse=1, exact=1))
    monkeypatch.setattr(script, "use_threads", lambda threads: 1)
    return script


def test_the_benchmark_writes_ratios_times_and_memory_of_every_case(step, tmp_path):
    step.main(tmp_path / "latest.json", quick=True)
    report = json.loads((tmp_path / "latest.json").read_text())
    for name in RATIOS:
        low, high = report[f"{name}_quartiles"]
        assert 0 < low <= report[name] <= high, name
    assert 1 < report["exact_over_sparse_dense_operations"] <= 3
    assert report["exact_over_sparse_operations"] > 1
    assert report["cases"].keys() == {"exact_k25", "plain_exact_k25", "sparse_k25", "sparse_k100", "sparse_k1"}
    for case in report["cases"].values():
        assert case["ms"] > 0
        assert case["peak_bytes"] > 1e6
        assert case["pairs_per_sample"] >= 1
    assert report["cases"]["exact_k25"]["pairs_per_sample"] == 3  # all of the three that stand for 25
    assert report["quick"] is True
    assert report["data"].startswith("digits")


def test_in_torchs_own_layers_the_model_is_the_same_and_every_step_goes_by_autograd(step):
    _, split = step.training_data()
    learner = step.trained(3, split, step.Plan(training=20))
    twin = step.plain(learner)
    q_y, expected = (step.q_y_and_pairs(each, split.x[:50])[0] for each in (twin, learner))
    torch.testing.assert_close(q_y, expected)
    z = torch.randn(5, learner.model.n_z, generator=named_generator(0, "z"))
    torch.testing.assert_close(twin.model.mean(z), learner.model.mean(z))
    assert not can_ascend(twin.model, 1)


def test_operations_are_counted(step):
    assert step.product(2, 3, 4).operations == 2 * 2 * 3 * 4
    forward, weights, inputs = step.products(2, 3, 4, 4)
    assert forward.operations == weights.operations == inputs.operations


def test_training_makes_q_y_peaked(step):
    _, split = step.training_data()
    flat, peaked = (step.trained(3, split, step.Plan(training=steps)) for steps in (0, 100))
    largest = [float(step.q_y_and_pairs(learner, split.x)[0].max(1).values.mean()) for learner in (flat, peaked)]
    assert largest[1] > largest[0] + 0.2
    assert peaked.model.K == 3


def test_the_model_of_a_run_is_measured_with_the_components_that_explain_most(step, tmp_path):
    config = RunConfig(
        dataset="digits",
        steps=3,
        model=ModelConfig(K=4, encoder=(8,), decoder=(8,)),
        learner=LearnerConfig(expansion=None),
    )
    directory = RunDirectory.create(tmp_path / "run", config_json(config), {})
    run = Run(config, load("digits"), directory)
    list(run.events())
    all_four, kept = (each.model.heads["q_y_weight"] for each in (run.learner, step.of_run(directory.path, 3)))
    others = [k for k in range(4) if k != run.learner.counts.argmin()]
    assert {tuple(row) for row in kept.tolist()} == {tuple(row) for row in all_four[others].tolist()}
    with pytest.raises(SystemExit, match=r"has 4 components, and the benchmark measures 25\. Choose another run\."):
        step.of_run(directory.path, 25)


def test_the_table_of_the_defaults_can_be_made(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("defaults", SCRIPT.with_name("defaults.py"))
    defaults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(defaults)
    monkeypatch.setattr(defaults, "BLOBS", {})
    defaults.main(seeds=(0,), batches=1)
    assert "wine" in capsys.readouterr().out
    assert defaults.learnt("wine", in_turn=False, batches=1, seed=0) == "1, 40 %"
