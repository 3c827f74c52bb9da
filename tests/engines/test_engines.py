"""What every engine does."""

import copy
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from climbing import BOUNDS, ENGINES, B, K, Y, bound_of, gradients, make_engine, moments, parameters
from curlicue.engines.protocol import Engine
from curlicue.model.elbo import elbo, elbo_given
from curlicue.records.state import Fields, MisfitError
from curlicue.rng import named_generator

every_engine = pytest.mark.parametrize("name", ENGINES)
FRESH = {"first": 0, "second": 0}


def twin(rng: Generator) -> Generator:
    """A generator that will draw what `rng` would, without drawing it."""
    return torch.Generator().set_state(rng.get_state())


def climbed(engine: Engine, x: Tensor, steps: int = 3) -> Engine:
    for _ in range(steps):
        engine.climb(engine.bound(x))
    return engine


# -- climbing ------------------------------------------------------------------------------------------------------


@every_engine
def test_climbing_raises_the_bound(make_model, make_batch, name):
    model, x = make_model(), make_batch(20)
    before = elbo(model, x, named_generator(0, "z")).bound.mean()
    climbed(make_engine(name, model, learning_rate=0.01), x, 100)
    assert elbo(model, x, named_generator(0, "z")).bound.mean() > before + 0.3


@pytest.mark.parametrize(("name", "z_samples"), [("cpu", 1), ("autograd", 1), ("autograd", 2)])
@pytest.mark.parametrize("tau", [0.0, 0.3])
def test_climbing_is_torchs_adam_on_autograds_gradient_even_where_a_whole_batch_is_zero(
    make_model, make_batch, name, z_samples, tau
):
    engine = make_engine(name, make_model(), learning_rate=0.01, z_samples=z_samples, tau=tau)
    model, latent = copy.deepcopy(engine.model), twin(engine.rng)
    reference = torch.optim.Adam(model.parameters(), lr=0.01)
    for t in range(12):
        x = torch.zeros(5, 6) if t % 3 == 2 else make_batch(seed=t)
        engine.climb(engine.bound(x))
        reference.zero_grad()
        (-elbo(model, x, latent, tau=tau, z_samples=z_samples).bound.mean()).backward()
        reference.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(parameters(engine)[name], value.detach(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("name", "z_samples"), [("cpu", 1), ("autograd", 1), ("autograd", 4)])
@pytest.mark.parametrize("kind", BOUNDS)
def test_the_bound_that_an_engine_climbs_is_that_of_the_model(make_model, make_batch, name, z_samples, kind):
    model, x, tau = make_model(K), make_batch(B), BOUNDS[kind]
    engine = make_engine(name, model, z_samples=z_samples, tau=tau)
    rng = twin(engine.rng)
    ascent = bound_of(engine, x, kind)
    if kind == "given":
        terms = elbo_given(model, x, Y, rng, z_samples=z_samples)
    else:
        terms = elbo(model, x, rng, tau=tau, z_samples=z_samples)
    assert torch.equal(engine.rng.get_state(), rng.get_state())  # the draws are the same
    torch.testing.assert_close(ascent.terms.bound, terms.bound.detach(), rtol=1e-6, atol=0)
    expected = torch.autograd.grad(-terms.bound.mean(), [*model.parameters()])
    found = gradients(model, ascent)
    for (name, _), g in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], g, rtol=1e-4, atol=1e-6)


@every_engine
def test_climbing_on_some_parameters_leaves_the_others_and_their_moments_bit_for_bit(make_model, make_batch, name):
    engine = climbed(make_engine(name, make_model()), make_batch())
    before, old = parameters(engine), moments(engine)
    engine.climb(engine.bound(make_batch()), only=engine.model.component_parameters())
    for name, value in parameters(engine).items():
        assert torch.equal(value, before[name]) == (not name.startswith("heads."))
    for name, held in moments(engine).items():
        assert (held["steps"] == old[name]["steps"]) == (not name.startswith("heads."))
        for moment in FRESH:
            assert torch.equal(held[moment], old[name][moment]) == (not name.startswith("heads."))


@every_engine
def test_what_is_frozen_stays_as_it_is_and_has_no_moments(make_model, make_batch, name):
    engine = make_engine(name, make_model())
    engine.model.encoder.requires_grad_(False)
    before = parameters(engine)
    climbed(engine, make_batch())
    for name, value in parameters(engine).items():
        assert torch.equal(value, before[name]) == name.startswith("encoder."), name
        assert (name in moments(engine)) == (not name.startswith("encoder.")), name


@every_engine
def test_what_is_frozen_later_keeps_its_moments_and_goes_on_from_them(make_model, make_batch, name):
    engine, x = climbed(make_engine(name, make_model()), make_batch()), make_batch()
    engine.model.encoder.requires_grad_(False)
    before = parameters(engine), moments(engine)
    climbed(engine, x)
    for name in (name for name in before[0] if name.startswith("encoder.")):
        assert torch.equal(parameters(engine)[name], before[0][name])
        assert torch.equal(moments(engine)[name]["first"], before[1][name]["first"])
        assert moments(engine)[name]["steps"] == 3
    engine.model.encoder.requires_grad_(True)
    climbed(engine, x)
    assert moments(engine)["encoder.weights.0"]["steps"] == 6


# -- growing -------------------------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("parent", [0, 2])
def test_growing_keeps_all_moments_bit_for_bit_and_those_of_the_newborn_begin_at_zero(
    make_model, make_batch, name, parent
):
    engine = climbed(make_engine(name, make_model(), learning_rate=0.01), make_batch())
    before = moments(engine)
    engine.grow(parent)
    after = moments(engine)
    assert before.keys() == after.keys() == parameters(engine).keys()
    for name, held in after.items():
        assert held["steps"] == before[name]["steps"] == 3
        for moment in FRESH:
            assert before[name][moment].any()
            assert held[moment].shape == parameters(engine)[name].shape
            if name.startswith("heads."):
                assert torch.equal(held[moment][:3], before[name][moment])
                assert not held[moment][3].any()
            else:
                assert torch.equal(held[moment], before[name][moment])


@every_engine
def test_the_newborn_is_a_copy_of_its_parent(make_model, make_batch, name):
    engine = climbed(make_engine(name, make_model()), make_batch())
    engine.grow(1)
    for head in engine.model.heads.values():
        assert len(head) == 4
        assert torch.equal(head[3], head[1])


@every_engine
def test_after_a_birth_climbing_moves_all_parameters_by_their_moments(make_model, make_batch, name):
    engine = climbed(make_engine(name, make_model()), make_batch())
    engine.grow(1)
    before, old = parameters(engine), moments(engine)
    climbed(engine, make_batch(), 1)
    for name, held in moments(engine).items():
        assert not torch.equal(parameters(engine)[name], before[name])
        assert not torch.equal(held["first"], old[name]["first"])


@every_engine
def test_an_engine_may_grow_before_its_first_step_and_then_trains_the_newborn(make_model, make_batch, name):
    engine = make_engine(name, make_model(2))
    engine.grow(0)
    before = parameters(engine)
    climbed(engine, make_batch(), 1)
    for name, value in parameters(engine).items():
        if name.startswith("heads."):
            assert all((value[k] != before[name][k]).any() for k in range(3))


@every_engine
def test_an_emphasis_weighs_what_q_y_pays_and_nothing_else(make_model, make_batch, name):
    model, x = make_model(K), make_batch(B)
    once, thrice = (gradients(model, make_engine(name, model).bound_given(x, Y, e)) for e in (1.0, 3.0))
    kl_y = elbo_given(model, x, Y, named_generator(0, "z")).kl_y.mean()  # no draw of z is in it
    named = dict(model.named_parameters())
    found = torch.autograd.grad(kl_y, [*named.values()], allow_unused=True)
    assert any(g is not None and g.any() for g in found)
    for (parameter, p), g in zip(named.items(), found, strict=True):
        more = torch.zeros_like(p) if g is None else 2 * g
        torch.testing.assert_close(thrice[parameter], once[parameter] + more, rtol=1e-4, atol=1e-6)


@every_engine
def test_growing_while_the_last_ascent_is_alive_leaves_no_gradient_short(make_model, make_batch, name):
    engine, x = make_engine(name, make_model(2)), make_batch()
    old = [engine.bound(x), engine.bound(x)]
    engine.climb(old[0])
    engine.grow(0)
    before = parameters(engine)
    engine.climb(engine.bound_given(x, torch.full((len(x),), 2)))
    for name, head in engine.model.heads.items():
        first = moments(engine)[f"heads.{name}"]["first"]
        assert first.shape == head.shape
        assert first[2].any()
        assert not torch.equal(head[2], before[f"heads.{name}"][2])
    assert old[1].terms.q_y.shape[1] == 2  # it is alive, and as it was


@every_engine
def test_a_bound_from_before_a_growth_cannot_be_climbed_and_moves_nothing(make_model, make_batch, name):
    engine = make_engine(name, make_model(2))
    ascent = engine.bound(make_batch())
    engine.grow(0)
    before = parameters(engine)
    with pytest.raises(ValueError, match=r"of a model with 2 components, which has 3 now\. Compute it anew\."):
        engine.climb(ascent)
    assert all(torch.equal(value, before[name]) for name, value in parameters(engine).items())
    assert not moments(engine)


# -- going on ------------------------------------------------------------------------------------------------------


def restored(name: str, engine: Engine, make_model: Any, climbing: dict[str, float]) -> Engine:
    """An engine of that name that goes on from the state of another one, on a model of its own."""
    other = make_engine(name, make_model(1, seed=7), **climbing)
    other.restore(fields := Fields(copy.deepcopy(engine.state()), "engine"))
    fields.end()
    other.rng.set_state(engine.rng.get_state())
    return other


def assert_level(engine: Engine, reference: Engine, make_model: Any, climbing: dict[str, float]) -> None:
    """The same parameters and moments as autograd's own; of resting rows, once these have faded."""
    faded = moments(restored("autograd", engine, make_model, climbing))
    assert faded.keys() == moments(reference).keys()
    for name, value in parameters(reference).items():
        torch.testing.assert_close(parameters(engine)[name], value, rtol=1e-9, atol=1e-12, msg=name)
        expected = moments(reference)[name]
        assert faded[name]["steps"] == expected["steps"]
        for moment in FRESH:
            torch.testing.assert_close(faded[name][moment], expected[moment], rtol=1e-6, atol=1e-15, msg=name)


@pytest.mark.parametrize("learning_rate", [1e-2, 1e-18])  # with the second one every row rests when it may
@pytest.mark.parametrize("then", ENGINES)
@every_engine
@pytest.mark.usefixtures("in_double")
def test_any_engine_goes_on_from_the_state_of_any(make_model, make_batch, name, then, learning_rate):
    climbing, x = {"learning_rate": learning_rate, "tau": 0.3}, make_batch(B)
    engine, reference = (make_engine(each, make_model(K), **climbing) for each in (name, "autograd"))
    for seed in range(30):
        for each in (engine, reference):
            each.climb(each.bound(make_batch(2, seed=seed)) if seed else each.bound_given(x, Y))
        if seed == 10:
            engine.grow(2)
            reference.grow(2)
    if name == "cpu" and learning_rate < 1e-9:  # the law is about rows that have skipped steps
        assert any(
            m["first"].flatten(1)[m["skipped"] > 0].any() for m in moments(engine).values() if m["first"].ndim > 1
        )
    other = restored(then, engine, make_model, climbing)
    assert_level(other, reference, make_model, climbing)
    for seed in range(30, 40):
        for each in (other, reference):
            each.climb(each.bound(make_batch(seed=seed)))
    other.grow(0)
    reference.grow(0)
    assert_level(other, reference, make_model, climbing)


@every_engine
def test_an_engine_that_goes_on_from_its_own_state_does_so_bit_for_bit(make_model, make_batch, name):
    engine = climbed(make_engine(name, make_model(K), tau=0.3), make_batch(), 20)
    again = restored(name, engine, make_model, {"tau": 0.3})
    for each in (engine, again):
        climbed(each, make_batch(seed=1), 20)
    assert all(torch.equal(value, parameters(engine)[name]) for name, value in parameters(again).items())


@every_engine
@pytest.mark.parametrize(
    ("field", "value"), [("first", torch.zeros(2)), ("steps", -1), ("second", None), ("louder", 1)]
)
def test_moments_that_do_not_fit_are_refused_by_name(make_model, make_batch, name, field, value):
    engine = climbed(make_engine(name, make_model()), make_batch())
    state = copy.deepcopy(engine.state())
    state["optimiser"]["heads.p_z"][field] = value
    with pytest.raises(MisfitError, match=rf"engine/optimiser/heads.p_z/{field} is "):
        make_engine(name, make_model(1)).restore(Fields(state, "engine"))


@every_engine
def test_moments_of_a_parameter_that_there_is_not_are_refused(make_model, make_batch, name):
    engine = climbed(make_engine(name, make_model()), make_batch())
    state = engine.state()
    state["optimiser"]["tail"] = {"steps": 1}
    with pytest.raises(MisfitError, match="engine/optimiser/tail is"):
        engine.restore(Fields(state, "engine"))
