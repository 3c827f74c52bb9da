"""The parameters of CURL as the settings of a model and its learner, checked; and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from curlicue.config.codec import from_json, to_json
from curlicue.config.kinds import Kind, by_option, kinds
from curlicue.config.model import Likelihood, ModelConfig
from curlicue.errors import ConfigError
from curlicue.estimator.networks import NAMES, Own, in_one_line, is_own
from curlicue.growth.protocol import GrowthConfig
from curlicue.growth.split import Split
from curlicue.growth.structure import Structure
from curlicue.learn.learner import LearnerConfig
from curlicue.memory.protocol import MemoryConfig

Json = dict[str, Any]
F = TypeVar("F", bound=Kind)
S = TypeVar("S", ModelConfig, LearnerConfig)
FAMILIES: dict[str, type[Kind]] = {"growth": GrowthConfig, "memory": MemoryConfig}
EXAMPLES = {"growth": "Measured(n_new=50)", "memory": "Snapshot(labelled=False)"}
LIKELIHOODS = tuple(str(each) for each in Likelihood)


@dataclass(frozen=True)
class Settings:
    """What learning begins with."""

    model: ModelConfig  # of a network of the user's own it knows nothing: that one stands in `own`
    learner: LearnerConfig
    own: Own


def settings_of(parameters: Mapping[str, Any]) -> Settings:
    """The settings that the parameters of CURL stand for; ConfigError for a parameter that cannot work."""
    for name in ("batch_size", "epochs"):
        whole(name, parameters[name])
    if (on_event := parameters["on_event"]) is not None and not callable(on_event):
        raise ConfigError(f"The 'on_event' setting must be None or a function. Got {on_event!r} instead.")
    device_name(parameters["device"])
    own = Own.among(parameters["encoder"], parameters["decoder"])
    return Settings(_model(parameters), _learner(parameters), own)


def _model(parameters: Mapping[str, Any]) -> ModelConfig:
    _one_of("likelihood", parameters["likelihood"], LIKELIHOODS)
    networks = {name: _network(name, parameters[name]) for name in NAMES if not is_own(parameters[name])}
    given = {name: plain(parameters[name]) for name in ("n_z", "likelihood")}
    return _read(ModelConfig, given | networks)


def _learner(parameters: Mapping[str, Any]) -> LearnerConfig:
    given = {name: plain(parameters[name]) for name in ("learning_rate", "max_components")}
    growth = _told(kind_of(GrowthConfig, "growth", parameters["growth"]), parameters["n_components"])
    if parameters["n_components"] is not None:
        given["max_components"] = plain(parameters["n_components"])
    memory = _sized(kind_of(MemoryConfig, "memory", parameters["memory"]), parameters["memory_size"])
    return replace(_read(LearnerConfig, given), growth=growth, memory=memory)


def _told(growth: GrowthConfig | None, n_components: object) -> GrowthConfig | None:
    """The settings of growth, told how many clusters there are if that is known."""
    if n_components is None:
        return growth
    n = whole("n_components", n_components)
    match growth:
        case Structure():
            return replace(growth, split=replace(growth.split, n_clusters=n))
        case Split():
            return replace(growth, n_clusters=n)
    return growth


def _sized(memory: MemoryConfig | None, size: object) -> MemoryConfig | None:
    """The settings of a memory, with another size if one is given."""
    if size is None:
        return memory
    n = whole("memory_size", size)
    if memory is None or not hasattr(memory, "size"):
        raise ConfigError(
            "The 'memory_size' setting is for a memory that keeps rows, such as 'reservoir'. Leave it out."
        )
    sized: MemoryConfig = kind_from_json(MemoryConfig, kind_to_json(memory) | {"size": n}, "CURL.memory")
    return sized


def _read(config: type[S], given: Json) -> S:
    found: S = from_json(config, given, "CURL")
    return found


def _network(name: str, value: object) -> Any:
    """Widths as JSON has them, or the name "conv"."""
    network = plain(value)
    if not isinstance(network, list) and network != "conv":
        raise ConfigError(
            f"The {name!r} setting must be hidden widths such as (256, 128), 'conv', a torch.nn.Module "
            f"or a function that makes one. Got {value!r} instead."
        )
    return network


def kind_of(family: type[F], name: str, value: object) -> F | None:
    """The settings that a parameter stands for: none, the defaults of the kind with that name, or the ones given."""
    options = by_option(family)
    if value is None:
        return None
    if isinstance(value, str) and value in options:
        found: F = from_json(family, {"type": options[value].__name__}, f"CURL.{name}")
        return found
    if isinstance(value, family) and not is_dataclass(value):
        raise ConfigError(f"The {name!r} setting is a {type(value).__name__}, which is no dataclass. Make it one.")
    if isinstance(value, family):
        return kind_from_json(family, kind_to_json(value), f"CURL.{name}")
    choices = ", ".join(map(repr, sorted(options)))
    raise ConfigError(
        f"The {name!r} setting must be None, one of {choices}, or settings such as {EXAMPLES[name]}. "
        f"Got {value!r} instead."
    )


def kind_to_json(value: Kind) -> Json:
    """Settings of a kind, with the name of the kind."""
    items: Json = plain(to_json(value))
    return {"type": type(value).__name__, **items}


def kind_from_json(family: type[F], value: object, where: str) -> F:
    """The inverse of `kind_to_json`; ConfigError for a kind of the user's own that has not been imported."""
    name = value.get("type") if isinstance(value, dict) else None
    if isinstance(name, str) and name not in kinds(family):
        raise ConfigError(f"{where} is a {name}, which nothing imported so far defines. Import the module that does.")
    if not isinstance(name, str):
        raise ConfigError(f"{where} must be settings with their type. Got {value!r} instead.")
    found: F = from_json(family, value, where)
    return found


# -- JSON ---------------------------------------------------------------------------------------------------------


def parameters_to_json(parameters: Mapping[str, Any], model: ModelConfig, own: Mapping[str, str]) -> Json:
    """The parameters as config.json keeps them: all but `on_event`, of `random_state` only a number, and the networks
    that learning began with: those of `model`, or what torch writes of the user's own.
    """
    kept = {name: _kept(name, value) for name, value in parameters.items() if name not in ("on_event", *NAMES)}
    networks = {name: plain(getattr(model, name)) for name in NAMES}
    return kept | networks | {name: {"own": in_one_line(text)} for name, text in own.items()}


def _kept(name: str, value: Any) -> Any:
    if isinstance(value, Kind):
        return kind_to_json(value)
    if name == "random_state" and not isinstance(value, int | np.integer):
        return None
    return device_name(value) if name == "device" else plain(value)


def parameters_from_json(value: object, names: set[str], own: Own) -> Json:
    """The inverse of `parameters_to_json`, checked; networks of the user's own are taken from `own`."""
    if not isinstance(value, dict) or set(value) != names - {"on_event"}:
        raise ConfigError(f"Its parameters must be {', '.join(sorted(names))}. Got {value!r} instead.")
    parameters = {name: _found(name, each, own) for name, each in value.items()} | {"on_event": None}
    from_json(int | None, parameters["random_state"], "random_state")
    settings_of(parameters)
    return parameters


def _found(name: str, value: Any, own: Own) -> Any:
    if name in FAMILIES and isinstance(value, dict):
        return kind_from_json(FAMILIES[name], value, name)
    if name in FAMILIES and isinstance(value, str) and value not in by_option(FAMILIES[name]):
        raise ConfigError(f"{name} is {value!r}, which nothing imported so far defines. Import the module that does.")
    if name in NAMES and isinstance(value, dict):
        return getattr(own, name)
    return tuple(value) if isinstance(value, list) else value


# -- values -------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Numbers of numpy, tuples and dictionaries as JSON has them."""
    match value:
        case np.generic() | np.ndarray():
            return value.tolist()
        case tuple() | list():
            return [plain(each) for each in value]
        case dict():
            return {key: plain(each) for key, each in value.items()}
    return value


def whole(name: str, value: object, low: int = 1) -> int:
    """A whole number of at least `low`; ConfigError if the setting is anything else."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        raise ConfigError(f"The {name!r} setting must be an int in the range [{low}, inf). Got {value!r} instead.")
    return int(value)


def device_name(device: object) -> str:
    """The name of a device; ConfigError if the setting is no name."""
    if not isinstance(device, str | torch.device):
        raise ConfigError(
            f"The 'device' setting must be 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto'. Got {device!r} instead."
        )
    return str(device)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise ConfigError(f"The {name!r} setting must be one of {choices}. Got {value!r} instead.")
