"""The rows of a poison batch: what is skipped is in quarantine, whatever the failure was cut off by. No Spark."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.errors import BatchError, ChangeoverError, DiskFullError
from pipelines.execution.batch import poison as poison_module
from pipelines.execution.batch import windows_change
from pipelines.execution.batch.driver_windows import DriverWindows
from pipelines.execution.batch.poison import PoisonRows, skip
from pipelines.execution.batch.quarantine import quarantine_writer, rows_of
from pipelines.execution.batch.stream_batch import Shared
from pipelines.execution.batch.windows_change import WindowsChange
from pipelines.execution.checkpoint import keeps as keeps_module
from pipelines.execution.checkpoint.belonging import Belonging, CheckpointBehindError, adopt
from pipelines.execution.checkpoint.engine_files import CONTINUE, Checkpoint, Epoch, write_json
from pipelines.execution.checkpoint.keeps import Keeps
from pipelines.execution.checkpoint.replay_records import Record, Records, app_id, put_in_since
from pipelines.execution.checkpoint.waiting_rows import WaitingRows
from pipelines.execution.checkpoint.window_begin import Begun, StateRef, state_files
from pipelines.execution.protocol.coordinator import GONE, AttemptRecord, Batch, BatchState, Coordinator
from pipelines.execution.protocol.tracker import BatchTracker, Stage
from pipelines.execution.replays.selection import NUMBER, completed
from pipelines.execution.report import BatchReport
from pipelines.execution.runners.batch_attempts import BatchAttempts
from pipelines.execution.runners.epochs import Epochs
from pipelines.execution.runners.stopping import Stopping
from pipelines.execution.runners.stream import StreamRunner
from pipelines.maintenance.repartition import _begun
from pipelines.places.lease import LeaseLostError
from pipelines.places.location import on_disk
from pipelines.sources import FixedBatches
from pipelines.sources.channels import Start
from pipelines.state.kinds import ROWS, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.quarantine import COLUMNS
from pipelines.state.record import BATCH, POISON, REPLAY, BatchRecord
from pipelines.state.turns import LateWriterError, stream_id
from pipelines.state.writer import StateWriter
from pipelines.trident import DeltaState, TridentTopology
from tests.state import small_kinds

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
        monkeypatch.setattr(poison_module, "rejected_batch", lambda *_: Frame(self.fault))
        monkeypatch.setattr(poison_module, "_fields_of", lambda *_: ())
        columns = StructType([StructField(name, StringType()) for name, _ in COLUMNS])
        for module in ("poison", "quarantine"):
            monkeypatch.setattr(f"pipelines.execution.batch.{module}.table_columns", lambda: columns)
        self.tracker = self.tracked()
        self.tracker.fail(self.tracker.open(1, plan=self.checkpoint.plan(1)), "boom")
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
            rejected=rows_of(self.topology, "words", ["words"]),
            sources=SimpleNamespace(
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
        return bool(self.runner()._run(None, 1).skipped)

    def runner(self) -> Any:
        runner: Any = StreamRunner.__new__(StreamRunner)
        runner._epoch, runner._checkpoint, runner._tracker = EPOCH, self.checkpoint, self.tracked()
        runner._poison = poison = self.poison
        runner._group, runner._windows, runner._durable = poison._group, None, None
        runner._claims = SimpleNamespace(check_planned=lambda _: None, check_moved=lambda _: None)
        runner._goes_on = False
        counters: Any = None
        shared = Shared(poison._group, EPOCH, runner._tracker, (), {}, (), counters, is_taken=self.is_taken)
        attempts: Any = BatchAttempts(shared, self.checkpoint, poison, Stopping(), 1, poison.kept())
        tried = BatchReport("shop", "words", 1, 0, 0, 0, (), 0.0)
        runner._attempts, attempts.run = attempts, lambda *_: tried
        return runner

    def epochs(self) -> Any:
        epochs: Any = Epochs.__new__(Epochs)
        epochs._poison = poison = self.poison
        epochs._group, epochs._checkpoint, epochs._windows = poison._group, self.checkpoint, None
        epochs._attempts_in, epochs._wait = None, 0.0
        return epochs

    def begun_again(self) -> Epoch:
        """The fresh epoch of a start by `continue`."""
        begun: Epoch = self.epochs()._fresh_epoch(CONTINUE)
        return begun

    def is_taken(self, txid: int) -> bool:
        return self.checkpoint.is_finished(txid - EPOCH.first_txid)

    def keep(self, txid: int, *, plan: bool = True) -> None:
        """Put the rows of a batch into quarantine."""
        rows: Any = {spout.id: None for spout in self.topology.spouts}
        of = self.checkpoint.plan(txid) if plan else None
        self.poison.keep(EPOCH, Batch("words/1", txid, 0), lambda: rows, "boom", self.poison.seen(), of)

    def plan_again(self) -> None:
        """Lose the plan of batch 1 with the power, and let Spark plan it again, with files that have come since."""
        (self.spark / "offsets" / "1").write_text('v1\n{"batchTimestampMs":9000}\n{"logOffset":7}')

    def plan_at(self, milliseconds: int) -> None:
        """Let the plan of batch 1, and all that came of it, be of another time."""
        (self.spark / "offsets" / "1").write_text(f'v1\n{{"batchTimestampMs":{milliseconds}}}\n{{}}')
        attempts = self.checkpoint.attempts()
        attempts.put("words/1", 1, replace(attempts.get("words/1")[1], plan=self.checkpoint.plan(1)))

    @property
    def record(self) -> AttemptRecord:
        return self.checkpoint.attempts().get("words/1")[1]

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


@pytest.mark.parametrize("has_windows", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_left_out_is_asked_of_the_disk_before_the_batch_counts_as_done(
    query: Query, is_kept: bool, has_windows: bool
) -> None:
    """On a durable lake: the plan of the next batch asks for Spark's mark, behind which nobody puts it into quarantine."""
    if is_kept:
        query.keep(1)
    skip(query.lake, query.topology, 1)
    asked, runner = list[tuple[str, int]](), query.runner()
    sources = runner._group.sources
    sources.has_windows, sources.clocks = has_windows, lambda _: None
    runner._durable = SimpleNamespace(
        planned=lambda batch: asked.append((f"plan {batch}", query.kept)),
        committed=lambda: asked.append(("commits", query.kept)),
    )
    assert runner._run(None, 1).skipped
    assert asked == [("plan 1", int(is_kept)), ("commits", 1)]


def test_rows_that_a_replay_has_taken_out_are_not_kept_once_more(query: Query) -> None:
    query.keep(1)
    skip(query.lake, query.topology, 1)
    DeltaTable(str(query.lake.quarantine_path("shop"))).delete()
    assert (query.run(), query.kept) == (True, 0)


@pytest.mark.parametrize("skipped", [False, True])
def test_a_process_that_stood_still_puts_no_rows_back_that_another_has_kept_since(
    query: Query, monkeypatch: pytest.MonkeyPatch, skipped: bool
) -> None:
    """It was about to keep them; meanwhile the other one was, the batch was left out, and a replay has taken the rows out."""
    if skipped:
        skip(query.lake, query.topology, 1)
    asked, waiting = Frame.toArrow, [True]

    def stands_still(frame: Frame) -> pa.Table:
        if waiting and waiting.pop():
            query.keep(1)
            DeltaTable(str(query.lake.quarantine_path("shop"))).delete()
        return asked(frame)

    monkeypatch.setattr(Frame, "toArrow", stands_still)
    with pytest.raises(LateWriterError, match="batch 1 comes too late"):
        query.run() if skipped else query.keep(1)
    assert query.kept == 0


def test_of_a_batch_that_is_older_than_the_log_nobody_knows(query: Query) -> None:
    query.keep(7)
    skip(query.lake, query.topology, 1)
    table = query.lake.quarantine_path("shop")
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    assert (query.run(), query.kept) == (True, 1)
    query.plan_at(9_000_000_000_000)
    assert (query.run(), query.kept) == (True, 2)


def test_a_skipped_batch_that_quarantine_does_not_take_is_not_left_behind(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip(query.lake, query.topology, 1)

    def refuse(error: Exception) -> Any:
        def replace_rows(*_: Any, **__: Any) -> None:
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


class Ended(BaseException):
    """The end of the process, as far as its code sees one."""


def ends(*_: Any, **__: Any) -> None:
    raise Ended


def test_a_skipped_batch_whose_rows_end_the_process_is_left_behind(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are in the source alone; of a start that somebody has killed there is one more."""
    skip(query.lake, query.topology, 1)
    monkeypatch.setattr(Frame, "toArrow", ends)
    for _ in range(2):
        with pytest.raises(Ended):
            query.run()
    assert (query.run(), query.kept) == (True, 0)
    assert "rows stay in the source" in caplog.text


@pytest.mark.parametrize(("of", "name"), [(Frame, "toArrow"), (StateWriter, "replace_rows")])
def test_a_start_that_was_killed_while_it_kept_rows_costs_the_batch_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch, of: type, name: str
) -> None:
    skip(query.lake, query.topology, 1)
    with monkeypatch.context() as patch:
        patch.setattr(of, name, ends)
        with pytest.raises(Ended):
            query.run()
    assert (query.run(), query.kept) == (True, 1)
    assert not on_disk(query.checkpoint.folder / "keeping.json").exists()


def test_rows_that_got_there_before_the_process_ended_are_there_once(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip(query.lake, query.topology, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Keeps, "_end", ends)
        with pytest.raises(Ended):
            query.run()
    assert [(query.run(), query.kept) for _ in range(3)] == [(True, 1)] * 3


def test_a_disk_that_is_full_again_and_again_leaves_no_row_in_the_source(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip(query.lake, query.topology, 1)

    def full(*_: Any, **__: Any) -> None:
        raise DeltaError(FULL)

    with monkeypatch.context() as patch:
        patch.setattr(StateWriter, "replace_rows", full)
        for _ in range(3):
            with pytest.raises(DiskFullError):
                query.run()
    assert (query.run(), query.kept) == (True, 1)


def test_where_the_jvm_goes_with_what_is_kept_this_process_may_outlive_it(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls then fail, as others do."""
    skip(query.lake, query.topology, 1)
    query.fault = Py4JNetworkError("Answer from Java side is empty")
    monkeypatch.setattr(keeps_module, "_jvm_has_ended", lambda: True)
    for _ in range(2):
        with pytest.raises(BatchError, match="do not get into quarantine"):
            query.run()
    assert (query.run(), query.kept) == (True, 0)


def test_a_poison_batch_whose_rows_end_the_process_is_told(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged record is none, nor is that of another plan; skipped, the batch is left behind."""
    batch, plan = Batch("words/1", 1, 0), query.checkpoint.plan(1)
    rows: Any = {spout.id: None for spout in query.topology.spouts}

    def keep(plan: str | None) -> str:
        kept: str = query.runner()._attempts._keep(batch, lambda: rows, "boom", query.poison.seen(), plan)
        return kept

    on_disk(query.checkpoint.folder / "keeping.json").write_text("[")
    with monkeypatch.context() as patch:
        patch.setattr(Frame, "toArrow", ends)
        for other in ("another", plan, plan):
            with pytest.raises(Ended):
                keep(other)
    told = keep(plan)
    assert ("the process ended twice" in told, str(query.checkpoint.folder / "keeping.json") in told) == (True, True)
    assert query.kept == 0
    skip(query.lake, query.topology, 1)
    assert (query.run(), query.kept) == (True, 0)


@pytest.mark.parametrize("recorded", [1024, None])
def test_a_driver_with_more_memory_tries_again(
    query: Query, monkeypatch: pytest.MonkeyPatch, recorded: int | None
) -> None:
    """One that has less counts with the largest: hosts of two sizes that take turns come to an end, too."""
    batch, plan = Batch("words/1", 1, 0), query.checkpoint.plan(1)
    skip(query.lake, query.topology, 1)
    said = {"batch": f"words/1 1 {plan}", "begun": 2} | ({} if recorded is None else {"memory": recorded})
    write_json(query.checkpoint.folder / "keeping.json", said)
    keeps = Keeps(query.checkpoint)
    for memory, gives_up in ((0, True), (recorded or 0, True), (2048, False)):
        monkeypatch.setattr(keeps_module, "_memory", lambda memory=memory: memory)
        assert keeps.end_the_process(batch, plan) == gives_up
    with monkeypatch.context() as patch:
        patch.setattr(Frame, "toArrow", ends)
        for memory in (2048, 1024):
            patch.setattr(keeps_module, "_memory", lambda memory=memory: memory)
            with pytest.raises(Ended):
                query.run()
    assert keeps.end_the_process(batch, plan)
    monkeypatch.setattr(keeps_module, "_memory", lambda: 4096)
    assert (query.run(), query.kept) == (True, 1)


def test_what_waited_is_no_row_of_the_batch_that_comes_through(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has come whole, and its file has gone since: nothing of it stays in quarantine."""
    row = {"stage": "batch", "reason": "x", "row": "{}", "stream": "words", "_slice": "!"}
    own, waited = row | {"rule": "poison", "file": "/data/1"}, row | {"rule": "waiting", "file": None}
    monkeypatch.setattr(Frame, "toArrow", lambda _: pa.Table.from_pylist([own, waited, waited]))
    query.keep(1)
    monkeypatch.setattr(type(query.topology.spouts[0].source.inner), "gone", lambda _, files: files)
    assert query.kept == 3
    query.poison.come_through(1, 1)
    assert query.kept == 0


# --- the plan of a batch is gone ---------------------------------------------------------------------------------------


def test_a_skipped_batch_that_is_planned_again_is_tried(query: Query) -> None:
    """It may take other rows: what was left out were those of the plan that is gone."""
    query.keep(1)
    skip(query.lake, query.topology, 1)
    query.plan_again()
    assert (query.run(), query.kept) == (False, 0)
    assert query.record == AttemptRecord(0, 0, BatchState.FAILED, {}, "boom", plan=query.checkpoint.plan(1))


def test_a_poison_batch_that_is_planned_again_is_tried_by_the_same_start(query: Query) -> None:
    query.keep(1)
    query.plan_again()
    assert (query.run(), query.kept) == (False, 0)
    assert query.tracked().open(1).attempt == 1


def test_a_batch_is_left_out_while_its_plan_is_not_there_and_when_it_is_put_back(query: Query) -> None:
    query.keep(1)
    skip(query.lake, query.topology, 1)
    plan = query.spark / "offsets" / "1"
    kept, attempts = plan.read_bytes(), query.checkpoint.folder / "attempts.json"
    before = attempts.read_bytes()
    plan.unlink()
    # A start that plans nothing.
    query.runner()._try_again()
    assert (attempts.read_bytes(), query.kept) == (before, 1)
    plan.write_bytes(kept)
    assert (query.run(), query.kept, attempts.read_bytes()) == (True, 1, before)


@pytest.mark.parametrize("behind", [False, True])
def test_cut_off_around_what_quarantine_has_it_is_done_once_more(
    query: Query, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    query.keep(1)
    skip(query.lake, query.topology, 1)
    query.plan_again()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*(Coordinator, "plan_again") if behind else (PoisonRows, "release"), die)
        with pytest.raises(KeyboardInterrupt):
            query.run()
    assert (query.record.state, query.kept) == (BatchState.SKIPPED, 0 if behind else 1)
    assert (query.run(), query.kept, query.record.state) == (False, 0, BatchState.FAILED)


def test_a_process_that_stood_still_forgets_no_rows_that_another_has_kept_since(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.keep(1)
    query.plan_again()
    late = query.runner()
    seen = late._poison.seen

    def stands_still() -> int:
        found = int(seen())
        if not query.run():
            query.keep(1)
        return found

    monkeypatch.setattr(late._poison, "seen", stands_still)
    with pytest.raises(LateWriterError, match="batch 1 comes too late"):
        late._run(None, 1)
    assert query.kept == 1


def test_a_process_that_has_lost_its_lease_forgets_no_rows_that_the_next_one_has_kept(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a worker's attempts only the registry tells whose they are: at the put of a record, and nowhere before."""
    query.keep(1)
    query.plan_again()
    late = query.runner()
    seen, taken = late._poison.seen, []

    def stands_still() -> int:
        if not taken:
            query.run()
            query.keep(1)
            taken.append(True)
        return int(seen())

    def put(*_: Any) -> None:
        if taken:
            raise LeaseLostError("shop", "words", "another process has taken it over")

    monkeypatch.setattr(late._poison, "seen", stands_still)
    monkeypatch.setattr(late._tracker.group(), "_store", SimpleNamespace(put=put))
    with pytest.raises(LeaseLostError):
        late._run(None, 1)
    assert query.kept == 1


def test_rows_of_a_lost_plan_do_not_pass_for_those_of_the_next_one(query: Query) -> None:
    """That one fails, too, and the process dies before its rows are kept; then it is skipped."""
    query.keep(1)
    query.plan_again()
    query.run()
    tracker = query.tracked()
    tracker.fail(tracker.open(1), "boom")
    skip(query.lake, query.topology, 1)
    assert query.kept == 0
    assert (query.run(), query.kept) == (True, 1)


@pytest.mark.parametrize("gone", ["rows", "record"])
def test_rows_of_a_lost_plan_of_which_nothing_is_forgotten_do_not_pass_for_those_of_the_next_one(
    query: Query, gone: str
) -> None:
    """They have left quarantine before, by their age or by a replay; or no record is there that says of which plan they are."""
    query.keep(1)
    skip(query.lake, query.topology, 1)
    if gone == "rows":
        DeltaTable(str(query.lake.quarantine_path("shop"))).delete()
    else:
        (query.checkpoint.folder / "attempts.json").unlink()
    query.plan_again()
    assert not query.run()
    tracker = query.tracked()
    tracker.fail(tracker.open(1, plan=query.checkpoint.plan(1)), "boom")
    skip(query.lake, query.topology, 1)
    before = query.lake.quarantine("shop").version()
    assert (query.run(), query.kept) == (True, 1)
    (kept,) = (commit for commit in query.lake.quarantine("shop").history() if commit.version > before)
    assert (kept.kind, kept.plan) == (POISON, query.checkpoint.plan(1))


def test_rows_that_an_earlier_release_has_kept_are_those_of_the_batch(query: Query) -> None:
    """Its commits do not say of which plan they are."""
    query.keep(1, plan=False)
    skip(query.lake, query.topology, 1)
    DeltaTable(str(query.lake.quarantine_path("shop"))).delete()
    assert (query.run(), query.kept) == (True, 0)


def test_nothing_is_repartitioned_in_front_of_a_batch_whose_plan_is_gone(query: Query) -> None:
    """Spark would take its number, and its rows would come with a later one: those that were kept would count twice."""
    assert _begun(query.checkpoint) == 1
    (query.spark / "offsets" / "1").unlink()
    assert _begun(query.checkpoint) == 1
    query.checkpoint.begin(EPOCH)
    assert _begun(query.checkpoint) is None


def test_a_batch_that_took_the_rows_of_the_next_one_too_leaves_nothing_begun(query: Query) -> None:
    """Both plans were lost, and the source is quiet: nobody may ever bring the second one."""
    skip(query.lake, query.topology, 1)
    (query.spark / "commits" / "1").write_text("v1\n{}")
    (query.spark / "offsets" / "2").write_text('v1\n{"batchTimestampMs":2000}\n{}')
    tracker = query.tracked()
    tracker.fail(tracker.open(2, plan=query.checkpoint.plan(2)), "boom")
    for file in ("offsets/1", "commits/1", "offsets/2"):
        (query.spark / file).unlink()
    assert _begun(query.checkpoint) == 1
    query.plan_again()
    assert not query.run()
    coordinator = Coordinator("words/1", query.checkpoint.attempts(), first_txid=0)
    batch = coordinator.open(1, query.checkpoint.plan(1))
    coordinator.processed(batch)
    assert coordinator.commit(batch)
    assert coordinator.close(batch)
    assert _begun(query.checkpoint) == 1
    (query.spark / "commits" / "1").write_text("v1\n{}")
    assert _begun(query.checkpoint) is None
    # A repartition takes its number; what comes then is not held up.
    assert coordinator.open(3).attempt == 0


def test_a_batch_whose_rows_are_in_quarantine_is_begun_though_its_plan_is_not_known(query: Query) -> None:
    """The process died between the retry and the next attempt, in an earlier release."""
    query.keep(1)
    coordinator = Coordinator("words/1", query.checkpoint.attempts())
    coordinator.retry(1)
    query.checkpoint.attempts().put("words/1", 1, replace(query.record, plan=None))
    (query.spark / "offsets" / "1").unlink()
    query.runner()._try_again()
    assert (query.record.plan, _begun(query.checkpoint)) == (GONE, 1)


def test_windows_see_the_rows_of_a_batch_that_is_planned_again(query: Query) -> None:
    query.tracker.keep_from_windows(1)
    skip(query.lake, query.topology, 1)
    assert query.runner()._kept_from_windows() == {1}
    (query.spark / "offsets" / "1").unlink()
    assert query.runner()._kept_from_windows() == frozenset()


def test_a_batch_of_an_earlier_release_whose_plan_is_gone(query: Query) -> None:
    """Its record does not say of which plan it is."""
    query.keep(1)
    skip(query.lake, query.topology, 1)
    query.checkpoint.attempts().put("words/1", 1, replace(query.record, plan=None))
    assert query.run()
    (query.spark / "offsets" / "1").unlink()
    query.runner()._try_again()
    assert (query.record.state, query.record.plan) == (BatchState.SKIPPED, GONE)
    query.plan_again()
    assert (query.run(), query.kept) == (False, 0)


# --- that a batch was left out is forgotten -----------------------------------------------------------------------------


@pytest.fixture
def replayed(query: Query) -> Query:
    """The batch was skipped, and a replay has put its row into the state; as it was before stands in `backup`."""
    lake = query.lake
    table = StateWriter(lake.table(lake.state_path("rows"), "rows"), small_kinds.declared(ROWS, TRANSACTIONAL))
    table.prepare(small_kinds.COLUMNS)
    row = pa.table({"word": ["a"], "n": [1]})
    table.append_arrow(row, BatchRecord(kind=BATCH, flow="shop", epoch=1, txid=0), stream_id("shop", "rows", 1))
    query.keep(1)
    Belonging(query.checkpoint, lake).note([table.table, lake.quarantine("shop")])
    shutil.copytree(on_disk(query.checkpoint.folder), on_disk(lake.root) / "backup")
    skip(lake, query.topology, 1)
    held = query.lake.quarantine("shop")
    rows = completed(held.stored())
    versions = {"quarantine": held.version(), "rows": table.table.version()}
    one = Record(1, "batch", "words", datetime.now(UTC).isoformat(), versions, {}, 1)
    records = Records(held.path)
    records.begin(one, rows.append_column(NUMBER, pa.array([0])))
    said = BatchRecord(kind=REPLAY, flow="shop", epoch=1, txid=0, replay=1)
    table.append_replay(row, said, app_id("shop", "rows"), seen=versions["rows"])
    records.finish(one, 1, {})
    return query


def checked(query: Query) -> None:
    lake = Lake(query.lake.root)
    Belonging(Checkpoint("shop", query.checkpoint.folder), lake).check([lake.state("rows"), lake.quarantine("shop")])


@pytest.mark.parametrize(("drained", "first"), [(True, 2), (False, 0)])
def test_a_query_that_begins_anew_on_purpose_leaves_the_txid_of_a_batch_that_was_left_out_alone(
    query: Query, drained: bool, first: int
) -> None:
    """What was not left out comes again, and gives its rows back; nothing was ever committed. Others have txids of their own."""
    query.keep(1)
    others = query.poison
    others._group.name, others._group.rejected = "others", rows_of(query.topology, "others", ["others"])
    rows: Any = {spout.id: None for spout in query.topology.spouts}
    others.keep(EPOCH, Batch("others/1", 8, 0), lambda: rows, "boom", others.seen(), None)
    if drained:
        skip(query.lake, query.topology, 1)
        query.run()
        (query.spark / "commits" / "1").write_text("v1\n{}")
    query.checkpoint.begin_at(Start({"shop__words__words": 0}), on_disk(query.lake.root) / "aside")
    epoch = query.begun_again()
    assert (epoch.first_txid, query.poison.kept(), query.kept) == (first, {1} if drained else set(), 1 + drained)
    assert epoch.number == 2


def test_an_epoch_has_no_number_of_a_poison_batch_that_quarantine_knows(query: Query) -> None:
    """A replay, or the age of its rows, has taken them; by the number the next batch of that txid would pass for it."""
    query.keep(1)
    DeltaTable(str(query.lake.quarantine_path("shop"))).delete()
    shutil.rmtree(on_disk(query.checkpoint.folder))
    assert query.begun_again() == Epoch(2, 0)


def put_back(query: Query, *, planned: bool = True) -> None:
    folder = on_disk(query.checkpoint.folder)
    shutil.rmtree(folder)
    shutil.copytree(on_disk(query.lake.root) / "backup", folder)
    if not planned:
        (query.spark / "offsets" / "1").unlink()
        (folder / "attempts.json").unlink()


@pytest.mark.parametrize("planned", [True, False])
def test_a_checkpoint_that_would_try_a_replayed_batch_again_is_refused(replayed: Query, planned: bool) -> None:
    checked(replayed)
    put_back(replayed, planned=planned)
    with pytest.raises(CheckpointBehindError, match="batch txid 1, which was left out, and replay 1") as caught:
        checked(replayed)
    assert (caught.value.state, caught.value.table_txid, caught.value.checkpoint_txid) == ("rows", 1, 0)
    assert list(adopt(replayed.lake, replayed.topology)) == ["words"]
    checked(replayed)


@pytest.mark.parametrize("before", range(6))
def test_a_batch_that_is_marked_while_somebody_looks_is_not_begun_again(
    replayed: Query, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """A stream is running beside a backfill, a compaction or another replay; behind the next batch the record goes, too."""
    calls = itertools.count()

    def marking(name: str) -> None:
        read = getattr(Checkpoint, name)

        def mark_and_read(*args: Any) -> Any:
            if next(calls) == before:
                (replayed.spark / "commits" / "1").write_text("v1\n{}")
                (replayed.checkpoint.folder / "attempts.json").unlink()
            return read(*args)

        monkeypatch.setattr(Checkpoint, name, mark_and_read)

    for name in ("attempts", "finished_batches", "plan"):
        marking(name)
    quarantine, rows = replayed.lake.quarantine("shop"), replayed.lake.state("rows")
    assert put_in_since(replayed.checkpoint, EPOCH, quarantine, [rows]) is None
    assert next(calls) > 1


def test_a_batch_that_is_left_out_and_replayed_while_somebody_looks_is_not_begun_again(
    replayed: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, records = replayed.checkpoint.folder / "attempts.json", Records(replayed.lake.quarantine_path("shop"))
    skipped, replays = attempts.read_bytes(), on_disk(records.folder)
    aside = replays.rename(replays.with_name("aside"))
    attempts.write_bytes((on_disk(replayed.lake.root) / "backup" / "attempts.json").read_bytes())
    quarantine, rows = replayed.lake.quarantine("shop"), replayed.lake.state("rows")
    history = quarantine.history()

    def replay_and_read(_: object) -> Any:
        attempts.write_bytes(skipped)
        aside.rename(replays)
        return history

    monkeypatch.setattr(type(quarantine), "history", replay_and_read)
    assert put_in_since(replayed.checkpoint, EPOCH, quarantine, [rows]) is None
    assert replays.exists()


def test_attempts_that_are_lost_behind_the_replay_of_a_batch_that_was_left_out(replayed: Query) -> None:
    attempts = replayed.checkpoint.folder / "attempts.json"
    kept = attempts.read_bytes()
    attempts.unlink()
    with pytest.raises(CheckpointBehindError):
        checked(replayed)
    attempts.write_bytes(kept)
    checked(replayed)
    attempts.unlink()
    (replayed.spark / "commits" / "1").write_text("v1\n{}")
    checked(replayed)


def test_a_batch_that_no_replay_has_put_into_a_state_is_tried_again(replayed: Query) -> None:
    put_back(replayed)
    records = Records(replayed.lake.quarantine_path("shop"))
    (one,) = records.all()
    for other in (
        replace(one, stage="high"),
        replace(one, landed=0),  # given up with nothing committed
        replace(one, versions={**one.versions, "quarantine": 0}),  # of another life
        replace(one, versions={"quarantine": 9}),  # of other states
        replace(one, number=2),  # which the state does not have
    ):
        (records.folder / f"{one.number}.json").unlink(missing_ok=True)
        write_json(records.folder / f"{other.number}.json", other.to_json())
        if other.number != one.number:
            (records.folder / "2.parquet").write_bytes((records.folder / "1.parquet").read_bytes())
        checked(replayed)


def test_windows_are_not_taken_over_in_front_of_a_batch_that_is_to_be_left_out(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip(query.lake, query.topology, 1)
    former = SimpleNamespace(checkpoint=Checkpoint("shop", query.lake.checkpoint_path("shop", "words__1")))
    former.check_tables = lambda: None
    monkeypatch.setattr(windows_change.ChannelWindows, "of", lambda _: former)
    monkeypatch.setattr(windows_change, "is_elsewhere", lambda *_: True)
    windows: Any = WindowsChange.__new__(WindowsChange)
    windows._files, windows._group = state_files(query.checkpoint.folder), query.poison._group
    windows._windows = SimpleNamespace(refuse_claims=lambda: None)
    for _ in range(2):
        with pytest.raises(ChangeoverError, match="batch 1 was skipped"):
            windows.take_over(query.checkpoint, 1.0, lambda: None)
        (query.spark / "offsets" / "1").unlink(missing_ok=True)
    assert query.checkpoint.epoch == EPOCH


def test_what_comes_again_in_a_fresh_epoch_leaves_quarantine_first(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off between the two it is done once more; what was left out before stays."""
    query.keep(0)
    query.keep(1)
    aside = query.checkpoint.folder.parent / "aside"
    query.checkpoint.begin_at(Start({}), aside)
    runner = query.epochs()

    def cut(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "begin", cut)
        with pytest.raises(KeyboardInterrupt):
            runner._begun(Epoch(2, 9))
    assert (query.kept, query.checkpoint.comes_again) == (1, [1])
    assert runner._begun(Epoch(2, 9)) == Epoch(2, 9)
    assert query.poison.kept() == {0}


@pytest.mark.parametrize("skipped", [True, False])
def test_behind_a_batch_a_checkpoint_that_is_lost_is_not_gone_on_purpose(query: Query, skipped: bool) -> None:
    """A changed definition was cut off before it had put Spark's part aside, and the former one goes on."""
    if skipped:
        query.keep(1)
        skip(query.lake, query.topology, 1)
    query.checkpoint.begin_at(Start({"shop__words__words": 0}, 7, {"shop__words__words": [3]}))
    said = query.checkpoint.start
    assert query.run() == skipped
    shutil.rmtree(query.spark)
    assert not query.checkpoint.starts_over
    assert query.checkpoint.start == said


def test_a_process_that_stood_still_releases_nothing_that_another_has_kept_since(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has begun, and its first batch with that txid has failed."""
    query.keep(1)
    query.checkpoint.begin_at(Start({}), query.checkpoint.folder.parent / "aside")
    release = PoisonRows.release

    def stands_still(poison: PoisonRows, txid: int, seen: int | None = None) -> None:
        query.keep(1, plan=False)
        release(poison, txid, seen)

    monkeypatch.setattr(PoisonRows, "release", stands_still)
    with pytest.raises(LateWriterError):
        query.epochs()._begun(Epoch(2, 1))
    assert query.kept == 1


def taking_over(query: Query, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The windows of the query, which go over from a channel."""
    former = SimpleNamespace(checkpoint=Checkpoint("shop", query.lake.checkpoint_path("shop", "words__1")))
    former.check_tables = former.put_aside = lambda: None
    former.read = lambda _: SimpleNamespace(states=(), clocks={})
    monkeypatch.setattr(windows_change.ChannelWindows, "of", lambda _: former)
    monkeypatch.setattr(windows_change, "is_elsewhere", lambda *_: True)
    monkeypatch.setattr(windows_change, "check_fields", lambda *_, **__: None)
    own: Any = DriverWindows.__new__(DriverWindows)
    own.files, own.group = state_files(query.checkpoint.folder), query.poison._group
    own.group.lake, own.stages, own.version = query.lake, [], "2"
    own.states = SimpleNamespace(
        begin=lambda *_: None,
        left_by=lambda _: (False, "1"),
        kept_of=lambda *_: SimpleNamespace(states=(), empty=()),
        waiting=WaitingRows(own.files),
    )
    windows: Any = WindowsChange(own)
    windows._fitting = lambda states: (states, None)
    return windows


@pytest.mark.parametrize("is_known", [True, False])
def test_a_poison_batch_leaves_quarantine_before_windows_are_taken_over(
    query: Query, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """The outputs may hold higher txids of the query behind the channel: under another one nothing would release it.

    An older copy of the checkpoint does not know of the batch.
    """
    query.keep(0)
    query.keep(1)
    if not is_known:
        (query.spark / "offsets" / "1").unlink()
        (query.checkpoint.folder / "attempts.json").unlink()
    taking_over(query, monkeypatch).take_over(query.checkpoint, 1.0, lambda: None)
    assert query.checkpoint.epoch == Epoch(2, 0, 1)
    assert query.poison.kept() == {0}


@pytest.mark.parametrize("work", ["taken over", "changed", "changed back", "from the start"])
def test_who_stood_still_in_front_of_a_fresh_epoch_releases_nothing_that_another_has_kept_since(
    query: Query, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """The other one has taken the lease, goes on by a definition of its own, and its batch has failed."""
    windows = taking_over(query, monkeypatch)
    state = StateRef("1-1-aa", "")
    txid = 4 if work == "changed back" else 1
    if work == "changed back":
        # A batch of the definition before, and what was left out at the change from it.
        Begun(5, state, {}, StateRef("0-1-aa", "")).write(windows._files)
        query.spark.joinpath("offsets", "1").unlink()
        query.checkpoint.folder.joinpath("attempts.json").unlink()
    elif work == "changed":
        Begun(0, state).write(windows._files)
    query.keep(txid)
    stood: list[int] = []

    def stands_still(name: str) -> None:
        release = getattr(PoisonRows, name)

        def released(poison: PoisonRows, of: int, seen: int | None = None) -> None:
            stood.append(of)
            query.keep(of, plan=False)
            release(poison, of, seen)

        monkeypatch.setattr(PoisonRows, name, released)

    stands_still("forget" if work == "changed back" else "release")
    if work == "from the start":
        shutil.rmtree(query.spark)
    changing = partial(windows.change, query.checkpoint, 1.0, lambda: None, on_purpose=False)
    begin = {
        "taken over": partial(windows.take_over, query.checkpoint, 1.0, lambda: None),
        "from the start": query.begun_again,
    }
    with pytest.raises(LateWriterError):
        begin.get(work, changing)()
    assert (stood, query.kept, query.checkpoint.last_epoch) == ([txid], 1, 1)
