"""Which slice a row has, and which values can be one: a slice is the name of a folder in every table that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipelines.graph.expressions import spark_sql
from pipelines.sources.base import CORRUPT
from pipelines.state.schema import LONGEST_SLICE, NO_SLICE, RESERVED, SLICE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipelines.graph import nodes

# What stays as it is in a folder's name (`slice_problem` says the same of one value).
_PLAIN = "[^A-Za-z0-9_.~-]"


def with_slice(spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
    """A source's rows with `_slice`, `?` for those without one; of a flow without slices the rows as they are."""
    if spout.slice_by is None:
        return source
    value = said(spout.slice_by)
    slice_ = F.when(F.col(CORRUPT).isNull() & is_legal(value), value)
    return source.withColumn(SLICE_COLUMN, F.coalesce(slice_, F.lit(NO_SLICE)))


def said(slice_by: str) -> Column:
    """What a row says for its slice."""
    return F.expr(spark_sql("slice_by", slice_by)).cast("string")


def is_legal(value: Column) -> Column:
    """Whether a text can be a slice: the same rule as `slice_problem`, and it is text at all (UTF-8). Null for null."""
    size = F.octet_length(value)
    # The letters of a long value are counted only there: it is rare.
    encoded = F.when(size * 3 <= LONGEST_SLICE, F.lit(0)).otherwise(
        size * 3 - F.length(F.regexp_replace(value, _PLAIN, "")) * 2
    )
    return (
        ~value.isin(*RESERVED) & F.is_valid_utf8(value) & ~F.contains(value, F.lit("\0")) & (encoded <= LONGEST_SLICE)
    )
