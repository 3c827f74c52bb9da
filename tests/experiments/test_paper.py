import re
from dataclasses import replace

import pytest

from curlicue.config import PRESETS, AtChange, BeforeBirth, Emission, Every, RunConfig, in_steps
from curlicue.experiments.paper import (
    BOTH_WAYS,
    EXPERIMENTS,
    SETUPS,
    RawPixels,
    Row,
    Untrained,
    fixed,
    growing,
    in_turn,
    rehearsing,
    seeded,
    threshold,
    with_dreams,
)

ROWS = [(name, row) for name, experiment in EXPERIMENTS.items() for row in experiment.rows]


def runs() -> dict[str, RunConfig]:
    return {name: setup for name, setup in SETUPS.items() if isinstance(setup, RunConfig)}


@pytest.mark.parametrize(("name", "row"), ROWS, ids=lambda value: value.name if isinstance(value, Row) else value)
def test_a_row_has_a_setup_or_is_quoted_and_numbers_for_columns_that_are_there(name, row):
    assert row.setup is None or row.setup in SETUPS
    assert row.setup is not None or row.paper
    assert len(row.paper) <= len(EXPERIMENTS[name].columns)


def test_every_setup_is_in_a_table_or_figure():
    assert {setup for experiment in EXPERIMENTS.values() for setup in experiment.setups} == SETUPS.keys()


def test_names_of_setups_can_be_names_of_files():
    assert all(re.fullmatch(r"[a-z0-9.T-]+", name) for name in SETUPS)


@pytest.mark.parametrize(("name", "setup"), runs().items())
def test_all_runs_take_a_hundred_thousand_steps_with_a_preset_of_the_papers_appendix(name, setup):
    assert setup.steps == 100_000
    networks = [replace(PRESETS[preset].model, K=1) for preset in ("mnist", "omniglot", "iid-mnist", "iid-omniglot")]
    assert replace(setup.model, K=1) in [*networks, PRESETS["split-mnist"].model]


def test_the_main_setup_is_the_preset():
    assert SETUPS["mnist-mgr"] == SETUPS[threshold(-200)] == PRESETS["mnist"]
    assert SETUPS["omniglot-mgr"] == PRESETS["omniglot"]


@pytest.mark.parametrize(("data", "T"), [("mnist", 10_000), ("omniglot", 2_000)])
def test_snapshots_are_taken_when_the_name_says(data, T):
    times = {"": Every(T), "-0.1T": Every(T // 10), "-dynamic": BeforeBirth()}
    for kind, snapshots in times.items():
        for replay, labelled in (("mgr", False), ("smgr", True)):
            found = SETUPS[f"{data}-{replay}{kind}"].learner.replay
            assert (found.snapshots, found.labelled) == (snapshots, labelled)
    assert SETUPS[f"{data}-no-replay"].learner.replay is None
    assert SETUPS[f"{data}-mgr-change"].learner.replay.snapshots == AtChange()
    assert SETUPS[f"benchmark-{data}-in-turn"].learner.replay.snapshots == BeforeBirth()
    assert SETUPS[f"benchmark-{data}-in-turn-change"].learner.replay.snapshots == AtChange()


def test_variants_differ_from_what_they_are_variants_of_in_one_thing():
    mnist = PRESETS["mnist"]
    for preset in (mnist, PRESETS["omniglot"]):
        assert rehearsing(preset, preset.learner.replay.snapshots) == preset
    assert growing(mnist, mnist.learner.expansion.c_new) == mnist
    assert growing(PRESETS["iid-omniglot"], -200) == PRESETS["iid-omniglot"]
    grown = fixed(mnist, 25)
    assert (grown.model.K, grown.learner.expansion, grown.learner.tau) == (25, None, 0.1)
    assert replace(grown, model=mnist.model, learner=mnist.learner) == mnist
    shown = in_turn(PRESETS["iid-mnist"], BeforeBirth())
    assert shown.learner.replay.snapshots == BeforeBirth()
    assert shown.learner.expansion == PRESETS["iid-mnist"].learner.expansion
    assert shown.sampled_knn


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_what_is_run_with_rounded_and_with_sampled_dreams_is_otherwise_the_same(name):
    rounded, sampled = (SETUPS[with_dreams(name, kind)] for kind in ("rounded", "sampled"))
    assert (rounded.learner.replay.emission, sampled.learner.replay.emission) == (Emission.THRESHOLD, Emission.SAMPLE)
    replay = replace(sampled.learner.replay, emission=Emission.THRESHOLD)
    assert replace(sampled, learner=replace(sampled.learner, replay=replay)) == rounded


@pytest.mark.parametrize(("name", "other"), [("mnist-mgr", "sampled"), ("omniglot-mgr", "rounded")])
def test_a_setup_with_dreams_of_another_kind_than_its_own_is_named_after_them(name, other):
    own = {"sampled": "rounded", "rounded": "sampled"}[other]
    assert (with_dreams(name, own), with_dreams(name, other)) == (name, f"{name}-{other}")
    assert SETUPS[f"{name}-{other}"] != SETUPS[name]


def test_where_the_name_does_not_say_it_dreams_are_rounded_on_mnist_and_sampled_on_omniglot_and_split_mnist():
    dreaming = {name: setup for name, setup in runs().items() if setup.learner.replay is not None}
    plain = {name: setup for name, setup in dreaming.items() if not name.endswith(("-rounded", "-sampled"))}
    found = {(setup.dataset, setup.learner.replay.emission) for setup in plain.values()}
    assert found == {
        ("mnist", Emission.THRESHOLD),
        ("omniglot", Emission.SAMPLE),
        ("mnist-60k", Emission.SAMPLE),
    }
    assert [name for name, setup in plain.items() if setup.dataset == "mnist-60k"] == ["split-mnist"]


def test_a_share_of_the_steps_is_at_least_one():
    for scale, steps in ((1.0, 100_000), (0.1, 10_000), (1e-9, 1)):
        assert seeded(SETUPS["mnist-mgr"], 3, scale) == replace(in_steps(SETUPS["mnist-mgr"], steps), seed=3)


def test_a_seed_changes_the_seed_alone():
    assert replace(seeded(SETUPS["mnist-mgr"], 3), seed=0) == SETUPS["mnist-mgr"]
    assert seeded(SETUPS["random-n-z-8"], 3) == Untrained("mnist", SETUPS["random-n-z-8"].model, seed=3)
    assert seeded(RawPixels("mnist"), 3) == RawPixels("mnist")


@pytest.mark.parametrize(
    ("experiment", "row", "column", "mean", "sd"),
    [
        ("table-mgr-mnist", "MGR (fixed, T)", "cluster accuracy, %", 77.74, 1.37),
        ("table-mgr-mnist", "CURL (no MGR)", "K", 55.80, 1.94),
        ("table-mgr-omniglot", "SMGR (dyn)", "10-NN error, %", 84.44, 4.10),
        ("table-drift-mnist", "Cont. w/ MGR (dyn)", "cluster accuracy, %", 64.93, 2.09),
        ("table-drift-omniglot", "Cont. w/ MGR (fixed)", "10-NN error, %", 75.80, 1.19),
        ("table-split-mnist", "CURL", "incremental class, %", 92.59, 0.66),
        ("table-split-mnist", "iCARL", "incremental class, %", 94.57, 0.11),
        ("table-iid-mnist", "CURL w/ MGR (seq)", "5-NN error, %", 4.35, 0.32),
        ("table-iid-omniglot", "Raw pixels", "10-NN error, %", 70.10, None),
        ("table-random", "n_z = 1568", "10-NN error, %", 11.09, 0.41),
    ],
)
def test_numbers_are_the_papers(experiment, row, column, mean, sd):
    columns = [each.name for each in EXPERIMENTS[experiment].columns]
    found = next(each for each in EXPERIMENTS[experiment].rows if each.name == row).paper
    assert found[columns.index(column)] == (mean, sd)


def test_what_the_paper_does_not_give_is_not_there():
    quoted = next(row for row in EXPERIMENTS["table-split-mnist"].rows if row.name == "iCARL")
    assert [number is None for number in quoted.paper] == [True, False]
