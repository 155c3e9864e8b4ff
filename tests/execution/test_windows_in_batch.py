"""Windows of a stream's own source within its batch: the results of channels, whatever the batches and whatever fails."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import BoundedBesideStreamError, DefinitionError, FlowError, PoisonBatchError, TrideltaError
from pipelines.execution.batch import driver_windows
from pipelines.execution.checkpoint.belonging import named_by
from pipelines.execution.checkpoint.window_begin import StateFolder, WindowPlaceError, WindowStateError
from pipelines.execution.checkpoint.window_state import WindowFieldError
from pipelines.execution.replays.selection import ReplayError
from pipelines.execution.verify import damages, verify
from pipelines.flowmix import Count, Flow, Policy, Sum, WindowAggregator, has
from pipelines.flowmix.compile import topology_of
from pipelines.graph import nodes
from pipelines.quality import Gate, drop
from pipelines.sources import FixedBatches

SCHEMA = "k string, v bigint, timestamp bigint, id string"
Row = tuple[str, int, int, str]
Contents = dict[str, list[tuple[Any, ...]]]


def events(first: int, end: int) -> list[Row]:
    """Return events of three keys, half a second apart."""
    return [(f"k{n % 3}", n % 17, 100_000 + n * 500, f"e{n}") for n in range(first, end)]


LATE: list[Row] = [("k1", 99, 100_000, "late")]
BATCHES = [events(0, 20), events(20, 33), [*events(33, 60), *LATE], events(60, 90)]


def two_streams(windows: str) -> Flow:
    return (
        Flow("small", windows=windows)
        .stream("readings", FixedBatches(SCHEMA, BATCHES), delay=2)
        .filter("v != 5")
        .partition("k")
        .aggregate(Sum("v", "sum"), Count(output="n"), trigger=Policy.count(4), evict=Policy.count(6))
        .persist("sums")
        .filter("n > 3")
        .to("worst")
        .output()
        .stream("worst")
        .partition()
        .sort("sum desc", top_n=3, trigger=Policy.count(5))
        .persist("worst_three")
        .build()
    )


def flow(
    batches: list[list[Any]] = BATCHES,
    windows: str = "batch",
    *,
    trigger: Policy | None = None,
    each: Callable[[Any], Any] | None = None,
    gates: tuple[Gate, ...] = (),
) -> Flow:
    """Return a flow of one query: sums of each key, in a table and at the output."""
    written: Any = Flow("one", windows=windows).stream("readings", FixedBatches(SCHEMA, batches), delay=2)
    written = written.partition("k").aggregate(
        Sum("v", "sum"), trigger=trigger or Policy.count(4), evict=Policy.count(6)
    )
    written = written.each(each) if each is not None else written
    for gate in gates:
        written = written.gate(gate)
    return written.persist("sums").output().build()


SMALL = ("sums", "small_readings", "worst_three", "late_small_readings")
ONE = ("sums", "one_readings", "late_one_readings")


def contents(lake: Lake, tables: tuple[str, ...] = ONE) -> Contents:
    return {
        name: sorted((tuple(row.values()) for row in lake.state(name).scan().to_pylist()), key=repr) for name in tables
    }


def folder(lake: Lake) -> Path:
    return lake.checkpoint_path("one", "readings") / "windows"


def named(lake: Lake, table: str = "sums") -> list[str]:
    records = [commit.record for commit in lake.state(table).commits.batches()]
    return [record.windows["file"] for record in records if record and record.windows]


@pytest.fixture(scope="module")
def on_channels(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    lake = Lake(tmp_path_factory.mktemp("channels"))
    Runtime(spark, lake).catch_up(flow(windows="channels"))
    found = contents(lake)
    assert all(found.values())
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_results_are_those_of_channels_in_other_streams_too(spark: SparkSession, tmp_path: Path) -> None:
    found = []
    for windows in ("channels", "batch"):
        lake = Lake(tmp_path / windows)
        report = Runtime(spark, lake).catch_up(two_streams(windows))
        found.append(contents(lake, SMALL))
    assert found[0] == found[1]
    assert all(found[0].values())
    assert {batch.group for batch in report.batches} == {"readings", "worst"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_each_output_names_the_state_and_old_states_go(
    spark: SparkSession, tmp_path: Path, on_channels: Contents
) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow())
    assert contents(lake) == on_channels
    names = named(lake)
    assert len(names) == len(BATCHES) == len(set(names))
    assert all(named(lake, table) == names for table in ONE)
    assert len({str(list(named_by("readings", [lake.state(table)]))) for table in ONE}) == 1
    # The last, and the two before it: the next batch clears them.
    assert {*names[-3:], "begun-0"} >= {file.name for file in folder(lake).iterdir()} >= {names[-1], "begun-0"}
    assert not list(verify(spark, lake, topology_of(flow())).faults)


@pytest.mark.slow
def test_a_query_knows_how_many_windows_it_holds_also_before_its_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    runtime, found = Runtime(spark, Lake(tmp_path)), list[int | None]()
    for batches in (1, 0):
        running = runtime.stream(flow(), trigger_seconds=0.1)
        (part,) = running._parts
        found.append(part.runner.window_rows)
        until = time.monotonic() + 60
        while len(running.batches) < batches and time.monotonic() < until:
            time.sleep(0.1)
        running.stop()
        found.append(part.runner.window_rows)
    assert found == [0, 3, 3, 3]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_bounded_run_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    found = []
    for windows in ("channels", "batch"):
        lake = Lake(tmp_path / windows)
        # Without rows that a stream would find late. The last one is filtered, and its clock still ticks.
        batches = [events(0, 33), [*events(33, 60), ("k1", 99, 190_000, "last")]]
        Runtime(spark, lake).run_bounded(flow(batches, windows, trigger=Policy.time(3)))
        found.append({name: sorted(map(repr, lake.state(name).scan().to_pylist())) for name in ONE[:2]})
    assert found[0] == found[1]
    assert found[0]["sums"]


class FailingOnce:
    """Fails at the n-th moment of all, once."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, moment: str, state: str, txid: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError("the machine had a moment")


@pytest.mark.slow
@pytest.mark.parametrize(
    "at", [pytest.param(n, marks=[] if n == 11 else [pytest.mark.exhaustive]) for n in range(1, 20)]
)
def test_an_attempt_that_fails_at_any_moment_changes_nothing(
    spark: SparkSession, tmp_path: Path, on_channels: Contents, at: int
) -> None:
    lake = Lake(tmp_path)
    try:
        Runtime(spark, lake, listeners=[FailingOnce(at)]).catch_up(flow())
    except TrideltaError:
        # Between two attempts, or behind the last commit: as if the process had died.
        Runtime(spark, lake).catch_up(flow())
    except OSError:
        Runtime(spark, lake).catch_up(flow())
    assert contents(lake) == on_channels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bound", "most"), [("BYTES_AT_ONCE", 300), pytest.param("ROWS_AT_ONCE", 7, marks=pytest.mark.exhaustive)]
)
def test_many_rows_and_large_ones_come_in_pieces_of_the_clock(
    spark: SparkSession, tmp_path: Path, on_channels: Contents, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    sizes = []

    class Rows(driver_windows._Rows):
        def pieces(self, clock: int) -> Any:
            for piece, end in super().pieces(clock):
                sizes.append(piece.num_rows)
                yield piece, end

    monkeypatch.setattr(driver_windows, "_Rows", Rows)
    monkeypatch.setattr(driver_windows, bound, most)
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow())
    assert contents(lake) == on_channels
    assert len(sizes) > len(BATCHES)
    # With the last one of a batch come those that wait.
    assert max(sizes) <= 12


def test_rows_that_are_in_the_driver_are_not_read_again_for_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"v": [1, 2, 3]})
    monkeypatch.setattr(driver_windows, "BYTES_AT_ONCE", table.nbytes - 1)
    monkeypatch.setattr(driver_windows, "to_arrow", lambda frame: table)
    frame: Any = object()
    assert list(driver_windows._Rows(frame, most=3, at_once=True).pieces(7)) == [(table, 7)]


class Seen(WindowAggregator):
    """The ids of the events, in the order in which it sees them."""

    outputs = "seen string"

    def __init__(self) -> None:
        self.ids: list[str] = []

    def added(self, event: Any) -> None:
        self.ids.append(event.id)

    def evicted(self, event: Any) -> None:
        raise AssertionError("no event leaves a span before its end")

    def aggregate(self) -> str:
        return " ".join(self.ids)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_whole_events_come_in_pieces_of_the_clock(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into windows that follow one another too: a user's aggregator sees each event once, in the order of the clock."""

    def nested(windows: str) -> Flow:
        stream: Any = Flow("one", windows=windows).stream("readings", FixedBatches(SCHEMA, BATCHES), delay=2)
        stream = stream.partition("k").aligned(Seen(), Count(output="n"), every=2, size=5).partition()
        return stream.sort("seen", tumbling=Policy.count(2)).persist("sums").output().build()  # type: ignore[no-any-return]

    found = []
    monkeypatch.setattr(driver_windows, "EVENTS_AT_ONCE", 7)
    for windows in ("channels", "batch"):
        lake = Lake(tmp_path / windows)
        Runtime(spark, lake).catch_up(nested(windows))
        found.append(contents(lake))
    assert found[0] == found[1]
    assert all(found[0].values())


@pytest.mark.slow
@pytest.mark.exhaustive
def test_batches_without_a_good_row(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untimed: list[Any] = [("k1", 1, None, "untimed")]
    found, at_once = [], []

    class Rows(driver_windows._Rows):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            at_once.append(self._table is not None)

    monkeypatch.setattr(driver_windows, "_Rows", Rows)
    for windows in ("channels", "batch"):
        lake = Lake(tmp_path / windows)
        Runtime(spark, lake).catch_up(flow([untimed, events(0, 20), untimed, events(20, 40)], windows))
        found.append(contents(lake))
    assert found[0] == found[1]
    assert len(found[0]["sums"]) > 3
    # A batch of which no row comes says nothing of the next one, which may be of any size.
    assert at_once == [False, False, True, False]


def unlucky(event: Any) -> Any:
    if event["sum"] == 17:
        raise ValueError("seventeen is not a sum for me")
    return event


@pytest.mark.slow
def test_a_batch_that_is_left_out_is_in_no_window(spark: SparkSession, tmp_path: Path) -> None:
    batches: list[list[Row]] = [
        [("a", 1, 1000, "1"), ("a", 1, 1000, "2"), ("a", 1, 1000, "3")],
        [("a", 14, 2000, "4"), ("a", 0, 4000, "x"), ("b", 0, 5000, "y")],
        [("a", 5, 5000, "5"), ("a", 1, 9000, "6")],
    ]
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake, max_attempts=1)
    with pytest.raises(PoisonBatchError):
        runtime.catch_up(flow(batches, each=unlucky))
    runtime.skip(flow(batches, each=unlucky), 1)
    runtime.catch_up(flow(batches, each=unlucky))
    assert [row[:2] for row in contents(lake)["sums"]] == [("a", 8)]


@pytest.mark.slow
def test_a_gate_behind_the_windows(spark: SparkSession, tmp_path: Path) -> None:
    gate = Gate("small", checks=[drop("expect_column_values_to_be_between", column="sum", max_value=30)])
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    report = runtime.catch_up(flow(gates=(gate,)))
    assert sum(batch.quarantined for batch in report.batches) > 0
    assert all(row[1] <= 30 for row in contents(lake)["sums"])


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", pytest.param("damaged", marks=pytest.mark.exhaustive)])
def test_a_state_that_cannot_be_had_is_refused_at_the_start(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(), max_batches=2)
    file = folder(lake) / named(lake)[-1]
    whole = file.read_bytes()
    file.unlink() if damage == "gone" else file.write_bytes(whole[:-1])
    with pytest.raises(WindowStateError, match=damage):
        Runtime(spark, lake).catch_up(flow())
    assert [type(fault) for fault in verify(spark, lake, topology_of(flow())).faults] == [WindowStateError]
    file.write_bytes(whole)
    Runtime(spark, lake).catch_up(flow(), max_batches=1)
    assert len(named(lake)) == 3


@pytest.mark.slow
def test_another_operation_and_another_place_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    runtime.catch_up(flow(), max_batches=1)
    with pytest.raises(WindowStateError, match="another operation"):
        runtime.catch_up(flow(trigger=Policy.count(5)))
    with pytest.raises(WindowPlaceError, match="on a channel they would begin empty"):
        runtime.catch_up(flow(windows="channels"))
    with pytest.raises(BoundedBesideStreamError):
        runtime.run_bounded(flow())
    # The one file is enough.
    (folder(lake) / "begun-0").unlink()
    with pytest.raises(WindowStateError, match="is not there"):
        runtime.catch_up(flow())
    (fault,) = damages(lake, topology_of(flow()))
    assert isinstance(fault, WindowStateError)
    assert "is not there" in str(fault)


@pytest.mark.slow
def test_behind_a_bounded_run_it_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    runtime = Runtime(spark, Lake(tmp_path))
    runtime.run_bounded(flow(BATCHES[:1]))
    with pytest.raises(DefinitionError, match="a bounded run has filled"):
        runtime.catch_up(flow())


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["reset", pytest.param("continue", marks=pytest.mark.exhaustive)])
def test_a_fresh_checkpoint_begins_with_empty_windows(spark: SparkSession, tmp_path: Path, choice: str) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow(BATCHES[:2]))
    before = contents(lake)
    shutil.rmtree(lake.checkpoint_path("one", "readings") / "spark")
    Runtime(spark, lake).catch_up(flow(BATCHES[:2]), on_fresh_checkpoint=choice)
    txid = 0 if choice == "reset" else 2
    assert (folder(lake) / f"begun-{txid}").exists()
    if choice == "reset":
        assert contents(lake) == before
    else:
        # All was read again, behind a watermark that has passed most of it.
        assert len(contents(lake)["late_one_readings"]) > len(before["late_one_readings"])


def test_replays_of_quarantine_behind_windows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    untimed: list[Any] = [*events(0, 20), ("k1", 1, None, "untimed")]
    runtime = Runtime(spark, Lake(tmp_path))
    runtime.catch_up(flow([untimed]))
    with pytest.raises(ReplayError):
        runtime.replay_quarantine(flow([untimed]))


def sorted_flow(batches: list[list[Any]], fields: dict[str, str]) -> Flow:
    source = FixedBatches("k string, v bigint, timestamp bigint", batches)
    stream: Any = Flow("sorted", windows="batch").stream("s", source)
    stream = stream.compute({"k string": "k", "v bigint": "v", **fields}).partition("k")
    stream = stream.sort("v desc", tumbling=Policy.count(3))
    # The table sees no difference.
    stream = stream.compute({"v bigint": "v", "seen string": "x" if "x string" in fields else "null"})
    return stream.persist("kept").build()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_whole_events_are_kept_with_the_types_of_their_fields(spark: SparkSession, tmp_path: Path) -> None:
    """A window that holds whole events takes a new field, and refuses one of another type before anything runs."""
    rows = [("a", n, n * 1000) for n in range(6)]
    runtime, more = Runtime(spark, Lake(tmp_path)), [rows[:4], rows[4:]]
    runtime.catch_up(sorted_flow([rows[:4]], {"w bigint": "v"}))
    with pytest.raises(WindowFieldError, match='field "w" is string now'):
        runtime.catch_up(sorted_flow(more, {"w string": "v"}))
    runtime.catch_up(sorted_flow(more, {"w bigint": "v", "x string": "'new'"}))
    kept = Lake(tmp_path).state("kept").scan().to_pylist()
    seen = [(0, None), (1, None), (2, None), (3, None), (4, "new"), (5, "new")]
    assert sorted((row["v"], row["seen"]) for row in kept) == seen


def places(built: Flow) -> list[str]:
    graph = topology_of(built).graph
    return [node.stream for node in graph if isinstance(node, nodes.SpoutNode)]


def test_windows_that_cannot_run_in_the_batch_read_a_channel() -> None:
    def written(clock: str = "event", **source: Any) -> Any:
        return Flow("f", clock=clock, windows="batch").stream("s", FixedBatches(SCHEMA, [[]]), **source).partition("k")

    four, whole = Policy.count(4), {"trigger": Policy.count(4), "evict": Policy.count(4)}
    several = {"function": unlucky, "schema": "k array<string>, v bigint"}
    in_batch = [
        written().aggregate(Sum("v"), **whole),
        written().aggregate(Sum("v"), **whole).filter("sum > 1").aligned(Count(), every=2),
        written().sort("v", top_n=2, trigger=four),
        written().partition("v", "timestamp").each(**several).partition("k").aggregate(Sum("v"), **whole),
        written().collect(**whole).filter(has("events")),
    ]
    for stream in in_batch:
        assert places(stream.output().build()) == ["s"]
    on_channels = [
        written("processing").aggregate(Sum("v"), **whole).output(),
        written(slice_by="k").aggregate(Sum("v"), **whole).output(),
        written().aggregate(Sum("v"), **whole).persist("sums").aggregate(Count(), **whole).output(),
        written().persist("raw").aggregate(Sum("v"), **whole).output(),
    ]
    for built in on_channels:
        assert places(built.build()) == ["s", "s__1"]
    with pytest.raises(FlowError, match="no place of windows"):
        Flow("f", windows="anywhere")


@pytest.mark.slow
def test_files_of_a_state_are_removed_only_when_two_batches_stand_behind_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(StateFolder, "remove", lambda self, name: removed.append(name))
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(flow())
    # When the last batch begins, that before it is the newest, and what that one began with stays as well.
    assert set(removed) <= set(named(lake)[:-3])
