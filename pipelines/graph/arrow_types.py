"""Spark SQL's simple types as Arrow types, without Spark."""

from __future__ import annotations

import pyarrow as pa

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
"""By the type's text; other types are left to Spark, or inferred from values."""
