"""Flow: where a flow of event streams begins, how it is checked when it is built, and what it is then."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

from pipelines.bounds import THRESHOLD
from pipelines.ddl import ENGINE_COLUMNS
from pipelines.errors import BadNameError, FlowError, nearest
from pipelines.flowmix.definition import Feed, Schema, StreamDefinition, in_order, source_schema
from pipelines.flowmix.operations import EXITS, Operation, Output, Persist, Select, Split, Stateful, routes_of
from pipelines.flowmix.schemas import (
    MEETING,
    NOTHING_SELECTED,
    Sent,
    after,
    by_stream,
    conflict,
    require_fields,
    selected,
    several_fields,
    sides_behind,
    union,
)
from pipelines.flowmix.stream import FlowStream
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import checked_name, require
from pipelines.graph.nodes import CodeLocation
from pipelines.sources.base import Source
from pipelines.sources.events import PROCESSING
from pipelines.windows.buffer import WindowContext
from pipelines.windows.operations import AlignedWindow, Grouping, JoinWindow

CLOCKS = ("event", "processing")
CHANNELS, BATCH = "channels", "batch"
_PLACE: ContextVar[str] = ContextVar("place of windows", default=BATCH)
_NO_TIMES = ("string", "varchar", "char", "boolean", "binary", "array", "map", "struct")


@contextmanager
def default_windows(place: str) -> Iterator[None]:
    """Give flows that do not say where their windows run this place: a version that was deployed stays what it was."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


class Flow:
    """A set of named streams of event operations (Flowmix rules 1).

    Write it from `stream(...)` to `build()`, which gives the checked, frozen flow.

    Args:
        name: `[a-z][a-z0-9_]*`; checkpoints, channels and Dagster assets carry it.
        description: one sentence for people.
        clock: `"event"`: windows go by the events' own timestamps, so a bounded run and a stream give the same result;
            `"processing"`: by their arrival, as in the original.
        windows: `"batch"`: the windows of a stream's own source run within its batch, in the driver, where they can
            (docs/adr/0054); the others read a channel, in a query of their own. `"channels"`: all of them do, with their state
            spread over the executors. A flow that has run may go over to `"batch"`, with what its windows hold, and not back.
            None: `"batch"`.

    Attributes:
        streams: the streams by name, in the order of their definition (of a built flow).

    Raises:
        BadNameError: if the name is not legal.
        FlowError: without a name, for another clock, or another place of windows.
    """

    def __init__(
        self, name: str = "", description: str = "", *, clock: str = "event", windows: str | None = None
    ) -> None:
        if name is None or name == "":
            raise FlowError("", "A flow needs to have an id", at=CodeLocation.of_caller(), hint='Flow("my_flow")')
        self.name = checked_name("flow", name)
        windows = _PLACE.get() if windows is None else windows
        for what, given, known in (("clock", clock, CLOCKS), ("place of windows", windows, (CHANNELS, BATCH))):
            if given not in known:
                at = CodeLocation.of_caller()
                raise FlowError(name, f"no {what} {given!r}", at=at, hint=f"one of {', '.join(known)}")
        self.description, self.clock, self.windows = description, clock, windows
        self.streams: Mapping[str, StreamDefinition] = MappingProxyType({})
        self.built = False
        self._begun: dict[str, FlowStream] = {}
        self._sent: list[Sent] = []
        self._results: set[str] = set()
        self._gates: set[str] = set()
        self._location: CodeLocation | None = None

    def stream(
        self,
        name: str,
        source: Any = None,
        *,
        id: str | None = None,
        timestamp: str | None = None,
        delay: int = 0,
        std_input: bool | None = None,
        slice_by: str | None = None,
    ) -> FlowStream:
        """Begin a stream.

        Args:
            name: `[a-z][a-z0-9_]*`, unique in the flow.
            source: one of `pipelines.sources`; or a schema (`"k string, v bigint"`) of events that come from outside under
                the stream's name (tests, or a source that is bound later); or None: fed by other streams only.
            id: SQL over the source's fields that gives an event's id; None: its field `id`, if it has one, else made.
            timestamp: SQL over the source's fields that gives an event's time, in ms since 1970 or as a timestamp; None:
                its field `timestamp`, if it has one, else its arrival.
            delay: how many seconds an event may come late before it goes to the table of late rows (clock "event").
            std_input: whether events enter the flow here; None: if there is a source.
            slice_by: SQL over the source's fields that gives the slice of an event (usually a date).

        Raises:
            BadNameError: for a name that is not legal.
            FieldError: if an expression names a field that the source does not have.
            FlowError: if the name is taken, the source is none, or the time is a column of text.
        """
        self._refuse_if_built(name)
        checked_name("stream", name)
        if name in self._begun:
            self._refuse(f'there is a stream "{name}" already', name, "give each stream a name of its own")
        _check_source(self, name, source, std_input)
        if isinstance(delay, bool) or not isinstance(delay, int) or delay not in THRESHOLD:
            self._refuse(f"delay is {THRESHOLD} (seconds); got {delay!r}", name)
        self._check_sql(name, source_schema(source), {"id": id, "timestamp": timestamp, "slice_by": slice_by})
        definition = StreamDefinition(
            name=name,
            index=len(self._begun),
            source=source,
            id=id,
            timestamp=timestamp,
            delay=delay,
            slice_by=slice_by,
            at=self._here(),
        )
        self._check_time(definition)
        self._begun[name] = FlowStream(self, definition)
        return self._begun[name]

    def build(self) -> Flow:
        """Return the flow, checked as a whole and frozen.

        Raises:
            FlowError: in the original's words (Flowmix rules 2): no stream, no input, no output, nothing to join, an unknown
                target, a cycle; with the line that causes it.
            FieldError: for a field that no stream can have, where its line could not know it.
        """
        self._refuse_if_built(None)
        written = [replace(stream._start, operations=tuple(stream._operations)) for stream in self._begun.values()]
        flow = Flow(self.name, self.description, clock=self.clock, windows=self.windows)
        flow.streams = MappingProxyType({definition.name: definition for definition in _Check(self, written).run()})
        flow.built = True
        return flow

    @property
    def inputs(self) -> tuple[StreamDefinition, ...]:
        """Return the streams where events enter."""
        return tuple(stream for stream in self.streams.values() if stream.std_input)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the streams with a standard output."""
        return tuple(stream.name for stream in self.streams.values() if stream.std_output)

    @property
    def tables(self) -> dict[str, str]:
        """Return the tables that it writes, each with the stream that does."""
        return {table: stream.name for stream in self.streams.values() for table in stream.tables}

    @property
    def in_order(self) -> tuple[StreamDefinition, ...]:
        """Return the streams so that each comes behind those that feed it."""
        return in_order(self.streams)

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, streams: {', '.join(self.streams or self._begun) or 'none'})"

    # What the streams ask while they are written

    @contextmanager
    def _written_at(self, at: CodeLocation) -> Iterator[None]:
        """Place what is defined inside at `at`: for forms of a flow other than Python."""
        before, self._location = self._location, at
        try:
            yield
        finally:
            self._location = before

    def _check_sql(self, stream: str, fields: Iterable[str], given: Mapping[str, str | None]) -> None:
        """Check the arguments that are SQL over a source's fields, by name."""
        for argument, text in given.items():
            if text is not None:
                where = f'flow "{self.name}", stream "{stream}", at {self._here()}: {argument}'
                require(where, fields_of_sql(argument, text, fields), tuple(fields))

    def _check_time(self, stream: StreamDefinition) -> None:
        """Refuse a column that can be no time: the first event would end the batch, in Spark's words."""
        named = (stream.event_timestamp or "").strip("` ")
        kind = stream.source_schema.get(named)
        if kind is not None and kind.strip().lower().startswith(_NO_TIMES):
            self._refuse(
                f'timestamp: "{named}" is of type {kind}; an event\'s time is in ms since 1970 (bigint), or a timestamp',
                stream.name,
                f'make a time of it: timestamp="to_timestamp({named})"',
            )

    def _here(self) -> CodeLocation:
        return self._location or CodeLocation.of_caller()

    def _sides(self, definition: StreamDefinition) -> list[Sent]:
        """Return what leads into a stream so far."""
        own = [Sent(definition.name, None, True, source_schema(definition.source))] if definition.std_input else []
        return own + [sent for sent in self._sent if sent.target == definition.name]

    def _claim_result(self, name: str, what: str, refuse: Any) -> None:
        """Note a table or a standard output as a result of the flow: each has a name of its own and one writer."""
        if name in self._results:
            refuse(f'{what} ("{name}") is a result of the flow already', hint="give each result a name of its own")
        self._results.add(name)

    def _claim_gate(self, name: str, refuse: Any) -> None:
        if name in self._gates:
            refuse(f'there is a gate "{name}" already', hint="give each gate a name of its own")
        self._gates.add(name)

    def _refuse_if_built(self, stream: str | None) -> None:
        if self.built:
            self._refuse("a built flow does not change", stream, "write the whole flow before build()")

    def _refuse(self, problem: str, stream: str | None = None, hint: str = "") -> NoReturn:
        raise FlowError(self.name, problem, stream=stream, at=self._here(), hint=hint)


def _check_source(flow: Flow, name: str, source: Any, std_input: bool | None) -> None:
    if source is not None and not isinstance(source, str) and not isinstance(source, Source):
        flow._refuse(f"{source!r} is not a source", name, "use one of pipelines.sources, or a schema as text")
    if std_input is True and source is None:
        flow._refuse("a stream that reads from std input needs a source", name, "stream(name, source)")
    if std_input is False and source is not None:
        flow._refuse("a stream with a source reads from std input", name, "leave the source out")
    if isinstance(source, str):
        try:
            fields = tuple(source_schema(source))
        except BadNameError as error:
            raise FlowError(flow.name, str(error), stream=name, at=flow._here()) from None
        if not fields:
            flow._refuse("the source's schema has no fields", name)
    if own := [field for field in source_schema(source) if field in ENGINE_COLUMNS]:
        flow._refuse(str(BadNameError("field", own[0], "is the engine's")), name)


class _Check:
    """Checks a whole flow (Flowmix rules 2, FlowDefsBuilder), and gives the streams with their feeds and schemas."""

    def __init__(self, flow: Flow, written: Sequence[StreamDefinition]) -> None:
        self._flow, self._clock, self._at = flow.name, flow.clock, flow._here()
        self._streams = {stream.name: stream for stream in written}

    def run(self) -> tuple[StreamDefinition, ...]:
        if not self._streams:
            self._refuse("A flow should have at least one flow op", hint="begin with flow.stream(name, source)")
        for stream in self._streams.values():
            self._check_exits(stream)
        if not any(stream.std_input for stream in self._streams.values()):
            self._refuse("At least one stream needs to read from std input", hint="stream(name, source)")
        self._check_targets()
        self._streams = {name: replace(stream, feeds=self._feeds_of(name)) for name, stream in self._streams.items()}
        self._check_tables()
        if not any(isinstance(op, Output | Persist) for stream in self._streams.values() for op in stream.operations):
            self._refuse(
                "At least one stream needs to write to std output", hint="end a stream with output() or persist"
            )
        self._check_cycles()
        order = in_order(self._streams)
        for stream in order:
            if not stream.std_input and not stream.feeds:
                self._refuse("no stream leads here and it has no source", stream, hint="to(...) or a source")
            self._check_joins(stream)
        for stream in order:
            self._streams[stream.name] = self._with_schemas(stream)
        return tuple(self._streams.values())

    def _check_exits(self, stream: StreamDefinition) -> None:
        """Check that every event that comes through goes somewhere: a stream ends with an output, a table or other streams."""
        if not stream.operations:
            self._refuse("A flow should have at least one flow op: this stream has none", stream)
        last = stream.operations[-1]
        if isinstance(last, Split) and last.default is not None:
            self._refuse(
                f"You must specify at least one output. Offending stream: {stream.name} "
                "(what the split's default lets pass goes nowhere)",
                stream,
                last,
                hint="end it with output(), persist(table) or to(stream)",
            )
        if not isinstance(last, EXITS):
            self._refuse(
                f"You must specify at least one output. Offending stream: {stream.name}",
                stream,
                last,
                hint="end it with output(), persist(table) or to(stream)",
            )

    def _check_targets(self) -> None:
        for stream in self._streams.values():
            for index, _, target in routes_of(stream.operations):
                if target not in self._streams:
                    self._refuse(
                        f'it sends to a stream "{target}", and there is none; the flow has: '
                        f"{', '.join(self._streams)}{nearest(target, self._streams)}",
                        stream,
                        stream.operations[index],
                    )

    def _check_tables(self) -> None:
        """Check that no table has the name of one that the flow writes by itself."""
        own = {
            f"{self._flow}_{name}": f'output of stream "{name}"'
            for name, one in self._streams.items()
            if one.std_output
        }
        if self._clock != PROCESSING:
            late = (name for name, stream in self._streams.items() if stream.tells_late)
            own |= {f"late_{self._flow}_{name}": f'late events of stream "{name}"' for name in late}
        for stream in self._streams.values():
            for operation in stream.operations:
                if isinstance(operation, Persist) and operation.table in own:
                    fault = f'its table "{operation.table}" is that of the {own[operation.table]}'
                    self._refuse(fault, stream, operation, hint="give each result a name of its own")

    def _feeds_of(self, name: str) -> tuple[Feed, ...]:
        return tuple(
            Feed(stream.name, index, path)
            for stream in self._streams.values()
            for index, path, target in routes_of(stream.operations)
            if target == name
        )

    def _check_cycles(self) -> None:
        feeders = {name: [feed.stream for feed in stream.feeds] for name, stream in self._streams.items()}
        try:
            graphlib.TopologicalSorter(feeders).prepare()
        except graphlib.CycleError as error:
            way = error.args[1][:-1]
        else:
            return
        # From the stream that was defined first.
        first = way.index(next(name for name in self._streams if name in way))
        way = [*way[first:], *way[: first + 1]]
        stream = self._streams[way[0]]
        index = next(index for index, _, target in routes_of(stream.operations) if target == way[1])
        self._refuse(f"streams lead in a cycle: {' -> '.join(way)}", stream, stream.operations[index])

    def _check_joins(self, stream: StreamDefinition) -> None:
        """Check that both sides are routed to a join, and nothing else: such events would match neither side (rules 4, join)."""
        origins = {feed.stream for feed in stream.feeds} | ({stream.name} if stream.std_input else set())
        for operation in stream.operations:
            window = operation.operation if isinstance(operation, Stateful) else None
            if isinstance(window, Grouping):
                origins = {stream.name}  # its results come from here
            if not isinstance(window, JoinWindow):
                continue
            for side in (window.left, window.right):
                if side not in origins:
                    self._refuse(
                        "A join operator was found but the necessary streams are not being routed to it. "
                        f'Offending stream: {stream.name} ("{side}" does not reach the join; what does: '
                        f"{', '.join(sorted(origins)) or 'nothing'}{nearest(side, origins)})",
                        stream,
                        operation,
                        hint=f'send it here: to("{stream.name}") or a path of a split in stream "{side}"',
                    )
            if others := sorted(origins - {window.left, window.right}):
                self._refuse(
                    f"Received event for stream that does not match the join: {', '.join(others)} leads to it too",
                    stream,
                    operation,
                    hint="join in a stream of its own",
                )
            origins = {window.left}

    def _with_schemas(self, stream: StreamDefinition) -> StreamDefinition:
        """Return the stream with the fields before each operation; what no line could check is checked here."""
        own = [Sent(stream.name, None, True, stream.source_schema)] if stream.std_input else []
        ways = own + [
            Sent(stream.name, feed, True, self._streams[feed.stream].schemas[feed.operation]) for feed in stream.feeds
        ]
        if problem := conflict(sent.way for sent in ways):
            self._refuse(problem, stream, hint=MEETING)
        schemas: list[Schema | None] = [union(sent.schema for sent in ways)]
        sides: Mapping[str, Schema | None] = by_stream(sent.way for sent in ways)
        operations: list[Operation] = []
        for operation in stream.operations:
            if isinstance(operation, Select):
                operation = replace(operation, fields=selected(operation.fields, schemas[-1]))
                if not operation.fields:
                    self._refuse(NOTHING_SELECTED, stream, operation)
            operations.append(operation)
            where = f'flow "{self._flow}", stream "{stream.name}", at {operation.at}'
            require_fields(where, operation, schemas[-1])
            schemas.append(after(operation, schemas[-1], sides))
            sides = sides_behind(operation, sides)
        return replace(stream, operations=tuple(operations), schemas=tuple(schemas))

    def _refuse(
        self, problem: str, stream: StreamDefinition | None = None, operation: Operation | None = None, hint: str = ""
    ) -> NoReturn:
        at = operation.at if operation else stream.at if stream else self._at
        raise FlowError(self._flow, problem, stream=stream.name if stream else None, at=at, hint=hint)


def built(given: Any) -> Any:
    """Return a flow, which must be built.

    Args:
        given: a flow, or the last stream of one whose `build()` was forgotten.

    Raises:
        FlowError: if it is not built.
    """
    flow = given._flow if isinstance(given, FlowStream) else given
    if not getattr(flow, "built", False):
        raise FlowError(flow.name, "the flow is not built", hint="end its definition with .build()")
    return flow


def window_context(flow: Flow, stream: StreamDefinition, index: int) -> WindowContext:
    """Return the context of the stateful operation `index` of a stream, the same for every engine."""
    operation = stream.operations[index]
    assert isinstance(operation, Stateful)
    entered: dict[str, _Before] = {}
    for definition in flow.in_order:
        ways = [
            (feed.stream, *_windows_before(flow.streams[feed.stream], feed.operation, entered[feed.stream]))
            for feed in definition.feeds
        ]
        depth = max((depth for _, depth, _ in ways), default=0)
        entered[definition.name] = depth, {(origin, lag) for origin, _, lags in ways for _, lag in lags}
    depth, lags = _windows_before(stream, index, entered[stream.name])
    own, several = depth - entered[stream.name][0], several_fields(flow, stream, index)
    behind = frozenset(lag for _, lag in lags)
    return WindowContext(flow.name, stream.name, own, operation.partition, depth, several, behind)


_Before = tuple[int, set[tuple[str, int]]]
"""How many stateful operations lie before a place on the longest way from a source; `lags` of its context, each with
the stream whose events have it."""


def _windows_before(stream: StreamDefinition, index: int, entered: _Before) -> _Before:
    """Return what lies before operation `index` of a stream; `entered`: before the stream."""
    depth, lags = entered
    for operation in stream.operations[:index]:
        if not isinstance(operation, Stateful):
            continue
        window = operation.operation
        if isinstance(window, JoinWindow):
            lags = {(origin, lag) for origin, lag in lags if origin == window.left}
        elif isinstance(window, Grouping):
            lags = {(stream.name, 1 + depth)} if isinstance(window, AlignedWindow) else set()
        depth += 1
    return depth, lags
