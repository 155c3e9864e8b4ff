"""A day of flights counts once, in whatever order stream, catch-up and backfill meet it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.catalog import FlowSettings
from tests.crash.flights_case import (
    Expected,
    arrive,
    assert_equal,
    contents,
    flight_files,
    refused,
    table_rows,
    topology,
)

pytestmark = pytest.mark.slow

DAYS = 6
FILES_PER_BATCH = 2


class Case:
    """Six days of flights, one of them in two files; batches of two files.

    The order of arrival: 1, first half of 2 | 3 (spoiled), second half of 2 | 4, 5 | 6 (spoiled).
    """

    def __init__(self, spark: SparkSession, settings: FlowSettings, root: Path) -> None:
        self.settings, self.lake = settings, Lake(root)
        self.runtime, self.flow = Runtime(spark, self.lake), topology(settings, files_per_batch=FILES_PER_BATCH)

    def stream(self, batches: int | None = None) -> None:
        self.runtime.catch_up(self.flow, max_batches=batches)

    def backfill(self, *days: int) -> None:
        report = self.runtime.backfill(self.flow, [f"2013-01-0{day}" for day in days])
        assert not report.failed

    def assert_counted_once(self, *days: int) -> None:
        """The states hold exactly these days, or all of them, and quarantine what was refused of them."""
        expected = Expected(arrived(self.settings))
        if not days:
            assert_equal(contents(self.lake), expected.states)
            assert refused(self.lake) == expected.refused
            return
        wanted = {f"2013-01-0{day}" for day in days}
        found = table_rows(self.lake.state("departures").scan())
        assert found == [row for row in expected.states["departures"] if row[0] in wanted]


def arrived(settings: FlowSettings) -> list[Path]:
    return sorted(flight_files(settings), key=lambda file: file.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> FlowSettings:
    made = arrive(tmp_path_factory.mktemp("flights"), DAYS)
    second = flight_files(made)[1]
    lines = second.read_text().splitlines(keepends=True)
    half = second.with_name("2013-01-02-late.json")
    half.write_text("".join(lines[len(lines) // 2 :]))
    second.write_text("".join(lines[: len(lines) // 2]))
    order = [file for file in flight_files(made) if file != half]
    for number, file in enumerate([*order[:3], half, *order[3:]]):
        os.utime(file, (1_400_000_000 + number, 1_400_000_000 + number))
    return made


@pytest.fixture
def case(spark: SparkSession, settings: FlowSettings, tmp_path: Path) -> Case:
    return Case(spark, settings, tmp_path / "lake")


Steps = Callable[[Case], None]
ORDERS: dict[str, Steps] = {
    "a day that the stream has counted, twice": lambda case: (case.stream(), case.backfill(1), case.backfill(1)),
    "a day half counted, twice, then the stream": lambda case: (
        case.stream(1), case.backfill(2), case.assert_counted_once(1, 2), case.backfill(2), case.stream(),
    ),
    "a day not reached yet, then the stream": lambda case: (
        case.stream(1), case.backfill(4, 6), case.stream(), case.backfill(6),
    ),
    "all days before the first batch, then the stream in pieces": lambda case: (
        case.backfill(1, 2, 3, 4, 5, 6), case.assert_counted_once(), case.stream(1), case.stream(),
    ),
    "counted, half counted and not reached in one call": lambda case: (
        case.stream(1), case.backfill(1, 2, 3), case.stream(1), case.backfill(2, 3, 5), case.stream(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.exhaustive
def test_each_day_counts_once(case: Case, order: str) -> None:
    ORDERS[order](case)
    case.assert_counted_once()
    assert not case.runtime.catch_up(case.flow).batches


@pytest.mark.exhaustive
def test_backfills_beside_a_running_stream(case: Case) -> None:
    """Files arrive while the stream runs, and days are backfilled before, while and after it counts them."""
    files = arrived(case.settings)
    away = case.settings.data / "away"
    away.mkdir()
    for file in files[2:]:
        file.rename(away / file.name)
    running = case.runtime.stream(case.flow, trigger_seconds=0.2)
    try:
        for number, file in enumerate(files[2:]):
            (away / file.name).rename(file)
            case.backfill(1 + number, 2)
        wait_for(lambda: sum(batch.received for batch in running.batches) == Expected(files).received)
        case.backfill(6)
    finally:
        running.stop()
    case.assert_counted_once()


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the stream did not come that far"
        time.sleep(0.1)
