"""Windows by count in arrays against `KeyedWindows`: the same results, ids and order, with cuts and restarts anywhere."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import aggregators as agg
from pipelines.graph import events as ev
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import AggregateWindow
from pipelines.windows.policy import Policy
from pipelines.windows.vectorised import CountWindows, fits
from tests.windows.window_runs import context

CHAIN = (
    agg.Count(),
    agg.Count("having", field="v"),
    agg.Sum("v"),
    agg.Average("v"),
    agg.Min("v"),
    agg.Max("v"),
    agg.StdDev("v"),
)
EVENT = [(ev.CLOCK, pa.int64()), (ev.ORDER, pa.string())]
Row = tuple[Any, Any, Any, int, str]


def schemas(kind: pa.DataType) -> tuple[pa.Schema, pa.Schema]:
    number = pa.int64() if pa.types.is_integer(kind) else pa.float64()
    taken = pa.schema([("k", pa.string()), ("j", pa.int64()), ("v", kind), *EVENT])
    outputs = [("count", pa.int64()), ("having", pa.int64()), ("sum", number), ("avg", pa.float64())]
    outputs += [("min", number), ("max", number), ("std_dev", pa.float64())]
    own = [(name, pa.string() if name in (ev.ID, ev.FROM, ev.ORDER) else pa.int64()) for name in ev.COLUMNS]
    return taken, pa.schema([("k", pa.string()), ("j", pa.int64()), *outputs, *own])


def by_key(rows: list[Row], taken: pa.Schema, partition: tuple[str, ...]) -> pa.Table:
    ordered = sorted(rows, key=lambda row: ([str(row["kj".index(name)]) for name in partition], row[3], row[4]))
    return pa.table([pa.array(c, f.type) for c, f in zip(zip(*ordered, strict=True), taken, strict=True)], schema=taken)


def generic(operation: AggregateWindow, rows: list[Row], partition: tuple[str, ...]) -> list[dict[str, Any]]:
    items = [(Event({"k": k, "j": j, "v": v}, "e", now), now, order) for k, j, v, now, order in rows]
    found = KeyedWindows(operation, context(*partition)).feed(items, rows[-1][3])
    own = (ev.ID, ev.TIME, ev.CLOCK, ev.FROM, ev.ORDER)
    return [
        {**event, **dict(zip(own, (event.id, event.timestamp, now, event.stream, order), strict=True))}
        for event, now, order in found
    ]


def check(operation: AggregateWindow, rows: list[Row], cut: int, kind: pa.DataType, partition: tuple[str, ...]) -> None:
    taken, schema = schemas(kind)
    schema = pa.schema([field for field in schema if field.name not in ("k", "j") or field.name in partition])
    assert fits(operation, context(*partition), taken)
    windows, found = CountWindows(operation, context(*partition), schema), []
    for part in (rows[:cut], rows[cut:]):
        if part:
            found += windows.run(by_key(part, taken, partition)).to_pylist()
            windows.forget(part[-1][3])
        state = windows.save()
        windows = CountWindows(operation, context(*partition), schema)
        windows.restore(state)
    made = [{name: value for name, value in row.items() if value is not None} for row in found]
    expected = generic(operation, rows, partition)
    assert repr(made) == repr(
        [{name: row[name] for name in schema.names if name in row} for row in as_typed(expected, kind)]
    )


def as_typed(rows: list[dict[str, Any]], kind: pa.DataType) -> list[dict[str, Any]]:
    if pa.types.is_integer(kind):
        return rows
    numbers = ("sum", "min", "max")
    return [{name: float(v) + 0.0 if name in numbers else v for name, v in row.items()} for row in rows]


@st.composite
def batches(draw: st.DrawFn, numbers: st.SearchStrategy[Any]) -> list[Row]:
    now, found = 0, []
    for number in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from([0, 1, 1, 900, 5000]))
        key = draw(st.sampled_from([("a", 1), ("b", 1), ("a", 2), (None, 1), ("", None)]))
        found.append((*key, draw(numbers), now, f"{number:05d}"))
    return found


ints = st.none() | st.integers(-5, 9) | st.sampled_from([2**31, -(2**40)])
floats = st.none() | st.floats(-1e6, 1e6).map(lambda x: x + 0.0) | st.sampled_from([float("nan"), float("inf"), 1e300])
thresholds = st.integers(1, 7)


@settings(max_examples=120, deadline=None)
@given(batches(ints), thresholds, thresholds, st.booleans(), st.sampled_from([1, 1000, 10**9]), st.integers(0, 40))
@pytest.mark.parametrize("partition", [("k",), ("k", "j"), ()])
def test_ints(
    partition: tuple[str, ...], rows: list[Row], trigger: int, evict: int, clear: bool, lifetime: int, cut: int
) -> None:
    operation = AggregateWindow(CHAIN, Policy.count(trigger), Policy.count(evict), clear, lifetime)
    check(operation, rows, cut, pa.int64(), partition)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(batches(floats), thresholds, thresholds, st.booleans(), st.integers(0, 40))
def test_floats(rows: list[Row], trigger: int, evict: int, clear: bool, cut: int) -> None:
    operation = AggregateWindow(CHAIN, Policy.count(trigger), Policy.count(evict), clear)
    check(operation, rows, cut, pa.float64(), ("k",))


def test_what_fits() -> None:
    taken, _ = schemas(pa.int64())
    count, time = Policy.count(3), Policy.time(3)
    assert fits(AggregateWindow(CHAIN, count, count), context("k"), taken)
    assert fits(AggregateWindow(CHAIN, count, Policy.count(0), True), context(), taken)
    for operation in (
        AggregateWindow(CHAIN, count, time),
        AggregateWindow(CHAIN, time, count),
        AggregateWindow(CHAIN, count, Policy.count(0)),
        AggregateWindow((agg.Collect("v"),), count, count),
        AggregateWindow((agg.Sum("k"),), count, count),
        AggregateWindow((agg.Sum("absent"),), count, count),
    ):
        assert not fits(operation, context("k"), taken)
    assert not fits(AggregateWindow(CHAIN, count, count), context("v"), taken.set(2, pa.field("v", pa.float64())))
