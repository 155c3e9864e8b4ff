"""Compaction of whole flows: through Spark and without, beside streams, before and after backfills."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.aggregators import Average, Count, Max, Min, Sum
from pipelines.errors import ReadPointError
from pipelines.execution.runtime import Runtime
from pipelines.maintenance import compact, folding
from pipelines.sources import JsonFiles
from pipelines.state import record, writer
from pipelines.state.lake import Lake
from pipelines.trident import DeltaState, TridentTopology
from tests.maintenance.small_state import in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DAYS = ("2024-01-01", "2024-01-02", "it's")
KEYS = ("a", 'say "hi"', "it's", None)


class Shop:
    """A flow over files that a test writes: keyed aggregates, a total without keys, and the rows themselves."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.source, self.lake = root / "in", Lake(root / "lake")
        self.source.mkdir(parents=True)
        self.runtime, self.spark, self.files = Runtime(spark, self.lake), spark, 0
        self.topology = TridentTopology("shop")
        schema = "day string, key string, n bigint, price decimal(10,2), weight double"
        source = JsonFiles(self.source, schema, max_files_per_batch=1)
        sales = self.topology.new_stream("sales", source, slice_by="day")
        sales.group_by("key").persistent_aggregate(
            DeltaState("by_key"),
            [
                Count("count"), Sum("n", "sum"), Min("n", "low"), Max("price", "high"), Average("price", "mean"),
                Average("weight", "weight"),
            ],
        )  # fmt: skip
        sales.persistent_aggregate(DeltaState("total"), [Count("count"), Sum("price", "revenue")])
        sales.partition_persist(DeltaState("raw"))

    def file(self, day: str | None = None) -> None:
        """One more file, later than those before (two of one millisecond would arrive in any order)."""
        number = self.files
        rows = [
            {"day": day or DAYS[number % 3], "key": key, "n": number * i, "price": f"{number}.{i}0", "weight": i / 2}
            for i, key in enumerate(KEYS)
        ]
        part = self.source / f".{number:04d}"
        part.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))
        part.rename(self.source / f"{number:04d}.json")
        self.files += 1

    def content(self, **at: Any) -> dict[str, Any]:
        """All that a reader finds without Spark."""
        found = {name: _sorted(self.lake.state(name).scan(**at).to_pylist()) for name in ("by_key", "total", "raw")}
        found["get"] = self.lake.state("by_key").get([{"key": key} for key in KEYS], **at)
        found["get total"] = self.lake.state("total").get(**at)
        return found

    def check_frame(self, **at: Any) -> None:
        """Spark finds the same as delta-rs."""
        state = self.lake.state("by_key")
        rows = [row.asDict() for row in state.frame(self.spark, **at).collect()]
        assert _sorted(rows) == _sorted(state.scan(**at).to_pylist())

    def compact(self, **options: Any) -> Any:
        return compact(self.spark, self.lake, self.topology, **options)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return in_order([{"key": None, "part": None, **row} for row in sorted(rows, key=repr)])


@pytest.fixture(autouse=True)
def _short_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four txids a generation, so that a few batches close some."""
    monkeypatch.setattr(record, "GENERATION", 4)


@pytest.fixture(params=[pytest.param("arrow", marks=pytest.mark.exhaustive), "spark"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "spark":
        monkeypatch.setattr(folding, "DRIVER_ROWS", 0)
        monkeypatch.setattr("pipelines.maintenance.compaction.DRIVER_ROWS", 0)
    return str(request.param)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def test_reads_stay_the_same_now_and_at_every_txid(shop: Shop, way: str) -> None:
    for _ in range(10):
        shop.file()
    shop.runtime.catch_up(shop.topology)
    now, past = shop.content(), {txid: shop.content(txid=txid) for txid in (0, 3, 4, 8)}

    report = shop.compact(open_generations=1)

    assert shop.content() == now
    shop.check_frame()
    assert {txid: shop.content(txid=txid) for txid in past} == past
    shop.check_frame(txid=4)
    assert shop.content(txid=9) == now
    by_name = {table.state: table for table in report.tables}
    assert set(by_name) == {"by_key", "total", "raw"}
    # Generations 0 and 1 are closed (txids 0-7), 8 and 9 lie in the open one: 3 slices folded, and a roll-up over them.
    folded = by_name["by_key"]
    assert (folded.slices_folded, folded.rolled_up) == (3, True)
    assert (folded.before.files, folded.after.files) == (10, 3 + 1 + 2)
    assert (by_name["raw"].before.files, by_name["raw"].after.files) == (10, 3 + 2)
    assert by_name["raw"].before.rows == by_name["raw"].after.rows == 40

    versions = {name: shop.lake.state(name).version() for name in by_name}
    again = shop.compact(open_generations=1)
    assert {name: shop.lake.state(name).version() for name in by_name} == versions
    assert [table.slices_folded for table in again.tables] == [0, 0, 0]

    # No stream runs, so the last generation is folded too; by Spark never, whatever the locks say.
    standing = shop.compact()
    folded_files = 4 if way == "arrow" else 6
    assert {t.state: t.after.files for t in standing.tables} == {
        "by_key": folded_files,
        "total": folded_files,
        "raw": 5,
    }
    assert shop.content() == now
    shop.file()
    shop.runtime.catch_up(shop.topology)
    assert shop.lake.state("total").get()[0]["count"] == 44
    shop.compact()
    assert shop.lake.state("total").get()[0]["count"] == 44
    assert json.loads(json.dumps(again.to_json()))["total"]["tables"] == 3


@pytest.mark.usefixtures("way")
@pytest.mark.exhaustive
def test_backfills_and_compactions_take_turns(shop: Shop) -> None:
    for _ in range(5):
        shop.file()
    shop.runtime.catch_up(shop.topology)
    shop.compact()
    before = shop.content()
    shop.runtime.backfill(shop.topology, [DAYS[0], DAYS[2]])
    assert shop.content() == before
    assert not any(
        part["_slice"] == "*" for part in writer.DeltaTable(str(shop.lake.state("by_key").path)).partitions()
    )

    shop.file("2024-01-09")
    shop.runtime.backfill(shop.topology, ["2024-01-09", DAYS[1]])
    after = shop.content()
    assert after["total"][0]["count"] == 24
    shop.compact()
    assert shop.content() == after
    # The stream has not met that file yet; the compaction's record still says that it is counted.
    shop.runtime.catch_up(shop.topology)
    assert shop.content() == after


@pytest.mark.exhaustive
def test_what_is_too_old_is_plain_failures(shop: Shop) -> None:
    for _ in range(6):
        shop.file()
    shop.runtime.catch_up(shop.topology)
    now = shop.content()
    shop.compact(retention_hours=0)
    assert shop.content() == now
    assert shop.content(txid=5) == now, "the last txid reads from the compacted version"
    state = shop.lake.state("by_key")
    for at in ({"txid": 2}, {"version": 3}, {"timestamp": state.history()[3].time}):
        with pytest.raises(ReadPointError, match="too old") as caught:
            state.get([{"key": "a"}], **at)
        assert "retention" in caught.value.hint
    with pytest.raises(ReadPointError, match="too old"):
        Lake(shop.lake.root).state("by_key").get([{"key": "a"}], txid=2)


@pytest.mark.exhaustive
def test_a_claim_outlives_the_log_that_made_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writer._CONFIGURATION, "delta.checkpointInterval", "2")
    for _ in range(6):
        shop.file()
    shop.runtime.catch_up(shop.topology, max_batches=3)
    shop.runtime.backfill(shop.topology, list(DAYS))
    expected = shop.content()
    for _ in range(3):
        shop.compact(retention_hours=0)
    fresh = Shop.__new__(Shop)
    fresh.__dict__.update(shop.__dict__, lake=Lake(shop.lake.root))
    fresh.runtime = Runtime(shop.spark, fresh.lake)
    fresh.runtime.catch_up(shop.topology)
    assert fresh.content() == expected


@pytest.mark.exhaustive
def test_a_stream_of_a_compacted_table_reads_no_row_twice(shop: Shop, tmp_path: Path) -> None:
    def read_on() -> int:
        query = (
            shop.spark.readStream.format("delta").load(str(shop.lake.state("raw").path))
            .writeStream.format("delta").option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True).start(str(tmp_path / "copy"))
        )  # fmt: skip
        query.awaitTermination()
        return writer.DeltaTable(str(tmp_path / "copy")).to_pyarrow_table().num_rows

    for _ in range(6):
        shop.file()
    shop.runtime.catch_up(shop.topology, max_batches=5)
    assert read_on() == 20
    shop.runtime.catch_up(shop.topology)
    shop.compact()
    assert read_on() == 24
    shop.compact()
    assert read_on() == 24


@pytest.mark.exhaustive
def test_beside_a_running_stream(shop: Shop) -> None:
    """A stream with a backlog, and compactions as fast as they go: the result is that of an undisturbed run."""
    for _ in range(14):
        shop.file()
    running = shop.runtime.stream(shop.topology, trigger_seconds=0)
    compactions = []
    try:
        for _ in range(120):
            compactions.append(shop.compact())
            if len(running.batches) >= 14 or not running.running:
                break
            time.sleep(0.2)
    finally:
        batches = running.stop()
    assert [batch.txid for batch in batches] == list(range(14))
    assert all(batch.attempt == 0 for batch in batches)
    assert sum(table.slices_folded for report in compactions for table in report.tables) > 0
    assert _expected(shop) == {row["key"]: (row["count"], row["sum"]) for row in shop.content()["by_key"]}
    assert shop.content()["total"][0]["count"] == 14 * len(KEYS)
    shop.compact()
    assert _expected(shop) == {row["key"]: (row["count"], row["sum"]) for row in shop.content()["by_key"]}


def _expected(shop: Shop) -> dict[str | None, tuple[int, int]]:
    return {key: (shop.files, i * sum(range(shop.files))) for i, key in enumerate(KEYS)}


@pytest.mark.exhaustive
def test_a_backfill_waits_for_a_compaction(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        shop.file()
    shop.runtime.catch_up(shop.topology)
    before = shop.content()
    inside, order = threading.Event(), []

    def slow(*args: Any, **more: Any) -> Any:
        inside.set()
        time.sleep(1)
        order.append("compaction")
        return folding.fold_arrow(*args, **more)

    monkeypatch.setattr("pipelines.maintenance.compaction.fold_arrow", slow)
    thread = threading.Thread(target=shop.compact)
    thread.start()
    assert inside.wait(30)
    shop.runtime.backfill(shop.topology, [DAYS[0]], progress=lambda _: order.append("backfill"))
    thread.join()
    assert order.index("compaction") < order.index("backfill")
    assert shop.content() == before


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("compaction")]


def test_quarantine_is_merged_and_loses_nothing(shop: Shop) -> None:
    for _ in range(6):
        shop.file()
        with (shop.source / f"{shop.files - 1:04d}.json").open("a", encoding="utf-8") as file:
            file.write('{"day": torn\n')
    shop.runtime.catch_up(shop.topology)
    refused = _sorted(shop.lake.quarantine("shop").scan().to_pylist())
    table = next(one for one in shop.compact().tables if one.state == "quarantine of shop")
    # One file of the closed generation, one of the open one.
    assert (table.before.files, table.after.files, table.before.rows, table.after.rows) == (6, 2, 6, 6)
    assert _sorted(shop.lake.quarantine("shop").scan().to_pylist()) == refused
