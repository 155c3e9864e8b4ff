"""One call that runs a script of events through a flow on any of the three engines."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipelines.errors import DefinitionError, FlowError
from pipelines.flowmix import operations as ops
from pipelines.flowmix.compile import topology_of
from pipelines.flowmix.flow import built
from pipelines.flowmix.operations import Output, Persist
from pipelines.flowmix.schemas import on_spark, several_fields
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

    from pipelines.flowmix.definition import Schema, StreamDefinition
    from pipelines.flowmix.flow import Flow
    from pipelines.state.lake import Lake

# In a file a column may not begin with an underscore.
_PLAIN = {name: f"script{name}" for name in events.COLUMNS}
_DDL = ", ".join(f"{name} {kind}" for name, kind in zip(_PLAIN.values(), events.TYPES, strict=True))

_BATCHES = 3
"""In so many batches a stream takes each source's events."""


class ScriptSource(EventSource):
    """The events of a script with the ids, clocks and orders that it gives them, and a last watermark row.

    Args:
        stream: whose source it stands for.
        items: its events, in order.
        end: the clock at which all streams stand at the script's end, ms.
        whole_times: events of one time come in one batch. Where streams meet an earlier batch comes first of one time, whichever
            stream brought it: only so is the answer the same however the batches are cut.
    """

    tells_time = True

    def __init__(self, stream: StreamDefinition, items: Sequence[Item], end: int, *, whole_times: bool = False) -> None:
        kinds = {name: kind or "string" for name, kind in stream.source_schema.items()}
        rows = [
            (*(fitted(event.get(name), kind) for name, kind in kinds.items()), event.id, event.timestamp, now,
             event.stream, order)
            for event, now, order in items
        ]  # fmt: skip
        last = (*([None] * len(kinds)), None, None, end, stream.name, None)
        size = max(1, -(-len(rows) // _BATCHES))
        cuts = [*range(0, len(rows), size)]
        if whole_times:
            clocks = [now for _, now, _ in items]
            cuts = sorted({bisect_left(clocks, clocks[cut]) for cut in cuts})
        pieces = [rows[start:stop] for start, stop in pairwise([*cuts, len(rows)])] or [[]]
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
) -> dict[str, list[Event]]:
    """Return what each output and table receives, as of `run_flow`.

    Args:
        engine: "batch" or "bounded", or "stream".
    """
    from pipelines.execution.runtime import Runtime

    spark = session(spark)
    entries = read_script(flow, script, "event", FlowReference(flow, None, spark).source_sql)
    twin = copy.copy(flow)
    twin.clock = "event"
    twin.streams = MappingProxyType(
        {
            name: replace(stream, source=ScriptSource(stream, entries.items.get(name, []), entries.end))
            if stream.source is not None
            else stream
            for name, stream in flow.streams.items()
        }
    )
    topology = topology_of(twin, ordered=True)
    with fresh_lake() as lake:
        runtime = Runtime(spark, lake)
        runtime.catch_up(topology) if engine == "stream" else runtime.run_bounded(topology)
        return {name: _received(lake, table, schema) for name, table, schema in _exits(flow)}


def _exits(flow: Flow) -> list[tuple[str, str, Schema]]:
    """List the name of each output or table in a result, its table, and the fields that events have there."""
    exits = []
    for stream in flow.in_order:
        for index, operation in enumerate(stream.operations):
            if isinstance(operation, ops.Output):
                name, table = stream.name, f"{flow.name}_{stream.name}"
            elif isinstance(operation, ops.Persist):
                name = table = operation.table
            else:
                continue
            exits.append((name, table, on_spark(flow, stream, index)[0] or {}))
    return exits


def _received(lake: Lake, table: str, schema: Schema) -> list[Event]:
    rows = lake.state(table).scan().to_pylist()
    rows.sort(key=lambda row: (row[events.CLOCK], row[events.ORDER]))
    engine = {*events.COLUMNS, events.PUBLIC_ID, events.PUBLIC_TIME} - schema.keys()
    received = []
    for row in rows:
        fields = {name: plain(value) for name, value in row.items() if name not in engine}
        received.append(Event(fields, row[events.ID], row[events.TIME], row[events.FROM]))
    return received


FlowEngine = Literal["reference", "batch", "stream", "bounded"]


def run_flow(
    flow: Flow,
    script: Mapping[str, Sequence[Any]],
    *,
    engine: FlowEngine = "reference",
    clock: str | None = None,
    spark: SparkSession | None = None,
) -> dict[str, list[Event]]:
    """Return what each output and each table of a flow receives from a script of events.

    ```python
    run_flow(flow, {"departures": [{"origin": "EWR", "dep_delay": 20.0}, TICK]}, clock="processing")
    ```

    A script holds, by the name of a stream with a source, events (dicts; `id` and `timestamp` in ms are optional) and one-second
    `TICK`s, in order. Its clock starts at 0 ms; an event without a timestamp gets the script's clock, but where the stream's
    `timestamp` is null: such an event goes to quarantine, and is left out here in event time. At its end all streams stand at the
    latest time of all. Among events of different streams at one time, those of the stream that the flow defines first come first.

    - `reference`: plain Python;
    - `batch`, also called `bounded`: a real bounded run on Spark; `stream`: a real stream. Both in event time.

    Args:
        flow: a built flow. Its sources are not read.
        script: by stream.
        engine: which engine.
        clock: "event" or "processing"; None: the flow's own.
        spark: the session; None: the active one, else the process's own (`spark_session()`), which is started where there is
            none and ends with the process. The reference engine asks for it only if an expression needs Spark.

    Returns:
        By the name of a stream with a standard output, or of a table, its events in order. An event is a dict of its fields
        with `.id` and `.timestamp`; a field may hold a list of several values.

    Raises:
        DefinitionError: for an engine that there is not.
        FlowError: if the flow is not built, or the script names a stream without a source.
        FieldError: if an event of the script has a field that the source does not.
    """
    if engine not in get_args(FlowEngine):
        raise DefinitionError(f'no engine "{engine}"; there are: {", ".join(get_args(FlowEngine))}')
    flow = built(flow)
    if engine == "reference":
        return _shown(flow, FlowReference(flow, clock, spark).run(script))
    if (clock or flow.clock) != "event":
        raise FlowError(
            flow.name, f'engine "{engine}" of the test kit runs in event time only', hint='use engine="reference"'
        )
    return _shown(flow, run_on_spark(flow, script, engine, spark))


def _shown(flow: Flow, results: dict[str, list[Event]]) -> dict[str, list[Event]]:
    """Bring results into the one form of all engines.

    A field that a join made an array shows one value where it holds one; an absent field of a collected event, or of any
    other struct, is not there; a timestamp is the UTC one without a zone, as Spark returns it.
    """
    for stream in flow.streams.values():
        for index, operation in enumerate(stream.operations):
            name = operation.table if isinstance(operation, Persist) else stream.name
            if isinstance(operation, Output | Persist):
                fields = several_fields(flow, stream, index)
                results[name] = [
                    event.with_fields({field: _value(value, field in fields) for field, value in event.items()})
                    for event in results[name]
                ]
    return results


def _value(value: Any, several: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            _value(name) if isinstance(name, datetime) else name: _value(part)
            for name, part in value.items()
            if part is not None
        }
    if isinstance(value, list | tuple):
        return _value(value[0]) if several and len(value) == 1 else [_value(part) for part in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
