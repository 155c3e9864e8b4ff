"""The declared schema of a state table: layout, keys, values and their aggregators, kept in the table's configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel, ConfigDict

from pipelines.aggregators import BUILT_IN, ColumnAggregator
from pipelines.graph.expressions import keeps_values
from pipelines.state.kinds import LOG, MAP, OPAQUE, TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType

    from pipelines.graph.nodes import PersistNode

PROPERTY = "tridelta.state"
TXID, SLICE_COLUMN, GEN = "_txid", "_slice", "_gen"
PREVIOUS, REMOVED = "_prev", "_removed"
"""A column of opaque map states: what the row held before its txid (`struct<txid, values...>`, null for nothing), and whether the
txid removed the key. In rows that are to be committed to a map state `_removed` says that the key goes."""
ENGINE_COLUMNS = (TXID, SLICE_COLUMN, GEN)
HIDDEN = (*ENGINE_COLUMNS, PREVIOUS, REMOVED)
"""All columns that a reader of a state does not see."""
UNSLICED = "all"
"""The one slice of a state whose flow names no slice column."""
NO_SLICE = "?"
"""The slice of rows that have none: malformed records, and rows whose slice column is null. Only in quarantine."""
ROLL_UP = "*"
"""The slice of roll-up rows, which compaction writes."""
POISONED = "!"
"""The slice of the rows of poison batches. Only in quarantine: no backfill replaces them."""
RESERVED = (NO_SLICE, ROLL_UP, POISONED, "", "__HIVE_DEFAULT_PARTITION__")
"""Slices that no row may have. The empty text is Delta's null, and the last one is what Spark writes for it."""
LONGEST_SLICE = 248
"""Bytes of a slice in the name of its folder, `_slice=...`, which may have 255; other than plain characters take three."""


def slice_problem(value: str) -> str | None:
    """Say why a text cannot be a slice; None if it can."""
    if value in RESERVED:
        return "the name is reserved"
    if "\0" in value:
        return "it has a character of code 0"
    try:
        size = sum(1 if byte in _PLAIN else 3 for byte in value.encode())
    except UnicodeEncodeError:
        return "it is not text in UTF-8"
    return f"it takes {size} bytes in a folder's name, at most {LONGEST_SLICE} fit" if size > LONGEST_SLICE else None


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~-")


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
        slice_by: by stream the expression that cuts its slices; none in tables of earlier releases, or without slices.
    """

    model_config = ConfigDict(frozen=True)
    layout: str
    kind: str = TRANSACTIONAL
    flow: str
    keys: tuple[str, ...] = ()
    values: tuple[ValueColumn, ...] = ()
    columns: tuple[tuple[str, str], ...]
    sliced: bool = False
    slice_by: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_node(
        cls,
        node: PersistNode,
        flow: str,
        columns: Iterable[tuple[str, str]],
        *,
        sliced: bool,
        slice_by: tuple[tuple[str, str], ...],
    ) -> StateSchema:
        """Return what a flow declares by the node that writes the state."""
        values = [ValueColumn(name=a.output, aggregator=type(a.aggregator).__name__) for a in node.aggregations]
        return cls(
            layout=node.state.layout,
            kind=node.state.kind,
            flow=flow,
            keys=node.group,
            values=tuple(values) if node.state.layout == LOG else (),
            columns=tuple(columns),
            sliced=sliced,
            slice_by=slice_by,
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def value_names(self) -> tuple[str, ...]:
        """Return the columns that are not keys, in order."""
        return tuple(name for name in self.names if name not in self.keys)

    def dump(self) -> str:
        return json.dumps(self.model_dump(mode="json"))

    def evolution(self, other: StateSchema) -> tuple[tuple[str, str], ...] | str:
        """Find what the table lacks to hold what `other` (the flow's schema) declares. Columns are matched by name alone.

        Returns:
            The columns to add, as names and types, empty if it fits; or a text that says why it cannot fit.
        """
        for what in ("layout", "kind", "flow", "keys", "sliced"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                return f"{what} is {_shown(mine)} in the table and {_shown(theirs)} in the flow" + _LOSSES.get(what, "")
        if recut := self._recut(other):
            return recut
        there, here = dict(self.columns), dict(other.columns)
        for name, kind in there.items():
            if name not in here:
                return f'column "{name}" ({kind}) is missing in the flow: what the table holds of it would be lost'
            if kind != here[name]:
                return f'column "{name}" is {kind} in the table and {here[name]} in the flow' + _LOSSES["type"]
        mine, theirs = ({value.name: value.aggregator for value in schema.values} for schema in (self, other))
        for name, aggregator in mine.items():
            if theirs.get(name) != aggregator:
                now = f"a {theirs[name]}" if name in theirs else "none"
                return f'value "{name}" is a {aggregator} in the table and {now} in the flow' + _LOSSES["aggregator"]
        return tuple((name, kind) for name, kind in other.columns if name not in there)

    def _recut(self, other: StateSchema) -> str | None:
        """Say in words how `other` cuts slices otherwise. A stream may get another name, and others may come beside it.

        A row that had no slice went to quarantine, so `coalesce(before, ...)` moves no row from one slice to another.
        """
        mine, theirs = dict(self.slice_by), dict(other.slice_by)
        if not mine or not theirs:
            return None
        common = [name for name in theirs if name in mine]
        if common:
            same = all(keeps_values(mine[name], theirs[name]) for name in common)
        else:
            same = all(any(keeps_values(before, now) for before in mine.values()) for now in theirs.values())
        if same:
            return None
        shown = [", ".join(dict.fromkeys(cut.values())) for cut in (mine, theirs)]
        return (
            f"its slices are cut by {shown[0]} in the table and by {shown[1]} in the flow: what is in a slice of the old cut "
            "would stay when one of the new is replaced"
        )


_LOSSES = {
    "keys": ": what is counted by the old key cannot be told apart by the new one",
    "type": ": the rows that are there are of the old type",
    "aggregator": ": what is folded so far means something else",
}


def _shown(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def table_schema(columns: StructType, declared: StateSchema) -> StructType:
    """Return the user's columns (nullable throughout) with the engine's.

    Log and rows: `_txid bigint, _slice string, _gen bigint`. Map: `_txid bigint`, and of opaque states `_prev
    struct<txid bigint, values...>, _removed boolean`.
    """
    from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

    from pipelines.spark.arrow_frame import all_nullable

    # Inside structs too: to Spark a fold of `struct<sum bigint not null>` is nullable, and it does not cast that back.
    nullable = cast(StructType, all_nullable(columns))
    fields = [f for f in nullable.fields if f.name not in HIDDEN]
    if declared.layout != MAP:
        hidden = ((TXID, LongType()), (SLICE_COLUMN, StringType()), (GEN, LongType()))
        return StructType([*fields, *(StructField(name, kind, True) for name, kind in hidden)])
    engine = [StructField(TXID, LongType(), True)]
    if declared.kind == OPAQUE:
        values = [f for f in fields if f.name not in declared.keys]
        engine.append(StructField(PREVIOUS, StructType([StructField("txid", LongType(), True), *values]), True))
        engine.append(StructField(REMOVED, BooleanType(), True))
    return StructType([*fields, *engine])


def struct_of(ddl: str) -> StructType:
    """Return a schema in DDL form as a Spark struct. Needs a running session."""
    from pyspark.sql.types import StructType

    return cast(StructType, StructType.fromDDL(ddl))
