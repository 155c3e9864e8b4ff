"""Columns, literals and bounds as great-expectations would hand them to Spark.

Under ANSI mode a comparison between, say, a string column and a number fails in the middle of a batch. Everything here
finds that out from the schema, before the first batch.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.bounds import shown
from pipelines.errors import FieldError, FunctionError
from pipelines.graph.dialects import SPARK
from pipelines.graph.plain_values import in_utc

LARGEST = 2**63 - 1
INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def family(data_type: T.DataType) -> str:
    """Return the group of types that compare with each other: number, string, boolean, time or the type's own name."""
    if isinstance(data_type, T.NumericType):
        return "number"
    if isinstance(data_type, (T.StringType, T.CharType, T.VarcharType)):
        return "string"
    if isinstance(data_type, (T.DateType, T.TimestampType, T.TimestampNTZType)):
        return "time"
    return data_type.typeName()


def value_family(value: Any) -> str:
    """Return the family of a Python value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float, decimal.Decimal)):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (datetime.date, datetime.datetime)):
        return "time"
    return type(value).__name__


@dataclass(frozen=True)
class Frame:
    """The schema that a gate is compiled for, with the lookups that rules need."""

    schema: T.StructType
    gate: str

    def column(self, name: str) -> Column:
        """Return the Column of a field name: a column of that very name, or the path into a struct."""
        if name in self.schema.fieldNames():
            return F.col(SPARK.name(name))
        return F.col(name)

    def type_of(self, name: str) -> T.DataType:
        """Return the type of a field name."""
        if name in self.schema.fieldNames():
            return self.schema[name].dataType
        kind: T.DataType = self.schema
        for part in name.split("."):
            if not isinstance(kind, T.StructType) or part.strip("`") not in kind.fieldNames():
                raise FieldError(f"gate {self.gate}", name, self.schema.fieldNames())
            kind = kind[part.strip("`")].dataType
        return kind


def as_bound(value: Any, operation: str) -> Any:
    """Return a bound as great-expectations reads it: numbers as float, ISO text as date or datetime.

    Source: great_expectations/core/types.py, `Comparable` (a pydantic union tried in the order float, date, datetime).
    """
    if value is None or isinstance(value, (datetime.date, datetime.datetime)):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        pass
    except OverflowError:
        raise FunctionError(operation, "a bound is larger than any double") from None
    else:
        if math.isnan(number):
            raise FunctionError(operation, f"{value!r} is no bound: all numbers are below it")
        return number
    if isinstance(value, str):
        for read in (datetime.date.fromisoformat, datetime.datetime.fromisoformat):
            try:
                return read(value)
            except ValueError:
                continue
    raise FunctionError(operation, f"{value!r} is neither a number nor a date")


def as_whole(value: Any, operation: str) -> int | None:
    """Return a bound that must be a whole number."""
    if value is None:
        return None
    try:
        if float(value).is_integer():
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise FunctionError(operation, f"{shown(value)} is not a whole number")


def literals(values: Iterable[Any], data_type: T.DataType, field: str, operation: str) -> list[Any]:
    """Return the members of a set, fit for a comparison with a column of `data_type`."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise FunctionError(operation, f"{values!r} is not a list of values")
    return [literal(value, data_type, field, operation) for value in values]


def literal(value: Any, data_type: T.DataType, field: str, operation: str) -> Any:
    """Return one value, fit for a comparison with a column of `data_type`; text becomes a date where the column is one."""
    wanted = family(data_type)
    if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        raise FunctionError(operation, f"{shown(value)} is larger than any bigint")
    if wanted == "time" and isinstance(value, str):
        value = as_bound(value, operation)
    if value is None or value_family(value) == wanted:
        # Spark takes a time without a zone for one of this host's.
        return _wall(value) if isinstance(data_type, T.TimestampNTZType) else in_utc(value)
    if wanted not in ("number", "string", "boolean", "time"):
        return value  # left to Spark's analysis
    raise FunctionError(operation, f"{value!r} does not compare with {field}, which is {data_type.simpleString()}")


def _wall(value: Any) -> Any:
    """Return a time as a literal without a zone, the one of UTC; Spark would compare another one by the session's zone."""
    if not isinstance(value, datetime.datetime):
        return value
    return F.lit(in_utc(value).astimezone(datetime.UTC).replace(tzinfo=None).isoformat()).cast(T.TimestampNTZType())


def between(column: Column, low: Any, high: Any, strict_low: bool, strict_high: bool) -> Column:
    """Return `low <= column <= high`, each side optional and strict on demand."""
    conditions = []
    if low is not None:
        conditions.append(column > F.lit(low) if strict_low else column >= F.lit(low))
    if high is not None:
        conditions.append(column < F.lit(high) if strict_high else column <= F.lit(high))
    combined = conditions[0]
    for condition in conditions[1:]:
        combined = combined & condition
    return combined
