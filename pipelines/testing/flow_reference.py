"""The reference engine of flows: an interpreter in plain Python, which says what the Spark engines must give.

It is written to be read: stream after stream, each behind those that feed it, and in a stream operation after operation over
the whole ordered list of events. Windows are those of `pipelines.windows`, one event after the other. Only SQL text, callables
of Columns and gates are left to Spark, a step at a time. A script says what enters each stream, second by second.
"""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipelines.aggregators.window import WindowAggregator
from pipelines.errors import FieldError, FlowError, FunctionError, NeedsSparkError, nearest
from pipelines.flowmix import operations as ops
from pipelines.flowmix.criteria import Combined, Criteria
from pipelines.flowmix.definition import Schema, StreamDefinition
from pipelines.flowmix.each import made_of
from pipelines.flowmix.flow import CLOCKS, Flow, window_context
from pipelines.flowmix.operations import source_order
from pipelines.flowmix.schemas import several_fields
from pipelines.flowmix.values import fitted
from pipelines.graph import events
from pipelines.graph.expressions import spark_sql
from pipelines.graph.plain_values import plain_time
from pipelines.planner.plain import Table
from pipelines.testing.flow_values import copy_of, held, held_if_fit, without_zones
from pipelines.testing.spark_step import SparkStep
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import CollectWindow, Grouping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = tuple[Event, int, str]
"""An event, its clock (ms) and its order."""
Script = Mapping[str, Sequence[Any]]
"""By the name of a stream with a source: events (dicts or Events) and TICKs, in order."""

TICK: Final = "TICK"
"""One second of the clock, in the script of an event flow."""
SECOND = 1000
_PLAIN_FORMS = (
    'write criteria as gt("v", 15), has("v") or python(...), and what `compute` makes as `each` with a Python function'
)


@dataclass(frozen=True)
class Entries:
    """The events of a script.

    Attributes:
        items: by stream the events that enter it, in the order of (clock, order).
        end: the latest clock of all streams (ms), at which all of them stand in the end.
    """

    items: dict[str, list[Item]]
    end: int


Evaluate = Callable[[StreamDefinition, str, list[dict[str, Any]]], list[Any]]
"""SQL over the rows of a stream's source, one value per row."""


def read_script(flow: Flow, script: Script, clock: str, evaluate: Evaluate) -> Entries:
    """Return the events of a script with their ids, times and clocks.

    The script's clock starts at 0 ms in each stream; a TICK adds a second. An event's time is its "timestamp" (or what the
    stream's SQL says), else the script's clock; its id is its "id" (or by SQL), else made of the stream and its number. In event
    time an event is left out whose time, where the source says it, is null or none that an event can have: it would be rejected.

    Args:
        flow: a built flow.
        script: by stream.
        clock: "event": an event's clock is its timestamp; "processing": the script's clock when it arrives.
        evaluate: for SQL.

    Raises:
        FlowError: for a stream without a source, or another clock.
    """
    if clock not in CLOCKS:
        raise FlowError(flow.name, f"no clock {clock!r}", hint=f"one of {', '.join(CLOCKS)}")
    known = [stream.name for stream in flow.inputs]
    for name in script:
        if name not in known:
            raise FlowError(
                flow.name,
                f'the script has events for "{name}"; the streams with a source are: {", ".join(known)}{nearest(name, known)}',
            )
    items: dict[str, list[Item]] = {}
    end = 0
    for stream in flow.inputs:
        entered, at = _entries(flow, stream, script.get(stream.name, ()), clock, evaluate)
        items[stream.name] = sorted(entered, key=lambda item: item[1:])
        end = max([end, at, *(item[1] for item in entered)])
    return Entries(items, end)


def _entries(
    flow: Flow, stream: StreamDefinition, script: Sequence[Any], clock: str, evaluate: Evaluate
) -> tuple[list[Item], int]:
    """Return a stream's items, and where its script's clock ends."""
    arrivals: list[tuple[Mapping[str, Any], int]] = []
    at = 0
    for entry in script:
        if isinstance(entry, str) and entry == TICK:
            at += SECOND
        elif isinstance(entry, Mapping):
            arrivals.append((entry, at))
        else:
            raise FlowError(flow.name, f"a script holds events (dicts) and TICKs, not {entry!r}", stream=stream.name)
    rows = [_row(flow, stream, event) for event, _ in arrivals]
    ids = _said(stream, "id", stream.event_id, arrivals, rows, evaluate)
    times = _said(stream, "timestamp", stream.event_timestamp, arrivals, rows, evaluate)
    entered = []
    for number, ((_, arrival), row, id, time) in enumerate(zip(arrivals, rows, ids, times, strict=True)):
        untimed = arrival if stream.event_timestamp is None else events.EARLIEST - 1
        timestamp = untimed if time is None else milliseconds(time)
        if not events.EARLIEST <= timestamp < events.BEYOND:
            # Such a row goes to quarantine, and where the clock goes by arrivals its time is that.
            if clock == "event":
                continue
            timestamp = arrival
        event = Event(row, f"{stream.name}-{number}" if id is None else str(plain_time(id)), timestamp, stream.name)
        now = timestamp if clock == "event" else arrival
        entered.append((event, now, source_order(stream.index, number)))
    return entered, at


def _row(flow: Flow, stream: StreamDefinition, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's fields, in the types of the source."""
    schema = stream.source_schema
    fields: dict[str, Any] = {}
    for name, value in event.items():
        if name not in schema:
            if name in ("id", "timestamp"):
                continue
            raise FieldError(f'flow "{flow.name}", the script of stream "{stream.name}"', name, tuple(schema))
        in_ms = schema[name] == "timestamp" and type(value) is int
        fields[name] = _in_ms(value) if in_ms else held_if_fit(value, schema[name])
    return fields


def _in_ms(milliseconds: int) -> datetime.datetime:
    """Return a time of a script as a timestamp column holds it."""
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=milliseconds)


def _said(
    stream: StreamDefinition,
    name: str,
    sql: str | None,
    arrivals: Sequence[tuple[Mapping[str, Any], int]],
    rows: list[dict[str, Any]],
    evaluate: Evaluate,
) -> list[Any]:
    """Return each event's id or time: the event's own if the source has no such field, else by the stream's SQL."""
    own = [
        getattr(event, name)
        if isinstance(event, Event)
        else event.get(name)
        if name not in stream.source_schema
        else None
        for event, _ in arrivals
    ]
    if sql is None or all(value is not None for value in own):
        return own
    made = [row.get(sql) for row in rows] if sql in stream.source_schema else evaluate(stream, sql, rows)
    return [other if value is None else value for value, other in zip(own, made, strict=True)]


def milliseconds(value: Any) -> int:
    """Return a time (ms, a date, or a datetime; without zone it is UTC) in ms since 1970; of no finite number one before all."""
    if isinstance(value, datetime.date):
        of_day = value if isinstance(value, datetime.datetime) else datetime.datetime.combine(value, datetime.time())
        aware = of_day if of_day.tzinfo is not None else of_day.replace(tzinfo=datetime.UTC)
        return (aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
    if isinstance(value, float) and not math.isfinite(value):
        return events.EARLIEST - 1
    return int(value)


Results = dict[str, list[Event]]


class FlowReference:
    """Runs one script through a flow.

    Args:
        flow: a built flow; its sources are not read.
        clock: "event" or "processing"; None: the flow's own.
        spark: for expressions that only Spark can evaluate; None: the active session, else the process's, if one is needed.
    """

    def __init__(self, flow: Flow, clock: str | None = None, spark: SparkSession | None = None) -> None:
        self._flow, self._clock, self._spark = flow, clock or flow.clock, SparkStep(spark)
        self._inbox: dict[str, list[Item]] = defaultdict(list)
        self._results: dict[str, list[Item]] = {}
        self._end = 0

    def run(self, script: Script) -> Results:
        """Return what each output (by the stream's name) and each table received, in the order of (clock, order)."""
        self._results = {name: [] for name in (*self._flow.outputs, *self._flow.tables)}
        entries = read_script(self._flow, script, self._clock, self.source_sql)
        self._end = entries.end
        for stream in self._flow.in_order:
            items = entries.items.get(stream.name, []) + self._inbox.pop(stream.name, [])
            items = _sorted(self._entering(stream, items))
            for index, operation in enumerate(stream.operations):
                items = self._run_operation(stream, index, operation, items)
        return {name: [event for event, _, _ in _sorted(items)] for name, items in self._results.items()}

    def _entering(self, stream: StreamDefinition, items: list[Item]) -> list[Item]:
        """Return the events of all ways into a stream, their values in the types of its fields, which hold those of every way."""
        schema, several = stream.schema_at(0), several_fields(self._flow, stream, 0)
        if schema is None or not stream.feeds:
            return items

        def entered(name: str, value: Any) -> Any:
            kind = schema.get(name)
            if name not in several or kind is None:
                return held_if_fit(value, kind)
            return held_if_fit(value, kind if isinstance(value, list) else kind[6:-1])

        return [
            (event.with_fields({name: entered(name, value) for name, value in event.items()}), now, order)
            for event, now, order in items
        ]

    def _run_operation(
        self, stream: StreamDefinition, index: int, operation: ops.Operation, items: list[Item]
    ) -> list[Item]:
        """Return what goes on along the stream."""
        schema = stream.schema_at(index)
        if isinstance(operation, ops.Select):
            return _select(operation, items)
        if isinstance(operation, ops.Compute):
            return self._computed(operation, items, schema)
        if isinstance(operation, ops.Filter):
            return self._passing(operation.criteria, items, schema, operation.label)
        if isinstance(operation, ops.Each):
            given = [
                (made, now, own)
                for event, now, order in items
                for made, own in made_of(operation, without_zones(event), order)
            ]
            return _fit(operation.label, dict(operation.schema), given, of_each=True)
        if isinstance(operation, ops.Stateful):
            context = window_context(self._flow, stream, index)
            if isinstance(operation.operation, CollectWindow):
                items = [(_as_arrays(event, context.several), now, order) for event, now, order in items]
            if _has_own_code(operation.operation):
                items = [(copy_of(event), now, order) for event, now, order in items]
            made = KeyedWindows(operation.operation, context).feed(items, self._end)
            grouped = isinstance(operation.operation, Grouping)
            return _fit(operation.label, (stream.schema_at(index + 1) or {}) if grouped else {}, made)
        if isinstance(operation, ops.GateOn):
            return self._gated(operation.gate, items, schema)
        if isinstance(operation, ops.To):
            for path, target in enumerate(operation.streams):
                self._send(stream, index, path, target, items)
        if isinstance(operation, ops.Split):
            return self._split(stream, index, operation, items)
        if isinstance(operation, ops.Output):
            self._results[stream.name] += items
        if isinstance(operation, ops.Persist):
            self._results[operation.table] += items
        return items  # a partition says only which windows what follows has

    def _split(self, stream: StreamDefinition, index: int, operation: ops.Split, items: list[Item]) -> list[Item]:
        """Give the event to every path whose criteria hold, and to this stream if the default holds (Flowmix rules 4, split)."""
        schema = stream.schema_at(index)
        for path, target in enumerate(operation.routes):
            criteria = None if path < len(operation.all) else operation.paths[path - len(operation.all)][1]
            passing = items if criteria is None else self._passing(criteria, items, schema, operation.label)
            self._send(stream, index, path, target, passing)
        return [] if operation.default is None else self._passing(operation.default, items, schema, operation.label)

    def _send(self, stream: StreamDefinition, index: int, path: int, target: str, items: Sequence[Item]) -> None:
        """Send into another stream, where events carry the name of the stream that sent them."""
        for event, now, order in items:
            sent = Event(event, event.id, event.timestamp, stream.name)
            self._inbox[target].append((sent, now, ops.sent_order(order, stream.index, index, path)))

    def _passing(self, criteria: Criteria, items: list[Item], schema: Schema | None, label: str) -> list[Item]:
        answers = self._answers(criteria, items, schema, label)
        return [item for item, holds in zip(items, answers, strict=True) if holds]

    def _answers(self, criteria: Criteria, items: list[Item], schema: Schema | None, label: str) -> list[bool]:
        if criteria.plain:
            return [criteria.matches(without_zones(event)) for event, _, _ in items]
        if isinstance(criteria, Combined):
            parts = [self._answers(part, items, schema, label) for part in criteria.parts]
            return [criteria.combine([part[i] for part in parts]) for i in range(len(items))]
        table = _table(items, schema, criteria.fields)
        types = {field: table.type_or_guess(field) for field in table.fields}
        answers = self._evaluated(table, lambda *_: criteria.column(types), label)
        return [value is True for value in answers]

    def _computed(self, operation: ops.Compute, items: list[Item], schema: Schema | None) -> list[Item]:
        """Compute fields; id and timestamp stay; an event for which nothing is there goes no further."""
        table = _table(items, schema, operation.reads)
        columns = {}
        for name, kind, text in operation.outputs:
            cast = f"CAST({spark_sql('compute', text)} AS {kind})"
            found = self._evaluated(table, cast, f"{operation.label}: {text}")
            columns[name] = [held_if_fit(value, kind) for value in found]
        made = []
        for number, (event, now, order) in enumerate(items):
            kept = event.with_fields({name: values[number] for name, values in columns.items()})
            if _has_any(kept):
                made.append((kept, now, order))
        return made

    def source_sql(self, stream: StreamDefinition, sql: str, rows: list[dict[str, Any]]) -> list[Any]:
        return self._evaluated(_rows_table(rows, stream.source_schema, ()), sql, f"{stream.name}: {sql}")

    def _evaluated(self, table: Table, expression: Any, label: str) -> list[Any]:
        if not table.rows:
            return []
        try:
            found = self._spark.evaluate(table, expression, ("value",), label)
        except NeedsSparkError as error:
            raise NeedsSparkError(error.wanted_for, error.reason, hint=_PLAIN_FORMS) from error.__cause__
        return [rows[0][0] for rows in found.rows]

    def _gated(self, gate: Any, items: list[Item], schema: Schema | None) -> list[Item]:
        """Pass all events of a run through a gate as one batch. The rows' tasks carry their numbers through it."""
        if not items and (schema is None or None in schema.values()):
            return items  # nothing tells the types of an empty batch
        table = _table(items, schema, gate.fields).dealt(range(len(items)))
        kept = self._spark.pass_gate(gate, table, "the script")
        return [items[kept.task_of(row)] for row in range(len(kept.rows))]


def _has_own_code(operation: Any) -> bool:
    return any(isinstance(one, WindowAggregator) for one in getattr(operation, "aggregators", ()))


def _fit(label: str, schema: Schema, items: list[Item], *, of_each: bool = False) -> list[Item]:
    """Return events that windows or a user's code made, with what columns of the declared types hold of their values."""
    if not (schema or of_each):
        return items
    made = []
    for event, now, order in items:
        fields = dict(event)
        for name in event if of_each else schema.keys() & event.keys():
            try:
                fields[name] = held(event[name], schema.get(name), of_each=of_each)
            except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
                raise FunctionError(label, f"field {name}: {error}") from error
        made.append((event.with_fields(fields), now, order))
    return made


def _sorted(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item[1:])


def _as_arrays(event: Event, several: frozenset[str]) -> Event:
    """Return an event as it is collected: structs have one form, so what a join may have made a list is one."""
    return event.with_fields({name: event.values_of(name) if name in several else event[name] for name in event})


def _select(operation: ops.Select, items: list[Item]) -> list[Item]:
    """Keep id, timestamp and the fields; an event that has none of the fields goes no further (Flowmix rules 4, select)."""
    selected = []
    for event, now, order in items:
        kept = event.with_fields({name: event[name] for name in operation.fields if name in event})
        if _has_any(kept):
            selected.append((kept, now, order))
    return selected


def _has_any(event: Event) -> bool:
    """Check whether an event has a value at all: a list of none is none (Flowmix rules 1)."""
    return any(event.values_of(name) for name in event)


def _table(items: Sequence[Item], schema: Schema | None, named: Sequence[str]) -> Table:
    return _rows_table([dict(event) for event, _, _ in items], schema, named)


def _rows_table(rows: Sequence[Mapping[str, Any]], schema: Schema | None, named: Sequence[str]) -> Table:
    """Build a table of rows; an open stream's has the fields that are present or named."""
    if schema is None:
        names = dict.fromkeys([*(name for row in rows for name in row), *named])
        schema = dict.fromkeys(names)
    fields = tuple(schema)
    values = tuple(tuple(fitted(row.get(name), schema[name]) for name in fields) for row in rows)
    return Table(fields, tuple(schema.values()), values)
