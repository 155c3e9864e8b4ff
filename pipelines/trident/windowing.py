"""Windows over the batches of a stream (Trident rules 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.aggregators import ColumnAggregator
from pipelines.bounds import THRESHOLD
from pipelines.errors import FunctionError, PolicyError
from pipelines.graph import events, nodes
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import added, distinct, require
from pipelines.graph.types import known_types
from pipelines.sources.channels import ChannelInput, ChannelSource
from pipelines.state.kinds import ROWS
from pipelines.trident.aggregation import parse_aggregations
from pipelines.trident.states import DeltaState
from pipelines.windows.buffer import WindowContext
from pipelines.windows.operations import BOUNDS, AlignedWindow, SessionWindow, SpanWindow, TaskWindow
from pipelines.windows.tuples import TupleChain, output_types

if TYPE_CHECKING:
    from pipelines.trident.stream import Stream

Length = int | timedelta
"""A number of tuples, or a duration."""


@dataclass(frozen=True)
class WindowConfig:
    """The lengths of a window: `size` and `slide` in tuples, or with `duration` in ms.

    Raises:
        PolicyError: if a length is not a positive whole number, or the slide is greater than the size.
    """

    size: int
    slide: int
    duration: bool = False

    def __post_init__(self) -> None:
        self.operation(())

    def operation(self, aggregations: Sequence[nodes.Aggregation]) -> TaskWindow:
        """Return the window operation over some aggregations."""
        return TaskWindow(self.size, self.slide, "duration" if self.duration else "count", tuple(aggregations))


class TumblingCountWindow(WindowConfig):
    """Every n tuples these n."""

    @classmethod
    def of(cls, size: int) -> WindowConfig:
        return cls(size, size)


class SlidingCountWindow(WindowConfig):
    """Every `slide` tuples the last `size`."""

    @classmethod
    def of(cls, size: int, slide: int) -> WindowConfig:
        return cls(size, slide)


class TumblingDurationWindow(WindowConfig):
    """Every `size` (ms, or a timedelta) the tuples of that time."""

    @classmethod
    def of(cls, size: Length) -> WindowConfig:
        return cls(_ms(size), _ms(size), duration=True)


class SlidingDurationWindow(WindowConfig):
    """Every `slide` (ms, or a timedelta) the tuples of the last `size`."""

    @classmethod
    def of(cls, size: Length, slide: Length) -> WindowConfig:
        return cls(_ms(size), _ms(slide), duration=True)


@dataclass(frozen=True)
class SpanConfig:
    """Windows whose places the clock decides, per group: `build` makes the operation of its aggregators."""

    build: Callable[[tuple[TupleChain]], SpanWindow]

    def operation(self, aggregations: Sequence[nodes.Aggregation]) -> SpanWindow:
        """Return the window operation over some aggregations."""
        return self.build((TupleChain(tuple(aggregations)),))


class AlignedDurationWindow:
    """Windows at the same fixed places in time for all groups."""

    @classmethod
    def of(
        cls,
        every: timedelta,
        size: timedelta | None = None,
        offset: timedelta = timedelta(),
        time_zone: str | None = None,
    ) -> SpanConfig:
        """Let a window begin at each `every`, moved by `offset`, and last `size` (default: `every`), in whole seconds.

        With a time zone windows are of whole days, which begin at its midnight and have 23 to 25 hours.
        """
        lasts = None if size is None else _seconds(size)
        return SpanConfig(
            partial(AlignedWindow, every=_seconds(every), size=lasts, offset=_seconds(offset), time_zone=time_zone)
        )


class SessionDurationWindow:
    """Runs of tuples of which none is more than a gap behind the one before, in each group."""

    @classmethod
    def of(cls, gap: timedelta) -> SpanConfig:
        """Let a session end `gap`, in whole seconds, behind its last tuple."""
        return SpanConfig(partial(SessionWindow, gap=_seconds(gap)))


def tumbling(size: Length) -> WindowConfig:
    """Build a window of a number of tuples, or of a timedelta."""
    return TumblingDurationWindow.of(size) if isinstance(size, timedelta) else TumblingCountWindow.of(size)


def sliding(size: Length, slide: Length) -> WindowConfig:
    """Build a window of two numbers of tuples, or of two timedeltas.

    Raises:
        PolicyError: if one is a duration and the other is not.
    """
    if isinstance(size, timedelta) != isinstance(slide, timedelta):
        raise PolicyError("sliding_window", slide, f"takes two numbers of tuples, or two timedeltas; size is {size!r}")
    if isinstance(size, timedelta):
        return SlidingDurationWindow.of(size, slide)
    return SlidingCountWindow.of(size, slide)  # type: ignore[arg-type]


def _ms(length: Length) -> int:
    return round(length.total_seconds() * 1000) if isinstance(length, timedelta) else length


def _seconds(length: timedelta) -> int:
    seconds = length.total_seconds() if isinstance(length, timedelta) else None
    if seconds is None or not seconds.is_integer():
        raise PolicyError("window", length, "takes a timedelta of whole seconds")
    return int(seconds)


def windowed(
    stream: Stream,
    config: Any,
    args: tuple[Any, ...],
    timestamp: str | None,
    delay: int,
    group: tuple[str, ...] | None = None,
) -> Stream:
    """Return the stream of a window's results.

    The tuples are committed into a channel, batch by batch, and a query of its own runs the windows over them: so that a
    replayed batch enters a window once (the original adds it again, LATENT), and results come with that query's batches.

    Raises:
        FieldError, DuplicateFieldError, FunctionError: at this line.
    """
    if not isinstance(config, WindowConfig | SpanConfig):
        raise FunctionError(
            "window", f"{config!r} is not a window", hint="TumblingCountWindow.of(10), AlignedDurationWindow.of(...)"
        )
    if group is not None and isinstance(config, WindowConfig):
        hint = "windows by AlignedDurationWindow or SessionDurationWindow, or to_stream() for one per task"
        raise FunctionError("window", "windows of a task are not grouped", hint=hint)
    if any(isinstance(spout, nodes.QuerySpoutNode) for spout in stream._topology.spouts_of(stream.node)):
        raise FunctionError("window", "a query is one batch: there is no window over it", hint="use aggregate")
    chain = parse_aggregations("window", args, stream)
    # What was said of built-in ones is of the results' fields: windows of one operation are the same with it or without.
    operation = config.operation([replace(a, types=()) if _built_in(a) else a for a in chain])
    key = (events.TASK,) if isinstance(config, WindowConfig) else group or ()
    kept = tuple(name for name in key if name != events.TASK)
    outputs = added("window", operation.outputs, kept)
    if timestamp is not None:
        there = stream.output_fields
        require("window timestamp", fields_of_sql("timestamp", timestamp, there), there)
    channel = _free_name(stream._topology)
    inputs = distinct((*kept, *operation.inputs))
    entering = stream._add(
        nodes.EnterWindowNode,
        fields=(*inputs, events.TASK, *events.COLUMNS),
        inputs=inputs,
        timestamp=timestamp,
    )
    _into_channel(entering, channel, timestamp, delay)
    known = known_types(stream._topology.graph, stream.node)
    types = {name: known.get(name) or "" for name in kept}
    types |= dict.fromkeys(BOUNDS if isinstance(config, SpanConfig) else (), "timestamp")
    types |= zip((name for aggregation in chain for name in aggregation.outputs), _types(stream, chain), strict=True)
    return _results(stream, operation, channel, {name: types[name] for name in (*kept, *outputs)}, key)


def _into_channel(entering: Stream, channel: str, timestamp: str | None, delay: int) -> None:
    if isinstance(delay, bool) or not isinstance(delay, int) or delay not in THRESHOLD:
        raise FunctionError("window", f"delay is {THRESHOLD} (seconds); got {delay!r}")
    fields = entering.output_fields
    if timestamp is not None:
        name = f"late_{channel.replace('__', '_')}"
        entering._topology.claim_state(name)
        late = entering._add(nodes.OnTimeNode, channel=channel, late=True)
        late._add(nodes.LatePersistNode, inputs=fields, state=DeltaState(name, layout=ROWS))
        entering = entering._add(nodes.OnTimeNode, channel=channel)
    entering._topology.claim_state(channel)
    clock = nodes.LATEST_ROW if timestamp is not None else nodes.NOW
    state = DeltaState(channel, layout=ROWS)
    entering._add(nodes.ChannelNode, inputs=fields, state=state, delay=delay * 1000, clock=clock)


def _results(
    stream: Stream, operation: TaskWindow | SpanWindow, channel: str, types: dict[str, str], key: tuple[str, ...]
) -> Stream:
    """Return a spout that reads the channel through the windows."""
    topology, name = stream._topology, channel
    # A batch of the stream is a batch of the windows: what is aggregated behind them is aggregated by it.
    source = ChannelSource(
        [ChannelInput(name, channel, numbered=True)],
        None,
        names=distinct((*key, *operation.inputs, events.TASK)),
        commits_a_batch=1,
    )
    context = WindowContext(topology.name, name, 0, key)
    prelude = nodes.Graph()
    first = prelude.new(nodes.SpoutNode, fields=source.fields, name=name, stream=name, source=source)
    window = prelude.new(
        nodes.WindowNode,
        (first.id,),
        fields=(*types, *events.COLUMNS),
        name=stream._name,
        operation=operation,
        context=context,
        key=key,
        origins=(channel,),
        types=(*types.values(), *events.TYPES),
    )
    topology.claim_stream(name)
    spout = topology.graph.new(
        nodes.ChannelSpoutNode, fields=window.fields, name=name, stream=name, source=source, prelude=prelude
    )
    return type(stream)(topology, spout.id, stream._name)._add(nodes.ProjectNode, fields=tuple(types))


def _free_name(topology: Any) -> str:
    taken = {node.state.name for node in topology.graph if isinstance(node, nodes.ChannelNode)}
    number = 1
    while f"{topology.name}__window{number}" in taken:
        number += 1
    return f"{topology.name}__window{number}"


def _built_in(aggregation: nodes.Aggregation) -> bool:
    return isinstance(aggregation.aggregator, ColumnAggregator)


def _types(stream: Stream, chain: Sequence[nodes.Aggregation]) -> tuple[str, ...]:
    """Return the Spark SQL types of all outputs: as said, else from those of the inputs; empty where only Spark can tell them."""
    comes = dict(output_types(tuple(chain), known_types(stream._topology.graph, stream.node)))
    said = {name: kind for a in chain for name, kind in zip(a.outputs, a.types, strict=False)}
    return tuple(said.get(name) or comes[name] or "" for a in chain for name in a.outputs)
