"""The streams of benchmarks/streams.py: each a function of a seed that knows its true clusters and changes.

Most of them are a table of shares [T, K], how likely each cluster is in each batch, and one function a cluster that
draws rows of it. Batches are drawn when they are asked for, and the same ones each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from curlicue.streams.fetch import status
from curlicue.streams.sources import Source, load

Array = npt.NDArray[Any]
"""Rows of floats [n, D]."""
Labels = npt.NDArray[np.int64]
Rng = np.random.Generator
Draw = Callable[[Rng, int], Array]
"""So many rows of a cluster."""
Likelihood = Literal["gaussian", "bernoulli"]

B = 100  # rows of a batch, where a stream does not say otherwise
D = 5  # features, likewise
APART = 8.0  # least distance between two centres of blobs, in standard deviations of a blob
EVALUATED = 500  # rows of each cluster that are evaluated, where a cluster is a distribution
AT_LEAST = 1000  # rows within which a birth may answer a change, where a regime is as long
AT_REST = 250  # rows of a blob at rest
OF_A_CLASS = 60  # batches of a class of a data set
MNIST_BATCHES = 1000  # batches of a digit of MNIST, at scale 1
LOADED = {"iris": load_iris, "wine": load_wine, "digits": load_digits, "cancer": load_breast_cancer}


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    """Batches, and what is true of them."""

    told: str  # what it is, in words
    batches: Callable[[], Iterator[Array]]  # from the beginning
    rows: int  # in all batches together
    x: Array  # the rows that are evaluated
    labels: Labels  # their clusters
    changes: tuple[int, ...] = ()  # rows that came before something never seen begins
    window: int = 0  # rows after a change within which a birth answers it
    at_first: int = 1  # clusters that are there from the first row on
    likelihood: Likelihood = "gaussian"
    at_rest: bool = False  # one batch, all rows at once, in no order

    @property
    def K(self) -> int:
        """How many clusters there truly are."""
        return len(np.unique(self.labels))


Kind = Callable[[int], Stream]


# -- streams from shares ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Mixture:
    """Batches whose rows come from each cluster as often as the shares of the batch say."""

    draws: Sequence[Draw]  # K of them
    shares: Array  # [T, K], each row sums to 1
    seed: int
    rows_of_a_batch: int = B
    ordered: bool = False  # whether the rows of a batch are sorted by cluster
    shift: Array | None = None  # [T, D], added to the rows of a batch

    def batches(self) -> Iterator[Array]:
        """All of them, from the beginning."""
        rng = np.random.default_rng((self.seed, 0))
        for t, shares in enumerate(self.shares):
            counts = rng.multinomial(self.rows_of_a_batch, shares)
            x = np.concatenate([draw(rng, n) for draw, n in zip(self.draws, counts, strict=True) if n])
            x = x if self.ordered else rng.permutation(x)
            yield x if self.shift is None else x + self.shift[t]

    @property
    def begins(self) -> Labels:
        """The batch in which each cluster is first possible, [K]."""
        return np.asarray((self.shares > 0).argmax(0), dtype=np.int64)

    def stream(self, told: str, window: int, evaluated: tuple[Array, Labels] | None = None) -> Stream:
        """The stream; a birth has `window` rows to answer a change."""
        x, labels = self.fresh() if evaluated is None else evaluated
        return Stream(
            told=told,
            batches=self.batches,
            rows=len(self.shares) * self.rows_of_a_batch,
            x=x,
            labels=labels,
            changes=tuple(int(t) * self.rows_of_a_batch for t in np.unique(self.begins) if t > 0),
            window=window,
            at_first=int((self.begins == 0).sum()),
        )

    def fresh(self) -> tuple[Array, Labels]:
        """New rows of every cluster, as many of each, and their clusters."""
        rng = np.random.default_rng((self.seed, 1))
        x = np.concatenate([draw(rng, EVALUATED) for draw in self.draws])
        return x, np.repeat(np.arange(len(self.draws)), EVALUATED)


def half(rows: int) -> int:
    """The window of changes that are so many rows apart: half of them, but at least AT_LEAST or all."""
    return max(rows // 2, min(rows, AT_LEAST))


def in_turn(order: Sequence[int], batches: int) -> Array:
    """Shares [T, K] of clusters that come one after the other, so many batches each."""
    return np.repeat(np.eye(max(order) + 1)[list(order)], batches, axis=0)


def fading(K: int, period: int, rising: int) -> Array:
    """Shares [T, K] of clusters in turn; in the last `rising` batches of a period the next one's share rises to 1."""
    shares = in_turn(range(K), period)
    up = np.arange(1, rising + 1) / (rising + 1)
    for k in range(K - 1):
        fade = slice((k + 1) * period - rising, (k + 1) * period)
        shares[fade, k], shares[fade, k + 1] = 1 - up, up
    return shares


def together(groups: Sequence[int], batches: int) -> Array:
    """Shares [T, K]: so many clusters at once, as likely as each other, then so many others, and so on."""
    shares = np.zeros((len(groups), sum(groups)))
    for g, n in enumerate(groups):
        shares[g, sum(groups[:g]) : sum(groups[: g + 1])] = 1 / n
    return np.repeat(shares, batches, axis=0)


# -- clusters ---------------------------------------------------------------------------------------------------------


def gaussian(mean: float | Array, std: float = 1.0, features: int = D) -> Draw:
    """Rows with independent features."""
    return lambda rng, n: rng.normal(mean, std, size=(n, features))


def t3(mean: float, features: int = D) -> Draw:
    """Rows with heavy tails: Student's t with three degrees of freedom."""
    return lambda rng, n: mean + rng.standard_t(3, size=(n, features))


def alike(correlation: float, features: int, mean: float = 0.0) -> Draw:
    """Gaussian rows of unit variance whose features are all correlated with one another."""
    own, common = np.sqrt(1 - correlation), np.sqrt(correlation)
    return lambda rng, n: mean + own * rng.normal(size=(n, features)) + common * rng.normal(size=(n, 1))


def one_of(rows: Array) -> Draw:
    """Rows drawn with replacement."""
    return lambda rng, n: rows[rng.integers(len(rows), size=n)]


def blobs(K: int, seed: int, features: int = D) -> list[Draw]:
    """Gaussians of unit variance whose centres are at least APART from each other."""
    rng, centres = np.random.default_rng((seed, 2)), np.empty((0, features))
    while len(centres) < K:
        centre = rng.uniform(-2 * APART, 2 * APART, size=features)
        if (np.linalg.norm(centres - centre, axis=1) >= APART).all():
            centres = np.vstack([centres, centre])
    return [gaussian(centre, features=features) for centre in centres]


# -- regimes that are distributions -----------------------------------------------------------------------------------


def regimes(seed: int, means: Sequence[float], rows: int, batch: int = B) -> Stream:
    """Gaussians of unit variance around the same number in all features."""
    draws = [gaussian(mean) for mean in means]
    told = f"regimes around {', '.join(f'{mean:g}' for mean in means)}, {rows:,} rows each, in batches of {batch:,}"
    return Mixture(draws, in_turn(range(len(means)), rows // batch), seed, batch).stream(told, half(rows))


def blobs_in_turn(seed: int, K: int, rows: int, batch: int = B) -> Stream:
    """Gaussians that lie well apart, one after the other."""
    told = f"{K} Gaussians in turn, {rows:,} rows each, in batches of {batch:,}"
    return Mixture(blobs(K, seed), in_turn(range(K), rows // batch), seed, batch).stream(told, half(rows))


def sorted_batches(seed: int) -> Stream:
    """Several clusters in each batch, one after the other."""
    mixture = Mixture(blobs(3, seed), together([3], 30), seed, 1000, ordered=True)
    return mixture.stream("3 Gaussians in each of 30 batches of 1,000 rows, which are sorted by cluster", 0)


def drift(seed: int, period: int) -> Stream:
    """Regimes that fade into each other over half of a period."""
    mixture = Mixture([gaussian(mean) for mean in (0, 8, 16)], fading(3, period, period // 2), seed)
    told = f"regimes around 0, 8, 16 of {period:,} batches; the next one's share rises over the latter half of each"
    return mixture.stream(told, period * B * 3 // 4)


def at_once(seed: int, groups: Sequence[int]) -> Stream:
    """Several clusters at a time, then others."""
    told = f"{', then '.join(map(str, groups))} Gaussians at once, each group for 100 batches"
    return Mixture(blobs(sum(groups), seed), together(groups, 100), seed).stream(told, half(100 * B))


def rare(seed: int) -> Stream:
    """A cluster that is one row of 101."""
    shares = np.array([[1.0, 0.0]] * 100 + [[100 / 101, 1 / 101]] * 400)
    told = "a Gaussian, after 100 batches with one row of another among 101, for 400 batches"
    return Mixture(blobs(2, seed), shares, seed).stream(told, 400 * B)


def short_visit(seed: int) -> Stream:
    """A regime a hundredth as long as those around it."""
    shares = in_turn([0] * 100 + [1] + [0] * 100, 2)
    told = "a Gaussian of 20,000 rows, another of 200 rows, the first again: 20,000 rows"
    return Mixture(blobs(2, seed), shares, seed).stream(told, 20 * B)


def two_regimes(seed: int, draws: Sequence[Draw], told: str) -> Stream:
    """One regime for 100 batches, then another, then the first again."""
    return Mixture(draws, in_turn([0, 1, 0], 100), seed).stream(
        f"{told}; 10,000 rows, and then as before", half(100 * B)
    )


def few_features(seed: int) -> Stream:
    """Regimes that differ in few features of many."""
    means = np.zeros((3, 500))
    means[1, :5], means[2, :5] = 8, -8
    draws = [gaussian(mean, features=500) for mean in means]
    told = "3 regimes of 2,000 rows that differ in 5 of 500 features"
    return Mixture(draws, in_turn(range(3), 20), seed).stream(told, half(20 * B))


def heavy_tails(seed: int) -> Stream:
    """Regimes with heavy tails."""
    told = "t3 noise around 0, 8, 16, 10,000 rows each"
    return Mixture([t3(mean) for mean in (0, 8, 16)], in_turn(range(3), 100), seed).stream(told, half(100 * B))


# -- one cluster ------------------------------------------------------------------------------------------------------


def moved(seed: int, shift: Array, told: str) -> Stream:
    """One Gaussian whose centre moves: shift [T, D]; what is evaluated comes from all of the time."""
    mixture = Mixture([gaussian(0)], np.ones((len(shift), 1)), seed, shift=shift)
    rng = np.random.default_rng((seed, 1))
    x = rng.normal(size=(2 * EVALUATED, D)) + shift[rng.integers(len(shift), size=2 * EVALUATED)]
    return mixture.stream(told, 0, (x, np.zeros(len(x), np.int64)))


def trend(seed: int) -> Stream:
    """A straight line."""
    line = np.linspace(0, 8, 300)[:, None] * np.ones(D)
    return moved(seed, line, "one Gaussian whose mean goes from 0 to 8 over 300 batches")


def season(seed: int) -> Stream:
    """A wave, of which each feature has its own phase."""
    time, phase = np.arange(300)[:, None], np.linspace(0, np.pi, D)
    wave = 3 * np.sin(2 * np.pi * time / 50 + phase)
    return moved(seed, wave, "one Gaussian whose mean is a wave of amplitude 3 and 50 batches, 6 times")


def never(seed: int, draw: Draw, told: str) -> Stream:
    """Nothing ever changes."""
    return Mixture([draw], np.ones((1000, 1)), seed).stream(f"{told}, 1,000 batches; nothing changes", 0)


def never_digits(seed: int) -> Stream:
    """Digits, shuffled."""
    mixture, everything = classes("digits", seed, lambda K: together([K], 1000))
    stream = mixture.stream("all ten digits, shuffled, 1,000 batches; nothing changes", 0, everything)
    return replace(stream, likelihood="bernoulli")


# -- data sets --------------------------------------------------------------------------------------------------------


@cache
def data(name: str) -> tuple[Array, Labels]:
    """All rows, as the likelihood wants them, and their classes."""
    x, labels = LOADED[name](return_X_y=True)
    return (x / 16 if name == "digits" else StandardScaler().fit_transform(x)), labels


def classes(name: str, seed: int, shares: Callable[[int], Array]) -> tuple[Mixture, tuple[Array, Labels]]:
    """Classes as clusters: three quarters of the rows to draw from, all rows to evaluate."""
    x, labels = data(name)
    shown, _, known, _ = train_test_split(x, labels, test_size=0.25, random_state=seed, stratify=labels)
    parts = [shown[known == label] for label in np.unique(labels)]
    batch = min(B, *map(len, parts))
    return Mixture([one_of(part) for part in parts], shares(len(parts)), seed, batch), (x, labels)


def class_after_class(seed: int, name: str, visits: int = 1) -> Stream:
    """The classes of a data set one after the other, all of them so many times."""
    mixture, everything = classes(name, seed, lambda K: in_turn([*range(K)] * visits, OF_A_CLASS))
    again = ", then all of them once more" if visits > 1 else ""
    told = f"{name}, class after class{again}; {OF_A_CLASS} batches of {mixture.rows_of_a_batch} rows a class"
    stream = mixture.stream(told, half(OF_A_CLASS * mixture.rows_of_a_batch), everything)
    return replace(stream, likelihood="bernoulli" if name == "digits" else "gaussian")


def at_rest(told: str, seed: int, x: Array, labels: Labels | None = None) -> Stream:
    """All rows at once, in random order; they are what is evaluated too."""
    labels = np.zeros(len(x), np.int64) if labels is None else labels
    order = np.random.default_rng((seed, 3)).permutation(len(x))
    x, labels = x[order], labels[order]
    K = len(np.unique(labels))
    told = f"at rest: {told}"
    return Stream(told=told, batches=lambda: iter([x]), rows=len(x), x=x, labels=labels, at_first=K, at_rest=True)


def blobs_at_rest(seed: int, features: int) -> Stream:
    """Eight Gaussians."""
    rng, draws = np.random.default_rng((seed, 0)), blobs(8, seed, features)
    x = np.concatenate([draw(rng, AT_REST) for draw in draws])
    told = f"8 Gaussians of {AT_REST} rows, {features} features"
    return at_rest(told, seed, StandardScaler().fit_transform(x), np.repeat(np.arange(8), AT_REST))


def data_at_rest(seed: int, name: str) -> Stream:
    """A data set."""
    stream = at_rest(name, seed, *data(name))
    return replace(stream, likelihood="bernoulli" if name == "digits" else "gaussian")


def noise_at_rest(seed: int, draw: Draw, told: str) -> Stream:
    """One cluster of noise."""
    return at_rest(f"2,000 rows of {told}, one cluster", seed, draw(np.random.default_rng((seed, 0)), 2000))


# -- MNIST ------------------------------------------------------------------------------------------------------------


def has_mnist() -> bool:
    """Whether MNIST is on this machine; nothing is fetched."""
    return all(file.state == "ok" for file in status() if file.dataset == "mnist")


@cache
def mnist() -> Source:
    """Pixels of 0 and 1."""
    return load("mnist")


def mnist_stream(seed: int, told: str, shares: Array, window: int) -> Stream:
    """Training images drawn with replacement; the test images are evaluated."""
    source = mnist()
    x, labels = source.train.x.numpy(), source.train.labels.numpy()
    mixture = Mixture([one_of(x[labels == label]) for label in range(10)], shares, seed)
    evaluated = source.test.x.numpy(), source.test.labels.numpy()
    return replace(mixture.stream(f"MNIST, {told}", window, evaluated), likelihood="bernoulli")


def mnist_in_turn(seed: int, scale: float) -> Stream:
    """Digit after digit."""
    n = max(int(MNIST_BATCHES * scale), 1)
    return mnist_stream(seed, f"digit after digit, {n:,} batches each", in_turn(range(10), n), half(n * B))


def mnist_drifting(seed: int, scale: float) -> Stream:
    """Digits that fade into each other."""
    n = max(int(MNIST_BATCHES * scale), 2)
    told = f"digits of {n:,} batches; the next one's share rises over the latter half of each"
    return mnist_stream(seed, told, fading(10, n, n // 2), n * B * 3 // 4)


def mnist_shuffled(seed: int, scale: float) -> Stream:
    """All digits all the time."""
    n = max(int(10 * MNIST_BATCHES * scale), 1)
    return mnist_stream(seed, f"shuffled, {n:,} batches", together([10], n), 0)


def mnist_two_at_a_time(seed: int, scale: float) -> Stream:
    """Two digits, then two others: each training image once, or `scale` of them."""
    source, rng = mnist(), np.random.default_rng((seed, 0))
    labels = source.train.labels.numpy()
    phases = [rng.permutation(np.flatnonzero(labels // 2 == phase)) for phase in range(5)]
    phases = [phase[: max(int(len(phase) * min(scale, 1)) // B, 1) * B] for phase in phases]
    order, ends = np.concatenate(phases), np.cumsum([len(phase) for phase in phases])

    def batches() -> Iterator[Array]:
        return (source.train.x[rows].numpy() for rows in order.reshape(-1, B))

    return Stream(
        told=f"MNIST, two digits at a time, a single pass over {len(order):,} images",
        batches=batches,
        rows=len(order),
        x=source.test.x.numpy(),
        labels=source.test.labels.numpy(),
        changes=tuple(int(end) for end in ends[:-1]),
        window=half(int(min(np.diff(ends, prepend=0)))),
        at_first=2,
        likelihood="bernoulli",
    )


def mnist_kinds(scale: float) -> dict[str, Kind]:
    """The streams of MNIST, in `scale` of their batches, which is part of their names."""
    made = {"in-turn": mnist_in_turn, "drift": mnist_drifting, "two-at-a-time": mnist_two_at_a_time}
    made["shuffled"] = mnist_shuffled
    return {f"mnist-{name}@{scale:g}": partial(kind, scale=scale) for name, kind in made.items()}


# -- all of them ------------------------------------------------------------------------------------------------------

WIDER, CORRELATED = "10 features, of standard deviation 1, then 3", "10 independent features, then correlated by 0.9"
BRIGHT = "5 features correlated by 0.5, then all of them brighter by 4"
KINDS: dict[str, Kind] = {
    "readme-three": partial(regimes, means=(0, 8, 16), rows=10_000, batch=10_000),
    "readme-four": partial(regimes, means=(0, 8, -8, 16), rows=10_000, batch=10_000),
    "six-gaussians": partial(blobs_in_turn, K=6, rows=3000),
    "short-500": partial(blobs_in_turn, K=4, rows=500),
    "short-200": partial(blobs_in_turn, K=4, rows=200),
    **{f"{name}-in-turn": partial(class_after_class, name=name) for name in LOADED},
    **{f"{name}-returning": partial(class_after_class, name=name, visits=2) for name in LOADED},
    "row-by-row": partial(blobs_in_turn, K=3, rows=2000, batch=1),
    "batches-of-7": partial(blobs_in_turn, K=3, rows=3500, batch=7),
    "batches-of-10000": partial(blobs_in_turn, K=3, rows=20_000, batch=10_000),
    "sorted-batches": sorted_batches,
    **{f"drift-{period}": partial(drift, period=period) for period in (50, 200, 1000)},
    "two-at-once": partial(at_once, groups=(2, 2, 2)),
    "five-at-once": partial(at_once, groups=(5, 5)),
    "rare": rare,
    "short-visit": short_visit,
    "variance-only": partial(two_regimes, draws=[gaussian(0, std, 10) for std in (1, 3)], told=WIDER),
    "correlation-only": partial(two_regimes, draws=[alike(c, 10) for c in (0, 0.9)], told=CORRELATED),
    "brightness": partial(two_regimes, draws=[alike(0.5, D), alike(0.5, D, 4)], told=BRIGHT),
    "five-of-500-features": few_features,
    "heavy-tails": heavy_tails,
    "trend": trend,
    "season": season,
    "never-gaussian": partial(never, draw=gaussian(0), told="a Gaussian"),
    "never-t3": partial(never, draw=t3(0), told="t3 noise"),
    "never-digits": never_digits,
    "rest-blobs-2": partial(blobs_at_rest, features=2),
    "rest-blobs-10": partial(blobs_at_rest, features=10),
    **{f"rest-{name}": partial(data_at_rest, name=name) for name in LOADED},
    "rest-gaussian": partial(noise_at_rest, draw=gaussian(0), told="a Gaussian"),
    "rest-t3": partial(noise_at_rest, draw=t3(0), told="t3 noise"),
    "rest-uniform": partial(noise_at_rest, draw=lambda rng, n: rng.uniform(size=(n, D)), told="uniform noise"),
    "rest-repeated": partial(noise_at_rest, draw=lambda rng, n: np.ones((n, D)), told="one and the same row"),
}
