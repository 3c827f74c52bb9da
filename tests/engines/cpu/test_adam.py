import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from climbing import dense, moments, parameters
from curlicue.engines.cpu.adam import FADED, Adam, Moments
from curlicue.engines.cpu.gradient import Gradient, matrix_shape, whole
from curlicue.rng import named_generator

SHAPES = {"matrix": (4, 3), "vector": (5,), "heads": (4, 2, 3), "one row": (1, 6), "number": ()}


@dataclass
class Race:
    """The same parameters under our Adam and under torch's, with the same gradients."""

    ours: dict[str, Tensor]
    torchs: dict[str, nn.Parameter]
    adam: Adam
    reference: torch.optim.Adam

    def step(self, *gradients: Gradient) -> None:
        given = {gradient.name: gradient for gradient in gradients}
        for name, parameter in self.torchs.items():
            parameter.grad = dense(given[name], parameter) if name in given else None
        self.reference.step()
        for name, gradient in given.items():
            self.adam.step(self.ours[name], gradient)

    def assert_level(self) -> None:
        for name, parameter in self.torchs.items():
            torch.testing.assert_close(self.ours[name], parameter.detach(), rtol=1e-4, atol=1e-5, msg=name)

    def assert_level_with_moments(self) -> None:
        """Of parameters of which no row rests."""
        self.assert_level()
        for name, parameter in self.torchs.items():
            held, expected = self.adam.moments[name], self.reference.state[parameter]
            assert not held.resting.any()
            assert held.steps == expected["step"]
            for moment, theirs in ((held.first, "exp_avg"), (held.second, "exp_avg_sq")):
                found = torch.from_numpy(moment).view(parameter.shape)
                torch.testing.assert_close(found, expected[theirs], rtol=1e-4, atol=1e-6)


@pytest.fixture
def make_race() -> Callable[..., Race]:
    def make(**shapes: tuple[int, ...]) -> Race:
        rng = named_generator(0, "start")
        start = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
        torchs = {name: nn.Parameter(value.clone()) for name, value in start.items()}
        return Race(start, torchs, Adam(1e-2), torch.optim.Adam(torchs.values(), lr=1e-2))

    return make


def some(
    race: Race, rng: Generator, rows: list[int] | None = None, columns: list[int] | None = None, name: str = "it"
) -> Gradient:
    """Random numbers in some rows and columns of a parameter, or in all."""
    R, C = matrix_shape(race.ours[name])
    rows, columns = [*range(R)] if rows is None else rows, [*range(C)] if columns is None else columns
    return part(torch.randn(len(rows), len(columns), generator=rng), rows, columns, name)


def part(values: Tensor, rows: list[int], columns: list[int], name: str = "it") -> Gradient:
    return Gradient(name, values.numpy(), np.array(rows, np.int64), np.array(columns, np.int64))


def ones(*shape: int) -> Gradient:
    return whole("it", np.ones(shape, np.float32))


# -- the numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_with_gradients_everywhere_the_numbers_are_those_of_torchs_adam(make_race, shape):
    race, rng = make_race(it=shape), named_generator(0, "gradients")
    for _ in range(100):
        race.step(some(race, rng))
    race.assert_level_with_moments()


def test_adam_has_the_settings_of_tensorflow():
    """With gradients as small as ε, and smaller with time: each of the settings shows."""
    adam, scale = Adam(0.25), 1e-8 * torch.arange(1.0, 7)
    ours, reference = torch.ones(1, 6), nn.Parameter(torch.ones(1, 6))
    tensorflows = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False}
    step = torch.optim.Adam([reference], lr=0.25, **tensorflows).step
    for t in range(20):
        reference.grad = scale[None] * 0.8**t
        adam.step(ours, whole("ours", reference.grad.numpy()))
        step()
        torch.testing.assert_close(ours, reference.detach(), rtol=1e-5, atol=1e-6)


def test_with_rows_that_rest_and_return_the_numbers_are_those_of_torchs_adam(make_race):
    race, rng = make_race(**SHAPES), named_generator(0, "gradients")
    for t in range(1350):
        rows = [0, 3] if 50 <= t < 1250 else [0, 1, 3] if 1250 <= t < 1300 else None  # 2 rests longer than 1
        if t in (1250, 1300):
            for name in ("matrix", "heads"):  # the law is about them
                assert race.adam.moments[name].skipped[1 if t == 1250 else 2] > 300
        race.step(*(some(race, rng, rows if len(SHAPES[n]) > 1 and n != "one row" else None, name=n) for n in SHAPES))
    race.assert_level_with_moments()


def test_a_row_rests_when_adam_would_move_none_of_its_weights_and_not_before(make_race):
    race, rng = make_race(it=(2, 3)), named_generator(0, "gradients")
    race.step(some(race, rng))
    weight, moved = race.torchs["it"], []
    for _ in range(300):
        before = weight[1].detach().clone()
        race.step(some(race, rng, [0]))
        moved.append(not torch.equal(weight[1], before))
        assert race.adam.moments["it"].resting[1] != moved[-1]
    assert moved == sorted(moved, reverse=True)  # once it has come to rest nothing moves it
    assert 50 < sum(moved) < 250


def test_the_moments_of_a_row_fade_by_as_many_steps_as_it_has_skipped():
    adam, held = Adam(1e-2), Moments.zero(torch.ones(2, 3))
    held.first[:], held.second[:], held.skipped[0], held.resting[0] = 1, 1, 5, True
    adam.moments["it"] = held
    adam.step(torch.ones(2, 3), whole("it", np.zeros((2, 3), np.float32)))
    for row, steps in enumerate((6, 1)):
        np.testing.assert_allclose(held.first[row], 0.9**steps, rtol=1e-6)
        np.testing.assert_allclose(held.second[row], 0.999**steps, rtol=1e-6)
    assert held.skipped.tolist() == [0, 0]
    assert not held.resting.any()


@pytest.mark.parametrize("rows", [None, [1, 3]])
@pytest.mark.parametrize("columns", [[0], [0, 2], [0, 1, 2], []])
def test_columns_that_a_gradient_leaves_out_count_as_zero(make_race, rows, columns):
    race, rng = make_race(it=(4, 3)), named_generator(0, "gradients")
    race.step(some(race, rng))
    for _ in range(3):
        race.step(some(race, rng, rows, columns))
    race.assert_level_with_moments()


def test_each_steps_columns_are_its_own(make_race):
    race, rng = make_race(matrix=(4, 3), vector=(5,)), named_generator(0, "gradients")
    for columns in ([0, 2], [1], [2], None, [0]):
        race.step(*(some(race, rng, None, columns, name) for name in race.ours))
    race.assert_level_with_moments()


@pytest.mark.parametrize("shape", [(4, 3), (5,), (1, 6)])
def test_a_gradient_without_rows_is_zero_everywhere(make_race, shape):
    race, rng = make_race(it=shape), named_generator(0, "gradients")
    for _ in range(3):
        race.step(some(race, rng))
        race.step(some(race, rng, rows=[]))
    race.assert_level_with_moments()


def test_a_parameter_with_another_layout_moves_as_torchs_does():
    ours, torchs = (torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last) for _ in range(2))
    g = torch.randn(ours.shape, generator=named_generator(0, "gradients"))
    Adam(0.1).step(ours, whole("it", g.view(4, -1).numpy()))
    torchs.grad = g
    torch.optim.Adam([torchs], lr=0.1).step()
    assert ours.stride() == torchs.stride() != g.stride()
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize(
    "wrong",
    [
        ones(3, 3)._replace(rows=np.arange(4)),
        part(torch.ones(2, 3), [0], [0, 1, 2]),
        part(torch.ones(4, 2), [0, 1, 2, 3], [0, 1, 2]),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused_and_moves_nothing(wrong):
    parameter, adam = torch.ones(4, 3), Adam(0.1)
    with pytest.raises(ValueError, match=r"it is \[4, 3\] and wants a gradient of"):
        adam.step(parameter, wrong)
    assert torch.equal(parameter, torch.ones(4, 3))
    assert adam.moments["it"].steps == 0


def test_moments_from_before_a_growth_that_adam_was_not_told_of_are_refused():
    adam = Adam(0.1)
    adam.step(torch.ones(4, 3), ones(4, 3))
    with pytest.raises(ValueError, match=r"moments of \[4, 3\].* Let the model grow by Engine.grow"):
        adam.step(torch.ones(5, 3), ones(5, 3))


def test_first_moments_that_have_faded_are_zero_and_never_denormal():
    adam, parameter = Adam(0.1), torch.ones(1, 2)
    adam.step(parameter, ones(1, 2))
    for _ in range(1000):
        adam.step(parameter, part(torch.ones(1, 1), [0], [0]))
    first = adam.moments["it"].first
    assert first[0, 0] > 0
    assert first[0, 1] == 0


def test_parameters_without_a_gradient_stay_as_they_are_and_so_do_their_moments(make_race):
    race, rng = make_race(matrix=(4, 3), vector=(5,)), named_generator(0, "gradients")
    for t in range(6):
        race.step(*(some(race, rng, name=name) for name in race.ours if name == "vector" or t % 3 == 0))
        if t == 3:
            before = race.ours["matrix"].clone(), copy.deepcopy(race.adam.moments["matrix"])
    assert torch.equal(race.ours["matrix"], before[0])
    assert_equal(race.adam.moments["matrix"], before[1])
    race.assert_level_with_moments()


def assert_equal(moments: Moments, before: Moments) -> None:
    assert moments.steps == before.steps
    for name in ("first", "second", "skipped", "resting"):
        np.testing.assert_array_equal(getattr(moments, name), getattr(before, name))


# -- rest ----------------------------------------------------------------------------------------------------------


def all_but_the_first_resting(race: Race) -> None:
    """All rows have moved once, and then row 0 alone."""
    rng = named_generator(1, "gradients")
    race.step(some(race, rng))
    for _ in range(1000):
        race.step(some(race, rng, [0]))
    held = race.adam.moments["it"]
    assert not held.resting[0]
    assert (held.skipped[1:] > 0).all()


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3)])
def test_a_row_at_rest_is_not_touched(make_race, shape):
    race, rng = make_race(it=shape), named_generator(0, "gradients")
    all_but_the_first_resting(race)
    moments = race.adam.moments["it"]
    held = race.ours["it"].numpy(), moments.first, moments.second
    before, skipped = [each.copy() for each in held], moments.skipped.copy()
    for _ in range(100):
        race.step(some(race, rng, [0]))
    for now, then in zip(held, before, strict=True):
        assert (now[1:] == then[1:]).all()
        assert not (now[0] == then[0]).all()
    assert (moments.skipped - skipped).tolist() == [0, 100, 100, 100]
    race.assert_level()  # torch's, which touches them, does not move them either


def test_a_row_of_zeros_which_any_step_moves_rests_once_its_first_moment_has_faded():
    first = np.array([[1.5, 0.0], [0.5, -1.05], [-1.5, 0.0]], np.float32) * np.float32(FADED)
    adam, weight, held = Adam(1e-2), torch.zeros(3, 2), Moments.zero(torch.zeros(3, 2))
    held.first[:], held.second[:], held.steps = first, 1, 5
    adam.moments["it"] = held
    adam.step(weight, part(torch.zeros(0, 2), [], [0, 1]))
    assert held.resting.tolist() == [False, True, False]
    np.testing.assert_allclose(held.first[[0, 2]], 0.9 * first[[0, 2]], atol=0, rtol=1e-5)
    assert not held.first[1].any()


def test_a_row_that_has_never_moved_rests_at_once():
    adam, weight = Adam(1e-2), torch.ones(3, 2)
    adam.step(weight, part(torch.ones(1, 2), [1], [0, 1]))
    assert adam.moments["it"].resting.tolist() == [True, False, True]
    assert torch.equal(weight[[0, 2]], torch.ones(2, 2))


def test_a_row_whose_gradient_is_no_number_does_not_rest_and_no_other_row_gets_it(make_race):
    race = make_race(it=(4, 3))
    all_but_the_first_resting(race)
    race.step(part(torch.full((1, 3), torch.nan), [0], [0, 1, 2]))
    for _ in range(1000):
        race.step(some(race, named_generator(0, "gradients"), [1]))
    assert not race.adam.moments["it"].resting[0]
    assert race.ours["it"][0].isnan().all()
    assert not race.ours["it"][1:].isnan().any()


# -- growth and copies ---------------------------------------------------------------------------------------------


def test_a_newborn_row_has_never_moved_and_the_others_go_on(make_race):
    race, rng = make_race(heads=(4, 2, 3), vector=(4,)), named_generator(0, "gradients")
    for _ in range(3):
        race.step(*(some(race, rng, name=name) for name in race.ours))
    held = race.adam.moments["heads"]
    held.skipped[:], held.resting[:] = [4, 0, 7, 0], [True, False, True, False]
    before = copy.deepcopy(race.adam.moments)
    race.adam.grow(["heads", "unknown"])
    assert_equal(race.adam.moments["vector"], before["vector"])
    grown = race.adam.moments["heads"]
    assert (grown.steps, grown.shape) == (3, (5, 2, 3))
    assert grown.skipped.tolist() == [4, 0, 7, 0, 0]
    assert grown.resting.tolist() == [True, False, True, False, False]
    for name in ("first", "second"):
        assert (getattr(grown, name)[:4] == getattr(before["heads"], name)).all()
        assert not getattr(grown, name)[4].any()
    assert race.adam.moments.keys() == {"heads", "vector"}


def test_a_copy_of_a_learner_goes_on_as_it_would_itself_and_leaves_it_alone(make_learner, make_batch):
    learner = make_learner(K=30, learning_rate=1e-9)  # so little that rows soon rest, before their moments are gone
    for t in range(20):
        learner.observe(make_batch(seed=t))
    heads = learner.engine.optimiser.moments["heads.q_z_weight"]
    assert heads.first[heads.skipped > 0].any()
    twin, before = copy.deepcopy(learner), state(learner)
    for t in range(20, 60):
        twin.observe(make_batch(seed=t))
    assert same(state(learner), before)
    for t in range(20, 60):
        learner.observe(make_batch(seed=t))
    assert same(state(twin), state(learner))
    for each in (learner, twin):
        each.grow(0)  # from the moments that a checkpoint would have
        for t in range(60, 80):
            each.observe(make_batch(seed=t))
    assert same(state(twin), state(learner))


def state(learner: object) -> dict[str, Tensor]:
    held = {f"{name} {k}": torch.as_tensor(v) for name, m in moments(learner.engine).items() for k, v in m.items()}
    return parameters(learner.engine) | held


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
