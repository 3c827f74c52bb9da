"""Settings to JSON and back; anything unexpected in the JSON is a ConfigError that says where."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from enum import StrEnum
from typing import Any

from curlicue.config.kinds import is_family, kinds
from curlicue.errors import ConfigError


def to_json(value: Any) -> Any:
    """Plain dicts, lists, numbers and strings; a dataclass among alternatives carries its name as "type"."""
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        items = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        for name in items:
            if _is_typed(hints[name]) and dataclasses.is_dataclass(getattr(value, name)):
                items[name] = {"type": type(getattr(value, name)).__name__, **items[name]}
        return items
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    return str(value) if isinstance(value, StrEnum) else value


def from_json(hint: Any, value: Any, where: str = "config") -> Any:
    """The inverse of `to_json` for a value of the type `hint`."""
    if is_family(hint) or isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return _from_alternatives(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return _from_object(hint, value, where)
    if typing.get_origin(hint) is tuple:
        _expect(isinstance(value, list), where, "a list", value)
        return tuple(from_json(typing.get_args(hint)[0], v, where) for v in value)
    if typing.get_origin(hint) is typing.Literal:
        _expect(value in typing.get_args(hint), where, f"one of {', '.join(map(repr, typing.get_args(hint)))}", value)
        return value
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        _expect(value in list(hint), where, f"one of {', '.join(hint)}", value)
        return hint(value)
    if hint is float and type(value) is int:
        _expect(abs(value) <= sys.float_info.max, where, "of type float", value)
        return float(value)
    _expect(type(value) is (typing.get_origin(hint) or hint), where, f"of type {_name(hint)}", value)
    return value


def _from_alternatives(hint: Any, value: Any, where: str) -> Any:
    options = (hint,) if is_family(hint) else typing.get_args(hint)
    if value is None:
        _expect(type(None) in options, where, "given", value)
        return None
    choices = _alternatives(hint)
    if _is_typed(hint):
        known = isinstance(value, dict) and value.get("type") in list(choices)  # a list looks up what has no hash, too
        _expect(known, where, f"of an imported type ({', '.join(choices)})", value)
        return _from_object(choices[value["type"]], {k: v for k, v in value.items() if k != "type"}, where)
    plain = [option for option in options if option is not type(None)]
    return from_json(next((option for option in plain if _may_be(option, value)), plain[0]), value, where)


def _may_be(hint: Any, value: Any) -> bool:
    """Whether a JSON value is of the right sort for a type that is no dataclass."""
    origin = typing.get_origin(hint)
    sort = list if origin is tuple else str if origin is typing.Literal else hint
    return isinstance(value, sort)


def _is_typed(hint: Any) -> bool:
    """Whether the JSON of such a value says which of several kinds it is."""
    options = typing.get_args(hint) or (hint,)
    return any(map(is_family, options)) or sum(map(dataclasses.is_dataclass, options)) > 1


def _alternatives(hint: Any) -> dict[str, Any]:
    """The dataclasses among which a value of this type is one, by name."""
    found: dict[str, Any] = {}
    for option in typing.get_args(hint) or (hint,):
        if is_family(option):
            found |= kinds(option)
        elif isinstance(option, type) and dataclasses.is_dataclass(option):
            found[option.__name__] = option
    return found


def _from_object(hint: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints = typing.get_type_hints(hint)
    names = [f.name for f in dataclasses.fields(hint)]
    unknown = sorted(set(value) - set(names))
    _expect(not unknown, where, f"made of {', '.join(names) or 'nothing'}", unknown)
    given = {k: from_json(hints[k], v, f"{where}.{k}") for k, v in value.items()}
    missing = [name for name in required_fields(hint) if name not in given]
    _expect(not missing, where, f"given with {', '.join(missing)}", value)
    return hint(**given)


def required_fields(kind: Any) -> list[str]:
    """The fields of a dataclass that have no default."""
    absent = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(kind) if f.default is absent and f.default_factory is absent]


def _name(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint))


def _expect(condition: bool, where: str, what: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{where} must be {what}. Got {value!r} instead.")
