"""Tasks and resources of bolts, rule by rule: Trident rules 3.9 and 3.10, and the original's test of both."""

from typing import Any

import pytest

from pipelines.errors import ParallelismError, ResourceError
from pipelines.graph.bolts import node_tasks
from pipelines.sources import FixedBatches
from pipelines.trident import (
    Count,
    DeltaState,
    MapGet,
    ReducerAggregator,
    Split,
    Stream,
    Sum,
    TridentState,
    TridentTopology,
)


class Wide(FixedBatches):
    """A source that can start in any number of tasks."""

    max_parallelism = None


class Narrow(FixedBatches):
    max_parallelism = 3


def stream(topology: TridentTopology, name: str = "s", source: type[FixedBatches] = Wide) -> Stream:
    return topology.new_stream(name, source("a string, b bigint", []))


def tasks(*made: Any) -> list[int]:
    """Of the nodes of streams and states."""
    topology = made[0].source._topology if isinstance(made[0], TridentState) else made[0]._topology
    found = node_tasks(topology.graph)
    return [found[one.node] for one in made]


# --- 3.9


def test_rule_3_9_one_task_without_a_hint() -> None:
    topology = TridentTopology("t")
    stream(topology).filter("b > 0").shuffle().filter("b > 1")
    assert set(topology.build().parallelism.values()) == {1}


def test_rule_3_9_a_hint_reaches_back_and_forth_to_the_next_repartitions() -> None:
    topology = TridentTopology("t")
    source = stream(topology)
    one = source.shuffle().filter("b > 0")
    two = one.project(["a", "b"]).parallelism_hint(4)
    three = two.filter("b > 1")
    four = three.shuffle().filter("b > 2")
    assert tasks(source, one, two, three, four) == [1, 4, 4, 4, 1]


def test_rule_3_9_a_hint_at_the_spout_reaches_to_the_first_repartition() -> None:
    topology = TridentTopology("t")
    source = stream(topology).parallelism_hint(5)
    one = source.filter("b > 0")
    counted = one.group_by("a").aggregate(Count(), "n")
    assert tasks(source, one, counted) == [5, 5, 1]
    parallelism = topology.build().parallelism
    assert parallelism == {"spout-s": 5, "b-0": 1, "b-1": 5}


def test_rule_3_9_the_largest_hint_of_a_class_wins() -> None:
    topology = TridentTopology("t")
    source = stream(topology).parallelism_hint(2)
    one = source.filter("b > 0").parallelism_hint(7)
    two = one.filter("b > 1").parallelism_hint(3)
    assert tasks(source, one, two) == [7, 7, 7]


def test_rule_3_9_identity_partitions_make_classes() -> None:
    """Bolts of their own, which identity partitions join: all have the tasks of the largest hint."""
    topology = TridentTopology("t")
    left, right = stream(topology, "x"), stream(topology, "y")
    merged = topology.merge(left, right)
    behind = merged.identity_partition().filter("b > 0").parallelism_hint(6)
    assert tasks(left, right, merged, behind) == [6, 6, 6, 6]


def test_rule_3_9_the_source_caps_its_whole_class() -> None:
    topology = TridentTopology("t")
    capped = stream(topology, "x", Narrow).parallelism_hint(9)
    other = stream(topology, "y")
    merged = topology.merge(capped, other.filter("b > 0").parallelism_hint(8))
    free = merged.shuffle().filter("b > 0").parallelism_hint(8)
    assert tasks(capped, other, merged, free) == [3, 3, 3, 8]


def test_rule_3_9_fixed_batches_run_in_one_task() -> None:
    topology = TridentTopology("t")
    source = stream(topology, source=FixedBatches).parallelism_hint(5)
    assert tasks(source, source.filter("b > 0").parallelism_hint(5)) == [1, 1]


def test_rule_3_9_a_state_with_a_number_of_partitions_fixes_it() -> None:
    topology = TridentTopology("t")
    counts = stream(topology).group_by("a").persistent_aggregate(DeltaState("counts", partitions=3), Count(), "n")
    counts.parallelism_hint(8)
    asked = topology.new_query_stream("ask").group_by("args").state_query(counts, "args", MapGet(), "n")
    assert tasks(counts, counts.new_values_stream(), asked) == [3, 3, 3]


def test_rule_3_9_fixed_above_the_cap_is_refused() -> None:
    topology = TridentTopology("t")
    stream(topology, source=Narrow).partition_persist(DeltaState("rows", partitions=4))
    with pytest.raises(
        ParallelismError, match="Parallelism is fixed to 4 but max parallelism is less than that: 3"
    ) as e:
        topology.build()
    assert (e.value.states, e.value.fixed, e.value.maximum) == (("rows",), (4,), 3)
    with pytest.raises(ParallelismError):
        node_tasks(topology.graph)


def test_rule_3_9_two_fixed_values_in_a_class_are_refused() -> None:
    topology = TridentTopology("t")
    source = stream(topology)
    source.partition_persist(DeltaState("two", partitions=2))
    source.partition_persist(DeltaState("three", partitions=3))
    with pytest.raises(
        ParallelismError, match="Cannot have one group have fixed parallelism of two different values"
    ) as refused:
        topology.build()
    assert (refused.value.states, refused.value.fixed, refused.value.maximum) == (("two", "three"), (2, 3), None)


def test_rule_3_9_behind_a_repartition_each_state_has_its_own_number() -> None:
    topology = TridentTopology("t")
    source = stream(topology).filter("b > 0")
    two = source.shuffle().partition_persist(DeltaState("two", partitions=2))
    three = source.shuffle().partition_persist(DeltaState("three", partitions=3))
    assert tasks(two, three) == [2, 3]


def test_rule_3_9_a_hint_or_resource_right_behind_a_repartition_concerns_nothing() -> None:
    topology = TridentTopology("t")
    dealt = stream(topology).shuffle().parallelism_hint(8).set_resources(cpu=50)
    behind = dealt.filter("b > 0")
    assert tasks(dealt, behind) == [1, 1]
    assert topology.build().resources["b-0"] == {}


def test_rule_3_9_a_hint_on_an_aggregate_is_that_of_its_last_part() -> None:
    topology = TridentTopology("t")
    source = stream(topology).filter("b > 0").parallelism_hint(2)
    summed = source.group_by("a").aggregate("b", Sum(), "x").parallelism_hint(5)
    own = source.partition_aggregate("b", Sum(), "x")
    assert tasks(source, summed, own) == [2, 5, 2]


def test_rule_3_9_a_hint_on_a_state_is_that_of_its_bolt() -> None:
    topology = TridentTopology("t")
    reducer = ReducerAggregator(lambda: 0, lambda total, value: total + value)
    source = stream(topology)
    one = source.group_by("a").persistent_aggregate(DeltaState("one"), Count(), "n").parallelism_hint(6)
    two = source.group_by("a").persistent_aggregate(DeltaState("two"), "b", reducer, "n").parallelism_hint(4)
    three = source.group_by("a").persistent_aggregate(DeltaState("three"), Count(), "n")
    changed = three.new_values_stream().parallelism_hint(3)
    assert tasks(source, one, two, three, changed) == [1, 6, 4, 3, 3]


def test_a_repartition_deals_to_the_tasks_behind_it() -> None:
    topology = TridentTopology("t")
    dealt = stream(topology).shuffle()
    again = dealt.global_()
    behind = again.filter("b > 0").parallelism_hint(4)
    nothing_behind = behind.shuffle()
    assert tasks(dealt, again, behind, nothing_behind) == [1, 4, 4, 1]


def test_rule_3_9_a_query_hint_reaches_its_entrance_and_its_return_address() -> None:
    topology = TridentTopology("t")
    topology.new_query_stream("ask").parallelism_hint(3).group_by("args").state_query("far", "args", MapGet(), "x")
    parallelism = topology.build().parallelism
    assert parallelism["spout-ask0"] == 3
    assert sorted(parallelism.values()) == [1, 1, 3, 3, 3]


# --- 3.10


def needs(build: Any, **defaults: float) -> dict[str, Any]:
    topology = TridentTopology("t")
    if defaults:
        topology.set_resource_defaults(**defaults)
    build(stream(topology))
    return {name: dict(found) for name, found in topology.build().resources.items()}


def test_rule_3_10_the_sum_over_a_bolts_operations_of_defaults_and_own_values() -> None:
    found = needs(
        lambda s: s.set_resources(cpu=7).filter("b > 0").set_resources(cpu=50).filter("b > 1").project("a"),
        cpu=10,
        memory=5,
    )
    assert found["b-0"] == {"cpu": 70.0, "memory": 15.0}
    assert found["spout-s"] == found["$spoutcoord-spout-s"] == {"cpu": 7.0, "memory": 5.0}
    assert found["$mastercoord-bg0"] == {"cpu": 10.0, "memory": 5.0}


def test_rule_3_10_a_lower_value_of_its_own_wins_over_the_default() -> None:
    assert needs(lambda s: s.filter("b > 0").set_resources(cpu=1), cpu=10)["b-0"] == {"cpu": 1.0}


def test_rule_3_10_the_coordinator_has_values_of_its_own() -> None:
    topology = TridentTopology("t")
    topology.set_resource_defaults(cpu=10, memory=5).set_coordinator_resources(memory=900)
    stream(topology).filter("b > 0")
    resources = topology.build().resources
    assert resources["$mastercoord-bg0"] == {"cpu": 10.0, "memory": 900.0}
    assert resources["$spoutcoord-spout-s"] == {"cpu": 10.0, "memory": 5.0}


def test_rule_3_10_nothing_is_needed_where_nothing_is_said() -> None:
    assert set(map(str, needs(lambda s: s.filter("b > 0")).values())) == {"{}"}


def test_rule_3_10_set_where_others_are_not() -> None:
    with pytest.raises(ResourceError, match=r"^Found an operation with resources set which are not set in other ") as e:
        needs(lambda s: s.filter("b > 0").set_resources(cpu=1).filter("b > 1").set_resources(cpu=1, memory=2))
    assert (e.value.operation, e.value.kinds, e.value.missing) == ("filter b > 1", ("memory",), False)
    assert e.value.bolt == (("filter b > 0", ("cpu",)), ("filter b > 1", ("cpu", "memory")))


def test_rule_3_10_unset_where_others_are_set() -> None:
    with pytest.raises(ResourceError, match=r"^Found an operation with resources unset which are set in other ") as e:
        needs(lambda s: s.filter("b > 0").set_resources(cpu=1, memory=2).filter("b > 1"))
    assert (e.value.operation, e.value.kinds, e.value.missing) == ("filter b > 1", ("cpu", "memory"), True)


def test_rule_3_10_each_has_what_the_other_lacks() -> None:
    """The original failed with a NullPointerException."""
    with pytest.raises(ResourceError) as refused:
        needs(lambda s: s.filter("b > 0").set_resources(cpu=1).filter("b > 1").set_resources(memory=2))
    assert (refused.value.kinds, refused.value.missing) == (("memory",), False)


def test_rule_3_10_a_default_fills_the_keys_of_all() -> None:
    found = needs(lambda s: s.filter("b > 0").set_resources(cpu=1).aggregate(Count(), "n"), cpu=0)
    assert found["b-1"] == {"cpu": 1.0}


# --- tests of the original


def test_original_set_component_resources() -> None:
    """TridentIntegrationTest.testSetComponentResources."""
    topology = TridentTopology("t")
    topology.set_resource_defaults(cpu=0, memory=0, off_heap=0)
    state = (
        topology.new_stream("words", Wide("sentence string", []))
        .parallelism_hint(5)
        .set_resources(cpu=20, memory=512, off_heap=256)
        .each("sentence", Split(), "word")
        .set_resources(cpu=10, memory=512)
        .each("word", lambda word: word, "bang")
        .parallelism_hint(10)
        .set_resources(cpu=50, memory=1024)
        .group_by("bang")
        .persistent_aggregate(DeltaState("bangs"), Count(), "count")
        .set_resources(cpu=100, memory=2048)
    )
    plan = topology.build()
    spout = {"cpu": 20.0, "memory": 512.0, "off_heap": 256.0}
    assert plan.resources == {
        "spout-words": spout,
        "$spoutcoord-spout-words": spout,
        "$mastercoord-bg0": {"cpu": 0.0, "memory": 0.0, "off_heap": 0.0},
        "b-0": {"cpu": 100.0, "memory": 2048.0, "off_heap": 0.0},
        "b-1": {"cpu": 60.0, "memory": 1536.0, "off_heap": 0.0},
    }
    assert plan.parallelism == {"spout-words": 10, "b-0": 1, "b-1": 10}
    assert plan.bolts[0].nodes == (state.node,)
