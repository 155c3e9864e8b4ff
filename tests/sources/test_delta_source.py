"""A Delta table as a source: positions at every kind of offset, and rows that count once beside backfills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines import Lake, Runtime
from pipelines.errors import LostRowsError, MissingPathError, SourceSchemaError
from pipelines.execution.runners.bounded import SourceGoneError
from pipelines.execution.runners.claims import RewrittenSourceError, SameSources
from pipelines.places.location import LocationError
from pipelines.sources import DeltaTableSource
from pipelines.sources.base import file_key
from pipelines.state.kinds import MAP, OPAQUE
from pipelines.trident import Count, DeltaState, Sum, TridentTopology
from tests.state.small_kinds import SmallTable

pytestmark = pytest.mark.slow

SCHEMA = "day string, n bigint"
DAYS = ("d1 +%é\u2028\u2029\x85", "d2")


def append(spark: SparkSession, table: Path, first: int, *, files: int = 3) -> None:
    """One commit of `files` data files a day, with numbers of their own."""
    rows = spark.range(first, first + 4 * files, 1, files).select(
        F.element_at(F.array(*map(F.lit, DAYS)), (F.col("id") % 2 + 1).cast("int")).alias("day"), F.col("id").alias("n")
    )
    rows.write.format("delta").partitionBy("day").mode("append").save(str(table))


def run(spark: SparkSession, source: DeltaTableSource, checkpoint: Path) -> list[frozenset[str]]:
    """The files that each batch delivered, by its rows; they are those of its positions."""
    taken: list[frozenset[str]] = []

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        files = frozenset(file_key(row["_file"]) for row in frame.select("_file").collect())
        assert source.positions(checkpoint, batch_id, batch_id) == files
        taken.append(files)

    writer = source.stream(spark).writeStream.foreachBatch(on_batch).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return taken


@pytest.mark.exhaustive
@pytest.mark.parametrize("limit", [None, 3])
def test_positions_at_every_offset(spark: SparkSession, tmp_path: Path, limit: int | None) -> None:
    """The first snapshot in the middle and at its end, then commits in the middle, at their end, several a batch."""
    table, checkpoint = tmp_path / "a table", tmp_path / "checkpoint"
    source = DeltaTableSource(table, SCHEMA, max_files_per_batch=limit)
    for first in (0, 100):
        append(spark, table, first, files=2)
    source.check("s", spark)
    taken = run(spark, source, checkpoint)
    for first in (200, 300):
        append(spark, table, first, files=3)
    taken += run(spark, source, checkpoint)
    assert not limit or max(map(len, taken)) <= limit
    assert sum(map(len, taken)) == len(frozenset().union(*taken)) == 20
    frame, positions = source.bounded(spark)
    assert {file_key(file) for file in positions} == frozenset().union(*taken)
    assert {file_key(row["_file"]) for row in frame.select("_file").collect()} == frozenset().union(*taken)
    for first, last in ((0, len(taken) - 1), (0, 0), (1, len(taken) - 1), (0, -1)):
        assert source.positions(checkpoint, first, last) == frozenset().union(*taken[first : last + 1])


def flow(table: Path) -> TridentTopology:
    topology = TridentTopology("totals")
    source = DeltaTableSource(table, SCHEMA, max_files_per_batch=3)
    topology.new_stream("numbers", source, slice_by="day").group_by("day").persistent_aggregate(
        DeltaState("by_day"), [Count("rows"), Sum("n", "total")]
    )
    return topology


def expected(firsts: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Of the commits of two files a day: rows and total a day."""
    numbers = [n for first in firsts for n in range(first, first + 8)]
    parts = {DAYS[i]: [n for n in numbers if n % 2 == i] for i in (0, 1)}
    return {day: (len(some), sum(some)) for day, some in parts.items()}


def optimize(spark: SparkSession, table: Path, where: str = "") -> None:
    """Put the files together, by Spark: delta-rs does not take files away whose folders Spark named in other than ASCII."""
    spark.sql(f"OPTIMIZE delta.`{table}` {where}")


def totals(lake: Lake) -> dict[str, tuple[int, int]]:
    return {row["day"]: (row["rows"], row["total"]) for row in lake.state("by_day").scan().to_pylist()}


@pytest.mark.exhaustive
def test_backfills_beside_a_stream_of_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """A slice that the stream has half counted, one it has counted, and commits that it has not reached."""
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=2)
    append(spark, table, 100, files=2)
    assert len(runtime.catch_up(topology, max_batches=1).batches) == 1
    runtime.backfill(topology, [DAYS[0]])
    assert totals(lake)[DAYS[0]] == expected([0, 100])[DAYS[0]]
    runtime.backfill(topology, [DAYS[0]])
    append(spark, table, 200, files=2)
    runtime.catch_up(topology)
    assert totals(lake) == expected([0, 100, 200])
    append(spark, table, 300, files=2)
    runtime.backfill(topology, DAYS)
    assert totals(lake) == expected([0, 100, 200, 300])
    runtime.catch_up(topology)
    assert totals(lake) == expected([0, 100, 200, 300])


def test_a_backfill_before_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=2)
    runtime.backfill(topology, [DAYS[1]])
    assert totals(lake) == {DAYS[1]: expected([0])[DAYS[1]]}
    runtime.catch_up(topology)
    assert totals(lake) == expected([0])


def test_a_stream_that_begins_after_the_files_of_a_backfill_were_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    """Claims name files: under other names the rows would count twice. Backfilled again, they count once."""
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=2)
    runtime.backfill(topology, [DAYS[1]])
    before = totals(lake)
    optimize(spark, table)
    with pytest.raises(RewrittenSourceError) as caught:
        runtime.catch_up(topology)
    assert caught.value.slices == (DAYS[1],)
    assert totals(lake) == before
    runtime.backfill(topology, [DAYS[1]])
    runtime.catch_up(topology)
    assert totals(lake) == expected([0])


@pytest.mark.exhaustive
def test_a_stream_that_begins_after_rows_of_a_backfill_were_changed_by_vectors(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The file keeps its name, and the changed row lies in another one, too: it would count twice."""
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=2)
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"UPDATE delta.`{table}` SET n = 100 WHERE n = 3")
    runtime.backfill(topology, [DAYS[1]])
    before = totals(lake)
    assert before == {DAYS[1]: (4, 1 + 100 + 5 + 7)}
    spark.sql(f"UPDATE delta.`{table}` SET n = 200 WHERE n = 5")
    with pytest.raises(RewrittenSourceError) as caught:
        runtime.catch_up(topology)
    assert caught.value.slices == (DAYS[1],)
    assert totals(lake) == before
    runtime.backfill(topology, [DAYS[1]])
    runtime.catch_up(topology)
    assert totals(lake) == {DAYS[0]: expected([0])[DAYS[0]], DAYS[1]: (4, 1 + 100 + 200 + 7)}


@pytest.mark.exhaustive
def test_rows_without_a_slice_in_files_that_were_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    """A backfill has put them into quarantine, which claims their files as a state does."""
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    for n in (1, 2):
        spark.createDataFrame([(None, n), ("d3", n)], SCHEMA).coalesce(1).write.format("delta").mode("append").save(
            str(table)
        )
    runtime.backfill(topology, ["d9"])
    optimize(spark, table)
    with pytest.raises(RewrittenSourceError, match="backfill these slices again, then start the stream: any"):
        runtime.catch_up(topology)
    runtime.backfill(topology, ["d9"])
    runtime.catch_up(topology)
    assert lake.quarantine("totals").scan().num_rows == 2
    assert totals(lake) == {"d3": (2, 3)}


@pytest.mark.exhaustive
def test_files_rewritten_between_the_start_and_the_first_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=2)
    runtime.backfill(topology, [DAYS[1]])
    check = SameSources.check

    def then_rewrite(claims: SameSources) -> None:
        check(claims)
        optimize(spark, table)

    monkeypatch.setattr(SameSources, "check", then_rewrite)
    for _ in range(2):  # what is planned by then is refused to the next process, too
        with pytest.raises(RewrittenSourceError):
            runtime.catch_up(topology)
    assert totals(lake) == {DAYS[1]: expected([0])[DAYS[1]]}


@pytest.mark.exhaustive
def test_a_backfill_between_a_first_batch_that_was_only_planned_and_the_next_life(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What came since the plan was not rewritten: the stream reads it under its own name, and leaves it to the claim."""
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    topology = flow(table)
    append(spark, table, 0, files=1)
    spark.sql(f"DELETE FROM delta.`{table}`")

    def die(moment: str, state: str, txid: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Runtime(spark, lake, listeners=[die]).catch_up(topology)
    append(spark, table, 100, files=2)
    Runtime(spark, lake).backfill(topology, [DAYS[1]])
    optimize(spark, table)
    Runtime(spark, lake).catch_up(topology)
    assert totals(lake) == expected([100])


@pytest.mark.parametrize("backfilled", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_a_first_batch_that_was_planned_so_long_ago_that_its_version_is_gone(
    spark: SparkSession, tmp_path: Path, backfilled: bool
) -> None:
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    topology = flow(table)
    append(spark, table, 0, files=2)

    def die(moment: str, state: str, txid: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Runtime(spark, lake, listeners=[die]).catch_up(topology)
    append(spark, table, 100, files=2)
    append(spark, table, 200, files=2)
    if backfilled:
        Runtime(spark, lake).backfill(topology, [DAYS[1]])
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(LostRowsError, match="the table's log no longer has"):
        Runtime(spark, lake).catch_up(topology)
    assert totals(lake) == ({DAYS[1]: expected([0, 100, 200])[DAYS[1]]} if backfilled else {})


@pytest.mark.exhaustive
def test_a_backfill_of_files_that_were_put_together_before_the_stream_came(spark: SparkSession, tmp_path: Path) -> None:
    """The stream reads them from the log under their first names: claims of the new ones would not keep it from counting."""
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=2)
    runtime.catch_up(topology)
    optimize(spark, table)
    with pytest.raises(SourceGoneError):
        runtime.backfill(topology, DAYS)
    table, lake = tmp_path / "other", Lake(tmp_path / "other lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=1)
    runtime.catch_up(topology)
    append(spark, table, 100, files=2)
    # A day of its own, so that what the stream has counted stays as it is.
    for n in (7, 8):
        spark.createDataFrame([("d3", n)], SCHEMA).write.format("delta").mode("append").save(str(table))
    optimize(spark, table, "WHERE day = 'd3'")
    with pytest.raises(RewrittenSourceError, match="yet to read"):
        runtime.backfill(topology, ["d3"])
    runtime.catch_up(topology)
    assert totals(lake)["d3"] == (2, 15)


def append_one(table: Path, n: int) -> None:
    write_deltalake(table, pa.table({"day": ["d1"], "n": pa.array([n], pa.int64())}), mode="append")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kept", [pytest.param(3, marks=pytest.mark.exhaustive), pytest.param(4, marks=pytest.mark.exhaustive), 5]
)
def test_a_stream_goes_on_when_the_log_no_longer_has_its_first_version(
    spark: SparkSession, tmp_path: Path, kept: int
) -> None:
    """By Delta's default a month later. A backfill still knows what the stream has counted."""
    table, lake = tmp_path / "table", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    # A row without a slice, the last one that is refused.
    write_deltalake(table, pa.table({"day": ["d1", None], "n": pa.array([0, 9], pa.int64())}))
    for n in range(1, 5):
        append_one(table, n)
        runtime.catch_up(topology)
    if kept == 5:
        append_one(table, 5)
    DeltaTable(table, version=max(kept, 4)).create_checkpoint()
    for file in (table / "_delta_log").glob("0*.json"):
        if int(file.name[:20]) < kept:
            file.unlink()
    if kept < 5:
        append_one(table, 5)
    runtime.backfill(topology, ["d1"])
    assert totals(lake) == {"d1": (6, 15)}
    if kept == 5:
        # Spark looks at the commits of its last batch when it starts again.
        with pytest.raises(LostRowsError, match="the table's log no longer has"):
            runtime.catch_up(topology)
        return
    report = runtime.catch_up(topology)
    assert [batch.received for batch in report.batches] == [1]
    append_one(table, 6)
    runtime.catch_up(topology)
    assert totals(lake) == {"d1": (7, 21)}
    DeltaTable(table).delete("n = 2")
    with pytest.raises(SourceGoneError):
        runtime.backfill(topology, ["d1"])


@pytest.mark.exhaustive
def test_files_vacuumed_under_a_stream_stop_it(spark: SparkSession, tmp_path: Path) -> None:
    table, lake = tmp_path / "a b", Lake(tmp_path / "lake")
    runtime, topology = Runtime(spark, lake), flow(table)
    append(spark, table, 0, files=2)
    runtime.catch_up(topology)
    append(spark, table, 100, files=2)
    optimize(spark, table)
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(LostRowsError, match=r"the data file .* is gone"):
        runtime.catch_up(topology)
    assert totals(lake) == expected([0])


def test_a_table_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MissingPathError) as caught:
        DeltaTableSource(tmp_path / "table", SCHEMA).check("s", spark)
    assert caught.value.path == str(tmp_path / "table")


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_a_path_that_delta_rs_reads_otherwise(tmp_path: Path, name: str) -> None:
    append_one(tmp_path / "table", 0)
    (tmp_path / "table").rename(tmp_path / name)
    with pytest.raises(LocationError, match=r"delta-rs reads .* as another character"):
        DeltaTableSource(tmp_path / name, SCHEMA).check("s", None)  # type: ignore[arg-type]


def test_a_table_with_other_types(spark: SparkSession, tmp_path: Path) -> None:
    append(spark, tmp_path / "table", 0)
    with pytest.raises(SourceSchemaError, match='column "n" is bigint, declared int') as caught:
        DeltaTableSource(tmp_path / "table", "day string, n int").check("s", spark)
    assert caught.value.seen == ("day string", "n bigint")
    with pytest.raises(SourceSchemaError, match='column "m" is missing'):
        DeltaTableSource(tmp_path / "table", "m int").check("s", spark)
    assert DeltaTable(str(tmp_path / "table")).version() == 0


def test_keys_that_an_opaque_map_state_has_removed_are_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    state = SmallTable(tmp_path / "lake", MAP, OPAQUE)
    state.commit(0, ("a", 1), ("b", 2))
    state.commit(1, ("a", None))
    source = DeltaTableSource(str(state.table.path), "word string, n bigint")
    source.check("words", spark)
    rows, files = source.bounded(spark)
    assert [(row["word"], row["n"]) for row in rows.collect()] == [("b", 2)]
    assert files
    taken = run(spark, source, tmp_path / "checkpoint")
    assert len(taken) == 1
