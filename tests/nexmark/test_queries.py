"""The queries of Nexmark give DuckDB's rows: bounded, streamed, in plain Python, by slices, and after a kill."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.nexmark.queries import DAY, QUERIES, SLICED, names, topology
from examples.nexmark.sql import SQL
from pipelines import Lake, Runtime
from pipelines.execution.verify import verify
from pipelines.testing import run_topology
from tests.crash.lives import Kill, one_life
from tests.nexmark.case import DAYS, EVENTS, FILES, Rows, assert_rows, assert_states, everything, wanted, write_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("events"))


@pytest.fixture(scope="module")
def expected(events: Path) -> dict[str, Rows]:
    return wanted(events)


def test_each_query_has_its_sql() -> None:
    assert set(SQL) == set(QUERIES)


def test_a_stream_in_random_cuts(spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows]) -> None:
    lake = Lake(tmp_path / "lake")
    report = Runtime(spark, lake).catch_up(everything(events))
    assert [batch.txid for batch in report.batches] == list(range(FILES))
    assert_states(lake, expected)
    assert lake.state("q9_waiting").scan().num_rows, "no bid came before its auction's batch"
    assert lake.state("q3_waiting").scan().num_rows, "no auction came before its seller's batch"


def test_one_bounded_batch(spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows]) -> None:
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).run_bounded(everything(events))
    assert_states(lake, expected)


def test_slices(spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows]) -> None:
    """Each day by itself, and one of them a second time, beside what a stream has counted."""
    lake = Lake(tmp_path / "lake")
    sliced = topology(list(SLICED), events, files_per_batch=3, slice_by=DAY)
    runtime = Runtime(spark, lake)
    runtime.catch_up(sliced, max_batches=1)
    for days in (DAYS, DAYS[1:]):
        assert not runtime.backfill(sliced, days).failed
    assert_states(lake, expected, list(SLICED))
    runtime.catch_up(sliced)
    assert_states(lake, expected, list(SLICED))


def read(folder: Path) -> list[list[dict[str, Any]]]:
    """The files' events as batches."""
    return [[_typed(json.loads(line)) for line in file.read_text().splitlines()] for file in sorted(folder.iterdir())]


def _typed(event: dict[str, Any]) -> dict[str, Any]:
    for kind in ("person", "auction", "bid"):
        for field, value in event.setdefault(kind, None) and event[kind].items() or ():
            if field in ("dateTime", "expires"):
                event[kind][field] = datetime.datetime.fromisoformat(value.removesuffix("Z"))
    return event


@pytest.mark.parametrize("engine", ["reference", pytest.param("stream", marks=pytest.mark.exhaustive)])
def test_batches_in_memory(
    spark: SparkSession, events: Path, expected: dict[str, Rows], engine: Any
) -> None:
    states = run_topology(everything(events), {"events": read(events)}, engine, spark)
    for query in QUERIES:
        assert_rows(query, states[query], expected[query])


NAMED_POINTS: tuple[Kill, ...] = (
    {"moment": "committed", "state": "q9_waiting", "txid": 1},
    {"moment": "committed", "state": "q12", "txid": 0, "jvm": True},
    {"moment": "committing", "state": "q19", "txid": 2},
    {"moment": "committed", "state": "q3_persons", "txid": 2},
    {"moment": "closed", "txid": 2, "jvm": True},
)


@pytest.mark.parametrize(
    "kills", [NAMED_POINTS[:1], pytest.param(NAMED_POINTS[1:], marks=pytest.mark.exhaustive)], ids=["one", "others"]
)
def test_after_a_kill(
    spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows], kills: tuple[Kill, ...]
) -> None:
    home = tmp_path / "lake"
    for kill in kills:
        one_life("tests.nexmark.case", {"home": str(home), "events": str(events), "kill": kill})
    lake = Lake(home)
    Runtime(spark, lake, max_attempts=20).catch_up(everything(events))
    assert_states(lake, expected)
    assert not verify(spark, lake, everything(events)).differing


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 6))
def test_other_cuts(spark: SparkSession, tmp_path: Path, expected: dict[str, Rows], seed: int) -> None:
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(everything(write_events(tmp_path / "events", seed)))
    assert_states(lake, expected)
    assert names("a bigint, b string") == ["a", "b"]
    assert lake.state("q0").scan().num_rows == EVENTS * 46 // 50
