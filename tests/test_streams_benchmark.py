"""The benchmark of streams: they are what they say, scores are right, and what is measured is kept and told."""

import doctest
import importlib
import itertools
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """A module of the benchmark, by its name."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def kinds(module):
    return module("stream_kinds")


@pytest.fixture
def systems(module):
    return module("stream_systems")


@pytest.fixture
def table(module):
    return module("stream_table")


@pytest.fixture
def benchmark(module, kinds, monkeypatch, tmp_path):
    """The script with two short streams, and as if river were not there; the options go to a file of its own."""
    script = module("streams")
    short = {"short": partial(kinds.blobs_in_turn, K=2, rows=300), "rest": partial(kinds.data_at_rest, name="iris")}
    monkeypatch.setattr(script, "KINDS", short)
    monkeypatch.setattr(script, "has_river", lambda: False)
    monkeypatch.setattr(script, "one_thread", lambda: None)

    def run(**options):
        files = {"out": tmp_path / "streams.json", "table": tmp_path / "streams.md"}
        script.main(script.Options(**{"seeds": 1, "systems": ("CURL", "Birch"), **files, **options}))
        return json.loads(files["out"].read_text())["rows"], files["table"].read_text()

    run.script = script
    return run


def whole(stream):
    return np.concatenate(list(stream.batches()))


# -- streams ----------------------------------------------------------------------------------------------------------


def test_every_stream_delivers_the_rows_clusters_and_changes_that_it_says(kinds):
    for name, kind in kinds.KINDS.items():
        stream = kind(0)
        assert sum(map(len, stream.batches())) == stream.rows, name
        assert next(stream.batches()).shape[1] == stream.x.shape[1], name
        assert len(stream.x) == len(stream.labels), name
        assert list(stream.changes) == sorted({*stream.changes}), name
        assert all(0 < change < stream.rows for change in stream.changes), name
        assert bool(stream.changes) == (stream.window > 0) == (stream.at_first < stream.K), name
        assert stream.at_first + len(stream.changes) <= stream.K, name


def test_a_stream_is_the_same_each_time_and_another_for_another_seed(kinds):
    for name in ("six-gaussians", "digits-in-turn", "season", "rest-uniform", "two-at-once"):
        one, same, other = (kinds.KINDS[name](seed) for seed in (0, 0, 1))
        first = [next(stream.batches()) for stream in (one, one, same, other)]
        assert np.array_equal(first[0], first[1]), name
        assert np.array_equal(first[0], first[2]), name
        assert not np.array_equal(first[0], first[3]), name
        assert np.array_equal(one.x, same.x), name


@pytest.mark.parametrize(("name", "means"), [("readme-three", (0, 8, 16)), ("readme-four", (0, 8, -8, 16))])
def test_the_regimes_of_the_readme_have_10000_rows_of_unit_variance_in_one_batch_each(kinds, name, means):
    stream = kinds.KINDS[name](0)
    for x, mean in zip(stream.batches(), means, strict=True):
        assert x.shape == (10_000, 5)
        assert np.abs(x.mean(0) - mean).max() < 0.1
        assert np.abs(x.var(0) - 1).max() < 0.1
    assert stream.changes == tuple(range(10_000, 10_000 * len(means), 10_000))


def test_under_drift_the_next_regime_rises_to_all_over_the_latter_half_of_a_period(kinds):
    stream = kinds.KINDS["drift-200"](0)
    share = [(x.mean(1) > 4).mean() for x in itertools.islice(stream.batches(), 400)]  # of the second regime, or third
    assert max(share[:100]) == 0
    assert np.allclose(share[100:200], np.arange(1, 101) / 101, atol=0.2)
    assert min(share[200:300]) == 1
    assert stream.changes == (10_000, 30_000)
    assert stream.changes[0] + stream.window < stream.changes[1]


def test_shares_sum_to_one(kinds):
    for shares in (kinds.in_turn([0, 1, 0], 3), kinds.fading(3, 10, 5), kinds.together([2, 3], 4)):
        assert np.allclose(shares.sum(1), 1)


def test_centres_of_blobs_lie_apart(kinds):
    for features in (2, 5):
        centres = [draw(np.random.default_rng(0), 1000).mean(0) for draw in kinds.blobs(8, 0, features)]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(centres, 2)) > kinds.APART - 0.5


def test_classes_come_in_turn_from_a_training_part_and_those_that_return_come_again_in_the_same_order(kinds):
    x, labels = kinds.data("wine")
    class_of = {row.tobytes(): label for row, label in zip(x, labels, strict=True)}
    for visits, name in enumerate(("wine-in-turn", "wine-returning"), 1):
        stream = kinds.KINDS[name](0)
        shown = [{class_of[row.tobytes()] for row in batch} for batch in stream.batches()]
        assert shown == [{c} for _ in range(visits) for c in range(3) for _ in range(60)]
        assert len({row.tobytes() for row in whole(stream)}) <= 0.75 * len(x)
        assert len(stream.x) == len(x)
        assert len(stream.changes) == 2


def test_batches_can_be_sorted_by_cluster(kinds):
    stream = kinds.KINDS["sorted-batches"](0)
    for x in itertools.islice(stream.batches(), 3):
        jumps = np.linalg.norm(np.diff(x, axis=0), axis=1) > kinds.APART - 1
        parts = np.split(x, np.flatnonzero(jumps) + 1)
        assert max(map(len, parts)) > 250


def test_a_rare_cluster_is_one_row_of_101_and_a_short_visit_has_200_rows(kinds):
    for name, rows, seen in (("rare", 400 * 100 / 101, slice(10_000, None)), ("short-visit", 200, slice(None))):
        stream = kinds.KINDS[name](0)
        centre = stream.x[stream.labels == 1].mean(0)
        near = np.linalg.norm(whole(stream) - centre, axis=1) < kinds.APART / 2
        assert near[seen].sum() == near.sum() == pytest.approx(rows, rel=0.2)


def test_regimes_may_differ_in_variance_or_in_correlation_alone_or_in_few_features(kinds):
    for name in ("variance-only", "correlation-only"):
        stream = kinds.KINDS[name](0)
        one, other = (stream.x[stream.labels == label] for label in (0, 1))
        assert np.abs(one.mean(0) - other.mean(0)).max() < 0.6, name
        ratio = (other.var(0) / one.var(0)).mean()
        assert ratio == pytest.approx(9 if name == "variance-only" else 1, rel=0.2)
        related = np.corrcoef(other.T)[0, 1]
        assert related == pytest.approx(0 if name == "variance-only" else 0.9, abs=0.15)
    stream = kinds.KINDS["five-of-500-features"](0)
    means = np.stack([stream.x[stream.labels == label].mean(0) for label in range(3)])
    assert list(np.flatnonzero(np.ptp(means, axis=0) > 4)) == [0, 1, 2, 3, 4]


def test_a_trend_and_a_season_are_one_cluster_that_moves(kinds):
    means = [np.array([x.mean(0) for x in kinds.KINDS[name](0).batches()]) for name in ("trend", "season")]
    assert np.allclose(means[0].mean(1), np.linspace(0, 8, 300), atol=0.3)
    assert np.allclose(means[1][:50], means[1][50:100], atol=0.8)
    assert np.ptp(means[1]) > 5
    assert kinds.KINDS["trend"](0).K == kinds.KINDS["season"](0).K == 1


def test_mnist_shrinks_with_the_scale_which_is_part_of_the_names(kinds, monkeypatch):
    from curlicue.streams.sources import from_arrays

    x, labels = np.zeros((1000, 4)), np.arange(1000) % 10
    monkeypatch.setattr(kinds, "mnist", lambda: from_arrays("mnist", x, labels, x, labels))
    made = {name: kind(0) for name, kind in kinds.mnist_kinds(0.01).items()}
    rows = {"in-turn": 10_000, "drift": 10_000, "two-at-a-time": 500, "shuffled": 10_000}
    assert {name: stream.rows for name, stream in made.items()} == {f"mnist-{k}@0.01": n for k, n in rows.items()}
    for name, stream in made.items():
        assert sum(map(len, stream.batches())) == stream.rows, name
        assert stream.likelihood == "bernoulli"


# -- scores -----------------------------------------------------------------------------------------------------------


def test_the_examples_of_scores_are_right(module):
    assert doctest.testmod(module("stream_scores")) == (0, 1)


@pytest.mark.parametrize(
    ("births", "changes", "at_first", "expected"),
    [
        ([], [], 1, (0, None, (), 0)),
        ([7], [], 1, (1, None, (), 1)),
        ([5, 6, 7], [], 3, (3, None, (), 1)),  # three clusters from the beginning ask for two births
        ([100], [100], 1, (1, 0.0, (None,), 1)),  # it belongs to what was before
        ([101, 200], [100], 1, (2, 2.0, (1,), 0)),
        ([201], [100], 1, (1, 0.0, (101,), 1)),  # late
        ([130, 330], [100, 300], 1, (2, 1.0, (30, 30), 0)),
        ([320], [100, 300], 1, (1, 0.5, (None, 20), 0)),
    ],
)
def test_births_answer_changes_within_the_window(module, births, changes, at_first, expected):
    found = module("stream_scores").answers(births, changes, 100, at_first)
    assert tuple(vars(found).values()) == expected


def test_agreement_counts_clusters_and_takes_rows_of_none_for_a_cluster_that_does_not_count(module):
    agreement = module("stream_scores").agreement
    labels = np.array([3, 3, 5, 5])
    assert agreement(labels, np.array([9, 9, -1, -1])) == {"ari": 1, "nmi": pytest.approx(1), "purity": 1, "K": 1}
    halves = agreement(labels, np.array([0, 1, 2, 2]))
    assert (halves["purity"], halves["K"]) == (1, 3)
    assert halves["ari"] == pytest.approx(4 / 7)
    assert agreement(labels, np.zeros(4, int))["purity"] == 0.5
    alone = np.zeros(4, int)
    assert agreement(alone, alone)["ari"] == 1
    assert agreement(alone, np.array([0, 0, 1, 1]))["ari"] == 0


# -- systems ----------------------------------------------------------------------------------------------------------


def test_others_get_standardised_rows_in_the_same_batches(kinds, systems):
    stream = kinds.KINDS["batches-of-7"](0)
    scaled = systems.standardised(stream)
    assert [len(x) for x in scaled.batches()] == [len(x) for x in stream.batches()]
    assert np.allclose(whole(scaled).mean(0), 0)
    assert np.allclose(whole(scaled).std(0), 1)
    before, after = stream.x - stream.x[0], scaled.x - scaled.x[0]
    assert np.allclose(before[1:] / after[1:], whole(stream).std(0))


@pytest.mark.parametrize("most", [700, 100, 3])
def test_a_stream_is_thinned_evenly_and_in_its_order(kinds, systems, most):
    stream = kinds.KINDS["short-200"](0)
    thin = systems.thinned(stream, most)
    step = -(-stream.rows // most)
    assert np.array_equal(whole(thin), whole(stream)[::step])
    assert len(whole(thin)) == thin.rows <= most


@pytest.mark.parametrize("system", ["MiniBatchKMeans", "Birch", "HDBSCAN", "BayesianGaussianMixture"])
@pytest.mark.parametrize("rows_of_a_batch", [1, 50])
def test_the_others_find_regimes_that_lie_apart_when_they_are_shown_together(kinds, systems, system, rows_of_a_batch):
    mixture = kinds.Mixture(kinds.blobs(2, 0, 2), kinds.together([2], 200 // rows_of_a_batch), 0, rows_of_a_batch)
    stream = mixture.stream("two blobs", 0)
    found = systems.learnt(stream, system, 0)
    assert len(found.labels) == len(stream.labels)
    assert found.seconds > 0
    known = found.labels >= 0
    assert len({*zip(found.labels[known], stream.labels[known], strict=True)}) >= 2
    for cluster in {*found.labels[known]}:
        assert np.bincount(stream.labels[found.labels == cluster]).max() > 0.95 * (found.labels == cluster).sum()


@pytest.mark.parametrize("system", ["DBSTREAM", "STREAMKMeans"])
def test_rivers_systems_learn_where_river_is_installed(kinds, systems, system):
    pytest.importorskip("river")
    found = systems.learnt(kinds.KINDS["short-500"](0), system, 0)
    assert (found.rows, len(found.labels)) == (2000, 2000)


def test_what_is_long_is_cut_short_for_river_and_its_score_is_of_the_rows_that_were_evaluated(
    module, kinds, systems, monkeypatch
):
    monkeypatch.setattr(systems, "RIVER_ROWS", 100)
    monkeypatch.setattr(systems, "RIVER_EVALUATED", 500)
    stream = kinds.KINDS["short-200"](0)
    learnt = []

    class Oracle:
        learn_one = staticmethod(learnt.append)

        def predict_one(self, row):
            return int(min(nearest, key=lambda k: np.linalg.norm(nearest[k] - list(row.values()))))

    scaled = systems.standardised(stream)
    nearest = {k: scaled.x[scaled.labels == k].mean(0) for k in range(4)}
    row = module("stream_scores").scores(stream, systems.by_river(Oracle(), stream))
    assert len(learnt) == row["rows"] == 100
    assert row["ari"] == 1
    assert row["notes"] == ["saw 100 of 800 rows", "evaluated on 500 of 2,000 rows"]


def test_what_takes_too_long_is_stopped(systems, monkeypatch):
    monkeypatch.setattr(systems, "PATIENCE", -1.0)
    with pytest.raises(systems.TooSlowError, match=r"Stopped after -1 seconds and 3 rows\."):
        systems.timed(lambda x: None, [np.ones((3, 1))] * 2)


def test_a_birth_within_a_long_batch_has_its_place(kinds, systems):
    stream = kinds.regimes(0, (0, 8), 5000, 5000)
    found = systems.learnt(stream, "CURL", 0)
    assert len(found.births) == found.K - 1
    assert found.births
    assert all(birth % 100 == 0 for birth in found.births)
    assert 5000 < found.births[0] < 10_000


# -- the whole --------------------------------------------------------------------------------------------------------


def test_a_run_writes_rows_and_a_table_and_says_that_river_is_missing(benchmark, capsys):
    rows, text = benchmark()
    places = [(row["stream"], row["system"], row["seed"]) for row in rows]
    assert places == [(stream, system, 0) for stream in ("rest", "short") for system in ("Birch", "CURL")]
    for row in rows:
        assert -1 <= row["ari"] <= 1
        assert row["rows_per_second"] > 0
        assert (row["n_components"] is None) == (row["system"] == "Birch")
    assert "| short | 2 | " in text
    assert "- `rest`: at rest: iris" in text
    told = " ".join(capsys.readouterr().out.split())
    assert "river is not installed, so DBSTREAM and STREAMKMeans are left out. Install it: pip install river" in told


def test_what_has_been_measured_is_not_measured_again_unless_the_code_is_another_or_it_is_asked_for(
    benchmark, monkeypatch
):
    script, measured = benchmark.script, []

    def measure(job):
        measured.append((job.stream, job.system, job.seed))
        return {**vars(job), "true_K": 2, "told": "", "window": 0, "error": "ValueError: none"}

    monkeypatch.setattr(script, "measure", measure)
    benchmark(only=("short",))
    assert measured == [("short", "CURL", 0), ("short", "Birch", 0)]
    benchmark(seeds=2)
    assert measured[2:] == [("rest", s, 0) for s in ("CURL", "Birch")] + [
        (stream, s, 1) for stream in ("short", "rest") for s in ("CURL", "Birch")
    ]
    measured.clear()
    benchmark(seeds=2)
    assert not measured
    benchmark(seeds=1, systems=("Birch",), only=("short",), fresh=True)
    assert measured == [("short", "Birch", 0)]
    measured.clear()
    monkeypatch.setattr(script, "code", lambda system: "other" if system == "CURL" else "same")
    rows, _ = benchmark(seeds=1, systems=("CURL",))
    assert measured == [("short", "CURL", 0), ("rest", "CURL", 0)]
    assert {row["code"] for row in rows if row["system"] == "CURL"} == {"other"}  # no mean is of two codes
    assert ("rest", "Birch", 1) in {(row["stream"], row["system"], row["seed"]) for row in rows}


def test_the_code_of_a_system_is_ours_for_curl_alone(systems, monkeypatch, tmp_path):
    def codes():
        systems.code.cache_clear()
        return [systems.code(name) for name in ("CURL", "Birch")]

    before = codes()
    assert before == codes()
    (tmp_path / "other.py").write_text("")
    monkeypatch.setattr(systems.curlicue, "__file__", str(tmp_path / "__init__.py"))
    after = codes()
    systems.code.cache_clear()
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)


def test_a_system_that_fails_has_a_row_that_says_so(benchmark, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("no such thing\nat all")

    monkeypatch.setattr(benchmark.script, "learnt", fail)
    rows, text = benchmark(only=("short",))
    assert [row["error"] for row in rows] == ["ValueError: no such thing"] * 2
    assert "| short | 2 | fails | " in text
    assert "- short, Birch, CURL: ValueError: no such thing" in text
    assert "CURL failed on short, seed 0. ValueError: no such thing" in capsys.readouterr().out


def test_showing_measures_nothing_and_needs_what_was_measured(benchmark, monkeypatch):
    with pytest.raises(SystemExit, match=r"There is no .*streams\.json\. Measure first, without --show\."):
        benchmark(show=True)
    benchmark(only=("rest",))
    monkeypatch.setattr(benchmark.script, "measure", lambda job: pytest.fail("measured"))
    rows, text = benchmark(show=True)
    assert len(rows) == 2
    assert "| rest | 3 | " in text


def test_an_unknown_stream_or_system_is_refused_with_those_there_are(benchmark):
    with pytest.raises(SystemExit, match=r"There is no stream shrot\. Choose from: short, rest\."):
        benchmark(only=("shrot",))
    with pytest.raises(SystemExit, match=r"There is no system DBSTREAM\. Choose from: CURL, MiniBatchKMeans"):
        benchmark(systems=("DBSTREAM",))


@pytest.mark.parametrize("here", [True, False])
def test_streams_of_mnist_are_left_out_with_a_sentence_where_it_is_not_on_the_machine(benchmark, monkeypatch, here):
    said, script = [], benchmark.script
    monkeypatch.setattr(script, "has_mnist", lambda: here)
    assert script.with_mnist(False, 0.1, said.append) == {}
    found = script.with_mnist(True, 0.1, said.append)
    assert ("mnist-drift@0.1" in found) == here
    missing = "MNIST is not on this machine, so its streams are left out. Fetch it: curlicue data mnist"
    assert said == ([] if here else [missing])
    assert script.chosen("stream", ["mnist-drift"], ["mnist-drift@0.1", "trend"]) == ["mnist-drift@0.1"]


# -- the page ---------------------------------------------------------------------------------------------------------


def row(system, ari, K, stream="six-gaussians", true_K=6, seed=0, **more):
    place = {"stream": stream, "system": system, "seed": seed, "true_K": true_K, "told": "six", "window": 10}
    measured = {"ari": ari, "K": K, "n_components": K + 1 if system == "CURL" else None, "rows_per_second": 5.0}
    return {**place, "commit": "abc", "modified": False, "notes": [], **measured, **more}


def line(text, stream="six-gaussians"):
    return next(each for each in text.splitlines() if each.startswith(f"| {stream} "))


def test_a_cell_is_the_mean_over_seeds_the_best_is_bold_and_births_stand_beside(table):
    births = [{"births_per_change": 1.0, "false_births": 1, "delays": [100, None]}, {"delays": [300, 200]}]
    rows = [row("CURL", 0.5 + seed / 5, 4, seed=seed, **births[seed]) for seed in (0, 1)]
    rows += [row("Birch", 0.8, 6), row("HDBSCAN", 0.3, 2)]
    text = table.page({"environment": {}, "rows": rows})
    expected = "| six-gaussians | 6 | 0.60 ± 0.14 (4 of 5) | 1.00 | 1 | 200 | 0.25 | **0.80** (6) | 0.30 (2) |"
    assert line(text) == expected
    assert "| stream | K | CURL | births a change | false | delay, rows | missed | Birch† | HDBSCAN‡ |" in text


def test_the_page_says_where_we_lose_and_by_whom_the_worst_first(table):
    rows = [row("CURL", 0.5, 4), row("Birch", 0.8, 6), row("HDBSCAN", 0.51, 6)]
    rows += [row("CURL", 0.1, 1, "short-200"), row("Birch", 0.9, 4, "short-200")]
    rows += [row("CURL", 0.9, 1, "trend", 2), row("Birch", 0.9, 4, "trend", 2)]
    text = table.page({"environment": {}, "rows": rows})
    lost = text[text.index("## Where we lose") : text.index("## Speed")]
    assert [each for each in lost.splitlines() if each.startswith("- ")] == [
        "- short-200: CURL 0.10; Birch† 0.90",
        "- six-gaussians: CURL 0.50; Birch† 0.80",
    ]


def test_who_is_told_that_there_is_one_cluster_is_not_compared(table):
    rows = [row("CURL", 0.0, 2, "trend", 1), row("Birch", 1.0, 1, "trend", 1), row("HDBSCAN", 0.0, 2, "trend", 1)]
    text = table.page({"environment": {}, "rows": rows})
    assert line(text, "trend") == "| trend | 1 | **0.00** (2 of 3) |  |  |  |  | – | **0.00** (2) |"
    assert "Nowhere, by the mean ARI." in text


def test_of_nothing_measured_there_is_a_page(table):
    assert "Nowhere" in table.page({"environment": {}, "rows": []})
