"""A commit that the store has kept, though its answer was lost, is known by the process that made it. No Spark but for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.execution.batch.quarantine import quarantine_writer
from pipelines.maintenance.compaction import compact
from pipelines.places.location import Location
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.maintenance_commits import delete_rows
from pipelines.state.quarantine import COLUMNS as QUARANTINE_COLUMNS
from pipelines.state.record import COMPACTION, POISON, REPLAY, RESET, SLICE, BatchRecord
from pipelines.state.turns import LateWriterError, stream_id
from tests.places.conftest import use
from tests.places.losing_proxy import LosingServer, losing
from tests.places.s3_servers import Server
from tests.state.small_kinds import APP, ARROW, FLOW, SmallTable, record
from tests.tiers import EXHAUSTIVE, tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOME_LAYOUTS = [LOG, *(pytest.param(layout, marks=EXHAUSTIVE) for layout in (MAP, ROWS))]
KINDS = (TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL)
SOME_BATCHES = {(LOG, TRANSACTIONAL, "error"), (MAP, OPAQUE, "cut"), (LOG, NON_TRANSACTIONAL, "error")}
NAMES = [name for name, _ in QUARANTINE_COLUMNS]


@pytest.fixture(scope="module")
def proxy(moto_server: Server) -> Iterator[LosingServer]:
    with losing(moto_server) as server:
        yield server


@pytest.fixture
def place(proxy: LosingServer, monkeypatch: pytest.MonkeyPatch) -> Location:
    return Location.of(f"s3://{use(proxy, monkeypatch)}")


def rows_of(*rows: tuple[str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ARROW.names, row, strict=True)) for row in rows], schema=ARROW)


def check_known(proxy: LosingServer, table: Any, commit: Callable[[], int | None], answer: str = "error") -> None:
    """Make a commit whose answer is lost: it is taken for made, once."""
    before, lost = table.version(), proxy.lost
    proxy.lose(answer)
    version = commit()
    assert proxy.lost == lost + 1
    assert version in (before + 1, None)
    assert table.version() == before + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "kind", "answer"),
    [
        pytest.param(layout, kind, answer, marks=tier((layout, kind, answer) in SOME_BATCHES))
        for layout, answer in ((LOG, "error"), (LOG, "cut"), (MAP, "error"), (MAP, "cut"), (ROWS, "error"))
        for kind in KINDS
    ],
)
def test_a_batch(place: Location, proxy: LosingServer, layout: str, kind: str, answer: str) -> None:
    state = SmallTable(place / "lake", layout, kind)
    state.commit(0, ("a", 1))
    check_known(proxy, state.table, lambda: state.commit(1, ("b", 2)), answer)
    state.commit(2, ("c", 4))
    assert state.held() == [("a", 1), ("b", 2), ("c", 4)]
    assert [one.txid for one in state.table.commits.batches()] == [0, 1, 2]
    # The next epoch's first batch carries the ids of those before as well.
    rows, own = rows_of(), stream_id(FLOW, "counts", 2)
    check_known(proxy, state.table, lambda: state.writer.commit_batch(rows, record(3, 2), own, known=False), answer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OPAQUE, NON_TRANSACTIONAL])
@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_a_batch_that_comes_again(place: Location, proxy: LosingServer, layout: str, kind: str) -> None:
    state = SmallTable(place / "lake", layout, kind)
    state.commit(0, ("a", 1))
    check_known(proxy, state.table, lambda: state.commit(0, ("a", 2), known=True))
    counted = {LOG: [("a", 3)], ROWS: [("a", 1), ("a", 2)]}
    assert state.held() == (counted.get(layout, [("a", 2)]) if kind == NON_TRANSACTIONAL else [("a", 2)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_that_changes_nothing(place: Location, proxy: LosingServer, kind: str) -> None:
    state = SmallTable(place / "lake", MAP, kind)
    check_known(proxy, state.table, lambda: state.commit(0))
    assert [one.txid for one in state.table.commits.batches()] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_a_slice_a_replay_and_a_reset(place: Location, proxy: LosingServer, layout: str) -> None:
    state = SmallTable(place / "lake", layout, TRANSACTIONAL, sliced=layout != MAP)
    state.commit(0, ("a", 1))
    seen, writer = state.table.version(), state.writer
    one = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=0, slice="d1", claims=("file:/1",))
    if layout == MAP:
        check_known(proxy, state.table, lambda: writer.replace_map(rows_of(("b", 2)), one, APP, seen=seen))
    else:
        rows = rows_of(("b", 2)).append_column("_slice", pa.array(["d1"]))
        check_known(proxy, state.table, lambda: writer.replace_slice(rows, one, APP, seen=seen))
    assert dict(state.table.commits.claims()) == {"d1": {"file:/1"}}
    replay, own = BatchRecord(kind=REPLAY, flow=FLOW, epoch=1, txid=0, replay=1), f"{FLOW}/counts/replay"
    append, seen = (writer.merge_arrow if layout == MAP else writer.append_replay), state.table.version()
    check_known(proxy, state.table, lambda: append(rows_of(("c", 4)), replay, own, seen=seen))
    assert ("c", 4) in state.held()
    reset = BatchRecord(kind=RESET, flow=FLOW, epoch=2)
    check_known(proxy, state.table, lambda: writer.reset(reset, stream_id(FLOW, "counts", 2)))
    assert state.held() == []
    # Of no rows it is a commit as well.
    reset = BatchRecord(kind=RESET, flow=FLOW, epoch=3)
    check_known(proxy, state.table, lambda: writer.reset(reset, stream_id(FLOW, "counts", 3)))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_quarantine(place: Location, proxy: LosingServer) -> None:
    writer, among = quarantine_writer(Lake(place / "lake"), FLOW), "batch_group = 'words'"
    writer.prepare(StructType([StructField(name, StringType()) for name in NAMES]))

    def row(text: str) -> pa.Table:
        found = dict.fromkeys(NAMES) | {"row": text, "batch_group": "words", "_slice": "d1"}
        return pa.Table.from_pylist([found], pa.schema([(name, pa.string()) for name in (*NAMES, "_slice")]))

    own, batch = stream_id(FLOW, "quarantine/words", 1), record(0).model_copy(update={"group": "words"})
    check_known(proxy, writer.table, lambda: writer.append_arrow(row("0"), batch, own, seen=-1))
    poison = BatchRecord(kind=POISON, flow=FLOW, epoch=1, txid=1, group="words")
    for text in ("first", "again"):
        seen = writer.table.version()
        # The first has nothing to replace, and names no transaction id.
        proxy.lose("error")
        writer.replace_rows(row(text), poison, "_txid = 1", seen=seen)
    assert writer.table.count("_txid = 1") == 1
    seen = writer.table.version()
    check_known(proxy, writer.table, lambda: writer.forget_rows(1, "_txid = 1", "words", seen))
    one = BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=0, slice="d1", group="words")
    seen = writer.table.version()
    check_known(proxy, writer.table, lambda: writer.replace_slice(row("2"), one, own, seen=seen, among=among))
    opened = DeltaTable(str(writer.table.path))
    of_replay = BatchRecord(kind=REPLAY, flow=FLOW, epoch=1, txid=0, replay=1, group="words")
    rejected = writer.table.stored("_txid = -1")
    check_known(
        proxy,
        writer.table,
        lambda: writer.replace_rejected(rejected, of_replay, f"{FLOW}/quarantine/replay", (-1, -1), opened.version()),
    )
    reset = BatchRecord(kind=RESET, flow=FLOW, epoch=2, group="words")
    check_known(proxy, writer.table, lambda: writer.reset(reset, stream_id(FLOW, "quarantine/words", 2), among=among))
    assert writer.table.count() == 0


@pytest.mark.slow
def test_rows_that_are_let_go(place: Location, proxy: LosingServer) -> None:
    state = SmallTable(place / "lake", ROWS, TRANSACTIONAL)
    for txid in range(3):
        state.commit(txid, ("a", txid))
    opened, one = DeltaTable(str(state.table.path)), BatchRecord(kind=COMPACTION, flow=FLOW, epoch=1, txid=2)
    before = opened.version()
    proxy.lose("error")
    assert delete_rows(state.table, opened, "_txid < 1", one) == 1
    # What comes behind starts from that commit.
    assert opened.version() == state.table.version() == before + 1
    assert delete_rows(state.table, opened, "_txid < 2", one) == 1
    assert state.held() == [("a", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_a_compaction(place: Location, proxy: LosingServer, layout: str) -> None:
    lake = Lake(place / "lake")
    state = SmallTable(place / "lake", layout, TRANSACTIONAL)
    for txid in range(3):
        state.commit(txid, (f"k{txid}", 1))
    held, before, lost = state.held(), state.table.version(), proxy.lost
    proxy.lose("error")
    (report,) = compact(None, lake, FLOW, open_generations=0).tables
    assert (report.conflicts, report.slices_folded, proxy.lost) == (0, 1, lost + 1)
    kinds = [one.kind for one in state.table.history() if one.version > before]
    # An OPTIMIZE carries no transaction id: Delta makes it once more behind itself, of the same files.
    assert kinds == [COMPACTION] * (1 if layout == LOG else 2)
    assert state.held() == held


@pytest.mark.slow
def test_a_commit_of_another_process_is_none_of_ones_own(
    place: Location, proxy: LosingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, other = (SmallTable(place / "lake", ROWS, TRANSACTIONAL) for _ in range(2))
    state.commit(0, ("a", 1))
    judged = state.writer._judge

    def overtaken(*args: Any, **given: Any) -> Any:
        judge = judged(*args, **given)

        def found(table: DeltaTable) -> Any:
            carried = judge(table)
            monkeypatch.undo()
            use(proxy, monkeypatch)
            proxy.lose("error")
            other.commit(1, ("b", 2))
            return carried

        return found

    monkeypatch.setattr(state.writer, "_judge", overtaken)
    with pytest.raises(LateWriterError, match="batch 1 comes too late"):
        state.commit(1, ("b", 2))
    assert other.held() == [("a", 1), ("b", 2)]


@pytest.mark.slow
@EXHAUSTIVE
def test_a_batch_of_spark_s_files(
    spark: SparkSession, place: Location, proxy: LosingServer, request: pytest.FixtureRequest
) -> None:
    reaching = request.getfixturevalue("reaching")
    state = SmallTable(place / "lake", ROWS, TRANSACTIONAL)
    frame = reaching.createDataFrame([("a", 1), ("b", 2)], state.columns)
    check_known(proxy, state.table, lambda: state.writer.commit_batch(frame, record(0), APP, known=False))
    assert state.held() == [("a", 1), ("b", 2)]
