"""The record of replays: a replay that comes late writes over none. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.execution.replays import record as records_module
from pipelines.execution.replays.record import Record, Records
from pipelines.execution.replays.runner import Replayer
from pipelines.execution.replays.selection import Lot
from pipelines.places.lease import LeaseLostError
from pipelines.places.location import Location
from pipelines.state.turns import LateWriterError


@pytest.fixture(params=["a folder", "a store"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Records:
    return Records(tmp_path / "shop" if request.param == "a folder" else Location.of(tmp_path / "shop"))


def record(number: int, started: str) -> Record:
    return Record(number, "source", "s", started, {"quarantine": 0}, {}, 1)


def lot(row: str) -> Lot:
    return Lot("source", "s", pa.table({"row": [row]}))


def test_a_late_replay_does_not_write_over_the_one_that_took_its_place(records: Records) -> None:
    records.begin(record(1, "at 10"), lot("theirs"))
    records.finish(record(1, "at 10"), 1, {})
    before = records.all()
    for row in ("mine", "theirs"):
        with pytest.raises(LateWriterError, match="replay 1"):
            records.begin(record(1, "at 9"), lot(row))
    assert (records.all(), records.lot(before[0]).rows["row"].to_pylist()) == (before, ["theirs"])


def test_a_late_replay_leaves_the_rows_of_one_that_is_about_to_begin(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a replay that was cut off there are left as well: the next one begins behind it."""
    put = records_module._put_new

    def cut_off(records: Any, file: Any, data: bytes) -> None:
        if file.suffix == ".json":
            raise KeyboardInterrupt
        put(records, file, data)

    with monkeypatch.context() as patch:
        patch.setattr(records_module, "_put_new", cut_off)
        with pytest.raises(KeyboardInterrupt):
            records.begin(record(1, "at 10"), lot("theirs"))
    with pytest.raises(LateWriterError):
        records.begin(record(1, "at 9"), lot("mine"))
    assert (records.all(), records.last) == ([], 1)
    records.begin(record(2, "at 11"), lot("again"))
    assert [records.lot(one).rows["row"].to_pylist() for one in records.unfinished()] == [["again"]]


def test_rows_without_a_record_are_forgotten_with_old_replays(records: Records) -> None:
    for number in (2, 4):
        records.begin(record(number, "at 10"), lot("theirs"))
    for number in (1, 3, 5):
        (records.folder / f"{number}.parquet").write_bytes(b"rows")
    now = datetime.now(UTC)
    records.forget(now - timedelta(hours=1))
    assert {file.name for file in records.folder.glob("*.parquet")} == {f"{n}.parquet" for n in (1, 2, 3, 4, 5)}
    records.forget(now + timedelta(hours=1))
    assert {file.name for file in records.folder.glob("*.parquet")} == {f"{n}.parquet" for n in (2, 4, 5)}
    assert records.last == 5


def test_a_replay_that_has_lost_a_lease_does_not_begin(records: Records) -> None:
    def lost() -> None:
        raise LeaseLostError("shop", "rewrite.lock", "another process has taken it over")

    replayer = Replayer.__new__(Replayer)
    checkpoints: Any = [SimpleNamespace(still_held=lost)]
    replayer._records, replayer._held = records, checkpoints
    with pytest.raises(LeaseLostError):
        replayer._begin(record(1, "at 9"), lot("mine"))
    assert records.last == 0
