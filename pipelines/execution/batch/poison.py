"""Keep the rows of poison batches in quarantine, release them when the batch has come through, and skip such a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines import logs
from pipelines.errors import BatchError, DefinitionError, TrideltaError
from pipelines.execution.batch.quarantine import of_group, poison_rows, rejected_batch, table_columns, txids_of
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.protocol.coordinator import Batch, BatchState, Coordinator
from pipelines.execution.protocol.failures import is_of_rows, lake_fault, reason_of
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.graph import events
from pipelines.sources.base import CORRUPT, FILE
from pipelines.spark.arrow_frame import arrow_frame
from pipelines.state.quarantine import FILE_GONE, WAITING
from pipelines.state.record import FORGOTTEN, POISON, BatchRecord
from pipelines.state.turns import LateWriterError

if TYPE_CHECKING:
    from datetime import datetime

    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.batch.group_sources import Frames
    from pipelines.execution.checkpoint.engine_files import Epoch
    from pipelines.execution.protocol.coordinator import AttemptRecord
    from pipelines.state.lake import Lake
    from pipelines.trident.topology import TridentTopology

logger = logs.logger(__name__)


@dataclass(frozen=True)
class Kept:
    """The reason for which rows come to quarantine, what `PoisonRows.seen` has returned, and the digest of their batch's plan."""

    reason: str
    seen: int
    plan: str | None


class PoisonRows:
    """The rows of a batch group's poison batches."""

    def __init__(self, group: BatchGroup) -> None:
        self._group = group

    def seen(self) -> int:
        """Return the version of quarantine, -1 for none: asked for before it is known that the rows belong there."""
        table = self._group.quarantine.table
        return table.version() if table.exists() else -1

    def keep(
        self,
        epoch: Epoch,
        batch: Batch,
        sources: Callable[[], Frames] | None,
        reason: str,
        seen: int,
        plan: str | None,
    ) -> str:
        """Put all rows of the batch into quarantine, once; where even that fails they are still in the source.

        Args:
            sources: gives the rows; None: as they came to the windows, which cannot be worked out.
            seen: what `seen` has returned.
            plan: the digest of the batch's plan.

        Returns:
            Where the rows are.

        Raises:
            LateWriterError: another process has changed the group's rows there since.
        """
        try:
            self._keep(epoch, batch, sources, reason, seen, plan)
        except LateWriterError:
            raise
        except Exception as error:
            logger.warning("poison batch not kept", txid=batch.txid, reason=reason_of(error))
            return f"the source {self._group.sources!r} (they could not be read)"
        return str(self._group.quarantine.table.path)

    def left_in_source(self, batch: Batch) -> str:
        """Say where the rows of a batch are that nobody puts into quarantine any more, for that ended the process."""
        logger.warning("rows stay in the source: to keep them ended the process", txid=batch.txid)
        return f"the source {self._group.sources!r} (to put them into quarantine ended the process)"

    def keep_skipped(
        self,
        epoch: Epoch,
        batch: Batch,
        sources: Callable[[], Frames] | None,
        reason: str,
        seen: int,
        plan: str | None,
    ) -> int:
        """Put the rows of a batch that is left out into quarantine, to which they did not come when it failed.

        Where the source cannot be read they are in it alone: whoever skipped the batch got a message about that.

        Returns:
            The version of quarantine that has them, for `seen` of what is put beside them; `seen` where it does not get them.

        Raises:
            BatchError, DiskFullError, StoreError: quarantine does not take them.
            LateWriterError: as in `keep`.
        """
        try:
            return self._keep(epoch, batch, sources, reason, seen, plan)
        except TrideltaError:
            raise
        except Exception as error:
            doing = f"batch {batch.txid}, which is skipped, was put into quarantine"
            fault: TrideltaError | None = lake_fault(error, str(self._group.quarantine.table.path), doing)
            if fault is None and is_of_rows(error):
                logger.warning("skipped batch not kept", txid=batch.txid, reason=reason_of(error))
                return seen
            flow = self._group.topology.name
            raise fault or BatchError(
                f'flow "{flow}": batch {batch.txid} is skipped, and its rows do not get into quarantine: {reason_of(error)}',
                hint="mend the cause and run the flow again: it goes on once they are kept",
            ) from error

    def is_kept(self, epoch: Epoch, txid: int, planned: datetime | None, plan: str | None) -> bool:
        """Return whether the rows of a poison batch came to quarantine, where a replay may have taken them since.

        Args:
            planned: when the batch was planned. Nothing is known of one that is older than the log, so nothing is to be done.
            plan: its digest: rows of another plan are not those of the batch. Earlier releases have not kept it.
        """
        table = self._group.quarantine.table
        if not table.exists():
            return False
        first = table.history()[0]
        if first.version and (planned is None or first.time >= planned):
            return True
        kept = table.commits.poison(self._group.name, epoch.number, txid)
        return kept is not None and kept.plan in (None, plan)

    def is_kept_of_another(self, epoch: Epoch, txid: int, plan: str) -> bool:
        """Return whether what quarantine has got of a poison batch is known to be of another plan."""
        table = self._group.quarantine.table
        kept = table.commits.poison(self._group.name, epoch.number, txid) if table.exists() else None
        return kept is not None and kept.plan not in (None, plan)

    def _keep(
        self,
        epoch: Epoch,
        batch: Batch,
        sources: Callable[[], Frames] | None,
        reason: str,
        seen: int,
        plan: str | None,
    ) -> int:
        group = self._group
        rows = group.sources.before_windows(group.spark) if sources is None else sources()
        parts = (
            rejected_batch(rows[spout.id], _fields_of(rows[spout.id]), spout.stream, reason) for spout in group.spouts
        )
        return self._put(epoch, batch, reduce(DataFrame.unionByName, parts), seen, plan)

    def keep_waiting(self, epoch: Epoch, txid: int, rows: pa.Table, stream: str, reason: str) -> None:
        """Put events that waited for the watermark into quarantine, once: no window takes them any more.

        Args:
            txid: of no batch.
            rows: with the fields that the windows before took, and the event's clock in ms.
        """
        self._put(epoch, Batch(self._group.name, txid, 0), self._waiting(rows, stream, reason))
        logger.warning("waiting events in quarantine", txid=txid, rows=rows.num_rows, reason=reason)

    def keep_waiting_of(self, epoch: Epoch, batch: Batch, rows: pa.Table, stream: str, kept: Kept) -> None:
        """Put events that waited for the watermark beside the rows of a batch that failed by them and is left out, once.

        Args:
            rows: as of `keep_waiting`.

        Raises:
            LateWriterError: as in `keep`.
        """
        rejected = self._waiting(rows, stream, kept.reason)
        self._put(epoch, batch, rejected, kept.seen, kept.plan, among=f" AND rule = '{WAITING}'")
        logger.warning("waiting events in quarantine", txid=batch.txid, rows=rows.num_rows, reason=kept.reason)

    def _waiting(self, rows: pa.Table, stream: str, reason: str) -> DataFrame:
        frame = arrow_frame(self._group.spark, rows)
        frame = frame.withColumns({name: F.lit(None).cast("string") for name in (CORRUPT, FILE)})
        fields = [name for name in rows.column_names if name not in events.COLUMNS or name == events.CLOCK]
        return rejected_batch(frame, fields, stream, reason).withColumn("rule", F.lit(WAITING))

    def _put(
        self,
        epoch: Epoch,
        batch: Batch,
        rejected: DataFrame,
        seen: int | None = None,
        plan: str | None = None,
        *,
        among: str = "",
    ) -> int:
        """Put rows in the place of those that quarantine holds of the batch, but of those whose file has gone since.

        Returns its version.

        Args:
            among: a further condition on these.
        """
        group, writer = self._group, self._group.quarantine
        rows = of_group(rejected.toArrow(), group.name)
        writer.prepare(table_columns())
        where = poison_rows(group.rejected, batch.txid, alone=True) + among
        gone = self._marked_gone(writer.table.stored(where))
        received, rows = (
            rows.num_rows,
            pa.concat_tables([rows, gone.select(rows.column_names)], promote_options="permissive"),
        )
        record = BatchRecord(
            kind=POISON,
            flow=group.topology.name,
            epoch=epoch.number,
            txid=batch.txid,
            attempt=batch.attempt,
            received=received,
            group=group.name,
            offsets=None if plan is None else {"plan": plan},
            # Times of two tables do not compare: a clock may have been set back between their commits.
            states={sink.name: sink.table.version() for sink in group.sinks},
        )
        return writer.replace_rows(rows, record, where, seen=seen)

    def kept(self) -> set[int]:
        """Return the txids whose rows are in quarantine: of this life of the checkpoint and of earlier ones."""
        return txids_of(self._group.quarantine, poison_rows(self._group.rejected))

    def forget(self, txid: int, seen: int | None = None) -> None:
        """Release the rows of a poison batch that has come through, and so are in the states.

        Args:
            txid: the batch.
            seen: what `seen` has returned, where another process may have kept them since; it is refused as in `keep`.
        """
        self._forget(txid, poison_rows(self._group.rejected, txid), seen)

    def come_through(self, txid: int, received: int) -> None:
        """Release the rows of a poison batch that has come through; those whose file went before that are in no state, and stay.

        Args:
            received: how many rows the batch had. Where it had them all, it does not matter what has gone since.
        """
        table = self._group.quarantine.table
        # What waited for the watermark came with batches before.
        own = f"{poison_rows(self._group.rejected, txid)} AND (rule IS NULL OR rule <> '{WAITING}')"
        if table.exists() and table.count(own) > received:
            self.release(txid)
        else:
            self.forget(txid)

    def release(self, txid: int, seen: int | None = None) -> None:
        """Release the rows of a poison batch whose plan is gone: what their source still has comes again, under some txid.

        Those whose file is gone come no more, and are in no state: they stay, under a rule of their own.

        Args:
            txid, seen: as of `forget`.
        """
        writer, where = self._group.quarantine, poison_rows(self._group.rejected, txid, alone=True)
        if not writer.table.exists():
            return
        writer.prepare(table_columns())
        rows = writer.table.stored(where)
        kept = self._marked_gone(rows)
        if not kept.num_rows:
            writer.forget_rows(txid, where, self._group.name, seen)
        elif not kept.equals(rows):
            record = BatchRecord(kind=FORGOTTEN, flow=self._group.topology.name, txid=txid, group=self._group.name)
            writer.replace_rows(kept, record, where, seen=seen)
            logger.warning("rows stay in quarantine: their file is gone", txid=txid, rows=kept.num_rows)

    def release_again(self, txid: int, checkpoint: Checkpoint) -> None:
        """Release what comes again with an epoch that is about to begin, under some other txid: no batch would release it."""
        self.release(txid, self._seen_held(checkpoint))

    def forget_again(self, txid: int, checkpoint: Checkpoint) -> None:
        """Release the rows of a txid that an epoch which is about to begin has in its states: as `forget`, before any batch."""
        self.forget(txid, self._seen_held(checkpoint))

    def _seen_held(self, checkpoint: Checkpoint) -> int:
        """Return what `seen` does, of a checkpoint that this process holds."""
        # Whoever takes the checkpoint over behind this look may keep rows under the same txid.
        seen = self.seen()
        checkpoint.still_held()
        return seen

    def _marked_gone(self, rows: pa.Table) -> pa.Table:
        """Return the rows whose file is gone, with that rule."""
        gone: set[tuple[str | None, str]] = set()
        for spout in self._group.spouts:
            held = zip(rows["stream"].to_pylist(), rows["file"].to_pylist(), strict=True)
            # Rows of earlier releases may not name their stream.
            own = {(stream, file) for stream, file in held if file is not None and stream in (spout.stream, None)}
            lost = spout.source.inner.gone({file for _, file in own})
            gone |= {(stream, file) for stream, file in own if file in lost}
        found = zip(*(rows[name].to_pylist() for name in ("rule", "stream", "file")), strict=True)
        kept = rows.filter(
            pa.array([rule == FILE_GONE or (stream, file) in gone for rule, stream, file in found], pa.bool_())
        )
        rule = pa.repeat(pa.scalar(FILE_GONE), kept.num_rows).cast(kept.schema.field("rule").type)
        return kept.set_column(kept.schema.get_field_index("rule"), "rule", rule)

    def forget_all(self) -> None:
        """Release the rows of all poison batches: the stream begins again, and reads them again."""
        self._forget(-1, poison_rows(self._group.rejected))

    def _forget(self, txid: int, where: str, seen: int | None = None) -> None:
        writer = self._group.quarantine
        if writer.table.exists():
            writer.prepare(table_columns())
            writer.forget_rows(txid, where, self._group.name, seen)


def _fields_of(source: DataFrame) -> tuple[str, ...]:
    """Return the fields of a source's rows, or of what windows have made of them."""
    return tuple(name for name in source.columns if name not in (CORRUPT, FILE))


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


class SeveralPoisonBatchesError(TrideltaError):
    """Several streams of a flow are stopped at the txid of the batch to be left out: nothing was skipped."""

    def __init__(self, flow: str, txid: int, streams: Sequence[str]) -> None:
        self.flow, self.txid, self.streams = flow, txid, tuple(streams)
        super().__init__(
            f'flow "{flow}" is stopped by {", ".join(f"batch {txid} of {name}" for name in streams)}, so none is left out',
            hint=f"name the stream that is meant: tridelta skip {flow} {txid} --stream {streams[0]}",
        )


def skip(
    lake: Lake, topology: TridentTopology, txid: int, *, stream: str | None = None, lock_wait_seconds: float = 30.0
) -> str:
    """Leave a poison batch out: its rows stay in quarantine, the flow goes on behind it.

    Args:
        stream: a stream of the batch group, or the group, where several stand at that txid.
        lock_wait_seconds: how long to wait for another process that runs the flow.

    Returns:
        The batch group.

    Raises:
        DefinitionError: the topology has no such stream with a source.
        NoPoisonBatchError: that txid is not a poison batch; nothing was skipped.
        SeveralPoisonBatchesError: it is, or may be, one of several groups, and no stream was given; nothing was skipped.
    """
    groups = {group_name(spouts): [spout.stream for spout in spouts] for spouts in spout_groups(topology)}
    chosen = [name for name, streams in groups.items() if stream in (None, name, *streams)]
    if not chosen:
        known = ", ".join(name for streams in groups.values() for name in streams)
        raise DefinitionError(f'flow "{topology.name}" has no stream "{stream}" with a source; it has: {known}')
    waiting: list[str] = []
    begun: dict[str, Checkpoint] = {}
    stopped: list[str] = []
    for name in chosen:
        checkpoint = Checkpoint(topology.name, lake.checkpoint_path(topology.name, name))
        # Looked at first without the lock, which a deployed flow seldom gives back: a batch that was never begun or is done
        # is refused at once. One under way may be a poison batch that the flow tries once more just now.
        records = _records(checkpoint, name)
        if txid in records and records[txid].state not in _DONE:
            begun[name] = checkpoint
            if records[txid].attempt or records[txid].state is not BatchState.PROCESSING:
                stopped.append(name)
        waiting += [
            f"{batch} of {name}" for batch, record in sorted(records.items()) if record.state is BatchState.POISON
        ]
    if len(stopped) > 1:
        raise SeveralPoisonBatchesError(topology.name, txid, stopped)
    for name in stopped or begun:
        if _skipped(begun[name], name, txid, lock_wait_seconds):
            return name
    raise NoPoisonBatchError(topology.name, txid, waiting)


def _records(checkpoint: Checkpoint, group: str) -> Mapping[int, AttemptRecord]:
    """Return what is recorded of the batches of a group in this epoch, by txid."""
    epoch = checkpoint.epoch
    return checkpoint.attempts().get(epoch.scope(group)) if epoch is not None else {}


def _skipped(checkpoint: Checkpoint, stream: str, txid: int, wait_seconds: float) -> bool:
    epoch = checkpoint.epoch
    if epoch is None:
        return False
    with checkpoint.running(wait_seconds):
        coordinator = Coordinator(epoch.scope(stream), checkpoint.attempts(), first_txid=epoch.first_txid)
        if coordinator.state(txid) is not BatchState.POISON:
            return False
        coordinator.skip(txid)
        return True
