"""The benchmark at a size at which its numbers mean nothing: it runs, and writes what it promises."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from climbing import ENGINES
from curlicue.config.model import ModelConfig
from curlicue.engines.autograd import AutogradEngine
from curlicue.engines.cpu.engine import CpuEngine
from curlicue.engines.cpu.gradient import Gradient
from curlicue.experiments.run import Run
from curlicue.experiments.settings import RunConfig
from curlicue.learn.learner import LearnerConfig
from curlicue.records.directory import RunDirectory
from curlicue.rng import named_generator
from curlicue.streams.sources import load
from curlicue.systems.curl import Curl

FOLDER = Path(__file__).parent.parent / "benchmarks"
FRACTIONS = ("gemm_fraction", "dense_gemm_fraction")
ENGINES_COMPARED = ("autograd_over_cpu", "small_autograd_over_cpu")
RATIOS = (
    "exact_over_sparse_k25",
    "plain_exact_over_sparse_k25",
    "sparse_k100_over_k1",
    *FRACTIONS,
    *ENGINES_COMPARED,
)
MAIN = {"exact_k25", "plain_exact_k25", "sparse_k25", "sparse_k100", "sparse_k1", "autograd_k25"}
SMALL = {"small_k10", "small_autograd_k10"}


@pytest.fixture
def module(monkeypatch):
    """A module of the benchmark, by its name."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def models(module, monkeypatch):
    """The models that are measured, without MNIST."""
    models = module("models")
    monkeypatch.setattr(models, "status", lambda: [type("Missing", (), {"dataset": "mnist", "state": "missing"})])
    return models


@pytest.fixture
def step(module, models, monkeypatch):
    """The script, with a few components instead of many."""
    script, trained = module("step"), models.trained
    monkeypatch.setattr(script, "trained", lambda K, *how: trained(min(K, 3), *how))
    monkeypatch.setattr(script, "QUICK", script.Plan(training=20, rounds=2, sparse=1, exact=1, small=1))
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
    assert report["cases"].keys() == MAIN | SMALL
    for name, case in report["cases"].items():
        assert case["ms"] > 0
        assert case["peak_bytes"] > (1e6 if name in MAIN else 0)
        assert case["bytes_moved"] > (1e7 if name in MAIN else 1e5)
        assert case["pairs_per_sample"] >= 1
    assert report["cases"]["exact_k25"]["pairs_per_sample"] == 3  # all of the three that stand for 25
    assert report["synchronisations"].keys() == {"real", "rehearsed"}
    assert report["quick"] is True
    assert report["data"].startswith("digits")


def test_in_torchs_own_layers_the_model_is_the_same_and_every_step_goes_by_autograd(models):
    _, split = models.training_data()
    learner = models.trained(3, split, 20)
    twin = models.plain(learner)
    q_y, expected = (models.q_y_and_pairs(each, split.x[:50])[0] for each in (twin, learner))
    torch.testing.assert_close(q_y, expected)
    z = torch.randn(5, learner.model.n_z, generator=named_generator(0, "z"))
    torch.testing.assert_close(twin.model.mean(z), learner.model.mean(z))
    assert isinstance(twin.engine, AutogradEngine)
    assert isinstance(learner.engine, CpuEngine)


@pytest.mark.parametrize(("variant", "engine"), [("exact", "cpu"), ("by_autograd", "autograd")])
def test_a_variant_goes_on_from_where_the_learner_is_and_leaves_it_there(models, variant, engine):
    split = models.small_data()
    learner = models.trained(3, split, 20, models.SMALL)
    twin = getattr(models, variant)(learner)
    assert type(twin.engine) is ENGINES[engine]
    assert twin.engine.model is twin.model
    before = {name: p.clone() for name, p in learner.model.named_parameters()}
    for name, p in twin.model.named_parameters():
        assert torch.equal(p, before[name])
    assert twin.engine.state()["optimiser"]["p_z_bias"]["steps"] == 20
    twin.observe(split.x[:50])
    assert all(torch.equal(p, before[name]) for name, p in learner.model.named_parameters())
    assert not torch.equal(twin.model.p_z_bias, before["p_z_bias"])
    pairs = models.q_y_and_pairs(twin, split.x[:50])[1]
    assert (len(pairs.rows) == 150) == (variant == "exact")


def test_operations_are_counted(module):
    bare = module("products")
    assert bare.product(2, 3, 4).operations == 2 * 2 * 3 * 4
    forward, weights, inputs = bare.products(2, 3, 4, 4)
    assert forward.operations == weights.operations == inputs.operations


def test_training_makes_q_y_peaked(models):
    _, split = models.training_data()
    flat, peaked = (models.trained(3, split, steps) for steps in (0, 100))
    largest = [float(models.q_y_and_pairs(learner, split.x)[0].max(1).values.mean()) for learner in (flat, peaked)]
    assert largest[1] > largest[0] + 0.2
    assert peaked.model.K == 3


def test_the_model_of_a_run_is_measured_with_the_components_that_explain_most(models, tmp_path):
    system = Curl(model=ModelConfig(K=4, encoder=(8,), decoder=(8,)), learner=LearnerConfig(growth=None))
    config = RunConfig(dataset="digits", steps=3, system=system)
    directory = RunDirectory.create(tmp_path / "run", config.to_json(), {})
    run = Run(config, load("digits"), directory)
    list(run.events())
    learner = run.system.learner
    all_four, kept = (each.model.heads["q_y_weight"] for each in (learner, models.of_run(directory.path, 3)))
    others = [k for k in range(4) if k != learner.memory.counts().argmin()]
    assert {tuple(row) for row in kept.tolist()} == {tuple(row) for row in all_four[others].tolist()}
    with pytest.raises(SystemExit, match=r"has 4 components, and the benchmark measures 25\. Choose another run\."):
        models.of_run(directory.path, 25)


A, LONG, ROWS = torch.ones(2, 3), torch.ones(99, 3), torch.tensor([1, 1])
MOVED = {
    "product": (lambda: LONG @ A.t(), 4 * (297 + 6 + 198)),
    "sum": (lambda: A + A, 4 * (6 + 6 + 6)),
    "copy": (lambda: A.clone(), 4 * (6 + 6)),
    "only looked at": (lambda: A.t().view(3, 2).detach()[1], 0),
    "repeated": (lambda: A[:1].expand(99, 3) + LONG, 4 * (6 + 297 + 297)),
    "in place": (lambda: A.mul_(1), 4 * (6 + 6)),
    "zeros": (lambda: torch.zeros_like(A), 4 * 6),
    "empty": (lambda: torch.empty_like(A), 0),
    "rows": (lambda: LONG.index_select(0, ROWS), 4 * (6 + 6) + 8 * 2),
    "into rows": (lambda: LONG.index_add_(0, ROWS, A), 4 * 3 * 6 + 8 * 2),
}


@pytest.mark.parametrize(("action", "expected"), MOVED.values(), ids=MOVED)
def test_an_operation_moves_what_it_reads_and_writes(module, action, expected):
    with module("traffic").MemoryTraffic() as traffic:
        action()
    assert traffic.bytes == expected


def test_a_compiled_loop_moves_the_rows_that_it_reads(module):
    weight, rows, columns = np.ones((9, 4), np.float32), np.array([1, 5]), np.arange(4)
    traffic = module("traffic")
    kernels, counted = traffic.networks.kernels, traffic.MemoryTraffic()
    with traffic.watched_loops(counted):
        traffic.networks.gather(torch.from_numpy(weight), rows, columns)
    assert counted.bytes == 4 * (8 + 8) + 8 * (2 + 4)
    assert traffic.networks.kernels is kernels


def test_adam_moves_no_rows_that_rest(module):
    traffic = module("traffic")
    counted, moments = traffic.MemoryTraffic(), traffic.adam.Moments.zero(torch.ones(9, 4))
    moments.resting[2:] = True  # but the sixth row has a gradient
    optimiser = traffic.adam.Adam(1e-3)
    optimiser.moments["weight"] = moments
    gradient = Gradient("weight", np.ones((1, 4), np.float32), np.array([5]), np.arange(4))
    with traffic.watched_loops(counted):
        optimiser.step(torch.ones(9, 4), gradient)
    assert counted.bytes == 4 * (4 + 3 * 3 * 2 * 4)


def test_the_autograd_engine_moves_all_weights_and_moments_and_the_cpu_engine_less(module, models):
    _, split = models.training_data()
    learner = models.trained(2, split, 20)
    by_autograd, by_hand = (
        module("traffic").bytes_moved(each, split.x[:100]) for each in (models.by_autograd(learner), learner)
    )
    weights = sum(p.nbytes for p in learner.model.parameters())
    assert by_autograd > 7 * weights
    assert 2 * weights < by_hand < by_autograd


def test_a_step_waits_for_the_device_three_times_at_most(module):
    counted = module("traffic").synchronisations()
    assert 1 <= counted["rehearsed"] <= counted["real"] <= 3
