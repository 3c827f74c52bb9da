"""report and watch."""

import builtins
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curlicue.cli import main, report, train
from curlicue.errors import RunError
from curlicue.records.directory import RunDirectory
from curlicue.report import latent, live, page
from curlicue.report.live import Live
from written import STEPS, write_end, write_steps, write_view

pytestmark = pytest.mark.usefixtures("as_before")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No t-SNE, and no time to lose."""
    monkeypatch.setattr(latent, "_project", lambda z, before: z[:, :2])
    monkeypatch.setattr(report, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(live, "OTHERS", 0.0)


@pytest.fixture
def no_plotly(monkeypatch) -> Iterator[None]:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest)

    page.plotly_js.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    yield
    page.plotly_js.cache_clear()


@pytest.fixture(scope="module")
def finished_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, a short one."""
    path = tmp_path_factory.mktemp("finished") / "digits"
    main(["train", "--preset", "digits", "--steps", "60", "--n-z", "2", "--threads", "1", "--out", str(path)])
    return path


NEEDS_PLOTLY = "The page needs plotly. Install it: pip install 'curlicue[report]'\n"

# -- report -----------------------------------------------------------------------------------------------------------


def test_a_report_of_a_run_lies_in_its_directory(command, make_run):
    path = make_run("a run [b]")  # no markup
    answer = command("report", path)
    written = path / "report.html"
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{written}: {written.stat().st_size / 1e6:.1f} MB. Open it in a browser.\n"
    assert written.read_text().startswith("<!doctype html>")
    assert written.stat().st_size < 6e6


def test_a_report_goes_where_it_is_told(command, make_run, tmp_path):
    assert command("report", make_run(), "--out", tmp_path / "new" / "page.html").code == 0
    assert (tmp_path / "new" / "page.html").is_file()
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_report_of_several_runs_lies_here(command, make_run, tmp_path):
    assert command("report", make_run("a"), make_run("b", seed=1)).code == 0
    assert "<title>2 runs</title>" in (tmp_path / "report.html").read_text()


def test_figures_for_print_go_to_a_folder_of_their_own(command, finished_digits, tmp_path):
    answer = command("report", finished_digits, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert (answer.code, answer.err) == (0, "")
    names = ["accuracy", "classes", "confusion", "posterior", "latent", "dreams"]
    found = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {f"{name}.{ending}" for name in names for ending in ("png", "svg", "pdf")} <= found
    assert answer.out.splitlines()[1].startswith(f"{tmp_path / 'figures'}: accuracy, classes, confusion, posterior")


def test_figures_of_several_runs_lie_apart_and_those_of_all_together(command, finished_digits, tmp_path):
    other = Path(shutil.copytree(finished_digits, tmp_path / "other"))
    assert command("report", finished_digits, other, "--figures", tmp_path / "figures").code == 0
    found = {path.name for path in (tmp_path / "figures").iterdir()}
    together = {f"{name}.{ending}" for name in ("variants", "posteriors") for ending in ("png", "svg", "pdf")}
    assert found == {finished_digits.name, "other", *together}


def test_runs_of_the_same_settings_that_were_scored_at_other_steps_have_lost_a_line(command, finished_digits, tmp_path):
    other = Path(shutil.copytree(finished_digits, tmp_path / "other"))
    first, _, *rest = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join([first, *rest]))
    answer = command("report", finished_digits, other, "--figures", tmp_path / "figures")
    told = f"{other}/metrics.jsonl is damaged (its steps are not those of {finished_digits}). "
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith(f"curlicue: {told}")
    assert not (tmp_path / "report.html").exists()


def test_an_unfinished_run_has_a_page_but_no_figures_yet(command, make_run, tmp_path):
    path = make_run(until=200)
    answer = command("report", path, "--figures", tmp_path / "figures")
    missing = f"{path}/result.json is missing: the run has not got so far."
    assert (answer.code, answer.err) == (1, f"curlicue: {missing} Go on with it: curlicue train --resume {path}\n")
    assert not (path / "report.html").exists()  # all that was asked for, or nothing
    assert command("report", path).code == 0


@pytest.mark.parametrize("option", ["--out", "--figures"])
def test_where_nothing_can_be_written_one_line_says_so(command, make_run, tmp_path, option):
    (tmp_path / "file").write_text("")
    answer = command("report", make_run(), option, tmp_path / "file" / "below")
    assert answer.code == 1
    assert answer.err.startswith(f"curlicue: {tmp_path}/file/below cannot be written (")
    assert answer.err.endswith(f"). Choose another {option}.\n")


def test_the_same_run_gives_the_same_page(command, make_run, tmp_path):
    path = make_run()
    for name in ("a", "b"):
        command("report", path, "--out", f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_no_run_no_report(command):
    answer = command("report")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("curlicue: Say which run.")


@pytest.mark.parametrize("name", ["report", "watch"])
def test_a_folder_that_is_no_run_has_no_page(command, tmp_path, name):
    answer = command(name, tmp_path)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"curlicue: {tmp_path} is not a run directory (it has no config.json). Start a run with: curlicue train\n"
    )


@pytest.mark.parametrize("name", ["report", "watch"])
def test_a_damaged_run_has_no_page(command, make_run, name, monkeypatch):
    monkeypatch.setattr(live, "PATIENCE", 0.1)
    path = make_run()
    (path / "metrics.jsonl").write_text("{\n")
    answer = command(name, path)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"curlicue: {path}/metrics.jsonl is damaged (")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("name", ["report", "watch"])
def test_without_plotly_one_line_says_how_to_get_it(command, make_run, no_plotly, name):
    path = make_run()
    answer = command(name, path)
    assert (answer.code, answer.out, answer.err) == (1, "", f"curlicue: {NEEDS_PLOTLY}")
    assert not (path / "report.html").exists()


def test_the_demo_ends_with_its_page(command, make_run, monkeypatch):
    monkeypatch.setattr(train, "train", lambda settings, out: None)
    path = make_run()
    answer = command("demo", "--out", path)
    assert answer.code == 0
    assert answer.out.startswith(f"{path}/report.html: ")


def test_without_plotly_the_demo_ends_well(command, make_run, no_plotly, monkeypatch):
    monkeypatch.setattr(train, "train", lambda settings, out: None)
    answer = command("demo", "--out", make_run())
    assert (answer.code, answer.out, answer.err) == (0, "", NEEDS_PLOTLY)


# -- watch ------------------------------------------------------------------------------------------------------------


def get(address: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def state(address: str, after: int = 0) -> Any:
    code, contents = get(f"{address}state?after={after}")
    return json.loads(contents) if code == 200 else code


def goes_on(path: Path, t: int) -> None:
    rng = np.random.default_rng(t)
    write_steps(RunDirectory.open(path), rng, t, 12)
    write_view(RunDirectory.open(path), rng, t, 30, 12)


def ends(path: Path) -> None:
    for t in (300, STEPS):
        goes_on(path, t)
    write_end(RunDirectory.open(path), RunDirectory.open(path).view("rows")["labels"])


def test_the_page_of_a_run_is_served_on_this_machine_only(make_run):
    with Live(make_run(until=200)) as watched:
        assert watched.address.startswith("http://127.0.0.1:")
        assert watched.server.server_address[0] == "127.0.0.1"
        code, page = get(watched.address)
        assert code == 200
        assert b"step 200 of 400" in page
        assert f'<body data-live="{watched.version}">'.encode() in page


@pytest.mark.parametrize(
    "path", ["config.json", "checkpoint.safetensors", "../config.json", "%2e%2e/config.json", "//etc/passwd", "state/"]
)
def test_no_file_can_be_had(make_run, path):
    with Live(make_run(until=200)) as watched:
        assert get(watched.address + path) == (404, b"")


def test_a_page_of_another_name_gets_nothing(make_run):
    with Live(make_run(until=200)) as watched:
        assert get(watched.address, Host="evil.example") == (403, b"")
        assert get(f"{watched.address}state", Host=f"evil.example:{watched.server.server_port}")[0] == 403
        assert get(watched.address, Host=f"localhost:{watched.server.server_port}")[0] == 200


def test_only_what_has_changed_is_sent(make_run):
    path = make_run(until=100)
    with Live(path) as watched:
        first = state(watched.address)
        assert list(first["sections"]) == first["order"]
        version = first["version"]
        assert not first["finished"]
        assert state(watched.address, after=version) == 204
        goes_on(path, 200)
        assert state(watched.address, after=version) == 204
        watched.update()
        second = state(watched.address, after=version)
        assert second["version"] == version + 1
        assert "made" not in second["sections"]
        assert {"headline", "latent", "generated", "components", "births"} <= second["sections"].keys()
        assert "births" in second["order"]
        assert "births" not in first["order"]
        assert {"curves", "latent"} <= second["figures"].keys()
        assert state(watched.address, after="nonsense")["version"] == version + 1


def test_a_page_left_over_from_an_earlier_server_is_brought_up_to_date(make_run):
    path = make_run(until=100)
    with Live(path) as earlier:
        for t in (200, 300):
            goes_on(path, t)
            earlier.update()
        left_over = earlier.version
    with Live(path) as watched:
        assert list(watched.state(left_over)["sections"]) == watched.order


def test_nothing_is_done_where_nothing_is_new(make_run, monkeypatch):
    path, reads = make_run(until=200), []
    read = live.read
    monkeypatch.setattr(live, "read", lambda path: reads.append(path) or read(path))
    with Live(path) as watched:
        version = watched.version
        watched.update()
        watched.update()
        assert len(reads) == 1
        assert watched.version == version


def test_figures_without_matplotlib_are_refused_before_the_page_is_made(command, make_run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer = command("report", make_run(), "--figures", "figures", "--out", "page.html")
    assert answer.err == "curlicue: Figures need matplotlib. Install it: pip install 'curlicue[report]'\n"
    assert not (tmp_path / "page.html").exists()


def test_views_are_projected_once(make_run, monkeypatch):
    path, projected = make_run(until=100), []
    monkeypatch.setattr(latent, "_project", lambda z, before: projected.append(len(z)) or z[:, :2])
    with Live(path) as watched:
        for t in (200, 300):
            goes_on(path, t)
            watched.update()
    assert len(projected) == 3


def test_a_line_that_is_being_written_is_waited_for(make_run):
    path = make_run(until=200)
    whole = (path / "metrics.jsonl").read_text()
    with Live(path) as watched:
        sections = watched.state(0)["sections"]
        (path / "metrics.jsonl").write_text(whole + '{"t": 30')
        watched.update()
        assert watched.state(0)["sections"] == sections
        (path / "metrics.jsonl").write_text(whole + '{"t": 300, "K": 3}\n')
        watched.update()
        assert watched.state(0)["sections"] != sections


def test_what_looks_damaged_is_looked_at_again_for_some_seconds_however_long_all_was_well(make_run, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    path = make_run(until=200)
    whole = (path / "metrics.jsonl").read_text()
    with Live(path) as watched:
        now[0] += 10 * live.PATIENCE
        (path / "metrics.jsonl").write_text(whole + "{\n")
        watched.update()
        now[0] += live.PATIENCE
        watched.update()
        (path / "metrics.jsonl").write_text(whole)
        watched.update()
        (path / "metrics.jsonl").write_text(whole + "{\n")
        watched.update()
        now[0] += live.PATIENCE + 1
        with pytest.raises(RunError, match="damaged"):
            watched.update()


def test_a_port_that_is_taken_is_one_clear_error(command, make_run):
    path = make_run()
    with Live(path) as watched:
        port = watched.server.server_port
        answer = command("watch", path, "--port", port)
    assert answer.code == 1
    told = "Address already in use). Choose another --port, or leave it out.\n"
    assert answer.err == f"curlicue: Port {port} cannot be had ({told}"


def test_a_directory_is_no_page(command, make_run, tmp_path):
    answer = command("report", make_run(), "--out", tmp_path)
    assert answer.code == 1
    assert answer.err == f"curlicue: {tmp_path} is a directory. Give --out a file, such as {tmp_path}/report.html.\n"


def test_runs_of_one_name_do_not_share_a_folder_of_figures(command, make_run, tmp_path):
    runs = make_run("x/r"), make_run("y/r", seed=1)
    answer = command("report", *runs, "--figures", tmp_path / "figures")
    assert answer.code == 1
    assert answer.err.startswith("curlicue: Runs of the same name would share a folder of figures: r, r.")
    assert not (tmp_path / "figures").exists()


def test_a_run_given_twice_is_one_run(command, make_run):
    path = make_run()
    assert command("report", path, path).code == 0
    assert (path / "report.html").is_file()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_watching_ends_with_the_run_when_its_last_state_was_fetched(command, make_run, monkeypatch):
    path, addresses, fetched = make_run(until=200), [], []
    monkeypatch.setattr(report, "LAST_LOOK", 60.0)
    monkeypatch.setattr(report.webbrowser, "open", addresses.append)

    def reader() -> None:
        (address,) = wait_for(lambda: addresses)
        version = state(address)["version"]
        ends(path)
        fetched.append(
            wait_for(lambda: isinstance(last := state(address, version), dict) and last["finished"] and last)
        )

    thread = threading.Thread(target=reader)
    thread.start()
    answer = command("watch", path, "--open")
    thread.join()
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        f"Watching {path} at {addresses[0]} (Ctrl-C ends it)",
        "The run has finished.",
        f"Write the page to a file with: curlicue report {path}",
    ]
    assert "has not finished" not in fetched[0]["sections"]["headline"]
    with pytest.raises(OSError, match="refused"):
        get(addresses[0])


def test_the_last_page_is_that_of_the_report(command, make_run, monkeypatch):
    path = make_run()
    command("report", path)
    with Live(path) as watched:
        assert watched.finished
        assert get(watched.address)[1] == (path / "report.html").read_bytes()
        assert watched.fetched.is_set()


def test_nobody_has_to_look(command, make_run, monkeypatch):
    monkeypatch.setattr(report, "LAST_LOOK", 0.1)
    monkeypatch.setattr(report.webbrowser, "open", lambda address: pytest.fail("opened a browser"))
    answer = command("watch", make_run())
    assert answer.code == 0
    assert "The run has finished." in answer.out


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_cannot_be_is_refused(command, make_run, port):
    answer = command("watch", make_run(), "--port", port)
    assert answer.err == f"curlicue: --port must be an int in the range [0, 65535]. Got {port} instead.\n"
    assert answer.code == 1


def test_a_port_that_is_taken_is_one_line_of_error(command, make_run):
    path = make_run(until=200)
    with Live(path) as watched:
        answer = command("watch", path, "--port", watched.server.server_port)
    assert answer.code == 1
    assert "Address already in use" in answer.err
    assert answer.err.count("\n") == 1


def test_an_interrupt_ends_it_at_once(make_run):
    path = make_run(until=200)
    shutil.rmtree(path / "views")  # nothing to project
    usual = "import signal; signal.signal(2, signal.default_int_handler)"  # also where tests run in the background
    words = [sys.executable, "-u", "-c", f"{usual}; from curlicue.cli import main; main()", "watch", str(path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as process:
        try:
            assert process.stdout.readline().startswith(f"Watching {path} at http://127.0.0.1:")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "")
