"""State that buckets of version 0.1.0 have written into checkpoints goes on, whatever form a bucket would choose today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines import aggregators as agg
from pipelines.graph import events as ev
from pipelines.windows.array_kinds import OneByOne
from pipelines.windows.arrays import WindowContent
from pipelines.windows.bucket import ArrayBucket, Bucket, BucketMaker, Clocks
from pipelines.windows.event import Event
from pipelines.windows.event_rows import items_of
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import AggregateWindow
from pipelines.windows.policy import Policy
from tests.windows.window_runs import context

CHAIN = (agg.Count("n"), agg.Sum("v"), agg.Min("w"))
COUNTED = AggregateWindow(CHAIN, Policy.count(3), Policy.count(5), False, 60_000)
SLIDING = AggregateWindow(CHAIN, Policy.time(2), Policy.time(5), False, 60_000)
EVENT = [(name, pa.int64() if name in (ev.TIME, ev.CLOCK) else pa.string()) for name in ev.COLUMNS]
MADE = pa.schema([("k", pa.string()), ("n", pa.int64()), ("sum", pa.int64()), ("min", pa.float64()), *EVENT])
# As windows in arrays get them: without the ids, times and origins of events.
TAKEN = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("w", pa.float64()), (ev.CLOCK, pa.int64()), (ev.ORDER, pa.string())]
)


def rows(first: int, end: int) -> list[tuple[Any, ...]]:
    return [
        ("ab"[n % 2] if n % 5 else None, n if n % 4 else None, n / 2, 1000 * n, f"{n:06d}") for n in range(first, end)
    ]


def batch(first: int, end: int, clock: int) -> pa.Table:
    """Events of an arrays' batch, and the word that the clock of the channel "c" has come so far."""
    given = [*rows(first, end), (None, None, None, clock, None)]
    table = pa.table([pa.array(c, f.type) for c, f in zip(zip(*given, strict=True), TAKEN, strict=True)], schema=TAKEN)
    return table.append_column(ev.FROM, pa.array([None] * (len(given) - 1) + ["c"], pa.string()))


@pytest.mark.parametrize("one_by_one", [False, True])
def test_windows_by_a_map_go_on_that_had_its_entries_for_values(one_by_one: bool) -> None:
    operation = AggregateWindow((agg.Count("n"),), Policy.count(1), Policy.count(5))
    kind = pa.map_(pa.string(), pa.int64())
    schema = pa.schema([("k", kind), ("n", pa.int64()), *EVENT])
    windows = KeyedWindows(operation, context("k"))
    before = [Event({"k": key} if key else {}, "e", 0, "s") for key in ([("x", 1), ("y", 2)], [("x", 1)], None)]
    windows.feed([(event, 0, f"{n:06d}") for n, event in enumerate(before)], 500)
    keys = [{"y": 2, "x": 1}, {}, {"x": 1}, None]
    own = {"k": kind, ev.CLOCK: pa.int64(), ev.ORDER: pa.string()}
    columns = [keys, [1000] * 4, [f"{n:06d}" for n in range(4)]]
    rows = pa.table([pa.array(c, t) for c, t in zip(columns, own.values(), strict=True)], schema=pa.schema(own.items()))
    if one_by_one:
        arrays = OneByOne(operation, context("k"), schema)
        state = WindowContent(arrays._saved(windows), None, 500)
        found = arrays.feed(state, rows, 2000)[0]["n"].to_pylist()
    else:
        kept = KeyedWindows(operation, context("k"))
        kept.restore(windows.save())
        found = [event["n"] for event, _, _ in kept.feed(items_of(rows), 2000)]
    assert found == [2, 1, 2, 2]


@pytest.mark.parametrize(
    ("operation", "file", "form"),
    [(COUNTED, "count_windows_0_1.bin", ArrayBucket), (SLIDING, "time_windows_0_1.bin", Bucket)],
)
def test_a_bucket_goes_on_with_it(operation: AggregateWindow, file: str, form: type[Bucket]) -> None:
    """The files hold the windows behind `rows(0, 14)` at the clock of 11,500 ms, so two events wait."""
    make = BucketMaker(operation, context("k"), ("c",), MADE, in_arrays=True)
    kept = Path(__file__).with_name(file).read_bytes()
    if form is ArrayBucket:
        kept = make().signature + kept
    clocks, results = Clocks({"c": 11_500}, 0), []
    for first, end, clock in ((14, 22, 19_700), (22, 22, 21_900), (22, 30, 90_000)):
        bucket = make()
        assert bucket.starts(batch(first, end, clock), clocks)
        bucket = bucket.in_form_of(kept)
        assert type(bucket) is form
        assert kept.startswith(bucket.signature)
        bucket.restore(kept[len(bucket.signature) :])
        results += bucket.run(1).to_pylist()
        kept, clocks = bucket.signature + bucket.save(), Clocks.of_json(bucket.clocks.to_json())
    one_by_one = KeyedWindows(operation, context("k"))
    events = [(Event({"k": k, "v": v, "w": w}, "e", clock), clock, order) for k, v, w, clock, order in rows(0, 30)]
    one_by_one.feed(events[:14], 11_500)
    wanted = [
        result
        for first, end, clock in ((14, 22, 19_700), (22, 22, 21_900), (22, 30, 90_000))
        for result in one_by_one.feed(events[first:end], clock)
    ]
    assert [(row["n"], row["sum"], row["min"], row[ev.ID], row[ev.ORDER]) for row in results] == [
        (event["n"], event["sum"], event.get("min"), event.id, order) for event, _, order in wanted
    ]


def test_windows_that_begin_today_are_in_arrays() -> None:
    bucket = BucketMaker(SLIDING, context("k"), ("c",), MADE, in_arrays=True)()
    assert bucket.starts(batch(0, 9, 8000), Clocks())
    assert type(bucket.in_form_of(b"")) is ArrayBucket
