"""The nodes of a graph: what the user said, as frozen data. No Spark here; the planner compiles them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipelines.graph import traits
from pipelines.graph.location import CodeLocation as CodeLocation


@dataclass(frozen=True)
class Aggregation:
    """One aggregator of an aggregate or persistent aggregate: its input fields and the fields it makes.

    `types` are the Spark SQL types of the outputs, empty for an aggregator over columns, whose types Spark finds, and for
    one whose outputs have the types of its inputs in order (FirstN).
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
class Node:
    """An operation. `parents` are node ids in order; `fields` are the output fields; ids grow in topological order.

    `hint` is the parallelism that the user asked for, `resources` what the user said it needs, by kind.

    Each class says its traits, also one that is derived from another (`pipelines.graph.traits`): `asks` is what it asks of its
    parents' frames; `alone` in words why a tuple must not come to it alone, without its batch (REPLAYABLE: it may).
    """

    alone: ClassVar[str]
    _asks: ClassVar[tuple[traits.AsksOf]]

    def __init_subclass__(cls, *, asks: traits.AsksOf, alone: str) -> None:
        super().__init_subclass__()
        # In a tuple, or a function would become a method.
        cls._asks, cls.alone = (asks,), alone

    id: int
    parents: tuple[int, ...]
    fields: tuple[str, ...]
    name: str | None = None
    hint: int | None = None
    resources: tuple[tuple[str, float], ...] = ()
    at: CodeLocation = field(compare=False)

    @property
    def label(self) -> str:
        """A short text for drawings and messages."""
        return type(self).__name__.removesuffix("Node").lower()

    @property
    def asks(self) -> traits.Asks:
        """What it asks of its parents' frames beside their fields."""
        (asks,) = self._asks
        return asks if isinstance(asks, traits.Asks) else asks(self)


@dataclass(frozen=True, kw_only=True)
class SpoutNode(Node, asks=traits.NOTHING, alone=traits.REPLAYABLE):
    """A source. `slice_by` is SQL text over the source's fields that gives a row's slice, or None."""

    stream: str
    source: Any
    slice_by: str | None = None

    @property
    def label(self) -> str:
        return self.stream


@dataclass(frozen=True, kw_only=True)
class QuerySpoutNode(Node, asks=traits.NOTHING, alone="is the entrance of a query, which has been answered"):
    """The entrance of a query stream: the arguments of a query, `schema` as DDL."""

    stream: str
    schema: str

    @property
    def label(self) -> str:
        return f"query {self.stream}"


@dataclass(frozen=True, kw_only=True)
class EachNode(Node, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Appends `outputs` = function(inputs): no row drops the tuple, n rows repeat it (Trident rules 1.2, each)."""

    inputs: tuple[str, ...]
    function: Any
    outputs: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"each {self.function} -> {', '.join(self.outputs)}"


@dataclass(frozen=True, kw_only=True)
class FilterNode(Node, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Keeps the tuples for which predicate(inputs) is true."""

    inputs: tuple[str, ...]
    predicate: Any

    @property
    def label(self) -> str:
        return f"filter {self.predicate}"


@dataclass(frozen=True, kw_only=True)
class MapNode(Node, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Replaces each tuple by function(all fields): one row, or with `flat` any number."""

    function: Any
    flat: bool = False

    @property
    def label(self) -> str:
        return f"{'flat_map' if self.flat else 'map'} {self.function}"


@dataclass(frozen=True, kw_only=True)
class PeekNode(Node, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Shows each tuple to a consumer and passes it on unchanged."""

    consumer: Any


@dataclass(frozen=True, kw_only=True)
class ProjectNode(Node, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Keeps exactly `fields`, in their order."""

    @property
    def label(self) -> str:
        return f"project {', '.join(self.fields)}"


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
class PartitionNode(Node, asks=traits.of_repartition, alone=traits.REPLAYABLE):
    """Gives each tuple its task (partition): `kind` says how, over the fields `by` or by `function`."""

    kind: str
    by: tuple[str, ...] = ()
    function: Any = None

    @property
    def label(self) -> str:
        return f"{self.kind} {', '.join(self.by)}".strip()


@dataclass(frozen=True, kw_only=True)
class AggregateNode(Node, asks=traits.of_aggregate, alone="aggregates each batch"):
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


@dataclass(frozen=True, kw_only=True)
class ExtremeNode(Node, asks=traits.IN_TASKS, alone="keeps one tuple of each batch"):
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


@dataclass(frozen=True, kw_only=True)
class MergeNode(Node, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """The tuples of all parents as one stream; fields are matched by position and named as `fields`."""

    @property
    def label(self) -> str:
        return "merge"


@dataclass(frozen=True)
class JoinSide:
    """One side of a join: its key fields, its other fields, and whether it may be absent (OUTER)."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    outer: bool = False


COMPACT, PRESERVE = "compact", "preserve"


@dataclass(frozen=True, kw_only=True)
class JoinNode(Node, asks=traits.NOTHING, alone="joins the tuples of a batch, and theirs is over"):
    """Joins the parents' tuples of one batch on equal keys, null equal to null (Trident rules 8).

    COMPACT: the key fields once, then each side's other fields; PRESERVE: all fields of each side in their own order.
    `fields` names them by position.
    """

    sides: tuple[JoinSide, ...]
    mode: str = COMPACT

    @property
    def label(self) -> str:
        return "join on " + " = ".join(", ".join(side.keys) for side in self.sides)


@dataclass(frozen=True, kw_only=True)
class MultiReduceNode(Node, asks=traits.of_reduce, alone="reduces the tuples of a batch together"):
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


@dataclass(frozen=True, kw_only=True)
class GateNode(Node, asks=traits.PASSES_ON, alone=traits.REPLAYABLE):
    """Data checks on the rows that pass."""

    gate: Any

    @property
    def label(self) -> str:
        return f"gate {self.gate.name}"


@dataclass(frozen=True, kw_only=True)
class PersistNode(Node, asks=traits.of_persist, alone=traits.REPLAYABLE):
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


@dataclass(frozen=True, kw_only=True)
class OnTimeNode(Node, asks=traits.PASSES_ON, alone="asks whether an event is in time, and its time is over"):
    """Keeps the events that the watermark of a channel has not passed; with `late` the others (architecture.md#event-flows)."""

    channel: str
    late: bool = False

    @property
    def label(self) -> str:
        return "late" if self.late else "on time"


EVENTS, LATEST_ROW, NOW = "events", "latest row", "now"
"""What a channel's clock goes by: the events that its query reads, the rows that it takes, or the time of the batch."""


@dataclass(frozen=True, kw_only=True)
class EnterWindowNode(Node, asks=traits.IN_TASKS, alone="leads to a window, and the windows have moved on"):
    """Makes tuples into events for a window of their task: their `inputs`, with a place, and a time by SQL or of arrival."""

    inputs: tuple[str, ...]
    timestamp: str | None = None

    @property
    def label(self) -> str:
        return "enter window"


@dataclass(frozen=True, kw_only=True)
class ChannelNode(
    PersistNode, asks=traits.of_persist, alone="leads to another query of the flow, whose clock has moved on"
):
    """Commits events into a channel, the Delta table that leads to another query, with a word about the clock.

    `delay` is how far, in ms, the watermark stays behind the latest event of a source. `clock` says what the clock goes by.
    """

    delay: int = 0
    clock: str = EVENTS

    @property
    def label(self) -> str:
        return f"channel {self.state.name}"


@dataclass(frozen=True, kw_only=True)
class LatePersistNode(PersistNode, asks=traits.of_persist, alone="keeps late events"):
    """Keeps the events that come behind the watermark. Most batches have none, and then nothing is worked out for it."""

    @property
    def label(self) -> str:
        return f"late {self.state.name}"


@dataclass(frozen=True, kw_only=True)
class ChannelSpoutNode(
    SpoutNode, asks=traits.NOTHING, alone="reads what another query of the flow sends, whose clock has moved on"
):
    """Events from channels. `prelude` is the part of the plan that runs in the stream itself, its windows with it.

    The prelude's first node is a SpoutNode of the same source, its last one gives this node's fields; `schema` is their
    DDL.
    """

    prelude: Any = None
    schema: str = ""

    @property
    def origins(self) -> tuple[str, ...]:
        """Whose clocks decide how far it has come: behind windows there is only theirs."""
        last = next(reversed(list(self.prelude))) if self.prelude is not None else None
        return ("",) if last is not None else self.reads

    @property
    def reads(self) -> tuple[str, ...]:
        """The channels."""
        return tuple(self.source.channels)

    @property
    def steps(self) -> tuple[Node, ...]:
        """The operations of the prelude, without its entrance."""
        return tuple(node for node in self.prelude or () if node.parents)


@dataclass(frozen=True, kw_only=True)
class WindowNode(Node, asks=traits.NOTHING, alone="is a window, and the windows have moved on"):
    """A stateful operation over events or tuples: `operation` is its data, `key` the fields that part its windows.

    `edges` are the origins whose clocks it waits for; `types` the Spark SQL types of all of `fields`.
    """

    operation: Any
    context: Any
    key: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        by = f" by {', '.join(self.key)}" if self.key else ""
        return f"{self.operation.label}{by}"


@dataclass(frozen=True, kw_only=True)
class StaticStateNode(Node, asks=traits.NOTHING, alone=traits.REPLAYABLE):
    """A state without a stream (new_static_state). `fields` are its columns; no tuple passes.

    `state` is a DeltaState (a table of the lake that something else writes) or a FixedState (rows given in code).
    """

    state: Any
    keys: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"static state {self.state.name}"


@dataclass(frozen=True, kw_only=True)
class NewValuesNode(Node, asks=traits.NOTHING, alone="tells what each batch has made of a state"):
    """What a persist (its one parent) has made of a batch: the keys that the batch touched with their new values.

    Of a persist of the tuples themselves: the tuples; of one with an updater: what the updater emitted.
    """

    @property
    def label(self) -> str:
        return "new values"


@dataclass(frozen=True, kw_only=True)
class StateQueryNode(Node, asks=traits.of_query, alone=traits.REPLAYABLE):
    """Appends `outputs` = function(state, inputs). `group`: the fields of a grouped stream's partitions.

    `types` are the outputs' Spark SQL types for a query function written in Python; `state_node` the PersistNode or
    StaticStateNode of the same topology, if there is one. With `parted` (all tuples of a state, asked behind a broadcast)
    each task sees the part of the state whose keys' hash is its number, so that together they give each tuple once.
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


class Graph:
    """The nodes of one topology, in the order of their definition (which is a topological order)."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}

    def next_id(self) -> int:
        return len(self._nodes) + 1

    def add(self, node: Node) -> Node:
        self._nodes[node.id] = node
        return node

    def replace(self, node: Node) -> None:
        """Put a node in the place of the one with its id: a hint or resources that came after its definition."""
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
        """The nodes that lead to `node_id`, itself included, in topological order."""
        found = {node_id}
        for node in reversed(tuple(self)):
            if node.id in found:
                found.update(node.parents)
        return tuple(node for node in self if node.id in found)

    def descendants(self, node_id: int) -> tuple[Node, ...]:
        """The nodes that `node_id` leads to, itself included, in topological order."""
        found = {node_id}
        for node in self:
            if found.intersection(node.parents):
                found.add(node.id)
        return tuple(node for node in self if node.id in found)
