"""Windows over the batches of a stream (Trident rules 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pipelines.aggregators import ColumnAggregator
from pipelines.errors import FunctionError, PolicyError
from pipelines.graph import events, nodes
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import added, require
from pipelines.graph.types import known_types
from pipelines.sources.channels import ChannelSource, Edge
from pipelines.state.kinds import ROWS
from pipelines.trident.aggregation import parse_aggregations
from pipelines.trident.functions import output_schema
from pipelines.trident.states import DeltaState
from pipelines.windows.buffer import WindowContext
from pipelines.windows.operations import TaskWindow

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

    @property
    def window_length(self) -> int:
        """Return how many tuples, or ms, a window holds."""
        return self.size

    @property
    def sliding_length(self) -> int:
        """After how many tuples, or ms, a window is emitted."""
        return self.slide

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


def windowed(stream: Stream, config: Any, args: tuple[Any, ...], timestamp: str | None, delay: int) -> Stream:
    """Return the stream of a window's results.

    The tuples are committed into a channel, batch by batch, and a query of its own runs the windows over them: so that a
    replayed batch enters a window once (the original adds it again, LATENT), and results come with that query's batches.

    Raises:
        FieldError, DuplicateFieldError, FunctionError: at this line.
    """
    if not isinstance(config, WindowConfig):
        raise FunctionError(
            "window", f"{config!r} is not a window", hint="TumblingCountWindow.of(10), SlidingDurationWindow.of(...)"
        )
    if any(isinstance(spout, nodes.QuerySpoutNode) for spout in stream._topology.spouts_of(stream.node)):
        raise FunctionError("window", "a query is one batch: there is no window over it", hint="use aggregate")
    chain = parse_aggregations("window", args, stream)
    outputs = added("window", [output for one in chain for output in one.outputs], ())
    if timestamp is not None:
        require("window timestamp", fields_of_sql("timestamp", timestamp), stream.output_fields)
    operation = config.operation(chain)
    channel = _free_name(stream._topology)
    entering = stream._add(
        nodes.EnterWindowNode,
        fields=(*operation.inputs, events.TASK, *events.COLUMNS),
        inputs=operation.inputs,
        timestamp=timestamp,
    )
    _into_channel(entering, channel, timestamp, delay)
    return _results(stream, operation, channel, outputs, _types(stream, chain, args))


def _into_channel(entering: Stream, channel: str, timestamp: str | None, delay: int) -> None:
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
    stream: Stream, operation: TaskWindow, channel: str, outputs: tuple[str, ...], types: tuple[str, ...]
) -> Stream:
    """A spout that reads the channel through the windows."""
    topology, name = stream._topology, channel
    # A batch of the stream is a batch of the windows: what is aggregated behind them is aggregated by it.
    source = ChannelSource(
        [Edge(name, channel, numbered=True)], None, names=(*operation.inputs, events.TASK), commits_a_batch=1
    )
    context = WindowContext(topology.name, name, 0, (events.TASK,))
    prelude = nodes.Graph()
    entrance = prelude.new(nodes.SpoutNode, fields=source.fields, name=name, stream=name, source=source)
    window = prelude.new(
        nodes.WindowNode,
        (entrance.id,),
        fields=(*outputs, *events.COLUMNS),
        name=stream._name,
        operation=operation,
        context=context,
        key=(events.TASK,),
        edges=(channel,),
        types=(*types, *events.TYPES),
    )
    topology.claim_stream(name)
    spout = topology.graph.new(
        nodes.ChannelSpoutNode, fields=window.fields, name=name, stream=name, source=source, prelude=prelude
    )
    return type(stream)(topology, spout.id, stream._name)._add(nodes.ProjectNode, fields=outputs)


def _free_name(topology: Any) -> str:
    taken = {node.state.name for node in topology.graph if isinstance(node, nodes.ChannelNode)}
    number = 1
    while f"{topology.name}__window{number}" in taken:
        number += 1
    return f"{topology.name}__window{number}"


def _types(stream: Stream, chain: Sequence[nodes.Aggregation], args: tuple[Any, ...]) -> tuple[str, ...]:
    """The Spark SQL types of all outputs; empty where only Spark can tell them, from those of the inputs."""
    known = known_types(stream._topology.graph, stream.node)
    said = dict(zip(*output_schema(args[-1]), strict=False)) if isinstance(args[-1], str) else {}
    found: list[str] = []
    for one in chain:
        if isinstance(one.aggregator, ColumnAggregator):
            types: tuple[str, ...] = (said.get(one.output, ""),)
        else:
            types = one.types or tuple(known.get(field) or "" for field in one.inputs)
        found += types
    return tuple(found)
