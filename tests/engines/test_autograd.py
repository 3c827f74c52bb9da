import pytest
import torch
from torch import Tensor, nn

from climbing import K, make_engine, moments, parameters
from curlicue.model.elbo import elbo
from curlicue.model.likelihood import Bernoulli
from curlicue.model.mixture import MixtureVAE
from curlicue.records.state import Fields
from curlicue.rng import named_generator
from elsewhere import ELSEWHERE


class Conditional(nn.Module):
    """Like no network of ours: of two layers one is used, and a third parameter never is."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.used, self.other = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out)
        self.unused = nn.Parameter(torch.ones(3))
        self.turn = False

    def forward(self, x: Tensor) -> Tensor:
        layer = self.other if self.turn else self.used
        return layer(x).tanh()


def own_model(encoder: nn.Module) -> MixtureVAE:
    return MixtureVAE(encoder, nn.Linear(2, 6), Bernoulli(), n_x=6, n_z=2, K=K, rng=named_generator(0, "heads"))


@pytest.mark.parametrize("z_samples", [1, 3])
def test_terms_are_those_of_the_bound_without_its_graph(make_batch, z_samples):
    model, x = own_model(nn.Sequential(nn.Linear(6, 8), nn.Tanh())), make_batch()
    ascent = make_engine("autograd", model, tau=0.3, z_samples=z_samples).bound(x)
    terms = elbo(model, x, named_generator(0, "latent"), tau=0.3, z_samples=z_samples)
    for name, value in vars(ascent.terms).items():
        assert torch.equal(value, getattr(terms, name))
        assert not value.requires_grad


def test_what_is_not_used_stays_and_has_no_moments(make_batch):
    model = own_model(Conditional(6, 8))
    engine = make_engine("autograd", model)
    before = parameters(engine)
    engine.climb(engine.bound(make_batch()))
    still = {name for name, value in parameters(engine).items() if torch.equal(value, before[name])}
    assert still == {"encoder.unused", "encoder.other.weight", "encoder.other.bias"}
    assert still == before.keys() - moments(engine).keys()


def test_what_was_used_in_an_earlier_step_does_not_move_by_its_old_gradient(make_batch):
    model = own_model(Conditional(6, 8))
    engine = make_engine("autograd", model)
    engine.climb(engine.bound(make_batch()))
    model.encoder.turn = True
    before = parameters(engine), moments(engine)
    engine.climb(engine.bound(make_batch()))
    assert torch.equal(parameters(engine)["encoder.used.weight"], before[0]["encoder.used.weight"])
    assert moments(engine)["encoder.used.weight"]["steps"] == 1


def test_a_gradient_left_by_others_is_not_climbed(make_model, make_batch):
    engines = [make_engine("autograd", make_model()) for _ in range(2)]
    for parameter in engines[0].model.parameters():
        parameter.grad = torch.full_like(parameter, 100)
    for engine in engines:
        engine.climb(engine.bound(make_batch()))
    ours, expected = map(parameters, engines)
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


def test_adam_is_one_kernel_where_the_device_has_it(make_model):
    assert adam_of(make_model()).param_groups[0]["fused"]
    assert not adam_of(make_model().to(ELSEWHERE)).param_groups[0]["fused"]


def test_restored_steps_are_counted_where_torchs_adam_counts_them(make_model, make_batch):
    engine = make_engine("autograd", make_model())
    engine.climb(engine.bound(make_batch()))
    there = make_engine("autograd", make_model().to(ELSEWHERE))
    there.restore(Fields(engine.state(), "engine"))
    for held in there.optimiser.state.values():
        assert held["step"].device.type == "cpu"  # on the device, an Adam of many kernels would wait for each of them
        assert held["exp_avg"].device == held["exp_avg_sq"].device == ELSEWHERE


def adam_of(model: MixtureVAE) -> torch.optim.Adam:
    return make_engine("autograd", model).optimiser
