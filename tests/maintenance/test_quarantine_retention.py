"""Refused rows go when they are old, by the commit that refused them, and none before its time."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.execution.batch.quarantine import quarantine_writer
from pipelines.maintenance import compact
from pipelines.maintenance.rejected import Ages, TxidSpan, ages_file, let_go, old_rows
from pipelines.state import writer as writer_module
from pipelines.state.lake import Lake
from pipelines.state.quarantine import COLUMNS
from pipelines.state.record import BATCH, SLICE, BatchRecord
from pipelines.state.schema import SLICE_COLUMN
from pipelines.state.table import StateTable

FLOW = "shop"
NOW = datetime.now(UTC)


class Refused:
    """A flow's quarantine, written without Spark; each commit is as old as a test says."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        self.writer = quarantine_writer(self.lake, FLOW)
        self.writer.prepare(StructType([StructField(name, StringType()) for name, _ in COLUMNS]))

    @property
    def table(self) -> StateTable:
        return self.lake.quarantine(FLOW)

    def batch(self, txid: int, days_ago: float, *, group: str = "one") -> None:
        record = BatchRecord(kind=BATCH, flow=FLOW, epoch=1, txid=txid)
        version = self.writer.append_arrow(_rows(f"{group} {txid}"), record, f"shop/quarantine/{group}/1")
        self._make_old(version, days_ago)

    def backfill(self, slice_: str, days_ago: float) -> None:
        record = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, slice=slice_, claims=("file:/one",))
        rows = _rows(slice_).append_column(SLICE_COLUMN, pa.array([slice_]))
        self._make_old(self.writer.replace_slice(rows, record), days_ago)

    def held(self) -> set[str]:
        return set(self.table.scan().column("row").to_pylist())

    def _make_old(self, version: int, days_ago: float) -> None:
        file = self.table.path / "_delta_log" / f"{version:020d}.json"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = int((NOW - timedelta(days=days_ago)).timestamp() * 1000)
        # As delta-rs writes it: one that ends with the end of a line is one that was cut off.
        file.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))


def _rows(text: str) -> pa.Table:
    columns = {"stage": ["gate"], "rule": ["not_null"], "reason": ["r"], "row": [text]}
    return pa.table({**columns, **{name: pa.array([None], pa.string()) for name in ("file", "stream", "batch_group")}})


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    return Refused(tmp_path)


def test_old_rows_go_and_young_ones_stay(refused: Refused) -> None:
    refused.backfill("2024-01-01", 50)
    refused.backfill("it's", 3)
    for txid, days in ((0, 40), (1, 31), (2, 29), (70, 0)):
        refused.batch(txid, days)
    before, version = refused.table.scan(txid=70), refused.table.version()
    report = compact(None, refused.lake, FLOW, quarantine_days=30).tables[0]
    assert report.rows_let_go == 3
    assert refused.table.scan(txid=70).equals(before)
    assert refused.table.scan(version=version).equals(before)
    assert refused.held() == {"one 2", "one 70", "it's"}
    assert refused.table.commits.claims() == {"2024-01-01": {"file:/one"}, "it's": {"file:/one"}}
    assert compact(None, refused.lake, FLOW, quarantine_days=30).tables[0].rows_let_go == 0


def test_without_a_retention_all_stay_and_their_ages_are_kept(refused: Refused) -> None:
    refused.batch(0, 400)
    compact(None, refused.lake, FLOW)
    assert refused.held() == {"one 0"}
    assert json.loads(ages_file(refused.table).read_text())["spans"][0]["first"] == 0


def test_of_two_groups_with_the_same_txid_the_younger_counts(refused: Refused) -> None:
    refused.batch(5, 40, group="fast")
    refused.batch(6, 40, group="fast")
    refused.batch(5, 1, group="slow")
    let_go(refused.table, DeltaTable(str(refused.table.path)), 30, BatchRecord(kind="compaction", flow=FLOW), NOW)
    assert refused.held() == {"fast 5", "slow 5"}


def test_ages_outlive_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(writer_module._CONFIGURATION, "delta.checkpointInterval", "5")
    other = Refused(tmp_path / "other")
    for txid in range(20):
        other.batch(txid, 25)
    for txid in (20, 21):
        compact(None, other.lake, FLOW, retention_hours=0, quarantine_days=30)
        other.batch(txid, 0)
    first = min(int(file.stem) for file in (other.table.path / "_delta_log").glob("[0-9]*.json"))
    assert first > 15
    fresh = Lake(other.lake.root).quarantine(FLOW)
    assert old_rows(fresh, 30, NOW) is None
    assert (
        let_go(
            fresh, DeltaTable(str(fresh.path)), 30, BatchRecord(kind="compaction", flow=FLOW), NOW + timedelta(days=6)
        )
        == 20
    )
    assert other.held() == {"one 20", "one 21"}


@given(st.integers(0, 2**32))
def test_nothing_young_is_ever_named(seed: int) -> None:
    """Over any history of several groups: what a condition names was never committed since the time it asks for."""
    chance = random.Random(seed)
    history: list[tuple[int, float]] = []
    ages = Ages()
    clocks = [chance.randrange(5000), chance.randrange(5000)]
    now = 0.0
    for _ in range(30):
        now += chance.choice((3600, 86_400, 20_000))
        which = chance.randrange(2)
        clocks[which] += chance.choice((1, 1, 7, 2000))
        history.append((clocks[which], now))
        ages = Ages((*ages.spans, TxidSpan(clocks[which], clocks[which], now)), {}).with_commits([])
    oldest = now - chance.choice((0, 3, 10)) * 86_400
    where = ages.older(oldest) or ""
    terms = [term.split(" BETWEEN ")[1].rstrip(")").split(" AND ") for term in where.split(" OR ") if term]
    named = [(int(first), int(last)) for first, last in terms]
    for txid, at in history:
        inside = any(first <= txid <= last for first, last in named)
        assert not (inside and at >= oldest)
        whole_days_older = all(other < oldest - 86_400 for one, other in history if abs(one - txid) <= 8000)
        assert inside or not whole_days_older
