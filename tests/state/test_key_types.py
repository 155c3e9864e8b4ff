"""Keys of any type are found by `get` as `scan` shows them, whatever their value. No Spark."""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pipelines.errors import DefinitionError, DuplicateKeyError
from pipelines.maintenance import compact
from pipelines.state.kinds import LOG, MAP, ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.literals import KeyValueError, canonical
from pipelines.state.lookup import look_up
from pipelines.state.schema import StateSchema
from pipelines.state.sums import StateOverflowError
from pipelines.state.table import StateTable
from pipelines.state.views import MapState
from pipelines.state.writer import StateWriter
from tests.state.small_kinds import APP, FLOW, SmallTable, record

UTC = dt.UTC
DIGITS = "12345678901234567890123456789012345678"


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    # Not by arithmetic, which rounds to 28 digits.
    return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


TYPES: dict[str, tuple[T.DataType, pa.DataType, st.SearchStrategy[Any]]] = {
    **{
        f"decimal({p},{s})": (T.DecimalType(p, s), pa.decimal128(p, s), decimals(p, s))
        for p, s in ((38, 0), (38, 10), (38, 38), (18, 2), (19, 0), (5, 5))
    },
    "double": (T.DoubleType(), pa.float64(), st.floats() | st.sampled_from((0.0, -0.0, float("nan")))),
    "float": (T.FloatType(), pa.float32(), st.floats(width=32) | st.sampled_from((0.0, -0.0, float("nan")))),
    "bigint": (T.LongType(), pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "tinyint": (T.ByteType(), pa.int8(), st.integers(-128, 127)),
    "string": (T.StringType(), pa.string(), st.text(max_size=8)),
    "binary": (T.BinaryType(), pa.binary(), st.binary(max_size=4)),
    "boolean": (T.BooleanType(), pa.bool_(), st.booleans()),
    "date": (T.DateType(), pa.date32(), st.dates()),
    "timestamp": (T.TimestampType(), pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "timestamp_ntz": (T.TimestampNTZType(), pa.timestamp("us"), st.datetimes()),
}


def table(folder: Path, layout: str, kind: str) -> tuple[SmallTable, pa.Schema]:
    spark, arrow, _ = TYPES[kind]
    columns = T.StructType([T.StructField("word", spark), T.StructField("n", T.LongType())])
    return SmallTable(folder, layout, TRANSACTIONAL, columns), pa.schema([("word", arrow), ("n", pa.int64())])


def commit(state: SmallTable, schema: pa.Schema, txid: int, keys: list[Any]) -> None:
    rows = pa.Table.from_pylist([{"word": key, "n": 1} for key in keys], schema=schema)
    state.writer.commit_batch(rows, record(txid), APP, known=False)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LOG, MAP])
@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_scan_shows_get_finds(kind: str, layout: str, data: st.DataObject) -> None:
    keys = data.draw(st.lists(TYPES[kind][2] | st.none(), min_size=1, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        state, schema = table(Path(folder), layout, kind)
        distinct = list(dict.fromkeys(map(canonical, keys)))
        for txid in (0, 1):
            commit(state, schema, txid, distinct)
        scanned = state.table.scan().to_pylist()
        found = {canonical(row["word"]): row["n"] for row in scanned}
        assert len(found) == len(scanned) == len(distinct)
        assert set(found.values()) == {2 if layout == LOG else 1}
        for asked in ([{"word": key} for key in keys], [{"word": key} for key in reversed(keys)]):
            rows = state.table.get(asked)
            assert {canonical(row["word"]): row["n"] for row in rows} == found
        assert state.table.view().multi_get([(key,) for key in keys]) == [found[canonical(key)] for key in keys]


NOON = dt.datetime(2024, 1, 1, 12)


@pytest.mark.parametrize(
    ("kind", "held", "asked"),
    [
        ("bigint", 5, 5.5),
        ("bigint", 5, Decimal("5.5")),
        ("tinyint", 5, 300),
        ("date", NOON.date(), NOON),
        ("date", dt.date(2024, 1, 1), 19723),
        ("date", dt.date(2024, 1, 1), Decimal("19723.5")),
        ("timestamp", dt.datetime(2024, 1, 1), 1704067200000000),
        ("timestamp_ntz", dt.datetime(2024, 1, 1), 1704067200000000),
        ("float", 0.5, 0.1),
        ("float", 0.5, 1e300),
        ("float", 2.0**24, 2**24 + 1),
        ("double", 2.0**53, 2**53 + 1),
        ("double", 5.0, 10**400),
        ("double", 0.1, Decimal("0.10000000000000000001")),
        ("double", 2.0, True),
        ("decimal(18,2)", Decimal("5.55"), Decimal("5.555")),
        ("decimal(18,2)", Decimal("5.55"), Decimal(10**16)),
        ("decimal(18,2)", Decimal("5.55"), 5.555),
        ("decimal(18,2)", Decimal("5.55"), float("nan")),
        ("decimal(18,2)", Decimal("5.55"), Decimal("Infinity")),
    ],
)
def test_a_value_that_no_key_can_have_is_refused_and_not_cut(tmp_path: Path, kind: str, held: Any, asked: Any) -> None:
    state, schema = table(tmp_path, LOG, kind)
    commit(state, schema, 0, [held])
    for keys in ([{"word": held}, {"word": asked}], [{"word": asked}] * 300):
        for point in ({}, {"txid": 0}):
            with pytest.raises(KeyValueError, match="got"):
                state.table.get(keys, **point)
    # As in a join by Spark: what a view is asked for comes from a flow's data.
    assert state.table.view().multi_get([(asked,), (held,)]) == [None, 1]


@pytest.mark.parametrize(
    ("kind", "held", "asked"),
    [
        ("bigint", 5, [5.0, Decimal("5.0"), np.int64(5)]),
        ("float", 0.5, [Decimal("0.5"), np.float32(0.5)]),
        ("float", 2.0**24, [2**24, Decimal(2**24)]),
        ("double", 0.1, [Decimal("0.1"), Decimal("0.10")]),
        ("double", 2.0**60, [2**60, Decimal(2**60)]),
        ("decimal(18,2)", Decimal("5.50"), [5.5, Decimal("5.500"), np.float64(5.5)]),
        ("decimal(38,0)", Decimal(DIGITS), [int(DIGITS), Decimal(f"{DIGITS}.00")]),
        ("decimal(38,38)", Decimal(f"0.{DIGITS}"), [Decimal(f"0.{DIGITS}0")]),
        ("timestamp", dt.datetime(2024, 1, 1), [dt.date(2024, 1, 1)]),
        ("timestamp_ntz", dt.datetime(2024, 1, 1), [dt.date(2024, 1, 1)]),
        ("date", dt.date(2024, 1, 1), [dt.datetime(2024, 1, 1)]),
    ],
)
def test_a_key_is_found_by_its_value_in_another_class(tmp_path: Path, kind: str, held: Any, asked: list[Any]) -> None:
    """As Spark's join finds it."""
    state, schema = table(tmp_path, LOG, kind)
    commit(state, schema, 0, [held])
    for value in (held, *asked):
        for keys in ([{"word": value}], [{"word": value}] * 300):
            assert [row["n"] for row in state.table.get(keys)] == [1]
        assert state.table.view().multi_get([(value,)]) == [1]


@pytest.mark.parametrize(
    ("kind", "key", "held"),
    [
        ("float", 0.1, float(np.float32(0.1))),
        ("float", 2**24 + 1, 2.0**24),
        ("float", 1e300, float("inf")),
        ("float", -1e-60, 0.0),
        ("float", float("nan"), float("nan")),
        ("double", 2**53 + 1, 2.0**53),
        ("bigint", 7, 7),
    ],
)
def test_an_updater_finds_the_key_that_its_commit_replaces(tmp_path: Path, kind: str, key: Any, held: Any) -> None:
    state, schema = table(tmp_path, MAP, kind)
    commit(state, schema, 0, [held])
    for txid in (1, 2):
        changed = MapState(state.table.view())
        assert changed.multi_update([(key,), (held,)], [lambda n: n + 1] * 2) == [2 * txid, 2 * txid + 1]
        assert changed.tuples() == [(canonical(held), 2 * txid + 1)]
        rows = pa.Table.from_pylist([{"word": word, "n": n} for word, n, _ in changed.changes()], schema=schema)
        state.writer.commit_batch(rows, record(txid), APP, known=False)
    assert [row["n"] for row in state.table.scan().to_pylist()] == [5]
    changed.multi_remove([(key,)])
    assert (changed.multi_get([(held,)]), changed.tuples()) == ([None], [])


@pytest.mark.parametrize(
    "text", ["2024-01-01", "2024-01-01 00:00:00", "2024-01-01T00:00:00Z", "2024-01-01 05:00+05:00"]
)
def test_a_time_as_text_is_utc_without_a_zone(tmp_path: Path, text: str) -> None:
    """As of the command line and of Dagster's forms."""
    state, schema = table(tmp_path, LOG, "timestamp")
    commit(state, schema, 0, [dt.datetime(2024, 1, 1, tzinfo=UTC)])
    assert [row["n"] for row in look_up(state.table, {"word": text}, 9)] == [1]
    with pytest.raises(DefinitionError, match="not a key"):
        look_up(state.table, {"word": f"{text}?"}, 9)


@pytest.mark.parametrize(("kind", "text"), [("date", "0000-01-01"), ("timestamp", "9999-12-31T23:59:59-01:00")])
def test_a_day_that_python_does_not_have_as_text_is_no_key(tmp_path: Path, kind: str, text: str) -> None:
    state, schema = table(tmp_path, LOG, kind)
    commit(state, schema, 0, [dt.datetime(2024, 1, 1)])
    with pytest.raises(DefinitionError, match="not a key"):
        look_up(state.table, {"word": text}, 9)


@pytest.mark.parametrize("layout", [LOG, MAP])
def test_many_keys_at_once(tmp_path: Path, layout: str) -> None:
    """Beyond 200 keys a read takes a range and picks out what was asked for."""
    for kind, make in (
        ("decimal(38,10)", lambda n: Decimal(f"{DIGITS[:28]}.{n:010}")),
        ("double", lambda n: (float("nan"), -0.0)[n] if n < 2 else n / 3),
    ):
        state, schema = table(tmp_path / kind, layout, kind)
        keys = [make(n) for n in range(300)]
        commit(state, schema, 0, keys)
        assert len(state.table.get([{"word": key} for key in keys])) == 300
        assert len(state.table.get([{"word": key} for key in keys[:20]])) == 20


def test_a_key_is_one_whatever_its_sign_or_bits(tmp_path: Path) -> None:
    """As in Spark's groups: NaN is one key, and so are 0.0 and -0.0."""
    state, schema = table(tmp_path, MAP, "double")
    with pytest.raises(DuplicateKeyError):
        commit(state, schema, 0, [0.0, -0.0])
    commit(state, schema, 0, [-0.0, float("nan")])
    commit(state, schema, 1, [0.0, -float("nan")])
    assert state.table.count() == 2
    assert len(state.table.get([{"word": -0.0}, {"word": 0.0}, {"word": float("nan")}])) == 2


NESTED: list[tuple[T.DataType, list[Any]]] = [
    (T.ArrayType(T.DoubleType()), [[1.0, float("nan")], [1.0, None], None]),
    (T.StructType([T.StructField("a", T.LongType())]), [{"a": 1}, {"a": None}, None]),
]


@pytest.mark.parametrize(("kind", "keys"), NESTED, ids=["array", "struct"])
def test_a_log_state_sums_by_keys_of_several_parts(tmp_path: Path, kind: T.DataType, keys: list[Any]) -> None:
    """They are read as a whole, and compared with no other: a read by such a key is refused."""
    columns = T.StructType([T.StructField("word", kind), T.StructField("n", T.LongType())])
    state = SmallTable(tmp_path, LOG, TRANSACTIONAL, columns)
    for txid, n in enumerate((2**62, 2**61)):
        state.commit(txid, *((key, n) for key in keys))
    assert [row[1] for row in state.held()] == [2**62 + 2**61] * 3
    with pytest.raises(StateOverflowError):
        state.commit(2, (keys[0], 2**62))
    for asked in ([keys[0]], [keys[2]], keys * 100):
        with pytest.raises(KeyValueError, match="which cannot be asked for"):
            state.table.get([{"word": key} for key in asked])
    rows = SmallTable(tmp_path / "rows", ROWS, TRANSACTIONAL, columns)
    rows.commit(0, (keys[0], 1))
    with pytest.raises(KeyValueError, match="which cannot be asked for"):
        rows.table.get([{"word": keys[0]}])
    compact(None, Lake(tmp_path), FLOW)  # type: ignore[arg-type]
    assert [row[1] for row in state.held()] == [2**62 + 2**61] * 3


@pytest.mark.parametrize(
    "kind", [T.ArrayType(T.StringType()), T.StructType([T.StructField("a", T.LongType())])], ids=["array", "struct"]
)
def test_keys_that_a_map_cannot_compare_are_refused_before_the_start(tmp_path: Path, kind: T.DataType) -> None:
    declared = StateSchema(layout=MAP, kind=TRANSACTIONAL, flow="f", keys=("k",), columns=(("k", ""), ("n", "bigint")))
    writer = StateWriter(StateTable("nested", tmp_path / "nested"), declared)
    columns = T.StructType([T.StructField("k", kind), T.StructField("n", T.LongType())])
    with pytest.raises(DefinitionError, match='state "nested": key "k" is of type'):
        writer.prepare(columns)
    assert not (tmp_path / "nested").exists()
