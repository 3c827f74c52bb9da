"""The command: parse, call, print."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from curlicue.cli import console, model, paper, report, train
from curlicue.errors import CurlicueError
from curlicue.version import __version__

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Callable[..., Any]] = {
    "fit": model.fit,
    "embed": model.embed,
    "sample": model.sample,
    "train": train.train,
    "demo": train.demo,
    "data": train.data,
    "result": train.result,
    "report": report.report,
    "watch": report.watch,
    "reproduce": paper.reproduce_paper,
}
BROKEN_PIPE = 141  # what a shell reports of a program that was ended by one


def main(arguments: Sequence[str] | None = None) -> None:
    """The `curlicue` command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not console.out.is_terminal:
        console.out.width = console.UNLIMITED  # a table in a file or a pipe is not folded
    if list(arguments) == ["--version"]:
        console.show(__version__)
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="curlicue",
            description="Learn clusters and embeddings from a stream, and do not forget.",
            args=arguments,
        )
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has had enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to write goes there
        raise SystemExit(BROKEN_PIPE) from None
    except (CurlicueError, OSError) as error:
        console.say(f"curlicue: {error}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
