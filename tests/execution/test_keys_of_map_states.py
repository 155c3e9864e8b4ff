"""Map states whose key is several fields, and keys that come in several slices of one batch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.checkpoint.engine_files import Checkpoint, Epoch
from pipelines.execution.runners.bounded import BoundedRunner, SliceOfMapError, _SliceRows
from pipelines.sources import FixedBatches, JsonFiles
from pipelines.state.kinds import MAP, TRANSACTIONAL
from pipelines.trident import CombinerAggregator, Count, DeltaState, ReducerAggregator, Sum, TridentTopology
from tests.state.small_kinds import ARROW, FLOW, SmallTable

BATCHES: list[list[tuple[Any, ...]]] = [
    [("d2", None, 8), ("d1", "b", 8), ("d3", None, None), ("d1", "b", 1), ("d2", "b", 1)],
    [("d1", "b", 1), ("d3", "c", 5)],
]


@pytest.mark.parametrize("begins", [0, 1])
def test_a_map_takes_a_slice_once_in_an_epoch_that_begins_behind_its_files(tmp_path: Path, begins: int) -> None:
    """The stream, whose checkpoint was adopted, does not meet them again; the map that was lost has none of them."""
    state = SmallTable(tmp_path, MAP, TRANSACTIONAL, sliced=True)
    checkpoint = Checkpoint(FLOW, tmp_path / "checkpoint")
    checkpoint.spark.mkdir(parents=True)
    (checkpoint.spark / "metadata").write_text("{}")
    checkpoint.begin(Epoch(1 + begins, 0, begins))
    read, file = frozenset({"/in/1.json"}), "file:///in/1.json"
    sources = SimpleNamespace(sliced=True, positions=lambda spark, first, last: read if last >= 0 else frozenset())
    sink = SimpleNamespace(name="counts", table=state.table, writer=state.writer)
    group: Any = SimpleNamespace(
        name="words", topology=SimpleNamespace(name=FLOW), sinks=[sink], lake=Lake(tmp_path), sources=sources
    )
    group.quarantine, group.transactional = SimpleNamespace(table=None), True
    backfill = BoundedRunner(group, checkpoint)
    assert backfill._check_maps(("d1",)) == {}
    rows = pa.Table.from_pylist([{"word": "a", "n": 1}], schema=ARROW)
    given = _SliceRows("d1", 1, frozenset({file}), "pass", rows, streamed=backfill._streamed(state.table))
    backfill._write(state.writer, "counts", given)
    with pytest.raises(SliceOfMapError, match="in there already"):
        BoundedRunner(group, checkpoint)._check_maps(("d1",))
    assert state.table.commits.claims() == {"d1": {file}}


class OwnSum(CombinerAggregator):
    def init(self, v: int | None) -> int:
        return v or 0

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


def added(total: int, v: int | None) -> int:
    return total + (v or 0)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_backfill_that_is_killed_behind_a_map_is_made_whole_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    lake, folder = Lake(tmp_path / "lake"), tmp_path / "in"
    folder.mkdir()

    def put(day: str, v: int) -> None:
        (folder / f"{len(list(folder.iterdir()))}.json").write_text(json.dumps({"day": day, "k": "a", "v": v}))

    def flow() -> TridentTopology:
        topology = TridentTopology("keys")
        rows = topology.new_stream("rows", JsonFiles(folder, "day string, k string, v bigint"), slice_by="day")
        rows.group_by("k").persistent_aggregate(DeltaState("sums"), "v", OwnSum(), "s")
        rows.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "n")
        return topology

    def held() -> tuple[int, int]:
        return lake.state("sums").scan()["s"][0].as_py(), lake.state("counts").get([{"k": "a"}])[0]["n"]

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committed", "sums"):
            raise KeyboardInterrupt

    put("d1", 1)
    put("d2", 10)
    runtime = Runtime(spark, lake)
    with pytest.raises(KeyboardInterrupt):
        Runtime(spark, lake, listeners=[kill]).backfill(flow(), ["d1"])
    (report,) = runtime.backfill(flow(), ["d1"]).slices
    assert {one.state: one.replayed for one in report.commits} == {"sums": True, "counts": False}
    assert held() == (1, 1)
    with pytest.raises(SliceOfMapError, match="in there already"):
        runtime.backfill(flow(), ["d1"])
    # A map takes no further file of the slice; the others wait for a fresh start.
    with pytest.raises(KeyboardInterrupt):
        Runtime(spark, lake, listeners=[kill]).backfill(flow(), ["d2"])
    put("d2", 100)
    with pytest.raises(SliceOfMapError, match="of other files"):
        runtime.backfill(flow(), ["d2"])
    assert held() == (11, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "moment", "beside", "reason", "held"),
    [
        (Checkpoint, "rewriting", "backfill", "in there already", 1),
        (Checkpoint, "rewriting", "stream", "its stream has counted", 11),
        (BoundedRunner, "_work_out", "stream", "its stream has counted", 11),
    ],
)
def test_a_map_gets_no_slice_that_another_process_has_just_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    where: type, moment: str, beside: str, reason: str, held: int,
) -> None:  # fmt: skip
    """What the other one does while this one waits for the lock, or right behind the working out."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, (day, v) in enumerate((("d1", 1), ("d2", 10))):
        (folder / f"{number}.json").write_text(json.dumps({"day": day, "k": "a", "v": v}))

    def flow() -> TridentTopology:
        topology = TridentTopology("keys")
        rows = topology.new_stream("rows", JsonFiles(folder, "day string, k string, v bigint"), slice_by="day")
        rows.group_by("k").persistent_aggregate(DeltaState("counts"), Count(), "n")
        rows.group_by("k").persistent_aggregate(DeltaState("sums"), "v", OwnSum(), "s")
        return topology

    was = getattr(where, moment)

    def late(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(where, moment, was)
        found = was(*given, **named) if moment == "_work_out" else None
        other = Runtime(spark, Lake(tmp_path / "lake"))
        other.backfill(flow(), ["d1"]) if beside == "backfill" else other.catch_up(flow())
        return found or was(*given, **named)

    monkeypatch.setattr(where, moment, late)
    with pytest.raises(SliceOfMapError, match=reason):
        Runtime(spark, Lake(tmp_path / "lake")).backfill(flow(), ["d1"])
    lake = Lake(tmp_path / "lake")
    assert lake.state("sums").scan()["s"].to_pylist() == [held]
    assert {commit.kind for commit in lake.state("counts").commits.batches()} == ({"batch"} if held > 1 else set())
    assert lake.state("counts").get([{"k": "a"}])[0]["n"] == (2 if held > 1 else 1)


@pytest.mark.slow
@pytest.mark.parametrize("slice_by", [pytest.param(None, marks=pytest.mark.exhaustive), "day"])
def test_a_value_per_key(spark: SparkSession, tmp_path: Path, slice_by: str | None) -> None:
    lake, topology = Lake(tmp_path), TridentTopology("keys")
    rows = topology.new_stream("rows", FixedBatches("day string, k string, v bigint", BATCHES), slice_by=slice_by)
    reduced = ReducerAggregator(int, added)
    for name, own in (("sum", Sum()), ("own", OwnSum()), ("reduced", reduced)):
        for keys in (["k"], ["day", "k"]):
            state = DeltaState(f"{name}_{len(keys)}", layout="map")
            rows.group_by(keys).persistent_aggregate(state, "v", own, "s")
    Runtime(spark, lake).catch_up(topology)

    def held(state: str) -> dict[tuple[Any, ...], int]:
        return {tuple(row.values())[:-1]: row["s"] for row in lake.state(state).scan().to_pylist()}

    for name in ("sum", "own", "reduced"):
        assert held(f"{name}_1") == {(None,): 8, ("b",): 11, ("c",): 5}, name
        both = held(f"{name}_2")
        assert (both.pop(("d3", None)) or 0) == 0, name
        assert both == {("d2", None): 8, ("d1", "b"): 10, ("d2", "b"): 1, ("d3", "c"): 5}, name
