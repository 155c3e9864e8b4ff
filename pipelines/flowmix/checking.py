"""The checks of a whole flow, when all its streams are written (Flowmix rules 2, FlowDefsBuilder)."""

from __future__ import annotations

import graphlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from pipelines.errors import FlowError, nearest
from pipelines.flowmix.definition import Feed, Schema, StreamDefinition, in_order
from pipelines.flowmix.operations import EXITS, Operation, Output, Persist, Split, Stateful, routes_of
from pipelines.flowmix.schemas import Sent, after, by_stream, require_fields, union
from pipelines.graph.nodes import CodeLocation
from pipelines.windows.operations import Grouping, JoinWindow


def checked(flow: str, written: Sequence[StreamDefinition], at: CodeLocation) -> tuple[StreamDefinition, ...]:
    """Return the streams with their feeds and schemas.

    Args:
        flow: the flow's name, for messages.
        written: the streams as written.
        at: where the flow is built.

    Raises:
        FlowError, FieldError: at the first fault.
    """
    return _Check(flow, written, at).run()


class _Check:
    def __init__(self, flow: str, written: Sequence[StreamDefinition], at: CodeLocation) -> None:
        self._flow, self._at = flow, at
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
        self._check_cycles()
        order = in_order(self._streams)
        if not any(isinstance(op, Output | Persist) for stream in self._streams.values() for op in stream.operations):
            self._refuse(
                "At least one stream needs to write to std output", hint="end a stream with output() or persist"
            )
        for stream in order:
            if not stream.std_input and not stream.feeds:
                self._refuse("no stream leads here and it has no source", stream, hint="to(...) or a source")
            self._check_joins(stream)
        for stream in order:
            self._streams[stream.name] = self._with_schemas(stream)
        return tuple(self._streams.values())

    def _check_exits(self, stream: StreamDefinition) -> None:
        """Every event that comes through goes somewhere: a stream ends with an output, a table or other streams."""
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
        """Both sides are routed to a join, and nothing else is: such events would match neither side (rules 4, join)."""
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
                        f"{', '.join(sorted(origins)) or 'nothing'}{nearest(side, self._streams)})",
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
        """The stream with the fields before each operation; what no line could check is checked here."""
        own = [Sent(stream.name, None, True, stream.source_schema)] if stream.std_input else []
        ways = own + [
            Sent(stream.name, feed, True, self._streams[feed.stream].schemas[feed.operation]) for feed in stream.feeds
        ]
        schemas: list[Schema | None] = [union(way.schema for way in ways)]
        for operation in stream.operations:
            require_fields(self._where(stream, operation), operation, schemas[-1])
            schemas.append(after(operation, schemas[-1], by_stream(ways)))
        return replace(stream, schemas=tuple(schemas))

    def _where(self, stream: StreamDefinition, operation: Operation) -> str:
        return f'flow "{self._flow}", stream "{stream.name}", at {operation.at}'

    def _refuse(
        self, problem: str, stream: StreamDefinition | None = None, operation: Operation | None = None, hint: str = ""
    ) -> NoReturn:
        at = operation.at if operation else stream.at if stream else self._at
        raise FlowError(self._flow, problem, stream=stream.name if stream else None, at=at, hint=hint)
