"""The rows of a poison batch: what is skipped is in quarantine, whatever the failure was cut off by. No Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.errors import BatchError, DiskFullError
from pipelines.execution.batch import poison as poison_module
from pipelines.execution.batch.poison import PoisonRows, skip
from pipelines.execution.batch.quarantine import COLUMNS, quarantine_writer, rows_of
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.protocol.coordinator import BatchState
from pipelines.execution.protocol.tracker import BatchTracker, Stage
from pipelines.execution.runners.stream import StreamRunner
from pipelines.places.location import on_disk
from pipelines.sources import FixedBatches
from pipelines.state.lake import Lake
from pipelines.state.writer import StateWriter
from pipelines.trident import DeltaState, TridentTopology

EPOCH = Epoch(1, 0)
FULL = "Generic LocalFileSystem error: No space left on device (os error 28)"


class Frame:
    """The refused rows of a batch, as Spark would give them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def toArrow(self) -> pa.Table:  # noqa: N802
        if self.error is not None:
            raise self.error
        row = {"stage": "batch", "rule": "poison", "reason": "x", "row": "{}", "file": None, "stream": "words"}
        return pa.Table.from_pylist([row | {"_slice": "!"}])


class Query:
    """A flow's one query, whose batch 1 has failed for good: the process died before its rows were in quarantine."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake, self.topology = Lake(root), TridentTopology("shop")
        stream = self.topology.new_stream("words", FixedBatches("word string", [[("a",)]] * 2))
        stream.partition_persist(DeltaState("rows"))
        self.checkpoint = Checkpoint("shop", self.lake.checkpoint_path("shop", "words"))
        self.spark = on_disk(self.checkpoint.spark)
        for folder in ("offsets", "commits"):
            (self.spark / folder).mkdir(parents=True)
        (self.spark / "metadata").write_text("{}")
        for batch in (0, 1):
            (self.spark / "offsets" / str(batch)).write_text('v1\n{"batchTimestampMs":1000}\n{}')
        (self.spark / "commits" / "0").write_text("v1\n{}")
        self.checkpoint.begin(EPOCH)
        self.fault: Exception | None = None
        monkeypatch.setattr(poison_module, "refused_batch", lambda *_: Frame(self.fault))
        monkeypatch.setattr(poison_module, "_fields_of", lambda *_: ())
        columns = StructType([StructField(name, StringType()) for name, _ in COLUMNS])
        monkeypatch.setattr(poison_module, "table_columns", lambda: columns)
        self.tracker = self.tracked()
        self.tracker.fail(self.tracker.open(1), "boom")
        assert self.tracker.state(1) is BatchState.POISON

    def tracked(self) -> BatchTracker:
        stage = Stage("source", group="words/1")
        return BatchTracker([stage], attempts=self.checkpoint.attempts(), max_attempts=1, first_txid=0)

    @property
    def poison(self) -> PoisonRows:
        spouts = self.topology.spouts
        group: Any = SimpleNamespace(
            name="words",
            topology=self.topology,
            spouts=spouts,
            sinks=(),
            quarantine=quarantine_writer(self.lake, "shop"),
            refused=rows_of(self.topology, "words", ["words"]),
            entrance=SimpleNamespace(
                has_windows=False,
                kept=False,
                positions_by_source=lambda *_: [frozenset()],
                frames=lambda *_: {spouts[0].id: None},
                events=lambda frames: frames,
            ),
        )
        return PoisonRows(group)

    def run(self) -> bool:
        """Batch 1 of a new run; whether it was left out."""
        runner: Any = StreamRunner.__new__(StreamRunner)
        runner._epoch, runner._checkpoint, runner._tracker = EPOCH, self.checkpoint, self.tracked()
        runner._poison = self.poison
        runner._group, runner._windows, runner._durable = runner._poison._group, None, None
        runner._claims = SimpleNamespace(check_planned=lambda _: None)
        return bool(runner._run(None, 1).skipped)

    @property
    def kept(self) -> int:
        table = quarantine_writer(self.lake, "shop").table
        return table.count() if table.exists() else 0


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(tmp_path, monkeypatch)


def test_a_batch_that_is_skipped_before_its_rows_were_kept_is_kept_by_the_next_run(query: Query) -> None:
    skip(query.lake, query.topology, 1)
    assert query.kept == 0
    assert (query.run(), query.kept) == (True, 1)
    version = quarantine_writer(query.lake, "shop").table.version()
    # Spark has not marked it: it comes again, and nothing is left to do.
    assert (query.run(), quarantine_writer(query.lake, "shop").table.version()) == (True, version)


def test_rows_that_a_replay_has_taken_out_are_not_kept_once_more(query: Query) -> None:
    rows = {spout.id: None for spout in query.topology.spouts}
    query.poison.keep(EPOCH, SimpleNamespace(txid=1, attempt=0), rows, "boom")  # type: ignore[arg-type]
    skip(query.lake, query.topology, 1)
    DeltaTable(str(query.lake.quarantine_path("shop"))).delete()
    assert (query.run(), query.kept) == (True, 0)


def test_of_a_batch_that_is_older_than_the_log_nobody_knows(query: Query) -> None:
    rows = {spout.id: None for spout in query.topology.spouts}
    query.poison.keep(EPOCH, SimpleNamespace(txid=7, attempt=0), rows, "boom")  # type: ignore[arg-type]
    skip(query.lake, query.topology, 1)
    table = query.lake.quarantine_path("shop")
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    assert (query.run(), query.kept) == (True, 1)
    (query.spark / "offsets" / "1").write_text('v1\n{"batchTimestampMs":9000000000000}\n{}')
    assert (query.run(), query.kept) == (True, 2)


def test_a_skipped_batch_that_quarantine_does_not_take_is_not_left_behind(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip(query.lake, query.topology, 1)

    def refuse(error: Exception) -> Any:
        def replace_rows(*_: Any) -> None:
            raise error

        return replace_rows

    for error, known in ((DeltaError(FULL), DiskFullError), (DeltaError("x"), BatchError)):
        with monkeypatch.context() as patch:
            patch.setattr(StateWriter, "replace_rows", refuse(error))
            with pytest.raises(known, match="batch 1"):
                query.run()
    assert (query.run(), query.kept) == (True, 1)


def test_a_skipped_batch_whose_source_cannot_be_read_is_left_behind(query: Query) -> None:
    """Whoever skipped it was told that its rows are in the source alone."""
    skip(query.lake, query.topology, 1)
    query.fault = PySparkException("the file is gone")
    assert (query.run(), query.kept) == (True, 0)
