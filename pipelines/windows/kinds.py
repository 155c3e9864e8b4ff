"""Which window each operation has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.windows.aggregate import AggregateBuffer
from pipelines.windows.buffer import Key, Window, WindowContext
from pipelines.windows.operations import AggregateWindow

KINDS: dict[type, Callable[[Any, Key, WindowContext], Window]] = {
    AggregateWindow: AggregateBuffer,
}
