"""An order and an identity of any values: of several types too, never an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

OrderKey = tuple[str, Any]

SEVERAL = (list, tuple, set, frozenset)
"""What several values of a field come as."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Seconds below are told apart to the microsecond as floats, too. Such floats are in the keys of windows.
_TOLD_APART: Final = 2.0**33


def order_key(value: Any) -> OrderKey:
    """Return what to sort by: the type's name, then the value. Equal keys are equal values; a key is hashable.

    Whole numbers, floats and decimals are one type; NaN is the greatest number, as in Spark; True is not 1.
    """
    kind = type(value)
    if kind is str:
        return ("str", value)
    if kind is int:
        return ("number", value)
    if kind is float or kind is Decimal:
        return ("number", value) if value == value else ("number~nan", 0)
    return _rare(value)


def _rare(value: Any) -> OrderKey:
    if value is None:
        return ("", 0)
    if isinstance(value, bool | bytes | timedelta):
        return (type(value).__name__, value)
    if isinstance(value, int | float):
        return ("number", value) if value == value else ("number~nan", 0)
    if isinstance(value, str):
        return ("str", str(value))
    if isinstance(value, datetime):
        return ("datetime with zone", _seconds(value)) if value.tzinfo else ("datetime", value)
    if isinstance(value, date):
        return ("date", value)
    if isinstance(value, dict):
        return ("dict", tuple(sorted((order_key(name), order_key(item)) for name, item in value.items())))
    if isinstance(value, set | frozenset):
        return ("set", tuple(sorted(map(order_key, value))))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(order_key, value)))
    return (type(value).__name__, repr(value))


def foremost(value: Any, greatest: bool) -> OrderKey | None:
    """Return the key of a field to sort events by: of several values the least, or the greatest; None where there is none.

    A null among several is none of them.
    """
    if isinstance(value, SEVERAL):
        return (max if greatest else min)((order_key(one) for one in value if one is not None), default=None)
    return None if value is None else order_key(value)


def spark_key(value: Any) -> tuple[Any, ...]:
    """Return what to sort values of one type by as Spark does: null is the least, NaN the greatest, in each part too."""
    if value is None:
        return (0,)
    if isinstance(value, float) and value != value:
        return (2,)
    if isinstance(value, Mapping):
        return (1, tuple(map(spark_key, value.values())))
    return (1, tuple(map(spark_key, value)) if isinstance(value, list | tuple) else value)


def _seconds(value: datetime) -> float | Fraction:
    """Return the seconds since 1970, another number for each microsecond."""
    seconds = value.timestamp()
    if abs(seconds) < _TOLD_APART:
        return seconds
    exact = Fraction((value - _EPOCH) // timedelta(microseconds=1), 10**6)
    return seconds if seconds == exact else exact


def freeze(value: Any) -> Any:
    """Return a hashable stand-in for a key: equal for values that Spark groups together (two NaN, two equal arrays)."""
    if isinstance(value, float):
        return ("NaN", float) if value != value else value
    if isinstance(value, Mapping):
        # A map may have its entries in any order; the names of a struct's fields are in one anyway.
        by = None if all(type(key) is str for key in value) else order_key
        return tuple((freeze(key), freeze(value[key])) for key in sorted(value, key=by))
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the different values in order."""
    by_key = {order_key(value): value for value in values}
    return [by_key[key] for key in sorted(by_key)]


def values_of(value: Any) -> list[Any] | tuple[Any, ...]:
    """Return the values of an event's field: none where it is absent, several where it is a list."""
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return value
    return list(value) if isinstance(value, set | frozenset) else (value,)
