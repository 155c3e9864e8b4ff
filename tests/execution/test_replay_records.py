"""The record of replays: a replay that comes late writes over none. No Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.execution.batch import commits as commits_module
from pipelines.execution.batch.commits import Announced
from pipelines.execution.batch.quarantine import quarantine_writer
from pipelines.execution.checkpoint import durable as durable_module
from pipelines.execution.checkpoint import replay_records as records_module
from pipelines.execution.checkpoint.engine_files import write_json
from pipelines.execution.checkpoint.replay_records import Record, Records
from pipelines.execution.replays import selection
from pipelines.execution.replays.counted import Replaced
from pipelines.execution.replays.runner import Replayer
from pipelines.execution.replays.selection import NUMBER, STORED, Lot, rounds
from pipelines.execution.replays.work import Order, Work
from pipelines.places.lease import LeaseLostError
from pipelines.places.location import Location
from pipelines.state.lake import Lake
from pipelines.state.quarantine import COLUMNS
from pipelines.state.schema import GEN, SLICE_COLUMN, TXID
from pipelines.state.turns import LateWriterError
from pipelines.trident import TridentTopology
from tests.maintenance.small_state import SmallState


@pytest.fixture(params=["a folder", "a store"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Records:
    return Records(tmp_path / "shop" if request.param == "a folder" else Location.of(tmp_path / "shop"))


def record(number: int, started: str) -> Record:
    return Record(number, "source", "s", started, {"quarantine": 0}, {}, 1)


def lot(row: str) -> Lot:
    return Lot("source", "s", pa.table({"row": [row]}))


def test_a_late_replay_does_not_write_over_the_one_that_took_its_place(records: Records) -> None:
    records.begin(record(1, "at 10"), lot("theirs").rows)
    records.finish(record(1, "at 10"), 1, {})
    before = records.all()
    for row in ("mine", "theirs"):
        with pytest.raises(LateWriterError, match="replay 1"):
            records.begin(record(1, "at 9"), lot(row).rows)
    assert (records.all(), records.rows(before[0])["row"].to_pylist()) == (before, ["theirs"])


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
            records.begin(record(1, "at 10"), lot("theirs").rows)
    with pytest.raises(LateWriterError):
        records.begin(record(1, "at 9"), lot("mine").rows)
    assert (records.all(), records.last) == ([], 1)
    records.begin(record(2, "at 11"), lot("again").rows)
    assert [records.rows(one)["row"].to_pylist() for one in records.unfinished()] == [["again"]]


def test_rows_without_a_record_are_forgotten_with_old_replays(records: Records) -> None:
    for number in (2, 4):
        records.begin(record(number, "at 10"), lot("theirs").rows)
    for number in (1, 3, 5):
        (records.folder / f"{number}.parquet").write_bytes(b"rows")
    now = datetime.now(UTC)
    records.forget(now - timedelta(hours=1))
    assert {file.name for file in records.folder.glob("*.parquet")} == {f"{n}.parquet" for n in (1, 2, 3, 4, 5)}
    records.forget(now + timedelta(hours=1))
    assert {file.name for file in records.folder.glob("*.parquet")} == {f"{n}.parquet" for n in (2, 4, 5)}
    assert records.last == 5


def test_a_replay_that_was_given_up_is_known_while_quarantine_has_rows(records: Records) -> None:
    """Rows go by the latest commit of their txid over all batch groups: they may stay for longer than the record is old."""
    for number, left in ((1, "undecided"), (2, None), (3, None)):
        records.begin(record(number, "at 10"), lot("theirs").rows)
        records.finish(records.all()[-1], 0, {}, left=left)
    later = datetime.now(UTC) + timedelta(hours=1)
    records.forget(later, rejected=True)
    assert [kept.number for kept in records.all()] == [1, 3]
    records.forget(later)
    assert [kept.number for kept in records.all()] == [3]


def test_a_replay_that_has_lost_a_lease_does_not_begin(records: Records) -> None:
    def lost() -> None:
        raise LeaseLostError("shop", "rewrite.lock", "another process has taken it over")

    replayer = Replayer.__new__(Replayer)
    checkpoints: Any = [SimpleNamespace(still_held=lost)]
    replayer._records, replayer._held = records, checkpoints
    with pytest.raises(LeaseLostError):
        replayer._begin(record(1, "at 9"), lot("mine").rows)
    assert records.last == 0


# --- the parts of many rows ---------------------------------------------------------------------------------------------


def stored(*rows: tuple[str, int]) -> Lot:
    """A lot with rows of batches."""
    texts = {name: pa.array(["x"] * len(rows)) for name in STORED}
    numbers = {NUMBER: pa.array(range(len(rows))), TXID: pa.array([txid for _, txid in rows], pa.int64())}
    return Lot("source", "s", pa.table({**texts, "row": pa.array([row for row, _ in rows]), **numbers}))


def test_lots_go_together_until_they_are_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "ROWS_AT_ONCE", 3)
    sizes = [stored(*[("a", 0)] * size) for size in (1, 2, 1, 7, 2, 1)]
    assert [[part.rows.num_rows for part in parts] for parts in rounds(sizes)] == [[1, 2], [1], [3], [3], [1, 2], [1]]
    assert rounds([]) == []


def test_what_quarantine_still_holds_of_a_part() -> None:
    part = stored(("a", 2), ("a", 2), ("b", 5), ("c", 3))
    since = stored(("n", 2), ("a", 2), ("b", 6), ("c", 3), ("a", 2), ("a", 2))
    assert since.common(part).rows[NUMBER].to_pylist() == [1, 3, 4]
    chosen = selection.Selection(gates=("g",), last=9)
    assert part.within(chosen) == selection.Selection(gates=("g",), first=2, last=5)


# --- a loss of power ----------------------------------------------------------------------------------------------------


@pytest.fixture
def replayer(tmp_path: Path) -> Replayer:
    """Of a flow whose quarantine has given the rows of one replay up."""
    made = Replayer.__new__(Replayer)
    lake: Any = Lake(tmp_path, durable=True)
    made._topology, made._records = TridentTopology("shop"), Records(lake.quarantine_path("shop"))
    made._writer = quarantine_writer(lake, "shop")
    made._writer.prepare(StructType([StructField(name, StringType()) for name, _ in COLUMNS]))
    one = replace(record(1, "at 9"), quarantine=made._writer.table.id)
    made._records.begin(one, lot("bad").rows)
    work: Any = Work.__new__(Work)
    work.group, work._flow = SimpleNamespace(quarantine=made._writer, name="words"), "shop"
    work._announced = Announced((), lake)
    columns = {name: pa.int64() if name in (TXID, GEN) else pa.string() for name in STORED}
    rows = pa.Table.from_pylist([{"row": "bad", TXID: 0, SLICE_COLUMN: "d1"}], pa.schema(columns))
    rows = rows.append_column(NUMBER, pa.array([0]))
    order = Order(Lot("source", "s", rows), one, {}, {"quarantine": made._writer.table.version()})
    work._quarantine(order, rows.slice(0, 0), Replaced())
    made._records.finish(one, 1, {})
    return made


def test_what_a_replay_has_taken_out_is_on_the_disk_of_a_durable_lake_before_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    asked: list[str] = []
    synced, finish = durable_module._synced, Records.finish

    def told(path: Path) -> bool:
        asked.append(path.name)
        return synced(path)

    def finished(*given: Any) -> None:
        asked.append("finished")
        finish(*given)

    monkeypatch.setattr(durable_module, "_synced", told)
    monkeypatch.setattr(Records, "finish", finished)
    replayer: Replayer = request.getfixturevalue("replayer")
    version = replayer._writer.table.version()
    assert f"{version:020d}.json" in asked[: asked.index("finished")]


@pytest.mark.parametrize("killed", ["state", "quarantine"])
def test_what_a_killed_replay_has_committed_is_on_the_disk_before_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """It was killed between a commit and its asking for the disk."""
    state, asked = SmallState(tmp_path), list[str]()
    lake: Any = Lake(tmp_path, durable=True)
    quarantine = quarantine_writer(lake, "shop")
    quarantine.prepare(StructType([StructField(name, StringType()) for name, _ in COLUMNS]))
    columns = {name: pa.int64() if name in (TXID, GEN) else pa.string() for name in STORED}
    rows = pa.Table.from_pylist([{"row": "bad", TXID: 0, SLICE_COLUMN: "d1"}], pa.schema(columns))
    replayed = Lot("source", "s", rows.append_column(NUMBER, pa.array([0])))
    seen = {"sales": state.table.version(), "quarantine": quarantine.table.version()}
    order = Order(replayed, record(1, "at 9"), {}, seen)
    node: Any = SimpleNamespace(id=1, updater=None)
    sink: Any = SimpleNamespace(name="sales", node=node, table=state.table, writer=state.writer)

    def work() -> Any:
        made: Any = Work.__new__(Work)
        made.group, made._flow = SimpleNamespace(quarantine=quarantine, name="words"), "shop"
        made._announced = Announced((), lake)
        return made

    def stops(table: Any, *_: object) -> None:
        if table is {"state": state.table, "quarantine": quarantine.table}[killed]:
            raise KeyboardInterrupt

    def replays() -> None:
        first = work()
        first._commit(sink, state.writer.empty(), 0.0, order)
        first._quarantine(order, order.lot.rows.slice(0, 0), Replaced())

    with monkeypatch.context() as patch:
        patch.setattr(commits_module, "sync_table", stops)
        with pytest.raises(KeyboardInterrupt):
            replays()
    synced = durable_module._synced

    def told(path: Path) -> bool:
        asked.append(str(path))
        return synced(path)

    monkeypatch.setattr(durable_module, "_synced", told)
    again = work()
    run: Any = SimpleNamespace(frames=lambda *_, **__: {1: None})
    (done,) = again._wave(run, [sink], order, None)
    assert done.replayed
    again._quarantine(order, order.lot.rows.slice(0, 0), Replaced())
    of_state = str(state.table.path / "_delta_log" / f"{state.table.version():020d}.json")
    of_quarantine = str(quarantine.table.path / "_delta_log" / f"{quarantine.table.version():020d}.json")
    assert asked.index(of_state) < asked.index(of_quarantine)


def test_a_replay_whose_commit_in_quarantine_has_gone_with_the_power_is_finished_once_more(replayer: Replayer) -> None:
    assert replayer._unfinished() == []
    table = replayer._writer.table
    commit: Any = table.path / "_delta_log" / f"{table.version():020d}.json"
    commit.unlink()
    lake = Lake(commit.parents[3])
    replayer._writer = quarantine_writer(lake, "shop")
    assert [one.number for one in replayer._unfinished()] == [1]
    # What was given up is not taken up again, nor what another quarantine held, or nobody knows which.
    (kept,) = replayer._records.all()
    for other in (replace(kept, left="cut off"), replace(kept, landed=0), replace(kept, quarantine=None)):
        write_json(replayer._records.folder / "1.json", other.to_json())
        assert replayer._unfinished() == []
