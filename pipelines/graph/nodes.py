"""The nodes of a graph: each class says all that the graph must know of an operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pipelines.aggregators import ColumnAggregator
from pipelines.graph import events, lineage, traits, types
from pipelines.graph.fields import distinct
from pipelines.graph.lineage import Lineage, Origin
from pipelines.graph.location import CodeLocation as CodeLocation
from pipelines.graph.types import Types

if TYPE_CHECKING:
    from pipelines.graph.expansion import Growing

T = TypeVar("T")
N = TypeVar("N", bound="Node")

QUERY_SPOUT: Final = "query spout"
STATIC_STATE: Final = "static state"
"""Two kinds of operations that drawings tell from the others."""


@dataclass(frozen=True)
class Aggregation:
    """One aggregator of an aggregate or persistent aggregate: its input fields and the fields it makes.

    `types` are the Spark SQL types of the outputs; of an aggregator over columns, whose types Spark finds, as the user said
    them. They are empty for one whose outputs have the types of its inputs in order (FirstN).
    """

    aggregator: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        """The one output; only a general `Aggregator` has several."""
        return self.outputs[0]


@dataclass(frozen=True, kw_only=True)
class Node(ABC):
    """An operation. `parents` are node ids in order; `fields` are the output fields; ids grow in topological order.

    `hint` is the parallelism that the user asked for, `resources` what the user said it needs, by kind.

    Nothing about an operation has a default. Each class says its traits, also one that is derived from another:

    - `by_tuple`: whether it works on each tuple of its one parent by itself, and leaves it in its task;
    - `asks`: what it asks of its parents' frames (`pipelines.graph.traits`);
    - `alone`: in words why a tuple must not come to it alone, without its batch (REPLAYABLE: it may).

    And each says its `label`, its operations in the plan, and where its fields and their types come from; helpers such as
    `as_one` and `same_origins` follow below. `check_all_known` finds what an evaluator of nodes has forgotten.
    """

    alone: ClassVar[str]
    by_tuple: ClassVar[bool]
    _asks: ClassVar[tuple[traits.AsksOf]]

    def __init_subclass__(cls, *, by_tuple: bool, asks: traits.AsksOf, alone: str) -> None:
        super().__init_subclass__()
        # In a tuple, or a function would become a method.
        cls._asks, cls.alone, cls.by_tuple = (asks,), alone, by_tuple

    id: int
    parents: tuple[int, ...]
    fields: tuple[str, ...]
    name: str | None = None
    hint: int | None = None
    resources: tuple[tuple[str, float], ...] = ()
    at: CodeLocation = field(compare=False)

    @property
    @abstractmethod
    def label(self) -> str:
        """A short text for drawings and messages."""

    @abstractmethod
    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        """Add its operations to the plan and return the one whose tuples are its output.

        Args:
            above: the operations whose tuples are the parents' output.
        """

    @abstractmethod
    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        """Return the lineage of its fields, from that of each parent's fields (the rules: `lineage.lineage`)."""

    @abstractmethod
    def field_types(self, above: tuple[Types, ...]) -> Types:
        """Return the Spark SQL types of its fields, from those of each parent's; None where only Spark can tell."""

    @property
    def said(self) -> Types:
        """Return the types that the user has written for outputs whose types come from elsewhere: Spark, or a state."""
        return {}

    @property
    def asks(self) -> traits.Asks:
        """Return what it asks of its parents' frames beside their fields."""
        (asks,) = self._asks
        return asks if isinstance(asks, traits.Asks) else asks(self)


def _said_of(aggregations: Iterable[Aggregation]) -> dict[str, str]:
    """Return what was said of the outputs of aggregators over columns."""
    return {a.output: a.types[0] for a in aggregations if a.types and isinstance(a.aggregator, ColumnAggregator)}


def as_one(node: Node, growing: Growing, above: tuple[int, ...]) -> int:
    """Expand a node that is one operation of the plan."""
    return growing.last(node, type(node).__name__.removesuffix("Node").lower(), above)


def same_origins(node: Node, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
    """Return the lineage of fields that are as they were."""
    return {name: above[0][name] for name in node.fields}


def same_types(node: Node, above: tuple[Types, ...]) -> Types:
    """Return the types of fields that are as they were, as far as the parent has them."""
    return {name: above[0].get(name) for name in node.fields}


def classes() -> tuple[type[Node], ...]:
    """Return all classes of nodes."""
    kinds: list[type[Node]] = []
    waiting = Node.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        kinds += [kind] if kind.__module__ == __name__ else []
    return tuple(kinds)


def check_all_known(by: str, known: Iterable[type[Node]], elsewhere: Iterable[type[Node]]) -> None:
    """Check, when an evaluator is imported, that it has a case for each class of nodes.

    Args:
        by: the evaluator, for the message.
        known: the classes that it evaluates. A derived class has a case of its own.
        elsewhere: those that it leaves to others.
    """
    forgotten = sorted(kind.__name__ for kind in set(classes()) - {*known, *elsewhere})
    if forgotten:
        raise TypeError(f"{by} does not know {', '.join(forgotten)}")


@dataclass(frozen=True, kw_only=True)
class SpoutNode(Node, by_tuple=False, asks=traits.NOTHING, alone=traits.REPLAYABLE):
    """A source. `slice_by` is SQL text over the source's fields that gives a row's slice, or None."""

    stream: str
    source: Any
    slice_by: str | None = None

    @property
    def label(self) -> str:
        return self.stream

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        most = self.source.max_parallelism
        return growing.last(self, "spout", above, spout=True, max_parallelism=most)

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        """Return its own fields; what a source adds to them (an event's id and time) comes from the fields that it names."""
        added: Mapping[str, Sequence[str]] = self.source.lineage
        return {name: tuple((self.stream, origin) for origin in added.get(name, (name,))) for name in self.fields}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        known = types.of_ddl(self.source.schema)
        return {name: known.get(name) for name in self.fields}


@dataclass(frozen=True, kw_only=True)
class QuerySpoutNode(
    Node, by_tuple=False, asks=traits.NOTHING, alone="is the entrance of a query, which has been answered"
):
    """The spout of a query stream: the arguments of a query, `schema` as DDL."""

    stream: str
    schema: str

    @property
    def label(self) -> str:
        return f"query {self.stream}"

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        """Let the spout give the arguments and where to send the answer; the stream goes on with the arguments alone."""
        spout = growing.add(self, QUERY_SPOUT, above, self.label, spout=True)
        return growing.add(self, "arguments", (spout,), hint=self.hint, resources=self.resources)

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        return {name: ((self.stream, name),) for name in self.fields}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return types.of_ddl(self.schema)


@dataclass(frozen=True, kw_only=True)
class EachNode(Node, by_tuple=True, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Appends `outputs` = function(inputs): no row drops the tuple, n rows repeat it (Trident rules 1.2, each)."""

    inputs: tuple[str, ...]
    function: Any
    outputs: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"each {self.function} -> {', '.join(self.outputs)}"

    expand = as_one

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        inputs = {name: above[0][name] for name in self.inputs}
        return {**above[0], **lineage.made(self.function, inputs, self.outputs)}

    @property
    def said(self) -> Types:
        return dict(zip(self.outputs, getattr(self.function, "said", ()), strict=False))

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return {**above[0], **types.named(self.outputs, getattr(self.function, "types", ())), **self.said}


@dataclass(frozen=True, kw_only=True)
class FilterNode(Node, by_tuple=True, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Keeps the tuples for which predicate(inputs) is true."""

    inputs: tuple[str, ...]
    predicate: Any

    @property
    def label(self) -> str:
        return f"filter {self.predicate}"

    expand, field_origins, field_types = as_one, same_origins, same_types


@dataclass(frozen=True, kw_only=True)
class MapNode(Node, by_tuple=True, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Replaces each tuple by function(all fields): one row, or with `flat` any number."""

    function: Any
    flat: bool = False

    @property
    def label(self) -> str:
        return f"{'flat_map' if self.flat else 'map'} {self.function}"

    expand = as_one

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        return lineage.made(self.function, above[0], self.fields)

    @property
    def said(self) -> Types:
        return dict(zip(self.fields, getattr(self.function, "said", ()), strict=False))

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return {**types.named(self.fields, getattr(self.function, "types", ())), **self.said}


@dataclass(frozen=True, kw_only=True)
class PeekNode(Node, by_tuple=True, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Shows each tuple to a consumer and passes it on unchanged."""

    consumer: Any

    label = "peek"

    expand, field_origins, field_types = as_one, same_origins, same_types


@dataclass(frozen=True, kw_only=True)
class ProjectNode(Node, by_tuple=True, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Keeps exactly `fields`, in their order."""

    @property
    def label(self) -> str:
        return f"project {', '.join(self.fields)}"

    expand, field_origins, field_types = as_one, same_origins, same_types


SHUFFLE, LOCAL_OR_SHUFFLE, FIELDS, GLOBAL, BATCH_GLOBAL, BROADCAST, IDENTITY, CUSTOM, DIRECT = (
    "shuffle",
    "local_or_shuffle",
    "partition_by",
    "global_",
    "batch_global",
    "broadcast",
    "identity_partition",
    "partition",
    "direct",
)
"""How a repartition chooses the task of a tuple (Trident rules 1.5); CUSTOM asks a function, DIRECT reads a column."""


@dataclass(frozen=True, kw_only=True)
class PartitionNode(Node, by_tuple=False, asks=traits.of_repartition, alone=traits.REPLAYABLE):
    """Gives each tuple its task (partition): `kind` says how, over the fields `by` or by `function`."""

    kind: str
    by: tuple[str, ...] = ()
    function: Any = None

    @property
    def label(self) -> str:
        return f"{self.kind} {', '.join(self.by)}".strip()

    field_origins, field_types = same_origins, same_types

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        """Add the user's repartition. A hint or resources on it count nowhere: it is in no bolt (rule 3.9)."""
        return growing.repartition(self, above[0], self.kind, self.by, self.function)


@dataclass(frozen=True, kw_only=True)
class AggregateNode(Node, by_tuple=False, asks=traits.of_aggregate, alone="aggregates each batch"):
    """Aggregates a batch: `group` fields, then the fields of each aggregation. Nothing crosses batches.

    With `partitioned` each partition of the batch by itself (partition_aggregate), else the whole batch. Several
    aggregations are a chain: its rows are the cross product of what each gave, the last varying fastest (rules 1.4).
    """

    group: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]
    partitioned: bool = False

    @property
    def label(self) -> str:
        by = f" by {', '.join(self.group)}" if self.group else ""
        where = " a partition" if self.partitioned else ""
        return f"{', '.join(str(a.aggregator) for a in self.aggregations)}{by}{where}"

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        if not self.partitioned:
            return growing.last(self, "aggregate", (growing.dealt(self, above[0], BATCH_GLOBAL),))
        return growing.last(self, "aggregate", (growing.initialised(self, above[0]),))

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        keys = {name: above[0][name] for name in self.group}
        return {**keys, **lineage.of_aggregations(self.aggregations, above[0])}

    @property
    def said(self) -> Types:
        return _said_of(self.aggregations)

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return {**{name: above[0].get(name) for name in self.group}, **types.of_aggregations(self.aggregations)}


@dataclass(frozen=True, kw_only=True)
class ExtremeNode(Node, by_tuple=False, asks=traits.IN_TASKS, alone="keeps one tuple of each batch"):
    """Keeps of each partition of a batch the tuple with the least or the largest value; the last one of equals.

    Compared is `field`, where it is not null, or with `comparator(a, b) -> int` its values, or without a field the
    tuples themselves as dicts (Trident rules 1.2, min and max).
    """

    field: str | None
    largest: bool
    comparator: Any = None

    @property
    def label(self) -> str:
        return f"{'max' if self.largest else 'min'} {self.field or 'tuple'} a partition"

    expand, field_origins, field_types = as_one, same_origins, same_types


@dataclass(frozen=True, kw_only=True)
class MergeNode(Node, by_tuple=False, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """The tuples of all parents as one stream; fields are matched by position and named as `fields`."""

    label = "merge"

    expand = as_one

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        columns = zip(*(parent.values() for parent in above), strict=True)
        return {name: lineage.all_of(origins) for name, origins in zip(self.fields, columns, strict=True)}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        """Match the sides by position; where they differ Spark finds a common type."""
        columns = zip(*(parent.values() for parent in above), strict=True)
        return {name: types.common(kinds) for name, kinds in zip(self.fields, columns, strict=True)}


@dataclass(frozen=True)
class JoinSide:
    """One side of a join: its key fields, its other fields, and whether it may be absent (OUTER)."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    outer: bool = False


COMPACT, PRESERVE = "compact", "preserve"


@dataclass(frozen=True, kw_only=True)
class JoinNode(Node, by_tuple=False, asks=traits.NOTHING, alone="joins the tuples of a batch, and theirs is over"):
    """Joins the parents' tuples of one batch on equal keys, null equal to null (Trident rules 8).

    COMPACT: the key fields once, then each side's other fields; PRESERVE: all fields of each side in their own order.
    `fields` names them by position.
    """

    sides: tuple[JoinSide, ...]
    mode: str = COMPACT

    @property
    def label(self) -> str:
        return "join on " + " = ".join(", ".join(side.keys) for side in self.sides)

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        return growing.last(self, "join", growing.sides(self, above, tuple(side.keys for side in self.sides)))

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        return dict(zip(self.fields, self._joined(above, lineage.all_of), strict=True))

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return dict(zip(self.fields, self._joined(above, types.common), strict=True))

    def _joined(self, above: Sequence[Mapping[str, T]], of_key: Callable[[Iterable[T]], T]) -> list[T]:
        """Return what is known of each column, by position; `of_key` makes one of what the sides know of a key."""
        if self.mode == PRESERVE:
            return [known for parent in above for known in parent.values()]
        sides = list(zip(above, self.sides, strict=True))
        keys = zip(*([parent[key] for key in side.keys] for parent, side in sides), strict=True)
        return [of_key(known) for known in keys] + [parent[name] for parent, side in sides for name in side.values]


@dataclass(frozen=True, kw_only=True)
class MultiReduceNode(Node, by_tuple=False, asks=traits.of_reduce, alone="reduces the tuples of a batch together"):
    """Reduces the tuples of several parents together, per partition and batch, or per group of it.

    `inputs` are the fields of each parent that the reducer sees, `groups` each parent's group fields (all empty: not
    grouped), `types` the Spark SQL types of the outputs, which are all of `fields`: a group's fields come out only if the
    reducer emits them (the caller names the output fields, Trident rules 1.1).
    """

    reducer: Any
    inputs: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"multi_reduce {self.reducer}"

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        return growing.last(self, "multi_reduce", growing.sides(self, above, self.groups))

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        """Take fields before the outputs from the groups, by position; a declared lineage means an input of any stream."""
        groups = self.groups or ((),) * len(above)
        inputs: dict[str, tuple[Origin, ...]] = {}
        for parent, group, names in zip(above, groups, self.inputs, strict=True):
            for name in (*group, *names):
                inputs[name] = distinct((*inputs.get(name, ()), *parent[name]))
        by_place = zip(
            *([parent[name] for name in group] for parent, group in zip(above, groups, strict=True)), strict=True
        )
        leading = self.fields[: len(self.fields) - len(self.outputs)]
        keys = {name: lineage.all_of(origins) for name, origins in zip(leading, by_place, strict=False)}
        return {**keys, **lineage.made(self.reducer, inputs, self.outputs)}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return {**dict.fromkeys(self.fields), **types.named(self.outputs, self.types)}


@dataclass(frozen=True, kw_only=True)
class GateNode(Node, by_tuple=True, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Data checks on the rows that pass."""

    gate: Any

    @property
    def label(self) -> str:
        return f"gate {self.gate.name}"

    expand, field_origins, field_types = as_one, same_origins, same_types


@dataclass(frozen=True, kw_only=True)
class PersistNode(Node, by_tuple=False, asks=traits.of_persist, alone=traits.REPLAYABLE):
    """Commits into a state, one Delta transaction a batch.

    With `aggregations` it is a persistent aggregate (keys = `group`), without it the tuples themselves are kept
    (partition persist of `inputs`). `fields` are the fields that a reader of the state sees. With an `updater` (a
    user's StateUpdater) the tuples' `inputs` go to it, and what it emits are `outputs`, of the Spark SQL `types`.
    """

    state: Any
    group: tuple[str, ...] = ()
    aggregations: tuple[Aggregation, ...] = ()
    inputs: tuple[str, ...] = ()
    updater: Any = None
    outputs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"persist {self.state.name}"

    @property
    def values(self) -> tuple[str, ...]:
        """The fields that are not keys."""
        return tuple(name for name in self.fields if name not in self.group)

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        """Add an aggregate that is then persisted for combiners; for a reducer the state does it all."""
        parent = growing.aggregated(self, above[0]) if self.aggregations else above[0]
        wanted = getattr(self.state, "partitions", None)
        return growing.last(self, "persist", (parent,), writes=self.state.name, partitions=wanted)

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        """Return the state's fields; with an updater what it emits as well, for a stream of new values."""
        if self.updater is not None:
            inputs = {name: above[0][name] for name in self.inputs}
            return lineage.made(self.updater, inputs, distinct((*self.fields, *self.outputs)))
        outputs = lineage.of_aggregations(self.aggregations, above[0])
        return {name: outputs[name] if name in outputs else above[0][name] for name in self.fields}

    @property
    def said(self) -> Types:
        return _said_of(self._shown)

    @property
    def _shown(self) -> Iterable[Aggregation]:
        """The aggregations whose values a table has as a reader sees them: what is not finished has a type of its own there."""
        return (a for a in self.aggregations if getattr(a.aggregator, "shown_as_stored", True))

    def field_types(self, above: tuple[Types, ...]) -> Types:
        if self.updater is not None:
            columns = dict((*self.updater.key_columns, *self.updater.value_columns))
            return {**types.named(self.outputs, self.types), **columns}
        made = dict.fromkeys(a.output for a in self.aggregations) | types.of_aggregations(self._shown)
        return {name: made[name] if name in made else above[0].get(name) for name in self.fields}


@dataclass(frozen=True, kw_only=True)
class OnTimeNode(
    Node, by_tuple=True, asks=traits.PASSES_ON, alone="asks whether an event is in time, and its time is over"
):
    """Keeps the events that the watermark of a channel has not passed; with `late` the others (architecture.md#event-flows)."""

    channel: str
    late: bool = False

    @property
    def label(self) -> str:
        return "late" if self.late else "on time"

    expand, field_origins, field_types = as_one, same_origins, same_types


EVENTS, LATEST_ROW, NOW = "events", "latest row", "now"
"""What a channel's clock goes by: the events that its query reads, the rows that it takes, or the time of the batch."""


@dataclass(frozen=True, kw_only=True)
class EnterWindowNode(
    Node, by_tuple=False, asks=traits.IN_TASKS, alone="leads to a window, and the windows have moved on"
):
    """Makes tuples into events for a window of their task: their `inputs`, with a place, and a time by SQL or of arrival."""

    inputs: tuple[str, ...]
    timestamp: str | None = None

    label = "enter window"

    expand, field_types = as_one, same_types

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        """Return no origin for the engine's own fields."""
        return {name: above[0].get(name, ()) for name in self.fields}


@dataclass(frozen=True, kw_only=True)
class ChannelNode(
    PersistNode,
    by_tuple=False,
    asks=traits.of_persist,
    alone="leads to another query of the flow, whose clock has moved on",
):
    """Commits events into a channel, the Delta table that leads to another query, with a watermark row.

    `delay` is how far, in ms, the watermark stays behind the latest event of a source. `clock` says what the clock goes by.
    """

    delay: int = 0
    clock: str = EVENTS

    @property
    def label(self) -> str:
        return f"channel {self.state.name}"


@dataclass(frozen=True, kw_only=True)
class LatePersistNode(PersistNode, by_tuple=False, asks=traits.of_persist, alone="keeps late events"):
    """Keeps the events that come behind the watermark. Most batches have none, and then nothing is worked out for it."""

    @property
    def label(self) -> str:
        return f"late {self.state.name}"


@dataclass(frozen=True, kw_only=True)
class ChannelSpoutNode(
    SpoutNode,
    by_tuple=False,
    asks=traits.NOTHING,
    alone="reads what another query of the flow sends, whose clock has moved on",
):
    """Events from channels. `prelude` is the part of the plan that runs in the stream itself, its windows with it.

    The prelude's first node is a SpoutNode of the same source, its last one gives this node's fields; `schema` is their
    DDL.
    """

    prelude: Any = None
    schema: str = ""

    @property
    def origins(self) -> tuple[str, ...]:
        """Return whose clocks decide how far it has come: behind windows there is only theirs."""
        last = next(reversed(list(self.prelude))) if self.prelude is not None else None
        return ("",) if last is not None else self.reads

    @property
    def reads(self) -> tuple[str, ...]:
        """The channels."""
        return tuple(self.source.channels)

    @property
    def steps(self) -> tuple[Node, ...]:
        """The operations of the prelude, without its spout."""
        return tuple(node for node in self.prelude or () if node.parents)

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        """Return the channels' columns, followed through the part of the plan that runs in the stream itself."""
        origins: Lineage = {
            name: tuple((read.channel, name) for read in self.source.inputs if name in read.fields)
            for name in self.source.fields
        }
        steps: dict[int, Lineage] = {}
        for node in self.prelude or ():
            parents = tuple(steps[parent] for parent in node.parents)
            origins = steps[node.id] = node.field_origins(parents, self.prelude) if parents else origins
        return {name: origins[name] for name in self.fields}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        known = types.of_ddl(self.schema)
        return {name: known.get(name) for name in self.fields}


@dataclass(frozen=True, kw_only=True)
class WindowNode(Node, by_tuple=False, asks=traits.NOTHING, alone="is a window, and the windows have moved on"):
    """A stateful operation over events or tuples: `operation` is its data, `key` the fields that part its windows.

    `origins` are the inputs whose clocks it waits for; `types` the Spark SQL types of all of `fields`.
    """

    operation: Any
    context: Any
    key: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        by = f" by {', '.join(self.key)}" if self.key else ""
        return f"{self.operation.label}{by}"

    expand = as_one

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        """Keep events that a window lets go as they came. What it makes of several has the time of the last of them."""
        made = lineage.made_by_window(self.operation, above[0])
        if not made:
            return {name: above[0][name] for name in self.fields}
        clock = above[0].get(events.CLOCK, ())
        own = {events.ID: (), events.TIME: clock, events.CLOCK: clock, events.FROM: (), events.ORDER: ()}
        known: Lineage = {**above[0], **own, **made}
        return {name: known[name] for name in self.fields}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return types.named(self.fields, self.types)


@dataclass(frozen=True, kw_only=True)
class BatchWindowNode(
    WindowNode, by_tuple=False, asks=traits.NOTHING, alone="is a window, and the windows have moved on"
):
    """A window of a stream's own source that runs within its batch (docs/adr/0054); other windows read a channel.

    `channel` is the name under which `OnTimeNode` asks for its watermark; `delay` is how far, in ms, that stays behind the
    latest event. `behind` says that it takes what comes of the results of such a window, whose watermark is its own.
    """

    channel: str
    delay: int = 0
    behind: bool = False
    clock: ClassVar[str] = EVENTS


@dataclass(frozen=True, kw_only=True)
class StaticStateNode(Node, by_tuple=False, asks=traits.NOTHING, alone=traits.REPLAYABLE):
    """A state without a stream (new_static_state). `fields` are its columns; no tuple passes.

    `state` is a DeltaState (a table of the lake that something else writes) or a FixedState (rows given in code).
    """

    state: Any
    keys: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"static state {self.state.name}"

    @property
    def values(self) -> tuple[str, ...]:
        """The fields that are not keys."""
        return tuple(name for name in self.fields if name not in self.keys)

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        wanted = getattr(self.state, "partitions", None)
        return growing.last(self, STATIC_STATE, above, writes=self.state.name, partitions=wanted)

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        return {name: ((self.state.name, name),) for name in self.fields}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        known = types.of_ddl(getattr(self.state, "schema", ""))
        return {name: known.get(name) for name in self.fields}


@dataclass(frozen=True, kw_only=True)
class NewValuesNode(Node, by_tuple=False, asks=traits.NOTHING, alone="tells what each batch has made of a state"):
    """The values that a persist (its one parent) has made of a batch: the keys that the batch touched with their new values.

    A persist of the tuples themselves gives the tuples; one with an updater gives what the updater emitted.
    """

    label = "new values"

    field_origins, field_types = same_origins, same_types

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        """Add no operation: it is the stream of what the persist emits. What is asked of it is asked of the persist."""
        return growing.asked_of(above[0], self)


@dataclass(frozen=True, kw_only=True)
class StateQueryNode(Node, by_tuple=False, asks=traits.of_query, alone=traits.REPLAYABLE):
    """Appends `outputs` = function(state, inputs). `group`: the fields of a grouped stream's partitions.

    `types` are the outputs' Spark SQL types for a query function written in Python, and as the user said them for a built-in
    one; `state_node` the PersistNode or StaticStateNode of the same topology, if there is one. With `parted` (all tuples of
    a state, asked behind a broadcast) each task sees the part of the state whose keys' hash is its number, so that together
    they give each tuple once.
    """

    state: str
    state_node: int | None
    inputs: tuple[str, ...]
    function: Any
    outputs: tuple[str, ...]
    types: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    parted: bool = False

    @property
    def label(self) -> str:
        return f"query state {self.state} -> {', '.join(self.outputs)}"

    def expand(self, growing: Growing, above: tuple[int, ...]) -> int:
        parent = growing.repartition(self, above[0], FIELDS, self.group) if self.group else above[0]
        return growing.last(self, "state query", (parent,), reads=self.state)

    def field_origins(self, above: tuple[Lineage, ...], graph: Graph) -> Lineage:
        holder = None if self.state_node is None else graph[self.state_node]
        assert holder is None or isinstance(holder, PersistNode | StaticStateNode)
        if self.function.in_spark:
            columns = {name: ((self.state, self._column(place, holder)),) for place, name in enumerate(self.outputs)}
            return {**above[0], **columns}
        # A state whose table alone knows its fields has no values here.
        values = (holder.values if holder else ()) or self.outputs
        shown = tuple((self.state, name) for name in values)
        inputs = {name: above[0][name] for name in self.inputs}
        return {**above[0], **lineage.made(self.function, inputs, self.outputs, shown)}

    def _column(self, place: int, holder: PersistNode | StaticStateNode | None) -> str:
        """Return the column that an output of a built-in query shows: of its name, else by its place."""
        output = self.outputs[place]
        if holder is None or set(self.outputs) <= set(holder.fields if self.function.shows_keys else holder.values):
            return output
        for fields in (holder.values, holder.fields):
            if len(fields) == len(self.outputs):
                return fields[place]
        return output

    @property
    def said(self) -> Types:
        return dict(zip(self.outputs, self.types, strict=False)) if self.function.in_spark else {}

    def field_types(self, above: tuple[Types, ...]) -> Types:
        return {**above[0], **types.named(self.outputs, self.types)}


class Graph:
    """The nodes of one topology, in the order of their definition (which is a topological order)."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}

    def new(self, kind: type[N], parents: tuple[int, ...] = (), /, *, at: CodeLocation | None = None, **more: Any) -> N:
        """Add a node with the next id; it is of the user's line unless `at` says another."""
        node = kind(id=len(self._nodes) + 1, parents=parents, at=at or CodeLocation.of_caller(), **more)
        self._nodes[node.id] = node
        return node

    def put(self, node: Node) -> None:
        """Add a node, in the place of the one with its id: a hint or resources may come after its definition."""
        self._nodes[node.id] = node

    def __getitem__(self, node_id: int) -> Node:
        return self._nodes[node_id]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def children(self, node_id: int) -> tuple[Node, ...]:
        return tuple(node for node in self if node_id in node.parents)

    def ancestors(self, node_id: int) -> tuple[Node, ...]:
        """Return the nodes that lead to `node_id`, itself included, in topological order."""
        ids = {node_id}
        for node in reversed(tuple(self)):
            if node.id in ids:
                ids.update(node.parents)
        return tuple(node for node in self if node.id in ids)

    def descendants(self, node_id: int) -> tuple[Node, ...]:
        """Return the nodes that `node_id` leads to, itself included, in topological order."""
        ids = {node_id}
        for node in self:
            if ids.intersection(node.parents):
                ids.add(node.id)
        return tuple(node for node in self if node.id in ids)
