"""A flow that declares other columns than its table has: what is added by name, and what is refused. No Spark."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipelines.errors import StateSchemaError
from pipelines.state.kinds import LOG, MAP, OPAQUE, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.schema import ValueColumn
from tests.lakes import lake_place
from tests.state.small_kinds import APP, COLUMNS, WIDER, SmallTable, declared, record

REORDERED = StructType(
    [StructField("total", LongType()), StructField("n", LongType()), StructField("word", StringType())]
)
MANY = StructType(
    [
        *COLUMNS.fields,
        StructField("price", DecimalType(20, 2)),
        StructField("x", DoubleType()),
        StructField("at", TimestampType()),
        StructField("mean", StructType([StructField("sum", DecimalType(20, 2)), StructField("count", LongType())])),
        StructField("words", ArrayType(StringType())),
        StructField("kinds", ArrayType(LongType())),
    ]
)
AGGREGATORS = {
    "n": "Sum",
    "price": "Sum",
    "x": "Sum",
    "at": "Max",
    "mean": "Average",
    "words": "Collect",
    "kinds": "DistinctCount",
}


@pytest.mark.parametrize("kind", [TRANSACTIONAL, OPAQUE])
@pytest.mark.parametrize(("layout", "nothing"), [(LOG, 0), (MAP, None), (ROWS, None)])
def test_a_new_value_is_added_and_old_rows_read_nothing(
    tmp_path: Path, layout: str, nothing: int | None, kind: str
) -> None:
    before = SmallTable(tmp_path, layout, kind)
    before.commit(0, ("a", 1), ("b", 2))
    reader = Lake(tmp_path).state("counts")
    assert reader.scan().column_names == ["word", "n"]
    state = SmallTable(tmp_path, layout, kind, WIDER)
    assert state.held() == [("a", 1, nothing), ("b", 2, nothing)]
    state.commit(1, ("b", 5, 50))
    for table in (state.table, reader):
        rows = {row["n"]: row["total"] for row in table.get([{"word": "a"}, {"word": "b"}])}
        assert rows == {LOG: {1: 0, 7: 50}, MAP: {1: None, 5: 50}, ROWS: {1: None, 2: None, 5: 50}}[layout]
    assert state.held(txid=0) == [("a", 1, nothing), ("b", 2, nothing)]
    assert state.held(version=1) == state.held(txid=0)
    assert state.table.get([{"word": "a"}], version=1) == [{"word": "a", "n": 1, "total": nothing}]
    assert state.table.last_txid() == 1
    if kind == OPAQUE:
        assert state.base(1) == state.held(txid=0)
        state.commit(1, known=True)
        assert state.held() == state.held(txid=0)


@pytest.mark.parametrize("layout", [LOG, MAP, ROWS])
def test_before_a_column_was_added_it_has_the_type_that_it_has_now(tmp_path: Path, layout: str) -> None:
    SmallTable(tmp_path, layout, TRANSACTIONAL).commit(0, ("a", 1))
    made = tuple(ValueColumn(name=name, aggregator=kind) for name, kind in AGGREGATORS.items())
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, MANY, values=made if layout == LOG else ())
    price, at = Decimal("1.50"), datetime(2026, 1, 1, tzinfo=UTC)
    state.commit(1, ("b", 5, price, 0.5, at, {"sum": price, "count": 1}, ["w"], [1, 2]))
    assert state.table.scan(version=1).schema == state.table.scan().schema
    nothing = [Decimal("0.00"), 0.0, None, None, [], 0] if layout == LOG else [None] * 6
    expected = [repr(value) for value in ("a", 1, *nothing)]
    a = [{"word": "a"}]
    for rows in (state.table.scan(version=1).to_pylist(), state.table.get(a, version=1), state.table.get(a)):
        assert [[repr(value) for value in row.values()] for row in rows] == [expected]
    assert [[repr(value) for value in row] for row in state.table.view(1).tuples()] == [expected]


@pytest.mark.parametrize("layout", [LOG, MAP, ROWS])
def test_columns_are_told_apart_by_name_alone(tmp_path: Path, layout: str) -> None:
    SmallTable(tmp_path, layout, TRANSACTIONAL, WIDER).commit(0, ("a", 1, 10))
    version = Lake(tmp_path).state("counts").version()
    state = SmallTable(tmp_path, layout, TRANSACTIONAL, REORDERED)
    assert state.table.version() == version
    state.commit(1, (20, 2, "b"))
    assert sorted(row["word"] + str(row["total"]) for row in state.table.scan().to_pylist()) == ["a10", "b20"]


def test_an_evolution_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    from deltalake import DeltaTable, Field
    from deltalake.schema import PrimitiveType

    state = SmallTable(tmp_path, MAP, OPAQUE)
    state.commit(0, ("a", 1))
    DeltaTable(state.table.path).alter.add_columns([Field("total", PrimitiveType("long"))])
    assert state.held() == [("a", 1)]
    after = SmallTable(tmp_path, MAP, OPAQUE, WIDER)
    after.commit(1, ("a", 2, 20))
    after.commit(1, known=True)
    assert after.held() == [("a", 1, None)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"columns": (("word", "string"),), "values": ()}, 'column "n" .* is missing .* lost'),
        ({"columns": (("word", "string"), ("n", "int"))}, 'column "n" is bigint in the table and int in the flow'),
        ({"keys": ("n",)}, "keys is word in the table and n in the flow.*old key"),
        ({"keys": ()}, "keys is word in the table and none"),
        ({"values": (ValueColumn(name="n", aggregator="Max"),)}, 'value "n" is a Sum in the table and a Max'),
        ({"kind": OPAQUE}, "kind is transactional in the table and opaque"),
        ({"layout": MAP}, "layout is log"),
        ({"flow": "other"}, "flow is shop"),
        ({"sliced": True}, "sliced is False"),
    ],
)
def test_what_would_lose_something_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    state.commit(0, ("a", 1))
    wanted = declared(LOG, TRANSACTIONAL).model_copy(update=change)
    assert isinstance(state.table.declared.evolution(wanted), str)
    state.writer.declared = wanted
    with pytest.raises(StateSchemaError, match=says) as caught:
        state.writer.prepare(COLUMNS)
    assert caught.value.state == "counts"
    assert state.held() == [("a", 1)]


def test_what_evolves_is_no_difference() -> None:
    narrow, wide = declared(LOG, TRANSACTIONAL), declared(LOG, TRANSACTIONAL, WIDER)
    assert narrow.evolution(wide) == (("total", "bigint"),)
    assert narrow.evolution(narrow) == ()
    refused = wide.evolution(narrow)
    assert isinstance(refused, str)
    assert "total" in refused


def test_averages_get_a_place_for_their_pairs(tmp_path: Path) -> None:
    """A partial value that is a struct: null in the rows from before."""
    SmallTable(tmp_path, LOG, TRANSACTIONAL).commit(0, ("a", 1))
    pair = StructType([StructField("sum", LongType()), StructField("count", LongType())])
    columns = StructType([*COLUMNS.fields, StructField("mean", pair)])
    values = (ValueColumn(name="n", aggregator="Sum"), ValueColumn(name="mean", aggregator="Average"))
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns, values=values)
    assert state.table.get([{"word": "a"}]) == [{"word": "a", "n": 1, "mean": None}]
    rows = pa.table({"word": ["a"], "n": [2], "mean": [{"sum": 9, "count": 2}]})
    state.writer.commit_batch(rows, record(1), APP, known=False)
    assert state.table.get([{"word": "a"}]) == [{"word": "a", "n": 3, "mean": 4.5}] == state.table.scan().to_pylist()


DAY, HOUR = (("trips", "day"),), (("trips", "substring(at,  1, 13)"),)


@pytest.mark.parametrize("layout", [LOG, ROWS])
def test_slices_that_are_cut_otherwise_are_refused(tmp_path: Path, layout: str) -> None:
    SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=True, slice_by=DAY).commit(0, ("a", 1))
    version = Lake(tmp_path).state("counts").version()
    with pytest.raises(
        StateSchemaError, match=r"cut by day in the table and by substring\(at,  1, 13\) in the flow"
    ) as caught:
        SmallTable(tmp_path, layout, TRANSACTIONAL, WIDER, sliced=True, slice_by=HOUR)
    assert "new state name" in caught.value.hint
    assert Lake(tmp_path).state("counts").version() == version
    renamed = (("rides", "day"), ("returns", "day"))
    SmallTable(tmp_path, layout, TRANSACTIONAL, sliced=True, slice_by=renamed).commit(1, ("a", 1))


def test_rows_without_a_slice_may_get_one(tmp_path: Path) -> None:
    """They lie in quarantine, so nothing moves from one slice to another; back again, what is in the new one would stay."""
    SmallTable(tmp_path, ROWS, TRANSACTIONAL, sliced=True, slice_by=DAY).commit(0, ("a", 1))
    wider = (("trips", "COALESCE(day, 'none')"),)
    SmallTable(tmp_path, ROWS, TRANSACTIONAL, sliced=True, slice_by=wider).commit(1, ("a", 1))
    for other in (DAY, (("trips", "coalesce(at, day)"),)):
        with pytest.raises(StateSchemaError):
            SmallTable(tmp_path, ROWS, TRANSACTIONAL, sliced=True, slice_by=other)


def test_a_table_that_does_not_say_how_it_is_cut_is_taken_as_it_is(tmp_path: Path) -> None:
    SmallTable(tmp_path, ROWS, TRANSACTIONAL, sliced=True).commit(0, ("a", 1))
    state = SmallTable(tmp_path, ROWS, TRANSACTIONAL, sliced=True, slice_by=HOUR)
    assert state.table.declared.slice_by == HOUR
    state.commit(1, ("b", 2))
    with pytest.raises(StateSchemaError):
        SmallTable(tmp_path, ROWS, TRANSACTIONAL, sliced=True, slice_by=DAY)
    assert state.table.last_txid() == 1


def test_of_two_that_make_a_table_at_once_one_makes_it(tmp_path: Path) -> None:
    """Several queries of a flow share its quarantine, whose id each of them notes with its checkpoint."""
    for number in range(40):
        root, both = tmp_path / str(number), threading.Barrier(2)
        ids: list[str] = []

        def make(root: Path = root, both: threading.Barrier = both, ids: list[str] = ids) -> None:
            both.wait()
            ids.append(SmallTable(root, ROWS, OPAQUE).table.id)

        threads = [threading.Thread(target=make) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        table = Lake(lake_place(root)).state("counts")
        assert ids == [table.id] * 2
        assert table.version() == 0
