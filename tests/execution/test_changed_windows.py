"""Changed windows in the batch: what stays the same goes on, what is new begins empty, no event is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import ChangeoverError, PoisonBatchError, StateBehindError, TrideltaError
from pipelines.execution.batch.driver_windows import DriverWindows
from pipelines.execution.batch.poison import PoisonRows, skip
from pipelines.execution.checkpoint.belonging import CheckpointBehindError, TableBehindError
from pipelines.execution.checkpoint.changeover import Changeover
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.window_begin import Begun, WindowPlaceError, WindowStateError
from pipelines.execution.checkpoint.window_files import WindowFiles
from pipelines.execution.verify import verify
from pipelines.flowmix import Count, Flow, Max, Policy, Sum, WindowAggregator
from pipelines.flowmix.compile import topology_of
from pipelines.places.location import on_disk
from pipelines.sources import FixedBatches

SCHEMA = "k string, v bigint, timestamp bigint"


def at(second: int, *values: Any) -> list[tuple[str, Any, int]]:
    return [("a", value, 1000 * (second + number)) for number, value in enumerate(values)]


# The watermark is five seconds behind: the 10 waits for it, and then the 4 and the 5.
BATCHES = [at(0, 1, 2, 3), at(10, 10), at(11, 4, 5), at(30, 100)]


def flow(
    seen: int, *, running: bool = True, latest: int | None = None, table: str = "", batches: Any = BATCHES
) -> Flow:
    """Return a flow over the first batches: running sums of a key, and the newest of so many of them; or none of both.

    Args:
        table: the one that it writes; none: `sums`, and that of its output.
    """
    stream: Any = Flow("changed", windows="batch").stream("s", FixedBatches(SCHEMA, batches[:seen]), delay=5)
    if running:
        sums = (Sum("v", "v"), Count(output="n"))
        stream = stream.partition("k").aggregate(*sums, trigger=Policy.count(1), evict=Policy.count(1000))
    elif latest is None:
        stream = stream.compute({"k string": "k", "v bigint": "v", "n bigint": "0"})
    if latest is not None:
        newest = (Max("v", "v"), Max("n", "n")) if running else (Max("v", "v"), Count(output="n"))
        stream = stream.partition("k").aggregate(
            *newest, trigger=Policy.count(latest), evict=Policy.count(1000), clear_on_trigger=True
        )
    return stream.persist(table).build() if table else stream.persist("sums").output().build()


def rows(lake: Lake, table: str = "sums") -> list[tuple[int, int]]:
    found = sorted(lake.state(table).scan().to_pylist(), key=lambda row: (row["event_time"], row["n"]))
    return [(row["v"], row["n"]) for row in found]


def changed(spark: SparkSession, lake: Lake, to: Flow) -> None:
    Runtime(spark, lake).catch_up(to, changed_windows="begin")
    assert not list(verify(spark, lake, topology_of(to)).faults)


@pytest.mark.slow
def test_what_stays_goes_on_and_what_is_other_begins_empty(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    runtime.catch_up(flow(2, latest=2))
    assert rows(lake) == [(3, 2)]
    with pytest.raises(WindowStateError, match="another operation") as refused:
        runtime.catch_up(flow(4, latest=3))
    assert 'changed_windows="begin"' in str(refused.value)

    changed(spark, lake, flow(4, latest=3))
    # The sums go on at 6; what waits for three of them has forgotten the one of before.
    assert rows(lake) == rows(lake, "changed_s") == [(3, 2), (25, 6)]
    # Nothing is changed any more.
    epoch = checkpoint(lake).epoch
    changed(spark, lake, flow(4, latest=3))
    assert checkpoint(lake).epoch == epoch


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_stream_may_begin_them_too(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    runtime.catch_up(flow(2, latest=2))
    with pytest.raises(WindowStateError, match="another operation"):
        runtime.stream(flow(4, latest=3))
    runtime.stream(flow(4, latest=3), changed_windows="begin").stop()
    runtime.catch_up(flow(4, latest=3))
    assert rows(lake) == rows(lake, "changed_s") == [(3, 2), (25, 6)]


def checkpoint(lake: Lake) -> Checkpoint:
    return Checkpoint("changed", lake.checkpoint_path("changed", "s"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_windows_are_added_behind_and_removed_in_front(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(2))
    changed(spark, lake, flow(3, latest=1))
    assert rows(lake) == [(1, 1), (3, 2), (6, 3)]
    # The 10, the 4 and the 5 have been in no window yet.
    changed(spark, lake, flow(4, running=False, latest=3))
    assert rows(lake) == [(1, 1), (3, 2), (6, 3), (10, 3)]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_windows_go_and_come_back_with_what_waited(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    runtime.catch_up(flow(2))
    with pytest.raises(WindowPlaceError, match="none there now"):
        runtime.catch_up(flow(3, running=False))
    changed(spark, lake, flow(3, running=False))
    passed = [(1, 1), (3, 2), (6, 3), (4, 0), (5, 0)]
    assert sorted(rows(lake)) == sorted(passed)
    with pytest.raises(WindowPlaceError, match="would begin empty"):
        runtime.catch_up(flow(4))
    changed(spark, lake, flow(4))
    assert sorted(rows(lake)) == sorted([*passed, (16, 4)])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_windows_that_have_got_no_batch_since_a_fresh_checkpoint_go_and_come_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The records name states of the checkpoint before."""
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(2))
    for place in (checkpoint(lake).folder, lake.folder / "spool"):
        shutil.rmtree(place)
    Runtime(spark, lake).catch_up(flow(0), on_fresh_checkpoint="continue")
    assert not verify(spark, lake, topology_of(flow(0))).faults
    changed(spark, lake, flow(0, running=False))
    changed(spark, lake, flow(4))
    # The watermark goes on from where it stood.
    assert rows(lake) == [(1, 1), (3, 2), (6, 3), (10, 1), (14, 2), (19, 3)]


@pytest.mark.slow
def test_a_flow_gets_its_first_windows(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(1, running=False))
    with pytest.raises(WindowPlaceError, match="would begin empty"):
        Runtime(spark, lake).catch_up(flow(4))
    Runtime(spark, lake).catch_up(flow(4), changed_windows="begin", on_fresh_checkpoint="continue")
    # The first batch has passed without them.
    assert rows(lake)[3:] == [(10, 1), (14, 2), (19, 3)]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("on_the_way", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_into_another_table_they_go_on(on_the_way: bool, spark: SparkSession, tmp_path: Path) -> None:
    """Records of the former table name their state, and nobody looks into it any more."""
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    runtime.catch_up(flow(2, table="one"))
    if on_the_way:
        changed = flow(3, running=False, table="passing")
        runtime.catch_up(changed, changed_windows="begin", on_fresh_checkpoint="continue")
        assert rows(lake, "passing") == [(4, 0), (5, 0)]
    runtime.catch_up(flow(4, table="two"), changed_windows="begin", on_fresh_checkpoint="continue")
    assert rows(lake, "one") == [(1, 1), (3, 2), (6, 3)]
    assert rows(lake, "two") == ([(16, 4)] if on_the_way else [(16, 4), (20, 5), (25, 6)])
    assert not list(verify(spark, lake, topology_of(flow(4, table="two"))).faults)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_table_of_another_streams_windows_names_none_of_these(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    def two(seen: int, first: str, second: str) -> Flow:
        built: Any = Flow("changed", windows="batch")
        for name, table in (("s", first), ("r", second)):
            stream = built.stream(name, FixedBatches(SCHEMA, BATCHES[:seen]), delay=5).partition("k")
            sums = (Sum("v", "v"), Count(output="n"))
            stream.aggregate(*sums, trigger=Policy.count(1), evict=Policy.count(1000)).persist(table)
        return built.build()

    runtime = Runtime(spark, lake)
    runtime.catch_up(two(2, "one", "two"))
    # Both tables go to the other stream: each begins under it with a state that it does not know.
    swapped = two(4, "two", "one")
    Changeover(lake, topology_of(swapped)).make()
    runtime.catch_up(swapped, on_fresh_checkpoint="continue")
    six = [(1, 1), (3, 2), (6, 3), (16, 4), (20, 5), (25, 6)]
    assert rows(lake, "one") == rows(lake, "two") == six
    assert not list(verify(spark, lake, topology_of(swapped)).faults)


MOMENTS = {"epoch": (Checkpoint, "begin"), "state": (WindowFiles, "begin"), "begun": (Begun, "write")}


@pytest.mark.slow
@pytest.mark.parametrize("then", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "moment", ["begun", *(pytest.param(moment, marks=pytest.mark.exhaustive) for moment in ("epoch", "state"))]
)
def test_cut_off_at_any_moment_both_definitions_can_go_on(
    moment: str, then: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(2, latest=2))
    owner, method = MOMENTS[moment]
    original = getattr(owner, method)

    def cut(*args: Any, **more: Any) -> None:
        original(*args, **more)
        raise TrideltaError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, cut)
        with pytest.raises(TrideltaError, match="cut off"):
            Runtime(spark, lake).catch_up(flow(4, latest=3), changed_windows="begin")
    if moment == "begun" and then == 2:
        # That was the switch.
        with pytest.raises(WindowStateError, match="another operation"):
            Runtime(spark, lake).catch_up(flow(4, latest=2))
    # Behind the switch, too, the former windows come back with what they held, for no batch has come.
    changed(spark, lake, flow(4, latest=then))
    assert rows(lake) == {2: [(3, 2), (16, 4), (25, 6)], 3: [(3, 2), (25, 6)]}[then]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_unfinished_batch_comes_first(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    def fail(moment: str, state: str, txid: int) -> None:
        if (moment, state, txid) == ("committing", "changed_s", 1):
            raise RuntimeError("cut off")

    with pytest.raises(Exception, match="cut off"):
        Runtime(spark, lake, listeners=[fail], max_attempts=1).catch_up(flow(2, latest=1))
    assert rows(lake) != rows(lake, "changed_s")
    with pytest.raises(ChangeoverError, match="is in some of its tables and not in all"):
        Runtime(spark, lake).catch_up(flow(2, latest=2), changed_windows="begin")
    Runtime(spark, lake).catch_up(flow(2, latest=1))
    changed(spark, lake, flow(4, latest=3))
    assert rows(lake) == rows(lake, "changed_s") == [(1, 1), (3, 2), (6, 3), (25, 6)]


class Tens(WindowAggregator):
    """How often a value goes into a hundred; of those that it `takes`."""

    outputs = "v bigint, n bigint"

    def __init__(self, takes: str) -> None:
        self.takes, self.made = takes, 0

    def added(self, event: Any) -> None:
        self.made += 0 if self.takes == "all" and event["v"] == 0 else 100 // event["v"]

    def evicted(self, event: Any) -> None:
        pass

    def aggregate(self) -> dict[str, int]:
        return {"v": self.made, "n": 0}


def tens(takes: str) -> Flow:
    source = FixedBatches(SCHEMA, [at(0, 10), at(10, 0, 5), at(40, 1)])
    stream: Any = Flow("changed", windows="batch").stream("s", source, delay=5)
    if takes == "nothing":
        stream = stream.compute({"k string": "k", "v bigint": "v", "n bigint": "0"})
    else:
        stream = stream.partition("k").aggregate(Tens(takes), trigger=Policy.count(1), evict=Policy.count(9))
    return stream.persist("sums").output().build()


LOST = pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.exhaustive), True])
"""Whether the plan of the batch that failed is gone."""


def poisoned(spark: SparkSession, lake: Lake) -> int:
    """Run until the windows fail. Returns the batch."""
    with pytest.raises(PoisonBatchError) as poison:
        Runtime(spark, lake, max_attempts=1).catch_up(tens("others"))
    assert lake.quarantine("changed").frame(spark).count() == 1
    return poison.value.txid


def lose(lake: Lake, batch: int) -> None:
    """Take the plan of a batch away, as a loss of power does."""
    for name in (f"{batch}", f".{batch}.crc"):
        (on_disk(lake.checkpoint_path("changed", "s")) / "spark/offsets" / name).unlink()


@pytest.mark.exhaustive
@LOST
@pytest.mark.slow
def test_a_batch_on_which_the_former_windows_failed_comes_again(
    spark: SparkSession, tmp_path: Path, lost: bool
) -> None:
    lake = Lake(tmp_path)
    txid = poisoned(spark, lake)
    if lost:
        lose(lake, txid)
    changed(spark, lake, tens("all"))
    # The ten had been in a window that forgets it; what waited for the clock when it failed is in the new one.
    assert sorted(row["v"] for row in lake.state("sums").scan().to_pylist()) == [0, 10, 20]
    assert lake.quarantine("changed").frame(spark).count() == 0


@pytest.mark.slow
def test_what_waits_and_does_not_fit_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    def counted(value: str, kind: str) -> Flow:
        source = FixedBatches("k string, v string, timestamp bigint", [at(0, "x"), at(10, "y")])
        stream: Any = Flow("changed", windows="batch").stream("s", source, delay=5)
        stream = stream.compute({"k string": "k", f"v {kind}": value, "timestamp bigint": "timestamp"}).partition("k")
        stream = stream.aggregate(Count("v", field="v"), trigger=Policy.count(1), evict=Policy.count(9))
        return stream.persist("sums").output().build()

    Runtime(spark, lake).catch_up(counted("v", "string"))
    with pytest.raises(ChangeoverError, match=r"1 event\(s\) that wait for the watermark do not fit"):
        Runtime(spark, lake).catch_up(counted("length(v)", "int"), changed_windows="begin")


@pytest.mark.exhaustive
@LOST
@pytest.mark.slow
def test_a_skipped_batch_is_left_out_before_windows_change(spark: SparkSession, tmp_path: Path, lost: bool) -> None:
    """Its rows stay in quarantine, whatever is changed: the changed windows would take it in again, or lose it."""
    lake = Lake(tmp_path)
    txid = poisoned(spark, lake)
    skip(lake, topology_of(tens("others")), txid)
    if lost:
        lose(lake, txid)
    for other in (tens("all"), tens("nothing")):
        with pytest.raises(ChangeoverError, match="was skipped, and the former definition has not gone on behind it"):
            Runtime(spark, lake).catch_up(other, changed_windows="begin")
    if lost:
        # The former windows try it once more.
        assert poisoned(spark, lake) == txid
        skip(lake, topology_of(tens("others")), txid)
    Runtime(spark, lake).catch_up(tens("others"))
    changed(spark, lake, tens("all"))
    # With it went the two events that waited for its clock: it was by one of these that it failed.
    rules = lake.quarantine("changed").frame(spark).groupBy("rule").count().collect()
    assert {row["rule"]: row["count"] for row in rules} == {"poison": 1, "waiting": 2}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_windows_that_fail_in_their_first_batch_give_the_former_ones_back(spark: SparkSession, tmp_path: Path) -> None:
    # Each batch has an event that is in time.
    lake, soon = Lake(tmp_path), [*BATCHES[:2], [*at(20, 100), *at(40, 1)]]
    Runtime(spark, lake).catch_up(flow(2))

    def broken() -> Flow:
        stream: Any = Flow("changed", windows="batch").stream("s", FixedBatches(SCHEMA, soon), delay=5)
        stream = stream.partition("k").aggregate(Broken(), trigger=Policy.count(1), evict=Policy.count(9))
        return stream.persist("sums").output().build()

    for _ in range(2):
        with pytest.raises(PoisonBatchError):
            Runtime(spark, lake, max_attempts=1).catch_up(broken(), changed_windows="begin")
    changed(spark, lake, flow(3, batches=soon))
    assert rows(lake) == [(1, 1), (3, 2), (6, 3), (16, 4), (116, 5)]
    assert lake.quarantine("changed").frame(spark).count() == 0


class Broken(Tens):
    """Takes no event."""

    def __init__(self) -> None:
        super().__init__("none")

    def added(self, event: Any) -> None:
        raise ValueError("broken")


def counts(seen: int, more: Any) -> Flow:
    """Return a flow that counts the events of a key, and makes `v` of them."""
    stream: Any = Flow("changed", windows="batch").stream("s", FixedBatches(SCHEMA, BATCHES[:seen]), delay=5)
    stream = stream.partition("k").aggregate(Count(output="n"), more, trigger=Policy.count(1), evict=Policy.count(99))
    return stream.persist("sums").output().build()


def waiting(spark: SparkSession, lake: Lake) -> list[tuple[str, str]]:
    return [(row["rule"], row["row"]) for row in lake.quarantine("changed").frame(spark).collect()]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_waits_without_a_field_goes_into_quarantine(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count has kept nothing of the events that wait but their key and their time."""
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(counts(2, Count(output="v")))
    summed = counts(4, Sum("v", "v"))

    def cut(*_: Any) -> None:
        raise TrideltaError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(PoisonRows, "keep_waiting", cut)
        with pytest.raises(TrideltaError, match="cut off"):
            Runtime(spark, lake).catch_up(summed, changed_windows="begin")
    # Until a batch has come the former windows go on with all that they held, what has waited included.
    with monkeypatch.context() as patched:
        patched.setattr(DriverWindows, "clear", cut)
        with pytest.raises(TrideltaError, match="cut off"):
            Runtime(spark, lake).catch_up(summed)
    assert waiting(spark, lake) == [("waiting", '{"k":"a","_event_clock":10000}')]
    # A third definition lacks it, too, and has not lost it.
    with monkeypatch.context() as patched:
        patched.setattr(DriverWindows, "clear", cut)
        with pytest.raises(TrideltaError, match="cut off"):
            Runtime(spark, lake).catch_up(counts(4, Max("v", "v")), changed_windows="begin")
    assert waiting(spark, lake) == [("waiting", '{"k":"a","_event_clock":10000}')]
    changed(spark, lake, counts(4, Count(output="v")))
    assert waiting(spark, lake) == []
    assert sorted(row["n"] for row in lake.state("sums").scan().to_pylist()) == [1, 2, 3, 4, 5, 6]
    changed(spark, lake, summed)
    assert waiting(spark, lake) == [("waiting", '{"k":"a","_event_clock":30000}')]


@pytest.mark.slow
@pytest.mark.parametrize("former", [pytest.param("windows", marks=pytest.mark.exhaustive), "none"])
def test_what_does_not_belong_together_is_refused_before_windows_change(
    former: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The new epoch would hide it."""
    lake, whole = Lake(tmp_path / "lake"), {"running": former == "windows"}
    Runtime(spark, lake).catch_up(flow(2, **whole))
    folder = lake.checkpoint_path("changed", "s")
    shutil.copytree(folder / "spark", tmp_path / "older")
    Runtime(spark, lake).catch_up(flow(3, **whole))
    other = flow(4, latest=1)

    with pytest.raises(StateBehindError, match="third"):
        Runtime(spark, lake).catch_up(flow(4, latest=1, table="third"), changed_windows="begin")
    shutil.move(folder / "spark", tmp_path / "newer")
    shutil.copytree(tmp_path / "older", folder / "spark")
    with pytest.raises(CheckpointBehindError):
        Runtime(spark, lake).catch_up(other, changed_windows="begin")
    shutil.rmtree(folder / "spark")
    shutil.move(tmp_path / "newer", folder / "spark")
    table = DeltaTable(str(lake.state("sums").path))
    table.restore(table.version() - 1)
    with pytest.raises(TableBehindError):
        Runtime(spark, lake).catch_up(other, changed_windows="begin")
