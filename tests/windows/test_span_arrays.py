"""Aligned and session windows in arrays against `KeyedWindows`: the same results, ids and order, cut and restarted anywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import aggregators as agg
from pipelines.flowmix import WindowAggregator
from pipelines.graph import events as ev
from pipelines.windows import span_arrays
from pipelines.windows.aligned import DayPlaces
from pipelines.windows.array_kinds import arrays_for, fits, wanted_columns
from pipelines.windows.arrays import EMPTY, WindowContent, from_ipc, to_ipc
from pipelines.windows.buffer import WindowContext
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import AlignedWindow, SessionWindow, SpanWindow
from tests.tiers import tier

Row = tuple[Any, Any, Any, Any, int, str, int | None]
SECOND, HOUR = 1000, 3_600_000
STAMP = pa.timestamp("us", "UTC")


class Told(WindowAggregator):
    """What a user's aggregator sees of its events: all of it, in order; several results, or none."""

    outputs = "seen string, at bigint"

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.last = 0

    def added(self, event: Any) -> None:
        self.seen.append(f"{event.id}/{event.get('v')}/{event.stream}")
        self.last = event.timestamp

    def evicted(self, event: Any) -> None:
        raise AssertionError("no event leaves")

    def aggregate(self) -> list[dict[str, Any]]:
        if len(self.seen) % 3 == 0:
            return []
        return [{"seen": " ".join(self.seen), "at": self.last}] * (1 + len(self.seen) % 2)


BUILT_IN = (
    (agg.Count(), pa.int64()),
    (agg.Count("having", field="v"), pa.int64()),
    (agg.Sum("v"), None),
    (agg.Average("v"), pa.float64()),
    (agg.Min("v"), None),
    (agg.Max("v"), None),
    (agg.Min("w", "first"), pa.string()),
    (agg.Max("w", "last"), pa.string()),
    (agg.StdDev("v"), pa.float64()),
    (agg.DistinctCount("w", "distinct"), pa.int64()),
)
IN_ARRAYS = BUILT_IN[:8]
TYPES = {"k": pa.string(), "j": pa.int64(), "w": pa.string()}


def place(partition: tuple[str, ...], depth: int) -> WindowContext:
    return WindowContext("flow", "stream", 1, partition, depth, lags=frozenset({1, 2} if depth else ()))


def result_schema(chain: Any, partition: tuple[str, ...], kind: pa.DataType) -> pa.Schema:
    number = pa.int64() if pa.types.is_integer(kind) else pa.float64()
    outputs = [(aggregator.named, number if made is None else made) for aggregator, made in chain]
    if any(isinstance(aggregator, Told) for aggregator, _ in chain):
        outputs = [pair for pair in outputs if pair[0] != "seen"] + [("seen", pa.string()), ("at", pa.int64())]
    own = [(name, pa.string() if name in (ev.ID, ev.FROM, ev.ORDER) else pa.int64()) for name in ev.COLUMNS]
    keys = [(name, TYPES[name]) for name in partition]
    return pa.schema([*keys, ("window_start", STAMP), ("window_end", STAMP), *outputs, *own])


def table_of(rows: list[Row], kind: pa.DataType, wanted: tuple[str, ...]) -> pa.Table:
    schema = pa.schema(
        [*TYPES.items(), ("v", kind), (ev.CLOCK, pa.int64()), (ev.ORDER, pa.string()), (ev.TIME, pa.int64())]
    )
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    table = pa.table([pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    texts = {ev.ID: [f"e{order}" for order in table[ev.ORDER].to_pylist()], ev.FROM: ["s"] * table.num_rows}
    for name, values in texts.items():
        table = table.append_column(name, pa.array(values, pa.string()))
    return table.drop_columns([name for name in (ev.ID, ev.TIME, ev.FROM) if name not in wanted])


def parted(rows: list[Row], cuts: list[tuple[int, int]]) -> list[tuple[list[Row], int]]:
    """The rows in batches, each with a clock behind which no later batch has a row, though the batch itself may."""
    ends = sorted({min(cut, len(rows)) for cut, _ in cuts} | {len(rows)})
    gaps, parts, start, now = [gap for _, gap in cuts], [], 0, -(2**60)
    for number, end in enumerate(ends):
        wanted = (rows[end - 1][4] if end else 0) + (gaps[number] if number < len(gaps) else 2000)
        now = max(now, min([wanted, *(row[4] for row in rows[end:])]))
        parts.append((rows[start:end], now))
        start = end
    last = rows[-1][4]
    return [*parts, ([], max(now, last) + 1500), ([], max(now, last) + 100 * 24 * HOUR)]


def one_by_one(
    operation: SpanWindow, parts: list[tuple[list[Row], int]], where: WindowContext
) -> list[list[dict[str, Any]]]:
    windows, made = KeyedWindows(operation, where), []
    own = (ev.ID, ev.TIME, ev.CLOCK, ev.FROM, ev.ORDER)
    for rows, clock in parts:
        items = [
            (Event({"k": k, "j": j, "w": w, "v": v}, f"e{order}", at, "s"), now, order)
            for k, j, w, v, now, order, at in rows
        ]
        found = windows.feed(items, clock)
        made.append([
            {**event, **dict(zip(own, (event.id, event.timestamp, now, event.stream, order), strict=True))}
            for event, now, order in found
        ])  # fmt: skip
    return made


def through_bytes(state: WindowContent) -> WindowContent:
    tables = [None if table is None else from_ipc([to_ipc(table, "lz4")]) for table in (state.windows, state.pending)]
    return WindowContent(*tables, state.clock)


def check(
    operation: SpanWindow, chain: Any, rows: list[Row], cuts: list[tuple[int, int]], kind: pa.DataType,
    partition: tuple[str, ...], depth: int = 0,
) -> None:  # fmt: skip
    """Batch by batch the same results as one by one, each from the state behind the one before, which stays as it was."""
    where = place(partition, depth)
    wanted, schema = wanted_columns(operation, where), result_schema(chain, partition, kind)
    assert fits(operation, where, table_of([], kind, wanted).schema)
    windows, state = arrays_for(operation, where, schema), EMPTY
    kept: list[pa.Table] = []
    parts = parted(rows, cuts)
    for (part, clock), expected in zip(parts, one_by_one(operation, parts, where), strict=True):
        due = windows.due(state)
        first, _ = windows.feed(state, table_of(part[::-1], kind, wanted), clock)
        before = state
        results, state = windows.feed(through_bytes(state), table_of(part, kind, wanted), clock)
        assert repr(first.to_pylist()) == repr(results.to_pylist())
        assert not results.num_rows or part or (due is not None and due <= clock)
        rows_wanted = [{name: row.get(name) for name in schema.names} for row in as_typed(expected, kind)]
        assert shown(results.to_pylist()) == shown(rows_wanted)
        # What a file of state keeps: the whole, then what has changed.
        kept = [*kept, state.changed] if state.changed is not None and before.windows is not None else [state.windows]
        kept = [table for table in kept if table is not None]
        if state.windows is not None:
            by = [*partition, "_start"]
            laid = windows.laid_over(kept, clock)
            assert laid is not None
            ordered = [table.sort_by([(name, "ascending") for name in by]) for table in (laid, state.windows)]
            assert repr(ordered[0].to_pylist()) == repr(ordered[1].to_pylist())


def shown(rows: list[dict[str, Any]]) -> str:
    """Rows as text, in which NaN is NaN, without what is null."""
    utc = [{n: v.astimezone(UTC) if isinstance(v, datetime) else v for n, v in row.items()} for row in rows]
    return repr([{name: value for name, value in row.items() if value is not None} for row in utc])


def as_typed(rows: list[dict[str, Any]], kind: pa.DataType) -> list[dict[str, Any]]:
    if pa.types.is_integer(kind):
        return rows
    numbers = ("sum", "min", "max")
    return [{n: float(v) if n in numbers and v is not None else v for n, v in row.items()} for row in rows]


@st.composite
def batches(draw: st.DrawFn, numbers: st.SearchStrategy[Any], start: int = 0, step: int = 1) -> list[Row]:
    now, rows = start, []
    for number in range(draw(st.integers(1, 40))):
        now += step * draw(st.sampled_from([0, 0, 1, 100, 900, 1000, 2000, 5001]))
        key = draw(st.sampled_from([("a", 1), ("b", 1), ("a", 2), (None, 1), ("", None)]))
        word = draw(st.sampled_from(["x", "é", "", None, "xx"]))
        rows.append((*key, word, draw(numbers), now, f"{number:05d}", now - draw(st.sampled_from([0, 0, 1, 2, 3]))))
    return rows


ints = st.none() | st.integers(-5, 9) | st.sampled_from([2**31, -(2**40), 2**61, -(2**61)])
floats = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf"), -0.0, 1e308, -1e308])
cut_places = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([-2500, -300, 0, 1, 900, 40_000])), max_size=4)


@st.composite
def operations(draw: st.DrawFn, chain: Any) -> SpanWindow:
    made = tuple(aggregator for aggregator, _ in chain)
    if draw(st.booleans()):
        return SessionWindow(made, draw(st.integers(1, 4)))
    every = draw(st.integers(1, 4))
    return AlignedWindow(made, every, every + draw(st.integers(0, 7)), draw(st.integers(1 - every, 3)))


@pytest.mark.parametrize(
    "partition", [("k", "j"), *(pytest.param(key, marks=tier(False)) for key in (("k",), (), ("j",)))]
)
@settings(max_examples=100, deadline=None)
@given(st.data(), batches(ints), cut_places, st.sampled_from([0, 0, 2]))
def test_ints(
    partition: tuple[str, ...], data: st.DataObject, rows: list[Row], cuts: list[tuple[int, int]], depth: int
) -> None:
    try:
        check(data.draw(operations(BUILT_IN)), BUILT_IN, rows, cuts, pa.int64(), partition, depth)
    except (OverflowError, ArithmeticError):
        # A sum that no bigint holds is an error, here with the event that makes it so, one by one where the column refuses it.
        assert sum(abs(row[3] or 0) for row in rows) >= 2**63


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data(), batches(floats), cut_places)
def test_floats(data: st.DataObject, rows: list[Row], cuts: list[tuple[int, int]]) -> None:
    check(data.draw(operations(IN_ARRAYS)), IN_ARRAYS, rows, cuts, pa.float64(), ("k",))


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None)
@given(st.data(), batches(st.integers(0, 9)), cut_places)
def test_many_windows_of_an_event_are_laid_out_in_parts(
    data: st.DataObject, rows: list[Row], cuts: list[tuple[int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_arrays, "ENTRIES_AT_ONCE", 12)
        check(data.draw(operations(BUILT_IN)), BUILT_IN, rows, cuts, pa.int64(), ("k",))
        check(data.draw(operations(OWN)), OWN, rows, cuts, pa.int64(), ("k",))


OWN = ((Told(), pa.string()), (agg.Count("n"), pa.int64()), (agg.Max("v"), None))


@pytest.mark.slow
@pytest.mark.parametrize("chain", [OWN, OWN[:1]], ids=["beside others", "alone"])
@settings(max_examples=60, deadline=None)
@given(st.data(), batches(st.integers(0, 9)), cut_places, st.sampled_from([0, 2]))
def test_aggregators_of_users(
    chain: Any, data: st.DataObject, rows: list[Row], cuts: list[tuple[int, int]], depth: int
) -> None:
    check(data.draw(operations(chain)), chain, rows, cuts, pa.int64(), ("k",), depth)


ZONES = ("Europe/Berlin", "Pacific/Auckland", "UTC")
PLACES = [(datetime(2026, *day, 20, tzinfo=UTC), zone) for day in ((3, 28), (10, 24)) for zone in ZONES]
PLACES += [(datetime(2011, 12, 29, 20, tzinfo=UTC), "Pacific/Apia")]
PLACES += [(datetime(1994, 12, 30, 20, tzinfo=UTC), "Pacific/Kiritimati")]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(PLACES), cut_places)
def test_days_of_a_zone(data: st.DataObject, place: tuple[datetime, str], cuts: list[tuple[int, int]]) -> None:
    """Days of 23 and 25 hours, of a zone that is half a day away from UTC, and one that a zone has skipped."""
    start, zone = place
    rows = data.draw(batches(st.integers(0, 9), int(start.timestamp() * 1000), 10_000))
    days = data.draw(st.integers(1, 3))
    size = days + data.draw(st.integers(0, 2))
    made = tuple(aggregator for aggregator, _ in IN_ARRAYS)
    operation = AlignedWindow(made, days * 86_400, size * 86_400, data.draw(st.sampled_from([0, 7200, -3600])), zone)
    check(operation, IN_ARRAYS, rows, cuts, pa.int64(), ("k",))


def test_a_sum_wraps_at_no_place_on_the_way() -> None:
    """Ints whose sum leaves 64 bits and comes back in one batch; one that stays out there is an error."""
    rows: list[Row] = [
        ("a", 1, "x", v, n, f"{n:05d}", n) for n, v in enumerate([2**62, 2**62, 2**62, -(2**62), -(2**62), 5])
    ]
    chain = ((agg.Sum("v"), None), (agg.Average("v"), pa.float64()))
    operation = AlignedWindow(tuple(aggregator for aggregator, _ in chain), 10)
    for cuts in ([], [(1, 0), (5, 0)]):
        check(operation, chain, rows, cuts, pa.int64(), ("k",))
        with pytest.raises(ArithmeticError):
            check(operation, chain, rows[:3], cuts, pa.int64(), ("k",))


def test_types_that_are_ordered() -> None:
    """The least and the greatest of dates and timestamps, as one by one."""
    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in (3, 1, 2)]
    operation = AlignedWindow((agg.Min("t", "least"), agg.Max("t", "most")), 10)
    own = [(name, pa.string() if name in (ev.ID, ev.FROM, ev.ORDER) else pa.int64()) for name in ev.COLUMNS]
    bounds = [("window_start", STAMP), ("window_end", STAMP)]
    schema = pa.schema([*bounds, ("least", STAMP), ("most", STAMP), *own])
    rows = pa.table({
        "t": pa.array([*days, None], STAMP), ev.CLOCK: pa.array([1, 2, 3, 4]), ev.ORDER: pa.array(["1", "2", "3", "4"]),
    })  # fmt: skip
    windows, state = arrays_for(operation, place((), 0), schema), EMPTY
    for start in range(4):
        _, state = windows.feed(state, rows.slice(start, 1), start + 1)
    results, _ = windows.feed(state, rows.slice(0, 0), 10_000)
    assert results.select(["least", "most"]).to_pylist() == [{"least": days[1], "most": days[0]}]


def test_what_fits() -> None:
    taken = pa.schema([("k", pa.string()), ("d", pa.float64())])
    for operation in (AlignedWindow((Told(),), 1), SessionWindow((agg.Collect("k"),), 1)):
        assert fits(operation, place(("k",), 0), taken)
        assert not fits(operation, place(("d",), 0), taken)
        assert not fits(operation, place(("absent",), 0), taken)
    assert wanted_columns(SessionWindow((agg.Count(),), 1), place((), 0)) == ()
    assert wanted_columns(SessionWindow((agg.Count(),), 1), place((), 1)) == (ev.TIME,)
    assert wanted_columns(SessionWindow((Told(),), 1), place((), 0)) == (ev.ID, ev.TIME, ev.FROM)


def one_key(*values: int, since: int = 1000) -> pa.Table:
    rows: list[Row] = [("a", 0, None, value, since + n, f"{n}", None) for n, value in enumerate(values)]
    return table_of(rows, pa.int64(), ())


def hourly(aggregator: Any) -> Any:
    where, kind = place(("k",), 0), pa.int64()
    return arrays_for(AlignedWindow((aggregator,), 3600), where, result_schema([(aggregator, kind)], ("k",), kind))


def test_the_least_bigint_is_not_the_greatest() -> None:
    made, _ = hourly(agg.Max("v")).feed(EMPTY, one_key(-(2**63), 5, -7), HOUR)
    assert made["max"].to_pylist() == [5]
    made, _ = hourly(agg.Min("v")).feed(EMPTY, one_key(5, -(2**63), -7), HOUR)
    assert made["min"].to_pylist() == [-(2**63)]


def test_a_batch_that_brings_a_total_beyond_bigint_fails_and_not_the_one_that_ends_the_window() -> None:
    windows = hourly(agg.Sum("v"))
    _, state = windows.feed(EMPTY, one_key(2**63 - 2), 1200)
    with pytest.raises(ArithmeticError, match=r"the sum of \"v\" does not fit bigint in the window 1970.*, k 'a'"):
        windows.feed(state, one_key(1, 1, since=1500), 2000)
    _, state = windows.feed(state, one_key(1, since=1500), 2000)
    made, _ = windows.feed(state, one_key(0).slice(0, 0), HOUR)
    assert made["sum"].to_pylist() == [2**63 - 1]
    made, _ = hourly(agg.Sum("v")).feed(EMPTY, one_key(-(2**63)), HOUR)
    assert made["sum"].to_pylist() == [-(2**63)]


CALENDARS = ("Europe/Berlin", "Pacific/Apia", "Pacific/Kwajalein", "Australia/Lord_Howe", "Antarctica/Troll", "UTC")
# About the midnight at which Apia left a day out, a change of Berlin's clocks, and the ends of the years that events may have.
TIMES = st.one_of(
    st.integers(1_325_000_000_000, 1_325_500_000_000),
    st.integers(1_774_600_000_000, 1_774_900_000_000),
    st.integers(ev.EARLIEST, 250_000_000_000_000),
)


@settings(max_examples=150)
@given(
    st.lists(TIMES, max_size=30),
    st.integers(1, 9),
    st.integers(0, 12),
    st.integers(-80_000, 700_000),
    st.sampled_from(CALENDARS),
)
def test_days_of_many_times_are_those_of_each(at: list[int], every: int, more: int, offset: int, zone: str) -> None:
    places = DayPlaces(ZoneInfo(zone), every, every + more, offset)
    found = zip(*(part.tolist() for part in span_arrays.by_days(places, np.array(at, np.int64))), strict=True)
    assert [*found] == [(row, *window) for row, one in enumerate(at) for window in places.around(one)]


class _CountingPlaces(DayPlaces):
    asked = 0

    def begins(self, day: int) -> int:
        type(self).asked += 1
        return super().begins(day)


def test_times_of_thousands_of_days_are_placed_at_once() -> None:
    """Each day by itself went over all rows: a batch of hostile times took minutes."""
    times = np.repeat(np.arange(0, 5000 * 7, 7) * 86_400_000, 100)
    row, start, end = span_arrays.by_days(_CountingPlaces(ZoneInfo("Europe/Berlin"), 1, 1, 0), times[::-1])
    assert row.tolist() == [*range(len(times))]
    assert np.all((start <= times[::-1]) & (times[::-1] < end))
    assert _CountingPlaces.asked <= 6 * 5000
