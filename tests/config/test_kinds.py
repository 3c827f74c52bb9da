"""Families of settings: a new kind is a subclass, and nothing else."""

import re
from abc import abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import get_type_hints

import pytest

from curlicue.config.kinds import Kind, as_option, by_option, comments, is_family, kinds, option
from curlicue.errors import ConfigError
from curlicue.growth.protocol import GrowthConfig, Tuned
from curlicue.growth.threshold import Threshold
from curlicue.memory.protocol import MemoryConfig
from curlicue.memory.snapshot import Snapshot
from curlicue.systems.protocol import SystemConfig
from learning import ours


class Shape(Kind):
    """A family."""

    @abstractmethod
    def area(self) -> float:
        """What every kind has."""


class Polygon(Shape):
    """Neither a family nor a kind, for it is abstract."""

    @abstractmethod
    def corners(self) -> int:
        """What every polygon has."""


@dataclass(frozen=True)
class Disc(Shape):
    """A kind."""

    radius: float = 1.0  # in metres

    def area(self) -> float:
        return 3 * self.radius


@dataclass(frozen=True)
class UnitSquare(Disc):
    """A kind below another one."""

    side: int = 1  # of all four: # is no end
    silent: int = 2

    def area(self) -> float:
        return 1.0


def test_a_direct_subclass_of_kind_is_a_family_and_what_is_below_it_is_not():
    assert [is_family(each) for each in (Shape, Disc, UnitSquare, Kind, int, None)] == [True, *[False] * 5]


def test_the_kinds_of_a_family_are_its_concrete_subclasses_however_deep():
    assert kinds(Shape) == {"Disc": Disc, "UnitSquare": UnitSquare}


def test_an_option_names_a_kind_in_small_letters_with_dashes():
    assert by_option(Shape) == {"disc": Disc, "unit-square": UnitSquare}
    assert option(UnitSquare) == as_option("UnitSquare") == "unit-square"


def test_the_comment_behind_a_field_is_what_it_means():
    assert comments(Disc) == {"radius": "in metres"}
    assert comments(UnitSquare) == {"side": "of all four: # is no end"}


def test_settings_whose_source_is_not_at_hand_have_no_comments():
    made = type("Made", (Shape,), {"__module__": __name__})
    assert comments(made) == {}


@pytest.mark.parametrize("family", [GrowthConfig, MemoryConfig, SystemConfig])
def test_every_kind_that_ships_says_what_each_of_its_settings_means(family):
    assert ours(family)
    for kind in ours(family).values():
        hints = get_type_hints(kind)
        plain = {field.name for field in fields(kind) if not is_dataclass(hints[field.name])}
        assert plain <= comments(kind).keys(), kind


def test_settings_of_another_type_are_refused_and_words_stand_for_members_of_an_enumeration():
    assert Threshold(tuned="heads", c_new=-30) == Threshold(tuned=Tuned.HEADS, c_new=-30.0)
    assert isinstance(Threshold(tuned="heads").tuned, Tuned)
    for settings, message in (
        ({"tuned": "hands"}, "Threshold.tuned must be one of all, heads. Got 'hands' instead."),
        ({"n_new": "few"}, "Threshold.n_new must be of type int. Got 'few' instead."),
        ({"n_new": 2.5}, "Threshold.n_new must be of type int. Got 2.5 instead."),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            Threshold(**settings)
    with pytest.raises(ConfigError, match=r"^Snapshot\.snapshots must be one of 'T', '0\.1T', 'dynamic', 'change'"):
        Snapshot(snapshots="chnage")
