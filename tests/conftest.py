"""A tiny model, tiny data and a tiny learner, from which most laws are read; and the command."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from curlicue.cli import main
from curlicue.config.model import Likelihood, ModelConfig
from curlicue.learn.learner import Learner, LearnerConfig
from curlicue.model.likelihood import GaussianNoise
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import Rng, named_generator
from written import write_run

N_X = 6  # features of x
collect_ignore = ["elsewhere.py"]  # it registers a device, which torch allows once


@pytest.fixture
def make_model() -> Callable[..., MixtureVAE]:
    """No parameter is zero, no two components are alike, and q(y|x) is neither uniform nor one-hot."""

    def make(K: int = 3, likelihood: Likelihood = Likelihood.BERNOULLI, n_z: int = 2, seed: int = 0) -> MixtureVAE:
        rng = named_generator(seed, "model")
        config = ModelConfig(n_z=n_z, encoder=(8,), decoder=(7,), likelihood=likelihood, K=K)
        model = MixtureVAE.from_config(config, N_X, rng)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.4 * torch.randn(parameter.shape, generator=rng))
            if isinstance(model.p_x, GaussianNoise):
                model.p_x.raw_var /= GaussianNoise.PACE
        return model

    return make


@pytest.fixture
def make_batch() -> Callable[..., Tensor]:
    """x [B, N_X]: zeros and ones, or greys that no threshold could give."""

    def make(B: int = 5, seed: int = 0, grey: bool = False) -> Tensor:
        u = torch.rand(B, N_X, generator=named_generator(seed, "batch"))
        return 0.1 + 0.8 * u if grey else u.round()

    return make


@pytest.fixture
def make_learner() -> Callable[..., Learner]:
    """A learner that neither grows nor rehearses, unless its settings say so."""

    def make(seed: int = 0, K: int = 1, **settings: object) -> Learner:
        rng = Rng.from_seed(seed)
        model = MixtureVAE.from_config(ModelConfig(n_z=2, encoder=(8,), decoder=(7,), K=K), N_X, rng.init)
        return Learner(model, LearnerConfig(**{"growth": None, "memory": None} | settings), rng)

    return make


@pytest.fixture
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is found, and nothing left behind, outside of a folder of this test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CURLICUE_CACHE", str(tmp_path / "no cache"))
    monkeypatch.delenv("CURLICUE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run directory as a run would write it, without a run."""
    return lambda name="run", **how: write_run(tmp_path / name, **how)


class Answer:
    """What a command said and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """The `curlicue` command, in this process."""

    def call(*arguments: object) -> Answer:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Answer(code, *capsys.readouterr())

    return call
