"""Text that is not UTF-8: Spark keeps any bytes in a string, and a table that holds such can no longer be read."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from pipelines import spark_functions as F
from pipelines.errors import NotTextError
from pipelines.graph.dialects import SPARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def check_texts(table: str, rows: pa.Table) -> None:
    """Refuse rows that are to be committed, if one of their texts is none.

    Raises:
        NotTextError
    """
    for name in rows.column_names:
        try:
            rows[name].validate(full=True)
        except pa.ArrowInvalid as invalid:
            for row, value in enumerate(rows[name]):
                try:
                    value.as_py()
                except UnicodeDecodeError as error:
                    raise NotTextError(table, name, row, error.object) from None
                except (OverflowError, ValueError):  # a far date beside it
                    continue
            if "UTF8" in str(invalid):
                raise NotTextError(table, name) from invalid
            raise


def checked_texts(table: str, frame: DataFrame) -> DataFrame:
    """Return the rows; the job fails at a text that is none."""
    kept = {}
    for field in frame.schema.fields:
        value = F.col(SPARK.name(field.name))
        bad, refusal = _bad(value, field.dataType), F.raise_error(F.lit(str(NotTextError(table, field.name))))
        if bad is not None:
            kept[field.name] = F.when(bad, refusal).otherwise(value)
    return frame.withColumns(kept) if kept else frame


def _bad(value: Column, kind: DataType) -> Column | None:
    """Return whether a value holds a text that is none (null where it is null itself); None: none of its type can."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StringType):
        return ~F.is_valid_utf8(value)
    if isinstance(kind, StructType):
        parts = [_bad(value.getField(field.name), field.dataType) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        of = kind.elementType
        parts = (
            [F.exists(value, lambda each: cast("Column", _bad(each, of)))] if _bad(F.lit(None), of) is not None else []
        )
    elif isinstance(kind, MapType):
        lists = ((F.map_keys(value), kind.keyType), (F.map_values(value), kind.valueType))
        parts = [_bad(each, ArrayType(of)) for each, of in lists]
    else:
        parts = []
    found = [part for part in parts if part is not None]
    return reduce(or_, found) if found else None
