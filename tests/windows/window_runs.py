"""Windows run by a script: events and ticks one after the other, as in the tables of the Flowmix rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipelines.windows.buffer import WindowContext
from pipelines.windows.event import Event
from pipelines.windows.keyed import Item, KeyedWindows

TICK = "tick"


def context(*partition: str) -> WindowContext:
    return WindowContext("flow", "stream", 1, partition)


def items(script: Iterable[Any]) -> tuple[list[Item], int]:
    """A script's events with their clocks, and its last clock. It starts at 0 ms, TICK adds a second.

    An event is a dict of its fields; "timestamp" sets its clock, "stream" where it comes from.
    """
    now, found = 0, []
    for number, one in enumerate(script):
        if one == TICK:
            now += 1000
            continue
        fields = {name: value for name, value in one.items() if name not in ("timestamp", "stream")}
        now = one.get("timestamp", now)
        found.append((Event(fields, f"e{number}", now, one.get("stream", "")), now, f"{number:06d}"))
    return found, now


def run(operation: Any, script: Iterable[Any], *partition: str) -> list[Item]:
    """All that an operation makes of a script."""
    events, end = items(script)
    return KeyedWindows(operation, context(*partition)).feed(events, end)


def values(results: Iterable[Item], field: str = "v") -> list[Any]:
    return [event.get(field) for event, _, _ in results]


def groups(results: Iterable[Item], field: str = "v") -> list[list[Any]]:
    """The values of results that came together: of one event, or of one key's tick."""
    found: dict[tuple[int, str], list[Any]] = {}
    for event, now, order in results:
        found.setdefault((now, order.rsplit(".", 1)[0]), []).append(event.get(field))
    return list(found.values())
