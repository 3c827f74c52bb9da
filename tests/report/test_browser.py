"""Pages as a browser shows them."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curlicue.records.directory import RunDirectory
from curlicue.report.html import write_page
from curlicue.report.live import Live
from curlicue.report.run_data import read
from written import CLASSES, write_end, write_run, write_steps, write_view

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium or its driver is not installed")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
PATIENCE = 60.0  # seconds


class Browser:
    """A page in a window of some size, and what came of it."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))

    def show(self, address: str, width: int = 1280, scheme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme_is = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme_is)
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(address)
        self.until("[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))")

    def ask(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def until(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"it never came to {expression}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        self.driver.execute_script(f"document.querySelector({json.dumps(selector)}).click()")

    def slide(self, name: str, place: int) -> None:
        slider = f"document.getElementById('slider-{name}')"
        event = "new Event('input', {bubbles: true})"
        self.driver.execute_script(f"{slider}.value = {place}; {slider}.dispatchEvent({event})")

    @property
    def errors(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]

    @property
    def requests(self) -> set[str]:
        """Where the browser asked for anything, as its own log has it."""
        lines = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        asked = [line["params"]["request"]["url"] for line in lines if line["method"] == "Network.requestWillBeSent"]
        return {address for address in asked if not address.startswith("data:")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages of all kinds."""
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "whole": [write_run(folder / "whole")],
        "many views": [write_run(folder / "many")],
        "many samples": [write_run(folder / "crowd", N=40)],
        "one view": [write_run(folder / "one", n_views=1)],
        "unfinished": [write_run(folder / "unfinished", until=200)],
        "unlabelled lines": [write_run(folder / "lines", labelled=False, shape=(9,))],
        "several": [write_run(folder / f"s{seed}", seed=seed) for seed in (0, 1)],
    }
    for t in range(20, 401, 20):
        write_view(RunDirectory.open(runs["many views"][0]), np.random.default_rng(t), t, 30, 12)
    for name, paths in runs.items():
        write_page([read(path) for path in paths], folder / f"{name}.html")
    return {name: (folder / f"{name}.html").as_uri() for name in runs}


KINDS = ["whole", "unfinished", "unlabelled lines", "several"]
POINTS = "document.querySelector('#chart-latent').data[0]"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_drawn_within_the_page_and_nothing_goes_wrong(browser, pages, kind, width, scheme):
    browser.show(pages[kind], width, scheme)
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.ask(
        "[...document.querySelectorAll('.chart')].every(c => c.querySelector('.main-svg').clientHeight > 100)"
    )
    assert browser.ask("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert browser.errors == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_request_leaves_the_page(browser, pages, kind):
    browser.show(pages[kind])
    assert browser.requests == {pages[kind]}
    assert browser.ask("performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:')).length") == 0


def test_charts_are_in_the_colours_of_the_page(browser, pages):
    inks = []
    for scheme in ("light", "dark"):
        browser.show(pages["whole"], scheme=scheme)
        inks.append(browser.ask("document.querySelector('#chart-curves').layout.font.color"))
    assert inks == ["#1c1e21", "#e8e9ea"]
    light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", light)
    browser.until("document.querySelector('#chart-curves').layout.font.color === '#1c1e21'")


def test_the_slider_moves_through_the_views(browser, pages):
    browser.show(pages["whole"])
    shown = "[...document.querySelectorAll('[data-view]')].filter(p => !p.hidden).map(p => Number(p.dataset.view))"
    assert browser.ask(shown) == [3]
    last = browser.ask(f"{POINTS}.x")
    browser.slide("generated", 1)
    assert browser.ask(shown) == [1]
    assert browser.ask("document.getElementById('slider-latent').value") == "1"  # both show the same time
    assert browser.ask("[...document.querySelectorAll('output')].map(o => o.textContent)") == ["step 200"] * 2
    browser.until(f"JSON.stringify({POINTS}.x) !== {json.dumps(json.dumps(last, separators=(',', ':')))}")
    assert browser.errors == []


def test_on_a_map_of_many_groups_only_the_chosen_one_is_named(browser, pages):
    browser.show(pages["many samples"])
    names = "document.querySelector('#chart-latent').layout.annotations.map(a => a.text)"
    assert len(browser.ask(names)) == 4
    each = "{labels: [...Array(40).keys()], classes: [...Array(40).keys()].map(String)}"
    browser.ask(f"(Object.assign(figures.latent.latent, {each}), draw('latent'))")
    browser.until(f"{names}.length === 0")
    browser.click("#group-7")
    browser.until(f"{names}.join() === '<b>7</b>'")
    assert browser.errors == []


def test_sliders_of_different_views_show_the_same_time(browser, pages):
    browser.show(pages["many views"])
    steps = "['latent', 'generated'].map(n => document.querySelector(`#slider-${n} ~ output`).textContent)"
    stops = "['latent', 'generated'].map(n => document.getElementById(`slider-${n}`).max)"
    assert browser.ask(stops) == ["9", "19"]
    assert browser.ask(steps) == ["step 400"] * 2
    browser.slide("generated", 4)
    assert browser.ask(steps) == ["step 80", "step 100"]  # the newest that there was
    browser.slide("latent", 2)
    assert browser.ask(steps) == ["step 120"] * 2
    browser.slide("generated", 0)
    assert browser.ask(steps) == ["step 40", "step 20"]  # there was none yet: the first
    assert browser.ask(f"{POINTS}.x.length") == 30
    browser.click("#generated .play")
    browser.until(f"{steps}[1] === 'step 40'")
    assert browser.ask("[...document.querySelectorAll('[data-view]')].filter(p => !p.hidden).length") == 1
    assert browser.errors == []


def test_playing_goes_through_the_views_to_the_last(browser, pages):
    browser.show(pages["whole"])
    browser.click(".play")
    assert browser.ask("document.getElementById('slider-latent').value") == "0"
    browser.until("document.getElementById('slider-latent').value === '3'")
    browser.until("document.querySelector('.play').textContent === '▶'")


def test_playing_a_single_view_ends_at_once(browser, pages):
    browser.show(pages["one view"])
    browser.click(".play")
    browser.until("document.querySelector('.play').textContent === '▶'")
    assert browser.ask("chosen.step") is None  # the newest, also when there is a newer one
    assert browser.errors == []


def test_colours_follow_the_choice(browser, pages):
    browser.show(pages["whole"])
    pressed = "[...document.querySelectorAll('[data-colour][aria-pressed=true]')].map(b => b.dataset.colour)"
    by_class = browser.ask(f"{POINTS}.marker.color")
    assert browser.ask(pressed) == ["class"]
    assert browser.ask("[...document.querySelectorAll('#latent-legend button')].map(b => b.textContent)")[:2] == [
        "a",
        "b",
    ]
    browser.click("[data-colour=component]")
    assert browser.ask(pressed) == ["component"]
    assert browser.ask(f"{POINTS}.marker.color") != by_class
    legend = browser.ask("[...document.querySelectorAll('#latent-legend button')].map(b => b.textContent)")
    assert legend == ["0", "1", "2", "3"]
    browser.click("#latent-legend button")
    assert len(set(browser.ask(f"{POINTS}.marker.opacity"))) == 2
    assert browser.errors == []


def test_a_name_that_looks_like_markup_is_shown_as_text(browser, pages):
    browser.show(pages["whole"])
    legend = browser.ask("[...document.querySelectorAll('#latent-legend button')].map(b => b.textContent)")
    ticks = browser.ask("[...document.querySelectorAll('#chart-class-accuracy .ytick text')].map(t => t.textContent)")
    assert legend == [name if len(name) <= 30 else name[:29] + "…" for name in CLASSES]
    assert ticks == [name if len(name) <= 16 else name[:15] + "…" for name in CLASSES]
    assert browser.ask("document.querySelectorAll('script').length") == 3


def test_a_sample_is_shown_when_it_is_pointed_at(browser, pages):
    browser.show(pages["whole"])
    browser.driver.execute_script(
        "document.querySelector('#chart-latent').emit('plotly_hover', {points: [{pointNumber: 5}]})"
    )
    browser.until("!document.querySelector('.sample').hidden")
    assert "component" in browser.ask("document.querySelector('.sample').textContent")
    assert browser.ask("document.querySelector('.sample i').style.backgroundImage").startswith('url("data:image/png')


def test_a_live_page_follows_the_run_and_keeps_what_was_chosen(browser, tmp_path):
    path = write_run(tmp_path / "run", until=200)
    run, rng = RunDirectory.open(path), np.random.default_rng(5)
    with Live(path) as live:
        browser.show(live.address)
        browser.slide("latent", 0)
        browser.click("[data-colour=component]")
        browser.driver.execute_script("document.getElementById('components').scrollIntoView({behavior: 'instant'})")
        top = browser.ask("document.getElementById('components').getBoundingClientRect().top")
        write_steps(run, rng, 300, 12)
        write_view(run, rng, 300, 30, 12)
        live.update()
        browser.until("document.getElementById('slider-latent').max === '2'")
        assert browser.ask("document.getElementById('headline').textContent.includes('step 300 of 400')")
        assert browser.ask("document.getElementById('slider-latent').value") == "0"
        assert browser.ask("document.querySelector('[data-colour=component]').ariaPressed") == "true"
        assert abs(browser.ask("document.getElementById('components').getBoundingClientRect().top") - top) < 2
        assert browser.ask("document.querySelectorAll('#chart-curves').length") == 1
        write_steps(run, rng, 400, 12)
        write_view(run, rng, 400, 30, 12)
        write_end(run, run.view("rows")["labels"])
        live.update()
        browser.until("document.getElementById('live').textContent.startsWith('The run has finished')")
        assert browser.ask("document.querySelector('#headline h2').textContent") == "What came out"
        asked = {address.split("?")[0] for address in browser.requests}
        assert asked == {live.address, f"{live.address}state"}
        assert browser.errors == []


def test_what_plays_and_what_is_focused_stays_so_when_a_live_page_changes(browser, tmp_path):
    path = write_run(tmp_path / "run", until=200)
    run, rng = RunDirectory.open(path), np.random.default_rng(5)
    with Live(path) as live:
        browser.show(live.address)
        browser.driver.execute_script(
            "play(); clearInterval(playing); document.getElementById('play-generated').focus()"
        )
        write_steps(run, rng, 300, 12)
        write_view(run, rng, 300, 30, 12)
        live.update()
        browser.until("document.getElementById('slider-latent').max === '2'")
        assert browser.ask("[...document.querySelectorAll('.play')].map(b => b.ariaLabel)") == ["Pause", "Pause"]
        assert browser.ask("document.activeElement.id") == "play-generated"


def test_the_legend_keeps_the_focus_when_it_is_used(browser, pages):
    browser.show(pages["whole"])
    browser.driver.execute_script("document.getElementById('group-1').focus()")
    browser.click("#group-1")
    assert browser.ask("document.activeElement.id") == "group-1"
    assert browser.ask("document.getElementById('group-1').ariaPressed") == "true"


def test_a_reader_who_is_at_the_newest_view_stays_there(browser, tmp_path):
    path = write_run(tmp_path / "run", until=200)
    run, rng = RunDirectory.open(path), np.random.default_rng(5)
    with Live(path) as live:
        browser.show(live.address)
        write_steps(run, rng, 300, 12)
        write_view(run, rng, 300, 30, 12)
        live.update()
        browser.until("document.getElementById('slider-latent').value === '2'")
        assert browser.ask("document.querySelector('[data-view=\"2\"]').hidden") is False
    browser.until("document.getElementById('live').textContent.includes('connection is lost')")
