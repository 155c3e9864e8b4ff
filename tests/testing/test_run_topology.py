"""`run_topology`, `query_topology` and the reference engine themselves."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.aggregators.ordering import freeze
from pipelines.errors import (
    DefinitionError,
    FunctionError,
    SourceSchemaError,
    TrideltaError,
    UnknownQueryError,
    UnknownStateError,
)
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.execution.runners.queries import QueryRunner
from pipelines.flowmix import Flow
from pipelines.nimbus.deployed import content_of
from pipelines.planner.plain.table import in_order, plain, sql_type_of
from pipelines.quality import fail
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake
from pipelines.testing import TICK, ReferenceEngine, query_topology, run_flow, run_topology
from pipelines.testing.engines import Engine
from pipelines.trident import (
    Collect,
    Count,
    DeltaState,
    MapGet,
    RowFunction,
    Split,
    StateUpdater,
    Sum,
    TridentTopology,
)

FED = [[("hello the man said",)], [("the",)]]
THEN = [[("the foo",)], [("the man on the moon",), ("where are you",)]]


class Times(StateUpdater):
    """Counts how often there was each number, which is written as a `float`."""

    keys, values = "x float", "times bigint"

    def update_state(self, state: Any, tuples: list[tuple[float]]) -> None:
        state.multi_update(tuples, [lambda times: (times or 0) + 1] * len(tuples))


def word_count() -> TridentTopology:
    """The example of the public names (tests/test_contract.py)."""
    topology = TridentTopology("wordcount")
    counts = (
        topology.new_stream("sentences", FixedBatches("sentence string", []))
        .each("sentence", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState("word_counts"), Count(), "count")
    )
    (
        topology.new_query_stream("words", "args string")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(counts, "word", MapGet(), "count")
        .aggregate("count", Sum(), "sum")
    )
    topology.new_query_stream("number", "args string").each("args", Split(), "word").aggregate(Count(), "count")
    return topology


@pytest.mark.parametrize("given", [("a", 1.5), ("a", "x"), ("a", 2**63), (5, 1)])
def test_a_value_that_does_not_fit_its_type_is_refused_as_by_a_stream(given: Any) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("word string, n bigint", []))
    stream.persistent_aggregate(DeltaState("total"), "n", Sum(), "t")
    topology.new_query_stream("ask", "word string, n bigint")
    assert run_topology(topology, {"s": [[("a", 2.0), ("b", None)]]})["total"] == [{"t": 2}]
    with pytest.raises(SourceSchemaError, match="does not fit the declared schema"):
        run_topology(topology, {"s": [[("a", 1), given]]})
    with pytest.raises(SourceSchemaError, match="does not fit the declared schema"):
        query_topology(topology, {}, "ask", [given])


def counts_after(batches: list[Any]) -> dict[str, int]:
    return {row["word"]: row["count"] for row in run_topology(word_count(), {"sentences": batches})["word_counts"]}


def test_the_designs_example() -> None:
    assert run_topology(word_count(), {"sentences": [[("the man",)], [("the",)]]}) == {
        "word_counts": [{"word": "man", "count": 1}, {"word": "the", "count": 2}]
    }
    assert query_topology(word_count(), {"sentences": FED}, "words", [("the man",)]) == [{"sum": 3}]


def test_section_10_memory_map_get_tuples() -> None:
    assert counts_after(FED) == {"hello": 1, "said": 1, "the": 2, "man": 1}
    assert counts_after(FED + THEN[:1]) == {"hello": 1, "said": 1, "the": 3, "man": 1, "foo": 1}


@pytest.mark.parametrize(
    ("batches", "words", "total"),
    [
        (FED, "the", 2),
        (FED, "hello", 1),
        (FED + THEN[1:], "the", 4),
        (FED + THEN[1:], "man", 2),
        (FED + THEN[1:], "man where you the", 8),
        (FED, "nobody said that", 1),
        (FED, "unknown", 0),
        (FED, "", 0),
        ([], "the", 0),
    ],
)
def test_section_10_word_count(batches: list[Any], words: str, total: int) -> None:
    assert query_topology(word_count(), {"sentences": batches}, "words", [(words,)]) == [{"sum": total}]


@pytest.mark.parametrize(("args", "count"), [("the", 1), ("", 0), ("1 2 3 4 5 6 7 8", 8)])
def test_section_10_count_agg(args: str, count: int) -> None:
    engine = ReferenceEngine(word_count())
    for _ in range(100 if args == "the" else 1):
        assert engine.query("number", [(args,)]) == [{"count": count}]


SENTENCES = [
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "to be or not to be the person",
]


def loops(number: int) -> list[list[tuple[str]]]:
    """The five sentences again and again, three to a batch, a short batch at the end of each loop."""
    return [[(sentence,) for sentence in part] for _ in range(number) for part in (SENTENCES[:3], SENTENCES[3:])]


@pytest.mark.parametrize(("words", "a_loop"), [("the", 5), ("be store kujou", 3)])
def test_section_10_jstorms_word_count(words: str, a_loop: int) -> None:
    assert query_topology(word_count(), {"sentences": loops(20)}, "words", [(words,)]) == [{"sum": 20 * a_loop}]


def test_section_10_jstorms_map() -> None:
    seen = list[Any]()
    topology = TridentTopology("map")
    counts = (
        topology.new_stream("sentences", FixedBatches("sentence string", []))
        .flat_map(Split(), "word")
        .map(RowFunction(str.upper, ("string",)))
        .filter(RowFunction(lambda word: word == "THE"))
        .peek(lambda row: seen.append(row["word"]))
        .group_by("word")
        .persistent_aggregate(DeltaState("counts"), Count(), "n")
    )
    ask = topology.new_query_stream("words").flat_map(Split()).group_by("args")
    ask.state_query(counts, "args", MapGet(), "n").filter(RowFunction(lambda args, n: n is not None)).aggregate(
        "n", Sum(), "sum"
    )
    engine = ReferenceEngine(topology)
    engine.run({"sentences": loops(20)})
    assert engine.query("words", [("THE",)]) == [{"sum": 100}]
    assert engine.query("words", [("the tHe thE",)]) == [{"sum": 0}]
    assert seen == ["THE"] * 100


def test_batches_of_dicts() -> None:
    batches = [[{"sentence": "the man"}, {"sentence": "the"}]]
    assert run_topology(word_count(), {"sentences": batches})["word_counts"][1] == {"word": "the", "count": 2}


def test_the_topology_is_not_changed() -> None:
    topology = word_count()
    nodes = list(topology.graph)
    first = run_topology(topology, {"sentences": FED})
    assert run_topology(topology, {"sentences": FED}) == first
    assert list(topology.graph) == nodes


def test_streams_of_their_own_batch_groups() -> None:
    topology = TridentTopology("two")
    for name in ("one", "two"):
        topology.new_stream(name, FixedBatches("n bigint", [])).partition_persist(DeltaState(f"rows_{name}"))
    assert run_topology(topology, {"two": [[(1,)], [(2,)]]}) == {"rows_one": [], "rows_two": [{"n": 1}, {"n": 2}]}


def test_a_group_runs_behind_those_that_write_its_channels() -> None:
    """Names stay, and the queries of a deployed flow keep their numbers, which go by the order of definition."""
    topology = TridentTopology("order")
    first, other = (topology.new_stream(name, FixedBatches("n bigint", [])) for name in ("a", "b"))
    topology.merge(first, other.tumbling_window(2, "n", Sum(), "n")).partition_persist(DeltaState("out"))
    assert [group_name(spouts) for spouts in spout_groups(topology)] == ["b", "a__order__window1"]
    assert [group.folder for group in topology.build().batch_groups] == ["a__order__window1", "b"]
    queries = content_of(topology, {}).definition["queries"]
    assert [query["group"] for query in queries] == ["a__order__window1", "b"]
    found = run_topology(topology, {"a": [[(1,)], [(2,)]], "b": [[(10,), (20,)], [(30,), (40,)]]})
    assert [row["n"] for row in found["out"]] == [1, 2, 30, 70]


def of_two_numbers_of_tasks() -> TridentTopology:
    """A query, whose one shuffle deals to four tasks for one branch, and all the same to one for the other."""
    topology = TridentTopology("t")
    dealt = topology.new_query_stream("most", "v bigint").shuffle()
    dealt.filter(RowFunction(lambda v: True)).parallelism_hint(4)
    dealt.max_by("v")
    return topology


def test_a_repartition_in_front_of_different_numbers_of_tasks() -> None:
    asked = [(n,) for n in range(8)]
    assert query_topology(of_two_numbers_of_tasks(), {}, "most", asked) == [{"v": 7}]
    runner = QueryRunner(Lake("/nowhere"), of_two_numbers_of_tasks(), "most", spark=pytest.fail)
    assert runner.ask(asked) == [{"v": 7}]


def test_a_window_behind_a_repartition_that_deals_to_more_tasks() -> None:
    topology = TridentTopology("t")
    dealt = topology.new_stream("s", FixedBatches("v bigint", [])).shuffle()
    dealt.filter(RowFunction(lambda v: True)).parallelism_hint(3).partition_persist(DeltaState("other"))
    dealt.tumbling_window(4, "v", Sum(), "x").partition_persist(DeltaState("out"))
    assert run_topology(topology, {"s": [[(n,) for n in range(8)]]})["out"] == [{"x": 6}, {"x": 22}]


def test_what_is_not_there() -> None:
    with pytest.raises(DefinitionError, match=r'has no stream "sentence"; it has: sentences \(did you mean'):
        run_topology(word_count(), {"sentence": []})
    with pytest.raises(DefinitionError, match='no engine "storm"; there are: reference, bounded, stream'):
        run_topology(word_count(), {}, engine="storm")  # type: ignore[arg-type]
    with pytest.raises(UnknownQueryError, match="did you mean"):
        query_topology(word_count(), {}, "word", [])
    foreign = TridentTopology("t")
    foreign.new_query_stream("ask", "word string").state_query("others", "word", MapGet(), "n")
    with pytest.raises(UnknownStateError):
        ReferenceEngine(foreign).query("ask", [("a",)])


def test_a_function_that_gives_the_wrong_number_of_values() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("n bigint", []))
    stream.each("n", RowFunction(lambda n: (n, n), ("bigint",)), "m").partition_persist(DeltaState("out"))
    with pytest.raises(FunctionError, match=r"it gave 2 value\(s\) for 1 field"):
        run_topology(topology, {"s": [[(1,)]]})


def test_whole_numbers_of_a_double_are_floats() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("x double", []))
    stream.map(RowFunction(str, ("string",)), "text").partition_persist(DeltaState("out"))
    assert run_topology(topology, {"s": [[(1,)]]}) == {"out": [{"text": "1.0"}]}


@pytest.mark.parametrize("persisted", [False, True])
def test_a_sum_that_bigint_cannot_hold_is_refused_as_by_a_stream(persisted: bool) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("n bigint", []))
    if persisted:
        stream.persistent_aggregate(DeltaState("out"), "n", Sum(), "x")
    else:
        stream.aggregate("n", Sum(), "x").partition_persist(DeltaState("out"))
    with pytest.raises(FunctionError, match=r"9223372036854775808.*does not fit"):
        run_topology(topology, {"s": [[(2**62,), (2**62,)]]})
    assert run_topology(topology, {"s": [[(2**62,), (2**62 - 1,)]]}) == {"out": [{"x": 2**63 - 1}]}


def test_sums_of_decimals_are_dealt_as_on_spark() -> None:
    topology = TridentTopology("t")
    sums = (
        topology.new_stream("s", FixedBatches("w string, x decimal(10,2)", [])).group_by("w").aggregate("x", Sum(), "y")
    )
    dealt = sums.partition_by("y").partition_aggregate("y", Collect(), "all").parallelism_hint(4)
    dealt.partition_persist(DeltaState("out"))
    found = run_topology(topology, {"s": [[(f"k{n}", Decimal(n) / 4) for n in range(1, 9)]]})
    quarters = [[int(value * 4) for value in row["all"]] for row in found["out"]]
    assert quarters == [[], [1, 3], [2, 5], [4, 6, 7, 8]]


def test_order_is_stated() -> None:
    rows: list[dict[str, Any]] = [{"a": 2.0}, {"a": math.nan}, {"a": None}, {"a": 1.0}]
    assert [str(row["a"]) for row in in_order(rows, ["a"])] == ["None", "1.0", "2.0", "nan"]
    nested: list[dict[str, Any]] = [{"a": [1, None]}, {"a": [1]}, {"a": [0]}]
    assert in_order(nested, ["a"]) == [{"a": [0]}, {"a": [1]}, {"a": [1, None]}]


def test_values_are_shown_alike() -> None:
    aware = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert plain(aware) == datetime.datetime(2013, 1, 1, 10)
    assert plain({"a": [aware]}) == {"a": [datetime.datetime(2013, 1, 1, 10)]}
    assert freeze(math.nan) == freeze(float("nan"))
    assert freeze({"a": [1, 2]}) == (("a", (1, 2)),)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, True], "boolean"),
        ([1], "bigint"),
        ([datetime.datetime(2013, 1, 1)], "timestamp"),
        ([datetime.date(2013, 1, 1)], "date"),
        ([[None, "a"]], "array<string>"),
        ([{"a": 1}], "struct<`a`: bigint>"),
        ([None], "void"),
    ],
)
def test_types_that_nobody_declared(values: list[Any], kind: str) -> None:
    assert sql_type_of(values) == kind


def test_tick_is_one_thing() -> None:
    assert TICK == "TICK"


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(180)
def test_queries_on_the_real_engines() -> None:
    for engine in ("reference", "stream", "bounded"):
        for words, total in (("the man", 3), ("", 0), ("unknown", 0)):
            found = query_topology(word_count(), {"sentences": FED}, "words", [(words,)], engine)
            assert found == [{"sum": total}], engine


def test_an_updater_is_given_the_keys_as_they_are_written() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("x double", []))
    stream.partition_persist(DeltaState("times"), "x", Times())
    assert run_topology(topology, {"s": [[(0.1,), (0.1 + 1e-12,)], [(0.1,)]]})["times"] == [
        {"x": 0.10000000149011612, "times": 3}
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("engine", ["reference", "stream", "bounded"])
def test_a_topologys_own_slices_are_left_out(engine: Engine) -> None:
    topology = TridentTopology("days")
    stream = topology.new_stream("s", FixedBatches("day string, n bigint", []), slice_by="day")
    stream.aggregate("n", Sum(), "x").partition_persist(DeltaState("sums"))
    found = run_topology(topology, {"s": [[("d1", 1), ("d2", 2)], []]}, engine)
    assert found == {"sums": [{"x": 3}, {"x": 0}]}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("engine", "sums"), [("reference", [0, 2, 2]), ("stream", [0, 2, 2]), ("bounded", [4])])
def test_a_bounded_run_has_one_batch_behind_a_window(engine: Engine, sums: list[int]) -> None:
    """It is the one exception from equal results: `run_topology` says so."""
    topology = TridentTopology("behind")
    stream = topology.new_stream("s", FixedBatches("a bigint", [])).tumbling_window(2, "a", Count(), "n")
    stream.aggregate("n", Sum(), "x").partition_persist(DeltaState("sums"))
    found = run_topology(topology, {"s": [[(1,), (2,)], [(3,), (4,)], [(5,)]]}, engine)
    assert found == {"sums": [{"x": x} for x in sums]}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("engine", ["reference", "stream", "bounded"])
def test_a_batch_that_no_row_of_reaches_a_gate_is_judged(engine: Engine) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatches("n bigint", [])).filter("n > 0")
    gated = stream.gate(fail("table_row_count_to_be_between", min_value=1), name="there")
    gated.partition_persist(DeltaState("out"))
    assert run_topology(topology, {"s": [[(1,), (-1,)]]}, engine) == {"out": [{"n": 1}]}
    with pytest.raises(TrideltaError, match="table_row_count_to_be_between: observed 0"):
        run_topology(topology, {"s": [[(1,)], [(-1,)]]}, engine)


def test_a_bounded_run_has_two_names(spark: SparkSession) -> None:
    topology = TridentTopology("named")
    topology.new_stream("s", FixedBatches("n bigint", [])).aggregate("n", Sum(), "n").partition_persist(
        DeltaState("out")
    )
    assert run_topology(topology, {"s": [[(1,)], [(2,)]]}, "batch", spark) == {"out": [{"n": 1}, {"n": 2}]}
    flow = Flow("named").stream("s", "v bigint").filter("v > 1").output().build()
    assert run_flow(flow, {"s": [{"v": 1}, {"v": 2}]}, engine="bounded", spark=spark) == {"s": [{"v": 2}]}


def test_a_group_runs_behind_those_that_write_the_states_it_asks() -> None:
    """Names stay here too. Streams that ask each other stay in the order of definition, and who asks them comes behind."""
    topology = TridentTopology("order")
    streams = {name: topology.new_stream(name, FixedBatches("n bigint", [])) for name in ("a", "b", "c", "d")}
    for name, asked in (("a", "b"), ("b", "c"), ("c", "b"), ("d", None)):
        stream = streams[name]
        if asked:
            stream = stream.state_query(asked, "n", MapGet(), f"of_{asked}")
        stream.group_by("n").persistent_aggregate(DeltaState(name), Count(), "count")
    topology.new_query_stream("q", "n bigint").state_query("a", "n", MapGet(), "count")
    assert [group_name(spouts) for spouts in spout_groups(topology)] == ["b", "a", "c", "d"]
    assert [group.folder for group in topology.build().batch_groups] == ["a", "b", "c", "d", "q"]
    queries = content_of(topology, {}).definition["queries"]
    assert [query["group"] for query in queries] == ["a", "b", "c", "d"]


def test_a_stream_asks_the_state_of_one_defined_behind_it() -> None:
    topology = TridentTopology("order")
    asks, writes = (topology.new_stream(name, FixedBatches("n bigint", [])) for name in ("asks", "writes"))
    counts = writes.group_by("n").persistent_aggregate(DeltaState("counts"), Count(), "count")
    asks.state_query(counts, "n", MapGet(), "count").partition_persist(DeltaState("out"))
    found = run_topology(topology, {"asks": [[(1,), (2,)]], "writes": [[(1,)], [(1,)]]})
    assert found["out"] == [{"n": 1, "count": 2}, {"n": 2, "count": None}]
