"""States that hold dates and times which Python does not have: what a flow has computed is compacted, and counted. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DateType, LongType, StringType, StructField, StructType, TimestampType

from pipelines.errors import FarTimeError
from pipelines.maintenance import Retention, run_housekeeping
from pipelines.state.kinds import LOG, MAP, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.schema import ValueColumn
from pipelines.state.sums import StateOverflowError
from tests.state.small_kinds import APP, FLOW, SmallTable, record

DATES = pa.array([4_000_000, 0], pa.int32()).cast(pa.date32())
TIMES = pa.array([4 * 10**17, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
KINDS = [pytest.param(DateType(), DATES, id="date"), pytest.param(TimestampType(), TIMES, id="timestamp")]


def tidied(root: Path) -> Any:
    """A compaction without Spark, and its report of the one table."""
    report = run_housekeeping(Lake(root), None, Retention(), flows=[FLOW])
    assert report.notes == ()
    return report.compactions[0].tables[0]


@pytest.mark.parametrize(("kind", "far"), KINDS)
@pytest.mark.parametrize("layout", [LOG, MAP, ROWS])
def test_far_keys(tmp_path: Path, layout: str, kind: DataType, far: pa.Array) -> None:
    columns = StructType([StructField("word", kind), StructField("n", LongType())])
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, columns)
    for txid in range(3):
        rows = pa.table({"word": far, "n": [1, 2]})
        state.writer.commit_batch(rows, record(txid), APP, known=False)
    before = state.table.scan().sort_by("n")
    table = tidied(tmp_path)
    assert table.slices_folded == (layout != MAP)
    assert table.before.get_ms is table.after.get_ms is None
    assert state.table.scan().sort_by("n") == before
    assert before["n"].to_pylist() == {LOG: [3, 6], MAP: [1, 2], ROWS: [1] * 3 + [2] * 3}[layout]


@pytest.mark.parametrize(("kind", "far"), KINDS)
@pytest.mark.parametrize("count", [1, 300])
def test_the_total_of_a_far_key_is_added_up(tmp_path: Path, kind: DataType, far: pa.Array, count: int) -> None:
    columns = StructType([StructField("word", kind), StructField("n", LongType())])
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns)

    def commit(txid: int, n: int) -> None:
        near = pa.array(range(1, count), pa.int32()).cast(pa.date32()).cast(far.type)
        words = pa.chunked_array([far, near])
        state.writer.commit_batch(pa.table({"word": words, "n": [n, *[1] * count]}), record(txid), APP, known=False)

    commit(0, 2**62)
    with pytest.raises(StateOverflowError, match="12921" if kind == DateType() else "14645"):
        commit(1, 2**62)
    commit(1, 2**62 - 1)
    assert max(state.table.scan()["n"].to_pylist()) == 2**63 - 1


@pytest.mark.parametrize("layout", [LOG, MAP])
def test_far_values(tmp_path: Path, layout: str) -> None:
    columns = StructType([StructField("word", StringType()), StructField("at", TimestampType())])
    values = (ValueColumn(name="at", aggregator="Max"),) if layout == LOG else ()
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, columns, values=values)
    for txid in range(3):
        rows = pa.table({"word": ["a", "b"], "at": TIMES})
        state.writer.commit_batch(rows, record(txid), APP, known=False)
    assert tidied(tmp_path).before.get_ms is None
    for read in (state.table.view().tuples, lambda: state.table.view().multi_get([("a",)])):
        with pytest.raises(FarTimeError) as caught:
            read()
        assert (caught.value.column, caught.value.key) == ("at", {"word": "a"})
