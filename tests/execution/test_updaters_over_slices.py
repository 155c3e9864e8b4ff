"""A state updater behind a stream with slices: the slices of a batch come one after the other, as in a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.sources import FixedBatches
from pipelines.trident import DeltaState, StateUpdater, TridentTopology

BATCHES = [
    [("d2", "a", 4), ("d1", "a", 1), ("d1", "b", 7), ("d3", "a", 10)],
    [("d1", "a", 100), ("d2", "b", 1), ("d2", "gone", 1), ("d3", "gone", 0)],
]


class Running(StateUpdater):
    """Keeps the sum of each key, and says the sum after each tuple; a zero removes the key."""

    keys, values = "k string", "total bigint"

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterator[tuple[str, str, int]]:
        for day, k, v in sorted(tuples):
            if v:
                [total] = state.multi_update([(k,)], [lambda before, v=v: (before or 0) + v])
                yield day, k, total
            else:
                state.multi_remove([(k,)])


@pytest.mark.slow
@pytest.mark.parametrize(("hint", "slice_by"), [(1, "day"), (3, "day"), (1, None)])
def test_a_key_in_several_slices_of_a_batch(
    spark: SparkSession, tmp_path: Path, hint: int, slice_by: str | None
) -> None:
    lake, topology = Lake(tmp_path), TridentTopology("running")
    rows = topology.new_stream("rows", FixedBatches("day string, k string, v bigint", BATCHES), slice_by=slice_by)
    by_key = rows.partition_by("k").parallelism_hint(hint) if hint > 1 else rows
    state = by_key.partition_persist(
        DeltaState("totals"), ["day", "k", "v"], Running(), "at string, key string, total bigint"
    )
    state.new_values_stream().partition_persist(DeltaState("said"))
    Runtime(spark, lake).catch_up(topology)
    assert sorted(map(tuple, (row.values() for row in lake.state("totals").scan().to_pylist()))) == [
        ("a", 115),
        ("b", 8),
    ]
    said = [(row["at"], row["key"], row["total"]) for row in lake.state("said").scan().to_pylist()]
    assert sorted(said) == sorted(
        [
            *[("d1", "a", 1), ("d2", "a", 5), ("d3", "a", 15), ("d1", "b", 7)],
            *[("d1", "a", 115), ("d2", "b", 8), ("d2", "gone", 1)],
        ]
    )
    if slice_by is not None:
        assert {row["at"] for row in lake.state("said").scan(where="_slice = 'd2'").to_pylist()} == {"d2"}
