from dataclasses import replace

import pytest

from curlicue.experiments.paper import EXPERIMENTS, Column, Experiment, Row
from curlicue.experiments.tables import Cell, header, lines, shown

UP = Column("accuracy, %", "accuracy", True)
DOWN = Column("error, %", "knn_error.10", False)
COUNT = Column("K", "K", None, percent=False)
TOY = Experiment(
    "toy",
    "nowhere",
    (COUNT, UP, DOWN),
    (
        Row("ours", "toy", ((5.0, 1.0), (80.0, 2.0), (7.5, None))),
        Row("theirs", None, ((51, None), (90.0, 1.0))),
        Row("later", "never", (None, None, (3.0, 0.25))),
    ),
)


def result(accuracy: float, error: float = 0.05, K: int = 4, minutes: float = 3.0) -> dict:
    return {"result": {"K": K, "accuracy": accuracy, "knn_error": {"10": error}}, "timing": {"minutes": minutes}}


def test_a_line_has_ours_beside_the_papers():
    found = {"toy": [result(0.79, K=4, minutes=3), result(0.81, 0.07, K=6, minutes=6)]}
    assert header(TOY) == ["", "seeds", "K", "paper", "accuracy, %", "paper", "error, %", "paper", "minutes"]
    assert lines(TOY, lambda name: found.get(name, ())) == [
        ["ours", "2", "5.00 ± 1.41", "5.00 ± 1.00", "80.00 ± 1.41", "80.00 ± 2.00", "6.00 ± 1.41", "7.50", "4.5"],
        ["theirs", "–", "", "51", "", "90.00 ± 1.00", "", "", ""],
        ["later", "not run", "", "", "", "", "", "3.00 ± 0.25", ""],
    ]


@pytest.mark.parametrize(
    ("column", "values", "paper", "short"),
    [
        (UP, (75.9,), (80, 2), True),
        (UP, (76.1,), (80, 2), False),
        (UP, (99.0,), (80, 2), False),
        (DOWN, (84.1,), (80, 2), True),
        (DOWN, (83.9,), (80, 2), False),
        (DOWN, (10.0,), (80, 2), False),
        (DOWN, (4.99,), (4.35, 0.32), False),  # two, not more: 4.99 - 4.35 > 0.64 in binary
        (UP, (70.0, 81.0), (80, 2), True),
        (UP, (1.0,), (80, None), False),
        (UP, (1.0,), None, False),
        (UP, (), (80, 2), False),
        (COUNT, (500.0,), (5, 1), False),
    ],
)
def test_what_is_worse_by_more_than_two_deviations_is_marked(column, values, paper, short):
    cell = Cell(column, values, paper)
    assert cell.short is short
    assert cell.ours().endswith("▼") is short


def test_a_column_without_numbers_of_the_papers_stands_alone():
    alone = replace(TOY, rows=tuple(replace(row, paper=row.paper[:1]) for row in TOY.rows))
    assert header(alone) == ["", "seeds", "K", "paper", "accuracy, %", "error, %", "minutes"]
    found = {"toy": [result(0.79)]}
    first, *_ = lines(alone, lambda name: found.get(name, ()))
    assert first == ["ours", "1", "4", "5.00 ± 1.00", "79.00", "5.00", "3.0"]


def test_one_seed_has_no_deviation():
    assert shown([7.0]) == "7.00"
    assert shown([7.0, 9.0]) == "8.00 ± 1.41"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_can_be_shown_before_anything_was_run(name):
    experiment = EXPERIMENTS[name]
    rows = lines(experiment, lambda name: ())
    assert [len(row) for row in rows] == [len(header(experiment))] * len(experiment.rows)
