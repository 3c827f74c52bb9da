"""A memory of real rows: what it keeps, as whose, and when it presses."""

import pytest
import torch
from torch import Tensor

from curlicue.errors import ConfigError
from curlicue.memory.reservoir import Reservoir, ReservoirMemory
from curlicue.model.elbo import ElboTerms
from curlicue.records.state import Fields
from curlicue.rng import named_generator

WIDE = 100  # features


def terms(q_y: Tensor) -> ElboTerms:
    zero = torch.zeros(len(q_y))
    return ElboTerms(zero, zero, zero, q_y)


def explained(k: int, n: int, K: int, sure: float = 1.0) -> ElboTerms:
    q_y = torch.full((n, K), (1 - sure) / max(1, K - 1))
    q_y[:, k] = sure
    return terms(q_y)


@pytest.fixture
def make(make_model):
    def made(K: int = 2, **settings) -> ReservoirMemory:
        return Reservoir(**settings).start(make_model(K=K), named_generator(0, "replay"))

    return made


def numbered(n: int, D: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + n, dtype=torch.float32)[:, None].expand(n, D).clone()


def test_rows_come_back_as_they_came_with_the_component_that_explained_them(make):
    memory = make(K=2)
    D = memory.model.n_x
    memory.take(numbered(10, D), explained(0, 10, 2))
    memory.take(numbered(10, D, 10), explained(1, 10, 2))
    past = memory.recall(200)
    assert past.labelled
    assert past.emphasis == Reservoir().emphasis
    assert torch.equal(past.y, (past.x[:, 0] >= 10).long())
    assert set(past.x[:, 0].tolist()) == set(range(20))


def test_as_many_rows_are_recalled_of_each_component_however_many_came(make):
    memory = make(K=2)
    D = memory.model.n_x
    memory.take(numbered(190, D), explained(0, 190, 2))
    memory.take(numbered(10, D, 190), explained(1, 10, 2))
    assert memory.recall(2000).y.double().mean() == pytest.approx(0.5, abs=0.05)


def test_where_a_component_lasts_rows_in_doubt_are_its_own(make):
    memory = make(K=2)
    D = memory.model.n_x
    doubt = terms(torch.tensor([[0.55, 0.45]]).expand(20, 2))
    memory.take(numbered(20, D), doubt)
    assert memory.rows.counts(2).tolist() == [20, 0]
    for _ in range(30):
        memory.take(numbered(20, D), explained(1, 20, 2, sure=0.9))
    before = memory.rows.counts(2)
    memory.take(numbered(20, D), doubt)
    assert (memory.rows.counts(2) - before).tolist() == [0, 20]


def test_what_was_rare_for_long_is_recognised_when_it_returns(make):
    memory = make(K=2)
    D = memory.model.n_x
    for _ in range(300):
        memory.take(numbered(20, D), explained(1, 20, 2))
    memory.take(numbered(20, D), explained(0, 20, 2, sure=0.999))
    assert memory.rows.counts(2)[0] == 20


def test_components_that_growth_knows_are_believed(make):
    memory = make(K=2)
    memory.take(numbered(6, memory.model.n_x), explained(0, 6, 2), torch.tensor([1, 1, 1, 0, 1, 1]))
    assert memory.rows.y.tolist() == [1, 1, 1, 0, 1, 1]
    assert memory.shares[1] > memory.shares[0]
    assert memory.counts().tolist() == [1, 5]


def test_a_newborn_has_d_new_and_is_what_the_stream_shows(make):
    memory = make(K=1)
    D = memory.model.n_x
    memory.take(numbered(50, D), explained(0, 50, 1))
    assert not memory.ready
    memory.born(numbered(20, D, 100), None)
    memory.model.grow(0)
    assert memory.ready
    assert memory.rows.counts(2).tolist() == [50, 20]
    assert memory.counts().tolist() == [50, 20]
    memory.take(numbered(20, D, 200), terms(torch.tensor([[0.7, 0.3]]).expand(20, 2)))
    assert memory.rows.counts(2).tolist() == [50, 40]


def test_a_component_that_is_split_from_another_takes_its_part_of_rows_counts_and_shares(make):
    memory = make(K=1)
    memory.take(numbered(40, memory.model.n_x), explained(0, 40, 1))
    members = (memory.rows.rows(torch.arange(40)).x[:, 0] >= 30).nonzero()[:, 0]
    memory.born(numbered(10, memory.model.n_x, 30), members)
    assert memory.rows.counts(2).tolist() == [30, 10]
    assert memory.counts().tolist() == [30, 10]
    assert memory.shares.tolist() == pytest.approx([0.75, 0.25])
    assert memory.rows.rows(memory.rows.of(1)).x[:, 0].min() == 30


def test_after_a_birth_more_is_rehearsed_until_rows_are_known_or_for_so_long(make):
    memory = make(K=2)
    memory.take(numbered(50, memory.model.n_x), explained(0, 50, 2))
    assert not memory.pressing
    memory.born(numbered(20, memory.model.n_x), None)
    past = memory.recall(20)
    presses = 0
    while memory.pressing and presses < 10_000:
        memory.recalled(past, terms(torch.nn.functional.one_hot(1 - past.y.clamp_max(1), 3).float()))
        presses += 1
    assert 300 <= presses <= 3000  # for so long, if they are never known
    memory.born(numbered(20, memory.model.n_x), None)
    assert memory.pressing
    presses = 0
    while memory.pressing:
        memory.recalled(past, terms(torch.nn.functional.one_hot(past.y, 4).float()))
        presses += 1
    assert 10 < presses < 200  # until they are


@pytest.mark.parametrize(
    ("D", "hidden", "share"), [(WIDE, 0.2, 0.2), (WIDE, 0.6, 0.6), (WIDE, 0.0, 0.0), (5, 0.2, 0.0)]
)
def test_part_of_what_the_encoder_sees_of_a_wide_row_is_of_other_rows(make_model, D, hidden, share):
    model = make_model(K=2)
    model.n_x = D
    memory = Reservoir(hidden=hidden).start(model, named_generator(0, "replay"))
    memory.take(numbered(200, D), explained(0, 200, 2))
    past = memory.recall(400)
    seen = past.x if past.seen is None else past.seen
    assert (seen != past.x).double().mean() == pytest.approx(share, abs=0.02)
    assert seen.unique().numel() <= 200  # nothing is made up


def test_it_holds_so_many_rows_and_no_more(make):
    memory = make(K=2, size=30)
    for i in range(20):
        memory.take(numbered(10, memory.model.n_x, 10 * i), explained(i % 2, 10, 2))
        assert len(memory.rows) <= 30
    assert memory.rows.counts(2).tolist() == [15, 15]


def test_it_goes_on_as_it_would_have(make):
    memory, again = make(K=2, size=30), make(K=2, size=30)
    D = memory.model.n_x
    memory.take(numbered(40, D), explained(0, 40, 2))
    memory.recalled(memory.recall(5), explained(0, 5, 2))
    again.restore(Fields(memory.state(), "memory"))
    again.rng.set_state(memory.rng.get_state())
    for each in (memory, again):
        each.take(numbered(40, D, 100), explained(1, 40, 2))
    one, other = memory.recall(50), again.recall(50)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert (memory.seen, memory.learnt, memory.extra) == (again.seen, again.learnt, again.extra)


@pytest.mark.parametrize(
    ("name", "value"), [("size", 0), ("emphasis", 0.0), ("emphasis", float("inf")), ("hidden", 1.0)]
)
def test_settings_that_cannot_work_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"'{name}' setting must be"):
        Reservoir(**{name: value})
