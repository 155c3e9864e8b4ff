"""Values that cross between Spark and a user's Python code."""

from __future__ import annotations

import base64
import datetime
import re
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pipelines.aggregators import Collect, DistinctCount
from pipelines.aggregators.ordering import freeze
from pipelines.errors import FunctionError, SourceSchemaError
from pipelines.flowmix import Flow, Policy, WindowAggregator
from pipelines.graph.arrow_types import ARROW_TYPES
from pipelines.planner.functions import from_spark, to_spark
from pipelines.planner.step import type_of
from pipelines.planner.values import RowsOut, Where, plain_rows
from pipelines.sources import FixedBatches
from pipelines.sources.fixed import arrow_rows
from pipelines.testing import query_topology, run_flow, run_topology
from pipelines.trident import (
    Aggregator,
    CombinerAggregator,
    DeltaState,
    MultiReducer,
    QueryFunction,
    ReducerAggregator,
    RowFunction,
    StateUpdater,
    Stream,
    Sum,
    TridentTopology,
)
from tests.planner.plans import Run, frame_of, rows_of, source

AT = datetime.datetime(2024, 3, 10, 2, 30)

TAKEN: list[tuple[str, Any, Any]] = [
    ("double", 0, 0.0),
    ("double", np.int64(3), 3.0),
    ("bigint", 4.0, 4),
    ("bigint", np.int32(4), 4),
    ("bigint", Decimal("2.00"), 2),
    ("double", 2**53 + 1, 2.0**53),
    ("double", 2**70, 2.0**70),
    ("decimal(10,2)", 7, Decimal("7.00")),
    ("boolean", np.bool_(True), True),
    ("array<double>", [1, None, 2.5], [1.0, None, 2.5]),
    ("array<double>", [2**53 + 1, 1], [2.0**53, 1.0]),
    ("struct<n: bigint, d: double>", {"n": 1.0, "d": 2}, T.Row(n=1, d=2.0)),
    ("bigint", None, None),
]
REFUSED: list[tuple[str, Any]] = [
    ("bigint", 1.5),
    ("bigint", 2**63),
    ("int", 2**31),
    ("bigint", True),
    ("bigint", Decimal("2.7")),
    ("bigint", Decimal("NaN")),
    ("bigint", Decimal("sNaN")),
    ("bigint", Decimal("-Infinity")),
    ("bigint", Decimal("1E+30")),
    ("double", True),
    ("double", "1"),
    ("double", Decimal("1.5")),
    ("decimal(10,2)", 1.5),
    ("boolean", 1),
    ("bigint", float("nan")),
    ("date", AT),
    ("date", 5),
    ("timestamp", 5),
]
ARROW = {
    **ARROW_TYPES,
    "decimal(10,2)": pa.decimal128(10, 2),
    "array<double>": pa.list_(pa.float64()),
    "struct<n: bigint, d: double>": pa.struct([("n", pa.int64()), ("d", pa.float64())]),
}


@pytest.mark.usefixtures("in_new_york")
def test_times_are_in_utc_wherever_the_worker_stands(spark: SparkSession) -> None:
    stamp = T.TimestampType()
    nested = T.StructType([T.StructField("t", stamp), T.StructField("l", T.ArrayType(stamp))])
    incoming = from_spark([stamp, nested, T.LongType()])
    assert incoming is not None
    local = stamp.fromInternal(1_710_037_800_000_000)  # 2:30 UTC, which New York has no name for
    assert local == datetime.datetime(2024, 3, 9, 21, 30)
    row = T.Row(t=local, l=[local, None])
    assert incoming((local, row, 5)) == (AT, {"t": AT, "l": [AT, None]}, 5)
    outgoing = to_spark(["timestamp", "struct<t: timestamp, n: int>", "map<string, timestamp>"])
    assert outgoing is not None
    given = outgoing((AT, {"t": AT, "n": 1}, {"k": AT}))
    assert [stamp.toInternal(one) for one in (given[0], given[1]["t"], given[2]["k"])] == [1_710_037_800_000_000] * 3
    assert from_spark([T.LongType(), T.ArrayType(T.StringType())]) is None, "nothing to do, nothing done"


def test_a_map_with_structs_as_keys_comes_with_tuples(spark: SparkSession) -> None:
    incoming = from_spark([type_of("map<struct<a: int, s: struct<b: timestamp>>, struct<c: int>>")])
    assert incoming is not None
    local = T.TimestampType().fromInternal(1_710_037_800_000_000)
    assert incoming(({T.Row(a=1, s=T.Row(b=local)): T.Row(c=2)},)) == ({(1, (AT,)): {"c": 2}},)
    frames = {"s": source(spark, "m map<struct<a: int>, int>", [({(1,): 5},)])}
    stream = TridentTopology("t").new_stream("s", FixedBatches("m map<struct<a: int>, int>", []))
    shown = stream.each("m", RowFunction(repr, ("string",)), "out").project("out")
    assert rows_of(shown, frames) == [("{(1,): 5}",)]
    assert given_by("out map<struct<a: int>, int>", {(1.0,): 5})[0]["out"] == {(1,): 5}


def test_row_functions_see_plain_values(spark: SparkSession) -> None:
    schema = "t timestamp, m decimal(10,2), s struct<a: int, t: timestamp>, p map<string, int>, b binary, i date"
    row = (AT, Decimal("1.50"), {"a": 1, "t": AT}, [("k", 1)], b"x", AT.date())
    stream = TridentTopology("t").new_stream("s", FixedBatches(schema, []))
    frames = {"s": source(spark, schema, [row])}
    shown = stream.each(list("tmspbi"), RowFunction(lambda *values: repr(values), ("string",)), "out").project("out")
    assert rows_of(shown, frames) == [(repr((AT, Decimal("1.50"), {"a": 1, "t": AT}, {"k": 1}, b"x", AT.date())),)]
    seen = stream.filter(list("ts"), RowFunction(lambda t, s: s == {"a": 1, "t": t}))
    assert frame_of(seen, frames).count() == 1
    back = stream.each(
        ["t", "s"], RowFunction(lambda t, s: (t, s), ("timestamp", "struct<a: int, t: timestamp>")), ["u", "v"]
    )
    assert frame_of(back, frames).where("u = t and v = s").count() == 1


@pytest.mark.parametrize(("kind", "given", "taken"), TAKEN)
def test_numbers_of_another_class_are_not_null(spark: SparkSession, kind: str, given: Any, taken: Any) -> None:
    """Spark takes a float for a double alone, an int for a bigint, and makes null of all else."""
    frames = {"s": source(spark, "n bigint", [(1,)])}
    stream = TridentTopology("t").new_stream("s", FixedBatches("n bigint", []))
    made = stream.each("n", RowFunction(lambda n: [given], (kind,)), "out").project("out")
    if isinstance(given, list):
        made = stream.each("n", RowFunction(lambda n: [(given,)], (kind,)), "out").project("out")
    assert rows_of(made, frames) == [(taken,)]


@pytest.mark.parametrize(("kind", "given"), REFUSED)
def test_what_is_no_value_of_the_type_is_refused(spark: SparkSession, kind: str, given: Any) -> None:
    frames = {"s": source(spark, "n bigint", [(1,)])}
    stream = TridentTopology("t").new_stream("s", FixedBatches("n bigint", []))
    made = stream.each("n", RowFunction(lambda n: [given], (kind,)), "out").project("out")
    with pytest.raises(PySparkException, match=re.escape("which is no")):
        rows_of(made, frames)


class _Color(str, Enum):  # noqa: UP042 (a StrEnum says its value)
    RED = "red"


ROW_TAKEN: list[tuple[str, Any, Any]] = [
    ("string", 5, "5"),
    ("string", np.int64(5), "5"),
    ("string", True, "true"),
    ("string", Decimal("1.50"), "1.50"),
    ("string", 1.5, "1.5"),
    ("string", -12345678.0, "-1.2345678E7"),
    ("string", 1e22, "1.0E22"),
    ("string", 0.0001, "1.0E-4"),
    ("string", float("-inf"), "-Infinity"),
    ("string", base64.b64encode(b"x"), "eA=="),
    ("string", np.str_("x"), "x"),
    ("string", _Color.RED, "red"),
    ("binary", bytearray(b"x"), b"x"),
    ("binary", memoryview(b"x"), b"x"),
    ("binary", "x", b"x"),
    ("array<string>", ("a", 5, None), ["a", "5", None]),
    ("array<string>", {"a"}, ["a"]),
    ("array<string>", np.array(["a"]), ["a"]),
    ("array<array<int>>", [(1, None)], [[1, None]]),
    ("map<string, string>", [("a", "b")], {"a": "b"}),
    ("struct<u: string, v: string>", ("a", 5), T.Row(u="a", v="5")),
    ("struct<u: string, v: string>", {"v": b"x"}, T.Row(u=None, v="x")),
]
ROW_REFUSED: list[tuple[str, Any]] = [
    ("string", AT),
    ("string", AT.date()),
    ("string", b"\xff"),
    ("string", ["a"]),
    ("string", {"a": 1}),
    ("binary", 5),
    ("binary", [1]),
    ("array<string>", "ab"),
    ("array<string>", b"ab"),
    ("array<string>", {"a": 1}),
    ("array<string>", 5),
    ("array<string>", [AT]),
    ("map<string, string>", "ab"),
    ("map<string, string>", {"a": AT}),
    ("struct<u: string, v: string>", "ab"),
]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("kind", "given", "taken"), ROW_TAKEN)
def test_texts_and_parts_are_the_same_on_both_ways(kind: str, given: Any, taken: Any) -> None:
    plain = taken.asDict() if isinstance(taken, T.Row) else taken
    convert = to_spark([kind])
    assert convert is not None
    assert convert((given,)) == (plain,)
    assert given_by(f"out {kind}", [(given,)])[0]["out"] == plain


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("kind", "given"), ROW_REFUSED)
def test_what_is_no_text_or_has_no_parts_is_refused_on_both_ways(kind: str, given: Any) -> None:
    """Spark itself writes the name of a Java object for a text, another one each time, and null for an array or a map."""
    convert = to_spark([kind])
    assert convert is not None
    with pytest.raises(ValueError, match="which is no"):
        convert((given,))
    with pytest.raises(FunctionError, match="which is no"):
        given_by(f"out {kind}", [(given,)])


def test_spark_takes_texts_and_parts(spark: SparkSession) -> None:
    frames = {"s": source(spark, "n bigint", [(1,)])}
    names = [f"o{at}" for at in range(len(ROW_TAKEN))]
    function = RowFunction(lambda n: tuple(given for _, given, _ in ROW_TAKEN), tuple(kind for kind, _, _ in ROW_TAKEN))
    stream = TridentTopology("t").new_stream("s", FixedBatches("n bigint", []))
    assert rows_of(stream.each("n", function, names).project(names), frames) == [
        tuple(taken for _, _, taken in ROW_TAKEN)
    ]
    texts = [(given, taken) for kind, given, taken in ROW_TAKEN if kind == "string" and type(given) is float]
    (row,) = spark.sql(f"select {', '.join(f'cast(double({given!r}) as string)' for given, _ in texts[:-1])}").collect()
    assert list(row) == [taken for _, taken in texts[:-1]], "as a cast has them"


def given_by(kinds: str, given: Any) -> list[dict[str, Any]]:
    """What a query makes of a row function's values: it needs no Spark."""
    topology = TridentTopology("t")
    topology.new_query_stream("ask", "n bigint").each("n", RowFunction(lambda n: given), kinds)
    return query_topology(topology, {}, "ask", [(1,)])


@pytest.mark.parametrize(("kind", "given", "taken"), [*TAKEN, ("map<string, array<double>>", {"a": [1]}, {"a": [1.0]})])
def test_a_query_takes_the_same_numbers(kind: str, given: Any, taken: Any) -> None:
    found = given_by(f"out {kind}", [(given,)])[0]["out"]
    assert found == (taken.asDict() if isinstance(taken, T.Row) else taken)
    assert type(found) is not type(given) or not isinstance(given, np.generic)


@pytest.mark.parametrize(("kind", "given"), REFUSED)
def test_a_query_refuses_the_same_values(kind: str, given: Any) -> None:
    with pytest.raises(FunctionError, match="which is no"):
        given_by(f"out {kind}", [given])


def test_a_query_takes_the_same_rows() -> None:
    for given in ("ab", {"x": 1, "y": 2}):
        with pytest.raises(FunctionError, match="for 2 field"):
            given_by("u string, v string", given)
    assert given_by("u string, v double", [["a", 1], ("b", 2)]) == [
        {"n": 1, "u": "a", "v": 1.0},
        {"n": 1, "u": "b", "v": 2.0},
    ]


def test_rows_of_several_fields_are_tuples_or_lists(spark: SparkSession) -> None:
    frames = {"s": source(spark, "n bigint", [(1,)])}
    stream = TridentTopology("t").new_stream("s", FixedBatches("n bigint", []))
    for given in ("ab", {"x": 1, "y": 2}):
        made = stream.each("n", RowFunction(lambda n, given=given: given, ("string", "string")), ["u", "v"])
        with pytest.raises(PySparkException, match="for 2 field"):
            rows_of(made.project(["u", "v"]), frames)


def test_a_filter_takes_what_python_takes_for_true(spark: SparkSession) -> None:
    frames = {"s": source(spark, "n bigint", [(1,), (2,), (3,), (None,)])}
    stream = TridentTopology("t").new_stream("s", FixedBatches("n bigint", []))
    assert rows_of(stream.filter("n", RowFunction(lambda n: n and n & 1)), frames) == [(1,), (3,)]


@pytest.mark.usefixtures("spark")
def test_rows_of_the_program_are_not_cut_to_fit() -> None:
    assert arrow_rows("s", "n bigint, d double", [(2.0, 1)]).to_pylist() == [{"n": 2, "d": 1.0}]
    with pytest.raises(SourceSchemaError, match=r"1\.5 \(float\), which is no bigint"):
        arrow_rows("s", "n bigint", [(1,), (1.5,)])


def test_zeros_of_aggregators_with_arrays(spark: SparkSession) -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatches("n bigint", []))
    frames = {"s": source(spark, "n bigint", [(3,), (1,), (3,)], slices=["x"] * 3)}
    both = stream.aggregate([Collect("n", "all"), DistinctCount("n", "d")])
    assert rows_of(both, frames, Run(("x", "y"))) == [([1, 3, 3], 2, "x"), ([], 0, "y")]


def test_keys_and_rows() -> None:
    assert freeze(float("nan")) == freeze(float("nan"))
    assert freeze([1, {"a": [2.0]}]) == freeze((1, {"a": (2.0,)}))
    batch = pa.record_batch({"n": [1, 2], "l": [[AT], None]})
    assert list(plain_rows(batch, [1, 0])) == [([AT], 1), (None, 2)]
    assert list(plain_rows(batch, [])) == [(), ()]


def test_rows_that_do_not_fit_are_named() -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    out = RowsOut(schema, Where("count", "flow.py:7"), own=1)
    for row in [("a", 1), ("b", "two"), ("c", 3)]:
        out.add(row)
    with pytest.raises(RuntimeError, match=r"count \(defined at flow.py:7\) gave \('two',\), which does not fit"):
        list(out.rest())


def sent(kind: pa.DataType, *given: Any) -> list[Any]:
    """What Spark gets of the values that a user's aggregator gave."""
    out = RowsOut(pa.schema([("k", pa.string()), ("v", kind)]), Where("aggregate mean", "flow.py:7"), own=1)
    for value in given:
        out.add(("a", value))
    return [value for batch in out.rest() for value in batch.column(1).to_pylist()]


@pytest.mark.parametrize(("kind", "given", "taken"), TAKEN)
def test_rows_for_spark_take_the_same_numbers(kind: str, given: Any, taken: Any) -> None:
    found = sent(ARROW[kind], given, None)
    assert found == [taken.asDict() if isinstance(taken, T.Row) else taken, None]


@pytest.mark.parametrize(("kind", "given"), REFUSED)
def test_rows_for_spark_refuse_the_same_values(kind: str, given: Any) -> None:
    """Arrow by itself makes 0 of 0.5 for a bigint, a date of its noon, a time of 5."""
    with pytest.raises(RuntimeError, match=r"aggregate mean \(defined at flow.py:7\) gave .*does not fit its output"):
        sent(ARROW[kind], None, given)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int64(), 1, Decimal("2.7")),
        (pa.date32(), datetime.date(2024, 3, 10), datetime.datetime(2024, 3, 10, 5)),
        (pa.list_(pa.int64()), [1, None], [1, 0.5]),
        (pa.struct([("n", pa.int64())]), {"n": 1}, {"n": 0.5}),
        (pa.map_(pa.string(), pa.list_(pa.int64())), {"a": [1]}, {"a": [0.5]}),
    ],
)
def test_one_value_among_many_is_found(kind: pa.DataType, good: Any, bad: Any) -> None:
    assert len(sent(kind, good, None, good)) == 3
    with pytest.raises(RuntimeError, match=re.escape(f"gave ({bad!r},), which does not fit")):
        sent(kind, good, None, bad, good)


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (pa.list_(pa.float64()), [3, 2, 1]),
        (pa.list_(pa.string()), ["a", "b"]),
        (pa.list_(pa.list_(pa.int64())), [[1.0], [2.0]]),
        (pa.struct([("n", pa.int64()), ("d", pa.float64())]), [1, 2]),
        (pa.map_(pa.string(), pa.int64()), [("a", 1.0)]),
    ],
)
def test_an_iterator_is_refused_and_not_eaten(kind: pa.DataType, items: list[Any]) -> None:
    """A batch is gone through twice, so of an iterator some items would be missing."""
    for given in (iter(items), reversed(items), map(str, items), (item for item in items)):
        with pytest.raises(RuntimeError, match=r"aggregate mean .*does not fit its output"):
            sent(kind, None, given)
        with pytest.raises(RuntimeError, match=r"aggregate mean .*does not fit its output"):
            sent(pa.struct([("v", kind)]), (given,))


PAIRS: Any = {"pairs": lambda n: [("a", n)], "none": lambda n: [], "a dict": lambda n: {"a": n}}


@pytest.mark.parametrize("made", PAIRS.values(), ids=PAIRS)
def test_a_map_may_be_given_as_pairs(made: Any) -> None:
    kind = "map<string, double>"
    want = {"a": 2.0} if made(2) else {}
    assert sent(pa.map_(pa.string(), pa.float64()), made(2)) == [list(want.items())]
    stream = TridentTopology("t").new_stream("s", FixedBatches("n bigint", []))
    own = ReducerAggregator(lambda: [], lambda now, n: made(n), returns=kind)
    stream.aggregate("n", own, "m").partition_persist(DeltaState("out"))
    assert run_topology(stream._topology, {"s": [[(2,)]]})["out"] == [{"m": want}]


def test_a_function_may_give_a_map_as_pairs(spark: SparkSession) -> None:
    convert = to_spark(["map<string, double>"])
    assert convert is not None
    assert [convert((made(2),)) for made in PAIRS.values()] == [({"a": 2.0},), ({},), ({"a": 2.0},)]


class _Halves(StateUpdater):
    keys, values = "k string", "n bigint"

    def update_state(self, state: Any, tuples: Any) -> list[Any]:
        state.multi_put([("a",)], [tuples[0][0] / 2])
        return []


class _EmitsHalves(StateUpdater):
    keys, values = "k string", "n bigint"

    def update_state(self, state: Any, tuples: Any) -> list[Any]:
        return [n / 2 for (n,) in tuples]


class _AsksHalves(QueryFunction):
    def batch_retrieve(self, state: Any, arguments: Any) -> list[Any]:
        return [n / 2 for (n,) in arguments]

    def execute(self, arguments: Any, result: Any) -> Any:
        return result


HALF = ReducerAggregator(lambda: 0, lambda total, n: total + n / 2)
OWN_CODE: dict[str, Any] = {
    "reducer": lambda s: s.aggregate("n", HALF, "c"),
    "combiner": lambda s: s.aggregate("n", CombinerAggregator(lambda n: n / 2, max, lambda: 0), "c"),
    "aggregator": lambda s: s.partition_aggregate("n", Aggregator(list, lambda to, n: to.append(n / 2), list), "c"),
    "multi reducer": lambda s: s._topology.multi_reduce(
        [s], ["n"], MultiReducer(lambda: 0, lambda now, i, n: now + n / 2, lambda now: now, returns="bigint"), "c"
    ),
    "window": lambda s: s.tumbling_window(1, "n", HALF, "c"),
    "state": lambda s: s.persistent_aggregate(DeltaState("held"), "n", HALF, "c").new_values_stream(),
    "updater": lambda s: s.partition_persist(DeltaState("held"), "n", _Halves(), "c bigint").new_values_stream(),
    "emitted": lambda s: s.partition_persist(DeltaState("held"), "n", _EmitsHalves(), "c bigint").new_values_stream(),
    "query": lambda s: s.state_query(
        s.persistent_aggregate(DeltaState("held"), "n", Sum(), "t"), "n", _AsksHalves(), "c bigint"
    ),
}


@pytest.mark.parametrize("build", OWN_CODE.values(), ids=OWN_CODE)
def test_the_reference_refuses_the_same_values(build: Any) -> None:
    def run(n: int) -> list[dict[str, Any]]:
        topology = TridentTopology("t")
        stream: Stream = build(topology.new_stream("s", FixedBatches("n bigint", [])))
        stream.partition_persist(DeltaState("out"))
        return run_topology(topology, {"s": [[(n,)]]})["out"]

    run(2)  # 1.0 is a whole number
    with pytest.raises(FunctionError, match=r"1\.5.*which is no bigint"):
        run(3)


FAR: Any = {
    "double": (10**400, "too large"),
    "timestamp": (datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), "out of range"),
}


@pytest.mark.parametrize("kind", FAR)
def test_a_value_that_no_type_holds_is_named(kind: str) -> None:
    given, reason = FAR[kind]
    for build in (
        lambda s: s.aggregate("n", ReducerAggregator(lambda: None, lambda now, n: given, returns=kind), "v"),
        lambda s: s.each("n", RowFunction(lambda n: given, (kind,)), "v"),
    ):
        topology = TridentTopology("t")
        build(topology.new_stream("s", FixedBatches("n bigint", []))).partition_persist(DeltaState("out"))
        with pytest.raises(FunctionError, match=reason):
            run_topology(topology, {"s": [[(1,)]]})
    far: Any = type("_Far", (_Half,), {"outputs": f"v {kind}", "aggregate": lambda self: given})
    windowed = (
        Flow("f")
        .stream("s", FixedBatches("v bigint", []))
        .aggregate(far(), trigger=Policy.count(1), evict=Policy.count(0))
    )
    with pytest.raises(FunctionError, match=reason):
        run_flow(windowed.output().build(), {"s": [{"v": 1}]})


class _Half(WindowAggregator):
    outputs = "v bigint"

    def __init__(self) -> None:
        self.total = 0

    def added(self, event: Any) -> None:
        self.total += event["v"]

    def evicted(self, event: Any) -> None:
        self.total -= event["v"]

    def aggregate(self) -> float:
        return self.total / 2


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.aggregate(_Half(), trigger=Policy.count(1), evict=Policy.count(0)),
        lambda s: s.each(lambda event: {"v": event["v"] / 2}, "v bigint"),
    ],
    ids=["window aggregator", "each"],
)
def test_the_reference_of_flows_refuses_the_same_values(build: Any) -> None:
    flow = build(Flow("f").stream("s", FixedBatches("v bigint", []))).output().build()
    assert run_flow(flow, {"s": [{"v": 2}]})["s"] == [{"v": 1}]
    with pytest.raises(FunctionError, match=r"1\.5.*which is no bigint"):
        run_flow(flow, {"s": [{"v": 3}]})
