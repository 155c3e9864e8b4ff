"""Who wants to see batches and slices while a run of this process is on (the demo's progress bar)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Watcher = Callable[[Any], None]

_watchers: list[Watcher] = []


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """While the block runs, `watcher` gets every BatchReport and SliceReport of runs in this process."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def tell(report: Any) -> None:
    """Pass a report on."""
    for watcher in tuple(_watchers):
        watcher(report)
