"""Windows in the batch of their source give the answers of the reference engine and of bounded runs, however batches are cut."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.flowmix import (
    Average,
    Collect,
    Count,
    DistinctCount,
    Flow,
    Max,
    Min,
    Policy,
    StdDev,
    Sum,
    WindowAggregator,
)
from pipelines.flowmix.compile import topology_of
from pipelines.graph import nodes
from pipelines.sources import FixedBatches
from pipelines.testing import run_flow
from tests.lakes import lake_place

SCHEMA = "k string, n int, v bigint, w double, timestamp bigint, id string, t timestamp"
SEEDS = range(32)
CUTS, ENGINES = (1,), (9,)
"""Those of `make test`: windows by policies, spans of spans, and windows that have no form in arrays."""


class Latest(WindowAggregator):
    """The events with the greatest value, by id; sometimes more than one, and none where no event has the value."""

    outputs = "id string, v bigint"

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def added(self, event: Any) -> None:
        if event.get("v") is None or (self.kept and event["v"] < self.kept[0]["v"]):
            return
        if self.kept and event["v"] > self.kept[0]["v"]:
            self.kept = []
        self.kept.append({"id": event.id, "v": event["v"]})

    def evicted(self, event: Any) -> None:
        raise AssertionError("no event leaves a span before its end")

    def aggregate(self) -> list[dict[str, Any]]:
        return self.kept


def by_policies(stream: Any, chance: random.Random) -> Any:
    return stream.aggregate(
        Count(output="all"),
        Sum("v", "sum"),
        Average("w", "mean"),
        *chance.sample([Min("v", "least"), Max("w", "most"), StdDev("v", "spread")], 2),
        trigger=chance.choice([Policy.count(chance.randint(1, 5)), Policy.time(chance.randint(1, 4))]),
        evict=chance.choice([Policy.count(chance.randint(1, 6)), Policy.time(chance.randint(1, 8))]),
        clear_on_trigger=chance.random() < 0.4,
        window_evict_millis=chance.choice([3000, 3_600_000]),
    )


def one_by_one(stream: Any, chance: random.Random, *, sorts: bool) -> Any:
    """Windows that have no form in arrays."""
    few, more = Policy.count(chance.randint(1, 4)), Policy.time(chance.randint(1, 5))
    kind = chance.randrange(0 if sorts else 2, 5)
    if kind == 0:
        stream = stream.sort("v desc", "id", top_n=chance.randint(1, 3), trigger=more)
    elif kind == 1:
        stream = stream.sort("v", "id", tumbling=few)
    elif kind == 2:
        stream = stream.switch(open=few, evict=Policy.count(2), close=more)
    elif kind == 3:
        stream = stream.aggregate(Collect("v", "kept"), DistinctCount("n", "distinct"), trigger=few, evict=more)
    else:
        stream = stream.partition("t").aggregate(Count(output="all"), trigger=few, evict=Policy.count(0))
    return stream


def by_spans(stream: Any, chance: random.Random, *own: Any) -> Any:
    made = (Count(output="all"), *own)
    if chance.random() < 0.5:
        return stream.session(*made, gap=chance.randint(1, 5))
    every = chance.randint(1, 4)
    return stream.aligned(*made, every=every, size=every + chance.randint(0, 5), offset=chance.randint(0, 2))


def by_chance(chance: random.Random, source: Any, *, sorts: bool = False) -> Flow:
    """Return a flow with windows of any kind that can run in the batch, alone or one behind the other.

    Args:
        sorts: whether sorts may be among them, whose results keep the times of their events.
    """
    stream: Any = Flow("chance", windows="batch").stream("s", source, delay=4)
    if chance.random() < 0.5:
        stream = stream.filter("v % 3 != 0 or v is null")
    by = chance.choice([("k",), ("n",), ("k", "n"), ()])
    stream, kind = stream.partition(*by), chance.randrange(4)
    if kind == 3:
        return one_by_one(stream, chance, sorts=sorts).persist("kept").build()  # type: ignore[no-any-return]
    if kind == 0:
        stream = by_policies(stream, chance)
    else:
        words = [Min("k", "first"), Max("t", "latest"), DistinctCount("v", "distinct"), Latest()]
        own = [Sum("v", "sum"), Average("w", "mean"), Max("v", "most"), *chance.sample(words, 2)]
        stream = by_spans(stream, chance, *own)
    if chance.random() < 0.5:
        stream = stream.filter("all > 1")
    if kind == 2:
        stream = by_spans(stream.partition(*by[:1]), chance, Sum("sum", "sums"), Max("window_end", "until"))
    return stream.persist("kept").build()  # type: ignore[no-any-return]


def events_by_chance(chance: random.Random) -> list[tuple[Any, ...]]:
    """Return events that come up to four seconds out of order, with gaps of less and of more."""
    now, found = 100_000, []
    for number in range(chance.randint(30, 90)):
        now += chance.choice([0, 0, 1, 250, 1000, 1000, 9000])
        key = chance.choice(["a", "b", "c", None])
        at = now - chance.choice([0, 0, 0, 1, 1500, 4000])
        day = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number % 5)
        row = (key, chance.choice([1, 2, None]), chance.choice([None, number % 7]), number / 4, at, f"e{number}", day)
        found.append(row)
    return found


def cut(rows: list[Any], chance: random.Random) -> list[list[Any]]:
    places = sorted(chance.sample(range(1, len(rows)), chance.randint(1, 5)))
    return [rows[start:end] for start, end in zip([0, *places], [*places, len(rows)], strict=True)]


def shown(lake: Lake, until: int) -> list[str]:
    """Return the results up to a clock, in ms; nothing came late."""
    late = "late_chance_s"
    assert not lake.state(late).scan().num_rows
    rows = lake.state("kept").scan().to_pylist()
    return sorted(repr(row) for row in rows if row["event_time"].timestamp() * 1000 <= until)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n in CUTS else [pytest.mark.exhaustive]) for n in SEEDS])
def test_any_cut_gives_what_a_bounded_run_gives(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows = events_by_chance(chance)
    source = FixedBatches(SCHEMA, cut(rows, chance))
    state = chance.getstate()
    flow = by_chance(chance, source)
    assert any(isinstance(node, nodes.BatchWindowNode) for node in topology_of(flow).graph)
    chance.setstate(state)
    # A stream's clock stays behind the last event by the delay, that of a bounded run does not.
    until = max(row[4] for row in rows) + 50_000
    end = [("end", 9, 1, 1.0, until + 10_000, "end", None)]
    streamed = by_chance(chance, FixedBatches(SCHEMA, [*source.batches, end]))
    chance.setstate(state)
    whole = by_chance(chance, FixedBatches(SCHEMA, [rows, end]))
    Runtime(spark, Lake(lake_place(tmp_path / "stream"))).catch_up(streamed)
    Runtime(spark, Lake(lake_place(tmp_path / "bounded"))).run_bounded(whole)
    found = shown(Lake(lake_place(tmp_path / "stream")), until)
    assert found or seed not in CUTS
    assert found == shown(Lake(lake_place(tmp_path / "bounded")), until)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[] if n in ENGINES else [pytest.mark.exhaustive]) for n in SEEDS]
)
def test_engines_agree(spark: SparkSession, seed: int) -> None:
    chance = random.Random(1000 + seed)
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    rows = sorted(events_by_chance(chance), key=lambda row: row[4])
    script = [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows]
    flow = by_chance(chance, SCHEMA, sorts=True)
    wanted = run_flow(flow, {"s": script}, engine="reference", spark=spark)
    for engine in ("batch", "stream"):
        assert run_flow(flow, {"s": script}, engine=engine, spark=spark) == wanted, engine  # type: ignore[arg-type]
