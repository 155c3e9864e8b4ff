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
from pipelines.execution.checkpoint.belonging import Belonging
from pipelines.execution.checkpoint.changeover import Changeover, Query, left_reader
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.window_files import WindowPlaceError
from pipelines.windows.arrays import State
from pipelines.windows.bucket import NEVER, ArrayBucket, Bucket
from pipelines.windows.one_by_one import OneByOne
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


class Stage(Protocol):
    """One window of the batch, as `DriverWindows` has it."""

    node: nodes.BatchWindowNode
    arrays: Arrays

    @property
    def row_schema(self) -> pa.Schema:
        """Return the schema of the rows that go into it."""


@dataclass(frozen=True)
class Taken:
    """What the windows of a channel hold.

    Attributes:
        states: of each window, in the order of the query.
        clocks: the watermark of each origin, in ms.
    """

    states: tuple[State, ...]
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

    def read(self, stages: Sequence[Stage]) -> Taken:
        """Read what the windows hold, behind all that is in the channel.

        Raises:
            WindowPlaceError: it cannot be taken over.
        """
        clocks = self._clocks()
        stores = list(_blobs(self._group.spark, self.checkpoint.spark))
        if len(stores) != len(stages):
            raise self._refused("another number of windows ran on its channel")
        known = clock_of(clocks, self._group.entrance.origins)
        clock = NEVER if known is None else known
        return Taken(
            tuple(self._state(stage, blobs, clock) for stage, blobs in zip(stages, stores, strict=True)), clocks
        )

    def put_aside(self) -> None:
        """Put Spark's part of the checkpoint aside: on a channel the windows would go on from what they held then."""
        self.checkpoint.begin_at(self._start(), self._changeover.aside(self.checkpoint.folder.name))

    def _start(self) -> Start:
        return self._changeover.start_of(Query(self.checkpoint.folder.name, (), self.checkpoint, ()))

    def _clocks(self) -> Mapping[str, int]:
        """Return the watermark of each origin behind the last commit of the channel, once all of it was read."""
        own = Checkpoint(self._group.topology.name, self.checkpoint.folder.parent / self._group.name)
        lake, channel = self._group.lake, self._group.windows[0].channel
        before = [lake.channel(channel), *(sink.table for sink in self._group.sinks if sink.is_late)]
        behind = [sink.table for sink in self._group.sinks if not sink.is_late]
        for checkpoint, tables in ((own, before), (self.checkpoint, behind)):
            if checkpoint.epoch is None or _newest_epoch(tables) > checkpoint.epoch.number:
                problem = f'tables of the query "{checkpoint.folder.name}" hold batches of a later epoch: its checkpoint is older'
                raise self._refused(problem, "put the newest checkpoints of the flow back")
            # One that was planned, and that no table holds, comes again.
            if Belonging(checkpoint, lake).holds(
                [*tables, self._group.quarantine.table], checkpoint.finished_batches()
            ):
                raise self._behind(f'the query "{checkpoint.folder.name}" has begun a batch and not finished it')
        try:
            self._start()
        except ChangeoverError as error:
            raise self._behind(error.problem) from error
        records = [commit.record for commit in lake.channel(channel).commits.batches() if commit.record]
        return next((record.clocks for record in reversed(records) if record.clocks), {})

    def _state(self, stage: Stage, blobs: Sequence[bytes], clock: int) -> State:
        one_by_one = isinstance(stage.arrays, OneByOne)
        form = (Bucket if one_by_one else ArrayBucket).__name__
        own = signature(stage.node.operation, stage.node.context.partition, form)
        if not all(blob.startswith(own) for blob in blobs):
            raise self._refused(
                f"{stage.node.label} is another operation than on its channel, or keeps its windows in another form"
            )
        kept = [blob[len(own) :] for blob in blobs]
        if isinstance(stage.arrays, OneByOne):
            return stage.arrays.of_buckets(map(Bucket.saved_in, kept), stage.row_schema, clock)
        return stage.arrays.joined(map(ArrayBucket.state_in, kept), stage.row_schema, clock)

    def _behind(self, problem: str) -> WindowPlaceError:
        hint = 'run the flow with windows="channels" until it has read all that is there, then with windows="batch"'
        return self._refused(problem, hint)

    def _refused(self, reason: str, hint: str | None = None) -> WindowPlaceError:
        return WindowPlaceError(self._group.topology.name, self._group.name, in_batch=True, reason=reason, hint=hint)


def _newest_epoch(tables: Sequence[StateTable]) -> int:
    commits = (commit for table in tables if table.exists() for commit in table.commits.counting())
    return max((commit.epoch or 0 for commit in commits), default=0)


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
