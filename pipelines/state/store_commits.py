"""Large commits where the table is on an object store: Spark writes Parquet, delta-rs commits it (docs/adr/0057).

Spark's own Delta writer would commit with a log store that overwrites the commits of others without a word. So there Spark
puts files into a folder of their own inside the table, which nobody reads before delta-rs has named them in a commit.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction

from pipelines.places.location import Location
from pipelines.spark.observations import observed
from pipelines.state.commits import HOOKS
from pipelines.state.schema import GEN, SLICE_COLUMN
from pipelines.state.turns import LateWriterError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GIVEN = "given"
_TIMES = "spark.sql.parquet.outputTimestampType"
_END = 8
"""Bytes at the end of a Parquet file: how long its footer is, then a mark."""
_GUESS = 64 * 1024
_WRITING = Lock()

COMMITTED_WITHIN_SECONDS = 12 * 3600.0
"""A compaction deletes files that no commit names once they are a day old; half of that leaves room for clocks."""


def written_by_spark(frame: DataFrame, table: Location, generation: int) -> tuple[list[AddAction], int]:
    """Have Spark write a frame into a table's folder. Return what a commit says of its files, and how many rows Spark gave them.

    Args:
        frame: all columns of the table but the generation.
        generation: of all the rows.
    """
    from pyspark.sql import Observation, functions

    folder, spark, given = table / f"commit-{uuid4().hex}", frame.sparkSession, Observation()
    frame = frame.observe(given, functions.count(functions.lit(1)).alias(_GIVEN))
    # A setting of the session: beside another write the first one to end would take it from the other.
    with _WRITING:
        before = spark.conf.get(_TIMES, None)
        spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
        try:
            frame.write.partitionBy(SLICE_COLUMN).parquet(str(folder))
        finally:
            spark.conf.unset(_TIMES) if before is None else spark.conf.set(_TIMES, before)
    actions = list(add_actions(table, folder, generation))
    # Of a frame that Spark saw to be empty it counts nothing.
    return actions, observed(given, lambda: {_GIVEN: 0})[_GIVEN]


def add_actions(table: Location, folder: Location, generation: int) -> Iterator[AddAction]:
    """Yield what a commit says of the Parquet files in a folder of a table, which are partitioned by slice."""
    for entry in table.store.entries(folder.key):
        file = Location(table.scheme, table.bucket, entry.key)
        # Spark's own folders hold what attempts of tasks have left behind.
        if file.suffix != ".parquet" or file.parent.parent.key != folder.key:
            continue
        slice_ = unquote(file.parent.name.removeprefix(f"{SLICE_COLUMN}="))
        yield AddAction(
            # delta-rs encodes it for the log.
            path=file.relative_to(table).as_posix(),
            size=entry.size,
            partition_values={SLICE_COLUMN: slice_, GEN: str(generation)},
            modification_time=int(entry.modified * 1000),
            data_change=True,
            stats=json.dumps(statistics(_footer(file, entry.size))),
        )


def rows_of(actions: Sequence[AddAction]) -> int:
    """Return how many rows the files of a commit hold."""
    return sum(int(json.loads(action.stats)["numRecords"]) for action in actions)


def check_age(files: Sequence[AddAction], table: Location, state: str, what: str) -> None:
    """Refuse files that a compaction may have deleted while their writer stood still. The store dates them, and says how old."""
    if not files:
        return
    age = table.store.clock(table.key) - min(file.modification_time for file in files) / 1000
    if age > COMMITTED_WITHIN_SECONDS:
        raise LateWriterError(
            state, what, f"its files are {age / 3600:.0f} hours old, and a compaction may have deleted them"
        )


def commit_files(table: DeltaTable, actions: Sequence[AddAction], properties: CommitProperties) -> None:
    """Commit files that are there, and bring the table up to its newest version."""
    table.create_write_transaction(
        list(actions),
        "append",
        table.schema(),
        list(table.metadata().partition_columns),
        commit_properties=properties,
        post_commithook_properties=HOOKS,
    )
    table.update_incremental()


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return what Delta keeps of a file, by its footer: its rows; the least and the greatest value of whole numbers."""
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    schema = footer.schema.to_arrow_schema()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        if name not in schema.names or not pa.types.is_signed_integer(schema.field(name).type):
            continue
        kept = [group.column(index).statistics for group in groups]
        known = [bounds for bounds in kept if bounds is not None and bounds.has_min_max]
        # A group without them has nulls alone, or does not say.
        if known and len(known) == len(kept):
            least[name], greatest[name] = min(bounds.min for bounds in known), max(bounds.max for bounds in known)
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}


def _footer(file: Location, size: int) -> pq.FileMetaData:
    """Read the end of a Parquet file of a store."""
    length = min(size, _GUESS)
    end = file.store.part(file.key, size - length, length)
    wanted = struct.unpack("<I", end[-_END:-4])[0] + _END
    if wanted > length:
        end = file.store.part(file.key, size - wanted, wanted)
    # A file begins with its mark, too.
    return pq.read_metadata(pa.BufferReader(b"PAR1" + end))
