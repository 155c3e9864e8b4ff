"""Spark's commits and delta-rs' make the same tables: appends, merges, replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from pipelines.errors import BehindStateError, DuplicateKeyError
from pipelines.state import table as state_table
from pipelines.state.kinds import LOG, MAP, NON_TRANSACTIONAL, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.schema import REMOVED
from pipelines.state.sums import StateOverflowError
from pipelines.state.turns import LateWriterError, Turn
from tests.state.small_kinds import APP, ARROW, SmallTable, in_order, record
from tests.state.test_late_writers import OVERTAKEN, overtaken

STEPS: list[tuple[int, bool, list[tuple[Any, ...]]]] = [
    (0, False, [("a", 1), ("it's", 2), (None, 3)]),
    (1, False, [("a", 10), (None, None), ("d", 4), ("nobody", None)]),
    (1, True, [("it's", 20), ("d", 5), ("e", 6)]),
    (2, False, [("e", 7), ("a", None)]),
    (2, True, [("e", 8)]),
]


def spark_commit(spark: SparkSession, state: SmallTable, txid: int, known: bool, rows: list[tuple[Any, ...]]) -> int:
    frame = spark.createDataFrame(rows, "word string, n bigint")
    if state.writer.declared.layout == MAP:
        frame = frame.withColumn(REMOVED, F.col("n").isNull())
    return state.writer.commit_batch(frame, record(txid), APP, known=known)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        (MAP, TRANSACTIONAL),
        pytest.param(LOG, OPAQUE, marks=pytest.mark.exhaustive),
        pytest.param(MAP, OPAQUE, marks=pytest.mark.exhaustive),
        pytest.param(ROWS, NON_TRANSACTIONAL, marks=pytest.mark.exhaustive),
    ],
)
def test_both_writers_make_the_same_table(
    spark: SparkSession, tmp_path: Path, layout: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark, by_arrow = SmallTable(tmp_path / "s", layout, kind), SmallTable(tmp_path / "a", layout, kind)
    for txid, known, rows in STEPS:
        spark_commit(spark, by_spark, txid, known, rows)
        by_arrow.commit(txid, *rows, known=known)
        assert by_spark.held() == by_arrow.held()
        assert by_spark.base(txid) == by_arrow.base(txid)
        assert by_spark.writer.committed(APP) == by_arrow.writer.committed(APP)
    assert not [name for name in spark.conf.getAll if "txnAppId" in name or "txnVersion" in name or "Metadata" in name]
    ours = [(c.kind, c.txid, c.epoch) for c in by_spark.table.history()]
    assert ours == [(c.kind, c.txid, c.epoch) for c in by_arrow.table.history()]
    monkeypatch.setattr(state_table, "LOCAL_ROWS", -1)
    assert in_order(by_arrow.table.frame(spark).toArrow()) == by_spark.held()
    assert in_order(by_arrow.table.base_frame(spark, 2).toArrow()) == by_arrow.base(2)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LOG, MAP])
def test_an_epochs_first_batch_by_spark_refuses_a_writer_of_any_epoch_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Spark's commit carries one transaction id: those of the other epochs go ahead of it."""
    state, other = (SmallTable(tmp_path, layout, TRANSACTIONAL) for _ in range(2))
    state.commit(0, ("a", 1))
    frame = spark.createDataFrame([("a", 5)], "word string, n bigint")
    if layout == MAP:
        frame = frame.withColumn(REMOVED, F.lit(False))
    overtaken(
        monkeypatch,
        OVERTAKEN[1],
        lambda: other.writer.commit_batch(frame, record(0, 3), "shop/counts/3", known=False),
    )
    rows = pa.Table.from_pylist([{"word": "a", "n": 7}], schema=ARROW)
    with pytest.raises(LateWriterError):
        state.writer.commit_batch(rows, record(1), APP, known=False, seen=state.table.version())
    assert [(one.kind, one.epoch) for one in other.table.history()][-2:] == [("epoch", 3), ("batch", 3)]
    assert other.held() == [("a", 6 if layout == LOG else 5)]


@pytest.mark.slow
def test_what_is_observed_in_a_merged_frame_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    state, seen = SmallTable(tmp_path, MAP, TRANSACTIONAL), Observation()
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS word", "id AS n")
    state.writer.commit_batch(frame.observe(seen, F.count(F.lit(1)).alias("n")), record(0), APP, known=False)
    assert (seen.get["n"], len(state.held()), state.table.history()[-1].rows) == (10, 10, 10)


def test_spark_refuses_a_key_that_is_set_twice(spark: SparkSession, tmp_path: Path) -> None:
    columns = StructType([StructField("N", StringType()), StructField("times", LongType())])
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL, columns, keys=("N",))
    frame = spark.createDataFrame([("x", 1), ("x", 2)], columns)
    with pytest.raises(DuplicateKeyError) as caught:
        state.writer.commit_batch(frame, record(0), APP, known=False)
    assert (caught.value.key, state.table.last_txid()) == (("x",), None)


class Overtaking:
    """Another process commits when Spark's writer has judged its table: before Delta opens it, or while it writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, commit: Callable[[], Any]) -> None:
        judged, waiting = Turn.judge, [commit]

        def judge(turn: Turn, table: Any) -> dict[str, int]:
            found = judged(turn, table)
            if waiting:
                waiting.pop()()
            return found

        monkeypatch.setattr(Turn, "judge", judge)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        (MAP, TRANSACTIONAL),
        (ROWS, OPAQUE),
        pytest.param(LOG, TRANSACTIONAL, marks=pytest.mark.exhaustive),
        pytest.param(ROWS, NON_TRANSACTIONAL, marks=pytest.mark.exhaustive),
    ],
)
def test_a_late_commit_by_spark_is_refused(
    spark: SparkSession, tmp_path: Path, layout: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta drops it without a word, whether the version that it knows is the same or a later one."""
    state, other = SmallTable(tmp_path, layout, kind), SmallTable(tmp_path, layout, kind)
    state.commit(0, ("a", 1))
    Overtaking(monkeypatch, lambda: [other.commit(1, ("a", 2)), other.commit(2, ("a", 3))])
    with pytest.raises((LateWriterError, BehindStateError)):
        spark_commit(spark, state, 1, False, [("a", 9)])
    monkeypatch.undo()
    with pytest.raises((LateWriterError, BehindStateError)):
        spark_commit(spark, state, 1, kind == OPAQUE, [("a", 9)])
    assert [one.txid for one in other.table.commits.batches()] == [0, 1, 2]
    assert state.writer.committed(APP) == 2
    spark_commit(spark, state, 3, False, [("b", 1)])
    assert state.writer.committed(APP) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "kind"), [(MAP, TRANSACTIONAL), (ROWS, TRANSACTIONAL), (ROWS, OPAQUE)])
def test_spark_is_refused_when_another_commits_while_it_writes(
    spark: SparkSession, tmp_path: Path, layout: str, kind: str
) -> None:
    state = SmallTable(tmp_path, layout, kind)
    state.commit(0, ("a", 1))
    path, name, version = str(state.table.path), APP if kind == TRANSACTIONAL else f"{APP}/turns", 5 << 20

    def overtaken(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        table = DeltaTable(path)
        if (table.transaction_version(name) or 0) < version:
            nothing = pa.schema(table.schema().to_arrow()).empty_table()
            carried = CommitProperties(app_transactions=[Transaction(name, version)])
            write_deltalake(table, nothing, mode="append", commit_properties=carried)
        yield from batches

    frame = (
        spark.range(1).coalesce(1).selectExpr("'b' AS word", "id AS n").mapInArrow(overtaken, "word string, n bigint")
    )
    with pytest.raises((LateWriterError, BehindStateError)):
        state.writer.commit_batch(frame, record(1), APP, known=False)
    assert state.held() == [("a", 1)]


@pytest.mark.slow
def test_a_total_that_no_longer_fits_refuses_the_batch_in_spark_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, most = SmallTable(tmp_path, LOG, TRANSACTIONAL), 2**63 - 1
    state.commit(0, ("a", 2**62), ("b", 1))
    with pytest.raises(StateOverflowError):
        spark_commit(spark, state, 1, False, [("a", 2**62)])
    assert state.held() == [("a", 2**62), ("b", 1)]
    spark_commit(spark, state, 1, False, [("a", 7), ("b", -7)])
    # A part of the room that there was, of which nothing is known but that it is enough.
    room = most - 2**62
    assert [one.record.bounds["n"] for one in state.table.history() if one.record] == [2**62, 2**62 + room // 1024]
    spark_commit(spark, state, 2, False, [("b", 2**61)])
    assert state.table.history()[-1].record.bounds == {"n": most}
    state.commit(3, ("b", 1))
    assert state.table.history()[-1].record.bounds == {"n": 2**62 + 7}
    assert state.held() == [("a", 2**62 + 7), ("b", 2**61 - 5)]
    monkeypatch.setattr(state_table, "LOCAL_ROWS", -1)
    assert in_order(state.table.frame(spark).toArrow()) == state.held()


@pytest.mark.slow
def test_a_key_may_come_once_for_each_slice(spark: SparkSession, tmp_path: Path) -> None:
    state, most = SmallTable(tmp_path, LOG, TRANSACTIONAL, sliced=True), 2**63 - 1

    def commit(value: int) -> None:
        frame = spark.range(1, 4).selectExpr("'a' AS word", f"{value}L AS n", "'d' || id AS _slice")
        state.writer.commit_batch(frame, record(0), APP, known=False)

    with pytest.raises(StateOverflowError):
        commit(most // 3 + 1)
    assert state.held() == []
    commit(most // 3)
    assert (state.held(), state.table.history()[-1].record.bounds) == ([("a", most // 3 * 3)], {"n": most})


@pytest.mark.slow
def test_totals_of_decimals_keep_their_bound_in_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    columns = StructType([StructField("word", StringType()), StructField("n", DecimalType(38, 2))])
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns)

    def commit(txid: int, value: str) -> None:
        frame = spark.sql(f"SELECT 'a' AS word, CAST('{value}' AS DECIMAL(38, 2)) AS n")
        state.writer.commit_batch(frame, record(txid), APP, known=False)

    commit(0, "0.25")
    with pytest.raises(StateOverflowError):
        commit(1, "9" * 36 + ".98")
    commit(1, "9" * 36 + ".50")
    assert state.held() == [("a", Decimal("9" * 36 + ".75"))]
