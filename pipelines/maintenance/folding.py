"""Rewrite the closed generations of a table: fold a log state, merge the small files of rows and of map states.

The commit of a fold holds the folded slices and the roll-up together, so that at every version of the table a reader finds either
the old rows or the new ones: a roll-up and slices that were folded past it would count rows twice. Commits that merge say that
no data changed, so a stream that reads the table does not read the rows again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from pipelines import spark_functions as F
from pipelines.graph.dialects import DATAFUSION, SPARK, Dialect
from pipelines.maintenance.plan import TARGET_FILE_BYTES, Closed, FoldPlan, Part, parts_of
from pipelines.spark.arrow_frame import all_nullable
from pipelines.state.literals import quoted
from pipelines.state.maintenance_commits import clustered_by
from pipelines.state.record import BatchRecord
from pipelines.state.schema import GEN, ROLL_UP, SLICE_COLUMN, TXID
from pipelines.state.sums import fitting, total_of
from pipelines.state.writer import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Up to so many stored rows are folded by DataFusion in this process: some 100 MB of Arrow and a second of work, where
# Spark needs seconds of jobs. Beyond, Spark spreads and spills.
DRIVER_ROWS = 2_000_000
# On an object store Spark cannot make the commit. So many rows of a few columns are a gigabyte or two.
STORE_ROWS = 20_000_000


def fold_arrow(writer: StateWriter, table: DeltaTable, plan: FoldPlan, record: BatchRecord) -> int:
    """Fold without Spark; returns the version.

    Args:
        table: the version to read, which is also the one that the commit starts from: Delta removes exactly the files
            that were read, and refuses the commit if what it read changed since.
    """
    stored = pa.schema(table.schema().to_arrow())
    context = QueryBuilder().register("state", table)
    sql = [_select(writer, stored, plan, SLICE_COLUMN, slices_condition(plan, DATAFUSION))] if plan.slices else []
    sql += [_select(writer, stored, plan, f"'{ROLL_UP}'", _roll_up_where(plan))] if plan.rolls_up else []
    with fitting(writer.table.name, "a folded total"):
        folded = [pa.table(context.execute(query).read_all()) for query in sql]
        # A value that was added later stands behind the engine's own columns.
        rows = pa.concat_tables([table.select(stored.names).cast(stored) for table in folded])
    return writer.rewrite_arrow(table, rows, record, replaced(plan, DATAFUSION), TARGET_FILE_BYTES)


def fold_spark(writer: StateWriter, spark: SparkSession, table: DeltaTable, plan: FoldPlan, record: BatchRecord) -> int:
    """Fold with Spark; returns the version.

    The rows are read at one version and Delta replaces what a later one holds. Nothing closed changes between the two:
    streams append to generations that `plan` leaves alone, or wait, and behind a commit that is no batch Delta takes no other.
    """
    stored = spark.read.format("delta").option("versionAsOf", table.version()).load(str(writer.table.path))
    keys = [SPARK.name(name) for name in writer.declared.keys]
    parts = [
        _folded(writer, stored.where(where), by).withColumn(SLICE_COLUMN, F.expr(slice_))
        for where, by, slice_ in _spark_parts(plan, keys)
    ]
    frame = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    frame = frame.withColumn(GEN, F.lit(plan.closed.gen).cast("long")).select(*(f"`{name}`" for name in stored.columns))
    files = max(1, -(-plan.bytes // TARGET_FILE_BYTES))
    order = [SLICE_COLUMN, *(SPARK.name(name) for name in _order(writer, plan))]
    frame = frame.repartitionByRange(files, *order).sortWithinPartitions(*order)
    return writer.rewrite_spark(table, frame, record, replaced(plan, SPARK))


def _spark_parts(plan: FoldPlan, keys: list[str]) -> list[tuple[str, list[str], str]]:
    """Return condition, grouping, and the slice of the folded rows."""
    parts = []
    if plan.slices:
        parts.append((slices_condition(plan, SPARK), [SLICE_COLUMN, *keys], SLICE_COLUMN))
    if plan.rolls_up:
        parts.append((_roll_up_where(plan), keys, f"'{ROLL_UP}'"))
    return parts


def _order(writer: StateWriter, plan: FoldPlan) -> list[str]:
    """Return the keys, those first by which the table is clustered."""
    return list(dict.fromkeys([*plan.by, *writer.declared.keys]))


def _folded(writer: StateWriter, stored: DataFrame, by: list[str]) -> DataFrame:
    types = {f.name: all_nullable(f.dataType) for f in stored.schema}
    values = [
        value.make().fold(F.col(f"`{value.name}`")).cast(types[value.name]).alias(value.name)
        for value in writer.declared.values
    ]
    return stored.groupBy(*(F.col(name) for name in by)).agg(*values, F.max(TXID).alias(TXID))


# --- SQL, for DataFusion and for Spark ------------------------------------------------------------------------------


def slices_condition(plan: FoldPlan, dialect: Dialect) -> str:
    """Return the rows of the slices that are folded."""
    return f"{GEN} < {plan.closed.before} AND {SLICE_COLUMN} IN ({dialect.texts(plan.slices)})"


def _roll_up_where(plan: FoldPlan) -> str:
    """Return the rows that the new roll-up stands for: the old roll-up and the generations after it."""
    if plan.since is None:
        return f"{GEN} < {plan.closed.before} AND {SLICE_COLUMN} <> '{ROLL_UP}'"
    # The highest roll-up alone: it stands for a lower one, which an earlier release may have left.
    since = f"{GEN} >= {plan.since} AND ({SLICE_COLUMN} = '{ROLL_UP}' OR {GEN} > {plan.since})"
    return f"{GEN} < {plan.closed.before} AND {since}"


def replaced(plan: FoldPlan, dialect: Dialect) -> str:
    """Return the rows that the commit replaces."""
    names = (*plan.slices, ROLL_UP) if plan.rolls_up else plan.slices
    return f"{GEN} < {plan.closed.before} AND {SLICE_COLUMN} IN ({dialect.texts(names)})"


def _select(writer: StateWriter, stored: pa.Schema, plan: FoldPlan, slice_: str, where: str) -> str:
    declared = writer.declared
    keys = [quoted(name) for name in declared.keys]
    order = [*([SLICE_COLUMN] if slice_ == SLICE_COLUMN else []), *(quoted(name) for name in _order(writer, plan))]
    kinds = dict(zip(stored.names, stored.types, strict=True))
    folds = {
        value.name: value.make().fold_sql(quoted(value.name), total_of(kinds[value.name]), kinds[value.name])
        for value in declared.values
    }
    columns = [f"{folds[name]} AS {quoted(name)}" if name in folds else quoted(name) for name in declared.names]
    group = ", ".join(keys if slice_ != SLICE_COLUMN else [SLICE_COLUMN, *keys])
    return (
        f"SELECT {', '.join(columns)}, max({TXID}) AS {TXID}, {slice_} AS {SLICE_COLUMN}, "
        f"CAST({plan.closed.gen} AS BIGINT) AS {GEN} FROM state WHERE {where}"
        # Sorted by key, so that a read of some keys skips row groups and files by their least and greatest values.
        + (f" GROUP BY {group} ORDER BY {', '.join(order)}" if group else " HAVING count(*) > 0")
    )


Loose = Mapping[str, tuple[int, ...]]
"""Generations to merge, by slice."""


def merge(
    writer: StateWriter,
    spark: SparkSession | None,
    table: DeltaTable,
    closed: Closed,
    record: BatchRecord,
    *,
    sealed: Closed,
) -> int:
    """Merge the small files of closed generations. Return how many slices were touched.

    A stream makes a partition per slice and generation, so files have to be merged over generations too, or a year of them
    leaves as many files as generations. That takes Spark; within a partition delta-rs does it in milliseconds.

    Args:
        spark: a session, or None.
        table: the version to read.
        closed: what may be rewritten by delta-rs, which removes the files that it has read and no others.
        record: what the commits say.
        sealed: what may be rewritten by Spark, which replaces whatever is there by then: never the generation to which a
            batch may still be appended, whatever a lock says.
    """
    touched: set[str] = set()
    inside = [part for part in parts_of(table) if part.gen < sealed.settled]
    loose = loose_generations(inside)
    if spark is not None and any(len(generations) > 1 for generations in loose.values()):
        size = sum(part.bytes for part in inside if part.gen in loose.get(str(part.slice), ()))
        version = _merge_spark(writer, spark, table, loose, size, record)
        touched.update(loose)
        # Not the last version: others may have committed behind, of which the record does not know.
        table = DeltaTable(str(writer.table.path), version=version)
    parts = [part for part in parts_of(table) if closed.has(part.gen)]
    loose = loose_generations(parts)
    crowded = [part for part in parts if part.files > 1 and part.gen in loose.get(str(part.slice), ())]
    if crowded:
        writer.optimize(table, sorted({part.gen for part in crowded}), record, TARGET_FILE_BYTES)
    return len(touched | {str(part.slice) for part in crowded})


def compact_map(writer: StateWriter, table: DeltaTable, record: BatchRecord) -> int:
    """Rewrite a map state's files as fewer, without the keys that were removed. Return 1 if anything was to be done.

    For a moment between two batches: a MERGE reads all files, so Delta refuses it beside this, and this beside it.
    """
    gone = writer.forget_removed(table, record)
    parts = parts_of(table)
    crowded = any(part.files > math.ceil(part.bytes / TARGET_FILE_BYTES) for part in parts)
    if crowded:
        writer.optimize(table, None, record, TARGET_FILE_BYTES)
    return int(crowded or gone > 0)


def loose_generations(parts: Iterable[Part]) -> dict[str, tuple[int, ...]]:
    """Return per slice the generations whose files are small, where merging them leaves fewer files.

    Generations of large files are left alone: each row is rewritten until its file is large, and no more.
    """
    small: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        if part.slice is not None and part.bytes < part.files * TARGET_FILE_BYTES / 2:
            small[part.slice].append(part)
    return {
        slice_: tuple(sorted(part.gen for part in own))
        for slice_, own in small.items()
        if sum(part.files for part in own) > math.ceil(sum(part.bytes for part in own) / TARGET_FILE_BYTES)
    }


def _merge_spark(
    writer: StateWriter, spark: SparkSession, table: DeltaTable, loose: Loose, size: int, record: BatchRecord
) -> int:
    """Rewrite a slice's small generations as the last of them, which they then fill alone.

    Read at one version and replaced at a later one: as in `fold_spark` nothing closed changes in between.
    """
    where = loose_condition(loose)
    stored = spark.read.format("delta").option("versionAsOf", table.version()).load(str(writer.table.path)).where(where)
    last = F.create_map(*(F.lit(item) for slice_, gens in loose.items() for item in (slice_, gens[-1])))
    frame = stored.withColumn(GEN, last[F.col(SLICE_COLUMN)].cast("long"))
    # As the table is clustered, else in the order in which they came, so that reads of some batches skip files.
    order = [SLICE_COLUMN, *(SPARK.name(name) for name in clustered_by(table)), TXID]
    frame = frame.repartitionByRange(max(1, math.ceil(size / TARGET_FILE_BYTES)), *order)
    return writer.rewrite_spark(table, frame.sortWithinPartitions(*order), record, where, same_rows=True)


def loose_condition(loose: Loose) -> str:
    """Return the partitions, as a condition for Spark; slices with the same generations in one term."""
    by_generations: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for slice_, generations in loose.items():
        by_generations[generations].append(slice_)
    return " OR ".join(
        f"({SLICE_COLUMN} IN ({SPARK.texts(slices)}) AND {GEN} IN ({', '.join(map(str, generations))}))"
        for generations, slices in by_generations.items()
    )
