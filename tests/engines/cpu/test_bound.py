import copy

import pytest
import torch
from torch import Tensor

from climbing import BOUNDS, B, K, assert_engines_agree, bound_of, dense, gradients, make_engine
from curlicue.config.model import Likelihood
from curlicue.engines.cpu.bound import CpuAscent
from curlicue.engines.protocol import Engine
from curlicue.model.mixture import MixtureVAE
from curlicue.rng import named_generator

every_bound = pytest.mark.parametrize("kind", BOUNDS)
both_likelihoods = pytest.mark.parametrize("likelihood", list(Likelihood))


def cpu_engine(model: MixtureVAE, kind: str = "exact") -> Engine:
    return make_engine("cpu", model, tau=BOUNDS[kind])


def cpu_ascent(model: MixtureVAE, x: Tensor, kind: str) -> CpuAscent:
    return bound_of(cpu_engine(model, kind), x, kind)


# -- the numbers ---------------------------------------------------------------------------------------------------


@every_bound
@both_likelihoods
def test_in_single_precision_engines_differ_by_no_more_than_rounding(make_model, make_batch, kind, likelihood):
    assert_engines_agree(make_model(K, likelihood), make_batch(B, grey=True), kind, 1e-5, 1e-6)


@every_bound
@pytest.mark.usefixtures("in_double", "either_layer")
def test_engines_agree_where_units_and_features_are_inactive(make_model, make_batch, kind):
    model, x = make_model(K), make_batch(B)
    x[:, [1, 4]] = 0
    with torch.no_grad():
        model.encoder.biases[0][:4] = -100
        model.decoder.biases[0][2:6] = -100
    assert_engines_agree(model, x, kind, 1e-9, 1e-12)


@every_bound
@pytest.mark.parametrize("network", ["encoder", "decoder"])
@pytest.mark.usefixtures("in_double", "either_layer")
def test_engines_agree_where_a_whole_layer_or_a_whole_batch_is_inactive(make_model, make_batch, kind, network):
    model, x = make_model(K), make_batch(B)
    assert_engines_agree(model, torch.zeros_like(x), kind, 1e-9, 1e-12)
    with torch.no_grad():
        getattr(model, network).biases[0].fill_(-100)
    assert_engines_agree(model, x, kind, 1e-9, 1e-12)


@every_bound
@pytest.mark.usefixtures("in_double", "either_layer")
def test_engines_agree_for_a_single_sample(make_model, make_batch, kind):
    assert_engines_agree(make_model(K), make_batch(1), kind, 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["exact", "sparse"])
@pytest.mark.usefixtures("in_double", "either_layer")
def test_engines_agree_for_a_single_component(make_model, make_batch, kind):
    assert_engines_agree(make_model(1), make_batch(B), kind, 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["exact", "given"])  # the sparse one's is right in expectation: see test_pairs.py
@both_likelihoods
@pytest.mark.usefixtures("in_double")
def test_the_gradient_is_that_of_finite_differences(make_model, make_batch, kind, likelihood):
    model, x, eps = make_model(K, likelihood), make_batch(B), 1e-6
    found = gradients(model, cpu_ascent(model, x, kind))
    rng = named_generator(0, "direction")
    for name, parameter in model.named_parameters():
        direction, at = torch.randn(parameter.shape, generator=rng), parameter.detach().clone()
        losses = []
        for step in (eps, -eps):
            parameter.data = at + step * direction
            losses.append(-cpu_ascent(model, x, kind).terms.bound.mean())
        parameter.data = at
        along = (found[name] * direction).sum()
        torch.testing.assert_close((losses[0] - losses[1]) / (2 * eps), along, rtol=1e-5, atol=1e-7, msg=name)


# -- the backward pass ---------------------------------------------------------------------------------------------


def test_components_that_nobody_visits_are_not_in_the_gradient_of_their_heads(make_model, make_batch):
    found = {g.name: g for g in cpu_ascent(make_model(K), make_batch(B), "given").backward()}
    for name in ("heads.q_z_weight", "heads.q_z_bias"):
        assert found[name].rows.tolist() == [0, 2, 4]
        assert all(row.any() for row in found[name].values)


@every_bound
@pytest.mark.usefixtures("either_layer")
def test_a_parameter_may_move_as_soon_as_its_gradient_has_come(make_model, make_batch, kind):
    model, x = make_model(K), make_batch(B)
    expected = gradients(model, cpu_ascent(model, x, kind))
    named = dict(model.named_parameters())
    for gradient in cpu_ascent(model, x, kind).backward():
        assert torch.equal(dense(gradient, named[gradient.name]), expected[gradient.name]), gradient.name
        named[gradient.name].data.fill_(torch.nan)


@every_bound
def test_looking_at_the_gradients_changes_neither_the_model_nor_the_terms_nor_the_batch(make_model, make_batch, kind):
    model, x = make_model(K), make_batch(B)
    state, seen = copy.deepcopy(model.state_dict()), x.clone()
    ascent = cpu_ascent(model, x, kind)
    terms = copy.deepcopy(ascent.terms)
    first, again = (gradients(model, ascent) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, vars(terms)[name]) for name, value in vars(ascent.terms).items())
    assert torch.equal(x, seen)


@every_bound
@pytest.mark.parametrize("whole", [True, False])
def test_a_sample_that_is_no_number_spoils_the_bound_and_the_gradient(make_model, make_batch, kind, whole):
    model, x = make_model(K), make_batch(B)
    x[3, slice(None) if whole else 2] = torch.nan
    ascent = cpu_ascent(model, x, kind)
    assert ascent.terms.bound.isnan().tolist() == [b == 3 for b in range(B)]
    assert gradients(model, ascent)["decoder.biases.1"].isnan().any()


@both_likelihoods
@every_bound
def test_extreme_weights_leave_the_bound_and_the_gradients_finite(make_model, make_batch, kind, likelihood):
    model, x = make_model(K, likelihood), make_batch(B)
    with torch.no_grad():
        for head in model.heads.values():
            head.mul_(50)
    ascent = cpu_ascent(model, x, kind)
    assert ascent.terms.bound.isfinite().all()
    assert all(g.isfinite().all() for g in gradients(model, ascent).values())


# -- what it is given ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [B - 1, B + 1])
def test_every_sample_needs_a_component(make_model, make_batch, n):
    message = f"Each sample needs a component. Got {n} components for {B} samples."
    with pytest.raises(ValueError, match=message):
        cpu_engine(make_model(K)).bound_given(make_batch(B), torch.zeros(n, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [-1, K])
def test_a_component_that_there_is_not_is_refused_before_a_loop_reads_it(make_model, make_batch, wrong):
    y = torch.tensor([0, 1, wrong, 0, 0, 0])
    with pytest.raises(IndexError, match=rf"in the range \[0, {K - 1}\]"):
        cpu_engine(make_model(K)).bound_given(make_batch(B), y)


def test_a_batch_that_would_have_a_gradient_is_climbed_like_any_other(make_model, make_batch):
    model, x = make_model(K), make_batch(B)
    plain, wanting = (cpu_ascent(model, x.clone().requires_grad_(wants), "exact") for wants in (False, True))
    assert torch.equal(plain.terms.bound, wanting.terms.bound)


def test_a_batch_may_lie_in_memory_as_it_likes(make_model, make_batch):
    model, x = make_model(K), make_batch(B)
    strided = x.t().contiguous().t()
    assert not strided.is_contiguous()
    assert torch.equal(cpu_ascent(model, strided, "exact").terms.bound, cpu_ascent(model, x, "exact").terms.bound)
