"""The page of a run while it goes on, served on this machine only."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from curlicue.errors import ConfigError, RunError
from curlicue.records.files import Json
from curlicue.report.html import page
from curlicue.report.latent import Projector
from curlicue.report.page import plotly_js
from curlicue.report.run_data import read

HOST = "127.0.0.1"
HTTP = 80  # the usual port
PATIENCE = 5.0  # seconds: a file that is being written looks damaged for a moment
OTHERS = 3.0  # seconds in which further readers fetch the last state


class Live:
    """A server of one page and its changes. Nothing else can be had from it, no file least of all."""

    def __init__(self, run: Path, port: int = 0) -> None:
        plotly_js()  # missing? then before anything else
        self.run = run
        self.projector = Projector()
        self.finished = False
        self.seconds = 0.0  # that the last update took
        self.version = time.time_ns() // 10**6  # a page left over from an earlier server is older than all of this
        self.changed: dict[str, dict[str, tuple[int, str | Json]]] = {"sections": {}, "figures": {}}
        self.html = b""
        self.fetched = threading.Event()  # the last state
        self._seen: object = None
        self._lock = threading.Lock()
        self._failing: float | None = None  # since when
        try:
            self.server = ThreadingHTTPServer((HOST, port), _handler(self))
        except OSError as error:
            raise ConfigError(
                f"Port {port} cannot be had ({error.strerror}). Choose another --port, or leave it out."
            ) from error
        self.server.daemon_threads = True
        try:
            while not self.html:
                self.update()
                time.sleep(0.0 if self.html else 0.2)
        except BaseException:
            self.server.server_close()
            raise

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server.server_port}/"

    def __enter__(self) -> Live:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def update(self) -> None:
        """Take in what is new in the run directory."""
        started = time.monotonic()
        try:
            seen = _signature(self.run)
            if seen == self._seen:
                self._failing = None
                return
            run = read(self.run)
            made = page([run], self.projector, live=None if run.finished else self.version + 1)
        except (RunError, OSError):
            self._failing = started if self._failing is None else self._failing
            self.seconds = 0.0  # look again soon
            if started - self._failing > PATIENCE:
                raise
            return
        self._failing, self._seen = None, seen
        html = made.html().encode()
        with self._lock:
            self.version += 1
            for kind, values in (("sections", made.sections), ("figures", made.figures)):
                before = self.changed[kind]
                for name, value in values.items():
                    if name not in before or before[name][1] != value:
                        before[name] = self.version, value
            self.order, self.html, self.finished = list(made.sections), html, run.finished
        self.seconds = time.monotonic() - started

    def whole(self) -> bytes:
        """The page as it is now."""
        with self._lock:
            html, finished = self.html, self.finished
        if finished:
            self.fetched.set()
        return html

    def state(self, after: int) -> Json | None:
        """What has changed after that version, if anything has."""
        with self._lock:
            if after >= self.version:
                return None
            if self.finished:
                self.fetched.set()
            news = {
                kind: {name: value for name, (version, value) in values.items() if version > after}
                for kind, values in self.changed.items()
            }
            return {"version": self.version, "finished": self.finished, "order": self.order, **news}

    def last_look(self, seconds: float) -> None:
        """Wait until a reader has the last state, and a moment for further ones."""
        if self.fetched.wait(seconds):
            time.sleep(OTHERS)


def _signature(run: Path) -> object:
    """What changes when anything is written."""
    files = [path for pattern in ("*.json", "*.jsonl", "births/*.npy", "views/*.npz") for path in run.glob(pattern)]
    return sorted((str(path), stat.st_size, stat.st_mtime_ns) for path in files if (stat := path.stat()))


def _handler(live: Live) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            port = live.server.server_port
            at = "" if port == HTTP else f":{port}"  # browsers leave out the usual one
            if self.headers.get("Host") not in (f"{HOST}{at}", f"localhost{at}"):  # a foreign page's trick
                return self.answer(403)
            asked = urlsplit(self.path)
            match asked.path:
                case "/":
                    return self.answer(200, "text/html; charset=utf-8", live.whole())
                case "/state":
                    after = parse_qs(asked.query).get("after", ["0"])[0]
                    state = live.state(int(after) if after.isdecimal() else 0)
                    if state is None:
                        return self.answer(204)
                    return self.answer(200, "application/json", json.dumps(state).encode())
            return self.answer(404)

        def answer(self, code: int, kind: str = "text/plain", contents: bytes = b"") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(contents)))
            self.send_header("Cache-Control", "no-store")
            with suppress(ConnectionError):  # a reader may leave at any time
                self.end_headers()
                self.wfile.write(contents)

        def log_message(self, *_: object) -> None:
            """Only the command line prints."""

    return Handler
