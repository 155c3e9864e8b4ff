"""A compaction that stood still while others wrote commits nothing that is no longer true. No locks are asked for here."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipelines.errors import LockedError, ReadPointError
from pipelines.execution.checkpoint.belonging import Belonging, TableBehindError
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.maintenance import channels, compact, compaction
from pipelines.maintenance.housekeeping_report import Retention
from pipelines.places.lease import LeaseLostError
from pipelines.places.location import on_disk
from pipelines.state import record as record_module
from pipelines.state.kinds import MAP, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.maintenance_commits import delete_rows
from pipelines.state.record import COMPACTION, FORGOTTEN, RESET, SLICE, BatchRecord
from pipelines.state.schema import TXID
from pipelines.state.turns import stream_id
from pipelines.state.writer import StateWriter
from tests.maintenance.small_state import FLOW, STATE, SmallState
from tests.maintenance.test_quarantine_retention import Refused
from tests.state.small_kinds import SmallTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stands_still(monkeypatch: pytest.MonkeyPatch, where: str, meanwhile: Callable[[], Any]) -> None:
    """Have others write before a function of the compaction goes on, once: what it was given it has read before."""
    going_on, waiting = getattr(compaction, where), [meanwhile]

    def late(*args: Any, **more: Any) -> Any:
        if waiting:
            waiting.pop()()
        return going_on(*args, **more)

    monkeypatch.setattr(compaction, where, late)


def state_of_three_slices(folder: Path) -> SmallState:
    """Two slices are to be folded; the third is in the roll-up alone."""
    state = SmallState(folder)
    state.batch([(slice_, "a", 0, 1) for slice_ in ("d1", "d2", "d9")])
    state.batch([(slice_, "a", 0, 1) for slice_ in ("d1", "d2")], gap=64)
    return state


def check(state: SmallState) -> None:
    table = Lake(state.lake.root).state(STATE)
    assert state.scanned() == state.expected()
    assert table.commits.claims() == state.claims


def test_a_slice_that_was_filled_meanwhile_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold reads it for the roll-up and does not rewrite it."""
    state = state_of_three_slices(tmp_path)
    stands_still(monkeypatch, "fold_arrow", lambda: state.replace("d9", [("d9", "a", 0, 1)], claims=("file:/d9",)))
    (report,) = compact(None, state.lake, FLOW, open_generations=0).tables
    assert (report.rolled_up, report.conflicts) == (True, 1)
    check(state)
    state.batch([("d9", "b", 0, 5)])
    check(state)


def test_a_reset_is_not_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SmallState(tmp_path)
    state.batch([("d1", "a", 0, 1), ("d2", "a", 0, 1)])
    # Then there is a roll-up to be made, and nothing to be folded.
    state.batch([], gap=64)
    stands_still(monkeypatch, "fold_arrow", state.reset)
    compact(None, state.lake, FLOW, open_generations=0)
    check(state)


def test_beside_a_batch_a_fold_goes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of_three_slices(tmp_path)
    state.batch([("d1", "a", 0, 1)], gap=64)
    stands_still(monkeypatch, "fold_arrow", lambda: state.batch([("d9", "a", 0, 1)]))
    (report,) = compact(None, state.lake, FLOW, open_generations=1).tables
    assert (report.rolled_up, report.conflicts) == (True, 0)
    check(state)


def test_who_has_lost_the_lease_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of_three_slices(tmp_path)
    before = state.table.version()

    def lost(self: Checkpoint) -> None:
        raise LeaseLostError(FLOW, "rewrite.lock", "another process has taken it over")

    Checkpoint(FLOW, tmp_path / "checkpoints" / FLOW / "main").folder.mkdir(parents=True)
    monkeypatch.setattr(Checkpoint, "still_held", lost)
    with pytest.raises(LeaseLostError):
        compact(None, state.lake, FLOW, open_generations=0)
    assert Lake(tmp_path).state(STATE).version() == before


def test_of_a_channel_no_rows_of_a_new_epoch_are_let_go(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, ROWS, TRANSACTIONAL)
    state.commit(7, ("a", 1))
    opened = DeltaTable(str(state.table.path))
    state.writer.reset(BatchRecord(kind=RESET, flow=FLOW, epoch=2), stream_id(FLOW, "counts", 2))
    rows = pa.table({"word": ["b"], "n": pa.array([2], pa.int64())})
    record = BatchRecord(kind="batch", flow=FLOW, epoch=2, txid=0)
    state.writer.commit_batch(rows, record, stream_id(FLOW, "counts", 2), known=False)
    with pytest.raises(CommitFailedError):
        channels.let_go(state.table, opened, 8, BatchRecord(kind=COMPACTION, flow=FLOW))
    assert state.held() == [("b", 2)]


@pytest.mark.parametrize("earlier", [False, True])
def test_of_a_channel_a_txid_reads_what_it_read_before_rows_were_let_go(tmp_path: Path, earlier: bool) -> None:
    state = SmallTable(tmp_path, ROWS, TRANSACTIONAL)
    for txid in range(6):
        state.commit(txid, ("a", txid))
    before = [state.held(txid=txid) for txid in range(6)]
    record, opened = BatchRecord(kind=COMPACTION, flow=FLOW, txid=5), DeltaTable(str(state.table.path))
    if earlier:
        delete_rows(state.table, opened, f"{TXID} < 3", record.model_copy(update={"folded_before": 3}))
    else:
        channels.let_go(state.table, opened, 3, record)
    assert len(state.held()) == 3
    assert [state.held(txid=txid) for txid in range(6)] == before
    state.commit(6, ("a", 6))
    assert [state.held(txid=txid) for txid in range(7)] == [*before, state.held()]
    said = BatchRecord(kind=COMPACTION, flow=FLOW, txid=6, readable_from=state.table.version())
    state.writer.say(DeltaTable(str(state.table.path)), said)
    for txid in range(6):
        with pytest.raises(ReadPointError, match="too old"):
            state.held(txid=txid)


@pytest.mark.parametrize("layout", [MAP, ROWS])
def test_claims_are_not_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """A merge of files names the claims of all slices, as they were."""
    sliced = layout == ROWS
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=sliced)

    def filled(file: str) -> None:
        rows = pa.table({"word": ["z"], "n": pa.array([9], pa.int64())})
        record = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=3, slice="d1", claims=(file,))
        other = SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=sliced).writer
        if sliced:
            other.replace_slice(rows.append_column("_slice", pa.array(["d1"])), record)
        else:
            other.replace_map(rows, record)

    filled("file:/old")
    for txid in range(4):
        state.commit(txid, (f"k{txid}", txid))
    stands_still(monkeypatch, "merge" if sliced else "compact_map", lambda: filled("file:/new"))
    (report,) = compact(None, Lake(tmp_path), FLOW, open_generations=0).tables
    assert report.conflicts == 1
    said = [commit.record.claims for commit in state.table.history() if commit.record and commit.kind == COMPACTION]
    # A map that was filled is in one file.
    assert ({"d1": ("file:/new",)} in said) == sliced
    assert {"d1": ("file:/old",)} not in said


def test_every_conflict_of_delta_on_spark_is_one() -> None:
    from delta.exceptions import captured

    found = [kind for name, kind in vars(captured).items() if name.startswith("Concurrent")]
    assert len(found) == 5
    assert all(issubclass(kind, compaction._conflicts()) for kind in found)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before Spark looks at the table", "while Spark writes"])
def test_by_spark_a_slice_that_was_filled_meanwhile_counts_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    from pyspark.sql import functions as F

    monkeypatch.setattr(compaction, "DRIVER_ROWS", 0)
    state, rewrite = state_of_three_slices(tmp_path), StateWriter.rewrite_spark
    # Spark leaves the last generation alone.
    state.batch([("d1", "a", 0, 1)], gap=64)
    begun, filled = tmp_path / "begun", tmp_path / "filled"

    def appears(file: Path) -> bool:
        end = time.monotonic() + 120
        while not (there := file.exists()) and time.monotonic() < end:
            time.sleep(0.05)
        return there

    def slice_() -> None:
        state.replace("d9", [("d9", "a", 0, 1)], claims=("file:/d9",))
        filled.touch()

    def once_begun() -> None:
        if appears(begun):
            slice_()

    def waits(key: str) -> str:
        begun.touch()
        appears(filled)
        return key

    def slowly(self: StateWriter, table: DeltaTable, frame: DataFrame, *args: Any) -> int:
        if when == "while Spark writes" and not begun.exists():
            frame = frame.withColumn("key", F.udf(waits, "string", useArrow=False)("key"))
            threading.Thread(target=once_begun).start()
        return rewrite(self, table, frame, *args)

    if when == "while Spark writes":
        monkeypatch.setattr(StateWriter, "rewrite_spark", slowly)
    else:
        stands_still(monkeypatch, "fold_spark", slice_)
    (report,) = compact(spark, state.lake, FLOW).tables
    assert (report.rolled_up, report.conflicts) == (True, 1)
    check(state)


@pytest.mark.parametrize("beside", ["no stream", "a long batch"])
def test_an_older_copy_from_before_a_compaction_is_refused(tmp_path: Path, beside: str) -> None:
    """It has the same rows, but a stream that reads the table has come to a later version, and takes nothing below that."""
    state, checkpoint = state_of_three_slices(tmp_path / "lake"), Checkpoint(FLOW, tmp_path / "lake/checkpoints/shop/s")
    for file, text in (
        ("metadata", "{}"),
        (f"offsets/{state.txid}", "v1\n{}\n{}"),
        (f"commits/{state.txid}", "v1\n{}"),
    ):
        (on_disk(checkpoint.spark) / file).parent.mkdir(parents=True, exist_ok=True)
        (on_disk(checkpoint.spark) / file).write_text(text)
    checkpoint.begin(Epoch(1, 0))
    Belonging(checkpoint, state.lake).note([state.table])
    noted = Belonging(checkpoint, state.lake).known()["states/sales"].version
    shutil.copytree(on_disk(state.table.path), tmp_path / "copy")
    keep = Retention(quarantine_days=None, wait_seconds=0.0)
    with nullcontext() if beside == "no stream" else checkpoint.committing(0):
        (report,) = compact(None, state.lake, FLOW, keep, open_generations=int(beside != "no stream")).tables
    known = Belonging(checkpoint, state.lake).known()["states/sales"].version
    assert noted < report.version
    assert known == (report.version if beside == "no stream" else noted)
    shutil.rmtree(on_disk(state.table.path))
    shutil.copytree(tmp_path / "copy", on_disk(state.table.path))
    with nullcontext() if beside != "no stream" else pytest.raises(TableBehindError, match="it is an older copy"):
        Belonging(checkpoint, Lake(tmp_path / "lake")).check()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["all go", "some stay"])
def test_spark_brings_no_released_row_of_quarantine_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A group that begins anew releases the rows of its poison batches between Spark's read and its commit."""
    monkeypatch.setattr(record_module, "GENERATION", 4)
    refused, rewrite = Refused(tmp_path), StateWriter.rewrite_spark
    for txid in range(9):
        refused.batch(txid, 0)
    waiting = [True]

    def late(self: StateWriter, *args: Any, **more: Any) -> int:
        if waiting:
            waiting.pop()
            if how == "all go":
                refused.writer.forget_rows(-1, f"{TXID} IN (1, 2)", "one")
            else:
                rows = refused.table.stored(f"{TXID} = 1")
                said = BatchRecord(kind=FORGOTTEN, flow=FLOW, txid=1, group="one")
                refused.writer.replace_rows(rows, said, f"{TXID} IN (1, 2)")
        return rewrite(self, *args, **more)

    monkeypatch.setattr(StateWriter, "rewrite_spark", late)
    (report,) = compact(spark, refused.lake, FLOW).tables
    gone = {"one 1", "one 2"} if how == "all go" else {"one 2"}
    assert refused.held() == {f"one {txid}" for txid in range(9)} - gone
    assert report.conflicts == 1


def test_a_note_holds_the_commits_of_one_query_up_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, free, noted = Lake(tmp_path), dict[str, list[str]](), list[str]()
    groups = [Checkpoint(FLOW, lake.checkpoint_path(FLOW, name)) for name in ("busy", "one", "other")]

    def is_free(group: Checkpoint) -> bool:
        try:
            with group.committing(0):
                return True
        except LockedError:
            return False

    def note_on(belonging: Belonging) -> None:
        name = belonging._checkpoint.folder.name
        noted.append(name)
        free[name] = [group.folder.name for group in groups if is_free(group)]

    monkeypatch.setattr(Belonging, "note_on", note_on)
    work = compaction._Compaction(None, lake, FLOW, Retention(wait_seconds=0.1), groups)
    with groups[0].committing(0):
        work._note()
    # One whose batch takes too long keeps no other from being noted.
    assert (noted, free) == (["one", "other"], {"one": ["other"], "other": ["one"]})


def test_who_has_lost_the_lease_of_a_checkpoint_notes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SmallState(tmp_path)
    state.batch([("d1", "a", 0, 1)])
    checkpoint = Checkpoint(FLOW, state.lake.checkpoint_path(FLOW, "s"))
    begun = checkpoint.begin(Epoch(1, 0))
    on_disk(checkpoint.spark).mkdir(parents=True)
    (on_disk(checkpoint.spark) / "metadata").write_text("{}")
    belonging, table = Belonging(checkpoint, state.lake), state.lake.state(STATE)
    belonging.note([table])
    known = belonging.known()
    assert known

    def lost(_: Checkpoint) -> None:
        raise LeaseLostError(FLOW, "run.lock", "another process has taken it over")

    monkeypatch.setattr(Checkpoint, "still_held", lost)
    state.batch([("d1", "a", 0, 1)])
    for noting in (belonging.note_on, lambda: belonging.keep([]), lambda: belonging.begun(begun, [table])):
        with pytest.raises(LeaseLostError):
            noting()
    assert belonging.known() == known
