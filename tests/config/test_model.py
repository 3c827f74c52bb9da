import dataclasses

import pytest

from curlicue.config.model import ModelConfig
from curlicue.errors import ConfigError

AT_LEAST_1 = "an int in the range [1, inf)"
WIDTHS = "widths in the range [1, inf) or 'conv'"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("n_z", 0, AT_LEAST_1),
        ("K", 0, AT_LEAST_1),
        ("encoder", (5, 0), WIDTHS),
        ("encoder", "deep", WIDTHS),
        ("decoder", (-1,), WIDTHS),
        ("decoder", "deep", WIDTHS),
        ("encoder", (), "at least one width"),
    ],
)
def test_a_model_that_cannot_be_is_refused_by_name_with_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as error:
        ModelConfig(**{name: value})
    assert str(error.value) == f"The '{name}' setting must be {allowed}. Got {value!r} instead."


def test_the_smallest_model_and_networks_by_name_are_taken():
    ModelConfig(n_z=1, K=1, encoder=(1,), decoder=())
    ModelConfig(encoder="conv", decoder="conv")


def test_settings_of_a_model_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().K = 5
