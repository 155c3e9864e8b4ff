"""Parse quarantined texts as rows again, exactly as they were written, and run the flow's plan over them as a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from pipelines.execution.batch.plan_run import PlanRun, Reads
from pipelines.execution.batch.quarantine import MALFORMED, POISON, refused_by_gate, refused_by_source
from pipelines.execution.replays.entry import instead
from pipelines.execution.replays.selection import NUMBER, ReplayError
from pipelines.graph import nodes
from pipelines.planner.compile import Compiler
from pipelines.planner.step import REPLAYED
from pipelines.quality.compiled import compile_gate
from pipelines.sources.base import CORRUPT, FILE, ROW_JSON
from pipelines.spark.arrow_frame import arrow_frame, empty_frame
from pipelines.state.schema import SLICE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.replays.selection import Lot
    from pipelines.quality.results import GateResult
    from pipelines.trident.topology import TridentTopology


class ReplayRun(PlanRun):
    """Builds the frames that a replay commits, and tells what is refused again.

    Args:
        group: the batch group.
        entry: where the rows enter.
        rows: a source's frame, or a gate's tuples, with `_replayed` and `_unreadable` (`parsing`).
        label: for messages.
        reads: what the plan reads beside them.
    """

    def __init__(
        self,
        group: BatchGroup,
        entry: nodes.SpoutNode | nodes.GateNode,
        rows: DataFrame,
        label: str,
        reads: Reads,
    ) -> None:
        self._entry = entry
        self.results: dict[str, GateResult] = {}
        self._refused_rows: dict[str, DataFrame] = {}
        sources = {spout.id: _nothing(group, spout) for spout in group.spouts}
        if isinstance(entry, nodes.SpoutNode):
            sources[entry.id] = rows
        super().__init__(group, sources, label, reads)
        self.entered = self._marked[entry.id] if isinstance(entry, nodes.SpoutNode) else self._cache(rows)

    def _enter(self, spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
        return self._cache(self.group.entrance.with_slice(spout, source))

    def frames(
        self,
        wanted: Iterable[int],
        left_out: Mapping[str, frozenset[str]],
        given: Mapping[int, DataFrame] | None = None,
        numbers: frozenset[int] = frozenset(),
    ) -> dict[int, DataFrame]:
        """Return the frames of some nodes, by id.

        Args:
            left_out: none, ever: here rows are left out one by one.
            given: frames that are there already, by node.
            numbers: those rows.
        """
        spouts, given = {}, dict(given or {})
        for spout in self.group.spouts:
            taken = self._without(self._marked[spout.id], numbers).where(~self._refused())
            fields = [*spout.fields, SLICE_COLUMN] if self.group.entrance.sliced else list(spout.fields)
            spouts[spout.id] = taken.select(*(f"`{name}`" for name in fields), REPLAYED)
        if isinstance(self._entry, nodes.GateNode):
            given[self._entry.id] = self.gate(self._entry, self._without(self.entered, numbers).drop(UNREADABLE))
        return Compiler(self.group.topology.graph, tuple(wanted), self, spouts, given).frames()

    def _without(self, frame: DataFrame, numbers: frozenset[int]) -> DataFrame:
        if not numbers:
            return frame
        gone = self.group.spark.createDataFrame(pa.table({REPLAYED: pa.array(sorted(numbers), pa.int64())}))
        return frame.join(F.broadcast(gone), REPLAYED, "left_anti")

    def gate(self, node: nodes.GateNode, frame: DataFrame) -> DataFrame:
        """Let a frame pass, at once: few rows come, and the verdict is there before anything is committed.

        Raises:
            GateError: it refuses all of them.
        """
        compiled = self.group.compiled_gate(node, frame.drop(REPLAYED), compile_gate)
        annotated = self._cache(compiled.annotate(frame))
        metrics = annotated.agg(*compiled.metrics()).collect()[0].asDict()
        result = compiled.verdict(metrics, compiled.run_batch_checks(annotated.drop(REPLAYED)))
        self.results[node.gate.name] = result
        result.raise_if_refused(self.label)
        if compiled.drop_names:
            also = [REPLAYED] if REPLAYED in annotated.columns else []
            self._refused_rows[node.gate.name] = refused_by_gate(
                compiled.dropped(annotated), node.gate.name, compiled.drop_names, node.fields, also
            )
        return compiled.kept(annotated)

    def refused_again(self) -> pa.Table:
        """Return what was refused of the rows that `frames` took last: as quarantine keeps it, with `_slice` and `_replayed`."""
        parts = list(self._refused_rows.values())
        if isinstance(self._entry, nodes.SpoutNode):
            marked = self._marked[self._entry.id].where(self._refused())
            parts.append(refused_by_source(marked, self._entry, [REPLAYED]))
        nothing = F.lit(None).cast("bigint").alias(REPLAYED)
        whole = [part if REPLAYED in part.columns else part.select("*", nothing) for part in parts]
        if not whole:
            return pa.table({REPLAYED: pa.array([], pa.int64())})
        return reduce(DataFrame.unionByName, whole).toArrow()


def _nothing(group: BatchGroup, spout: nodes.SpoutNode) -> DataFrame:
    """Return a source that gives no row."""
    own = [StructField(CORRUPT, StringType()), StructField(FILE, StringType()), StructField(REPLAYED, LongType())]
    return empty_frame(group.spark, StructType([*group.entrance.schema(spout).fields, *own]))


UNREADABLE = "_unreadable"
"""boolean: whether a text is not what the fields of today would be written as."""
_VALUE, _RECORD = "_value", "_record"


def check_readable(topology: TridentTopology, lot: Lot, schema: StructType) -> None:
    """Refuse fields that are written as text and not read from it.

    Raises:
        ReplayError
    """
    for field in schema.fields:
        if not _readable(field.dataType):
            problem = f'field "{field.name}" is of type {field.dataType.simpleString()}, which is not read from JSON'
            raise ReplayError(topology.name, lot.what, problem, instead(topology))


def rows_of_gate(spark: SparkSession, lot: Lot, schema: StructType, *, sliced: bool) -> DataFrame:
    """Return the tuples that a gate refused: its fields, `_slice` if the flow has slices, `_replayed` and `_unreadable`."""
    frame = _texts(spark, lot).withColumn(_VALUE, _value(schema))
    kept = [SLICE_COLUMN, REPLAYED] if sliced else [REPLAYED]
    unlike = F.coalesce(_written(schema) != F.col("row"), F.lit(True)).alias(UNREADABLE)
    return frame.select(*_fields(_VALUE, schema), *kept, unlike)


def rows_of_source(spark: SparkSession, lot: Lot, spout: nodes.SpoutNode, schema: StructType) -> DataFrame:
    """Return the rows that a source refused, or that were in a poison batch.

    A malformed record goes to the source's own reader. All others were written as their fields and are read as such; in a
    poison batch there may be malformed ones among them.

    Returns:
        A source's frame (fields, `_corrupt`, `_file`) with `_replayed` and `_unreadable`.
    """
    frame = _texts(spark, lot).withColumn(_VALUE, _value(schema))
    written = F.coalesce((_written(schema) == F.col("row")) & (F.col("rule") != MALFORMED), F.lit(False))
    kept = [F.col("file").alias(FILE), F.col(REPLAYED)]
    record = spout.source.parsed(F.col("row"))
    if record is None:
        nothing = F.lit(None).cast("string").alias(CORRUPT)
        return frame.select(*_fields(_VALUE, schema), nothing, *kept, (~written).alias(UNREADABLE))
    frame = frame.withColumn("_written", written).withColumn(_RECORD, F.when(~F.col("_written"), record))
    bad = F.when(F.col(_RECORD).isNull(), F.col("row")).otherwise(F.col(f"{_RECORD}.{CORRUPT}"))
    frame = frame.withColumn(CORRUPT, F.when(~F.col("_written"), bad))
    fields = [
        F.when(F.col("_written"), value).otherwise(parsed).alias(name)
        for name, value, parsed in zip(
            schema.fieldNames(), _fields(_VALUE, schema), _fields(_RECORD, schema), strict=True
        )
    ]
    good = F.col(CORRUPT).isNull()
    unlike = F.when(F.col("rule") == MALFORMED, F.lit(False)).when(F.col("rule") == POISON, good).otherwise(F.lit(True))
    return frame.select(*fields, CORRUPT, *kept, (~F.col("_written") & unlike).alias(UNREADABLE))


def _texts(spark: SparkSession, lot: Lot) -> DataFrame:
    rows = lot.rows.select([NUMBER, "rule", "row", "file", SLICE_COLUMN])
    return arrow_frame(spark, rows.rename_columns([REPLAYED, "rule", "row", "file", SLICE_COLUMN]))


def _value(schema: StructType) -> Column:
    return F.from_json(F.col("row"), schema, {**ROW_JSON, "mode": "PERMISSIVE"})


def _written(schema: StructType) -> Column:
    """Return what the value would be written as."""
    return F.to_json(F.struct(*_fields(_VALUE, schema)), ROW_JSON)


def _fields(struct: str, schema: StructType) -> list[Column]:
    return [F.col(f"{struct}.`{name}`").alias(name) for name in schema.fieldNames()]


def _readable(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _readable(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _readable(kind.valueType)
    if isinstance(kind, StructType):
        return all(_readable(field.dataType) for field in kind.fields)
    return not isinstance(kind, VariantType | DayTimeIntervalType | YearMonthIntervalType)
