"""Arguments and rows of queries as JSON that keeps their types, where JSON has no form for a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

_READ: dict[str, Callable[[Any], Any]] = {
    "$decimal": Decimal,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$microseconds": lambda count: timedelta(microseconds=count),
    "$bytes": bytes.fromhex,
    "$map": lambda pairs: {_as_key(from_wire(key)): from_wire(value) for key, value in pairs},
}


def to_wire(value: Any) -> Any:
    """Return a value as plain data from which `from_wire` makes the value again."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: to_wire(item) for key, item in value.items()}
        return {"$map": [[to_wire(key), to_wire(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, date):
        return {"$datetime" if isinstance(value, datetime) else "$date": value.isoformat()}
    if isinstance(value, time):
        return {"$time": value.isoformat()}
    if isinstance(value, timedelta):
        return {"$microseconds": value // timedelta(microseconds=1)}
    return {"$bytes": value.hex()} if isinstance(value, bytes | bytearray) else value


def from_wire(value: Any) -> Any:
    """Return the value that `to_wire` was given; a tuple comes as a list, but in the key of a map."""
    if isinstance(value, list):
        return [from_wire(item) for item in value]
    if not isinstance(value, dict):
        return value
    for name, read in _READ.items():
        if name in value:
            return read(value[name])
    return {key: from_wire(item) for key, item in value.items()}


def _as_key(value: Any) -> Any:
    return tuple(_as_key(part) for part in value) if isinstance(value, list) else value
