"""Windows of topologies on the reference engine: what enters them batch by batch, and what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.graph import events, nodes
from pipelines.planner.plain import Table, plain
from pipelines.testing.flow_script import milliseconds
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows

if TYPE_CHECKING:
    from pipelines.testing.spark_step import SparkStep

Entered = list[tuple[Event, int, str]]

BATCH_MILLIS = 1000
"""The time between two batches of windows that go by arrival, one second."""


class TaskWindows:
    """The channels into the windows of a topology, and the windows."""

    def __init__(self, spark: SparkStep) -> None:
        self._spark = spark
        self._entered: dict[str, list[tuple[Entered, int | None]]] = {}
        self._clocks: dict[str, int] = {}
        self._windows: dict[int, KeyedWindows] = {}

    def batches(self, channel: str) -> int:
        """Return how many batches have been committed into a channel."""
        return len(self._entered.get(channel, ()))

    def enter(self, node: nodes.EnterWindowNode, table: Table, txid: int) -> Table:
        """Return tuples as events: their inputs, their task and their clock."""
        inputs = table.select(node.inputs)
        if node.timestamp is None:
            clocks: list[int] = [txid * BATCH_MILLIS] * len(table.rows)
        else:
            times = self._spark.evaluate(table, node.timestamp, ("at",), "window timestamp").rows
            clocks = [milliseconds(rows[0][0]) for rows in times]
        rows = tuple(
            (*row, table.task_of(n), "", clock, clock, "", f"000.{txid:08x}{n:016x}")
            for n, (row, clock) in enumerate(zip(inputs.rows, clocks, strict=True))
        )
        return Table(node.fields, (*inputs.types, "int", *events.TYPES), rows)

    def in_time(self, node: nodes.OnTimeNode, table: Table) -> Table:
        """Return the tuples that the watermark has not passed, or those that it has."""
        mark = self._clocks.get(node.channel)
        late = [mark is not None and clock < mark for clock in table.column(events.CLOCK)]
        return table.take([n for n, is_late in enumerate(late) if is_late == node.late])

    def commit(self, node: nodes.ChannelNode, table: Table, txid: int) -> Table:
        """Take a batch into a channel."""
        name = node.state.name
        rows = table.dicts()
        entered = [
            (
                Event(_fields(row), row[events.ID], row[events.TIME], row[events.FROM]),
                row[events.CLOCK],
                row[events.ORDER],
            )
            for row in rows
        ]
        latest = [clock for _, clock, _ in entered] if node.clock != nodes.NOW else [txid * BATCH_MILLIS]
        marks = [*(clock - node.delay for clock in latest), *([self._clocks[name]] if name in self._clocks else [])]
        if marks:
            self._clocks[name] = max(marks)
        self._entered.setdefault(name, []).append((entered, self._clocks.get(name)))
        return table

    def read(self, node: nodes.ChannelSpoutNode, txid: int) -> Table:
        """Return the results of the windows over one batch of their channel."""
        window = list(node.prelude)[-1]
        assert isinstance(window, nodes.WindowNode)
        windows = self._windows.setdefault(node.id, KeyedWindows(window.operation, window.context))
        given = self._entered.get(node.reads[0], [])
        entered, clock = given[txid] if txid < len(given) else ([], None)
        results = [] if clock is None else windows.feed(sorted(entered, key=lambda item: item[1:]), clock)
        rows = tuple(
            (*(plain(event.get(name)) for name in node.fields[: -len(events.COLUMNS)]), event.id, event.timestamp, at,
             event.stream, order)
            for event, at, order in results
        )  # fmt: skip
        return Table(node.fields, tuple(kind or None for kind in window.types), rows)


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in events.COLUMNS}
