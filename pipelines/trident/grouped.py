"""GroupedStream: what `group_by` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.graph.fields import FieldNames
from pipelines.trident.aggregation import ChainedAggregation
from pipelines.trident.states import DeltaState, TridentState
from pipelines.trident.windowing import windowed

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream


class GroupedStream:
    """A stream whose aggregates are per group; made by `Stream.group_by`."""

    def __init__(self, stream: Stream, group: tuple[str, ...]) -> None:
        self._stream, self._group = stream, group

    @property
    def group_fields(self) -> tuple[str, ...]:
        return self._group

    @property
    def output_fields(self) -> tuple[str, ...]:
        return self._stream.output_fields

    def name(self, name: str) -> GroupedStream:
        """Return the same grouped stream; operations that follow carry the name."""
        return GroupedStream(self._stream.name(name), self._group)

    def to_stream(self) -> Stream:
        """Return the stream without its grouping."""
        return self._stream

    def each(self, *args: Any) -> GroupedStream:
        """Do as `Stream.each`; the grouping stays."""
        return GroupedStream(self._stream.each(*args), self._group)

    def aggregate(self, *args: Any) -> Stream:
        """Aggregate each group of each batch; an empty batch gives nothing. Fields: the group's, then the outputs."""
        return self._stream._aggregate("aggregate", self._group, args)

    def partition_aggregate(self, *args: Any) -> Stream:
        """Aggregate each group of each partition of a batch, without bringing the group together first."""
        return self._stream._aggregate("partition_aggregate", self._group, args, partitioned=True)

    def chained_agg(self) -> ChainedAggregation:
        """Several aggregators over each group, up to `chain_end()`."""
        return ChainedAggregation(self._stream, self._group)

    def persistent_aggregate(self, state: DeltaState, *args: Any) -> TridentState:
        """Keep an aggregate a key over all batches: `persistent_aggregate(state, [fields,] aggregator, output)`.

        `persistent_aggregate(state, [Count("n"), Sum("x", "sum_x")])` keeps several values a key in one state.
        """
        return self._stream._persistent_aggregate(state, self._group, args)

    def window(self, config: Any, *args: Any, timestamp: str | None = None, delay: int = 0) -> Stream:
        """Aggregate the group's tuples over windows by time that reach across batches.

        Fields: the group's, `window_start` and `window_end` (timestamps, the end exclusive), then the outputs.

        Args:
            config: `AlignedDurationWindow.of(every)` or `SessionDurationWindow.of(gap)`.
            args, timestamp, delay: as of `Stream.window`.

        Raises:
            FieldError, FunctionError, PolicyError, WindowError: at this line.
        """
        return windowed(self._stream, config, args, timestamp, delay, self._group)

    def state_query(
        self, state: TridentState | DeltaState | str, fields: FieldNames | None, function: Any, outputs: Any
    ) -> Stream:
        """Query a state as `Stream.state_query` does, with the tuples brought to the partition of their key first."""
        return self._stream._state_query(self._group, state, fields, function, outputs)
