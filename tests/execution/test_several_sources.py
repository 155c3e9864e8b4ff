"""Streams that meet are one batch group: one query, one txid sequence, one checkpoint (Trident rules 3.6, 8)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import DefinitionError, UnknownStateError
from pipelines.execution.batch.group import BatchGroup
from pipelines.execution.protocol.groups import group_name, spout_groups
from pipelines.planner.changes import plan_changes
from pipelines.sources import CsvFiles, FixedBatches, JsonFiles
from pipelines.trident import Count, DeltaState, MapGet, Max, SnapshotGet, Sum, TridentTopology

pytestmark = pytest.mark.slow

LEFT = [[("a", 1), ("b", 2)], [("a", 3)], [("c", 4)]]
RIGHT = [[("a", 10)], [("a", 30), ("x", 50)]]


def joined() -> TridentTopology:
    topology = TridentTopology("meeting")
    left = topology.new_stream("left", FixedBatches("k string, v bigint", LEFT))
    right = topology.new_stream("right", FixedBatches("k string, w bigint", RIGHT))
    topology.join(left, "k", right, "k", ["k", "v", "w"]).partition_persist(DeltaState("pairs"))
    left.group_by("k").persistent_aggregate(DeltaState("lefts"), Count(), "n")
    return topology


def test_batches_share_a_txid(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    report = Runtime(spark, lake).catch_up(joined())
    assert [(b.group, b.txid, b.received) for b in report.batches] == [
        ("left__right", 0, 3),
        ("left__right", 1, 3),
        ("left__right", 2, 1),
    ]
    pairs = lake.state("pairs").scan().to_pylist()
    assert sorted(tuple(row.values()) for row in pairs) == [("a", 1, 10), ("a", 3, 30)]
    assert lake.state("pairs").get(txid=0) == [{"k": "a", "v": 1, "w": 10}]
    assert lake.state("lefts").get([{"k": "a"}]) == [{"k": "a", "n": 2}]
    assert Runtime(spark, lake).catch_up(joined()).batches == ()


def test_a_restart_between_the_commits_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    lake, died = Lake(tmp_path), []

    def die_once(moment: str, state: str, txid: int) -> None:
        if moment == "committed" and txid == 1 and not died:
            died.append(state)
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Exception)):
        Runtime(spark, lake, listeners=[die_once]).catch_up(joined())
    Runtime(spark, lake).catch_up(joined())
    assert len(died) == 1
    assert lake.state("lefts").get([{"k": key} for key in "abc"]) == [
        {"k": "a", "n": 2},
        {"k": "b", "n": 1},
        {"k": "c", "n": 1},
    ]
    assert lake.state("pairs").count() == 2


def test_streams_that_do_not_meet_have_txids_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("apart")
    for name, batches in (("left", LEFT), ("right", RIGHT)):
        stream = topology.new_stream(name, FixedBatches("k string, v bigint", batches))
        stream.group_by("k").persistent_aggregate(DeltaState(f"of_{name}"), Count(), "n")
    report = Runtime(spark, Lake(tmp_path)).catch_up(topology)
    assert [(b.group, b.txid) for b in report.batches] == [
        ("left", 0),
        ("left", 1),
        ("left", 2),
        ("right", 0),
        ("right", 1),
    ]


def test_malformed_rows_of_each_source_go_to_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("spoiled")
    streams = []
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text(f'{{"k": "{name}"}}\nnot json of {name}\n')
        streams.append(topology.new_stream(name, JsonFiles(tmp_path / name, "k string")))
    topology.merge(*streams).group_by("k").persistent_aggregate(DeltaState("keys"), Count(), "n")
    lake = Lake(tmp_path / "lake")
    (batch,) = Runtime(spark, lake).catch_up(topology).batches
    assert (batch.received, batch.quarantined) == (4, 2)
    assert lake.state("keys").get([{"k": "left"}, {"k": "right"}]) == [{"k": "left", "n": 1}, {"k": "right", "n": 1}]
    rows = sorted(row["row"] for row in lake.quarantine("spoiled").scan().to_pylist())
    assert rows == ["not json of left", "not json of right"]


def test_sources_of_one_folder_count_each_file_as_often_as_they_took_it(spark: SparkSession, tmp_path: Path) -> None:
    """A batch of the one, which looks at a file's header, is none of the other's: at another pace, or in the folder beneath."""
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    for number, (header, line) in enumerate((("k,n", "a,1"), ("n,k", "2,b"), ("k,n", "c,3"))):
        (folder / f"{number}.csv").write_text(f"{header}\n{line}\n")
        os.utime(folder / f"{number}.csv", (1e9 + number, 1e9 + number))
    (folder / "sub/d.csv").write_text("k,n\nd,4\n")
    topology, schema = TridentTopology("shared"), "k string, n bigint"
    slow = topology.new_stream("slow", CsvFiles(folder, schema, max_files_per_batch=1))
    fast = topology.new_stream("fast", CsvFiles(folder, schema))
    below = topology.new_stream("below", CsvFiles(folder / "sub", schema))
    topology.merge(slow, fast, below).partition_persist(DeltaState("rows"))
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(topology)
    rows = sorted((row["k"], row["n"]) for row in lake.state("rows").scan().to_pylist())
    assert rows == [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("c", 3), ("c", 3), ("d", 4)]


def test_slices_of_streams_that_meet(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("sliced")
    left = topology.new_stream("left", FixedBatches("day string, v bigint", [[("d1", 1), ("d2", 2)]]), slice_by="day")
    right = topology.new_stream(
        "right", FixedBatches("day string, w bigint", [[("d1", 3)], [("d2", 4)]]), slice_by="day"
    )
    topology.merge(left, right, outputs=["day", "v"]).group_by("day").persistent_aggregate(
        DeltaState("days"), Count(), "n"
    )
    lake = Lake(tmp_path)
    runtime = Runtime(spark, lake)
    wanted = [{"day": "d1", "n": 2}, {"day": "d2", "n": 2}]
    runtime.backfill(topology, ["d2"])
    assert lake.state("days").get([{"day": "d2"}]) == [wanted[1]]
    runtime.catch_up(topology)
    assert lake.state("days").get([{"day": "d1"}, {"day": "d2"}]) == wanted
    runtime.backfill(topology, ["d1", "d2"])
    assert lake.state("days").get([{"day": "d1"}, {"day": "d2"}]) == wanted


def test_one_stream_with_slices_cannot_meet_one_without(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("half_sliced")
    left = topology.new_stream("left", FixedBatches("day string", []), slice_by="day")
    right = topology.new_stream("right", FixedBatches("day string", []))
    topology.merge(left, right).partition_persist(DeltaState("days"))
    with pytest.raises(DefinitionError, match="these name no slice column: right"):
        Runtime(spark, Lake(tmp_path)).catch_up(topology)


def test_a_run_stores_its_plan(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(joined())
    assert plan_changes(joined(), lake).nothing
    other = joined()
    other.new_stream("third", FixedBatches("k string", [])).partition_persist(DeltaState("thirds"))
    found = plan_changes(other, lake)
    assert not found.nothing
    assert not found.refused


def test_a_state_asked_for_before_the_line_that_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    """It is read as the batch found it, on a fresh lake too."""
    topology = TridentTopology("asked_before")
    stream = topology.new_stream("s", FixedBatches("k string", [[("a",)], [("a",), ("b",)], [("b",)]]))
    stream.state_query("counts", "k", MapGet(), "n").partition_persist(DeltaState("seen"))
    stream.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "n")
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology)
    seen = sorted(lake.state("seen").scan().to_pylist(), key=str)
    assert [tuple(row.values()) for row in seen] == [("a", 1), ("a", None), ("b", 1), ("b", None)]


def test_a_state_may_be_named_like_its_stream(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("namesakes")
    stream = topology.new_stream("words", FixedBatches("word string", [[("a",)]]))
    stream.group_by("word").persistent_aggregate(DeltaState("words"), Count(), "n")
    lake = Lake(tmp_path)
    Runtime(spark, lake).catch_up(topology)
    assert lake.state("words").scan().to_pylist() == [{"word": "a", "n": 1}]


# --- streams that ask each other's states, defined before or behind ------------------------------------------------------


def asking() -> TridentTopology:
    topology = TridentTopology("asking")
    orders = topology.new_stream("orders", FixedBatches("item string, n bigint", [[("tea", 2), ("ham", 1)]]))
    prices = topology.new_stream("prices", FixedBatches("item string, price bigint", [[("tea", 5)]]))
    latest = prices.group_by("item").persistent_aggregate(DeltaState("prices"), "price", Max(), "price")
    orders.state_query(latest, "item", MapGet(), "price").partition_persist(DeltaState("priced"))
    return topology


def asking_windows() -> TridentTopology:
    """Plans of the stream and of its windows wait for each other's tables, thrice."""
    topology = TridentTopology("circle")
    numbers = topology.new_stream("numbers", FixedBatches("n bigint", [[(1,), (5,)]]))
    # Its channel needs the state of windows that are defined behind it.
    seen = numbers.state_query("top", None, SnapshotGet(), "top").tumbling_window(2, "n", Sum(), "both")
    top = numbers.tumbling_window(2, "n", Max(), "m").persistent_aggregate(DeltaState("top"), "m", Max(), "m")
    seen.partition_persist(DeltaState("sums"))
    numbers.state_query(top, None, SnapshotGet(), "top").partition_persist(DeltaState("out"))
    return topology


def test_a_stream_asks_the_state_of_one_defined_behind_it(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    report = Runtime(spark, lake).catch_up(asking())
    assert [batch.group for batch in report.batches] == ["prices", "orders"]
    priced = lake.state("priced").scan().to_pylist()
    assert sorted((row["item"], row["price"]) for row in priced) == [("ham", None), ("tea", 5)]
    assert Runtime(spark, lake).catch_up(asking()).batches == ()


@pytest.mark.exhaustive
def test_a_stream_asks_the_states_of_its_own_windows(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Runtime(spark, lake).stream(asking_windows(), trigger_seconds=0.1).stop()
    Runtime(spark, lake).catch_up(asking_windows())
    assert sorted(row["n"] for row in lake.state("out").scan().to_pylist()) == [1, 5]
    assert lake.state("top").get() == [{"m": 5}]
    assert [row["both"] for row in lake.state("sums").scan().to_pylist()] == [6]
    # As whole states, in a lake of its own.
    Runtime(spark, Lake(tmp_path / "bounded")).run_bounded(asking_windows())
    assert Lake(tmp_path / "bounded").state("top").get() == [{"m": 5}]


def test_states_whose_columns_need_each_other_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("closed")
    for name, other in (("a", "b"), ("b", "a")):
        stream = topology.new_stream(name, FixedBatches("n bigint", [[(1,)]])).state_query(other, "n", MapGet(), "x")
        stream.group_by("n").persistent_aggregate(DeltaState(name), "x", Max(), "x")
    with pytest.raises(UnknownStateError, match='no state "b"'):
        Runtime(spark, Lake(tmp_path)).catch_up(topology)
    # A deployed query knows it by itself.
    (first, _) = (BatchGroup(spark, Lake(tmp_path), topology, spouts, wait=True) for spouts in spout_groups(topology))
    assert (first.ready, first.awaited, first.waits_in_vain) == (False, ("b",), True)


def test_a_stream_that_waits_for_one_that_can_start_waits_not_in_vain(spark: SparkSession, tmp_path: Path) -> None:
    by_name = {group_name(spouts): spouts for spouts in spout_groups(asking())}
    group = BatchGroup(spark, Lake(tmp_path), asking(), by_name["orders"], wait=True)
    assert (group.ready, group.awaited, group.waits_in_vain) == (False, ("prices",), False)
    first, *_ = groups = [
        BatchGroup(spark, Lake(tmp_path / "circle"), asking_windows(), spouts, wait=True)
        for spouts in spout_groups(asking_windows())
    ]
    assert not first.ready
    assert not any(group.waits_in_vain for group in groups)
