"""Compaction of a channel leaves what still waits in windows of its readers: a changeover takes it from there. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines import Lake
from pipelines.execution.checkpoint.changeover import Changeover, Query
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.maintenance.compaction import _Compaction, _Done, kept_here
from pipelines.maintenance.housekeeping_report import Retention
from pipelines.state.commits import properties
from pipelines.state.record import BATCH, BatchRecord

SCHEMA = pa.schema([("_event_id", pa.string()), ("_event_clock", pa.int64()), ("_txid", pa.int64())])
KEEP = Retention(state_hours=0.0, channel_hours=0.0, quarantine_days=None)


class Shop:
    """A query with windows, `w`, that has read all of its channels."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        self.checkpoint = Checkpoint("f", self.lake.checkpoint_path("f", "w"))
        self.names: list[str] = []
        self.unwritten: list[str] = []

    def send(self, channel: str, *batches: Iterable[tuple[str | None, int]]) -> None:
        """Commit batches of events, and of watermarks, which have no id."""
        for txid, rows in enumerate(batches):
            found = pa.Table.from_pylist([dict(zip(SCHEMA.names, (*row, txid), strict=True)) for row in rows], SCHEMA)
            record = BatchRecord(kind=BATCH, flow="f", epoch=1, txid=txid)
            path = str(self.lake.channel_path(channel))
            write_deltalake(path, found, mode="append", commit_properties=properties(record, None))
        self.names.append(channel)

    def read(self, *, windows: bool = True) -> None:
        for part in ("offsets", "commits", *(["state/0"] if windows else [])):
            (self.checkpoint.spark / part).mkdir(parents=True)
        tables = [DeltaTable(str(self.lake.channel_path(name))) for name in self.names]
        offsets = [
            {"reservoirId": str(one.metadata().id), "reservoirVersion": one.version() + 1, "index": -1}
            for one in tables
        ]
        lines = "".join(f"\n{json.dumps({**offset, 'isStartingVersion': False})}" for offset in offsets)
        (self.checkpoint.spark / "offsets" / "0").write_text("v1\n{}" + lines)
        (self.checkpoint.spark / "commits" / "0").write_text("v1\n{}")
        (self.checkpoint.spark / "metadata").write_text("{}")
        self.checkpoint.begin(Epoch(1, 0))

    def compact(self, channel: str, keep: Retention = KEEP) -> int:
        """Return how many rows were let go."""
        work, done = _Compaction(None, self.lake, "f", keep), _Done()
        work.groups = [self.checkpoint]
        work.readers = {name: {"w"} for name in (*self.names, *self.unwritten)}
        work.open_generations = 0
        work._let_go(self.lake.table(self.lake.channel_path(channel), channel), done)
        return done.rows_let_go

    def start(self) -> tuple[int | None, list[str]]:
        """Return the clock at which a changed definition goes on, and the events that it takes once more."""
        change = Changeover.__new__(Changeover)
        change._lake, change._topology, change._ids = self.lake, SimpleNamespace(name="f"), {}
        query: Any = Query("w", (), self.checkpoint, ())
        start = change.start_of(query)
        rows = [row for name in self.names for row in change._rows(name).to_table().to_pylist()]
        clock = start.clock
        waits = [
            row["_event_id"] for row in rows if row["_event_id"] and (clock is None or row["_event_clock"] > clock)
        ]
        return clock, sorted(waits)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_events_beyond_the_watermark_stay(shop: Shop) -> None:
    shop.send("f__a", [("e0", 500), ("e1", 1000), (None, 400)], [("e2", 600), (None, 600)])
    shop.read()
    assert shop.start() == (600, ["e1"])
    assert shop.compact("f__a") == 3
    assert shop.start() == (600, ["e1"])
    assert shop.compact("f__a") == 0


def test_the_channel_that_is_furthest_behind_decides(shop: Shop) -> None:
    shop.send("f__a", [("a0", 100), ("a1", 500), (None, 900)])
    shop.send("f__b", [("b0", 50), (None, 300)])
    shop.read()
    for _ in range(2):
        assert shop.start() == (300, ["a1"])
        shop.compact("f__a"), shop.compact("f__b")
    assert [shop.lake.channel(name).count() for name in ("f__a", "f__b")] == [2, 1]


def test_behind_a_channel_that_is_not_there_yet_all_events_stay(shop: Shop) -> None:
    """A new version of the flow reads it, and its writer has not begun."""
    shop.send("f__a", [("e0", 500), (None, 400)], [("e1", 600), (None, 600)])
    shop.read()
    shop.unwritten.append("f__b")
    assert shop.compact("f__a") == 1
    assert shop.lake.channel("f__a").count() == 3


def test_without_windows_nothing_waits(shop: Shop) -> None:
    shop.send("f__a", [("e0", 500), (None, 400)], [("e1", 600)])
    shop.read(windows=False)
    assert shop.compact("f__a") == 3


@pytest.mark.parametrize(
    ("set_to", "gone"),
    [(None, 3), pytest.param("", 0, id="empty"), pytest.param(" ", 0, id="blank"), ("0", 3), ("1", 0)],
)
def test_an_empty_setting_keeps_rows_of_channels_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_to: str | None, gone: int
) -> None:
    """Not set it is as states."""
    if set_to is not None:
        monkeypatch.setenv("TRIDELTA_KEEP_CHANNEL_HOURS", set_to)
    shop = Shop(tmp_path)
    shop.send("c", [("a", 1)], [("b", 2)], [(None, 3)])
    shop.read(windows=False)
    keep = Retention.from_environment(state_hours=0)
    assert shop.compact("c", keep) == gone
    assert kept_here(0, None).channel_hours == keep.channel_hours
