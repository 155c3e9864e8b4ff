"""The content of a state at one version: rows by key, or all of them, by delta-rs or as a Spark frame, in any layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import spark_functions as F
from pipelines.aggregators import ColumnAggregator
from pipelines.aggregators.window import EventAggregator
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.dialects import DATAFUSION
from pipelines.places.location import Place
from pipelines.spark.arrow_frame import all_nullable
from pipelines.state.far_times import plain_rows
from pipelines.state.kinds import LOG, MAP, OPAQUE
from pipelines.state.literals import (
    canonical,
    canonical_column,
    check_names,
    keys_condition,
    quoted,
    range_condition,
    typed_all,
)
from pipelines.state.record import generation
from pipelines.state.schema import GEN, PREVIOUS, REMOVED, TXID, StateSchema
from pipelines.state.snapshot import Snapshot
from pipelines.state.sums import check_fit, fitting, total_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Row = dict[str, Any]
Key = tuple[Any, ...]

# Keys that a query names one by one. Planning takes it some 0.3 ms a key, so beyond it reads all rows between the least
# and the greatest key, and those that were asked for are picked out here.
_NAMED_KEYS = 200


class Reader:
    """Reads one version of a state: log states fold partial values, map states give the row.

    Args:
        before: leave out what this txid wrote. For opaque states only: what a replay of the txid starts from.
    """

    def __init__(self, snapshot: Snapshot, declared: StateSchema, before: int | None = None) -> None:
        self.snapshot, self.declared = snapshot, declared
        self.before = before if declared.kind == OPAQUE else None
        self.keys = declared.keys
        self._later = tuple(name for name in declared.names if name not in snapshot.types)
        """Columns that the state got after this version."""

    @property
    def name(self) -> str:
        """Return the state's, for messages."""
        return Path(self.snapshot.table.table_uri).name

    # --- by key -----------------------------------------------------------------------------------------------------

    def normal(self, keys: Sequence[Mapping[str, Any]]) -> list[Key]:
        """Return the values of keys as the table gives them back."""
        check_names(keys, self.keys)
        types = self.snapshot.types
        columns = [typed_all(name, [key[name] for key in keys], types[name]) for name in self.keys]
        return list(zip(*columns, strict=True)) if columns else [()] * len(keys)

    def find(self, keys: Sequence[Mapping[str, Any]]) -> dict[Key, Row]:
        """Return the rows of some keys (log and map states), by key, in one read."""
        return finished(self.partials(self.stored(keys)), self)

    def stored(self, keys: Sequence[Mapping[str, Any]], also: str = "true") -> list[Row]:
        """Return the stored rows of some keys, and perhaps of others: partial values in a log state.

        Args:
            also: a further condition, over the stored columns.
        """
        named = len(keys) <= _NAMED_KEYS
        condition = (keys_condition if named else range_condition)(keys, self.keys, self.snapshot.types)
        sql = f"SELECT {self._columns} FROM {self.source} WHERE {condition} AND {also}"
        if named:
            return plain_rows(self._completed(self.snapshot.query(sql), self._stored_later), self.name, self.keys)
        wanted = dict.fromkeys(self.normal(keys))
        parts = (self._completed(part, self._stored_later) for part in self.snapshot.stream(sql))
        return [row for part in parts for row in matching(part, self.keys, wanted, self.name)]

    def partials(self, stored: Sequence[Row], onto: Mapping[Key, Row] | None = None) -> dict[Key, Row]:
        """Fold stored rows to one row per key, in plain Python: a read of a few keys has few rows.

        Partial values of a log state are folded, `onto` those that are known already; they are not finished.
        """
        folds = [(value.name, value.make()) for value in self.declared.values]
        groups: dict[Key, Row] = {key: dict(row) for key, row in (onto or {}).items()}
        for row in stored:
            key = tuple(canonical(row[name]) for name in self.keys)
            for name, aggregator in folds:
                row[name] = _or_zero(row.get(name), aggregator, self._zeros.get(name))
            known = groups.setdefault(key, row)
            if known is not row:
                for name, aggregator in folds:
                    known[name] = aggregator.merge(known[name], row[name])
        return groups

    def zero(self) -> Row:
        """Return what a log state without keys holds before any row: its aggregators' zeros (Trident rules 1.3)."""
        made = {value.name: value.make() for value in self.declared.values}
        return {name: one.finish(self._zeros.get(name, one.zero())) for name, one in made.items()}

    @cached_property
    def _zeros(self) -> Row:
        """Return the zeros that are numbers as their columns hold them: a decimal's is no int."""
        types = {**self.snapshot.types, **self._stored_later}
        zeros = {value.name: value.make().zero() for value in self.declared.values}
        numbers = [name for name, zero in zeros.items() if type(zero) is int and name in types]
        return {name: _typed_zero(types[name]) for name in numbers}

    # --- whole ------------------------------------------------------------------------------------------------------

    @property
    def _columns(self) -> str:
        return ", ".join(quoted(name) for name in self.declared.names if name not in self._later)

    @cached_property
    def _stored_later(self) -> dict[str, pa.DataType]:
        """Return the types of the columns that this version lacks, as they are stored; null where Spark alone knows one."""
        kinds = dict(self.declared.columns)
        return {name: arrow_type(kinds[name]) or pa.null() for name in self._later}

    @cached_property
    def _shown_later(self) -> dict[str, pa.DataType]:
        """Return the same as a reader gets them."""
        shown = dict(self._stored_later)
        made = {value.name: value.make() for value in self.declared.values if value.name in shown}
        for name, aggregator in made.items():
            if isinstance(aggregator, EventAggregator) and not aggregator.shown_as_stored:
                ((_, kind), *_) = aggregator.result_types({})
                shown[name] = arrow_type(kind) or shown[name]
        return shown

    def _completed(self, rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
        """Add nulls for the columns that this version lacks."""
        for name, kind in types.items():
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        return rows.select(list(self.declared.names)) if types else rows

    def scan(self, where: str = "true") -> pa.Table:
        """Return all of the state: keys and values, one row per key (log, map), or the rows (rows).

        Args:
            where: SQL over the columns, for the engine's own use.
        """
        declared = self.declared
        if declared.layout != LOG:
            rows = self.snapshot.query(f"SELECT {self._columns} FROM {self.source} WHERE {where}")
            return self._completed(rows, self._shown_later)
        keys, types = [quoted(name) for name in declared.keys], self.snapshot.types
        values = [
            f"{v.make().result_sql(quoted(v.name), total_of(types[v.name]), types[v.name])} AS {quoted(v.name)}"
            for v in declared.values
            if v.name not in self._later
        ]
        sql = f"SELECT {', '.join(keys + values)} FROM {self.source} WHERE {where}"
        with fitting(self.name, "a total"):
            rows = self.snapshot.query(sql + (f" GROUP BY {', '.join(keys)}" if keys else ""))
        return self._with_zeros(self._completed(self._with_types(rows), self._shown_later)).select(list(declared.names))

    def _with_zeros(self, rows: pa.Table) -> pa.Table:
        """Fill in zeros where nothing is stored: a new state without keys, a value that the state got later."""
        for name, zero in self.zero().items():
            if zero is not None and rows[name].null_count:
                kind = rows[name].type
                zeros = pa.scalar(zero, type=None if pa.types.is_null(kind) else kind)
                filled = pc.coalesce(rows[name].cast(zeros.type), zeros)
                rows = rows.set_column(rows.schema.get_field_index(name), name, filled)
        return rows

    def _with_types(self, rows: pa.Table) -> pa.Table:
        """Give back the declared types: DataFusion widens sums of decimals."""
        stored = self.snapshot.types
        fields = [
            pa.field(f.name, f.type if pa.types.is_nested(stored[f.name]) else stored[f.name]) for f in rows.schema
        ]
        return rows.cast(pa.schema(fields))

    # --- what counts ------------------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """Return the stored rows that count, as SQL to stand behind FROM."""
        where = self.where
        if self.before is not None and self.declared.layout == MAP:
            return f"(SELECT {', '.join(self._columns_before())} FROM state WHERE {where})"
        return "state" if where == "true" else f"(SELECT * FROM state WHERE {where})"

    @property
    def where(self) -> str:
        """Return the stored rows that count, as a condition."""
        return live_condition(self.declared, self.snapshot, self.before)

    def _columns_before(self) -> Iterator[str]:
        for name in self.declared.names:
            if name in self._later:
                continue
            column = quoted(name)
            if name not in self.keys:
                before = f"{PREVIOUS}[{DATAFUSION.text(name)}]"
                column = f"CASE WHEN {TXID} = {self.before} THEN {before} ELSE {column} END AS {column}"
            yield column


def live_condition(declared: StateSchema, snapshot: Snapshot, before: int | None) -> str:
    """Return SQL, DataFusion's and Spark's: the stored rows that count, without those of the txid `before`."""
    if declared.layout == MAP:
        if declared.kind != OPAQUE:
            return "true"
        there = f"{REMOVED} IS NOT TRUE"
        if before is None:
            return there
        return f"(({TXID} = {before} AND {PREVIOUS} IS NOT NULL) OR ({TXID} <> {before} AND {there}))"
    live = snapshot.live if declared.layout == LOG else "true"
    if before is None:
        return live
    own = f"NOT ({GEN} = {generation(before)} AND {TXID} = {before})"
    return own if live == "true" else f"{live} AND {own}"


def finished(partials: Mapping[Key, Row], reader: Reader) -> dict[Key, Row]:
    """Finish folded partial values, as a reader sees them."""
    declared = reader.declared
    if declared.values:
        check_fit(reader.name, declared, reader.snapshot.types, partials)
    folds = {value.name: value.make() for value in declared.values}
    return {
        key: {name: folds[name].finish(value) if name in folds else value for name, value in row.items()}
        for key, row in partials.items()
    }


def matching(rows: pa.Table, names: Sequence[str], keys: Mapping[Key, Any] | Sequence[Key], table: str) -> list[Row]:
    """Return the rows of some keys (as `Reader.normal` gives them).

    Args:
        table: the state's name, for an error.
    """
    if names:
        masks = [
            pc.is_in(
                canonical_column(rows[name]),
                value_set=pa.array(list({key[index] for key in keys}), type=rows.schema.field(name).type),
            )
            for index, name in enumerate(names)
        ]
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.and_(mask, other)
        rows = rows.filter(mask)
    wanted = set(keys)
    found = plain_rows(rows, table, names)
    return [row for row in found if tuple(canonical(row[name]) for name in names) in wanted]


def _typed_zero(kind: pa.DataType) -> Any:
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return pa.scalar(0, kind).as_py() if numeric else 0


def _or_zero(value: Any, aggregator: ColumnAggregator, zero: Any) -> Any:
    """Return a stored partial value; rows from before the state got the value hold null, which is the aggregator's zero.

    Args:
        zero: the zero where it is a number of the column's type.
    """
    zero = aggregator.zero() if zero is None else zero
    # A struct that is added up; the least of some structs may be one of nulls.
    parts = isinstance(value, dict) and isinstance(zero, dict)
    return zero if value is None or (parts and all(part is None for part in value.values())) else value


# --- large states, read by Spark's own Delta reader -----------------------------------------------------------------


def read_by_spark(spark: SparkSession, path: Place, reader: Reader) -> DataFrame:
    """Build what `reader.scan()` gives as a frame over the table's files."""
    declared = reader.declared
    stored = (
        spark.read.format("delta").option("versionAsOf", reader.snapshot.version).load(str(path)).where(reader.where)
    )
    # Columns that the state got after this version.
    later = {name: kind for name, kind in declared.columns if name not in reader.snapshot.types}
    stored = stored.withColumns({name: F.lit(None).cast(kind) for name, kind in later.items()})
    if declared.layout == LOG:
        return _folded(stored, reader)
    if declared.layout == MAP and reader.before is not None:
        return stored.select(*_before(reader))
    return stored.select(*(_column(name) for name in declared.names))


def _before(reader: Reader) -> list[Column]:
    replayed = F.col(TXID) == F.lit(reader.before)
    return [
        _column(name)
        if name in reader.keys or name not in reader.snapshot.types
        else F.when(replayed, _column(PREVIOUS)[name]).otherwise(_column(name)).alias(name)
        for name in reader.declared.names
    ]


def _folded(stored: DataFrame, reader: Reader) -> DataFrame:
    declared = reader.declared
    made = [(value.name, value.make()) for value in declared.values]
    folded = stored.groupBy(*(_column(name) for name in declared.keys)).agg(
        *(aggregator.fold(_column(name)).alias(name) for name, aggregator in made)
    )
    types = {f.name: all_nullable(f.dataType) for f in stored.schema}
    results = {name: aggregator.result(_column(name).cast(types[name])).alias(name) for name, aggregator in made}
    for name, zero in reader.zero().items():
        if zero is not None and not isinstance(zero, dict | tuple):
            results[name] = F.coalesce(results[name], F.lit(zero)).alias(name)
    return folded.select(*(results.get(name, _column(name)) for name in declared.names))


def _column(name: str) -> Column:
    return F.col(f"`{name}`")
