"""Column lineage of one topology with every operation, and of functions that declare theirs."""

from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.errors import FieldError
from pipelines.graph import nodes
from pipelines.graph.lineage import Lineage, lineage
from pipelines.quality import drop
from pipelines.sources import FixedBatches
from pipelines.trident import (
    Aggregator,
    ArrowFunction,
    CombinerAggregator,
    Count,
    DeltaState,
    FixedState,
    MapGet,
    Max,
    MultiReducer,
    QueryFunction,
    ReducerAggregator,
    RowFunction,
    Split,
    StateUpdater,
    Stream,
    Sum,
    TridentTopology,
    TupleCollectionGet,
    row_function,
)


def stream(topology: TridentTopology, name: str = "s", schema: str = "a string, b bigint, c bigint") -> Stream:
    return topology.new_stream(name, FixedBatches(schema, []))


def origins(found: Lineage) -> dict[str, set[str]]:
    """`{"x": {"s.a", "s.b"}}`"""
    return {field: {".".join(one) for one in sources} for field, sources in found.items()}


def of(made: Any) -> dict[str, set[str]]:
    """The lineage of a stream's fields."""
    return origins(lineage(made._topology, made.node))


def two(*values: Any) -> Iterator[Any]:
    yield 1, 2


class Adds(StateUpdater):
    keys, values = "a string", "total bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> None: ...


class Asks(QueryFunction):
    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [None] * len(arguments)


def test_repartitions_and_extremes_leave_no_trace() -> None:
    topology = TridentTopology("t")
    source = stream(topology)
    moved = source.shuffle().partition_by("a").broadcast().global_().batch_global().identity_partition()
    moved = moved.local_or_shuffle().direct("b").partition(lambda *fields: fields[1])
    assert of(moved.min_by("b").max_by("c").max(lambda a, b: 0)) == of(source)


def test_merge_goes_by_position() -> None:
    topology = TridentTopology("t")
    other = stream(topology, "o", "x string, y bigint, a bigint")
    assert of(topology.merge(stream(topology), other, outputs=["p", "q", "r"])) == {
        "p": {"s.a", "o.x"},
        "q": {"s.b", "o.y"},
        "r": {"s.c", "o.a"},
    }


def test_a_compact_join_takes_its_keys_from_all_sides() -> None:
    topology = TridentTopology("t")
    other = stream(topology, "o", "y bigint, x string")
    joined = topology.join(stream(topology), "a", other, "x", ["k", "one", "two", "three"])
    assert of(joined) == {"k": {"s.a", "o.x"}, "one": {"s.b"}, "two": {"s.c"}, "three": {"o.y"}}


def test_a_preserving_join_shows_each_side_as_it_is() -> None:
    topology = TridentTopology("t")
    other = stream(topology, "o", "y bigint, x string")
    joined = topology.join(stream(topology), "a", other, "x", ["f", "g", "h", "i", "j"], mode="preserve")
    assert of(joined) == {"f": {"s.a"}, "g": {"s.b"}, "h": {"s.c"}, "i": {"o.y"}, "j": {"o.x"}}


def test_a_multi_reduce_takes_from_all_inputs_and_groups() -> None:
    topology = TridentTopology("t")
    other = stream(topology, "o", "x string, y bigint")
    reducer = MultiReducer(list, lambda state, n, *values: None, lambda state: state, returns=["bigint"])
    plain = topology.multi_reduce([stream(topology), other], ["b", "y"], reducer, ["n"])
    assert of(plain) == {"n": {"s.b", "o.y"}}
    grouped = TridentTopology("g")
    streams = [stream(grouped).group_by("a"), stream(grouped, "o", "x string, y bigint").group_by("x")]
    assert of(grouped.multi_reduce(streams, ["b", "y"], reducer, ["n"])) == {"n": {"s.a", "s.b", "o.x", "o.y"}}


def test_group_fields_before_the_outputs_go_by_position() -> None:
    topology = TridentTopology("t")
    left, right = stream(topology), stream(topology, "o", "x string, y bigint")
    node = topology.graph.new(
        nodes.MultiReduceNode,
        (left.node, right.node),
        fields=("k", "n"),
        reducer=None,
        inputs=(("b",), ("y",)),
        groups=(("a",), ("x",)),
        outputs=("n",),
        types=("bigint",),
    )
    assert origins(lineage(topology, node.id)) == {"k": {"s.a", "o.x"}, "n": {"s.a", "s.b", "o.x", "o.y"}}


def test_new_values_come_from_what_the_state_comes_from() -> None:
    topology = TridentTopology("t")
    summed = stream(topology).group_by("a").persistent_aggregate(DeltaState("sums"), "b", Sum(), "sum")
    assert of(summed.new_values_stream()) == {"a": {"s.a"}, "sum": {"s.b"}}
    kept = stream(topology, "o").partition_persist(DeltaState("rows"), ["c", "a"])
    assert of(kept.new_values_stream()) == {"c": {"o.c"}, "a": {"o.a"}}


def test_an_updater_makes_its_state_and_its_outputs_from_its_inputs() -> None:
    topology = TridentTopology("t")
    state = stream(topology).partition_persist(DeltaState("u"), ["a", "b"], Adds(), "seen string")
    assert of(state.new_values_stream()) == {"seen": {"s.a", "s.b"}}
    assert topology.build().lineage["u"]["total"] == (("s", "a"), ("s", "b"))


def test_static_states_are_origins() -> None:
    topology = TridentTopology("t")
    fixed = topology.new_static_state(FixedState("followers", "who string, list array<string>", "who", []))
    assert origins(lineage(topology, fixed.node)) == {"who": {"followers.who"}, "list": {"followers.list"}}
    asked = topology.new_query_stream("ask").state_query(fixed, "args", MapGet(), "found")
    assert of(asked) == {"args": {"ask.args"}, "found": {"followers.list"}}


def test_all_tuples_of_a_state_by_place_and_by_name() -> None:
    topology = TridentTopology("t")
    state = stream(topology).group_by("a").persistent_aggregate(DeltaState("counts"), Count(), "n")
    asked = topology.new_query_stream("ask").state_query(state, None, TupleCollectionGet(), ["word", "count"])
    assert of(asked) == {"args": {"ask.args"}, "word": {"counts.a"}, "count": {"counts.n"}}


def test_a_query_function_in_python_takes_from_its_inputs_and_the_values_of_the_state() -> None:
    topology = TridentTopology("t")
    state = stream(topology).group_by("a").persistent_aggregate(DeltaState("two"), [Count("n"), Max("b", "most")])
    asked = topology.new_query_stream("ask", "w string, z string").state_query(state, "w", Asks(), "x bigint")
    assert of(asked)["x"] == {"ask.w", "two.n", "two.most"}
    foreign = topology.new_query_stream("far").state_query("elsewhere", "args", Asks(), "x bigint")
    assert of(foreign)["x"] == {"far.args", "elsewhere.x"}


def test_aggregators_of_each_kind_and_a_chain() -> None:
    topology = TridentTopology("t")
    combiner = CombinerAggregator(lambda b: b, max, lambda: 0)
    general = Aggregator(list, lambda state, *values: None, lambda state: state, returns=["bigint", "bigint"])
    reducer = ReducerAggregator(lambda: 0, lambda total, b: total + b)
    chain = (
        stream(topology)
        .group_by("a")
        .chained_agg()
        .aggregate("b", combiner, "most")
        .aggregate(["b", "c"], general, ["x", "y"])
        .aggregate("c", reducer, "sum")
        .aggregate(Count(), "n")
        .chain_end()
    )
    assert of(chain) == {
        "a": {"s.a"},
        "most": {"s.b"},
        "x": {"s.b", "s.c"},
        "y": {"s.b", "s.c"},
        "sum": {"s.c"},
        "n": set(),
    }
    assert of(stream(topology, "o").partition_aggregate("b", Sum(), "part")) == {"part": {"o.b"}}


@pytest.mark.parametrize("kind", [RowFunction, ArrowFunction])
def test_a_function_may_declare_its_lineage(kind: Any) -> None:
    topology = TridentTopology("t")
    function = kind(two, ("bigint", "bigint"), lineage={"x": ["b"]})
    found = of(stream(topology).each(["a", "b"], function, ["x", "y"]))
    assert (found["x"], found["y"]) == ({"s.b"}, {"s.a", "s.b"})
    assert of(stream(topology, "o").map(function, ["x", "y"])) == {"x": {"o.b"}, "y": {"o.a", "o.b", "o.c"}}


def test_any_callable_and_aggregator_may_declare_its_lineage() -> None:
    topology = TridentTopology("t")

    def swapped(*columns: Any) -> Any:
        return columns

    swapped.lineage = {"x": ["b"], "y": ["a"]}  # type: ignore[attr-defined]
    found = of(stream(topology).each(["a", "b"], swapped, ["x", "y"]))
    assert (found["x"], found["y"]) == ({"s.b"}, {"s.a"})
    general = Aggregator(list, lambda state, *values: None, lambda state: state, returns=["bigint", "bigint"])
    general.lineage = {"y": []}  # type: ignore[attr-defined]
    assert of(stream(topology, "o").aggregate(["b", "c"], general, ["x", "y"])) == {"x": {"o.b", "o.c"}, "y": set()}


def test_the_decorator_declares_too_and_types_may_come_later() -> None:
    @row_function(["bigint", "bigint"], lineage={"x": []})
    def decorated(*values: Any) -> Iterator[Any]:
        yield 1, 2

    topology = TridentTopology("t")
    assert of(stream(topology).each("a", decorated, ["x", "y"]))["x"] == set()
    untyped = RowFunction(two, lineage={"x": []})
    assert of(stream(topology, "o").each("a", untyped, "x bigint, y bigint"))["x"] == set()


def test_a_declared_input_that_is_not_there_is_refused() -> None:
    topology = TridentTopology("t")
    made = stream(topology).each("a", RowFunction(two, ("bigint", "bigint"), lineage={"x": ["d"]}), ["x", "y"])
    with pytest.raises(FieldError, match=r'lineage of two\("d"\)'):
        lineage(topology, made.node)


def test_one_topology_with_every_operation() -> None:
    topology = TridentTopology("everything")
    lines = stream(topology, "lines", "line string, at bigint").each("line", Split(), "word")
    words = lines.gate(drop("column_values_to_not_be_null", column="word"), name="clean").peek(print)
    words = words.filter("word != ''").project(["word", "at"]).shuffle().max_by("at")
    others = stream(topology, "others", "w string, t bigint").map(lambda w, t: (w, t))
    merged = topology.merge(words, others).partition_by("word")
    marked = merged.state_query("marks", "word", MapGet(), "mark")
    counted = marked.group_by("word").aggregate([Count("n"), Max("at", "last"), Sum("mark", "marks")])
    joined = topology.join(counted, "word", merged, "word", ["word", "n", "last", "marks", "at"])
    state = joined.group_by("word").persistent_aggregate(DeltaState("all"), [Max("last", "last"), Sum("marks", "m")])
    state.new_values_stream().partition_persist(DeltaState("changes"))
    ask = topology.new_query_stream("ask").state_query(state, "args", MapGet(), ["last", "m"])
    ask.aggregate("m", Sum(), "sum")
    plan = topology.build()
    both = {"lines.line", "others.w", "others.t"}
    late = {"lines.at", "others.w", "others.t"}
    assert origins(plan.lineage["all"]) == {"word": both, "last": late, "m": {"marks.mark"}}
    assert plan.lineage["changes"] == plan.lineage["all"]
    assert origins(plan.gate_lineage["clean"])["word"] == {"lines.line"}
    assert origins(plan.query_lineage["ask"]) == {"sum": {"all.m"}}
