"""Merging the small files of tables of rows and of map states: the same rows in fewer files.

Commits of this kind say that no data changed, so a stream that reads the table does not read the rows again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from pipelines.graph.dialects import SPARK
from pipelines.maintenance.plan import TARGET_FILE_BYTES, Closed, Part, parts_of
from pipelines.state.maintenance_commits import clustered_by
from pipelines.state.record import BatchRecord
from pipelines.state.schema import GEN, SLICE_COLUMN, TXID
from pipelines.state.writer import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """Merge the small files of closed generations. Returns how many slices were touched.

    A stream makes a partition a slice and generation, so files have to be merged over generations too, or a year of them
    leaves as many files as generations. That takes Spark; within a partition delta-rs does it in milliseconds.

    Args:
        writer: the table's.
        spark: a session, or None.
        table: the version to read.
        closed: what may be rewritten by delta-rs, which removes the files that it has read and no others.
        record: what the commits say.
        sealed: what may be rewritten by Spark, which replaces whatever is there by then: never the generation to which a
            batch may still be appended, whatever a lock says.
    """
    touched: set[str] = set()
    inside = [part for part in parts_of(table) if part.gen < sealed.before]
    loose = loose_generations(inside)
    if spark is not None and any(len(generations) > 1 for generations in loose.values()):
        size = sum(part.bytes for part in inside if part.gen in loose.get(str(part.slice), ()))
        _merge_spark(writer, spark, table, loose, size, record)
        touched.update(loose)
        table = DeltaTable(str(writer.table.path))
    parts = [part for part in parts_of(table) if part.gen < closed.before]
    loose = loose_generations(parts)
    crowded = [part for part in parts if part.files > 1 and part.gen in loose.get(str(part.slice), ())]
    if crowded:
        writer.optimize(table, sorted({part.gen for part in crowded}), record, TARGET_FILE_BYTES)
    return len(touched | {str(part.slice) for part in crowded})


def tidy(writer: StateWriter, record: BatchRecord) -> int:
    """A map state's files in fewer ones, without the keys that were removed. Returns 1 if anything was to be done.

    For a moment between two batches: a MERGE reads all files, so Delta refuses it beside this, and this beside it.
    """
    gone = writer.forget_removed(record)
    table = DeltaTable(str(writer.table.path))
    parts = parts_of(table)
    crowded = any(part.files > math.ceil(part.bytes / TARGET_FILE_BYTES) for part in parts)
    if crowded:
        writer.optimize(table, None, record, TARGET_FILE_BYTES)
    return int(crowded or gone > 0)


def loose_generations(parts: Iterable[Part]) -> dict[str, tuple[int, ...]]:
    """By slice the generations whose files are small, where merging them leaves fewer files.

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
) -> None:
    """Rewrite a slice's small generations as the last of them, which they then fill alone.

    Read at one version and replaced at a later one: as in `fold_spark` nothing closed changes in between.
    """
    from pyspark.sql import functions as F

    where = loose_condition(loose)
    stored = spark.read.format("delta").option("versionAsOf", table.version()).load(str(writer.table.path)).where(where)
    last = F.create_map(*(F.lit(one) for slice_, gens in loose.items() for one in (slice_, gens[-1])))
    frame = stored.withColumn(GEN, last[F.col(SLICE_COLUMN)].cast("long"))
    # As the table is clustered, else in the order in which they came, so that reads of some batches skip files.
    order = [SLICE_COLUMN, *(SPARK.name(name) for name in clustered_by(table)), TXID]
    frame = frame.repartitionByRange(max(1, math.ceil(size / TARGET_FILE_BYTES)), *order)
    writer.rewrite_spark(frame.sortWithinPartitions(*order), record, where, same_rows=True)


def loose_condition(loose: Loose) -> str:
    """The partitions, as a condition for Spark; slices with the same generations in one term."""
    by_generations: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for slice_, generations in loose.items():
        by_generations[generations].append(slice_)
    return " OR ".join(
        f"({SLICE_COLUMN} IN ({SPARK.texts(slices)}) AND {GEN} IN ({', '.join(map(str, generations))}))"
        for generations, slices in by_generations.items()
    )
