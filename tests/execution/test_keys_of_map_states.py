"""Map states whose key is several fields, and keys that come in several slices of one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.sources import FixedBatches
from pipelines.trident import CombinerAggregator, DeltaState, ReducerAggregator, Sum, TridentTopology

BATCHES: list[list[tuple[Any, ...]]] = [
    [("d2", None, 8), ("d1", "b", 8), ("d3", None, None), ("d1", "b", 1), ("d2", "b", 1)],
    [("d1", "b", 1), ("d3", "c", 5)],
]


class OwnSum(CombinerAggregator):
    def init(self, v: int | None) -> int:
        return v or 0

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


def added(total: int, v: int | None) -> int:
    return total + (v or 0)


@pytest.mark.slow
@pytest.mark.parametrize("slice_by", [None, "day"])
def test_a_value_per_key(spark: SparkSession, tmp_path: Path, slice_by: str | None) -> None:
    lake, topology = Lake(tmp_path), TridentTopology("keys")
    rows = topology.new_stream("rows", FixedBatches("day string, k string, v bigint", BATCHES), slice_by=slice_by)
    reduced = ReducerAggregator(int, added)
    for name, own in (("sum", Sum()), ("own", OwnSum()), ("reduced", reduced)):
        for keys in (["k"], ["day", "k"]):
            state = DeltaState(f"{name}_{len(keys)}", layout="map")
            rows.group_by(keys).persistent_aggregate(state, "v", own, "s")
    Runtime(spark, lake).catch_up(topology)

    def held(state: str) -> dict[tuple[Any, ...], int]:
        return {tuple(row.values())[:-1]: row["s"] for row in lake.state(state).scan().to_pylist()}

    for name in ("sum", "own", "reduced"):
        assert held(f"{name}_1") == {(None,): 8, ("b",): 11, ("c",): 5}, name
        both = held(f"{name}_2")
        assert (both.pop(("d3", None)) or 0) == 0, name
        assert both == {("d2", None): 8, ("d1", "b"): 10, ("d2", "b"): 1, ("d3", "c"): 5}, name
