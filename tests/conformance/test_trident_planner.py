"""The planner, rule by rule: Trident rules 1.5, 2 and 3.1-3.8, and the tests of the original that look at bolts.

Parallelism and resources (rules 3.9, 3.10) are in test_trident_parallelism.py.
"""

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.errors import DefinitionError, MixedSpoutsError
from pipelines.graph.bolts import Layout, layout
from pipelines.graph.expansion import expand
from pipelines.planner import TopologyPlan
from pipelines.sources import FixedBatches
from pipelines.trident import (
    Aggregator,
    Count,
    DeltaState,
    FixedState,
    MapGet,
    MultiReducer,
    ReducerAggregator,
    Split,
    Stream,
    Sum,
    TridentTopology,
)

REDUCER = ReducerAggregator(lambda: 0, lambda total, value: total + value)
GENERAL = Aggregator(list, lambda state, *values: None, lambda state: state)
MULTI = MultiReducer(list, lambda state, n, *values: None, lambda state: state, returns=["bigint"])


def stream(topology: TridentTopology, name: str = "s", schema: str = "a string, b bigint") -> Stream:
    return topology.new_stream(name, FixedBatches(schema, []))


def steps(topology: TridentTopology) -> list[str]:
    """What each operation does, a repartition as how it deals, in the order of creation."""
    return [str(one.repartition or one.kind) for one in expand(topology.graph).operations]


def made(build: Callable[[Stream], Any]) -> list[str]:
    """The operations of one step behind a spout."""
    topology = TridentTopology("t")
    build(stream(topology))
    return steps(topology)[1:]


def bolts(topology: TridentTopology) -> list[list[str]]:
    """The kinds of the operations of each bolt, in the order of the bolts."""
    return [[one.kind for one in bolt.operations] for bolt in topology.build().bolts]


def dealt(found: Layout, bolt: int) -> set[tuple[str, str]]:
    """From where, and how, the tuples of a bolt come."""
    components = found.component_of()
    into = [found.operations[parent] for one in found.bolts[bolt].operations for parent in one.parents]
    return {(components[one.parents[0]], str(one.repartition)) for one in into if one.repartition is not None}


# --- 1.2-1.5: from the user's graph to operations


@pytest.mark.parametrize(
    ("build", "operations"),
    [
        (lambda s: s.group_by("a").aggregate("b", Sum(), "x"), ["init", "partial", "partition_by a", "aggregate"]),
        (lambda s: s.aggregate("b", Sum(), "x"), ["init", "partial", "batch_global", "aggregate"]),
        (lambda s: s.aggregate("b", REDUCER, "x"), ["batch_global", "aggregate"]),
        (lambda s: s.group_by("a").aggregate("b", GENERAL, "x"), ["partition_by a", "aggregate"]),
        (lambda s: s.partition_aggregate("b", Sum(), "x"), ["init", "aggregate"]),
        (lambda s: s.partition_aggregate("b", GENERAL, "x"), ["aggregate"]),
        (
            lambda s: s.group_by("a").persistent_aggregate(DeltaState("x"), Count(), "n"),
            ["init", "partial", "partition_by a", "aggregate", "persist"],
        ),
        (
            lambda s: s.persistent_aggregate(DeltaState("x"), Count(), "n"),
            ["init", "partial", "global_", "aggregate", "persist"],
        ),
        (
            lambda s: s.group_by("a").persistent_aggregate(DeltaState("x"), "b", REDUCER, "n"),
            ["partition_by a", "persist"],
        ),
        (lambda s: s.persistent_aggregate(DeltaState("x"), "b", REDUCER, "n"), ["global_", "persist"]),
        (lambda s: s.partition_persist(DeltaState("x")), ["persist"]),
        (lambda s: s.group_by("a").state_query("far", "a", MapGet(), "x"), ["partition_by a", "state query"]),
        (lambda s: s.state_query("far", "a", MapGet(), "x"), ["state query"]),
        (lambda s: s.min_by("b"), ["extreme"]),
        (lambda s: s.partition_persist(DeltaState("x")).new_values_stream().project("a"), ["persist", "project"]),
    ],
)
def test_rule_1_2_operations_of_a_step(build: Callable[[Stream], Any], operations: list[str]) -> None:
    assert made(build) == operations


def test_rule_1_4_a_chain_of_combiners_is_partial_first() -> None:
    found = made(lambda s: s.chained_agg().aggregate("b", Sum(), "x").aggregate(Count(), "y").chain_end())
    assert found == ["init", "init", "partial", "batch_global", "aggregate"]


def test_rule_1_4_one_other_aggregator_disables_the_partial_pass_for_all() -> None:
    found = made(lambda s: s.chained_agg().aggregate("b", Sum(), "x").aggregate("b", REDUCER, "y").chain_end())
    assert found == ["init", "batch_global", "aggregate"]


def test_rule_1_5_two_repartitions_in_a_row_get_an_identity_between_them() -> None:
    assert made(lambda s: s.local_or_shuffle().shuffle()) == ["local_or_shuffle", "identity", "shuffle"]
    assert made(lambda s: s.shuffle().group_by("a").state_query("far", "a", MapGet(), "x"))[:3] == [
        "shuffle",
        "identity",
        "partition_by a",
    ]


def test_rule_1_5_the_identity_has_the_name_of_its_stream_and_a_bolt() -> None:
    topology = TridentTopology("t")
    stream(topology).name("first").local_or_shuffle().name("then").shuffle().filter("b > 0")
    assert [bolt.name for bolt in topology.build().bolts] == ["b-0-then", "b-1-then"]


def test_rule_1_1_joins_deal_every_side_and_merges_none() -> None:
    topology = TridentTopology("t")
    left, right = stream(topology, "l"), stream(topology, "r")
    topology.join(left, "a", right, "a", ["a", "x", "y"])
    topology.merge(left, right)
    topology.multi_reduce([left, right], None, MULTI, ["n"])
    topology.multi_reduce([left.group_by("a"), right.group_by("a")], None, MULTI, ["n"])
    both = ["partition_by a", "partition_by a"]
    assert steps(topology) == ["spout", "spout", *both, "join", "merge", "multi_reduce", *both, "multi_reduce"]


# --- 2: messages of the planner


def test_rule_2_a_query_stream_does_not_meet_other_spouts() -> None:
    topology = TridentTopology("t")
    ask = topology.new_query_stream("ask", "a string, b bigint")
    with pytest.raises(MixedSpoutsError, match="with streams originating from other spouts") as refused:
        topology.merge(stream(topology), ask)
    assert (refused.value.query, refused.value.others) == ("ask", ("s",))


def test_rule_2_a_topology_needs_a_spout() -> None:
    topology = TridentTopology("t")
    topology.new_static_state(FixedState("x", "a string, b bigint", "a"))
    with pytest.raises(DefinitionError, match="is empty"):
        topology.build()


# --- 3.1-3.5: bolts


def test_rule_3_1_the_order_of_parents_is_kept() -> None:
    topology = TridentTopology("t")
    first, second = stream(topology, "x"), stream(topology, "y")
    node = topology.join(second, "a", first, "a", ["a", "p", "q"]).node
    found = layout(topology.graph)
    sides = [found.operations[one].parents[0] for one in found.operations[found.output[node]].parents]
    assert [found.component_of()[one] for one in sides] == ["spout-y", "spout-x"]


def test_rule_3_2_a_state_shares_its_bolt_with_its_queries() -> None:
    topology = TridentTopology("t")
    counts = stream(topology).group_by("a").persistent_aggregate(DeltaState("counts"), Count(), "n")
    for name in ("one", "two"):
        asked = topology.new_query_stream(name).group_by("args").state_query(counts, "args", MapGet(), "n")
        asked.aggregate("n", Sum(), "sum")
    holding = [bolt for bolt in topology.build().bolts if any(one.state == "counts" for one in bolt.operations)]
    assert [[one.kind for one in bolt.operations] for bolt in holding] == [
        ["aggregate", "persist", *["state query", "init", "partial"] * 2]
    ]


def test_rule_3_2_states_come_first_in_their_order() -> None:
    topology = TridentTopology("t")
    source = stream(topology)
    source.shuffle().partition_persist(DeltaState("one"))
    source.global_().filter("b > 0")
    source.broadcast().partition_persist(DeltaState("two"))
    assert bolts(topology)[:2] == [["persist"], ["persist"]]
    held = [[one.state for one in bolt.operations] for bolt in topology.build().bolts]
    assert held[:2] == [["one"], ["two"]]


def test_rule_3_2_static_and_foreign_states_hold_their_queries() -> None:
    topology = TridentTopology("t")
    static = topology.new_static_state(FixedState("known", "a string, x bigint", "a"))
    source = stream(topology)
    source.state_query(static, "a", MapGet(), "x").shuffle().state_query("far", "a", MapGet(), "y")
    source.shuffle().state_query("far", "a", MapGet(), "y")
    assert bolts(topology) == [["static state", "state query"], ["state query", "state query"]]


def test_rule_3_3_operations_without_a_repartition_are_one_bolt() -> None:
    topology = TridentTopology("t")
    source = stream(topology).each("a", Split(), "w").filter("b > 0")
    source.project("a").partition_persist(DeltaState("x"))
    source.filter("b > 1")
    assert sorted(map(sorted, bolts(topology))) == [["each", "filter", "filter", "persist", "project"]]


def test_rule_3_3_a_group_with_a_plain_child_and_a_partition_child_merges_through_its_incoming_side() -> None:
    """Its outgoing set is {group, null}: it does not merge with the child, but the child's incoming set is one group."""
    topology = TridentTopology("t")
    one = stream(topology).filter("b > 0")
    one.shuffle().filter("b > 1")
    one.filter("b > 2")
    assert bolts(topology) == [["filter"], ["filter", "filter"]]


def test_rule_3_3_a_merge_of_two_spouts_is_a_bolt_of_its_own() -> None:
    topology = TridentTopology("t")
    topology.merge(stream(topology, "x"), stream(topology, "y"))
    assert bolts(topology) == [["merge"]]


def test_rule_3_3_branches_that_meet_again_are_one_bolt() -> None:
    topology = TridentTopology("t")
    source = stream(topology).filter("b > 0")
    topology.merge(source.filter("b > 1"), source.filter("b > 2"))
    assert bolts(topology) == [["filter", "filter", "filter", "merge"]]


def test_rule_3_3_a_merged_group_goes_to_the_end() -> None:
    topology = TridentTopology("t")
    source = stream(topology)
    source.filter("b > 0").filter("b > 1")
    source.project("a")
    assert bolts(topology) == [["project"], ["filter", "filter"]]


def test_rule_3_4_edges_without_a_repartition_get_an_identity() -> None:
    topology = TridentTopology("t")
    source = stream(topology)
    source.filter("b > 0")
    other = stream(topology, "o").shuffle().filter("b > 0")
    topology.merge(source.filter("b > 1"), other)
    found = layout(topology.graph)
    everything = {edge for number in range(len(found.bolts)) for edge in dealt(found, number)}
    assert ("spout-s", "identity_partition") in everything
    assert ("spout-o", "shuffle") in everything


def test_rule_3_5_a_second_way_of_dealing_goes_through_an_identity_in_the_parents_bolt() -> None:
    topology = TridentTopology("t")
    source = stream(topology, schema="a bigint, b bigint").filter("b > 0")
    topology.join(source, "a", source, "b", ["k", "x", "y"])
    found = layout(topology.graph)
    assert [[one.kind for one in bolt.operations] for bolt in found.bolts] == [["filter", "identity"], ["join"]]
    assert dealt(found, 1) == {("b-0", "partition_by a"), ("b-0", "partition_by b")}
    sources = [found.operations[one].parents[0] for one in found.bolts[1].operations[0].parents]
    assert [found.operations[one].kind for one in sources] == ["filter", "identity"]


def test_rule_3_5_or_in_a_new_bolt_if_the_parent_is_a_spout() -> None:
    """The original left that bolt without an input: it never got a tuple. Here it takes the spout's by identity."""
    topology = TridentTopology("t")
    source = stream(topology, schema="a bigint, b bigint")
    topology.join(source, "a", source, "b", ["k", "x", "y"])
    found = layout(topology.graph)
    assert [[one.kind for one in bolt.operations] for bolt in found.bolts] == [["join"], ["identity"]]
    assert dealt(found, 0) == {("spout-s", "partition_by a"), ("b-1", "partition_by b")}
    assert dealt(found, 1) == {("spout-s", "identity_partition")}


def test_rule_3_5_the_same_way_of_dealing_is_one_subscription() -> None:
    topology = TridentTopology("t")
    source = stream(topology).filter("b > 0")
    topology.join(source, "a", source, "a", ["k", "x", "y"])
    assert bolts(topology) == [["filter"], ["join"]]


# --- 3.6-3.8: batch groups, names, queries


def test_rule_3_6_batch_groups_are_connected_components_and_states_connect_nothing() -> None:
    topology = TridentTopology("t")
    counts = stream(topology).group_by("a").persistent_aggregate(DeltaState("counts"), Count(), "n")
    one, two = stream(topology, "x"), stream(topology, "y")
    one.state_query(counts, "a", MapGet(), "n")
    topology.merge(one, two)
    topology.new_query_stream("ask").state_query(counts, "args", MapGet(), "n")
    plan = topology.build()
    assert [(group.name, group.streams, group.query) for group in plan.batch_groups] == [
        ("bg0", ("s",), False),
        ("bg1", ("x", "y"), False),
        ("bg2", ("ask",), True),
    ]
    assert plan.coordinators == (
        "$mastercoord-bg0",
        "$mastercoord-bg1",
        "$spoutcoord-spout-s",
        "$spoutcoord-spout-x",
        "$spoutcoord-spout-y",
    )


def test_rule_3_6_a_late_merge_joins_earlier_components() -> None:
    topology = TridentTopology("t")
    first, second, third = (stream(topology, name) for name in ("x", "y", "z"))
    topology.merge(third.filter("b > 0"), first)
    assert [group.streams for group in topology.build().batch_groups] == [("x", "z"), ("y",)]
    assert second.node in topology.build().batch_groups[1].nodes


def test_rule_3_6_a_static_state_takes_a_number() -> None:
    topology = TridentTopology("t")
    topology.new_static_state(FixedState("known", "a string, x bigint", "a"))
    stream(topology)
    assert [group.name for group in topology.build().batch_groups] == ["bg1"]


def test_rule_3_7_ids() -> None:
    topology = TridentTopology("t")
    stream(topology).filter("b > 0")
    topology.new_query_stream("ask").filter("args > ''")
    topology.new_query_stream("ask2").filter("args > ''")
    plan = topology.build()
    assert {name for name in plan.parallelism if name.startswith("spout")} == {"spout-s", "spout-ask0", "spout-ask21"}
    assert [bolt.name for bolt in plan.bolts] == [f"b-{n}" for n in range(len(plan.bolts))]


def test_rule_3_7_a_query_and_a_source_do_not_share_an_id() -> None:
    """In the original the last one of two with one id wins, and the other is lost."""
    topology = TridentTopology("t")
    stream(topology, "ask0")
    topology.new_query_stream("ask")
    assert {name for name in topology.build().parallelism if name.startswith("spout")} == {"spout-ask0", "spout-ask1"}


def test_rule_3_7_names_in_the_order_of_creation_without_repetitions() -> None:
    topology = TridentTopology("t")
    x = stream(topology, "x").name("left").filter("b > 0").filter("b > 1")
    y = stream(topology, "y").name("right").filter("b > 0")
    topology.merge(x, y).project("a").name("left").filter("a > ''")
    assert [bolt.name for bolt in topology.build().bolts] == ["b-0-left-right-left-right-left"]


def test_rule_3_7_a_merge_of_unnamed_streams_has_no_name() -> None:
    """The original gave it an empty one, which left a dash at the end of the bolt's name."""
    topology = TridentTopology("t")
    topology.merge(stream(topology, "x"), stream(topology, "y")).name("after").filter("b > 0")
    assert [bolt.name for bolt in topology.build().bolts] == ["b-0-after"]


def test_rule_3_8_a_query_is_answered_by_a_join_with_the_entrance() -> None:
    topology = TridentTopology("t")
    topology.new_query_stream("ask", "word string").filter("word > ''")
    assert steps(topology) == [
        "query spout",
        "arguments",
        "filter",
        "return info",
        "batch_global",
        "batch_global",
        "answer",
    ]
    found = layout(topology.graph)
    assert [[one.kind for one in bolt.operations] for bolt in found.bolts] == [
        ["return info"],
        ["answer"],
        ["arguments", "filter"],
    ]
    assert dealt(found, 1) == {("b-0", "batch_global"), ("b-2", "batch_global")}


def test_rule_3_8_the_last_created_node_answers() -> None:
    topology = TridentTopology("t")
    ask = topology.new_query_stream("ask", "word string")
    ask.filter("word > 'a'").project("word")
    last = ask.filter("word > 'b'").shuffle()
    operations = expand(topology.graph).operations
    behind = operations[operations[operations[-1].parents[1]].parents[0]]
    assert (behind.kind, operations[behind.parents[0]].node) == ("identity", last.node)


def test_an_empty_query_answers_with_its_arguments() -> None:
    topology = TridentTopology("t")
    topology.new_query_stream("ask")
    plan = topology.build()
    assert plan.query_lineage == {"ask": {"args": (("ask", "args"),)}}
    assert [bolt.nodes for bolt in plan.bolts] == [(), (), ()]


# --- tests of the original


def test_original_gen_bolt_id_is_the_same_100_times() -> None:
    """TestTridentTopology.testGenBoltId."""

    def plan() -> TopologyPlan:
        topology = TridentTopology("t")
        source = topology.new_stream("spout", FixedBatches("sentence string", []))
        (
            source.each("sentence", Split(), "word")
            .partition_by("word")
            .name("abc")
            .each("word", lambda word: word, "length")
            .partition_by("length")
            .name("def")
            .aggregate("length", Count(), "count")
            .partition_by("count")
            .name("ghi")
            .aggregate("count", Sum(), "sum")
        )
        return topology.build()

    names = {tuple(bolt.name for bolt in plan().bolts) for _ in range(100)}
    assert names == {("b-0", "b-1-abc", "b-2-def", "b-3-ghi", "b-4-def", "b-5-ghi")}
