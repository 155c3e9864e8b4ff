"""The comparison of two values: the one definition that criteria in Python and in Spark share (Flowmix rules 6)."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

from pipelines.graph.plain_values import as_float32, in_utc

_NUMBERS = ("tinyint", "smallint", "int", "integer", "bigint", "float", "double", "decimal", "numeric", "real", "long")
_KINDS = {
    "number": _NUMBERS,
    "text": ("string", "varchar", "char"),
    "boolean": ("boolean",),
    "binary": ("binary",),
    "time": ("timestamp",),
    "date": ("date",),
}


def kind_of(value: Any) -> str:
    """Return the kind of a value; only values of one kind can be compared. True is no number, a time is no date."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float | Decimal):
        return "number"
    if isinstance(value, datetime.datetime):
        return "time"
    if isinstance(value, datetime.date):
        return "date"
    if isinstance(value, bytes | bytearray):
        return "binary"
    return "text" if isinstance(value, str) else f"other {type(value).__name__}"


def compared(value: Any, other: Any) -> int | None:
    """Return -1, 0 or 1: before, equal, after; None for values of different kinds. Not a number equals itself and is the largest.

    Where one of two numbers is a double both are compared as doubles, as Spark does it.
    """
    kind = kind_of(value)
    if kind != kind_of(other):
        return None
    if kind == "number":
        one_nan, other_nan = (isinstance(v, float) and math.isnan(v) for v in (value, other))
        if one_nan or other_nan:
            return int(one_nan) - int(other_nan)
        if isinstance(value, float) != isinstance(other, float):
            value, other = as_double(value), as_double(other)
    if kind == "time":
        value, other = in_utc(value), in_utc(other)
    return int(value > other) - int(value < other)


def fitted(value: Any, sql_type: str | None) -> Any:
    """Convert a value to what a column of this Spark SQL type holds: one value for an array to a list, 1 for a double to 1.0.

    A float has 32 bits: of 0.1 it holds 0.10000000149011612.
    """
    if value is None or sql_type is None:
        return value
    if sql_type.startswith("array<"):
        inner = sql_type[6:-1]
        values = value if isinstance(value, list | tuple | set | frozenset) else [value]
        return [fitted(item, inner) for item in values]
    if sql_type in ("float", "double") and type(value) in (int, Decimal):
        value = as_double(value)
    return as_float32(value) if sql_type == "float" and isinstance(value, float) else value


def of_type(value: Any, sql_type: str | None) -> bool:
    """Return whether a value is of the same kind as a column of this Spark SQL type; of an unknown type (None): yes."""
    if sql_type is None:
        return True
    base = sql_type.lower().split("(")[0].strip()
    base = "timestamp" if base.startswith("timestamp") else base
    return base in _KINDS.get(kind_of(value), ())


def as_double(value: float | Decimal) -> float:
    """Return the double nearest to a number."""
    try:
        return float(value)
    except OverflowError:  # an int beyond all doubles
        return math.inf if value > 0 else -math.inf
