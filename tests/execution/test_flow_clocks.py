"""The clocks of flows on Spark: late events, delays, and a clock of arrival that goes on while nothing comes."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import BatchError
from pipelines.flowmix import Count, Flow, Policy, Sum, WindowAggregator
from pipelines.sources import FixedBatches
from pipelines.trident import AlignedDurationWindow, DeltaState, TridentTopology

pytestmark = pytest.mark.slow

SCHEMA = "k string, v bigint, timestamp bigint"


# Beyond Python's dates, beyond Spark's timestamps, at the ends of a bigint.
ABSURD = (10**15, 10**17, -(10**15), 2**63 - 1, -(2**63))


def rows(lake: Lake, table: str, *fields: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in fields) for row in lake.state(table).scan().to_pylist())


def summed(batches: list[Any], *, delay: int = 0) -> Flow:
    return (
        Flow("clocks")
        .stream("events", FixedBatches(SCHEMA, batches), delay=delay)
        .partition("k")
        .aggregate(Sum("v", "sum"), trigger=Policy.time(1), evict=Policy.count(100), clear_on_trigger=True,
                   window_evict_millis=5_000)
        .persist("sums")
        .build()
    )  # fmt: skip


def test_late_events_go_to_their_table(spark: SparkSession, tmp_path: Path) -> None:
    """What comes behind the watermark is kept, with its fields, and reaches no window."""
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(summed([[("a", 1, 500), ("a", 2, 2500)], [("a", 4, 1200), ("a", 8, 3500)]]))
    assert rows(lake, "late_clocks_events", "k", "v", "timestamp") == [("a", 4, 1200)]
    assert rows(lake, "sums", "sum") == [(0,), (1,), (2,)]


def test_a_delay_waits_for_events_in_disorder(spark: SparkSession, tmp_path: Path) -> None:
    """With two seconds of delay the same event is in time, and the windows see the events in order."""
    lake = Lake(tmp_path)
    batches = [[("a", 1, 500), ("a", 2, 2500)], [("a", 4, 1200), ("a", 8, 3500)], [("a", 0, 9000)]]
    Runtime(spark, lake).catch_up(summed(batches, delay=2))
    assert rows(lake, "late_clocks_events", "v") == []
    # The watermark stands at 7 s; every second has its sum, of what came since the one before.
    found = [(int(at.timestamp()), value) for at, value in rows(lake, "sums", "event_time", "sum")]
    assert found == [(1, 1), (2, 4), (3, 2), (4, 8), (5, 0), (6, 0), (7, 0)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("max_batches", "sums"), [(None, [3, 13]), (1, [11, 5])])
def test_where_streams_meet_an_earlier_batch_comes_first_of_one_time(
    spark: SparkSession, tmp_path: Path, max_batches: int | None, sums: list[int]
) -> None:
    """In one batch the stream that is defined first comes first; no batch waits until nothing more of its last time can come."""
    sources = {
        "first": FixedBatches("v bigint, timestamp bigint", [[(1, 1000)], [(2, 1000), (3, 2000)]]),
        "second": FixedBatches("v bigint, timestamp bigint", [[(10, 1000)], [(20, 2000)]]),
    }
    chain: Any = Flow("meeting")
    for name, source in sources.items():
        chain = chain.stream(name, source).to("both")
    flow = (
        chain.stream("both")
        .aggregate(Sum("v", "sum"), trigger=Policy.count(2), evict=Policy.count(2))
        .persist("sums")
        .build()
    )
    lake = Lake(tmp_path)
    for _ in range(2):
        Runtime(spark, lake).catch_up(flow, max_batches=max_batches)
    assert [value for _, value in rows(lake, "sums", "event_time", "sum")] == sums


@pytest.mark.exhaustive
def test_more_batches_take_windows_up_where_they_were(spark: SparkSession, tmp_path: Path) -> None:
    lake, batches = Lake(tmp_path), [[("a", 1, 100)], [("a", 2, 300)], [("a", 4, 2100)]]
    for count in (1, 2, 3):
        Runtime(spark, lake).catch_up(summed(batches[:count]))
    assert rows(lake, "sums", "sum") == [(0,), (3,)]


@pytest.mark.timeout(300)
def test_a_clock_of_arrival_ticks_while_nothing_comes(spark: SparkSession, tmp_path: Path) -> None:
    """In the original every second is a tick, with or without events."""
    flow = (
        Flow("arrivals", clock="processing")
        .stream("events", FixedBatches(SCHEMA, [[("a", 1, 0), ("a", 2, 0)]]))
        .aggregate(Count(output="n"), trigger=Policy.time(1), evict=Policy.count(10), clear_on_trigger=True)
        .persist("counted")
        .build()
    )
    lake = Lake(tmp_path)
    running = Runtime(spark, lake).stream(flow, trigger_seconds=1)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and not ("counted" in lake.states() and len(rows(lake, "counted", "n")) >= 3):
            time.sleep(0.5)
    finally:
        running.stop()
    found = [n for (n,) in rows(lake, "counted", "n")]
    assert sorted(found)[-1] == 2
    assert found.count(0) >= 2


class Faulty(WindowAggregator):
    """Cannot stand a 13."""

    outputs = "seen bigint"

    def __init__(self) -> None:
        self.seen = 0

    def added(self, event: Any) -> None:
        if event["v"] == 13:
            raise ValueError("thirteen is not a number for me")
        self.seen += 1

    def evicted(self, event: Any) -> None:
        """Nothing is taken back."""

    def aggregate(self) -> int:
        return self.seen


def test_a_fault_in_a_window_names_the_operation_and_its_line(spark: SparkSession, tmp_path: Path) -> None:
    """No trace of Spark's: one sentence; and what was committed before stays."""
    flow = (
        Flow("faulty")
        .stream("events", FixedBatches(SCHEMA, [[("a", 1, 0)], [("a", 13, 1000)]]))
        .aggregate(Faulty(), trigger=Policy.count(1), evict=Policy.count(9))
        .persist("seen_events")
        .build()
    )
    with pytest.raises(BatchError, match="thirteen is not a number for me") as caught:
        Runtime(spark, Lake(tmp_path)).catch_up(flow)
    text = str(caught.value)
    assert "aggregate Faulty" in text
    assert "test_flow_clocks.py:" in text
    assert "Traceback" not in text


def test_an_event_without_a_time_goes_to_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    """It moves no clock: taken for now it would make all that follows late."""
    lake = Lake(tmp_path)
    batches = [[("a", 1, 500), ("b", 7, None)], [("a", 2, 900), ("a", 4, 1500)]]
    Runtime(spark, lake).catch_up(summed(batches))
    assert rows(lake, "sums", "sum") == [(3,)]
    assert rows(lake, "late_clocks_events", "v") == []
    (refused,) = lake.quarantine("clocks").scan().to_pylist()
    assert refused["rule"] == "no_time"
    assert json.loads(refused["row"]) == {"k": "b", "v": 7, "timestamp": None}


@pytest.mark.parametrize("windows", [pytest.param("channels", marks=pytest.mark.exhaustive), "batch"])
def test_a_time_that_no_event_can_have_goes_to_quarantine(spark: SparkSession, tmp_path: Path, windows: Any) -> None:
    """One hostile record is one row there: it fails no batch, moves no clock, and the windows go on."""
    batches = [
        [("a", 1, 500), *(("a", 100, at) for at in ABSURD)],
        [("a", 2, 900), *(("b", 100, at) for at in ABSURD), ("a", 4, 200_000_000)],
    ]
    source = FixedBatches(SCHEMA, batches)
    flow = Flow("absurd", windows=windows).stream("events", source).partition("k")
    daily = flow.aligned(Sum("v", "sum"), every=86_400, time_zone="Europe/Berlin").persist("daily")
    flow = daily.stream("again", source).partition("k").session(Sum("v", "sum"), gap=3600).persist("visits")
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow.build())
    assert rows(lake, "daily", "sum") == rows(lake, "visits", "sum") == [(3,)]
    refused = lake.quarantine("absurd").scan().to_pylist()
    assert {row["rule"] for row in refused} == {"no_time"}
    assert sorted(json.loads(row["row"])["timestamp"] for row in refused) == sorted(4 * ABSURD)


@pytest.mark.parametrize("at", ["at", "CAST(at AS double) * 1e30", "at * CAST(1e15 AS decimal(38,0))"])
def test_times_that_are_no_bigint_go_there_too(spark: SparkSession, tmp_path: Path, at: str) -> None:
    lake = Lake(tmp_path)
    source = FixedBatches("k string, v bigint, at bigint", [[("a", 1, 0), ("a", 2, 10**15)], [("a", 4, 0)]])
    flow = Flow("wide").stream("events", source, timestamp=at).partition("k")
    Runtime(spark, lake).catch_up(flow.session(Sum("v", "sum"), gap=10).persist("visits").build())
    assert [row["rule"] for row in lake.quarantine("wide").scan().to_pylist()] == ["no_time"]


def test_a_tuple_whose_time_none_can_have_is_late(spark: SparkSession, tmp_path: Path) -> None:
    """Tuples of a topology have their time anywhere behind the source: such a one is kept beside those that come late."""
    topology, lake = TridentTopology("wide"), Lake(tmp_path)
    first = [("a", 1, 0), ("a", 2, 10**15), ("a", 8, None)]
    source = FixedBatches("k string, v bigint, at bigint", [first, [("a", 4, 9000)]])
    (
        topology.new_stream("s", source)
        .window(AlignedDurationWindow.of(timedelta(seconds=5)), [Count("n"), Sum("v", "sum")], timestamp="at")
        .partition_persist(DeltaState("sums"))
    )
    Runtime(spark, lake).catch_up(topology)
    assert rows(lake, "sums", "sum") == [(1,)]
    assert rows(lake, "late_wide_window1", "v") == [(2,), (8,)]
