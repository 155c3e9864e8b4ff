"""Channels through verify and compaction: what all readers have taken goes, what one has yet to take stays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.execution.protocol.groups import readers_of
from pipelines.execution.verify import BY_COUNT, HOLDS, NOT_CHECKED, verify
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.flowmix.compile import topology_of
from pipelines.graph import events
from pipelines.maintenance import compact
from pipelines.maintenance.channels import ReadingProgress, taken
from pipelines.maintenance.compaction import checkpoints_of
from pipelines.maintenance.report import TableReport
from pipelines.sources import JsonFiles
from pipelines.trident import TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANNEL = "trips__rides__rides"


class Trips:
    """A flow with windows over files that a test writes."""

    def __init__(self, root: Path) -> None:
        self.source, self.lake, self.files = root / "in", Lake(root / "lake"), 0
        self.source.mkdir(parents=True)

    @property
    def topology(self) -> TridentTopology:
        source = JsonFiles(self.source, "line string, n bigint, at bigint", max_files_per_batch=1)
        return topology_of(
            Flow("trips", windows="channels")
            .stream("rides", source, timestamp="at")
                .partition("line")
                .aggregate(Count("trips"), Sum("n", "total"), trigger=Policy.count(3), evict=Policy.count(4))
                .persist("counted")
            .build()
        )  # fmt: skip

    def file(self, rows: int = 5) -> None:
        at = self.files * 100_000
        lines = [{"line": "ab"[n % 2], "n": self.files + n, "at": at + n * 1000} for n in range(rows)]
        part = self.source / f".{self.files:04d}"
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(part, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        part.rename(self.source / f"{self.files:04d}.json")
        self.files += 1

    def counted(self) -> list[tuple[Any, ...]]:
        return sorted(
            (row["event_id"], row["trips"], row["total"]) for row in self.lake.state("counted").scan().to_pylist()
        )

    def compact(self, spark: SparkSession, **more: Any) -> TableReport:
        report = compact(spark, self.lake, self.topology, retention_hours=0, **more)
        (found,) = [table for table in report.tables if table.state == CHANNEL]
        return found

    def verdicts(self, spark: SparkSession) -> set[tuple[str, int, str]]:
        return {(one.state, one.txid, one.verdict) for one in verify(spark, self.lake, self.topology).findings}


def undisturbed(spark: SparkSession, root: Path, files: int) -> list[tuple[Any, ...]]:
    trips = Trips(root)
    for _ in range(files):
        trips.file()
    Runtime(spark, trips.lake).catch_up(trips.topology)
    return trips.counted()


def test_who_reads_a_channel(tmp_path: Path) -> None:
    assert readers_of(Trips(tmp_path).topology) == {CHANNEL: {"rides__1"}}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_channel_is_verified_by_count_and_let_go_when_its_readers_have_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    trips = Trips(tmp_path / "trips")
    trips.file()
    trips.file()
    runtime = Runtime(spark, trips.lake)
    runtime.catch_up(trips.topology)
    assert trips.verdicts(spark) >= {(CHANNEL, 0, BY_COUNT), (CHANNEL, 1, BY_COUNT), ("counted", 0, HOLDS)}
    kept = trips.compact(spark, channel_retention_hours=1)
    assert (kept.rows_let_go, kept.after.rows) == (0, 12)

    gone = trips.compact(spark, channel_retention_hours=0)
    assert (gone.rows_let_go, gone.after.rows) == (11, 1)  # five events a file; the last word about the clock stays
    assert trips.verdicts(spark) >= {(CHANNEL, 0, NOT_CHECKED), (CHANNEL, 1, NOT_CHECKED)}
    trips.file()
    runtime.catch_up(trips.topology)
    assert trips.verdicts(spark) >= {(CHANNEL, 1, NOT_CHECKED), (CHANNEL, 2, BY_COUNT)}
    assert trips.counted() == undisturbed(spark, tmp_path / "other", 3)


@pytest.mark.slow
def test_lost_rows_of_a_channel_are_found(spark: SparkSession, tmp_path: Path) -> None:
    trips = Trips(tmp_path)
    trips.file()
    Runtime(spark, trips.lake).catch_up(trips.topology)
    DeltaTable(str(trips.lake.channel_path(CHANNEL))).delete(f"{events.CLOCK} = 2000")
    (lost,) = verify(spark, trips.lake, trips.topology).differing
    assert (lost.state, lost.rows, lost.found) == (CHANNEL, 6, 5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_a_reader_has_not_finished_stays(spark: SparkSession, tmp_path: Path) -> None:
    """The reader dies in its second batch; the channel is compacted as hard as can be; then it goes on."""
    trips = Trips(tmp_path / "trips")
    trips.file()
    Runtime(spark, trips.lake).catch_up(trips.topology)
    trips.file()
    trips.file()

    def dies(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committing", "counted"):
            raise RuntimeError("the reader dies")

    with pytest.raises(PoisonBatchError):
        Runtime(spark, trips.lake, listeners=[dies], max_attempts=1).catch_up(trips.topology)
    report = trips.compact(spark, channel_retention_hours=0)
    assert (report.rows_let_go, report.after.rows) == (5, 13)  # of the first file; its word stays
    Runtime(spark, trips.lake).catch_up(trips.topology)
    assert trips.counted() == undisturbed(spark, tmp_path / "other", 3)
    assert trips.compact(spark, channel_retention_hours=0).after.rows == 1


@pytest.mark.slow
def test_a_flow_known_by_name_alone_keeps_its_channels(spark: SparkSession, tmp_path: Path) -> None:
    trips = Trips(tmp_path)
    trips.file()
    Runtime(spark, trips.lake).catch_up(trips.topology)
    report = compact(spark, trips.lake, "trips", retention_hours=0, channel_retention_hours=0)
    assert {table.state: table.rows_let_go for table in report.tables}[CHANNEL] == 0
    assert trips.lake.channel(CHANNEL).count() == 6


@pytest.mark.slow
@pytest.mark.exhaustive
def test_before_its_first_batch_a_reader_may_ask_for_all(spark: SparkSession, tmp_path: Path) -> None:
    """The reader is cut off in its first batch, which has read the channel from a version that nothing on the disk names."""
    trips = Trips(tmp_path / "trips")
    trips.file()
    trips.file()

    def dies(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committing", "counted"):
            raise RuntimeError("the reader dies")

    with pytest.raises(PoisonBatchError):
        Runtime(spark, trips.lake, listeners=[dies], max_attempts=1).catch_up(trips.topology)
    readers = checkpoints_of(trips.lake, trips.topology)
    assert {taken(trips.lake.channel(CHANNEL), readers, number) for number in (1, None)} == {ReadingProgress(0, 0)}
    for _ in range(2):
        report = trips.compact(spark, channel_retention_hours=0)
        assert (report.rows_let_go, report.files_removed, report.log_files_removed) == (0, 0, 0)
    assert compact(spark, trips.lake, "trips", retention_hours=0).total.tables
    Runtime(spark, trips.lake).catch_up(trips.topology)
    assert trips.counted() == undisturbed(spark, tmp_path / "other", 2)
    assert trips.compact(spark, channel_retention_hours=0).rows_let_go == 11
