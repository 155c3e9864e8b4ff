"""What holds for every assignment: whatever the cluster, the flow, and what happened to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import AssignmentError, NotEnoughNodesError, NotEnoughWorkersError
from pipelines.nimbus import (
    Assignment,
    Component,
    Demand,
    Supervisor,
    UserWorker,
    number_tasks,
    plan_assignment,
    plan_flows,
    worker_count,
)
from pipelines.nimbus.placement.model import MASTER


@st.composite
def clusters(draw: st.DrawFn, most: int = 6) -> list[Supervisor]:
    found = []
    for n in range(draw(st.integers(1, most))):
        ports = list(range(1, draw(st.integers(1, 6)) + 1))
        found.append(Supervisor(f"s{n}", ports, used=draw(st.lists(st.sampled_from(ports), unique=True))))
    return found


@st.composite
def components(draw: st.DrawFn, apart: bool = False) -> list[Component]:
    spouts = [Component(f"s{n}", draw(st.integers(1, 5)), "spout") for n in range(draw(st.integers(0, 2)))]
    bolts: list[Component] = []
    for n in range(draw(st.integers(1, 3))):
        above = [one.id for one in spouts + bolts]
        inputs = draw(st.lists(st.sampled_from(above), unique=True)) if above else []
        here = apart and draw(st.booleans())
        bolts.append(Component(f"b{n}", draw(st.integers(1, 5)), inputs=inputs, different_nodes=here))
    system = [Component("__acker", draw(st.integers(1, 3)))] if draw(st.booleans()) else []
    masters = [Component(MASTER, 1)] if draw(st.booleans()) else []
    return spouts + bolts + system + masters


@st.composite
def demands(draw: st.DrawFn, apart: bool = False, users: bool = False, name: str = "f") -> Demand:
    parts = draw(components(apart))
    ids = [one.id for one in parts if one.id != MASTER]
    wanted = [
        UserWorker(
            draw(st.dictionaries(st.sampled_from(ids), st.integers(1, 3), min_size=1)),
            draw(st.sampled_from(["", "s0", "s1", "s9"])),
            draw(st.none() | st.integers(1, 6)),
        )
        for _ in range(draw(st.integers(0, 3)) if users else 0)
    ]
    single = draw(st.sampled_from([None, None, True, False]))
    return Demand(name, parts, draw(st.none() | st.integers(1, 8)), user_workers=wanted, single_master=single)


def planned(*args: object, **named: object) -> Assignment | None:
    """An assignment, or None where the planner refuses with a reason."""
    try:
        return plan_assignment(*args, **named)  # type: ignore[arg-type]
    except AssignmentError:
        return None


def sound(found: Assignment, demand: Demand) -> None:
    """Every task once, no slot twice, no worker empty."""
    tasks = [task for one in found.workers for task in one.tasks]
    assert sorted(tasks) == sorted(found.components)
    assert len({one.slot for one in found.workers}) == len(found.workers)
    assert all(one.tasks for one in found.workers)
    assert Counter(found.components.values()) == {one.id: one.tasks for one in demand.components}
    assert found.started.keys() == set(tasks)
    if any(one.kind == "master" for one in demand.components) and worker_count(demand)[1]:
        master = next(task for task, name in found.components.items() if name == MASTER)
        assert any(one.tasks == (master,) for one in found.workers)


def fits(found: Assignment, cluster: list[Supervisor]) -> None:
    """Every worker is in a slot that was free."""
    free = {(one.id, port) for one in cluster for port in set(one.ports) - set(one.used)}
    assert {one.slot for one in found.workers} <= free


def loads(found: Assignment, demand: Demand) -> list[int]:
    """Tasks of each worker, the master's own aside."""
    alone = worker_count(demand)[1]
    return [
        len(one.tasks)
        for one in found.workers
        if not (alone and any(found.components[task] == MASTER for task in one.tasks))
    ]


@given(clusters(), demands())
def test_new_every_task_once_in_free_slots_with_even_loads(cluster: list[Supervisor], demand: Demand) -> None:
    count, _ = worker_count(demand)
    free = sum(len(one.ports) - len(one.used) for one in cluster)
    if free < count:
        with pytest.raises(NotEnoughWorkersError) as refused:
            plan_assignment(cluster, demand)
        assert (refused.value.wanted, refused.value.available) == (count, free)
        return
    found = plan_assignment(cluster, demand)
    sound(found, demand)
    fits(found, cluster)
    even = loads(found, demand)
    assert max(even) - min(even) <= 1
    assert len(found.workers) == count


@given(clusters(), demands())
def test_no_supervisor_gets_a_worker_more_than_another_with_room_and_no_load(
    cluster: list[Supervisor], demand: Demand
) -> None:
    empty = [Supervisor(one.id, one.ports) for one in cluster]
    found = planned(empty, demand)
    if found is None:
        return
    held = Counter(one.supervisor for one in found.workers)
    theory = len(found.workers) // len(empty) + 1
    room = [held[one.id] for one in empty if held[one.id] < len(one.ports)]
    if room and max(held.values()) <= theory:
        assert max(held.values()) - min(room) <= 1


@given(clusters(), demands(users=True))
def test_the_same_input_gives_the_same_assignment(cluster: list[Supervisor], demand: Demand) -> None:
    assert planned(cluster, demand) == planned(cluster[::-1], demand)


@given(clusters(), demands(users=True))
def test_user_defined_workers_are_honoured(cluster: list[Supervisor], demand: Demand) -> None:
    found = planned(cluster, demand)
    if found is None:
        return
    sound(found, demand)
    fits(found, cluster)
    free = {one.id: set(one.ports) - set(one.used) for one in cluster}
    left = {
        one.id: sorted(task for task, name in found.components.items() if name == one.id) for one in demand.components
    }
    followed = not found.notes
    for wanted in demand.user_workers:
        tasks: set[int] = set()
        for name, number in wanted.components.items():
            tasks.update(left[name][:number])
            left[name] = left[name][number:]
        if not tasks or not followed:
            continue
        holding = [one for one in found.workers if tasks <= set(one.tasks)]
        assert holding
        if wanted.host and free.get(wanted.host):
            others = [one for one in found.workers if one.supervisor == wanted.host]
            assert holding[0].host == wanted.host or len(others) == len(free[wanted.host])


@given(clusters(), demands(), st.data())
def test_monitor_moves_only_the_dead(cluster: list[Supervisor], demand: Demand, data: st.DataObject) -> None:
    old = planned(cluster, demand, now=1.0)
    if old is None:
        return
    dead = data.draw(st.sets(st.sampled_from(sorted(old.components))))
    lost = data.draw(st.sets(st.sampled_from([one.id for one in cluster])))
    alive = [one for one in cluster if one.id not in lost]
    masters = {task for task in dead if old.components[task] == MASTER}
    counted = masters or dead
    gone = {task for one in old.workers if one.supervisor in lost or counted & set(one.tasks) for task in one.tasks}
    found = planned(alive, demand, kind="MONITOR", old=old, dead=dead, now=2.0)
    if found is None:
        return
    sound(found, demand)
    assert {one for one in old.workers if not gone & set(one.tasks)} <= set(found.workers)
    assert found.moved <= gone
    assert not {one.supervisor for one in found.workers} & lost
    assert all((found.started[task] == 2.0) == (task in found.moved) for task in found.started)


@given(clusters(), demands(), demands(), st.data())
def test_rebalance_keeps_what_need_not_move(
    cluster: list[Supervisor], demand: Demand, next_demand: Demand, data: st.DataObject
) -> None:
    old = planned(cluster, demand)
    if old is None:
        return
    lost = data.draw(st.sets(st.sampled_from([one.id for one in cluster]), max_size=1))
    alive = [one for one in cluster if one.id not in lost]
    found = planned(alive, next_demand, kind="REBALANCE", old=old)
    if found is None:
        return
    sound(found, next_demand)
    fits(found, alive)
    remaining = set(old.components) & set(found.components)
    assert all(old.components[task] == found.components[task] for task in remaining)
    master = {task for task, name in found.components.items() if name == MASTER}
    if worker_count(next_demand)[1] and master:
        return  # a master that stands alone from now on takes a worker for itself
    kept = {one.slot for one in found.workers}
    places = found.places()
    for task in remaining:
        before = old.places()[task]
        # A task moves only if its worker is no more: its host is dead, or there are to be fewer workers.
        assert places[task] == before or before not in kept or before[0] in lost


@given(clusters(), demands(users=True), st.booleans())
def test_a_rebalance_of_an_unchanged_flow_changes_nothing(
    cluster: list[Supervisor], demand: Demand, as_before: bool
) -> None:
    demand = replace(demand, use_old_assignment=as_before)
    old = planned(cluster, demand)
    if old is None:
        return
    for kind in ("REBALANCE", "MONITOR"):
        found = planned(cluster, demand, kind=kind, old=old)
        assert found is not None
        assert (found.workers, found.moved) == (old.workers, frozenset())


@given(clusters(), demands(), demands())
def test_rebalance_with_reassign_evens_loads(cluster: list[Supervisor], demand: Demand, next_demand: Demand) -> None:
    old = planned(cluster, demand)
    found = old and planned(cluster, next_demand, kind="REBALANCE", old=old, reassign=True)
    if found:
        sound(found, next_demand)
        fits(found, cluster)
        even = loads(found, next_demand)
        assert max(even) - min(even) <= 1


@given(clusters(), demands(apart=True) | demands(apart=True, users=True), st.data())
def test_tasks_on_different_nodes(cluster: list[Supervisor], demand: Demand, data: st.DataObject) -> None:
    apart = {one.id for one in demand.components if one.different_nodes}

    def check(found: Assignment) -> None:
        sound(found, demand)
        for name in apart:
            nodes = [one.host for one in found.workers for task in one.tasks if found.components[task] == name]
            assert len(nodes) == len(set(nodes))

    try:
        old = plan_assignment(cluster, demand)
    except NotEnoughNodesError:
        if demand.user_workers:
            return  # their hosts may leave the others no node
        nodes = sum(len(one.ports) > len(one.used) for one in cluster)
        most = max(one.tasks for one in demand.components if one.different_nodes)
        assert most > min(nodes, worker_count(demand)[0] - worker_count(demand)[1])
        return
    except AssignmentError:
        return
    check(old)
    dead = data.draw(st.sets(st.sampled_from(sorted(old.components))))
    for kind in ("MONITOR", "REBALANCE"):
        if found := planned(cluster, demand, kind=kind, old=old, dead=dead):
            check(found)


@given(clusters(), demands(), st.sets(st.sampled_from(["s0", "s1", "s2", "s3"]), min_size=1))
def test_isolation(cluster: list[Supervisor], demand: Demand, hosts: set[str]) -> None:
    narrow = Demand("f", demand.components, demand.workers, hosts=sorted(hosts))
    found = planned(cluster, narrow)
    if found:
        sound(found, narrow)
        assert {one.host for one in found.workers} <= hosts


@given(clusters(), demands(), st.sets(st.sampled_from(["s0", "s1", "s2", "s3"]), min_size=1))
def test_blacklisted_hosts_are_used_only_when_others_are_full(
    cluster: list[Supervisor], demand: Demand, bad: set[str]
) -> None:
    found, without = planned(cluster, demand, blacklist=sorted(bad)), planned(cluster, demand)
    assert (found is None) == (without is None)
    if found:
        sound(found, demand)
        good = sum(len(one.ports) - len(one.used) for one in cluster if one.id not in bad)
        assert {one.host for one in found.workers} & bad <= set(found.released)
        assert bool(found.released) == (good < worker_count(demand)[0])


@pytest.mark.slow
@given(clusters(), st.lists(demands(users=True), min_size=1, max_size=5), st.data())
def test_many_flows_share_no_slot(cluster: list[Supervisor], several: list[Demand], data: st.DataObject) -> None:
    named = [
        Demand(f"f{n}", one.components, one.workers, user_workers=one.user_workers, single_master=one.single_master)
        for n, one in enumerate(several)
    ]
    first = plan_flows(cluster, named)
    lost = data.draw(st.sampled_from(cluster))
    alive = [one for one in cluster if one is not lost]
    second = plan_flows(alive, named, kind="MONITOR", old=first.assignments)
    for plan, up in ((first, cluster), (second, alive)):
        slots = [one.slot for found in plan.assignments.values() for one in found.workers]
        assert len(slots) == len(set(slots))
        assert plan.assignments.keys() | plan.refused.keys() == {one.flow for one in named}
        for found in plan.assignments.values():
            fits(found, up)


@given(components(), components())
def test_task_ids(before: list[Component], after: list[Component]) -> None:
    old = number_tasks(before)
    assert sorted(old) == list(range(1, len(old) + 1))
    new = number_tasks(after, old)
    assert Counter(new.values()) == {one.id: one.tasks for one in after}
    assert all(new[task] == old[task] for task in new if task in old)
