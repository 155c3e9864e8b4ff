"""Each message of Trident rules, section 2, and its counterpart: an error at the line of definition, or why there is none.

| the original's message | here |
|---|---|
| Trying to select non-existent field | FieldError |
| duplicate field; Additive operations cannot add fields with same name | DuplicateFieldError |
| x does not exist (Fields.fieldIndex) | FieldError |
| Combiner aggs only take a single field as input | FunctionError |
| Combiner state updater should receive a single tuple | cannot happen: partial values are folded, however many there are |
| Results size is different than argument size | StateQueryError |
| Each operation, Aggregate operation, Map operation, Partition persist operation, State query operation, Projection \
processor, Aggregation related operation can only have one parent; Expected a single parent | cannot happen: a method of \
`Stream` has one parent; only merge, join and multi_reduce take several, and nobody else can make a node |
| Cannot join DRPC stream with streams originating from other spouts | MixedSpoutsError |
| Regular rich spouts not supported yet; Unsupported stream | FunctionError |
| Planner exception: Null source group must indicate a spout node | cannot happen: only a spout's node has no parents |
| Multiple subscriptions to the same stream with different groupings | cannot happen: the planner puts an identity node \
between them (rules 3.5) |
| Trident only supports components that emit a single stream; Trident does not support direct streams | cannot happen: a \
source is one stream; `direct(field)` is an operation |
| Can only do an identity grouping when source and target have same number of tasks | cannot happen: both sides are one \
class of parallelism (rules 3.9) |
| Multireducer groupFields and inputFields must be the same size | FunctionError |
| Require input fields for each aggregator | FunctionError |
| Output fields for chained aggregators must be distinct | ChainOutputsError |
| Unsupported out-fields mode; Got unexpected delegates to ComboList | FunctionError |
| Must manage at least one spout | DefinitionError, from build() |
| Parallelism is fixed to ...; Cannot have one group have fixed parallelism of two different values | ParallelismError, \
from build() |
| Found an operation with resources set which are not set in other operations | ResourceError, from build() |
| slideLength should always be less than windowLength | with the windows |
"""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import (
    ChainOutputsError,
    DefinitionError,
    DuplicateFieldError,
    FieldError,
    FunctionError,
    MixedSpoutsError,
    ParallelismError,
    ResourceError,
    StateQueryError,
)
from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.trident import (
    CombinerAggregator,
    Count,
    DeltaState,
    MapGet,
    MultiReducer,
    QueryFunction,
    RowFunction,
    Split,
    Stream,
    Sum,
    TridentTopology,
)


def new_topology() -> tuple[TridentTopology, Stream]:
    topology = TridentTopology("t")
    return topology, topology.new_stream("s", FixedBatches("sentence string, n bigint", []))


def test_trying_to_select_a_non_existent_field() -> None:
    _, stream = new_topology()
    with pytest.raises(FieldError) as caught:
        stream.each("sentence1", Split(), "word")
    assert (caught.value.field, caught.value.available) == ("sentence1", ("sentence", "n"))
    assert "no such field; this stream has: sentence, n" in str(caught.value)
    assert 'did you mean "sentence"?' in str(caught.value)


def test_section_10_the_originals_stream_projection_validation() -> None:
    topology, stream = new_topology()
    words = stream.each("sentence", Split(), "word")
    counts = words.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "count")
    for wrong in (
        lambda: stream.each("sentence1", Split(), "word"),
        lambda: words.group_by("word1"),
        lambda: words.group_by("word").aggregate("word1", Count(), "c"),
        lambda: words.project("word1"),
        lambda: words.partition_by("word1"),
        lambda: words.partition_aggregate("word1", Count(), "c"),
        lambda: words.group_by("word").persistent_aggregate(DeltaState("x"), "non_existent", Count(), "c"),
        lambda: words.partition_persist(DeltaState("x"), "non_existent"),
        lambda: topology.new_query_stream("ask").group_by("args").state_query(counts, "word1", MapGet(), "c"),
    ):
        with pytest.raises(FieldError):
            wrong()


def test_none_for_input_fields_is_always_valid() -> None:
    _, stream = new_topology()
    assert stream.each(None, RowFunction(lambda: "x", ("string",)), "x").output_fields == ("sentence", "n", "x")
    assert stream.partition_persist(DeltaState("x"), None).fields == ("sentence", "n")


def test_a_duplicate_field() -> None:
    _, stream = new_topology()
    with pytest.raises(DuplicateFieldError) as caught:
        stream.each("sentence", Split(), "sentence")
    assert (caught.value.field, caught.value.available) == ("sentence", ("sentence", "n"))
    with pytest.raises(DuplicateFieldError):
        stream.project(["n", "n"])


def test_combiner_aggs_only_take_a_single_field() -> None:
    _, stream = new_topology()
    for aggregator in (Sum(), CombinerAggregator(int, max, int)):
        with pytest.raises(FunctionError, match=r"makes a single field; got \['x', 'y'\]"):
            stream.persistent_aggregate(DeltaState("x"), "n", aggregator, ["x", "y"])


class Forgetful(QueryFunction):
    """Gives one result too few."""

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return state.multi_get(arguments)[1:]


def test_results_size_is_different_than_argument_size() -> None:
    topology, stream = new_topology()
    counts = stream.group_by("sentence").persistent_aggregate(DeltaState("counts"), Count(), "c")
    stream.state_query(counts, "sentence", Forgetful(), "x bigint").partition_persist(DeltaState("out"))
    with pytest.raises(StateQueryError, match="Results size is different than argument size: 1 vs 2") as caught:
        run_topology(topology, {"s": [[], [("a", 1), ("b", 2)]]})
    assert (caught.value.state, caught.value.results, caught.value.arguments) == ("counts", 1, 2)


def test_cannot_join_a_query_stream_with_streams_of_other_spouts() -> None:
    topology, stream = new_topology()
    query = topology.new_query_stream("ask", "a string, b bigint")
    with pytest.raises(MixedSpoutsError, match="with streams originating from other spouts: s") as caught:
        topology.merge(stream, query)
    assert (caught.value.query, caught.value.others) == ("ask", ("s",))


def test_unsupported_stream() -> None:
    with pytest.raises(FunctionError, match="is not a source"):
        TridentTopology("t").new_stream("s", object())


def test_multireducer_group_fields_and_input_fields_must_be_the_same_size() -> None:
    topology, stream = new_topology()
    reducer = MultiReducer(lambda: 0, lambda state, stream, n: state + n, lambda state: state)
    with pytest.raises(FunctionError, match="Multireducer groupFields and inputFields must be the same size"):
        topology.multi_reduce([stream, stream], ["n"], reducer, "x bigint")


def test_require_input_fields_for_each_aggregator() -> None:
    _, stream = new_topology()
    with pytest.raises(FunctionError, match=r"Sum takes 1 field\(s\); got \[\]"):
        stream.chained_agg().aggregate(Count(), "c").aggregate(Sum(), "s")


def test_output_fields_for_chained_aggregators_must_be_distinct() -> None:
    _, stream = new_topology()
    chain = stream.chained_agg().aggregate(Count(), "c")
    with pytest.raises(ChainOutputsError, match=r"Output fields for chained aggregators must be distinct: \[c, c\]"):
        chain.aggregate("n", Sum(), "c")


def test_joins_that_do_not_fit() -> None:
    topology, stream = new_topology()
    with pytest.raises(FunctionError, match="unsupported out-fields mode: 'wide'"):
        topology.join(stream, "n", stream, "n", ["n", "a", "b"], mode="wide")
    with pytest.raises(FunctionError, match="2 output fields are named for the 3 of mode compact"):
        topology.join(stream, "n", stream, "n", ["n", "a"])


def test_must_manage_at_least_one_spout() -> None:
    with pytest.raises(DefinitionError, match="is empty"):
        TridentTopology("t").build()


def test_parallelism_that_cannot_be() -> None:
    topology, stream = new_topology()
    stream.partition_persist(DeltaState("x", partitions=3))
    with pytest.raises(ParallelismError, match="Parallelism is fixed to 3 but max parallelism is less than that: 1"):
        topology.build()
    topology, stream = new_topology()
    moved = stream.shuffle().filter("n > 1")
    moved.partition_persist(DeltaState("x", partitions=3))
    moved.partition_persist(DeltaState("y", partitions=2))
    with pytest.raises(ParallelismError, match="Cannot have one group have fixed parallelism of two different values"):
        topology.build()


def test_resources_that_not_all_of_a_group_have() -> None:
    topology, stream = new_topology()
    stream.filter("n > 1").set_resources(cpu=10).filter("n > 2").partition_persist(DeltaState("x"))
    with pytest.raises(ResourceError, match=r"Found an operation with resources (un)?set"):
        topology.build()
