"""What is old on a store, the store's clock says: that of this host may be wrong. No Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from deltalake.transaction import AddAction

from pipelines.maintenance import retention
from pipelines.places.disk import DiskStore
from pipelines.places.location import Location
from pipelines.state.kinds import MAP, TRANSACTIONAL
from pipelines.state.record import COMPACTION, BatchRecord
from pipelines.state.store_commits import check_age
from pipelines.state.table import StateTable
from pipelines.state.turns import LateWriterError
from pipelines.state.writer import StateWriter
from tests.state.small_kinds import FLOW, SmallTable

DAY = 86_400.0


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], StateWriter]:
    """The writer of a table on a store whose clock is so many seconds ahead of this host's."""
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    state.commit(0, ("a", 0))
    table = StateTable("counts", Location.of(state.table.path))

    def ahead(seconds: float) -> StateWriter:
        monkeypatch.setattr(DiskStore, "clock", lambda store, folder: time.time() + seconds)
        return StateWriter(table, state.writer.declared)

    return ahead


def _dated(table: StateTable, name: str, ago: float) -> Location:
    assert isinstance(table.path, Location)
    file = table.path / name
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"half")
    os.utime(file.path, (time.time() - ago, time.time() - ago))
    return file


def test_what_spark_is_writing_stays_whatever_this_host_s_clock_says(stored: Callable[[float], StateWriter]) -> None:
    table = stored(-2 * DAY).table
    file = _dated(table, "commit-0/_temporary/0/x.parquet", ago=2 * DAY)
    assert retention.remove_left_overs(table, 0) == 0
    assert file.exists()
    assert retention.remove_left_overs(stored(0).table, 0) == 1
    assert not file.exists()


def test_no_vacuum_takes_left_overs_by_a_clock_that_is_ahead(stored: Callable[[float], StateWriter]) -> None:
    record, limit = BatchRecord(kind=COMPACTION, flow=FLOW, epoch=1, txid=0), retention.Bound(0, 24)
    file = _dated(stored(0).table, "commit-0/x.parquet", ago=2 * DAY)
    assert retention.vacuum(stored(-2 * DAY), limit, record) == 0
    assert file.exists()
    assert retention.vacuum(stored(2 * DAY), limit, record) == 1
    assert not file.exists()


def test_files_are_as_old_as_the_store_says(stored: Callable[[float], StateWriter]) -> None:
    written = AddAction("x.parquet", 1, {}, int(time.time() * 1000), True, "{}")
    for ahead in (0.0, DAY):
        path = stored(ahead).table.path
        assert isinstance(path, Location)
        with pytest.raises(LateWriterError, match="24 hours old") if ahead else nullcontext():
            check_age([written], path, "counts", "batch 1")
        check_age([], path, "counts", "batch 1")
