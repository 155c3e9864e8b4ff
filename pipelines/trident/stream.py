"""Stream, its half that knows of tasks, and what `group_by` gives: the fluent half of the Trident API.

Every line is checked when it is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Self

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import FieldNames, added, require
from pipelines.graph.types import check_meeting, check_whole, known_types
from pipelines.trident.aggregation import ChainedAggregation, by_position, check_types, parse_aggregations
from pipelines.trident.functions import ColumnFunction, Debug, RowFunction, as_function, as_predicate
from pipelines.trident.persisting import Persisting
from pipelines.trident.states import DeltaState, TridentState
from pipelines.trident.steps import Steps
from pipelines.trident.user_code import Assembly
from pipelines.trident.windowing import Length, SpanConfig, WindowConfig, sliding, tumbling, windowed

Comparator = Callable[[Any, Any], int]
"""`comparator(a, b)`: negative if a is less than b, 0 if they are equal, positive if it is greater."""


class Partitioning(Steps):
    """The tasks of a batch: where it runs in one task, a repartition changes nothing. Fields never change (Trident rules 1.5)."""

    def shuffle(self) -> Self:
        """Spread the tuples evenly over tasks: by a hash of all fields, so that a replayed batch is dealt the same way."""
        return self._add(nodes.PartitionNode, kind=nodes.SHUFFLE)

    def local_or_shuffle(self) -> Self:
        """Leave the tuples in their task if the number of tasks stays the same, else as `shuffle`."""
        return self._add(nodes.PartitionNode, kind=nodes.LOCAL_OR_SHUFFLE)

    def partition_by(self, fields: FieldNames) -> Self:
        """Bring equal values of `fields` to the same task, always; null is a value like any other."""
        by = added("partition_by", require("partition_by", fields, self.output_fields), ())
        if not by:
            raise FunctionError("partition_by", "takes at least one field", hint="use global_() for one task")
        return self._add(nodes.PartitionNode, kind=nodes.FIELDS, by=by)

    def global_(self) -> Self:
        """Bring all tuples of all batches to the lowest task."""
        return self._add(nodes.PartitionNode, kind=nodes.GLOBAL)

    def batch_global(self) -> Self:
        """Bring all tuples of a batch to one task: task `txid % tasks`."""
        return self._add(nodes.PartitionNode, kind=nodes.BATCH_GLOBAL)

    def broadcast(self) -> Self:
        """Give every task a copy of every tuple: with n tasks there are n of each from here on."""
        return self._add(nodes.PartitionNode, kind=nodes.BROADCAST)

    def identity_partition(self) -> Self:
        """Bring the tuples of task i to task i. What is before and behind has the same number of tasks (rules 3.9)."""
        return self._add(nodes.PartitionNode, kind=nodes.IDENTITY)

    def partition(self, function: Any) -> Self:
        """Let a function choose the task (a custom grouping): a number, of which the remainder by the tasks counts.

        Args:
            function: a callable of Columns, one for each field, that gives an integer Column; or a RowFunction over
                plain values that returns an int.

        Raises:
            FunctionError: if it is neither.
        """
        if not isinstance(function, ColumnFunction | RowFunction):
            if not callable(function) or inspect.isgeneratorfunction(function) or isinstance(function, type):
                raise FunctionError(
                    "partition",
                    f"{function!r} does not choose a task",
                    hint="give a callable of Columns or a RowFunction",
                )
            function = ColumnFunction(function)
        return self._add(nodes.PartitionNode, kind=nodes.CUSTOM, function=function)

    def direct(self, field: str) -> Self:
        """Bring each tuple to the task that a field of it names (direct grouping), modulo the number of tasks.

        It holds whole numbers; null is task 0.

        Raises:
            FunctionError: if its type is known and no whole number, or it is not one field.
        """
        by = require("direct", field, self.output_fields)
        if len(by) != 1:
            raise FunctionError("direct", f"takes one field; got {list(by)}")
        check_whole("direct", by[0], known_types(self._topology.graph, self._node)[by[0]])
        return self._add(nodes.PartitionNode, kind=nodes.DIRECT, by=by)

    def min_by(self, field: str, comparator: Comparator | None = None) -> Self:
        """Keep the tuple of each partition of a batch with the least value of `field` (Trident rules 1.2).

        The last of equals counts; null values are left out; an empty partition gives nothing (the original emitted a
        broken tuple). Use `global_()` before it for one tuple per batch.

        Args:
            field: the field to compare.
            comparator: compares two of its values; None: their own order.
        """
        return self._extreme("min_by", field, comparator, largest=False)

    def max_by(self, field: str, comparator: Comparator | None = None) -> Self:
        """Keep tuples as `min_by` does, with the largest value."""
        return self._extreme("max_by", field, comparator, largest=True)

    def min(self, comparator: Comparator) -> Self:
        """Keep the least tuple of each partition of a batch: the comparator takes two tuples as dicts. Else as `min_by`."""
        return self._extreme("min", None, comparator, largest=False)

    def max(self, comparator: Comparator) -> Self:
        """Keep tuples as `min` does, the largest one."""
        return self._extreme("max", None, comparator, largest=True)

    def _extreme(self, operation: str, field: str | None, comparator: Any, *, largest: bool) -> Self:
        if field is not None and len(require(operation, field, self.output_fields)) != 1:
            raise FunctionError(operation, f"takes one field; got {field!r}")
        if (comparator is not None or field is None) and not callable(comparator):
            raise FunctionError(operation, f"{comparator!r} is not a comparator", hint="give a function (a, b) -> int")
        name = field if field is None or isinstance(field, str) else field[0]
        return self._add(nodes.ExtremeNode, field=name, largest=largest, comparator=comparator)


__all__ = ["GroupedStream", "Stream"]


class Stream(Partitioning, Persisting):
    """Tuples of named fields, cut in batches. Immutable: each operation returns a new stream.

    Field arguments take a name or a list of names. An operation that names a field that is not there raises FieldError
    at its own line; one that adds a field that is there raises DuplicateFieldError.
    """

    def each(self, *args: Any) -> Stream:
        """Append fields, or keep tuples.

        `each(inputs, function, outputs)` or `each(function, outputs)` appends the function's outputs: a tuple for which
        it gives no row is dropped, n rows repeat it n times. `each(inputs, filter)` keeps the tuples for which the
        filter is true.

        Raises:
            FieldError, DuplicateFieldError, FunctionError: at this line.
        """
        if len(args) == 3:
            inputs, given, outputs = args
        elif len(args) == 2 and not isinstance(args[0], str | list | tuple):
            inputs, given, outputs = None, args[0], args[1]
        elif len(args) == 2:
            return self.filter(*args)
        else:
            raise FunctionError("each", "takes (inputs, function, outputs), (function, outputs) or (inputs, filter)")
        wanted = require("each", inputs, self.output_fields)
        function, names = as_function("each", given, outputs)
        if not names:
            raise FunctionError("each", f"{function} has no output field")
        new = added("each", names, self.output_fields)
        return self._add(nodes.EachNode, fields=self.output_fields + new, inputs=wanted, function=function, outputs=new)

    def filter(self, *args: Any) -> Stream:
        """Keep the tuples for which it is true: `filter(predicate)` over all fields, or `filter(inputs, predicate)`.

        The predicate is SQL text, a callable of Columns, or a RowFunction over plain values; null counts as false.
        """
        if len(args) not in (1, 2):
            raise FunctionError("filter", "takes (predicate) or (inputs, predicate)")
        if isinstance(args[-1], Debug):
            return self.peek(
                args[-1].over(require("filter", args[0], self.output_fields)) if len(args) == 2 else args[-1]
            )
        predicate = as_predicate("filter", args[-1])
        inputs = require("filter", args[0], self.output_fields) if len(args) == 2 else self.output_fields
        if isinstance(predicate, str):
            inputs = require("filter", fields_of_sql("filter", predicate, inputs), inputs)
        elif isinstance(predicate, ColumnFunction) and predicate.compares:
            known = known_types(self._topology.graph, self._node)
            check_meeting("filter", [[(name, known[name]) for name in inputs]])
        return self._add(nodes.FilterNode, inputs=inputs, predicate=predicate)

    def map(self, function: Any, outputs: FieldNames | None = None) -> Stream:
        """Replace each tuple by one: the function takes all fields; `outputs` defaults to the fields that are there."""
        return self._map("map", function, outputs, flat=False)

    def flat_map(self, function: Any, outputs: FieldNames | None = None) -> Stream:
        """Replace each tuple by any number: as `map`, with a generator Column or a Python generator."""
        return self._map("flat_map", function, outputs, flat=True)

    def _map(self, operation: str, given: Any, outputs: FieldNames | None, *, flat: bool) -> Stream:
        function, names = as_function(operation, given, outputs)
        new = added(operation, names or self.output_fields, ())
        if not isinstance(function, ColumnFunction) and len(function.types) != len(new):
            raise FunctionError(operation, f"{function} gives {len(function.types)} field(s), not {', '.join(new)}")
        return self._add(nodes.MapNode, fields=new, function=function, flat=flat)

    def peek(self, consumer: Any) -> Stream:
        """Call `consumer(row: dict)` with every tuple, in the worker that holds it, and pass the tuple on unchanged."""
        if not callable(consumer):
            raise FunctionError("peek", f"{consumer!r} is not a function")
        return self._add(nodes.PeekNode, consumer=consumer)

    def project(self, fields: FieldNames) -> Stream:
        """Keep exactly `fields`, in the given order."""
        return self._add(nodes.ProjectNode, fields=added("project", require("project", fields, self.output_fields), ()))

    def group_by(self, fields: FieldNames) -> GroupedStream:
        """Group the tuples of each batch by `fields`."""
        group = added("group_by", require("group_by", fields, self.output_fields), ())
        if not group:
            raise FunctionError(
                "group_by", "takes at least one field", hint="aggregate the stream itself for one group"
            )
        return GroupedStream(self, group)

    def aggregate(self, *args: Any, **named: Any) -> Stream:
        """Aggregate each batch: `aggregate([fields,] aggregator, output)`, also by these names, or `aggregate([aggregators])`.

        A combiner or reducer gives one tuple, of an empty batch too (Trident rules 1.3); a general `Aggregator` gives
        what it emits. The fields are the outputs alone; several aggregators are a chain (see `chained_agg`).
        """
        return self._aggregate("aggregate", (), by_position("aggregate", args, named))

    def partition_aggregate(self, *args: Any, **named: Any) -> Stream:
        """Aggregate as `aggregate` does, for each partition of a batch by itself, empty partitions too."""
        given = by_position("partition_aggregate", args, named)
        return self._aggregate("partition_aggregate", (), given, partitioned=True)

    def chained_agg(self) -> ChainedAggregation:
        """Begin a chain of aggregators over the same tuples: `chained_agg().aggregate(...).aggregate(...).chain_end()`."""
        return ChainedAggregation(self, ())

    def _aggregate(
        self, operation: str, group: tuple[str, ...], args: tuple[Any, ...], *, partitioned: bool = False
    ) -> Stream:
        chain = parse_aggregations(operation, args, self)
        return self._aggregated(operation, group, chain, partitioned=partitioned)

    def _aggregated(
        self, operation: str, group: tuple[str, ...], chain: tuple[nodes.Aggregation, ...], *, partitioned: bool
    ) -> Stream:
        fields = group + added(operation, [output for aggregation in chain for output in aggregation.outputs], group)
        check_types(operation, chain, self)
        return self._add(nodes.AggregateNode, fields=fields, group=group, aggregations=chain, partitioned=partitioned)

    def window(
        self, config: WindowConfig | SpanConfig, *args: Any, timestamp: str | None = None, delay: int = 0
    ) -> Stream:
        """Aggregate over windows that reach across batches: `window(config, [fields,] aggregator, outputs)` (rules 5).

        A task (partition) has windows of its own; they are not grouped. The fields are the outputs alone, and results
        come as batches of a query of their own, behind the batch that made them. A batch that is replayed enters once.

        Args:
            config: `TumblingCountWindow.of(n)`, `SlidingCountWindow.of(n, slide)`, `TumblingDurationWindow.of(ms)` or
                `SlidingDurationWindow.of(ms, slide_ms)`; a duration may be a timedelta. With
                `AlignedDurationWindow` and `SessionDurationWindow` all tasks share one window, whose bounds are fields too.
            args: as of `aggregate`.
            timestamp: SQL over the fields that gives a tuple's time, as bigint ms or a timestamp: windows in event time;
                None: they go by the time of the batch, as in the original.
            delay: in event time, how many seconds a tuple may come late; later ones go to the table
                `late_<topology>_window<n>`.

        Raises:
            FieldError, FunctionError, PolicyError: at this line.
        """
        return windowed(self, config, args, timestamp, delay)

    def tumbling_window(self, size: Length, *args: Any, timestamp: str | None = None, delay: int = 0) -> Stream:
        """Aggregate over windows that follow one another, of `size` tuples or of a timedelta; the rest as of `window`."""
        return windowed(self, tumbling(size), args, timestamp, delay)

    def sliding_window(
        self, size: Length, slide: Length, *args: Any, timestamp: str | None = None, delay: int = 0
    ) -> Stream:
        """Aggregate every `slide` tuples over the last `size`, or both as timedeltas; the rest as of `window`."""
        return windowed(self, sliding(size, slide), args, timestamp, delay)

    def apply_assembly(self, assembly: Assembly) -> Any:
        """Return what `assembly.apply(stream)` makes of this stream: a piece of a topology under one name, e.g. `FirstN(3)`."""
        if not callable(getattr(assembly, "apply", None)):
            raise FunctionError("apply_assembly", f"{assembly!r} has no apply(stream)")
        return assembly.apply(self)

    def gate(self, *checks: Any, name: str | None = None) -> Stream:
        """Put data checks here: `gate(warn(...), drop(...), fail(...), name=...)` or `gate(Gate(...))`.

        Rows that a `drop` check refuses go to quarantine; a `fail` check fails the batch before anything is committed
        behind the gate; `warn` only reports.
        """
        from pipelines.quality import Gate

        gate = Gate.of(checks, name, self._topology.gates)
        gate.validate(self.output_fields)
        self._topology.claim_gate(gate.name)
        return self._add(nodes.GateNode, gate=gate)


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

    def aggregate(self, *args: Any, **named: Any) -> Stream:
        """Aggregate each group of each batch; an empty batch gives nothing. Fields: the group's, then the outputs."""
        return self._stream._aggregate("aggregate", self._group, by_position("aggregate", args, named))

    def partition_aggregate(self, *args: Any, **named: Any) -> Stream:
        """Aggregate each group of each partition of a batch, without bringing the group together first."""
        given = by_position("partition_aggregate", args, named)
        return self._stream._aggregate("partition_aggregate", self._group, given, partitioned=True)

    def chained_agg(self) -> ChainedAggregation:
        """Begin a chain of aggregators over each group, up to `chain_end()`."""
        return ChainedAggregation(self._stream, self._group)

    def persistent_aggregate(self, state: DeltaState, *args: Any, **named: Any) -> TridentState:
        """Keep an aggregate a key over all batches: `persistent_aggregate(state, [fields,] aggregator, output)`.

        `persistent_aggregate(state, [Count("n"), Sum("x", "sum_x")])` keeps several values a key in one state.
        """
        given = by_position("persistent_aggregate", args, named)
        return self._stream._persistent_aggregate(state, self._group, given)

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
