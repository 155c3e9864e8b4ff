"""Sums of decimals with more than 28 digits behind the point: one type and one value on all engines (ADR 90)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import FunctionError
from pipelines.sources import FixedBatches
from pipelines.testing import run_topology
from pipelines.testing.reference import ReferenceEngine
from pipelines.trident import Average, CombinerAggregator, DeltaState, ReducerAggregator, Sum, TridentTopology

UNIT = Decimal(1).scaleb(-30)
KIND = "decimal(38,30)"
ROUNDED = Decimal(1).scaleb(-28)
BATCHES: list[list[tuple[Any, ...]]] = [
    # Three numbers that are rounded away one by one, and not as a sum; a half that goes up; a sum below the half.
    [("a", 20 * UNIT), ("a", 20 * UNIT), ("a", 20 * UNIT), ("b", 50 * UNIT), ("c", 49 * UNIT)],
    # What the state holds decides nothing: a half goes from zero whatever it is added to.
    [("a", -50 * UNIT), ("b", Decimal(f"1.{5:029}")), ("c", 49 * UNIT), ("d", None)],
]


def sums() -> TridentTopology:
    topology = TridentTopology("long")
    stream = topology.new_stream("s", FixedBatches(f"k string, x {KIND}", []))
    stream.group_by("k").persistent_aggregate(DeltaState("kept"), "x", Sum(), "x")
    stream.group_by("k").persistent_aggregate(DeltaState("mapped", layout="map"), "x", Sum(), "x")
    stream.group_by("k").persistent_aggregate(DeltaState("means"), "x", Average(), "x")
    stream.group_by("k").aggregate("x", Sum(), "x").partition_persist(DeltaState("sums"))
    stream.aggregate("x", Sum(), "x decimal(38,28)").partition_persist(DeltaState("said"))
    return topology


WANTED: dict[str, list[dict[str, Any]]] = {
    "kept": [{"k": "a", "x": 0}, {"k": "b", "x": Decimal(f"1.{2:028}")}, {"k": "c", "x": 0}, {"k": "d", "x": 0}],
    "sums": [
        *({"k": "a", "x": ROUNDED}, {"k": "b", "x": ROUNDED}, {"k": "c", "x": 0}),
        *({"k": "a", "x": -ROUNDED}, {"k": "b", "x": Decimal(f"1.{1:028}")}, {"k": "c", "x": 0}, {"k": "d", "x": 0}),
    ],
    "said": [{"x": 2 * ROUNDED}, {"x": 1}],
}
WANTED["mapped"] = WANTED["kept"]


def beside_python() -> TridentTopology:
    """Return sums beside aggregators in Python, whose chains run in Python on Spark, too."""
    reducer = ReducerAggregator(lambda: 0, lambda count, x: count + 1, field="x", output="n")
    combiner = CombinerAggregator(lambda x: 1, lambda a, b: a + b, lambda: 0, field="x", output="n")
    topology = TridentTopology("long_in_python")
    stream = topology.new_stream("s", FixedBatches(f"k string, x {KIND}", []))
    for name, other in (("reduced", reducer), ("combined", combiner)):
        grouped = stream.group_by("k")
        grouped.aggregate([Sum("x", "x"), Average("x", "mean"), other]).partition_persist(DeltaState(name))
        grouped.persistent_aggregate(DeltaState(f"{name}_kept"), [Sum("x", "x"), other])
    return topology


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["bounded", pytest.param("stream", marks=pytest.mark.exhaustive)])
def test_sums_beside_aggregators_in_python(
    spark: SparkSession, engine: Literal["bounded", pytest.param("stream", marks=pytest.mark.exhaustive)]
) -> None:
    found = run_topology(beside_python(), {"s": BATCHES}, engine, spark)
    assert found == run_topology(beside_python(), {"s": BATCHES})
    for name in ("reduced", "combined"):
        assert [{"k": row["k"], "x": row["x"]} for row in found[name]] == WANTED["sums"]
        assert [{"k": row["k"], "x": row["x"]} for row in found[f"{name}_kept"]] == WANTED["kept"]


@pytest.mark.parametrize("engine", ["reference", "bounded", pytest.param("stream", marks=pytest.mark.exhaustive)])
def test_sums_are_those_of_all_engines(
    spark: SparkSession, engine: Literal["reference", "bounded", pytest.param("stream", marks=pytest.mark.exhaustive)]
) -> None:
    found = run_topology(sums(), {"s": BATCHES}, engine, spark)
    assert {row["k"]: row["x"] for row in found.pop("means")} == {"a": 0.0, "b": 0.5, "c": 0.0, "d": None}
    assert found == WANTED


def test_the_reference_engine_rounds_as_spark() -> None:
    found = run_topology(sums(), {"s": BATCHES})
    assert {name: found[name] for name in WANTED} == WANTED
    engine = ReferenceEngine(sums(), None)
    engine.run({"s": BATCHES})
    assert engine.states["kept"][1]["x"].as_tuple().exponent == -28


def test_the_type_that_comes_may_be_written_and_no_other() -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatches(f"x {KIND}", []))
    stream.aggregate("x", Sum(), "x decimal(38,28)")
    with pytest.raises(FunctionError, match=r"decimal\(38, ?28\)"):
        stream.aggregate("x", Sum(), f"x {KIND}")


def test_a_sum_that_does_not_fit_with_all_its_digits_fails_here_too() -> None:
    nearly = Decimal("9" * 8 + "." + "9" * 30)
    with pytest.raises(FunctionError, match="does not fit"):
        run_topology(sums(), {"s": [[("a", nearly), ("a", nearly)]]})
