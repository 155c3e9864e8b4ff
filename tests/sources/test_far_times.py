"""A date or time outside the years 1 to 9999 is one row in quarantine: Python and delta-rs could not hold it in a state."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from assets.queries import ranked
from pipelines import Lake, Runtime
from pipelines.catalog import Ranking
from pipelines.errors import FarTimeError, PoisonBatchError
from pipelines.sources import CsvFiles, FixedBatches, JsonFiles, Source
from pipelines.sources.base import marked
from pipelines.state.far_times import dates_named, far_date, shown_rows
from pipelines.state.lookup import look_up
from pipelines.state.schema import struct_of
from pipelines.trident import Count, DeltaState, Max, TridentTopology

SCHEMA = "k string, day date, at timestamp"
ROWS = (
    ("good", "2024-02-29", "2024-02-29T12:00:00Z"),
    ("far day", "5000000-01-01", "2024-01-01T00:00:00Z"),
    ("first", "0001-01-01", "0001-01-01T00:00:00Z"),
    ("far time", "2024-01-01", "12345-01-01T00:00:00Z"),
    ("last", "9999-12-31", "9999-12-31T23:59:59.999999Z"),
    ("far both", "10000-01-01", "+10000-01-01T00:00:00Z"),
    ("before", "0000-12-31", "0000-12-31T23:59:59.999999Z"),
    ("good", None, None),
)
GOOD = {"good": 2, "first": 1, "last": 1}
FAR = {"far day": "day", "far time": "at", "far both": "day, at", "before": "day, at"}


def source(folder: Path, kind: str) -> Source:
    """Put the rows into a file, and another one that is read by its own layout."""
    folder.mkdir()
    if kind == "json":
        lines = [json.dumps(dict(zip(("k", "day", "at"), row, strict=True))) for row in ROWS]
        (folder / "1.json").write_text("\n".join(lines) + "\n")
        return JsonFiles(folder, SCHEMA)
    lines = [",".join(value or "" for value in row) for row in ROWS]
    (folder / "1.csv").write_text("\n".join(("k,day,at", *lines)) + "\n")
    return CsvFiles(folder, SCHEMA)


def flow(given: Source, *, sliced: bool = False) -> TridentTopology:
    topology = TridentTopology("far")
    stream = topology.new_stream("in", given, slice_by="k" if sliced else None)
    stream.partition_persist(DeltaState("rows"))
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("n")])
    return topology


def check_refused(lake: Lake) -> None:
    assert {row["k"]: row["n"] for row in lake.state("by_k").scan().to_pylist()} == GOOD
    refused = {json.loads(row["row"])["k"]: row for row in lake.quarantine("far").scan().to_pylist()}
    assert set(refused) == set(FAR)
    for name, fields in FAR.items():
        row = refused[name]
        assert (row["stage"], row["rule"], row["stream"]) == ("source", "far_time", "in")
        assert row["reason"] == f"a date or time outside the years 1 to 9999, in: {fields}"
        assert row["file"]
    assert json.loads(refused["far day"]["row"])["day"] == "+5000000-01-01"
    assert len(look_up(lake.state("rows"), None, 100)) == sum(GOOD.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_far_values_are_refused_and_the_flow_goes_on(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    given, lake = source(tmp_path / "in", kind), Lake(tmp_path / "lake")
    topology = flow(given)
    assert Runtime(spark, lake).catch_up(topology).batches
    check_refused(lake)
    name, text = ("2.json", '{"k":"good"}\n') if kind == "json" else ("2.csv", "k,day,at\ngood,,\n")
    (tmp_path / "in" / name).write_text(text)
    Runtime(spark, lake).catch_up(topology)
    assert {row["k"]: row["n"] for row in lake.state("by_k").scan().to_pylist()} == {**GOOD, "good": 3}


@pytest.mark.slow
def test_a_backfill_refuses_them_too(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    topology = flow(source(tmp_path / "in", "json"), sliced=True)
    Runtime(spark, lake).catch_up(topology)
    check_refused(lake)
    Runtime(spark, lake).backfill(topology, sorted(GOOD))
    check_refused(lake)


@pytest.mark.slow
def test_values_inside_others_and_fields_without_times(spark: SparkSession) -> None:
    assert marked(struct_of("a string, b array<struct<c: bigint>>, d map<string, double>")) is None
    schema = struct_of(
        "s struct<d: date, n: bigint>, l array<array<timestamp>>, m map<string, timestamp_ntz>, k map<date, int>"
    )
    cast = """
        named_struct('d', date'{0}', 'n', 1L) s, array(array(timestamp'{1}', null), null) l,
        map('a', timestamp_ntz'{2}', 'b', null) m, map(date'{3}', 1) k, cast(null as string) _corrupt
    """
    day, far = "2024-01-01", "+12345-01-01"
    cases = [(day, day, day, day), *(tuple(far if n == m else day for n in range(4)) for m in range(4))]
    frames = [spark.sql(f"SELECT {cast.format(*case)}") for case in cases]
    nulls = ", ".join(f"cast(null as {field.dataType.simpleString()}) {field.name}" for field in schema.fields)
    frames.append(spark.sql(f"SELECT {nulls}, cast(null as string) _corrupt"))
    corrupt = marked(schema)
    assert corrupt is not None
    names = F.substring_index(F.substring(corrupt, 5, 1000), "\0", 1)
    assert [frame.select(names).collect()[0][0] for frame in frames] == [None, "s", "l", "m", "k", None]


@pytest.mark.slow
def test_a_far_date_that_a_flow_computes_is_named(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("far")
    stream = topology.new_stream("in", FixedBatches("k string", [[("a",)]]))
    stream = stream.each("k", lambda k: F.date_from_unix_date(F.lit(2_000_000_000)), "day")
    stream.partition_persist(DeltaState("rows"))
    with pytest.raises(PoisonBatchError, match=r'"rows": column day holds \+5477784-01-06, which cannot be written'):
        Runtime(spark, Lake(tmp_path / "lake"), max_attempts=1).catch_up(topology)


@pytest.mark.slow
def test_a_state_that_holds_far_values_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A flow may have computed them; an earlier release took them from a source."""
    lake, topology = Lake(tmp_path / "lake"), TridentTopology("far")
    stream = topology.new_stream("in", FixedBatches("k string", [[("a",), ("b",)]]))
    far = "timestamp'2024-01-01T00:00:00Z' + make_interval(case when k = 'a' then 10000 else 0 end)"
    stream = stream.each("k", lambda k: F.expr(far), "at")
    stream.partition_persist(DeltaState("rows"))
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Max("at", "latest")])
    Runtime(spark, lake).catch_up(topology)
    shown = {row["k"]: row["at"] for row in look_up(lake.state("rows"), None, 10)}
    assert shown == {"a": "+12024-01-01T00:00:00+00:00", "b": datetime(2024, 1, 1, tzinfo=UTC)}
    assert {row["k"]: row["latest"] for row in look_up(lake.state("by_k"), None, 10)} == shown
    assert look_up(lake.state("by_k"), {"k": "b"}, 1) == [{"k": "b", "latest": shown["b"]}]
    with pytest.raises(FarTimeError) as caught:
        look_up(lake.state("by_k"), {"k": "a"}, 1)
    assert (caught.value.column, caught.value.key) == ("latest", {"k": "a"})


def table(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


def test_rows_are_shown_with_values_that_python_does_not_have() -> None:
    days = pa.array([0, 1825492972, -719_163, None], pa.int32()).cast(pa.date32())
    times = pa.array([0, 327403382400_500000, -62135596800_000001, None], pa.int64())
    nested = pa.StructArray.from_arrays([days], ["d"])
    rows = shown_rows(
        table(day=days, at=times.cast(pa.timestamp("us", "UTC")), local=times.cast(pa.timestamp("us")), s=nested)
    )
    far, before = "+12345-01-01T00:00:00.500000", "+0000-12-31T23:59:59.999999"
    assert [row["day"] for row in rows] == [date(1970, 1, 1), "+5000000-01-01", "+0000-12-31", None]
    assert [row["at"] for row in rows] == [datetime(1970, 1, 1, tzinfo=UTC), f"{far}+00:00", f"{before}+00:00", None]
    assert [row["local"] for row in rows] == [datetime(1970, 1, 1), far, before, None]
    assert [row["s"] for row in rows][:2] == [{"d": date(1970, 1, 1)}, {"d": "+5000000-01-01"}]


def test_a_ranking_takes_them() -> None:
    at: list[Any] = ["+12345-01-01", date(2024, 1, 1), "-0001-01-01", None, date(2023, 1, 1)]
    rows = ranked([{"at": value} for value in at], Ranking(by="at", rows=9, ascending=True))
    assert [row["at"] for row in rows] == ["-0001-01-01", date(2023, 1, 1), date(2024, 1, 1), "+12345-01-01", None]


def test_a_ranking_takes_nan_as_missing() -> None:
    nan = float("nan")
    rows = ranked([{"x": value} for value in (1.0, nan, 3.0, 2.0, nan, 9.0)], Ranking(by="x", rows=5))
    assert repr([row["x"] for row in rows]) == "[9.0, 3.0, 2.0, 1.0, nan]"


@pytest.mark.parametrize("days", [95_026_236, -96_465_292])
def test_the_last_dates_that_delta_rs_takes(tmp_path: Path, days: int) -> None:
    def of(day: int) -> pa.Table:
        return table(day=pa.array([0, day], pa.int32()).cast(pa.date32()))

    beyond = days + (1 if days > 0 else -1)
    write_deltalake(tmp_path / "taken", of(days))
    assert far_date(of(days)) is None
    with pytest.raises(FarTimeError, match='"t": column day holds'), dates_named("t", of(beyond)):
        write_deltalake(tmp_path / "refused", of(beyond))
