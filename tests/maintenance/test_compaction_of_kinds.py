"""Compaction of map states and of the kinds: a replay after it finds what it needs. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import types as T

from pipelines import Runtime
from pipelines.maintenance import compact, compaction
from pipelines.maintenance.report import TableReport
from pipelines.sources import FixedBatches
from pipelines.state import record
from pipelines.state import table as state_table
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.record import COMPACTION, GENERATION
from pipelines.state.schema import ValueColumn
from pipelines.state.writer import StateWriter
from pipelines.trident import DeltaState, Max, Sum, TridentTopology
from tests.state.small_kinds import FLOW, SmallTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN = float("nan")


def compacted(root: Path, **more: float) -> TableReport:
    (report,) = compact(None, Lake(root), FLOW, **more).tables  # type: ignore[arg-type]
    return report


@pytest.mark.parametrize("layout", [LOG, ROWS])
@pytest.mark.parametrize("last", [GENERATION - 1, GENERATION])
def test_what_an_opaque_states_last_batch_wrote_stays_replaceable(tmp_path: Path, layout: str, last: int) -> None:
    """Also where no stream runs, and at both sides of a generation's edge."""
    state = SmallTable(tmp_path, layout, OPAQUE)
    for txid in range(last - 3, last):
        state.commit(txid, ("a", 1))
    before = state.held()
    state.commit(last, ("a", 50), ("b", 50))
    whole = state.held()
    compacted(tmp_path)
    assert state.held() == whole
    assert state.base(last) == before
    state.commit(last, ("c", 7), known=True)
    assert state.held() == sorted([*before, ("c", 7)])


def test_an_opaque_log_is_folded_up_to_the_last_generation(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, OPAQUE)
    for txid in range(2 * GENERATION - 5, 2 * GENERATION + 2):
        state.commit(txid, ("a", 1))
    report = compacted(tmp_path)
    assert (report.before.rows, report.after.rows, report.slices_folded) == (7, 3, 1)
    assert len(DeltaTable(state.table.path).file_uris()) == 3
    assert state.held() == [("a", 7)]


@pytest.mark.parametrize(
    ("kind", "values", "least", "greatest"),
    [
        (T.DoubleType(), [2.0, NAN, 1.0], 1.0, NAN),
        (T.StructType([T.StructField("a", T.LongType())]), [{"a": 2}, {"a": None}, {"a": 1}], {"a": None}, {"a": 2}),
    ],
    ids=["double", "struct"],
)
def test_the_ends_stay_those_of_spark(
    tmp_path: Path, kind: T.DataType, values: list[Any], least: Any, greatest: Any
) -> None:
    columns = T.StructType(
        [T.StructField("word", T.StringType()), T.StructField("lo", kind), T.StructField("hi", kind)]
    )
    ends = (ValueColumn(name="lo", aggregator="Min"), ValueColumn(name="hi", aggregator="Max"))
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns, values=ends)
    for txid, value in enumerate(values):
        state.commit(txid, ("a", value, value))
    expected = repr([{"word": "a", "lo": least, "hi": greatest}])
    assert repr(state.table.get([{"word": "a"}])) == repr(state.table.scan().to_pylist()) == expected
    assert compacted(tmp_path).after.rows == 1
    assert repr(Lake(tmp_path).state("counts").get([{"word": "a"}])) == expected


@pytest.mark.parametrize("layout", [LOG, MAP, ROWS])
def test_a_non_transactional_replay_after_a_compaction_counts_again(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, NON_TRANSACTIONAL)
    state.commit(0, ("a", 1))
    state.commit(1, ("a", 2))
    compacted(tmp_path)
    state.commit(1, ("a", 2), known=True)
    assert state.held() == {LOG: [("a", 5)], MAP: [("a", 2)], ROWS: [("a", 1), ("a", 2), ("a", 2)]}[layout]


@pytest.mark.parametrize("kind", [TRANSACTIONAL, OPAQUE])
def test_a_map_states_files_become_one_and_removed_keys_go(tmp_path: Path, kind: str) -> None:
    state = SmallTable(tmp_path, MAP, kind)
    for txid in range(6):
        state.commit(txid, (f"k{txid}", txid))
    state.commit(6, ("k0", None), ("k1", None))
    state.commit(7, ("k2", None), ("k3", 30))
    whole, before = state.held(), state.base(7)
    first = compacted(tmp_path)
    assert (first.layout, first.after.files, first.slices_folded, first.rolled_up) == (MAP, 1, 1, False)
    # The key that the last batch removed is kept for its replay.
    assert first.after.rows == {TRANSACTIONAL: 3, OPAQUE: 4}[kind]
    assert state.held() == whole == state.held(txid=7)
    assert (state.base(7), state.table.last_txid()) == (before, 7)
    assert state.table.history()[-1].kind == COMPACTION
    assert compacted(tmp_path).slices_folded == 0
    state.commit(7, ("k9", 9), known=True)
    expected = [*before, ("k9", 9)] if kind == OPAQUE else whole
    assert state.held() == expected
    assert first.before.get_ms is not None


def test_a_map_state_is_vacuumed(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL)
    for txid in range(5):
        state.commit(txid, ("a", txid), (f"k{txid}", txid))
    report = compacted(tmp_path, retention_hours=0)
    assert report.files_removed > 0
    assert len(list(state.table.path.glob("*.parquet"))) == 1
    assert len(state.held()) == 6


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LOG, pytest.param(ROWS, marks=pytest.mark.exhaustive)])
def test_spark_leaves_the_generation_alone_that_a_batch_may_come_to(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """No lock is held here; on another host a stream may hold one. A batch comes between Spark's read and its commit."""
    monkeypatch.setattr(record, "GENERATION", 4)
    monkeypatch.setattr("pipelines.maintenance.compaction.DRIVER_ROWS", 0)
    state = SmallTable(tmp_path, layout, TRANSACTIONAL)
    for txid in range(9):
        state.commit(txid, ("a", 1))
    rewrite = StateWriter.rewrite_spark

    def late(self: StateWriter, *args: Any, **more: Any) -> int:
        state.commit(9, ("a", 100))
        return rewrite(self, *args, **more)

    monkeypatch.setattr(StateWriter, "rewrite_spark", late)
    (report,) = compact(spark, Lake(tmp_path), FLOW).tables
    assert report.slices_folded == 1
    assert sum(value for _, value in state.held()) == 109
    monkeypatch.setattr(StateWriter, "rewrite_spark", rewrite)
    compact(spark, Lake(tmp_path), FLOW)
    assert sum(value for _, value in state.held()) == 109


@pytest.mark.slow
def test_spark_folds_and_reads_what_has_names_that_need_quotes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "GENERATION", 2)
    monkeypatch.setattr(compaction, "DRIVER_ROWS", 0)
    monkeypatch.setattr(state_table, "LOCAL_ROWS", -1)
    kind = T.StructType([T.StructField("@type", T.StringType(), False), T.StructField("first-name", T.StringType())])
    columns = T.StructType(
        [T.StructField("a.b", T.StringType()), T.StructField("most", kind), T.StructField("all", T.ArrayType(kind))]
    )
    values = (ValueColumn(name="most", aggregator="Max"), ValueColumn(name="all", aggregator="Collect"))
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns, keys=("a.b",), values=values)
    given = [{"@type": "x", "first-name": str(n)} for n in range(6)]
    for txid, one in enumerate(given):
        state.commit(txid, ("k", one, [one]))
    expected = [{"a.b": "k", "most": given[-1], "all": given}]
    (report,) = compact(spark, Lake(tmp_path), FLOW).tables
    assert (report.slices_folded, report.before.rows, report.after.rows) == (1, 6, 3), "the last generation stays open"
    assert state.table.frame(spark).toArrow().to_pylist() == state.table.scan().to_pylist() == expected


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "driver_rows",
    [pytest.param(0, marks=pytest.mark.exhaustive, id="by Spark"), pytest.param(1000, id="in the driver")],
)
def test_a_value_that_was_added_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver_rows: int
) -> None:
    """Delta puts its column behind the engine's own."""
    monkeypatch.setattr(record, "GENERATION", 2)
    monkeypatch.setattr(compaction, "GENERATION", 2)
    monkeypatch.setattr(compaction, "DRIVER_ROWS", driver_rows)
    lake, batches = Lake(tmp_path), [[("a", n), ("b", 10 * n)] for n in range(12)]

    def flow(batches: list[Any], *later: Max) -> TridentTopology:
        topology = TridentTopology(FLOW)
        rows = topology.new_stream("s", FixedBatches("k string, n bigint", batches))
        wide = rows.each("n", lambda n: 2 * n, "twice") if later else rows
        wide.partition_persist(DeltaState("rows"), ["k", "n", "twice"] if later else ["k", "n"])
        for layout in (LOG, MAP):
            values = [Sum("n", "sum"), *later]
            rows.group_by("k").persistent_aggregate(DeltaState(layout, layout=layout), values)
        return topology

    Runtime(spark, lake).catch_up(flow(batches[:6]))
    last = flow(batches, Max("n", "most"))
    Runtime(spark, lake).catch_up(last)

    def held() -> list[list[dict[str, Any]]]:
        return [sorted(lake.state(name).scan().to_pylist(), key=str) for name in (LOG, MAP, "rows")]

    before = held()
    assert before[0] == before[1] == [{"k": k, "sum": 66 * by, "most": 11 * by} for k, by in (("a", 1), ("b", 10))]
    tables = compact(spark, lake, last, open_generations=0).tables
    assert {table.state for table in tables if table.slices_folded} >= {LOG}
    assert held() == before
    Runtime(spark, lake).catch_up(flow([*batches, [("a", 100)]], Max("n", "most")))
    assert held()[0][0] == held()[1][0] == {"k": "a", "sum": 166, "most": 100}
