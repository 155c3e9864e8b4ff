"""`get` of the last version: what is kept, what is followed, and what starts afresh. No Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from pipelines.errors import FieldError, ReadPointError
from pipelines.maintenance import compact
from pipelines.state import damage as damage_of
from pipelines.state import key_cache as points
from pipelines.state import table as state_table
from pipelines.state import views
from pipelines.state.damage import DamagedTableError
from pipelines.state.delta_log import adds, commit_file, data_file
from pipelines.state.kinds import LOG, MAP, OPAQUE, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.literals import KeyFieldsError, KeyValueError
from pipelines.state.reading import Key, Reader
from pipelines.state.record import COMPACTION, BatchRecord
from pipelines.state.schema import ValueColumn
from pipelines.state.table import StateTable
from tests.maintenance.small_state import SmallState
from tests.state.small_kinds import COLUMNS, FLOW, WIDER, SmallTable

A, B, NOBODY = {"word": "a"}, {"word": "b"}, {"word": "nobody"}


@pytest.fixture
def state(tmp_path: Path) -> SmallTable:
    state = SmallTable(tmp_path, LOG, OPAQUE)
    state.commit(0, ("a", 1), ("b", 2))
    return state


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys for which a table's files were read, in turn."""
    keys: list[Any] = []
    read = points.PointReads._read

    def told(self: points.PointReads, reader: Reader, missing: Mapping[Key, Mapping[str, Any]]) -> None:
        keys.extend(missing.values())
        read(self, reader, missing)

    monkeypatch.setattr(points.PointReads, "_read", told)
    return keys


def values(table: StateTable, *keys: dict[str, Any]) -> list[int]:
    return [row["n"] for row in table.get(keys)]


@pytest.mark.slow
def test_a_key_is_read_once_and_new_batches_are_followed(state: SmallTable, read: list[Any]) -> None:
    table = state.table
    assert values(table, A, NOBODY) == [1]
    assert values(table, NOBODY, A) == [1]
    for txid in range(1, 80):
        state.commit(txid, ("a", 1), ("nobody", 5))
        if txid % 3:
            assert values(table, A, NOBODY) == [1 + txid, 5 * txid]
    assert values(table, NOBODY, A) == [395, 80]
    assert read == [A, NOBODY]


def test_a_key_that_is_new_to_the_cache_sees_all_batches(state: SmallTable) -> None:
    table = state.table
    for txid in range(1, 6):
        assert values(table, A) == [txid]
        state.commit(txid, ("a", 1), (f"k{txid}", txid))
        assert values(table, {"word": f"k{txid}"}, B) == [txid, 2]
    assert values(table, *({"word": f"k{txid}"} for txid in range(6))) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("held", [0, 3, points.HELD_ROWS])
def test_whatever_is_held_in_memory(state: SmallTable, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "HELD_ROWS", held)
    for txid in range(60, 70):
        state.commit(txid, ("a", 1), (f"k{txid}", txid))
        assert values(state.table, A) == [txid - 58]
        assert values(state.table, {"word": "k60"}, {"word": f"k{txid}"}) == [60, txid][txid == 60 :]


def test_far_times_as_spark_writes_them_are_followed(tmp_path: Path, read: list[Any]) -> None:
    """As INT96, which Arrow takes for nanoseconds."""
    at = datetime(2500, 1, 1, tzinfo=UTC)
    columns = StructType([*COLUMNS.fields, StructField("at", TimestampType())])
    one = ValueColumn(name="n", aggregator="Sum"), ValueColumn(name="at", aggregator="Max")
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns, values=one)
    state.commit(0, ("a", 1, datetime(2024, 1, 1, tzinfo=UTC)))
    assert values(state.table, A) == [1]
    state.commit(1, ("a", 1, at))
    file = added_last(state.table)
    pq.write_table(pq.ParquetFile(file).read(), file, use_deprecated_int96_timestamps=True)
    assert state.table.get([A]) == [{"word": "a", "n": 2, "at": at}]
    assert read == [A]


def test_a_name_with_a_quotation_mark(tmp_path: Path) -> None:
    columns = StructType([*COLUMNS.fields, StructField('so "many"', LongType())])
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns)
    state.commit(0, ("a", 1, 10), ("b", 2, 20))
    assert [row['so "many"'] for key in (A, B) for row in state.table.get([key])] == [10, 20]


def test_other_commits_start_afresh(state: SmallTable, tmp_path: Path) -> None:
    table = state.table
    assert values(table, A, B) == [1, 2]
    state.commit(0, ("a", 10), known=True)
    assert values(table, A, B) == [10]
    state.commit(64, ("a", 1))
    assert values(table, A) == [11]
    compact(None, Lake(tmp_path), FLOW)
    state.commit(65, ("a", 1))
    assert values(table, A) == [12]


def added_last(table: StateTable) -> Any:
    """Return the one data file that the last commit added."""
    (add,) = adds(table.path, table.version())
    return data_file(table.path, add["path"])


def test_a_batch_whose_file_is_vacuumed_by_now(state: SmallTable) -> None:
    assert values(state.table, A) == [1]
    state.commit(1, ("a", 1))
    file = added_last(state.table)
    DeltaTable(str(state.table.path)).optimize.compact()
    DeltaTable(str(state.table.path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert not file.exists()
    assert [values(state.table, A) for _ in range(2)] == [[2], [2]]


@pytest.mark.parametrize(("missed", "followed"), [(5, 5), (6, 1), (12, 1)])
def test_a_handle_that_slept_over_many_commits(
    state: SmallTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missed: int, followed: int
) -> None:
    """They are not followed one by one: to open the table anew reads less."""
    monkeypatch.setattr(points, "FAR", 6)
    monkeypatch.setattr(damage_of, "FAR", 6)
    reader, calls, checked = Lake(tmp_path).state("counts"), list[int](), list[str]()
    assert values(reader, A) == [1]
    for txid in range(1, missed + 1):
        state.commit(txid, ("a", 1), *([("b", 1)] if txid == 1 else []))
    DeltaTable(str(state.table.path)).create_checkpoint()
    real, check = points.appended_rows, damage_of.check_commit
    monkeypatch.setattr(points, "appended_rows", lambda *args: (calls.append(args[1]), real(*args))[1])
    monkeypatch.setattr(damage_of, "check_commit", lambda *args: (checked.append(args[1].name), check(*args))[1])
    assert values(reader, A, B) == [1 + missed, 3]
    assert (len(calls), len(checked) <= 5) == (followed, True)
    assert reader.version() == missed + 1
    assert len(checked) <= 5


def test_a_writer_that_is_faster_than_the_reader(state: SmallTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "FAR", 6)
    table, calls, real = state.table, list[int](), points.appended_rows
    assert values(table, A) == [1]
    state.commit(1, ("a", 1))

    def slowly(path: Path, version: int, reader: Reader, most: int) -> Any:
        calls.append(version)
        if len(calls) < 20:
            state.commit(1 + len(calls), ("a", 1))
        return real(path, version, reader, most)

    monkeypatch.setattr(points, "appended_rows", slowly)
    assert values(table, A) == [8]
    assert len(calls) == 6


@pytest.mark.parametrize(
    "ask",
    [lambda table: table.get([A]), lambda table: table.scan().to_pylist()],
    ids=["get", "scan"],
)
def test_a_column_that_is_added_while_a_reader_looks(
    state: SmallTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[StateTable], Any]
) -> None:
    reader, at, wider = Lake(tmp_path).state("counts"), StateTable._at, list[SmallTable]()

    def late(self: StateTable, *point: Any) -> Any:
        if self is reader and not wider:
            wider.append(SmallTable(tmp_path, LOG, OPAQUE, WIDER))
        return at(self, *point)

    monkeypatch.setattr(StateTable, "_at", late)
    assert ask(reader)[0] == {"word": "a", "n": 1, "total": 0}
    wider[0].commit(1, ("a", 1, 10))
    assert ask(reader)[0] == {"word": "a", "n": 2, "total": 10}


def without_adds(commit: Path) -> None:
    """Cut a commit off behind a whole line, ahead of the files that it adds."""
    lines = commit.read_text("utf-8").splitlines()
    kept = [line for line in lines if not line.startswith('{"add"')]
    assert len(kept) < len(lines)
    commit.write_text("\n".join(kept), "utf-8")


@pytest.mark.parametrize(
    ("of_log", "damage", "says"),
    [
        (False, lambda file: file.unlink(), "a data file of version 2: it is missing"),
        (False, lambda file: file.write_bytes(b"PAR1"), "a data file of version 2: it has 4 bytes"),
        (True, lambda file: file.write_bytes(file.read_bytes()[:-10]), "commit 2 of the log"),
        (True, lambda file: file.write_bytes(b""), "commit 2 of the log: it is empty"),
        (True, without_adds, "commit 2 of the log: it is cut off"),
    ],
    ids=["missing", "cut off", "cut off commit", "empty commit", "commit cut off at a line"],
)
def test_a_batch_that_is_damaged(
    state: SmallTable, tmp_path: Path, of_log: bool, damage: Callable[[Path], Any], says: str
) -> None:
    reader = Lake(tmp_path).state("counts")
    assert values(reader, A) == [1]
    state.commit(1, ("a", 1))
    damage(commit_file(state.table.path, 2) if of_log else added_last(state.table))
    for _ in range(2):
        with pytest.raises(DamagedTableError, match=says):
            values(reader, A)


@pytest.mark.slow
def test_a_handle_that_slept_over_a_cleanup_of_the_log(state: SmallTable, tmp_path: Path) -> None:
    """The next commit that it looks for is gone, and so is its own."""
    reader = Lake(tmp_path).state("counts")
    assert (values(reader, A), reader.last_txid(), reader.version()) == ([1], 0, 1)
    for txid in range(1, 70):
        state.commit(txid, ("a", 1))
    report = compact(None, Lake(tmp_path), FLOW, retention_hours=0)
    assert report.tables[0].log_files_removed > 10
    assert (values(reader, A), reader.last_txid(), reader.version()) == ([70], 69, state.table.version())
    assert reader.scan().num_rows == 2


def test_the_version_of_a_txid_is_looked_for_while_no_other_thread_reads_the_log(state: SmallTable) -> None:
    history = state.table.commits
    assert history.version_of(0) == 1

    class Watched(dict[int, int]):
        def __contains__(self, txid: object) -> bool:
            assert history._lock.locked()
            return super().__contains__(txid)

        def items(self) -> Any:
            assert history._lock.locked()
            return super().items()

    history._versions = Watched(history._versions)
    assert history.version_of(0) == 1
    compacted = BatchRecord(kind=COMPACTION, flow=FLOW, readable_from=1)
    history._records[-1] = replace(history._records[-1], record=compacted)
    with pytest.raises(ReadPointError, match=r"versions from 1 on are kept .*, txid 0\)"):
        history.check_kept(0, "version 0")


@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize(
    "ask",
    [
        lambda table: values(table, A),
        lambda table: table.scan().to_pylist(),
        lambda table: table.scan(version=2).to_pylist(),
        lambda table: [(commit.version, commit.txid) for commit in table.history()],
        lambda table: table.view().multi_get([("a",)]),
        lambda table: table.view(2).multi_get([("a",)]),
    ],
    ids=["get", "scan", "scan of a version", "history", "view", "view of a version"],
)
def test_a_table_that_another_process_has_made_anew(
    tmp_path: Path, ask: Callable[[StateTable], Any], more: int
) -> None:
    """A handle that read the former one reads what one that is opened now reads."""
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    for txid in (0, 1):
        state.commit(txid, ("a", 1))
    reader = Lake(tmp_path).state("counts")
    before = ask(reader)
    shutil.rmtree(tmp_path / "states")
    anew = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    for txid in range(5, 7 + more):
        anew.commit(txid, ("a", 10))
    now = ask(reader)
    views._opened.cache_clear()
    assert now == ask(Lake(tmp_path).state("counts")) != before


@pytest.mark.parametrize(
    "ask",
    [
        lambda table, version: table.scan(version=version).to_pylist(),
        lambda table, version: table.view(version).multi_get([("a",)]),
    ],
    ids=["scan", "view"],
)
def test_the_last_version_by_its_number_costs_what_the_last_one_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[StateTable, int], Any]
) -> None:
    """It is opened already, and no vacuum takes it: the log need not be read for that."""
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    for txid in (0, 1):
        state.commit(txid, ("a", 1))
    reader, opens = Lake(tmp_path).state("counts"), []
    real = state_table.opened
    monkeypatch.setattr(state_table, "opened", lambda *args: (opens.append(args), real(*args))[1])
    monkeypatch.setattr(reader.commits, "_refresh", None)

    before = ask(reader, reader.version())
    state.commit(2, ("a", 1))

    assert ask(reader, reader.version()) != before
    assert len(opens) == 2


def test_map_states_are_kept_for_one_version(tmp_path: Path, read: list[Any]) -> None:
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    state.commit(0, ("a", 1), ("b", 2))
    assert [values(state.table, A, B) for _ in range(2)] == [[1, 2]] * 2
    assert read == [A, B]
    state.commit(1, ("a", None), ("b", 3))
    assert values(state.table, A, B) == [3]
    assert read == [A, B, A, B]


def test_no_more_keys_are_kept_than_asked(state: SmallTable, read: list[Any]) -> None:
    kept = points.PointReads(state.table.path, state.table._points._opened, keys=2)
    for key in (A, B, A, NOBODY, A, B):
        kept.find([key])
    assert (read, len(kept._known)) == ([A, B, NOBODY, B], 2)
    assert [row["n"] for row in kept.find([A, B, NOBODY]).values()] == [1, 2]


def test_keys_of_several_columns_and_states_without_keys(tmp_path: Path) -> None:
    sales = SmallState(tmp_path / "sales")
    total = SmallTable(tmp_path / "total", LOG, TRANSACTIONAL, keys=())
    for txid in range(6):
        sales.batch([("d1", "a", 1, txid), ("d2", None, None, 1), ("d1", "a", None, 7)])
        total.commit(txid, ("x", 1))
        assert sales.got() == sales.expected()
        assert total.table.get()[0]["n"] == txid + 1


def test_what_a_caller_does_to_a_row_stays_with_the_caller(state: SmallTable) -> None:
    table = state.table
    table.get([A])[0]["n"] = 100
    assert values(table, A) == [1]


def test_keys_that_do_not_fit_are_refused_before_anything_is_kept(state: SmallTable, read: list[Any]) -> None:
    for wrong, error in (({"wrod": "a"}, FieldError), ({}, KeyFieldsError), ({"word": 7}, KeyValueError)):
        with pytest.raises(error):
            state.table.get([A, wrong])
    with pytest.raises(KeyFieldsError, match="it lacks word; the key of this state: word"):
        state.table.get([{}])
    for no_list in ({"word": "a"}, "a", ["a"]):
        with pytest.raises(KeyFieldsError, match="keys are a list, a mapping of names to values each"):
            state.table.get(no_list)  # type: ignore[arg-type]
    assert read == []


def test_threads_share_a_handle(state: SmallTable) -> None:
    for txid in range(1, 4):
        state.commit(txid, *((f"k{n}", 1) for n in range(50)))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: values(state.table, {"word": f"k{n % 50}"}), range(200)))
    assert found == [[3]] * 200
