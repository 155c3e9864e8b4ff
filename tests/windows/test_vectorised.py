"""Windows in arrays against `KeyedWindows`: the same results, ids and order, with cuts, clocks and restarts anywhere."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import aggregators as agg
from pipelines.graph import events as ev
from pipelines.graph.nodes import Aggregation
from pipelines.windows import arrays
from pipelines.windows.array_kinds import OneByOne, fits, windows_of
from pipelines.windows.arrays import EMPTY, WindowContent, from_ipc, to_ipc
from pipelines.windows.buffer import WindowContext
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import AggregateWindow, AlignedWindow, SessionWindow
from pipelines.windows.policy import Policy
from pipelines.windows.tuples import TupleChain
from pipelines.windows.vectorised import ArrayWindows
from tests.tiers import tier
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


def place(partition: tuple[str, ...]) -> WindowContext:
    """At depths of their own, which show in the order of what ticks make."""
    return WindowContext("flow", "stream", 1, partition, len(partition))


def table_of(rows: list[Row], taken: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in taken]
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, taken, strict=True)], schema=taken)


def parted(rows: list[Row], cuts: list[tuple[int, int]]) -> list[tuple[list[Row], int]]:
    """The rows in batches, each with a clock behind which no later batch has a row, though the batch itself may."""
    ends = sorted({min(cut, len(rows)) for cut, _ in cuts} | {len(rows)})
    gaps, parts, start, now = [gap for _, gap in cuts], [], 0, -(2**60)
    for number, end in enumerate(ends):
        wanted = (rows[end - 1][3] if end else 0) + (gaps[number] if number < len(gaps) else 7000)
        now = max(now, min([wanted, *(row[3] for row in rows[end:])]))
        parts.append((rows[start:end], now))
        start = end
    # Then nothing but the clock.
    return [*parts, ([], now + 1500), ([], now + 30_000)]


def generic(
    operation: AggregateWindow, parts: list[tuple[list[Row], int]], partition: tuple[str, ...]
) -> list[list[dict[str, Any]]]:
    windows, made = KeyedWindows(operation, place(partition)), []
    own = (ev.ID, ev.TIME, ev.CLOCK, ev.FROM, ev.ORDER)
    for rows, clock in parts:
        items = [(Event({"k": k, "j": j, "v": v}, "e", now), now, order) for k, j, v, now, order in rows]
        made.append(
            [
                {**event, **dict(zip(own, (event.id, event.timestamp, now, event.stream, order), strict=True))}
                for event, now, order in windows.feed(items, clock)
            ]
        )
    return made


def through_bytes(state: WindowContent) -> WindowContent:
    tables = [None if table is None else from_ipc([to_ipc(table, "lz4")]) for table in (state.windows, state.pending)]
    return WindowContent(*tables, state.clock)


def check(
    operation: AggregateWindow,
    rows: list[Row],
    cuts: list[tuple[int, int]],
    kind: pa.DataType,
    partition: tuple[str, ...],
) -> None:
    """Batch by batch the same results as one by one, each from the state behind the one before, which stays as it was."""
    taken, schema = schemas(kind)
    schema = pa.schema([field for field in schema if field.name not in ("k", "j") or field.name in partition])
    assert fits(operation, place(partition), taken)
    windows, state = ArrayWindows(operation, place(partition), schema), EMPTY
    parts = parted(rows, cuts)
    for (part, clock), expected in zip(parts, generic(operation, parts, partition), strict=True):
        shuffled = table_of(part[::-1], taken)
        due = windows.due(state)
        first, _ = windows.feed(state, shuffled, clock)
        results, state = windows.feed(through_bytes(state), table_of(part, taken), clock)
        assert first.equals(results) or repr(first.to_pylist()) == repr(results.to_pylist())
        assert not results.num_rows or part or (due is not None and due <= clock)
        made = [{name: value for name, value in row.items() if value is not None} for row in results.to_pylist()]
        wanted = [{name: row[name] for name in schema.names if name in row} for row in as_typed(expected, kind)]
        # Of a key without a value the general form has no field in the first event's group.
        assert repr(made) == repr([{n: v for n, v in row.items() if v is not None} for row in wanted])


def as_typed(rows: list[dict[str, Any]], kind: pa.DataType) -> list[dict[str, Any]]:
    if pa.types.is_integer(kind):
        return rows
    numbers = ("sum", "min", "max")
    return [{name: float(v) if name in numbers else v for name, v in row.items()} for row in rows]


@st.composite
def batches(draw: st.DrawFn, numbers: st.SearchStrategy[Any]) -> list[Row]:
    now, rows = 0, []
    for number in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from([0, 0, 1, 100, 900, 1000, 2000]))
        key = draw(st.sampled_from([("a", 1), ("b", 1), ("a", 2), (None, 1), ("", None)]))
        rows.append((*key, draw(numbers), now, f"{number:05d}"))
    return rows


ints = st.none() | st.integers(-5, 9) | st.sampled_from([2**31, -(2**40)])
floats = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf"), -0.0, 1e308, -1e308])
thresholds = st.integers(1, 7)
lifetimes = st.sampled_from([1, 1000, 1700, 4000, 20_000, 10**9])
cut_places = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([-2500, -300, 0, 1, 900, 40_000])), max_size=4)
triggers = st.one_of(
    thresholds.map(Policy.count),
    thresholds.map(Policy.time),
    st.just(Policy.count(0)),
    st.just(Policy.time_delta_lt(0)),
)
evictions = st.one_of(
    st.integers(0, 7).map(Policy.count), st.integers(0, 9).map(Policy.time), st.just(Policy.time_delta_lt(2))
)


@st.composite
def operations(draw: st.DrawFn) -> AggregateWindow:
    trigger, evict, clear = draw(triggers), draw(evictions), draw(st.booleans())
    at_every_tick = not trigger.threshold and evict.age is not None
    if not trigger.threshold and not at_every_tick:
        trigger = Policy.count(2)
    if not (evict.keeps or evict.age is not None):
        clear = True
        trigger = trigger if trigger.events else Policy.count(3)
    return AggregateWindow(CHAIN, trigger, evict, clear, draw(lifetimes))


@settings(max_examples=150, deadline=None)
@given(batches(ints), operations(), cut_places, st.sampled_from([1, 5, arrays.RESULTS_AT_ONCE]))
@pytest.mark.parametrize(
    "partition", [("k", "j"), *(pytest.param(key, marks=tier(False)) for key in (("k",), (), ("j",)))]
)
def test_ints(
    partition: tuple[str, ...], rows: list[Row], operation: AggregateWindow, cuts: list[tuple[int, int]], most: int
) -> None:
    with patch.object(arrays, "RESULTS_AT_ONCE", most):
        check(operation, rows, cuts, pa.int64(), partition)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(batches(floats), operations(), cut_places)
def test_floats(rows: list[Row], operation: AggregateWindow, cuts: list[tuple[int, int]]) -> None:
    check(operation, rows, cuts, pa.float64(), ("k",))


@pytest.mark.parametrize("own", [(), (agg.DistinctCount("v", "distinct"),)])
def test_ticks_behind_a_gap_come_in_steps(own: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some silence over many keys is many results: not all of them are laid out at once, and no fewer than may be."""
    taken, schema = schemas(pa.int64())
    names = ["k", "count", *ev.COLUMNS]
    schema = pa.schema([*(schema.field(name) for name in names), *([("distinct", pa.int64())] if own else [])])
    operation = AggregateWindow((agg.Count(), *own), Policy.time(1), Policy.time(60), False, 300_000)
    whole = pa.schema([*taken, (ev.ID, pa.string()), (ev.TIME, pa.int64()), (ev.FROM, pa.string())])
    windows = windows_of(operation, context("k"), taken, schema)
    assert isinstance(windows, OneByOne if own else ArrayWindows)
    sizes, run = list[int](), type(windows)._run

    def counted(*args: Any) -> Any:
        made = run(*args)
        sizes.append(made[0].num_rows)
        return made

    def rows(*clocks: int) -> pa.Table:
        made = table_of([(f"k{n % 50}", 1, 1, at, f"{n:05d}") for n, at in enumerate(clocks)], taken)
        return pa.table([made[f.name] if f.name in taken.names else pa.nulls(len(made), f.type) for f in whole], whole)

    monkeypatch.setattr(type(windows), "_run", counted)
    monkeypatch.setattr(arrays, "RESULTS_AT_ONCE", 1000)
    _, state = windows.feed(EMPTY, rows(*[0] * 50), 0)
    made, state = windows.feed(state, rows(600_000), 600_000)
    assert made.num_rows == 50 * 299
    assert max(sizes) <= 1000
    # A key that is held and in the batch is one.
    _, state = windows.feed(EMPTY, rows(*[0] * 50), 0)
    monkeypatch.setattr(arrays, "RESULTS_AT_ONCE", 1000 * windows.each)
    sizes.clear()
    made, state = windows.feed(state, rows(*[500] * 50), 20_500)
    assert sizes == [1000]
    # Years without a window are one step.
    sizes.clear()
    made, _ = windows.feed(state, rows(10**12), 10**12 + 500)
    assert made.num_rows == 50 * 280
    assert len(sizes) < 20


BIG, DIGITS = 2**63 - 1, 10**38 - 1
BOUNDS = [(name, pa.timestamp("us", "UTC")) for name in ("window_start", "window_end")]
every, last = Policy.time(5), Policy.time(60)
ALONE = (agg.Sum("v"),)
TOTALS: dict[str, tuple[Any, int]] = {
    "by time": (AggregateWindow(ALONE, every, last), BIG),
    "by count": (AggregateWindow(ALONE, Policy.count(4), Policy.count(4)), BIG),
    "one by one": (AggregateWindow((*ALONE, agg.DistinctCount("v", "other")), every, last), BIG),
    "one by one, none leaves": (AggregateWindow(ALONE, every, Policy.count(0), True), BIG),
    "decimals one by one": (AggregateWindow(ALONE, every, last), DIGITS),
    "decimals in a span": (AlignedWindow(ALONE, 5), DIGITS),
    "decimals in a session": (SessionWindow(ALONE, 5), DIGITS),
    "tuples in a span": (
        AlignedWindow((TupleChain((Aggregation(agg.Sum(), ("v",), ("sum",), ("bigint",)),)),), 5),
        BIG,
    ),
}


@pytest.mark.parametrize("name", TOTALS)
def test_a_batch_that_brings_a_total_beyond_its_type_fails_and_behind_a_skip_the_flow_goes_on(name: str) -> None:
    operation, big = TOTALS[name]
    kind = pa.int64() if big == BIG else pa.decimal128(38, 0)
    own = [(name, pa.string() if name in (ev.ID, ev.FROM, ev.ORDER) else pa.int64()) for name in ev.COLUMNS]
    taken = pa.schema([("k", pa.string()), ("v", kind), *own])
    kinds = {**dict(BOUNDS), "sum": kind, "other": pa.int64()}
    made = pa.schema([("k", pa.string()), *((name, kinds[name]) for name in operation.outputs), *own])
    windows = windows_of(operation, context("k"), taken, made)

    def rows(*given: tuple[str, int, int]) -> pa.Table:
        number: Any = int if big == BIG else Decimal
        of: list[Any] = [(k, number(v), f"e{n}", at, at, "s", f"{n:05d}") for n, (k, v, at) in enumerate(given)]
        return table_of(of, taken)

    _, state = windows.feed(EMPTY, rows(("a", big - 1, 0), ("b", 7, 0)), 100)
    with pytest.raises(
        ArithmeticError, match=r'the sum of "v" does not fit (bigint|decimal\(38\)) in the window .*\'a\''
    ):
        windows.feed(state, rows(("a", 1, 200), ("a", 1, 200)), 300)
    # It was left out. What just fits is emitted, and values that are large and not their sum.
    _, state = windows.feed(state, rows(("a", 1, 400), ("a", -big, 500), ("a", big, 500)), 600)
    results, _ = windows.feed(state, rows(*[("b", 1, 700)] * 3, ("c", 1, 20_000)), 20_000)
    found = {row["k"]: row["sum"] for row in reversed(results.to_pylist())}
    assert found["b"] == 10
    assert found.get("a", big) == big


HALF = 2**62


class Seen(agg.WindowAggregator):
    """Hear of each event that comes and goes."""

    outputs = "seen bigint"

    def added(self, event: Event) -> None:
        self.held = getattr(self, "held", 0) + 1

    def evicted(self, event: Event) -> None:
        self.held -= 1

    def aggregate(self) -> int:
        return self.held


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("own", [(), (agg.DistinctCount("v", "distinct"),), (Seen(),)])
def test_where_all_events_leave_at_once_only_their_whole_sum_has_to_fit(own: tuple[Any, ...], keep: int) -> None:
    operation = AggregateWindow((*ALONE, *own), Policy.count(4), Policy.count(keep), True)
    windows, rows = sums_of(operation)
    _, state = windows.feed(EMPTY, rows((-HALF, 0), (HALF, 1), (HALF, 2)), 2)
    made, _ = windows.feed(state, rows((-HALF, 3)), 3)
    assert made["sum"].to_pylist() == [0]


@pytest.mark.parametrize("own", [(), (agg.DistinctCount("v", "distinct"),)])
def test_a_sum_that_only_a_step_of_the_clock_ends_with_fails_no_batch(
    own: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, rows = sums_of(AggregateWindow((*ALONE, *own), Policy.time(1), Policy.time(60)))
    monkeypatch.setattr(arrays, "RESULTS_AT_ONCE", 1)
    made, _ = windows.feed(EMPTY, rows((HALF, 100), (HALF, 1050), (-HALF, 1150)), 3000)
    assert made["sum"].to_pylist() == [HALF] * 3


@pytest.mark.parametrize("own", [(), (agg.DistinctCount("v", "distinct"),)])
def test_a_total_of_one_key_fails_no_batch_that_has_none_of_its_events(
    own: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release may have left it so."""
    operation = AggregateWindow((*ALONE, *own), Policy.time(10), Policy.time(60))
    windows, rows = sums_of(operation)
    with monkeypatch.context() as before:
        before.setattr(type(windows), "_check", lambda *given: None)
        _, state = windows.feed(EMPTY, rows((HALF, 0), (HALF, 1)), 2)
    _, state = windows.feed(state, rows((1, 3, "b")), 4)
    with pytest.raises(ArithmeticError, match="does not fit bigint in the window of k 'a'"):
        windows.feed(state, rows((1, 5)), 6)


def test_windows_one_by_one_are_checked_where_they_got_an_event() -> None:
    windows = KeyedWindows(AggregateWindow(ALONE, Policy.count(9), Policy.count(0), True), context("k"))
    sent = [Event({"k": k, "v": HALF}, f"e{n}", n, "s") for n, k in enumerate("aab")]
    windows.feed([(event, 0, event.id) for event in sent[:2]], 0)
    with pytest.raises(ArithmeticError, match="of k 'a'"):
        windows.check()
    windows.feed([(sent[2], 1, "e2")], 1)
    windows.check()


def sums_of(operation: AggregateWindow) -> tuple[arrays.Arrays, Any]:
    own = [(name, pa.string() if name in (ev.ID, ev.FROM, ev.ORDER) else pa.int64()) for name in ev.COLUMNS]
    taken = pa.schema([("k", pa.string()), ("v", pa.int64()), *own])
    made = pa.schema([("k", pa.string()), *((name, pa.int64()) for name in operation.outputs), *own])

    def rows(*given: tuple[Any, ...]) -> pa.Table:
        keyed: list[Any] = [(*row, "a")[:3] for row in given]
        of: list[Any] = [(k, v, f"e{n}", at, at, "s", f"{n:05d}") for n, (v, at, k) in enumerate(keyed)]
        return table_of(of, taken)

    return windows_of(operation, context("k"), taken, made), rows


def test_a_total_beyond_bigint_that_a_batch_itself_emits_is_named() -> None:
    taken, schema = schemas(pa.int64())
    schema = pa.schema([field for field in schema if field.name in ("sum", *ev.COLUMNS)])
    windows = ArrayWindows(AggregateWindow(ALONE, Policy.count(2), Policy.count(2)), context(), schema)
    with pytest.raises(ArithmeticError, match=r'the sum of "v" does not fit bigint in the window$'):
        windows.feed(EMPTY, table_of([("a", 1, BIG, 0, "0"), ("a", 1, 1, 0, "1")], taken), 0)


LATER = 10**9
EDGES = {
    "a tick comes before the events of its clock": ([0, 5000, 10_000], Policy.time(5), Policy.time(10), False, LATER),
    "an event of the very age is gone at the tick": ([0, 500, 5000], Policy.time(5), Policy.time(5), False, LATER),
    "the last tick is before the window's end": ([0, 999, 6999], Policy.time(2), Policy.time(9), False, 4001),
    "items of before the last emission count": ([0, 1, 2, 3, 4, 5], Policy.count(2), Policy.count(5), False, LATER),
    "cleared at each tick": ([0, 999, 1500, 2500, 2500], Policy.time(1), Policy.count(9), True, LATER),
    "a batch whose clocks are far apart": ([-(2**53), 0, 2**53], Policy.count(1), Policy.time(9), False, LATER),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    clocks, *rest = EDGES[name]
    rows: list[Row] = [(k, 1, n, now, f"{n:05d}{k}") for n, now in enumerate(clocks) for k in ("a", "b")]
    for cuts in ([], [(n, 0) for n in range(len(rows))]):
        check(AggregateWindow(CHAIN, *rest), rows, cuts, pa.int64(), ("k",))


def test_many_keys_with_clocks_far_apart() -> None:
    """Pairs of a window and a clock are no longer one number of 64 bits: the ranks of the clocks are."""
    taken, schema = schemas(pa.int64())
    schema = pa.schema([field for field in schema if field.name != "j"])
    rows: list[Row] = [(f"k{n}", 1, 1, now, f"{n:05d}") for now in (0, 2**53) for n in range(2000)]
    windows = ArrayWindows(AggregateWindow(CHAIN, Policy.count(1), Policy.time(9)), context("k"), schema)
    results, _ = windows.feed(EMPTY, table_of(rows, taken), 2**53)
    assert results["count"].to_pylist() == [1] * 4000


def test_what_fits() -> None:
    taken, _ = schemas(pa.int64())
    count, time = Policy.count(3), Policy.time(3)
    assert fits(AggregateWindow(CHAIN, count, count), context("k"), taken)
    assert fits(AggregateWindow(CHAIN, count, Policy.count(0), True), context(), taken)
    assert fits(AggregateWindow(CHAIN, time, count), context("k"), taken)
    assert fits(AggregateWindow(CHAIN, count, time), context("k"), taken)
    for operation in (
        AggregateWindow(CHAIN, count, Policy.count(0)),
        AggregateWindow(CHAIN, time, Policy.time_delta_lt(1)),
        AggregateWindow(CHAIN, time, Policy.count(0), True),
        AggregateWindow(CHAIN, Policy.count(0), count),
        AggregateWindow(CHAIN, Policy.time(0), time),
        AggregateWindow(CHAIN, Policy.time_delta_lt(2), count, True),
        AggregateWindow((agg.Collect("v"),), count, count),
        AggregateWindow((agg.Sum("k"),), count, count),
        AggregateWindow((agg.Sum("absent"),), count, count),
    ):
        assert not fits(operation, context("k"), taken)
    assert not fits(AggregateWindow(CHAIN, count, count), context("v"), taken.set(2, pa.field("v", pa.float64())))
