"""A saved model: a directory with config.json and the state, of which a crash leaves the old or the new one whole."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from curlicue.config.codec import from_json, to_json
from curlicue.errors import ConfigError, RunError
from curlicue.estimator.settings import Json
from curlicue.records.files import alone_in, json_object, write_atomically

FORMAT = 2
STATE = re.compile(r"state-[0-9a-f]{16}\.safetensors")  # named after its contents
PART = re.compile(rf"\.({STATE.pattern}|config\.json)\.\d+\.part")  # what `write_atomically` had not finished
TRIES = 5  # to read while others save
REMEDY = "Save the model again, or take a backup."


@dataclass(frozen=True)
class Card:
    """What config.json says of a model."""

    curlicue: str  # the version that saved it
    parameters: Json
    n_features_in: int
    feature_names_in: tuple[str, ...] | None

    def check_features(self, n_x: int, saved: str) -> None:
        """RunError unless the model has as many features as config.json says."""
        said = {self.n_features_in, n_x if self.feature_names_in is None else len(self.feature_names_in)}
        if said != {n_x}:
            raise RunError(f"{saved} holds a model of {n_x} features, but config.json says otherwise. {REMEDY}")


def save(path: Path, card: Card, contents: bytes) -> None:
    """Write config.json, with a checksum, and the state."""
    state = _state_name(contents)
    config = {"format": FORMAT, **to_json(card), "state": state}
    path.mkdir(parents=True, exist_ok=True)
    with alone_in(path):
        _refuse_what_is_not_ours(path)
        write_atomically(path / state, contents)
        whole = {**config, "sha256": _digest(config)}
        write_atomically(path / "config.json", (json.dumps(whole, indent=2) + "\n").encode())
        for other in path.iterdir():  # states before this one, and parts of saves that were killed
            if other.name != state and (STATE.fullmatch(other.name) or PART.fullmatch(other.name)):
                other.unlink()


def load(path: Path) -> tuple[Card, bytes]:
    """What `save` wrote; RunError if anything is not as it was written."""
    config, contents = _read(path)
    try:
        card: Card = from_json(Card, {name: each for name, each in config.items() if name not in ("format", "state")})
    except ConfigError as error:
        raise RunError(f"{path} holds what CURL.save never wrote: {error} {REMEDY}") from error
    return card, contents


def _read(path: Path) -> tuple[Json, bytes]:
    """config.json and the state that it names, both whole."""
    for tries_left in reversed(range(TRIES)):
        config = _read_config(path)
        state = path / config["state"]
        try:
            contents = state.read_bytes()
            break
        except OSError as error:
            if not tries_left:  # otherwise another save has just replaced it
                raise RunError(f"{path} is not whole: {error}. {REMEDY}") from error
    if _state_name(contents) != config["state"]:
        raise RunError(f"{state} is not as it was saved. {REMEDY}")
    return config, contents


def _read_config(path: Path) -> Json:
    """config.json of a saved directory, as it was saved."""
    file = path / "config.json"
    try:
        config = json_object(file.read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} holds no saved model ({error}). Save one there first: CURL.save.") from error
    sha256 = config.pop("sha256", None)
    if "format" not in config or sha256 is None:
        raise RunError(f"{path} holds no saved model ({file.name} has no checksum). Save one there first: CURL.save.")
    if config["format"] != FORMAT:
        remedy = "Load it with the version that saved it."
        raise RunError(f"{file} has format {config['format']!r}, this version of curlicue reads {FORMAT}. {remedy}")
    if sha256 != _digest(config) or not STATE.fullmatch(str(config.get("state"))):
        raise RunError(f"{file} is not as it was saved. {REMEDY}")
    return config


def _refuse_what_is_not_ours(path: Path) -> None:
    """RunError if the directory has a config.json that no `save` wrote."""
    file = path / "config.json"
    if not file.exists():
        return
    try:
        ours = STATE.fullmatch(str(json_object(file.read_text()).get("state"))) is not None
    except ValueError:
        ours = any(STATE.fullmatch(other.name) for other in path.iterdir())  # a damaged one may be replaced
    if not ours:
        raise RunError(f"{file} belongs to something else. Choose another directory for the model.")


def _state_name(contents: bytes) -> str:
    return f"state-{hashlib.sha256(contents).hexdigest()[:16]}.safetensors"


def _digest(config: Json) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
