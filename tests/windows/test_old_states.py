"""State that a bucket of version 0.1.0 has written, in a checkpoint, is gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines import aggregators as agg
from pipelines.graph import events as ev
from pipelines.windows.bucket import BucketMaker, Clocks
from pipelines.windows.event import Event
from pipelines.windows.keyed import KeyedWindows
from pipelines.windows.operations import AggregateWindow
from pipelines.windows.policy import Policy
from tests.windows.window_runs import context

# Windows by count behind `rows(0, 14)` and the word that the clock is 11,500 ms, so that two events wait.
BLOB = Path(__file__).with_name("count_windows_0_1.bin")
OPERATION = AggregateWindow(
    (agg.Count("n"), agg.Sum("v"), agg.Min("w")), Policy.count(3), Policy.count(5), False, 60_000
)
EVENT = [(one, pa.int64() if one in (ev.TIME, ev.CLOCK) else pa.string()) for one in ev.COLUMNS]


def rows(first: int, end: int) -> list[tuple[Any, ...]]:
    return [
        ("ab"[n % 2] if n % 5 else None, n if n % 4 else None, n / 2, None, None, 1000 * n, None, f"{n:06d}")
        for n in range(first, end)
    ]


def test_windows_by_count() -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("sum", pa.int64()), ("min", pa.float64()), *EVENT])
    taken = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.float64()), *EVENT])
    bucket = BucketMaker(OPERATION, context("k"), ("c",), schema, in_arrays=True)()
    word = (None, None, None, None, None, 40_000, "c", None)
    columns = zip(*rows(14, 30), word, strict=True)
    assert bucket.starts(
        pa.table([pa.array(c, f.type) for c, f in zip(columns, taken, strict=True)], schema=taken),
        Clocks({"c": 11_500}),
    )
    bucket.restore(BLOB.read_bytes())
    found = bucket.run(1).to_pylist()
    one_by_one = KeyedWindows(OPERATION, context("k"))
    events = [
        (Event({"k": k, "v": v, "w": w}, "e", clock), clock, order) for k, v, w, _, _, clock, _, order in rows(0, 30)
    ]
    one_by_one.feed(events[:14], 11_500)
    wanted = one_by_one.feed(events[14:], 40_000)
    assert [(row["n"], row["sum"], row["min"], row[ev.ID], row[ev.ORDER]) for row in found] == [
        (event["n"], event["sum"], event["min"], event.id, order) for event, _, order in wanted
    ]
