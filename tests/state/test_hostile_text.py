"""Values, slices and names that try to become SQL stay what they are, in every statement that is made of text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipelines.execution.batch.quarantine import _texts
from pipelines.graph.dialects import DATAFUSION, SPARK
from pipelines.maintenance.compaction import compact
from pipelines.maintenance.folding import loose_condition, replaced, slices_condition
from pipelines.maintenance.plan import Closed, FoldPlan
from pipelines.maintenance.rejected import Ages
from pipelines.state import record as record_module
from pipelines.state.kinds import LOG, MAP, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.literals import keys_condition, literal, range_condition
from pipelines.state.schema import GEN, SLICE_COLUMN
from tests.hostile_text import KNOWN, hostile_texts
from tests.maintenance.small_state import FLOW, SmallState
from tests.state.small_kinds import FLOW as SHOP
from tests.state.small_kinds import SmallTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = hostile_texts(1000)


def selected(sql: list[str]) -> list[str]:
    found = pa.table(QueryBuilder().execute("SELECT unnest([" + ", ".join(sql) + "]) AS a").read_all())
    return list(found["a"].to_pylist())


def test_a_literal_of_datafusions_is_the_text_itself() -> None:
    assert selected([literal("a", one, pa.string()) for one in TEXTS]) == TEXTS
    assert selected(_texts(TEXTS).split("\0")) == TEXTS


def plan_of(slices: tuple[str, ...], since: int | None = None) -> FoldPlan:
    return FoldPlan(Closed(5, 4), slices, rolls_up=True, since=since, rows=1, bytes=1)


@pytest.fixture(scope="module")
def table_of_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 rows of hostile slices and keys."""
    import deltalake

    root = tmp_path_factory.mktemp("texts") / "table"
    rows = {"key": TEXTS, SLICE_COLUMN: TEXTS, GEN: [1] * len(TEXTS), "_txid": [-1] * len(TEXTS)}
    deltalake.write_deltalake(str(root), pa.table(rows))
    return root


def test_every_condition_for_datafusion_names_what_it_was_given(table_of_texts: Path) -> None:
    from deltalake import DeltaTable

    context = QueryBuilder().register("state", DeltaTable(str(table_of_texts)))
    types = {"key": pa.string()}
    asked = TEXTS[::2]

    def named(condition: str) -> set[str]:
        found = pa.table(context.execute(f"SELECT key FROM state WHERE {condition}").read_all())
        return set(found["key"].to_pylist())

    slices = dict.fromkeys(asked, 1.0) | dict.fromkeys(TEXTS[1::2], 9.0)
    conditions = [
        keys_condition([{"key": one} for one in asked], ["key"], types),
        slices_condition(plan_of(tuple(asked)), DATAFUSION),
        replaced(plan_of(tuple(asked)), DATAFUSION),
        Ages((), slices).older(5.0) or "",
        f"{SLICE_COLUMN} IN ({_texts(asked)})",
    ]
    for condition in conditions:
        assert named(condition) == set(asked)
    for one in KNOWN[:8]:
        assert named(f"{SLICE_COLUMN} = {literal(SLICE_COLUMN, one, pa.string())}") == {one}
        assert named(range_condition([{"key": one}], ["key"], types)) == {one}


@pytest.mark.slow
def test_a_fold_without_spark_keeps_hostile_slices_and_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "GENERATION", 2)
    state = hostile_state(tmp_path, KNOWN)
    compact(None, Lake(tmp_path), FLOW)
    assert state.scanned() == state.got() == state.expected()
    # A backfill replaces one of them, and the roll-up with it.
    state.replace(KNOWN[0], [("", KNOWN[1], 1, 5)])
    compact(None, Lake(tmp_path), FLOW)
    assert state.scanned() == state.got() == state.expected()


def hostile_state(root: Path, texts: tuple[str, ...]) -> SmallState:
    state = SmallState(root)
    for number in range(5):
        state.batch([(one, other, 1, number) for one, other in zip(texts, reversed(texts), strict=True)])
    return state


# --- Spark ----------------------------------------------------------------------------------------------------------


def test_every_text_and_condition_for_spark_names_what_it_was_given(spark: SparkSession, table_of_texts: Path) -> None:
    from pyspark.sql import functions as F

    literals = ", ".join(SPARK.text(one) for one in TEXTS)
    asked = TEXTS[::2]
    frame = spark.createDataFrame(
        [(one, 1 if number % 2 == 0 else 2) for number, one in enumerate(TEXTS)], f"{SLICE_COLUMN} string, {GEN} bigint"
    )
    conditions = [
        slices_condition(plan_of(tuple(asked)), SPARK),
        replaced(plan_of(tuple(asked)), SPARK),
        loose_condition(
            {one: (1,) if number % 4 == 0 else (0, 1) for number, one in enumerate(TEXTS) if number % 2 == 0}
        ),
    ]
    shown = frame.select(
        F.expr(f"array({literals})[0]").alias("first"),
        SLICE_COLUMN,
        F.expr(f"array_position(array({literals}), {SLICE_COLUMN})").alias("at"),
        *(F.expr(condition).alias(f"c{number}") for number, condition in enumerate(conditions)),
    ).collect()
    assert [(row[SLICE_COLUMN], row["at"]) for row in shown] == [(one, n + 1) for n, one in enumerate(TEXTS)]
    for number in range(len(conditions)):
        assert {row[SLICE_COLUMN] for row in shown if row[f"c{number}"]} == set(asked)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LOG, ROWS])
def test_spark_compacts_hostile_slices(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Spark reads and replaces what it was told, among neighbours that it was not told."""
    monkeypatch.setattr(record_module, "GENERATION", 1)
    monkeypatch.setattr("pipelines.maintenance.compaction.DRIVER_ROWS", 0)
    columns = StructType([StructField("word", StringType()), StructField("n", LongType())])
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, columns, sliced=True)
    texts = [*KNOWN[:14], "plain"]
    for txid in range(3):
        rows = pa.table({"word": texts, "n": [txid] * len(texts), SLICE_COLUMN: texts}, schema=_SLICED)
        state.writer.append_arrow(rows, _batch(txid), "shop/counts/1")
    before = state.held()
    (report,) = compact(spark, Lake(tmp_path), SHOP).tables
    assert report.slices_folded == len(texts)
    assert state.held() == before
    if layout == LOG:
        assert [row["n"] for row in state.table.get([{"word": one} for one in texts])] == [3] * len(texts)


_SLICED = pa.schema([("word", pa.string()), ("n", pa.int64()), (SLICE_COLUMN, pa.string())])


def _batch(txid: int) -> record_module.BatchRecord:
    from tests.state.small_kinds import record

    return record(txid)


NAMES = (r"\'", "a'b", "a\\", "$x", 'a"b')


def test_merges_of_hostile_column_names_and_keys_undo_what_they_did(tmp_path: Path) -> None:
    """An opaque state names its value columns in texts, too."""
    columns = StructType([StructField("word", StringType()), *(StructField(one, LongType()) for one in NAMES)])
    state = SmallTable(tmp_path, MAP, OPAQUE, columns)
    texts = TEXTS[:60]
    for txid, known, add in ((0, False, 0), (1, False, 7), (1, True, 9)):
        rows = [(one, *(add + number for number in range(len(NAMES)))) for one in texts[txid:]]
        state.commit(txid, *rows, known=known)
    assert {row[0]: row[1:] for row in state.held()} == {
        one: tuple(n + (9 if place else 0) for n in range(len(NAMES))) for place, one in enumerate(texts)
    }
    assert {row[0]: row[1] for row in state.base(1)} == dict.fromkeys(texts, 0)
