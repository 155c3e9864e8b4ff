"""A flow as a topology: each query of the flow is a batch group, and channels lead from one to another.

A stream without windows is one query over its source or its channels. A stream with windows reads a channel, into which its
source is taken first: there its events are put in order, late ones are told apart, and each batch says how far the clock has
come. Where the flow says so and the windows can, they run within the source's own batch instead (`_in_batch`). From the
first window to the last the plan runs in the stream itself (the node's prelude); what follows, gates, tables and channels to
other streams, runs a batch at a time.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from pipelines.errors import FlowError
from pipelines.flowmix import operations as ops
from pipelines.flowmix.flow import BATCH, CHANNELS, Flow, built
from pipelines.flowmix.plan_steps import QuerySteps, known
from pipelines.flowmix.schemas import MEETING, Way, by_stream, conflict, union
from pipelines.flowmix.stream import FlowStream
from pipelines.graph import events, nodes
from pipelines.graph.types import nullable
from pipelines.sources.channels import ChannelInput, ChannelSource
from pipelines.sources.events import PROCESSING, EventSource
from pipelines.trident.topology import TridentTopology

if TYPE_CHECKING:
    from pipelines.flowmix.definition import Feed, StreamDefinition

IN_STREAM = (ops.Select, ops.Compute, ops.Filter, ops.Each, ops.Partition, ops.Stateful)
"""What runs in the stream itself, before and between windows; anything else is a batch's."""


def topology_of(flow: Flow, *, ordered: bool = False) -> TridentTopology:
    """Return the topology that runs a flow.

    Args:
        flow: a built flow.
        ordered: its tables also get the clock and the order of each event, for tests that compare sequences.
    """
    return _FlowCompiler(flow, ordered=ordered).compile()


class _FlowCompiler:
    def __init__(self, flow: Flow, *, ordered: bool) -> None:
        self._flow, self._ordered = flow, ordered
        self._topology = TridentTopology(flow.name, flow.description)
        self._inputs: dict[Feed, ChannelInput] = {}

    def compile(self) -> TridentTopology:
        for stream in self._flow.in_order:
            _StreamCompiler(self._topology, self._flow, stream, self._inputs, ordered=self._ordered).compile()
        if self._flow.windows == BATCH:
            self._topology.on_channels = self._on_channels
        return self._topology

    def _on_channels(self) -> TridentTopology:
        twin = copy.copy(self._flow)
        twin.windows = CHANNELS
        return topology_of(twin, ordered=self._ordered)


class _StreamCompiler:
    """One stream: a chain of queries, each but the last ending in a channel of the stream's own."""

    def __init__(
        self,
        topology: TridentTopology,
        flow: Flow,
        stream: StreamDefinition,
        inputs: dict[Feed, ChannelInput],
        *,
        ordered: bool,
    ) -> None:
        self._topology, self._flow, self._stream, self._inputs = topology, flow, stream, inputs
        self._queries = 0
        self._counted = False
        self._steps = QuerySteps(topology, topology.graph, flow, stream, ordered=ordered)

    def compile(self) -> None:
        stream = self._stream
        start = 0
        if stream.source is None:
            self._begin([self._inputs[feed] for feed in stream.feeds])
        else:
            self._from_source()
            if windows := self._in_batch():
                channel = self._channel(stream.name)
                start = windows[-1] + 1
                for index in range(start):
                    if index in windows:
                        self._steps.window_in_batch(index, channel)
                    else:
                        self._steps.step(index)
                self._counted = True
            elif stream.stateful or stream.feeds:
                start = 0 if stream.feeds else self._before_windows()
                for index in range(start):
                    self._leave(index)
                inbox = self._cut(start)
                self._begin([inbox, *(self._inputs[feed] for feed in stream.feeds)])
        self._rest(start)

    def _rest(self, index: int) -> None:
        """Return the operations from `index`, in one query or several."""
        count = len(self._stream.operations)
        while index < count:
            operation = self._stream.operations[index]
            if isinstance(operation, ops.Stateful) and not self._steps.at_start:
                # Windows that do not stand at the beginning of a query: a channel brings them there.
                self._begin([self._cut(index)])
            end = self._end_of_prelude(index)
            if self._steps.at_start and end > index:
                self._steps.enter_prelude(index, end)
                index = end
            else:
                self._leave(index)
                index += 1

    def _end_of_prelude(self, start: int) -> int:
        """Return the end of what runs in the stream itself from `start`: behind the last windows; `start` if there are none."""
        end = start
        for index in range(start, len(self._stream.operations)):
            operation = self._stream.operations[index]
            if not isinstance(operation, IN_STREAM):
                break
            if isinstance(operation, ops.Stateful):
                end = index + 1
        return end

    def _in_batch(self) -> list[int]:
        """Return the places of the windows that run within the batch of the stream's own source.

        That is for flows that say so, whose events tell their time; before and between the windows fields, filters and
        functions alone. Further windows read a channel.
        """
        stream, flow = self._stream, self._flow
        if flow.windows != BATCH or stream.feeds or stream.slice_by is not None:
            return []
        if flow.clock == PROCESSING or stream.event_timestamp is None:
            return []
        windows = []
        for index, operation in enumerate(stream.operations):
            if not isinstance(operation, IN_STREAM):
                break
            if isinstance(operation, ops.Stateful):
                if stream.schema_at(index) is None:
                    break
                windows.append(index)
        return windows

    def _before_windows(self) -> int:
        """Return how many operations can be done while the source is taken in: those before the first windows."""
        indexes = [n for n, operation in enumerate(self._stream.operations) if isinstance(operation, ops.Stateful)]
        return indexes[0] if indexes else len(self._stream.operations)

    def _leave(self, index: int) -> None:
        """Add an operation of a batch; where events leave the stream, the channels or the table that they go to."""
        operation = self._stream.operations[index]
        for path, target in enumerate(operation.routes):
            feed = next(f for f in self._flow.streams[target].feeds if (f.stream, f.operation, f.path) == (
                self._stream.name, index, path))  # fmt: skip
            self._inputs[feed] = self._steps.send(index, path, self._channel(target), numbered=self._numbered)
        self._steps.step(index)

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def _numbered(self) -> bool:
        """Return whether the order of what leaves here still lacks the txid of the batch."""
        return self._queries == 0 and not self._counted

    def _from_source(self) -> None:
        stream = self._stream
        source = bound_source(self._flow, stream)
        own = {name: kind for name, kind in stream.source_schema.items() if name not in events.COLUMNS}
        types = known(self._flow, stream, own, stream.at)
        self._steps.begin(
            nodes.SpoutNode, stream.name, types, fields=source.fields, source=source, slice_by=stream.slice_by
        )

    def _begin(self, inputs: list[ChannelInput]) -> None:
        self._queries += 1
        stream = self._stream
        name = stream.name if stream.source is None and self._queries == 1 else f"{stream.name}__{self._queries}"
        ways: list[Way] = [(one.origin, dict(one.types)) for one in inputs]
        if problem := conflict(ways):
            raise FlowError(self._flow.name, problem, stream=stream.name, at=stream.at, hint=MEETING)
        # What lies in a table may be null in all its parts.
        sent = known(self._flow, stream, union(sent for _, sent in ways), stream.at)
        types = {name: nullable(kind) for name, kind in sent.items()}
        ddl = ", ".join(f"`{field}` {kind}" for field, kind in types.items())
        source = ChannelSource(inputs, ddl, ticks=self._flow.clock == PROCESSING)
        if not inputs[0].own or len(inputs) > 1:  # a channel between two queries of the stream changes nothing
            self._steps.sides = by_stream(ways)
        self._steps.begin(
            nodes.ChannelSpoutNode, name, types, fields=source.fields, source=source, schema=source.schema
        )

    def _cut(self, index: int) -> ChannelInput:
        """Return a channel of the stream's own in front of operation `index`."""
        return self._steps.channel(self._channel(self._stream.name), index, numbered=self._numbered)

    def _channel(self, target: str) -> str:
        base = f"{self._flow.name}__{self._stream.name}__{target}"
        taken = {node.state.name for node in self._topology.persists}
        taken |= {node.channel for node in self._topology.graph if isinstance(node, nodes.BatchWindowNode)}
        return base if base not in taken else f"{base}__{len(taken)}"


def bound_source(flow: Flow, stream: StreamDefinition) -> EventSource:
    """Return the stream's source as a source of events.

    Raises:
        FlowError: if it only has a schema: it is fed by name, in tests.
    """
    if isinstance(stream.source, EventSource):
        return stream.source
    if isinstance(stream.source, str):
        raise FlowError(
            flow.name,
            "it has a schema and no source, so it can only be run by run_flow",
            stream=stream.name,
            at=stream.at,
            hint="give stream(name, source) one of pipelines.sources",
        )
    return EventSource(
        stream.source,
        stream.name,
        stream.index,
        id=stream.event_id,
        timestamp=stream.event_timestamp,
        clock=flow.clock,
    )


def as_topology(given: Flow | FlowStream | TridentTopology) -> TridentTopology:
    """Return a flow compiled; a topology as it is.

    Raises:
        FlowError: if a flow is not built, or cannot run on Spark as it is written.
    """
    return topology_of(built(given)) if isinstance(given, Flow | FlowStream) else given
