"""Spark SQL's types as Arrow types, without Spark."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import pyarrow as pa

from pipelines.graph.types import DECIMAL, parts_of

ARROW_TYPES: dict[str | None, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""The simple ones, by the type's text."""


@lru_cache(maxsize=256)
def arrow_type(kind: str | None) -> pa.DataType | None:
    """Return the Arrow type of a type as `parse_ddl` gives it; None where it is left to Spark, or inferred from values."""
    # A comment may hold a comma.
    with suppress(ValueError):
        return _known(kind)
    return None


def _known(kind: str | None) -> pa.DataType | None:
    if kind is None or kind in ARROW_TYPES:
        return ARROW_TYPES.get(kind)
    if kind in ("timestamp_ltz", "timestamp_ntz"):
        return ARROW_TYPES["timestamp"] if kind == "timestamp_ltz" else pa.timestamp("us")
    if decimal := DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1] or 10), int(decimal[2] or 0))
    outer, inner = parts_of(kind)
    parts = [(name, known) for name, part in inner if (known := arrow_type(part)) is not None]
    if not inner or len(parts) < len(inner):
        return None
    if outer == "struct":
        return pa.struct(parts)
    return pa.map_(*(part for _, part in parts)) if outer == "map" else pa.list_(parts[0][1])
