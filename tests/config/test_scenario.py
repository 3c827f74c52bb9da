import dataclasses

import pytest

from curlicue.config.scenario import Sequential
from curlicue.errors import ConfigError


def test_no_classes_at_once_are_refused():
    with pytest.raises(ConfigError) as error:
        Sequential(at_once=0)
    assert str(error.value) == "The 'at_once' setting must be an int in the range [1, inf). Got 0 instead."


def test_a_scenario_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sequential().at_once = 5
