"""States that group the same tuples alike are computed by one aggregate, and hold what they hold alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Lake, Runtime
from pipelines.execution.batch.plan_run import PlanRun
from pipelines.planner.siblings import siblings_of
from pipelines.sources import JsonFiles
from pipelines.trident import (
    Average,
    Collect,
    Count,
    DeltaState,
    DistinctCount,
    Max,
    Min,
    Sum,
    TridentTopology,
)

ROWS = [
    {"k": "a", "d": "x", "n": 1},
    {"k": "b", "d": "y", "n": 2},
    {"k": None, "d": "x", "n": None},
    {"k": "a", "d": "y", "n": 3},
    {"k": "a", "d": None, "n": 3},
]
for row in ROWS:
    row["m"] = {"n": row["n"]}
SCHEMA = "k string, d string, n bigint, m map<string,bigint>"
States = dict[str, Callable[[Any, DeltaState], Any]]

BY_KEY: States = {
    "counts": lambda rows, state: rows.group_by("k").persistent_aggregate(state, Count(), "value"),
    "sums": lambda rows, state: rows.group_by("k").persistent_aggregate(state, [Sum("n", "value"), Max("d", "top")]),
    "others": lambda rows, state: rows.group_by("k").persistent_aggregate(
        state, [Average("n", "value"), DistinctCount("d", "different"), Min("n", "least")]
    ),
    # A map has no hash but that of its JSON, which names the column.
    "maps": lambda rows, state: rows.group_by("k").persistent_aggregate(state, "m", Collect(), "maps"),
}


def lines(folder: Path, *batches: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(batches):
        (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def flow(folder: Path, states: States, *, kind: str = "transactional", slice_by: str | None = None) -> TridentTopology:
    topology = TridentTopology("siblings")
    rows = topology.new_stream("lines", JsonFiles(folder, SCHEMA, max_files_per_batch=1), slice_by=slice_by)
    for name, persist in states.items():
        persist(rows, DeltaState(name, kind))
    return topology


def held(lake: Lake, name: str, txid: int | None = None) -> list[str]:
    return sorted(str(sorted(row.items())) for row in lake.state(name).scan(txid=txid).to_pylist())


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each evaluation of a plan has kept for several consumers."""
    found: list[int] = []
    close = PlanRun.close

    def closing(run: PlanRun) -> None:
        found.append(run.kept_frames)
        close(run)

    monkeypatch.setattr(PlanRun, "close", closing)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "slice_by"),
    [
        ("transactional", None),
        ("opaque", "d"),
        pytest.param("transactional", "d", marks=pytest.mark.exhaustive),
        pytest.param("opaque", None, marks=pytest.mark.exhaustive),
    ],
)
def test_they_hold_what_each_holds_alone(
    spark: SparkSession, tmp_path: Path, kept: list[int], kind: str, slice_by: str | None
) -> None:
    """Values named alike, null keys, aggregates of every kind; the tuples are kept for nobody."""
    rows = [row for row in ROWS if row["d"]] if slice_by else ROWS
    folder = lines(tmp_path / "in", rows, ROWS[:2])
    together, alone = Lake(tmp_path / "together"), Lake(tmp_path / "alone")
    Runtime(spark, together).catch_up(flow(folder, BY_KEY, kind=kind, slice_by=slice_by))
    assert kept == [0, 0]
    for name, persist in BY_KEY.items():
        one = Lake(alone.root / name)
        Runtime(spark, one).catch_up(flow(folder, {name: persist}, kind=kind, slice_by=slice_by))
        for txid in (0, 1):
            assert held(together, name, txid) == held(one, name, txid)
        records = [[c.record for c in lake.state(name).commits.batches() if c.record] for lake in (together, one)]
        assert [(r.rows, r.hash, r.received) for r in records[0]] == [(r.rows, r.hash, r.received) for r in records[1]]
    assert together.state("counts").scan().num_rows == 3


def test_states_without_a_group_and_an_empty_batch(spark: SparkSession, tmp_path: Path) -> None:
    folder = lines(tmp_path / "in", ROWS, [])
    states: States = {
        "count": lambda rows, state: rows.persistent_aggregate(state, Count(), "value"),
        "sum": lambda rows, state: rows.persistent_aggregate(state, "n", Sum(), "value"),
    }
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(flow(folder, states))
    assert lake.state("count").scan().to_pylist() == [{"value": 5}]
    assert lake.state("sum").scan().to_pylist() == [{"value": 9}]


@pytest.mark.slow
def test_a_replay_commits_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    """Killed behind the first of three commits: the next life computes the other two."""
    folder, lake = lines(tmp_path / "in", ROWS), Lake(tmp_path / "lake")

    class Killed(BaseException):
        pass

    def kill(moment: str, state: str, txid: int) -> None:
        if (moment, state) == ("committing", "sums"):
            raise Killed

    with pytest.raises(Killed):
        Runtime(spark, lake, listeners=[kill]).catch_up(flow(folder, BY_KEY))
    assert lake.state("counts").last_txid() == 0
    assert lake.state("sums").last_txid() is None
    lake = Lake(tmp_path / "lake")
    Runtime(spark, lake).catch_up(flow(folder, BY_KEY))
    assert held(lake, "counts") == [
        "[('k', 'a'), ('value', 3)]",
        "[('k', 'b'), ('value', 1)]",
        "[('k', None), ('value', 1)]",
    ]
    assert {(row["k"], row["value"], row["top"]) for row in lake.state("sums").scan().to_pylist()} == {
        ("a", 7, "y"),
        ("b", 2, "y"),
        (None, 0, "x"),
    }
    assert len(lake.state("others").commits.batches()) == 1


def test_who_is_a_sibling() -> None:
    topology = TridentTopology("kinds")
    rows = topology.new_stream("lines", JsonFiles("/nowhere", SCHEMA))
    by_key = rows.group_by("k")
    by_key.persistent_aggregate(DeltaState("a"), Count(), "n")
    by_key.persistent_aggregate(DeltaState("map", layout="map"), Count(), "n")
    rows.group_by("d").persistent_aggregate(DeltaState("by_d"), Count(), "n")
    rows.filter("n > 0").group_by("k").persistent_aggregate(DeltaState("filtered"), Count(), "n")
    rows.partition_persist(DeltaState("rows"), ["k", "n"])
    rows.group_by("k").persistent_aggregate(DeltaState("b"), "n", Sum(), "n")
    (family,) = siblings_of(topology.graph)
    assert [member.state.name for member in family.members] == ["a", "b"]
    assert family.place(family.members[0], "n") != family.place(family.members[1], "n")
