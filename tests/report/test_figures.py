import numpy as np
import pytest

from curlicue.report import figures


def result(seed: int = 0, scenario: str = "Sequential", K: int = 6) -> dict:
    rng = np.random.default_rng(seed)
    t = [100, 200, 300, 400]
    accuracy = rng.uniform(size=len(t)).tolist()
    return {
        "config": {"steps": 400, "seed": seed, "scenario": {"type": scenario, "at_once": 1}},
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
    assert figures.changes(result(scenario="Iid")) == [0, 400]
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
    figures.thresholds([accuracy, error, K], {"s": {-100.0: [result(K=9)], -400.0: [result(K=2), result(K=4)]}})
    assert list(K.lines[0].get_xdata()) == [-400.0, -100.0]
    assert list(K.lines[0].get_ydata()) == [3.0, 9.0]
    assert list(error.lines[0].get_ydata()) == [10.0, 10.0]


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
