"""What is shown: the output proper, what is said beside it, live lines, and how a signal stops them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Annotated, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text
from tyro.conf import DisallowNone, arg

UNLIMITED = 10_000  # columns

T = TypeVar("T")
Given = Annotated[T | None, DisallowNone, arg(help_behavior_hint="")]
"""An option that is None unless given; its own words say what happens then."""

out = Console()
err = Console(stderr=True)


def show(what: object) -> None:
    """The output proper."""
    out.print(what, soft_wrap=isinstance(what, str), crop=False, highlight=False, markup=False)


def say(what: str) -> None:
    """Beside the output proper."""
    err.print(what, soft_wrap=True, highlight=False, markup=False)


def options(names: Iterable[str]) -> str:
    """As they are written on the command line."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


class Speed(ProgressColumn):
    """Steps, or whatever is counted, a second."""

    def __init__(self, unit: str = "steps") -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self.unit = unit

    def render(self, task: Task) -> Text:
        """Of the last seconds."""
        return Text(f"{task.speed:.0f} {self.unit}/s" if task.speed else "")


def progress_line() -> Progress:
    """Where it is narrow, the bar alone gives way."""
    return Progress(
        BarColumn(bar_width=20),
        TextColumn("step {task.completed:.0f}/{task.total:.0f}  K {task.fields[K]}  bound {task.fields[bound]:.1f}"),
        TextColumn("{task.fields[score]}"),
        Speed(),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=out,
        disable=not out.is_terminal,
    )


def rows_line() -> Progress:
    """For as many rows as will come."""
    return Progress(
        TextColumn("{task.completed:.0f} rows  K {task.fields[K]}"),
        Speed("rows"),
        TimeElapsedColumn(),
        console=out,
        disable=not out.is_terminal,
    )


@contextmanager
def busy(words: str) -> Iterator[None]:
    """Shows that something is being done which has no steps to count; on a terminal only."""
    with err.status(words) if err.is_terminal else nullcontext():
        yield


@contextmanager
def download_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each file that has to be fetched; nothing where all are here."""
    bars = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=err)
    tasks: dict[str, TaskID] = {}
    with ExitStack() as shown:

        def progress(name: str, done: int, total: int | None) -> None:
            if not tasks:
                shown.enter_context(bars)
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield progress


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that a run ends between two steps; a second one ends it at once."""
    caught: list[int] = []

    def catch(number: int, frame: object) -> None:
        caught.append(number)
        signal.signal(number, signal.default_int_handler)

    old = {number: signal.signal(number, catch) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
