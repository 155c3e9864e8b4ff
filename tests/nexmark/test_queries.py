"""The queries of Nexmark give DuckDB's rows on Spark: bounded, streamed in random cuts, by slices, and after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.nexmark.queries import DAY, QUERIES, SLICED, topology
from examples.nexmark.windows import WINDOWED, files, flow
from pipelines import Lake, Runtime
from pipelines.execution.verify import verify
from pipelines.flowmix.compile import as_topology
from tests.crash.lives import Kill, one_life
from tests.nexmark.case import (
    DAYS,
    FILES,
    Rows,
    assert_states,
    everything,
    wanted,
    windowed,
    write_end,
    write_events,
)
from tests.tiers import EXHAUSTIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPOLOGIES = [
    # A join either way round, distinct counts, and an aggregator of the example's own.
    pytest.param(("q9", "q16", "q19"), id="some"),
    pytest.param(tuple(QUERIES), id="all", marks=EXHAUSTIVE),
]
FLOWS = [pytest.param(query, marks=() if query == "q5" else EXHAUSTIVE) for query in WINDOWED]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("events"))


@pytest.fixture(scope="module")
def expected(events: Path) -> dict[str, Rows]:
    return wanted(events)


@pytest.mark.exhaustive
@pytest.mark.parametrize("queries", TOPOLOGIES)
def test_a_stream_in_random_cuts(
    spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows], queries: tuple[str, ...]
) -> None:
    lake = Lake(tmp_path / "lake")
    report = Runtime(spark, lake).catch_up(topology(queries, events, files_per_batch=1))
    assert [batch.txid for batch in report.batches] == list(range(FILES))
    assert_states(lake, expected, queries)
    assert lake.state("q9_waiting").scan().num_rows, "no bid came before its auction's batch"


@pytest.mark.parametrize("queries", TOPOLOGIES)
def test_one_bounded_batch(
    spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows], queries: tuple[str, ...]
) -> None:
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).run_bounded(topology(queries, events))
    assert_states(lake, expected, queries)


@pytest.mark.parametrize("query", FLOWS)
@pytest.mark.parametrize("windows", ["batch", pytest.param("channels", marks=EXHAUSTIVE)])
def test_windows_of_a_stream_and_of_a_bounded_run(
    spark: SparkSession, tmp_path: Path, query: str, windows: str
) -> None:
    folder = write_end(write_events(tmp_path / "events"))
    streamed, bounded = Lake(tmp_path / "streamed"), Lake(tmp_path / "bounded")
    report = Runtime(spark, streamed).catch_up(flow(query, files(folder, files_per_batch=1), windows))
    # The last file has what ends the windows.
    assert len(report.batches) == FILES + 1 if windows == "batch" else len(report.batches) > FILES + 1
    Runtime(spark, bounded).run_bounded(flow(query, files(folder), windows))
    expected = wanted(folder)
    assert_states(streamed, expected, [query])
    assert_states(bounded, expected, [query])


@EXHAUSTIVE
def test_slices(spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows]) -> None:
    """Each day by itself, and one of them a second time, beside what a stream has counted."""
    lake = Lake(tmp_path / "lake")
    sliced = topology(SLICED, events, files_per_batch=3, slice_by=DAY)
    runtime = Runtime(spark, lake)
    runtime.catch_up(sliced, max_batches=1)
    for days in (DAYS, DAYS[1:]):
        assert not runtime.backfill(sliced, days).failed
    assert_states(lake, expected, SLICED)
    runtime.catch_up(sliced)
    assert_states(lake, expected, SLICED)


KILLS: tuple[Kill, ...] = (
    {"moment": "committed", "state": "q9_waiting", "txid": 1},
    {"moment": "committed", "state": "q12", "txid": 0, "jvm": True},
    {"moment": "committing", "state": "q19", "txid": 2},
    {"moment": "committed", "state": "q3_persons", "txid": 2},
    {"moment": "closed", "txid": 2, "jvm": True},
)


@EXHAUSTIVE
@pytest.mark.timeout(1800)
def test_after_kills(spark: SparkSession, tmp_path: Path, events: Path, expected: dict[str, Rows]) -> None:
    home = tmp_path / "lake"
    for kill in KILLS:
        one_life("tests.nexmark.case", {"home": str(home), "events": str(events), "kill": kill})
    lake = Lake(home)
    Runtime(spark, lake, max_attempts=20).catch_up(everything(events))
    assert_states(lake, expected)
    assert not verify(spark, lake, everything(events)).differing


@EXHAUSTIVE
@pytest.mark.parametrize("query", WINDOWED)
def test_windows_after_kills(spark: SparkSession, tmp_path: Path, query: str) -> None:
    """The windows' state and the query's table are of one batch, wherever the process ends."""
    home, folder = tmp_path / "lake", write_end(write_events(tmp_path / "events"))
    kills: tuple[Kill, ...] = (
        {"moment": "committing", "state": query, "txid": 1},
        {"moment": "committed", "state": query, "txid": 2, "jvm": True},
        {"moment": "closed", "txid": FILES - 1},
    )
    for kill in kills:
        one_life("tests.nexmark.case", {"home": str(home), "events": str(folder), "query": query, "kill": kill})
    lake = Lake(home)
    Runtime(spark, lake, max_attempts=20).catch_up(windowed(query, folder))
    assert_states(lake, wanted(folder), [query])
    assert not verify(spark, lake, as_topology(windowed(query, folder))).differing


@EXHAUSTIVE
@pytest.mark.parametrize("seed", range(2, 6))
def test_other_cuts(spark: SparkSession, tmp_path: Path, expected: dict[str, Rows], seed: int) -> None:
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(everything(write_events(tmp_path / "events", seed)))
    assert_states(lake, expected)
