import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from curlicue.errors import RunError
from curlicue.records.directory import RunDirectory
from curlicue.report import charts, latent
from curlicue.report import page as page_module
from curlicue.report.html import page, write_page
from curlicue.report.latent import Projector
from curlicue.report.pictures import Pictures
from curlicue.report.run_data import grouped, read
from written import CLASSES, STEPS, write_run, write_steps, write_view

EVERY = [
    "headline",
    "curves",
    "classes",
    "confusion",
    "posterior",
    "latent",
    "generated",
    "components",
    "births",
    "made",
]


class Reader(HTMLParser):
    """What a browser would make of a page: tags, text, images and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts, self.inside = "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(autouse=True)
def small_library(monkeypatch):
    """The charts' library is four megabytes and needs no test."""
    monkeypatch.setattr(page_module, "plotly_js", lambda: "/* plotly */")


@pytest.fixture
def quick(monkeypatch):
    """No t-SNE."""
    monkeypatch.setattr(latent, "_project", lambda z, before: z[:, :2])


def made(*paths: Path) -> page_module.Page:
    return page([read(path) for path in paths], Projector())


def reading(*paths: Path) -> Reader:
    return Reader(made(*paths).html())


# -- one run ----------------------------------------------------------------------------------------------------------


def test_a_whole_run_has_every_section(make_run):
    assert list(made(make_run()).sections) == EVERY


def test_the_headline_says_what_came_out_in_plain_words(make_run, quick):
    text = reading(make_run()).text
    for words in (
        "75.0 %",
        "12.5 %",
        "−20.5",
        "1.5",
        "K, of which 4 are used",
        "one class after the other",
        "400 steps",
    ):
        assert words in text
    assert "has not finished" not in text


def test_a_page_is_one_file_that_asks_for_nothing(make_run, quick):
    page = reading(make_run())
    assert not page.all("iframe")
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    assert all("src" not in script for script in page.all("script"))
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert all(link["href"].startswith("#") for link in page.all("a"))
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'none'" in policy


def test_every_picture_says_what_it_shows(make_run, quick):
    page = reading(make_run())
    assert all(image["alt"] for image in page.all("img"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.all("svg"))
    assert all(box.get("aria-label") for box in page.all("div") if box.get("class") == "chart")


def test_no_name_is_taken_for_markup(make_run, quick):
    path = make_run("<b>run")
    page = reading(path)
    assert all(name in page.text for name in CLASSES[:3])
    assert "<b>run" in page.text
    assert "four <i>" in page.text
    assert len(page.scripts) == 3
    assert not any("alert" in script for script in page.scripts[1:])


def test_no_text_ends_the_script_it_is_in(make_run, quick):
    page = reading(make_run())
    figures = json.loads(page.scripts[0])
    assert "<" not in page.scripts[0]
    assert figures["latent"]["latent"]["classes"][2].startswith("&lt;script&gt;alert(1)&lt;/script")


def strings(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for inner in value.values() for text in strings(inner)]
        case list() | tuple():
            return [text for inner in value for text in strings(inner)]
    return []


def test_chart_labels_hold_no_markup_but_ours(make_run, quick):
    ours = re.compile(r"</?b>|<extra></extra>")
    for figure in made(make_run()).figures.values():
        assert not [text for text in strings(figure) if "<" in ours.sub("", text)]


def test_a_label_is_short_and_whole():
    assert charts.label("<b>", 10) == "&lt;b&gt;"
    assert charts.label("a long <name>", 9) == "a long &lt;…"


def test_an_unfinished_run_has_a_page_that_says_so(make_run, quick):
    page = made(make_run(until=200))
    text = Reader(page.html()).text
    assert list(page.sections) == EVERY
    assert "The run has not finished: step 200 of 400." in text
    assert "Minutes" not in text
    assert "10-NN" not in text
    assert "40.0 %" in text  # the latest accuracy


def test_a_run_that_has_just_begun_has_a_page(make_run, quick):
    path = make_run(until=0)
    assert list(made(path).sections) == ["headline", "components", "made"]
    shutil.rmtree(path / "views")
    (path / "data.json").unlink()
    (path / "environment.json").unlink()
    assert list(made(path).sections) == ["headline", "components", "made"]


def test_without_labels_everything_that_needs_none_is_there(make_run, quick):
    page = made(make_run(labelled=False))
    assert list(page.sections) == [name for name in EVERY if name not in ("classes", "confusion")]
    assert 'data-colour="class"' not in page.sections["latent"]
    assert "labels" not in page.figures["latent"]["latent"]
    assert "accuracy" not in Reader(page.html()).text
    titles = [note["text"] for note in page.figures["curves"]["layout"]["annotations"]]
    assert titles == ["<b>Bound, nats</b>", "<b>Components K</b>"]


@pytest.mark.parametrize("until", [200, STEPS])
@pytest.mark.parametrize("shape", [(1,), (5,), (300,)])
def test_what_is_no_image_is_drawn_as_lines(make_run, quick, shape, until):
    page = made(make_run(shape=shape, until=until))
    assert "<img" not in "".join(page.sections.values())
    assert page.sections["generated"].count('<svg class="lines"') == sum(range(1, until // 100 + 1))
    assert "sprite" not in page.figures["latent"]["latent"]


def test_images_in_colour_are_images(make_run, quick):
    assert "<img" in made(make_run(shape=(4, 4, 3))).sections["generated"]


def test_the_life_of_each_component_is_told(make_run, quick):
    lives = read(make_run()).lives
    assert [(life.component, life.born, life.parent) for life in lives] == [
        (0, 0, None),
        (1, 101, 0),
        (2, 201, 0),
        (3, 301, 0),
    ]
    assert sum(life.share for life in lives) == pytest.approx(1)
    assert lives[0].share == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert [life.label for life in lives] == [0, 1, 2, 3]


def test_the_nearest_samples_are_those_of_the_component_by_distance(make_run):
    run = read(make_run())
    view = run.last_view
    rows = run.nearest(2, 3)
    far = np.linalg.norm(view["z"].astype(float) - view["centres"][2].astype(float), axis=1)
    assert (view["y"][rows] == 2).all()
    assert (np.diff(far[rows]) >= 0).all()
    assert far[rows].max() <= far[np.setdiff1d(np.flatnonzero(view["y"] == 2), rows)].min()


def bare(path: Path) -> Path:
    """The views of a system that neither generates samples nor has centres."""
    run = RunDirectory.open(path)
    for step in run.view_steps:
        run.write_view(step, {name: array for name, array in run.view(step).items() if name in ("z", "y")})
    return path


def test_without_centres_the_nearest_samples_are_those_nearest_to_the_mean_of_their_component(make_run):
    run = read(bare(make_run()))
    z = run.last_view["z"].astype(float)
    rows = run.nearest(2, 3)
    far = np.linalg.norm(z - z[run.last_view["y"] == 2].mean(0), axis=1)
    assert rows.tolist() == sorted(np.flatnonzero(run.last_view["y"] == 2), key=lambda row: far[row])[:3]


def test_a_system_that_generates_nothing_has_a_page_without_generated_samples(make_run, quick):
    page = made(bare(make_run(until=300)))
    assert list(page.sections) == [name for name in EVERY if name != "generated"]
    assert "generates" not in page.sections["components"]
    assert read(make_run("other", until=300)).confusion.shape == (4, 3)


def test_the_components_at_the_start_are_those_before_the_first_birth_or_in_the_first_line(make_run):
    run = read(make_run(until=100))
    assert (run.births, run.first_K, run.K) == ([], 1, 1)
    path = make_run("three", until=0)
    change(path, "config", system={"type": "Curl", "model": {"K": 3}})
    assert read(path).first_K == 3  # nothing is told yet
    log_line = {"event": "StepsTaken", "t": 99, "K": 10, "n": 100, "real": {"bound": -1.0, "q_y": []}}
    RunDirectory.open(path).append("events", log_line)
    assert (read(path).first_K, read(path).K, read(path).usage) == (10, 10, None)
    born = {"event": "ComponentBorn", "t": 100, "component": 10, "parent": 0}
    RunDirectory.open(path).append("events", born)
    assert (read(path).first_K, read(path).K) == (10, 11)


def test_before_the_end_confusion_is_that_of_the_last_view(make_run):
    run = read(make_run(until=300))
    assert run.confusion.sum() == len(run.x)
    assert run.confusion.shape == (4, 3)


def test_components_of_a_class_stand_together(make_run):
    figure = charts.confusion(read(make_run()))
    shares = np.array(figure["data"][0]["z"])
    owners = shares.argmax(0)
    assert (np.diff(owners) >= 0).all()
    np.testing.assert_allclose(shares.sum(1), 100, atol=1)


def test_births_and_snapshots_stand_on_the_axis_of_the_curves(make_run):
    shapes = charts.curves(read(make_run()))["layout"]["shapes"]
    where = {name: [line["x0"] for line in shapes if line["name"] == name] for name in {s["name"] for s in shapes}}
    assert where == {"births": [101, 201, 301], "snapshots": [100, 200, 300], "class changes": [100, 200, 300]}
    assert sum(line["showlegend"] for line in shapes) == 3


# -- pictures and places ----------------------------------------------------------------------------------------------


def test_a_sprite_holds_the_samples_row_by_row():
    import base64
    import io

    from PIL import Image

    x = np.linspace(0, 1, 3 * 6).reshape(3, 6)
    address = Pictures((2, 3), 0.0, 1.0).sprite(x, columns=2, gap=1)
    image = Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))
    assert image.size == (2 * 3 + 1, 2 * 2 + 1)
    grey = np.array(image)
    np.testing.assert_allclose(grey[:2, 4:] / 255, x[1].reshape(2, 3), atol=0.01)
    np.testing.assert_allclose(grey[3:, :3] / 255, x[2].reshape(2, 3), atol=0.01)
    assert (grey[:, 3] == image.info["transparency"]).all()
    assert (grey[3:, 4:] == image.info["transparency"]).all()  # no fourth sample


def test_a_view_is_projected_once_and_from_the_one_before(monkeypatch):
    calls = []
    monkeypatch.setattr(latent, "_project", lambda z, before: calls.append(before) or z[:, :2])
    projector, rng = Projector(), np.random.default_rng(0)
    views = [rng.normal(size=(9, 3)) for _ in range(3)]
    first = projector.project(views[:2])
    again = projector.project(views)
    assert len(calls) == 3
    assert calls[0] is None
    assert calls[1] is first[0]
    assert calls[2] is again[1] is first[1]
    projector.project(views[1:])  # another past, another place
    assert len(calls) == 5


def test_of_many_views_about_ten_are_projected_and_they_stay_the_same_as_views_are_added():
    views = [20 * n for n in range(1, 51)]
    tenths = [100 * n for n in range(1, 11)]
    assert latent.moments(views, 1000) == tenths
    for n in range(1, 51):
        assert latent.moments(views[:n], 1000) == [*(t for t in tenths if t < 20 * n), 20 * n]
    assert latent.moments([1, 2, 3], 3) == [1, 2, 3]
    assert latent.moments([], 3) == []


def test_points_keep_their_places_from_view_to_view():
    rng = np.random.default_rng(0)
    centres = 20 * rng.normal(size=(4, 5))
    z = centres[np.arange(80) % 4] + rng.normal(size=(80, 5))
    before, after = Projector().project([z, z + 0.1 * rng.normal(size=z.shape)])
    moved = np.linalg.norm(after - before, axis=1)
    assert np.median(moved) < 0.5 * before.std()


@pytest.mark.parametrize("z", [np.zeros((30, 4)), np.ones((2, 4)), np.ones((9, 1)), np.ones((0, 3))])
def test_what_cannot_be_arranged_still_has_a_place(z):
    (xy,) = Projector().project([z])
    assert xy.shape == (len(z), 2)
    assert np.isfinite(xy).all()


# -- several runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def several(make_run) -> list[Path]:
    more = [make_run(f"many-{seed}", seed=seed, batch_size=7) for seed in (0, 1)]
    return [make_run("s0"), make_run("s1", seed=1), *more, make_run("half", until=200, batch_size=9)]


def test_runs_that_differ_in_their_seed_alone_are_a_group(several):
    groups = grouped([read(path) for path in several])
    assert {name: [run.name for run in some] for name, some in groups.items()} == {
        "batch_size 100": ["s0", "s1"],
        "batch_size 7": ["many-0", "many-1"],
        "batch_size 9": ["half"],
    }


def test_groups_are_named_by_as_few_settings_as_tell_them_apart(make_run):
    system = json.loads((make_run("a", seed=3) / "config.json").read_text())["system"]
    without = {**system, "learner": {**system["learner"], "memory": None}}
    runs = [make_run("b"), make_run("c", system=without, evaluate_every=3)]
    assert list(grouped([read(path) for path in runs])) == ["memory snapshot", "memory none"]
    runs = [make_run("b2"), make_run("c2", system={"type": "NearestMean"}), make_run("c3", system={"type": "Other"})]
    assert list(grouped([read(path) for path in runs])) == ["system curl", "system nearest-mean", "system other"]
    runs = [make_run("d", steps=800), make_run("e", steps=800, dataset="mnist"), make_run("f")]
    assert list(grouped([read(p) for p in runs])) == [
        "dataset digits, steps 800",
        "dataset mnist, steps 800",
        "dataset digits, steps 400",
    ]


def test_several_runs_are_compared_on_one_page(several, quick):
    page = made(*several)
    assert list(page.sections) == ["headline", "curves", "classes", "confusion", "different", "made"]
    text = Reader(page.html()).text
    assert "80.00 ± 7.07" in text  # of 75 and 85
    assert "Not finished, so that its latest scores count: half (step 200 of 400)." in text
    assert len([name for name in page.figures if name.startswith("classes-")]) == 5
    assert len([name for name in page.figures if name.startswith("confusion-")]) == 5


def test_a_band_is_a_standard_deviation_around_the_mean(several):
    runs = [read(path) for path in several[:2]]
    values = {100: [10.0, 20.0], 200: [30.0, 30.0]}
    low, high, mean = charts._band(values, "n", 0)
    assert mean["y"] == [15, 30]
    np.testing.assert_allclose(high["y"], [15 + 50**0.5, 30], atol=0.01)
    np.testing.assert_allclose(low["y"], [15 - 50**0.5, 30], atol=0.01)
    assert len(charts._band({1: [2.0]}, "n", 0)) == 1
    assert charts._over_time(runs, lambda line: line["K"]) == {100: [1, 1], 200: [2, 2], 300: [3, 3], 400: [4, 4]}


def test_a_component_has_one_colour_on_a_page(make_run, quick):
    path = make_run()
    run = RunDirectory.open(path)
    run.append("events", {"event": "StepsTaken", "t": 399, "n": 1000, "real": {"bound": -9.0, "q_y": [0, 0.1, 0, 0.9]}})
    page = made(path)
    layers = {trace["name"]: trace["fillcolor"] for trace in page.figures["posterior"]["data"]}
    latent = page.figures["latent"]["latent"]
    assert latent["ranks"][3] == 0
    assert layers == {f"component {k}": latent["colours"][latent["ranks"][k]] for k in range(4)}


def test_many_upright_lines_are_fainter():
    opacity = [charts._lines("births", range(n), "red", "solid")[0]["opacity"] for n in (1, 40, 80)]
    assert opacity == [0.7, 0.7, 0.35]


def test_layers_are_hatched_when_colours_come_again():
    plain, hatched, others = (charts._layer("n", [1], np.ones(1), rank) for rank in (0, len(charts.COLOURS), None))
    assert plain["fillcolor"] == hatched["fillcolor"] != others["fillcolor"]
    assert ["fillpattern" in layer for layer in (plain, hatched, others)] == [False, True, False]


def test_a_band_leaves_out_where_there_is_one_run_only():
    low, high, mean = charts._band({100: [10.0, 20.0], 200: [30.0]}, "n", 0)
    assert low["x"] == high["x"] == [100]
    assert mean["x"] == [100, 200]


def test_runs_of_one_name_have_a_column_each(tmp_path, quick):
    paths = [write_run(tmp_path / folder / "same", seed=seed) for seed, folder in enumerate("ab")]
    RunDirectory.open(paths[1]).write("environment", {"python": "another"})
    environment = made(*paths).sections["made"].split('id="environment"')[1]
    assert environment.count("same</th>") == 2
    assert "<td>3</td><td>another</td>" in environment


def test_a_comparison_says_seeds_and_machines(several, quick):
    reader = Reader(made(*several).html())
    assert "seeds" in reader.text
    assert "Environment of each run" in reader.text
    assert "versions.torch" in reader.text


def test_runs_without_labels_are_compared_too(make_run, quick):
    page = made(make_run("a", labelled=False), make_run("b", labelled=False, seed=1))
    assert list(page.sections) == ["headline", "curves", "made"]


# -- damage -----------------------------------------------------------------------------------------------------------


def spoil_view(path: Path, **arrays: np.ndarray) -> None:
    run = RunDirectory.open(path)
    run.write_view(100, run.view(100) | arrays)


def change(run: Path, name: str, **values: object) -> None:
    """A file that is still JSON, with something else in it."""
    RunDirectory.open(run).write(name, RunDirectory.open(run).read(name) | values)


def log(run: Path, name: str, **values: object) -> None:
    """One more line of a log, like the last one but for this."""
    directory = RunDirectory.open(run)
    directory.append(name, directory.lines(name)[-1] | values)


NONSENSE = {
    "no time": lambda run: (run / "timing.json").write_text("{}"),
    "a time of nothing": lambda run: change(run, "timing", minutes=None),
    "errors of nothing": lambda run: change(run, "result", knn_error=None),
    "an accuracy in words": lambda run: change(run, "result", cluster_accuracy="good"),
    "a ragged confusion": lambda run: change(run, "result", confusion=[[1, 2], [3]]),
    "steps in words": lambda run: change(run, "config", steps="many"),
    "no classes at once": lambda run: change(run, "config", scenario={"type": "Sequential", "at_once": 0}),
    "components of nothing": lambda run: log(run, "events", event="ComponentBorn", component=None, parent=0),
    "classes in one number": lambda run: change(run, "data", classes=3),
    "a shape in words": lambda run: change(run, "data", shape="ab"),
    "accuracies of nothing": lambda run: log(run, "metrics", class_accuracy=None),
    "real steps of nothing": lambda run: log(run, "events", real={}),
    "a posterior of nothing": lambda run: log(run, "events", real={"bound": 1.0, "q_y": None}),
    "a step in words": lambda run: log(run, "events", t="late"),
    "a birth in words": lambda run: log(run, "events", event="ComponentBorn", component="x", parent=0),
    "a bound in words": lambda run: log(run, "metrics", bound="high"),
    "a bound that JSON has no number for": lambda run: log(run, "metrics", bound=10**400),
    "an error in words": lambda run: change(run, "result", knn_error={"10": "few"}),
    "counts that are none": lambda run: change(run, "result", confusion=[[1, -2], [3, 4], [5, 6], [7, 8]]),
    "a confusion of other classes": lambda run: change(run, "result", confusion=[[1, 2], [3, 4]]),
    "classes of another result": lambda run: change(run, "data", classes=[*CLASSES, "e"]),
    "accuracies of other classes": lambda run: log(run, "metrics", class_accuracy=[0.5]),
    "a step before the first": lambda run: log(run, "events", t=-1),
    "a K of nothing": lambda run: log(run, "metrics", K=None),
    "the same birth again": lambda run: log(run, "events", event="ComponentBorn", component=3, parent=0),
    "more components than there can be": lambda run: (run / "events.jsonl").write_text(
        '{"event": "ComponentBorn", "t": 1, "component": 1000000000, "parent": 0}\n'
    ),
    "an event of no name": lambda run: log(run, "events", event=["StepsTaken"]),
    "an infinite share": lambda run: (run / "events.jsonl").write_text(
        '{"event": "StepsTaken", "t": 1, "n": 2, "real": {"bound": 1, "q_y": [Infinity]}}\n'
    ),
    "a resumption of nothing": lambda run: change(run, "environment", resumed=[None]),
    "a shape of nothing": lambda run: change(run, "data", shape=[]),
    "a sample without values": lambda run: change(run, "data", shape=[4, 0]),
    "embeddings in words": lambda run: spoil_view(run, z=np.full((30, 3), "a")),
    "embeddings that are no numbers": lambda run: spoil_view(run, z=np.full((30, 3), np.nan)),
    "a view without numbers": lambda run: RunDirectory.open(run).write_view(100, {"z": np.array(1), "y": np.array(1)}),
    "a view without samples": lambda run: spoil_view(run, generated=np.zeros((1, 0, 12))),
    "brackets": lambda run: (run / "data.json").write_text("[" * 100_000),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_no_run_writes_is_one_line_of_error(make_run, quick, nonsense):
    path = make_run()
    NONSENSE[nonsense](path)
    with pytest.raises(RunError, match="is damaged") as error:
        made(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


DAMAGE = {
    "no settings": (lambda run: (run / "config.json").unlink(), r"is not a run directory"),
    "half the settings": (lambda run: (run / "config.json").write_text("{"), r"config\.json is damaged"),
    "other settings": (
        lambda run: (run / "config.json").write_text("{}"),
        r"config\.json is damaged \(steps, scenario",
    ),
    "settings of an earlier version": (
        lambda run: (run / "config.json").write_text('{"model": {"K": 1}, "learner": {}, "steps": 3}'),
        r"run is a run of an earlier version of curlicue, .* with the version that wrote it\.$",
    ),
    "half a log": (lambda run: (run / "metrics.jsonl").write_text('{"t": 1'), r"metrics\.jsonl is damaged"),
    "another log": (lambda run: (run / "metrics.jsonl").write_text('{"a": 1}\n'), r"metrics\.jsonl is damaged \(t, K"),
    "no event": (lambda run: (run / "events.jsonl").write_text('{"t": 1}\n'), r"events\.jsonl is damaged \(event is"),
    "half a birth": (
        lambda run: (run / "events.jsonl").write_text('{"t": 1, "event": "ComponentBorn"}\n'),
        r"events\.jsonl is damaged \(component, parent is missing",
    ),
    "half a view": (
        lambda run: (run / "views" / "00000100.npz").write_bytes(b"PK"),
        r"00000100\.npz is damaged",
    ),
    "another view": (lambda run: spoil_view(run, y=np.zeros(3, int)), r"00000100\.npz is damaged \(its arrays"),
    "an unknown component": (lambda run: spoil_view(run, y=np.full(30, 9)), r"00000100\.npz is damaged"),
    "a component before the first": (lambda run: spoil_view(run, y=np.full(30, -1)), r"00000100\.npz is damaged"),
    "half components": (lambda run: spoil_view(run, y=np.full(30, 0.5)), r"00000100\.npz is damaged"),
    "classes in words": (
        lambda run: RunDirectory.open(run).write_view("rows", {"x": np.zeros((30, 12)), "labels": np.full(30, "a")}),
        r"rows\.npz is damaged \(labels are <U1",
    ),
    "other samples": (
        lambda run: RunDirectory.open(run).write_view("rows", {"x": np.zeros((30, 5))}),
        r"rows\.npz is damaged \(x is \[30, 5\], but a sample has 12 values",
    ),
    "an unknown class": (
        lambda run: RunDirectory.open(run).write_view("rows", {"x": np.zeros((30, 12)), "labels": np.full(30, 4)}),
        r"rows\.npz is damaged \(a label is none of the 4 classes",
    ),
    "another birth": (lambda run: np.save(run / "births" / "0002.npy", np.zeros(3)), r"0002\.npy is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_directory_is_one_line_of_error(make_run, quick, damage):
    path = make_run()
    spoil, message = DAMAGE[damage]
    spoil(path)
    with pytest.raises(RunError, match=message) as error:
        made(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("where", ["page", "reading"])
def test_our_own_mistakes_do_not_read_as_a_damaged_run(make_run, quick, monkeypatch, where):
    def mistaken(*_: object) -> None:
        raise TypeError("ours")

    match where:
        case "page":
            monkeypatch.setattr(charts, "curves", mistaken)
        case "reading":
            monkeypatch.setattr(RunDirectory, "has_birth", mistaken)
    with pytest.raises(TypeError, match=r"^ours$"):
        made(make_run())


# -- size -------------------------------------------------------------------------------------------------------------


def test_a_page_of_a_large_run_has_a_bearable_size(make_run, quick, tmp_path):
    """Forty components, a thousand lines of events, a thousand samples of MNIST's size in ten views."""
    path = make_run(shape=(28, 28), N=1000, n_views=1)
    run, rng = RunDirectory.open(path), np.random.default_rng(0)
    smooth = np.outer(np.hanning(28), np.hanning(28)).ravel()
    for t in range(1000, 10_001, 1000):
        K, y = t // 250, rng.integers(0, t // 250, size=1000)
        generated = (smooth * rng.random((K, 8, 1)) + 0.02 * rng.random((K, 8, 784))).clip(0, 1)
        centres = rng.normal(size=(K, 8))
        z = centres[y] + rng.normal(size=(1000, 8))
        run.write_view(t, {"generated": generated, "centres": centres, "z": z, "y": y})
    for t in range(500, 100_001, 100):
        run.append("events", {"event": "StepsTaken", "t": t, "n": 100, "real": {"bound": -9.0, "q_y": [0.025] * 40}})
    assert write_page([read(path)], tmp_path / "page.html") < 8e6


def test_views_that_come_later_are_taken_in(make_run, quick):
    path = make_run(until=100)
    before = made(path)
    rng = np.random.default_rng(1)
    write_steps(RunDirectory.open(path), rng, 200, 12)
    write_view(RunDirectory.open(path), rng, 200, 30, 12)
    after = made(path)
    assert [view["t"] for view in before.figures["latent"]["latent"]["views"]] == [100]
    assert [view["t"] for view in after.figures["latent"]["latent"]["views"]] == [100, 200]
    assert before.sections["made"] == after.sections["made"]
