"""Compare rows between stages by count and XOR of hashes, as Storm's acker does (docs/architecture.md#batch-protocol).

The hash of a row is Spark's `xxhash64` over its columns, so that an analyst can recompute it with SQL. XOR does not depend on
the order of rows; two equal rows cancel out, which is why the count is always compared beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from pipelines.graph.dialects import SPARK
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
    for field in schema.fields:
        name, column = SPARK.name(field.name), SPARK.name(places.get(field.name, field.name))
        if field.name not in ENGINE_COLUMNS:
            # The columns of a map would come as a map again: `to_json` takes a struct, an array or a map.
            whole = f"to_json(struct({column} AS {name}))"
            hashed.append(column if _hashable(field.dataType) else whole)
    return f"xxhash64({', '.join(hashed)})"


def _hashable(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _hashable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType | VariantType)


XOR_OF_HASHES = f"coalesce(bit_xor({HASH}), 0L)"
"""The XOR of the rows of a frame that has their hashes, as SQL."""


def xor_of_rows(schema: StructType) -> str:
    """Return the XOR of the hashes of a frame's rows as SQL, an aggregate; 0 for none."""
    return f"coalesce(bit_xor({row_hash(schema)}), 0L)"


def with_hash(frame: DataFrame) -> DataFrame:
    """Return the frame with each row's hash beside it."""
    return frame.selectExpr("*", f"{row_hash(frame.schema)} AS {HASH}")


def taken_off(rows: pa.Table) -> tuple[pa.Table, int]:
    """Return rows without their hashes, and the XOR of these."""
    hashes = rows[HASH].to_numpy()
    return rows.drop_columns([HASH]), int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0


def xor(values: list[int]) -> int:
    return reduce(lambda a, b: a ^ b, values, 0)
