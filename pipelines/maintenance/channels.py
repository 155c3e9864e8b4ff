"""Channels: the rows that all readers have taken may go; what a reader has yet to take must stay, its files and its log.

A reader is a Spark query: what it has taken is the position behind the last batch that Spark has marked as done. It reads a
channel's commits one by one, passing over those that delete or move rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from pipelines.execution.checkpoint.changeover import watermark
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.graph import events
from pipelines.sources.offsets import json_offsets, offset_lines
from pipelines.state.maintenance_commits import delete_rows
from pipelines.state.schema import TXID
from pipelines.windows.bucket import NEVER

if TYPE_CHECKING:
    from pipelines.state.lake import Lake
    from pipelines.state.record import BatchRecord
    from pipelines.state.table import StateTable


@dataclass(frozen=True)
class ReadingProgress:
    """The progress of a channel's readers.

    Attributes:
        before: the commits of all lower versions have been taken by every reader; 0: one has not finished a batch.
        needed: the oldest version that a reader may ask for; None: nobody reads it.
    """

    before: int
    needed: int | None


def taken(table: StateTable, readers: Sequence[Checkpoint], number: int | None) -> ReadingProgress:
    """Return how far the readers have come.

    Args:
        table: the channel.
        readers: the checkpoints of the flow; those that do not read this channel do not count.
        number: how many queries of the flow read it; None: not known, so that nothing counts as taken by all.
    """
    opened = DeltaTable(str(table.path))
    positions = [position for reader in readers for position in _positions(reader, str(opened.metadata().id))]
    # Before its first batch is finished a reader may ask for any version: what it has begun with stands nowhere.
    if len(positions) < number if number is not None else any(not reader.finished_batches() for reader in readers):
        return ReadingProgress(0, 0)
    if not positions:
        return ReadingProgress(0, None)
    # One version more than asked for: the next one may not be there yet.
    needed = max(0, min(opened.version(), *(version for version, _ in positions)) - 1)
    whole = len(positions) == number and not any(starting for _, starting in positions)
    return ReadingProgress(min(version for version, _ in positions) if whole else 0, needed)


def _positions(reader: Checkpoint, table_id: str) -> Iterator[tuple[int, bool]]:
    """Yield the version of a table at which a query goes on, and whether it is still in its first look at all of it."""
    for offset in json_offsets(offset_lines(reader.spark, reader.finished_batches() - 1)):
        if offset.get("reservoirId") == table_id:
            yield int(offset["reservoirVersion"]), bool(offset.get("isStartingVersion"))


def streamed(lake: Lake) -> dict[str, int]:
    """Return by Delta's id of a table the version from which on a stream of any flow in the lake asks for it.

    When Spark starts a stream again it looks at the commits of the last finished batch once more. Before the first one is
    finished it reads what that was planned with.
    """
    folder, oldest = lake.root / "checkpoints", dict[str, int]()
    flows = [flow for flow in folder.iterdir() if flow.is_dir()] if folder.is_dir() else []
    for flow in flows:
        for group in (group for group in flow.iterdir() if group.is_dir()):
            reader = Checkpoint(flow.name, group)
            for table, version in _asked_for(reader):
                oldest[table] = min(version, oldest.get(table, version))
    return oldest


def _asked_for(reader: Checkpoint) -> Iterator[tuple[str, int]]:
    """Yield tables and the versions to which a query may come back; what is torn, or moved away meanwhile, says nothing."""
    for back in (1, 0):
        with contextlib.suppress(ValueError, FileNotFoundError):
            for offset in json_offsets(offset_lines(reader.spark, max(reader.finished_batches() - 1, 0) - back)):
                if "reservoirVersion" in offset:
                    yield str(offset["reservoirId"]), int(offset["reservoirVersion"])


def old_batches(table: StateTable, before: int, hours: float) -> int | None:
    """Return the txid below which all readers have had the batches of a channel for so many hours; None: no batch.

    Args:
        before: `ReadingProgress.before`.
        hours: how long rows stay at least.
    """
    oldest = datetime.now(UTC) - timedelta(hours=hours)
    commits = table.commits.batches()
    gone = [
        commit.txid
        for commit in commits
        if commit.version < before and commit.time <= oldest and commit.txid is not None
    ]
    return max(gone) + 1 if gone else None


def let_go(
    table: StateTable, opened: DeltaTable, txid: int, record: BatchRecord, clocks: tuple[int, int] | None = None
) -> int:
    """Delete the rows of all batches below a txid, from an open version on. Return how many there were.

    Where readers have windows (`clocks`), events that wait there for the watermark stay, and the last word about it: a changeover
    goes on with them.

    Args:
        clocks: the watermark of the channel, and that of its readers' windows, in ms.
    """
    where = f"{TXID} < {txid}"
    if clocks is not None:
        done = f"({events.ID} IS NULL AND {events.CLOCK} < {clocks[0]})"
        where += f" AND ({done} OR ({events.ID} IS NOT NULL AND {events.CLOCK} <= {clocks[1]}))"
    return delete_rows(table, opened, where, record.model_copy(update={"folded_before": txid, "let_go": True}))


def clocks_of(
    lake: Lake, name: str, readers: Mapping[str, set[str]], groups: Sequence[Checkpoint]
) -> tuple[int, int] | None:
    """Return the watermark of a channel as far as all readers have taken it, and the lowest one of all that they read.

    Args:
        readers: of each channel of the flow.

    Returns:
        None where no reader has windows: nothing waits.
    """
    if not any(group.has_state for group in groups if group.folder.name in readers[name]):
        return None
    clocks = {}
    for channel in (channel for channel, of in readers.items() if of & readers[name]):
        table = lake.table(lake.channel_path(channel), channel)
        # A new version of the flow may read one that its writer has yet to make.
        there = table.exists()
        behind = old_batches(table, taken(table, groups, len(readers[channel])).before, 0) if there else None
        clocks[channel] = NEVER if behind is None else watermark(table.path, behind - 1)
    return clocks[name], min(clocks.values())
