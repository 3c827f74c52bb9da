"""Rows of a stream in bounded memory, shared evenly by the components; of each component a uniform sample.

Every row that is offered gets a random key, and a component keeps its rows with the smallest keys: a uniform sample of
all that were ever offered of it. The store holds the first rows in the order (place in the component, component), as
many as it may: components with few rows keep all of them, and the others share evenly what is left.

A relabelling, a merge or a discard may leave a component more room than it had when it gave rows up. The next rows
fill that room, and are more likely to be there than older ones until rows with smaller keys have replaced them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from curlicue.records.state import Fields, State

KEY_BITS = 44  # a hundred million rows of a component have hardly two equal keys among those that it keeps
REPACKED = 1024  # rows at a time, so that a wide copy of all of them never exists
SHIFTS = torch.arange(8, dtype=torch.uint8)


class Packing(StrEnum):
    """How the values of a row are held, the tightest first."""

    BITS = "bits"  # 8 values a byte: all are 0 or 1
    UINT8 = "uint8"  # all are multiples of 1/255 from 0 to 1
    FLOAT16 = "float16"  # none is beyond 60,000; they come back with three significant digits
    FLOAT32 = "float32"  # whatever they are

    def fits(self, x: Tensor) -> bool:
        """Whether all the values can be held so."""
        match self:
            case Packing.BITS:
                fit = (x == 0) | (x == 1)
            case Packing.UINT8:
                fit = (x >= 0) & (x <= 1) & ((255 * x).round() / 255 == x)
            case Packing.FLOAT16:
                fit = x.abs() <= 6e4
            case Packing.FLOAT32:
                return True
        return bool(fit.all())

    def room(self, n: int, n_x: int) -> Tensor:
        """Room for n packed rows of n_x values."""
        dtype = {Packing.FLOAT16: torch.float16, Packing.FLOAT32: torch.float32}.get(self, torch.uint8)
        return torch.empty(n, -(-n_x // 8) if self is Packing.BITS else n_x, dtype=dtype)

    def pack(self, x: Tensor) -> Tensor:
        """Rows that fit [n, D], packed [n, W]."""
        match self:
            case Packing.BITS:
                bits: Tensor = pad(x.byte(), (0, -x.shape[1] % 8)).unflatten(1, (-1, 8))  # [n, W, 8]
                return (bits << SHIFTS).sum(-1, dtype=torch.uint8)
            case Packing.UINT8:
                return (255 * x).round().byte()
            case Packing.FLOAT16:
                return x.half()
            case Packing.FLOAT32:
                return x.float()

    def unpack(self, packed: Tensor, n_x: int, dtype: torch.dtype) -> Tensor:
        """The rows [n, D] of packed ones [n, W]."""
        if self is Packing.BITS:
            packed = (packed.unsqueeze(-1) >> SHIFTS & 1).flatten(1)[:, :n_x]
        x = packed.to(dtype)
        return x / 255 if self is Packing.UINT8 else x

    def n_bytes(self, n: int, n_x: int) -> int:
        """Bytes of n rows in a store: their values, and 24 for component and key, `seen`, and place in the order."""
        return n * (self.room(1, n_x).nbytes + 24)


@dataclass(frozen=True)
class Rows:
    """Rows of a stream."""

    x: Tensor  # [n, D]
    y: Tensor  # [n], the component that each belongs to
    seen: Tensor  # [n], its position in the stream


class Store:
    """Holds at most so many rows of a stream, on the CPU; `dtype` is that of the rows that it gives back.

    Rows are packed as tightly as the values of all that were taken in allow, and repacked when a row comes that does
    not fit. Bits and multiples of 1/255 come back exactly; other values with three significant digits (float16), or
    seven (float32) once a value beyond 60,000 has come.

    Rows are known by their indices, 0 to len(store) - 1, which hold until rows are added or discarded.
    """

    def __init__(self, capacity: int, n_x: int, dtype: torch.dtype = torch.float32) -> None:
        self.capacity, self.n_x, self.dtype = capacity, n_x, dtype
        self.packing = Packing.BITS
        self.packed = self.packing.room(0, n_x)  # [room, W]
        self.code = torch.empty(0, dtype=torch.int64)  # [room], component and key, the component in the higher bits
        self.seen = torch.empty(0, dtype=torch.int64)  # [room]
        self.order = torch.empty(0, dtype=torch.int64)  # [n], indices by component, and by key within each

    def __len__(self) -> int:
        return len(self.order)

    @property
    def y(self) -> Tensor:
        """The component of each row [n]."""
        return self.code[: len(self)] >> KEY_BITS

    def add(self, x: Tensor, y: Tensor, seen: Tensor, rng: Generator) -> None:
        """Offer rows [n, D] of the components y [n], which came at the positions `seen` [n] of the stream."""
        n = len(self)
        code = (y.cpu() << KEY_BITS) | torch.randint(1 << KEY_BITS, (len(x),), generator=rng)
        offered, by = torch.cat([self.code.index_select(0, self.order), code]).sort(stable=True)
        order = torch.cat([self.order, torch.arange(n, n + len(x))]).index_select(0, by)  # the new ones from n on
        kept = _first(offered, self.capacity)
        out, order = order.masked_select(~kept), order.masked_select(kept)
        gone = out[out < n]
        new = torch.ones(len(x), dtype=torch.bool).index_fill_(0, out[out >= n] - n, False).nonzero()[:, 0]
        at = torch.cat([gone, torch.arange(n, n + len(new) - len(gone))])  # [new], where others gave way, or behind all
        self._write(at, x.detach().to("cpu", self.dtype)[new], code[new], seen.cpu()[new], len(order))
        self.order = torch.arange(n + len(x)).index_copy_(0, n + new, at).index_select(0, order)

    def draw(self, n: int, rng: Generator, even: bool = True) -> Rows:
        """So many rows, with replacement: each component is equally likely, or, if not `even`, each row is."""
        if not len(self):
            raise LookupError("There is nothing to draw from, for no rows have been added.")
        if not even:
            return self.rows(torch.randint(len(self), (n,), generator=rng))
        counts = self.y.bincount()  # [K]
        held = counts.nonzero()[:, 0]
        y = held[torch.randint(len(held), (n,), generator=rng)]  # [n]
        j = (torch.rand(n, dtype=torch.float64, generator=rng) * counts[y]).long()  # [n], which row of the component
        return self.rows(self.order[(counts.cumsum(0) - counts)[y] + j])

    def rows(self, indices: Tensor) -> Rows:
        """The rows with these indices [n]."""
        x = self.packing.unpack(self.packed[indices], self.n_x, self.dtype)
        return Rows(x, self.code[indices] >> KEY_BITS, self.seen[indices])

    def of(self, k: int) -> Tensor:
        """Indices of the rows of a component."""
        return (self.y == k).nonzero()[:, 0]

    def counts(self, K: int) -> Tensor:
        """How many rows each of K components has [K]."""
        return self.y.bincount(minlength=K)

    def relabel(self, indices: Tensor, k: int) -> None:
        """From now on these rows belong to component k, with the keys that they have."""
        self.code[indices] = self.code[indices] & ((1 << KEY_BITS) - 1) | (k << KEY_BITS)
        self.order = self.code[: len(self)].argsort(stable=True)

    def merge(self, a: int, b: int) -> None:
        """From now on all rows of component a belong to b."""
        self.relabel(self.of(a), b)

    def discard(self, indices: Tensor) -> None:
        """Give these rows up; the last ones take their places."""
        gone = torch.zeros(len(self), dtype=torch.bool).index_fill_(0, indices, True)
        n = len(self) - int(gone.sum())
        holes, last = gone[:n].nonzero()[:, 0], n + (~gone[n:]).nonzero()[:, 0]
        for each in (self.packed, self.code, self.seen):
            each[holes] = each[last]
        self.order = self.code[:n].argsort(stable=True)

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows held by now. Room that is made for more, by doubling, is not counted."""
        return self.packing.n_bytes(len(self), self.n_x)

    @property
    def most_bytes(self) -> int:
        """Bytes when it is full, room and all, packed as by now."""
        return self.packing.n_bytes(self.capacity, self.n_x)

    def state(self) -> State:
        """The rows as they are packed, and of each its component, key and position in the stream."""
        held = {name: getattr(self, name)[: len(self)].clone() for name in ("packed", "code", "seen")}
        return {"packing": self.packing.value, **held}

    def restore(self, fields: Fields, K: int) -> None:
        """Go on from `state`, with K components."""
        packing = fields.value("packing", str)
        if packing not in list(Packing):
            fields.refuse("packing", packing, f"one of {', '.join(Packing)}")
        self.packing = Packing(packing)
        self.code = fields.tensor("code", (None,), torch.int64)
        n, room = len(self.code), self.packing.room(0, self.n_x)
        if n > self.capacity:
            fields.refuse("code", f"int64 [{n}]", f"int64 [at most {self.capacity}]")
        wrong = [k for k in (self.code >> KEY_BITS).unique().tolist() if not 0 <= k < K]
        if wrong:
            fields.refuse("code", f"of component {wrong[0]}", f"of components 0 to {K - 1}")
        self.seen = fields.tensor("seen", (n,), torch.int64)
        self.packed = fields.tensor("packed", (n, room.shape[1]), room.dtype)
        self.order = self.code.argsort(stable=True)

    def _write(self, at: Tensor, x: Tensor, code: Tensor, seen: Tensor, n: int) -> None:
        """Put rows at these indices [m] of n, after making room and widening the packing if need be."""
        self._widen(x)
        if n > len(self.code):
            more = min(self.capacity, max(n, 2 * len(self.code))) - len(self.code)
            held = (self.packed, self.code, self.seen)
            self.packed, self.code, self.seen = (torch.cat([t, t.new_empty(more, *t.shape[1:])]) for t in held)
        self.packed[at], self.code[at], self.seen[at] = self.packing.pack(x), code, seen

    def _widen(self, x: Tensor) -> None:
        """Take the tightest packing, from the present one on, that these rows fit too, and repack what is held."""
        packings = list(Packing)
        wider = next(each for each in packings[packings.index(self.packing) :] if each.fits(x))
        if wider is not self.packing:
            old, new = self.packed, wider.room(len(self.packed), self.n_x)
            for rows in torch.arange(len(self)).split(REPACKED):
                new[rows] = wider.pack(self.packing.unpack(old[rows], self.n_x, self.dtype))
            self.packing, self.packed = wider, new


def _first(code: Tensor, capacity: int) -> Tensor:
    """Of sorted codes [n]: which are kept, for they are the first by (place in the component, component)."""
    counts = (code >> KEY_BITS).bincount(minlength=1)  # [K]
    ends = counts.cumsum(0) - counts + _quotas(counts, capacity)  # [K]
    return torch.arange(len(code)) < ends.repeat_interleave(counts)


def _quotas(counts: Tensor, capacity: int) -> Tensor:
    """How many rows each component keeps of those that it has [K]: small ones all, the others equally many.

    If that leaves room, as many of the others as it has place for keep one more, the first of them.
    """
    least = counts.sort().values
    left = capacity - (least.cumsum(0) - least)  # [K], by those with fewer rows
    level = int((left // torch.arange(len(counts), 0, -1)).max())
    quotas, more = counts.clamp_max(level), counts > level
    return quotas + (more & (more.cumsum(0) <= capacity - quotas.sum()))
