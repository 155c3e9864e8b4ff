"""What grows beside the tables, and one round over all of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipelines.errors import LockedError, TooLargeToFoldError, TrideltaError
from pipelines.execution.checkpoint.copy import COPIED, COPYING, Marker
from pipelines.execution.checkpoint.engine_files import Checkpoint, StoredAttempts
from pipelines.execution.protocol.coordinator import AttemptRecord, BatchState
from pipelines.execution.runners.bounded_inputs import bounded_folder
from pipelines.maintenance import Retention, compact, compaction, retention, run_housekeeping
from pipelines.maintenance.clustering import recluster
from pipelines.maintenance.housekeeping_report import HousekeepingItem, RetentionSettingError
from pipelines.maintenance.old_files import remove_dead_runs, remove_old_copies, remove_old_logs, remove_replaced
from pipelines.places.lease import LeaseLostError
from pipelines.state.kinds import LOG, MAP, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.record import COMPACTION, GENERATION
from pipelines.state.writer import StateWriter
from tests.maintenance.small_state import FLOW, SmallState
from tests.state.small_kinds import COLUMNS, SmallTable, declared

DAY = 86_400.0


def _file(path: Path, size: int = 10, days: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    when = time.time() - days * DAY
    os.utime(path, (when, when))
    return path


def _copy(lake: Lake, name: str, days: float, *, whole: bool = True) -> Path:
    folder = lake.root / "copies" / FLOW / "sales" / name
    _file(folder / "spark" / "metadata", 100)
    if whole:
        _file(folder / "copy.json", 20, days)
    when = time.time() - days * DAY
    os.utime(folder, (when, when))
    return folder


# --- settings -------------------------------------------------------------------------------------------------------


def test_retentions_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_KEEP_QUARANTINE_DAYS", "12.5")
    monkeypatch.setenv("TRIDELTA_KEEP_LOG_DAYS", "")
    monkeypatch.setenv("TRIDELTA_NIMBUS_RETENTION_DAYS", "5")
    found = Retention.from_environment(copies_days=3)
    assert (found.quarantine_days, found.log_days, found.copies_days) == (12.5, None, 3)
    assert (found.flow_days, found.run_days) == (5, None)


@pytest.mark.parametrize(
    ("name", "value"), [("LOG_DAYS", "soon"), ("LOG_DAYS", "-1"), ("STATE_HOURS", ""), ("CHANNEL_HOURS", "inf")]
)
def test_a_wrong_retention_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"TRIDELTA_KEEP_{name}", value)
    with pytest.raises(RetentionSettingError, match=f"(?i){name}") as error:
        Retention.from_environment()
    # Not what has just failed.
    assert ("leave it empty" in str(error.value.hint)) == (name != "STATE_HOURS")


# --- copies of checkpoints ------------------------------------------------------------------------------------------


def test_the_newest_copy_stays_for_some_days_and_older_ones_go(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old, older, newest = _copy(lake, "b", 2), _copy(lake, "a", 3), _copy(lake, "c", 1)
    counted = remove_old_copies(lake, 7, dry_run=True)
    assert (counted.before, counted.removed, counted.bytes) == (3, 2, 240)
    assert old.exists()
    assert remove_old_copies(lake, 7).removed == 2
    assert [old.exists(), older.exists(), newest.exists()] == [False, False, True]
    assert remove_old_copies(lake, 7).removed == 0
    assert remove_old_copies(lake, None).removed == 0
    assert remove_old_copies(lake, 0.5).removed == 1


@pytest.mark.parametrize("phase", [COPYING, COPIED])
def test_the_copy_of_a_repartition_under_way_stays(tmp_path: Path, phase: str) -> None:
    lake = Lake(tmp_path)
    needed, newest = _copy(lake, "a", 30, whole=phase != COPYING), _copy(lake, "b", 1)
    checkpoint = Checkpoint(FLOW, lake.checkpoint_path(FLOW, "sales"))
    checkpoint.folder.mkdir(parents=True)
    Marker(phase, str(needed), 2, 5).write(checkpoint)
    assert remove_old_copies(lake, 7).removed == 0
    (checkpoint.folder / "repartition.json").unlink()
    assert remove_old_copies(lake, 7).removed == 1
    assert [needed.exists(), newest.exists()] == [False, True]


def test_a_copy_that_is_being_made_stays_until_it_is_surely_dead(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    made = _copy(lake, "a", 0.9, whole=False)
    assert remove_old_copies(lake, 0).removed == 0
    assert remove_old_copies(lake, 0, now=time.time() + DAY).removed == 1
    assert not made.exists()


def test_a_removal_that_was_cut_off_is_ended(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    half = _copy(lake, "a", 3).rename(lake.root / "copies" / FLOW / "sales" / ".a.gone")
    assert remove_old_copies(lake, 7, dry_run=True).before == 0
    assert half.exists()
    assert remove_old_copies(lake, 7).before == 0
    assert not half.exists()


def test_replaced_checkpoints_go_with_their_age(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    aside = _file(lake.root / "replaced" / FLOW / "sales.0.replaced" / "metadata", 50, days=99).parent
    os.utime(aside, (1, 1))
    assert remove_replaced(lake, 30).removed == 0  # it was put there a moment ago, however old its content is
    assert remove_replaced(lake, None, now=time.time() + 1000 * DAY).removed == 0
    assert remove_replaced(lake, 30, now=time.time() + 31 * DAY).removed == 1
    assert not aside.exists()


# --- folders of bounded runs ----------------------------------------------------------------------------------------

_BOUNDED = """
import sys, time
from pathlib import Path
from pipelines.execution.runners.bounded_inputs import bounded_folder
with bounded_folder(Path(sys.argv[1]), "shop") as folder:
    (folder / "channel").write_text("rows")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_folders_of_dead_runs_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    _file(lake.root / "spool" / FLOW / "sales" / "0.json")  # a source's own
    child = subprocess.Popen([sys.executable, "-c", _BOUNDED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        folder = Path(child.stdout.readline().strip())
        try:
            with bounded_folder(lake.root, FLOW) as own:
                seen = remove_dead_runs(lake)
                assert (seen.before, seen.removed) == (2, 0)
                assert own.exists()
            assert not own.exists()
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    assert (folder / "channel").exists()
    assert remove_dead_runs(lake, dry_run=True).removed == 1
    assert remove_dead_runs(lake).removed == 1
    assert [path.name for path in (lake.root / "spool" / FLOW).iterdir()] == ["sales"]


# --- logs -----------------------------------------------------------------------------------------------------------


def test_old_logs_go_but_for_those_that_are_open(tmp_path: Path) -> None:
    slot = tmp_path / "logs" / "host" / "6900"
    old = [_file(slot / name, 10, days=40) for name in ("worker.jsonl.2", "worker.jsonl.1", "worker.out")]
    _file(slot / "worker.jsonl", 10, days=40)
    other = _file(slot / "notes.txt", 10, days=400)
    with (slot / "worker.jsonl").open("a"):
        found = remove_old_logs(tmp_path, 30, None)
        assert (found.before, found.removed, found.bytes) == (4, 3, 30)
        assert "open" in found.note
    assert not any(path.exists() for path in old)
    assert other.exists()
    assert remove_old_logs(tmp_path, 30, None).removed == 1


def test_the_oldest_logs_go_until_the_rest_fits(tmp_path: Path) -> None:
    slots = [tmp_path / "logs" / "host" / str(port) for port in (6900, 6901)]
    kept = [_file(slot / "worker.jsonl", 600_000) for slot in slots]  # perhaps open, on another host
    turned = [_file(slots[0] / f"worker.jsonl.{n}", 500_000, days=n) for n in (1, 2, 3)]
    found = remove_old_logs(tmp_path, None, 2.0, dry_run=True)
    assert (found.removed, found.bytes) == (2, 1_000_000)
    assert remove_old_logs(tmp_path, None, 2.0).removed == 2
    assert [path.exists() for path in (*kept, *turned)] == [True, True, True, False, False]
    assert remove_old_logs(tmp_path, None, 0.1).removed == 1
    assert all(path.exists() for path in kept)
    assert remove_old_logs(tmp_path / "nowhere", 1, 1).before == 0


# --- tables and checkpoints -----------------------------------------------------------------------------------------


def test_what_killed_writers_leave_and_empty_folders_go_after_a_day(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    for n in range(3):
        state.batch([("d", "a", 0, n)], gap=64)
    part = state.table.path / "_slice=d" / "_gen=7"
    left = [
        _file(state.table.path / "_delta_log" / "_commit_1.json.tmp", days=2),
        _file(state.table.path / "_slice=d" / "_gen=2" / "part-0.parquet#1", days=2),
    ]
    young = _file(state.table.path / "_delta_log" / "_commit_2.json.tmp")
    for generation in (-1, 7):
        folder = part.with_name(f"_gen={generation}")
        folder.mkdir()
        os.utime(folder, (1, 1))
    assert retention.remove_left_overs(state.table, 2) == 3
    assert not any(path.exists() for path in left)
    assert young.exists()
    assert sorted(path.name for path in part.parent.iterdir()) == ["_gen=0", "_gen=1", "_gen=2", "_gen=7"]
    assert state.scanned() == state.expected()


def test_short_runs_leave_no_attempts_behind(tmp_path: Path) -> None:
    file = tmp_path / "attempts.json"
    for txid in range(5):
        store = StoredAttempts(file)
        store.put("sales/1", txid, AttemptRecord(0))
        store.put("sales/1", txid, AttemptRecord(0, state=BatchState.COMMITTED))
        store.forget("sales/1", txid)
    StoredAttempts(file).put("sales/1", 5, AttemptRecord(1, tries=1, state=BatchState.FAILED))
    assert list(json.loads(file.read_text())["sales/1"]) == ["4", "5"]
    assert StoredAttempts(file).get("sales/1")[5].tries == 1


# --- all of it ------------------------------------------------------------------------------------------------------


def test_a_round_over_everything(tmp_path: Path) -> None:
    state = SmallState(tmp_path / "lake")
    for n in range(3):
        state.batch([("d", "a", 0, n)])
    _copy(state.lake, "a", 9)
    _file(tmp_path / "nimbus" / "logs" / "host" / "6900" / "worker.jsonl.1", 10, days=99)
    counted = run_housekeeping(
        state.lake, None, Retention(), nimbus_home=tmp_path / "nimbus", flows=[FLOW], dry_run=True
    )
    assert (counted.removed, counted.dry_run) == (2, True)
    report = run_housekeeping(
        state.lake,
        None,
        Retention(state_hours=0),
        nimbus_home=tmp_path / "nimbus",
        flows=[FLOW],
    )
    removed = {one.what: one.removed for one in report.things}
    assert removed["copies of checkpoints"] == removed["worker logs"] == 1
    assert removed["tables of shop"] == report.compactions[0].tables[0].files_removed == 3
    assert state.scanned() == state.expected()
    assert json.loads(json.dumps(report.to_json()))["removed"] == report.removed
    assert not report.notes


def test_a_damaged_or_half_made_table_holds_up_no_other_flow(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    state.batch([("d", "a", 0, 1)])
    other = state.lake.table(state.lake.state_path("other"), "other")
    StateWriter(other, declared(LOG, TRANSACTIONAL, flow="elsewhere")).prepare(COLUMNS)
    log = tmp_path / "states" / "other" / "_delta_log"
    (log / f"{1:020}.json").touch()
    # What a full disk leaves of a table that was to be made.
    (tmp_path / "states" / "ghost" / "_delta_log").mkdir(parents=True)
    (tmp_path / "channels" / "ghost" / "_delta_log").mkdir(parents=True)
    report = run_housekeeping(Lake(tmp_path), None, Retention(), flows=[FLOW, "elsewhere"])
    assert [[table.state for table in one.tables] for one in report.compactions] == [["sales"], []]
    (note,) = report.notes
    assert note.startswith(f'table other: table "other": {log}')


def test_a_table_that_is_not_compacted_holds_up_no_other_of_its_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes first here. Too large for a fold without Spark, its log and its old files are seen to all the same."""
    monkeypatch.setattr(compaction, "DRIVER_ROWS", 20)
    large, state = SmallTable(tmp_path, LOG, TRANSACTIONAL), SmallState(tmp_path)
    for txid in range(GENERATION + 2):
        large.commit(txid, ("a", 1))
    for n in range(3):
        state.batch([("d", "a", 0, n)])
    report = run_housekeeping(Lake(tmp_path), None, Retention(state_hours=0), flows=[FLOW])
    (failed,) = [one for one in report.things if one.failed]
    assert (failed.what, failed.note) == (f"tables of {FLOW}", report.notes[0].removeprefix(f"tables of {FLOW}: "))
    assert 'state "counts" has 64 rows to fold' in failed.note
    assert len(DeltaTable(str(state.table.path)).file_uris()) == 1
    assert int(min(file.stem for file in (large.table.path / "_delta_log").glob("*.json"))) > 0
    # Several are named together.
    monkeypatch.setattr(compaction, "DRIVER_ROWS", 0)
    for n in range(2):
        state.batch([("d", "a", 0, n)], gap=GENERATION)
    with pytest.raises(TrideltaError, match=r"(?s)2 tables .*counts: .*sales: "):
        compact(None, Lake(tmp_path), FLOW)
    with pytest.raises(TooLargeToFoldError):
        recluster(None, Lake(tmp_path), "counts", [])
    assert state.scanned() == state.expected()
    assert large.held() == [("a", GENERATION + 2)]


def test_a_table_that_waits_for_a_batch_holds_up_no_other_and_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map is compacted between two batches. It comes first here, and the batch is longer than is waited for."""
    waiting, state = SmallTable(tmp_path, MAP, TRANSACTIONAL), SmallState(tmp_path)
    other = SmallTable(tmp_path, MAP, TRANSACTIONAL, name="more")
    for n in range(3):
        waiting.commit(n, ("a", n))
        other.commit(n, ("a", n))
        state.batch([("d", "a", 0, n)], gap=GENERATION)
    group = Checkpoint(FLOW, state.lake.checkpoint_path(FLOW, "sales"))
    with group.running(0), group.committing(0):
        started = time.monotonic()
        report = run_housekeeping(state.lake, None, Retention(state_hours=1, wait_seconds=1), flows=[FLOW])
        # The others try, and do not wait again.
        assert time.monotonic() - started < 2
        assert report.notes == (
            "tables of shop: a backfill, a compaction or a batch is at work; left for the next round",
        )
        assert not report.failures
        assert COMPACTION in {commit.kind for commit in state.table.history()}
        monkeypatch.setattr(compaction, "DRIVER_ROWS", 0)
        for n in range(2):
            state.batch([("d", "a", 0, n)], gap=GENERATION)
        report = run_housekeeping(state.lake, None, Retention(state_hours=1, wait_seconds=0.1), flows=[FLOW])
    (failed,) = report.failures
    for name, why in (("sales", "rows to fold"), ("counts", "in use by another process"), ("more", "in use by")):
        assert re.search(rf"  {name}: .*{why}", failed)
    assert state.scanned() == state.expected()
    assert waiting.held() == other.held() == [("a", 2)]


@pytest.mark.parametrize(
    "error", [RuntimeError("Spark does not start"), CommitFailedError("another commit came first")]
)
def test_a_table_that_cannot_be_rewritten_is_vacuumed_and_its_log_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Every night, if the error stays: else its old versions and its log grow for as long."""
    state = SmallState(tmp_path)
    for n in range(3):
        state.batch([("d", "a", 0, n)])
    compact(None, state.lake, FLOW)
    state.batch([("d", "a", 0, 4)])

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(compaction, "fold_arrow", fails)
    monkeypatch.setattr(compaction, "_WAIT_SECONDS", 0)
    with pytest.raises(type(error), match=str(error)):
        compact(None, state.lake, FLOW, Retention(state_hours=0))
    # The three files that the fold has replaced.
    assert len(list(state.table.path.rglob("part-*.parquet"))) == len(DeltaTable(str(state.table.path)).file_uris())
    assert int(min(file.stem for file in (state.table.path / "_delta_log").glob("*.json"))) > 0
    assert state.scanned() == state.expected()


@pytest.mark.parametrize("error", [LeaseLostError(FLOW, "run.lock", "taken over"), LockedError(FLOW, "commit.lock", 1)])
def test_a_table_that_somebody_else_works_on_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    state = SmallState(tmp_path)
    for n in range(3):
        state.batch([("d", "a", 0, n)])

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(compaction, "fold_arrow", fails)
    monkeypatch.setattr(retention, "vacuum", lambda *_: pytest.fail("it is vacuumed"))
    with pytest.raises(type(error)):
        compact(None, state.lake, FLOW, Retention(state_hours=0))


def test_what_nobody_foresaw_is_left_with_a_note(tmp_path: Path) -> None:
    def broken(kept: Retention, dry_run: bool) -> HousekeepingItem:
        raise OverflowError("date value out of range")

    report = run_housekeeping(Lake(tmp_path), broken, Retention(), nimbus_home=tmp_path)
    assert report.notes == ("registry: OverflowError: date value out of range",)
    assert [one.what for one in report.things if one.failed] == ["registry"]
    assert report.things[-1].what == "worker logs"


def test_what_is_busy_is_left_with_a_note(tmp_path: Path) -> None:
    state = SmallState(tmp_path)
    state.batch([("d", "a", 0, 1)])
    group = Checkpoint(FLOW, state.lake.checkpoint_path(FLOW, "sales"))
    with group.rewriting(0):
        report = run_housekeeping(state.lake, None, Retention(wait_seconds=0.1), flows=[FLOW])
    assert report.notes == ("tables of shop: a backfill, a compaction or a batch is at work; left for the next round",)
    assert not any(one.failed for one in report.things)
