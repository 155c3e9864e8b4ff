"""The rows of poison batches: into quarantine, and out of it when the batch has come through."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from pipelines import logs
from pipelines.execution.batch.quarantine import of_group, poison_rows, refused_batch, table_columns
from pipelines.execution.protocol.failures import reason_of
from pipelines.sources.base import CORRUPT, FILE
from pipelines.state.record import BatchRecord

if TYPE_CHECKING:
    from pipelines.execution.batch.group import BatchGroup
    from pipelines.execution.batch.group_sources import Frames
    from pipelines.execution.checkpoint.engine_files import Epoch
    from pipelines.execution.protocol.coordinator import Batch

logger = logs.logger(__name__)


class PoisonRows:
    """The rows of a batch group's poison batches."""

    def __init__(self, group: BatchGroup) -> None:
        self._group = group

    def keep(self, epoch: Epoch, batch: Batch, sources: Frames | None, reason: str) -> str:
        """All rows of the batch into quarantine, once; where even that fails they are still in the source.

        Args:
            sources: the rows; None: as they came to the windows, which cannot be worked out.

        Returns:
            Where the rows are.
        """
        group, writer = self._group, self._group.quarantine
        try:
            sources = group.entrance.before_windows(group.spark) if sources is None else sources
            parts = (
                refused_batch(sources[spout.id], _fields_of(sources[spout.id]), spout.stream, reason)
                for spout in group.spouts
            )
            rows = of_group(reduce(DataFrame.unionByName, parts).toArrow(), group.name)
            writer.prepare(table_columns())
            record = BatchRecord(
                kind="poison",
                flow=group.topology.name,
                epoch=epoch.number,
                txid=batch.txid,
                attempt=batch.attempt,
                received=rows.num_rows,
                group=group.name,
            )
            writer.replace_rows(rows, record, poison_rows(group.refused, batch.txid))
        except Exception as error:
            logger.warning("poison batch not kept", txid=batch.txid, reason=reason_of(error))
            return f"the source {group.entrance!r} (they could not be read)"
        return str(writer.table.path)

    def forget(self, txid: int) -> None:
        """A batch that was poison once and has come through: its rows are in the states now."""
        writer = self._group.quarantine
        if writer.table.exists():
            writer.prepare(table_columns())
            writer.forget_rows(txid, poison_rows(self._group.refused, txid), self._group.name)


def _fields_of(source: DataFrame) -> tuple[str, ...]:
    """The fields of a source's rows, or of what windows have made of them."""
    return tuple(name for name in source.columns if name not in (CORRUPT, FILE))
