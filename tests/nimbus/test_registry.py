"""The registry on SQLite and PostgreSQL: versions, statuses, places, beats, attempts, leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

from pipelines.execution.protocol.coordinator import AttemptRecord, Coordinator
from pipelines.nimbus.errors import (
    AlreadyAliveError,
    NotAliveError,
    NoTransitionError,
    RebalanceError,
    RegistryLeaseLostError,
    SubmitError,
    VersionError,
)
from pipelines.nimbus.processes.starting import FencedAttempts
from pipelines.nimbus.registry.leases import Leases
from pipelines.nimbus.registry.lifecycle import Request, Status
from pipelines.nimbus.registry.placements import Beat, Places, Placing, dead_of
from pipelines.nimbus.registry.pruning import prune
from pipelines.nimbus.registry.records import AssignmentRecord, Content, DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from tests.execution.memory_attempts import MemoryAttemptStore
from tests.nimbus.beats import beat

if TYPE_CHECKING:
    from tests.nimbus.conftest import Clock


def content(workers: int = 2, text: str = "a", **components: int) -> Content:
    return Content({"text": text}, components or {"spout": 1, "counts": 4}, workers)


def placed(
    places: Places, flow: DeployedFlow, slots: Mapping[tuple[str, int], list[int]], kind: str
) -> AssignmentRecord:
    return places.assign_all([Placing(flow, slots, kind)])[flow.serial]


@pytest.fixture
def registry(store: Store, clock: Clock) -> Registry:
    return Registry(store, clock=clock)


@pytest.fixture
def places(store: Store, clock: Clock) -> Places:
    return Places(store, clock=clock)


# --- versions


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"message_timeout_seconds": "soon"}, "must be a finite number"),
        ({"message_timeout_seconds": True}, "must be a finite number"),
        ({"x": float("nan")}, "plain JSON"),
        ({"x": object()}, "plain JSON"),
    ],
)
def test_settings_that_would_fail_later_are_refused(
    registry: Registry, settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(SubmitError, match=problem):
        registry.submit("counts", Content({}, {"spout": 1}, 1, settings))
    assert registry.flows() == []


@pytest.mark.parametrize(
    ("definition", "settings", "seen"),
    [
        ({"file": "/caf\udce9/a.yaml"}, {}, r"definition holds '/caf\\udce9/a.yaml'"),
        ({"queries": [{"group": "a\0b"}]}, {}, r"definition holds 'a\\x00b'"),
        ({}, {"spark": {"a\ud800": "1"}}, r"settings holds 'a\\ud800'"),
    ],
    ids=["file", "query", "setting"],
)
def test_texts_that_no_database_reads_back_are_refused(
    registry: Registry, definition: dict[str, object], settings: dict[str, object], seen: str
) -> None:
    """PostgreSQL keeps them, and fails wherever a query looks into them."""
    with pytest.raises(SubmitError, match=f"{seen}: half a character or one of code 0"):
        registry.submit("counts", Content(definition, {"spout": 1}, 1, settings))
    assert registry.flows() == []
    made = registry.submit("counts", Content({"text": r"\u0000 \ud800 \0 é 😀"}, {"spout": 1}))
    with pytest.raises(SubmitError, match=seen):
        registry.update("counts", Content(definition, {"spout": 1}, 1, settings), seen=made)


def test_a_submitted_flow_is_read_back(registry: Registry, clock: Clock) -> None:
    settings = {"message_timeout_seconds": 12, "nested": {"list": [1, None, "ä"]}}
    made = registry.submit("counts", Content({"text": "a"}, {"spout": 1}, 3, settings))
    assert made == registry.flow("counts") == registry.flows()[0]
    assert (made.id, made.status, made.version.number) == ("counts-1-1000000", Status.ACTIVE, 1)
    assert (made.workers, made.parallelism, made.settings) == (3, {"spout": 1}, settings)
    assert made.submitted_at == clock.now
    assert not made.scratch


def test_a_new_version_begins_without_the_problem_of_the_one_before(registry: Registry) -> None:
    registry.submit("counts", content(text="one"))
    for change in (lambda: registry.update("counts", content(text="two")), lambda: registry.roll_back("counts")):
        registry.problem(registry.flow("counts"), "cannot be loaded")
        assert change().problem is None
        assert registry.flow("counts").problem is None


def test_update_and_roll_back_walk_through_the_versions(registry: Registry) -> None:
    registry.submit("counts", content(text="one"))
    registry.update("counts", content(text="two"))
    third = registry.update("counts", content(text="three"))
    assert third.version.number == 3
    fourth = registry.roll_back("counts")
    assert (fourth.version.number, fourth.version.copy_of) == (4, 2)
    assert fourth.version.content == content(text="two")
    fifth = registry.roll_back("counts")
    assert (fifth.version.number, fifth.version.content) == (5, content(text="one"))
    with pytest.raises(VersionError, match="there is none before it"):
        registry.roll_back("counts")
    sixth = registry.roll_back("counts", to=3)
    assert sixth.version.content == content(text="three")
    assert [v.number for v in registry.versions("counts")] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(VersionError, match="no such version"):
        registry.roll_back("counts", to=9)


@pytest.mark.parametrize("status", ["KILLED", "REBALANCING"])
def test_a_flow_that_drains_takes_no_new_version(registry: Registry, status: str) -> None:
    registry.submit("counts", content())
    registry.update("counts", content(text="b"))
    registry.kill("counts") if status == "KILLED" else registry.rebalance("counts")
    for change in (lambda: registry.update("counts", content()), lambda: registry.roll_back("counts")):
        with pytest.raises(NoTransitionError) as caught:
            change()
        assert caught.value.status == status
    assert registry.flow("counts").version.number == 2


def test_what_a_rebalance_set_outlives_an_update(registry: Registry, clock: Clock) -> None:
    registry.submit("counts", content(spout=1, counts=4))
    registry.rebalance("counts", Request(workers=5, parallelism={"counts": 8}, settings={"x": 1}), wait_seconds=0)
    [(flow, _)] = registry.fire()
    assert (flow.workers, flow.parallelism, flow.settings) == (5, {"spout": 1, "counts": 8}, {"x": 1})
    assert flow.scratch
    updated = registry.update("counts", content(spout=2, totals=3))
    assert (updated.workers, updated.parallelism) == (5, {"spout": 2, "totals": 3})


def test_an_update_asks_for_a_new_assignment_only_if_it_changes_the_size(registry: Registry) -> None:
    registry.submit("counts", content(workers=2))
    assert not registry.update("counts", content(workers=2, text="b")).scratch
    assert registry.update("counts", content(workers=3, text="b")).scratch


def test_nothing_is_written_when_a_check_fails(registry: Registry) -> None:
    with pytest.raises(SubmitError, match="the number of workers must be greater than 0, not 0"):
        registry.submit("counts", content(workers=0))
    assert registry.flows() == []


# --- statuses


def test_kill_removes_after_the_delay_and_keeps_the_last_assignment(
    registry: Registry, places: Places, clock: Clock
) -> None:
    first = registry.submit("counts", content())
    placed(places, first, {("s1", 1): [1, 2]}, "NEW")
    registry.kill("counts", wait_seconds=10)
    clock.now += 9
    assert registry.fire() == []
    assert places.assignment(first) is not None
    with pytest.raises(AlreadyAliveError):
        registry.submit("counts", content())
    clock.now += 2
    assert [flow.name for flow, _ in registry.fire()] == ["counts"]
    assert (registry.flows(), places.used_slots()) == ([], {})
    assert places.assignment(first) is None
    backup = places.last_assignment("counts")
    assert backup is not None
    assert [w.tasks for w in backup.workers] == [(1, 2)]
    second = registry.submit("counts", content())
    assert (second.serial, second.version.number) == (2, 1)
    assert places.assignment(second) is None


def test_a_rebalance_under_way_outlives_a_restart(url: str, clock: Clock) -> None:
    with_first = Store.migrated(url)
    first = Registry(with_first, clock=clock)
    first.submit("counts", content())
    first.deactivate("counts")
    first.rebalance("counts", Request(parallelism={"counts": 2}), wait_seconds=60)
    with_first.close()
    again = Store(url)
    second = Registry(again, clock=clock)
    assert second.flow("counts").status is Status.REBALANCING
    clock.now += 60
    [(flow, _)] = second.fire()
    assert (flow.status, flow.parallelism["counts"], flow.scratch) == (Status.INACTIVE, 2, True)
    again.close()


def test_a_new_leader_waits_the_whole_delay_again(registry: Registry, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        registry.submit(name, content())
    registry.kill("a", wait_seconds=20)
    registry.rebalance("b", wait_seconds=40)
    clock.now += 15
    registry.gain_leadership()
    clock.now += 19
    assert registry.fire() == []
    clock.now += 1
    assert [flow.name for flow, _ in registry.fire()] == ["a"]
    clock.now += 20
    assert [flow.name for flow, _ in registry.fire()] == ["b"]


def test_a_refused_rebalance_changes_nothing(registry: Registry) -> None:
    before = registry.submit("counts", content())
    with pytest.raises(RebalanceError):
        registry.rebalance("counts", Request(parallelism={"nobody": 2}))
    assert registry.flow("counts") == before


def test_history_tells_what_happened_and_pruning_ends_it(store: Store, registry: Registry, clock: Clock) -> None:
    registry.submit("counts", content())
    registry.activate("counts")
    registry.deactivate("counts")
    registry.update("counts", content(text="b"))
    registry.kill("counts", wait_seconds=0)
    registry.fire()
    seen = [(h.event, h.from_status, h.to_status, h.version) for h in registry.history("counts")]
    assert seen == [
        ("SUBMIT", None, Status.ACTIVE, 1),
        ("INACTIVATE", Status.ACTIVE, Status.INACTIVE, 1),
        ("UPDATE", Status.INACTIVE, Status.INACTIVE, 2),
        ("KILL", Status.INACTIVE, Status.KILLED, 2),
        ("REMOVE", Status.KILLED, None, 2),
    ]
    clock.now += 1
    prune(store, days=0, events_a_flow=None, clock=clock)
    assert registry.history("counts") == []
    assert registry.submit("counts", content()).serial == 2, "a serial never comes again"


@pytest.mark.parametrize(("odd", "kept"), [("caf\udce9.yaml", "caf\\udce9.yaml"), ("a\0b", "a\\x00b")], ids=ascii)
def test_texts_of_errors_that_no_database_takes_are_written_out(registry: Registry, odd: str, kept: str) -> None:
    """A name of a file may hold a byte that is no UTF-8, and a message whatever a record says."""
    flow = registry.submit("f", content())
    registry.problem(flow, f"{odd} is not there")
    registry.tell(flow, "TASK_FAILED", {"reason": odd})
    assert registry.flow("f").problem == f"{kept} is not there"
    assert [one.detail for one in registry.history("f")][1:] == [{"problem": f"{kept} is not there"}, {"reason": kept}]
    # Told again it is no other.
    registry.problem(registry.flow("f"), f"{odd} is not there")
    assert len(registry.history("f")) == 3


def test_texts_of_errors_are_kept_shortened(registry: Registry) -> None:
    """A record in a text would go to the registry with every beat."""
    flow = registry.submit("f", content())
    registry.tell(flow, "TASK_FAILED", {"reason": "x" * 10**6, "final": True})
    registry.problem(flow, "y" * 10**6)
    told = [one.detail for one in registry.history("f")]
    assert {"reason": "x" * 2000 + "...", "final": True} in told
    assert registry.flow("f").problem == "y" * 2000 + "..."


# --- places and beats


def test_only_tasks_that_move_get_a_new_start_time(registry: Registry, places: Places, clock: Clock) -> None:
    flow = registry.submit("counts", content())
    began = clock.now
    made = placed(places, flow, {("s1", 1): [2, 1], ("s2", 1): [3, 4]}, "NEW")
    assert (made.revision, made.kind, made.workers[0].tasks) == (1, "NEW", (1, 2))
    lease = registry.leases.take("counts/1", "w", 100)
    beat(places, flow, 1, ("s1", 1), lease, lease_seconds=100, figures={"batch": 7})
    beat(places, flow, 3, ("s2", 1), registry.leases.take("counts/3", "w", 100), lease_seconds=100)
    clock.now += 5
    moved = placed(places, flow, {("s1", 1): [1, 2], ("s3", 2): [3, 4]}, "MONITOR")
    assert moved.revision == 2
    assert [dict(w.started_at) for w in moved.workers] == [{1: began, 2: began}, {3: clock.now, 4: clock.now}]
    assert {task: dict(beat.figures) for task, beat in places.beats(flow).items()} == {1: {"batch": 7}}
    assert places.used_slots() == {("s1", 1): ["counts"], ("s3", 2): ["counts"]}
    with pytest.raises(ValueError, match="assigned twice"):
        placed(places, flow, {("s1", 1): [1], ("s2", 1): [1]}, "NEW")
    assert places.assignment(flow) == moved
    clock.now += 5
    anew = placed(places, flow, {("s1", 1): [1, 2]}, "NEW")
    assert dict(anew.workers[0].started_at) == {1: clock.now, 2: clock.now}
    assert places.beats(flow) == {}


def test_an_assignment_for_an_old_version_leaves_the_wish_for_a_new_one(registry: Registry, places: Places) -> None:
    seen = registry.submit("counts", content(workers=2))
    registry.update("counts", content(workers=3))
    placed(places, seen, {("s1", 1): [1]}, "NEW")
    assert registry.flow("counts").scratch
    placed(places, registry.flow("counts"), {("s1", 1): [1]}, "REBALANCE")
    assert not registry.flow("counts").scratch


def test_a_rebalance_behind_the_planners_back_is_still_wished_for(registry: Registry, places: Places) -> None:
    seen = registry.submit("counts", content())
    registry.rebalance("counts", wait_seconds=0)
    registry.fire()
    placed(places, seen, {("s1", 1): [1]}, "MONITOR")
    assert registry.flow("counts").scratch


def test_dead_tasks_take_their_worker_along(registry: Registry, places: Places, clock: Clock) -> None:
    flow = registry.submit("counts", content())
    placed(places, flow, {("s1", 1): [1, 2], ("s2", 1): [3]}, "NEW")
    leases = {task: registry.leases.take(f"counts/{task}", "w", 1000) for task in (1, 2)}

    def dead() -> set[int]:
        record, beat_at = places.assignment(flow), places.all_beats().get(flow.serial, {})
        return dead_of(record, beat_at, now=clock.now, timeout_seconds=20, launch_seconds=60)

    beat(places, flow, 1, ("s1", 1), leases[1], lease_seconds=1000)
    clock.now += 20
    beat(places, flow, 2, ("s1", 1), leases[2], lease_seconds=1000)
    assert dead() == set()
    clock.now += 1
    assert dead() == {1, 2}, "1 is silent for 21 s, and 2 is in its process"
    beat(places, flow, 1, ("s1", 1), leases[1], lease_seconds=1000)
    assert dead() == set()
    clock.now += 40
    assert dead() == {1, 2, 3}, "3 never beat, 61 s after it was placed"


def test_supervisors_are_kept_with_their_last_beat(places: Places, clock: Clock) -> None:
    places.beat_supervisor("s2", "host2", [1, 2], started_at=clock.now)
    clock.now += 60
    places.beat_supervisor("s1", "host1", [1], started_at=clock.now)
    assert [(s.supervisor, clock.now - s.beat_at) for s in places.supervisors()] == [("s1", 0), ("s2", 60)]
    places.beat_supervisor("s1", "host1", [1, 5], started_at=clock.now)
    assert [s.ports for s in places.supervisors()] == [(1, 5), (1, 2)]


def test_a_late_worker_hears_it_at_its_next_beat(registry: Registry, places: Places, clock: Clock) -> None:
    flow = registry.submit("counts", content())
    old = registry.leases.take("counts/1", "old", 10)
    beat(places, flow, 1, ("s1", 1), old, lease_seconds=10)
    clock.now += 11
    new = registry.leases.take("counts/1", "new", 10)
    beat(places, flow, 1, ("s2", 1), new, lease_seconds=10)
    with pytest.raises(RegistryLeaseLostError):
        beat(places, flow, 1, ("s1", 1), old, lease_seconds=10, figures={"late": True})
    assert places.beats(flow)[1].supervisor == "s2"
    registry.kill("counts", wait_seconds=0)
    registry.fire()
    with pytest.raises(NotAliveError):
        beat(places, flow, 1, ("s2", 1), new, lease_seconds=10)


def test_of_beats_together_those_that_are_refused_leave_nothing(
    registry: Registry, places: Places, clock: Clock
) -> None:
    flows = [registry.submit(name, content()) for name in ("a", "b", "c", "d")]
    leases = [registry.leases.take(f"{flow.name}/1", "w", 10) for flow in flows]
    clock.now += 5
    registry.leases.release(leases[1])
    registry.kill("c", wait_seconds=0)
    registry.fire()
    # In another order than the flows came in.
    beaten = [Beat(flow, 1, lease, {"batch": 7}) for flow, lease in reversed([*zip(flows, leases, strict=True)])]
    refused = places.beat_together(beaten, ("s1", 1), lease_seconds=10)
    assert [type(error) for error in refused] == [type(None), NotAliveError, RegistryLeaseLostError, type(None)]
    assert sorted(places.all_beats()) == [flows[0].serial, flows[3].serial]
    assert places.beats(flows[3])[1].figures == {"batch": 7}
    clock.now += 6
    registry.leases.check(leases[0])
    with pytest.raises(RegistryLeaseLostError):
        registry.leases.check(leases[2])


def test_revisions_are_those_of_the_assignments(registry: Registry, places: Places) -> None:
    flows = [registry.submit(name, content()) for name in ("a", "b")]
    placed(places, flows[1], {("s1", 1): [1]}, "NEW")
    placed(places, flows[1], {("s2", 1): [1]}, "MONITOR")
    assert places.revisions() == {flows[1].serial: 2}
    registry.kill("b", wait_seconds=0)
    registry.fire()
    assert places.revisions() == {}


# --- leases in the registry's own transactions


def test_a_nimbus_that_lost_its_leadership_changes_nothing(registry: Registry, places: Places, clock: Clock) -> None:
    frozen = registry.leases.take("nimbus", "n1", 10)
    flow = registry.submit("counts", content())
    clock.now += 10
    leader = registry.leases.take("nimbus", "n2", 10)
    calls: list[Callable[[], object]] = [
        lambda: registry.fire(under=frozen),
        lambda: registry.gain_leadership(under=frozen),
        lambda: registry.hurry(flow, under=frozen),
        lambda: registry.tell(flow, "PROBLEM", {}, under=frozen),
        lambda: registry.problem(flow, "no slot is free", under=frozen),
        lambda: places.assign_all([Placing(flow, {("s1", 1): [1]}, "NEW")], under=frozen),
    ]
    for call in calls:
        with pytest.raises(RegistryLeaseLostError) as caught:
            call()
        assert (caught.value.token, caught.value.seen_token, caught.value.seen_holder) == (1, 2, "n2")
    assert registry.flows() == [flow]
    assert places.assignment(flow) is None
    registry.problem(flow, "no slot is free", under=leader)
    assert registry.flow("counts").problem == "no slot is free"


def test_attempts_are_fenced(store: Store, clock: Clock) -> None:
    leases, own = Leases(store, clock=clock), MemoryAttemptStore()
    old = FencedAttempts(own, store, leases, leases.take("counts/main", "old", 10))
    coordinator = Coordinator("main", old)
    batch = coordinator.open(0)
    assert (batch.txid, batch.attempt) == (0, 0)
    clock.now += 10
    new = FencedAttempts(own, store, leases, leases.take("counts/main", "new", 10))
    again = Coordinator("main", new).open(0)
    assert again.attempt == 1
    with pytest.raises(RegistryLeaseLostError):
        old.put("main", 0, AttemptRecord(attempt=9))
    assert own.get("main")[0].attempt == 1, "what the registry refuses is not put beside the checkpoint"
    new.put("main", 100, AttemptRecord(3))
    new.forget("main", 100)
    assert new.get("main") == own.get("main") == {100: AttemptRecord(3)}
    clock.now += 10
    with pytest.raises(RegistryLeaseLostError):
        new.put("main", 101, AttemptRecord(0))
