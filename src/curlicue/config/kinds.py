"""Settings of which there are several kinds, such as rules of growth: a new kind is a subclass, and nothing else."""

from __future__ import annotations

import inspect
import re
from abc import ABC
from dataclasses import fields, is_dataclass
from typing import TypeVar, get_type_hints

from curlicue.errors import ConfigError


class Kind(ABC):  # noqa: B024 - families have the methods
    """The base of a family of settings.

    A direct subclass names the family; every dataclass below it that is not abstract is one kind, and JSON, the command
    line and the estimator know it by the name of its class.
    """

    def __post_init__(self) -> None:
        """Refuse settings of another type than is declared; words stand for the members of an enumeration."""
        from curlicue.config.codec import from_json, to_json  # it knows kinds

        hints = get_type_hints(type(self))
        for field in fields(self):  # type: ignore[arg-type]  # every kind is a dataclass
            value, where = getattr(self, field.name), f"{type(self).__name__}.{field.name}"
            value = value.item() if hasattr(value, "item") else value  # a number of NumPy's
            if not is_dataclass(value):
                object.__setattr__(self, field.name, from_json(hints[field.name], to_json(value), where))


F = TypeVar("F", bound=Kind)


def is_family(hint: object) -> bool:
    """Whether a type stands for any of several kinds."""
    return isinstance(hint, type) and Kind in hint.__bases__


def kinds(family: type[F]) -> dict[str, type[F]]:
    """The kinds of a family that have been imported, by the names of their classes."""
    found: dict[str, type[F]] = {}
    for kind in family.__subclasses__():
        found |= {kind.__name__: kind} if not inspect.isabstract(kind) else {}
        found |= kinds(kind)
    return found


def by_option(family: type[F]) -> dict[str, type[F]]:
    """The same kinds by the names that options have: `threshold`, `snapshot`, `labelled-curl`."""
    return {option(kind): kind for kind in kinds(family).values()}


def option(kind: type) -> str:
    """The name of a class as an option has it: LabelledCurl is `labelled-curl`."""
    return as_option(kind.__name__)


def as_option(name: str) -> str:
    """The name of a kind as an option has it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def comments(kind: type) -> dict[str, str]:
    """The comment behind each field of a dataclass: what the setting means, for `--help`."""
    try:
        source = inspect.getsource(kind)
    except OSError:  # the source is not at hand
        return {}
    return dict(re.findall(r"^    (\w+):[^#\n]*# (.+)$", source, re.MULTILINE))


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(f"The '{name}' setting must be {allowed}. Got {value!r} instead.")
