"""Trident rules, section 2: a wrong line raises when it is written, and says what would be right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pipelines.errors import (
    AggregationError,
    BadNameError,
    DefinitionError,
    DuplicateFieldError,
    FieldError,
    FunctionError,
)
from pipelines.graph.nodes import PersistNode
from pipelines.graph.types import known_types
from pipelines.quality import drop
from pipelines.sources import FixedBatches
from pipelines.state.kinds import MAP, OPAQUE
from pipelines.trident import (
    Average,
    Count,
    DeltaState,
    MapGet,
    Max,
    QueryFunction,
    ReducerAggregator,
    RowFunction,
    SnapshotGet,
    Split,
    StateUpdater,
    Stream,
    Sum,
    TridentState,
    TridentTopology,
)


def new_stream() -> Stream:
    topology = TridentTopology("wordcount")
    return topology.new_stream("sentences", FixedBatches("sentence string, word string, n bigint", []))


def counts_of(stream: Stream) -> TridentState:
    return stream.group_by("word").persistent_aggregate(DeltaState("word_counts"), Count(), "count")


def state() -> DeltaState:
    return DeltaState("s")


MISSING: dict[str, Callable[[Stream], Any]] = {
    "each": lambda s: s.each("wrod", Split(), "x"),
    "each with a filter": lambda s: s.each("wrod", "n > 1"),
    "filter with inputs": lambda s: s.filter(["wrod"], lambda word: word == "a"),
    "filter with SQL": lambda s: s.filter("n > 1 and wrod = 'a'"),
    "filter with SQL over inputs": lambda s: s.filter("word", "wrod = 'a'"),
    "project": lambda s: s.project(["sentence", "wrod"]),
    "group_by": lambda s: s.group_by("wrod"),
    "aggregate": lambda s: s.aggregate("wrod", Sum(), "x"),
    "aggregate, field in the aggregator": lambda s: s.aggregate([Sum("wrod", "x")]),
    "aggregate, Count": lambda s: s.aggregate("wrod", Count(), "x"),
    "grouped aggregate": lambda s: s.group_by("word").aggregate("wrod", Sum(), "x"),
    "persistent_aggregate": lambda s: s.persistent_aggregate(state(), "wrod", Max(), "x"),
    "grouped persistent_aggregate": lambda s: s.group_by("word").persistent_aggregate(state(), "wrod", Sum(), "x"),
    "partition_persist": lambda s: s.partition_persist(state(), ["word", "wrod"]),
    "state_query": lambda s: s.state_query(counts_of(s), "wrod", MapGet(), "x"),
    "grouped state_query": lambda s: s.group_by("word").state_query(counts_of(s), "wrod", MapGet(), "x"),
    "state_query of another flow's state": lambda s: s.state_query("others", "wrod", MapGet(), "x"),
    "gate": lambda s: s.gate(drop("column_values_to_not_be_null", column="wrod")),
    "grouped each": lambda s: s.group_by("word").each("wrod", Split(), "x"),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_field_that_is_not_there(case: str) -> None:
    stream = new_stream()
    with pytest.raises(FieldError) as caught:
        MISSING[case](stream)
    assert (caught.value.field, caught.value.available[:2]) in [
        ("wrod", ("sentence", "word")),
        ("wrod", ("word",)),
    ]
    assert '(did you mean "word"?)' in str(caught.value)


def test_the_message_is_the_designs() -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatches("sentence string", [])).each("sentence", Split(), "word")
    with pytest.raises(FieldError) as caught:
        stream.group_by("wrod")
    assert str(caught.value) == (
        'group_by("wrod"): no such field; this stream has: sentence, word (did you mean "word"?)'
    )


def test_a_projected_field_is_gone_and_its_name_is_free() -> None:
    stream = new_stream().project(["word", "n"])
    with pytest.raises(FieldError):
        stream.filter("sentence = 'a'")
    assert stream.each("word", Split(), "sentence").output_fields == ("word", "n", "sentence")


def test_a_slice_is_made_of_the_sources_fields() -> None:
    topology = TridentTopology("t")
    with pytest.raises(FieldError):
        topology.new_stream("s", FixedBatches("day date", []), slice_by="date_format(dya, 'yyyy')")


def test_each_outputs_of_a_states_query_are_its_values() -> None:
    stream = new_stream()
    totals = stream.group_by("word").persistent_aggregate(state(), [Count("c"), Sum("n", "total")])
    with pytest.raises(FieldError) as caught:
        stream.state_query(totals, "word", MapGet(), "totl")
    assert caught.value.available == ("c", "total")


TAKEN: dict[str, Callable[[Stream], Any]] = {
    "each": lambda s: s.each("sentence", Split(), "word"),
    "each, other case": lambda s: s.each("sentence", Split(), "Word"),
    "each, twice": lambda s: s.each("sentence", lambda c: (c, c), ["x", "x"]),
    "map": lambda s: s.map(lambda *c: c[:2], ["x", "X"]),
    "project": lambda s: s.project(["word", "word"]),
    "group_by": lambda s: s.group_by(["word", "word"]),
    "aggregate": lambda s: s.aggregate([Count("x"), Sum("n", "x")]),
    "grouped aggregate": lambda s: s.group_by("word").aggregate(Count(), "word"),
    "persistent_aggregate": lambda s: s.group_by("word").persistent_aggregate(state(), Count(), "word"),
    "partition_persist": lambda s: s.partition_persist(state(), ["word", "word"]),
    "state_query": lambda s: s.state_query(counts_of(s), "word", MapGet(), "n"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_field_that_is_there_already(case: str) -> None:
    with pytest.raises(DuplicateFieldError):
        TAKEN[case](new_stream())


@pytest.mark.parametrize(
    ("operation", "make"),
    [
        ("partition_by", lambda s: s.partition_by(["n", "n"])),
        ("each", lambda s: s.each(["n", "n"], lambda a, b: a, "x")),
        ("filter", lambda s: s.filter(["n", "n"], lambda a, b: a)),
        ("merge", lambda s: s._topology.merge(s.project("n"), outputs=["n", "n"])),
        ("schema", lambda s: FixedBatches("n bigint, N bigint", [])),
        ("each", lambda s: s.each("word", lambda c: (c, c), ["x", "n_", "N_"])),
    ],
)
def test_a_field_that_is_named_twice(operation: str, make: Callable[[Stream], Any]) -> None:
    with pytest.raises(DuplicateFieldError, match=rf'{operation}: field "(n|N|N_)" is named twice'):
        make(new_stream())


def generator(word: str) -> Any:
    yield word


class Kept(StateUpdater):
    keys, values = "word string", "n bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> None:
        state.multi_put([(word,) for _, word, _ in tuples], [n for _, _, n in tuples])


WRONG: dict[str, Callable[[Stream], Any]] = {
    "each without arguments": lambda s: s.each("word"),
    "each without outputs": lambda s: s.each("word", Split(), []),
    "each of no function": lambda s: s.each("word", 7, "x"),
    "each of a generator without types": lambda s: s.each("word", generator, "x"),
    "filter of no predicate": lambda s: s.filter(7),
    "filter of three arguments": lambda s: s.filter("word", "n", "n > 1"),
    "map of a generator without types": lambda s: s.map(generator),
    "peek of no function": lambda s: s.peek("word"),
    "group_by of nothing": lambda s: s.group_by([]),
    "aggregate of no aggregator": lambda s: s.aggregate("n", Split(), "x"),
    "aggregate of a class": lambda s: s.aggregate("n", Sum, "x"),
    "aggregate without output": lambda s: s.aggregate([Sum("n")]),
    "aggregate with two outputs": lambda s: s.aggregate("n", Sum(), ["x", "y"]),
    "aggregate of no fields": lambda s: s.aggregate(Sum(), "x"),
    "aggregate of too many fields": lambda s: s.aggregate(["n", "word"], Sum(), "x"),
    "aggregate of nothing": lambda s: s.aggregate([]),
    "aggregate of four arguments": lambda s: s.aggregate("n", Sum(), "x", "y"),
    "persistent_aggregate of no state": lambda s: s.persistent_aggregate(cast(DeltaState, "s"), Count(), "x"),
    "persistent_aggregate into rows": lambda s: s.persistent_aggregate(DeltaState("s", layout="rows"), Count(), "x"),
    "partition_persist into a log": lambda s: s.partition_persist(DeltaState("s", layout="log")),
    "partition_persist with an updater": lambda s: s.partition_persist(state(), "n", print),
    "state_query of a class": lambda s: s.state_query(counts_of(s), "word", MapGet, "x"),
    "state_query of a function": lambda s: s.state_query(counts_of(s), "word", Split(), "x"),
    "state_query without outputs": lambda s: s.state_query(counts_of(s), "word", MapGet(), []),
    "MapGet with too many fields": lambda s: s.state_query(counts_of(s), ["word", "n"], MapGet(), "x"),
    "MapGet by name with too many fields": lambda s: s.state_query(counts_of(s).name, ["word", "n"], MapGet(), "x"),
    "MapGet without fields": lambda s: s.state_query("others", None, MapGet(), "x"),
    "MapGet of a state without keys": lambda s: s.state_query(
        s.persistent_aggregate(state(), Count(), "c"), "word", MapGet(), "x"
    ),
    "SnapshotGet with fields": lambda s: s.state_query("others", "word", SnapshotGet(), "x"),
    "SnapshotGet of a state with keys": lambda s: s.state_query(counts_of(s), None, SnapshotGet(), "x"),
    "MapGet of rows": lambda s: s.state_query(s.partition_persist(state()), "word", MapGet(), "x"),
    "gate without checks": lambda s: s.gate(name="g"),
    "each of a number": lambda s: s.each(cast(Any, 5), Split(), "w"),
    "project of a number": lambda s: s.project(cast(Any, 1)),
    "group_by of a number": lambda s: s.group_by(cast(Any, 3)),
    "group_by of a function": lambda s: s.group_by(cast(Any, len)),
    "aggregate of a number": lambda s: s.aggregate(3, Sum(), "x"),
    "partition_persist of a number": lambda s: s.partition_persist(state(), cast(Any, 3)),
    "partition_persist with two updaters alone": lambda s: s.partition_persist(state(), Kept(), Kept()),
    "partition_persist with two updaters": lambda s: s.partition_persist(state(), Kept(), Kept(), "x int"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_there(case: str) -> None:
    with pytest.raises(FunctionError):
        WRONG[case](new_stream())


def test_what_is_no_name_of_fields() -> None:
    with pytest.raises(FunctionError, match="group_by: fields are a name or a list of names; got 3"):
        new_stream().group_by(cast(str, 3))


def test_an_updater_may_stand_in_the_place_of_fields() -> None:
    for made in (
        new_stream().partition_persist(state(), Kept()),
        new_stream().partition_persist(state(), Kept(), "word string"),
        new_stream().partition_persist(state(), Kept(), outputs="word string"),
    ):
        node = cast(PersistNode, made.source._topology.graph[made.node])
        assert (node.inputs, node.group) == (("sentence", "word", "n"), ("word",))
        assert node.outputs in ((), ("word",))


def test_names_of_topologies_streams_states_and_gates() -> None:
    for make in (
        lambda: TridentTopology("Word-Count"),
        lambda: DeltaState("../state"),
        lambda: TridentTopology("t").new_stream("a b", FixedBatches("x string", [])),
        lambda: TridentTopology("t").new_query_stream("Words"),
        lambda: new_stream().name("a-b"),
        lambda: new_stream().gate(drop("column_values_to_not_be_null", column="word"), name="a.b"),
    ):
        with pytest.raises(BadNameError):
            make()


def test_names_are_taken_once() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("word string", []))
    not_null = drop("column_values_to_not_be_null", column="word")
    stream.partition_persist(DeltaState("words"))
    stream.gate(not_null, name="clean")
    topology.new_query_stream("ask")
    for repeat in (
        lambda: topology.new_stream("s", FixedBatches("x string", [])),
        lambda: topology.new_query_stream("s"),
        lambda: topology.new_stream("ask", FixedBatches("x string", [])),
        lambda: stream.partition_persist(DeltaState("words")),
        lambda: stream.group_by("word").persistent_aggregate(DeltaState("words"), Count(), "n"),
        lambda: stream.gate(not_null, name="clean"),
    ):
        with pytest.raises(BadNameError, match=r"is (taken|written)"):
            repeat()


def test_a_gate_without_a_name_takes_a_free_one() -> None:
    stream = new_stream()
    not_null = drop("column_values_to_not_be_null", column="word")
    gated = stream.gate(not_null, name="gate2").gate(not_null).gate(not_null)
    graph = gated._topology.graph
    assert [getattr(node, "gate").name for node in graph if node.label.startswith("gate")] == [  # noqa: B009
        "gate2",
        "gate3",
        "gate4",
    ]


def test_a_state_has_the_kinds_and_layouts_that_there_are() -> None:
    for wrong in ({"kind": "eventual"}, {"layout": "tree"}):
        with pytest.raises(DefinitionError, match=r"there (is|are): "):
            DeltaState("s", **wrong)


def test_a_state_keeps_names_that_delta_can_store() -> None:
    source = FixedBatches("`dep delay` double", [])
    stream = TridentTopology("t").new_stream("s", source)
    with pytest.raises(BadNameError, match="Delta"):
        stream.partition_persist(state())
    stream.map(lambda delay: delay, "dep_delay").partition_persist(state())


@pytest.mark.parametrize("name", ["txid", "TXID"])
def test_an_opaque_map_keeps_no_value_called_txid(name: str) -> None:
    """Its table keeps the values that a batch has replaced in a struct beside their txid."""
    grouped = new_stream().group_by("word")
    with pytest.raises(BadNameError, match=f"'{name}' cannot be a value"):
        grouped.persistent_aggregate(DeltaState("last", OPAQUE, MAP), "n", Max(), name)
    grouped.persistent_aggregate(DeltaState("a_log", OPAQUE), "n", Max(), name)
    grouped.persistent_aggregate(DeltaState("a_map", layout=MAP), "n", Max(), name)
    by_txid = new_stream().each("n", RowFunction(lambda n: n, ("bigint",)), name).group_by(name)
    by_txid.persistent_aggregate(DeltaState("by_txid", OPAQUE, MAP), Count(), "times")


def test_a_handle_of_another_topology_is_read_by_name() -> None:
    other = TridentTopology("other")
    for _ in range(3):
        stream = other.new_stream(f"s{_}", FixedBatches("word string", []))
    counts = stream.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    query = TridentTopology("t").new_query_stream("ask", "word string").state_query(counts, "word", MapGet(), "n")
    node = query._topology.graph[query.node]
    assert (getattr(node, "state"), getattr(node, "state_node")) == ("counts", None)  # noqa: B009


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n >",
        "n > 1; drop table x",
        "n in (select 1)",
        "sum(n) > 1",
        "row_number() over (order by n) = 1",
        "explode(sentence)",
        "n as m",
        "*",
        "n = ?",
        "n = :limit",
        "reflect('java.lang.System', 'exit', n)",
        "`java_method`('a', 'b')",
        "system.builtin.reflect('a', 'b')",
        "drop table x",
    ],
)
def test_sql_is_one_harmless_expression_over_one_tuple(text: str) -> None:
    with pytest.raises(FunctionError):
        new_stream().filter(text)


@pytest.mark.parametrize(
    "text",
    [
        "n > 1 and word rlike '^a'",
        "word in ('a', 'b') or sentence is null",
        "exists(split(sentence, ' '), w -> w = word)",
        "case when n > 1 then true else false end",
        "true",
        "`n` between 1 and 2 -- a comment",
    ],
)
def test_sql_that_is_fine(text: str) -> None:
    assert new_stream().filter(text).output_fields == ("sentence", "word", "n")


def test_output_fields() -> None:
    stream = new_stream()
    assert stream.each("sentence", Split(), "x").output_fields == ("sentence", "word", "n", "x")
    assert stream.map(lambda *c: c).output_fields == ("sentence", "word", "n")
    assert stream.flat_map(lambda *c: c[0], "x").output_fields == ("x",)
    assert stream.project(["n", "word"]).output_fields == ("n", "word")
    assert stream.group_by(["word", "n"]).aggregate(Count(), "c").output_fields == ("word", "n", "c")
    assert stream.aggregate([Count("c"), Average("n", "mean")]).output_fields == ("c", "mean")
    assert counts_of(stream).fields == ("word", "count")
    assert stream.partition_persist(state(), "n").fields == ("n",)
    assert isinstance(MapGet(), QueryFunction)


def test_a_stream_is_immutable() -> None:
    stream = new_stream()
    stream.filter("n > 1")
    stream.name("other").each("sentence", Split(), "x")
    assert stream.output_fields == ("sentence", "word", "n")


def test_nodes_know_the_line_that_made_them() -> None:
    stream = new_stream().filter("n > 1")
    at = stream._topology.graph[stream.node].at
    assert at.file == __file__
    assert "filter" in Path(__file__).read_text().splitlines()[at.line - 1]


@pytest.mark.parametrize("kind", ["string", "array<bigint>"])
@pytest.mark.parametrize("aggregator", [Sum("word", "total"), Average("word", "mean")])
def test_a_sum_of_what_is_no_number_is_refused(aggregator: Sum | Average, kind: str) -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatches(f"word {kind}, n bigint, m decimal(9,2)", [[]]))
    name = type(aggregator).__name__
    for made in (
        lambda: stream.aggregate([aggregator]),
        lambda: stream.group_by("n").aggregate("word", type(aggregator)(), "x"),
        lambda: stream.group_by("n").persistent_aggregate(DeltaState("s"), [Count("n_rows"), aggregator]),
        lambda: stream.chained_agg().partition_aggregate([aggregator]),
    ):
        with pytest.raises(AggregationError, match=rf'{name}\("word"\).* of type {kind}: it takes numbers') as caught:
            made()
        assert caught.value.hint


def test_a_sum_of_what_may_be_a_number_is_taken() -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatches("word string, n bigint, m decimal(9,2)", [[]]))
    assert stream.aggregate([Sum("n", "total"), Average("m", "mean")]).output_fields == ("total", "mean")
    # What Spark alone can tell the type of is left to it.
    longer = stream.each("word", lambda word: word, "long")
    assert longer.aggregate([Sum("long", "letters")]).output_fields == ("letters",)


TYPED: dict[str, tuple[Callable[[Stream], Any], str]] = {
    "aggregate": (lambda s: s.aggregate("n", Sum(), "x double"), 'aggregate: gives "x bigint"; got "x double"'),
    "grouped": (lambda s: s.group_by("word").aggregate(Count(), "x int"), 'gives "x bigint"; got "x int"'),
    "in the aggregator": (lambda s: s.aggregate([Average("n", "x float")]), 'gives "x double"; got "x float"'),
    "chain": (
        lambda s: s.chained_agg().aggregate("n", Max(), "x int").aggregate(Count(), "c").chain_end(),
        'gives "x bigint"; got "x int"',
    ),
    "persistent": (
        lambda s: s.group_by("word").persistent_aggregate(state(), "n", Sum(), "x decimal(9,2)"),
        'persistent_aggregate: gives "x bigint"; got "x decimal(9, 2)"',
    ),
    "built-in function": (
        lambda s: s.each("word", Split(), "x bigint"),
        'each Split: gives "x string"; got "x bigint"',
    ),
    "function with types": (
        lambda s: s.flat_map(RowFunction(lambda *_: [1], ("int",)), "x bigint"),
        'gives "x int"; got "x bigint"',
    ),
}


@pytest.mark.parametrize("case", TYPED)
def test_a_type_that_is_not_what_comes_is_refused(case: str) -> None:
    make, message = TYPED[case]
    with pytest.raises(FunctionError) as caught:
        make(new_stream())
    assert message in str(caught.value)


def test_a_type_that_is_what_comes_or_may_be_is_taken() -> None:
    stream = new_stream()
    told = stream.each("word", Split(), "w STRING").each("n", lambda n: n, "m double")
    known = known_types(told._topology.graph, told.aggregate("m", Sum(), "x double").node)
    assert (told.output_fields[3:], known) == (("w", "m"), {"x": "double"})
    assert stream.aggregate([Count("c bigint"), Average("n", "m double")]).output_fields == ("c", "m")
    # A user's own aggregator gives what is said.
    assert stream.aggregate("n", ReducerAggregator(lambda: 0, max), "x double").output_fields == ("x",)


def test_words_of_a_split_are_texts() -> None:
    words = new_stream().each("sentence", Split(), "w")
    with pytest.raises(AggregationError, match=r"Sum.*of type string: it takes numbers"):
        words.aggregate("w", Sum(), "x")
