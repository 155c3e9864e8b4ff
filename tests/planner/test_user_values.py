"""Values that cross between Spark and a user's Python code."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pipelines.aggregators import Collect, DistinctCount
from pipelines.aggregators.ordering import freeze
from pipelines.planner.functions import from_spark, to_spark
from pipelines.planner.values import RowsOut, Where, plain_rows
from pipelines.sources import FixedBatches
from pipelines.trident import RowFunction, TridentTopology
from tests.planner.plans import Run, frame_of, rows_of, source

AT = datetime.datetime(2024, 3, 10, 2, 30)


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker on a machine that does not stand in UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


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
