"""Windows on channels that are about to go over into the batch of their source: all of them can, and their queries have ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.execution.batch.driver_windows import DriverWindows
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.batch.window_conversion import ChannelWindows, channel_is_empty
from pipelines.execution.checkpoint.copy import recover
from pipelines.execution.checkpoint.engine_files import CONTINUE, Checkpoint
from pipelines.execution.checkpoint.window_begin import WindowPlaceError, ended_in, is_elsewhere, state_files
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.execution.runners.sessions import own_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.execution.runners.stream import StreamOptions, StreamRunner
    from pipelines.places.location import Place
    from pipelines.trident.topology import TridentTopology

_SEVERAL = "further windows of its stream run behind a table, a gate or another stream, in queries of their own"


Watch = Callable[["StreamRunner", "StreamingQuery", "Place"], None]
"""What waits for the end of a query, of which it gets Spark's part of the checkpoint, too."""


def read_to_the_end(
    group: BatchGroup, checkpoint: Checkpoint, options: StreamOptions, runner: StreamRunner, watch: Watch
) -> bool:
    """Let the flow, as it is with `windows="channels"`, finish what it has begun, and read what is in the group's channel.

    Args:
        group: that is to run the windows in its batch.
        checkpoint: of the group; the caller holds its lock.
        options: of the group's stream.
        runner: of the group; where it is stopped in mid-batch, so is what runs here.
        watch: waits for the end of each query, which it may drain.

    Returns:
        Whether all of it is finished and read; False: a query was drained or stopped.

    Raises:
        WindowPlaceError: windows of the flow cannot go over; none has, then.
        TrideltaError: what stops a query.
    """
    if (
        group.topology.on_channels is None
        or not is_elsewhere(checkpoint, True)
        or ended_in(state_files(checkpoint.folder))
    ):
        # Windows that have ended ran in the batch: a query behind a channel was that of others.
        return True
    before = group.topology.on_channels()
    # A flow with some windows here and some there could not run at all.
    for spouts in spout_groups(group.topology):
        own = group_name(spouts) == group.name
        _check(group if own else BatchGroup(group.spark, group.lake, group.topology, spouts), before)
    # Beside other starts, which do not wait for it.
    former, apart = _former(before, group), replace(options, attempts=None, start_wait_seconds=None)
    reader = former.checkpoint
    if reader.epoch is not None and former.unread() is None:
        return True

    def ran(own: Checkpoint, *, pending_only: bool) -> bool:
        ahead = type(runner)(_query(group, before, own), own, apart)
        ahead.stopping.forced = runner.stopping.forced
        watch(ahead, ahead.start(on_fresh=CONTINUE, trigger_seconds=None, pending_only=pending_only), own.spark)
        return not (ahead.stopping.draining.is_set() or ahead.stopping.forced.is_set())

    if former.is_begun(checkpoint) and not ran(checkpoint, pending_only=True):
        return False
    if channel_is_empty(group):
        return True
    with reader.running(options.lock_wait_seconds):
        recover(reader)
        return ran(reader, pending_only=False)


def _check(group: BatchGroup, before: TridentTopology) -> None:
    """Refuse windows that cannot go over."""
    checkpoint = Checkpoint(group.topology.name, group.lake.checkpoint_path(group.topology.name, group.name))
    if group.windows and is_elsewhere(checkpoint, True):
        former = _former(before, group)
        if former.checkpoint.epoch is not None:
            former.check_forms(DriverWindows(group, checkpoint.folder).stages)


def _former(before: TridentTopology, group: BatchGroup) -> ChannelWindows:
    name = _reader(before, group)
    if name is None:
        raise WindowPlaceError(group.topology.name, group.name, in_batch=True, reason=_SEVERAL)
    folder = group.lake.checkpoint_path(group.topology.name, group.name).parent
    return ChannelWindows(group, Checkpoint(group.topology.name, folder / name))


def _reader(before: TridentTopology, group: BatchGroup) -> str | None:
    """Return the query that reads the group's channel; None where there are several, one behind the other."""
    queries, now = ({group_name(spouts) for spouts in spout_groups(made)} for made in (before, group.topology))
    readers = [name for name in queries if re.fullmatch(rf"{re.escape(group.name)}__\d+", name)]
    return readers[0] if len(readers) == 1 and readers[0] not in now and group.name in queries else None


def _query(group: BatchGroup, topology: TridentTopology, checkpoint: Checkpoint) -> BatchGroup:
    """Return the query of a checkpoint, as a topology has it."""
    spouts = next(own for own in spout_groups(topology) if group_name(own) == checkpoint.folder.name)
    return BatchGroup(own_session(group.spark, checkpoint.partitions), group.lake, topology, spouts)
