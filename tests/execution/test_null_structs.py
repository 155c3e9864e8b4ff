"""Structs that are null, though none of their fields ever is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from pipelines import Lake, Runtime
from pipelines.sources import JsonFiles
from pipelines.trident import DeltaState, TridentTopology


@pytest.mark.parametrize("mode", ["stream", "backfill"])
def test_a_struct_is_null_though_its_fields_never_are(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """To Spark `struct(1 AS one)` has a field without nulls, and PySpark's Arrow takes no null struct of such a type."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"k": "a", "n": 1}\n{"k": "b", "n": 2}\n')
    topology = TridentTopology("structs")
    source = JsonFiles(tmp_path / "in", "k string, n bigint")
    stream = topology.new_stream("lines", source, slice_by="k")

    def place(n: Column) -> Column:
        return F.when(n > 1, F.struct(F.lit(7).alias("x"), F.array(F.lit(1)).alias("y")))

    stream.each("n", place, "place").partition_persist(DeltaState("places", layout="rows"), ["k", "place"])
    lake = Lake(tmp_path / "lake")
    runtime = Runtime(spark, lake)
    if mode == "stream":
        runtime.catch_up(topology)
    else:
        runtime.backfill(topology, ["a", "b"])
    rows = sorted(lake.state("places").scan().to_pylist(), key=lambda row: row["k"])
    assert rows == [{"k": "a", "place": None}, {"k": "b", "place": {"x": 7, "y": [1]}}]
