"""Quarantine is the flow's; what one batch group takes out of it is its own. No Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines.execution.batch.quarantine import COLUMNS, GROUP, of_group, poison_rows, quarantine_writer, rows_of
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake
from pipelines.state.record import BATCH, RESET, SLICE, BatchRecord
from pipelines.state.schema import ENGINE_COLUMNS, POISONED, SLICE_COLUMN
from pipelines.state.turns import stream_id
from pipelines.trident import DeltaState, TridentTopology


def shop() -> TridentTopology:
    topology = TridentTopology("shop")
    for name in ("buys", "sells"):
        stream = topology.new_stream(name, FixedBatches("day string, v bigint", [[("d1", 1)]]), slice_by="day")
        stream.partition_persist(DeltaState(f"{name}_rows"))
    return topology


class Quarantine:
    def __init__(self, root: Path) -> None:
        self.writer = quarantine_writer(Lake(root), "shop")
        # As `prepare` does with Spark's types.
        from pyspark.sql.types import StringType, StructField, StructType

        self.columns = StructType([StructField(name, StringType()) for name, _ in COLUMNS])
        self.writer.prepare(self.columns)

    def own(self, group: str) -> str:
        return rows_of(shop(), group, [group])

    def rows(self, group: str, row: str, *, stage: str = "source", slice_: str = "d1") -> pa.Table:
        held = {"stage": stage, "rule": "r", "reason": "why", "row": row, "file": "f", "stream": group}
        found = pa.Table.from_pylist([held | {SLICE_COLUMN: slice_}], schema=schema(GROUP))
        return of_group(found, group)

    def poison(self, group: str, txid: int, row: str) -> None:
        record = BatchRecord(kind="poison", flow="shop", epoch=1, txid=txid, group=group)
        rows = self.rows(group, row, stage="batch", slice_=POISONED)
        self.writer.replace_rows(rows, record, poison_rows(self.own(group), txid))

    def batch(self, group: str, txid: int, row: str) -> None:
        record = BatchRecord(kind=BATCH, flow="shop", epoch=1, txid=txid, group=group)
        self.writer.append_arrow(self.rows(group, row), record, stream_id("shop", f"quarantine/{group}", 1))

    def backfill(self, group: str, row: str | None, *, file: str = "file:/one") -> None:
        rows = self.writer.empty() if row is None else self.rows(group, row)
        record = BatchRecord(kind=SLICE, flow="shop", epoch=1, slice="d1", claims=(file,), group=group)
        self.writer.replace_slice(rows, record, among=self.own(group))

    def held(self) -> list[str]:
        return sorted(self.writer.table.scan()["row"].to_pylist())


def schema(*without: str) -> pa.Schema:
    names = [name for name, _ in COLUMNS if name not in without]
    return pa.schema([*((name, pa.string()) for name in names), (SLICE_COLUMN, pa.string())])


@pytest.fixture
def refused(tmp_path: Path) -> Quarantine:
    return Quarantine(tmp_path)


def test_a_poison_batch_that_comes_through_takes_its_own_rows_alone(refused: Quarantine) -> None:
    refused.poison("buys", 7, "b7")
    refused.poison("sells", 7, "s7")
    refused.poison("buys", 7, "b7 again")
    assert refused.held() == ["b7 again", "s7"]
    refused.writer.forget_rows(7, poison_rows(refused.own("sells"), 7), "sells")
    assert refused.held() == ["b7 again"]


def test_a_backfill_replaces_what_its_group_has_refused_of_the_slice(refused: Quarantine) -> None:
    refused.batch("buys", 0, "b0")
    refused.batch("sells", 0, "s0")
    refused.backfill("sells", "s of d1", file="file:/sells")
    refused.backfill("buys", None)
    assert refused.held() == ["s of d1"]
    commits = refused.writer.table.commits
    assert commits.claims("buys") == {"d1": {"file:/one"}}
    assert commits.claims("sells") == {"d1": {"file:/sells"}}
    assert commits.claims() == {}


def test_a_group_that_begins_anew_empties_its_own_rows(refused: Quarantine) -> None:
    refused.batch("buys", 0, "b0")
    refused.batch("sells", 0, "s0")
    refused.backfill("sells", "s of d1")
    refused.writer.reset(BatchRecord(kind=RESET, flow="shop", epoch=2, group="buys"), among=refused.own("buys"))
    assert refused.held() == ["s of d1"]
    assert [one.group for one in refused.writer.table.commits.batches()] == ["sells"]
    assert refused.writer.table.commits.claims("sells") == {"d1": {"file:/one"}}


def test_rows_of_earlier_releases_are_told_by_their_stream(tmp_path: Path) -> None:
    """They have no group, and older ones no stream: what nobody can tell apart stays."""
    path = Lake(tmp_path).quarantine_path("shop")
    old = pa.schema([*schema(GROUP), *((name, pa.int64()) for name in ENGINE_COLUMNS if name != SLICE_COLUMN)])
    path.parent.mkdir(parents=True)
    DeltaTable.create(str(path), old, partition_by=["_slice", "_gen"])
    rows = [
        {"stage": "batch", "row": f"{stream} {txid}", "stream": stream, "_slice": POISONED, "_txid": txid, "_gen": 0}
        for stream in ("buys", "sells", None)
        for txid in (6, 7)
    ]
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema=old), mode="append")
    former = quarantine_writer(Lake(tmp_path), "shop").declared
    less = tuple(column for column in former.columns if column[0] != GROUP)
    DeltaTable(str(path)).alter.set_table_properties(
        {"tridelta.state": former.model_copy(update={"columns": less}).dump()}, raise_if_not_exists=False
    )
    refused = Quarantine(tmp_path)
    refused.writer.forget_rows(7, poison_rows(refused.own("sells"), 7), "sells")
    assert refused.held() == ["None 6", "None 7", "buys 6", "buys 7", "sells 6"]
    refused.poison("buys", 7, "anew")
    assert refused.held() == ["None 6", "None 7", "anew", "buys 6", "sells 6"]
