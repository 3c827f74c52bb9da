"""Networks of the user's own: an encoder or a decoder that comes as a module, or as a function that makes one."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from curlicue.errors import ConfigError, RunError

Encoder = Sequence[int] | str | nn.Module | Callable[[int], nn.Module]
"""Hidden widths, "conv", a module, or a function of n_x that makes a module."""

Decoder = Sequence[int] | str | nn.Module | Callable[[int, int], nn.Module]
"""Hidden widths, "conv", a module, or a function of n_z and n_x that makes a module."""

Source = nn.Module | Callable[..., nn.Module]
NAMES = ("encoder", "decoder")
LONGEST = 200  # characters of a description


def is_own(network: object) -> bool:
    """Whether a setting is a network of the user's own, not widths or a name."""
    return isinstance(network, nn.Module) or callable(network)


def _own(network: Any) -> Source | None:
    return network if is_own(network) else None


@dataclass(frozen=True)
class Own:
    """The networks of the user's own; None stands for a network that the settings describe."""

    encoder: Source | None = None
    decoder: Source | None = None

    @classmethod
    def among(cls, encoder: object, decoder: object) -> Own:
        """Those of the two settings that are networks of the user's own."""
        return cls(_own(encoder), _own(decoder))

    def check_needed(self, parameters: Mapping[str, object], saved: str) -> None:
        """RunError unless the networks given are those that the parameters of a saved model have as {"own": …}."""
        for name in NAMES:
            kept, given = parameters.get(name), getattr(self, name)
            if isinstance(kept, dict) and not is_own(given):
                how = f"Give it as a module, or as a function that makes one: CURL.load(path, {name}=…)."
                raise RunError(f"The model in {saved} needs the {name} it was saved with: {kept.get('own')}. {how}")
            if given is not None and not isinstance(kept, dict):
                raise RunError(f"The model in {saved} has the {name} {kept!r}, none of your own. Leave out {name}=….")

    def described(self, model: nn.Module) -> dict[str, str]:
        """What torch writes of those networks of a model that are the user's own."""
        return {name: repr(getattr(model, name)) for name in NAMES if getattr(self, name) is not None}

    def check_alike(self, model: nn.Module, kept: Mapping[str, object], saved: str) -> None:
        """RunError unless torch writes of the networks given what it wrote of those that were saved."""
        for name, text in self.described(model).items():
            if text != kept.get(name):
                was, now = in_one_line(str(kept.get(name))), in_one_line(text)
                remedy = f"Got {now} instead. Give the one it was saved with."
                raise RunError(f"The model in {saved} was saved with another {name}: {was}. {remedy}")

    def made(self, n_x: int, n_z: int, seed: int) -> tuple[nn.Module | None, nn.Module | None]:
        """The encoder and the decoder to train: copies of the user's modules, or what the user's functions make."""
        return _made("encoder", self.encoder, (n_x,), seed), _made("decoder", self.decoder, (n_z, n_x), seed)


def _made(name: str, source: Source | None, sizes: tuple[int, ...], seed: int) -> nn.Module | None:
    """A copy on the CPU, in float32."""
    if source is None:
        return None
    network = source if isinstance(source, nn.Module) else _called(source, sizes, seed)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"The {name!r} function must return a torch.nn.Module. Got {network!r} instead.")
    return copy.deepcopy(network).to("cpu", torch.float32)


def _called(factory: Callable[..., nn.Module], sizes: tuple[int, ...], seed: int) -> nn.Module:
    """What the factory makes while torch's own generator is seeded; afterwards that generator is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return factory(*sizes)


def in_one_line(text: str) -> str:
    """What torch writes of a network, short enough for a sentence."""
    return textwrap.shorten(text, LONGEST, placeholder=" …")
