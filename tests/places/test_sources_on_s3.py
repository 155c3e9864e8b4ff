"""Sources other than files with a lake on a store, and Delta tables that lie there: each row once, past kills and backfills."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import LostRowsError, MissingPathError, SourceSchemaError
from pipelines.execution.runners.claims import RewrittenSourceError
from pipelines.execution.verify import verify
from pipelines.places.location import HDFS, Location, Place
from pipelines.places.store import StoreError
from pipelines.sources import DeltaChangeFeed, DeltaTableSource, FixedBatches, JsonFiles, Kafka, PythonSource, Rate
from pipelines.state.schema import TXID
from pipelines.trident import Count, DeltaState, Sum, TridentTopology
from tests.sources.conftest import broker as broker
from tests.sources.conftest import new_topic as new_topic
from tests.sources.kafka_broker import Topic
from tests.sources.test_python_source import Counter
from tests.tiers import EXHAUSTIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def flow_over(source: Any, value: str = "n", slice_by: str | None = None) -> TridentTopology:
    topology = TridentTopology("numbers")
    rows = topology.new_stream("numbers", source, slice_by=slice_by)
    rows.partition_persist(DeltaState("rows"))
    rows.group_by(value).persistent_aggregate(DeltaState("sums"), [Count("records"), Sum(value, "total")])
    return topology


def numbers(lake: Lake, value: str = "n") -> list[int]:
    rows = lake.state("rows").scan().to_pylist()
    sums = lake.state("sums").scan().to_pylist()
    assert sum(row["records"] for row in sums) == len(rows)
    return sorted(row[value] for row in rows)


def dying(moments: Iterator[tuple[str, int]]) -> Callable[[str, str, int], None]:
    wanted = next(moments, None)

    def die(moment: str, state: str, txid: int) -> None:
        nonlocal wanted
        if (moment, txid) == wanted:
            wanted = next(moments, None)
            raise KeyboardInterrupt

    return die


def caught_up(spark: SparkSession, lake: Lake, topology: TridentTopology, *dies_at: tuple[str, int]) -> None:
    """Run until nothing is left, and be killed at some moments on the way."""
    die = dying(iter(dies_at))
    for _ in dies_at:
        with contextlib.suppress(KeyboardInterrupt):
            Runtime(spark, lake, listeners=[die]).catch_up(topology)
    Runtime(spark, lake).catch_up(topology)


@EXHAUSTIVE
def test_fixed_batches(reaching: SparkSession, place: Location) -> None:
    """A store dates files itself, some of them the same: batches come in their order, those that are given later, too."""
    lake, batches = Lake(place / "lake"), [[(10 * number + n,) for n in range(3)] for number in range(12)]
    caught_up(reaching, lake, flow_over(FixedBatches("n bigint", batches[:9])), ("committing", 2), ("committed", 5))
    caught_up(reaching, lake, flow_over(FixedBatches("n bigint", batches)))
    for txid, batch in enumerate(batches):
        rows = lake.state("rows").scan(where=f"{TXID} = {txid}").to_pylist()
        assert sorted(row["n"] for row in rows) == [n for (n,) in batch]
    assert len(numbers(lake)) == 36
    with pytest.raises(SourceSchemaError, match="have changed since an earlier run"):
        Runtime(reaching, lake).catch_up(flow_over(FixedBatches("n bigint", [[(1,)], *batches[1:]])))


@pytest.mark.exhaustive
def test_an_object_of_an_odd_name_is_one_refused_record(
    reaching: SparkSession, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while a stream runs: Spark reads such a name, and no other library does. The next start is refused by `check`."""
    if place.scheme == HDFS:
        pytest.skip("the name is one like others there")
    (place / "in" / "0.json").write_bytes(b'{"n": 1}')
    odd = reaching._jvm.org.apache.hadoop.fs.Path(f"{place}/in/a\tb c.json")  # type: ignore[union-attr]
    out = odd.getFileSystem(reaching._jsc.hadoopConfiguration()).create(odd)  # type: ignore[union-attr]
    out.write(bytearray(b'{"n": 2}'))
    out.close()
    lake, source = Lake(place / "lake"), JsonFiles(place / "in", "n bigint")
    with pytest.raises(StoreError, match="has a name that is not read"):
        Runtime(reaching, lake).catch_up(flow_over(source))
    monkeypatch.setattr(JsonFiles, "check", lambda *_: None)
    caught_up(reaching, lake, flow_over(source), ("committing", 0))
    assert numbers(lake) == [1]
    (refused,) = lake.quarantine("numbers").scan().to_pylist()
    assert (refused["rule"], refused["row"]) == ("not_read", f"{place}/in/a\tb c.json: its name is not read")


@EXHAUSTIVE
def test_topics_of_kafka(reaching: SparkSession, place: Location, new_topic: Callable[..., Topic]) -> None:
    topic, lake = new_topic(2), Lake(place / "lake")
    topology = flow_over(Kafka(topic.servers, topic.name, "n bigint", max_records_per_batch=4))
    for partition in (0, 1):
        topic.send(*(json.dumps({"n": 10 * partition + n}) for n in range(6)), partition=partition)
    caught_up(reaching, lake, topology, ("committing", 1), ("committed", 2))
    assert numbers(lake) == [*range(6), *range(10, 16)]
    topic.send('{"n": 20}', "{torn")
    report = Runtime(reaching, Lake(place / "lake")).catch_up(topology)
    assert (report.received, report.quarantined) == (2, 1)
    assert numbers(lake) == [*range(6), *range(10, 16), 20]
    assert not verify(reaching, lake, topology).differing
    topic.recreate(2)
    topic.send(*(json.dumps({"n": n}) for n in range(20)))
    with pytest.raises(LostRowsError, match="was deleted and created again"):
        Runtime(reaching, lake).catch_up(topology)


def append(table: Place, *rows: tuple[int, str]) -> None:
    columns = {"n": pa.array([n for n, _ in rows], pa.int64()), "day": pa.array([day for _, day in rows])}
    write_deltalake(str(table), pa.table(columns), mode="append", configuration={"delta.enableChangeDataFeed": "true"})


@EXHAUSTIVE
@pytest.mark.parametrize(("table_there", "lake_there"), [(True, True), (True, False), (False, True)])
def test_a_delta_table_with_backfills(
    reaching: SparkSession, place: Location, tmp_path: Path, table_there: bool, lake_there: bool
) -> None:
    table, lake = (place if table_there else tmp_path) / "table", Lake((place if lake_there else tmp_path) / "lake")
    topology = flow_over(DeltaTableSource(table, "n bigint, day string", max_files_per_batch=1), slice_by="day")
    with pytest.raises(MissingPathError):
        Runtime(reaching, lake).catch_up(topology)
    for n in range(4):
        append(table, (n, f"d{n % 2}"), (10 + n, "d0"))
    assert not Runtime(reaching, lake).backfill(topology, ["d0"]).failed
    assert numbers(lake) == [0, 2, 10, 11, 12, 13]
    caught_up(reaching, lake, topology, ("committed", 0), ("committing", 2))
    assert numbers(lake) == [0, 1, 2, 3, 10, 11, 12, 13]
    append(table, (20, "d1"))
    Runtime(reaching, Lake(lake.root)).catch_up(topology)
    assert numbers(lake) == [0, 1, 2, 3, 10, 11, 12, 13, 20]
    assert not verify(reaching, lake, topology).differing


@pytest.mark.exhaustive
def test_a_table_there_that_was_rewritten_after_a_backfill_is_refused(reaching: SparkSession, place: Location) -> None:
    table, lake = place / "table", Lake(place / "lake")
    topology = flow_over(DeltaTableSource(table, "n bigint, day string"), slice_by="day")
    for n in range(3):
        append(table, (n, "d0"))
    assert not Runtime(reaching, lake).backfill(topology, ["d0"]).failed
    DeltaTable(str(table)).optimize.compact()
    with pytest.raises(RewrittenSourceError):
        Runtime(reaching, lake).catch_up(topology)
    assert not Runtime(reaching, lake).backfill(topology, ["d0"]).failed
    Runtime(reaching, lake).catch_up(topology)
    assert numbers(lake) == [0, 1, 2]


@pytest.mark.exhaustive
def test_the_changes_of_a_table(reaching: SparkSession, place: Location) -> None:
    table, lake = place / "table", Lake(place / "lake")
    append(table, (1, "d0"), (2, "d0"))
    topology = flow_over(DeltaChangeFeed(table, "n bigint, day string", starting_version=0))
    caught_up(reaching, lake, topology, ("committing", 0))
    DeltaTable(str(table)).update(updates={"n": "n + 10"}, predicate="n = 2")
    caught_up(reaching, lake, topology, ("committed", 1))
    rows = sorted((row["n"], row["change_type"]) for row in lake.state("rows").scan().to_pylist())
    assert rows == [(1, "insert"), (2, "insert"), (2, "update_preimage"), (12, "update_postimage")]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        pytest.param(Rate(rows_per_batch=5), "value", marks=pytest.mark.exhaustive),
        pytest.param(PythonSource(Counter, "n bigint, reading bigint", last=10), "n", marks=pytest.mark.exhaustive),
    ],
)
def test_what_reads_no_place_at_all(reaching: SparkSession, place: Location, source: Any, value: str) -> None:
    lake, topology = Lake(place / "lake"), flow_over(source, value)
    with contextlib.suppress(KeyboardInterrupt):
        Runtime(reaching, lake, listeners=[dying(iter([("committing", 0)]))]).catch_up(topology)
    for _ in range(2):
        Runtime(reaching, lake).catch_up(topology)
    held = numbers(lake, value)
    assert held == list(range(held[0], held[0] + len(held)))
    assert len(held) >= 5
