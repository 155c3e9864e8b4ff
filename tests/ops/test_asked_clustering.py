"""Columns that reads ask by: refused at once if they cannot be, and brought about by the periodic rebalance."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.maintenance.clustering import recluster
from pipelines.maintenance.rebalance import CLUSTER, TableLoad
from pipelines.nimbus.errors import SubmitError
from pipelines.nimbus.nimbus import Nimbus
from pipelines.nimbus.periodic_rebalance import clustering_line, judge, table_loads
from tests.maintenance.small_state import STATE, SmallState
from tests.nimbus.beats import beat

pytestmark = pytest.mark.usefixtures("home")

QUIET = {
    "state": "running",
    "trigger_seconds": 5.0,
    "last_batch_seconds": [2.0] * 5,
    "last_backlogs": [0.0] * 5,
    "partitions": 1,
}


@pytest.fixture
def nimbus(home: Path) -> Iterator[Nimbus]:
    with Nimbus.from_environment() as opened:
        yield opened


def filled(root: Path) -> SmallState:
    chance, state = random.Random(7), SmallState(root)
    for _ in range(70):
        state.batch([("2024-01-01", f"k{chance.randrange(20)}", chance.randrange(20), 1) for _ in range(10)])
    return state


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"airport_hours": ["hour"]}, 'the flow writes no state "airport_hours" (did you mean "airport_hour"'),
        ({"airport_hour": ["dep_delay"]}, '"airport_hour" cannot lie by "dep_delay"; it can by origin, hour'),
        ({"airport_hour": 7}, "must be columns by state, not 7 (airport_hour)"),
        (["airport_hour"], "setting clustering must be columns by state, not ['airport_hour']"),
    ],
)
def test_what_cannot_be_is_refused_at_once(nimbus: Nimbus, asked: Any, says: str) -> None:
    with pytest.raises(SubmitError) as refused:
        nimbus.submit("flights", clustering=asked)
    assert says in str(refused.value)
    assert nimbus.registry.flows() == []


@pytest.mark.slow
def test_the_tables_that_are_there_are_looked_at(home: Path) -> None:
    flow: Any = SimpleNamespace(
        name="shop", settings={"clustering": {STATE: "part", "other": ["x"], "not_made": ["y"]}}
    )
    state = filled(home / "lake")
    (found,) = table_loads(state.lake, flow, [STATE, "not_made"])
    assert (found.name, found.clustered_by, found.asked_by) == (STATE, ("key", "part"), ("part",))
    assert found.bytes == sum(
        file.stat().st_size for file in state.table.path.rglob("*.parquet") if "_delta_log" not in str(file)
    )
    assert table_loads(state.lake, SimpleNamespace(name="shop", settings={}), [STATE]) == ()  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_rebalance_decides_and_is_content_once_it_is_done(nimbus: Nimbus, monkeypatch: pytest.MonkeyPatch) -> None:
    nimbus.submit("flights", clustering={"airport_hour": ["hour"]}, rebalance={"cluster_bytes": 1})
    flow = nimbus.registry.flow("flights")
    lease = nimbus.registry.leases.take("task", "worker", 60)
    beat(nimbus.places, flow, 1, ("s1", 6900), lease, lease_seconds=60, figures=QUIET)
    state = filled(nimbus.lake.root)

    def loads(*_: Any) -> tuple[TableLoad, ...]:
        shop: Any = SimpleNamespace(name="shop", settings={"clustering": {STATE: ["part"]}})
        return table_loads(state.lake, shop, [STATE])

    # The flow's own states would need Spark; a state like them stands for them.
    monkeypatch.setattr("pipelines.nimbus.periodic_rebalance.table_loads", loads)

    def later() -> float:
        return flow.submitted_at + 10_000

    (judged,) = judge(nimbus, clock=later)
    ((decision, _),) = judged.decisions
    assert (decision.action, judged.clustering, judged.request) == (CLUSTER, {STATE: ("part",)}, {})
    assert "lies by key, part, and is asked by part" in judged.sentence
    done = recluster(None, state.lake, STATE, judged.clustering[STATE])
    assert clustering_line(done)["lies by"] == "part"
    (again,) = judge(nimbus, clock=later)
    assert (again.decisions[0][0].action, again.clustering) == ("none", {})
    assert state.table.scan().num_rows == len(state.expected())
