"""Rows of Arrow as events with their clock and order, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

import pyarrow as pa

from pipelines.graph import events
from pipelines.graph.row_values import to_arrow
from pipelines.windows.event import Event

Items = list[tuple[Event, int, str]]
"""Events, each with its clock in ms and its place among those of that clock."""


def events_of(rows: pa.Table) -> list[Event]:
    """Return rows as events, with what they carry of id, time and origin."""
    names = [name for name in rows.column_names if name not in events.COLUMNS]
    size = rows.num_rows
    columns = [_values(rows[name]) for name in names]
    fields = zip(*columns, strict=True) if columns else iter([()] * size)
    carried = (
        rows[name].to_pylist() if name in rows.column_names else [None] * size
        for name in (events.ID, events.TIME, events.FROM)
    )
    if any(rows[name].null_count for name in names):
        return [
            Event(dict(zip(names, values, strict=True)), *own) for values, *own in zip(fields, *carried, strict=True)
        ]
    make = Event.whole
    return [make(zip(names, values, strict=False), *own) for values, *own in zip(fields, *carried, strict=True)]


def items_of(rows: pa.Table, floor: int | None = None) -> Items:
    """Return rows as events with their clock and order.

    Args:
        floor: a clock of arrival may be set back between batches; none is taken for earlier than this.
    """
    clocks = rows[events.CLOCK].to_pylist()
    if floor is not None:
        clocks = [max(clock, floor) for clock in clocks]
    return list(zip(events_of(rows), clocks, rows[events.ORDER].to_pylist(), strict=True))


def rows_of(items: Sequence[tuple[Event, int, str]], schema: pa.Schema) -> pa.Table:
    """Return events with their clock and order as rows of a schema.

    Raises:
        ValueError: for a value that its field cannot hold, with the field and the event's other fields: its key is among them.
    """
    own: dict[str, list[Any]] = {
        events.ID: [event.id for event, _, _ in items],
        events.TIME: [event.timestamp for event, _, _ in items],
        events.CLOCK: [clock for _, clock, _ in items],
        events.FROM: [event.stream for event, _, _ in items],
        events.ORDER: [order for _, _, order in items],
    }
    columns = {
        f.name: own[f.name] if f.name in own else as_lists([event.get(f.name) for event, _, _ in items], f.type)
        for f in schema
    }
    try:
        arrays = {
            f.name: pa.array(own[f.name], f.type) if f.name in own else to_arrow(columns[f.name], f.type)
            for f in schema
        }
        return pa.table(arrays, schema=schema)
    except (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError) as error:
        if (unfit := _unfit(columns, schema, items)) is None:
            raise
        raise unfit from error


def _unfit(
    columns: Mapping[str, Sequence[Any]], schema: pa.Schema, items: Sequence[tuple[Event, int, str]]
) -> ValueError | None:
    """Return the error of the first value that its field cannot hold; None if each fits by itself."""
    for field in schema:
        for value, (event, _, _) in zip(columns[field.name], items, strict=True):
            try:
                to_arrow([value], field.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError) as error:
                beside = {name: other for name, other in event.items() if name != field.name}
                return ValueError(f'{value!r} does not fit "{field.name}" ({field.type}), beside {beside!r}: {error}')
    return None


def as_lists(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Return values of a field as its type wants them: one value where there may be several is a list of one."""
    if not pa.types.is_list(kind):
        return values
    return [value if value is None or isinstance(value, list | tuple) else [value] for value in values]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values, maps as dicts. Of timestamps in UTC four times as fast as Arrow's own way."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz == "UTC" and kind.unit == "us" and not column.null_count:
        naive: list[Any] = column.to_numpy().astype("datetime64[us]").tolist()
        if not any(type(value) is int for value in naive):  # a year that Python does not have
            return [value.replace(tzinfo=UTC) for value in naive]
    # Of entries of one key, which sources may give, the last counts, as elsewhere in Python.
    return column.to_pylist(maps_as_pydicts="lossy")
