"""Rows at a steady rate: numbered without gaps, the same again on a replay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import DefinitionError, NotSliceableError
from pipelines.sources import Rate
from pipelines.trident import DeltaState, TridentTopology

pytestmark = pytest.mark.slow


def flow(source: Rate) -> TridentTopology:
    topology = TridentTopology("ticks")
    topology.new_stream("numbers", source).partition_persist(DeltaState("rows"))
    return topology


def values(lake: Lake) -> list[int]:
    return sorted(row["value"] for row in lake.state("rows").scan().to_pylist())


class StopError(BaseException):
    pass


def test_so_many_rows_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    lake, topology = Lake(tmp_path), flow(Rate(rows_per_batch=100, partitions=2))
    stopped = []

    def stop(moment: str, state: str, txid: int) -> None:
        if (moment, txid) == ("committed", 1) and not stopped:
            stopped.append(txid)
            raise StopError

    assert [batch.received for batch in Runtime(spark, lake).catch_up(topology).batches] == [100]
    with pytest.raises(StopError):
        Runtime(spark, lake, listeners=[stop]).catch_up(topology)
    batches = Runtime(spark, lake).catch_up(topology).batches
    assert (batches[0].txid, batches[0].received) == (1, 100)
    assert values(lake) == list(range(100 * (1 + len(batches))))


def test_so_many_rows_a_second(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    running = Runtime(spark, lake).stream(flow(Rate(rows_per_second=10)), trigger_seconds=0.5)
    try:
        until = time.monotonic() + 60
        while sum(batch.received for batch in running.batches) < 20 and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        batches = running.stop()
    received = sum(batch.received for batch in batches)
    assert received >= 20
    assert values(lake) == list(range(received))


def test_wrong_arguments() -> None:
    for wrong in ({}, {"rows_per_second": 1, "rows_per_batch": 1}, {"rows_per_second": 0}, {"rows_per_batch": -1}):
        with pytest.raises(DefinitionError, match="Rate"):
            Rate(**wrong)
    with pytest.raises(NotSliceableError, match=r"Rate\(rows_per_batch=5\) has no slices"):
        TridentTopology("ticks").new_stream("numbers", Rate(rows_per_batch=5), slice_by="value")
