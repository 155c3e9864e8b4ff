"""Values of Arrow's as a user's code is given them, from Spark or from a state's table.

Timestamps are without time zone, in UTC; structs and maps are dicts, arrays are lists, and within a map's key tuples.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]


def converter(kind: pa.DataType) -> Convert | None:
    """Return how a value that Arrow gave becomes a plain one; None if it is one already."""
    # Here, for definitions, which take a time's zone from this module, load without Arrow.
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return without_zone if kind.tz else None
    if pa.types.is_struct(kind):
        inner = {field.name: converter(field.type) or _same for field in kind}
        return _optional(lambda value: {name: inner[name](item) for name, item in value.items()})
    if pa.types.is_map(kind):
        key, item = converter(kind.key_type) or _same, converter(kind.item_type) or _same
        if pa.types.is_nested(kind.key_type):
            return _optional(lambda pairs: {as_key(key(raw_key)): item(other) for raw_key, other in pairs})
        return _optional(lambda pairs: {key(raw_key): item(other) for raw_key, other in pairs})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        each = converter(kind.value_type)
        return _optional(lambda values: [each(value) for value in values]) if each else None
    return None


def plain_list(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column as a list of plain values."""
    import pyarrow as pa

    convert = converter(column.type)
    if convert is without_zone:
        return list(column.cast(pa.timestamp(column.type.unit)).to_pylist())
    values: list[Any] = column.to_pylist()
    return [convert(value) for value in values] if convert else values


def without_zone(value: datetime.datetime | None) -> datetime.datetime | None:
    """Return a time with a zone as one without, in UTC."""
    return None if value is None else value.astimezone(datetime.UTC).replace(tzinfo=None)


def plain_time(value: Any) -> Any:
    """Return a time with a zone as one without, in UTC; any other value as it is."""
    return without_zone(value) if isinstance(value, datetime.datetime) and value.tzinfo else value


def in_utc(value: Any) -> Any:
    """Return a time without a time zone as the one of UTC; any other value as it is."""
    naive = isinstance(value, datetime.datetime) and value.tzinfo is None
    return value.replace(tzinfo=datetime.UTC) if naive else value


def as_float32(value: float) -> float:
    """Return a number as a `float` of Spark's holds it."""
    try:
        near: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return near


def as_key(value: Any) -> Any:
    """Return a map's key as one that a dict takes: an array or a struct as a tuple."""
    parts = value.values() if isinstance(value, dict) else value
    return tuple(map(as_key, parts)) if isinstance(value, list | dict) else value


def _same(value: Any) -> Any:
    return value


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
