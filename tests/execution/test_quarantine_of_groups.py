"""Quarantine is the flow's; what one batch group takes out of it is its own. No Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines.execution.batch.driver_windows import DriverWindows
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.batch.quarantine import (
    of_group,
    poison_rows,
    quarantine_writer,
    refused_rows,
    rows_of,
)
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.checkpoint.window_begin import state_files
from pipelines.execution.runners.epochs import Epochs
from pipelines.places.lease import LeaseLostError
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake
from pipelines.state.quarantine import COLUMNS, GROUP
from pipelines.state.record import BATCH, RESET, SLICE, BatchRecord
from pipelines.state.schema import ENGINE_COLUMNS, POISONED, SLICE_COLUMN
from pipelines.state.turns import LateWriterError, stream_id
from pipelines.trident import DeltaState, TridentTopology
from tests.state.test_late_writers import OVERTAKEN, overtaken


def shop() -> TridentTopology:
    topology = TridentTopology("shop")
    for name in ("buys", "sells"):
        stream = topology.new_stream(name, FixedBatches("day string, v bigint", [[("d1", 1)]]), slice_by="day")
        stream.partition_persist(DeltaState(f"{name}_rows"))
    return topology


class Quarantine:
    def __init__(self, root: Path) -> None:
        self.root, self.writer = root, quarantine_writer(Lake(root), "shop")
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

    def batch(self, group: str, txid: int, row: str, *, epoch: int = 1) -> None:
        record = BatchRecord(kind=BATCH, flow="shop", epoch=epoch, txid=txid, group=group)
        self.writer.append_arrow(self.rows(group, row), record, stream_id("shop", f"quarantine/{group}", epoch))

    def backfill(self, group: str, row: str | None, *, file: str = "file:/one") -> None:
        rows = self.writer.empty() if row is None else self.rows(group, row)
        record = BatchRecord(kind=SLICE, flow="shop", epoch=1, slice="d1", claims=(file,), group=group)
        self.writer.replace_slice(rows, record, among=self.own(group))

    def held(self) -> list[str]:
        return sorted(self.writer.table.scan()["row"].to_pylist())


class Starting(Epochs):
    """A run of one batch group that begins epoch 2, with its lease and its tables, and without Spark."""

    def __init__(self, refused: Quarantine, group: str = "buys", streams: Sequence[str] = ("buys", "sells")) -> None:
        topology = TridentTopology("shop")
        for name in streams:
            topology.new_stream(name, FixedBatches("v bigint", []))
        writer = quarantine_writer(Lake(refused.root), "shop")
        own = {"spouts": [spout for spout in topology.spouts if spout.stream == group], "rejected": refused.own(group)}
        self._group: Any = SimpleNamespace(topology=topology, name=group, quarantine=writer, sinks=(), **own)
        self.lost, self._wait = False, 0.0
        self._checkpoint: Any = SimpleNamespace(last_epoch=None, still_held=self._still_held, rewriting=self._rewriting)
        self._poison = PoisonRows(self._group)

    def _still_held(self) -> None:
        if self.lost:
            raise LeaseLostError("shop", "run.lock", "another process has taken it over")

    @contextmanager
    def _rewriting(self, wait_seconds: float) -> Iterator[None]:
        """Wait for the lock until the lease of the run is lost."""
        self.lost = True
        yield

    def reset(self) -> None:
        self._reset_quarantine(2)


def schema(*without: str) -> pa.Schema:
    names = [name for name, _ in COLUMNS if name not in without]
    return pa.schema([*((name, pa.string()) for name in names), (SLICE_COLUMN, pa.string())])


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quarantine:
    found = Quarantine(tmp_path)
    for module in ("batch.poison", "batch.quarantine", "runners.epochs"):
        monkeypatch.setattr(f"pipelines.execution.{module}.table_columns", lambda: found.columns)
    return found


def test_a_poison_batch_that_comes_through_takes_its_own_rows_alone(refused: Quarantine) -> None:
    refused.poison("buys", 7, "b7")
    refused.poison("sells", 7, "s7")
    refused.poison("buys", 7, "b7 again")
    assert refused.held() == ["b7 again", "s7"]
    refused.writer.forget_rows(7, poison_rows(refused.own("sells"), 7), "sells")
    assert refused.held() == ["b7 again"]


def test_a_batch_that_comes_again_replaces_what_its_group_has_refused_of_it(refused: Quarantine) -> None:
    refused.batch("buys", 2, "before")
    refused.batch("buys", 3, "first life")
    refused.batch("sells", 3, "sells")
    refused.poison("buys", 3, "poison")
    app_id, looked = stream_id("shop", "quarantine/buys", 1), refused.writer.version()

    def again(rows: pa.Table, txid: int, seen: int) -> None:
        record = BatchRecord(kind=BATCH, flow="shop", epoch=1, txid=txid, group="buys")
        where = refused_rows(refused.own("buys"), txid)
        refused.writer.replace_rows(rows, record, where, seen=seen, app_id=app_id)

    again(refused.rows("buys", "second life"), 3, looked)
    assert refused.held() == ["before", "poison", "second life", "sells"]
    with pytest.raises(LateWriterError):
        again(refused.rows("buys", "too late"), 3, looked)
    again(refused.writer.empty(), 3, refused.writer.version())
    assert refused.held() == ["before", "poison", "sells"]
    with pytest.raises(LateWriterError):
        again(refused.rows("buys", "too late"), 2, refused.writer.version())
    assert (refused.held(), refused.writer.committed(app_id)) == (["before", "poison", "sells"], 3)


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


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("streams", [("buys",), ("buys", "sells")])
def test_a_late_reset_leaves_the_rows_of_the_epoch_that_another_run_has_begun(
    refused: Quarantine, monkeypatch: pytest.MonkeyPatch, streams: Sequence[str], when: str
) -> None:
    refused.batch("buys", 0, "b0")
    late = Starting(refused, streams=streams)

    def begins() -> None:
        Starting(refused, streams=streams).reset()
        # Cut off before the first batch, and started again.
        Starting(refused, streams=streams).reset()
        refused.batch("buys", 0, "refused in epoch 2", epoch=2)

    overtaken(monkeypatch, when, begins)
    with pytest.raises(LateWriterError):
        late.reset()
    assert refused.held() == ["refused in epoch 2"]


def test_groups_that_begin_anew_at_once_do_not_hinder_each_other(
    refused: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused.batch("buys", 0, "b0")
    refused.batch("sells", 0, "s0")
    overtaken(monkeypatch, OVERTAKEN[1], Starting(refused, "sells").reset)
    Starting(refused, "buys").reset()
    assert refused.held() == []


@pytest.mark.parametrize("batches", [0, 1])
def test_a_run_that_has_lost_its_lease_empties_nothing(refused: Quarantine, batches: int) -> None:
    """Nor does it release the rows of poison batches."""
    refused.poison("buys", 7, "b7")
    for txid in range(batches):
        refused.batch("buys", txid, "b")
    late = Starting(refused)
    # With no batch the lock is not waited for.
    late.lost = not batches
    with pytest.raises(LeaseLostError):
        late._fresh_epoch(RESET)
    assert refused.held() == ["b"] * batches + ["b7"]


def test_nor_does_it_remove_the_state_of_the_windows_of_the_next_one(tmp_path: Path) -> None:
    """It may lose its lease in the middle, too."""

    class Lost(Checkpoint):
        asked = 0

        def still_held(self) -> None:
            self.asked += 1
            if self.asked > 2:
                raise LeaseLostError(self.flow, "run.lock", "another process has it")

    late = Epochs.__new__(Epochs)
    late._checkpoint = Lost("shop", tmp_path)
    late._windows = DriverWindows.__new__(DriverWindows)
    late._windows.files = files = state_files(tmp_path)
    for name in ("a", "b", "c", "d"):
        files.write(name, b"")
    with pytest.raises(LeaseLostError):
        late._begun(Epoch(1, 0))
    assert files.names() == ["c", "d"]


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
