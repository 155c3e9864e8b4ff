"""A process that stood still before a commit, while another one ran the flow, stops and spoils nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from pipelines import Lake, Runtime
from pipelines.execution.batch.quarantine import quarantine_writer, table_columns
from pipelines.execution.checkpoint.engine_files import Checkpoint, StoredAttempts
from pipelines.execution.protocol.coordinator import AttemptRecord, BatchState
from pipelines.execution.runners import bounded
from pipelines.quality import drop
from pipelines.sources import FixedBatches
from pipelines.state.kinds import LOG, MAP, TRANSACTIONAL
from pipelines.state.quarantine import COLUMNS, GROUP
from pipelines.state.record import BATCH, SLICE, BatchRecord
from pipelines.state.schema import SLICE_COLUMN
from pipelines.state.turns import LateWriterError, stream_id
from pipelines.state.writer import StateWriter
from pipelines.trident import Count, DeltaState, TridentTopology
from tests.state.small_kinds import ARROW, FLOW, SmallTable, record
from tests.state.test_late_writers import OVERTAKEN, overtaken


def words() -> TridentTopology:
    topology = TridentTopology("words")
    stream = topology.new_stream("lines", FixedBatches("word string", [[("a",)], [("b",)], [("a",)]]))
    stream.group_by("word").persistent_aggregate(DeltaState("counts"), Count(), "n")
    return topology


@pytest.mark.slow
def test_a_batch_asks_quarantine_for_its_version_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction of its group is asked for where rows are refused."""
    lake, asked, standing = Lake(tmp_path), list[str](), StateWriter.standing

    def told(writer: StateWriter, app_id: str) -> tuple[int, int | None]:
        asked.append(app_id)
        return standing(writer, app_id)

    monkeypatch.setattr(StateWriter, "standing", told)
    quarantine_writer(lake, "words").prepare(table_columns())
    Runtime(spark, lake).catch_up(words())
    assert asked == [stream_id("words", "counts", 1)] * 3


@pytest.mark.slow
def test_a_stream_that_was_overtaken_stops_and_makes_no_poison(spark: SparkSession, tmp_path: Path) -> None:
    lake, late = Lake(tmp_path), []

    def another_goes_on(moment: str, state: str, txid: int) -> None:
        if (moment, state, txid) == ("committing", "counts", 1) and not late:
            late.append(txid)
            table = Lake(tmp_path).state("counts")
            record = BatchRecord(kind=BATCH, flow="words", epoch=1, txid=txid)
            rows = pa.table({"word": ["b"], "n": [1]})
            StateWriter(table, table.declared).commit_batch(rows, record, stream_id("words", "counts", 1), known=False)

    with pytest.raises(LateWriterError, match="batch 1 comes too late") as caught:
        Runtime(spark, lake, listeners=[another_goes_on]).catch_up(words())
    assert caught.value.state == "counts"
    assert not lake.quarantine_path("words").exists()
    records = Checkpoint("words", lake.checkpoint_path("words", "lines")).attempts().get("lines/1")
    assert BatchState.POISON not in {one.state for one in records.values()}
    assert records[1].tries == 1
    # The one in its place finds the batch committed, and so does the late one when it is started again.
    Runtime(spark, lake).catch_up(words())
    assert sorted(map(tuple, map(dict.values, lake.state("counts").scan().to_pylist()))) == [("a", 2), ("b", 1)]
    assert [one.txid for one in lake.state("counts").commits.batches()] == [0, 1, 2]


@pytest.mark.slow
def test_a_batch_that_was_overtaken_in_front_of_quarantine_puts_no_row_there_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its states are committed; meanwhile a backfill on another host has put its refused row in and claimed its file."""
    topology = TridentTopology("words")
    stream = topology.new_stream("lines", FixedBatches("n bigint", [[(-1,)], [(-2,)]]))
    stream = stream.gate(drop("column_values_to_be_between", column="n", min_value=0), name="sane")
    stream.partition_persist(DeltaState("rows"))

    def another_backfills(moment: str, state: str, txid: int) -> None:
        if (moment, state, txid) == ("committing", "quarantine", 1):
            writer = quarantine_writer(Lake(tmp_path), "words")
            rows = writer.table.stored().drop_columns(["_txid", "_gen"])
            again = pa.concat_tables([rows, rows.set_column(rows.schema.get_field_index("row"), "row", [['{"n":-2}']])])
            one = BatchRecord(
                kind=SLICE, flow="words", epoch=1, txid=0, slice="all", group="lines", claims=("file:/1",)
            )
            own = stream_id("words", "quarantine/lines", 1)
            writer.replace_slice(again, one, own, seen=writer.table.version(), among="true")

    with pytest.raises(LateWriterError, match="batch 1 comes too late"):
        Runtime(spark, Lake(tmp_path), listeners=[another_backfills]).catch_up(topology)
    assert sorted(Lake(tmp_path).quarantine("words").stored()["row"].to_pylist()) == ['{"n":-1}', '{"n":-2}']


def test_a_late_run_does_not_write_over_the_attempts_of_the_next(tmp_path: Path) -> None:
    file, first = tmp_path / "attempts.json", AttemptRecord(0)
    late = StoredAttempts(file, "words")
    late.put("lines/1", 0, first)
    late.put("lines/1", 1, first)
    following = StoredAttempts(file, "words")
    following.put("lines/1", 2, replace(first, state=BatchState.POISON))
    with pytest.raises(LateWriterError, match="batch 1 comes too late"):
        late.put("lines/1", 1, first)
    assert StoredAttempts(file, "words").get("lines/1")[2].state is BatchState.POISON
    following.put("lines/1", 3, first)


@pytest.mark.parametrize("when", OVERTAKEN)
def test_a_backfill_that_was_overtaken_leaves_quarantine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    columns = StructType([StructField(name, StringType()) for name, _ in COLUMNS])
    monkeypatch.setattr(bounded, "table_columns", lambda: columns)

    def backfill(*texts: str) -> None:
        group: Any = SimpleNamespace(
            name="words",
            sinks=(),
            spouts=(),
            waves=((),),
            lake=Lake(tmp_path),
            topology=SimpleNamespace(name="shop"),
            quarantine=quarantine_writer(Lake(tmp_path), "shop"),
            rejected="batch_group = 'words'",
            sources=SimpleNamespace(sliced=True),
        )
        runner: Any = bounded.BoundedRunner(group, Checkpoint("shop", group.lake.checkpoint_path("shop", "words")))
        row = {name: None for name, _ in COLUMNS if name != GROUP} | {SLICE_COLUMN: "d1"}
        rows = pa.Table.from_pylist([row | {"row": text} for text in texts], pa.schema([(n, pa.string()) for n in row]))
        run = SimpleNamespace(refused_slices={}, gate_results=lambda _: ())
        counts = {"d1": (len(texts), frozenset(texts))}
        runner._look(())
        list(
            runner._commit(
                SimpleNamespace(name="one", slices=("d1",), rejected={"d1": rows}, counts=counts, run=run),
                (),
                last=True,
            )
        )

    backfill("old")
    backfill("old", "older")

    looked, waiting = bounded.held_rows, [lambda: backfill("old", "came since")]

    def looking(*given: Any) -> Any:
        if waiting:
            waiting.pop()()
        return looked(*given)

    with monkeypatch.context() as patch:
        if when == OVERTAKEN[0]:
            patch.setattr(bounded, "held_rows", looking)
        else:
            overtaken(patch, when, waiting[0])
        with pytest.raises(LateWriterError, match="quarantine of shop"):
            backfill("old")
    table = Lake(tmp_path).quarantine("shop")
    assert sorted(table.stored()["row"].to_pylist()) == ["came since", "old"]
    assert dict(table.commits.claims("words")) == {"d1": {"old", "came since"}}


class _Backfill:
    """A backfill of day d1 that has read file 0: a word and its number."""

    def __init__(self, root: Path, layout: str) -> None:
        self.root, self.layout = root, layout
        self.table = self.open()
        sink = SimpleNamespace(
            name="counts",
            table=self.table.table,
            writer=self.table.writer,
            is_channel=False,
            node=SimpleNamespace(id=1, updater=None),
        )
        group: Any = SimpleNamespace(
            name="words",
            sinks=(sink,),
            spouts=(),
            waves=((sink,),),
            lake=Lake(root),
            topology=SimpleNamespace(name=FLOW, graph=SimpleNamespace(ancestors=lambda _: ())),
            quarantine=SimpleNamespace(table=SimpleNamespace(exists=lambda: False)),
            queries_states=False,
            sources=SimpleNamespace(sliced=True),
        )
        self.runner: Any = bounded.BoundedRunner(group, Checkpoint(FLOW, root / "checkpoints/shop/words"))
        self.runner._work_out = self._work_out

    def open(self) -> SmallTable:
        return SmallTable(self.root, self.layout, TRANSACTIONAL, sliced=self.layout == LOG)

    def rows(self, n: int) -> pa.Table:
        rows = pa.Table.from_pylist([{"word": "a", "n": n}], schema=ARROW)
        return rows.append_column(SLICE_COLUMN, pa.array(["d1"])) if self.layout == LOG else rows

    def _work_out(self, *_: Any, **__: Any) -> Any:
        run = SimpleNamespace(refused_slices={}, gate_results=lambda _: (), counts={}, close=lambda: None)
        return SimpleNamespace(
            name="one",
            slices=("d1",),
            positions=frozenset({"file:/0"}),
            results={"counts": {"d1": self.rows(1)}},
            rejected={},
            counts={"d1": (1, frozenset({"file:/0"}))},
            run=run,
            read={},
            clocks={},
            close=lambda: None,
        )


def test_a_backfill_loses_no_batch_that_comes_behind_its_question_what_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill = _Backfill(tmp_path, LOG)
    backfill.table.writer.commit_batch(backfill.rows(1), record(0), stream_id(FLOW, "counts", 1), known=False)

    def another_goes_on(*_: Any) -> None:
        """The stream on another host takes a new file of the day."""
        other = backfill.open()
        other.writer.commit_batch(backfill.rows(10), record(1), stream_id(FLOW, "counts", 1), known=False)

    monkeypatch.setattr(bounded, "check_unread", another_goes_on)
    with pytest.raises(LateWriterError, match='slice "d1"'):
        backfill.runner.run(["d1"])
    assert backfill.open().held() == [("a", 11)]


def test_a_backfill_folds_no_slice_into_a_map_that_another_one_has_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill = _Backfill(tmp_path, MAP)
    asked = backfill.runner._check_maps

    def asking(slices: tuple[str, ...]) -> Any:
        found = asked(slices)
        another = _Backfill(tmp_path, MAP)
        one = BatchRecord(kind=SLICE, flow=FLOW, slice="d1", claims=("file:/0",))
        another.table.writer.merge_arrow(another.rows(1), one, stream_id(FLOW, "counts", 0))
        return found

    monkeypatch.setattr(backfill.runner, "_check_maps", asking)
    with pytest.raises(LateWriterError, match='slice "d1"'):
        backfill.runner.run(["d1"])
    assert backfill.open().held() == [("a", 1)]
