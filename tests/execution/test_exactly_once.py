"""Each source row counts exactly once in a state, in whatever order streams, catch-ups and backfills meet it."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import StateBehindError
from pipelines.execution.runners.bounded import SourceGoneError
from pipelines.quality import drop, fail, warn
from pipelines.sources import FixedBatches, JsonFiles
from pipelines.trident import Count, DeltaState, Sum, TridentTopology

pytestmark = pytest.mark.slow

SCHEMA = "day string, key string, n bigint"
Row = tuple[str, str, int]


class Shop:
    """A folder of JSON files, a sliced flow over it, and what its states must hold."""

    def __init__(self, spark: SparkSession, root: Path, files_per_batch: int = 1) -> None:
        self.folder = root / "in"
        self.folder.mkdir()
        self.lake = Lake(root / "lake")
        self.runtime = Runtime(spark, self.lake)
        self.topology = TridentTopology("sales")
        rows = self.topology.new_stream(
            "sold", JsonFiles(self.folder, SCHEMA, max_files_per_batch=files_per_batch), slice_by="day"
        ).gate(drop("expect_column_values_to_be_between", column="n", min_value=0), name="sane")
        rows.partition_persist(DeltaState("sales"))
        rows.group_by("key").persistent_aggregate(DeltaState("totals"), [Count("sales"), Sum("n", "sum_n")])
        self.rows: list[Row] = []
        self.files = 0

    def arrive(self, *rows: Row, torn: str = "") -> None:
        """A further file, later than those before."""
        file = self.folder / f"{self.files:04d}.json"
        lines = [json.dumps(dict(zip(("day", "key", "n"), row, strict=True))) for row in rows]
        file.write_text("\n".join([*lines, *([torn] if torn else [])]) + "\n")
        os.utime(file, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        self.files += 1
        self.rows += rows

    def catch_up(self, max_batches: int | None = None) -> list[int]:
        return [batch.txid for batch in self.runtime.catch_up(self.topology, max_batches=max_batches).batches]

    def backfill(self, *days: str) -> None:
        assert not self.runtime.backfill(self.topology, days).failed

    def check(self, rows: Sequence[Row] | None = None) -> None:
        """Both states and quarantine hold exactly these rows (all that arrived)."""
        rows = self.rows if rows is None else rows
        good = [row for row in rows if row[2] >= 0]
        held = [(r["day"], r["key"], r["n"]) for r in self.lake.state("sales").scan().to_pylist()]
        assert Counter(held) == Counter(good)
        totals = {r["key"]: (r["sales"], r["sum_n"]) for r in self.lake.state("totals").scan().to_pylist()}
        keys = {key for _, key, _ in good}
        expected = {k: (sum(1 for r in good if r[1] == k), sum(r[2] for r in good if r[1] == k)) for k in keys}
        assert {key: value for key, value in totals.items() if value != (0, 0)} == expected
        bad = Counter(json.dumps({"day": d, "key": k, "n": n}) for d, k, n in rows if n < 0)
        assert Counter(_compact(row) for row in self.refused("sane")) == Counter(
            _compact(row) for row in bad.elements()
        )

    def refused(self, stage: str) -> list[str]:
        if not self.lake.quarantine_path("sales").exists():
            return []
        found = self.lake.quarantine("sales").scan().to_pylist()
        return [row["row"] for row in found if row["stage"] == stage]


def _compact(text: str) -> str:
    return json.dumps(json.loads(text))


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def test_a_day_backfilled_before_the_stream_reaches_it(shop: Shop) -> None:
    shop.arrive(("d1", "a", 1), ("d2", "a", 10))
    shop.arrive(("d1", "b", 2), ("d1", "b", -1))
    shop.backfill("d1")
    shop.check([row for row in shop.rows if row[0] == "d1"])
    assert shop.catch_up() == [0, 1]
    shop.check()


@pytest.mark.exhaustive
def test_a_day_that_the_stream_has_counted_and_half_counted(shop: Shop) -> None:
    shop.arrive(("d1", "a", 1), ("d2", "a", 10))
    shop.arrive(("d1", "b", 2), ("d2", "c", -5))
    assert shop.catch_up(max_batches=1) == [0]
    shop.backfill("d1")
    shop.check([*shop.rows[:2], shop.rows[2]])
    shop.backfill("d1", "d2")
    shop.check()
    assert shop.catch_up() == [1]
    shop.check()
    shop.backfill("d2", "d1")
    shop.backfill("d2")
    shop.check()
    shop.arrive(("d1", "z", 7))
    assert shop.catch_up() == [2]
    shop.check()


def test_malformed_records_are_quarantined_once(shop: Shop) -> None:
    shop.arrive(("d1", "a", 1), torn='{"day": "d1", "k')
    shop.backfill("d1")
    assert shop.refused("source") == ['{"day": "d1", "k']
    shop.catch_up()
    shop.arrive(("d2", "a", 1), torn="{")
    shop.catch_up()
    shop.backfill("d1", "d2")
    assert sorted(shop.refused("source")) == ["{", '{"day": "d1", "k']
    shop.check()


def test_rows_without_a_slice_are_quarantined(shop: Shop) -> None:
    shop.arrive(("d1", "a", 1))
    (shop.folder / "0000.json").write_text('{"day": "d1", "key": "a", "n": 1}\n{"key": "x", "n": 2}\n')
    report = shop.runtime.catch_up(shop.topology)
    assert (report.received, report.quarantined) == (2, 1)
    assert [_compact(row) for row in shop.refused("source")] == ['{"day": null, "key": "x", "n": 2}']
    shop.check()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_any_order(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Files, batches and backfills at random; at the end every row counts once."""
    shop, choose = Shop(spark, tmp_path, files_per_batch=2), random.Random(seed)
    for _ in range(6):
        for _ in range(choose.randint(1, 3)):
            rows = [(choose.choice(("d1", "d2", "d3")), choose.choice("abc"), choose.randint(-1, 9)) for _ in range(4)]
            shop.arrive(*rows)
        steps: list[Callable[[], object]] = [
            lambda: shop.catch_up(max_batches=1),
            lambda: shop.backfill(*choose.sample(("d1", "d2", "d3"), 2)),
        ]
        choose.shuffle(steps)
        for step in steps:
            step()
    shop.catch_up()
    shop.check()


def resliced(shop: Shop, slice_by: str, most: int = 99) -> TridentTopology:
    topology = TridentTopology("sales")
    rows = topology.new_stream("sold", JsonFiles(shop.folder, SCHEMA, max_files_per_batch=1), slice_by=slice_by)
    rows = rows.gate(fail("column_values_to_be_between", column="n", max_value=most), name="high")
    rows.partition_persist(DeltaState("sales"))
    return topology


@pytest.mark.exhaustive
def test_rows_without_a_slice_that_have_one_by_now_outlive_a_backfill_of_another(shop: Shop) -> None:
    """They go with a backfill of their own slice, and are to be replayed until then."""
    for rows in ([("d1", "a", 1), (None, "x", 5), (None, "x", 5)], [("d2", "b", 2), (None, "y", 6)]):
        shop.arrive(*rows)  # type: ignore[arg-type]
    assert len(shop.runtime.catch_up(resliced(shop, "day"), max_batches=1).batches) == 1
    changed = resliced(shop, "coalesce(day, if(key = 'y', null, 'none'))")

    def held() -> tuple[list[str], list[tuple[str, int]]]:
        stored = shop.lake.quarantine("sales").stored("true").to_pylist()
        keys = sorted(row["key"] for row in shop.lake.state("sales").scan().to_pylist())
        return keys, sorted((json.loads(row["row"])["key"], row["_txid"]) for row in stored)

    assert held() == (["a"], [("x", 0), ("x", 0)])
    for _ in range(2):
        assert not shop.runtime.backfill(changed, ["d1"]).failed
        assert held() == (["a"], [("x", 0), ("x", 0), ("y", -1)])
    shop.runtime.catch_up(changed)
    assert held() == (["a", "b"], [("x", 0), ("x", 0), ("y", -1)])
    assert not shop.runtime.backfill(changed, ["d1"]).failed
    assert held() == (["a", "b"], [("x", 0), ("x", 0), ("y", -1)])
    assert shop.runtime.replay_quarantine(changed).landed == 2
    assert held() == (["a", "b", "x", "x"], [("y", -1)])
    assert not shop.runtime.backfill(changed, ["none"]).failed
    assert held() == (["a", "b", "x", "x"], [("y", -1)])


def test_a_row_without_a_slice_outlives_a_backfill_of_its_own_that_a_gate_refuses(shop: Shop) -> None:
    """What is refused stays as it was: the row was in no state and no longer in quarantine."""
    shop.arrive(("d1", "a", 1), (None, "x", 50))  # type: ignore[arg-type]
    shop.runtime.catch_up(resliced(shop, "day"))
    refused = shop.runtime.backfill(resliced(shop, "coalesce(day, 'none')", most=10), ["none"])
    assert [report.slice for report in refused.failed] == ["none"]
    stored = shop.lake.quarantine("sales").stored("true").to_pylist()
    assert [json.loads(row["row"])["key"] for row in stored] == ["x"]
    assert shop.runtime.replay_quarantine(resliced(shop, "coalesce(day, 'none')")).landed == 1
    assert sorted(row["key"] for row in shop.lake.state("sales").scan().to_pylist()) == ["a", "x"]


@pytest.mark.parametrize(
    "backfills",
    [
        pytest.param([["d2"]], id="another slice"),
        pytest.param([["d2", "d3"], ["d2"]], id="twice", marks=pytest.mark.exhaustive),
    ],
)
def test_a_row_without_a_slice_outlives_a_backfill_where_a_state_has_claimed_its_file(
    shop: Shop, backfills: list[list[str]]
) -> None:
    """The stream leaves out what a state has claimed, and the row was not in that: it was in no state and in no quarantine."""
    shop.arrive(("d1", "a", 1), (None, "x", 5))  # type: ignore[arg-type]
    shop.arrive(("d2", "b", 2))
    assert not shop.runtime.backfill(resliced(shop, "day"), ["d1"]).failed
    changed = resliced(shop, "coalesce(day, 'd1')")
    for days in backfills:
        assert not shop.runtime.backfill(changed, days).failed
    shop.runtime.catch_up(changed)
    assert _held(shop) == (["a", "b"], ["x"])
    assert shop.runtime.replay_quarantine(changed).landed == 0
    assert not shop.runtime.backfill(changed, ["d1"]).failed
    assert _held(shop) == (["a", "b", "x"], [])


@pytest.mark.parametrize(
    ("claimed", "kept"),
    [pytest.param(["d1"], ["x"], id="claimed"), pytest.param(["d2"], [], id="free", marks=pytest.mark.exhaustive)],
)
def test_a_row_without_a_slice_outlives_a_backfill_that_is_cut_off_before_its_slice(
    shop: Shop, claimed: list[str], kept: list[str]
) -> None:
    """It left quarantine with the first slice of the pass. What no state has claimed the stream will count by itself."""

    def cancelled(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committing", "sales"):
            raise KeyboardInterrupt

    shop.arrive(("d1", "a", 1), (None, "x", 5))  # type: ignore[arg-type]
    shop.arrive(("d2", "b", 2))
    assert not shop.runtime.backfill(resliced(shop, "day"), claimed).failed
    changed = resliced(shop, "coalesce(day, 'd1')")
    with pytest.raises(KeyboardInterrupt):
        Runtime(shop.runtime.spark, shop.lake, listeners=[cancelled]).backfill(changed, ["d2", "d1"])
    assert _held(shop)[1] == kept
    shop.runtime.catch_up(changed)
    rows, quarantined = _held(shop)
    assert sorted([*rows, *quarantined]) == ["a", "b", "x"]
    assert not shop.runtime.backfill(changed, ["d2", "d1"]).failed
    assert _held(shop) == (["a", "b", "x"], [])


def _held(shop: Shop) -> tuple[list[str], list[str]]:
    """Return the keys in the state and those in quarantine."""
    stored = shop.lake.quarantine("sales").stored("true").to_pylist()
    keys = sorted(row["key"] for row in shop.lake.state("sales").scan().to_pylist())
    return keys, sorted(json.loads(row["row"])["key"] for row in stored)


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param([("d1", "a", 9), ("d2", "b", 9)], id="by a gate"),
        pytest.param([(None, "a", 9), (None, "b", 9)], id="for want of a slice", marks=pytest.mark.exhaustive),
    ],
)
def test_a_backfill_that_is_cut_off_leaves_the_refused_rows_of_slices_that_it_has_not_begun(
    shop: Shop, refused: list[Row]
) -> None:
    """They had left quarantine for all slices of the pass before the first one, and were in no state."""

    def flow(most: int, slice_by: str) -> TridentTopology:
        topology = TridentTopology("sales")
        rows = topology.new_stream("sold", JsonFiles(shop.folder, SCHEMA), slice_by=slice_by)
        rows = rows.gate(drop("column_values_to_be_between", column="n", max_value=most), name="high")
        rows.partition_persist(DeltaState("sales"), ["key"])
        return topology

    def held() -> tuple[list[str], list[str]]:
        rows = (json.loads(row["row"]) for row in shop.lake.quarantine("sales").stored("true").to_pylist())
        return sorted(row["key"] for row in shop.lake.state("sales").scan().to_pylist()), sorted(
            row["key"] for row in rows
        )

    def cancelled(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committing", "sales"):
            raise KeyboardInterrupt

    shop.arrive(*refused)
    shop.runtime.catch_up(flow(3, "day"))
    assert held() == ([], ["a", "b"])
    mended = flow(10, "coalesce(day, if(key = 'a', 'd1', 'd2'))")
    with pytest.raises(KeyboardInterrupt):
        Runtime(shop.runtime.spark, shop.lake, listeners=[cancelled]).backfill(mended, ["d1", "d2"])
    assert held() == ([], ["b"])
    assert shop.runtime.replay_quarantine(mended).landed == 1
    assert held() == (["b"], [])
    assert not shop.runtime.backfill(mended, ["d1", "d2"]).failed
    assert held() == (["a", "b"], [])


def test_a_slice_that_no_row_reaches_is_judged_as_an_empty_batch(shop: Shop) -> None:
    """Its rows were gone, and Dagster showed the row count as passed. A gate ahead of the one that refuses has seen it, too."""
    shop.arrive(("d1", "a", 1), ("d2", "a", 2), ("d3", "a", 3))
    topology = TridentTopology("sales")
    rows = topology.new_stream("sold", JsonFiles(shop.folder, SCHEMA, max_files_per_batch=1), slice_by="day")
    rows.partition_persist(DeltaState("all"))
    rows = rows.gate(warn("column_max_to_be_between", column="n", max_value=9), name="first")
    rows = rows.gate(fail("table_row_count_to_be_between", min_value=1), name="there")
    rows.gate(fail("column_max_to_be_between", column="n", max_value=9), name="behind").partition_persist(
        DeltaState("sales")
    )
    assert not shop.runtime.backfill(topology, ["d1", "d2", "d3"]).failed
    (shop.folder / "0000.json").write_text('{"day": "d2", "key": "b", "n": 20}\n{"day": "d4", "key": "a", "n": 4}\n')
    report = shop.runtime.backfill(topology, ["d1", "d2", "d3", "d4"])
    errors = {one.slice: one.error for one in report.failed}
    no_row = 'gate "there": table_row_count_to_be_between: observed 0'
    assert errors == {"d1": no_row, "d2": 'gate "behind": max_to_be_between(n): observed 20', "d3": no_row}
    # What stands behind the gate that refuses sees no rows of the slice, and says nothing of it.
    judged = {one.slice: [(gate["gate"], gate["success"]) for gate in one.gates] for one in report.slices}
    assert judged["d1"] == judged["d3"] == [("first", False), ("there", False)]
    assert judged["d4"] == [("first", True), ("there", True), ("behind", True)]
    assert {row["day"] for row in shop.lake.state("all").scan().to_pylist()} == {"d2", "d4"}
    assert sorted((row["day"], row["n"]) for row in shop.lake.state("sales").scan().to_pylist()) == [
        ("d1", 1), ("d2", 2), ("d3", 3), ("d4", 4),
    ]  # fmt: skip


def test_a_crash_between_two_states_then_a_backfill(spark: SparkSession, shop: Shop) -> None:
    """One state has the batch, the other has not; the backfill comes first, then the replay of the batch."""
    shop.arrive(("d1", "a", 1), ("d2", "a", 10))
    shop.arrive(("d1", "b", 2), ("d1", "b", -1), ("d2", "q", -1))

    class StopError(BaseException):
        pass

    def stop(moment: str, state: str, txid: int) -> None:
        if (moment, state, txid) == ("committing", "totals", 1):
            raise StopError

    with pytest.raises(StopError):
        Runtime(spark, shop.lake, listeners=[stop]).catch_up(shop.topology)
    assert shop.lake.state("sales").last_txid() == 1
    assert shop.lake.state("totals").last_txid() == 0
    shop.backfill("d1")
    shop.catch_up()
    shop.check()
    assert [c.txid for c in shop.lake.state("totals").commits.batches()] == [0, 1]


def test_beside_a_running_stream(shop: Shop) -> None:
    shop.arrive(("d1", "a", 1))
    flow = shop.runtime.stream(shop.topology, trigger_seconds=0.1)
    try:
        for number in range(6):
            shop.arrive((f"d{number % 2 + 1}", "abc"[number % 3], number), ("d1", "a", -1))
            shop.backfill("d1", "d2")
    finally:
        flow.stop()
    shop.catch_up()
    shop.check()


def test_a_backfill_does_not_lose_rows_whose_files_are_gone(shop: Shop) -> None:
    shop.arrive(("d1", "a", 1))
    shop.arrive(("d1", "a", 2))
    shop.catch_up()
    (shop.folder / "0000.json").unlink()
    with pytest.raises(SourceGoneError) as caught:
        shop.backfill("d1")
    assert [Path(file).name for file in caught.value.files] == ["0000.json"]
    shop.check()


def test_a_state_that_is_new_in_a_flow_that_has_run(shop: Shop) -> None:
    shop.arrive(("d1", "a", 1))
    shop.catch_up()
    topology = TridentTopology("sales")
    sold = topology.new_stream("sold", JsonFiles(shop.folder, SCHEMA, max_files_per_batch=1), slice_by="day")
    sold.group_by("key").persistent_aggregate(DeltaState("totals"), [Count("sales"), Sum("n", "sum_n")])
    sold.group_by("day").persistent_aggregate(DeltaState("days"), Count(), "sales")
    with pytest.raises(StateBehindError) as caught:
        shop.runtime.catch_up(topology)
    assert (caught.value.state, caught.value.batches) == ("days", 1)
    shop.runtime.backfill(topology, ["d1"])
    shop.arrive(("d1", "a", 2))
    shop.runtime.catch_up(topology)
    assert shop.lake.state("days").get([{"day": "d1"}]) == [{"day": "d1", "sales": 2}]


def test_reads_as_of_a_txid(shop: Shop) -> None:
    for number in range(3):
        shop.arrive(("d1", "a", number + 1))
    shop.catch_up()
    state = shop.lake.state("totals")
    assert [state.get([{"key": "a"}], txid=t)[0]["sum_n"] for t in (0, 1, 2)] == [1, 3, 6]
    kinds = [(c.kind, c.txid, c.rows) for c in state.history() if c.kind == "batch"]
    assert kinds == [("batch", 0, 1), ("batch", 1, 1), ("batch", 2, 1)]


def test_a_plan_that_needs_no_row_of_its_source_is_accounted_for(spark: SparkSession, tmp_path: Path) -> None:
    """Spark leaves the source out of such a plan, and with it what counts its rows."""
    topology = TridentTopology("nothing")
    stream = topology.new_stream("s", FixedBatches("k string, v bigint", [[("a", 1), ("b", 2)], []]))
    stream.filter("1 = 0").group_by("k").persistent_aggregate(DeltaState("none"), Count(), "n")
    gated = stream.filter("v > 0").gate(warn("column_values_to_not_be_null", column="k"), name="kept")
    gated.filter("1 = 0").partition_persist(DeltaState("none_of_gate"))
    lake = Lake(tmp_path)
    report = Runtime(spark, lake).catch_up(topology)
    assert [batch.received for batch in report.batches] == [2, 0]
    assert lake.state("none").scan().num_rows == lake.state("none_of_gate").scan().num_rows == 0
