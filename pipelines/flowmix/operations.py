"""The operations of a stream: what the user said, as frozen data. No behaviour here; the engines run them.

An event carries a clock (ms) and an order (a text) beside its fields. Events are taken in the order of (clock, order);
the functions at the end say how an order is made, so that every engine makes the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.graph.events import nth
from pipelines.graph.nodes import CodeLocation

if TYPE_CHECKING:
    from pipelines.flowmix.criteria import Criteria


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One step of a stream; `at` is the user's line."""

    at: CodeLocation = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        """Return a short text for drawings and messages."""
        return type(self).__name__.lower()

    @property
    def named(self) -> tuple[str, ...]:
        """Return the fields of the stream that it names."""
        return ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the SQL texts over the stream's fields that it holds."""
        return ()

    @property
    def routes(self) -> tuple[str, ...]:
        """Return the streams that it sends to, by their place (the path's number); one may be there twice."""
        return ()


@dataclass(frozen=True, kw_only=True)
class _OfFields(Operation):
    fields: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{super().label} {', '.join(self.fields)}".strip()

    @property
    def named(self) -> tuple[str, ...]:
        return self.fields


@dataclass(frozen=True, kw_only=True)
class Select(_OfFields):
    """Keeps id, timestamp and these fields; an event that has none of them goes no further (Flowmix rules 4)."""


@dataclass(frozen=True, kw_only=True)
class Filter(Operation):
    """Keeps the events for which the criteria hold."""

    criteria: Criteria

    @property
    def label(self) -> str:
        return f"filter {self.criteria}"

    @property
    def named(self) -> tuple[str, ...]:
        return self.criteria.fields

    @property
    def texts(self) -> tuple[str, ...]:
        return self.criteria.texts


@dataclass(frozen=True, kw_only=True)
class Each(Operation):
    """Replaces each event by what `function(event)` gives: nothing, one event (or dict), or a list of them.

    `schema` holds the fields and Spark SQL types of what it gives; empty: not declared, so anything may be named after it.
    """

    function: Any
    schema: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        return f"each {getattr(self.function, '__name__', 'function')}"


@dataclass(frozen=True, kw_only=True)
class Compute(Operation):
    """Keeps id and timestamp; the fields are SQL expressions over those before. An event that has none goes no further.

    Attributes:
        outputs: per field its name, its Spark SQL type, and the expression.
        reads: the fields that the expressions name.
    """

    outputs: tuple[tuple[str, str, str], ...]
    reads: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"compute {', '.join(name for name, _, _ in self.outputs)}"

    @property
    def named(self) -> tuple[str, ...]:
        return self.reads

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for _, _, text in self.outputs)

    @property
    def schema(self) -> dict[str, str]:
        """Return the fields with their types."""
        return {name: kind for name, kind, _ in self.outputs}


@dataclass(frozen=True, kw_only=True)
class Partition(_OfFields):
    """The fields whose values are the key of every stateful operation that follows; none: one window for everything."""


@dataclass(frozen=True, kw_only=True)
class Stateful(Operation):
    """A window operation (one of `pipelines.windows.operations`), a window per value of the `partition` fields."""

    operation: Any
    partition: tuple[str, ...]

    @property
    def label(self) -> str:
        return str(self.operation.label)

    @property
    def named(self) -> tuple[str, ...]:
        return (*self.partition, *self.operation.inputs)


@dataclass(frozen=True, kw_only=True)
class Split(Operation):
    """Sends each event along every path whose criteria hold, and along this stream if `default` holds.

    Without `default` nothing goes on along this stream. `all` are streams that get every event.
    """

    default: Criteria | None
    paths: tuple[tuple[str, Criteria], ...]
    all: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"split to {', '.join(self.routes)}"

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for criteria in self._given for name in criteria.fields))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for criteria in self._given for text in criteria.texts)

    @property
    def _given(self) -> list[Criteria]:
        return [criteria for _, criteria in self.paths] + ([self.default] if self.default else [])

    @property
    def routes(self) -> tuple[str, ...]:
        return (*self.all, *(stream for stream, _ in self.paths))


@dataclass(frozen=True, kw_only=True)
class To(Operation):
    """Sends what has come so far to other streams, and goes on."""

    streams: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"to {', '.join(self.streams)}"

    @property
    def routes(self) -> tuple[str, ...]:
        return self.streams


@dataclass(frozen=True, kw_only=True)
class Persist(Operation):
    """Appends the events to a table of the lake, and goes on."""

    table: str

    @property
    def label(self) -> str:
        return f"persist {self.table}"


@dataclass(frozen=True, kw_only=True)
class Output(Operation):
    """The stream's standard output: what has come so far is the stream's result; and goes on."""


@dataclass(frozen=True, kw_only=True)
class GateOn(Operation):
    """Data checks (a `pipelines.quality.Gate`) on the events that pass."""

    gate: Any

    @property
    def label(self) -> str:
        return f"gate {self.gate.name}"

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(self.gate.fields)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.gate.texts)


EXITS = (To, Split, Persist, Output)
"""Where events leave a stream."""


def routes_of(operations: tuple[Operation, ...]) -> Iterator[tuple[int, int, str]]:
    """List where a stream sends to, as (index of the operation, number of the path, target)."""
    for index, operation in enumerate(operations):
        for path, target in enumerate(operation.routes):
            yield index, path, target


def source_order(stream: int, number: int) -> str:
    """Return the order of a source's event: by the stream's place in the flow, then by its number in the source, both from 0."""
    return f"{stream:03d}.{number:012d}"


def several_order(order: str, number: int) -> str:
    """Return the order of the n-th event (from 0) that `each` made of one event, where it gave a list."""
    return nth(order, number)


def sent_order(order: str, stream: int, operation: int, path: int) -> str:
    """Return the order of an event in the stream that it was sent to.

    One event may reach a stream along several ways at one clock: the sender that the flow defines first comes first.

    Args:
        order: in the stream that sends.
        stream: the sending stream's place in the flow.
        operation: the index of its `to` or `split`.
        path: the number of the path (`Operation.routes`).
    """
    return f"{order}/{stream:03d}.{operation:03d}.{path:03d}"
