"""FlowStream: the fluent half of the Flowmix API. Every line is checked when it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pipelines.errors import ChainOutputsError, FlowError, PolicyError, WindowError
from pipelines.flowmix import operations as ops
from pipelines.flowmix.conditions import as_criteria
from pipelines.flowmix.criteria import Criteria
from pipelines.flowmix.definition import Feed, Schema, StreamDefinition
from pipelines.flowmix.schemas import (
    NOTHING_SELECTED,
    Sent,
    after,
    by_stream,
    require_fields,
    selected,
    sides_behind,
    union,
)
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.fields import added, checked_name, distinct, parse_ddl
from pipelines.graph.nodes import CodeLocation
from pipelines.windows.event import Event
from pipelines.windows.operations import (
    HOUR,
    AggregateWindow,
    AlignedWindow,
    CollectWindow,
    Grouping,
    JoinWindow,
    SessionWindow,
    SortWindow,
    SwitchWindow,
)
from pipelines.windows.policy import Policy

if TYPE_CHECKING:
    from pipelines.flowmix.flow import Flow

OutputOfEach = Event | Mapping[str, Any] | Sequence[Event | Mapping[str, Any]] | None


class FlowStream:
    """One stream of a flow while it is written: each operation is added at its end, any kind any number of times.

    A field that the stream cannot have is a FieldError at the line that names it, where the stream has a source or the
    streams that feed it stand above; otherwise at `build()`, with the line in the text.
    """

    def __init__(self, flow: Flow, definition: StreamDefinition) -> None:
        self._flow, self._start = flow, definition
        self._operations: list[ops.Operation] = []
        ways = flow._sides(definition)
        self._sides: Mapping[str, Schema | None] = by_stream(sent.way for sent in ways)
        # Without a source or a stream above, nothing is known yet.
        self._known = bool(ways) and all(sent.known for sent in ways)
        self._schema: Schema | None = union(sent.schema for sent in ways) if self._known else None

    # What events are kept, and how they look

    def select(self, *fields: str) -> FlowStream:
        """Keep only these fields; id and timestamp stay. An event that has none of them goes no further (rules 4).

        Raises:
            FieldError: for a field that the stream does not have.
            FlowError: without a field.
        """
        kept = distinct(self._names("select", fields))
        if self._known:  # else `build()` knows whether there is a field of the name
            kept = selected(kept, self._schema)
        if not kept:
            self._refuse(NOTHING_SELECTED)
        return self._add(ops.Select(fields=kept, at=self._flow._here()))

    def compute(self, outputs: Mapping[str, str] | None = None) -> FlowStream:
        """Replace the fields by SQL expressions over them; id and timestamp stay. No event costs a call of Python.

        An event for which all expressions are null goes no further, as with `select`.

        Args:
            outputs: per field its name and type as DDL, and the expression: `{"price bigint": "bid.price"}`. A value that is
                not of the type is cast.

        Raises:
            FlowError: without a field.
            FieldError: for a field that the stream does not have.
            FunctionError: for an expression that can't be parsed or calls a forbidden function.
            DuplicateFieldError: if two fields have one name.
        """
        if not outputs or not isinstance(outputs, Mapping):
            seen = "" if outputs is None else f"; got {outputs!r}"
            self._refuse(
                f"compute needs fields and their expressions{seen}", hint='compute({"price bigint": "bid.price"})'
            )
        texts = list(outputs.values())
        if wrong := [text for text in (*outputs, *texts) if not isinstance(text, str)]:
            self._refuse(f"compute takes SQL text; got {wrong[0]!r}", hint="each(function) takes a Python function")
        fields = _made("compute", ", ".join(outputs))
        if len(fields) != len(outputs):
            self._refuse("compute takes one field per expression", hint='compute({"price bigint": "bid.price"})')
        reads = distinct(name for text in texts for name in fields_of_sql("compute", text))
        made = tuple((name, kind, text) for (name, kind), text in zip(fields, texts, strict=True))
        return self._add(ops.Compute(outputs=made, reads=reads, at=self._flow._here()))

    def filter(self, criteria: Any = None) -> FlowStream:
        """Keep the events for which it is true: SQL text, `eq(...)` and the like, a callable of Columns, `python(...)`.

        Raises:
            FlowError: without criteria.
            FunctionError: for what is not criteria.
        """
        if criteria is None:
            self._refuse("Filter operator needs a filter")
        return self._add(ops.Filter(criteria=self._criteria("filter", criteria), at=self._flow._here()))

    def each(self, function: Callable[[Event], OutputOfEach] | None = None, schema: str | None = None) -> FlowStream:
        """Replace each event by what a Python function makes of it: None (nothing), an event, or a list of events.

        A dict keeps the id and the timestamp of the event that came in; so do all dicts of a list.

        Args:
            function: called with an `Event`.
            schema: the fields of what it makes, as DDL. Without it the fields are not known: anything may be named
                behind it, and the Spark engines refuse the flow.
        """
        if not callable(function):
            seen = "" if function is None else f"; got {function!r}"
            self._refuse(f"Each operator needs a function{seen}", hint="each(lambda event: ...)")
        if schema is not None and not isinstance(schema, str):
            self._refuse(f"each takes its schema as text; got {schema!r}", hint='each(function, "v bigint, k string")')
        fields = _made("each", schema) if schema is not None else ()
        return self._add(ops.Each(function=function, schema=fields, at=self._flow._here()))

    def partition(self, *fields: str) -> FlowStream:
        """Give every window operation that follows a window for each value of these fields; without fields one for all."""
        return self._add(ops.Partition(fields=distinct(self._names("partition", fields)), at=self._flow._here()))

    # Windows (rules 5)

    def aggregate(
        self,
        *aggregators: Any,
        trigger: Policy | None = None,
        evict: Policy | None = None,
        clear_on_trigger: bool = False,
        window_evict_millis: int = HOUR,
    ) -> FlowStream:
        """Aggregate the events of a window; emits when the trigger says so (rules 5.1).

        Args:
            aggregators: what to make: `Count()`, `Sum("v", "total")`, ...
            trigger: when to emit.
            evict: which events leave the window.
            clear_on_trigger: whether the window is emptied after it was emitted.
            window_evict_millis: a window to which nothing was added for so long (ms) is forgotten.

        Raises:
            FlowError: if an aggregator or a policy is missing.
            FieldError: for an input that the stream does not have.
            DuplicateFieldError: if two outputs have one name, or one has that of a partition field.
        """
        return self._stateful(AggregateWindow, aggregators, trigger, evict, clear_on_trigger, window_evict_millis)

    def aligned(
        self, *aggregators: Any, every: int, size: int | None = None, offset: int = 0, time_zone: str | None = None
    ) -> FlowStream:
        """Aggregate the events of windows at fixed places in time, each emitted once when the clock has reached its end.

        A result has the partition fields, `window_start` and `window_end` (timestamps, the end exclusive), and the outputs; its
        own time is the last ms of the window, so that windows of windows nest.

        Args:
            aggregators: what to make, as of `aggregate`.
            every: seconds from one window's start to the next one's.
            size: seconds that a window lasts; by default `every` (tumbling), more for hopping windows.
            offset: seconds by which all starts are moved.
            time_zone: whole days begin at this zone's midnight: "Europe/Berlin"; they have 23 to 25 hours.

        Raises:
            FlowError: for a length, zone or aggregator that cannot be.
            FieldError, DuplicateFieldError: as of `aggregate`.
        """
        return self._stateful(AlignedWindow, aggregators, every, size, offset, time_zone)

    def session(self, *aggregators: Any, gap: int) -> FlowStream:
        """Aggregate the events of sessions: runs of events of which none is more than `gap` seconds behind the one before.

        Results, emission and errors as of `aligned`; `window_end` is `gap` behind the session's last event.
        """
        return self._stateful(SessionWindow, aggregators, gap)

    def collect(
        self,
        *,
        trigger: Policy | None = None,
        evict: Policy | None = None,
        clear_on_trigger: bool = False,
        field: str = "events",
        window_evict_millis: int = HOUR,
    ) -> FlowStream:
        """Emit the events of a window as one event, whose `field` is their list. Arguments and errors as of `aggregate`."""
        return self._stateful(CollectWindow, trigger, evict, clear_on_trigger, field, window_evict_millis)

    def sort(
        self,
        *fields: str,
        progressive: int | None = None,
        tumbling: Policy | None = None,
        top_n: int | None = None,
        trigger: Policy | None = None,
        flush: bool = False,
        window_evict_millis: int = HOUR,
    ) -> FlowStream:
        """Sort the events of a window by fields, `"v"` or `"v desc"` (rules 5.3). One of the three:

        Args:
            fields: the first counts most. An absent field comes last.
            progressive: a sorted window of so many events that emits on every event.
            tumbling: emits all its events, sorted, when this policy says so, and begins again.
            top_n: emits the first so many events in that order when `trigger` says so.
            trigger: for `top_n`.
            flush: for `top_n`: begin again after it was emitted.
            window_evict_millis: as of `aggregate`.

        Raises:
            FlowError: if the fields, the way or the trigger are missing.
        """
        by = tuple(self._sort_key(field) for field in self._names("sort", fields))
        modes = {"progressive": progressive, "tumbling": tumbling, "top_n": top_n}
        given = [mode for mode, value in modes.items() if value is not None]
        size = progressive if progressive is not None else top_n
        if by and given == ["tumbling"]:
            if trigger is not None and tumbling is not trigger:
                hint = "tumbling=Policy.count(n), without trigger"
                self._refuse("Sort operator: tumbling takes its policy itself", hint)
            trigger = tumbling
        return self._stateful(SortWindow, by, " and ".join(given), size, trigger, flush, window_evict_millis)

    def switch(
        self,
        open: Policy | None = None,
        evict: Policy | None = None,
        close: Policy | None = None,
        window_evict_millis: int = HOUR,
    ) -> FlowStream:
        """Let events pass until `open` says stop, then none until `close` says go on (the original's stop gate, rules 5.4).

        Args:
            open: when to stop.
            evict: which events leave the window that `open` looks at.
            close: when to go on.
            window_evict_millis: a key without an event for so long (ms), and for longer than its own times, begins again.
        """
        return self._stateful(SwitchWindow, open, evict, close, window_evict_millis)

    def join(self, left: str = "", right: str = "", evict: Policy | None = None) -> FlowStream:
        """Join each event of `right` with the stored events of `left` (rules 4): both streams lead to this one.

        Args:
            left: the stream whose events are stored.
            right: the stream whose events are joined with them. Both send here with `to` or `split`; this stream's own
                name stands for its own source.
            evict: which stored events leave.
        """
        return self._stateful(JoinWindow, left, right, evict)

    # Where events go

    def split(
        self, *, default: Any = None, paths: Mapping[str, Any] | None = None, all: str | Sequence[str] | None = ()
    ) -> FlowStream:
        """Send each event along every path whose criteria hold (rules 4, split).

        Args:
            default: which events go on along this stream; None: none do.
            paths: criteria by stream.
            all: streams that get every event.

        Raises:
            FlowError: without a path, or for a path without criteria or stream.
        """
        try:
            given = dict(paths or {})
        except (TypeError, ValueError):
            self._refuse(f"split takes its paths by stream; got {paths!r}", hint="split(paths={stream: criteria})")
        if any(criteria is None or not stream for stream, criteria in given.items()):
            self._refuse(
                "Each path in the split operator must have both a non-null filter and destination stream name."
            )
        every = self._names("split", () if all is None else (all,))
        if not given and not every and default is None:
            self._refuse("Split operator needs at least one path", hint="split(paths={stream: criteria})")
        pairs = tuple((checked_name("stream", to), self._criteria("split", criteria)) for to, criteria in given.items())
        first = None if default is None else self._criteria("split", default)
        targets = tuple(checked_name("stream", name) for name in every)
        return self._add(ops.Split(default=first, paths=pairs, all=targets, at=self._flow._here()))

    def to(self, *streams: str) -> FlowStream:
        """Send what has come so far to other streams, which may be defined later, and go on."""
        targets = tuple(checked_name("stream", name) for name in self._names("to", streams))
        if not targets:
            self._refuse(f"You must specify at least one output. Offending stream: {self.name}", hint="to(stream)")
        return self._add(ops.To(streams=targets, at=self._flow._here()))

    def output(self) -> FlowStream:
        """Make what has come so far the stream's standard output, under the stream's name, and go on.

        Raises:
            FlowError: if the stream has one.
        """
        self._flow._claim_result(self.name, "the standard output of this stream", self._refuse)
        return self._add(ops.Output(at=self._flow._here()))

    def persist(self, table: str) -> FlowStream:
        """Append what has come so far to a table of the lake, and go on.

        Raises:
            FlowError: if another operation writes the table.
        """
        self._flow._claim_result(checked_name("table", table), "this table", self._refuse)
        return self._add(ops.Persist(table=table, at=self._flow._here()))

    def gate(self, *checks: Any, name: str | None = None) -> FlowStream:
        """Put data checks here: `gate(warn(...), drop(...), fail(...), name=...)` or `gate(Gate(...))`, as in a topology."""
        from pipelines.quality import Gate

        gate = Gate.of(checks, name, self._flow._gates)
        self._flow._claim_gate(gate.name, self._refuse)
        return self._add(ops.GateOn(gate=gate, at=self._flow._here()))

    # The rest of the flow

    def stream(self, name: str, source: Any = None, **options: Any) -> FlowStream:
        """Begin the next stream: as `Flow.stream`."""
        return self._flow.stream(name, source, **options)

    def build(self) -> Flow:
        """Return the flow, checked and frozen: as `Flow.build`."""
        return self._flow.build()

    @property
    def name(self) -> str:
        """Return the stream's name."""
        return self._start.name

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields behind the last operation; None if they are not known here."""
        return tuple(self._schema) if self._known and self._schema is not None else None

    def _stateful(self, kind: Callable[..., Any], *parts: Any) -> FlowStream:
        """Add a window operation; what it refuses is an error of this line."""
        try:
            window = kind(*parts)
        except (WindowError, PolicyError) as error:
            self._refuse(error.reason if isinstance(error, WindowError) else str(error), error.hint)
        partitions = [step for step in self._operations if isinstance(step, ops.Partition)]
        if not partitions:  # as the original: one window for everything (rules 2)
            self.partition()
        key = partitions[-1].fields if partitions else ()
        operation = ops.Stateful(operation=window, partition=key, at=self._flow._here())
        if isinstance(window, Grouping):
            where = self._where(operation.at)
            require_fields(where, operation, self._schema if self._known else None)
            if {name.lower() for name in key} & {name.lower() for name in window.outputs}:
                raise ChainOutputsError(f"{where}: {operation.label}", window.outputs, key)
        return self._add(operation)

    def _names(self, operation: str, given: Sequence[Any]) -> list[str]:
        """Return names given one by one or as a list."""
        names: list[str] = []
        for item in given:
            names += [item] if isinstance(item, str) or not isinstance(item, Iterable) else item
        if wrong := [name for name in names if not isinstance(name, str)]:
            self._refuse(f"{operation} takes names; got {wrong[0]!r}")
        return names

    def _sort_key(self, text: str) -> tuple[str, bool]:
        """Return `"v"`, `"v asc"` or `"v desc"` as (field, descending)."""
        field, *order = text.split() or ("", text)
        if not field or [word.lower() for word in order] not in ([], ["asc"], ["desc"]):
            problem = f'Sort operator needs at least one field name to sort by; {text!r} is not "field" or "field desc"'
            self._refuse(problem)
        return field, bool(order) and order[0].lower() == "desc"

    def _criteria(self, operation: str, given: Any) -> Criteria:
        return as_criteria(operation, given, self.fields)

    def _add(self, operation: ops.Operation) -> FlowStream:
        self._flow._refuse_if_built(self.name)
        if self._known:
            require_fields(self._where(operation.at), operation, self._schema)
            self._schema = after(operation, self._schema, self._sides)
        elif isinstance(operation, ops.Each | ops.Compute) and operation.schema:
            self._known, self._schema = True, dict(operation.schema)
        self._sides = sides_behind(operation, self._sides)
        self._operations.append(operation)
        for path, target in enumerate(operation.routes):
            feed = Feed(self.name, len(self._operations) - 1, path)
            self._flow._sent.append(Sent(target, feed, self._known, self._schema))
        return self

    def _where(self, at: CodeLocation) -> str:
        return f'flow "{self._flow.name}", stream "{self.name}", at {at}'

    def _refuse(self, problem: str, hint: str = "") -> NoReturn:
        raise FlowError(self._flow.name, problem, stream=self.name, at=self._flow._here(), hint=hint)


def _made(operation: str, schema: str) -> tuple[tuple[str, str], ...]:
    """Return the fields that an operation makes, with their types. None has the name of one of the engine's."""
    fields = parse_ddl(schema)
    added(operation, [name for name, _ in fields], ())
    return fields
