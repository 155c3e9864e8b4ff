"""Bolts, batch groups and the plan (Trident rules, section 3)."""

import pytest

from pipelines.errors import DefinitionError
from pipelines.graph.bolts import layout, node_tasks
from pipelines.planner import TopologyPlan
from pipelines.quality import drop
from pipelines.sources import FixedBatches
from pipelines.trident import Count, DeltaState, MapGet, Split, Stream, Sum, TridentTopology


def words(topology: TridentTopology, name: str = "sentences") -> Stream:
    return topology.new_stream(name, FixedBatches("sentence string", [])).each("sentence", Split(), "word")


def bolts(topology: TridentTopology) -> set[tuple[int, ...]]:
    """The user's nodes of each bolt that has some."""
    return {bolt.nodes for bolt in topology.build().bolts if bolt.nodes}


def test_an_empty_topology_has_no_plan() -> None:
    with pytest.raises(DefinitionError, match='topology "empty" is empty'):
        TridentTopology("empty").build()


def test_operations_without_a_shuffle_are_one_bolt() -> None:
    topology = TridentTopology("t")
    words(topology).filter("word != 'a'").gate(drop("column_values_to_not_be_null", column="word")).project("word")
    assert bolts(topology) == {(2, 3, 4, 5)}


def test_a_shuffle_comes_before_aggregates_and_persistent_aggregates() -> None:
    topology = TridentTopology("t")
    stream = words(topology).group_by("word").aggregate(Count(), "n").filter("n > 1").aggregate("n", Sum(), "total")
    stream.persistent_aggregate(DeltaState("totals"), "total", Sum(), "sum")
    assert bolts(topology) == {(2,), (3, 4), (5,), (6,)}


def test_persisting_rows_needs_no_shuffle() -> None:
    topology = TridentTopology("t")
    words(topology).partition_persist(DeltaState("words"))
    assert bolts(topology) == {(2, 3)}


def test_a_state_query_is_in_the_bolt_of_the_state_and_what_leads_to_it_alone_as_well() -> None:
    topology = TridentTopology("t")
    counts = words(topology).group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    topology.new_query_stream("one", "word string").filter("word > 'a'").state_query(counts, "word", MapGet(), "n")
    query = topology.new_query_stream("two", "word string").filter("word > 'a'").group_by("word")
    query.state_query(counts, "word", MapGet(), "n").project("n")
    assert bolts(topology) == {(2,), (3, 5, 6, 9, 10), (8,)}


def test_children_of_a_spout_are_bolts_of_their_own() -> None:
    topology = TridentTopology("t")
    spout = topology.new_stream("s", FixedBatches("a string", []))
    spout.filter("a = 'x'")
    spout.filter("a = 'y'")
    assert bolts(topology) == {(2,), (3,)}


def test_branches_below_an_operation_stay_in_its_bolt() -> None:
    topology = TridentTopology("t")
    stream = words(topology)
    stream.filter("word = 'x'")
    stream.filter("word = 'y'")
    assert bolts(topology) == {(2, 3, 4)}


def test_rule_3_7_names_in_order_of_creation_without_repetitions() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("a string", [])).name("abc").filter("a > 'a'").filter("a > 'b'")
    stream.name("def").filter("a > 'c'").name("abc").filter("a > 'd'").aggregate(Count(), "n")
    assert [bolt.name for bolt in topology.build().bolts] == ["b-0-abc", "b-1-abc-def-abc"]


def test_the_same_definition_gives_the_same_ids() -> None:
    def plan() -> TopologyPlan:
        topology = TridentTopology("t")
        words(topology).name("abc").group_by("word").aggregate(Count(), "n").name("def").aggregate("n", Sum(), "s")
        return topology.build()

    assert {tuple(bolt.name for bolt in plan().bolts) for _ in range(100)} == {("b-0-def", "b-1-abc", "b-2-abc-def")}


def test_rule_3_6_batch_groups_are_connected_components() -> None:
    topology = TridentTopology("t")
    counts = words(topology, "first").group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    words(topology, "second").state_query(counts, "word", MapGet(), "n")
    topology.new_query_stream("ask", "word string").state_query(counts, "word", MapGet(), "n")
    groups = topology.build().batch_groups
    assert [(g.name, g.streams, g.nodes, g.query) for g in groups] == [
        ("bg0", ("first",), (1, 2, 3), False),
        ("bg1", ("second",), (4, 5, 6), False),
        ("bg2", ("ask",), (7, 8), True),
    ]


def test_the_plan_says_all() -> None:
    topology = TridentTopology("wordcount")
    gated = words(topology).gate(drop("column_values_to_not_be_null", column="word"), name="clean")
    counts = gated.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    ask = topology.new_query_stream("ask", "word string").state_query(counts, "word", MapGet(), "n")
    ask.aggregate("n", Sum(), "sum")
    plan = topology.build()
    assert isinstance(plan, TopologyPlan)
    assert [spout.stream for spout in plan.spouts] == ["sentences", "ask"]
    components = {"b-0", "b-1", "b-2", "b-3", "b-4", "spout-sentences", "spout-ask0"}
    assert plan.parallelism == dict.fromkeys(components, 1)
    assert plan.coordinators == ("$mastercoord-bg0", "$spoutcoord-spout-sentences")
    assert set(plan.resources) == {*components, *plan.coordinators}
    assert plan.lineage == {"counts": {"word": (("sentences", "sentence"),), "n": ()}}
    assert plan.gate_lineage["clean"]["word"] == (("sentences", "sentence"),)
    assert plan.query_lineage == {"ask": {"sum": (("counts", "n"),)}}
    assert plan.to_mermaid().startswith("flowchart LR\n")


def test_a_layout_is_made_once_and_anew_after_a_change() -> None:
    topology = TridentTopology("t")
    stream = words(topology).shuffle().filter("word > 'a'")
    first = layout(topology.graph)
    assert layout(topology.graph) is first
    stream.parallelism_hint(3)
    assert node_tasks(topology.graph)[stream.node] == 3
    more = stream.filter("word > 'b'")
    assert node_tasks(topology.graph)[more.node] == 3
