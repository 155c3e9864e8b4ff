"""Aligned and session windows: against all events at once, cut anywhere, by the calendar, and against Spark's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.errors import ChainOutputsError, FlowError
from pipelines.flowmix import Count, Flow, Max, Policy, Sum
from pipelines.testing import run_flow
from pipelines.windows.aligned import DayPlaces, FixedPlaces, places_of
from pipelines.windows.blob import dumps, loads
from pipelines.windows.event import Event
from pipelines.windows.keyed import Item, KeyedWindows
from pipelines.windows.operations import DAY, AlignedWindow, SessionWindow
from tests.windows.window_runs import context

MADE = (Count(output="n"), Sum("v", "sum"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Spans = list[tuple[int, int, list[int]]]


def instant(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def aligned_spans(operation: AlignedWindow, events: list[tuple[int, int]]) -> Spans:
    """Every window of every place, each filled from all events."""
    every, size, offset = 1000 * operation.every, 1000 * operation.lasts, 1000 * operation.offset
    low, high = min(at for at, _ in events) - size, max(at for at, _ in events) + every
    starts = range((low - offset) // every * every + offset, high, every)
    filled = [(start, start + size, [v for at, v in events if start <= at < start + size]) for start in starts]
    return [span for span in filled if span[2]]


def session_spans(operation: SessionWindow, events: list[tuple[int, int]]) -> Spans:
    gap, spans = 1000 * operation.gap, []
    for at, value in events:
        if not spans or at > spans[-1][1]:
            spans.append((at, at + gap, []))
        spans[-1] = (spans[-1][0], at + gap, [*spans[-1][2], value])
    return spans


def check(operation: Any, spans_of: Callable[..., Spans], events: list[Item], cuts: list[int]) -> None:
    """What comes out up to a clock is what lies wholly before it, and no cut with a restart between changes a thing."""
    end = events[-1][1] + 2500
    late = 0 if isinstance(operation, AlignedWindow) else 1
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event, at, _ in events:
        by_key[event["k"]].append((at, event["v"]))
    wanted = [
        (
            stop + late,
            {"k": key, "window_start": instant(start), "window_end": instant(stop), "n": len(v), "sum": sum(v)},
        )
        for key, given in by_key.items()
        for start, stop, v in spans_of(operation, given)
        if stop + late <= end
    ]
    whole = KeyedWindows(operation, context("k")).feed(events, end)
    assert sorted(((at, dict(event)) for event, at, _ in whole), key=repr) == sorted(wanted, key=repr)
    assert [at for _, at, _ in whole] == sorted(at for _, at, _ in whole)
    assert all(instant(event.timestamp + 1) == event["window_end"] for event, _, _ in whole)
    assert len({event.id for event, _, _ in whole}) == len(whole)
    windows, made, done, clock = KeyedWindows(operation, context("k")), [], 0, 0
    for cut in [*sorted(cuts), len(events)]:
        upto = min(cut, len(events))
        clock = end if upto == len(events) else max(clock, events[upto - 1][1] - 300 if upto else 0)
        made += windows.feed(events[done:upto], clock)
        due = windows.due()
        assert due is None or due > clock
        done, state = upto, dumps(windows.save())
        windows = KeyedWindows(operation, context("k"))
        windows.restore(loads(state))
        assert (dumps(windows.save()), windows.due()) == (state, due)
    assert [(dict(e), e.id, e.timestamp, at, order) for e, at, order in made] == [
        (dict(e), e.id, e.timestamp, at, order) for e, at, order in whole
    ]


@st.composite
def streams(draw: st.DrawFn) -> list[Item]:
    now, events = draw(st.sampled_from([0, 10**12, 1_774_746_000_123])), []
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 0, 1, 200, 999, 1000, 1001, 2500, 6000, 60_000]))
        fields = {"k": draw(st.sampled_from("ab")), "v": draw(st.integers(-5, 5))}
        events.append((Event(fields, f"e{number}", now, "s"), now, f"{number:06d}"))
    return events


cuts = st.lists(st.integers(0, 25), max_size=3)


@settings(max_examples=150)
@given(streams(), st.integers(1, 7), st.integers(0, 20), st.integers(-6, 30), cuts)
def test_aligned(events: list[Item], every: int, more: int, offset: int, cuts: list[int]) -> None:
    check(AlignedWindow(MADE, every, every + more, max(offset, 1 - every)), aligned_spans, events, cuts)


@settings(max_examples=100)
@given(streams(), st.integers(1, 7), cuts)
def test_session(events: list[Item], gap: int, cuts: list[int]) -> None:
    check(SessionWindow(MADE, gap), session_spans, events, cuts)


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-07-01", 24)])
def test_a_day_has_as_many_hours_as_its_zone_gives_it(day: str, hours: int) -> None:
    places = places_of(AlignedWindow(MADE, DAY, time_zone="Europe/Berlin"))
    midnight = int(datetime.fromisoformat(day).replace(tzinfo=BERLIN).timestamp() * 1000)
    length = hours * 3_600_000
    for at in (midnight, midnight + length // 2, midnight + length - 1):
        assert list(places.around(at)) == [(midnight, midnight + length)]
    assert list(places.around(midnight - 1)) != list(places.around(midnight))


@settings(max_examples=200)
@example(1_325_239_200_007, 1, 1, 0, "Pacific/Apia")  # just behind the midnight at which the 30th was left out
@given(
    st.integers(0, 4_000_000_000_000),
    st.integers(1, 9),
    st.integers(0, 12),
    st.integers(-80_000, 700_000),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Africa/Casablanca", "UTC"]),
)
def test_days_of_a_zone_cover_all_time(at: int, every: int, more: int, offset: int, zone: str) -> None:
    places = DayPlaces(ZoneInfo(zone), every, every + more, offset)
    around = list(places.around(at))
    assert around == sorted(set(around))
    assert len({start for start, _ in around}) == len(around)
    assert all(start <= at < end for start, end in around)
    # A window begins where the one before does `every` days earlier by the zone's clocks; the next one is not yet open.
    assert len(around) in {
        -(-(every + more) // every) - 1,
        -(-(every + more) // every),
        -(-(every + more) // every) + 1,
    }
    assert around[-1][0] in {start for start, _ in places.around(around[-1][0])}
    if zone == "UTC":
        fixed = FixedPlaces(every * DAY * 1000, (every + more) * DAY * 1000, offset * 1000)
        assert around == list(fixed.around(at))


def test_windows_of_windows_nest() -> None:
    """A minute that ends with the hour belongs to that hour."""
    built = (
        Flow("f").stream("s", "k string, v bigint").partition("k")
        .aligned(Count(output="n"), every=60).aligned(Sum("n", "n"), Count(output="minutes"), every=3600)
        .output().build()
    )  # fmt: skip
    times = [0, 59_999, 60_000, 3_599_999, 3_600_000, 7_199_999, 7_200_000, 10_800_001, 10_800_005]
    script = {"s": [{"k": "a", "v": 1, "timestamp": at} for at in times]}
    hours = [(event["window_start"].hour, event["n"], event["minutes"]) for event in run_flow(built, script)["s"]]
    assert hours == [(0, 4, 3), (1, 2, 2), (2, 1, 1)]


def _placed(stream: Any, **scripts: Any) -> list[tuple[int, int]]:
    """Return the start of each window of a second of what a stream makes, and how many events are in it."""
    made = run_flow(stream.aligned(Count(output="n"), every=1).output().build(), scripts)["s"]
    return [(event["window_start"].second, event["n"]) for event in made]


def test_the_clock_places_what_other_windows_made() -> None:
    """Only results of aligned windows are of their own time: others come by chance as little behind it as those."""
    late = [{"v": number, "timestamp": at} for number, at in enumerate((998, 999, 2500))]
    assert _placed(Flow("f").stream("s", "v bigint").sort("v", tumbling=Policy.time(1)), s=late) == [(1, 2)]
    one = [{"v": 1, "timestamp": 0}, {"v": 2, "timestamp": 9000}]
    summed = Flow("f").stream("a", "v bigint").sort("v", progressive=1).aligned(Sum("v", "v"), every=1).to("s")
    for numbers in (
        Flow("f").stream("s", "v bigint"),
        Flow("f").stream("s", "v bigint").sort("v", progressive=1),
        summed.stream("s", "v bigint"),
    ):
        assert _placed(numbers.session(Count(output="visits"), gap=1), s=one)[0] == (1, 1)


def test_the_clock_places_joined_events() -> None:
    flow = Flow("f").stream("left", "k string, v bigint").to("s").stream("right", "k string, w bigint").to("s")
    joined = flow.stream("s").partition("k").join("left", "right", evict=Policy.count(9))
    left = [{"k": "a", "v": at, "timestamp": at} for at in (997, 998, 999)]
    right = [{"k": "a", "w": 5, "timestamp": at} for at in (1000, 5000)]
    assert _placed(joined, left=left, right=right)[0] == (1, 3)


def test_windows_nest_behind_what_passes_their_results_on() -> None:
    """Also a window that has others before it, and comes a little later for each."""
    sums = Flow("f").stream("s", "v bigint").sort("v", progressive=1).aligned(Sum("v", "v"), every=1)
    script = [{"v": 1, "timestamp": at} for at in (0, 999, 1000, 5000)]
    assert _placed(sums.sort("v", progressive=1), s=script)[:2] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (lambda s: s.aligned(every=1), "needs an aggregator"),
        (lambda s: s.aligned(Count(), every=0), "every is a whole number of seconds from 1"),
        (lambda s: s.aligned(Count(), every=1.5), "every is a whole number of seconds"),
        (lambda s: s.aligned(Count(), every=10, size=5), "size is a whole number of seconds from 10"),
        (lambda s: s.aligned(Count(), every=1, size=1001), "each event would be in 1001 windows"),
        (lambda s: s.aligned(Count(), every=5, offset=-5), "offset is a whole number of seconds from -4"),
        (lambda s: s.aligned(Count(), every=DAY, time_zone="Mars/Base"), "no time zone 'Mars/Base'"),
        (lambda s: s.aligned(Count(), every=DAY, time_zone="../etc"), "no time zone"),
        (lambda s: s.aligned(Count(), every=3600, time_zone="UTC"), "whole days"),
        (lambda s: s.session(Count(), gap=0), "gap is a whole number of seconds from 1"),
        (lambda s: s.session(Sum("none"), gap=1), "none"),
    ],
)
def test_what_cannot_be_is_refused(add: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(Exception, match=text) as refused:
        add(Flow("f").stream("s", "k string, v bigint"))
    assert isinstance(refused.value, FlowError) or "none" in text


def test_bounds_are_outputs() -> None:
    with pytest.raises(ChainOutputsError):
        AlignedWindow((Count(output="Window_End"),), 1)
    with pytest.raises(ChainOutputsError):
        Flow("f").stream("s", "window_start string").partition("window_start").session(Count(), gap=1)


def flow() -> Any:
    return (
        Flow("spans")
        .stream("s", "k string, v bigint").partition("k").to("hops", "visits")
        .aligned(*MADE, Max("v", "most"), every=10, offset=3).output()
        .stream("hops").partition("k").aligned(*MADE, every=5, size=12).persist("hopping")
        .stream("visits").partition("k").session(*MADE, gap=4).aligned(Count(output="sessions"), every=60).output()
        .build()
    )  # fmt: skip


EVENTS = [
    {"k": "ab"[n % 3 == 0], "v": n, "timestamp": 1_000_000 + at}
    for n, at in enumerate(
        [0, 1, 2999, 3000, 4000, 8000, 8001, 12_000, 13_000, 17_000, 17_001, 40_000, 99_000, 200_000]
    )
]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(240)
def test_engines_agree(spark: SparkSession) -> None:
    wanted = run_flow(flow(), {"s": EVENTS}, engine="reference", spark=spark)
    assert all(len(events) > 4 for events in wanted.values())
    assert run_flow(flow(), {"s": EVENTS}, engine="batch", spark=spark) == wanted
    assert run_flow(flow(), {"s": EVENTS}, engine="stream", spark=spark) == wanted


@pytest.mark.slow
def test_spark_has_the_same_windows(spark: SparkSession) -> None:
    """All but those that are open at the end: Spark's own run closes every window."""
    given = [(event["k"], event["v"], instant(event["timestamp"])) for event in EVENTS]
    frame = spark.createDataFrame(given, "k string, v bigint, at timestamp")
    spans = {
        "s": F.window("at", "10 seconds", "10 seconds", "3 seconds"),
        "hopping": F.window("at", "12 seconds", "5 seconds"),
    }
    last = instant(EVENTS[-1]["timestamp"]).replace(tzinfo=None)
    mine = run_flow(flow(), {"s": EVENTS}, spark=spark)
    for name, window in spans.items():
        rows = frame.groupBy("k", window.alias("w")).agg(F.count("*").alias("n"), F.sum("v").alias("sum")).collect()
        theirs = {(r.k, r.w.start, r.w.end, r.n, r["sum"]) for r in rows}
        ours = {(e["k"], e["window_start"], e["window_end"], e["n"], e["sum"]) for e in mine[name]}
        assert ours == {row for row in theirs if row[2] <= last}, name
    sessions = Flow("g").stream("s", "k string, v bigint").partition("k").session(*MADE, gap=4)
    ours = {
        (e["k"], e["window_start"], e["window_end"], e["n"])
        for e in run_flow(sessions.output().build(), {"s": EVENTS})["s"]
    }
    rows = frame.groupBy("k", F.session_window("at", "4 seconds").alias("w")).count().collect()
    theirs = {(r.k, r.w.start, r.w.end, r["count"]) for r in rows}
    assert ours == {row for row in theirs if row[2] < last}


def test_an_event_at_the_very_end_of_a_session_belongs_to_it(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(instant(0),), (instant(4000),), (instant(8001),)], "at timestamp")
    counts = rows.groupBy(F.session_window("at", "4 seconds").alias("w")).count().orderBy("w").collect()
    assert [row["count"] for row in counts] == [
        len(v) for _, _, v in session_spans(SessionWindow(MADE, 4), [(0, 1), (4000, 1), (8001, 1)])
    ]
