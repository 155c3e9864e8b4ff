"""The fields of a stream before and after each operation, as far as the definition says it: without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.ddl import ENGINE_COLUMNS, MOST_DIGITS
from pipelines.errors import AggregationError, FieldError
from pipelines.flowmix.definition import Feed, Schema, StreamDefinition
from pipelines.flowmix.operations import Compute, Each, GateOn, Operation, Select, Stateful
from pipelines.graph.expressions import fields_of_sql
from pipelines.graph.types import digits_of, nullable, same_type
from pipelines.windows.operations import BOUNDS, CollectWindow, Grouping, JoinWindow, SpanWindow

if TYPE_CHECKING:
    from pipelines.flowmix.flow import Flow

MEETING = 'give it one type, or two names, before the streams meet: compute({"v bigint": "v", ...})'
NOTHING_SELECTED = "Selector operator needs to select at least 1 field"
_WIDTHS = ("tinyint", "smallint", "int", "bigint", "float", "double")
_TEXTS = ("string", "varchar", "char")


@dataclass(frozen=True)
class Sent:
    """The events that come into the stream `target` along one way: from another stream, or from its own source (`feed` is None).

    `known` says whether the schema is: a stream whose feeders stand below it does not know its fields yet.
    """

    target: str
    feed: Feed | None
    known: bool
    schema: Schema | None

    @property
    def way(self) -> Way:
        """Return the way. A stream's own source counts as the stream."""
        return (self.feed.stream if self.feed else self.target), self.schema


Way = tuple[str, Schema | None]
"""The stream that sends, and the fields of what it sends."""


def by_stream(ways: Iterable[Way]) -> dict[str, Schema | None]:
    """Collect what each stream sends over all its ways."""
    groups: dict[str, list[Schema | None]] = {}
    for origin, schema in ways:
        groups.setdefault(origin, []).append(schema)
    return {name: union(schemas) for name, schemas in groups.items()}


def require_fields(where: str, operation: Operation, schema: Schema | None) -> None:
    """Check that every field that an operation names is there, and no other is meant; an open stream (None) may have any."""
    if schema is None:
        return
    for text in operation.texts:
        fields_of_sql(f"{where}: {operation.label.split()[0]}", text, schema)
    for name in operation.named:
        # Checks alone look into structs; SQL names the struct.
        struct = name.split(".")[0].strip("`")
        if name not in schema and not (isinstance(operation, GateOn) and struct in schema):
            hint = (
                f'make it a field of the event: compute({{"price bigint": "{name}", ...}})' if struct in schema else ""
            )
            raise FieldError(f"{where}: {operation.label.split()[0]}", name, tuple(schema), hint=hint)


def selected(names: Iterable[str], schema: Schema | None) -> tuple[str, ...]:
    """Return the fields to select: `id` and `timestamp` stay by themselves, so they count only where fields have the names."""
    return tuple(name for name in names if name not in ("id", "timestamp") or name in (schema or {}))


def after(operation: Operation, schema: Schema | None, sides: Mapping[str, Schema | None]) -> Schema | None:
    """Return the fields behind an operation.

    Args:
        operation: one of a stream.
        schema: the fields before it; None: open.
        sides: what each feeding stream sent of the fields before it, for joins; a stream that is not there: all of them.
    """
    if isinstance(operation, Select):
        known = schema or {}
        return {name: known.get(name) for name in operation.fields}
    if isinstance(operation, Each):
        return dict(operation.schema) if operation.schema else None
    if isinstance(operation, Compute):
        return {**operation.schema}
    if not isinstance(operation, Stateful):
        return schema
    if isinstance(operation.operation, Grouping):
        known = schema or {}
        return {**{name: known.get(name) for name in operation.partition}, **outputs_of(operation.operation, schema)}
    if isinstance(operation.operation, JoinWindow) and schema is not None:
        return joined(operation, schema, sides)
    return schema


def outputs_of(window: Any, schema: Schema | None) -> dict[str, str | None]:
    """Return the outputs of an operation that makes new events, with their types, in order."""
    if isinstance(window, CollectWindow):
        return {window.field: _array_of_struct(schema)}
    bounds = dict.fromkeys(BOUNDS, "timestamp") if isinstance(window, SpanWindow) else {}
    made = (output for aggregator in window.aggregators for output in aggregator.result_types(schema or {}))
    return {**bounds, **dict(made)}


def sides_behind(operation: Operation, sides: Mapping[str, Schema | None]) -> Mapping[str, Schema | None]:
    """Return what each side has behind an operation. What says the fields that it makes, makes them of either side's events.

    What an `each` without a schema makes is unknown: the fields stay those that came.
    """
    says = isinstance(operation, Compute) or (isinstance(operation, Each) and bool(operation.schema))
    return {} if says else sides


def joined(operation: Stateful, schema: Schema, sides: Mapping[str, Schema | None]) -> Schema:
    """Return the fields of two joined events: a field that both sides have may get several values, so it becomes an array.

    The key fields do not: they are equal on both sides.
    """
    left, right = (sides.get(side, schema) or {} for side in (operation.operation.left, operation.operation.right))
    both = set(left) & set(right) - set(operation.partition)
    return {name: several(kind) if name in both else kind for name, kind in schema.items()}


def several(kind: str | None) -> str | None:
    """Return the type of a field of several values."""
    return kind if kind is None or kind.startswith("array<") else f"array<{kind}>"


def several_fields(flow: Flow, stream: StreamDefinition, index: int) -> frozenset[str]:
    """Return the fields before operation `index` that are arrays on Spark, and hold one value where the joined events had one.

    A field that a schema declares as an array is none of them: its values are as they were given.
    """
    return on_spark(flow, stream, index)[1]


def on_spark(flow: Flow, stream: StreamDefinition, index: int) -> tuple[Schema | None, frozenset[str]]:
    """Return the fields before operation `index` on Spark, and which of them are `several_fields`.

    There an `each` without a schema gives the fields that it got, where the definition alone leaves open what it gives.
    """
    own = {name: kind for name, kind in stream.source_schema.items() if name not in ENGINE_COLUMNS}
    ways: list[tuple[Way, frozenset[str]]] = [((stream.name, own), frozenset())] if stream.std_input else []
    for feed in stream.feeds:
        sent, several = on_spark(flow, flow.streams[feed.stream], feed.operation)
        ways.append(((feed.stream, sent), several))
    schema = union(sent for (_, sent), _ in ways)
    sides: Mapping[str, Schema | None] = by_stream(way for way, _ in ways)
    fields: frozenset[str] = frozenset().union(*(several for _, several in ways))
    for operation in stream.operations[:index]:
        says = not isinstance(operation, Each) or operation.schema
        try:
            behind = after(operation, schema, sides) if says else schema
        except AggregationError:
            # The function gives a field of another type, which Spark refuses: on the reference engine nobody knows the fields.
            behind = None
        fields = _several_behind(operation, schema, behind, fields)
        schema, sides = behind, sides_behind(operation, sides)
    return schema, fields


def _several_behind(
    operation: Operation, before: Schema | None, after: Schema | None, fields: frozenset[str]
) -> frozenset[str]:
    if isinstance(operation, Compute):
        return frozenset()
    if isinstance(operation, Each):
        return frozenset() if operation.schema else fields
    if isinstance(operation, Select):
        return fields & set(operation.fields)
    if not isinstance(operation, Stateful):
        return fields
    if isinstance(operation.operation, Grouping):
        return fields & set(operation.partition)
    if isinstance(operation.operation, JoinWindow) and before is not None and after is not None:
        return fields | {name for name in after if after[name] != before[name]}
    return fields


def union(schemas: Iterable[Schema | None]) -> Schema | None:
    """Return the fields of a stream into which several lead: a field of one of them is a field of it; one open, all open."""
    fields: dict[str, str | None] = {}
    for schema in schemas:
        if schema is None:
            return None
        for name, kind in schema.items():
            fields[name] = kind if name not in fields else common(fields[name], kind)
    return fields


def conflict(ways: Iterable[Way]) -> str | None:
    """Say which fields of ways that lead into one stream cannot be: no type holds both, or Spark takes two names for one."""
    seen: dict[str, list[tuple[str, str, str | None]]] = {}
    for origin, schema in ways:
        for name, kind in (schema or {}).items():
            there = seen.setdefault(name.lower(), [])
            for other, sender, before in there:
                if name != other:
                    where = f'"{other}" of stream "{sender}" and "{name}" of stream "{origin}"'
                    return f"fields {where} differ in capitals alone"
                if before and kind and common(before, kind) is None:
                    return f'field "{name}" is {before} of stream "{sender}" and {kind} of stream "{origin}"'
            there.append((name, origin, kind))
    return None


def common(kind: str | None, other: str | None) -> str | None:
    """Return the type that holds the values of both, None where there is none, or only Spark can tell."""
    if kind is None or other is None:
        return None
    if same_type(kind, other):
        return nullable(kind)
    if kind in _WIDTHS and other in _WIDTHS:
        return _WIDTHS[max(_WIDTHS.index(kind), _WIDTHS.index(other))]
    if "array<" in (kind[:6], other[:6]):
        inner = common(_item(kind), _item(other))
        return f"array<{inner}>" if inner else None
    if kind.startswith(_TEXTS) and other.startswith(_TEXTS):
        return "string"
    return _decimal(kind, other)


def _decimal(kind: str, other: str) -> str | None:
    """Return the type of decimals beside other numbers; None where no decimal has enough digits."""
    digits = [known for known in (digits_of(kind), digits_of(other)) if known]
    if len(digits) < 2:
        return "double" if digits and {kind, other} & {"float", "double"} else None
    scale = max(own for _, own in digits)
    whole = max(precision - own for precision, own in digits)
    return f"decimal({whole + scale}, {scale})" if whole + scale <= MOST_DIGITS else None


def _item(kind: str) -> str:
    return kind[6:-1] if kind.startswith("array<") else kind


def _array_of_struct(schema: Schema | None) -> str | None:
    if not schema or not all(schema.values()):
        return None
    return f"array<struct<{', '.join(f'`{name}`: {kind}' for name, kind in schema.items())}>>"
