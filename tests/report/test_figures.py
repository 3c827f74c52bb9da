from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from curlicue.config.codec import to_json
from curlicue.config.scenario import Iid, Scenario, Sequential
from curlicue.experiments.settings import RunConfig
from curlicue.records.directory import RunDirectory
from curlicue.report import figures


def result(seed: int = 0, scenario: Scenario | None = None, K: int = 6) -> dict:
    rng = np.random.default_rng(seed)
    t = [100, 200, 300, 400]
    accuracy = rng.uniform(size=len(t)).tolist()
    return {
        "config": to_json(RunConfig(steps=400, seed=seed, scenario=scenario or Sequential())),
        "result": {
            "classes": ["a", "b", "<c>"],
            "confusion": rng.integers(0, 50, size=(3, K)).tolist(),
            "cluster_accuracy": accuracy[-1],
            "knn_error": {"10": 0.1},
            "K": K,
        },
        "metrics": [
            {"t": step, "cluster_accuracy": a, "class_accuracy": [a, None, 0.5]}
            for step, a in zip(t, accuracy, strict=True)
        ],
        "births": [{"t": step} for step in t[: seed + 1]],
        "posterior": {"t": t, "q_y": rng.dirichlet(np.ones(K), size=len(t)).tolist()},
    }


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_a_class_is_confused_with_those_that_own_the_components_it_lies_in():
    told = result()
    told["result"]["confusion"] = [[8, 0, 2, 0], [1, 5, 0, 0], [0, 4, 3, 0]]
    expected = [[0.8, 0, 0.2], [1 / 6, 5 / 6, 0], [0, 4 / 7, 3 / 7]]
    np.testing.assert_allclose(figures.class_confusion(told), expected)


def test_a_class_that_is_not_there_is_confused_with_none():
    told = result()
    told["result"]["confusion"] = [[8, 0], [0, 0], [0, 3]]
    np.testing.assert_allclose(figures.class_confusion(told), [[1, 0, 0], [0, 0, 0], [0, 0, 1]])


def test_curves_are_means_over_seeds(axes):
    runs = [result(0), result(1)]
    figures.accuracy_over_time(axes, {"both": runs, "one": runs[:1]})
    both, one = (line.get_ydata() for line in axes.lines if line.get_label().startswith(("both", "one")))
    curves = np.array([[100 * line["cluster_accuracy"] for line in run["metrics"]] for run in runs])
    np.testing.assert_allclose(both, curves.mean(0))
    np.testing.assert_allclose(one, curves[0])


@pytest.mark.parametrize("more", [{}, {"none": [result() | {"births": []}], "two": [result(1)]}])
def test_births_are_ticks_in_a_line_for_the_first_seed_of_each_variant(axes, more):
    figures.births(axes, {"one": [result(0), result(3)], **more})
    lines = [(line.get_lineoffset(), list(line.get_positions())) for line in axes.collections]
    assert lines == [(0, [100]), (1, []), (2, [100, 200])][: 1 + len(more)]
    assert axes.get_ylim() == (len(lines) - 0.5, -0.5)


def test_changes_of_class_are_marked_where_the_stream_has_any(axes):
    assert figures.changes(result()) == pytest.approx([0, 400 / 3, 800 / 3, 400])
    assert figures.changes(result(scenario=Iid())) == [0, 400]
    figures.mark_changes(axes, result())
    assert len(axes.lines) == 2


def test_the_most_used_components_are_shown(axes):
    told = result()
    figures.posterior(axes, told, most=2)
    total = np.array(told["posterior"]["q_y"]).sum(0)
    shown = [line.get_label() for line in axes.lines if str(line.get_label()).startswith("component")]
    assert shown == [f"component {k}" for k in np.argsort(-total)[:2]]


def test_thresholds_are_drawn_in_their_order():
    from matplotlib.figure import Figure

    accuracy, error, K = Figure().subplots(1, 3)
    runs = {"s": {-100.0: [result(K=9)], -400.0: [result(K=2), result(K=4)]}}
    figures.thresholds([accuracy, error, K], runs, {"s": [result(K=25)], "nobody": []})
    births, none = K.lines
    assert list(births.get_xdata()) == [-400.0, -100.0]
    assert list(births.get_ydata()) == [3.0, 9.0]
    assert list(error.lines[0].get_ydata()) == [10.0, 10.0]
    assert list(none.get_ydata()) == [25, 25]
    (bars,) = K.collections
    heights = [bar[:, 1].tolist() for bar in bars.get_segments()]
    assert heights == [pytest.approx([3 - 2**0.5, 3 + 2**0.5]), [9, 9]]


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_a_figure_is_the_same_file_each_time(tmp_path, ending):
    for name in ("a", "b"):
        with figures.figure(tmp_path / "new" / f"{name}{ending}", 6, 2) as drawn:
            left, middle, right = drawn.subplots(1, 3)
            figures.class_accuracy(left, result())
            figures.confusion(middle, result())
            figures.accuracy_over_time(right, {"a": [result()]})
    once, again = ((tmp_path / "new" / f"{name}{ending}").read_bytes() for name in ("a", "b"))
    assert len(once) > 1000
    if ending == ".png":
        assert once == again


# -- figures of a run directory -----------------------------------------------------------------------------------

STEPS = [100, 200, 300, 400]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """Four views of twelve samples of 2x3 pixels; a component is born between any two."""
    made = RunDirectory.create(tmp_path / "run", to_json(RunConfig(steps=STEPS[-1])), {})
    rng = np.random.default_rng(0)
    made.write("data", {"name": "toy", "classes": ["a", "b", "<c>"], "shape": [2, 3]})
    made.write_view("rows", {"x": rng.random((12, 6)), "labels": np.arange(12) % 3})
    for K, t in enumerate(STEPS, start=1):
        generated = np.full((K, 8, 6), 0.1) * np.arange(1, K + 1)[:, None, None]
        made.write_view(t, {"generated": generated, "z": rng.normal(size=(12, 4)), "y": np.arange(12) % K})
    for component in range(1, 4):
        made.write_birth(component, np.repeat(component / 4 + np.arange(30) / 400, 6).reshape(30, 6).astype(np.float32))
        line = {"event": "ComponentBorn", "t": 100 * component, "component": component, "parent": component - 1}
        made.append("events", line)
    return made


def pixels(axes) -> np.ndarray:
    return np.asarray(axes.images[0].get_array().filled(np.nan))


def names(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_generated_samples_stand_in_a_row_for_each_view_and_a_column_for_each_component(axes, directory):
    figures.generated(axes, directory)
    cells = pixels(axes).reshape(4, 3, 4, 4)[:, 0, :, 0]  # the first pixel of each, gaps of one between them
    expected = [[0.1 * (k + 1) if k <= view else np.nan for k in range(4)] for view in range(4)]
    np.testing.assert_allclose(cells, expected, rtol=1e-3)
    assert names(axes) == ["100", "200", "300", "400"]


def test_d_new_shows_samples_of_each_birth_from_the_first_to_the_last(axes, directory):
    figures.d_new(axes, directory, most=5)
    places = np.array([0, 7, 14, 22, 29]) / 400
    np.testing.assert_allclose(pixels(axes)[::3, ::4], [0.25 + places, 0.5 + places, 0.75 + places], rtol=1e-5)
    assert names(axes) == ["1 from 0, step 100", "2 from 1, step 200", "3 from 2, step 300"]


def test_a_map_shows_samples_of_the_classes_so_far_by_class_and_by_component(directory):
    from matplotlib.figure import Figure

    grid = Figure().subplots(2, 2)
    figures.latent_maps(grid, directory, [200, 400])
    for row in range(2):
        for column, (classes, components) in enumerate(((2, 2), (3, 4))):
            lines = grid[row][column].lines
            assert len(lines) == (components if row else classes)
            assert sum(len(line.get_xdata()) for line in lines) == 4 * classes
    assert [text.get_text() for text in grid[1][1].texts] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("kept", "shown"), [([400], [400]), ([100, 200, 400], [100, 400]), (STEPS, [200, 400])])
def test_the_printed_map_shows_every_other_view_and_the_last(directory, tmp_path, monkeypatch, kept, shown):
    for t in set(STEPS) - set(kept):
        (directory.path / "views" / f"{t:08d}.npz").unlink()
    drawn = []
    monkeypatch.setattr(figures, "latent_maps", lambda axes, directory, steps, projector: drawn.extend(steps))
    figures.write_life(directory, tmp_path / "figures", "")
    assert drawn == shown


def test_a_note_stands_in_every_figure_of_a_runs_life(directory, tmp_path):
    written = figures.write_life(directory, tmp_path, "life-", "a tenth of the steps")
    assert written == ["life-latent", "life-dreams", "life-d-new"]
    for name in written:
        assert "<!-- a tenth of the steps -->" in (tmp_path / f"{name}.svg").read_text()


def test_a_figure_of_a_runs_life_keeps_its_seed_and_the_commit_it_ended_with(directory, tmp_path):
    directory.write("environment", {"commit": "a" * 40, "resumed": [{"t": 9, "commit": "b" * 40}]})
    figures.write_life(directory, tmp_path, "")
    with Image.open(tmp_path / "dreams.png") as picture:
        assert picture.info["Description"] == f"seed {directory.read('config')['seed']}, commit bbbbbbbbbb"


def test_every_figure_of_a_run_is_written_for_screen_and_print(directory, tmp_path):
    written = figures.write(directory, result(), tmp_path / "figures")
    assert written == ["accuracy", "classes", "confusion", "posterior", "latent", "dreams", "d-new"]
    found = {path.name for path in (tmp_path / "figures").iterdir()}
    assert found == {f"{name}.{ending}" for name in written for ending in ("png", "svg", "pdf")}


def test_samples_that_are_no_images_are_not_drawn_as_such(directory, tmp_path):
    directory.write("data", {"name": "toy", "classes": ["a", "b", "c"], "shape": [6]})
    written = figures.write(directory, result(), tmp_path / "figures")
    assert written == ["accuracy", "classes", "confusion", "posterior", "latent"]


def with_threshold(c_new: float | None, seed: int = 0) -> dict:
    told = result(seed)
    growth = None if c_new is None else {"type": "Threshold", "c_new": c_new}
    return told | {"config": told["config"] | {"system": {"type": "Curl", "learner": {"growth": growth}}}}


@pytest.mark.parametrize(
    ("thresholds", "names"), [((-20.0, None), []), ((-20.0, -20.0), []), ((-20.0, -9.5), ["c-new"])]
)
def test_runs_are_drawn_together_and_against_the_threshold_where_it_differs(tmp_path, thresholds, names):
    groups = {f"group {place}": [with_threshold(c_new)] for place, c_new in enumerate(thresholds)}
    assert figures.write_comparison(groups, tmp_path) == ["variants", "posteriors", *names]
    assert len(list(tmp_path.iterdir())) == 3 * (2 + len(names))


def test_more_groups_than_colours_and_runs_of_any_length_are_all_drawn(axes):
    runs = {f"group {n}": [result(n)] for n in range(9)}
    runs["group 8"][0]["config"]["steps"] = 900
    figures.accuracy_over_time(axes, runs)
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 9
    assert axes.get_xlim() == (0, 900)  # and no changes of class are marked, for they differ


@pytest.mark.filterwarnings("error")
def test_many_classes_components_and_births_fit_on_paper(directory, tmp_path):
    C, K = 50, 100
    told = result(K=K)
    told["result"]["classes"] = [f"Alphabet of the people number ${n}" for n in range(C)]
    told["result"]["confusion"] = np.random.default_rng(0).integers(0, 9, size=(C, K)).tolist()
    for line in told["metrics"]:
        line["class_accuracy"] = [0.5] * C
    directory.write_view(400, {"generated": np.zeros((K, 8, 6)), "z": np.ones((12, 4)), "y": np.arange(12)})
    for component in range(4, K):
        directory.write_birth(component, np.ones((30, 6), np.float32))
        line = {"event": "ComponentBorn", "t": 400, "component": component, "parent": 0}
        directory.append("events", line)
    assert "d-new" in figures.write(directory, told, tmp_path / "figures")
