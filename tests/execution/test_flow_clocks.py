"""The clocks of flows on Spark: late events, delays, and a clock of arrival that goes on while nothing comes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import BatchError
from pipelines.flowmix import Count, Flow, Policy, Sum, WindowAggregator
from pipelines.sources import FixedBatches

pytestmark = pytest.mark.slow

SCHEMA = "k string, v bigint, timestamp bigint"


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
