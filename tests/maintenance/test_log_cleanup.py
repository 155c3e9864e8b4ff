"""What the log cleanup deletes, and what the engine still knows afterwards."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from pipelines.errors import LockedError, ReadPointError, TrideltaError
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.replay_records import Record, Records, app_id
from pipelines.execution.replays.counted import Replaced, replaced_since
from pipelines.execution.replays.selection import NUMBER
from pipelines.maintenance import compact, compaction, retention
from pipelines.maintenance.housekeeping_report import Retention
from pipelines.maintenance.plan import Closed, Part, closed_generations, plan_fold
from pipelines.state import history, writer
from pipelines.state.kinds import MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.quarantine import NAME
from pipelines.state.record import COMPACTION, REPLAY, SLICE, BatchRecord
from pipelines.state.schema import SLICE_COLUMN
from pipelines.state.slices import made_slices, mentions, outdated, slice_times
from pipelines.state.table import StateTable
from pipelines.state.writer import DeltaTable
from tests.maintenance.small_state import APP, FLOW, STATE, Row, SmallState, _arrow
from tests.state.small_kinds import SmallTable

DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallState:
    """A table with a checkpoint every fifth commit."""
    monkeypatch.setitem(writer._CONFIGURATION, "delta.checkpointInterval", "5")
    return SmallState(tmp_path)


def _log(state: SmallState) -> list[int]:
    return sorted(
        int(file.stem) for file in (state.table.path / "_delta_log").glob("[0-9]*.json") if file.stem.isdigit()
    )


def test_only_what_lies_behind_a_checkpoint_goes(state: SmallState) -> None:
    for i in range(12):
        state.batch([("d", "a", 0, i)])
    state.replace("d", [("d", "a", 0, 7)], claims=("file:/one",))
    compact(None, state.lake, FLOW, retention_hours=0)
    state.batch([("d", "b", 0, 1)])
    report = compact(None, state.lake, FLOW, retention_hours=0).tables[0]

    kept = _log(state)
    assert kept[0] > 0
    assert report.log_files_removed + len(kept) == report.version + 1 or kept[0] > 0
    assert (state.table.path / "_delta_log" / f"{kept[0]:020d}.checkpoint.parquet").exists()
    assert state.scanned() == state.expected()
    fresh = Lake(state.lake.root).state("sales")
    assert fresh.scan().num_rows == len(state.expected())
    assert fresh.last_txid() == state.txid
    assert fresh.commits.claims() == {"d": frozenset({"file:/one"})}
    assert DeltaTable(str(fresh.path)).transaction_version(APP) == state.txid
    with pytest.raises(ReadPointError, match="too old"):
        fresh.get([{"key": "a", "part": 0}], txid=0)
    with pytest.raises(ReadPointError, match="too old"):
        fresh.get([{"key": "a", "part": 0}], version=kept[0])


def test_the_last_batch_is_remembered_however_old(state: SmallState) -> None:
    for i in range(3):
        state.batch([("d", "a", 0, i)])
    for i in range(12):
        state.replace("d", [("d", "a", 0, i)], claims=(f"file:/{i}",))
    for _ in range(2):
        compact(None, state.lake, FLOW, retention_hours=0)
    fresh = Lake(state.lake.root).state("sales")
    assert fresh.last_txid() == 2
    assert fresh.commits.claims() == {"d": frozenset({"file:/11"})}


def test_a_replay_without_a_batch_is_remembered_however_old(state: SmallState) -> None:
    said = BatchRecord(kind=REPLAY, flow=FLOW, replay=1, rows=1)
    state.writer.append_replay(_arrow([("d", "a", 0, 1)]), said, app_id(FLOW, STATE), seen=state.table.version())
    for _ in range(12):
        state.replace("e", [], claims=())
    for _ in range(2):
        compact(None, state.lake, FLOW, retention_hours=0)
    fresh = Lake(state.lake.root).state("sales")
    assert [commit.record.replay for commit in fresh.commits.of_source()] == [1]


@pytest.mark.parametrize("cleaned", [False, True], ids=["in the log", "said by a compaction"])
@pytest.mark.parametrize("known", [True, False], ids=["by its id", "of an earlier release"])
def test_a_source_that_was_made_again_with_as_many_versions_makes_slices_stale(
    state: SmallState, cleaned: bool, known: bool
) -> None:
    behind = SmallTable(state.lake.root, ROWS, TRANSACTIONAL, sliced=True)
    state.replace("d", [("d", "a", 0, 1)])
    version, made = state.table.last
    said = BatchRecord(
        kind=SLICE, flow=FLOW, slice="d", read={STATE: version}, read_ids={STATE: made} if known else None
    )
    behind.writer.replace_slice(pa.table({"word": ["d"], "n": [1], SLICE_COLUMN: ["d"]}), said)
    if cleaned:
        for n in range(24):
            behind.commit(n, ("e", 1))
            if n % 6 == 5:
                compact(None, state.lake, FLOW, retention_hours=0)
        assert not any(commit.kind == SLICE for commit in Lake(state.lake.root).state("counts").history())

    def stale() -> list[str]:
        table, of = Lake(state.lake.root).state("counts"), Lake(state.lake.root).state(STATE)
        return list(outdated(table, of, ["d"]))

    assert stale() == []
    shutil.rmtree(state.table.path)
    again = SmallState(state.lake.folder)
    again.replace("d", [("d", "a", 0, 2)])
    assert stale() == (["d"] if known else [])
    for _ in range(version + 20):
        again.replace("e", [("e", "a", 0, 2)])
    assert stale() == (["d"] if known else [])


def test_when_slices_were_made_outlives_the_log(state: SmallState) -> None:
    """Also of slices without rows, or files that they claim; and that a table behind has read an older version of one."""
    behind = SmallTable(state.lake.root, ROWS, TRANSACTIONAL, sliced=True)

    def make(slice_: str, rows: list[Row]) -> None:
        read = {STATE: state.table.version()}
        state.replace(slice_, rows)
        said = BatchRecord(kind=SLICE, flow=FLOW, txid=-1, slice=slice_, claims=(), read=read)
        behind.writer.replace_slice(pa.table({"word": [slice_], "n": [1], SLICE_COLUMN: [slice_]}), said)

    def made() -> Any:
        table, of = Lake(state.lake.root).state("counts"), Lake(state.lake.root).state(STATE)
        old = {slice_: commit.version for slice_, commit in outdated(table, of, DAYS).items()}
        return made_slices(of), dict(slice_times(of)), dict(slice_times(table)), old

    for slice_ in DAYS:
        make(slice_, [] if slice_ == DAYS[1] else [(slice_, "a", 0, 1)])
    before = made()
    assert (before[0], set(before[3])) == (set(DAYS), set(DAYS)), "each is made before the version that it has read"
    sizes = []
    for n in range(4):
        for txid in range(6):
            state.batch([("e", "a", 0, n)])
            behind.commit(6 * n + txid, ("e", 1))
        compact(None, state.lake, FLOW, retention_hours=0)
        assert made() == (before[0] | {"e"}, *before[1:])
        sizes.append(len(_log(state)))
    assert max(sizes) <= 15 < _log(state)[0], "the log is cleaned, if one compaction later"
    said = mentions(Lake(state.lake.root).state(STATE).commits.counting())
    for _ in range(3):
        compact(None, state.lake, FLOW, retention_hours=0)
    again = mentions(Lake(state.lake.root).state(STATE).commits.counting())
    assert again == said, "nothing is said again where nothing is written"
    # One that is made again since counts as made then.
    make(DAYS[1], [])
    at = made()[1]
    assert (at[DAYS[0]], at[DAYS[1]] > before[1][DAYS[1]]) == (before[1][DAYS[0]], True)
    state.reset()
    assert made_slices(Lake(state.lake.root).state(STATE)) == set()


def test_when_slices_were_made_is_known_behind_a_restore(state: SmallState) -> None:
    state.replace("d", [])
    for n in range(6):
        state.batch([("e", "a", 0, n)])
    for _ in range(2):
        compact(None, state.lake, FLOW, retention_hours=0)
        state.batch([("e", "a", 0, 1)])
    to, times = state.table.version(), dict(slice_times(state.table))
    state.replace("d", [])
    state.replace("f", [])
    DeltaTable(str(state.table.path)).restore(to)
    assert dict(slice_times(Lake(state.lake.root).state(STATE))) == times
    assert set(times) == {"d"}
    compact(None, state.lake, FLOW, retention_hours=0)
    assert dict(slice_times(Lake(state.lake.root).state(STATE))) == times


def test_an_older_log_says_what_it_still_knows(state: SmallState) -> None:
    """Compactions of earlier releases carry no times of slices; a record that says nonsense is none."""
    state.replace("d", [])
    opened = DeltaTable(str(state.table.path))
    for said in (
        '{"kind": "compaction", "flow": "shop"}',
        '{"kind": "compaction", "flow": "shop", "made": {"x": [1]}}',
    ):
        none = pa.schema(opened.schema().to_arrow()).empty_table()
        write_deltalake(opened, none, mode="append", commit_properties=CommitProperties({"userMetadata": said}))
    assert made_slices(Lake(state.lake.root).state(STATE)) == {"d"}


def test_a_first_look_at_a_log_that_is_cleaned_meanwhile(state: SmallState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that were listed are gone when they come to be read."""
    for i in range(7):
        state.batch([("d", "a", 0, i)])
    listed = history.versions

    def cleaned(path: Path) -> list[int]:
        found = listed(path)
        monkeypatch.setattr(history, "versions", listed)
        retention.checkpoint(state.table)
        assert retention.clean_log(state.table, retention.Bound(state.table.version(), 0))
        return found

    monkeypatch.setattr(history, "versions", cleaned)
    assert [one.version for one in StateTable(STATE, state.table.path).history()] == _log(state)


def test_a_week_is_kept(state: SmallState) -> None:
    for i in range(8):
        state.batch([("d", "a", 0, i)])
    report = compact(None, state.lake, FLOW).tables[0]
    assert (report.files_removed, report.log_files_removed) == (0, 0)
    assert all(state.scanned(txid=txid) == expected for txid, expected in state.by_txid.items())


def test_a_longer_retention_is_told_to_the_table_once(state: SmallState) -> None:
    state.batch([("d", "a", 0, 1)])
    compact(None, state.lake, FLOW, retention_hours=1000)
    opened = DeltaTable(str(state.table.path))
    assert retention.remembered_hours(opened) == 1000
    compact(None, state.lake, FLOW, retention_hours=500)
    assert DeltaTable(str(state.table.path)).version() == opened.version()
    assert state.scanned(txid=0) == state.expected()


def test_an_unfinished_batch_keeps_the_version_before_it(state: SmallState) -> None:
    for i in range(3):
        state.batch([("d", "a", 0, i)])
    compact(None, state.lake, FLOW)
    later = datetime.now(UTC) + timedelta(hours=30)
    batch = max(commit.version for commit in state.table.commits.batches())
    assert retention.bound(state.table, 1, unfinished=False, now=later).version == state.table.version()
    found = retention.bound(state.table, 1, unfinished=True, now=later)
    assert (found.version, found.hours) == (batch - 1, 31)


@pytest.mark.parametrize("kind", [OPAQUE, NON_TRANSACTIONAL])
def test_the_version_before_the_first_commit_of_an_unfinished_batch_is_kept(tmp_path: Path, kind: str) -> None:
    """Each attempt of these kinds commits, and the replay reads what was there before the first one."""
    state = SmallTable(tmp_path, MAP, kind)
    state.commit(0, ("a", 1))
    before = state.table.version()
    state.commit(1, ("a", 2))
    state.commit(1, ("a", 3), known=True)
    later = datetime.now(UTC) + timedelta(hours=30)
    assert retention.bound(state.table, 1, unfinished=True, now=later) == retention.Bound(before, 31)
    assert retention.bound(state.table, 1, unfinished=False, now=later).version == state.table.version()


def test_a_replay_that_was_cut_off_keeps_what_it_asks_for(state: SmallState) -> None:
    for i in range(3):
        state.batch([("d", "a", 0, i)])
    noted, before = state.table.version(), state.scanned()
    records = Records(state.lake.quarantine_path(FLOW))
    record = Record(1, "high", None, "2026-01-01", versions={"sales": noted, NAME: 0}, left_out={}, rows=0)
    records.begin(record, pa.table({NUMBER: pa.array([], pa.int64())}))
    state.batch([("d", "a", 0, 3)])
    state.replace("d", [("d", "a", 0, 7)])
    for i in range(3):
        for j in range(6):
            state.batch([("e", "a", 0, i * j)])
        compact(None, state.lake, FLOW, retention_hours=0)
    assert replaced_since(Lake(state.lake.root).state("sales"), noted) == Replaced(frozenset({"d"}))
    assert state.scanned(version=noted) == before
    records.finish(record, 0, {})
    assert records.needed() == {}
    for _ in range(2):  # what is said of slices has to be readable, too
        state.batch([("e", "a", 0, 1)])
        compact(None, state.lake, FLOW, retention_hours=0)
    assert replaced_since(Lake(state.lake.root).state("sales"), noted) is None


@pytest.mark.parametrize("finished", [True, False])
def test_a_stream_of_another_flow_keeps_what_it_asks_for(state: SmallState, finished: bool) -> None:
    """The version at which it goes on, however long the table gets no row; what it was planned with, before its first batch."""

    def reads(batch: int, version: int) -> None:
        offset = {"reservoirId": state.table.id, "reservoirVersion": version, "index": -1, "isStartingVersion": False}
        for folder, text in (
            ("offsets", f'v1\n{{"batchWatermarkMs":0}}\n-\n{json.dumps(offset)}'),
            ("commits", "v1\n{}"),
        ):
            if folder == "offsets" or finished:
                file = state.lake.checkpoint_path("other", "rows") / "spark" / folder / str(batch)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)

    for i in range(7):
        state.batch([("d", "a", 0, i)])
    # Of a batch that took several versions Spark asks for the first one again.
    reads(0, state.table.version())
    if finished:
        reads(1, state.table.version() + 1)
    last, before = state.table.version(), state.scanned()
    for _ in range(3):
        state.batch([("d", "a", 0, 1)])
        compact(None, state.lake, FLOW, retention_hours=0)
    assert set(range(last, state.table.version() + 1)) <= set(_log(state))
    assert state.scanned(version=last) == before
    for batch in (0, 1, 2) if finished else (0,):
        reads(batch, state.table.version())
    state.batch([("d", "a", 0, 1)])
    compact(None, state.lake, FLOW, retention_hours=0)
    assert last not in _log(state)


def test_what_was_replaced_since_a_version(state: SmallState) -> None:
    state.batch([("d", "a", 0, 1)])
    first = state.table.version()
    assert replaced_since(state.table, first) == Replaced()
    state.replace("d", [("d", "a", 0, 2)])
    assert replaced_since(state.table, first) == Replaced(frozenset({"d"}))
    second = state.table.version()
    state.reset()
    reset = replaced_since(state.table, second)
    assert reset == Replaced(whole=True)
    assert reset is not None
    assert "any" in reset
    DeltaTable(str(state.table.path)).restore(second)
    assert replaced_since(state.table, first) is None


def test_a_retention_below_zero_is_refused(state: SmallState) -> None:
    with pytest.raises(TrideltaError, match="no retention"):
        compact(None, state.lake, FLOW, retention_hours=-1)


@pytest.mark.parametrize(
    ("last", "open_generations", "expected"),
    [
        (None, 1, Closed(0, -1)),
        (None, 0, Closed(1, -1)),
        (63, 1, Closed(0, -1)),
        (64, 1, Closed(1, 0)),
        (64, 2, Closed(0, -1)),
        (64, 0, Closed(2, 0)),
    ],
)
def test_which_generations_are_closed(last: int | None, open_generations: int, expected: Closed) -> None:
    assert closed_generations(last, open_generations) == expected


def test_a_folded_table_is_left_alone() -> None:
    closed = Closed(5, 4)
    folded = [Part("a", 4, 1, 10, 1), Part("b", 2, 1, 10, 1), Part("*", 4, 1, 10, 1), Part("a", 5, 9, 10, 1)]
    assert not plan_fold(folded, closed).work
    assert plan_fold([*folded, Part("b", 3, 1, 10, 1)], closed).slices == ("b",)
    assert not plan_fold([*folded, Part(None, 3, 9, 10, 1)], closed).work


def test_a_slice_made_again_without_claims_lets_the_older_ones_log_go(tmp_path: Path) -> None:
    small = SmallState(tmp_path)
    small.batch([("d1", "a", 1, 1)])
    small.replace("d1", [("d1", "a", 1, 2)], claims=("file-1",))
    pinned = small.table.version()
    assert pinned in retention._remembered(small.table, small.table.version())
    small.replace("d1", [("d1", "a", 1, 3)], claims=())
    assert pinned not in retention._remembered(small.table, small.table.version())
    assert not any(small.table.commits.claims().values())
    small.replace("d1", [("d1", "a", 1, 3)], claims=("file-2",))
    pinned = small.table.version()
    small.reset()
    assert pinned not in retention._remembered(small.table, small.table.version())


def test_a_table_that_holds_nothing_yet_is_compacted(state: SmallState) -> None:
    assert compact(None, state.lake, FLOW, retention_hours=0).tables[0].log_files_removed == 0
    assert state.scanned() == []


@pytest.mark.parametrize("at", [168, 0])
def test_claims_that_count_again_since_a_restore_outlive_the_cleanup(state: SmallState, at: int) -> None:
    """The slice that a RESTORE has undone does not take the place of the one that counts."""
    state.replace("d1", [("d1", "a", 0, 1)], claims=("file:/E",))
    state.replace("d2", [("d2", "a", 0, 1)], claims=("file:/F",))
    retention.checkpoint(state.table)
    good = state.table.version()
    state.replace("d1", [("d1", "a", 0, 9)], claims=("file:/E",))
    DeltaTable(str(state.table.path)).restore(good)
    retention.checkpoint(state.table)
    limit = retention.Bound(state.table.version() if at == 0 else good, at)
    retention.clean_log(_fresh(state), limit)
    assert _fresh(state).commits.claims() == {"d1": frozenset({"file:/E"}), "d2": frozenset({"file:/F"})}
    assert _fresh(state).scan()["sum"].to_pylist() == [2]


def test_claims_of_a_version_that_is_kept_outlive_the_cleanup(state: SmallState) -> None:
    """A RESTORE may go back to it: then what was replaced since counts again."""
    state.replace("d1", [("d1", "a", 0, 1)], claims=("file:/E",))
    state.batch([("d2", "a", 0, 1)])
    state.batch([("d2", "a", 0, 1)])
    retention.checkpoint(state.table)
    good = state.table.version()
    state.replace("d1", [("d1", "a", 0, 9)], claims=("file:/G",))
    retention.clean_log(_fresh(state), retention.Bound(good, 168))
    DeltaTable(str(state.table.path)).restore(good)
    assert _fresh(state).commits.claims() == {"d1": frozenset({"file:/E"})}
    assert _fresh(state).last_txid() == 1


def test_the_last_batch_that_a_restore_has_left_is_remembered(state: SmallState) -> None:
    for _ in range(3):
        state.batch([("d", "a", 0, 1)])
    compact(None, state.lake, FLOW)
    good = state.table.version()
    for _ in range(4):
        state.batch([("d", "a", 0, 1)])
    compact(None, state.lake, FLOW, open_generations=1)
    DeltaTable(str(state.table.path)).restore(good)
    for _ in range(3):
        compact(None, Lake(state.lake.root), FLOW, retention_hours=0)
        assert _fresh(state).last_txid() == 2
        assert _fresh(state).commits.undone(1) == {3, 4, 5, 6}
        assert _fresh(state).scan()["sum"].to_pylist() == [3]


def test_that_a_restore_has_undone_all_batches_is_remembered(state: SmallState) -> None:
    """Delta keeps the transaction ids of batches that are undone, so the ledger alone tells."""
    state.replace("d", [("d", "a", 0, 1)], claims=("file:/E",))
    compact(None, state.lake, FLOW)
    good = state.table.version()
    for _ in range(4):
        state.batch([("d", "a", 0, 1)])
    DeltaTable(str(state.table.path)).restore(good)
    for n in range(3):
        state.writer.replace_slice(*_slice(n))
        compact(None, Lake(state.lake.root), FLOW, retention_hours=0)
        assert _fresh(state).last_txid() is None
        assert 3 in _fresh(state).commits.undone(1)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_batch_beside_the_vacuum_loses_no_version_from_the_bound_on(tmp_path: Path, batches: int) -> None:
    """A MERGE behind the bound removes files of versions that stay readable."""
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    for txid in range(3):
        state.commit(txid, ("a", txid), ("b", txid))
    limit = retention.bound(state.table, 0, unfinished=False)
    for txid in range(3, 3 + batches):
        state.commit(txid, ("a", txid), ("b", txid))
    last = state.table.version()
    assert retention.vacuum(state.writer, limit, BatchRecord(kind=COMPACTION, flow=FLOW, epoch=1, txid=2)) > 0
    fresh = Lake(tmp_path).state("counts")
    for version in range(limit.version, last + 1):
        assert sorted(fresh.scan(version=version)["n"].to_pylist()) == [version - 1] * 2
    with pytest.raises(ReadPointError, match="too old"):
        fresh.scan(version=limit.version - 1)


def test_a_vacuum_passes_over_versions_that_no_checkpoint_reaches(tmp_path: Path) -> None:
    """As a cleanup that was killed leaves them."""
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    for txid in range(4):
        state.commit(txid, ("a", txid))
    retention.checkpoint(state.table)
    (state.table.path / "_delta_log" / f"{0:020d}.json").unlink()
    fresh = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    record = BatchRecord(kind=COMPACTION, flow=FLOW, epoch=1, txid=3)
    assert retention.vacuum(fresh.writer, retention.Bound(2, 0), record) == 3


@pytest.mark.parametrize(("hours", "locked"), [(0.0, True), (168.0, False)])
def test_without_a_retention_the_bound_is_set_between_two_batches(
    state: SmallState, monkeypatch: pytest.MonkeyPatch, hours: float, locked: bool
) -> None:
    """A batch that came after the look at the checkpoint, and before that at the log, would lose what its replay reads."""
    state.batch([("d", "a", 0, 1)])
    checkpoint = Checkpoint(FLOW, state.lake.checkpoint_path(FLOW, "sales"))
    found = []

    def unfinished(group: Checkpoint) -> bool:
        try:
            with Checkpoint(FLOW, group.folder).committing(0):
                found.append(False)
        except LockedError:
            found.append(True)
        return False

    monkeypatch.setattr(compaction, "_unfinished", unfinished)
    work = compaction._Compaction(None, state.lake, FLOW, Retention(state_hours=hours), [checkpoint])
    assert work._bound(state.table, None).hours == hours
    assert found == [locked]


def _slice(n: int) -> tuple[pa.Table, BatchRecord]:
    record = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, slice="d", claims=(f"file:/{n}",))
    return _arrow([("d", "a", 0, n)]), record


def _fresh(state: SmallState) -> StateTable:
    """Return the table as another process finds it."""
    return Lake(state.lake.root).state(STATE)
