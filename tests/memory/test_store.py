from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from curlicue.memory.store import Packing, Rows, Store
from curlicue.records.state import Fields, MisfitError, split
from curlicue.rng import named_generator
from learning import written


def numbered(seen: Tensor, D: int = 20) -> Tensor:
    """Rows of bits that tell their positions in the stream."""
    return (seen[:, None] >> torch.arange(D) & 1).float()


def offer(store: Store, y: Tensor, rng: Generator, start: int = 0, B: int = 100) -> None:
    """A stream of rows of these components, in batches."""
    for seen in torch.arange(start, start + len(y)).split(B):
        store.add(numbered(seen, store.n_x), y[seen - start], seen, rng)


def filled(counts: list[int], capacity: int, seed: int = 0, B: int = 100) -> Store:
    """A store that was offered so many rows of each component, in random order."""
    rng, store = named_generator(seed, "store"), Store(capacity, 20)
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    offer(store, y[torch.randperm(len(y), generator=rng)], rng, B=B)
    return store


def held(store: Store) -> Rows:
    return store.rows(torch.arange(len(store)))


def by_seen(rows: Rows) -> Rows:
    by = rows.seen.argsort()
    return Rows(rows.x[by], rows.y[by], rows.seen[by])


def same(one: Rows, other: Rows) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y) and torch.equal(one.seen, other.seen)


def spread_evenly(seen: Tensor, among: int, bins: int = 10) -> bool:
    """Whether positions in a stream of such length may be a uniform sample of it: no bin is beyond 4.5 deviations."""
    each = torch.bincount(seen * bins // among, minlength=bins)
    expected = len(seen) / bins
    return bool(((each - expected).abs() < 4.5 * (expected * (1 - 1 / bins)) ** 0.5).all())


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_a_store_with_room_keeps_all_that_it_is_offered():
    rows = held(filled([30, 0, 70], capacity=100))
    assert rows.seen.sort().values.tolist() == list(range(100))
    assert torch.equal(rows.x, numbered(rows.seen))
    assert rows.y.bincount().tolist() == [30, 0, 70]


def test_each_row_stays_with_its_component_and_its_position_while_others_give_way():
    rng, store = named_generator(0, "store"), Store(50, 20)
    y = torch.randint(7, (3000,), generator=rng)
    offer(store, y, rng)
    rows = held(store)
    assert torch.equal(rows.x, numbered(rows.seen))
    assert torch.equal(rows.y, y[rows.seen])
    assert len(rows.seen.unique()) == len(store) == 50


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ([1000], [50]),
        ([500, 500], [25, 25]),
        ([500, 500, 500], [17, 17, 16]),
        ([3, 900, 500], [3, 24, 23]),
        ([60, 3, 500, 0, 12], [18, 3, 17, 0, 12]),
        ([900, 3, 500, 0, 20], [16, 3, 16, 0, 15]),
        ([49, 1], [49, 1]),
        ([50, 1], [49, 1]),
        ([1] * 80, [1] * 50 + [0] * 30),
    ],
)
@pytest.mark.parametrize("B", [7, 1000])
def test_small_components_keep_all_and_the_others_share_evenly_what_is_left(counts, kept, B):
    store = filled(counts, capacity=50, B=B)
    assert store.counts(len(counts)).tolist() == kept


def test_what_is_kept_does_not_depend_on_how_the_stream_is_cut_into_batches():
    y = torch.arange(1000) % 5 * (torch.arange(1000) // 250)
    kept = []
    for B in (1, 30, 1000):
        store = Store(100, 20)
        offer(store, y, named_generator(0, "store"), B=B)
        kept.append(held(store).seen.sort().values.tolist())
    assert kept[0] == kept[1] == kept[2]


def test_each_row_ever_offered_of_a_component_is_equally_likely_to_be_there():
    rng, store = named_generator(0, "store"), Store(1500, 20)
    offer(store, torch.cat([torch.zeros(10_000).long(), torch.arange(20_000) % 2 + 1]), rng)  # one gives way later
    assert store.counts(3).tolist() == [500, 500, 500]
    rows = held(store)
    assert spread_evenly(rows.seen[rows.y == 0], among=10_000)
    for k in (1, 2):
        assert spread_evenly(rows.seen[rows.y == k] - 10_000, among=20_000)


def test_the_same_generator_makes_the_same_store_and_another_another():
    assert same(held(filled([300, 300], 50)), held(filled([300, 300], 50)))
    assert not same(held(filled([300, 300], 50)), held(filled([300, 300], 50, seed=1)))


def test_no_rows_change_nothing():
    rng = named_generator(0, "store")
    for store in (Store(5, 20), filled([9, 9], 5)):
        before = held(store)
        store.add(torch.empty(0, 20), torch.empty(0).long(), torch.empty(0).long(), rng)
        store.discard(torch.empty(0).long())
        store.relabel(torch.empty(0).long(), 1)
        assert same(before, held(store))


def test_rows_that_a_network_decoded_are_kept_without_it():
    x = torch.rand(4, 20, requires_grad=True)
    store = Store(4, 20)
    store.add(2 * x, torch.zeros(4).long(), torch.arange(4), named_generator(0, "store"))
    assert not store.draw(3, named_generator(0, "store")).x.requires_grad


# -- components change -----------------------------------------------------------------------------------------------


def test_relabelled_rows_belong_to_their_new_component_and_keep_their_indices():
    store = filled([60, 60], capacity=50)
    before, moved = held(store), store.of(1)[3:20]
    store.relabel(moved, 4)
    assert store.counts(5).tolist() == [25, 8, 0, 0, 17]
    assert torch.equal(store.of(4), moved)
    assert same(held(store), Rows(before.x, before.y.index_fill(0, moved, 4), before.seen))


def test_a_merged_component_is_empty_and_its_rows_are_those_of_the_other():
    store = filled([9, 9, 9], capacity=50)
    both = torch.cat([store.of(0), store.of(2)]).sort().values
    store.merge(2, 0)
    assert store.counts(3).tolist() == [18, 9, 0]
    assert torch.equal(store.of(0), both)


def test_of_merged_components_each_row_ever_offered_is_equally_likely_to_be_there():
    store = filled([4000, 250], capacity=500)
    few = held(store).seen[store.of(1)]
    store.merge(1, 0)
    offer(store, torch.full((300,), 7), named_generator(1, "store"), start=10_000)
    assert store.counts(8).tolist() == [250, 0, 0, 0, 0, 0, 0, 250]
    survivors = torch.isin(held(store).seen, few).sum()
    assert 2 <= survivors <= 31  # 250 of 4250, of each of which every 17th is there: 15 or so


def test_a_component_born_of_another_goes_on_with_the_sample_that_it_was_given():
    rng, store = named_generator(0, "store"), Store(400, 20)
    offer(store, torch.zeros(10_000).long(), rng)
    store.relabel((held(store).seen % 2 == 1).nonzero()[:, 0], 1)  # every other row
    offer(store, torch.arange(10_000, 20_000) % 2, rng, start=10_000)
    rows = held(store)
    assert torch.equal(rows.y, rows.seen % 2)
    assert all(spread_evenly(rows.seen[rows.y == k], among=20_000) for k in (0, 1))


def test_discarded_rows_are_gone_and_the_others_untouched():
    store = filled([60, 60], capacity=50)
    rows, gone = held(store), torch.tensor([49, 3, 3, 17, 48, 0])
    stay = torch.tensor([i for i in range(50) if i not in gone])
    store.discard(gone)
    assert len(store) == 45
    assert same(by_seen(held(store)), by_seen(Rows(rows.x[stay], rows.y[stay], rows.seen[stay])))
    store.discard(torch.arange(45))
    assert store.counts(2).tolist() == [0, 0]


class Listed:
    """What a store is meant to hold, as a list: (component, key, position in the stream) of each row."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: list[tuple[int, int, int]] = []

    def add(self, y: list[int], seen: list[int], rng: Generator) -> None:
        keys = torch.randint(2**44, (len(y),), generator=rng).tolist()
        ranked, places = sorted([*self.rows, *zip(y, keys, seen, strict=True)]), []
        for i, row in enumerate(ranked):
            places.append(places[i - 1] + 1 if i and ranked[i - 1][0] == row[0] else 0)
        first = sorted(range(len(ranked)), key=lambda i: (places[i], ranked[i][0]))
        self.rows = [ranked[i] for i in first[: self.capacity]]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_to_it_a_store_is_like_a_list(seed):
    rng, keys, other = (named_generator(seed, "store") for _ in range(3))
    capacity = 5 + 20 * seed
    store, listed = Store(capacity, 20), Listed(capacity)
    at = 0
    for _ in range(60):
        a, b, n, act = (int(torch.randint(high, (), generator=other)) for high in (6, 6, 2 * capacity // 3 + 2, 6))
        if act < 3:
            y, seen = torch.randint(a + 1, (n,), generator=other), torch.arange(at, at + n)
            store.add(numbered(seen), y, seen, rng)
            listed.add(y.tolist(), seen.tolist(), keys)
            at += n
        elif act == 3:
            store.merge(a, b)
            listed.rows = [(b if y == a else y, key, seen) for y, key, seen in listed.rows]
        else:
            chosen = torch.rand(len(store), generator=other) < 0.2
            known = set(held(store).seen[chosen].tolist())
            if act == 4:
                store.relabel(chosen.nonzero()[:, 0], b)
                listed.rows = [(b if seen in known else y, key, seen) for y, key, seen in listed.rows]
            else:
                store.discard(chosen.nonzero()[:, 0])
                listed.rows = [row for row in listed.rows if row[2] not in known]
        rows = by_seen(held(store))
        assert rows.seen.tolist() == sorted(seen for _, _, seen in listed.rows)
        assert rows.y.tolist() == [y for y, _, _ in sorted(listed.rows, key=lambda row: row[2])]
        assert torch.equal(rows.x, numbered(rows.seen))
        assert torch.equal(torch.cat([store.of(k) for k in range(6)]).sort().values, torch.arange(len(store)))


# -- draws -----------------------------------------------------------------------------------------------------------


def shares(y: Tensor, K: int) -> Tensor:
    return y.bincount(minlength=K) / len(y)


@pytest.mark.parametrize(("even", "pi"), [(True, [1 / 3, 0, 1 / 3, 1 / 3]), (False, [0.1, 0, 0.6, 0.3])])
def test_draws_are_even_over_components_or_over_rows(even, pi):
    n, pi = 20_000, torch.tensor(pi)
    drawn = filled([10, 0, 60, 30], capacity=100).draw(n, named_generator(0, "replay"), even)
    assert ((shares(drawn.y, 4) - pi).abs() <= 4.5 * (pi * (1 - pi) / n).sqrt()).all()


@pytest.mark.parametrize("even", [True, False])
def test_draws_are_even_over_the_rows_of_a_component(even):
    store, n = filled([10, 0, 60, 30], capacity=100), 20_000
    drawn = store.draw(n, named_generator(0, "replay"), even)
    for k in (0, 2, 3):
        seen = drawn.seen[drawn.y == k]
        rows, times = seen.unique(return_counts=True)
        assert torch.equal(rows, held(store).seen[store.of(k)].sort().values)
        expected = len(seen) / len(rows)
        assert ((times - expected).abs() < 4.5 * expected**0.5).all()


def test_a_drawn_row_is_one_that_was_offered():
    drawn = filled([60, 60], capacity=50).draw(30, named_generator(0, "replay"))
    assert torch.equal(drawn.x, numbered(drawn.seen))
    assert drawn.x.is_contiguous()


def test_components_are_drawn_as_they_are_labelled_by_now():
    store = filled([10, 20, 30], capacity=100)
    store.merge(0, 1)
    store.relabel(store.of(2)[:1], 3)
    drawn = store.draw(3000, named_generator(0, "replay"))
    assert (shares(drawn.y, 4)[1:] - 1 / 3).abs().max() < 0.04
    assert len(drawn.seen[drawn.y == 3].unique()) == 1


def test_draws_follow_their_generator():
    store = filled([60, 60], capacity=50)
    rng = named_generator(0, "replay")
    first = store.draw(30, rng)
    assert not same(first, store.draw(30, rng))
    assert same(first, store.draw(30, named_generator(0, "replay")))


def test_nothing_can_be_drawn_of_an_empty_store():
    with pytest.raises(LookupError, match=r"There is nothing to draw from, for no rows have been added\."):
        Store(5, 20).draw(1, named_generator(0, "replay"))


# -- packing and bytes -----------------------------------------------------------------------------------------------


def stored(*parts: Tensor, capacity: int = 10_000, dtype: torch.dtype = torch.float32) -> Store:
    """A store of these rows, offered one part after the other."""
    store, rng, at = Store(capacity, parts[0].shape[1], dtype), named_generator(0, "store"), 0
    for x in parts:
        store.add(x, torch.zeros(len(x)).long(), torch.arange(at, at + len(x)), rng)
        at += len(x)
    return store


def rows_of(packing: Packing, n: int, D: int = 11) -> Tensor:
    """Rows for which the packing is the tightest."""
    rng = named_generator(0, packing.value)
    match packing:
        case Packing.BITS:
            return torch.randint(2, (n, D), generator=rng).float()
        case Packing.UINT8:
            return torch.randint(256, (n, D), generator=rng).byte() / 255
        case Packing.FLOAT16:
            return 100 * torch.randn(n, D, generator=rng)
        case Packing.FLOAT32:
            return 1e9 * torch.randn(n, D, generator=rng)


@pytest.mark.parametrize("D", [1, 7, 8, 9, 784])
def test_bits_come_back_as_they_were_and_take_an_eighth_of_a_byte(D):
    x = rows_of(Packing.BITS, 50, D)
    store = stored(x)
    assert torch.equal(held(store).x, x)
    assert store.n_bytes == 50 * (-(-D // 8) + 24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_come_back_as_they_were_and_take_a_byte(dtype):
    x = torch.arange(256, dtype=torch.uint8).to(dtype).view(8, 32) / 255
    store = stored(x, dtype=dtype)
    assert torch.equal(held(store).x, x)
    assert held(store).x.dtype == dtype
    assert store.n_bytes == 8 * (32 + 24)


def test_rows_of_another_float_type_are_taken_in_as_those_of_the_store():
    pixels = torch.arange(256, dtype=torch.uint8).view(8, 32)
    store = stored(pixels.double() / 255, dtype=torch.float32)
    assert store.packing == "uint8"
    assert torch.equal(held(store).x, pixels / 255)


@pytest.mark.parametrize(
    ("scale", "packing", "width"), [(1.0, "float16", 2), (60_000.0, "float16", 2), (1e9, "float32", 4)]
)
def test_other_values_come_back_with_three_digits_or_all_of_a_single_float_if_one_is_large(scale, packing, width):
    x = scale * torch.linspace(-1, 1, 60).view(6, 10)
    store = stored(x)
    assert (store.packing, store.n_bytes) == (packing, 6 * (10 * width + 24))
    assert ((held(store).x - x).abs() <= (x.abs() / 2000 if width == 2 else 0)).all()


@pytest.mark.parametrize(
    ("value", "packing"),
    [
        (1.0, "bits"),
        (-0.0, "bits"),
        (128 / 255, "uint8"),
        (0.5, "float16"),
        (254 / 255 + 1e-6, "float16"),
        (-1 / 255, "float16"),
        (2.0, "float16"),
        (60_000.0, "float16"),
        (-60_001.0, "float32"),
        (float("inf"), "float32"),
        (float("nan"), "float32"),
    ],
)
def test_one_value_that_does_not_fit_widens_the_packing_and_no_further_than_it_must(value, packing):
    zeros, x = torch.zeros(3, 5), torch.tensor([[0.0, value]])[:, [0, 0, 1, 0, 0]]
    assert stored(zeros).packing == "bits"
    store = stored(zeros, x)
    assert store.packing == packing
    assert torch.allclose(held(store).x, torch.cat([zeros, x]), rtol=1e-3, atol=0, equal_nan=True)


@pytest.mark.parametrize("first", list(Packing))
@pytest.mark.parametrize("second", list(Packing))
def test_what_is_held_survives_a_widening_and_nothing_is_narrowed(first, second):
    a, b = rows_of(first, 1500), rows_of(second, 40)
    store = stored(a, b)
    wider = max(first, second, key=list(Packing).index)
    assert store.packing == wider
    exact = wider in (Packing.BITS, Packing.UINT8) or (wider is first is second is Packing.FLOAT32)
    x = held(store).x
    assert torch.equal(x, torch.cat([a, b])) or not exact
    assert torch.allclose(x, torch.cat([a, b]), rtol=1e-3, atol=1e-7)


def test_rows_that_are_not_kept_do_not_widen_the_packing():
    store = stored(torch.zeros(5000, 3), capacity=2)
    store.add(torch.full((2, 3), 0.3), torch.tensor([1, 1]), torch.tensor([1, 2]), named_generator(1, "store"))
    assert store.packing == "float16"  # of a new component one is kept
    store = stored(torch.zeros(100_000, 3), capacity=2)
    store.add(torch.full((2, 3), 0.3), torch.tensor([0, 0]), torch.tensor([1, 2]), named_generator(1, "store"))
    assert store.packing == "bits"


def allocated(store: Store) -> int:
    tensors = [value for value in vars(store).values() if isinstance(value, Tensor)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.mark.parametrize("packing", list(Packing))
def test_memory_is_bounded_and_a_small_stream_takes_little_of_it(packing):
    x, rng, store = rows_of(packing, 30, D=100), named_generator(0, "store"), Store(1000, 100)
    for at in range(0, 3000, 30):
        store.add(x, torch.arange(30) % 7, torch.arange(at, at + 30), rng)
        assert store.n_bytes <= allocated(store) <= min(2 * store.n_bytes, store.most_bytes)
    assert store.n_bytes == store.most_bytes == allocated(store)
    assert store.most_bytes == 1000 * ({"bits": 13, "uint8": 100, "float16": 200, "float32": 400}[packing] + 24)


def test_a_full_store_takes_rows_in_where_others_lay():
    store = filled([500], capacity=50)
    at, before = [t.data_ptr() for t in (store.packed, store.code, store.seen)], held(store)
    offer(store, torch.arange(500) % 3, named_generator(1, "store"), start=500)
    assert [t.data_ptr() for t in (store.packed, store.code, store.seen)] == at
    stayed = held(store).seen == before.seen
    assert stayed.sum() == torch.isin(before.seen, held(store).seen).sum() > 5  # none that stays is moved


# -- resume ----------------------------------------------------------------------------------------------------------


def gone_on(store: Store, packing: Packing) -> list[Rows]:
    """What it draws after some more of everything, and what it holds in the end."""
    rng = named_generator(1, "store")
    drawn = [store.draw(20, rng)] if len(store) else []
    store.merge(1, 0)
    for at in (200, 230):
        store.add(rows_of(packing, 30), torch.arange(30) % 4, torch.arange(at, at + 30), rng)
        drawn += [store.draw(20, rng), store.draw(20, rng, even=False)]
        store.discard(store.of(2)[:2])
    return [*drawn, held(store)]


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("n", [0, 30, 200])
def test_a_restored_store_goes_on_bit_for_bit(packing, n):
    first, second = Store(100, 11), Store(100, 11)
    first.add(rows_of(packing, n), torch.arange(n) % 3, torch.arange(n), named_generator(0, "store"))
    fields = written(first.state())
    second.restore(fields, K=3)
    fields.end()
    assert (second.packing, second.n_bytes) == (first.packing, first.n_bytes)
    drawn, again = gone_on(first, packing), gone_on(second, packing)
    assert all(same(*pair) for pair in zip(drawn, again, strict=True))


@pytest.mark.parametrize(("packing", "width"), [("bits", 2), ("uint8", 11), ("float16", 22), ("float32", 44)])
def test_what_is_saved_is_packed_and_as_large_as_what_is_held(packing, width):
    store = stored(rows_of(Packing(packing), 40), rows_of(Packing(packing), 8))
    store.discard(torch.arange(18))
    tensors, _ = split(store.state())
    assert sum(t.untyped_storage().nbytes() for t in tensors.values()) == 30 * (width + 16)


def test_what_is_saved_does_not_change_with_the_store():
    store = filled([60, 60], capacity=50)
    tensors, _ = split(store.state())
    before = {name: t.clone() for name, t in tensors.items()}
    offer(store, torch.full((300,), 5), named_generator(1, "store"), start=500)
    assert all(torch.equal(before[name], t) for name, t in tensors.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packing": "bytes"}, "packing is bytes in it, but .* one of bits, uint8, float16, float32"),
        ({"packing": "uint8"}, r"packed is uint8 \[6, 3\] in it, but .* uint8 \[6, 20\]"),
        ({"packing": 3}, "packing is int in it, but .* str"),
        ({"packed": torch.zeros(5, 3).byte()}, r"packed is uint8 \[5, 3\] in it, but .* uint8 \[6, 3\]"),
        ({"seen": torch.zeros(5).long()}, r"seen is int64 \[5\] in it, but .* int64 \[6\]"),
        ({"code": torch.zeros(6)}, r"code is float32 \[6\] in it, but .* int64 \[any\]"),
        ({"code": torch.zeros(7).long()}, r"code is int64 \[7\] in it, but .* int64 \[at most 6\]"),
        ({"code": torch.arange(6) << 44}, "code is of component 2 in it, but .* of components 0 to 1"),
        ({"code": -torch.ones(6).long()}, "code is of component -1 in it, but .* of components 0 to 1"),
    ],
)
def test_a_state_of_another_store_is_refused(change: dict[str, Any], message):
    state = filled([9, 9], capacity=6).state()
    with pytest.raises(MisfitError, match=message):
        Store(6, 20).restore(Fields(state | change, "store"), K=2)
