"""Compaction and housekeeping in a loop, beside running streams and backfills, change nothing that a reader can see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.compaction_beside import run
from pipelines.state import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.exhaustive
def test_tables_are_those_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four txids a generation, so that a few batches close some.
    monkeypatch.setattr(record, "GENERATION", 4)
    seen = run(spark, tmp_path, 30, every=0.7)
    assert seen.differences == []
    assert min(seen.rounds, seen.backfills, seen.files_removed, seen.log_files_removed) > 0
    assert seen.batches >= 20
    assert seen.rows_compared > 500
    logs = {path.parent.name: path for path in (tmp_path / "lake").glob("*/*/_delta_log")}
    assert logs.keys() >= {"shop", "raw", "late_trips_rides", "summed_opaque", "trips__rides__rides"}
    # Each log has a checkpoint, and nothing before the first one.
    for name, log in logs.items():
        first = min(int(path.stem) for path in log.glob("[0-9]*.json") if path.stem.isdigit())
        assert list(log.glob("*.checkpoint.parquet")), name
        assert first == 0 or (log / f"{first:020d}.checkpoint.parquet").exists(), name
