"""What the registry forgets, and what it never does; on SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, Row, func, insert, select, text

from pipelines.maintenance import Retention, run_housekeeping
from pipelines.nimbus.errors import RegistryLeaseLostError
from pipelines.nimbus.registry.leases import Leases
from pipelines.nimbus.registry.placements import Places, Placing
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
    assert _gone(store, clock, dry_run=True) == {"removed flows": 1, "supervisors": 1, "leases": 1}
    assert _gone(store, clock, days=None) == {}
    assert _gone(store, clock) == {"removed flows": 1, "supervisors": 1, "leases": 1}
    assert [one.supervisor for one in places.supervisors()] == ["alive"]
    assert registry.history("gone") == []
    assert [flow.name for flow in registry.flows()] == ["stays"]
    assert _gone(store, clock) == {}
    assert Leases(store, clock=clock).take("task:gone/sales", "w", 1).token > 1, "its next token must be a larger one"


def test_leases_of_names_that_do_not_return_go_and_tokens_grow_all_the_same(store: Store, clock: Clock) -> None:
    own = Leases(store, clock=clock)
    for _ in range(3):
        lease = own.take("supervisor:container-1", "a", 10)
        own.release(lease)
    frozen = own.take("slot:container-2:6900", "frozen", 10)
    leader = own.take("nimbus", "a", 10)
    clock.now += 31 * DAY
    lives = own.take("slot:host:6900", "lives", 10)
    assert _gone(store, clock, dry_run=True) == {"leases": 2}
    assert _gone(store, clock) == {"leases": 2}
    assert _gone(store, clock) == {}
    own.check(lives)
    # That of the leader is one row, by whose token it knows whether another has led.
    assert own.take("nimbus", "a", 10).token == leader.token + 1
    assert own.take("slot:container-2:6900", "next", 10).token > 3
    for late in (lease, frozen):
        with pytest.raises(RegistryLeaseLostError):
            own.renew(late, 10)
    assert not own.release(frozen)
    assert own.take("supervisor:container-1", "b", 10).token > 3
    # The mark of what is gone only grows, and a name that stayed goes on from its own.
    clock.now += 31 * DAY
    assert _gone(store, clock) == {"leases": 3}
    assert own.take("slot:host:6900", "next", 10).token > 4


def test_a_lease_that_is_pruned_in_the_moment_in_which_it_is_taken_is_held(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL the row may go between the look whether it is there and its lock."""
    own, locked, looks = Leases(store, clock=clock), Leases._locked, []

    def goes(connection: Connection, name: str) -> Row[object] | None:
        looks.append(name)
        if len(looks) == 1:
            connection.execute(leases.delete())
        return locked(connection, name)

    monkeypatch.setattr(Leases, "_locked", staticmethod(goes))
    own.check(own.take("task:a/q", "w", 10))


def test_a_flow_keeps_its_newest_versions_and_those_that_are_needed(
    store: Store, registry: Registry, clock: Clock
) -> None:
    places, queries = Places(store, clock=clock), [{"group": "q"}]

    def content(number: int) -> Content:
        return Content({"text": f"{number}", "queries": queries}, {"spout": 1}, 1)

    first = registry.submit("one", content(1))
    registry.submit("other", CONTENT)
    for number in (2, 3, 4, 5, 6):
        registry.update("one", content(number))
    third = next(version for version in registry.versions("one") if version.number == 3)
    placed = Placing(replace(first, version=third), {("s", 1): [1]}, "NEW")
    places.assign_all([placed])
    for _ in range(3):
        # A file that is at fault, tried again and again.
        registry.update("one", content(0))
        registry.roll_back("one")
    # Back to the sixth, before which the fifth was.
    assert _gone(store, clock, versions_a_flow=2, dry_run=True) == {"versions": 7}
    assert _gone(store, clock, versions_a_flow=2) == {"versions": 7}
    assert [version.number for version in registry.versions("one")] == [3, 4, 5, 11, 12]
    assert [len(registry.versions("other")), _gone(store, clock, versions_a_flow=2)] == [1, {}]
    record = places.assignment(first)
    assert record is not None
    assert record.queries == {1: "q"}
    assert [registry.roll_back("one").version.content.definition["text"] for _ in range(2)] == ["5", "4"]
    assert _gone(store, clock, versions_a_flow=None) == {}


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
