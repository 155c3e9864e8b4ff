"""A script of events on the real engines: as a bounded run, or as a stream of several batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipelines.flowmix import operations as ops
from pipelines.flowmix.compile import topology_of
from pipelines.flowmix.values import fitted
from pipelines.graph import events
from pipelines.planner.plain import plain
from pipelines.sources import FixedBatches
from pipelines.sources.events import EventSource
from pipelines.testing.flow_reference import FlowReference, Item, read_script
from pipelines.testing.spark_step import fresh_lake, session
from pipelines.windows.event import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.flowmix.definition import StreamDefinition
    from pipelines.flowmix.flow import Flow
    from pipelines.state.lake import Lake

# In a file a column may not begin with an underscore.
_PLAIN = {name: f"script{name}" for name in events.COLUMNS}
_DDL = ", ".join(f"{name} {kind}" for name, kind in zip(_PLAIN.values(), events.TYPES, strict=True))


class ScriptSource(EventSource):
    """The events of a script with the ids, clocks and orders that it gives them, and a last watermark row.

    Args:
        stream: whose source it stands for.
        items: its events, in order.
        end: the clock at which all streams stand at the script's end, ms.
        batches: in how many batches a stream takes them.
    """

    tells_time = True

    def __init__(self, stream: StreamDefinition, items: Sequence[Item], end: int, batches: int) -> None:
        kinds = {name: kind or "string" for name, kind in stream.source_schema.items()}
        rows = [
            (*(fitted(event.get(name), kind) for name, kind in kinds.items()), event.id, event.timestamp, now,
             event.stream, order)
            for event, now, order in items
        ]  # fmt: skip
        last = (*([None] * len(kinds)), None, None, end, stream.name, None)
        size = max(1, -(-len(rows) // batches))
        pieces = [rows[start : start + size] for start in range(0, len(rows), size)] or [[]]
        pieces[-1] = [*pieces[-1], last]
        shown = ", ".join([*(f"`{name}` {kind}" for name, kind in kinds.items()), _DDL])
        super().__init__(FixedBatches(shown, pieces), stream.name, stream.index)
        self._own = tuple(kinds)
        fields = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())
        self.schema = f"{fields}, {events.DDL}" if fields else events.DDL

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self._own, *events.COLUMNS)

    def _with_events(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        from pyspark.sql import functions as F

        from pipelines.sources.base import CORRUPT, FILE

        shown = [F.col(_PLAIN[name]).alias(name) for name in events.COLUMNS]
        return frame.select(*(f"`{name}`" for name in self._own), *shown, CORRUPT, FILE)


def run_on_spark(
    flow: Flow,
    script: Mapping[str, Sequence[Any]],
    engine: str,
    spark: SparkSession | None = None,
    *,
    batches: int = 3,
) -> dict[str, list[Event]]:
    """Return what each output and table receives, as of `run_flow`.

    Args:
        engine: "batch" or "stream".
        batches: in how many batches the stream takes each source's events.
    """
    from pipelines.execution.runtime import Runtime

    spark = session(spark, f"flow {flow.name}")
    entries = read_script(flow, script, "event", FlowReference(flow, None, spark).source_sql)
    twin = copy.copy(flow)
    twin.streams = MappingProxyType(
        {
            name: replace(stream, source=ScriptSource(stream, entries.items.get(name, []), entries.end, batches))
            if stream.source is not None
            else stream
            for name, stream in flow.streams.items()
        }
    )
    topology = topology_of(twin, ordered=True)
    with fresh_lake() as lake:
        runtime = Runtime(spark, lake)
        runtime.catch_up(topology) if engine == "stream" else runtime.run_bounded(topology)
        return {name: _received(lake, flow, stream, table) for name, stream, table in _exits(flow)}


def _exits(flow: Flow) -> list[tuple[str, StreamDefinition, str]]:
    """List the name of each output or table in a result, its stream, and its table."""
    exits = []
    for stream in flow.in_order:
        for operation in stream.operations:
            if isinstance(operation, ops.Output):
                exits.append((stream.name, stream, f"{flow.name}_{stream.name}"))
            elif isinstance(operation, ops.Persist):
                exits.append((operation.table, stream, operation.table))
    return exits


def _received(lake: Lake, flow: Flow, stream: StreamDefinition, table: str) -> list[Event]:
    rows = lake.state(table).scan().to_pylist()
    rows.sort(key=lambda row: (row[events.CLOCK], row[events.ORDER]))
    engine = {*events.COLUMNS, events.PUBLIC_ID, events.PUBLIC_TIME}
    received = []
    for row in rows:
        fields = {name: plain(value) for name, value in row.items() if name not in engine}
        received.append(Event(fields, row[events.ID], row[events.TIME], row[events.FROM]))
    return received
