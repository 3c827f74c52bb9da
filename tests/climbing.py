"""Both engines, and the gradients that they climb."""

from typing import Any

import torch
from torch import Tensor

from curlicue.engines.autograd import AutogradEngine, GraphAscent
from curlicue.engines.cpu.bound import CpuAscent
from curlicue.engines.cpu.engine import CpuEngine
from curlicue.engines.cpu.gradient import Gradient, matrix_shape
from curlicue.engines.protocol import Ascent, Climbing, Engine
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

ENGINES = {"autograd": AutogradEngine, "cpu": CpuEngine}
BOUNDS = {"exact": 0.0, "sparse": 0.3, "given": 0.0}  # τ of each
EMPHASISED = "emphasised"  # the bound given Y, with an emphasis and with other rows shown to the encoder
EMPHASIS = 3.0
Y = torch.tensor([0, 2, 2, 0, 4, 2])  # of five components, two are not visited
K, B = 5, len(Y)


def make_engine(name: str, model: MixtureVAE, seed: int = 0, **climbing: Any) -> Engine:
    """The engine of that name."""
    how = Climbing(**{"learning_rate": 1e-3, "tau": 0.0, "z_samples": 1} | climbing)
    return ENGINES[name](model, how, named_generator(seed, "latent"))


def bound_of(engine: Engine, x: Tensor, kind: str) -> Ascent:
    """The exact or the sparse bound, as τ is, or that given Y; emphasised: with other rows shown to the encoder."""
    match kind:
        case "given":
            return engine.bound_given(x, Y[: len(x)])
        case other if other == EMPHASISED:
            return engine.bound_given(x, Y[: len(x)], EMPHASIS, x.roll(1, 0))
    return engine.bound(x)


def dense(gradient: Gradient, parameter: Tensor) -> Tensor:
    """The gradient in the shape of its parameter, with all its zeros."""
    whole = torch.zeros(matrix_shape(parameter), dtype=parameter.dtype)
    whole[torch.from_numpy(gradient.rows)[:, None], torch.from_numpy(gradient.columns)] = torch.from_numpy(
        gradient.values
    )
    return whole.view(parameter.shape)


def gradients(model: MixtureVAE, ascent: Ascent) -> dict[str, Tensor]:
    """The gradient of the loss by each parameter, which stays as it is."""
    named = dict(model.named_parameters())
    if isinstance(ascent, CpuAscent):
        found = [(g.name, dense(g, named[g.name])) for g in ascent.backward()]
        assert len(dict(found)) == len(found)  # no parameter comes twice
        return dict(found)
    assert isinstance(ascent, GraphAscent)
    found = torch.autograd.grad(ascent.loss, [*named.values()], allow_unused=True, retain_graph=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}


def assert_engines_agree(model: MixtureVAE, x: Tensor, kind: str, rtol: float, atol: float, seed: int = 0) -> None:
    """Both engines give the same terms and gradients from the same draws."""
    cpu, autograd = (make_engine(name, model, seed, tau=BOUNDS.get(kind, 0.0)) for name in ("cpu", "autograd"))
    ours, reference = (bound_of(engine, x, kind) for engine in (cpu, autograd))
    assert torch.equal(cpu.rng.get_state(), autograd.rng.get_state())
    for name in ("log_p_x", "kl_z", "kl_y", "q_y", "bound"):
        seen, expected = getattr(ours.terms, name), getattr(reference.terms, name)
        torch.testing.assert_close(seen, expected, rtol=rtol, atol=atol, msg=name)
        assert not seen.requires_grad
        assert not expected.requires_grad
    seen, expected = gradients(model, ours), gradients(model, reference)
    assert seen.keys() == expected.keys()
    for name, g in expected.items():
        torch.testing.assert_close(seen[name], g, rtol=rtol, atol=atol, msg=name)


def parameters(engine: Engine) -> dict[str, Tensor]:
    """A copy of all parameters."""
    return {name: value.detach().clone() for name, value in engine.model.named_parameters()}


def moments(engine: Engine) -> dict[str, dict[str, Any]]:
    """A copy of what Adam knows of each parameter."""
    held = engine.state()["optimiser"]
    return {
        name: {key: value.clone() if isinstance(value, Tensor) else value for key, value in each.items()}
        for name, each in held.items()
    }
