"""Query streams (Trident rules 8): without Spark where that can be, many in flight, errors of one request alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipelines import Lake, Runtime
from pipelines.errors import BatchError, DefinitionError, FarTimeError, ReadPointError
from pipelines.execution.runners.queries import ArgumentsError, QueryRunner, _SparkContext, _Views
from pipelines.maintenance import compact
from pipelines.quality import drop, fail
from pipelines.sources import FixedBatches
from pipelines.state.kinds import LOG, MAP, TRANSACTIONAL
from pipelines.state.views import StateView
from pipelines.trident import (
    Count,
    DeltaState,
    FixedState,
    MapGet,
    QueryFunction,
    RowFunction,
    Split,
    Sum,
    TridentTopology,
    TupleCollectionGet,
    row_function,
)
from tests.maintenance.small_state import FLOW, SmallState
from tests.state.small_kinds import WIDER, SmallTable

SENTENCES = [[("hello the man said",), ("the",)], [("the man on the moon",), ("where are you",)]]


@row_function("bigint")
def halved(count: int | None) -> Iterator[int]:
    if count is not None and count % 2:
        raise ValueError(f"{count} is odd")
    yield (count or 0) // 2


def over_columns(count: Column) -> Column:
    return F.coalesce(count, F.lit(0)) * 2


def topology() -> TridentTopology:
    found = TridentTopology("asked")
    stream = found.new_stream("s", FixedBatches("sentence string", SENTENCES))
    counts = (
        stream.each("sentence", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState("words_seen"), Count(), "count")
    )
    words = found.new_query_stream("words").each("args", Split(), "word").group_by("word")
    words.state_query(counts, "word", MapGet(), "count").aggregate("count", Sum(), "sum").project("sum")
    one = found.new_query_stream("one", "word string").state_query(counts, "word", MapGet(), "count")
    one.each("count", halved, "half").project(["word", "half"])
    columns = found.new_query_stream("columns").each("args", Split(), "word").group_by("word")
    (
        columns.state_query(counts, "word", MapGet(), "count")
        .each("count", over_columns, "twice")
        .aggregate("twice", Sum(), "sum")
    )
    return found


@pytest.fixture(scope="module")
def runtime(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    made = Runtime(spark, Lake(tmp_path_factory.mktemp("asked")))
    made.catch_up(topology())
    return made


def jobs(spark: SparkSession) -> int:
    """Spark jobs of this session so far, by the scheduler's own count of ids."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


def no_spark() -> SparkSession:
    raise AssertionError("the query asked for Spark")


def test_a_query_by_key_needs_no_spark(runtime: Runtime) -> None:
    before = jobs(runtime.spark)
    assert runtime.query(topology(), "words", [("the",)]) == [{"sum": 4}]
    assert runtime.query(topology(), "words", [("man where you the",)]) == [{"sum": 8}]
    assert runtime.query(topology(), "words", [("nobody",)]) == [{"sum": 0}]
    assert runtime.query(topology(), "one", [("the",), ("you",)][:1]) == [{"word": "the", "half": 2}]
    assert jobs(runtime.spark) == before
    runner = QueryRunner(runtime.lake, topology(), "words", no_spark)
    assert runner.ask([("the man",)]) == [{"sum": 6}]


def test_a_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    asked = TridentTopology("asked_at")
    asked.new_query_stream("q", "at timestamp").project("at")
    runner = QueryRunner(Lake(tmp_path), asked, "q", no_spark)
    for text in ("2024-01-01", "2024-01-01T00:00:00Z"):
        assert runner.arguments([text]) == (datetime(2024, 1, 1, tzinfo=UTC),)
    shown = asked.new_query_stream("shown", "at timestamp").each("at", RowFunction(str, ("string",)), "text")
    shown.project("text")
    runner = QueryRunner(Lake(tmp_path), asked, "shown", no_spark)
    assert runner.ask([runner.arguments(["2024-01-01T01:00:00+01:00"])]) == [{"text": "2024-01-01 00:00:00"}]


ARGUMENTS: list[tuple[str, str, Any]] = [
    ("decimal(10,2)", "1.50", Decimal("1.50")),
    ("decimal(10, 2)", "2", Decimal("2.00")),
    ("numeric(3)", "2", Decimal("2")),
    ("timestamp_ntz", "2024-01-01T10:00", datetime(2024, 1, 1, 10)),
    ("timestamp_ltz", "2024-01-01T10:00", datetime(2024, 1, 1, 10)),
    ("array<decimal(10,2)>", "[1.50, null, 2]", [Decimal("1.50"), None, Decimal("2.00")]),
    ("array<double>", "[1.5, 2]", [1.5, 2.0]),
    ("array<bigint>", "[1.0, 1e3, 9223372036854775807]", [1, 1000, 9223372036854775807]),
    ("map<date, struct<a: int, `b c`: float>>", '{"2024-01-01": {"a": 1}}', {date(2024, 1, 1): {"a": 1, "b c": None}}),
]


@pytest.mark.parametrize(("kind", "text", "value"), ARGUMENTS)
def test_an_argument_as_text_is_of_its_type(tmp_path: Path, kind: str, text: str, value: Any) -> None:
    asked = TridentTopology("asked_by_text")
    asked.new_query_stream("q", f"x {kind}").project("x")
    runner = QueryRunner(Lake(tmp_path), asked, "q", no_spark)
    (row,) = runner.ask([runner.arguments([text])])
    assert repr(row["x"]) == repr(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("decimal(10,2)", "abc"),
        ("decimal(10,2)", "1.555"),
        ("timestamp_ntz", "2024-01-01T10:00:00+01:00"),
        ("array<bigint>", '["x"]'),
        ("array<date>", '["x"]'),
        ("map<int, int>", '{"x": 1}'),
        ("array<bigint>", "1"),
        ("array<bigint>", "[1.5]"),
        ("array<bigint>", "[1e400]"),
        ("array<tinyint>", "[1e3]"),
        ("struct<a: int>", "[1.5]"),
        ("date", "0000-01-01"),
        ("timestamp", "9999-12-31T23:59:59-01:00"),
        ("array<date>", '["0000-01-01"]'),
        ("array<int>", "[" * 100_000),
    ],
)
def test_an_argument_as_text_that_is_not_of_its_type(tmp_path: Path, kind: str, text: str) -> None:
    asked = TridentTopology("asked_by_text")
    asked.new_query_stream("q", f"x {kind}").project("x")
    runner = QueryRunner(Lake(tmp_path), asked, "q", no_spark)
    with pytest.raises(ArgumentsError):
        runner.ask([runner.arguments([text])])


@pytest.mark.parametrize(("kind", "value"), [("decimal(10,2)", "abc"), ("decimal(3,1)", 1.5), ("array<bigint>", ["x"])])
def test_values_of_longer_types_are_checked_without_spark(tmp_path: Path, kind: str, value: Any) -> None:
    asked = TridentTopology("asked_by_value")
    asked.new_query_stream("q", f"x {kind}").project("x")
    with pytest.raises(ArgumentsError):
        QueryRunner(Lake(tmp_path), asked, "q", no_spark).ask([(value,)])
    with pytest.raises(DefinitionError, match="does not fit the schema"):
        FixedState("f", f"k string, x {kind}", "k", [("a", value)])


def test_a_fixed_state_gives_values_of_its_types(tmp_path: Path) -> None:
    since = datetime(2024, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))
    schema = (
        "at timestamp, since timestamp, share double, part float, rates array<double>, left map<string, decimal(3,1)>"
    )
    fixed = FixedState("fixed", schema, "at", [(since, since, 2, 0.1, (1,), {"a": 1})])
    asked = TridentTopology("asked_of_fixed")
    names = ["since", "share", "part", "rates", "left"]
    found = asked.new_query_stream("q", "at timestamp").state_query(
        asked.new_static_state(fixed), "at", MapGet(), names
    )
    found.each(["since", "at"], RowFunction(lambda a, b: a <= b, ("boolean",)), "before")
    at = datetime(2024, 1, 1)
    values = {"since": at, "share": 2.0, "part": 0.10000000149011612, "rates": [1.0], "left": {"a": Decimal("1.0")}}
    (row,) = QueryRunner(Lake(tmp_path), asked, "q", no_spark).ask([(at,)])
    assert repr(row) == repr({"at": at, **values, "before": True})


def test_one_version_of_a_state_per_request(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    state.batch([("d", "a", 0, 1)])
    spark, plain = _SparkContext(state.lake, {}, None), _Views(state.lake, topology(), {})
    first, view = spark.state("sales"), plain("sales")
    state.batch([("d", "a", 0, 2)])
    assert spark.state("sales") == first == (first[0], state.table.version() - 1)
    assert plain("sales") is view
    assert _SparkContext(state.lake, {}, None).state("sales")[1] == state.table.version()


def test_a_batch_that_is_too_old_is_refused(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    for n in range(3):
        state.batch([("d", "a", 0, n)])
    compact(None, state.lake, FLOW, retention_hours=0)
    with pytest.raises(ReadPointError, match="too old"):
        state.table.scan(txid=0)
    with pytest.raises(ReadPointError, match="txid 0: it is too old"):
        _Views(Lake(tmp_path), topology(), {"sales": 0})("sales")
    with pytest.raises(ReadPointError, match="too old"):
        state.table.view(1)


def test_as_of_a_past_batch(runtime: Runtime) -> None:
    assert runtime.query(topology(), "words", [("the man",)], txid=0) == [{"sum": 3}]


RATES = StructType([StructField("word", StringType()), StructField("rate", LongType())])


def of_two_flows(lake: Path) -> TridentTopology:
    """Orders of this flow, 100 a batch, and rates of another one, whose stream is two batches ahead."""
    orders = SmallTable(lake, LOG, TRANSACTIONAL, name="orders")
    rates = SmallTable(lake, LOG, TRANSACTIONAL, RATES, name="rates", flow="other")
    for txid in range(5):
        rates.commit(txid, ("a", 100))
        if txid < 3:
            orders.commit(txid, ("a", 1))
    found = TridentTopology(FLOW)
    stream = found.new_stream("s", FixedBatches("word string, n bigint", []))
    held = stream.group_by("word").persistent_aggregate(DeltaState("orders"), "n", Sum(), "n")
    asked = found.new_query_stream("plain", "w string").state_query(held, "w", MapGet(), "n")
    asked.state_query("rates", "w", MapGet(), "rate")
    asked = found.new_query_stream("spark", "w string").state_query(held, "w", MapGet(), "n")
    asked.state_query("rates", "w", MapGet(), "rate").each("n", over_columns, "twice").project(["w", "n", "rate"])
    return found


@pytest.mark.parametrize("name", ["plain", "spark"])
def test_a_txid_is_about_the_states_of_this_flow(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    """Each batch group counts its own: a state of another flow is read at its last commit."""
    found = of_two_flows(tmp_path)
    # First: the engine looks for the session that is there.
    session = None if name == "plain" else request.getfixturevalue("spark")
    spark = no_spark if session is None else lambda: session
    for txid, orders in ((None, 3), (0, 1), (1, 2), (2, 3)):
        runner = QueryRunner(Lake(tmp_path), found, name, spark, txid)
        assert runner.ask([("a",)]) == [{"w": "a", "n": orders, "rate": 500}], txid
    with pytest.raises(ReadPointError, match='state "orders" cannot be read as of txid 4'):
        QueryRunner(Lake(tmp_path), found, name, spark, 4).ask([("a",)])


def test_a_txid_about_states_of_several_sequences_is_refused(tmp_path: Path) -> None:
    found = of_two_flows(tmp_path)
    stream = found.new_stream("t", FixedBatches("word string, n bigint", []))
    more = stream.group_by("word").persistent_aggregate(DeltaState("returns"), "n", Sum(), "n")
    asked = found.new_query_stream("both", "w string").state_query("orders", "w", MapGet(), "n")
    asked.state_query(more, "w", MapGet(), "back")
    with pytest.raises(ReadPointError, match=r'several batch groups of the flow, .* of its own: "orders", "returns"'):
        QueryRunner(Lake(tmp_path), found, "both", no_spark, 0)
    other = TridentTopology("elsewhere")
    for name, states in (("one", ["rates"]), ("two", ["orders", "rates"])):
        asked = other.new_query_stream(name, "w string")
        for state in states:
            asked = asked.state_query(state, "w", MapGet(), f"of_{state}")
    assert QueryRunner(Lake(tmp_path), other, "one", no_spark, 1).ask([("a",)]) == [{"w": "a", "of_rates": 200}]
    with pytest.raises(ReadPointError, match=r'other flows, which may have txids of their own: "orders", "rates"'):
        QueryRunner(Lake(tmp_path), other, "two", no_spark, 1)


class Held(QueryFunction):
    returns = "string"

    def batch_retrieve(self, state: StateView, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [repr(value) for value in state.multi_get(arguments)]


@pytest.mark.parametrize(("layout", "nothing"), [(LOG, 0), (MAP, None)])
def test_before_a_value_was_added_there_is_nothing_of_it(tmp_path: Path, layout: str, nothing: int | None) -> None:
    before = SmallTable(tmp_path, layout, TRANSACTIONAL)
    before.commit(0, ("a", 1))
    before.commit(1, ("a", 2))
    SmallTable(tmp_path, layout, TRANSACTIONAL, WIDER).commit(2, ("a", 5, 50))
    found = TridentTopology("asked")
    found.new_query_stream("total", "w string").state_query("counts", "w", MapGet(), "total")
    found.new_query_stream("both", "w string").state_query("counts", "w", MapGet(), ["n", "total"])
    found.new_query_stream("all", "w string").state_query("counts", None, TupleCollectionGet(), "total")
    found.new_query_stream("own", "w string").state_query("counts", "w", Held(), "held")
    of_both = {"n": 1, "total": nothing}
    answers: dict[str, dict[str, Any]] = {
        "total": {"total": nothing},
        "both": of_both,
        "all": {"total": nothing},
        "own": {"held": f"(1, {nothing})"},
    }
    for name, answer in answers.items():
        assert QueryRunner(Lake(tmp_path), found, name, no_spark, txid=0).ask([("a",)]) == [{"w": "a", **answer}]


def test_functions_of_columns_are_asked_by_spark_and_answer_alike(runtime: Runtime) -> None:
    assert QueryRunner(runtime.lake, topology(), "columns", no_spark).needs_spark
    for words in ("the man", "nobody", ""):
        (plain,) = runtime.query(topology(), "words", [(words,)])
        assert runtime.query(topology(), "columns", [(words,)]) == [{"sum": 2 * plain["sum"]}]


@pytest.mark.parametrize("name", ["words", "columns"])
def test_many_requests_each_a_batch_of_its_own(runtime: Runtime, name: str) -> None:
    asked = ["the", "man where", "nobody", "", "hello the man"]
    answers = runtime.query_each(topology(), name, [(words,) for words in asked])
    assert [answer.error for answer in answers] == [None] * 5
    alone = [runtime.query(topology(), name, [(words,)]) for words in asked]
    assert [answer.rows for answer in answers] == alone
    assert len({str(rows) for rows in alone}) > 2


def test_a_request_of_no_tuple_takes_nothing_from_those_behind_it(runtime: Runtime) -> None:
    runner = QueryRunner(runtime.lake, topology(), "columns", lambda: runtime.spark)
    answers = runner.ask_each([[("the",)], [], [("man",)]])
    assert [answer.rows for answer in answers] == [runner.ask(asked) for asked in ([("the",)], [], [("man",)])]
    assert answers[2].rows == [{"sum": 4}]


def test_an_error_is_of_its_request_alone(runtime: Runtime) -> None:
    answers = runtime.query_each(topology(), "one", [("the",), ("you",), ("man",)])
    assert [answer.rows for answer in answers] == [[{"word": "the", "half": 2}], [], [{"word": "man", "half": 1}]]
    assert answers[1].error is not None
    assert "1 is odd" in answers[1].error
    assert f"{Path(__file__).name}:" in answers[1].error
    assert "('you', 1)" in answers[1].error
    with pytest.raises(BatchError, match="1 is odd"):
        runtime.query(topology(), "one", [("you",)])


def test_an_error_under_spark_is_of_its_request_alone(runtime: Runtime) -> None:
    found = topology()
    asked = found.new_query_stream("inverse", "n bigint").each("n", lambda n: F.lit(12) / n, "x")
    asked.each("x", lambda x: x.cast("bigint"), "whole").project(["n", "whole"])
    answers = runtime.query_each(found, "inverse", [(3,), (0,), (4,)])
    assert [answer.rows for answer in answers] == [[{"n": 3, "whole": 4}], [], [{"n": 4, "whole": 3}]]
    assert "DIVIDE_BY_ZERO" in (answers[1].error or "")


def test_a_gate_judges_each_request_by_itself(runtime: Runtime) -> None:
    found = TridentTopology("judged")
    asked = found.new_query_stream("unique", "a string")
    asked.gate(drop("expect_column_values_to_be_unique", column="a"), name="once").project("a")
    asked = found.new_query_stream("mean", "n bigint")
    asked.gate(fail("expect_column_mean_to_be_between", column="n", max_value=5), name="low").project("n")

    assert [one.rows for one in runtime.query_each(found, "unique", [("x",), ("x",)])] == [[{"a": "x"}]] * 2
    answers = runtime.query_each(found, "mean", [(1,), (7,)])
    assert [one.rows for one in answers] == [[{"n": 1}], []]
    assert [one.error is None for one in answers] == [True, False]


@pytest.mark.usefixtures("in_new_york")
def test_times_that_spark_gives_are_in_utc_on_every_host(runtime: Runtime) -> None:
    at = datetime(2024, 1, 1)
    found = TridentTopology("times")
    asked = found.new_query_stream("q", "at timestamp").each("at", lambda at: F.create_map(at, F.array(at)), "times")
    asked = asked.each("at", lambda at: F.lit("0001-01-01").cast("timestamp"), "first")
    asked.each("at", lambda at: F.encode(at.cast("string"), "utf-8"), "text")
    answer = {"at": at, "times": {at: [at]}, "first": datetime(1, 1, 1), "text": b"2024-01-01 00:00:00"}
    assert runtime.query(found, "q", [(at,)]) == [answer]
    answers = runtime.query_each(found, "q", [(at,), (at,)])
    assert [each.rows for each in answers] == [[answer]] * 2
    far = found.new_query_stream("far", "at timestamp").each("at", lambda at: at + F.expr("interval 9000 year"), "far")
    far.project("far")
    with pytest.raises(FarTimeError, match=r"far holds \+11024-01-01"):
        runtime.query(found, "far", [(at,)])


@pytest.mark.parametrize("arguments", [[(1,)], [("a", "b")], ["a b"], [()], [5], 5, [{"word": "a"}]])
@pytest.mark.parametrize("by_spark", [False, True])
def test_arguments_that_do_not_fit_are_refused(runtime: Runtime, arguments: Any, by_spark: bool) -> None:
    found = topology()
    if by_spark:
        found.new_query_stream("by_sql").filter("args > 'b'")
    with pytest.raises(ArgumentsError, match=r'query "(words|by_sql)": .*; got ') as caught:
        runtime.query(found, "by_sql" if by_spark else "words", arguments)
    assert str(caught.value.hint) == "give one argument for each of: args string"


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_request_that_does_not_fit_has_an_error_of_its_own(runtime: Runtime, by_spark: bool) -> None:
    found, name = topology(), "words"
    if by_spark:
        name = "by_sql"
        found.new_query_stream(name).filter("args > 'b'")
    requests: list[Any] = [("the",), 5, {"args": "the"}, ("the", "man")]
    answers = runtime.query_each(found, name, requests)
    assert [answer.error is None for answer in answers] == [True, False, True, False]
    assert answers[0].rows == answers[2].rows
    assert answers[1].error
    assert answers[1].error.startswith(f'query "{name}": it takes a list of tuples')


def test_queries_from_many_threads(runtime: Runtime) -> None:
    asked = ["the", "man", "moon", "nobody"] * 10
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(lambda word: runtime.query(topology(), "words", [(word,)])[0]["sum"], asked))
    assert found == [4, 2, 1, 0] * 10
