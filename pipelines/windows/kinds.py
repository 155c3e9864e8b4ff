"""The window of each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pipelines.aggregators.values import KeptEntries
from pipelines.aggregators.window import Accumulator, EventAggregator, Types
from pipelines.windows.aggregate import AggregateBuffer
from pipelines.windows.aligned import AlignedBuffer, SessionBuffer
from pipelines.windows.buffer import Key, Window, WindowContext
from pipelines.windows.join import JoinBuffer
from pipelines.windows.operations import (
    AggregateWindow,
    AlignedWindow,
    CollectWindow,
    JoinWindow,
    SessionWindow,
    SortWindow,
    SwitchWindow,
    TaskWindow,
)
from pipelines.windows.sort import SortBuffer
from pipelines.windows.switch import SwitchBuffer
from pipelines.windows.task_window import TaskBuffer


class _WholeEvents(EventAggregator):
    """All events of the window as structs of their fields."""

    def __init__(self, output: str) -> None:
        self.output = output

    def accumulator(self) -> Accumulator:
        return _Events()

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        return [(self.output, None)]

    def check(self) -> None:
        """It needs no field."""


class _Events(KeptEntries):
    def __init__(self) -> None:
        super().__init__(None)

    def entry(self, event: Mapping[str, Any]) -> dict[str, Any]:
        return dict(event)

    def aggregate(self) -> list[dict[str, Any]]:
        return list(self.entries)


@lru_cache(maxsize=64)
def _as_aggregate(operation: CollectWindow) -> AggregateWindow:
    return AggregateWindow(
        (_WholeEvents(operation.field),),
        operation.trigger,
        operation.evict,
        operation.clear_on_trigger,
        operation.window_evict_millis,
    )


def _collect(operation: CollectWindow, key: Key, context: WindowContext) -> Window:
    return AggregateBuffer(_as_aggregate(operation), key, context)


KINDS: dict[type, Callable[[Any, Key, WindowContext], Window]] = {
    AggregateWindow: AggregateBuffer,
    CollectWindow: _collect,
    AlignedWindow: AlignedBuffer,
    SessionWindow: SessionBuffer,
    SortWindow: SortBuffer,
    SwitchWindow: SwitchBuffer,
    JoinWindow: JoinBuffer,
    TaskWindow: TaskBuffer,
}


def window_for(operation: Any, key: Key, context: WindowContext) -> Window:
    """Return the window of a key.

    Raises:
        TypeError: if the operation is none of `pipelines.windows.operations`.
    """
    kind = KINDS.get(type(operation))
    if kind is None:
        raise TypeError(f"{type(operation).__name__} is no stateful operation")
    return kind(operation, key, context)
