"""The terminal: what is printed on it may hold text from data, which must not steer it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pipelines.printable import printable


class Screen(Console):
    """A console on which only rich itself writes control characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is put on the screen."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


class PlainLines(logging.Formatter):
    """Lines of a log, with traces, as a terminal may show them."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        return printable(super().format(record))
