"""Definition of repartitions, chains, aggregators, hints and resources: what is refused at its line (Trident rules 1, 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from pipelines.aggregators.folds import Running
from pipelines.errors import (
    ChainOutputsError,
    DuplicateFieldError,
    FieldError,
    FunctionError,
    ResourceError,
    TrideltaError,
)
from pipelines.graph import nodes
from pipelines.sources import FixedBatches
from pipelines.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    Debug,
    DeltaState,
    Equals,
    FilterNull,
    FirstN,
    Not,
    ReducerAggregator,
    RowFunction,
    Split,
    Stream,
    Sum,
    TridentTopology,
)


def new_stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatches("sentence string, word string, n bigint", []))


def last(stream: Stream) -> Any:
    return stream._topology.graph[stream.node]


def general(returns: Any = "bigint") -> Aggregator:
    return Aggregator(list, lambda state, n: None, lambda state: state, returns=returns)


def one_more() -> CombinerAggregator:
    return CombinerAggregator(lambda n: n, lambda a, b: a + b, lambda: 0)


MISSING: dict[str, Callable[[Stream], Any]] = {
    "partition_by": lambda s: s.partition_by(["word", "wrod"]),
    "direct": lambda s: s.direct("wrod"),
    "min_by": lambda s: s.min_by("wrod"),
    "max_by": lambda s: s.max_by("wrod", lambda a, b: 0),
    "partition_aggregate": lambda s: s.partition_aggregate("wrod", Sum(), "x"),
    "grouped partition_aggregate": lambda s: s.group_by("word").partition_aggregate("wrod", Sum(), "x"),
    "chain": lambda s: s.chained_agg().aggregate(Count(), "c").aggregate("wrod", Sum(), "x"),
    "grouped chain": lambda s: s.group_by("word").chained_agg().partition_aggregate("wrod", Sum(), "x"),
    "aggregate in Python": lambda s: s.aggregate("wrod", one_more(), "x"),
    "FirstN's field": lambda s: s.apply_assembly(FirstN(3, "wrod")),
    "FirstN's field among its inputs": lambda s: s.aggregate(["word"], FirstN(3, "n"), ["x"]),
    "filter": lambda s: s.filter("wrod", FilterNull()),
    "Not of SQL": lambda s: s.filter(Not("wrod = 'a'")),
    "Debug": lambda s: s.each("wrod", Debug()),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_field_that_is_not_there(case: str) -> None:
    with pytest.raises(FieldError) as caught:
        MISSING[case](new_stream())
    assert caught.value.field in ("wrod", "n")


TAKEN: dict[str, Callable[[Stream], Any]] = {
    "chain": lambda s: s.chained_agg().aggregate(Count(), "x").aggregate("n", Sum(), "x"),
    "chain, other case": lambda s: s.chained_agg().aggregate(Count(), "x").partition_aggregate("n", Sum(), "X"),
    "chain and its group": lambda s: s.group_by("word").chained_agg().aggregate(Count(), "word"),
    "outputs of one aggregator": lambda s: s.aggregate("n", general(["bigint", "bigint"]), ["x", "x"]),
    "partition_by": lambda s: s.partition_by(["word", "word"]),
    "partition_aggregate": lambda s: s.group_by("word").partition_aggregate(Count(), "word"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_field_that_is_there_already(case: str) -> None:
    with pytest.raises(DuplicateFieldError):
        TAKEN[case](new_stream())


def test_rule_1_4_the_chains_message() -> None:
    with pytest.raises(
        ChainOutputsError, match=r"Output fields for chained aggregators must be distinct: \[x, y, x\]"
    ) as caught:
        new_stream().chained_agg().aggregate(Count(), "x").aggregate(Count(), "y").aggregate("n", Sum(), "x")
    assert (caught.value.field, caught.value.outputs) == ("x", ("x", "y", "x"))


WRONG: dict[str, Callable[[Stream], Any]] = {
    "partition_by nothing": lambda s: s.partition_by([]),
    "partition by no function": lambda s: s.partition("word"),
    "partition by a generator": lambda s: s.partition(lambda *fields: (yield 1)),
    "partition by a class": lambda s: s.partition(Count),
    "direct of two fields": lambda s: s.direct(cast(str, ["n", "word"])),
    "min_by of two fields": lambda s: s.min_by(cast(str, ["n", "word"])),
    "min without a comparator": lambda s: s.min(cast(Any, None)),
    "max of a field": lambda s: s.max(cast(Any, "n")),
    "an empty chain": lambda s: s.chained_agg().chain_end(),
    "a chain of no aggregator": lambda s: s.chained_agg().aggregate("n", Split(), "x"),
    "a combiner of two outputs": lambda s: s.aggregate("n", one_more(), ["x", "y"]),
    "an aggregator of untold types": lambda s: s.aggregate("n", general(), ["x", "y"]),
    "an aggregator of other outputs": lambda s: s.aggregate("n", general(["int", "int"]), "x"),
    "an aggregator without output": lambda s: s.aggregate([general()]),
    "FirstN of other outputs": lambda s: s.aggregate(["n", "word"], FirstN(1), ["x"]),
    "FirstN of none": lambda s: FirstN(0),
    "FirstN of a half": lambda s: FirstN(cast(int, 0.5)),
    "a combiner without parts": lambda s: CombinerAggregator(lambda n: n),
    "a reducer without parts": lambda s: ReducerAggregator(),
    "an aggregator without parts": lambda s: Aggregator(init=list),
    "a hint of none": lambda s: s.parallelism_hint(0),
    "a hint of a half": lambda s: s.parallelism_hint(cast(int, 1.5)),
    "a hint of truth": lambda s: s.parallelism_hint(True),
    "resources of nothing": lambda s: s.set_resources(),
    "negative resources": lambda s: s.set_resources(cpu=-1),
    "resources in words": lambda s: s.set_resources(memory=cast(float, "1 GB")),
    "endless resources": lambda s: s.set_resources(memory=float("inf")),
    "default resources of nothing": lambda s: s._topology.set_resource_defaults(),
    "coordinator resources in words": lambda s: s._topology.set_coordinator_resources(cpu=cast(float, "x")),
    "no assembly": lambda s: s.apply_assembly(cast(Any, Count())),
    "a persistent aggregate of a general aggregator": lambda s: s.persistent_aggregate(
        DeltaState("x"), "n", general(), "y"
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_there(case: str) -> None:
    with pytest.raises(FunctionError):
        WRONG[case](new_stream())


def test_output_fields() -> None:
    stream = new_stream()
    fields = stream.output_fields
    for moved in (
        *(stream.shuffle(), stream.local_or_shuffle(), stream.partition_by("word"), stream.global_()),
        *(stream.batch_global(), stream.broadcast(), stream.identity_partition(), stream.direct("n")),
        *(stream.partition(lambda *columns: columns[2]), stream.min_by("n"), stream.max(lambda a, b: 0)),
        stream.apply_assembly(FirstN(2)),
    ):
        assert moved.output_fields == fields
    assert stream.partition_aggregate("n", Sum(), "x").output_fields == ("x",)
    assert stream.group_by("word").partition_aggregate("n", Sum(), "x").output_fields == ("word", "x")
    chain = (
        stream.group_by("word")
        .chained_agg()
        .aggregate(Count(), "c")
        .aggregate("n", general(["int", "int"]), ["x", "y"])
    )
    assert chain.chain_end().output_fields == ("word", "c", "x", "y")


def test_rule_1_4_the_last_call_says_whether_a_chain_is_of_partitions() -> None:
    chain = new_stream().chained_agg()
    assert last(chain.aggregate(Count(), "a").partition_aggregate(Count(), "b").chain_end()).partitioned
    assert not last(chain.partition_aggregate(Count(), "a").aggregate(Count(), "b").chain_end()).partitioned


def test_types_of_outputs() -> None:
    stream = new_stream()
    aggregated = last(stream.aggregate("n", general(["int", "string"]), ["x", "y"]))
    assert aggregated.aggregations[0].types == ("int", "string")
    assert last(stream.aggregate("n", general(), "x double, y string")).aggregations[0].types == ("double", "string")
    assert last(stream.aggregate("n", one_more(), "x")).aggregations[0].types == ("bigint",)
    assert last(stream.aggregate("n", Sum(), "x")).aggregations[0].types == ()
    assert last(stream.aggregate(["n", "word"], FirstN(1), ["x", "y"])).aggregations[0].types == ()


def test_an_aggregator_may_name_its_fields() -> None:
    found = new_stream().aggregate([Count("c"), ReducerAggregator(int, lambda t, n: t + n, field="n", output="sum")])
    assert found.output_fields == ("c", "sum")
    assert last(found).aggregations[1].inputs == ("n",)


def test_hints_and_resources_are_said_of_the_operation_before() -> None:
    stream = new_stream().each("sentence", Split(), "w").parallelism_hint(3).set_resources(cpu=10, memory=512)
    assert (last(stream).hint, last(stream).resources) == (3, (("cpu", 10.0), ("memory", 512.0)))
    again = stream.set_resources(memory=64).parallelism_hint(5)
    assert (last(again).hint, dict(last(again).resources)) == (5, {"cpu": 10.0, "memory": 64.0})
    state = stream.group_by("w").persistent_aggregate(DeltaState("x"), Count(), "c")
    assert state.parallelism_hint(7).set_resources(off_heap=1.5) is state
    node = last(state.source)
    assert (node.hint, node.resources) == (7, (("off_heap", 1.5),))


def test_resources_of_the_topology() -> None:
    topology = TridentTopology("t")
    assert topology.set_resource_defaults(cpu=10, memory=128).set_resource_defaults(cpu=20) is topology
    assert topology.set_coordinator_resources(memory=256) is topology
    assert topology.resource_defaults == {"cpu": 20.0, "memory": 128.0}
    assert topology.coordinator_resources == {"memory": 256.0}
    assert issubclass(ResourceError, TrideltaError)


def test_a_broadcasts_query_of_all_tuples_is_cut_in_parts() -> None:
    from pipelines.trident import TupleCollectionGet

    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("word string", []))
    counts = stream.group_by("word").persistent_aggregate(DeltaState("x"), Count(), "n")
    asked = topology.new_query_stream("ask").filter("args is not null")
    for given, parted in (
        (asked.broadcast().filter("args = 'a'"), True),
        (asked.broadcast().shuffle(), False),
        (asked, False),
    ):
        found = last(given.state_query(counts, None, TupleCollectionGet(), ["w", "c"]))
        assert isinstance(found, nodes.StateQueryNode)
        assert found.parted is parted


def test_equals_and_filter_null_as_plain_python() -> None:
    nan = float("nan")
    assert Equals().keep(1, 1, 1)
    assert Equals().keep(None, None)
    assert Equals().keep(nan, nan)
    assert Equals().keep()
    assert not Equals().keep(1, 1, 2)
    assert not Equals().keep(None, 1)
    assert FilterNull().keep(0, "", False)
    assert not FilterNull().keep(0, None)


def test_not_is_of_the_kind_of_what_it_negates() -> None:
    row = Not(RowFunction(lambda n: n if n is None else n > 1)).resolve("filter")
    assert isinstance(row, RowFunction)
    assert [row.call(n) for n in (1, 2, None)] == [True, False, True]
    columns = Not(FilterNull()).resolve("filter")
    assert not isinstance(columns, str | RowFunction)
    assert columns.keep is not None
    assert [columns.keep(n) for n in (1, None)] == [False, True]
    assert Not("n > 1").resolve("filter") == "not coalesce((n > 1), false)"
    again = Not(Not(Equals())).resolve("filter")
    assert not isinstance(again, str | RowFunction)
    assert again.keep is not None
    assert again.keep(1, 1)


def test_debug_logs_the_fields_that_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    node = last(new_stream().each(["n", "word"], Debug("seen")))
    node.consumer({"sentence": "x", "word": "a", "n": 1})
    assert caplog.messages == ["seen: {'n': 1, 'word': 'a'}"]


def test_first_n_keeps_few_tuples_at_a_time() -> None:
    running = Running(FirstN(2, "n").bind(["n"]), 1, 1)
    for n in range(10_000, 0, -1):
        running.add((n,))
    assert len(running.state) < 200
    assert running.complete() == [(1,), (2,)]


def test_first_n_puts_null_and_not_a_number_last() -> None:
    for reverse, expected in ((False, [1.0, 2.0, "nan", None]), (True, ["nan", 2.0, 1.0, None])):
        running = Running(FirstN(9, "x", reverse).bind(["x"]), 1, 1)
        for x in (None, 2.0, float("nan"), 1.0):
            running.add((x,))
        assert [x if x is None or x == x else "nan" for (x,) in running.complete()] == expected
