"""The built-in aggregators mean the same over Spark columns as over plain values."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from pipelines.aggregators import BUILT_IN, ColumnAggregator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES: dict[str, tuple[str, list[list[Any]]]] = {
    "integers": ("bigint", [[3, None, -1], [None], [], [7, 7]]),
    "nothing but nulls": ("bigint", [[None, None], [None]]),
    "doubles": ("double", [[0.5, None], [-2.25, 4.0]]),
    "not a number": ("double", [[math.nan, 1.0], [2.0]]),
    "decimals": ("decimal(10,2)", [[Decimal("0.10"), Decimal("0.20")], [None], [Decimal("-5.00")]]),
}


def plain_value(aggregator: ColumnAggregator, parts: list[list[Any]]) -> Any:
    values = [aggregator.init(value) for part in parts for value in part]
    return aggregator.finish(reduce(aggregator.combine, values, aggregator.zero()))


@pytest.mark.parametrize("case", CASES)
def test_partial_fold_and_result(spark: SparkSession, case: str) -> None:
    kind, parts = CASES[case]
    rows = [(number, value) for number, part in enumerate(parts) for value in part]
    frame = spark.createDataFrame(rows, f"part int, x {kind}")
    made = {name: aggregator() for name, aggregator in BUILT_IN.items()}
    partials = frame.groupBy("part").agg(*(a.partial(*([frame.x] * a.arity)).alias(n) for n, a in made.items()))
    folded = partials.agg(*(a.fold(partials[n]).alias(n) for n, a in made.items()))
    found = folded.select(*(a.result(folded[n]).alias(n) for n, a in made.items())).collect()[0].asDict()
    expected = {name: plain_value(aggregator, parts) for name, aggregator in made.items()}
    # As text where there is NaN, which equals nothing.
    assert {n: str(v) if "nan" in str(v) else v for n, v in found.items()} == {
        n: str(v) if "nan" in str(v) else v for n, v in expected.items()
    }


def test_an_empty_frame_gives_the_zeros(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "x bigint")
    made = {name: aggregator() for name, aggregator in BUILT_IN.items()}
    found = frame.agg(*(a.result(a.partial(*([frame.x] * a.arity))).alias(n) for n, a in made.items())).collect()[0]
    assert found.asDict() == {name: a.finish(a.zero()) for name, a in made.items()}


NAN, INF = math.nan, math.inf
ENDS: dict[str, tuple[pa.DataType, list[Any], Any, Any]] = {
    "double": (pa.float64(), [2.0, NAN, 1.0, None], 1.0, NAN),
    "nothing but NaN": (pa.float32(), [NAN, NAN], NAN, NAN),
    "infinities": (pa.float64(), [INF, -INF, None], -INF, INF),
    "nothing but infinity": (pa.float64(), [INF, INF], INF, INF),
    "nothing but minus infinity": (pa.float32(), [-INF, None], -INF, -INF),
    "infinity and NaN": (pa.float32(), [INF, NAN, None], INF, NAN),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 2, "b": "q"}, {"a": 1, "b": "z"}, {"a": None, "b": "z"}, None],
        {"a": None, "b": "z"},
        {"a": 2, "b": "q"},
    ),
    "array": (pa.list_(pa.float64()), [[2.0, NAN], [2.0, None], [2.0, 1.0], None], [2.0, None], [2.0, NAN]),
    "text": (pa.string(), ["b", None, "a"], "a", "b"),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_ends_are_those_of_spark_in_any_order(tmp_path: Path, case: str) -> None:
    kind, values, *ends = ENDS[case]
    orders = list(itertools.permutations(values))
    rows = [{"k": number, "v": value} for number, order in enumerate(orders) for value in order]
    write_deltalake(tmp_path / "t", pa.Table.from_pylist(rows, pa.schema([("k", pa.int64()), ("v", kind)])))
    query = QueryBuilder().register("t", DeltaTable(tmp_path / "t"))
    for name, end in zip(("Min", "Max"), ends, strict=True):
        aggregator = BUILT_IN[name]()
        assert {repr(reduce(aggregator.combine, order)) for order in orders} == {repr(end)}
        sql = f"SELECT {aggregator.result_sql('v', kind=kind)} AS found FROM t GROUP BY k"
        assert {repr(row["found"]) for row in pa.table(query.execute(sql).read_all()).to_pylist()} == {repr(end)}


def test_collected_values_are_sorted_as_by_spark() -> None:
    arrays = [[2.0, NAN], [3.0], [2.0, 1.0], [2.0, None], []]
    assert repr(BUILT_IN["Collect"]().finish(arrays)) == repr([[], [2.0, None], [2.0, 1.0], [2.0, NAN], [3.0]])


@pytest.mark.parametrize("case", [case for case in CASES if case != "not a number"])
def test_stored_partial_values_fold_in_datafusion(tmp_path: Path, case: str) -> None:
    """What `get` and `scan` ask delta-rs for: the partial values of some batches, folded by SQL."""
    kind, parts = CASES[case]
    types = {"bigint": pa.int64(), "double": pa.float64(), "decimal(10,2)": pa.decimal128(20, 2)}
    for name in ("DistinctCount", "Collect"):
        aggregator = BUILT_IN[name]()
        values = [reduce(aggregator.combine, map(aggregator.init, part), aggregator.zero()) for part in parts]
        table = pa.table({"v": pa.array(values, pa.list_(types[kind]))})
        write_deltalake(tmp_path / name, table)
        query = QueryBuilder().register("t", DeltaTable(tmp_path / name))
        sql = f"SELECT {aggregator.fold_sql('v')} AS folded, {aggregator.result_sql('v')} AS result FROM t"
        found = pa.table(query.execute(sql).read_all()).to_pylist()[0]
        assert found["result"] == plain_value(aggregator, parts)
        assert aggregator.finish(found["folded"]) == found["result"]
