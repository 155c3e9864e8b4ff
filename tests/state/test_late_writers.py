"""A writer that was overtaken between any two of its lines commits nothing, whatever it commits. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.errors import BehindStateError
from pipelines.execution.batch.quarantine import quarantine_writer
from pipelines.state.commits import properties
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.quarantine import COLUMNS as QUARANTINE_COLUMNS
from pipelines.state.record import REPLAY, RESET, SLICE, BatchRecord
from pipelines.state.turns import LateWriterError, Turn, stream_id
from pipelines.state.writer import StateWriter
from tests.state.small_kinds import ARROW, FLOW, SmallTable, record

LAYOUTS = (LOG, MAP, ROWS)
KINDS = (TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL)
LATE = (LateWriterError, BehindStateError)
OVERTAKEN = ("before it opens the table", "before it commits")


def overtaken(monkeypatch: pytest.MonkeyPatch, when: str, other: Callable[[], Any]) -> None:
    """Have another process write before the next commit opens its table, or between that and the commit."""
    if when == OVERTAKEN[0]:
        other()
        return
    opened, waiting = Turn.judge, [other]

    def judged(turn: Turn, table: DeltaTable) -> dict[str, int]:
        found = opened(turn, table)
        if waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(Turn, "judge", judged)


def app_id(epoch: int = 1) -> str:
    return stream_id(FLOW, "counts", epoch)


def everything(state: SmallTable) -> tuple[int, list[tuple[Any, ...]], int | None]:
    table = DeltaTable(str(state.table.path))
    versions = [table.transaction_version(one) for one in (app_id(), f"{app_id()}/turns")]
    return table.version(), state.held(), max(one for one in versions if one is not None)


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("further", [(1,), (1, 2)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_that_another_process_has_committed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, kind: str, further: tuple[int, ...], when: str
) -> None:
    state, other = SmallTable(tmp_path, layout, kind), SmallTable(tmp_path, layout, kind)
    state.commit(0, ("a", 1))
    if kind == NON_TRANSACTIONAL and further == (1,) and when == OVERTAKEN[0]:
        pytest.skip("a replay of the last batch counts again, by its kind")
    overtaken(monkeypatch, when, lambda: [other.commit(txid, ("a", 10 * txid)) for txid in further])
    with pytest.raises(LATE):
        state.commit(1, ("a", 5))
    monkeypatch.undo()
    before = everything(other)
    with pytest.raises(LATE):
        state.commit(0, ("a", 5))
    assert everything(other) == before
    assert [one.txid for one in other.table.commits.batches()] == [0, *further]


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_change_of_a_map_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, when: str
) -> None:
    state, other = SmallTable(tmp_path, MAP, kind), SmallTable(tmp_path, MAP, kind)
    overtaken(monkeypatch, when, lambda: [other.commit(0), other.commit(1)])
    with pytest.raises(LATE):
        state.commit(0)
    assert [one.txid for one in other.table.commits.batches()] == [0, 1]


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("later", [3, 4])
def test_the_replay_of_an_opaque_batch_is_refused_once_another_process_has_replayed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, later: int, when: str
) -> None:
    state, other = SmallTable(tmp_path, layout, OPAQUE), SmallTable(tmp_path, layout, OPAQUE)
    state.commit(3, ("a", 1))
    seen = state.table.version()
    overtaken(monkeypatch, when, lambda: other.commit(later, ("a", 7), known=later == 3))
    rows = pa.Table.from_pylist([{"word": "a", "n": 9}], schema=ARROW)
    with pytest.raises(LATE):
        state.writer.commit_batch(rows, record(3), app_id(), known=True, seen=seen)
    assert [one.txid for one in other.table.commits.batches()] == [3, later]


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("first", ["a batch", "a batch by Spark", "a slice", "a slice behind a batch", "a reset"])
@pytest.mark.parametrize("epoch", [2, 3, 7])
def test_a_writer_of_an_epoch_before_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int, first: str, when: str
) -> None:
    """Epochs jump: the number of a new one is beyond all that the query's tables know, those of other queries included."""
    sliced = first.startswith("a slice")
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, sliced=sliced)
    other = SmallTable(tmp_path, LOG, TRANSACTIONAL, sliced=sliced)
    state.commit(0, ("a", 1))
    seen = state.table.version()
    rows = pa.Table.from_pylist([{"word": "a", "n": 9}], schema=ARROW)
    if first == "a batch by Spark":
        monkeypatch.setattr(StateWriter, "_append_spark", like_spark)

    def begins() -> None:
        if first == "a reset":
            other.writer.reset(BatchRecord(kind=RESET, flow=FLOW, epoch=epoch), app_id(epoch))
        if "batch" in first:
            given: Any = Frame(rows) if first == "a batch by Spark" else rows
            other.writer.commit_batch(given, record(1, epoch), app_id(epoch), known=False, seen=seen)
        if sliced:
            one = BatchRecord(kind=SLICE, flow=FLOW, epoch=epoch, txid=0, slice="d1")
            of_slice = rows.append_column("_slice", pa.array(["d1"]))
            other.writer.replace_slice(of_slice, one, app_id(epoch), seen=other.table.version())

    overtaken(monkeypatch, when, begins)
    with pytest.raises(LateWriterError):
        state.writer.commit_batch(rows, record(1), app_id(), known=False, seen=seen)
    held = {"a reset": [], "a slice behind a batch": [("a", 19)]}
    assert other.held() == held.get(first, [("a", 10)])


@pytest.mark.parametrize("kind", [TRANSACTIONAL, NON_TRANSACTIONAL])
def test_a_slice_in_an_epoch_that_has_begun_asks_for_no_ids_of_those_before(tmp_path: Path, kind: str) -> None:
    """delta-rs reads the whole log for each id that is not there."""
    state = SmallTable(tmp_path, LOG, kind, sliced=True)
    one = BatchRecord(kind=SLICE, flow=FLOW, epoch=5, txid=0, slice="d1")

    def carried() -> set[str]:
        return set(Turn(state.table, one, app_id(5), kind).judge(state.table.opened()))

    own = {app_id(5), f"{app_id(5)}/turns", "rewrites"}
    assert carried() == own | {f"{app_id(before)}{end}" for before in range(5) for end in ("", "/turns")}
    state.writer.commit_batch(pa.Table.from_pylist([], schema=ARROW), record(0, 5), app_id(5), known=False)
    assert carried() == own


class Frame:
    """Rows that are to seem to be Spark's, with no text to look at."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.schema = rows, StructType()


def like_spark(writer: StateWriter, frame: Frame, record: BatchRecord, judge: Any, _: bool) -> int:
    """Commit as Spark does: a commit carries one transaction id."""

    def save(record: BatchRecord, carried: dict[str, int]) -> None:
        table = DeltaTable(str(writer.table.path))
        rows = writer._complete(table, frame.rows, record.txid, record.txid)
        write_deltalake(table, rows, mode="append", commit_properties=properties(record, dict([*carried.items()][:1])))

    return writer._commit_spark(save, record, judge)


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_by_spark_that_is_in_the_log_was_made_whatever_spark_says(tmp_path: Path, kind: str) -> None:
    state = SmallTable(tmp_path, LOG, kind)
    state.commit(0, ("a", 1))
    frame: Any = Frame(pa.Table.from_pylist([{"word": "a", "n": 9}], schema=ARROW))

    class Writer(StateWriter):
        def _commit_spark(self, commit: Any, record: BatchRecord, judge: Any) -> int:
            def fails_behind(record: BatchRecord, carried: dict[str, int]) -> None:
                commit(record, carried)
                raise PySparkException("its answer was lost")

            return super()._commit_spark(fails_behind, record, judge)

        _append_spark = like_spark  # type: ignore[assignment]

    writer = Writer(state.table, state.writer.declared)
    assert writer.commit_batch(frame, record(1), app_id(), known=False) == state.table.version() == 2
    assert state.held() == [("a", 10)]


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", ["a batch", "a slice"])
def test_of_a_batch_and_a_slice_that_know_nothing_of_each_other_the_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, when: str, first: str
) -> None:
    sliced = layout != MAP
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=sliced)
    other = SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=sliced)
    state.commit(0, ("a", 1))
    seen = state.table.version()

    def batch(table: SmallTable) -> None:
        rows = pa.Table.from_pylist([{"word": "b", "n": 9}], schema=ARROW)
        table.writer.commit_batch(rows, record(1), app_id(), known=False, seen=seen)

    def slice_(table: SmallTable) -> None:
        rows = pa.Table.from_pylist([{"word": "c", "n": 9}], schema=ARROW)
        one = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=0, slice="d1")
        if layout == MAP:
            table.writer.replace_map(rows, one, app_id(), seen=seen)
        else:
            rows = rows.append_column("_slice", pa.array(["d1"]))
            table.writer.replace_slice(rows, one, app_id(), seen=seen)

    begins, late = (batch, slice_) if first == "a batch" else (slice_, batch)
    overtaken(monkeypatch, when, lambda: begins(other))
    with pytest.raises(LateWriterError):
        late(state)
    monkeypatch.undo()
    assert other.table.version() == seen + 1
    assert {one.txid for one in other.table.commits.batches()} == ({0, 1} if first == "a batch" else {0})


@pytest.mark.parametrize("when", OVERTAKEN)
def test_a_replay_of_quarantine_is_committed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    state, other = SmallTable(tmp_path, LOG, TRANSACTIONAL), SmallTable(tmp_path, LOG, TRANSACTIONAL)
    state.commit(0, ("a", 1))
    one = BatchRecord(kind=REPLAY, flow=FLOW, epoch=1, txid=0, replay=1)
    rows, own = pa.Table.from_pylist([{"word": "a", "n": 9}], schema=ARROW), f"{FLOW}/counts/replay"
    seen = state.table.version()
    overtaken(monkeypatch, when, lambda: other.writer.append_replay(rows, one, own, seen=seen))
    with pytest.raises(LateWriterError, match="replay 1"):
        state.writer.append_replay(rows, one, own, seen=seen)
    assert other.held() == [("a", 10)]


def _batch(state: SmallTable) -> None:
    state.commit(130, ("b", 1))


def _slice(state: SmallTable) -> None:
    """A backfill that counts what the replay is about to add."""
    rows = pa.Table.from_pylist([{"word": "a", "n": 1}, {"word": "a", "n": 9}], schema=ARROW)
    rows = rows.append_column("_slice", pa.array(["d1", "d1"]))
    one = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=0, slice="d1")
    state.writer.replace_slice(rows, one, app_id(), seen=state.table.version())


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("between", [_batch, _slice])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replay_of_quarantine_is_refused_what_came_behind_its_judging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, between: Callable[[SmallTable], None], when: str
) -> None:
    if layout == MAP and between is _slice:
        pytest.skip("a map is replaced as a whole, or not at all")
    sliced = layout != MAP
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=sliced)
    other = SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=sliced)
    state.commit(0, ("a", 1))
    seen = state.table.version()
    one = BatchRecord(kind=REPLAY, flow=FLOW, epoch=1, txid=0, replay=1)
    rows, own = pa.Table.from_pylist([{"word": "a", "n": 9}], schema=ARROW), f"{FLOW}/counts/replay"
    write = state.writer.merge_arrow if layout == MAP else state.writer.append_replay
    overtaken(monkeypatch, when, lambda: between(other))
    with pytest.raises(LateWriterError, match=r"replay 1|a commit"):
        write(rows, one, own, seen=seen)
    monkeypatch.undo()
    assert other.table.version() == seen + 1
    # Judged anew, it is taken.
    write(rows, one, own, seen=other.table.version())
    assert other.table.version() == seen + 2


def test_replayed_rows_lie_in_the_last_generation(tmp_path: Path) -> None:
    """A roll-up covers the ones before: it would hide them."""
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    state.commit(0, ("a", 1))
    state.commit(130, ("a", 1))
    one = BatchRecord(kind=REPLAY, flow=FLOW, epoch=1, txid=0, replay=1)
    rows = pa.Table.from_pylist([{"word": "a", "n": 9}], schema=ARROW)
    state.writer.append_replay(rows, one, f"{FLOW}/counts/replay", seen=state.table.version())
    assert state.table.stored("_txid < 0")["_gen"].to_pylist() == [2]


@pytest.mark.parametrize("when", OVERTAKEN)
def test_a_late_reset_empties_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    state, other = SmallTable(tmp_path, LOG, TRANSACTIONAL), SmallTable(tmp_path, LOG, TRANSACTIONAL)
    state.commit(0, ("a", 1))
    reset = BatchRecord(kind=RESET, flow=FLOW, epoch=2)

    def began() -> None:
        other.writer.reset(reset, app_id(2))
        rows = pa.Table.from_pylist([{"word": "b", "n": 2}], schema=ARROW)
        other.writer.commit_batch(rows, record(0, 2), app_id(2), known=False)

    overtaken(monkeypatch, when, began)
    with pytest.raises(LateWriterError):
        state.writer.reset(reset, app_id(2))
    assert other.held() == [("b", 2)]


def test_a_table_of_an_earlier_release_is_gone_on_with(tmp_path: Path) -> None:
    """Opaque states had the txid itself for a version, which the last batch has too."""
    state = SmallTable(tmp_path, ROWS, OPAQUE)
    state.writer.declared = state.writer.declared.model_copy(update={"kind": TRANSACTIONAL})
    state.commit(7, ("a", 1))
    state.writer.declared = state.writer.declared.model_copy(update={"kind": OPAQUE})
    assert state.writer.committed(app_id()) == 7
    state.commit(7, ("b", 2), known=True)
    state.commit(8, ("c", 3))
    assert (state.held(), state.writer.committed(app_id())) == ([("b", 2), ("c", 3)], 8)
    with pytest.raises(BehindStateError):
        state.commit(7, ("d", 4), known=True)


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("first", [True, False], ids=["the first of the table", "a further one"])
def test_a_late_slice_of_quarantine_is_refused_behind_one_of_its_batch_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, first: bool
) -> None:
    """Two backfills of a group; meanwhile other groups, which share the table, commit what they like."""
    late, other = (quarantine_writer(Lake(tmp_path), FLOW) for _ in range(2))
    names = [name for name, _ in QUARANTINE_COLUMNS]
    columns = StructType([StructField(name, StringType()) for name in names])

    def put(writer: StateWriter, group: str, seen: int | None, *texts: str) -> int:
        rows = [dict.fromkeys(names) | {"row": text, "batch_group": group, "_slice": "d1"} for text in texts]
        schema = pa.schema([(name, pa.string()) for name in (*names, "_slice")])
        one = BatchRecord(kind=SLICE, flow=FLOW, slice="d1", group=group, claims=texts)
        own = stream_id(FLOW, f"quarantine/{group}", 0)
        among = f"batch_group = '{group}'"
        return writer.replace_slice(pa.Table.from_pylist(rows, schema), one, own, seen=seen, among=among)

    for writer in (late, other):
        writer.prepare(columns)
    seen = -1 if first else put(late, "words", None, "old")
    with monkeypatch.context() as patch:
        overtaken(patch, when, lambda: [put(other, "others", None, str(n)) for n in range(3)])
        seen = put(late, "words", seen, "old")
    overtaken(monkeypatch, when, lambda: put(other, "words", seen, "old", "came since"))
    with pytest.raises(LateWriterError, match='slice "d1"'):
        put(late, "words", seen, "old")
    assert sorted(other.table.stored()["row"].to_pylist()) == ["2", "came since", "old"]
    assert dict(other.table.commits.claims("words")) == {"d1": {"old", "came since"}}


@pytest.mark.parametrize("when", OVERTAKEN)
@pytest.mark.parametrize("first", [True, False], ids=["the first of the table", "a further one"])
@pytest.mark.parametrize("other_is", ["a slice", "a reset"])
def test_a_late_batch_of_quarantine_is_refused_behind_what_counts_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_is: str, first: bool, when: str
) -> None:
    """The backfill has put the batch's row in, and claimed its file; behind the reset the row comes again."""
    late, other = (quarantine_writer(Lake(tmp_path), FLOW) for _ in range(2))
    names = [name for name, _ in QUARANTINE_COLUMNS]

    def row(txid: int, group: str = "words") -> pa.Table:
        found = dict.fromkeys(names) | {"row": f"of {txid}", "batch_group": group, "_slice": "d1"}
        return pa.Table.from_pylist([found], pa.schema([(name, pa.string()) for name in (*names, "_slice")]))

    def batch(writer: StateWriter, txid: int, seen: int | None, group: str = "words") -> int:
        one = record(txid).model_copy(update={"group": group})
        return writer.append_arrow(row(txid, group), one, stream_id(FLOW, f"quarantine/{group}", 1), seen=seen)

    def overtakes() -> None:
        if other_is == "a slice":
            one = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, slice="d1", group="words")
            own = stream_id(FLOW, "quarantine/words", 1)
            other.replace_slice(row(2), one, own, among="batch_group = 'words'")
        else:
            one = BatchRecord(kind=RESET, flow=FLOW, epoch=2, group="words")
            other.reset(one, stream_id(FLOW, "quarantine/words", 2), among="batch_group = 'words'")

    for writer in (late, other):
        writer.prepare(StructType([StructField(name, StringType()) for name in names]))
    seen = -1 if first else batch(late, 0, -1)
    # What another batch group commits into the shared table is of other rows.
    batch(other, 7, None, "others")
    seen = batch(late, 1, seen)
    overtaken(monkeypatch, when, overtakes)
    with pytest.raises(LateWriterError, match=r"batch 2|a commit"):
        batch(late, 2, seen)
    assert sorted(other.table.stored()["row"].to_pylist()) == (["of 2", "of 7"] if other_is == "a slice" else ["of 7"])
