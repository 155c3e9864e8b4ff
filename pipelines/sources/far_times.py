"""Dates and times beyond the years 1 to 9999: Spark parses them, Python has no value for them, so no state may hold them."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pipelines.sources.base import CORRUPT, ROW_JSON

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

FAR_TIME = "\x00far"
"""What `_corrupt` begins with in a row with such a value: then the names of its fields, `\\x00`, the row as JSON."""
_FIRST, _LAST = "0001-01-01", "9999-12-31"


def marked(schema: StructType) -> Column | None:
    """Return `_corrupt` of rows with these fields, also of rows with a date or time too far; None: no field can hold one."""
    from pyspark.sql import functions as F

    beyond = {field.name: _beyond(F.col(f"`{field.name}`"), field.dataType) for field in schema.fields}
    far = {name: condition for name, condition in beyond.items() if condition is not None}
    if not far:
        return None
    names = F.concat_ws(", ", *(F.when(condition, F.lit(name)) for name, condition in far.items()))
    row = F.to_json(F.struct(*(F.col(f"`{field.name}`") for field in schema.fields)), ROW_JSON)
    mark = F.when(reduce(or_, far.values()), F.concat(F.lit(FAR_TIME), names, F.lit("\x00"), row))
    return F.coalesce(F.col(CORRUPT), mark).alias(CORRUPT)


def _beyond(value: Column, kind: DataType) -> Column | None:
    """Return whether a value holds a time too far (null where it is null itself); None: none of its type can."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, MapType, StructType, TimestampNTZType, TimestampType

    if isinstance(kind, DateType):
        return ~value.between(F.lit(_FIRST).cast("date"), F.lit(_LAST).cast("date"))
    if isinstance(kind, TimestampType):
        first, last = f"{_FIRST}T00:00:00Z", f"{_LAST}T23:59:59.999999Z"
        return ~value.between(F.lit(first).cast("timestamp"), F.lit(last).cast("timestamp"))
    if isinstance(kind, TimestampNTZType):
        first, last = f"{_FIRST}T00:00:00", f"{_LAST}T23:59:59.999999"
        return ~value.between(F.lit(first).cast("timestamp_ntz"), F.lit(last).cast("timestamp_ntz"))
    if isinstance(kind, StructType):
        parts = [_beyond(value.getField(field.name), field.dataType) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [_in_any(value, kind.elementType)]
    elif isinstance(kind, MapType):
        parts = [_in_any(F.map_keys(value), kind.keyType), _in_any(F.map_values(value), kind.valueType)]
    else:
        parts = []
    found = [part for part in parts if part is not None]
    return reduce(or_, found) if found else None


def _in_any(values: Column, kind: DataType) -> Column | None:
    from pyspark.sql import functions as F

    if _beyond(F.lit(None).cast(kind), kind) is None:
        return None

    def beyond(value: Column) -> Column:
        found = _beyond(value, kind)
        assert found is not None
        return found

    return F.exists(values, beyond)
