import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor, nn

from curlicue.learn.adam import FADED, MOVING, Adam, Moments
from curlicue.model.gradient import Gradient, matrix_shape
from curlicue.rng import named_generator

SHAPES = {"matrix": (4, 3), "vector": (5,), "heads": (4, 2, 3), "one row": (1, 6), "number": ()}


@dataclass
class Race:
    """The same parameters under our Adam and under torch's, with the same gradients."""

    ours: dict[str, Tensor]
    torchs: dict[str, nn.Parameter]
    adam: Adam
    reference: torch.optim.Adam

    def step(self, gradients: dict[str, Gradient]) -> None:
        for name, parameter in self.torchs.items():
            parameter.grad = gradients[name].dense(parameter) if name in gradients else None
        self.reference.step()
        for name, gradient in gradients.items():
            self.adam.move(name, self.ours[name], gradient)

    def assert_level(self) -> None:
        for name, parameter in self.torchs.items():
            torch.testing.assert_close(self.ours[name], parameter.detach(), rtol=1e-4, atol=1e-5, msg=name)

    def assert_level_with_moments(self) -> None:
        """Of parameters of which no row rests."""
        self.assert_level()
        for name, parameter in self.torchs.items():
            moments, expected = self.adam.moments[name], self.reference.state[parameter]
            assert (moments.rested == MOVING).all()
            assert moments.steps == expected["step"]
            torch.testing.assert_close(moments.first, expected["exp_avg"], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(moments.second, expected["exp_avg_sq"], rtol=1e-4, atol=1e-6)


@pytest.fixture
def make_race() -> Callable[..., Race]:
    def make(**shapes: tuple[int, ...]) -> Race:
        rng = named_generator(0, "start")
        start = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
        torchs = {name: nn.Parameter(value.clone()) for name, value in start.items()}
        return Race(start, torchs, Adam(1e-2), torch.optim.Adam(torchs.values(), lr=1e-2))

    return make


def some(
    parameter: Tensor, rng: Generator, rows: list[int] | None = None, columns: list[int] | None = None
) -> Gradient:
    """Random numbers in some rows and columns."""
    R, C = matrix_shape(parameter)
    values = torch.randn(R if rows is None else len(rows), C if columns is None else len(columns), generator=rng)
    return Gradient(values, *(None if which is None else torch.tensor(which).long() for which in (rows, columns)))


# -- the numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_with_gradients_everywhere_the_numbers_are_those_of_torchs_adam(make_race, shape):
    race, rng = make_race(it=shape), named_generator(0, "gradients")
    for _ in range(100):
        race.step({"it": some(race.ours["it"], rng)})
    race.assert_level_with_moments()


def test_with_rows_that_rest_and_return_the_numbers_are_those_of_torchs_adam(make_race):
    race, rng = make_race(**SHAPES), named_generator(0, "gradients")
    for t in range(1350):
        rows = [0, 3] if 50 <= t < 1250 else [0, 1, 3] if 1250 <= t < 1300 else [0, 1, 2, 3]  # 2 rests longer than 1
        if t in (1250, 1300):
            for name in ("matrix", "heads"):  # the law is about them
                assert race.adam.moments[name].rested[1 if t == 1250 else 2] > 300
        race.step({name: some(p, rng, rows if len(p.shape) and len(p) == 4 else None) for name, p in race.ours.items()})
    race.assert_level_with_moments()


def test_a_row_rests_when_adam_would_move_none_of_its_weights_and_not_before(make_race):
    race, rng = make_race(matrix=(2, 3)), named_generator(0, "gradients")
    race.step({"matrix": some(race.ours["matrix"], rng)})
    weight, moved = race.torchs["matrix"], []
    for _ in range(300):
        before = weight[1].detach().clone()
        race.step({"matrix": some(race.ours["matrix"], rng, [0])})
        moved.append(not torch.equal(weight[1], before))
        assert (race.adam.moments["matrix"].rested[1] == MOVING) == moved[-1]
    assert moved == sorted(moved, reverse=True)  # once it has come to rest nothing moves it
    assert 50 < sum(moved) < 250


def test_the_moments_of_a_row_fade_by_as_many_steps_as_it_has_rested():
    moments = Moments(torch.tensor(9), torch.ones(2, 3), torch.ones(2, 3), torch.tensor([5, MOVING]))
    optimiser = Adam(1e-2)
    optimiser.moments["weight"] = moments
    optimiser.move("weight", torch.ones(2, 3), Gradient(torch.zeros(2, 3)))
    for row, steps in enumerate((6, 1)):
        torch.testing.assert_close(moments.first[row], torch.full((3,), 0.9**steps))
        torch.testing.assert_close(moments.second[row], torch.full((3,), 0.999**steps))
    assert moments.rested.tolist() == [MOVING, MOVING]


@pytest.mark.parametrize("rows", [None, [1, 3]])
@pytest.mark.parametrize("columns", [[0], [0, 2], [0, 1, 2], []])
def test_columns_that_a_gradient_leaves_out_count_as_zero(make_race, rows, columns):
    race, rng = make_race(matrix=(4, 3)), named_generator(0, "gradients")
    race.step({"matrix": some(race.ours["matrix"], rng)})
    for _ in range(3):
        race.step({"matrix": some(race.ours["matrix"], rng, rows, columns)})
    race.assert_level_with_moments()


def test_each_steps_columns_are_its_own(make_race):
    race, rng = make_race(matrix=(4, 3), vector=(5,)), named_generator(0, "gradients")
    for columns in ([0, 2], [1], [2], None, [0]):
        race.step({name: some(p, rng, None, columns) for name, p in race.ours.items()})
    race.assert_level_with_moments()


@pytest.mark.parametrize("shape", [(4, 3), (5,), (1, 6)])
def test_a_gradient_without_rows_is_zero_everywhere(make_race, shape):
    race, rng = make_race(it=shape), named_generator(0, "gradients")
    for _ in range(3):
        race.step({"it": some(race.ours["it"], rng)})
        race.step({"it": Gradient.of(torch.zeros(shape))})
    race.assert_level_with_moments()


def test_a_parameter_with_another_layout_moves_as_torchs_does():
    ours, torchs = (torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last) for _ in range(2))
    g = torch.randn(ours.shape, generator=named_generator(0, "gradients"))
    Adam(0.1).move("it", ours, Gradient.of(g))
    torchs.grad = g
    torch.optim.Adam([torchs], lr=0.1).step()
    assert ours.stride() == torchs.stride() != g.stride()
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize(
    "wrong",
    [
        Gradient(torch.ones(3, 3)),
        Gradient(torch.ones(2, 3), torch.tensor([0])),
        Gradient(torch.ones(4, 2), None, torch.tensor([0, 1, 2])),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused_and_moves_nothing(wrong):
    parameter, optimiser = torch.ones(4, 3), Adam(0.1)
    with pytest.raises(ValueError, match=r"it is \[4, 3\] and wants a gradient of"):
        optimiser.move("it", parameter, wrong)
    assert torch.equal(parameter, torch.ones(4, 3))
    assert optimiser.moments["it"].steps == 0


def test_moments_from_before_a_growth_that_adam_was_not_told_of_are_refused():
    optimiser = Adam(0.1)
    optimiser.move("it", torch.ones(4, 3), Gradient(torch.ones(4, 3)))
    with pytest.raises(ValueError, match=r"moments of \[4, 3\].* Let the model grow by Trainer.grow"):
        optimiser.move("it", torch.ones(5, 3), Gradient(torch.ones(5, 3)))


def test_first_moments_that_have_faded_are_zero_and_never_denormal():
    optimiser, parameter = Adam(0.1), torch.ones(1, 2)
    optimiser.move("it", parameter, Gradient(torch.ones(1, 2)))
    for _ in range(1000):
        optimiser.move("it", parameter, Gradient(torch.ones(1, 1), None, torch.tensor([0])))
    first = optimiser.moments["it"].first
    assert first[0, 0] > 0
    assert first[0, 1] == 0


def test_parameters_without_a_gradient_stay_as_they_are_and_so_do_their_moments(make_race):
    race, rng = make_race(matrix=(4, 3), vector=(5,)), named_generator(0, "gradients")
    for t in range(6):
        race.step({name: some(p, rng) for name, p in race.ours.items() if name == "vector" or t % 3 == 0})
        if t == 3:
            before = race.ours["matrix"].clone(), copy.deepcopy(race.adam.moments["matrix"].tensors)
    assert torch.equal(race.ours["matrix"], before[0])
    for name, value in race.adam.moments["matrix"].tensors.items():
        assert torch.equal(value, before[1][name])
    race.assert_level_with_moments()


# -- rest ----------------------------------------------------------------------------------------------------------


def all_but_the_first_resting(race: Race) -> None:
    """All rows have moved once, and then row 0 alone."""
    rng = named_generator(1, "gradients")
    race.step({name: some(p, rng) for name, p in race.ours.items()})
    for _ in range(1000):
        race.step({name: some(p, rng, [0]) for name, p in race.ours.items()})
    for moments in race.adam.moments.values():
        assert moments.rested[0] == MOVING
        assert (moments.rested[1:] > 0).all()


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3)])
def test_a_row_at_rest_is_not_touched(make_race, shape):
    race, rng = make_race(it=shape), named_generator(0, "gradients")
    all_but_the_first_resting(race)
    moments = race.adam.moments["it"]
    held = race.ours["it"], moments.first, moments.second
    before, rested = [each.clone() for each in held], moments.rested.clone()
    for _ in range(100):
        race.step({"it": some(race.ours["it"], rng, [0])})
    for now, then in zip(held, before, strict=True):
        assert torch.equal(now[1:], then[1:])
        assert not torch.equal(now[0], then[0])
    assert torch.equal(moments.rested, rested + torch.tensor([0, 100, 100, 100]))
    race.assert_level()  # torch's, which touches them, does not move them either


def test_a_row_of_zeros_which_any_step_moves_rests_once_its_first_moment_has_faded():
    first = torch.tensor([[1.5, 0.0], [0.5, -1.05], [-1.5, 0.0]]) * FADED
    moments = Moments(torch.tensor(5), first.clone(), torch.ones(3, 2), torch.full((3,), MOVING))
    optimiser, weight = Adam(1e-2), torch.zeros(3, 2)
    optimiser.moments["weight"] = moments
    optimiser.move("weight", weight, Gradient(torch.zeros(0, 2), torch.empty(0, dtype=torch.int64)))
    assert moments.rested.tolist() == [MOVING, 0, MOVING]
    torch.testing.assert_close(moments.first[[0, 2]], 0.9 * first[[0, 2]], atol=0, rtol=1e-5)
    assert not moments.first[1].any()


def test_a_row_that_has_never_moved_rests_at_once():
    optimiser, weight = Adam(1e-2), torch.ones(3, 2)
    optimiser.move("weight", weight, Gradient(torch.ones(1, 2), torch.tensor([1])))
    assert optimiser.moments["weight"].rested.tolist() == [0, MOVING, 0]
    assert torch.equal(weight[[0, 2]], torch.ones(2, 2))


def test_a_row_whose_gradient_is_no_number_does_not_rest_and_no_other_row_gets_it(make_race):
    race = make_race(it=(4, 3))
    all_but_the_first_resting(race)
    race.step({"it": Gradient(torch.full((1, 3), torch.nan), torch.tensor([0]))})
    for _ in range(1000):
        race.step({"it": some(race.ours["it"], named_generator(0, "gradients"), [1])})
    assert race.adam.moments["it"].rested[0] == MOVING
    assert race.ours["it"][0].isnan().all()
    assert not race.ours["it"][1:].isnan().any()


# -- growth and copies ---------------------------------------------------------------------------------------------


def test_a_newborn_row_has_never_moved_and_the_others_go_on(make_race):
    race, rng = make_race(heads=(4, 2, 3), vector=(4,)), named_generator(0, "gradients")
    for _ in range(3):
        race.step({name: some(p, rng) for name, p in race.ours.items()})
    before = copy.deepcopy({name: moments.tensors for name, moments in race.adam.moments.items()})
    race.adam.grow(["heads", "unknown"])
    for name, value in race.adam.moments["vector"].tensors.items():
        assert torch.equal(value, before["vector"][name])
    grown = race.adam.moments["heads"]
    assert grown.steps == 3
    assert grown.rested.tolist() == [*before["heads"]["rested"].tolist(), MOVING]
    for name in ("first", "second"):
        assert torch.equal(grown.tensors[name][:4], before["heads"][name])
        assert not grown.tensors[name][4].any()
    assert race.adam.moments.keys() == {"heads", "vector"}


def state(learner: object) -> dict[str, Tensor]:
    moments = {f"{name} {k}": t for name, each in learner.optimiser.moments.items() for k, t in each.tensors.items()}
    return {name: t.clone() for name, t in (learner.model.state_dict() | moments).items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_copy_of_a_learner_goes_on_as_it_would_itself_and_leaves_it_alone(make_learner, make_batch):
    learner = make_learner(K=30, learning_rate=1e-9)  # so little that rows soon rest, before their moments are gone
    for t in range(20):
        learner.observe(make_batch(seed=t))
    heads = learner.optimiser.moments["heads.q_z_weight"]
    assert heads.first[heads.rested > 0].any()
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
