"""What holds of the bolts of any topology (Trident rules 1.5, 3.2-3.7, 3.9), over random ones."""

import re
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.graph import nodes
from pipelines.graph.bolts import group, layout, node_tasks
from pipelines.graph.expansion import expand
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, MapGet, ReducerAggregator, Stream, Sum, TridentTopology

REDUCER = ReducerAggregator(lambda: 0, lambda total, value: total + value)


class Wide(FixedBatches):
    max_parallelism = None


class Builder:
    """A topology whose streams all have the fields a and b, grown step by step from numbers."""

    def __init__(self) -> None:
        self.topology = TridentTopology("random")
        self.streams: list[Stream] = [self._source("s")]
        self.queries: list[Stream] = []
        self.states: list[Any] = []

    def _source(self, name: str) -> Stream:
        return self.topology.new_stream(name, Wide("a bigint, b bigint", []))

    def step(self, kind: int, one: int, two: int) -> None:
        """One more step: `one` and `two` choose among what is there."""
        everything = self.streams + self.queries
        stream = everything[one % len(everything)]
        pool = self.streams if one % len(everything) < len(self.streams) else self.queries
        if kind < len(STEPS):
            pool.append(STEPS[kind](stream))
        elif kind == len(STEPS):
            pool.append(self._combined(stream, pool, two))
        elif kind == len(STEPS) + 1 and pool is self.streams:
            persisted = self._persisted(stream, two)
            self.states.append(persisted)
            pool.append(persisted.new_values_stream())
        elif kind == len(STEPS) + 2 and self.states:
            asked = stream if two % 2 else stream.group_by("a")
            found = asked.state_query(self.states[two % len(self.states)], "a", MapGet(), "q")
            pool.append(found.project(["a", "b"]))
        elif kind == len(STEPS) + 3:
            number = len(everything)
            new = self.topology.new_query_stream(f"q{number}", "a bigint, b bigint") if two % 2 else None
            self.queries.append(new) if new else self.streams.append(self._source(f"s{number}"))
        else:
            pool.append(stream.parallelism_hint(1 + two % 4))

    def _combined(self, stream: Stream, pool: list[Stream], two: int) -> Stream:
        # A query stream may meet itself alone.
        other = pool[two % len(pool)] if pool is self.streams else stream
        if two % 3 == 0:
            return self.topology.merge(stream, other)
        by = "b" if two % 3 == 1 else "a"
        return self.topology.join(stream, "a", other, by, ["a", "b", "c"]).project(["a", "b"])

    def _persisted(self, stream: Stream, two: int) -> Any:
        state = DeltaState(f"state{len(self.states)}")
        grouped: Any = stream.group_by("a") if two % 2 else stream
        if two % 3 == 0:
            return grouped.persistent_aggregate(state, "b", REDUCER, "b") if two % 2 else self._rows(stream, state)
        return stream.group_by("a").persistent_aggregate(state, "b", Sum(), "b")

    def _rows(self, stream: Stream, state: DeltaState) -> Any:
        return stream.group_by("b").persistent_aggregate(state, Count(), "a")


STEPS: list[Callable[[Stream], Stream]] = [
    lambda s: s.filter("a > 0"),
    lambda s: s.name("named").filter("a > 1"),
    lambda s: s.name("other").project(["b", "a"]),
    lambda s: s.shuffle(),
    lambda s: s.partition_by("a"),
    lambda s: s.global_(),
    lambda s: s.identity_partition(),
    lambda s: s.broadcast(),
    lambda s: s.group_by("a").aggregate("b", Sum(), "b"),
    lambda s: s.group_by("a").aggregate("b", REDUCER, "b"),
    lambda s: s.aggregate([Count("a"), Sum("b", "b")]),
    lambda s: s.partition_aggregate([Count("a"), Sum("b", "b")]),
    lambda s: s.min_by("b"),
]


@st.composite
def topologies(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    number = st.integers(0, 50)
    return draw(st.lists(st.tuples(st.integers(0, len(STEPS) + 4), number, number), max_size=25))


def built(steps: list[tuple[int, int, int]]) -> TridentTopology:
    builder = Builder()
    for step in steps:
        builder.step(*step)
    return builder.topology


@settings(max_examples=150, deadline=None)
@given(topologies())
def test_operations_are_where_they_belong(steps: list[tuple[int, int, int]]) -> None:
    """Each operation is in exactly one bolt, a spout in none; a repartition in none, and on every edge between two."""
    topology = built(steps)
    found = layout(topology.graph)
    members = [one.id for bolt in found.bolts for one in bolt.operations]
    inside = {one.id for one in found.operations.values() if one.repartition is None and not one.spout}
    assert len(members) == len(set(members))
    assert set(members) == inside
    assert {spout.operation.id for spout in found.spouts} == {one.id for one in found.operations.values() if one.spout}
    component = found.component_of()
    for one in found.operations.values():
        for parent in (found.operations[parent] for parent in one.parents):
            if one.repartition is not None:
                assert parent.repartition is None, "two repartitions in a row"
            elif parent.repartition is None:
                assert component[parent.id] == component[one.id], "an edge between bolts without a repartition"
    users = [node for bolt in found.bolts for node in bolt.nodes]
    assert len(users) == len(set(users))
    spouts_and_repartitions = nodes.SpoutNode | nodes.QuerySpoutNode | nodes.PartitionNode
    assert set(users) == {node.id for node in topology.graph if not isinstance(node, spouts_and_repartitions)}


@settings(max_examples=150, deadline=None)
@given(topologies())
def test_colocation_subscriptions_and_names(steps: list[tuple[int, int, int]]) -> None:
    found = layout(built(steps).graph)
    names = [bolt.name for bolt in found.bolts] + [spout.name for spout in found.spouts]
    assert len(names) == len(set(names))
    homes: dict[str, set[str]] = {}
    for bolt in found.bolts:
        ways: dict[int, set[str]] = {}
        for one in bolt.operations:
            if one.state:
                homes.setdefault(one.state, set()).add(bolt.name)
            for parent in (found.operations[parent] for parent in one.parents):
                if parent.repartition is not None:
                    ways.setdefault(parent.parents[0], set()).add(str(parent.repartition))
        assert all(len(one) == 1 for one in ways.values()), "one stream taken in two ways"
    assert all(len(home) == 1 for home in homes.values())


@settings(max_examples=150, deadline=None)
@given(topologies())
def test_tasks_are_equal_over_identities_and_the_largest_hint(steps: list[tuple[int, int, int]]) -> None:
    topology = built(steps)
    found = layout(topology.graph)
    tasks = {one.id: bolt.tasks for bolt in found.bolts for one in bolt.operations}
    tasks |= {spout.operation.id: spout.tasks for spout in found.spouts}
    for one in found.operations.values():
        if one.repartition is not None:
            continue
        assert tasks[one.id] >= (one.hint or 1)
        for parent in (found.operations[parent] for parent in one.parents):
            if parent.repartition is not None and parent.repartition.kind == nodes.IDENTITY:
                assert tasks[one.id] == tasks[parent.parents[0]]
    number = node_tasks(topology.graph)
    assert set(number) == {node.id for node in topology.graph}
    for bolt in found.bolts:
        assert {number[node] for node in bolt.nodes} <= {bolt.tasks}
    assert set(tasks.values()) <= {1} | {one.hint for one in found.operations.values() if one.hint}


@settings(max_examples=150, deadline=None)
@given(topologies())
def test_nothing_is_left_to_merge(steps: list[tuple[int, int, int]]) -> None:
    """Rule 3.3: when grouping ends, no group has another group as its only neighbour on one side."""
    expansion = expand(built(steps).graph)
    own = {one.id for one in expansion.operations}
    home = {one: number for number, found in enumerate(group(expansion).groups) for one in found if one in own}
    below: dict[int, set[int | None]] = {}
    above: dict[int, set[int | None]] = {}
    for one in expansion.operations:
        for parent in one.parents:
            if one.id in home and home[one.id] != home.get(parent):
                above.setdefault(home[one.id], set()).add(home.get(parent))
            if parent in home and home[parent] != home.get(one.id):
                below.setdefault(home[parent], set()).add(home.get(one.id))
    for neighbours in (*below.values(), *above.values()):
        assert len(neighbours) > 1 or None in neighbours


@settings(max_examples=75, deadline=None)
@given(topologies())
def test_the_same_definition_gives_the_same_plan_and_a_drawing(steps: list[tuple[int, int, int]]) -> None:
    plan = built(steps).build()
    assert plan.to_json() == built(steps).build().to_json()
    text = plan.to_mermaid()
    assert text.count("subgraph") == len(plan.bolts)
    drawn = {int(found) for found in re.findall(r"^ +n(\d+)[\[({]", text, re.MULTILINE)}
    operations = layout(built(steps).graph).operations.values()
    assert drawn == {one.id for one in operations if one.repartition is None}
