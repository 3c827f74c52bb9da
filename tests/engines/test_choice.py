import subprocess
import sys

import pytest
import torch
from torch import nn

from curlicue.engines.autograd import AutogradEngine
from curlicue.engines.choice import engine_for
from curlicue.engines.cpu.engine import CpuEngine
from curlicue.engines.protocol import Climbing, Engine
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.model.networks import Mlp, mlp_decoder, mlp_encoder
from curlicue.rng import named_generator
from elsewhere import ELSEWHERE


def chosen(model: MixtureVAE, z_samples: int = 1) -> type[Engine]:
    climbing = Climbing(learning_rate=1e-3, tau=0.5, z_samples=z_samples)
    return type(engine_for(model, climbing, named_generator(0, "latent")))


def with_networks(encoder: nn.Module | None = None, decoder: nn.Module | None = None) -> MixtureVAE:
    rng = named_generator(0, "networks")
    encoder, decoder = encoder or mlp_encoder(6, (8,), rng), decoder or mlp_decoder(2, (7,), 6, rng)
    return MixtureVAE(encoder, decoder, Bernoulli(), n_x=6, n_z=2, K=3, rng=rng)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_papers_networks_on_the_cpu_are_climbed_by_the_cpu_engine(make_model, likelihood, dtype):
    assert chosen(make_model(likelihood=likelihood).to(dtype)) is CpuEngine


def test_several_samples_of_z_are_for_autograd(make_model):
    assert chosen(make_model(), z_samples=2) is AutogradEngine


@pytest.mark.parametrize("place", [ELSEWHERE, torch.bfloat16, torch.float16])
def test_other_devices_and_other_types_of_numbers_are_for_autograd(make_model, place):
    assert chosen(make_model().to(place)) is AutogradEngine


def test_parameters_of_several_types_are_for_autograd(make_model):
    model = make_model()
    model.decoder.double()
    assert chosen(model) is AutogradEngine


class Louder(Mlp):
    """A subclass may compute anything."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "networks",
    [
        {"encoder": nn.Sequential(nn.Linear(6, 8), nn.ReLU())},
        {"decoder": nn.Linear(2, 6)},
        {"encoder": Louder((6, 8), relu_last=True, rng=named_generator(0, "louder"))},
        {"decoder": Louder((2, 6), relu_last=False, rng=named_generator(0, "louder"))},
        {"encoder": Mlp((6, 8), relu_last=False, rng=named_generator(0, "no relu"))},
    ],
)
def test_networks_of_ones_own_and_encoders_without_a_last_relu_are_for_autograd(networks):
    assert chosen(with_networks()) is CpuEngine
    assert chosen(with_networks(**networks)) is AutogradEngine


def test_models_and_likelihoods_of_ones_own_are_for_autograd(make_model):
    model = make_model()
    model.p_x = type("Softer", (Bernoulli,), {})()
    assert chosen(model) is AutogradEngine
    model = make_model()
    model.__class__ = type("Other", (MixtureVAE,), {})
    assert chosen(model) is AutogradEngine


# -- without Numba -------------------------------------------------------------------------------------------------

LEARN = """
import numpy as np
learner = curlicue.CURL(random_state=0)
X = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
X[:250] += 20
print(learner.partial_fit(X).predict(X).shape, type(learner._core.learner.engine).__name__)
"""


def said(program: str, warning: str = "") -> str:
    """What a new process prints, while it warns of this and of nothing else."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    assert done.stderr.count("Warning") == bool(warning)
    assert warning in done.stderr
    return done.stdout.strip()


MISSING = "import sys; sys.modules['numba'] = None; import curlicue"
BROKEN = """
import sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "numba":
            raise ImportError("Numba needs another NumPy")
sys.meta_path.insert(0, Finder)
import curlicue
"""


@pytest.mark.parametrize("numba", [MISSING, BROKEN], ids=["missing", "broken"])
def test_without_numba_curl_learns_by_autograd(numba):
    warning = "learning takes about twice as long"
    assert said(numba + LEARN, warning) == "(500,) AutogradEngine"


def test_numba_is_not_imported_before_a_model_is_to_learn():
    assert said("import sys, curlicue; print('numba' in sys.modules)") == "False"
    assert said(f"import sys, curlicue{LEARN}\nprint('numba' in sys.modules)") == "(500,) CpuEngine\nTrue"


def test_a_mistake_in_the_cpu_engine_is_not_taken_for_a_missing_numba(make_model, monkeypatch):
    monkeypatch.delitem(sys.modules, "curlicue.engines.cpu.engine")
    monkeypatch.setitem(sys.modules, "curlicue.engines.cpu.adam", None)
    with pytest.raises(ImportError, match=r"curlicue\.engines\.cpu\.adam"):
        chosen(make_model())
