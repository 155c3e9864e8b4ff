"""Leaving a poison batch out. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines.errors import TrideltaError
from pipelines.execution.batch.group import group_name, spout_groups
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.protocol.coordinator import BatchState, Coordinator

if TYPE_CHECKING:
    from pipelines.execution.protocol.coordinator import AttemptRecord
    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology


_DONE = (BatchState.NEW, BatchState.COMMITTED, BatchState.SKIPPED)


class NoPoisonBatchError(TrideltaError):
    """A batch is to be left out that is not a poison batch: nothing was skipped."""

    def __init__(self, flow: str, txid: int, poison: Sequence[str]) -> None:
        self.flow, self.txid, self.poison = flow, txid, tuple(poison)
        super().__init__(
            f'batch {txid} of flow "{flow}" is not a poison batch, so it is not left out',
            hint=f"nothing was skipped; poison: {', '.join(poison)}"
            if poison
            else "nothing to do: no batch stops the flow",
        )


def skip(
    lake: Lake, topology: TridentTopology, txid: int, *, stream: str | None = None, lock_wait_seconds: float = 30.0
) -> None:
    """Leave a poison batch out: its rows stay in quarantine, the flow goes on behind it.

    Args:
        stream: the batch group, where the topology has several.
        lock_wait_seconds: how long to wait for another process that runs the flow.

    Raises:
        NoPoisonBatchError: that txid is not a poison batch; nothing was skipped.
        LockedError: another process runs the flow.
    """
    waiting: list[str] = []
    for spouts in spout_groups(topology):
        if stream is not None and all(spout.stream != stream for spout in spouts):
            continue
        name = group_name(spouts)
        checkpoint = Checkpoint(topology.name, lake.checkpoint_path(topology.name, name))
        # Looked at first without the lock, which a deployed flow seldom gives back: a batch that was never begun or is done
        # is refused at once. One under way may be a poison batch that the flow tries once more just now.
        records = _records(checkpoint, name)
        if txid in records and records[txid].state not in _DONE and _skipped(checkpoint, name, txid, lock_wait_seconds):
            return
        waiting += [f"{one} of {name}" for one, record in sorted(records.items()) if record.state is BatchState.POISON]
    raise NoPoisonBatchError(topology.name, txid, waiting)


def _records(checkpoint: Checkpoint, group: str) -> Mapping[int, AttemptRecord]:
    """What is recorded of the batches of a group in this epoch, by txid."""
    epoch = checkpoint.epoch
    return checkpoint.attempts().get(f"{group}/{epoch.number}") if epoch is not None else {}


def _skipped(checkpoint: Checkpoint, stream: str, txid: int, wait_seconds: float) -> bool:
    epoch = checkpoint.epoch
    if epoch is None:
        return False
    with checkpoint.running(wait_seconds):
        coordinator = Coordinator(f"{stream}/{epoch.number}", checkpoint.attempts(), first_txid=epoch.first_txid)
        if coordinator.state(txid) is not BatchState.POISON:
            return False
        coordinator.skip(txid)
        return True
