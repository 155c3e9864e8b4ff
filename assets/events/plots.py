"""Small plots for Dagster's pages: bars as a PNG of half a kilobyte, inside the metadata's own text.

The UI shows a markdown entry in the page itself while its text is shorter than 1,000 characters, and behind a link when it is
longer. A plot keeps below that: two colours and a bitmap font. Pillow draws one in a millisecond; matplotlib takes 0.2 s, twenty
times the space, and a second or more for its import (docs/adr/0027).
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

INLINE = 1000
"""Characters from which on Dagster's UI shows markdown only on demand."""

BAR, OTHER, INK = (0x3B, 0x82, 0xF6), (0xD9, 0x77, 0x06), (0x7B, 0x7B, 0x7B)
"""Colours, each of which stands out from the light page of the UI as well as from the dark one: what is behind is transparent."""

_WIDTH, _HEIGHT, _LEFT, _BASE = 320, 76, 70, 60
_LETTER = 6


@dataclass(frozen=True)
class Bars:
    """A plot of bars from left to right, the last on the right.

    Attributes:
        values: Their heights, 0 or more; what is not known (None, NaN) has no bar.
        unit: the unit of the values, beside the axis.
        first, last: What the first and the last bar are, below them ("txid 3", "41").
        others: Positions of bars in the second colour.
    """

    values: Sequence[float | None]
    unit: str
    first: str = ""
    last: str = ""
    others: frozenset[int] = field(default_factory=frozenset)

    def tail(self, count: int) -> Bars:
        """Return the last bars alone, without the name of the first."""
        gone = max(0, len(self.values) - count)
        return Bars(
            self.values[gone:],
            self.unit,
            self.first if not gone else f"the last {count}",
            self.last,
            frozenset(at - gone for at in self.others if at >= gone),
        )


def markdown_of(title: str, bars: Bars) -> dg.MarkdownMetadataValue | None:
    """Return a plot as metadata, short enough to be shown in the page; None if there is nothing to plot.

    Args:
        title: For those who cannot see it.
        bars: What it shows. If it does not fit, the earliest bars are left out.
    """
    if not any(_known(value) is not None for value in bars.values):
        return None
    count = len(bars.values)
    while True:
        text = base64.b64encode(png(bars.tail(count))).decode()
        shown = f"![{title}](data:image/png;base64,{text})"
        if len(shown) < INLINE or count == 1:
            return dg.MetadataValue.md(shown)
        count = max(1, count * 3 // 4)


def entries(plots: Mapping[str, Bars]) -> dict[str, dg.MarkdownMetadataValue]:
    """Return plots as metadata by their titles, without those that have nothing to show."""
    made = {title: markdown_of(title, bars) for title, bars in plots.items()}
    return {title: plot for title, plot in made.items() if plot is not None}


def png(bars: Bars) -> bytes:
    """Draw the picture: a y axis from 0 to the highest value with its unit, an x axis with the names of both ends."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("P", (_WIDTH, _HEIGHT), 0)
    image.putpalette([*(255, 255, 255), *BAR, *INK, *OTHER])
    draw = ImageDraw.Draw(image)
    # Letters of one colour without shades: they stay readable on any page, and small.
    draw.fontmode, draw.font = "1", ImageFont.load_default_imagefont()
    values = [_known(value) for value in bars.values]
    top = max((value for value in values if value is not None), default=0.0)
    _axes(draw, bars, top)
    step = (_WIDTH - _LEFT) / max(len(values), 1)
    for at, value in enumerate(values):
        if value is None:
            continue
        left, right = _LEFT + int(at * step), _LEFT + int((at + 1) * step) - (2 if step >= 3 else 1)
        # What is not nothing can be seen.
        height = max(int(value / top * (_BASE - 2)), 1) if value > 0 else 0
        if height:
            draw.rectangle((left, _BASE - height, max(left, right), _BASE - 1), fill=3 if at in bars.others else 1)
    out = io.BytesIO()
    image.save(out, "PNG", transparency=0, bits=2, optimize=True)
    return out.getvalue()


def _axes(draw: ImageDraw, bars: Bars, top: float) -> None:
    for line, text in enumerate((_number(top), *bars.unit.split("\n"))):
        draw.text((_LEFT - 6 - _LETTER * len(text), line * 12), text, fill=2)
    draw.text((_LEFT - 6 - _LETTER, _BASE - 8), "0", fill=2)
    draw.line((_LEFT - 2, 0, _LEFT - 2, _BASE), fill=2)
    draw.line((_LEFT - 2, _BASE, _WIDTH, _BASE), fill=2)
    # The font has Latin-1's letters; slices may have others.
    first, last = (name.encode("latin-1", "replace").decode("latin-1") for name in (bars.first, bars.last))
    draw.text((_LEFT, _BASE + 4), first, fill=2)
    draw.text((_WIDTH - _LETTER * len(last), _BASE + 4), last, fill=2)


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) or value < 0 else float(value)


def _number(value: float) -> str:
    """Write a number in nine letters at most."""
    if value >= 100_000_000 or (0 < value < 0.001):
        return f"{value:.2g}"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}" if value < 1_000_000 else f"{value / 1e6:,.1f} M"
    return f"{value:.3g}"


def in_bytes(values: Sequence[float | None]) -> tuple[list[float | None], str]:
    """Scale sizes to the largest unit that the largest of them reaches: (values, unit)."""
    top = max((value for value in values if value is not None), default=0.0)
    for unit, factor in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if top >= factor:
            return [None if value is None else value / factor for value in values], unit
    return list(values), "bytes"
