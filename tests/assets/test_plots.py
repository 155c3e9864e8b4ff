"""Plots in metadata: short enough to be shown in the page, and readable on a light and on a dark one."""

from __future__ import annotations

import base64
import io
import random

import pytest
from PIL import Image

from assets.events import plots
from assets.events.plots import Bars

# The pages of Dagster's UI, light and dark.
PAGES = ((255, 255, 255), (15, 18, 23))


def image(text: str) -> Image.Image:
    """The picture in a markdown entry."""
    head, _, data = text.removesuffix(")").partition("(data:image/png;base64,")
    assert head.startswith("![")
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")


def colours(text: str) -> set[tuple[int, int, int]]:
    """Those that can be seen."""
    found = image(text).getcolors(maxcolors=16) or []
    return {colour[:3] for _, colour in found if isinstance(colour, tuple) and colour[3]}


def shown(bars: Bars) -> str:
    made = plots.markdown_of("rows per batch", bars)
    assert made is not None
    return str(made.value)


def luminance(colour: tuple[int, ...]) -> float:
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("colour", "least"), [(plots.BAR, 3.0), (plots.OTHER, 3.0), (plots.INK, 4.0)])
def test_every_colour_stands_out_from_the_page(colour: tuple[int, ...], least: float, page: tuple[int, ...]) -> None:
    lighter, darker = sorted((luminance(colour), luminance(page)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= least


@pytest.mark.parametrize("name", ["é", "Łódź", "北京", "😀", "a\nb", "\udcff", "x" * 1000])
def test_a_bar_may_have_any_name(name: str) -> None:
    """Slices have; the letters of the font are Latin-1's."""
    assert colours(shown(Bars([1, 2, 3], "rows", name, name))) == {plots.BAR, plots.INK}


@pytest.mark.parametrize("count", [1, 2, 40, 400])
def test_a_plot_is_short_enough_for_the_page(count: int) -> None:
    dice = random.Random(count)
    bars = Bars([dice.random() * 1e9 for _ in range(count)], "seconds", "txid 123456789", "123456829")
    text = shown(bars)
    assert len(text) < plots.INLINE
    assert colours(text) == {plots.BAR, plots.INK}


def test_what_does_not_fit_is_the_earliest() -> None:
    bars = Bars([float(n) for n in range(10)], "rows", "txid 0", "9", frozenset({1, 8}))
    cut = bars.tail(3)
    assert (cut.values, cut.first, cut.last, cut.others) == ([7.0, 8.0, 9.0], "the last 3", "9", frozenset({1}))
    assert bars.tail(10) == bars


def test_the_second_colour_and_what_is_not_known() -> None:
    text = shown(Bars([1.0, None, 3.0, float("nan")], "rows", others=frozenset({2})))
    assert colours(text) == {plots.BAR, plots.OTHER, plots.INK}
    assert colours(shown(Bars([0, 0], "rows"))) == {plots.INK}
    assert plots.markdown_of("lag", Bars([None, float("nan")], "seconds")) is None
    assert list(plots.entries({"a": Bars([], "rows"), "b": Bars([1], "rows")})) == ["b"]


def test_the_highest_bar_reaches_the_top_and_half_of_it_the_middle() -> None:
    picture = image(shown(Bars([2.0, 1.0], "rows")))
    heights = [sum(picture.getpixel((x, y)) == (*plots.BAR, 255) for y in range(picture.height)) for x in (80, 300)]
    assert heights[0] == 2 * heights[1]


def test_sizes_in_the_unit_of_the_largest() -> None:
    assert plots.in_bytes([512.0, None, 2048.0]) == ([0.5, None, 2.0], "KiB")
    assert plots.in_bytes([3.0]) == ([3.0], "bytes")
    assert plots.in_bytes([]) == ([], "bytes")
    assert plots.in_bytes([3 * 2.0**30]) == ([3.0], "GiB")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.25, "0.25"),
        (1234, "1,234"),
        (12_345_678, "12.3 M"),
        (5e11, "5e+11"),
        (0.0001, "0.0001"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert plots._number(value) == text
