"""Settings, frozen: symbol, unit, meaning; JSON both ways; the paper's set-ups as presets."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from curlicue.errors import ConfigError


class Likelihood(StrEnum):
    """p(x|z)."""

    BERNOULLI = "bernoulli"  # x in [0, 1]
    GAUSSIAN = "gaussian"  # real x, one learnt variance for each feature


class Tuned(StrEnum):
    """Which parameters fit a newborn component to D_new."""

    ALL = "all"  # as the paper says
    HEADS = "heads"  # q(y|x), q(z|x,y) and p(z|y) only, as the released code does


class Emission(StrEnum):
    """How a snapshot turns p(x|z) into a replayed sample."""

    MEAN = "mean"
    THRESHOLD = "threshold"  # the mean, rounded to 0 or 1
    SAMPLE = "sample"


class Counts(StrEnum):
    """For which components the past counts in π, where MGR lets them change their meaning."""

    SEEN = "seen"  # for those that explained the real samples when they were seen, as the released code does
    DREAMT = "dreamt"  # for those that have explained the dreams of them since


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"The '{name}' setting must be {allowed}. Got {value!r} instead.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The mixture VAE; MLPs in the paper's main MNIST sizes."""

    n_z: int = 32  # dimensions of z
    encoder: tuple[int, ...] = (1200, 600, 300, 150)  # widths, x → h
    decoder: tuple[int, ...] = (500, 500)  # hidden widths, z → x
    likelihood: Likelihood = Likelihood.BERNOULLI
    K: int = 1  # components to begin with

    def __post_init__(self) -> None:
        _require(self.n_z >= 1, "n_z", self.n_z, "an int in the range [1, inf)")
        _require(self.K >= 1, "K", self.K, "an int in the range [1, inf)")
        for name in ("encoder", "decoder"):
            widths = getattr(self, name)
            _require(all(w >= 1 for w in widths), name, widths, "widths in the range [1, inf)")
        _require(len(self.encoder) >= 1, "encoder", self.encoder, "at least one width")


@dataclass(frozen=True, kw_only=True)
class ExpansionConfig:
    """When a component is born."""

    c_new: float | None = -200.0  # nats; a real sample whose bound is lower joins D_new. None: as `deviations` says
    deviations: float = 5.0  # only with c_new None: standard deviations below what is normal for the model now
    n_new: int = 100  # size of D_new that triggers a birth
    window: int | None = None  # real samples after which a sample leaves D_new; None: it stays until a birth
    burn_in: int = 100  # steps before D_new begins to collect
    wait: int = 100  # real steps after a birth before D_new collects again
    passes: int = 10  # over D_new, to fit the newborn
    tuned: Tuned = Tuned.ALL
    max_components: int | None = None  # no cap by default

    def __post_init__(self) -> None:
        finite = self.c_new is None or math.isfinite(self.c_new)
        _require(finite, "c_new", self.c_new, "None or a finite number of nats")
        _require(0 < self.deviations < math.inf, "deviations", self.deviations, "a float in the range (0, inf)")
        _require(self.n_new >= 1, "n_new", self.n_new, "an int in the range [1, inf)")
        fits = self.window is None or self.window >= self.n_new
        _require(fits, "window", self.window, "None or an int in the range [n_new, inf)")
        for name in ("burn_in", "wait", "passes"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "an int in the range [0, inf)")
        cap = self.max_components
        _require(cap is None or cap >= 1, "max_components", cap, "None or an int in the range [1, inf)")


def measured_expansion(n_new: int = 100, max_components: int | None = None) -> ExpansionConfig:
    """Growth where no number of nats is known that fits: the line is two deviations below what is normal, and a fifth
    of the latest samples below it is a change (docs/decisions/0011-defaults-of-the-estimator.md).
    """
    return ExpansionConfig(
        c_new=None,
        deviations=2.0,  # when nothing changes, a few of a hundred samples lie below
        n_new=n_new,
        window=5 * n_new,
        burn_in=0,  # what is normal is measured from the start, and needs no other
        wait=20,
        passes=100,  # so that a newborn has its own from the start
        tuned=Tuned.HEADS,  # so many passes over one kind of sample would make the rest forget the others
        max_components=max_components,
    )


@dataclass(frozen=True)
class Never:
    """No snapshot, hence no replay."""


@dataclass(frozen=True)
class Every:
    """A snapshot each time so many steps have passed, before the next real batch."""

    steps: int

    def __post_init__(self) -> None:
        _require(self.steps >= 1, "steps", self.steps, "an int in the range [1, inf)")


@dataclass(frozen=True)
class BeforeBirth:
    """A snapshot just before each expansion ("dynamic")."""


@dataclass(frozen=True)
class AtChange:
    """Just before each expansion, and when other components explain the stream than have done for some time."""


Snapshots = Never | Every | BeforeBirth | AtChange


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What is rehearsed between real batches."""

    snapshots: Snapshots = field(default_factory=BeforeBirth)
    labelled: bool = False  # SMGR: the component that dreamt a sample is its label (Eq. 4)
    emission: Emission = Emission.SAMPLE
    counts: Counts = Counts.DREAMT


GREY = "mnist-grey", "omniglot"  # data sets whose images are not black and white


def paper_replay(dataset: str, snapshots: Snapshots, labelled: bool = False) -> ReplayConfig:
    """Replay in the paper's experiments without class labels: dreams are rounded where images are black and white, and
    sampled where they have greys (docs/decisions/0015-dreams-are-rounded.md).
    """
    emission = Emission.SAMPLE if dataset in GREY else Emission.THRESHOLD
    return ReplayConfig(snapshots=snapshots, labelled=labelled, emission=emission)


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How the bound is climbed."""

    learning_rate: float = 1e-3
    tau: float | None = 0.5  # a component other than the likeliest is visited with probability q/τ; None: all are
    z_samples: int = 1  # importance samples of z (IWAE)
    expansion: ExpansionConfig | None = field(default_factory=ExpansionConfig)
    replay: ReplayConfig | None = field(default_factory=ReplayConfig)

    def __post_init__(self) -> None:
        _require(
            0 < self.learning_rate < math.inf, "learning_rate", self.learning_rate, "a float in the range (0, inf)"
        )
        _require(self.tau is None or 0 < self.tau <= 1, "tau", self.tau, "None or a float in the range (0, 1]")
        _require(self.z_samples >= 1, "z_samples", self.z_samples, "an int in the range [1, inf)")


@dataclass(frozen=True)
class Iid:
    """All classes, shuffled."""


@dataclass(frozen=True)
class Sequential:
    """Classes one after the other, `at_once` of them together, for equal numbers of steps."""

    at_once: int = 1

    def __post_init__(self) -> None:
        _require(self.at_once >= 1, "at_once", self.at_once, "an int in the range [1, inf)")


@dataclass(frozen=True)
class Drift:
    """Classes one after the other, each fading into the next."""


Scenario = Iid | Sequential | Drift


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, completely."""

    dataset: str = "mnist"
    scenario: Scenario = field(default_factory=Sequential)
    steps: int = 100_000  # real and replayed batches together
    batch_size: int = 100
    seed: int = 0
    supervised: bool = False  # the labelled benchmark (SplitMNIST): Eq. 4 on given labels
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sampled_knn: bool = False  # k-NN on sampled y and z instead of the means
    evaluate_every: int = 2000  # steps
    checkpoint_every: int = 2000  # steps

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "checkpoint_every"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "an int in the range [1, inf)")


def in_steps(config: RunConfig, steps: int) -> RunConfig:
    """The same run in so many steps: the periods of snapshots, evaluation and checkpoints go along."""

    def along(period: int) -> int:
        return max(1, period * steps // config.steps)

    learner = config.learner
    match learner.replay:
        case ReplayConfig(snapshots=Every(period)):
            learner = replace(learner, replay=replace(learner.replay, snapshots=Every(along(period))))
    return replace(
        config,
        steps=steps,
        learner=learner,
        evaluate_every=along(config.evaluate_every),
        checkpoint_every=along(config.checkpoint_every),
    )


# -- presets ----------------------------------------------------------------------------------------------------

_IID_BENCHMARK = ModelConfig(n_z=50, encoder=(500, 500), decoder=(500,))

PRESETS: dict[str, RunConfig] = {
    # Appendix, "Main setup", MNIST; snapshots at the end of each class (fixed T)
    "mnist": RunConfig(learner=LearnerConfig(replay=paper_replay("mnist", Every(10_000)))),
    # Appendix, "Main setup", Omniglot
    "omniglot": RunConfig(
        dataset="omniglot",
        batch_size=15,
        model=ModelConfig(encoder=(500, 500), decoder=(500,)),
        learner=LearnerConfig(learning_rate=5e-4, replay=paper_replay("omniglot", Every(2_000))),
    ),
    # Appendix, "Supervised continual learning benchmark": five tasks of two classes
    "split-mnist": RunConfig(
        dataset="mnist-60k",
        scenario=Sequential(at_once=2),
        supervised=True,
        model=ModelConfig(n_z=100, encoder=(400, 400), decoder=(400, 400)),
        learner=LearnerConfig(expansion=None, replay=ReplayConfig(snapshots=Every(20_000), labelled=True)),
    ),
    # Appendix, "Unsupervised i.i.d learning benchmark"
    "iid-mnist": RunConfig(
        scenario=Iid(),
        model=_IID_BENCHMARK,
        learner=LearnerConfig(learning_rate=5e-4, expansion=ExpansionConfig(max_components=100), replay=None),
        sampled_knn=True,
    ),
    "iid-omniglot": RunConfig(
        dataset="omniglot",
        scenario=Iid(),
        batch_size=15,
        model=replace(_IID_BENCHMARK, n_z=100),
        learner=LearnerConfig(learning_rate=5e-4, expansion=ExpansionConfig(max_components=200), replay=None),
        sampled_knn=True,
    ),
    # not of the paper: scikit-learn's 8×8 digits, for a first minute without a download; settings as `CURL` has them
    "digits": RunConfig(
        dataset="digits",
        steps=10_000,
        model=ModelConfig(n_z=8, encoder=(64,), decoder=(64,)),
        learner=LearnerConfig(
            learning_rate=3e-3,
            expansion=measured_expansion(),
            replay=ReplayConfig(snapshots=Every(1_000), labelled=True),
        ),
        evaluate_every=500,
    ),
}


# -- JSON -------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Plain dicts, lists, numbers and strings; a dataclass among alternatives carries its name as "type"."""
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        items = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        for name, hint in hints.items():
            if len(_dataclasses_in(hint)) > 1 and items[name] is not None:
                items[name] = {"type": type(getattr(value, name)).__name__, **items[name]}
        return items
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    return str(value) if isinstance(value, StrEnum) else value


def from_json(hint: Any, value: Any, where: str = "config") -> Any:
    """The inverse of `to_json`; anything unexpected is a ConfigError that says where."""
    if dataclasses.is_dataclass(hint):
        return _dataclass_from_json(hint, value, where)
    if isinstance(hint, types.UnionType):
        return _union_from_json(hint, value, where)
    if typing.get_origin(hint) is tuple:
        _expect(isinstance(value, list), where, "a list", value)
        return tuple(from_json(typing.get_args(hint)[0], v, where) for v in value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        _expect(value in list(hint), where, f"one of {', '.join(hint)}", value)
        return hint(value)
    if hint is float and type(value) is int:
        return float(value)
    _expect(type(value) is hint, where, f"of type {hint.__name__}", value)
    return value


def _expect(condition: bool, where: str, what: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{where} must be {what}. Got {value!r} instead.")


def _dataclasses_in(hint: Any) -> list[Any]:
    return [a for a in typing.get_args(hint) if dataclasses.is_dataclass(a)]


def _dataclass_from_json(hint: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints = typing.get_type_hints(hint)
    unknown = sorted(set(value) - set(hints))
    _expect(not unknown, where, f"made of {', '.join(hints) or 'nothing'}", unknown)
    given = {k: from_json(hints[k], v, f"{where}.{k}") for k, v in value.items()}
    missing = [f.name for f in dataclasses.fields(hint) if _is_required(f) and f.name not in given]
    _expect(not missing, where, f"given with {', '.join(missing)}", value)
    return hint(**given)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _union_from_json(hint: Any, value: Any, where: str) -> Any:
    options = typing.get_args(hint)
    if value is None:
        _expect(type(None) in options, where, "given", value)
        return None
    choices = _dataclasses_in(hint)
    if len(choices) > 1:
        by_name = {c.__name__: c for c in choices}
        _expect(isinstance(value, dict) and value.get("type") in list(by_name), where, f"typed {list(by_name)}", value)
        return from_json(by_name[value["type"]], {k: v for k, v in value.items() if k != "type"}, where)
    return from_json(next(o for o in options if o is not type(None)), value, where)
