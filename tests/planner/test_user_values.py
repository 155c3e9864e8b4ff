"""Values that cross between Spark and a user's Python code."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pipelines.aggregators import Collect, DistinctCount
from pipelines.aggregators.ordering import freeze
from pipelines.errors import FunctionError
from pipelines.planner.functions import from_spark, to_spark
from pipelines.planner.values import RowsOut, Where, plain_rows
from pipelines.sources import FixedBatches
from pipelines.testing import query_topology
from pipelines.trident import RowFunction, TridentTopology
from tests.planner.plans import Run, frame_of, rows_of, source

AT = datetime.datetime(2024, 3, 10, 2, 30)

TAKEN: list[tuple[str, Any, Any]] = [
    ("double", 0, 0.0),
    ("double", np.int64(3), 3.0),
    ("bigint", 4.0, 4),
    ("bigint", np.int32(4), 4),
    ("decimal(10,2)", 7, Decimal("7.00")),
    ("boolean", np.bool_(True), True),
    ("array<double>", [1, None, 2.5], [1.0, None, 2.5]),
    ("struct<n: bigint, d: double>", {"n": 1.0, "d": 2}, T.Row(n=1, d=2.0)),
    ("bigint", None, None),
]
REFUSED: list[tuple[str, Any]] = [
    ("bigint", 1.5),
    ("bigint", 2**63),
    ("int", 2**31),
    ("bigint", True),
    ("double", "1"),
    ("double", Decimal("1.5")),
    ("decimal(10,2)", 1.5),
    ("boolean", 1),
    ("bigint", float("nan")),
]


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
