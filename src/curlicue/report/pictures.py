"""Samples as pictures in a page: strips of images as PNG, anything else as lines over its features."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape

import numpy as np
from PIL import Image

from curlicue.records.files import Array
from curlicue.report.run_data import RunData

POINTS = 80  # of a line; more features are put together
WIDTH, HEIGHT = 160, 48  # of a picture of lines
CLEAR = 0  # the grey that is none
LARGE = 20  # pixels: larger images are scaled smoothly


@dataclass(frozen=True)
class Pictures:
    """How the samples of a data set are drawn."""

    shape: tuple[int, ...]  # of a sample
    low: float  # is black
    high: float  # is white

    @classmethod
    def of(cls, run: RunData) -> Pictures:
        """By the real samples, so that all pictures of a page compare."""
        real = run.x if run.x is not None and run.x.size else np.array([0.0, 1.0])
        low, high = float(real.min()), float(real.max())
        return cls(run.shape, low, high if high > low else low + 1)

    @property
    def are_images(self) -> bool:
        """Grey [h, w] or in colour [h, w, 3]."""
        return len(self.shape) == 2 or (len(self.shape) == 3 and self.shape[2] == 3)

    def draw(self, samples: Array, alt: str, columns: int = 8) -> str:
        """Some samples [n, D] as HTML."""
        return self.strip(samples, alt, columns) if self.are_images else self.lines(samples, alt)

    def strip(self, samples: Array, alt: str, columns: int) -> str:
        """The samples side by side, as one image."""
        columns = min(columns, len(samples)) or 1
        kind = "image" if max(self.shape[:2]) >= LARGE else "image small"
        source = self.sprite(samples, columns, gap=1)
        return f'<img class="{kind}" style="--columns:{columns}" src="{source}" alt="{escape(alt)}">'

    def sprite(self, samples: Array, columns: int, gap: int = 0) -> str:
        """As one PNG in a data address, row by row, with so many transparent pixels between them."""
        height, width, *colours = self.shape
        rows = -(-len(samples) // columns)
        grey = (samples.astype(np.float32) - self.low) / (self.high - self.low)
        tiles = np.full((rows * columns, height + gap, width + gap, *colours), CLEAR, np.uint8)
        shades = (1 + 254 * grey.clip(0, 1)).round().astype(np.uint8)  # none of them is CLEAR
        tiles[: len(samples), :height, :width] = shades.reshape(-1, *self.shape)
        tiles = tiles.reshape(rows, columns, *tiles.shape[1:]).swapaxes(1, 2)
        pixels = tiles.reshape(rows * (height + gap), columns * (width + gap), *colours)
        return _png(pixels[: len(pixels) - gap, : pixels.shape[1] - gap])

    def lines(self, samples: Array, alt: str) -> str:
        """As thin lines over the features, and their mean."""
        lines = [_line(self._heights(row), "one") for row in samples]
        if len(samples) > 1:
            lines.append(_line(self._heights(samples.astype(np.float32).mean(0)), "mean"))
        box = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
        return f'<svg class="lines" role="img" aria-label="{escape(alt)}" {box}>{"".join(lines)}</svg>'

    def _heights(self, sample: Array) -> Array:
        """From 0 at the bottom to 1 at the top, in so few points that they can be drawn."""
        parts = np.array_split(sample.astype(np.float64), min(len(sample), POINTS))
        means = np.array([part.mean() for part in parts])
        return np.asarray(((means - self.low) / (self.high - self.low)).clip(-0.1, 1.1))


def _line(heights: Array, kind: str) -> str:
    heights = np.repeat(heights, 2) if len(heights) == 1 else heights
    across = np.linspace(0, WIDTH, len(heights))
    down = HEIGHT * (0.92 - 0.84 * heights)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    return f'<polyline class="{kind}" points="{points}"/>'


def _png(pixels: Array) -> str:
    packed = io.BytesIO()
    clear = CLEAR if pixels.ndim == 2 else (CLEAR,) * 3
    Image.fromarray(np.ascontiguousarray(pixels)).save(packed, "PNG", optimize=True, transparency=clear)
    return f"data:image/png;base64,{base64.b64encode(packed.getvalue()).decode()}"
