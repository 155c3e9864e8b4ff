"""What a state table says of itself: layout, keys, values and their aggregators, kept in the table's configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from pipelines.aggregators import BUILT_IN, ColumnAggregator

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PROPERTY = "tridelta.state"
TXID, SLICE_COLUMN, GEN = "_txid", "_slice", "_gen"
PREVIOUS, REMOVED = "_prev", "_removed"
"""Of opaque map states: what the row held before its txid (`struct<txid, values...>`, null for nothing), and whether the
txid removed the key. In rows that are to be committed to a map state `_removed` says that the key goes."""
ENGINE_COLUMNS = (TXID, SLICE_COLUMN, GEN)
HIDDEN = (*ENGINE_COLUMNS, PREVIOUS, REMOVED)
"""All columns that a reader of a state does not see."""
LOG, MAP, ROWS = "log", "map", "rows"
TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL = "transactional", "opaque", "non_transactional"
UNSLICED = "all"
"""The one slice of a state whose flow names no slice column."""
NO_SLICE = "?"
"""The slice of rows that have none: malformed records, and rows whose slice column is null. Only in quarantine."""
ROLL_UP = "*"
"""The slice of roll-up rows, which compaction writes."""
POISONED = "!"
"""The slice of the rows of poison batches. Only in quarantine: no backfill replaces them."""
RESERVED = (NO_SLICE, ROLL_UP, POISONED, "")
"""What no row may have for a slice. The empty text is Delta's null."""


class ValueColumn(BaseModel):
    """A value of a log state: its column and the built-in aggregator that folds its partial values."""

    model_config = ConfigDict(frozen=True)
    name: str
    aggregator: str

    def make(self) -> ColumnAggregator:
        return BUILT_IN[self.aggregator]()


class StateSchema(BaseModel):
    """The declared schema of a state.

    Attributes:
        layout: `log`, `map` or `rows`.
        kind: what a replayed txid does: `transactional`, `opaque` or `non_transactional`.
        flow: the topology that writes it.
        keys: key columns, in order.
        values: value columns with aggregators (log), else empty.
        columns: name and Spark SQL type of all user columns, in order.
        sliced: whether the flow names a slice column.
    """

    model_config = ConfigDict(frozen=True)
    layout: str
    kind: str = TRANSACTIONAL
    flow: str
    keys: tuple[str, ...] = ()
    values: tuple[ValueColumn, ...] = ()
    columns: tuple[tuple[str, str], ...]
    sliced: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def value_names(self) -> tuple[str, ...]:
        """The columns that are not keys, in order."""
        return tuple(name for name in self.names if name not in self.keys)

    def dump(self) -> str:
        return json.dumps(self.model_dump(mode="json"))

    def difference(self, other: StateSchema) -> str | None:
        """In words, the first thing in which `other` (the flow's) does not fit this (the table's), or None."""
        for what in ("layout", "flow", "keys", "sliced"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                return f"{what} is {_shown(mine)} in the table and {_shown(theirs)} in the flow"
        mine, theirs = dict(self.columns), dict(other.columns)
        for name in dict.fromkeys((*mine, *theirs)):
            if mine.get(name) != theirs.get(name):
                there, here = mine.get(name, "missing"), theirs.get(name, "missing")
                return f'column "{name}" is {there} in the table and {here} in the flow'
        for one, two in zip(self.values, other.values, strict=True):
            if one != two:
                return f'value "{one.name}" is a {one.aggregator} in the table and a {two.aggregator} in the flow'
        return None


def _shown(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def table_schema(columns: StructType) -> StructType:
    """The user's columns (nullable throughout) with the engine's: `_txid bigint, _slice string, _gen bigint`."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    # Inside structs too: to Spark a fold of `struct<sum bigint not null>` is nullable, and it does not cast that back.
    nullable = StructType.fromJson(_nullable(columns.jsonValue()))
    fields = [f for f in nullable.fields if f.name not in ENGINE_COLUMNS]
    return StructType(
        [
            *fields,
            StructField(TXID, LongType(), True),
            StructField(SLICE_COLUMN, StringType(), True),
            StructField(GEN, LongType(), True),
        ]
    )


def _nullable(schema: Any) -> Any:
    """A schema's JSON with every column, field and element nullable."""
    if isinstance(schema, list):
        return [_nullable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    marks = ("nullable", "containsNull", "valueContainsNull")
    return {name: True if name in marks else _nullable(one) for name, one in schema.items()}


def struct_of(ddl: str) -> StructType:
    """A schema in DDL form as a Spark struct. Needs a running session."""
    from typing import cast

    from pyspark.sql.types import StructType

    return cast(StructType, StructType.fromDDL(ddl))
