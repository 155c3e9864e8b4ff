"""A row gets one verdict in a batch, however many jobs ask for it: it is in a state or in quarantine, in one of them alone."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from pipelines import Lake, Runtime
from pipelines.errors import PoisonBatchError
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.report import BatchReport
from pipelines.planner.repeats import may_differ
from pipelines.quality import Check, drop, fail, warn
from pipelines.sources import FixedBatches, PythonSource
from pipelines.trident import NON_TRANSACTIONAL, OPAQUE, Count, DeltaState, MapGet, Max, TridentTopology

pytestmark = pytest.mark.slow

POSITIVE = drop("expect_column_values_to_be_between", column="w", min_value=0)


def in_turns(folder: Path) -> Callable[[int], Iterator[int]]:
    """Return a function that says that 1 is good the first time that it sees it, 2 behind that, and 3 never."""
    folder.mkdir()

    def judged(v: int) -> Iterator[int]:
        seen = folder / str(v)
        again = seen.exists()
        seen.touch()
        yield 1 if (v == 2 if again else v == 1) else -1

    return judged


def found(lake: Lake, *states: str) -> dict[str, list[int]]:
    refused = lake.quarantine("flow").scan().to_pylist() if lake.quarantine_path("flow").exists() else []
    held = {name: sorted(row["v"] for row in lake.state(name).scan().to_pylist()) for name in states}
    return held | {"quarantine": sorted(json.loads(row["row"])["v"] for row in refused)}


def jobs_of(spark: SparkSession, lake: Lake, topology: TridentTopology) -> tuple[BatchReport, int]:
    """Run the one batch of a flow. Return its report and how many jobs it had."""
    scheduler: Any = spark.sparkContext._jsc.sc().dagScheduler()
    numbers: list[int] = []

    def note(moment: str, state: str, txid: int) -> None:
        if moment in ("opened", "closed"):
            numbers.append(scheduler.numTotalJobs())

    (batch,) = Runtime(spark, lake, listeners=[note]).catch_up(topology).batches
    return batch, numbers[1] - numbers[0]


def judged_in_turns(topology: TridentTopology, folder: Path, *rows: int) -> Any:
    stream = topology.new_stream("s", FixedBatches("v bigint", [[(row,) for row in rows or (1, 2, 3)]]))
    return stream.each(["v"], in_turns(folder), "w bigint").gate(POSITIVE, name="g")


def test_rows_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    stream = topology.new_stream("s", FixedBatches("v bigint", [[(number,) for number in range(10)]]))
    # Each second another row is good.
    known = stream.each(["v"], lambda v: F.when(F.second(F.current_timestamp()) % 10 == v, 1).otherwise(-1), "w")
    known.gate(POSITIVE).partition_persist(DeltaState("rows"))

    def wait(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committing", "rows"):
            time.sleep(1.5)

    Runtime(spark, lake, listeners=[wait]).catch_up(topology)

    held = found(lake, "rows")
    assert sorted(held["rows"] + held["quarantine"]) == [*range(10)]
    assert len(held["rows"]) == 1


@pytest.mark.parametrize(
    ("condition", "differs"),
    [
        ("ts > 'now'", True),
        ("cast(' Today ' as date) = cast(ts as date)", True),
        ("to_date('yesterday') < ts", True),
        ("cast('today UTC' as date) = cast(ts as date)", True),
        ("ts > '08:00'", True),
        ("to_timestamp('08:00') < ts", True),
        ("now = 'at 08:00' and cast(now as timestamp) > '2024-01-01 08:00:00'", False),
        ("aes_encrypt(now, 'abcdefghijklmnop') is null", True),
        ("now in ('today', 'week')", False),
        ("ts > '2024-01-01' and now = 'now' and cast(now as timestamp) = ts", False),
    ],
)
def test_texts_that_are_times_of_the_clock(spark: SparkSession, condition: str, differs: bool) -> None:
    frame = spark.createDataFrame([], "ts timestamp, now string").where(condition)
    assert may_differ(frame) is differs


def test_texts_behind_more_fields_than_a_plan_shows(spark: SparkSession) -> None:
    columns = ", ".join(f"c{number} int" for number in range(40))
    frame = spark.createDataFrame([], f"ts timestamp, {columns}")
    assert not may_differ(frame.withColumn("f", F.expr("ts > '2024-01-01'")))
    assert may_differ(frame.withColumn("f", F.expr("ts > 'now'")))


def test_rows_by_a_function_that_changes_its_mind(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    judged_in_turns(topology, tmp_path / "seen").partition_persist(DeltaState("rows"))

    _, jobs = jobs_of(spark, lake, topology)

    assert found(lake, "rows") == {"rows": [1], "quarantine": [2, 3]}
    assert jobs == 2


def test_states_of_several_waves_agree(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    kept = judged_in_turns(topology, tmp_path / "seen")
    kept.partition_persist(DeltaState("rows"))
    counts = kept.group_by("v").persistent_aggregate(DeltaState("counts"), Count(), "n")
    kept.state_query(counts, "v", MapGet(), "n").partition_persist(DeltaState("seen"))

    Runtime(spark, lake).catch_up(topology)

    assert found(lake, "rows", "counts", "seen") == {
        "rows": [1],
        "counts": [1],
        "seen": [1],
        "quarantine": [2, 3],
    }


@pytest.mark.parametrize("ahead", [drop, warn])
def test_gates_ahead_of_a_verdict_are_counted_by_who_judged(
    spark: SparkSession, tmp_path: Path, ahead: Callable[..., Check]
) -> None:
    """No later wave works out what lies ahead of the verdict, so nothing would be told of it there."""
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    stream = topology.new_stream("s", FixedBatches("v bigint", [[(1,), (2,), (3,), (10,)]]))
    small = ahead("expect_column_values_to_be_between", column="v", max_value=9)
    checked = stream.filter("v > 0").gate(small, name="a")
    kept = checked.each(["v"], in_turns(tmp_path / "seen"), "w bigint").gate(POSITIVE, name="g")
    kept.partition_persist(DeltaState("rows"))
    counts = kept.group_by("v").persistent_aggregate(DeltaState("counts"), Count(), "n")
    kept.state_query(counts, "v", MapGet(), "n").partition_persist(DeltaState("seen"))

    (batch,) = Runtime(spark, lake).catch_up(topology).batches

    held = {"rows": [1], "counts": [1], "seen": [1], "quarantine": [2, 3, 10]}
    assert (found(lake, "rows", "counts", "seen"), batch.attempt) == (held, 0)
    found_by = {gate["gate"]: [check["unexpected"] for check in gate["checks"]] for gate in batch.gates}
    assert found_by == {"a": [1], "g": [2 if ahead is drop else 3]}


def test_a_backfill_judges_once(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    judged_in_turns(topology, tmp_path / "seen").partition_persist(DeltaState("rows"))

    Runtime(spark, lake).run_bounded(topology)

    assert found(lake, "rows") == {"rows": [1], "quarantine": [2, 3]}


def test_another_verdict_is_noticed_before_a_state_commits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept may be lost with its executor: then it is worked out again."""
    monkeypatch.setattr(BatchGroup, "may_differ", lambda *_: False)
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    judged_in_turns(topology, tmp_path / "seen", 2, 3).partition_persist(DeltaState("rows"))

    (batch,) = Runtime(spark, lake).catch_up(topology).batches

    assert found(lake, "rows") == {"rows": [2], "quarantine": [3]}
    assert (batch.attempt, len(lake.state("rows").commits.batches())) == (1, 1)


def dims(batches: list[list[tuple[int, int]]], flow: str = "other", state: str = "dims") -> TridentTopology:
    topology = TridentTopology(flow)
    stream = topology.new_stream("d", FixedBatches("k bigint, w bigint", batches))
    stream.group_by("k").persistent_aggregate(DeltaState(state), Max("w"), "w")
    return topology


def looked_up(*, waves: bool, state: str = "dims") -> TridentTopology:
    """Return a flow that takes the rows that another flow's state knows."""
    topology = TridentTopology("flow")
    stream = topology.new_stream("s", FixedBatches("v bigint", [[(1,), (2,)]]))
    known = stream.state_query(state, "v", MapGet(), "w")
    kept = known.gate(drop("expect_column_values_to_not_be_null", column="w"))
    counts = kept.group_by("v").persistent_aggregate(DeltaState("counts"), Count(), "n")
    if waves:
        kept.state_query(counts, "v", MapGet(), "n").partition_persist(DeltaState("seen"))
    return topology


def test_all_waves_of_a_batch_read_one_version_of_another_flow(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(dims([[(2, 5)]]))

    def other(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "counts"):
            Runtime(spark, lake).catch_up(dims([[(2, 5)], [(1, 5)]]))

    Runtime(spark, lake, listeners=[other]).catch_up(looked_up(waves=True))

    assert found(lake, "counts", "seen") == {"counts": [2], "seen": [2], "quarantine": [1]}


def test_a_replay_reads_the_version_that_the_first_life_read(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    stop_between_state_and_quarantine(spark, lake)
    Runtime(spark, lake).catch_up(dims([[(2, 5)], [(1, 5)]]))
    Runtime(spark, lake).catch_up(looked_up(waves=False))

    assert found(lake, "counts") == {"counts": [2], "quarantine": [1]}


def test_a_replay_leaves_alone_what_its_first_life_alone_asked(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    stop_between_state_and_quarantine(spark, lake)
    shutil.rmtree(tmp_path / "lake" / "states" / "dims")
    Runtime(spark, lake).catch_up(dims([[(2, 5)]], "others", "dims2"))

    Runtime(spark, lake).catch_up(looked_up(waves=False, state="dims2"))

    assert found(lake, "counts") == {"counts": [2], "quarantine": [1]}
    (refused,) = lake.quarantine("flow").commits.batches()
    assert refused.record is not None
    assert [*(refused.record.read or {})] == ["dims2"]


def test_a_replay_reads_the_last_version_of_a_table_that_was_made_again(spark: SparkSession, tmp_path: Path) -> None:
    """The number that the first life noted is one of the new table, too: it says nothing there."""
    lake = Lake(tmp_path / "lake")
    stop_between_state_and_quarantine(spark, lake)
    shutil.rmtree(tmp_path / "lake" / "states" / "dims")
    Runtime(spark, lake).catch_up(dims([[(number, 5)] for number in (5, 4, 3, 2, 1)], "others"))
    Runtime(spark, lake).catch_up(looked_up(waves=False))

    assert found(lake, "counts") == {"counts": [2], "quarantine": []}


class StopError(BaseException):
    pass


def stop_between_state_and_quarantine(spark: SparkSession, lake: Lake) -> None:
    """Let a batch take the one row that `dims` knows, and end before it has refused the other."""
    Runtime(spark, lake).catch_up(dims([[(2, 5)]]))

    def stop(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "counts"):
            raise StopError

    with pytest.raises(StopError):
        Runtime(spark, lake, listeners=[stop]).catch_up(looked_up(waves=False))


class OneBatch(DataSourceStreamReader):
    """Has one batch; what was read before is known by a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"n": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(0)]


class Changing(DataSource):
    """Gives 1, -1 the first time that it is read, -2, 2 the second time, and so on."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return ChangingStream(Path(self.options["read"]))


class ChangingStream(OneBatch):
    def read(self, partition: Any) -> Iterator[tuple[int]]:
        life = int(self.file.read_text()) + 1
        self.file.write_text(str(life))
        yield (life,)
        if life != ALL_GOOD:
            yield (-life,)


ALL_GOOD = 3


def changing(folder: Path, *kinds: str) -> TridentTopology:
    """Return a flow of a source that gives others each time; its gate refuses all that is below 0."""
    topology, lives = TridentTopology("flow"), folder / "lives"
    if not lives.exists():
        lives.write_text("0")
    stream = topology.new_stream("s", PythonSource(Changing, "v bigint", transactional=False, read=lives))
    good = stream.gate(drop("expect_column_values_to_be_between", column="v", min_value=0))
    for kind in kinds:
        good.partition_persist(DeltaState(kind, kind=kind))
    return topology


def cut_off(spark: SparkSession, lake: Lake, topology: TridentTopology, moment: str, state: str) -> None:
    def stop(told: str, name: str, txid: int) -> None:
        if (told, name) == (moment, state):
            raise StopError

    with pytest.raises(StopError):
        Runtime(spark, lake, listeners=[stop]).catch_up(topology)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "between",
    [
        pytest.param(("committed", "quarantine"), marks=pytest.mark.exhaustive),
        ("committing", "quarantine"),
        pytest.param(("committed", OPAQUE), marks=pytest.mark.exhaustive),
    ],
)
def test_quarantine_has_what_the_last_life_of_an_opaque_batch_refused(
    spark: SparkSession, tmp_path: Path, between: tuple[str, str]
) -> None:
    lake, flow = Lake(tmp_path / "lake"), changing(tmp_path, OPAQUE)
    cut_off(spark, lake, flow, "committed", "quarantine")
    assert found(lake, OPAQUE) == {OPAQUE: [1], "quarantine": [-1]}

    cut_off(spark, lake, flow, *between)
    kept = -2 if between[0] == "committed" and between[1] == "quarantine" else -1
    assert found(lake, OPAQUE) == {OPAQUE: [2], "quarantine": [kept]}
    (batch,) = Runtime(spark, lake).catch_up(flow).batches

    assert (batch.attempt, batch.quarantined) == (2, 0)
    assert found(lake, OPAQUE) == {OPAQUE: [3], "quarantine": []}


@pytest.mark.exhaustive
def test_what_counts_both_lives_of_an_opaque_batch_leaves_none_of_the_last_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, flow = Lake(tmp_path / "lake"), changing(tmp_path, NON_TRANSACTIONAL)
    cut_off(spark, lake, flow, "committed", "quarantine")

    Runtime(spark, lake).catch_up(flow)

    assert found(lake, NON_TRANSACTIONAL) == {NON_TRANSACTIONAL: [1, 2], "quarantine": [-2]}


def test_a_batch_of_opaque_states_goes_by_its_last_verdict(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    judged_in_turns(topology, tmp_path / "seen").partition_persist(DeltaState("rows", kind=OPAQUE))
    cut_off(spark, lake, topology, "committed", "quarantine")
    assert found(lake, "rows") == {"rows": [1], "quarantine": [2, 3]}

    Runtime(spark, lake).catch_up(topology)

    assert found(lake, "rows") == {"rows": [2], "quarantine": [1, 3]}


def test_a_backfill_behind_quarantine_counts_once_when_the_batch_comes_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    rows = FixedBatches("k string, v bigint", [[("a", 1), ("a", -1), ("b", 2), ("b", -2)]])
    stream = topology.new_stream("s", rows, slice_by="k")
    good = stream.gate(drop("expect_column_values_to_be_between", column="v", min_value=0))
    good.partition_persist(DeltaState("rows", kind=OPAQUE))
    cut_off(spark, lake, topology, "committed", "quarantine")
    assert not Runtime(spark, lake).backfill(topology, ["a"]).failed

    Runtime(spark, lake).catch_up(topology)

    assert found(lake, "rows") == {"rows": [1, 2], "quarantine": [-2, -1]}


def test_a_whole_batch_of_mixed_states_goes_by_its_first_verdict(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    kept = judged_in_turns(topology, tmp_path / "seen")
    counts = kept.group_by("v").persistent_aggregate(DeltaState("counts", kind=OPAQUE), Count(), "n")
    kept.partition_persist(DeltaState("rows"))
    # In a wave of its own.
    kept.state_query(counts, "v", MapGet(), "n").partition_persist(DeltaState("seen", kind=OPAQUE))
    cut_off(spark, lake, topology, "committed", "quarantine")
    first = {"counts": [1], "rows": [1], "seen": [1], "quarantine": [2, 3]}
    assert found(lake, "counts", "rows", "seen") == first

    (batch,) = Runtime(spark, lake).catch_up(topology).batches

    assert found(lake, "counts", "rows", "seen") == first
    assert (batch.quarantined, {commit.replayed for commit in batch.commits}) == (2, {True})


class Forgetful(DataSource):
    """Gives a row below 0 the first time alone that it is read."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return ForgetfulStream(Path(self.options["read"]))


class ForgetfulStream(OneBatch):
    def read(self, partition: Any) -> Iterator[tuple[int, int]]:
        again = self.file.exists()
        self.file.touch()
        yield 1, 1
        if not again:
            yield 2, -1


def test_a_source_that_gives_other_rows_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    source = PythonSource(Forgetful, "v bigint, w bigint", transactional=False, read=tmp_path / "read")
    topology.new_stream("s", source).gate(POSITIVE).partition_persist(DeltaState("rows", kind=OPAQUE))

    Runtime(spark, lake).catch_up(topology)

    assert found(lake, "rows") == {"rows": [1], "quarantine": [2]}


def test_the_rows_of_a_poison_batch_are_those_that_failed(spark: SparkSession, tmp_path: Path) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    source = PythonSource(Forgetful, "v bigint, w bigint", transactional=False, read=tmp_path / "read")
    checked = topology.new_stream("s", source).gate(fail(POSITIVE.expectation, **POSITIVE.kwargs))
    checked.partition_persist(DeltaState("rows", kind=OPAQUE))

    with pytest.raises(PoisonBatchError):
        Runtime(spark, lake).catch_up(topology)

    assert found(lake)["quarantine"] == [1, 2]


@pytest.mark.parametrize("first", [True, False])
def test_a_plan_that_says_the_same_each_time_is_not_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    topology, lake = TridentTopology("flow"), Lake(tmp_path / "lake")
    stream = topology.new_stream("s", FixedBatches("w bigint, v bigint", [[(1, 1), (-1, 2)]]))
    (stream if first else stream.filter("w < 9")).gate(POSITIVE).partition_persist(DeltaState("rows"))
    monkeypatch.setattr("pyspark.sql.classic.dataframe.DataFrame.persist", None)

    batch, jobs = jobs_of(spark, lake, topology)

    assert (batch.quarantined, jobs) == (1, 2)
    assert found(lake, "rows")["rows"] == [1]
