"""Options of the command line, made from settings.

Every field of a dataclass of settings is an option, and so is every field of each kind that the settings may hold: a
new rule of growth, memory or system appears here by being imported. Fields of the same name are one option.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, make_dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tyro.conf import arg

from curlicue.cli import console
from curlicue.cli.console import Given
from curlicue.config.codec import from_json, to_json
from curlicue.config.kinds import Kind, by_option, comments, is_family, option
from curlicue.errors import ConfigError

NONE = "none"  # how the command line says None

S = TypeVar("S")
Values = Mapping[str, Any]
"""What was given on the command line, by the names of fields."""


@dataclass(frozen=True)
class Choice:
    """One kind of a family as it is chosen: --growth measured."""

    family: str  # the name of the option
    kind: str

    def __str__(self) -> str:
        return f"{console.options([self.family])} {self.kind}"


@dataclass(frozen=True)
class Place:
    """A field that an option sets."""

    name: str
    hint: Any  # what the command line reads
    comment: str  # what the field means
    default: Any  # MISSING if there is none
    goes_with: Choice | None  # the kind that has the field; None: all settings have it


Options = Mapping[str, Sequence[Place]]
"""The fields that each option sets."""


def options(settings: type, taken: Iterable[str] = ()) -> dict[str, list[Place]]:
    """All options that a dataclass of settings has; ConfigError if one name is to set two things, or is `taken`."""
    found: dict[str, list[Place]] = {}
    for place in _places(settings):
        known = found.setdefault(place.name, [])
        if place not in known:
            known.append(place)
    for name, places in found.items():
        families = {place.goes_with.family if place.goes_with else None for place in places}
        if name in taken or len(families) > 1:
            raise ConfigError(f"{console.options([name])} is to set {_owners(places)}, and more. Rename its field.")
    return found


def _owners(places: Sequence[Place]) -> str:
    """Whose fields these are: of kinds, or of all settings."""
    return " and ".join(dict.fromkeys(f"a field of {place.goes_with or 'all settings'}" for place in places))


def options_type(doc: str, found: Options, notes: Mapping[str, str] | None = None, **more: Any) -> type:
    """A dataclass that tyro reads: each option, and each of `more`, is None unless given.

    `notes` on the defaults of options end their help.
    """
    helps = {name: _help(found, name, (notes or {}).get(name, "")) for name in found}
    hints = {name: _given(_union(place.hint for place in found[name]), text) for name, text in helps.items()}
    items = [(name, hint, None) for name, hint in {**more, **hints}.items()]
    return make_dataclass("Settings", items, frozen=True, kw_only=True, namespace={"__doc__": doc})


def given(settings: object) -> dict[str, Any]:
    """The options that were given, of what tyro has read."""
    return {name: value for name, value in vars(settings).items() if value is not None}


def choice(words: Sequence[str], text: str) -> Any:
    """The type of an option that is one of some words."""
    return _given(Literal[tuple(words)], text)


def apply(settings: S, values: Values, suggested: Values | None = None) -> S:
    """The settings with the fields changed that `values` names; another kind than before begins with its defaults.

    What is `suggested` is used where a field of that name is among the settings, and `values` does not say otherwise.
    """
    used: set[str] = set()
    made: S = _made(type(settings), settings, {**(suggested or {}), **values}, used)
    if unused := [name for name in values if name not in used]:
        _refuse(unused, options(type(settings)))
    return made


# -- the options of settings --------------------------------------------------------------------------------------


def _places(settings: type, goes_with: Choice | None = None) -> Iterator[Place]:
    hints, texts = get_type_hints(settings), _comments(settings)
    for field in fields(settings):
        hint, text, default = hints[field.name], texts.get(field.name, ""), _default(field)
        if family := _family(hint):
            kinds = by_option(family)
            words = Literal[(*kinds, *([NONE] if type(None) in get_args(hint) else []))]  # type: ignore[valid-type]
            yield Place(field.name, words, text, _word(default), goes_with)
            for word, kind in kinds.items():
                yield from _places(kind, Choice(field.name, word))
        elif isinstance(hint, type) and is_dataclass(hint):
            yield from _places(hint, goes_with)
        else:
            yield Place(field.name, _readable(hint), text, default, goes_with)


def _comments(settings: type) -> dict[str, str]:
    """The comments behind the fields of a dataclass, and behind those that it inherits."""
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if is_dataclass(base):
            found |= comments(base)
    return found | {field.name: field.metadata["help"] for field in fields(settings) if "help" in field.metadata}


def _family(hint: Any) -> type[Kind] | None:
    """The family of which a field holds one kind."""
    return next((each for each in get_args(hint) or (hint,) if is_family(each)), None)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _word(kind: object) -> Any:
    """A kind as an option names it."""
    if kind is MISSING:
        return MISSING
    return NONE if kind is None else option(type(kind))


def _readable(hint: Any) -> Any:
    """The type of a field as the command line reads it: words for None and for the members of an enum."""
    if get_origin(hint) in (Union, types.UnionType):
        return _union(map(_readable, get_args(hint)))
    if hint is type(None):
        return Literal[NONE]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Literal[tuple(map(str, hint))]
    return hint


def _union(hints: Iterator[Any]) -> Any:
    return Union[tuple(hints)]  # noqa: UP007 - of however many


def _given(hint: Any, text: str) -> Any:
    return Annotated[Given[hint], arg(help_behavior_hint="", help=text)]  # type: ignore[misc]


# -- their help ---------------------------------------------------------------------------------------------------


def _help(found: Options, name: str, note: str) -> str:
    """What the option means, which kinds it goes with unless all have it, and a note."""
    places = found[name]
    texts = list(dict.fromkeys(place.comment for place in places))
    kinds = ", ".join(_kinds(found, places)) if len(texts) == 1 else ""
    if len(texts) > 1:  # each kind has its own
        texts = [f"{place.goes_with.kind}: {place.comment}" if place.goes_with else place.comment for place in places]
    behind = "; ".join(filter(None, (kinds, note)))
    return "; ".join(texts) + (f" ({behind})" if behind else "")


def _kinds(found: Options, places: Sequence[Place]) -> list[str]:
    """The kinds that have these fields; nothing where there are several, and all of their family."""
    chosen = {place.goes_with: None for place in places}
    having = [each for each in chosen if each is not None]
    if len(having) < len(chosen):
        return []
    others = [Choice(each.family, kind) for each in having for kind in get_args(found[each.family][0].hint)]
    everyone = len(having) > 1 and all(other in chosen or other.kind == NONE for other in others)
    return [] if everyone else [each.kind for each in having]


def default_notes(found: Options) -> dict[str, str]:
    """For the help of each option, the defaults of its fields."""
    notes = {}
    for name, places in found.items():
        defaults = {place.goes_with: _text(place) for place in places if place.default is not MISSING}
        if len(set(defaults.values())) == 1:
            notes[name] = f"default: {next(iter(defaults.values()))}"
        elif defaults:
            notes[name] = "default: " + ", ".join(f"{text} with {goes}" for goes, text in defaults.items())
    return notes


def _text(place: Place) -> str:
    """A default as it is written on the command line."""
    match place.default:
        case bool():
            return console.options([place.name if place.default else f"no_{place.name}"])
        case tuple():
            return " ".join(map(str, place.default))
        case None:
            return NONE
    return str(place.default)


# -- settings with options applied --------------------------------------------------------------------------------


def _made(kind: type[S], before: S | None, values: Values, used: set[str]) -> S:
    """Settings of a kind, with the values of `before`, or else the defaults, where no option says otherwise."""
    hints = get_type_hints(kind)
    made = {}
    for field in fields(kind):  # type: ignore[arg-type]  # every S is a dataclass
        old = _default(field) if before is None else getattr(before, field.name)
        made[field.name] = _value(field.name, hints[field.name], old, values, used)
        if made[field.name] is MISSING:
            raise ConfigError(f"{console.options([field.name])} must be given with {option(kind)}. Add it.")
    return kind(**made)


def _value(name: str, hint: Any, old: Any, values: Values, used: set[str]) -> Any:
    """The value of a field; its option, if it has one, counts as used."""
    if old is MISSING and name not in values:
        return MISSING
    if family := _family(hint):
        used.add(name)
        kind = type(old) if name not in values else by_option(family).get(values[name])
        if kind is None or kind is type(None):
            return None
        return _made(kind, old if type(old) is kind else None, values, used)
    if isinstance(hint, type) and is_dataclass(hint):
        return _made(hint, old, values, used)
    used.add(name)
    return _read(name, hint, values[name]) if name in values else old


def _read(name: str, hint: Any, value: Any) -> Any:
    """What was given, as the field has it."""
    if value == NONE and type(None) in get_args(hint):
        return None
    return from_json(hint, to_json(value), console.options([name]))


def _refuse(unused: Sequence[str], found: Options) -> None:
    """Say what options go with that none of the settings has a field for."""
    goes_with = {place.goes_with for place in found[unused[0]] if place.goes_with}
    alike = [name for name in unused if {place.goes_with for place in found[name]} == goes_with]
    goes, them, that = ("goes", "it", "that") if len(alike) == 1 else ("go", "them", "that")
    choices = " or ".join(sorted(map(str, goes_with)))
    if len(goes_with) > 1:
        that = "one of these"
    raise ConfigError(f"{console.options(alike)} {goes} with {choices}. Leave {them} out, or add {that}.")
