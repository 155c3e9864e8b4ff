"""A stream and a flow as the engines read them: frozen data, checked when the flow is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.flowmix.operations import Operation, Output, Persist, Stateful, routes_of
from pipelines.graph.nodes import CodeLocation

Schema = Mapping[str, str | None]
"""Spark SQL types by field, in order; None: only Spark can tell. Instead of a Schema None: anything may be there."""


@dataclass(frozen=True)
class Feed:
    """One way into a stream: operation `operation` of the stream `stream`, its path number `path`."""

    stream: str
    operation: int
    path: int


@dataclass(frozen=True, kw_only=True)
class StreamDefinition:
    """One stream of a flow.

    Attributes:
        name: the stream's name.
        index: its place in the flow, from 0.
        source: one of `pipelines.sources`, a schema as DDL text (fed from outside by name), or None (fed by streams alone).
        id: SQL over the source's fields that gives an event's id; None: see `event_id`.
        timestamp: SQL over the source's fields that gives an event's time in ms, or as a timestamp; None: as `id`.
        delay: by how many seconds an event may come late (the watermark's delay).
        slice_by: SQL over the source's fields that gives the slice of an event, or None.
        operations: in order.
        feeds: the ways into it from other streams, in the order of their definition.
        schemas: the fields before each operation, and at the end (one more than there are operations).
        at: the user's line.
    """

    name: str
    index: int
    source: Any = None
    id: str | None = None
    timestamp: str | None = None
    delay: int = 0
    slice_by: str | None = None
    operations: tuple[Operation, ...] = ()
    feeds: tuple[Feed, ...] = ()
    schemas: tuple[Schema | None, ...] = field(default=(), repr=False)
    at: CodeLocation = field(compare=False, repr=False)

    def schema_at(self, index: int) -> Schema | None:
        """Return the fields that operation `index` sees, with their types; None if the stream is open: anything may be there.

        At the entry (0): the source's fields and those of all feeding streams.
        """
        return self.schemas[index]

    @property
    def source_schema(self) -> Schema:
        """Return the fields of the source alone; empty without one."""
        return source_schema(self.source)

    @property
    def event_id(self) -> str | None:
        """SQL over the source's fields for the id: as given, else the field `id` if there is one, else None."""
        return self.id if self.id is not None else ("id" if "id" in self.source_schema else None)

    @property
    def event_timestamp(self) -> str | None:
        """SQL over the source's fields for the time: as given, else the field `timestamp`; None: the event's arrival."""
        if self.timestamp is not None:
            return self.timestamp
        return "timestamp" if "timestamp" in self.source_schema else None

    @property
    def std_input(self) -> bool:
        """Return whether events enter the flow here."""
        return self.source is not None

    @property
    def std_output(self) -> bool:
        """Return whether the stream has a standard output."""
        return any(isinstance(operation, Output) for operation in self.operations)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the streams that it sends to, each once."""
        return tuple(dict.fromkeys(target for _, _, target in routes_of(self.operations)))

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the tables that it writes."""
        return tuple(operation.table for operation in self.operations if isinstance(operation, Persist))

    @property
    def stateful(self) -> bool:
        """Return whether one of its operations keeps windows."""
        return any(isinstance(operation, Stateful) for operation in self.operations)

    @property
    def tells_late(self) -> bool:
        """Return whether its source's late events get a table, in event time: it has windows, or a channel takes its events."""
        leads_on = self.stateful or self.feeds or self.targets
        return self.std_input and self.event_timestamp is not None and bool(leads_on)


def in_order(streams: Mapping[str, StreamDefinition]) -> tuple[StreamDefinition, ...]:
    """Return streams without a cycle so that each comes behind those that feed it."""
    done: dict[str, StreamDefinition] = {}
    while len(done) < len(streams):
        for stream in streams.values():
            if stream.name not in done and all(feed.stream in done for feed in stream.feeds):
                done[stream.name] = stream
    return tuple(done.values())


def source_schema(source: Any) -> Schema:
    """Return the fields of a source (or of DDL text) with their types; empty for None."""
    from pipelines.graph.fields import parse_ddl

    if source is None:
        return {}
    if isinstance(source, str):
        return dict(parse_ddl(source))
    known = dict(parse_ddl(source.schema)) if getattr(source, "schema", "") else {}
    return {name: known.get(name) for name in source.fields}
