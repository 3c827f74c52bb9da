"""Options are made from settings, and settings from options."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
import tyro
from tyro.conf import OmitArgPrefixes, arg

from curlicue.cli.options import apply, choice, default_notes, given, options, options_type
from curlicue.config.kinds import Kind
from curlicue.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Engine(Kind):
    """A family."""


@dataclass(frozen=True)
class Steam(Engine):
    """A kind."""

    pressure: float = 2.0  # in bar
    colour: Colour = Colour.RED  # of the boiler
    wheels: int = 4  # of iron


@dataclass(frozen=True)
class Diesel(Engine):
    """Another kind."""

    pressure: float = 9.0  # in bar
    wheels: int = 6  # of rubber
    fuel: str | None = None  # what it burns


@dataclass(frozen=True, kw_only=True)
class Carriage:
    """Settings within settings."""

    seats: tuple[int, ...] | Literal["none left"] = (40, 20)  # by class


@dataclass(frozen=True, kw_only=True)
class Train:
    """Settings."""

    engine: Engine | None = field(default_factory=Steam)  # what pulls
    first: Carriage = field(default_factory=Carriage)
    most: int | None = 7  # carriages
    fast: bool = False  # only few stops


class Animal(Kind):
    """Another family."""


@dataclass(frozen=True)
class Horse(Animal):
    """A kind without settings."""


@dataclass(frozen=True)
class Donkey(Animal):
    """A kind with a setting that has no default."""

    name: str


@dataclass(frozen=True)
class Cart:
    """Settings without defaults."""

    animal: Animal


def read(*words: str) -> dict[str, Any]:
    """What the command line makes of words."""

    made = options_type("Doc.", options(Train))

    def command(settings: Annotated[Any, arg(constructor=made), OmitArgPrefixes]) -> dict[str, Any]:
        return given(settings)

    return tyro.cli(command, args=words)


# -- what options there are -------------------------------------------------------------------------------------------


def test_every_field_is_an_option_and_so_is_every_field_of_each_kind_and_of_settings_within_them():
    names = {"engine", "pressure", "colour", "wheels", "fuel", "seats", "most", "fast"}
    assert options(Train).keys() == names


def test_fields_of_the_same_name_are_one_option():
    assert [str(place.goes_with) for place in options(Train)["pressure"]] == ["--engine steam", "--engine diesel"]


def test_a_new_kind_is_there_as_soon_as_it_is_defined():
    @dataclass(frozen=True)
    class Ox(Animal):
        horns: int = 2

    assert "horns" in options(Cart)
    assert apply(Cart(Horse()), {"animal": "ox", "horns": 1}) == Cart(Ox(horns=1))


def test_a_field_cannot_share_its_option_with_something_else():
    @dataclass(frozen=True)
    class Mule(Animal):
        wheels: int = 0

    @dataclass(frozen=True)
    class Convoy:
        engine: Engine
        animal: Animal

    shared = "^--wheels is to set a field of --engine steam and a field of --engine diesel and a field of --animal mule"
    with pytest.raises(ConfigError, match=rf"{shared}, and more\. Rename its field\.$"):
        options(Convoy)
    with pytest.raises(ConfigError, match=r"^--most is to set a field of all settings, and more\. Rename its field\.$"):
        options(Train, taken=["most"])


def test_help_says_what_fields_mean_which_kinds_have_them_and_what_they_are_without():
    found = options(Train)
    texts = options_type("Doc.", found, default_notes(found)).__annotations__
    told = {
        name: next(text for part in hint.__metadata__ if (text := getattr(part, "help", None)))
        for name, hint in texts.items()
    }
    assert told == {
        "engine": "what pulls (default: steam)",
        "pressure": "in bar (default: 2.0 with --engine steam, 9.0 with --engine diesel)",
        "colour": "of the boiler (steam; default: red)",
        "wheels": "steam: of iron; diesel: of rubber (default: 4 with --engine steam, 6 with --engine diesel)",
        "fuel": "what it burns (diesel; default: none)",
        "seats": "by class (default: 40 20)",
        "most": "carriages (default: 7)",
        "fast": "only few stops (default: --no-fast)",
    }


# -- what is read -----------------------------------------------------------------------------------------------------


def test_only_what_was_given_is_read():
    assert read() == {}
    assert read("--fast", "--seats", "3", "4") == {"fast": True, "seats": (3, 4)}
    assert read("--no-fast", "--seats", "none left", "--colour", "blue") == {
        "fast": False,
        "seats": "none left",
        "colour": "blue",
    }


def test_none_is_a_word_where_a_setting_may_be_none():
    assert read("--engine", "none", "--most", "none") == {"engine": "none", "most": "none"}
    assert apply(Train(), read("--engine", "none", "--most", "none")) == Train(engine=None, most=None)


def test_a_choice_is_one_of_its_words():
    made = options_type("Doc.", {}, preset=choice(("a", "b"), "which"))
    assert given(made(preset="a")) == {"preset": "a"}
    assert given(made()) == {}


# -- what it does -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ({}, Train()),
        ({"fast": True}, Train(fast=True)),
        ({"seats": (1,)}, Train(first=Carriage(seats=(1,)))),
        ({"seats": "none left"}, Train(first=Carriage(seats="none left"))),
        ({"colour": "blue"}, Train(engine=Steam(colour=Colour.BLUE))),
        ({"engine": "diesel"}, Train(engine=Diesel())),
        ({"engine": "diesel", "fuel": "oil"}, Train(engine=Diesel(fuel="oil"))),
        ({"engine": "diesel", "fuel": "none"}, Train(engine=Diesel(fuel=None))),
    ],
)
def test_an_option_changes_its_field_and_nothing_else(values, made):
    assert apply(Train(), values) == made


def test_the_same_kind_keeps_what_it_had_and_another_one_begins_with_its_defaults():
    before = Train(engine=Steam(pressure=3.0, wheels=8))
    assert apply(before, {"engine": "steam", "wheels": 2}).engine == Steam(pressure=3.0, wheels=2)
    assert apply(before, {"engine": "diesel", "fuel": "oil"}).engine == Diesel(fuel="oil")
    assert apply(Train(engine=None), {"engine": "steam"}).engine == Steam()


def test_what_is_suggested_counts_where_there_is_such_a_field_and_nothing_was_given():
    assert apply(Train(), {}, {"pressure": 5.0, "fuel": "oil"}) == Train(engine=Steam(pressure=5.0))
    assert apply(Train(), {"pressure": 6.0}, {"pressure": 5.0}) == Train(engine=Steam(pressure=6.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fuel": "oil"}, "--fuel goes with --engine diesel. Leave it out, or add that."),
        ({"engine": "none", "colour": "red"}, "--colour goes with --engine steam. Leave it out, or add that."),
        (
            {"engine": "none", "wheels": 2, "pressure": 1.0},
            "--wheels, --pressure go with --engine diesel or --engine steam. Leave them out, or add one of these.",
        ),
        ({"most": "many"}, "--most must be of type int. Got 'many' instead."),
    ],
)
def test_what_does_not_go_together_is_told_with_what_does(values, message):
    with pytest.raises(ConfigError) as error:
        apply(Train(), values)
    assert str(error.value) == message


def test_a_kind_that_needs_a_setting_says_which():
    with pytest.raises(ConfigError) as error:
        apply(Cart(Horse()), {"animal": "donkey"})
    assert str(error.value) == "--name must be given with donkey. Add it."
    assert apply(Cart(Horse()), {"animal": "donkey", "name": "Ned"}).animal == Donkey("Ned")
