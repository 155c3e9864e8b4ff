"""A lake, its sources and its checkpoints in a bucket: each row counts once, as on a disk."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines import Lake, Runtime, flowmix
from pipelines.errors import AccountingError, FreshCheckpointError, LockedError, PoisonBatchError, TrideltaError
from pipelines.execution.batch import stream_batch
from pipelines.execution.checkpoint.belonging import CheckpointBehindError, OtherCheckpointError, adopt
from pipelines.execution.report import BatchReport
from pipelines.execution.verify import damages, verify
from pipelines.flowmix import Flow, Policy
from pipelines.flowmix.compile import as_topology
from pipelines.maintenance import compact, compaction, retention
from pipelines.places.lease import SECONDS, LeaseLostError
from pipelines.places.location import Location, Place
from pipelines.quality import drop, fail
from pipelines.sources import CsvFiles, JsonFiles, ParquetFiles, TextFiles
from pipelines.state import record, store_commits
from pipelines.state.kinds import ROWS, TRANSACTIONAL
from pipelines.state.record import BATCH, BatchRecord
from pipelines.state.store_commits import add_actions, rows_of
from pipelines.state.turns import LateWriterError, stream_id
from pipelines.state.writer import StateWriter
from pipelines.trident import Count, DeltaState, MapGet, Sum, TridentTopology
from tests.state import small_kinds
from tests.state.small_kinds import APP, SmallTable
from tests.tiers import EXHAUSTIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = "key string, n bigint, day string"
STATES = ("rows", "again", "counts", "latest")


def put(folder: Place, name: str, *rows: tuple[str, int, str], torn: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"key": key, "n": n, "day": day}) for key, n, day in rows]
    (folder / name).write_bytes("\n".join([*lines, *([torn] if torn else [])]).encode())


def sales(folder: Place, name: str = "sales") -> TridentTopology:
    topology = TridentTopology(name)
    source = JsonFiles(folder, SCHEMA, max_files_per_batch=1)
    stream = topology.new_stream("sold", source, slice_by="day")
    stream.partition_persist(DeltaState("rows"))
    stream.partition_persist(DeltaState("again", "opaque"))
    keys = stream.group_by("key")
    counts = keys.persistent_aggregate(DeltaState("counts"), [Count("sales"), Sum("n", "total")])
    keys.persistent_aggregate(DeltaState("latest", "opaque", "map"), "n", Sum(), "total")
    topology.new_query_stream("of", "key string").state_query(counts, "key", MapGet(), "sales")
    return topology


def held(lake: Lake, *names: str) -> dict[str, list[str]]:
    return {name: sorted(map(str, lake.state(name).scan().to_pylist())) for name in names or STATES}


def reference(spark: SparkSession, folder: Path, files: Sequence[tuple[Any, ...]]) -> dict[str, list[str]]:
    """The same on a disk."""
    for number, rows in enumerate(files):
        put(folder / "in", f"{number}.json", *rows)
    lake = Lake(folder / "lake")
    Runtime(spark, lake).catch_up(sales(folder / "in"))
    return held(lake)


@contextlib.contextmanager
def large_results(large: bool = True) -> Iterator[None]:
    """Have each result taken for one that is too large for the driver."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DRIVER_ROWS", "DRIVER_BYTES") if large else ():
            patch.setattr(stream_batch, name, -1)
        yield


FILES: list[tuple[tuple[str, int, str], ...]] = [
    (("a", 1, "d1"), ("b", 2, "d1"), ("a", 3, "d2")),
    (("b", 4, "d2"), ("ü/c %", 5, "d 3:0/x")),
    (("a", 6, "d1"),),
]


def test_a_topology_counts_each_row_once(reaching: SparkSession, place: Location, tmp_path: Path) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    for number, rows in enumerate(FILES[:2]):
        put(source, f"{number}.json", *rows, torn="{torn" if number else "")
    first = Runtime(reaching, lake).catch_up(sales(source))
    assert [batch.txid for batch in first.batches] == [0, 1]
    assert [one["row"] for one in lake.quarantine("sales").scan().to_pylist()] == ["{torn"]
    put(source, "2.json", *FILES[2])
    # Another lake object: nothing is remembered in the process.
    runtime = Runtime(reaching, Lake(str(place).replace("s3a:", "s3:") + "/lake"))
    assert [batch.txid for batch in runtime.catch_up(sales(source)).batches] == [2]
    assert runtime.catch_up(sales(source)).batches == ()
    assert held(lake) == reference(reaching, tmp_path, FILES)
    assert runtime.query(sales(source), "of", [("a",)]) == [{"key": "a", "sales": 3}]
    assert runtime.query(sales(source), "of", [("a",)], txid=0) == [{"key": "a", "sales": 2}]
    assert lake.states() == sorted(STATES)
    assert not Path("s3a:").exists()
    assert not Path("s3:").exists()


@EXHAUSTIVE
def test_large_results_are_written_by_spark_and_committed_beside_small_ones(
    reaching: SparkSession, place: Location, tmp_path: Path
) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *FILES[0])
    Runtime(reaching, lake).catch_up(sales(source))
    put(source, "1.json", *FILES[1])
    with large_results():
        report = Runtime(reaching, lake).catch_up(sales(source))
    assert {one.state: one.rows for one in report.batches[0].commits}["rows"] == 2
    assert any("commit-" in entry.key for entry in place.store.entries("lake/states/rows"))
    put(source, "2.json", *FILES[2])
    Runtime(reaching, lake).catch_up(sales(source))
    assert held(lake) == reference(reaching, tmp_path, FILES)
    # Statistics, partitions and types are such that Delta's own reader agrees, and skips files rightly.
    frame = reaching.read.format("delta").load(str(lake.state_path("rows")))
    assert frame.where("_txid = 1").count() == 2
    assert frame.where("n >= 4").count() == 3
    assert lake.state("rows").count() == frame.count() == 6


@EXHAUSTIVE
def test_a_writer_that_stood_still_does_not_commit_files_that_a_compaction_may_have_deleted(
    reaching: SparkSession, place: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *FILES[0])
    Runtime(reaching, lake).catch_up(sales(source))
    put(source, "1.json", *FILES[1])
    before = lake.state("rows").version()
    with monkeypatch.context() as stands_still, large_results():
        stands_still.setattr(store_commits, "COMMITTED_WITHIN_SECONDS", -60.0)
        with pytest.raises(LateWriterError, match="a compaction may have deleted them"):
            Runtime(reaching, lake).catch_up(sales(source))
    assert lake.state("rows").version() == before
    with large_results():
        Runtime(reaching, lake).catch_up(sales(source))
    assert held(lake) == reference(reaching, tmp_path, FILES[:2])


def test_a_batch_of_which_a_file_is_missing_is_not_committed(
    reaching: SparkSession, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SmallTable(place / "lake", ROWS, TRANSACTIONAL, sliced=True)
    rows = reaching.createDataFrame(
        [("a", 1, "d1"), ("b", 2, "d2"), ("c", 4, "d2")], "word string, n long, _slice string"
    )
    version, listed = state.table.version(), store_commits.add_actions
    with monkeypatch.context() as patched:
        patched.setattr(store_commits, "add_actions", lambda *given: list(listed(*given))[1:])
        with pytest.raises(AccountingError, match=r"stage counts of batch 0:0: expected 3 rows but received [12]"):
            state.writer.commit_batch(rows, small_kinds.record(0), APP, known=False)
    assert state.table.version() == version
    for txid, given in enumerate((rows, rows.where("n > 4"))):
        state.writer.commit_batch(given, small_kinds.record(txid), APP, known=False)
    assert state.held() == [("a", 1), ("b", 2), ("c", 4)]
    # delta-rs counts no rows of these commits.
    assert [(one.written, one.rows) for one in state.table.commits.batches()] == [(None, 3), (None, 0)]


def test_what_an_attempt_of_a_task_left_behind_is_not_committed(place: Location) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2]}), out)
    table = place / "lake" / "states" / "rows"
    for folder in ("_slice=d1", "_temporary/0/_temporary/attempt_0/_slice=d1"):
        (table / f"commit-1/{folder}/part-0.parquet").write_bytes(out.getvalue())
    (action,) = add_actions(table, table / "commit-1", 3)
    assert action.path == "commit-1/_slice=d1/part-0.parquet"
    assert action.partition_values == {"_slice": "d1", "_gen": "3"}
    assert rows_of([action]) == 2


@pytest.mark.parametrize("place", ["moto", pytest.param("versity", marks=EXHAUSTIVE)], indirect=True)
def test_a_listing_that_a_late_process_has_written_over_is_refused(reaching: SparkSession, place: Location) -> None:
    lake, source, topology = Lake(place / "lake"), place / "in", TridentTopology("sales")
    stream = topology.new_stream("sold", JsonFiles(source, SCHEMA), slice_by="day")
    stream.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "n")
    for number in range(2):
        put(source, f"{number}.json", *FILES[number])
    assert len(Runtime(reaching, lake).catch_up(topology).batches) == 1
    listing = lake.checkpoint_path("sales", "sold") / "spark" / "sources" / "0" / "0"
    whole = listing.read_bytes()
    assert len(whole.split(b"\n")) == 3
    listing.write_bytes(whole.rpartition(b"\n")[0])
    with pytest.raises(
        OtherCheckpointError, match=r"txid 0 of the table took other files .*\(listing 0 in .*/sources/0\)"
    ):
        Runtime(reaching, Lake(lake.root)).catch_up(topology)
    assert any("took other files" in str(one) for one in damages(lake, topology))
    listing.write_bytes(whole)
    assert Runtime(reaching, Lake(lake.root)).catch_up(topology).batches == ()
    assert sorted((row["key"], row["n"]) for row in lake.state("counts").scan().to_pylist()) == [
        ("a", 2),
        ("b", 2),
        ("ü/c %", 1),
    ]
    # Who goes on all the same gets the file once more, as it says.
    listing.write_bytes(whole.rpartition(b"\n")[0])
    assert set(adopt(lake, topology)) == {"sold"}
    assert [one.received for one in Runtime(reaching, Lake(lake.root)).catch_up(topology).batches] in ([2], [3])


HOSTILE = ("a/b", "%2F", "%", "a%20b", "a b", "a+b", "a?b", "#", "a=b", "x:y", "..", ".", "\\", "{x}", "[x]", "'", '"')
HOSTILE += ("ä€", "a\nb", "~")
"""Slices that are no plain folders."""


@EXHAUSTIVE
@pytest.mark.parametrize("large", [False, True])
def test_a_slice_is_kept_whatever_its_text(reaching: SparkSession, place: Location, large: bool) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *(("k", n, day) for n, day in enumerate(HOSTILE)))
    with large_results(large):
        Runtime(reaching, lake).catch_up(sales(source))
    put(source, "1.json", *(("k", n, day) for n, day in enumerate(HOSTILE)))
    Runtime(reaching, lake).catch_up(sales(source))
    assert sorted((row["n"], row["day"]) for row in lake.state("rows").scan().to_pylist()) == sorted(
        2 * [*enumerate(HOSTILE)]
    )
    frame = reaching.read.format("delta").load(str(lake.state_path("rows")))
    for n, day in enumerate(HOSTILE):
        text = day.replace("'", "''")
        assert [row["n"] for row in lake.state("rows").scan(where=f"_slice = '{text}'").to_pylist()] == [n, n]
        assert [(row["n"], row["day"]) for row in frame.where(F.col("_slice") == day).collect()] == [(n, day)] * 2


@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=EXHAUSTIVE)])
def test_a_flow_takes_each_event_once(reaching: SparkSession, place: Location, tmp_path: Path, on_disk: bool) -> None:
    lake, source = Lake(place / "lake", durable=True), tmp_path / "in" if on_disk else place / "in"
    put(source, "0.json", *FILES[0])
    flow = (
        Flow("events")
        .stream("sold", JsonFiles(source, SCHEMA, max_files_per_batch=1))
        .filter("n > 1")
        .persist("kept")
        .build()
    )
    assert len(Runtime(reaching, lake).catch_up(flow).batches) == 1
    put(source, "1.json", *FILES[1])
    assert len(Runtime(reaching, lake).catch_up(flow).batches) == 1
    assert sorted(row["n"] for row in lake.state("kept").scan().to_pylist()) == [2, 3, 4, 5]


@EXHAUSTIVE
@pytest.mark.parametrize("large", [False, True])
def test_a_run_that_ends_at_a_commit_goes_on(
    reaching: SparkSession, place: Location, tmp_path: Path, large: bool
) -> None:
    """It ends ahead of a commit of the second batch and behind one, and once ahead of Spark's mark."""
    lake, source = Lake(place / "lake"), place / "in"
    for number, rows in enumerate(FILES):
        put(source, f"{number}.json", *rows)

    class Gone(BaseException):
        pass

    for moment, state in (("committing", "rows"), ("committed", "again"), ("committing", "latest"), ("closed", "")):

        def ends(told: str, name: str, txid: int, at: tuple[str, str, int] = (moment, state, 1)) -> None:
            if (told, name, txid) == at:
                raise Gone

        with pytest.raises(Gone), large_results(large):
            Runtime(reaching, lake, listeners=[ends], max_attempts=9).catch_up(sales(source))
    Runtime(reaching, lake, max_attempts=9).catch_up(sales(source))
    # Spark's mark of the last batch is lost as well.
    spark = lake.checkpoint_path("sales", "sold") / "spark"
    (spark / "commits" / "2").unlink()
    assert [batch.txid for batch in Runtime(reaching, lake).catch_up(sales(source)).batches] == [2]
    assert held(lake) == reference(reaching, tmp_path, FILES)


@EXHAUSTIVE
def test_a_poison_batch_is_kept_and_left_out(reaching: SparkSession, place: Location) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    for number, rows in enumerate(FILES):
        put(source, f"{number}.json", *rows)
    topology = TridentTopology("sales")
    stream = topology.new_stream("sold", JsonFiles(source, SCHEMA, max_files_per_batch=1))
    stream.gate(fail("expect_column_values_to_be_between", column="n", max_value=4), name="small").partition_persist(
        DeltaState("rows")
    )
    runtime = Runtime(reaching, lake, max_attempts=1)
    with pytest.raises(PoisonBatchError):
        runtime.catch_up(topology)
    runtime.skip(topology, 1)
    with pytest.raises(PoisonBatchError, match="batch 2"):
        runtime.catch_up(topology)
    runtime.skip(topology, 2)
    runtime.catch_up(topology)
    assert sorted(row["n"] for row in lake.state("rows").scan().to_pylist()) == [1, 2, 3]
    assert lake.quarantine("sales").count() == 3


@EXHAUSTIVE
def test_two_drivers_of_one_flow_take_turns(reaching: SparkSession, place: Location, tmp_path: Path) -> None:
    source = place / "in"
    for number, rows in enumerate(FILES):
        put(source, f"{number}.json", *rows)
    taken: list[list[int]] = []

    def drive() -> None:
        report = Runtime(reaching, Lake(place / "lake"), lock_wait_seconds=200).catch_up(sales(source))
        taken.append([batch.txid for batch in report.batches])

    threads = [threading.Thread(target=drive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [[], [0, 1, 2]]
    assert held(Lake(place / "lake")) == reference(reaching, tmp_path, FILES)


def by_day(folder: Place, most: int = 50) -> TridentTopology:
    """The sales without a map state, whose slices nobody can take out again."""
    topology = TridentTopology("days")
    source = JsonFiles(folder, SCHEMA, max_files_per_batch=1)
    stream = topology.new_stream("sold", source, slice_by="day").gate(
        drop("expect_column_values_to_be_between", column="n", max_value=most), name="sane"
    )
    stream.partition_persist(DeltaState("rows"))
    stream.partition_persist(DeltaState("again", "opaque"))
    stream.group_by("key").persistent_aggregate(DeltaState("counts"), [Count("sales"), Sum("n", "total")])
    return topology


def days(spark: SparkSession, lake: Lake, source: Place, *, killed: bool) -> dict[str, list[str]]:
    """Days replaced before the first batch, between two batches, and by a run that dies between its commits and is run again."""
    runtime, topology = Runtime(spark, lake), by_day(source)
    put(source, "0.json", *FILES[0], ("z", 90, "d1"))
    assert {report.slice for report in runtime.backfill(topology, ["d2"]).slices} == {"d2"}
    runtime.catch_up(topology)
    put(source, "1.json", *FILES[1])
    put(source, "2.json", *FILES[2], torn="{torn")

    def die(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "again"):
            raise KeyboardInterrupt

    if killed:
        with pytest.raises(KeyboardInterrupt):
            Runtime(spark, lake, listeners=[die]).backfill(topology, ["d1", "d2"])
    runtime.backfill(topology, ["d1", "d2"])
    runtime.catch_up(topology)
    refused = sorted((row["rule"], row["row"]) for row in lake.quarantine("days").scan().to_pylist())
    return held(lake, "rows", "again", "counts") | {"refused": list(map(str, refused))}


@EXHAUSTIVE
@pytest.mark.parametrize("killed", [False, True])
def test_slices_there_are_replaced_and_counted_once(
    reaching: SparkSession, place: Location, tmp_path: Path, killed: bool
) -> None:
    wanted = days(reaching, Lake(tmp_path / "lake"), tmp_path / "in", killed=False)
    assert wanted["counts"]
    assert len(wanted["refused"]) == 2
    assert days(reaching, Lake(place / "lake"), place / "in", killed=killed) == wanted


def replayed(spark: SparkSession, lake: Lake, source: Place, *, killed: bool) -> dict[str, list[str]]:
    """Rows that a stricter gate refused go in again, once, behind a mended one."""
    put(source, "0.json", *FILES[0], ("a", 70, "d1"), ("b", 80, "d2"), torn="{torn")
    Runtime(spark, lake).catch_up(by_day(source))

    def die(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "again"):
            raise KeyboardInterrupt

    if killed:
        with pytest.raises(KeyboardInterrupt):
            Runtime(spark, lake, listeners=[die]).replay_quarantine(by_day(source, most=75))
    report = Runtime(spark, lake).replay_quarantine(by_day(source, most=75))
    assert bool(report.resumed) is killed
    left = sorted(row["row"] for row in lake.quarantine("days").scan().to_pylist())
    return held(lake, "rows", "again", "counts") | {"left": left}


@EXHAUSTIVE
@pytest.mark.parametrize("killed", [False, True])
def test_quarantine_there_is_replayed_once(
    reaching: SparkSession, place: Location, tmp_path: Path, killed: bool
) -> None:
    wanted = replayed(reaching, Lake(tmp_path / "lake"), tmp_path / "in", killed=False)
    assert len(wanted["left"]) == 2
    assert replayed(reaching, Lake(place / "lake"), place / "in", killed=killed) == wanted


def test_a_bounded_run_there_replaces_everything(reaching: SparkSession, place: Location) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    topology = TridentTopology("whole")
    stream = topology.new_stream("sold", JsonFiles(source, SCHEMA))
    stream.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "sales")
    put(source, "0.json", *FILES[0])
    Runtime(reaching, lake).run_bounded(topology)
    put(source, "1.json", *FILES[1])
    Runtime(reaching, lake).run_bounded(topology)
    counted = {row["key"]: row["sales"] for row in lake.state("counts").scan().to_pylist()}
    assert counted == {"a": 2, "b": 2, "ü/c %": 1}


class Streaming:
    """A stream over the sales, which a test waits for."""

    def __init__(self, spark: SparkSession, lake: Lake, source: Place) -> None:
        self._batches, self._more = [], threading.Condition()
        self.running = Runtime(spark, lake).stream(sales(source), trigger_seconds=0.2, progress=self._took)

    def _took(self, report: BatchReport) -> None:
        with self._more:
            self._batches.append(report.txid)
            self._more.notify_all()

    def came_to(self, *txids: int) -> None:
        """Wait until these are its batches."""
        with self._more:
            assert self._more.wait_for(lambda: self._batches == [*txids] or not self.running.running, 120)
        assert self._batches == [*txids]


@EXHAUSTIVE
def test_a_stream_there_goes_on_until_it_is_stopped(reaching: SparkSession, place: Location, tmp_path: Path) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *FILES[0])
    stream = Streaming(reaching, lake, source)
    try:
        stream.came_to(0)
        put(source, "1.json", *FILES[1])
        stream.came_to(0, 1)
        with pytest.raises(LockedError):
            Runtime(reaching, Lake(place / "lake"), lock_wait_seconds=0.5).catch_up(sales(source))
    finally:
        reports = stream.running.stop()
    assert [report.txid for report in reports] == [0, 1]
    put(source, "2.json", *FILES[2])
    again = Streaming(reaching, Lake(place / "lake"), source)
    try:
        again.came_to(2)
    finally:
        again.running.stop()
    assert held(lake) == reference(reaching, tmp_path, FILES)


@EXHAUSTIVE
def test_a_stream_that_has_lost_its_lease_begins_no_further_batch(
    reaching: SparkSession, place: Location, tmp_path: Path
) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *FILES[0])
    stream = Streaming(reaching, lake, source)
    stream.came_to(0)
    lease = lake.checkpoint_path("sales", "sold") / "run.lock"
    assert isinstance(lease, Location)
    # As another host would, that has seen it unchanged for longer than a lease lasts.
    lease.write_bytes(json.dumps({**json.loads(lease.read_bytes()), "lease": "another host's"}).encode())
    time.sleep(SECONDS / 4)
    put(source, "1.json", *FILES[1])
    while stream.running.running:
        time.sleep(0.1)
    with pytest.raises(LeaseLostError):
        stream.running.stop()
    assert lake.state("rows").last_txid() == 0
    lease.store.delete(lease.key)
    put(source, "2.json", *FILES[2])
    Runtime(reaching, lake).catch_up(sales(source))
    assert held(lake) == reference(reaching, tmp_path, FILES)


@pytest.mark.parametrize("large", [pytest.param(False, marks=EXHAUSTIVE), True])
def test_a_driver_that_was_overtaken_commits_nothing(reaching: SparkSession, place: Location, large: bool) -> None:
    """It stood still ahead of a commit, for longer than its lease; another one has made the commit meanwhile."""
    for number, key in enumerate("aba"):
        put(place / "in", f"{number}.json", (key, 1, "d1"))
    topology = TridentTopology("words")
    stream = topology.new_stream("in", JsonFiles(place / "in", SCHEMA, max_files_per_batch=1))
    stream.group_by("key").persistent_aggregate(DeltaState("counts"), Count(), "n")

    def overtaken(moment: str, state: str, txid: int) -> None:
        if (moment, state, txid) == ("committing", "counts", 1):
            table = Lake(place / "lake").state("counts")
            record = BatchRecord(kind=BATCH, flow="words", epoch=1, txid=1)
            rows = pa.table({"key": ["b"], "n": [1]})
            StateWriter(table, table.declared).commit_batch(rows, record, stream_id("words", "counts", 1), known=False)

    lake = Lake(place / "lake")
    with pytest.raises(LateWriterError, match="batch 1 comes too late"), large_results(large):
        Runtime(reaching, lake, listeners=[overtaken]).catch_up(topology)
    Runtime(reaching, lake).catch_up(topology)
    assert held(lake, "counts") == {"counts": ["{'key': 'a', 'n': 2}", "{'key': 'b', 'n': 1}"]}
    assert [commit.txid for commit in lake.state("counts").commits.batches()] == [0, 1, 2]


@EXHAUSTIVE
def test_a_lost_checkpoint_is_told_and_begun_again_as_asked(
    reaching: SparkSession, place: Location, tmp_path: Path
) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *FILES[0])
    put(source, "1.json", *FILES[1])
    Runtime(reaching, lake).catch_up(sales(source))
    for entry in list(place.store.entries("lake/checkpoints")):
        place.store.delete(entry.key)
    put(source, "2.json", *FILES[2])
    with pytest.raises(FreshCheckpointError):
        Runtime(reaching, lake).catch_up(sales(source))
    Runtime(reaching, lake).catch_up(sales(source), on_fresh_checkpoint="reset")
    assert held(lake) == reference(reaching, tmp_path, FILES)


@EXHAUSTIVE
def test_partitions_asked_for_are_kept(reaching: SparkSession, place: Location) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *FILES[0])
    Runtime(reaching, lake).catch_up(sales(source), partitions=3)
    put(source, "1.json", *FILES[1])
    Runtime(reaching, lake).catch_up(sales(source))
    assert lake.state("rows").count() == 5


# --- sources there, the lake on a disk ------------------------------------------------------------------------------


def csv(folder: Location) -> None:
    (folder / "0.csv").write_bytes(b"n,key,day\n1,a,d1\n2,b,d1\n")
    (folder / "1.csv").write_bytes(b"key,n,day\na,3,d2\nb,x,d2\n")


def parquet(folder: Location) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, rows in enumerate(([("a", 1, "d1"), ("b", 2, "d1")], [("a", 3, "d2")])):
        table = pa.Table.from_pylist([dict(zip(("key", "n", "day"), row, strict=True)) for row in rows])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        (folder / f"{number}.parquet").write_bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(("kind", "given"), [(CsvFiles, csv), (ParquetFiles, parquet)])
def test_sources_there_feed_a_lake_on_a_disk(
    reaching: SparkSession, place: Location, tmp_path: Path, kind: type[Any], given: Callable[[Location], None]
) -> None:
    given(place / "in")
    topology = TridentTopology("sales")
    stream = topology.new_stream("sold", kind(f"{place}/in", SCHEMA), slice_by="day")
    stream.group_by("key").persistent_aggregate(DeltaState("counts"), [Count("sales"), Sum("n", "total")])
    lake = Lake(tmp_path)
    runtime = Runtime(reaching, lake)
    assert not runtime.backfill(topology, ["d1"]).failed
    runtime.catch_up(topology)
    assert held(lake, "counts") == {
        "counts": ["{'key': 'a', 'sales': 2, 'total': 4}", "{'key': 'b', 'sales': 1, 'total': 2}"]
    }


@EXHAUSTIVE
@pytest.mark.parametrize("windows", ["channels", "batch"])
def test_windows_over_a_source_there(reaching: SparkSession, place: Location, tmp_path: Path, windows: str) -> None:
    for number, rows in enumerate(FILES):
        put(place / "in", f"{number}.json", *rows)
    two = Policy.count(2)
    flow = (
        Flow("pairs", windows=windows)
        .stream("sold", JsonFiles(place / "in", SCHEMA, max_files_per_batch=1))
        .partition("key")
    )
    built = flow.aggregate(flowmix.Sum("n"), trigger=two, evict=two).persist("sums").build()
    lake = Lake(tmp_path)
    Runtime(reaching, lake).catch_up(built)
    assert lake.state("sums").count() == 2


def test_lines_there_are_streamed_into_a_lake_on_a_disk(
    reaching: SparkSession, place: Location, tmp_path: Path
) -> None:
    (place / "in" / "0.txt").write_bytes(b"a\nb\n")
    topology = TridentTopology("lines")
    topology.new_stream("lines", TextFiles(place / "in")).partition_persist(DeltaState("kept"))
    lake = Lake(tmp_path)
    seen = threading.Event()
    running = Runtime(reaching, lake).stream(topology, trigger_seconds=0.1, progress=lambda _: seen.set())
    try:
        assert seen.wait(120)
    finally:
        running.stop()
    assert sorted(row["line"] for row in lake.state("kept").scan().to_pylist()) == ["a", "b"]


NINE = [((key, number, f"d{number % 2}"), ("every", number, "d0")) for number, key in enumerate("abcabcabc")]


@pytest.fixture
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (record, compaction):
        monkeypatch.setattr(module, "GENERATION", 4)


@EXHAUSTIVE
@pytest.mark.usefixtures("small_generations")
def test_tables_there_are_compacted(reaching: SparkSession, place: Location, tmp_path: Path) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    for number, rows in enumerate(NINE):
        put(source, f"{number}.json", *rows, torn="{torn" if number == 3 else "")
    Runtime(reaching, lake).catch_up(sales(source))
    before, past = held(lake), lake.state("counts").scan(txid=4).to_pylist()
    # What a driver that died in the middle of a large commit has left, long ago.
    left = place / "lake" / "states" / "rows" / "commit-0" / "_temporary" / "0" / "x.parquet"
    left.write_bytes(b"half")
    kept = compact(None, lake, sales(source))
    assert held(Lake(place / "lake")) == before
    assert Lake(place / "lake").state("counts").scan(txid=4).to_pylist() == past
    assert left.exists()
    gone = compact(None, lake, sales(source), retention_hours=0.0)
    files = {table.state: (table.before.files, table.after.files) for table in kept.tables}
    assert files["counts"][0] > files["counts"][1]
    assert sum(table.files_removed for table in gone.tables) > 0
    assert held(Lake(place / "lake")) == before
    assert lake.quarantine("sales").count() == 1
    put(source, "9.json", *FILES[1])
    Runtime(reaching, Lake(place / "lake")).catch_up(sales(source))
    assert held(Lake(place / "lake")) == reference(reaching, tmp_path, [*NINE, FILES[1]])
    assert retention.remove_left_overs(lake.state("rows"), 0, now=time.time() + 2 * 86_400) == 1
    assert not left.exists()
    assert held(Lake(place / "lake")) == reference(reaching, tmp_path / "again", [*NINE, FILES[1]])


@EXHAUSTIVE
@pytest.mark.usefixtures("small_generations")
def test_a_compaction_there_beside_a_stream(reaching: SparkSession, place: Location, tmp_path: Path) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    put(source, "0.json", *NINE[0])
    stream = Streaming(reaching, lake, source)
    try:
        for number, rows in enumerate(NINE[1:], 1):
            stream.came_to(*range(number))
            put(source, f"{number}.json", *rows)
            if number in (4, 8):
                compact(None, Lake(place / "lake"), sales(source))
        stream.came_to(*range(len(NINE)))
    finally:
        stream.running.stop()
    assert held(Lake(place / "lake")) == reference(reaching, tmp_path, NINE)


@EXHAUSTIVE
@pytest.mark.usefixtures("small_generations")
def test_a_log_that_is_too_large_to_fold_there_is_left_as_it_is(
    reaching: SparkSession, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    for number, rows in enumerate(NINE):
        put(source, f"{number}.json", *rows)
    Runtime(reaching, lake).catch_up(sales(source))
    before = held(lake)
    monkeypatch.setattr(compaction, "STORE_ROWS", 1)
    with pytest.raises(TrideltaError, match=r'state "counts" has \d+ rows to fold, more than the'):
        compact(reaching, lake, sales(source))
    assert held(Lake(place / "lake")) == before


@EXHAUSTIVE
def test_damage_there_is_found(reaching: SparkSession, place: Location) -> None:
    lake, source = Lake(place / "lake"), place / "in"
    for number, rows in enumerate(FILES):
        put(source, f"{number}.json", *rows)
    Runtime(reaching, lake).catch_up(sales(source))
    report = verify(reaching, lake, sales(source))
    assert {finding.verdict for finding in report.findings if finding.state == "rows"} == {"holds"}
    assert not report.differing
    assert not report.faults
    gone = next(e.key for e in place.store.entries("lake/states/rows") if e.key.endswith(".parquet"))
    place.store.delete(gone)
    (place / "lake" / "checkpoints" / "sales" / "sold" / "spark" / "offsets" / "2").write_bytes(b"v1")
    faults = [str(fault) for fault in verify(reaching, Lake(place / "lake"), sales(source)).faults]
    assert any(gone.rpartition("/")[2] in fault for fault in faults)
    assert any("offsets/2" in fault for fault in faults)


@EXHAUSTIVE
def test_an_older_checkpoint_there_is_refused_and_adopted(reaching: SparkSession, place: Location) -> None:
    lake, source, topology = Lake(place / "lake"), place / "in", by_day(place / "in")
    put(source, "0.json", *FILES[0])
    Runtime(reaching, lake).catch_up(topology)
    kept = [(e.key, place.store.read(e.key).data) for e in place.store.entries("lake/checkpoints")]
    put(source, "1.json", *FILES[1])
    Runtime(reaching, lake).catch_up(topology)
    for entry in list(place.store.entries("lake/checkpoints")):
        place.store.delete(entry.key)
    for key, data in kept:
        place.store.put(key, data)
    put(source, "2.json", *FILES[2])
    with pytest.raises(CheckpointBehindError):
        Runtime(reaching, lake).catch_up(topology)
    assert [type(error) for error in adopt(lake, topology).values()] == [CheckpointBehindError]
    Runtime(reaching, lake).catch_up(topology)
    # What the tables held beyond the checkpoint has come again, as `adopt` says.
    assert sorted(row["n"] for row in lake.state("rows").scan().to_pylist()) == [1, 2, 3, 4, 4, 5, 5, 6]


def pairs(folder: Place, place: str, count: int = 2) -> Flow:
    two = Policy.count(count)
    source = JsonFiles(folder, "key string, n bigint, at bigint", max_files_per_batch=1)
    windows = Flow("pairs", windows=place).stream("sold", source, timestamp="at").partition("key")
    return windows.aggregate(flowmix.Sum("n", "sum"), trigger=two, evict=two).persist("sums").build()


def put_events(folder: Place, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    events = [{"key": key, "n": number, "at": 1000 * number} for key in "ab" for _ in range(1 + number % 2)]
    (folder / f"{number}.json").write_bytes("".join(json.dumps(event) + "\n" for event in events).encode())


@EXHAUSTIVE
@pytest.mark.parametrize(("windows", "large"), [("batch", False), ("channels", False), ("channels", True)])
def test_windows_there_sum_each_event_once(
    reaching: SparkSession, place: Location, tmp_path: Path, windows: str, large: bool
) -> None:
    def die(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "sums") and txid in (1, 2):
            raise KeyboardInterrupt

    def sums(lake: Lake, source: Place, *, killed: bool) -> list[Any]:
        flow = pairs(source, windows)
        for number in range(5):
            put_events(source, number)
            if killed:
                with contextlib.suppress(KeyboardInterrupt):
                    Runtime(reaching, lake, listeners=[die]).catch_up(flow)
            Runtime(reaching, Lake(lake.root)).catch_up(flow)
        assert not verify(reaching, lake, as_topology(flow)).differing
        return sorted((row["key"], row["sum"]) for row in lake.state("sums").scan().to_pylist())

    wanted = sums(Lake(tmp_path / "lake"), tmp_path / "in", killed=False)
    assert len(wanted) > 4
    with large_results(large):
        assert sums(Lake(place / "lake"), place / "in", killed=True) == wanted
    flow = pairs(place / "in", windows)
    compact(None, Lake(place / "lake"), as_topology(flow), retention_hours=0.0, channel_retention_hours=0.0)
    # Windows behind a channel go over into the batch with what they hold; then they are changed there.
    for number, count in ((5, 2), (6, 3), (7, 3)):
        for root in (place, tmp_path):
            put_events(root / "in", number)
            runtime = Runtime(reaching, Lake(root / "lake"))
            runtime.catch_up(pairs(root / "in", "batch", count), changed_windows="begin" if number == 6 else "refuse")
        found, further = (Lake(root / "lake").state("sums").scan().to_pylist() for root in (place, tmp_path))
        assert sorted((row["key"], row["sum"]) for row in found) == sorted((row["key"], row["sum"]) for row in further)


@EXHAUSTIVE
def test_a_bounded_run_there_of_a_flow_with_channels(reaching: SparkSession, place: Location, tmp_path: Path) -> None:
    found = []
    for root in (place, tmp_path):
        lake, source = Lake(root / "lake"), root / "in"
        for number in range(4):
            put_events(source, number)
        Runtime(reaching, lake).run_bounded(pairs(source, "channels"))
        found.append(sorted((row["key"], row["sum"]) for row in lake.state("sums").scan().to_pylist()))
    assert found[0] == found[1] != []
    assert not list(place.store.entries("lake/spool"))
