"""Quarantined rows, replayed: each lands once, in whatever order streams, backfills, crashes and replays come."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.errors import GateError, PoisonBatchError, TrideltaError, UnknownStateError
from pipelines.execution.batch.poison import PoisonRows
from pipelines.execution.checkpoint.belonging import CheckpointBehindError, TableBehindError, adopt
from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.checkpoint.replay_records import Records
from pipelines.execution.replays import selection
from pipelines.execution.replays.counted import HALF_MADE
from pipelines.execution.replays.report import LotReport
from pipelines.execution.replays.runner import UNDECIDED, Replayer, look
from pipelines.execution.replays.selection import ReplayError, Selection
from pipelines.execution.replays.work import REJECTED_SINCE
from pipelines.execution.verify import verify
from pipelines.maintenance import compact
from pipelines.places.location import on_disk
from pipelines.quality import drop, fail
from pipelines.sources import JsonFiles
from pipelines.state.turns import LateWriterError
from pipelines.state.writer import StateWriter
from pipelines.trident import CombinerAggregator, Count, DeltaState, MapGet, Sum, TridentTopology

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCHEMA = "k string, n bigint, at timestamp, day string"


class Shop:
    """A flow over a folder: a state before its gate, and behind it rows and sums by key."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.folder, self.lake = root / "in", Lake(root / "lake")
        self.folder.mkdir()
        self.runtime, self.spark = Runtime(spark, self.lake), spark
        self.files = 0

    def put(self, *rows: tuple[str, Any, str | None], raw: Sequence[str] = ()) -> None:
        """A further file."""
        lines = [json.dumps({"k": k, "n": n, "at": "2026-01-01T00:00:00.123456Z", "day": day}) for k, n, day in rows]
        file = self.folder / f"{self.files}.json"
        file.write_text("".join(f"{line}\n" for line in (*lines, *raw)))
        os.utime(file, (1_000_000 + self.files, 1_000_000 + self.files))
        self.files += 1

    def flow(
        self, most: int, *, least: int = 0, slice_by: str | None = "day", schema: str = SCHEMA, added: bool = False
    ) -> TridentTopology:
        """The flow whose gates let pass what is between `least` and `most`; `added`: it has a state more."""
        topology = TridentTopology("shop")
        source = JsonFiles(self.folder, schema, max_files_per_batch=1)
        stream = topology.new_stream("sales", source, slice_by=slice_by)
        stream.partition_persist(DeltaState("before"))
        stream = stream.gate(drop("column_values_to_be_between", column="n", max_value=most, name="most"), name="high")
        stream = stream.each("n", lambda n: n * 2, "twice")
        stream = stream.gate(drop("column_values_to_be_between", column="twice", min_value=2 * least), name="low")
        stream.partition_persist(DeltaState("rows"), ["k", "n", "at"])
        stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("many"), Sum("n", "total")])
        if added:
            stream.partition_persist(DeltaState("added"), ["k", "n"])
        return topology

    def replay(self, topology: TridentTopology, **selection: Any) -> list[LotReport]:
        return list(self.runtime.replay_quarantine(topology, Selection(**selection)).lots)

    @property
    def rows(self) -> Counter[tuple[str, int]]:
        """What stands behind the gates; both states must agree."""
        found = Counter((row["k"], row["n"]) for row in self.lake.state("rows").scan().to_pylist())
        sums = {row["k"]: (row["many"], row["total"]) for row in self.lake.state("by_k").scan().to_pylist()}
        for k in {k for k, _ in found} | set(sums):
            own = [n for n in found.elements() if n[0] == k]
            assert sums.get(k, (0, 0)) == (len(own), sum(n for _, n in own))
        return found

    @property
    def refused(self) -> list[tuple[str, str, Any]]:
        """Stage, rule and n (or the text) of what is in quarantine."""
        found = []
        for row in self.lake.quarantine("shop").scan().to_pylist():
            text = row["row"]
            found.append((row["stage"], row["rule"], text if row["rule"] == "malformed" else json.loads(text)["n"]))
        return sorted(found, key=str)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def test_rows_that_pass_now_land_once_and_others_stay_with_their_reason(shop: Shop) -> None:
    shop.put(("a", 1, "d1"), ("a", 7, "d1"), ("b", 8, "d2"))
    shop.put(("a", 2, "d2"), ("a", 7, "d1"), ("b", 9, "d2"))
    shop.runtime.catch_up(shop.flow(3))
    assert shop.rows == Counter({("a", 1): 1, ("a", 2): 1})
    seen = look(shop.lake, shop.flow(8), Selection())
    assert [(one.stage, one.rows, one.left) for one in seen.lots] == [("high", {"most": 4}, {})]
    (lot,) = shop.replay(shop.flow(8, least=8))
    low = "values_to_be_between(twice)"
    assert (lot.number, lot.landed, lot.refused, lot.left) == (1, 1, {"most": 1, low: 2}, {})
    assert shop.rows == Counter({("a", 1): 1, ("a", 2): 1, ("b", 8): 1})
    assert shop.refused == [("high", "most", 9), ("low", low, 7), ("low", low, 7)]
    # Again: the same row is refused the same way; the lots of two gates, each at its own place.
    assert [one.landed for one in shop.replay(shop.flow(8, least=8))] == [0, 0]
    assert [one.landed for one in shop.replay(shop.flow(9))] == [1, 2]
    assert shop.rows == Counter({("a", 1): 1, ("a", 2): 1, ("a", 7): 2, ("b", 8): 1, ("b", 9): 1})
    assert (shop.refused, shop.replay(shop.flow(9))) == ([], [])
    # To the microsecond, as they came; and what stands before the gate had them all along.
    assert {row["at"].microsecond for row in shop.lake.state("rows").scan().to_pylist()} == {123456}
    assert shop.lake.state("before").count() == 6
    # The tables hold what was committed, and a compaction, a further batch and a backfill count each row once.
    assert not verify(shop.spark, shop.lake, shop.flow(9)).differing
    before = shop.rows
    compact(shop.spark, shop.lake, "shop")
    assert shop.rows == before
    shop.put(("a", 3, "d1"))
    shop.runtime.catch_up(shop.flow(9))
    shop.runtime.backfill(shop.flow(9), ["d1", "d2"])
    assert shop.rows == before + Counter({("a", 3): 1})
    assert [one.rows for one in Records(shop.lake.quarantine_path("shop")).all()] == [4, 1, 2, 1, 2]


@pytest.mark.exhaustive
def test_a_selection_by_batch_gate_and_reason(shop: Shop) -> None:
    shop.put(("a", 7, "d1"))
    shop.put(("a", 8, "d1"), raw=["{"])
    shop.runtime.catch_up(shop.flow(3))
    assert shop.replay(shop.flow(9), gates=("low",)) == []
    assert shop.replay(shop.flow(9), reasons=("mos",)) == []
    assert shop.replay(shop.flow(9), first=2) == []
    with pytest.raises(ReplayError, match='did you mean "high"'):
        shop.replay(shop.flow(9), gates=("hihg",))
    with pytest.raises(ReplayError, match="name one of: sales"):
        look(shop.lake, shop.flow(9), Selection(spouts=("returns",)))
    (lot,) = shop.replay(shop.flow(9), first=1, gates=("high",), reasons=("most",))
    assert (lot.landed, shop.rows) == (1, Counter({("a", 8): 1}))
    (lot,) = shop.replay(shop.flow(9), spouts=("sales",))
    assert (lot.stage, lot.refused) == ("source", {"malformed": 1})
    assert shop.refused == [("high", "most", 7), ("source", "malformed", "{")]


class _Killed(BaseException):
    """As good as SIGKILL: nothing behind it runs but the release of locks."""


MOMENTS = [
    (moment, table) for table in ("rows", "by_k", "quarantine") for moment in ("committing", "committed")
]  # fmt: skip


def test_more_rows_of_one_batch_than_go_at_once_are_several_replays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "ROWS_AT_ONCE", 2)
    shop.put(*((k, n, "d1") for k, n in (("a", 7), ("a", 7), ("a", 7), ("b", 8), ("b", 99))))
    shop.runtime.catch_up(shop.flow(3))

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state, txid) == ("committed", "rows", 2):
            raise _Killed

    with pytest.raises(_Killed):
        Runtime(shop.spark, shop.lake, listeners=[kill]).replay_quarantine(shop.flow(9))
    report = shop.runtime.replay_quarantine(shop.flow(9))
    assert report.resumed == (2,)
    assert [(lot.number, lot.landed, lot.refused) for lot in report.lots] == [(2, 2, {}), (3, 0, {"most": 1})]
    assert shop.rows == Counter({("a", 7): 3, ("b", 8): 1})
    assert shop.refused == [("high", "most", 99)]
    assert [one.rows for one in Records(shop.lake.quarantine_path("shop")).all()] == [2, 2, 1]
    assert not verify(shop.spark, shop.lake, shop.flow(9)).differing


def test_others_have_the_flow_between_two_parts(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch, and another process's replay of a row of a later part: each row lands once all the same."""
    monkeypatch.setattr(selection, "ROWS_AT_ONCE", 1)
    shop.put(*((k, n, "d1") for k, n in (("a", 7), ("a", 7), ("b", 8), ("b", 99))))
    shop.runtime.catch_up(shop.flow(3))
    alone, holds = Replayer._alone, 0

    @contextmanager
    def then_others(replayer: Replayer) -> Iterator[None]:
        nonlocal holds
        with alone(replayer):
            yield
        holds += 1
        (folder,) = shop.lake.checkpoint_path("shop", "x").parent.glob("*")
        with Checkpoint("shop", folder).committing(0):
            pass
        if holds == 1:
            shop.put(("c", 1, "d1"), ("c", 77, "d1"))
            shop.runtime.catch_up(shop.flow(3))
            with monkeypatch.context() as patch:
                patch.setattr(Replayer, "_alone", alone)
                patch.setattr(selection, "ROWS_AT_ONCE", 9)
                shop.replay(shop.flow(8), first=0, last=0)

    monkeypatch.setattr(Replayer, "_alone", then_others)
    found = shop.replay(shop.flow(99))
    assert holds == 4
    assert [(lot.number, lot.landed) for lot in found] == [(1, 1), (3, 1)]
    assert shop.rows == Counter({("a", 7): 2, ("b", 8): 1, ("b", 99): 1, ("c", 1): 1})
    assert shop.refused == [("high", "most", 77)]
    assert not verify(shop.spark, shop.lake, shop.flow(99)).differing


@pytest.mark.exhaustive
def test_a_replay_killed_at_any_point_is_finished_by_the_next(shop: Shop) -> None:
    whole = Counter[tuple[str, int]]()
    for number, point in enumerate(MOMENTS):
        shop.put(("a", 100 + number, "d1"), ("b", 200 + number, "d2"))
        shop.runtime.catch_up(shop.flow(3))

        def kill(moment: str, state: str, txid: int, point: tuple[str, str] = point) -> None:
            if (moment, state) == point:
                raise _Killed

        with pytest.raises(_Killed):
            Runtime(shop.spark, shop.lake, listeners=[kill]).replay_quarantine(shop.flow(150))
        whole[("a", 100 + number)] += 1
        report = shop.runtime.replay_quarantine(shop.flow(150), Selection(reasons=("nothing",)))
        assert report.resumed == (number + 1,)
        assert shop.rows == whole, point
        assert shop.refused == sorted((("high", "most", 200 + n) for n in range(number + 1)), key=str)
    assert not verify(shop.spark, shop.lake, shop.flow(150)).differing


@pytest.mark.exhaustive
def test_a_backfill_between_a_kill_and_its_end_counts_once(shop: Shop) -> None:
    shop.put(("a", 7, "d1"), ("b", 8, "d2"))
    shop.runtime.catch_up(shop.flow(3))

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "rows"):
            raise _Killed

    with pytest.raises(_Killed):
        Runtime(shop.spark, shop.lake, listeners=[kill]).replay_quarantine(shop.flow(9))
    shop.runtime.backfill(shop.flow(9), ["d1"])
    shop.runtime.replay_quarantine(shop.flow(9))
    assert shop.rows == Counter({("a", 7): 1, ("b", 8): 1})
    assert shop.refused == []


def cut_off(shop: Shop, topology: TridentTopology, *point: str) -> None:
    """A replay that is killed at a point."""

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == point:
            raise _Killed

    with pytest.raises(_Killed):
        Runtime(shop.spark, shop.lake, listeners=[kill]).replay_quarantine(topology)


def go_on(shop: Shop, topology: TridentTopology) -> None:
    """Batches and compactions that keep nothing longer than they must."""
    for _ in range(3):
        shop.put(("c", 1, "d3"))
        shop.runtime.catch_up(topology)
        compact(shop.spark, Lake(shop.lake.root), "shop", retention_hours=0)


KEPT_OR_NOT = pytest.mark.parametrize(
    "kept", [pytest.param(True, id="log kept"), pytest.param(False, id="log cleaned", marks=pytest.mark.exhaustive)]
)
"""Compactions of earlier releases cleaned the log past a replay that was cut off; so does a RESTORE, in a way."""


def without_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Records, "needed", lambda records: {}, raising=False)


@pytest.mark.exhaustive
@KEPT_OR_NOT
def test_a_replay_killed_before_its_first_commit_outlives_compactions(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    shop.put(("a", 7, "d1"), ("b", 8, "d2"))
    shop.runtime.catch_up(shop.flow(3))
    cut_off(shop, shop.flow(9), "committing", "rows")
    if not kept:
        without_log(monkeypatch)
    go_on(shop, shop.flow(3))
    report = Runtime(shop.spark, Lake(shop.lake.root)).replay_quarantine(shop.flow(9))
    assert [(lot.number, lot.landed) for lot in report.lots] == ([(1, 2)] if kept else [(1, 0), (2, 2)])
    assert shop.rows == Counter({("a", 7): 1, ("b", 8): 1, ("c", 1): 3})
    assert shop.refused == []


@pytest.mark.exhaustive
@KEPT_OR_NOT
def test_a_replay_killed_behind_its_states_outlives_compactions(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    shop.put(("a", 7, "d1"), ("b", 8, "d2"))
    shop.runtime.catch_up(shop.flow(3))
    cut_off(shop, shop.flow(7), "committed", "by_k")
    if not kept:
        without_log(monkeypatch)
    go_on(shop, shop.flow(3))
    runtime = Runtime(shop.spark, Lake(shop.lake.root))
    landed = Counter({("a", 7): 1, ("c", 1): 3})
    if kept:
        (first, _) = runtime.replay_quarantine(shop.flow(7)).lots
        assert (first.landed, first.refused) == (1, {"most": 1})
        assert (shop.rows, shop.refused) == (landed, [("high", "most", 8)])
        return
    for _ in range(2):
        *_, lot = runtime.replay_quarantine(shop.flow(9)).lots
        assert dict(lot.left) == {UNDECIDED: 2}
        assert (shop.rows, len(shop.refused)) == (landed, 2)
    # A backfill decides it, and what it refuses anew may be replayed.
    runtime.backfill(shop.flow(7), ["d1", "d2"])
    assert (shop.rows, shop.refused) == (landed, [("high", "most", 8)])
    assert [lot.landed for lot in runtime.replay_quarantine(shop.flow(9)).lots] == [1]
    assert shop.rows == landed + Counter({("b", 8): 1})


class OwnSum(CombinerAggregator):
    """In Python, so its state is a map."""

    def init(self, n: int) -> int:
        return n

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


@pytest.mark.exhaustive
@KEPT_OR_NOT
def test_a_replay_killed_behind_a_map_outlives_compactions(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """What the map held before is asked for again, to know what is refused behind it."""

    def flow(most: int) -> TridentTopology:
        topology = TridentTopology("shop")
        stream = topology.new_stream("sales", JsonFiles(shop.folder, SCHEMA, max_files_per_batch=1))
        stream = stream.gate(drop("column_values_to_be_between", column="n", max_value=most, name="most"), name="high")
        stream.group_by("k").persistent_aggregate(DeltaState("totals"), "n", OwnSum(returns="bigint"), "total")
        stream.partition_persist(DeltaState("rows"), ["k", "n"])
        return topology

    shop.put(("a", 7, None), ("b", 8, None), ("a", 1, None))
    shop.runtime.catch_up(flow(3))
    cut_off(shop, flow(9), "committed", "totals")
    if not kept:
        # The commits are known, what lies before them is not.
        without_log(monkeypatch)
        monkeypatch.setattr("pipelines.maintenance.retention.clean_log", lambda *_: 0)
    go_on(shop, flow(3))
    runtime = Runtime(shop.spark, Lake(shop.lake.root))
    lot = runtime.replay_quarantine(flow(9)).lots[0]
    assert dict(lot.left) == ({} if kept else {UNDECIDED: 2})
    assert {row["k"]: row["total"] for row in shop.lake.state("totals").scan().to_pylist()} == {"a": 8, "b": 8, "c": 3}
    assert shop.lake.state("rows").count() == (6 if kept else 4)
    assert len(shop.refused) == (0 if kept else 2)
    # Others go on.
    shop.put(("d", 5, None))
    runtime.catch_up(flow(3))
    assert [lot.landed for lot in runtime.replay_quarantine(flow(9), Selection(first=4)).lots] == [1]


@pytest.mark.parametrize("table", ["rows", pytest.param("quarantine", marks=pytest.mark.exhaustive)])
def test_a_replay_that_stood_still_while_another_host_backfilled_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    shop.put(("a", 7, "d1"), ("b", 8, "d2"))
    shop.runtime.catch_up(shop.flow(3))
    waiting = [table]

    def stand_still(moment: str, state: str, txid: int) -> None:
        if moment == "committing" and [state] == waiting:
            waiting.clear()
            with monkeypatch.context() as lost:  # its leases
                for lock in ("rewriting", "committing"):
                    lost.setattr(Checkpoint, lock, lambda *_: nullcontext())
                Runtime(shop.spark, Lake(shop.lake.root)).backfill(shop.flow(9), ["d1"])

    with pytest.raises(LateWriterError):
        Runtime(shop.spark, shop.lake, listeners=[stand_still]).replay_quarantine(shop.flow(9))
    assert shop.rows[("a", 7)] == 1
    shop.runtime.replay_quarantine(shop.flow(9))
    assert (shop.rows, shop.refused) == (Counter({("a", 7): 1, ("b", 8): 1}), [])


@pytest.mark.exhaustive
def test_a_row_that_a_backfill_refuses_anew_before_its_replay_is_finished_stays(shop: Shop) -> None:
    shop.put(("a", 7, "d1"), ("b", 8, "d2"))
    shop.runtime.backfill(shop.flow(3), ["d1", "d2"])
    cut_off(shop, shop.flow(9), "committed", "rows")
    shop.runtime.backfill(shop.flow(3), ["d1"])
    (finished,) = shop.replay(shop.flow(9), reasons=("nothing",))
    assert (finished.landed, finished.counted, dict(finished.left)) == (1, 0, {REJECTED_SINCE: 1})
    assert (shop.rows, shop.refused) == (Counter({("b", 8): 1}), [("high", "most", 7)])
    assert [lot.landed for lot in shop.replay(shop.flow(9))] == [1]
    assert (shop.rows, shop.refused) == (Counter({("a", 7): 1, ("b", 8): 1}), [])


def test_a_state_that_is_added_before_a_replay_is_finished_gets_its_rows(shop: Shop) -> None:
    shop.put(("a", 7, "d1"), ("b", 8, "d2"))
    shop.runtime.catch_up(shop.flow(3))
    cut_off(shop, shop.flow(9), "committed", "rows")
    (finished,) = Runtime(shop.spark, Lake(shop.lake.root)).replay_quarantine(shop.flow(9, added=True)).lots
    assert (finished.landed, dict(finished.left)) == (2, {})
    assert (shop.rows, shop.refused) == (Counter({("a", 7): 1, ("b", 8): 1}), [])
    assert sorted(row["n"] for row in shop.lake.state("added").scan().to_pylist()) == [7, 8]


@pytest.mark.exhaustive
def test_rows_that_a_backfill_refused(shop: Shop) -> None:
    shop.put(("a", 7, "d1"), ("b", 8, "d2"))
    shop.runtime.backfill(shop.flow(3), ["d1", "d2"])
    (lot,) = shop.replay(shop.flow(7))
    assert (lot.landed, lot.refused) == (1, {"most": 1})
    compact(shop.spark, shop.lake, "shop")
    assert shop.rows == Counter({("a", 7): 1})
    shop.runtime.catch_up(shop.flow(7))
    assert shop.rows == Counter({("a", 7): 1})
    shop.runtime.backfill(shop.flow(9), ["d2"])
    assert shop.rows == Counter({("a", 7): 1, ("b", 8): 1})


def failing(shop: Shop, most: int, *, fails: int) -> TridentTopology:
    """A flow whose second gate refuses a slice, or a batch, with a row below `fails`."""
    topology = TridentTopology("shop")
    stream = topology.new_stream("sales", JsonFiles(shop.folder, SCHEMA), slice_by="day")
    stream = stream.gate(drop("column_values_to_be_between", column="n", max_value=most, name="most"), name="high")
    stream = stream.gate(fail("column_values_to_be_between", column="n", min_value=fails), name="low")
    stream.partition_persist(DeltaState("rows"), ["k", "n", "at"])
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("many"), Sum("n", "total")])
    return topology


@pytest.mark.exhaustive
def test_a_slice_whose_quarantine_was_replaced_and_its_states_were_not(shop: Shop) -> None:
    """The states still hold a row that the quarantine has too: nothing tells them apart."""
    shop.put(("a", 7, "d1"), ("a", 1, "d1"))
    shop.runtime.catch_up(failing(shop, 9, fails=0))

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "quarantine"):
            raise _Killed

    with pytest.raises(_Killed):
        Runtime(shop.spark, shop.lake, listeners=[kill]).backfill(failing(shop, 3, fails=0), ["d1"])
    assert (shop.refused, shop.rows) == ([("high", "most", 7)], Counter({("a", 7): 1, ("a", 1): 1}))
    (lot,) = shop.replay(failing(shop, 9, fails=0))
    assert (lot.number, list(lot.left)) == (
        None, ['the backfill that rejected it did not replace slice "d1" of state "rows"'],
    )  # fmt: skip
    shop.runtime.backfill(failing(shop, 9, fails=0), ["d1"])
    assert (shop.refused, shop.rows) == ([], Counter({("a", 7): 1, ("a", 1): 1}))


@pytest.mark.exhaustive
def test_a_slice_that_was_replaced_by_a_clock_ahead_counts_once_behind_a_backfill_that_was_cut_off(shop: Shop) -> None:
    """The states seemed to be replaced by the backfill that had committed quarantine alone: their row was landed once more."""
    shop.put(("a", 7, "d1"), ("a", 1, "d1"))
    shop.runtime.backfill(failing(shop, 9, fails=0), ["d1"])
    for name in ("rows", "by_k"):
        later(shop.lake.state_path(name))
    shop.lake = Lake(shop.lake.root)

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "quarantine"):
            raise _Killed

    with pytest.raises(_Killed):
        Runtime(shop.spark, shop.lake, listeners=[kill]).backfill(failing(shop, 3, fails=0), ["d1"])
    assert (shop.refused, shop.rows) == ([("high", "most", 7)], Counter({("a", 7): 1, ("a", 1): 1}))
    shop.runtime = Runtime(shop.spark, shop.lake)
    (lot,) = shop.replay(failing(shop, 9, fails=0))
    assert (lot.landed, sum(lot.left.values())) == (0, 1)
    assert shop.rows == Counter({("a", 7): 1, ("a", 1): 1})
    shop.runtime.backfill(failing(shop, 3, fails=0), ["d1"])
    assert [one.landed for one in shop.replay(failing(shop, 9, fails=0))] == [1]
    assert (shop.refused, shop.rows) == ([], Counter({("a", 7): 1, ("a", 1): 1}))


def in_waves(shop: Shop, most: int, slice_by: str = "day") -> TridentTopology:
    """A flow with a state of a further wave: it asks the first one."""
    topology = TridentTopology("shop")
    source = JsonFiles(shop.folder, SCHEMA, max_files_per_batch=1)
    stream = topology.new_stream("sales", source, slice_by=slice_by)
    stream = stream.gate(drop("column_values_to_be_between", column="n", max_value=most, name="most"), name="high")
    by_k = stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("many"), Sum("n", "total")])
    stream.state_query(by_k, "k", MapGet(), ["many", "total"]).partition_persist(DeltaState("rows"), ["k", "n", "at"])
    return topology


@pytest.mark.parametrize(
    ("refused", "former", "stays"),
    [
        pytest.param(("a", 7, "d1"), (3, "day"), ("high", "most", 7), id="by a gate"),
        pytest.param(
            ("a", 7, None),
            (9, "day"),
            ("source", "no_slice", 7),
            id="for want of a slice",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_row_that_a_backfill_counts_in_its_first_wave_alone_counts_once(
    shop: Shop, refused: tuple[str, int, str | None], former: tuple[int, str], stays: tuple[str, str, int]
) -> None:
    """Quarantine goes with the last wave: a row that the first one had counted was landed there once more."""
    shop.put(("a", 1, "d1"), refused)
    shop.put(("b", 2, "d2"))
    shop.runtime.catch_up(in_waves(shop, *former))
    mended = in_waves(shop, 9, "coalesce(day, 'd1')")

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "by_k"):
            raise _Killed

    def in_first() -> dict[str, tuple[int, int]]:
        return {row["k"]: (row["many"], row["total"]) for row in shop.lake.state("by_k").scan().to_pylist()}

    with pytest.raises(_Killed):
        Runtime(shop.spark, shop.lake, listeners=[kill]).backfill(mended, ["d1"])
    assert (in_first(), shop.refused) == ({"a": (2, 8), "b": (1, 2)}, [stays])
    (lot,) = shop.replay(mended)
    assert (in_first(), shop.refused) == ({"a": (2, 8), "b": (1, 2)}, [stays])
    assert (lot.landed, list(lot.left)) == (0, [HALF_MADE])
    # What batches refuse behind the backfill is in none of its slices.
    shop.put(("a", 50, "d1"))
    shop.runtime.catch_up(mended)
    wider = in_waves(shop, 99, "coalesce(day, 'd1')")
    assert sum(one.landed for one in shop.replay(wider)) == 1
    assert (in_first(), shop.refused) == ({"a": (3, 58), "b": (1, 2)}, [stays])
    assert not shop.runtime.backfill(wider, ["d1"]).failed
    assert shop.refused == []
    assert shop.rows == Counter({("a", 1): 1, ("a", 7): 1, ("a", 50): 1, ("b", 2): 1})


def test_what_a_backfill_in_waves_has_rejected_is_replayed(shop: Shop) -> None:
    """All its waves bear one name: each state is known to have been made when quarantine was."""
    shop.put(("a", 1, "d1"), ("a", 7, "d1"))
    assert not shop.runtime.backfill(in_waves(shop, 3, "day"), ["d1"]).failed
    (lot,) = shop.replay(in_waves(shop, 9, "day"))
    assert (lot.landed, dict(lot.left)) == (1, {})
    held = {row["k"]: (row["many"], row["total"]) for row in shop.lake.state("by_k").scan().to_pylist()}
    assert (held, shop.refused) == ({"a": (2, 8)}, [])
    assert shop.rows == Counter({("a", 1): 1, ("a", 7): 1})


def later(table: Path) -> None:
    """Have a table's last commit say a time an hour ahead."""
    log = max((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] += 3_600_000
    log.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))


@pytest.mark.exhaustive
def test_a_slice_that_a_gate_refuses_keeps_its_quarantine(shop: Shop) -> None:
    """What it holds goes with what the states hold: a row that passes now is in none of them."""
    shop.put(("a", 7, "d1"), ("a", 1, "d1"), ("a", 8, "d2"))
    shop.runtime.catch_up(failing(shop, 3, fails=0))
    report = shop.runtime.backfill(failing(shop, 7, fails=2), ["d1", "d2"])
    assert [(one.slice, one.quarantined, one.error is None) for one in report.slices] == [
        ("d1", 0, False), ("d2", 1, True),
    ]  # fmt: skip
    assert (shop.refused, shop.rows) == ([("high", "most", 7), ("high", "most", 8)], Counter({("a", 1): 1}))
    shop.replay(failing(shop, 9, fails=0))
    assert (shop.refused, shop.rows) == ([], Counter({("a", 7): 1, ("a", 1): 1, ("a", 8): 1}))


@pytest.mark.exhaustive
def test_a_reset_that_is_killed_leaves_no_row_twice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.put(("a", 7, "d1"), ("a", 1, "d1"))
    shop.runtime.catch_up(failing(shop, 3, fails=0))
    reset, resets = StateWriter.reset, 0
    for kill_at in range(3):
        shutil.rmtree(shop.lake.checkpoint_path("shop", "sales"))
        left = kill_at

        def killed(writer: StateWriter, *given: Any, **more: Any) -> int:
            nonlocal left, resets
            if left == 0:
                raise _Killed
            left, resets = left - 1, resets + 1
            return reset(writer, *given, **more)

        with monkeypatch.context() as life:
            life.setattr(StateWriter, "reset", killed)
            with pytest.raises(_Killed):
                shop.runtime.catch_up(failing(shop, 3, fails=0), on_fresh_checkpoint="reset")
        shop.runtime.catch_up(failing(shop, 3, fails=0), on_fresh_checkpoint="reset")
        assert (shop.refused, shop.rows) == ([("high", "most", 7)], Counter({("a", 1): 1}))
    assert resets == 3


@pytest.mark.exhaustive
def test_records_of_the_source(shop: Shop) -> None:
    """A malformed record goes to the source's own reader, a row without a slice is read as it was written."""
    shop.put(("a", 1, "d1"), ("b", 2, None), raw=['{"k":"c","n":"three","day":"d1"}', '{"k":"d",', '[{"k":"e"}, 4]'])
    shop.runtime.catch_up(shop.flow(9))
    assert [(stage, rule) for stage, rule, _ in shop.refused] == [
        ("source", "malformed"), ("source", "malformed"), ("source", "malformed"), ("source", "no_slice"),
    ]  # fmt: skip
    topology = shop.flow(9, slice_by="coalesce(day, 'none')")
    (lot,) = shop.replay(topology)
    assert (lot.landed, lot.refused) == (1, {"malformed": 3})
    assert shop.rows == Counter({("a", 1): 1, ("b", 2): 1})
    assert len(shop.refused) == 3
    files = {row["file"] for row in shop.lake.quarantine("shop").scan().to_pylist()}
    assert files == {f"file:{shop.folder}/0.json"}


def test_a_schema_that_was_mended(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.put(raw=['{"k":"c","n":3.5,"day":"d1"}', '{"k":"c","n":"three","day":"d1"}'])

    def counting(kind: str) -> TridentTopology:
        topology = TridentTopology("shop")
        rows = topology.new_stream("sales", JsonFiles(shop.folder, f"k string, n {kind}, day string"))
        rows.group_by("k").persistent_aggregate(DeltaState("only"), [Count("many")])
        return topology

    shop.runtime.catch_up(counting("bigint"))
    assert shop.lake.state("only").scan().to_pylist() == []
    (lot,) = shop.replay(counting("double"))
    assert (lot.landed, lot.refused) == (1, {"malformed": 1})
    assert shop.lake.state("only").scan().to_pylist() == [{"k": "c", "many": 1}]


# --- poison batches ---------------------------------------------------------------------------------------------------


def refusing(shop: Shop, most: int) -> TridentTopology:
    topology = TridentTopology("shop")
    stream = topology.new_stream("sales", JsonFiles(shop.folder, SCHEMA, max_files_per_batch=1), slice_by="day")
    stream = stream.gate(fail("column_values_to_be_between", column="n", max_value=most, name="most"), name="high")
    stream.partition_persist(DeltaState("rows"), ["k", "n", "at"])
    stream.group_by("k").persistent_aggregate(DeltaState("by_k"), [Count("many"), Sum("n", "total")])
    return topology


@pytest.fixture
def poisoned(shop: Shop) -> Shop:
    shop.put(("a", 1, "d1"))
    shop.put(("a", 7, "d1"), ("b", 2, "d2"))
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(refusing(shop, 3))
    return shop


@pytest.mark.exhaustive
def test_a_poison_batch_is_replayed_when_it_was_left_out(poisoned: Shop) -> None:
    shop = poisoned
    (waiting,) = shop.replay(refusing(shop, 9))
    assert (waiting.number, sum(waiting.left.values())) == (None, 2)
    assert "tridelta skip" in next(iter(waiting.left))
    shop.runtime.skip(refusing(shop, 3), 1)
    shop.put(("a", 3, "d1"))
    shop.runtime.catch_up(refusing(shop, 3))
    with pytest.raises(GateError):
        shop.replay(refusing(shop, 3))
    assert shop.rows == Counter({("a", 1): 1, ("a", 3): 1})
    (lot,) = shop.replay(refusing(shop, 9))
    assert (lot.stage, lot.stream, lot.landed) == ("batch", "sales", 2)
    assert shop.rows == Counter({("a", 1): 1, ("a", 3): 1, ("a", 7): 1, ("b", 2): 1})
    assert (shop.refused, shop.replay(refusing(shop, 9))) == ([], [])
    shop.runtime.backfill(refusing(shop, 9), ["d1", "d2"])
    assert shop.rows == Counter({("a", 1): 1, ("a", 3): 1, ("a", 7): 1, ("b", 2): 1})


@pytest.mark.parametrize("passed", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_what_a_backfill_counts_of_a_poison_batch_only_leaves_quarantine(poisoned: Shop, passed: bool) -> None:
    shop = poisoned
    shop.runtime.skip(refusing(shop, 3), 1)
    if passed:
        shop.runtime.catch_up(refusing(shop, 3))
    shop.runtime.backfill(refusing(shop, 9), ["d1"])
    assert shop.rows == Counter({("a", 1): 1, ("a", 7): 1})
    (lot,) = shop.replay(refusing(shop, 9))
    assert (lot.landed, lot.counted) == (1, 1)
    shop.runtime.catch_up(refusing(shop, 9))
    assert shop.rows == Counter({("a", 1): 1, ("a", 7): 1, ("b", 2): 1})
    assert shop.refused == []


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param(False, id="this release"),
        pytest.param(True, id="earlier release", marks=pytest.mark.exhaustive),
    ],
)
def test_a_backfill_counts_behind_a_poison_batch_of_a_later_time(poisoned: Shop, earlier: bool) -> None:
    """The clock was an hour ahead when the batch was refused. An earlier release has kept nothing but the time."""
    shop = poisoned
    log = max((shop.lake.quarantine_path("shop") / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    said = json.loads(info["userMetadata"])
    assert said["kind"] == "poison"
    info["timestamp"] += 3_600_000
    if earlier:
        said.pop("states", None)
        info["userMetadata"] = json.dumps(said)
    log.write_text("\n".join(json.dumps(action, separators=(",", ":")) for action in actions))
    shop.lake = Lake(shop.lake.root)
    shop.runtime = Runtime(shop.spark, shop.lake)
    shop.put(("a", 3, "d1"))
    shop.runtime.skip(refusing(shop, 3), 1)
    shop.runtime.catch_up(refusing(shop, 3))
    shop.runtime.backfill(refusing(shop, 9), ["d1"])
    (lot,) = shop.replay(refusing(shop, 9))
    assert shop.rows == Counter({("a", 1): 1, ("a", 3): 1, ("a", 7): 1, ("b", 2): 1})
    assert (lot.landed, lot.counted, sum(lot.left.values())) == ((1, 0, 1) if earlier else (1, 1, 0))


def test_a_skipped_batch_that_was_not_kept_comes_to_quarantine_and_once_replayed_does_not_come_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process dies in front of quarantine; an older checkpoint is put back behind the replay."""

    def die(*_: object) -> None:
        raise _Killed

    shop.put(("a", 1, "d1"))
    shop.put(("a", 7, "d1"), ("b", 2, "d2"))
    with monkeypatch.context() as patch:
        patch.setattr(PoisonRows, "_put", die)
        with pytest.raises(_Killed):
            shop.runtime.catch_up(refusing(shop, 3))
    checkpoint, older = shop.lake.checkpoint_path("shop", "sales"), shop.lake.root / "older"
    shutil.copytree(checkpoint, older)
    shop.runtime.skip(refusing(shop, 3), 1)
    assert not shop.lake.quarantine_path("shop").exists()
    shop.runtime.catch_up(refusing(shop, 3))
    assert shop.refused == [("batch", "poison", 2), ("batch", "poison", 7)]
    assert [one.landed for one in shop.replay(refusing(shop, 9))] == [2]
    rows = Counter({("a", 1): 1, ("a", 7): 1, ("b", 2): 1})
    assert (shop.rows, shop.refused) == (rows, [])
    shutil.rmtree(checkpoint)
    older.rename(checkpoint)
    with pytest.raises(CheckpointBehindError, match="batch txid 1, which was left out, and replay 1"):
        shop.runtime.catch_up(refusing(shop, 9))
    assert shop.rows == rows


@pytest.mark.exhaustive
def test_a_replay_is_there_when_the_power_takes_its_last_traces(shop: Shop) -> None:
    """Spark's mark of the last batch, which opaque states take again, and quarantine's commit."""

    def flow(most: int) -> TridentTopology:
        topology = TridentTopology("shop")
        stream = topology.new_stream("sales", JsonFiles(shop.folder, SCHEMA, max_files_per_batch=1))
        stream = stream.gate(fail("column_values_to_be_between", column="n", max_value=most, name="most"), name="high")
        stream.partition_persist(DeltaState("rows", "opaque"), ["k", "n"])
        for layout in ("log", "map"):
            stream.group_by("k").persistent_aggregate(DeltaState(layout, "opaque", layout), "n", Sum(), "total")
        return topology

    def held() -> list[list[tuple[Any, ...]]]:
        return [sorted(tuple(row.values()) for row in shop.lake.state(name).scan().to_pylist()) for name in states]

    states = ("rows", "log", "map")
    for n in (1, 7, 2):
        shop.put(("a", n, "d1"))
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(flow(3))
    shop.runtime.skip(flow(3), 1)
    shop.runtime.catch_up(flow(3))
    assert [one.landed for one in shop.replay(flow(9))] == [1]
    expected = [[("a", 1), ("a", 2), ("a", 7)], [("a", 10)], [("a", 10)]]
    assert held() == expected
    commits = shop.lake.checkpoint_path("shop", "sales") / "spark" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink(missing_ok=True)
    max((shop.lake.quarantine_path("shop") / "_delta_log").glob("*.json")).unlink()
    shop.lake = Lake(shop.lake.root)
    shop.runtime = Runtime(shop.spark, shop.lake)
    shop.put(("b", 3, "d1"))
    assert [one.txid for one in shop.runtime.catch_up(flow(3)).batches] == [2, 3]
    expected = [[*expected[0], ("b", 3)], *([("a", 10), ("b", 3)] for _ in range(2))]
    assert held() == expected
    assert shop.refused == [("batch", "poison", 7)]
    report = shop.runtime.replay_quarantine(flow(9))
    assert (report.resumed, [one.landed for one in report.lots]) == ((1,), [1])
    assert (held(), shop.refused) == (expected, [])


# --- tables that were taken back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["quarantine", pytest.param("rows", marks=pytest.mark.exhaustive)])
def test_a_table_that_is_taken_back_behind_a_replay_is_refused(shop: Shop, table: str) -> None:
    shop.put(("a", 1, "d1"), ("a", 7, "d1"))
    shop.runtime.catch_up(shop.flow(3))
    state = shop.lake.quarantine_path("shop") if table == "quarantine" else shop.lake.state_path(table)
    version = DeltaTable(str(state)).version()
    assert [one.landed for one in shop.replay(shop.flow(9))] == [1]
    DeltaTable(str(state)).restore(version)
    shop.put(("b", 8, "d1"))
    for run in (shop.runtime.catch_up, shop.runtime.replay_quarantine):
        with pytest.raises(TableBehindError, match="a RESTORE has undone its replay 1") as caught:
            run(shop.flow(3))
    assert "a RESTORE is undone by a RESTORE" in caught.value.hint
    DeltaTable(str(state)).restore(version + 1)
    # Known to the start now, and taken back behind it; what a stream notes meanwhile does not hide it.
    shop.runtime.catch_up(shop.flow(3))
    assert (shop.rows, shop.refused) == (Counter({("a", 1): 1, ("a", 7): 1}), [("high", "most", 8)])
    DeltaTable(str(state)).restore(version)
    with pytest.raises(TableBehindError):
        shop.runtime.catch_up(shop.flow(3))
    assert set(adopt(shop.lake, shop.flow(3))) == {"sales"}
    assert adopt(shop.lake, shop.flow(3)) == {}
    shop.runtime.catch_up(shop.flow(3))


@pytest.mark.exhaustive
def test_older_copies_from_before_a_replay_and_a_backfill(shop: Shop) -> None:
    """Of a state: refused, for its rows would be nowhere. Quarantine's rows are back then, and go again."""
    state, quarantine = on_disk(shop.lake.state_path("rows")), on_disk(shop.lake.quarantine_path("shop"))

    def exchange(table: Path) -> None:
        """Put a table's copy in its place, and keep the table for the next time."""
        for source, target in ((table, "aside"), (shop.folder.parent / table.name, table), ("aside", table.name)):
            shutil.move(shop.folder.parent / source, shop.folder.parent / target)
        shop.lake = Lake(shop.lake.root)
        shop.runtime = Runtime(shop.spark, shop.lake)

    shop.put(("a", 1, "d1"), ("a", 7, "d1"))
    shop.runtime.catch_up(shop.flow(3))
    for table in (state, quarantine):
        shutil.copytree(table, shop.folder.parent / table.name)
    assert [one.landed for one in shop.replay(shop.flow(9))] == [1]
    exchange(state)
    for run in (shop.runtime.catch_up, shop.runtime.replay_quarantine):
        with pytest.raises(TableBehindError, match="it is an older copy"):
            run(shop.flow(3))
    exchange(state)
    exchange(quarantine)
    shop.runtime.catch_up(shop.flow(3))
    assert shop.runtime.replay_quarantine(shop.flow(9)).resumed == (1,)
    assert (shop.rows, shop.refused) == (Counter({("a", 1): 1, ("a", 7): 1}), [])
    shutil.rmtree(shop.folder.parent / quarantine.name)
    shutil.copytree(quarantine, shop.folder.parent / quarantine.name)
    shop.runtime.backfill(shop.flow(3), ["d1"])
    assert shop.refused == [("high", "most", 7)]
    exchange(quarantine)
    with pytest.raises(TableBehindError, match="it is an older copy"):
        shop.runtime.catch_up(shop.flow(3))


@pytest.mark.exhaustive
def test_a_quarantine_that_is_taken_back_behind_a_poison_batch_is_refused(shop: Shop) -> None:
    shop.put(("a", 1, "d1"), raw=["{"])
    shop.runtime.catch_up(refusing(shop, 3))
    quarantine = DeltaTable(str(shop.lake.quarantine_path("shop")))
    version = quarantine.version()
    shop.put(("a", 7, "d1"))
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(refusing(shop, 3))
    shop.runtime.skip(refusing(shop, 3), 1)
    shop.runtime.catch_up(refusing(shop, 3))
    quarantine.update_incremental()
    quarantine.restore(version)
    with pytest.raises(TableBehindError, match="a RESTORE has undone its poison batch 1"):
        shop.runtime.catch_up(refusing(shop, 3))
    quarantine.restore(version + 1)
    shop.runtime.catch_up(refusing(shop, 3))
    # A batch that has come through has given its rows back, so none are lost.
    shop.put(("a", 8, "d1"))
    with pytest.raises(PoisonBatchError):
        shop.runtime.catch_up(refusing(shop, 3))
    shop.runtime.catch_up(refusing(shop, 9))
    quarantine.update_incremental()
    quarantine.restore(version + 3)
    shop.runtime.catch_up(refusing(shop, 9))


# --- refused ----------------------------------------------------------------------------------------------------------


def _of_batches(topology: TridentTopology, folder: Path, **more: Any) -> Any:
    source = JsonFiles(folder, SCHEMA)
    check = drop("column_values_to_be_between", column="n", max_value=more.get("most", 3), name="most")
    return topology.new_stream("sales", source, slice_by=more.get("slice_by")).gate(check, name="high")


def _aggregated(folder: Path, **more: Any) -> TridentTopology:
    topology = TridentTopology("shop")
    stream = _of_batches(topology, folder, **more).group_by("k").aggregate("n", Sum(), "total")
    stream.partition_persist(DeltaState("totals"))
    return topology


def _unique(folder: Path, **more: Any) -> TridentTopology:
    topology = TridentTopology("shop")
    stream = _of_batches(topology, folder, **more)
    stream.gate(drop("column_values_to_be_unique", column="k"), name="once").partition_persist(DeltaState("totals"))
    return topology


def _no_gate(folder: Path, **more: Any) -> TridentTopology:
    topology = TridentTopology("shop")
    if not more:
        return _aggregated(folder)
    stream = topology.new_stream("sales", JsonFiles(folder, SCHEMA))
    stream.group_by("k").aggregate("n", Sum(), "total").partition_persist(DeltaState("totals"))
    return topology


@pytest.mark.parametrize(
    ("build", "why"),
    [(_aggregated, "aggregates each batch"), (_unique, "compares the rows of a batch"), (_no_gate, "no such gate")],
)
def test_what_cannot_be_replayed_is_refused_with_what_to_do_instead(shop: Shop, build: Any, why: str) -> None:
    shop.put(("a", 1, "d1"), ("a", 7, "d1"))
    shop.runtime.catch_up(build(shop.folder))
    before = shop.lake.state("totals").scan().to_pylist()
    with pytest.raises(ReplayError) as caught:
        shop.runtime.replay_quarantine(build(shop.folder, most=9))
    error = caught.value
    assert (error.flow, error.rows) == ("shop", 'rows rejected by gate "high"')
    assert why in error.problem
    assert "reset" in error.hint
    (lot,) = look(shop.lake, build(shop.folder, most=9), Selection()).lots
    assert list(lot.left) == [error.problem]
    assert shop.lake.state("totals").scan().to_pylist() == before
    assert [one[:2] for one in shop.refused] == [("high", "most")]


def test_rows_that_do_not_read_back_are_left(shop: Shop) -> None:
    shop.put(("a", 7, "d1"))
    shop.runtime.catch_up(shop.flow(3))
    (lot,) = shop.replay(shop.flow(9, schema=f"{SCHEMA}, more string"))
    assert (lot.number, lot.landed, sum(lot.left.values())) == (None, 0, 1)
    assert "have changed since" in next(iter(lot.left))
    assert "tridelta backfill shop" in lot.hint
    assert len(shop.refused) == 1


def test_a_half_committed_batch_is_finished_first(shop: Shop) -> None:
    shop.put(("a", 7, "d1"))
    shop.runtime.catch_up(shop.flow(3))
    for name in ("0", ".0.crc"):
        (shop.lake.checkpoint_path("shop", "sales") / "spark" / "commits" / name).unlink()
    with pytest.raises(ReplayError, match="comes again") as caught:
        shop.replay(shop.flow(9))
    assert "tridelta run shop" in caught.value.hint
    shop.runtime.catch_up(shop.flow(9))
    assert shop.replay(shop.flow(9))[0].landed == 1
    assert shop.rows == Counter({("a", 7): 1})


@pytest.mark.exhaustive
def test_beside_a_running_stream(shop: Shop) -> None:
    shop.put(("a", 7, "d1"))
    shop.runtime.catch_up(shop.flow(3))
    running = shop.runtime.stream(shop.flow(9), trigger_seconds=0.1)
    try:
        shop.put(("b", 1, "d1"))
        assert sum(one.landed for one in shop.replay(shop.flow(9))) == 1
    finally:
        running.stop()
    shop.runtime.catch_up(shop.flow(9))
    assert shop.rows == Counter({("a", 7): 1, ("b", 1): 1})


def test_nothing_was_ever_refused(shop: Shop) -> None:
    with pytest.raises(UnknownStateError):
        shop.replay(shop.flow(3))
    with pytest.raises(TrideltaError):
        look(shop.lake, shop.flow(3), Selection())
    # Once it has run, there is just nothing to do: that no gate has refused a row is no error.
    shop.put(("a", 1, "d1"))
    shop.runtime.catch_up(shop.flow(3))
    assert shop.replay(shop.flow(3)) == []
    assert look(shop.lake, shop.flow(3), Selection()).lots == ()
    assert not shop.lake.quarantine_path("shop").exists()
