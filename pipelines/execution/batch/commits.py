"""Commit what a plan computed: the one home for a stream's batch, a backfill's slice and a replay."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from pipelines.execution.batch.accounts import HASH, row_hash, taken_off
from pipelines.execution.checkpoint.durable import asked_up_to, sync_table
from pipelines.graph.dialects import SPARK
from pipelines.planner.updaters import EMIT, OP, REMOVE
from pipelines.spark.arrow_frame import all_nullable, nullable_within, to_arrow
from pipelines.state.schema import REMOVED, SLICE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column

    from pipelines.execution.events.hooks import Listener
    from pipelines.graph import nodes
    from pipelines.planner.siblings import Siblings
    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable
    from pipelines.state.writer import StateWriter

_OF = "_of"
"""int: the frame that a row is of, while several are computed together."""


@dataclass(frozen=True)
class Prepared:
    """Rows that are ready to be committed.

    Attributes:
        rows: without their hashes.
        hash: the XOR of the hashes; None where the rows have none.
        emitted: what a state updater emitted; None where the state has no updater.
    """

    rows: pa.Table
    hash: int | None
    emitted: pa.Table | None = None


def prepared(computed: pa.Table, node: nodes.PersistNode) -> Prepared:
    """Take the hashes off computed rows, and the rows that a state updater emitted."""
    rows, digest = taken_off(computed) if HASH in computed.column_names else (computed, None)
    if node.updater is None:
        return Prepared(rows, digest)
    rows, emitted = changes_and_emitted(rows, node)
    return Prepared(rows, digest, emitted)


def changes_and_emitted(rows: pa.Table, node: nodes.PersistNode) -> tuple[pa.Table, pa.Table]:
    """Split an updater's frame (`pipelines.planner.updaters`) into rows for the commit and rows for new values.

    Returns:
        Keys, values and `_removed boolean`; and the emitted rows with all their columns.
    """
    emits = pc.equal(rows[OP], EMIT)
    changed = rows.filter(pc.invert(emits))
    changes = changed.select(list(node.fields)).append_column(REMOVED, pc.equal(changed[OP], REMOVE))
    return changes, rows.filter(emits)


def computed(frame: DataFrame) -> tuple[pa.Table, float]:
    """Compute a frame. Return its rows and the seconds that it took."""
    started = time.monotonic()
    return to_arrow(frame), time.monotonic() - started


def computed_together(frames: Mapping[str, DataFrame], hashed: Container[str]) -> tuple[dict[str, pa.Table], float]:
    """Compute several frames in one Spark job. Return the rows of each, and the seconds that all took.

    To plan, schedule and collect a job costs more than a small result. Columns of one type share their place in the rows, and
    are null in the rows of frames that have fewer of it.

    Args:
        hashed: the frames whose rows get their hash beside them.
    """
    started = time.monotonic()
    places = {name: _in_places(frame, with_hash=name in hashed) for name, frame in frames.items()}
    wanted = sorted({place for of_frame in places.values() for place in of_frame})
    parts = [
        frame.select(F.lit(number).alias(_OF), *(places[name].get(place, (F.lit(None), ""))[0] for place in wanted))
        for number, (name, frame) in enumerate(frames.items())
    ]
    rows = reduce(DataFrame.union, parts).toArrow()
    results = {}
    for number, name in enumerate(frames):
        # Not cut at the ends: parts that are partitioned alike come partition by partition (UnionExec.outputPartitioning).
        own = rows.filter(pc.equal(rows[0], number))
        columns = {column: own[1 + wanted.index(place)] for place, (_, column) in places[name].items()}
        results[name] = pa.table(columns)
    return results, time.monotonic() - started


def with_hashes(frame: DataFrame, siblings: Siblings) -> DataFrame:
    """Return the common rows of siblings with the hash of each one's own row beside them."""
    hashes = (_own_hash(frame.schema, siblings, member) for member in siblings.members)
    return frame.selectExpr("*", *hashes)


def _own_hash(schema: StructType, siblings: Siblings, member: nodes.PersistNode) -> str:
    """Return the hash of a member's own row as SQL: under the names that the columns have in its state."""
    places = {a.output: siblings.place(member, a.output) for a in member.aggregations}
    own = [StructField(name, schema[places.get(name, name)].dataType) for name in (*member.group, *places)]
    return f"{row_hash(StructType(own), places)} AS {SPARK.name(siblings.place(member, HASH))}"


def _own_places(names: Sequence[str], siblings: Siblings, member: nodes.PersistNode) -> list[str]:
    """Return the columns of the common rows that make a member's own rows, in the order that these have alone."""
    values = [siblings.place(member, a.output) for a in member.aggregations]
    slices = [SLICE_COLUMN] if SLICE_COLUMN in names else []
    return [*siblings.first.group, *slices, *values]


def own_rows(rows: pa.Table, siblings: Siblings) -> dict[str, pa.Table]:
    """Return the rows of each sibling's state, with their hashes, from the common rows."""
    found = {}
    for member in siblings.members:
        outputs = [a.output for a in member.aggregations]
        own = rows.select([*_own_places(rows.column_names, siblings, member), siblings.place(member, HASH)])
        leading = own.column_names[: len(own.column_names) - len(outputs) - 1]
        found[member.state.name] = own.rename_columns([*leading, *outputs, HASH])
    return found


def _in_places(frame: DataFrame, *, with_hash: bool) -> dict[tuple[str, int], tuple[Column, str]]:
    """Return per type, and number among the columns of that type, a column and its name."""
    schema = frame.schema
    columns = [(all_nullable(field.dataType).json(), nullable_within(field), field.name) for field in schema]
    if with_hash:
        columns.append((LongType().json(), F.expr(row_hash(schema)), HASH))
    seen: Counter[str] = Counter()
    found = {}
    for kind, column, name in columns:
        found[kind, seen[kind]] = (column, name)
        seen[kind] += 1
    return found


class Announced:
    """Commits of one run, each announced to the listeners before and after.

    Args:
        lake: where the tables are; None: no commit waits for the disk.
    """

    def __init__(self, listeners: tuple[Listener, ...], lake: Lake | None = None) -> None:
        self._listeners, self._lake = listeners, lake
        self._asked: dict[str, int] = {}

    def commit(self, name: str, txid: int, writer: StateWriter, write: Callable[[], int]) -> int:
        """Run one commit. Return the table's version.

        On a durable lake the commit is on the disk before the listeners hear of it, and what it stands on.
        """
        self.tell("committing", name, txid)
        version = write()
        self.on_disk(name, writer.table, version)
        self.tell("committed", name, txid)
        return version

    def on_disk(self, name: str, table: StateTable, version: int) -> None:
        """Have a table on the disk up to a version, if the lake is durable: whoever was killed before may not have asked."""
        if self._lake is None or not self._lake.durable or not isinstance(self._lake.root, Path):
            return
        # Also what stands before it: a log with a gap is none.
        asked = self._asked[name] if name in self._asked else asked_up_to(table)
        sync_table(table, min(asked, version - 1), self._lake.root)
        self._asked[name] = version

    def tell(self, moment: str, name: str, txid: int) -> None:
        """Call all listeners."""
        for listener in self._listeners:
            listener(moment, name, txid)
