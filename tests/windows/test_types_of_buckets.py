"""Every type of a field as key and as value: a bucket that is cut between batches, saved and restored, gives what one gives."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipelines import aggregators as agg
from pipelines.graph import events as ev
from pipelines.windows.array_kinds import fits
from pipelines.windows.bucket import ArrayBucket, BucketMaker, Clocks
from pipelines.windows.operations import AggregateWindow, CollectWindow, SortWindow, SwitchWindow
from pipelines.windows.policy import Policy
from tests.windows.window_runs import context

NAN = float("nan")
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["a", "", "é", "a", None]),
    "boolean": (pa.bool_(), [True, False, None, True]),
    "byte": (pa.int8(), [1, -128, 127, 1, None]),
    "short": (pa.int16(), [1, -(2**15), 2**15 - 1, 1, None]),
    "int": (pa.int32(), [1, -(2**31), 2**31 - 1, 1, None]),
    "bigint": (pa.int64(), [1, -(2**63), 2**63 - 1, 1, None]),
    "float": (pa.float32(), [1.5, -0.0, 0.0, NAN, float("inf"), None]),
    "double": (pa.float64(), [0.1, -0.0, 0.0, NAN, float("-inf"), None]),
    "decimal": (pa.decimal128(38, 18), [Decimal("1.5"), Decimal("12345678901234567890.123456789012345678"), None]),
    "date": (pa.date32(), [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime(2026, 3, 29, 1, 30, 0, 1, UTC), datetime(1, 1, 2, tzinfo=UTC), None]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(2026, 3, 29, 2, 30, 0, 1), datetime(1, 1, 1), None]),
    "interval": (pa.duration("us"), [timedelta(2), timedelta(microseconds=-1), timedelta(10), timedelta(2), None]),
    "binary": (pa.binary(), [b"", b"\x00\xff", b"a", None]),
    "list": (pa.list_(pa.int32()), [[1, 2], [2, 1], [], [1], None]),
    "struct": (pa.struct([("x", pa.int32())]), [{"x": 1}, {"x": None}, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [{"x": 1}, {"x": 1, "y": 2}, {}, {"y": 2, "x": 1}, None]),
    "map in struct": (pa.struct([("m", pa.map_(pa.int32(), pa.string()))]), [{"m": {1: "x"}}, {"m": None}, None]),
}  # fmt: skip
NUMERIC = ("byte", "short", "int", "bigint", "float", "double", "decimal")
EVENT = [(one, pa.int64() if one in (ev.TIME, ev.CLOCK) else pa.string()) for one in ev.COLUMNS]


def batch(kind: pa.DataType, values: list[Any], first: int, clock: int, *, in_arrays: bool) -> pa.Table:
    """Events a second apart whose fields `k` (the key) and `v` have the same values, and a word about the clock."""
    count = len(values)
    times = [1000 * (first + n) for n in range(count)]
    # Events for windows in arrays travel without ids, and only words about the clock say where they come from.
    ids, origins = [f"e{first + n}" for n in range(count)], [None if in_arrays else "s"] * count
    columns: list[list[Any]] = [[*values, None], [*values, None], [*ids, None], [*times, None], [*times, clock]]
    columns += [[*origins, "c"], [*(f"{first + n:06d}" for n in range(count)), None]]
    schema = pa.schema([("k", kind), ("v", kind), *EVENT])
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def run(maker: BucketMaker, tables: list[pa.Table]) -> str:
    """The results of all batches; the bucket is saved and made anew between them."""
    state, clocks, found = b"", Clocks(), []
    for table in tables:
        bucket = maker()
        if bucket.starts(table, clocks):
            bucket.restore(state or None)
            found += bucket.run(1).to_pylist()
            state = bucket.save()
        clocks = Clocks.of_json(bucket.clocks.to_json())
    return repr(found)


def maker_of(
    operation: Any, partition: tuple[str, ...], outputs: list[tuple[str, pa.DataType]], kind: pa.DataType
) -> Any:
    taken, own = pa.schema([("k", kind), ("v", kind), *EVENT]), [(name, kind) for name in partition]
    where = context(*partition)
    in_arrays = fits(operation, where, taken)
    return BucketMaker(operation, where, ("c",), pa.schema([*own, *outputs, *EVENT]), in_arrays=in_arrays)


def windows_over(name: str, field: str, trigger: Policy, *, clear: bool) -> tuple[Any, list[tuple[str, pa.DataType]]]:
    """Every aggregator that takes the type, over one field, with the types of their outputs."""
    kind = TYPES[name][0]
    chain: list[Any] = [agg.Count("n"), agg.Count("having", field=field)]
    outputs = [("n", pa.int64()), ("having", pa.int64())]
    if name not in ("list", "struct"):
        chain += [agg.Min(field), agg.Max(field), agg.DistinctCount(field, "distinct")]
        outputs += [("min", kind), ("max", kind), ("distinct", pa.int64())]
    if name in NUMERIC:
        exact = pa.decimal128(38, 18) if name == "decimal" else pa.float64()
        exact = pa.int64() if name in ("byte", "short", "int") else exact
        chain += [] if name == "bigint" else [agg.Sum(field)]
        outputs += [] if name == "bigint" else [("sum", exact)]
        chain += [agg.Average(field), agg.StdDev(field)]
        outputs += [("avg", pa.float64()), ("std_dev", pa.float64())]
    return AggregateWindow(tuple(chain), trigger, Policy.count(3), clear), outputs


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("field", ["k", "v"])
@pytest.mark.parametrize("partition", [(), ("k",)])
def test_a_cut_between_batches_makes_no_difference(name: str, field: str, partition: tuple[str, ...]) -> None:
    kind, values = TYPES[name]
    values = values * 3
    numeric = (agg.Count("n"), agg.Count("having", field=field), agg.Min(field), agg.Max(field))
    only_arrays = AggregateWindow(numeric, Policy.count(2), Policy.count(3))
    shapes = [windows_over(name, field, Policy.count(2), clear=clear) for clear in (False, True)]
    shapes.append(windows_over(name, field, Policy.time(2), clear=True))
    shapes.append((only_arrays, [("n", pa.int64()), ("having", pa.int64()), ("min", kind), ("max", kind)]))
    by = ((field, True),)
    shapes.append((SortWindow(by, "top_n", 2, Policy.count(2)), [("v", kind)]))
    shapes.append((SwitchWindow(Policy.count(3), Policy.count(2), Policy.count(1)), [("v", kind)]))
    for operation, outputs in shapes:
        if field == "k" and isinstance(operation, SortWindow | SwitchWindow) and partition:
            outputs = []
        maker = maker_of(operation, partition, outputs, kind)
        in_arrays, end = maker.in_arrays, 1000 * len(values)
        whole = run(maker, [batch(kind, values, 0, end, in_arrays=in_arrays)])
        assert whole != "[]"
        for cut in (1, 4, len(values) - 1):
            # The clock stops in the middle of the second batch: some events wait for the third.
            parts = [batch(kind, values[:cut], 0, 1000 * (cut - 1), in_arrays=in_arrays)]
            parts.append(batch(kind, values[cut:], cut, 1000 * (cut + 1), in_arrays=in_arrays))
            parts.append(batch(kind, [], len(values), end, in_arrays=in_arrays))
            assert run(maker, parts) == whole, (operation.label, cut)


def test_windows_in_arrays_are_among_them() -> None:
    """An integer that is key and value at once is worked in arrays."""
    kind = TYPES["int"][0]
    operation = AggregateWindow((agg.Sum("k"),), Policy.count(2), Policy.count(3))
    assert isinstance(maker_of(operation, ("k",), [("sum", pa.int64())], kind)(), ArrayBucket)


def test_collected_events_keep_their_types() -> None:
    for kind, values in TYPES.values():
        operation = CollectWindow(Policy.count(2), Policy.count(4), field="all")
        outputs = [("all", pa.list_(pa.struct([("v", kind)])))]
        maker = maker_of(operation, ("k",), outputs, kind)
        end = 1000 * len(values)
        parts = [batch(kind, values[:2], 0, 1000, in_arrays=False), batch(kind, values[2:], 2, end, in_arrays=False)]
        assert run(maker, parts) == run(maker, [batch(kind, values, 0, end, in_arrays=False)])


@pytest.mark.exhaustive
def test_events_that_wait_take_a_new_field() -> None:
    """What waits in a bucket in arrays is of the schema of its batch; a later one may have more fields, and others less."""
    kind = pa.int32()
    maker = maker_of(
        AggregateWindow((agg.Sum("v"),), Policy.count(1), Policy.count(9)), ("k",), [("sum", pa.int64())], kind
    )
    narrow = batch(kind, [1, 1], 0, 0, in_arrays=True)
    wide = batch(kind, [1], 2, 2000, in_arrays=True)
    wide = wide.add_column(1, "new", pa.array(["x", None]))
    without = batch(kind, [1], 3, 3000, in_arrays=True)
    assert [one.split(",")[0] for one in run(maker, [narrow, wide, without]).split("'sum': ")[1:]] == [
        "1",
        "2",
        "3",
        "4",
    ]
