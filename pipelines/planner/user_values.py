"""Values of row functions: Spark hands them over by pickle, as Rows and local times; the user sees plain values in UTC."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import types as T

from pipelines.planner.step import type_of

Convert = Callable[[Any], Any]


def from_spark(types: Sequence[T.DataType]) -> Convert | None:
    """From the values that a function is called with to plain ones; None if they are plain by themselves."""
    return _of_all([_incoming(kind) for kind in types])


def to_spark(types: Sequence[str]) -> Convert | None:
    """From a row that a function gave to what Spark takes for these types; None if it is that."""
    return _of_all([_outgoing(type_of(text)) for text in types])


def _of_all(converts: list[Convert | None]) -> Convert | None:
    if not any(converts):
        return None
    return lambda values: tuple(
        convert(value) if convert and value is not None else value
        for convert, value in zip(converts, values, strict=True)
    )


def _incoming(kind: T.DataType) -> Convert | None:
    return _nested(kind, _incoming, _utc, lambda row: row.asDict())


def _outgoing(kind: T.DataType) -> Convert | None:
    return _nested(kind, _outgoing, _zoned, None)


def _nested(
    kind: T.DataType, inner: Callable[[T.DataType], Convert | None], time: Convert, struct: Convert | None
) -> Convert | None:
    if isinstance(kind, T.TimestampType):
        return time
    if isinstance(kind, T.ArrayType):
        return _array(inner(kind.elementType))
    if isinstance(kind, T.MapType):
        return _map(inner(kind.keyType), inner(kind.valueType))
    if isinstance(kind, T.StructType):
        return _struct(kind, [inner(field.dataType) for field in kind.fields], struct)
    return None


def _array(each: Convert | None) -> Convert | None:
    return None if each is None else lambda values: [None if value is None else each(value) for value in values]


def _map(key: Convert | None, item: Convert | None) -> Convert | None:
    if key is None and item is None:
        return None
    return lambda mapping: {
        (key(raw_key) if key else raw_key): (item(other) if item and other is not None else other)
        for raw_key, other in mapping.items()
    }


def _struct(kind: T.StructType, fields: list[Convert | None], first: Convert | None) -> Convert | None:
    if first is None and not any(fields):
        return None
    by_name = dict(zip(kind.names, fields, strict=True))

    def convert(value: Any) -> Any:
        value = first(value) if first else value
        if isinstance(value, dict):
            return {name: _one(by_name.get(name), item) for name, item in value.items()}
        return tuple(_one(each, item) for each, item in zip(fields, value, strict=True))

    return convert


def _one(convert: Convert | None, value: Any) -> Any:
    return convert(value) if convert and value is not None else value


def _utc(value: datetime.datetime) -> datetime.datetime:
    """Spark gives a time of the worker's own time zone."""
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


def _zoned(value: Any) -> Any:
    """A time without zone is UTC; Spark would take it for one of the worker's own time zone."""
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    return value
