"""Windows that ran over a channel, taken over into the batch of their source (docs/adr/0063).

The query behind the channel has read all of it and holds its windows in Spark's state store, a blob per bucket. They become
the state that the first batch with windows begins with. What cannot be taken over is refused, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pipelines.errors import ChangeoverError
from pipelines.execution.batch.group_sources import clock_of
from pipelines.execution.checkpoint.belonging import Belonging, newest_epoch
from pipelines.execution.checkpoint.changeover import Changeover, Query, left_reader
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.window_begin import WindowPlaceError
from pipelines.windows.array_kinds import OneByOne
from pipelines.windows.arrays import WindowContent
from pipelines.windows.bucket import NEVER, ArrayBucket, Bucket
from pipelines.windows.signature import signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pipelines.execution.batch.group import BatchGroup
    from pipelines.graph import nodes
    from pipelines.places.location import Place
    from pipelines.sources.channels import Start
    from pipelines.state.table import StateTable
    from pipelines.windows.arrays import Arrays


class WindowStage(Protocol):
    """One window of the batch, as `DriverWindows` has it."""

    node: nodes.BatchWindowNode
    arrays: Arrays

    @property
    def row_schema(self) -> pa.Schema:
        """Return the schema of the rows that go into it."""


@dataclass(frozen=True)
class ConvertedWindows:
    """The content of the windows of a channel.

    Attributes:
        states: of each window, in the order of the query.
        clocks: the watermark of each origin, in ms.
    """

    states: tuple[WindowContent, ...]
    clocks: Mapping[str, int]


class ChannelWindows:
    """The windows of a query behind a channel that the flow, as it is defined now, runs in the batch of their source.

    Args:
        group: the batch group that is to run them.
        checkpoint: of the query that has read the channel.
    """

    def __init__(self, group: BatchGroup, checkpoint: Checkpoint) -> None:
        self._group, self.checkpoint = group, checkpoint
        self._changeover = Changeover(group.lake, group.topology)

    @classmethod
    def of(cls, group: BatchGroup) -> ChannelWindows | None:
        """Return the windows that a definition without windows in the batch has left; None: there are none."""
        checkpoint = left_reader(group.lake, group.topology, group.name)
        if checkpoint is None:
            return None
        left = cls(group, checkpoint)
        # Else a stream that the flow has no more, with a name like that.
        return left if left._changeover.read_by(checkpoint) == (group.windows[0].channel,) else None

    def check_tables(self) -> None:
        """Check that the channel's query and what it has written belong together."""
        belonging = Belonging(self.checkpoint, self._group.lake)
        if own := [table for table in self._tables_of(self.checkpoint) if belonging.knows(table)]:
            belonging.check(own)

    def read(self, stages: Sequence[WindowStage]) -> ConvertedWindows:
        """Read what the windows hold, behind all that is in the channel."""
        clocks = self._clocks()
        stores = self._stores(stages)
        known = clock_of(clocks, self._group.sources.origins)
        clock = NEVER if known is None else known
        return ConvertedWindows(
            tuple(self._state(stage, blobs, clock) for stage, blobs in zip(stages, stores, strict=True)), clocks
        )

    def check_forms(self, stages: Sequence[WindowStage]) -> None:
        """Check that what the windows hold could be taken over, if their queries stood still."""
        for stage, blobs in zip(stages, self._stores(stages), strict=True):
            self._kept(stage, blobs)

    def _stores(self, stages: Sequence[WindowStage]) -> list[list[bytes]]:
        if not self.checkpoint.has_state or not self.checkpoint.finished_batches():
            return [[] for _ in stages]
        stores = list(_blobs(self._group.spark, self.checkpoint.spark))
        if len(stores) != len(stages):
            raise self._refused("another number of windows ran on its channel")
        return stores

    def put_aside(self) -> None:
        """Put Spark's part of the checkpoint aside: on a channel the windows would go on from what they held then."""
        self.checkpoint.begin_at(self._start(), self._changeover.aside(self.checkpoint.folder.name))

    def _start(self) -> Start:
        return self._changeover.start_of(Query(self.checkpoint.folder.name, (), self.checkpoint, ()))

    def is_begun(self, checkpoint: Checkpoint) -> bool:
        """Return whether a table holds a batch that Spark has not marked as done: of the source's query, or of the channel's.

        One that was planned, and that no table holds, comes again.
        """
        tables = [*self._tables_of(checkpoint), self._group.quarantine.table]
        return Belonging(checkpoint, self._group.lake).holds(tables, checkpoint.finished_batches())

    def unread(self) -> str | None:
        """Return why the two queries do not stand still behind all that is in the channel; None: they do.

        Raises:
            WindowPlaceError: a checkpoint is older than its tables.
        """
        for checkpoint in (self._own, self.checkpoint):
            written = (newest_epoch(table) for table in self._tables_of(checkpoint) if table.exists())
            if checkpoint.epoch is None or max(written, default=0) > checkpoint.epoch.number:
                problem = f'tables of the query "{checkpoint.folder.name}" hold batches of a later epoch: its checkpoint is older'
                raise self._refused(problem, "put the newest checkpoints of the flow back")
            if self.is_begun(checkpoint):
                return f'the query "{checkpoint.folder.name}" has begun a batch and not finished it'
        channel = self._group.windows[0].channel
        try:
            read = self._start().channels.get(channel, -1)
        except ChangeoverError as error:
            return error.problem
        last = self._group.lake.channel(channel).last_txid()
        return (
            f'the query "{self.checkpoint.folder.name}" has not read all of its channel' if read < (last or 0) else None
        )

    @property
    def _own(self) -> Checkpoint:
        return Checkpoint(self._group.topology.name, self.checkpoint.folder.parent / self._group.name)

    def _tables_of(self, checkpoint: Checkpoint) -> list[StateTable]:
        """Return the tables that one of the two queries has written, but for quarantine."""
        group = self._group
        if checkpoint.folder == self.checkpoint.folder:
            return [sink.table for sink in group.sinks if not sink.is_late]
        channel = _channel(group)
        return [*([channel] if channel.exists() else []), *(sink.table for sink in group.sinks if sink.is_late)]

    def _clocks(self) -> Mapping[str, int]:
        """Return the watermark of each origin behind the last commit of the channel, once all of it was read."""
        unread = self.unread()
        if unread is not None:
            hint = 'run the flow with windows="channels" until it has read all that is there, then with windows="batch"'
            raise self._refused(unread, hint)
        channel = self._group.lake.channel(self._group.windows[0].channel)
        records = [commit.record for commit in channel.commits.batches() if commit.record]
        return next((record.clocks for record in reversed(records) if record.clocks), {})

    def _state(self, stage: WindowStage, blobs: Sequence[bytes], clock: int) -> WindowContent:
        kept = self._kept(stage, blobs)
        if isinstance(stage.arrays, OneByOne):
            return stage.arrays.of_buckets(map(Bucket.saved_in, kept), stage.row_schema, clock)
        return stage.arrays.joined(map(ArrayBucket.state_in, kept), stage.row_schema, clock)

    def _kept(self, stage: WindowStage, blobs: Sequence[bytes]) -> list[bytes]:
        form = (Bucket if isinstance(stage.arrays, OneByOne) else ArrayBucket).__name__
        own = signature(stage.node.operation, stage.node.context.partition, form)
        if not all(blob.startswith(own) for blob in blobs):
            raise self._refused(
                f"{stage.node.label} is another operation than on its channel, or keeps its windows in another form"
            )
        return [blob[len(own) :] for blob in blobs]

    def _refused(self, reason: str, hint: str | None = None) -> WindowPlaceError:
        return WindowPlaceError(self._group.topology.name, self._group.name, in_batch=True, reason=reason, hint=hint)


def channel_is_empty(group: BatchGroup) -> bool:
    """Return whether nothing was ever committed into the channel in front of a group's windows: they hold nothing."""
    channel = _channel(group)
    return not channel.exists() or channel.last_txid() is None


def _channel(group: BatchGroup) -> StateTable:
    """Return the channel in front of a group's windows; there is no table where the flow has run without them."""
    name = group.windows[0].channel
    return group.lake.table(group.lake.channel_path(name), name)


def _blobs(spark: SparkSession, checkpoint: Place) -> Iterator[list[bytes]]:
    """Yield what each stateful operation of a checkpoint holds, in the order of the query: a blob per bucket."""
    # Spark registers what coordinates its state stores with the first look at the session's streams, and not before.
    spark._jsparkSession.streams()
    stores = spark.read.format("state-metadata").load(str(checkpoint)).collect()
    # Spark counts them from the end of the plan.
    for operator in sorted({store["operatorId"] for store in stores}, reverse=True):
        reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", "windows")
        held = reader.load(str(checkpoint)).select("value.blob").toArrow()
        yield [blob for blob in held["blob"].to_pylist() if blob]
