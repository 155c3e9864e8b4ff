"""The place of each window operation of a flow: what its windows, and the ids of their results, go by."""

from __future__ import annotations

from pipelines.flowmix.definition import StreamDefinition
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.operations import Stateful
from pipelines.windows.buffer import WindowContext


def window_context(flow: Flow, stream: StreamDefinition, index: int) -> WindowContext:
    """Return the context of the stateful operation `index` of a stream, the same for every engine."""
    operation = stream.operations[index]
    assert isinstance(operation, Stateful)
    before = _windows_before(stream, index)
    return WindowContext(flow.name, stream.name, before, operation.partition, depth=entry_depth(flow, stream) + before)


def entry_depth(flow: Flow, stream: StreamDefinition) -> int:
    """Return how many stateful operations lie before a stream on the longest way from a source."""
    depths: dict[str, int] = {}
    for definition in flow.in_order:
        ways = (
            depths[feed.stream] + _windows_before(flow.streams[feed.stream], feed.operation)
            for feed in definition.feeds
        )
        depths[definition.name] = max(ways, default=0)
    return depths[stream.name]


def _windows_before(stream: StreamDefinition, index: int) -> int:
    return sum(isinstance(operation, Stateful) for operation in stream.operations[:index])
