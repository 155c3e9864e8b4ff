"""No batch of the flow is committed in part while rows are replayed.

A batch that has committed and that Spark has not marked as done comes again after a crash. A state that is not transactional
then takes it anew, by the gates of that day: a row of it that was replayed meanwhile would be in it twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pipelines.errors import LockedError
from pipelines.execution.batch.group import group_name, spout_groups
from pipelines.execution.replays.errors import ReplayError
from pipelines.graph import nodes

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.engine_files import Checkpoint
    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology

# Between a batch's end and Spark's own commit of it lie some tens of milliseconds, in which the lock is free.
_POLL_SECONDS = 0.05


@contextmanager
def wait_for_whole_batches(
    lake: Lake, topology: TridentTopology, checkpoints: Sequence[Checkpoint], wait_seconds: float
) -> Iterator[None]:
    """Hold the commit locks at a moment when every committed batch is done.

    Raises:
        ReplayError: a batch is half done and nobody is there to finish it.
        LockedError: no such moment came.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        with ExitStack() as locks:
            for one in sorted(checkpoints, key=lambda one: one.folder.name):
                locks.enter_context(one.committing(wait_seconds))
            half = _half(lake, topology, checkpoints)
            if half is None:
                yield
                return
        checkpoint, txid = half
        if not _runs(checkpoint):
            raise ReplayError(
                topology.name,
                "quarantined rows",
                f"batch {txid} was committed and cut off before Spark marked it as done, so it comes again",
                f"finish it first: tridelta run {topology.name} --max-batches 1",
            )
        if time.monotonic() > deadline:
            raise LockedError(topology.name, str(checkpoint.folder), wait_seconds)
        time.sleep(_POLL_SECONDS)


def _half(lake: Lake, topology: TridentTopology, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, int] | None:
    """A batch that some table has committed and that Spark has not marked as done."""
    by_name = {one.folder.name: one for one in checkpoints}
    for spouts in spout_groups(topology):
        checkpoint = by_name[group_name(spouts)]
        epoch = checkpoint.epoch
        if epoch is None:
            continue
        done = epoch.first_txid + checkpoint.finished_batches()
        reached = {node.id for spout in spouts for node in topology.graph.descendants(spout.id)}
        for node in topology.persists:
            table = lake.written_by(node)
            if node.id not in reached or not table.exists() or not isinstance(node, nodes.PersistNode):
                continue
            last = table.commits.last_batch()
            if last is not None and last.epoch == epoch.number and last.txid is not None and last.txid >= done:
                return checkpoint, last.txid
    return None


def _runs(checkpoint: Checkpoint) -> bool:
    try:
        with checkpoint.running(0):
            return False
    except LockedError:
        return True
