"""Commit what a plan computed: the one home for a stream's batch, a backfill's slice and a replay."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.execution.batch.accounts import HASH, taken_off
from pipelines.execution.checkpoint.durable import sync_table
from pipelines.planner.updaters import EMIT, OP, REMOVE
from pipelines.state.schema import REMOVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.execution.events.hooks import Listener
    from pipelines.graph import nodes
    from pipelines.state.lake import Lake
    from pipelines.state.writer import StateWriter


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
    return frame.toArrow(), time.monotonic() - started


class Announced:
    """Commits of one run, each announced to the listeners before and after.

    Args:
        listeners: called around each commit.
        lake: where the tables are; None: no commit waits for the disk.
    """

    def __init__(self, listeners: tuple[Listener, ...], lake: Lake | None = None) -> None:
        self._listeners, self._lake = listeners, lake

    def commit(self, name: str, txid: int, writer: StateWriter, write: Callable[[], int]) -> int:
        """Run one commit. Return the table's version.

        On a durable lake the commit is on the disk before the listeners hear of it.
        """
        self.tell("committing", name, txid)
        version = write()
        if self._lake is not None and self._lake.durable and isinstance(self._lake.root, Path):
            sync_table(writer.table, version - 1, self._lake.root)
        self.tell("committed", name, txid)
        return version

    def tell(self, moment: str, name: str, txid: int) -> None:
        """Call all listeners."""
        for listener in self._listeners:
            listener(moment, name, txid)
