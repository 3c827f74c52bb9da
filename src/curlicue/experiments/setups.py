"""The set-ups of the paper's tables and figures.

A set-up is a name and settings; several tables and figures show the same one. Its runs are known by that name and
their seed: results/mnist-mgr-seed0.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from curlicue.config.model import Emission, ModelConfig
from curlicue.config.scenario import Drift, Iid, Sequential
from curlicue.experiments.presets import PRESETS, paper_memory
from curlicue.experiments.settings import RunConfig, in_steps
from curlicue.growth.threshold import Threshold
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.snapshot import Moments, Snapshot
from curlicue.systems.curl import Curl


@dataclass(frozen=True)
class Untrained:
    """k-NN error of a model as it is initialised: what its latent space is worth before it has learnt."""

    dataset: str
    model: ModelConfig
    seed: int = 0


@dataclass(frozen=True)
class RawPixels:
    """k-NN error without a model."""

    dataset: str


Setup = RunConfig | Untrained | RawPixels

MNIST, OMNIGLOT = PRESETS["mnist"], PRESETS["omniglot"]
N_CLASSES = {"mnist": 10, "mnist-60k": 10, "omniglot": 50}
C_NEWS = (-400, -300, -200, -150, -100)  # nats
TAU_FIXED = 0.1  # docs/decisions/0001-sparse-bound.md
RANDOM_N_Z = (8, 16, 32, 64, 128, 256, 784, 1568)


def _curl(config: RunConfig) -> Curl:
    assert isinstance(config.system, Curl)
    return config.system


def _with_learner(config: RunConfig, learner: LearnerConfig) -> RunConfig:
    return replace(config, system=replace(_curl(config), learner=learner))


def rehearsing(config: RunConfig, snapshots: Moments | None, labelled: bool = False) -> RunConfig:
    """`config` with the replay of the paper's experiments, None: without replay."""
    memory = None if snapshots is None else paper_memory(config.dataset, snapshots, labelled)
    return _with_learner(config, replace(_curl(config).learner, memory=memory))


def growing(config: RunConfig, c_new: float) -> RunConfig:
    """`config` with another threshold."""
    return _with_learner(config, replace(_curl(config).learner, growth=Threshold(c_new=c_new)))


def fixed(config: RunConfig, K: int) -> RunConfig:
    """`config` with K components from the beginning and no births.

    All of them compete from the first step, and those that are seldom visited would die: they are visited more often.
    """
    curl = _curl(config)
    learner = replace(curl.learner, growth=None, tau=TAU_FIXED)
    return replace(config, system=replace(curl, model=replace(curl.model, K=K), learner=learner))


def in_turn(config: RunConfig, snapshots: Moments) -> RunConfig:
    """An iid benchmark's model on classes one after the other, with MGR."""
    return replace(rehearsing(config, snapshots), scenario=Sequential())


def emitting(config: RunConfig, emission: Emission) -> RunConfig:
    """`config` with generated samples made of p(x|z) in this way."""
    learner = _curl(config).learner
    assert isinstance(learner.memory, Snapshot)
    return _with_learner(config, replace(learner, memory=replace(learner.memory, emission=emission)))


def _replay_ablation() -> dict[str, RunConfig]:
    found: dict[str, RunConfig] = {}
    for name, config in (("mnist", MNIST), ("omniglot", OMNIGLOT)):
        kinds: dict[str, Moments] = {"": "T", "-0.1T": "0.1T", "-dynamic": "dynamic"}
        for kind, snapshots in kinds.items():
            found[f"{name}-mgr{kind}"] = rehearsing(config, snapshots)
            found[f"{name}-smgr{kind}"] = rehearsing(config, snapshots, labelled=True)
            if kind != "-0.1T":
                found[f"{name}-drift-mgr{kind}"] = replace(rehearsing(config, snapshots), scenario=Drift())
        found[f"{name}-mgr-change"] = rehearsing(config, "change")
        found[f"{name}-no-replay"] = rehearsing(config, None)
    return found


def _expansion_ablation() -> dict[str, RunConfig]:
    shuffled = replace(rehearsing(MNIST, None), scenario=Iid())
    found: dict[str, RunConfig] = {
        "mnist-no-expansion": fixed(MNIST, 25),
        "mnist-neither": fixed(rehearsing(MNIST, None), 25),
        "mnist-iid-no-expansion": fixed(shuffled, 22),
    }
    for c_new in C_NEWS:
        found[threshold(c_new)] = growing(MNIST, c_new)
        found[threshold(c_new, "iid-")] = growing(shuffled, c_new)
    return found


def threshold(c_new: int, scenario: str = "") -> str:
    """The name of the set-up with this c_new."""
    setup = f"mnist-{scenario}c-new{c_new}"
    return "mnist-mgr" if setup == "mnist-c-new-200" else setup


def _benchmarks() -> dict[str, RunConfig]:
    found = {"split-mnist": PRESETS["split-mnist"]}
    for name in ("mnist", "omniglot"):
        found[f"iid-{name}"] = PRESETS[f"iid-{name}"]
        found[f"benchmark-{name}-in-turn"] = in_turn(PRESETS[f"iid-{name}"], "dynamic")
        found[f"benchmark-{name}-in-turn-change"] = in_turn(PRESETS[f"iid-{name}"], "change")
    return found


def _without_learning() -> dict[str, Setup]:
    found: dict[str, Setup] = {
        "raw-pixels-mnist": RawPixels("mnist-grey"),
        "raw-pixels-omniglot": RawPixels("omniglot"),
    }
    for n_z in RANDOM_N_Z:
        capacity = replace(_curl(PRESETS["iid-mnist"]).model, n_z=n_z, K=25)
        found[f"random-n-z-{n_z}"] = Untrained("mnist", capacity)
    return found


_UNRESOLVED = {**_replay_ablation(), **_expansion_ablation(), **_benchmarks()}
RUNS = {name: config.resolved(N_CLASSES[config.dataset]) for name, config in _UNRESOLVED.items()}
EMISSIONS = {"rounded": Emission.THRESHOLD, "sampled": Emission.SAMPLE}
BOTH_WAYS = {  # what is run with generated samples of both kinds, and what it is called where they are compared
    "mnist-mgr": "MGR (fixed, T)",
    "mnist-mgr-dynamic": "MGR (dyn)",
    "mnist-drift-mgr": "Cont. w/ MGR (fixed)",
    "mnist-drift-mgr-dynamic": "Cont. w/ MGR (dyn)",
    "mnist-no-expansion": "MGR (fixed, T), no exp",
    "benchmark-mnist-in-turn": "CURL w/ MGR (seq), n_z = 50",
    "omniglot-mgr": "Omniglot, MGR (fixed, T)",
    "omniglot-mgr-dynamic": "Omniglot, MGR (dyn)",
}


def with_emission(name: str, kind: str) -> str:
    """The name of the set-up whose generated samples are rounded or sampled: its own, if they are so already."""
    return name if emitting(RUNS[name], EMISSIONS[kind]) == RUNS[name] else f"{name}-{kind}"


SETUPS: dict[str, Setup] = {
    **RUNS,
    **{with_emission(name, kind): emitting(RUNS[name], EMISSIONS[kind]) for name in BOTH_WAYS for kind in EMISSIONS},
    **_without_learning(),
}


def seeded(setup: Setup, seed: int, scale: float = 1.0) -> Setup:
    """The set-up with another seed, and `scale` of the steps."""
    match setup:
        case RunConfig():
            return in_steps(replace(setup, seed=seed), max(1, round(setup.steps * scale)))
        case Untrained():
            return replace(setup, seed=seed)
        case RawPixels():
            return setup
