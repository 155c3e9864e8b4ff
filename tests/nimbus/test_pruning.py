"""What the registry forgets, and what it never does; on SQLite and PostgreSQL."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, insert, select, text

from pipelines.maintenance import Retention, run_housekeeping
from pipelines.nimbus.registry.leases import Leases
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.pruning import Pruned, prune, remove_old_records, shrink
from pipelines.nimbus.registry.records import Content
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.registry.tables import events, leases, supervisors
from pipelines.state.lake import Lake

if TYPE_CHECKING:
    from tests.nimbus.conftest import Clock

DAY = 86_400.0
CONTENT = Content({"text": "a"}, {"spout": 1}, 1)


@pytest.fixture
def registry(store: Store, clock: Clock) -> Registry:
    return Registry(store, clock=clock)


def _gone(store: Store, clock: Clock, **more: object) -> dict[str, int]:
    options = {"days": 30.0, "events_a_flow": None, **more}
    found: list[Pruned] = prune(store, clock=clock, **options)  # type: ignore[arg-type]
    return {one.what: one.removed for one in found if one.removed}


def _count(store: Store, table: object) -> int:
    with store.read() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0  # type: ignore[arg-type]


def test_removed_flows_and_silent_supervisors_go_after_their_days(
    store: Store, registry: Registry, clock: Clock
) -> None:
    places = Places(store, clock=clock)
    for name in ("gone", "stays"):
        registry.submit(name, CONTENT)
    places.beat_supervisor("dead", "h1", [1], started_at=clock.now)
    Leases(store, clock=clock).take("task:gone/sales", "w", 1000)
    registry.kill("gone", wait_seconds=0)
    registry.fire()
    clock.now += 31 * DAY
    places.beat_supervisor("alive", "h2", [1], started_at=clock.now)
    assert _gone(store, clock, dry_run=True) == {"removed flows": 1, "supervisors": 1}
    assert _gone(store, clock, days=None) == {}
    assert _gone(store, clock) == {"removed flows": 1, "supervisors": 1}
    assert [one.supervisor for one in places.supervisors()] == ["alive"]
    assert registry.history("gone") == []
    assert [flow.name for flow in registry.flows()] == ["stays"]
    assert _gone(store, clock) == {}
    assert _count(store, leases) == 1, "its next token must be a larger one"


def test_a_flow_keeps_its_newest_history(store: Store, registry: Registry, clock: Clock) -> None:
    registry.submit("one", CONTENT)
    registry.submit("other", CONTENT)
    for _ in range(6):
        clock.now += 1
        registry.deactivate("one")
        registry.activate("one")
    before = registry.history("one")
    assert _gone(store, clock, events_a_flow=5) == {"history": len(before) - 5}
    assert registry.history("one") == before[-5:]
    assert len(registry.history("other")) == 1
    assert _count(store, events) == 6


def test_a_sqlite_file_gives_its_room_back(tmp_path: Path) -> None:
    store = Store.migrated(f"sqlite:///{tmp_path}/registry.db", busy_seconds=0.2)
    with store.write() as connection:
        row = {"host": "x" * 2000, "ports": [], "started_at": 1.0, "beat_at": 1.0}
        connection.execute(insert(supervisors), [{"supervisor": f"s{number}", **row} for number in range(3000)])
    assert shrink(store) == 0
    with store.write() as connection:
        connection.execute(supervisors.delete())
    size = (tmp_path / "registry.db").stat().st_size
    assert shrink(store, dry_run=True) > 5_000_000
    with store.write() as connection:
        connection.execute(text("SELECT 1"))
        assert shrink(Store(store.url, busy_seconds=0.2)) == 0  # somebody writes
    assert shrink(store) > 5_000_000
    assert (tmp_path / "registry.db").stat().st_size < size / 10
    store.close()


def test_a_round_of_housekeeping_prunes_the_registry(store: Store, registry: Registry, tmp_path: Path) -> None:
    registry.submit("shop", CONTENT)
    with store.write() as connection:
        connection.execute(text("UPDATE flows SET removed_at = 1"))
    counted = run_housekeeping(Lake(tmp_path), partial(remove_old_records, store), Retention(), dry_run=True)
    assert {one.what: one.removed for one in counted.things}["registry"] == 1
    assert {
        one.what: one.removed
        for one in run_housekeeping(Lake(tmp_path), partial(remove_old_records, store), Retention()).things
    }["registry"] == 1
    assert registry.history("shop") == []
