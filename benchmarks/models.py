"""What the benchmark measures: learners whose q(y|x) is as peaked as after a full run."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from rich.progress import track
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor, nn

from curlicue.config.codec import from_json
from curlicue.config.model import ModelConfig
from curlicue.engines.autograd import AutogradEngine
from curlicue.engines.protocol import Climbing
from curlicue.experiments.run import Run
from curlicue.experiments.settings import RunConfig
from curlicue.learn.checkpoint import load_checkpoint
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.model.elbo import EXACT
from curlicue.model.mixture import MixtureVAE
from curlicue.model.networks import Mlp
from curlicue.model.pairs import Pairs
from curlicue.records.directory import RunDirectory
from curlicue.records.state import Fields
from curlicue.rng import Rng
from curlicue.streams import sources
from curlicue.streams.fetch import status
from curlicue.streams.sources import Split
from curlicue.systems.curl import CurlSystem

B = 100  # samples in a batch
ALONE = LearnerConfig(growth=None, memory=None)
MAIN = ModelConfig()
SMALL = ModelConfig(n_z=8, encoder=(64,), decoder=(64,))  # for 64 features


def training_data() -> tuple[str, Split]:
    """The name of the data, and ten classes of images with 784 pixels."""
    if all(file.state == "ok" for file in status() if file.dataset == "mnist"):
        return "mnist", sources.load("mnist").train
    digits = small_data()
    x = nn.functional.interpolate(digits.x.view(-1, 1, 8, 8), 28).flatten(1)
    return "digits enlarged to 28×28, for MNIST is not here: curlicue data mnist", Split(x, digits.labels)


def small_data() -> Split:
    """Ten classes of images with 64 pixels."""
    return sources.load("digits").train


def trained(K: int, split: Split, steps: int, network: ModelConfig = MAIN) -> Learner:
    """CURL with K components, its q(y|x) as peaked as after a full run.

    Left to itself q(y|x) takes ten thousands of steps to become so. Here each component is given a cluster of the
    images to learn (Eq. 4).
    """
    rng = Rng.from_seed(K)
    model = MixtureVAE.from_config(ModelConfig(**vars(network) | {"K": K}), split.x.shape[1], rng.init)
    learner = Learner(model, ALONE, rng)
    y = torch.from_numpy(MiniBatchKMeans(K, n_init=1, random_state=0).fit_predict(split.x.numpy())).long()
    for _ in track(range(steps), f"Training K = {K}"):
        rows = torch.randint(len(y), (B,), generator=rng.data)
        learner.engine.climb(learner.engine.bound_given(split.x[rows], y[rows]))
    return learner


@torch.no_grad()
def of_run(path: Path, K: int) -> Learner:
    """The model that a run of the MNIST network has come to, with the K components that explain most of its stream."""
    directory = RunDirectory.open(path)
    config = from_json(RunConfig, directory.read("config"))
    run = Run(config, sources.load(config.dataset), directory)
    system = run.system
    if not isinstance(system, CurlSystem):
        raise SystemExit(f"{path} is a run of another system than CURL. Choose another run.")
    load_checkpoint(directory.checkpoint, run.kept)
    model, counts = system.model, system.learner.memory.counts()
    if len(counts) < K:
        raise SystemExit(f"{path} has {len(counts)} components, and the benchmark measures {K}. Choose another run.")
    kept = counts.topk(K).indices
    for name, head in list(model.heads.items()):
        model.heads[name] = nn.Parameter(head[kept])
    return Learner(model, ALONE, system.learner.rng)


def exact(learner: Learner) -> Learner:
    """A copy of a learner that visits every component from now on."""
    model, rng = copy.deepcopy((learner.model, learner.rng))
    found = Learner(model, LearnerConfig(tau=EXACT, growth=None, memory=None), rng)
    found.restore(Fields(copy.deepcopy(learner.state()), "state"))
    return found


def by_autograd(learner: Learner) -> Learner:
    """A copy of a learner that the autograd engine climbs, with the moments that Adam has."""
    found, config = copy.deepcopy(learner), learner.config
    climbing = Climbing(learning_rate=config.learning_rate, tau=config.tau, z_samples=config.z_samples)
    found.engine = AutogradEngine(found.model, climbing, found.rng.latent)
    found.engine.restore(Fields(copy.deepcopy(learner.engine.state()), "state"))
    return found


def plain(learner: Learner) -> Learner:
    """The same model in layers of torch's own: its steps go by autograd, and multiply every unit."""
    learner = copy.deepcopy(learner)
    model = learner.model
    for name in ("encoder", "decoder"):
        setattr(model, name, torch_layers(network_of(getattr(model, name))))
    return Learner(model, learner.config, learner.rng)


def torch_layers(network: Mlp) -> nn.Sequential:
    """The same function."""
    modules: list[nn.Module] = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        linear = nn.Linear(*weight.shape)
        linear.weight.data, linear.bias.data = weight.data.t().contiguous(), bias.data.clone()
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*(modules if network.relu_last else modules[:-1]))


def network_of(module: nn.Module) -> Mlp:
    """The paper's MLP, as all models here have."""
    assert isinstance(module, Mlp)
    return module


@torch.no_grad()
def q_y_and_pairs(learner: Learner, x: Tensor) -> tuple[Tensor, Pairs]:
    """q(y|x) [B, K], and the pairs that a step on x visits."""
    q_y = learner.model.log_q_y(learner.model.encode(x)).exp()
    tau = learner.config.tau
    return q_y, Pairs.every(q_y) if tau == EXACT else Pairs.sparse(q_y, tau, learner.rng.latent)
