"""Reads of states: by key, whole, as a Spark frame; keys of every type; read points; what cannot be read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pipelines import Lake, Runtime
from pipelines.errors import FieldError, ReadPointError, UnknownStateError
from pipelines.sources import FixedBatches
from pipelines.state import table as state_table
from pipelines.state.kinds import LOG, MAP, ROWS, TRANSACTIONAL
from pipelines.state.literals import KeyValueError, literal
from pipelines.state.record import RESET, BatchRecord
from pipelines.trident import Average, Count, DeltaState, Max, Min, Sum, TridentTopology
from tests.state.small_kinds import FLOW, SmallTable

SCHEMA = "name string, day date, price decimal(10,2), at timestamp, x double, n bigint"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST: list[tuple[Any, ...]] = [
    ("it's", date(2026, 1, 1), Decimal("1.50"), NOON, 0.5, 3),
    (None, None, None, None, None, None),
    ("a b", date(2026, 1, 2), Decimal("2.25"), NOON, 1.5, -4),
]
SECOND: list[tuple[Any, ...]] = [
    ("it's", date(2026, 1, 1), Decimal("1.50"), NOON, 0.5, 7),
    (None, None, None, None, None, 1),
]
KEYS = ["name", "day", "price", "at", "x"]
VALUES = [
    Count("rows"),
    Sum("n", "sum_n"),
    Min("n", "min_n"),
    Max("n", "max_n"),
    Average("n", "avg_n"),
    Sum("price", "sum_price"),
]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("reads"))
    topology = TridentTopology("reads")
    rows = topology.new_stream("rows", FixedBatches(SCHEMA, [FIRST, [], SECOND]))
    rows.group_by(KEYS).persistent_aggregate(DeltaState("by_all"), VALUES)
    rows.group_by("name").persistent_aggregate(DeltaState("by_name"), VALUES)
    rows.persistent_aggregate(DeltaState("total"), VALUES)
    rows.partition_persist(DeltaState("kept"), ["name", "n"])
    Runtime(spark, lake).catch_up(topology)
    return lake


@pytest.mark.slow
def test_get_by_keys_of_every_type(lake: Lake) -> None:
    key = dict(zip(KEYS, FIRST[0], strict=False))
    (row,) = lake.state("by_all").get([key])
    assert (row["rows"], row["sum_n"], row["min_n"], row["max_n"], row["avg_n"]) == (2, 10, 3, 7, 5.0)
    assert row["sum_price"] == Decimal("3.00")
    (empty,) = lake.state("by_all").get([dict.fromkeys(KEYS)])
    assert (empty["rows"], empty["sum_n"], empty["avg_n"], empty["sum_price"]) == (2, 1, 1.0, Decimal("0.00"))


def test_get_keeps_the_order_asked_for_and_leaves_out_what_is_not_there(lake: Lake) -> None:
    asked = [{"name": name} for name in ("a b", "nobody", "it's", None, "a b", "'; DROP TABLE state; --")]
    assert [row["name"] for row in lake.state("by_name").get(asked)] == ["a b", "it's", None]


def test_a_state_without_keys_is_one_row(lake: Lake) -> None:
    (row,) = lake.state("total").get()
    assert (row["rows"], row["sum_n"], row["min_n"], row["max_n"]) == (5, 7, -4, 7)
    assert lake.state("total").get(txid=0)[0]["rows"] == 3
    assert lake.state("total").scan().to_pylist() == [row]


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [
        "by_all",
        pytest.param("by_name", marks=pytest.mark.exhaustive),
        pytest.param("total", marks=pytest.mark.exhaustive),
        "kept",
    ],
)
@pytest.mark.parametrize("local_rows", [state_table.LOCAL_ROWS, -1])
def test_frames_and_scans_agree(
    spark: SparkSession, lake: Lake, state: str, local_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what delta-rs reads and by Spark's own reader, now and at a txid."""
    monkeypatch.setattr(state_table, "LOCAL_ROWS", local_rows)
    for txid in (None, 0):
        frame = lake.state(state).frame(spark, txid=txid)
        scanned = lake.state(state).scan(txid=txid)
        assert frame.columns == scanned.column_names
        found = sorted(repr(_plain(row.asDict())) for row in frame.collect())
        assert found == sorted(repr(_plain(row)) for row in scanned.to_pylist())


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Spark gives naive local times, Arrow aware ones."""
    return {k: v.timestamp() if isinstance(v, datetime) else v for k, v in row.items()}


LONG = "a text of more than twelve letters"
NESTED = {
    "array<bigint>": [1, None],
    "array<string>": [LONG, None],
    "struct<at:timestamp>": {"at": NOON},
    "map<string,binary>": {LONG: LONG.encode()},
    "array<struct<at:timestamp,name:string>>": [{"at": NOON, "name": LONG}],
}


@pytest.mark.parametrize(("kind", "value"), NESTED.items(), ids=list(NESTED))
def test_lists_and_structs_are_frames_with_rows_and_without(
    spark: SparkSession, tmp_path: Path, kind: str, value: Any
) -> None:
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL, StructType.fromDDL(f"word string, v {kind}"))
    for rows in ([], [("a", value)]):
        if rows:
            state.commit(0, *rows)
        frame = state.table.frame(spark)
        assert frame.schema.simpleString() == f"struct<word:string,v:{kind}>"
        assert [tuple(row.values()) for row in frame.toArrow().to_pylist()] == [
            (word, list(v.items()) if kind[:3] == "map" else v) for word, v in rows
        ]


def test_rows_states_are_read_by_any_column(lake: Lake) -> None:
    assert sorted(row["n"] for row in lake.state("kept").get([{"name": "it's"}])) == [3, 7]
    assert lake.state("kept").scan().num_rows == 5


def test_a_txid_that_never_was_is_not_too_old(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    state.commit(7, ("a", 1))
    with pytest.raises(ReadPointError, match="as of txid 3: the first batch in it is 7"):
        state.table.get([{"word": "a"}], txid=3)
    state.writer.reset(BatchRecord(kind=RESET, flow=FLOW, epoch=2))
    state.commit(9, ("a", 1), epoch=2)
    with pytest.raises(ReadPointError, match="txid 8: it was emptied behind that batch; the first batch in it is 9"):
        state.table.get([{"word": "a"}], txid=8)
    with pytest.raises(ReadPointError, match="txid 3: the first batch in it is 9"):
        state.table.get([{"word": "a"}], txid=3)


def test_a_view_of_a_version_that_is_not_there(tmp_path: Path) -> None:
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL)
    with pytest.raises(ReadPointError, match='"counts" cannot be read as of version 99: the last version is 0'):
        state.table.view(99)
    assert state.table.view(0).multi_get([("a",)]) == [None]


@pytest.mark.parametrize("layout", [LOG, MAP, ROWS])
def test_no_keys_give_no_rows(tmp_path: Path, layout: str) -> None:
    state = SmallTable(tmp_path, layout, TRANSACTIONAL)
    state.commit(0, ("a", 1))
    state.commit(1, ("b", 1))
    for at in ({}, {"txid": 0}, {"version": 1}):
        assert state.table.get([], **at) == []
        assert len(state.table.get([{"word": "a"}], **at)) == 1
    assert SmallTable(tmp_path / "total", LOG, TRANSACTIONAL, keys=()).table.get([]) == []
    with pytest.raises(ReadPointError):
        state.table.get([], txid=2)


def test_an_empty_batch_is_a_commit_too(lake: Lake) -> None:
    batches = [(c.txid, c.rows) for c in lake.state("by_name").history() if c.kind == "batch"]
    assert batches == [(0, 3), (1, 0), (2, 2)]
    assert lake.state("by_name").get([{"name": "it's"}], txid=1) == lake.state("by_name").get(
        [{"name": "it's"}], txid=0
    )


def test_read_points(lake: Lake) -> None:
    state = lake.state("total")
    commits = [commit for commit in state.history() if commit.kind == "batch"]
    for commit in commits:
        expected = state.get(txid=commit.txid)
        assert state.get(version=commit.version) == expected
        assert state.get(timestamp=commit.time) == expected


@pytest.mark.parametrize(
    ("point", "says"),
    [
        ({"txid": 9}, "the last committed batch is 2"),
        ({"version": 99}, "99"),
        ({"timestamp": datetime(2001, 1, 1, tzinfo=UTC)}, "oldest"),
        ({"timestamp": datetime(2026, 1, 1)}, "no time zone"),
        ({"txid": 0, "version": 1}, "one read point only"),
    ],
)
def test_points_that_are_not_there(lake: Lake, point: dict[str, Any], says: str) -> None:
    with pytest.raises(ReadPointError, match=says):
        lake.state("total").get(**point)


def test_keys_that_do_not_fit(lake: Lake) -> None:
    with pytest.raises(FieldError, match=r'the key of this state: name \(did you mean "name"'):
        lake.state("by_name").get([{"nam": "x"}])
    with pytest.raises(KeyValueError) as caught:
        lake.state("by_name").get([{"name": 3}])
    assert (caught.value.column, caught.value.value) == ("name", 3)
    with pytest.raises(UnknownStateError, match='did you mean "by_name"'):
        lake.state("by_nam")


def test_literals_are_typed_before_they_become_sql() -> None:
    import pyarrow as pa

    assert literal("k", "x' OR 1=1 --", pa.string()) == "'x'' OR 1=1 --'"
    assert literal("k", True, pa.bool_()) == "true"
    with pytest.raises(KeyValueError):
        literal("k", "1 OR 1=1", pa.int64())
