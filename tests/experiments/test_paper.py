import re
from dataclasses import replace

import pytest

from changed import changed
from curlicue.config.model import Emission
from curlicue.experiments.paper import EXPERIMENTS, Row
from curlicue.experiments.presets import PRESETS
from curlicue.experiments.settings import RunConfig, in_steps
from curlicue.experiments.setups import (
    BOTH_WAYS,
    SETUPS,
    RawPixels,
    Untrained,
    fixed,
    growing,
    in_turn,
    rehearsing,
    seeded,
    threshold,
    with_emission,
)
from curlicue.memory.snapshot import Snapshot

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
    names = ("mnist", "omniglot", "iid-mnist", "iid-omniglot", "split-mnist")
    assert replace(setup.system.model, K=1) in [PRESETS[preset].system.model for preset in names]


def test_the_main_setup_is_the_preset():
    assert SETUPS["mnist-mgr"] == SETUPS[threshold(-200)] == PRESETS["mnist"].resolved(10)
    assert SETUPS["omniglot-mgr"] == PRESETS["omniglot"].resolved(50)


@pytest.mark.parametrize(("data", "T"), [("mnist", 10_000), ("omniglot", 2_000)])
def test_snapshots_are_taken_when_the_name_says(data, T):
    times = {"": T, "-0.1T": T // 10, "-dynamic": "dynamic"}
    for kind, snapshots in times.items():
        for replay, labelled in (("mgr", False), ("smgr", True)):
            found = memory(f"{data}-{replay}{kind}")
            assert (found.snapshots, found.labelled) == (snapshots, labelled)
    assert memory(f"{data}-no-replay") is None
    assert memory(f"{data}-mgr-change").snapshots == "change"
    assert memory(f"benchmark-{data}-in-turn").snapshots == "dynamic"
    assert memory(f"benchmark-{data}-in-turn-change").snapshots == "change"


def memory(setup: str) -> Snapshot | None:
    return SETUPS[setup].system.learner.memory


def test_variants_differ_from_what_they_are_variants_of_in_one_thing():
    mnist = PRESETS["mnist"]
    curl = mnist.system
    for preset in (mnist, PRESETS["omniglot"]):
        assert rehearsing(preset, preset.system.learner.memory.snapshots) == preset
    assert growing(mnist, curl.learner.growth.c_new) == mnist
    assert growing(PRESETS["iid-omniglot"], -200) == PRESETS["iid-omniglot"]
    grown = fixed(mnist, 25)
    assert (grown.system.model.K, grown.system.learner.growth, grown.system.learner.tau) == (25, None, 0.1)
    assert (
        replace(grown, system=replace(grown.system, model=replace(grown.system.model, K=1), learner=curl.learner))
        == mnist
    )
    assert replace(grown.system.learner, growth=curl.learner.growth, tau=curl.learner.tau) == curl.learner
    shown = in_turn(PRESETS["iid-mnist"], "dynamic")
    assert shown.system.learner.memory.snapshots == "dynamic"
    assert shown.system.learner.growth == PRESETS["iid-mnist"].system.learner.growth
    assert shown.sampled_knn


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_what_is_run_with_rounded_and_with_drawn_samples_is_otherwise_the_same(name):
    rounded, sampled = (SETUPS[with_emission(name, kind)] for kind in ("rounded", "sampled"))
    emissions = [each.system.learner.memory.emission for each in (rounded, sampled)]
    assert emissions == [Emission.THRESHOLD, Emission.SAMPLE]
    assert changed(sampled, "system.learner.memory", emission=Emission.THRESHOLD) == rounded


@pytest.mark.parametrize(("name", "other"), [("mnist-mgr", "sampled"), ("omniglot-mgr", "rounded")])
def test_a_setup_that_generates_samples_of_another_kind_than_its_own_is_named_after_them(name, other):
    own = {"sampled": "rounded", "rounded": "sampled"}[other]
    assert (with_emission(name, own), with_emission(name, other)) == (name, f"{name}-{other}")
    assert SETUPS[f"{name}-{other}"] != SETUPS[name]


def test_where_the_name_does_not_say_it_samples_are_rounded_on_mnist_and_drawn_on_omniglot_and_split_mnist():
    rehearsed = {name: setup for name, setup in runs().items() if memory(name) is not None}
    plain = {name: setup for name, setup in rehearsed.items() if not name.endswith(("-rounded", "-sampled"))}
    found = {(setup.dataset, memory(name).emission) for name, setup in plain.items()}
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
