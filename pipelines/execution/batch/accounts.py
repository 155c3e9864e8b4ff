"""Compare rows between stages by count and XOR of hashes, as Storm's acker does (docs/architecture.md#batch-protocol).

The hash of a row is Spark's `xxhash64` over its columns by name, for an analyst to recompute with SQL; a null adds nothing.
XOR does not depend on the order of rows; two equal rows cancel out, which is why the count is always compared beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.types import StructField, StructType

from pipelines.graph.dialects import SPARK
from pipelines.planner.step import hashable
from pipelines.state.schema import ENGINE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HASH = "_hash"
"""bigint: the hash of a row, while it travels."""


def row_hash(schema: StructType, places: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the hash of the user's columns of a frame as SQL: a bigint; maps and variants, which Spark does not hash, as JSON.

    A text is one call of the JVM, whatever it holds; functions of columns are two and more each, and this is done per batch.

    Args:
        places: the columns of the frame that fields are in, where they have other names.
    """
    hashed = []
    for field in sorted(schema.fields, key=lambda field: field.name):
        column = SPARK.name(places.get(field.name, field.name))
        hashed += [_hashed(field, column)] if field.name not in ENGINE_COLUMNS else []
    return f"xxhash64({', '.join(hashed)})"


def former_row_hash(schema: StructType, order: Sequence[str], *, added: bool) -> str:
    """Return the hash that earlier releases made, as SQL: in the order of what was committed, the JSON of null as a text.

    Args:
        added: maps and variants came after what was hashed.
    """
    there = {field.name: field for field in schema.fields if field.name not in ENGINE_COLUMNS}
    fields = [there[name] for name in dict.fromkeys([*order, *there]) if name in there]
    columns = [(field, SPARK.name(field.name)) for field in fields]
    hashed = (_hashed(field, column, null=added) for field, column in columns)
    return f"xxhash64({', '.join(hashed)})"


def _hashed(field: StructField, column: str, *, null: bool = True) -> str:
    if hashable(field.dataType):
        return column
    # The columns of a map would come as a map again: `to_json` takes a struct, an array or a map.
    text = f"to_json(struct({column} AS {SPARK.name(field.name)}))"
    # A table's rows are null in a column that it gets later.
    return f"CASE WHEN {column} IS NOT NULL THEN {text} END" if null else text


def xor_of_rows(hashed: str) -> str:
    """Return the XOR of the hashes of a frame's rows as SQL, an aggregate; 0 for none.

    Args:
        hashed: the hash of a row, as SQL.
    """
    return f"coalesce(bit_xor({hashed}), 0L)"


def with_hash(frame: DataFrame) -> DataFrame:
    """Return the frame with each row's hash beside it."""
    return frame.selectExpr("*", f"{row_hash(frame.schema)} AS {HASH}")


def taken_off(rows: pa.Table) -> tuple[pa.Table, int]:
    """Return rows without their hashes, and the XOR of these."""
    hashes = rows[HASH].to_numpy()
    return rows.drop_columns([HASH]), int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0


def xor(values: list[int]) -> int:
    return reduce(lambda a, b: a ^ b, values, 0)
