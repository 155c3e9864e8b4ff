"""Flow: where a flow of event streams begins, and what it is when it is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

from pipelines.errors import BadNameError, FlowError
from pipelines.flowmix.checking import checked
from pipelines.flowmix.definition import StreamDefinition, in_order, source_schema
from pipelines.flowmix.schemas import Sent
from pipelines.flowmix.stream import FlowStream
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import checked_name, require
from pipelines.graph.nodes import CodeLocation
from pipelines.sources.base import Source

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
        if isinstance(delay, bool) or not isinstance(delay, int) or delay < 0:
            self._refuse(f"delay is a whole number of seconds, 0 or more; got {delay!r}", name)
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
        flow.streams = MappingProxyType(
            {definition.name: definition for definition in checked(self.name, written, self._here())}
        )
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
        """What is defined inside stands at `at`: for forms of a flow other than Python."""
        before, self._location = self._location, at
        try:
            yield
        finally:
            self._location = before

    def _check_sql(self, stream: str, fields: Iterable[str], given: Mapping[str, str | None]) -> None:
        """The arguments that are SQL over a source's fields, by name."""
        for argument, text in given.items():
            if text is not None:
                where = f'flow "{self.name}", stream "{stream}", at {self._here()}: {argument}'
                require(where, fields_of_sql(argument, text), tuple(fields))

    def _check_time(self, stream: StreamDefinition) -> None:
        """A column that can be no time: the first event would end the batch, in Spark's words."""
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
        """Tables and standard outputs are results of the flow: each has a name of its own and one writer."""
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
