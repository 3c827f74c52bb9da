import math
import re
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest, truncnorm
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus

from curlicue.config.model import Emission, Likelihood, ModelConfig
from curlicue.errors import ConfigError
from curlicue.model.elbo import elbo
from curlicue.model.gaussian import VAR_FLOOR
from curlicue.model.likelihood import Bernoulli, GaussianNoise
from curlicue.model.mixture import MixtureVAE
from curlicue.model.pairs import Pairs
from curlicue.rng import named_generator


def assemble(
    encoder: nn.Module, decoder: nn.Module, p_x: nn.Module | None = None, n_x: int = 6, n_z: int = 2
) -> MixtureVAE:
    return MixtureVAE(encoder, decoder, p_x or Bernoulli(), n_x=n_x, n_z=n_z, K=3, rng=named_generator(0, "init"))


# -- the distributions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["every", "sparse", "given"])
def test_q_z_of_pairs_equals_a_loop_of_plain_products(make_model, make_batch, which):
    model, x = make_model(K=6), make_batch(9)
    h = model.encode(x)
    q_y = model.log_q_y(h).exp()
    pairs = {
        "every": Pairs.every(q_y),
        "sparse": Pairs.sparse(q_y, 0.9, named_generator(0, "pairs")),
        "given": Pairs.given(torch.tensor([4, 1, 1, 4, 0, 4, 4, 1, 4]), 6, h.device),
    }[which]
    q_z = model.q_z(h, pairs)
    assert len(q_z.mean) == len(pairs.rows) > 0
    for i, (b, k) in enumerate(zip(pairs.rows.tolist(), pairs.ks.tolist(), strict=True)):
        raw = h[b] @ model.heads["q_z_weight"][k] + model.heads["q_z_bias"][k]  # [2Z]
        torch.testing.assert_close(q_z.mean[i], raw[:2])
        torch.testing.assert_close(q_z.var[i], softplus(raw[2:]) + VAR_FLOOR)


def test_q_z_carries_gradients_to_the_components_that_occur_and_to_no_other(make_model, make_batch):
    model = make_model(K=5)
    q_z = model.q_z(model.encode(make_batch(3)), Pairs.given(torch.tensor([3, 1, 3]), 5, model.device))
    (q_z.mean.sum() + q_z.var.sum()).backward()
    touched = model.heads["q_z_weight"].grad.flatten(1).any(1)
    assert touched.tolist() == [False, True, False, True, False]


def test_q_y_is_the_softmax_of_a_linear_head(make_model, make_batch):
    model = make_model(K=4)
    h = model.encode(make_batch())
    expected = torch.softmax(h @ model.heads["q_y_weight"].T + model.heads["q_y_bias"], -1)
    torch.testing.assert_close(model.log_q_y(h).exp(), expected)


def test_p_z_is_linear_in_one_hot_y_with_a_shared_bias(make_model):
    model, ks = make_model(K=4), torch.tensor([2, 0, 2, 3])
    raw = one_hot(ks, 4).to(model.dtype) @ model.heads["p_z"] + model.p_z_bias
    p_z = model.p_z(ks)
    torch.testing.assert_close(p_z.mean, raw[:, :2])
    torch.testing.assert_close(p_z.var, softplus(raw[:, 2:]) + VAR_FLOOR)


@pytest.mark.parametrize("kind", list(Likelihood))
def test_log_p_x_decodes_every_sample_of_z_against_its_own_row(make_model, make_batch, kind):
    model, x = make_model(likelihood=kind), make_batch(4)
    z = torch.randn(3, 4, 2, generator=named_generator(0, "z"), dtype=x.dtype)
    together = model.log_p_x(x, z)  # [S, N]
    for s in range(3):
        for i in range(4):
            alone = model.p_x.log_p(x[i : i + 1], model.decoder(z[s, i : i + 1]))
            torch.testing.assert_close(together[s, i], alone[0])


def test_samples_follow_the_prior_of_the_component_asked_for(dtype):
    n, model = 20_000, assemble(nn.Identity(), nn.Identity(), GaussianNoise(2), n_x=2).to(dtype)  # x = z + noise
    y = torch.tensor([0, 2]).repeat_interleave(n)
    x = model.sample(y, Emission.SAMPLE, named_generator(0, "x")).view(2, n, 2)
    p_z = model.p_z(torch.tensor([0, 2]))
    var = p_z.var + model.p_x.var
    assert ((x.mean(1) - p_z.mean).abs() < 4.5 * (var / n).sqrt()).all()
    assert ((x.var(1) / var - 1).abs() < 4.5 * (2 / n) ** 0.5).all()


@pytest.mark.parametrize("emission", list(Emission))
def test_samples_are_emitted_as_asked_in_the_models_own_type_and_carry_no_gradient(make_model, dtype, emission):
    model, y, rng = make_model(), torch.tensor([0, 1, 2] * 5), named_generator(0, "x")
    x = model.sample(y, emission, rng)
    twin = named_generator(0, "x")
    out = model.decoder(model.p_z(y).sample(twin)[0])
    assert torch.equal(x, model.p_x.emit(out, emission, twin))
    assert torch.equal(rng.get_state(), twin.get_state())
    assert x.dtype == dtype
    assert not x.requires_grad


@pytest.mark.parametrize("kind", list(Likelihood))
def test_the_mean_of_a_sample_is_that_of_its_likelihood(make_model, kind, dtype):
    model = make_model(likelihood=kind)
    z = torch.randn(4, 2, generator=named_generator(0, "z"), dtype=dtype)
    out = model.decoder(z)
    assert torch.equal(model.mean(z), out.sigmoid() if kind is Likelihood.BERNOULLI else out)


# -- how it begins ----------------------------------------------------------------------------------------------


def test_heads_begin_truncated_normal_on_the_scale_of_their_fan_in_with_zero_biases():
    config = ModelConfig(n_z=30, encoder=(100,), decoder=(4,), K=20)
    model = MixtureVAE.from_config(config, 5, named_generator(0, "init"))
    for name, fan_in in (("q_y_weight", 100), ("q_z_weight", 100), ("p_z", 25)):
        scaled = (model.heads[name].detach() * fan_in**0.5).flatten().numpy()
        assert abs(scaled).max() <= 2 + 1e-5
        assert kstest(scaled, truncnorm(-2, 2).cdf).pvalue > 1e-3
    for bias in (model.heads["q_y_bias"], model.heads["q_z_bias"], model.p_z_bias):
        assert not bias.any()


def test_a_config_sets_sizes_components_and_likelihood():
    config = ModelConfig(n_z=3, encoder=(8, 7), decoder=(6, 5), likelihood=Likelihood.GAUSSIAN, K=4)
    model = MixtureVAE.from_config(config, 10, named_generator(0, "init"))
    assert model.K == 4
    assert model.encode(torch.zeros(2, 10)).shape == (2, 7)
    assert model.decoder(torch.zeros(2, 3)).shape == (2, 10)
    assert [len(bias) for bias in model.decoder.biases] == [6, 5, 10]
    assert isinstance(model.p_x, GaussianNoise)
    assert {tuple(p.shape) for p in model.heads.values()} == {(4, 7), (4,), (4, 7, 6), (4, 6)}


def test_the_generator_alone_decides_how_a_model_begins():
    state = torch.get_rng_state()
    config = ModelConfig(n_z=3, encoder=(8,), decoder=(6,), K=2)
    first, again, other = (MixtureVAE.from_config(config, 5, named_generator(s, "init")) for s in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.heads["p_z"], other.heads["p_z"])
    assert torch.equal(torch.get_rng_state(), state)


CONV = ModelConfig(n_z=3, encoder="conv", decoder="conv", K=2)


@pytest.mark.parametrize("shape", [(7, 9), (9, 7, 3), (3, 9, 7)], ids=str)
def test_a_model_of_convolutions_has_a_bound_that_reaches_all_its_parameters(shape, dtype):
    model = MixtureVAE.from_config(CONV, shape, named_generator(0, "init")).to(dtype)
    x = torch.rand(4, math.prod(shape), generator=named_generator(0, "x"), dtype=dtype)
    elbo(model, x, named_generator(0, "z")).bound.mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", ["encoder", "decoder"])
@pytest.mark.parametrize("shape", [63, (63,), (7, 3, 3, 1)], ids=str)
def test_convolutions_are_refused_for_samples_that_are_no_images(name, shape):
    config = replace(ModelConfig(n_z=3, encoder=(8,), decoder=(8,)), **{name: "conv"})
    shown = re.escape(str(shape if isinstance(shape, tuple) else (shape,)))
    with pytest.raises(ConfigError, match=rf"Samples have the shape {shown}: give images, or widths such as"):
        MixtureVAE.from_config(config, shape, named_generator(0, "init"))


# -- networks of your own ---------------------------------------------------------------------------------------


def test_a_decoder_of_the_wrong_width_is_refused_with_both_widths():
    with pytest.raises(ConfigError) as error:
        assemble(nn.Linear(6, 4), nn.Linear(2, 5))
    assert str(error.value) == "The decoder must give 6 values a row, as x has. Got 5 instead."


def test_a_config_takes_networks_of_your_own_instead_of_those_it_names():
    encoder, decoder = nn.Linear(6, 4), nn.Linear(3, 6)
    model = MixtureVAE.from_config(CONV, 6, named_generator(0, "init"), encoder, decoder)
    assert (model.encoder, model.decoder) == (encoder, decoder)
    assert model.heads["q_y_weight"].shape == (2, 4)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_network_that_cannot_take_a_row_is_refused_with_its_own_reason(name):
    networks = {"encoder": nn.Linear(6, 4), "decoder": nn.Linear(2, 6)} | {name: nn.Linear(5, 6)}
    width = {"encoder": 6, "decoder": 2}[name]
    reason = f"mat1 and mat2 shapes cannot be multiplied (1x{width} and 5x6)"
    with pytest.raises(ConfigError) as error:
        assemble(**networks)
    assert str(error.value) == f"The {name} must take rows of {width} values. It fails on one: {reason}."


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_network_that_does_not_map_rows_to_rows_is_refused_with_the_shape_it_gave(name):
    networks = {"encoder": nn.Linear(6, 4), "decoder": nn.Linear(2, 6)}
    networks[name] = nn.Sequential(networks[name], nn.Unflatten(1, (2, -1)))
    shape = {"encoder": (1, 2, 2), "decoder": (1, 2, 3)}[name]
    with pytest.raises(ConfigError) as error:
        assemble(**networks)
    assert str(error.value) == f"The {name} must map rows to rows. Got an output of shape {shape} instead."


def test_a_network_that_gives_no_tensor_is_refused_with_what_it_gave():
    class Both(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), x

    with pytest.raises(ConfigError) as error:
        assemble(Both(6, 4), nn.Linear(2, 6))
    assert str(error.value) == "The encoder must map rows to rows. Got a tuple instead."


def test_a_network_is_taken_as_it_is_with_frozen_parts_frozen():
    encoder = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4).eval(), nn.BatchNorm1d(4))
    assemble(encoder, nn.Linear(2, 6))
    assert [module.training for module in encoder] == [True, False, True]
    assert not encoder[2].running_mean.any()


# -- growth -----------------------------------------------------------------------------------------------------


def slices(model: MixtureVAE, k: int) -> dict[str, Tensor]:
    return {name: head[k].detach().clone() for name, head in model.heads.items()}


@pytest.mark.parametrize("parent", [0, 1, 2])
def test_a_newborn_component_is_a_copy_of_its_parent_and_nothing_else_changes(make_model, parent):
    model = make_model(K=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.grow(parent)
    assert model.K == 4
    for name, value in model.state_dict().items():
        if name.startswith("heads."):
            assert torch.equal(value[:3], before[name])
            assert torch.equal(value[3], before[name][parent])
        else:
            assert torch.equal(value, before[name])


def test_parent_and_newborn_have_equal_distributions_and_share_the_mass_alike(make_model, make_batch):
    model, x = make_model(K=3), make_batch()
    h = model.encode(x)
    old = model.log_q_y(h).exp()
    model.grow(1)
    new = model.log_q_y(h).exp()
    torch.testing.assert_close(new[:, 3], new[:, 1])
    torch.testing.assert_close(new[:, :3], old / (1 + old[:, 1:2]))
    parent, newborn = (model.q_z(h, Pairs.given(torch.full((len(x),), k), 4, h.device)) for k in (1, 3))
    assert torch.equal(parent.mean, newborn.mean)
    assert torch.equal(parent.var, newborn.var)
    p_z = model.p_z(torch.tensor([1, 3]))
    assert torch.equal(p_z.mean[0], p_z.mean[1])
    assert torch.equal(p_z.var[0], p_z.var[1])


def test_a_newborn_can_grow_apart_from_its_parent(make_model):
    model = make_model(K=3)
    parent = slices(model, 1)
    model.grow(1)
    with torch.no_grad():
        for head in model.heads.values():
            head[3] += 1
    for name, value in slices(model, 1).items():
        assert torch.equal(value, parent[name])


def test_gradients_after_growth_have_the_grown_shape_even_while_an_old_graph_is_alive(make_model, make_batch):
    model, x = make_model(K=3), make_batch()
    old_graph = elbo(model, x, named_generator(0, "z")).bound.mean()
    old_graph.backward(retain_graph=True)
    model.grow(1)
    elbo(model, x, named_generator(0, "z")).bound.mean().backward()
    for head in model.heads.values():
        assert head.grad.shape == head.shape
        assert len(head.grad) == 4
        assert head.grad[3].any()
    assert old_graph.grad_fn is not None


def test_every_parameter_of_a_component_is_in_its_heads(make_model):
    model = make_model(K=3)
    named = dict(model.named_parameters())
    assert {id(named[name]) for name in model.component_parameters()} == {id(p) for p in model.heads.parameters()}
    shared = {id(p) for name, p in named.items() if name not in model.component_parameters()}
    expected = [*model.encoder.parameters(), *model.decoder.parameters(), model.p_z_bias]
    assert shared == {id(p) for p in expected}


def test_a_grown_state_can_be_loaded_into_a_model_that_has_not_grown(make_model, make_batch):
    grown, fresh = make_model(K=3, seed=0), make_model(K=2, seed=1)
    grown.grow(2)
    fresh.load_grown(grown.state_dict())
    assert fresh.K == 4
    bounds = [elbo(model, make_batch(), named_generator(0, "z")).bound for model in (grown, fresh)]
    assert torch.equal(*bounds)
    with torch.no_grad():
        fresh.heads["p_z"] += 1
    assert not torch.equal(grown.heads["p_z"], fresh.heads["p_z"])


def test_what_is_frozen_stays_frozen_when_the_model_grows_or_is_loaded(make_model):
    model = make_model(K=2)
    model.heads["q_y_weight"].requires_grad_(False)
    model.grow(0)
    model.load_grown(model.state_dict())
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert frozen == ["heads.q_y_weight"]
