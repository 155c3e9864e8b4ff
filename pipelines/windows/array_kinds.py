"""The arrays of each operation: which can be worked so, and how."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pipelines.aggregators.window import WindowAggregator
from pipelines.graph import events
from pipelines.windows.arrays import Arrays
from pipelines.windows.buffer import WindowContext
from pipelines.windows.one_by_one import OneByOne
from pipelines.windows.operations import AggregateWindow, SpanWindow
from pipelines.windows.span_arrays import SpanArrays
from pipelines.windows.tuples import TupleChain
from pipelines.windows.vectorised import ArrayWindows, is_bounded


def fits(operation: Any, context: WindowContext, types: pa.Schema) -> bool:
    """Check whether the windows of an operation can be worked in arrays: plain keys, and one of

    - windows by policies that fire and hold few events, with built-in numeric aggregators;
    - aligned and session windows, with any aggregator.

    Args:
        types: the fields of the events.
    """
    if not all(name in types.names and _is_key(types.field(name).type) for name in context.partition):
        return False
    return isinstance(operation, SpanWindow) or (
        isinstance(operation, AggregateWindow) and is_bounded(operation, types)
    )


def _is_key(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_signed_integer(kind)


def windows_of(operation: Any, context: WindowContext, types: pa.Schema, schema: pa.Schema) -> Arrays:
    """Return the windows of an operation: in arrays where it `fits`, else one by one.

    Args:
        types: the fields of the events.
        schema: as of `arrays_for`.
    """
    if fits(operation, context, types):
        return arrays_for(operation, context, schema)
    return OneByOne(operation, context, schema)


def arrays_for(operation: Any, context: WindowContext, schema: pa.Schema) -> Arrays:
    """Return the windows of an operation that `fits`.

    Args:
        schema: of the results: partition fields, outputs, and `pipelines.graph.events.COLUMNS`.
    """
    if isinstance(operation, SpanWindow):
        return SpanArrays(operation, context, schema)
    return ArrayWindows(operation, context, schema)


EVENT_COLUMNS = (events.ID, events.TIME, events.FROM)
"""An event's id, own time and origin."""


def wanted_columns(operation: Any, context: WindowContext) -> tuple[str, ...]:
    """Return which of an event's id, own time and origin its windows in arrays look at."""
    if not isinstance(operation, SpanWindow):
        return ()
    if sees_whole_events(operation):
        return EVENT_COLUMNS
    return (events.TIME,) if context.depth else ()


def sees_whole_events(operation: SpanWindow) -> bool:
    """Check whether a user's aggregator gets the events: it may look at any field, and at their id and time."""
    return any(isinstance(aggregator, WindowAggregator | TupleChain) for aggregator in operation.aggregators)
