"""Column lineage from the graph: the rules of `pipelines.graph.lineage`."""

from pipelines.graph.lineage import lineage
from pipelines.quality import drop
from pipelines.sources import FixedBatches
from pipelines.trident import (
    Average,
    Count,
    DeltaState,
    MapGet,
    Max,
    SnapshotGet,
    Split,
    Stream,
    Sum,
    TridentTopology,
    row_function,
)


def flights() -> tuple[TridentTopology, Stream]:
    topology = TridentTopology("flights")
    source = FixedBatches("origin string, carrier string, dep_delay double, arr_delay double", [])
    return topology, topology.new_stream("departures", source)


@row_function(["bigint", "bigint"])
def two(*values: object) -> object:
    yield (1, 2)


def test_a_spout_is_its_own_origin() -> None:
    topology, stream = flights()
    assert lineage(topology, stream.node)["origin"] == (("departures", "origin"),)


def test_each_takes_from_all_its_inputs_and_leaves_the_rest() -> None:
    topology, stream = flights()
    stream = stream.each(["dep_delay", "arr_delay"], two, ["x", "y"])
    found = lineage(topology, stream.node)
    both = (("departures", "dep_delay"), ("departures", "arr_delay"))
    assert (found["x"], found["y"]) == (both, both)
    assert found["carrier"] == (("departures", "carrier"),)


def test_each_without_inputs_comes_from_nothing() -> None:
    topology, stream = flights()
    assert lineage(topology, stream.each(two, ["x", "y"]).node)["x"] == ()


def test_map_takes_every_field_from_all_fields() -> None:
    topology, stream = flights()
    found = lineage(topology, stream.project(["origin", "carrier"]).map(two, ["x", "y"]).node)
    both = (("departures", "origin"), ("departures", "carrier"))
    assert found == {"x": both, "y": both}


def test_filters_gates_and_peeks_leave_no_trace() -> None:
    topology, stream = flights()
    checked = stream.filter("dep_delay > 15").gate(drop("column_values_to_not_be_null", column="origin")).peek(print)
    assert lineage(topology, checked.node) == lineage(topology, stream.node)


def test_aggregates_take_from_their_inputs_and_count_from_nothing() -> None:
    topology, stream = flights()
    delays = stream.group_by("origin").persistent_aggregate(
        DeltaState("delays"), [Count("n"), Average("dep_delay", "mean"), Max("arr_delay", "worst")]
    )
    assert lineage(topology, delays.node) == {
        "origin": (("departures", "origin"),),
        "n": (),
        "mean": (("departures", "dep_delay"),),
        "worst": (("departures", "arr_delay"),),
    }


def test_an_aggregate_may_name_its_output_like_its_input() -> None:
    topology, stream = flights()
    summed = stream.group_by("origin").aggregate("dep_delay", Sum(), "dep_delay")
    assert lineage(topology, summed.node)["dep_delay"] == (("departures", "dep_delay"),)


def test_persisted_rows_keep_their_fields() -> None:
    topology, stream = flights()
    rows = stream.partition_persist(DeltaState("departures"), ["carrier", "origin"])
    assert lineage(topology, rows.node) == {
        "carrier": (("departures", "carrier"),),
        "origin": (("departures", "origin"),),
    }


def test_a_state_query_ends_at_the_states_column() -> None:
    topology, stream = flights()
    one = stream.group_by("origin").persistent_aggregate(DeltaState("counts"), Count(), "n")
    many = stream.group_by("carrier").persistent_aggregate(DeltaState("delays"), [Count("n"), Sum("dep_delay", "s")])
    total = stream.persistent_aggregate(DeltaState("total"), Count(), "n")
    query = (
        topology.new_query_stream("ask", "origin string, carrier string")
        .state_query(one, "origin", MapGet(), "flights")
        .state_query(many, "carrier", MapGet(), ["s", "n"])
        .state_query(total, None, SnapshotGet(), "all")
        .state_query("of_another_flow", "carrier", MapGet(), "x")
    )
    named_as_the_key = topology.new_query_stream("by_place", "place string").state_query(
        one, "place", MapGet(), "origin"
    )
    assert lineage(topology, query.node) == {
        "origin": (("ask", "origin"),),
        "carrier": (("ask", "carrier"),),
        "flights": (("counts", "n"),),
        "s": (("delays", "s"),),
        "n": (("delays", "n"),),
        "all": (("total", "n"),),
        "x": (("of_another_flow", "x"),),
    }
    assert lineage(topology, named_as_the_key.node)["origin"] == (("counts", "n"),)


def test_the_design_example() -> None:
    topology = TridentTopology("wordcount")
    counts = (
        topology.new_stream("sentences", FixedBatches("sentence string", []))
        .each("sentence", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    )
    assert lineage(topology, counts.node) == {"word": (("sentences", "sentence"),), "count": ()}
