"""A total that no longer fits its column is an error of the batch that makes it so, and never a wrong number. No Spark."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from pipelines.state.kinds import LOG, OPAQUE, TRANSACTIONAL
from pipelines.state.record import REPLAY, SLICE, BatchRecord
from pipelines.state.schema import ValueColumn
from pipelines.state.sums import StateOverflowError
from tests.state.small_kinds import APP, ARROW, FLOW, SmallTable, record

BIG = 2**62


def bounds(state: SmallTable) -> list[Any]:
    return [one.record.bounds for one in state.table.history() if one.record is not None]


def test_the_batch_that_would_go_past_the_end_is_refused(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    state.commit(0, ("a", BIG), ("b", 1))
    with pytest.raises(StateOverflowError, match="'word': 'a'") as caught:
        state.commit(1, ("b", 5), ("a", BIG))
    assert (caught.value.state, caught.value.column, caught.value.kind) == ("counts", "n", "int64")
    assert state.held() == [("a", BIG), ("b", 1)]
    state.commit(1, ("b", BIG), ("a", BIG - 1), ("c", -BIG))
    state.commit(2, ("c", -BIG + 1), ("a", -5))
    assert state.held() == [("a", 2 * BIG - 6), ("b", BIG + 1), ("c", 1 - 2 * BIG)]
    assert bounds(state) == [{"n": BIG}, {"n": 2 * BIG - 1}, {"n": 2 * BIG - 1}]
    assert state.table.get([{"word": "a"}]) == [{"word": "a", "n": 2 * BIG - 6}]


def test_while_nothing_can_overflow_no_batch_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    monkeypatch.setattr("pipelines.state.sums._exact", None)
    state.commit(0, ("a", 5), ("b", -7))
    state.commit(1, ("a", -9))
    state.commit(2)
    assert bounds(state) == [{"n": 7}, {"n": 16}, {"n": 16}]


def test_a_table_without_bounds_is_added_up_once(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    rows = pa.table({"word": ["a", "a"], "n": [BIG, -3], "_slice": ["all"] * 2, "_txid": [0, 0], "_gen": [0, 0]})
    said = CommitProperties(custom_metadata={"userMetadata": record(0).dump()})
    write_deltalake(DeltaTable(str(state.table.path)), rows, mode="append", commit_properties=said)
    with pytest.raises(StateOverflowError):
        state.commit(1, ("a", BIG + 3))
    state.commit(1, ("a", BIG + 2))
    assert bounds(state)[-1] == {"n": 2 * BIG - 1}


def test_behind_a_restore_the_bounds_are_those_of_what_is_there(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)

    def commit(epoch: int, *rows: tuple[str, int]) -> int:
        found = pa.Table.from_pylist([{"word": word, "n": n} for word, n in rows], schema=ARROW)
        return state.writer.commit_batch(found, record(0, epoch), f"{FLOW}/counts/{epoch}", known=False)

    before = commit(1, ("a", BIG))
    state.writer.reset(record(0, 2), f"{FLOW}/counts/2")
    commit(2, ("b", 1))
    DeltaTable(str(state.table.path)).restore(before)
    with pytest.raises(StateOverflowError, match="'word': 'a'"):
        commit(3, ("a", BIG))
    commit(3, ("a", BIG - 1))
    assert (state.held(), bounds(state)[-1]) == ([("a", 2 * BIG - 1)], {"n": 2 * BIG - 1})


def test_what_is_past_the_end_already_is_no_number(tmp_path: Path) -> None:
    """Of a table of an earlier release."""
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    rows = pa.table({"word": ["a"] * 3, "n": [BIG] * 3, "_slice": ["all"] * 3, "_txid": [0] * 3, "_gen": [0] * 3})
    write_deltalake(DeltaTable(str(state.table.path)), rows, mode="append")
    with pytest.raises(StateOverflowError):
        state.held()
    with pytest.raises(StateOverflowError):
        state.table.get([{"word": "a"}])


def test_slices_replays_and_replacements_are_looked_at_too(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, OPAQUE, sliced=True)
    rows = pa.Table.from_pylist([{"word": "a", "n": BIG}], schema=ARROW)

    def slice_(name: str) -> int:
        own = rows.append_column("_slice", pa.array([name]))
        return state.writer.replace_slice(own, BatchRecord(kind=SLICE, flow=FLOW, epoch=1, txid=-1, slice=name))

    slice_("d1")
    slice_("d1")
    with pytest.raises(StateOverflowError):
        slice_("d2")
    with pytest.raises(StateOverflowError):
        state.commit(0, ("a", BIG))
    state.commit(0, ("a", BIG - 1))
    state.commit(0, ("a", BIG - 2), known=True)
    replay = BatchRecord(kind=REPLAY, flow=FLOW, epoch=1, txid=0, replay=1)
    with pytest.raises(StateOverflowError):
        state.writer.append_replay(rows, replay, f"{FLOW}/counts/replay", seen=state.table.version())
    assert state.held() == [("a", 2 * BIG - 2)]


@pytest.mark.parametrize("key", ["p0", "p1", "t0", "most0", "P0"])
def test_a_key_may_have_any_name(tmp_path: Path, key: str) -> None:
    """All is added up where the bounds leave no room."""
    columns = StructType([StructField(key, StringType()), StructField("n", LongType()), StructField("m", LongType())])
    sums = tuple(ValueColumn(name=name, aggregator="Sum") for name in ("n", "m"))
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns, keys=(key,), values=sums)
    state.commit(0, ("a", BIG, -5), ("b", 1, -6))
    with pytest.raises(StateOverflowError, match=f"'{key}': 'a'"):
        state.commit(1, ("a", BIG, 0))
    assert (bounds(state), state.held()) == ([{"n": BIG, "m": 6}], [("a", BIG, -5), ("b", 1, -6)])


def test_decimals_of_all_digits(tmp_path: Path) -> None:
    columns = StructType([StructField("word", StringType()), StructField("n", DecimalType(38, 2))])
    state, most = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns), Decimal("9" * 36 + ".99")
    schema = pa.schema([("word", pa.string()), ("n", pa.decimal128(38, 2))])

    def commit(txid: int, value: Decimal) -> None:
        rows = pa.Table.from_pylist([{"word": "a", "n": value}], schema=schema)
        state.writer.commit_batch(rows, record(txid), APP, known=False)

    commit(0, most)
    with pytest.raises(StateOverflowError):
        commit(1, Decimal("0.01"))
    commit(1, -Decimal("0.01"))
    exact = Decimal("9" * 36 + ".98")
    assert state.table.scan().to_pylist() == state.table.get([{"word": "a"}]) == [{"word": "a", "n": exact}]


def test_compaction_folds_no_wrong_number(tmp_path: Path) -> None:
    from pipelines.maintenance.compaction import compact
    from pipelines.state.lake import Lake

    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    rows = pa.table({"word": ["a"] * 3, "n": [BIG] * 3, "_slice": ["all"] * 3, "_txid": [0] * 3, "_gen": [0] * 3})
    said = CommitProperties(custom_metadata={"userMetadata": record(70).dump()})
    write_deltalake(DeltaTable(str(state.table.path)), rows, mode="append", commit_properties=said)
    version = state.table.version()
    with pytest.raises(StateOverflowError):
        compact(None, Lake(tmp_path), FLOW)
    assert (state.table.version(), state.table.count()) == (version, 3)
