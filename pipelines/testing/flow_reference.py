"""The reference engine of flows: an interpreter in plain Python, which says what the Spark engines must give.

It is written to be read: stream after stream, each behind those that feed it, and in a stream operation after operation over
the whole ordered list of events. Windows are those of `pipelines.windows`, one event after the other. Only SQL text, callables
of Columns and gates are left to Spark, a step at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.flowmix import operations as ops
from pipelines.flowmix.contexts import window_context
from pipelines.flowmix.criteria import Combined, Criteria
from pipelines.flowmix.definition import Schema, StreamDefinition
from pipelines.flowmix.each import made_of
from pipelines.flowmix.flow import Flow
from pipelines.flowmix.schemas import several_fields
from pipelines.flowmix.values import fitted
from pipelines.graph.expressions import spark_sql
from pipelines.planner.plain import Table
from pipelines.testing.flow_script import Item, Script, read_script
from pipelines.testing.spark_step import SparkStep
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Results = dict[str, list[Event]]


class FlowReference:
    """Runs one script through a flow.

    Args:
        flow: a built flow; its sources are not read.
        clock: "event" or "processing"; None: the flow's own.
        spark: for expressions that only Spark can evaluate; None: the active session, if one is needed.
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
            self._run_stream(stream, _sorted(items))
        return {name: [event for event, _, _ in _sorted(items)] for name, items in self._results.items()}

    def _run_stream(self, stream: StreamDefinition, items: list[Item]) -> None:
        for index, operation in enumerate(stream.operations):
            items = self._run_operation(stream, index, operation, items)

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
            return [(made, now, own) for event, now, order in items for made, own in made_of(operation, event, order)]
        if isinstance(operation, ops.Stateful):
            windows = KeyedWindows(operation.operation, window_context(self._flow, stream, index))
            return windows.feed(items, self._end)
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
        """Every path whose criteria hold gets the event, and this stream if the default holds (Flowmix rules 4, split)."""
        schema = stream.schema_at(index)
        for path, target in enumerate(operation.routes):
            criteria = None if path < len(operation.all) else operation.paths[path - len(operation.all)][1]
            passing = items if criteria is None else self._passing(criteria, items, schema, operation.label)
            self._send(stream, index, path, target, passing)
        return [] if operation.default is None else self._passing(operation.default, items, schema, operation.label)

    def _send(self, stream: StreamDefinition, index: int, path: int, target: str, items: Sequence[Item]) -> None:
        """Send into another stream, where events carry the name of the stream that sent them.

        A field that another stream declares as an array is one there.
        """
        there = self._flow.streams[target]
        arrays = {name: kind for name, kind in (there.schema_at(0) or {}).items() if kind and kind.startswith("array<")}
        declared = {name: arrays[name] for name in arrays.keys() - several_fields(self._flow, there, 0)}
        for event, now, order in items:
            fields = {name: fitted(value, declared.get(name)) for name, value in event.items()}
            sent = Event(fields, event.id, event.timestamp, stream.name)
            self._inbox[target].append((sent, now, ops.sent_order(order, stream.index, index, path)))

    def _passing(self, criteria: Criteria, items: list[Item], schema: Schema | None, label: str) -> list[Item]:
        answers = self._answers(criteria, items, schema, label)
        return [item for item, holds in zip(items, answers, strict=True) if holds]

    def _answers(self, criteria: Criteria, items: list[Item], schema: Schema | None, label: str) -> list[bool]:
        if criteria.plain:
            return [criteria.matches(event) for event, _, _ in items]
        if isinstance(criteria, Combined):
            parts = [self._answers(part, items, schema, label) for part in criteria.parts]
            return [criteria.combine([part[i] for part in parts]) for i in range(len(items))]
        table = _table(items, schema, criteria.fields)
        types = {field: table.type_or_guess(field) for field in table.fields}
        answers = self._evaluated(table, lambda *_: criteria.column(types), label)
        return [value is True for value in answers]

    def _computed(self, operation: ops.Compute, items: list[Item], schema: Schema | None) -> list[Item]:
        """Id and timestamp stay; an event for which nothing is there goes no further."""
        table = _table(items, schema, operation.reads)
        columns = {
            name: self._evaluated(table, f"CAST({spark_sql('compute', text)} AS {kind})", f"{operation.label}: {text}")
            for name, kind, text in operation.outputs
        }
        made = []
        for number, (event, now, order) in enumerate(items):
            if kept := event.with_fields({name: values[number] for name, values in columns.items()}):
                made.append((kept, now, order))
        return made

    def source_sql(self, stream: StreamDefinition, sql: str, rows: list[dict[str, Any]]) -> list[Any]:
        return self._evaluated(_rows_table(rows, stream.source_schema, ()), sql, f"{stream.name}: {sql}")

    def _evaluated(self, table: Table, expression: Any, label: str) -> list[Any]:
        if not table.rows:
            return []
        return [rows[0][0] for rows in self._spark.evaluate(table, expression, ("value",), label).rows]

    def _gated(self, gate: Any, items: list[Item], schema: Schema | None) -> list[Item]:
        """Pass all events of a run through a gate as one batch. The rows' tasks carry their numbers through it."""
        if not items:
            return items
        table = _table(items, schema, gate.fields).dealt(range(len(items)))
        kept = self._spark.pass_gate(gate, table, "the script")
        return [items[kept.task_of(row)] for row in range(len(kept.rows))]


def _sorted(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item[1:])


def _select(operation: ops.Select, items: list[Item]) -> list[Item]:
    """Id and timestamp stay; an event that has none of the fields goes no further (Flowmix rules 4, select)."""
    selected = []
    for event, now, order in items:
        kept = event.with_fields({name: event[name] for name in operation.fields if name in event})
        if kept:
            selected.append((kept, now, order))
    return selected


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
