"""Run directories → one page that opens anywhere, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from curlicue.records.files import write_atomically
from curlicue.report import samples, scores
from curlicue.report.comparison import compare
from curlicue.report.latent import Projector
from curlicue.report.page import Page
from curlicue.report.pictures import Pictures
from curlicue.report.run_data import RunData


def write_page(runs: Sequence[RunData], out: Path, projector: Projector | None = None) -> int:
    """Write the page of these runs; returns how many bytes it has."""
    contents = page(runs, projector or Projector()).html().encode()
    write_atomically(out, contents)
    return len(contents)


def page(runs: Sequence[RunData], projector: Projector, live: int | None = None) -> Page:
    """The page of one run, or of several that are compared."""
    if len(runs) > 1:
        made = Page(f"{len(runs)} runs", live)
        compare(made, runs)
        return made
    (run,) = runs
    made, pictures = Page(run.name, live), Pictures.of(run)
    for section in (scores.headline, scores.curves, scores.class_accuracy, scores.confusion, scores.posterior):
        section(made, run)
    samples.latent(made, run, pictures, projector)
    for show in (samples.generated, samples.lives, samples.d_new):
        show(made, run, pictures)
    scores.settings(made, run)
    return made
