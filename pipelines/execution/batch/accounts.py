"""Compare rows between stages by count and XOR of hashes, as Storm's acker does (docs/architecture.md#batch-protocol).

The hash of a row is Spark's `xxhash64` over its columns, so that an analyst can recompute it with SQL. XOR does not depend on
the order of rows; two equal rows cancel out, which is why the count is always compared beside it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from pipelines.state.schema import ENGINE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

HASH = "_hash"
"""bigint: the hash of a row, while it travels."""


def row_hash(schema: StructType) -> Column:
    """Return the hash of the user's columns of a frame, as `bigint`; maps and variants, which Spark does not hash, as JSON."""
    columns = [F.col(f"`{f.name}`") for f in schema.fields if f.name not in ENGINE_COLUMNS]
    kinds = [f.dataType for f in schema.fields if f.name not in ENGINE_COLUMNS]
    # The columns of a map would come as a map again: `to_json` takes a struct, an array or a map.
    return F.xxhash64(
        *(
            column if _hashable(kind) else F.to_json(F.struct(column))
            for column, kind in zip(columns, kinds, strict=True)
        )
    )


def _hashable(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _hashable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType | VariantType)


def xor_of_rows(schema: StructType) -> Column:
    """Return the XOR of the hashes of a frame's rows, as an aggregate; 0 for none."""
    return F.coalesce(F.bit_xor(row_hash(schema)), F.lit(0).cast("long"))


def with_hash(frame: DataFrame) -> DataFrame:
    """Return the frame with each row's hash beside it."""
    return frame.select("*", row_hash(frame.schema).alias(HASH))


def taken_off(rows: pa.Table) -> tuple[pa.Table, int]:
    """Return rows without their hashes, and the XOR of these."""
    hashes = rows[HASH].to_numpy()
    return rows.drop_columns([HASH]), int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0


def xor(values: list[int]) -> int:
    return reduce(lambda a, b: a ^ b, values, 0)
