"""What a training step costs: exact against sparse, many components against one, and its bare matrix products.

All are measured in one process, in turns: the machine's moods hit each alike, and cancel in the ratios.
"""

from __future__ import annotations

import copy
import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor, nn

from curlicue.config import LearnerConfig, ModelConfig, RunConfig, Sequential, from_json
from curlicue.experiments.run import Run, use_threads
from curlicue.learn.checkpoint import load_checkpoint
from curlicue.learn.learner import Learner, Stream
from curlicue.model import kernels
from curlicue.model.mixture import MixtureVAE
from curlicue.model.networks import ReluNet, few
from curlicue.model.pairs import Pairs
from curlicue.records import RunDirectory, environment, write_atomically
from curlicue.rng import Rng, named_generator
from curlicue.streams import sources
from curlicue.streams.fetch import status
from curlicue.streams.schedule import Schedule
from curlicue.streams.sources import Split

T = TypeVar("T")
B = 100  # samples in a batch
PROCESS = Path("/proc/self")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many steps."""

    training: int = 5000  # steps over all ten classes
    rounds: int = 25
    sparse: int = 8  # steps in a turn
    exact: int = 2  # steps in a turn


@dataclass(frozen=True)
class Product:
    """A matrix product into memory that is there already."""

    a: Tensor
    b: Tensor
    out: Tensor

    def __call__(self) -> None:
        """Multiply."""
        torch.matmul(self.a, self.b, out=self.out)

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.out.numel() * self.a.shape[-1]


QUICK = Plan(training=200, rounds=3, sparse=2, exact=1)


# -- what is measured: steps of models whose q(y|x) is peaked, and their matrix products ------------------------


def training_data() -> tuple[str, Split]:
    """Its name, and ten classes of images with 784 pixels."""
    if all(file.state == "ok" for file in status() if file.dataset == "mnist"):
        return "mnist", sources.load("mnist").train
    digits = sources.load("digits").train
    x = nn.functional.interpolate(digits.x.view(-1, 1, 8, 8), 28).flatten(1)
    return "digits enlarged to 28×28, for MNIST is not here: curlicue data mnist", Split(x, digits.labels)


def trained(K: int, split: Split, plan: Plan) -> Learner:
    """CURL with K components, its q(y|x) as peaked as after a full run.

    Left to itself q(y|x) takes ten thousands of steps to become so. Here each component is given a cluster of the
    images to learn (Eq. 4).
    """
    rng = Rng.from_seed(K)
    model = MixtureVAE.from_config(ModelConfig(K=K), split.x.shape[1], rng.init)
    learner = Learner(model, LearnerConfig(expansion=None, replay=None), rng)
    y = torch.from_numpy(MiniBatchKMeans(K, n_init=1, random_state=0).fit_predict(split.x.numpy())).long()
    for _ in track(range(plan.training), f"Training K = {K}"):
        rows = torch.randint(len(y), (B,), generator=rng.data)
        learner.climb(learner.elbo_given(split.x[rows], y[rows]))
    return learner


@torch.no_grad()
def of_run(path: Path, K: int) -> Learner:
    """The model that a run of the MNIST network has come to, with the K components that explain most of its stream."""
    directory = RunDirectory.open(path)
    config = from_json(RunConfig, directory.read("config"))
    run = Run(config, sources.load(config.dataset), directory)
    load_checkpoint(directory.checkpoint, run.learner)
    model, counts = run.learner.model, run.learner.counts
    if len(counts) < K:
        raise SystemExit(f"{path} has {len(counts)} components, and the benchmark measures {K}. Choose another run.")
    kept = counts.topk(K).indices
    for name, head in list(model.heads.items()):
        model.heads[name] = nn.Parameter(head[kept])
    return Learner(model, LearnerConfig(expansion=None, replay=None), run.rng)


def plain(learner: Learner) -> Learner:
    """The same model in layers of torch's own: its steps go by autograd, and multiply every unit."""
    learner = copy.deepcopy(learner)
    model = learner.model
    for name in ("encoder", "decoder"):
        setattr(model, name, torch_layers(network_of(getattr(model, name))))
    return Learner(model, learner.config, learner.rng)


def torch_layers(network: ReluNet) -> nn.Sequential:
    """The same function."""
    modules: list[nn.Module] = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        linear = nn.Linear(*weight.shape)
        linear.weight.data, linear.bias.data = weight.data.t().contiguous(), bias.data.clone()
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*(modules if network.relu_last else modules[:-1]))


@torch.no_grad()
def q_y_and_pairs(learner: Learner, x: Tensor) -> tuple[Tensor, Pairs]:
    """q(y|x) [B, K], and the pairs that a step on x visits."""
    q_y = learner.model.log_q_y(learner.model.encode(x)).exp()
    tau = learner.config.tau
    return q_y, Pairs.every(q_y) if tau is None else Pairs.sparse(q_y, tau, learner.rng.latent)


def products(n: int, k: int, m: int, m_back: int) -> list[Product]:
    """Forward [n, k][k, m], weight gradient [k, n][n, m_back], input gradient [n, m_back][m_back, k]."""
    return [product(n, k, m), product(k, n, m_back), product(n, m_back, k)]


def product(n: int, k: int, m: int) -> Product:
    """[n, k][k, m]."""
    return Product(torch.randn(n, k), torch.randn(k, m), torch.empty(n, m))


@torch.no_grad()
def network_products(network: ReluNet, x: Tensor, dense: bool) -> list[Product]:
    """Those of all layers for the rows x: of the whole layers, or of the units that are awake."""
    found, h = [], x
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        a = width_awake(h, dense)
        out = torch.addmm(bias, h, weight)
        h = out.clamp_min(0) if layer < len(network.weights) - 1 or network.relu_last else out
        found += products(len(x), a, weight.shape[1], width_awake(h, dense))
    return found


def width_awake(h: Tensor, dense: bool) -> int:
    """How many columns of h are multiplied."""
    awake = None if dense else few(kernels.awake(h.numpy())[0], h)
    return h.shape[1] if awake is None else len(awake)


@torch.no_grad()
def step_products(learner: Learner, x: Tensor, dense: bool) -> list[Product]:
    """All products of the step on x, as BLAS would take them: single zeros are multiplied too."""
    model, (_, pairs) = learner.model, q_y_and_pairs(learner, x)
    h = model.encode(x)
    H, two_z = h.shape[1], 2 * model.n_z
    z = model.q_z(h, pairs).sample(learner.rng.latent)[0]
    encoder = network_products(network_of(model.encoder), x, dense)
    del encoder[2]  # nobody needs the gradient of x
    q_y = products(len(x), H, model.K, model.K)
    counts = pairs.ks.unique(return_counts=True)[1].tolist()
    q_z = [each for n in counts for each in products(n, H, two_z, two_z)]
    return encoder + q_y + q_z + network_products(network_of(model.decoder), z, dense)


def network_of(module: nn.Module) -> ReluNet:
    """The paper's MLP, as all models here have."""
    assert isinstance(module, ReluNet)
    return module


def operations_ratio(exact: Learner, sparse: Learner, batches: Sequence[Tensor], dense: bool) -> float:
    """How many times the operations of the sparse step's products those of the exact one's are."""
    of, to = (
        sum(product.operations for x in batches for product in step_products(learner, x, dense))
        for learner in (exact, sparse)
    )
    return of / to


def compute(several: Sequence[Product]) -> None:
    """Each once."""
    for each in several:
        each()


# -- measuring --------------------------------------------------------------------------------------------------


def seconds(action: Callable[[T], object], inputs: Sequence[T]) -> float:
    """Mean time of the action; it is done once before, to warm the caches."""
    action(inputs[0])
    start = time.perf_counter()
    for each in inputs:
        action(each)
    return (time.perf_counter() - start) / len(inputs)


def take_turns(cases: dict[str, Learner], stream: Stream, plan: Plan) -> dict[str, list[float]]:
    """Seconds of a step of each case, and of the products of "sparse_k25", in each round.

    The cases go on learning from the stream, all from the same batches: q(y|x) stays as peaked as it is.
    """
    times: dict[str, list[float]] = {name: [] for name in (*cases, "gemm", "dense_gemm")}
    for _ in track(range(plan.rounds), "Measuring"):
        batches = [stream(plan.training) for _ in range(plan.sparse)]
        for name, learner in cases.items():
            steps = plan.exact if learner.config.tau is None else plan.sparse
            times[name].append(seconds(learner.observe, batches[:steps]))
        for name, dense in (("gemm", False), ("dense_gemm", True)):
            several = step_products(cases["sparse_k25"], batches[0], dense)
            times[name].append(seconds(compute, [several] * plan.sparse))
    return times


def peak_bytes(learner: Learner, x: Tensor) -> int | None:
    """The most memory that a step takes at any moment, whoever asks for it, beyond what is held between steps.

    Where Linux tells; None elsewhere.
    """
    if not PROCESS.is_dir():
        return None
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, to be counted when it is taken again
    (PROCESS / "clear_refs").write_text("5")  # the highest so far is what is held now
    before = memory("VmRSS")
    learner.observe(x)
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """Bytes of this process, by the name that Linux has for them."""
    lines = (PROCESS / "status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


# -- telling ----------------------------------------------------------------------------------------------------

RATIOS = {
    "exact_over_sparse_k25": ("exact_k25", "sparse_k25"),
    "plain_exact_over_sparse_k25": ("plain_exact_k25", "sparse_k25"),
    "sparse_k100_over_k1": ("sparse_k100", "sparse_k1"),
    "gemm_fraction": ("gemm", "sparse_k25"),
    "dense_gemm_fraction": ("dense_gemm", "sparse_k25"),
}
OPERATIONS = {  # what exact_over_sparse_k25 would be if products were all: of the units that are awake, of whole layers
    "exact_over_sparse_operations": False,
    "exact_over_sparse_dense_operations": True,
}


def with_spread(name: str, values: Sequence[float]) -> dict[str, Any]:
    """The median over the rounds, and beside it the quartiles."""
    low, median, high = (round(q, 4) for q in statistics.quantiles(values, n=4, method="inclusive"))
    return {name: median, f"{name}_quartiles": [low, high]}


def described(learner: Learner, x: Tensor, times: list[float]) -> dict[str, Any]:
    """A case: what a step takes, how peaked q(y|x) is, and how many pairs it therefore visits."""
    q_y, pairs = q_y_and_pairs(learner, x)
    return with_spread("ms", [1e3 * t for t in times]) | {
        "peak_bytes": peak_bytes(learner, x[:B]),
        "pairs_per_sample": round(len(pairs.rows) / len(x), 3),
        "mean_max_q_y": round(q_y.max(1).values.mean().item(), 3),
    }


def print_tables(report: dict[str, Any], console: Console) -> None:
    """The report, for people."""
    cases = Table("case", "ms a step", "peak MB", "pairs a sample", "mean max q(y|x)", title=report["data"])
    for name, case in report["cases"].items():
        numbers = (case["ms"], (case["peak_bytes"] or math.nan) / 1e6, case["pairs_per_sample"], case["mean_max_q_y"])
        cases.add_row(name, *(f"{number:.2f}" for number in numbers))
    ratios = Table("ratio", "median", "quartiles")
    for name in (name for name in RATIOS if name in report):
        ratios.add_row(name, f"{report[name]:.3f}", "{:.3f} – {:.3f}".format(*report[f"{name}_quartiles"]))
    for name in OPERATIONS:
        ratios.add_row(name, f"{report[name]:.3f}", "counted")
    console.print(cases, ratios)


def main(out: Path | None = None, threads: int = 1, run: Path | None = None, quick: bool = False) -> None:
    """Measure a training step of the MNIST network.

    Args:
        out: a JSON file to write
        threads: for torch to use; the runs of all tables have one
        run: a run directory whose model is measured, instead of models trained here
        quick: only try the script out; the numbers mean nothing
    """
    n_threads, plan = use_threads(threads), QUICK if quick else Plan()
    data, split = training_data()
    if run is None:
        cases = {f"sparse_k{K}": trained(K, split, plan) for K in (25, 100, 1)}
    else:
        cases = {"sparse_k25": of_run(run, 25)}
    exact = copy.deepcopy(cases["sparse_k25"])
    exact.config = replace(exact.config, tau=None)
    cases = {"exact_k25": exact, "plain_exact_k25": plain(exact), **cases}
    schedule = Schedule(split, Sequential(), plan.training, B, named_generator(0, "batches"))
    times = take_turns(cases, schedule.batch, plan)
    report: dict[str, Any] = {}
    for name, (of, to) in RATIOS.items():
        if of in times and to in times:
            report |= with_spread(name, [a / b for a, b in zip(times[of], times[to], strict=True)])
    batches = [schedule.batch(plan.training) for _ in range(10)]
    for name, dense in OPERATIONS.items():
        report[name] = round(operations_ratio(exact, cases["sparse_k25"], batches, dense), 4)
    x = torch.cat(batches)
    report["cases"] = {name: described(case, x, times[name]) for name, case in cases.items()}
    report |= {"data": data, "quick": quick, "batch_size": B, "environment": environment(n_threads)}
    print_tables(report, Console())
    if out is not None:
        write_atomically(out, (json.dumps(report, indent=2) + "\n").encode())


if __name__ == "__main__":
    tyro.cli(main)
