"""Fields that are arrays only because a join may give them several values."""

from __future__ import annotations

from pipelines.flowmix.definition import StreamDefinition
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.operations import Each, Operation, Select, Stateful
from pipelines.windows.operations import AggregateWindow, CollectWindow, JoinWindow


def several_fields(flow: Flow, stream: StreamDefinition, index: int) -> frozenset[str]:
    """Return the fields before operation `index` that are arrays on Spark, and hold one value where the joined events had one.

    A field that a schema declares as an array is none of them: its values are as they were given.
    """
    fed = [several_fields(flow, flow.streams[feed.stream], feed.operation) for feed in stream.feeds]
    found: frozenset[str] = frozenset().union(*fed)
    for number, operation in enumerate(stream.operations[:index]):
        found = _behind(operation, stream, number, found)
    return found


def _behind(operation: Operation, stream: StreamDefinition, index: int, found: frozenset[str]) -> frozenset[str]:
    before, after = stream.schema_at(index), stream.schema_at(index + 1)
    if isinstance(operation, Each):
        return frozenset()
    if isinstance(operation, Select):
        return found & set(operation.fields)
    if not isinstance(operation, Stateful):
        return found
    if isinstance(operation.operation, AggregateWindow | CollectWindow):
        return found & set(operation.partition)
    if isinstance(operation.operation, JoinWindow) and before is not None and after is not None:
        return found | {name for name in after if after[name] != before[name]}
    return found
