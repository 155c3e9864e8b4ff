"""Bolts, batch groups and tasks of a graph (Trident rules 3.1-3.9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from pipelines.errors import BadNameError, ParallelismError
from pipelines.graph import events, nodes
from pipelines.graph.expansion import Expansion, PlannedOperation, Repartition, components, expand
from pipelines.graph.fields import distinct

Group = frozenset[int]
"""The ids of the operations of one bolt."""


@dataclass(frozen=True)
class Grouping:
    """Operations by id, every edge between two groups with a repartition on it, and the groups in the original's order."""

    operations: dict[int, PlannedOperation]
    groups: tuple[Group, ...]


def group(expansion: Expansion) -> Grouping:
    """Group operations in the original's order (Trident rules 3.2-3.5): merge fully, then put identity partitions in the gaps."""
    operations = {operation.id: operation for operation in expansion.operations}
    merged = _merge_fully(operations, _initial(expansion.operations))
    growing = _GrowingGroups(operations, merged)
    growing.join_with_identities()
    growing.part_subscriptions()
    return Grouping(growing.operations, tuple(frozenset(members) for members in growing.groups))


def in_bolts(operations: Iterable[PlannedOperation]) -> Iterator[PlannedOperation]:
    """Yield the operations that are in a bolt: neither spouts nor repartitions."""
    return (operation for operation in operations if not operation.spout and operation.repartition is None)


def _initial(operations: tuple[PlannedOperation, ...]) -> list[Group]:
    """Return a group for each state, with what queries it, then one for each other operation (rule 3.2)."""
    states: dict[str, set[int]] = {}
    for operation in in_bolts(operations):
        if operation.state is not None:
            states.setdefault(operation.state, set()).add(operation.id)
    alone = [frozenset((planned.id,)) for planned in in_bolts(operations) if planned.state is None]
    return [frozenset(members) for members in states.values()] + alone


def _merge_fully(operations: dict[int, PlannedOperation], initial: list[Group]) -> list[Group]:
    """Merge each group with its only neighbour, outgoing first, until nothing happens (rule 3.3).

    The order decides the bolts' numbers: a merged group goes to the end, and the search starts again at the front.
    """
    around = _Neighbours(operations)
    groups = dict.fromkeys(initial)
    of = {operation_id: group for group in groups for operation_id in group}
    while pair := next(around.mergeable(groups, of), None):
        merged = pair[0] | pair[1]
        for half in pair:
            del groups[half]
        groups[merged] = None
        of.update(dict.fromkeys(merged, merged))
    return list(groups)


class _Neighbours:
    def __init__(self, operations: dict[int, PlannedOperation]) -> None:
        self._above = {operation.id: operation.parents for operation in operations.values()}
        self._below: dict[int, list[int]] = {operation_id: [] for operation_id in operations}
        for child in operations.values():
            for parent in child.parents:
                self._below[parent].append(child.id)

    def mergeable(self, groups: Iterable[Group], of: dict[int, Group]) -> Iterator[tuple[Group, Group]]:
        """Yield groups with their only neighbour. A repartition or a spout is in no group: None, with which nothing merges."""
        for group in groups:
            for edges in (self._below, self._above):
                others = {of.get(near) for operation_id in group for near in edges[operation_id]} - {group}
                if len(others) == 1 and (other := others.pop()) is not None:
                    yield group, other


class _GrowingGroups:
    """The grouped operations, to which identities are added."""

    def __init__(self, operations: dict[int, PlannedOperation], groups: list[Group]) -> None:
        self.operations = dict(operations)
        self.groups: list[set[int]] = [set(group) for group in groups]
        self._of = {member: number for number, group in enumerate(groups) for member in group}

    def _add(
        self, kind: str, parent: PlannedOperation, repartition: Repartition | None, name: str | None
    ) -> PlannedOperation:
        made = PlannedOperation(
            id=max(self.operations) + 1,
            kind=kind,
            label=str(repartition or kind),
            node=parent.node,
            parents=(parent.id,),
            name=name,
            repartition=repartition,
        )
        self.operations[made.id] = made
        return made

    def _identity_partition(self, parent: int) -> int:
        above = self.operations[parent]
        return self._add("repartition", above, Repartition(nodes.IDENTITY), above.name).id

    def join_with_identities(self) -> None:
        """Put an identity partition on every edge between groups, or from a spout, that has no repartition (rule 3.4)."""
        for planned in tuple(in_bolts(self.operations.values())):
            parents = tuple(
                self._identity_partition(parent) if self._apart(parent, planned.id) else parent
                for parent in planned.parents
            )
            self.operations[planned.id] = replace(planned, parents=parents)

    def _apart(self, parent: int, child: int) -> bool:
        return self.operations[parent].repartition is None and self._of.get(parent) != self._of[child]

    def part_subscriptions(self) -> None:
        """Let one group take a stream in one way only: other ways go through an identity operation (rule 3.5).

        It belongs to the parent's bolt, or to a new one if the parent is a spout; the original forgot to join that one
        with the spout, here an identity partition does.
        """
        for number in range(len(self.groups)):
            for extra in self._extra_inputs(number):
                above = self.operations[extra.parents[0]]
                if above.spout:
                    above = self.operations[self._identity_partition(above.id)]
                identity = self._add("identity", above, None, None)
                self.operations[extra.id] = replace(extra, parents=(identity.id,))
                home = self._of.get(above.id)
                if home is None:
                    home = len(self.groups)
                    self.groups.append(set())
                self.groups[home].add(identity.id)
                self._of[identity.id] = home

    def _extra_inputs(self, number: int) -> list[PlannedOperation]:
        """Return the repartitions into a group that deal a stream otherwise than the first one of that stream does."""
        inputs = {parent for member in self.groups[number] for parent in self.operations[member].parents}
        first: dict[int, PlannedOperation] = {}
        extra: list[PlannedOperation] = []
        for above in (self.operations[parent] for parent in sorted(inputs)):
            if above.repartition is None:
                continue
            anchor = first.setdefault(above.parents[0], above)
            if anchor.repartition != above.repartition:
                extra.append(above)
        return extra


def tasks(grouping: Grouping, windows: Iterable[tuple[int, int]] = ()) -> dict[int, int]:
    """Return the tasks of each operation that is in a bolt, and of each spout, by operation id.

    Bolts and spouts that identity partitions join form a class, and a class has one number of tasks: the largest hint in
    it, at most what its sources can use; or what a state in it demands.

    Args:
        windows: what writes the channel of a window and what reads it: they are one operation of the original's, and have
            one number of tasks unless their states and sources demand different ones.
    """
    numbers: dict[int, int] = {}
    for members in _classes(grouping, windows):
        number = _tasks_of([grouping.operations[member] for member in sorted(members)])
        numbers.update(dict.fromkeys(members, number))
    return numbers


def _tasks_of(members: list[PlannedOperation]) -> int:
    maximum = min((member.max_parallelism for member in members if member.max_parallelism is not None), default=None)
    fixed = [(str(member.writes), member.partitions) for member in members if member.partitions is not None]
    if fixed:
        names, numbers = [name for name, _ in fixed], [number for _, number in fixed]
        if len(set(numbers)) > 1:
            raise ParallelismError(names, numbers)
        if maximum is not None and maximum < numbers[0]:
            raise ParallelismError(names, numbers, maximum)
        return numbers[0]
    hinted = max((member.hint for member in members if member.hint is not None), default=1)
    wanted = max(hinted, 1)
    return wanted if maximum is None else min(wanted, maximum)


def _classes(grouping: Grouping, windows: Iterable[tuple[int, int]]) -> list[set[int]]:
    """Return the operations of groups and spouts that identity partitions or windows join."""
    home: dict[int, set[int]] = {}
    for group in (*grouping.groups, *({planned.id} for planned in grouping.operations.values() if planned.spout)):
        members = set(group)
        home.update(dict.fromkeys(members, members))
    for child in grouping.operations.values():
        for parent in child.parents if child.id in home else ():
            between = grouping.operations[parent]
            if between.repartition is not None and between.repartition.kind == nodes.IDENTITY:
                _join(home, between.parents[0], child.id)
    for writer, reader in windows:
        # Results of a window may be repartitioned, so a demand that the other side cannot meet does not reach it.
        if _agree(grouping, home[writer] | home[reader]):
            _join(home, writer, reader)
    return list({id(members): members for members in home.values()}.values())


def _agree(grouping: Grouping, members: set[int]) -> bool:
    try:
        _tasks_of([grouping.operations[member] for member in members])
    except ParallelismError:
        return False
    return True


def _join(home: dict[int, set[int]], first: int, other: int) -> None:
    joined, added = home[first], home[other]
    if joined is not added:
        joined |= added
        home.update(dict.fromkeys(added, joined))


@dataclass(frozen=True)
class Bolt:
    """Operations that run without a repartition between them: a stage of the plan.

    Attributes:
        name: `b-<n>[-<names of its operations>]` (rule 3.7).
        nodes: the ids of the user's nodes whose last operation is here, in topological order. A bolt may have none: it
            makes partial values for an aggregate that ends in the next bolt, or it answers a query.
        operations: all its operations in the order of their creation.
    """

    name: str
    nodes: tuple[int, ...]
    operations: tuple[PlannedOperation, ...] = ()
    tasks: int = 1


@dataclass(frozen=True)
class Spout:
    """A spout of the plan: `spout-<stream>`, of a query `spout-<query><n>` (rule 3.7). `node` is the user's node."""

    name: str
    node: int
    operation: PlannedOperation
    tasks: int


def group_name(streams: Iterable[str]) -> str:
    """Return the name of a batch group in messages and folders: its streams, joined by two underscores."""
    return "__".join(streams)


@dataclass(frozen=True)
class SpoutGroup:
    """Spouts whose tuples can meet, so that their batches share a txid (rule 3.6).

    `streams` are the names of the spouts, `nodes` all node ids. `query` is true for the group of a query stream: each
    query is a batch of its own, and nothing is committed.
    """

    name: str
    streams: tuple[str, ...]
    nodes: tuple[int, ...]
    query: bool

    @property
    def folder(self) -> str:
        """The name of its checkpoint's folder: its streams, joined by two underscores."""
        return group_name(self.streams)


@dataclass(frozen=True)
class Layout:
    """A graph cut in spouts and bolts. `operations` are all, repartitions too, by id; `output` finds a node's own."""

    operations: dict[int, PlannedOperation]
    output: dict[int, int]
    spouts: tuple[Spout, ...]
    bolts: tuple[Bolt, ...]

    def component_of(self) -> dict[int, str]:
        """Return the name of the bolt or spout of each operation; repartitions are in none."""
        names = {operation.id: bolt.name for bolt in self.bolts for operation in bolt.operations}
        return names | {spout.operation.id: spout.name for spout in self.spouts}

    def tasks_of(self) -> dict[int, int]:
        """Return the number of tasks of each operation; repartitions have none."""
        number = {operation.id: bolt.tasks for bolt in self.bolts for operation in bolt.operations}
        return number | {spout.operation.id: spout.tasks for spout in self.spouts}


def is_spout(node: nodes.Node) -> bool:
    """Check whether tuples enter at this node."""
    return isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)


def dealt_by(spout: nodes.Node) -> tuple[str, ...]:
    """Return the fields whose hash deals a spout's tuples to tasks: of events not the engine's own, which no two runs share."""
    own = events.COLUMNS if isinstance(spout, nodes.ChannelSpoutNode) else ()
    return tuple(name for name in spout.fields if name not in own)


# A stream asks at every batch and a warm query each time, and laying out takes milliseconds. Nodes are frozen, so a graph
# of the same nodes is the same graph.
_KNOWN: WeakKeyDictionary[nodes.Graph, tuple[tuple[nodes.Node, ...], Layout]] = WeakKeyDictionary()


def layout(graph: nodes.Graph) -> Layout:
    """Return the spouts and bolts of a graph, with their tasks.

    A state query is put into the bolt that writes the state, as in the original. On Spark that is a way to read the plan
    and a rule for parallelism: wherever it runs, a query reads a committed version of the state's table.
    """
    members = tuple(graph)
    known = _KNOWN.get(graph)
    if (
        known is None
        or len(known[0]) != len(members)
        or any(a is not b for a, b in zip(known[0], members, strict=True))
    ):
        known = (members, _laid_out(graph))
        _KNOWN[graph] = known
    return known[1]


def _laid_out(graph: nodes.Graph) -> Layout:
    expansion = expand(graph)
    grouping = group(expansion)
    number = tasks(grouping, _windows(graph, expansion.output))
    grouped = [[grouping.operations[member] for member in sorted(members)] for members in grouping.groups]
    made = tuple(
        Bolt(_bolt_name(i, planned), _users(graph, expansion.output, planned), tuple(planned), number[planned[0].id])
        for i, planned in enumerate(grouped)
    )
    return Layout(grouping.operations, expansion.output, _spouts(graph, grouping, number), made)


def _windows(graph: nodes.Graph, output: dict[int, int]) -> list[tuple[int, int]]:
    """Return for each window over a stream's batches what writes its channel and what reads it."""
    channels = {
        node.state.name: output[node.id]
        for node in graph
        if isinstance(node, nodes.ChannelNode) and node.clock != nodes.EVENTS
    }
    spouts = [node for node in graph if isinstance(node, nodes.ChannelSpoutNode)]
    return [(channels[name], output[spout.id]) for spout in spouts for name in spout.reads if name in channels]


def _users(graph: nodes.Graph, output: dict[int, int], operations: Iterable[PlannedOperation]) -> tuple[int, ...]:
    here = {operation.id for operation in operations}
    return tuple(node.id for node in graph if not is_spout(node) and output[node.id] in here)


def _spouts(graph: nodes.Graph, grouping: Grouping, number: dict[int, int]) -> tuple[Spout, ...]:
    names: set[str] = {f"spout-{node.stream}" for node in graph if isinstance(node, nodes.SpoutNode)}
    spouts: list[Spout] = []
    counter = 0
    for operation in grouping.operations.values():
        if not operation.spout:
            continue
        node = graph[operation.node]
        name = f"spout-{getattr(node, 'stream', node.name)}"
        if isinstance(node, nodes.QuerySpoutNode):
            # The original lets a query and a source share an id, and one of them is lost.
            while (free := f"{name}{counter}") in names:
                counter += 1
            name, counter = free, counter + 1
            names.add(name)
        spouts.append(Spout(name, node.id, operation, number[operation.id]))
    return tuple(spouts)


def _bolt_name(number: int, operations: list[PlannedOperation]) -> str:
    names = [operation.name for operation in operations if operation.name]
    unrepeated = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    return "-".join(["b", str(number), *unrepeated])


def batch_groups(graph: nodes.Graph) -> tuple[SpoutGroup, ...]:
    """Return the connected components of a graph, `bg0`, `bg1` ... in the order of their first node.

    A state connects nothing: who queries a state does not take part in the batches that write it (rule 3.6). A static
    state is a component without a batch: it takes a number, as in the original, and is left out.

    Raises:
        BadNameError: two of them have one name, and so one checkpoint.
    """
    groups = (_batch_group(f"bg{n}", [graph[node] for node in members]) for n, members in enumerate(components(graph)))
    found = tuple(batch_group for batch_group in groups if batch_group.streams)
    named: dict[str, SpoutGroup] = {}
    for batch_group in found:
        name = group_name(batch_group.streams)
        if not batch_group.query and named.setdefault(name, batch_group) is not batch_group:
            lines = " and ".join(str(graph[one.nodes[0]].at) for one in (named[name], batch_group))
            reason = (
                f"is that of two batch groups ({lines}): streams that meet have one, their names joined by __, queries behind "
                "a stream's windows one with a number; give the stream another name"
            )
            raise BadNameError("stream", name, reason)
    return found


def running_order(graph: nodes.Graph) -> tuple[SpoutGroup, ...]:
    """Return the batch groups, each behind those that write what it reads, else in the order of definition.

    What it reads are channels, and states. Groups that ask for each other's states are behind one another by channels alone.
    """
    groups = batch_groups(graph)
    parts = [[graph[node_id] for node_id in batch_group.nodes] for batch_group in groups]
    awaited = _channel_writers(parts)
    read = [own | others for own, others in zip(awaited, _state_writers(parts), strict=True)]
    for place, others in enumerate(read):
        awaited[place] |= {other for other in others if place not in _all_awaited(read, other)}
    places = _behind(awaited)
    return tuple(groups[place] for place in dict.fromkeys([*places, *range(len(groups))]))


def behind_writers(graph: nodes.Graph, parts: Sequence[Sequence[int]]) -> list[int]:
    """Return the places of parts of a graph, those that read channels behind those that write them; else the order stays.

    Parts that wait for themselves, or in a circle, are left out.
    """
    return _behind(_channel_writers([[graph[node_id] for node_id in part] for part in parts]))


def _behind(awaited: Sequence[set[int]]) -> list[int]:
    places, waiting = list[int](), list(range(len(awaited)))
    while (first := next((place for place in waiting if awaited[place] <= {*places}), None)) is not None:
        places.append(first)
        waiting.remove(first)
    return places


def _channel_writers(parts: Sequence[Sequence[nodes.Node]]) -> list[set[int]]:
    """Return for each part the places of those that write the channels that it reads."""
    writer = {n.state.name: at for at, part in enumerate(parts) for n in part if isinstance(n, nodes.ChannelNode)}
    spouts = [[node for node in part if isinstance(node, nodes.ChannelSpoutNode)] for part in parts]
    return [{writer[name] for spout in part for name in spout.reads if name in writer} for part in spouts]


def _state_writers(parts: Sequence[Sequence[nodes.Node]]) -> list[set[int]]:
    """Return for each part the places of the others that write the states that it queries."""
    writer = {n.state.name: at for at, part in enumerate(parts) for n in part if isinstance(n, nodes.PersistNode)}
    asked = [[node.state for node in part if isinstance(node, nodes.StateQueryNode)] for part in parts]
    return [{writer[name] for name in part if name in writer} - {at} for at, part in enumerate(asked)]


def _all_awaited(awaited: Sequence[set[int]], place: int) -> set[int]:
    """Return the parts that one waits for, those that they wait for, and so on."""
    found, waiting = set[int](), [place]
    while waiting:
        new = awaited[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _batch_group(name: str, members: list[nodes.Node]) -> SpoutGroup:
    spouts = [node for node in members if isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)]
    return SpoutGroup(
        name,
        distinct(node.stream for node in spouts),
        tuple(node.id for node in members),
        any(isinstance(node, nodes.QuerySpoutNode) for node in spouts),
    )


def node_tasks(graph: nodes.Graph) -> dict[int, int]:
    """Return how many tasks (partitions) each node runs in, by node id; of a PartitionNode: how many it deals the tuples to.

    An aggregate counts as the part after its repartition. Where bolts of different parallelism stand behind one
    PartitionNode, it deals to the most of them; where none does, to one task.
    """
    plan = layout(graph)
    number = plan.tasks_of()
    below: dict[int, list[int]] = {}
    for child in plan.operations.values():
        for parent in child.parents:
            below.setdefault(parent, []).append(number.get(child.id, 1))
    return {node.id: number.get(plan.output[node.id]) or max(below.get(plan.output[node.id], [1])) for node in graph}


def copies_taken(graph: nodes.Graph) -> dict[tuple[int, int], int]:
    """Return how many copies each node takes of a tuple of a broadcast in front of it, by node and broadcast.

    As many as the node's first operation has tasks: of a repartition an identity operation, of an aggregate its first part.
    """
    plan = layout(graph)
    number = plan.tasks_of()
    found: dict[tuple[int, int], int] = {}
    for node in graph:
        if isinstance(node, nodes.PartitionNode) and node.kind == nodes.BROADCAST:
            takers = (taker for taker in plan.operations.values() if plan.output[node.id] in taker.parents)
            found |= {(taker.node, node.id): number[taker.id] for taker in takers}
    return found
