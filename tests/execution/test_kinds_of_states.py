"""Each kind of state in each layout, through a batch that is committed and then replayed (Trident rules 6)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError, TrideltaError
from pipelines.execution.batch.group import BatchGroup
from pipelines.sources import FixedBatches
from pipelines.trident import (
    NON_TRANSACTIONAL,
    OPAQUE,
    TRANSACTIONAL,
    Count,
    DeltaState,
    ReducerAggregator,
    Sum,
    TridentTopology,
)

pytestmark = pytest.mark.slow

KINDS = (TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL)
SCHEMA = "k string, v bigint"
BATCHES = [[("a", 1), ("b", 2)], [("a", 10), ("c", 3)], [("a", 100)]]


def longest(kept: int, value: int) -> int:
    return kept + value


def topology(kinds: tuple[str, ...]) -> TridentTopology:
    found = TridentTopology("kinds")
    stream = found.new_stream("s", FixedBatches(SCHEMA, BATCHES))
    for kind in kinds:
        grouped = stream.group_by("k")
        grouped.persistent_aggregate(DeltaState(f"log_{kind}", kind), "v", Sum(), "total")
        grouped.persistent_aggregate(DeltaState(f"map_{kind}", kind, "map"), "v", Sum(), "total")
        reducer = ReducerAggregator(lambda: 0, longest)
        grouped.persistent_aggregate(DeltaState(f"reduced_{kind}", kind), "v", reducer, "total")
        stream.partition_persist(DeltaState(f"rows_{kind}", kind))
        stream.persistent_aggregate(DeltaState(f"one_{kind}", kind, "map"), Count(), "n")
    return found


def test_totals_of_decimals_are_started_again(spark: SparkSession, tmp_path: Path) -> None:
    """The plan of a map state that is there has its rows in it; of a new one it has not."""
    flow = TridentTopology("prices")
    rows = flow.new_stream("s", FixedBatches("k string, v decimal(10,2)", []))
    rows.group_by("k").persistent_aggregate(DeltaState("totals", layout="map"), "v", Sum(), "total")
    for _ in range(2):
        group = BatchGroup(spark, Lake(tmp_path), flow, flow.spouts)
        assert group.sinks[0].writer.declared.columns == (("k", "string"), ("total", "decimal(20,2)"))


class DieAfter:
    """Stands for a process that dies when all states of a batch are committed and Spark does not know yet."""

    def __init__(self, state: str, txid: int) -> None:
        self.at, self.died = (state, txid), False

    def __call__(self, moment: str, state: str, txid: int) -> None:
        if moment == "committed" and (state, txid) == self.at and not self.died:
            self.died = True
            raise SystemExit("killed")


def die_in_batch_1(spark: SparkSession, lake: Lake, kinds: tuple[str, ...]) -> None:
    death = DieAfter(f"one_{kinds[-1]}", 1)
    with pytest.raises((SystemExit, TrideltaError, RuntimeError)):
        Runtime(spark, lake, listeners=[death]).catch_up(topology(kinds))
    assert death.died


def totals(lake: Lake, name: str) -> dict[str, Any]:
    return {row["k"]: row["total"] for row in lake.state(name).scan().to_pylist()}


def rows(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lake.state(name).scan().to_pylist())


def test_a_replay_of_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    die_in_batch_1(spark, lake, KINDS)
    report = Runtime(spark, lake).catch_up(topology(KINDS))
    assert [(batch.txid, batch.attempt) for batch in report.batches] == [(1, 1), (2, 0)]
    for kind in KINDS:
        twice = kind == NON_TRANSACTIONAL
        wanted = {"a": 121 if twice else 111, "b": 2, "c": 6 if twice else 3}
        for layout in ("log", "map", "reduced"):
            assert totals(lake, f"{layout}_{kind}") == wanted, f"{layout}_{kind}"
        given = [row for batch in BATCHES for row in batch] + (BATCHES[1] if twice else [])
        assert rows(lake, f"rows_{kind}") == sorted(given)
        assert lake.state(f"one_{kind}").get() == [{"n": 7 if twice else 5}]
        if not twice:
            assert lake.state(f"reduced_{kind}").get([{"k": "a"}], txid=1) == [{"k": "a", "total": 11}]


def change_batch_1(lake: Lake) -> None:
    """The source forgets a row of batch 1 and gives others: what an opaque source may do."""
    file = lake.root / "spool" / "kinds" / "s" / "00000001.parquet"
    times = file.stat().st_mtime
    table = pa.Table.from_pylist([{"k": "a", "v": 20}, {"k": "d", "v": 4}, {"k": "d", "v": 5}])
    pq.write_table(table, file)
    os.utime(file, (times, times))


@pytest.mark.exhaustive
def test_a_replay_of_other_rows_replaces_what_opaque_states_hold(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    die_in_batch_1(spark, lake, (OPAQUE,))
    assert totals(lake, "map_opaque") == {"a": 11, "b": 2, "c": 3}
    change_batch_1(lake)
    Runtime(spark, lake).catch_up(topology((OPAQUE,)))
    for layout in ("log", "map", "reduced"):
        assert totals(lake, f"{layout}_opaque") == {"a": 121, "b": 2, "d": 9}, layout
    assert rows(lake, "rows_opaque") == [("a", 1), ("a", 20), ("a", 100), ("b", 2), ("d", 4), ("d", 5)]
    assert lake.state("one_opaque").get() == [{"n": 6}]


def test_a_replay_of_other_rows_is_an_error_for_transactional_states(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    die_in_batch_1(spark, lake, (TRANSACTIONAL,))
    change_batch_1(lake)
    with pytest.raises(PoisonBatchError, match="expected 3 rows but received 2"):
        Runtime(spark, lake).catch_up(topology((TRANSACTIONAL,)))


def test_the_same_number_of_other_rows_is_found_by_their_hash(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    die_in_batch_1(spark, lake, (TRANSACTIONAL,))
    file = lake.root / "spool" / "kinds" / "s" / "00000001.parquet"
    times = file.stat().st_mtime
    pq.write_table(pa.Table.from_pylist([{"k": "a", "v": 11}, {"k": "c", "v": 3}]), file)
    os.utime(file, (times, times))
    with pytest.raises(PoisonBatchError, match="hash"):
        Runtime(spark, lake).catch_up(topology((TRANSACTIONAL,)))


def test_bounded_runs_of_map_states(spark: SparkSession, tmp_path: Path) -> None:
    """A whole state is replaced as often as one likes; a slice is folded into a map once."""
    lake = Lake(tmp_path)
    for _ in range(2):
        Runtime(spark, lake).run_bounded(topology((TRANSACTIONAL,)))
        assert totals(lake, "reduced_transactional") == {"a": 111, "b": 2, "c": 3}
        assert totals(lake, "map_transactional") == {"a": 111, "b": 2, "c": 3}
        assert lake.state("one_transactional").get() == [{"n": 5}]
    Runtime(spark, lake).catch_up(topology((TRANSACTIONAL,)))
    assert totals(lake, "reduced_transactional") == {"a": 111, "b": 2, "c": 3}


def test_a_slice_goes_into_a_map_once(spark: SparkSession, tmp_path: Path) -> None:
    found = TridentTopology("sliced_map")
    stream = found.new_stream("s", FixedBatches(SCHEMA, BATCHES), slice_by="k")
    stream.group_by("k").persistent_aggregate(DeltaState("totals", layout="map"), "v", Sum(), "total")
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    runtime.backfill(found, ["a", "b"])
    assert totals(lake, "totals") == {"a": 111, "b": 2}
    with pytest.raises(TrideltaError, match="it is in there already"):
        runtime.backfill(found, ["c", "a"])
    runtime.catch_up(found)
    assert totals(lake, "totals") == {"a": 111, "b": 2, "c": 3}
    with pytest.raises(TrideltaError, match="its stream has counted batches already"):
        runtime.backfill(found, ["c"])


def test_a_backfill_between_an_opaque_commit_and_its_replay(spark: SparkSession, tmp_path: Path) -> None:
    """The batch is in the table, Spark will replay it, and a backfill replaces one of its slices in between."""
    found = TridentTopology("kinds")
    stream = found.new_stream("s", FixedBatches(SCHEMA, BATCHES), slice_by="k")
    stream.group_by("k").persistent_aggregate(DeltaState("totals", OPAQUE), "v", Sum(), "total")
    lake = Lake(tmp_path)
    death = DieAfter("totals", 1)
    with pytest.raises((SystemExit, TrideltaError, RuntimeError)):
        Runtime(spark, lake, listeners=[death]).catch_up(found)
    Runtime(spark, lake).backfill(found, ["a"])
    assert totals(lake, "totals") == {"a": 111, "b": 2, "c": 3}
    Runtime(spark, lake).catch_up(found)
    assert totals(lake, "totals") == {"a": 111, "b": 2, "c": 3}
