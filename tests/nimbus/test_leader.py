"""The leader over a registry: what is placed, when, where, and what is not moved. No Spark, no processes, no waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Row, update

from pipelines.nimbus.errors import DeployError, RegistryError
from pipelines.nimbus.placement.model import Assignment, Demand
from pipelines.nimbus.placement.planner import plan_assignment
from pipelines.nimbus.processes.leader import Leader
from pipelines.nimbus.registry.leases import LEASE, Lease
from pipelines.nimbus.registry.lifecycle import Request, Status
from pipelines.nimbus.registry.placements import Places
from pipelines.nimbus.registry.records import AssignmentRecord, Content, DeployedFlow
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.tables import beats, versions
from tests.nimbus.beats import beat
from tests.nimbus.led_cluster import Cluster, definition


def test_a_flow_gets_a_slot_at_once(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2])
    cluster.submit("a", queries=3)
    cluster.look(0)
    assert cluster.places_of("a") == {("s1", 1): (1, 2, 3)} or cluster.places_of("a") == {("s1", 2): (1, 2, 3)}


@pytest.mark.parametrize("old", [True, False])
def test_a_flow_that_is_submitted_again_goes_where_it_was_if_it_asks_for_that(cluster: Cluster, old: bool) -> None:
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    settings = {"isolated": True, "use_old_assignment": old}
    for name in ("a", "b"):
        cluster.submit(name, **settings)
        cluster.look(0)
    before = {name: cluster.places_of(name) for name in ("a", "b")}
    for name in ("a", "b"):
        cluster.registry.kill(name, wait_seconds=0)
        cluster.look(1)
    for name in ("b", "a"):
        cluster.submit(name, **settings)
        cluster.look(0)
    assert ({name: cluster.places_of(name) for name in ("a", "b")} == before) is old


def test_a_former_slot_that_is_taken_or_gone_is_not_waited_for(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1], s2=[1])
    cluster.submit("a", isolated=True, use_old_assignment=True)
    cluster.look(0)
    (before,) = cluster.places_of("a")
    cluster.registry.kill("a", wait_seconds=0)
    cluster.look(1)
    cluster.submit("b", hosts=[before[0]])
    cluster.look(0)
    cluster.submit("a", isolated=True, use_old_assignment=True)
    cluster.look(0)
    assert before in cluster.places_of("b")
    assert cluster.places_of("a")
    assert before not in cluster.places_of("a")


def test_small_flows_share_an_application_and_others_have_their_own(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2, 3, 4])
    for name in ("a", "b"):
        cluster.submit(name)
    cluster.submit("c", isolated=True)
    cluster.submit("d", master="spark://h:7077")
    cluster.look()
    assert cluster.places_of("a").keys() == cluster.places_of("b").keys()
    slots = [next(iter(cluster.places_of(name))) for name in "acd"]
    assert len(set(slots)) == 3


def test_a_flow_that_joins_an_application_moves_nobody(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    cluster.submit("a", queries=2)
    cluster.look()
    before = cluster.places.assignment(cluster.registry.flow("a"))
    cluster.submit("b")
    cluster.look()
    assert cluster.places.assignment(cluster.registry.flow("a")) == before
    assert cluster.places_of("b").keys() == cluster.places_of("a").keys()


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"a": {"hosts": ["s1"]}, "b": {"hosts": ["s2"]}}, "hosts"),
        ({"a": {"master": "spark://one:7077"}, "b": {"master": "spark://two:7077"}}, "master"),
    ],
)
def test_flows_of_one_application_that_do_not_agree_are_not_placed_together(
    cluster: Cluster, order: str, settings: dict[str, dict[str, object]], told: str
) -> None:
    """Nimbus rules 5.3.1: the only hosts that it may use. The later flow hears which one is in its way."""
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    for name in order:
        cluster.submit(name, application="x", **settings[name])
        cluster.look(0)
    first, later = order
    assert cluster.places_of(first)
    assert cluster.registry.flow(first).problem is None
    assert not cluster.places_of(later)
    problem = str(cluster.registry.flow(later).problem)
    assert told in problem
    assert f"in the same application {first} names" in problem
    cluster.update(later, application="x")
    cluster.look(1)
    assert cluster.places_of(later).keys() == cluster.places_of(first).keys()
    assert cluster.registry.flow(later).problem is None


def test_an_application_runs_on_the_hosts_that_all_its_flows_name(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2], s2=[1, 2], s3=[1, 2])
    for name, hosts in (("a", ["s3", "s2"]), ("b", ["s1", "s2"]), ("c", []), ("d", ["s1", "s3"])):
        cluster.submit(name, application="x", hosts=hosts)
    cluster.look(0)
    places = [cluster.places_of(name) for name in "abc"]
    assert {supervisor for place in places for supervisor, _ in place} == {"s2"}
    assert "a names s3, s2; b names s1, s2" in str(cluster.registry.flow("d").problem)
    # One that stands does not give way to who asks for something else later.
    cluster.registry.kill("d", wait_seconds=0)
    cluster.update("a", application="x", hosts=["s3"])
    cluster.look(1)
    assert {supervisor for supervisor, _ in cluster.places_of("b")} == {"s2"}
    assert "it names the hosts s3" in str(cluster.registry.flow("a").problem)
    assert {supervisor for supervisor, _ in cluster.places_of("a")} == {"s2"}


def test_a_version_with_an_application_of_its_own_leaves_the_shared_one(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2], s2=[1])
    for name in ("a", "b"):
        cluster.submit(name)
    cluster.look()
    (shared,) = cluster.places_of("b")
    cluster.update("a", hosts=["s2"])
    cluster.look()
    assert cluster.places_of("a") == {("s2", 1): (1,)}
    assert cluster.places_of("b") == {shared: (1,)}
    cluster.update("a", master="spark://h:7077")
    cluster.look()
    (own,) = cluster.places_of("a")
    assert own != shared
    cluster.update("a")
    cluster.look()
    assert cluster.places_of("a") == cluster.places_of("b") == {shared: (1,)}


def test_what_was_placed_in_a_round_that_was_broken_off_is_not_written_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.supervisors(s1=[1])
    first, second = cluster.submit("a", isolated=True), cluster.submit("b", isolated=True)

    def fails(leader: Leader, application: str, members: list[DeployedFlow], *rest: Any) -> None:
        if members[0].serial == second.serial:
            raise RegistryError("sqlite://", "does not answer")
        place(leader, application, members, *rest)

    place = Leader._place
    with monkeypatch.context() as patched:
        patched.setattr(Leader, "_place", fails)
        with pytest.raises(RegistryError):
            cluster.look(0)
    cluster.leader.resign()
    other = cluster.another("two")
    cluster.clock.now += 60
    cluster.supervisors(s2=[1, 2])
    other.tick()
    assert cluster.places_of("a").keys() <= {("s2", 1), ("s2", 2)}
    cluster.beat(first)
    other.resign()
    before = cluster.places_of("a")
    cluster.leader.tick()
    assert cluster.places_of("a") == before


def test_queries_of_one_flow_are_spread_over_its_workers(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    cluster.submit("a", queries=4, workers=2)
    cluster.look()
    found = cluster.places_of("a")
    assert sorted(map(len, found.values())) == [2, 2]
    assert {supervisor for supervisor, _ in found} == {"s1", "s2"}


def test_not_enough_slots_is_said_with_the_numbers_and_mended_by_a_new_supervisor(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1])
    cluster.submit("a", queries=2, workers=2)
    cluster.look()
    problem = str(cluster.registry.flow("a").problem)
    assert problem.startswith("it cannot be placed: NotEnoughWorkersError: ")
    assert "allocWorkerNum=2, availableWorkerNum=1" in problem
    assert cluster.places_of("a") == {}
    told = [line for line in cluster.registry.history("a") if line.event == "PROBLEM"]
    cluster.look()
    assert len([line for line in cluster.registry.history("a") if line.event == "PROBLEM"]) == len(told) == 1
    cluster.supervisors(s1=[1], s2=[1])
    cluster.look()
    assert len(cluster.places_of("a")) == 2
    assert cluster.registry.flow("a").problem is None


def test_a_host_that_nobody_has_is_named(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2])
    cluster.submit("a", hosts=["vm-7"])
    cluster.look(0)
    problem = str(cluster.registry.flow("a").problem)
    assert "on the hosts vm-7 (supervisors are on: s1)" in problem


def test_no_supervisor_is_said_too(cluster: Cluster) -> None:
    cluster.submit("a")
    cluster.look()
    assert "no alive supervisor" in str(cluster.registry.flow("a").problem)


def test_silent_tasks_of_a_dead_supervisor_are_placed_again_and_others_stay(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1], s2=[1], s3=[1])
    flow = cluster.submit("a", queries=3, workers=2)
    cluster.look()
    cluster.beat(flow)
    dead = next(iter(cluster.places_of("a")))
    before = cluster.places_of("a")
    cluster.clock.now += 61
    cluster.supervisors(**{name: [1] for name in ("s1", "s2", "s3") if name != dead[0]})
    # The tasks of the living beat on.
    for slot, tasks in before.items():
        for task in tasks if slot != dead else ():
            lease = cluster.registry.leases.take(f"again:{task}", "w", 1000)
            beat(cluster.places, flow, task, slot, lease, lease_seconds=1000, figures={})
    cluster.look()
    after = cluster.places_of("a")
    assert dead not in after
    assert sorted(task for tasks in after.values() for task in tasks) == [1, 2, 3]
    for slot, tasks in before.items():
        if slot != dead:
            assert set(tasks) <= set(after[slot])


@pytest.mark.parametrize("unmet", ["rebalance", "update", "another flow", "another flow's update", "nothing"])
def test_a_lost_host_is_replaced_though_a_wish_cannot_be_met(cluster: Cluster, unmet: str) -> None:
    """docs/faults.md: on other hosts that have free slots. The wish stays, and is met once it can be."""
    cluster.supervisors(s1=[1], s2=[1])
    cluster.submit("a", queries=3, application="x")
    cluster.look(0)
    ((here, _),) = cluster.places_of("a")
    left = "s2" if here == "s1" else "s1"
    if unmet == "another flow's update":
        flow = cluster.submit("b", application="x")
        cluster.look(0)
        cluster.beat(flow)
    wish_of(cluster, unmet)
    cluster.look(1)
    for _ in range(20):
        cluster.supervisors(**{left: [1]})
        cluster.look()
    assert {supervisor for supervisor, _ in cluster.places_of("a")} == {left}
    if unmet == "nothing":
        return
    assert str(cluster.registry.flow("a").problem).startswith("it stays where it is: ")
    if unmet == "another flow's update":
        assert str(cluster.registry.flow("b").problem).startswith("it cannot be placed: ")
    assert (unmet in ("rebalance", "update")) is cluster.registry.flow("a").scratch
    revision = cluster.places.revisions()
    cluster.supervisors(**{left: [1]})
    cluster.beat(cluster.registry.flow("a"))
    cluster.look()
    assert cluster.places.revisions() == revision
    cluster.supervisors(**{left: [1, 2, 3], "s7": [1]})
    cluster.look()
    assert cluster.registry.flow("a").problem is None
    assert len(cluster.places_of("a")) == (3 if cluster.registry.flow("a").workers == 3 else 1)


def test_a_recovery_in_other_slots_forgets_no_wish(cluster: Cluster) -> None:
    """Its new version has an application of its own: the slots so far are all the former one's."""
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    for name in "ab":
        cluster.submit(name, queries=4)
    cluster.look(0)
    for name in "ab":
        cluster.beat(cluster.registry.flow(name))
    ((here, _),) = cluster.places_of("a")
    left = "s2" if here == "s1" else "s1"
    cluster.registry.update("a", replace(cluster.registry.flow("a").version.content, workers=4))
    cluster.look(1)
    for _ in range(20):
        cluster.supervisors(**{left: [1, 2]})
        cluster.look()
    assert [supervisor for supervisor, _ in cluster.places_of("a")] == [left]
    assert cluster.registry.flow("a").scratch
    assert str(cluster.registry.flow("a").problem).startswith("it stays where it is: ")
    cluster.supervisors(**{left: [1, 2], "s7": [1, 2, 3]})
    cluster.look()
    assert len(cluster.places_of("a")) == 4
    assert cluster.registry.flow("a").problem is None


def test_a_flow_that_does_not_agree_is_recovered_too(cluster: Cluster) -> None:
    """Alone, in a slot that those that agree have not taken."""
    cluster.supervisors(s1=[1], s2=[1])
    for name in "ab":
        cluster.submit(name, application="x")
    cluster.look(0)
    for name in "ab":
        cluster.beat(cluster.registry.flow(name))
    ((here, _),) = cluster.places_of("b")
    left = "s2" if here == "s1" else "s1"
    cluster.update("b", application="x", master="spark://two:7077")
    cluster.update("a", application="x", master="spark://one:7077")
    cluster.look(1)
    assert "names the master" in str(cluster.registry.flow("b").problem)
    for _ in range(20):
        cluster.supervisors(**{left: [1]})
        cluster.look()
    assert cluster.places_of("a") == {(left, 1): (1,)}
    assert str(cluster.registry.flow("b").problem).startswith("it cannot be placed: ")
    cluster.beat(cluster.registry.flow("a"))
    cluster.supervisors(**{left: [1, 2]})
    cluster.look()
    assert (cluster.places_of("a"), cluster.places_of("b")) == ({(left, 1): (1,)}, {(left, 2): (1,)})
    assert str(cluster.registry.flow("b").problem).startswith("it stays where it is: ")
    assert cluster.registry.flow("b").scratch


def test_a_lost_host_is_replaced_while_another_flow_drains(cluster: Cluster) -> None:
    """It drains for an hour, and an earlier wish of the application is still unmet."""
    cluster.supervisors(s1=[1], s2=[1])
    for name in "ac":
        cluster.submit(name, queries=3, application="x")
    cluster.look(0)
    cluster.beat(cluster.registry.flow("c"))
    ((here, _),) = cluster.places_of("a")
    left = "s2" if here == "s1" else "s1"
    wish_of(cluster, "update")
    cluster.look(1)
    cluster.registry.rebalance("c", Request(), wait_seconds=3600)
    cluster.look(1)
    for _ in range(20):
        cluster.supervisors(**{left: [1]})
        cluster.look()
    assert [{*cluster.places_of(name)} for name in "ac"] == [{(left, 1)}] * 2
    assert cluster.registry.flow("a").scratch


def wish_of(cluster: Cluster, unmet: str) -> None:
    cluster.beat(cluster.registry.flow("a"))
    match unmet:
        case "rebalance":
            cluster.registry.rebalance("a", Request(workers=3), wait_seconds=10)
            cluster.look(1)
            cluster.beat(cluster.registry.flow("a"), "drained")
        case "update":
            cluster.registry.update("a", replace(cluster.registry.flow("a").version.content, workers=3))
        case "another flow":
            cluster.submit("b", application="x", hosts=["s7"])
        case "another flow's update":
            cluster.update("b", application="x", hosts=["s7"])


def test_of_a_flow_that_goes_on_nobody_says_that_it_has_no_place(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2])
    cluster.submit("a", queries=3)
    cluster.look(0)
    wish_of(cluster, "rebalance")
    cluster.look(1)
    cluster.beat(cluster.registry.flow("a"), "drained")
    cluster.look(1)
    seen = cluster.registry.flow("a")
    assert (seen.status, len(cluster.places_of("a"))) == (Status.ACTIVE, 1)
    assert str(seen.problem).startswith("it stays where it is: ")
    cluster.supervisors(s1=[])
    cluster.look(1000)
    assert str(cluster.registry.flow("a").problem).startswith("it cannot be placed: ")
    cluster.supervisors(s1=[1])
    cluster.registry.rebalance("a", Request(workers=1), wait_seconds=0)
    cluster.look(0)
    assert cluster.registry.flow("a").problem is None


def test_tasks_that_beat_are_left_alone_though_their_supervisor_is_dead(cluster: Cluster) -> None:
    """Nimbus rules 5.1.4."""
    cluster.supervisors(s1=[1], s2=[1])
    flow = cluster.submit("a")
    cluster.look()
    before = cluster.places_of("a")
    (dead, _) = next(iter(before))
    cluster.clock.now += 61
    cluster.supervisors(**{name: [1] for name in ("s1", "s2") if name != dead})
    cluster.beat(flow)
    cluster.look()
    assert cluster.places_of("a") == before


def test_a_task_whose_supervisor_lives_has_the_time_of_a_launch(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1], s2=[1])
    flow = cluster.submit("a")
    cluster.look()
    cluster.beat(flow)
    before = cluster.places.assignment(flow)
    cluster.clock.now += 60
    cluster.supervisors(s1=[1], s2=[1])
    cluster.look()
    assert cluster.places.assignment(flow) == before


def test_a_task_in_a_slot_that_its_supervisor_no_longer_offers_is_not_waited_for_so_long(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2])
    flow = cluster.submit("a")
    cluster.look()
    cluster.beat(flow)
    ((_, port),) = cluster.places_of("a")
    cluster.clock.now += 31
    cluster.supervisors(s1=[3 - port])
    cluster.look()
    assert cluster.places_of("a") == {("s1", 3 - port): (1,)}


@pytest.mark.parametrize("before", [False, True], ids=["never", "once"])
def test_flows_stay_beside_one_that_does_not_begin_in_their_process(cluster: Cluster, before: bool) -> None:
    """It cannot be loaded, or waits for a lease. Another slot would stop the others in mid-batch, and mend nothing."""
    cluster.supervisors(s1=[1, 2])
    good, broken = cluster.submit("good", queries=2), cluster.submit("broken")
    cluster.look()
    if before:
        cluster.beat(broken)
    places = cluster.places_of("good")
    for _ in range(40):
        cluster.supervisors(s1=[1, 2])
        cluster.beat(good, tasks={1})
        cluster.look()
        assert cluster.places_of("good") == places
        assert cluster.places_of("broken").keys() == places.keys()
    # Once none of them beats, the process is dead.
    for _ in range(26):
        cluster.supervisors(s1=[1, 2])
        cluster.look()
    assert cluster.places_of("good").keys() == cluster.places_of("broken").keys() != places.keys()


def test_a_rebalance_goes_on_when_all_have_drained(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    flow = cluster.submit("a", queries=2)
    cluster.look()
    cluster.beat(flow)
    cluster.registry.rebalance("a", Request(workers=2), wait_seconds=30)
    cluster.look(1)
    assert cluster.registry.flow("a").status is Status.REBALANCING
    assert len(cluster.places_of("a")) == 1
    cluster.clock.now += 1
    cluster.beat(flow, "drained")
    cluster.look(0)
    assert cluster.registry.flow("a").status is Status.ACTIVE
    cluster.look(1)
    assert len(cluster.places_of("a")) == 2


def test_a_rebalance_waits_no_longer_than_it_was_told(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2])
    flow = cluster.submit("a")
    cluster.look()
    cluster.beat(flow)
    cluster.registry.rebalance("a", Request(parallelism={"q0": 3}), wait_seconds=10)
    cluster.look(9)
    cluster.beat(flow, "draining")
    assert cluster.registry.flow("a").status is Status.REBALANCING
    cluster.look(2)
    assert cluster.registry.flow("a").status is Status.ACTIVE
    assert cluster.registry.flow("a").parallelism == {"q0": 3}


def test_a_rebalance_that_changes_nothing_moves_nothing(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    flow = cluster.submit("a", queries=3, workers=2)
    cluster.look()
    before = cluster.places_of("a")
    cluster.beat(flow)
    cluster.registry.rebalance("a", Request(parallelism={"q1": 2}), wait_seconds=0)
    cluster.look()
    assert cluster.places_of("a") == before
    assert not cluster.registry.flow("a").scratch


@pytest.mark.parametrize("queries", [["q0", "q1", "q2"], ["q0", "q1"]])
def test_a_rebalance_of_a_flow_that_needs_fewer_workers_moves_nothing(cluster: Cluster, queries: list[str]) -> None:
    """A user-defined worker holds all tasks, or all but one: no rebalance makes three workers of that."""
    cluster.supervisors(s1=[1, 2, 3, 4])
    cluster.submit("other", isolated=True)
    cluster.look(0)
    together = {"components": dict.fromkeys(queries, 1)}
    cluster.submit("a", queries=3, workers=3, user_workers=[together, {"components": {"q1": 1}}])
    cluster.look(0)
    before = cluster.places_of("a")
    cluster.registry.kill("other", wait_seconds=0)
    cluster.look(1)
    cluster.registry.rebalance("a", Request(), wait_seconds=0)
    cluster.look(1)
    assert cluster.places_of("a") == before
    assert len(before) < 3


def test_a_killed_flow_keeps_its_slot_until_it_is_removed(cluster: Cluster) -> None:
    """Nimbus rules 3, testKillStorm."""
    cluster.supervisors(s1=[1])
    cluster.submit("a", isolated=True)
    cluster.look()
    cluster.registry.kill("a", wait_seconds=20)
    cluster.submit("b", isolated=True)
    cluster.look(18)
    assert cluster.places_of("a") == {("s1", 1): (1,)}
    assert cluster.places_of("b") == {}
    cluster.supervisors(s1=[1])
    cluster.look(3)
    assert [flow.name for flow in cluster.registry.flows()] == ["b"]
    cluster.look()
    assert cluster.places_of("b") == {("s1", 1): (1,)}


def test_a_killed_flow_is_removed_as_soon_as_it_has_drained(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1])
    flow = cluster.submit("a", queries=2)
    cluster.look()
    cluster.beat(flow)
    cluster.registry.kill("a", wait_seconds=30)
    cluster.look(1)
    assert cluster.registry.flow("a").status is Status.KILLED
    cluster.clock.now += 1
    cluster.beat(flow, "drained")
    cluster.look(0)
    assert cluster.registry.flows() == []
    assert cluster.registry.history("a")[-1].event == "REMOVE"


def test_a_killed_flow_waits_for_a_worker_that_has_not_beaten_yet(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1], s2=[1])
    flow = cluster.submit("a", queries=2, workers=2)
    cluster.look()
    cluster.registry.kill("a", wait_seconds=30)
    cluster.clock.now += 1
    cluster.beat(flow, "drained", tasks={1})
    cluster.look(1)
    assert [flow.name for flow in cluster.registry.flows()] == ["a"]
    cluster.beat(flow, "drained", tasks={2})
    cluster.look(0)
    assert cluster.registry.flows() == []


def test_one_leads_and_another_takes_over(cluster: Cluster) -> None:
    other = cluster.another("two")
    cluster.supervisors(s1=[1])
    cluster.leader.tick()
    other.tick()
    assert cluster.holder() == "supervisor:one"
    cluster.clock.now += 16
    other.tick()
    assert cluster.holder() == "supervisor:two"
    cluster.submit("a")
    # The first one was frozen; it finds out, and changes nothing.
    cluster.leader.tick()
    assert cluster.places_of("a") == {}
    assert cluster.holder() == "supervisor:two"


def test_a_kill_comes_due_also_where_beats_are_seldom(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, beat_seconds=20, lease_seconds=60, task_timeout_seconds=60)
    cluster.leader = cluster.another("one")
    cluster.submit("a")
    cluster.leader.tick()
    cluster.registry.kill("a", wait_seconds=30)
    for _ in range(2):
        cluster.clock.now += 20
        cluster.leader.tick()
        assert [lease.token for lease in [cluster.registry.leases.holder(LEASE)] if lease] == [1]
    assert cluster.registry.flows() == []


@pytest.mark.parametrize("taken", [False, True], ids=["by nobody", "by another"])
def test_a_delay_begins_again_only_if_another_led_meanwhile(cluster: Cluster, taken: bool) -> None:
    cluster.submit("a")
    cluster.leader.tick()
    cluster.registry.kill("a", wait_seconds=30)
    cluster.clock.now += 20
    if taken:
        # It led for a moment, and whoever it was has changed nothing.
        cluster.registry.leases.release(cluster.registry.leases.take(LEASE, "two", 1))
    cluster.leader.tick()
    assert cluster.holder() == "supervisor:one"
    cluster.clock.now += 11
    cluster.leader.tick()
    assert [flow.name for flow in cluster.registry.flows()] == (["a"] if taken else [])


def test_who_resigns_lets_another_lead_at_once(cluster: Cluster) -> None:
    other = cluster.another("two")
    cluster.leader.tick()
    cluster.leader.resign()
    other.tick()
    assert cluster.holder() == "supervisor:two"


def test_hosts_that_fail_again_and_again_are_left_out(cluster: Cluster) -> None:
    """Nimbus rules 2.6: three rounds without it within five minutes."""
    cluster.supervisors(s1=[1], s2=[1])
    cluster.look()
    for _ in range(3):
        cluster.clock.now += 61
        cluster.supervisors(s2=[1])
        cluster.look()
    cluster.supervisors(s1=[1], s2=[1])
    cluster.submit("a")
    cluster.look()
    assert {supervisor for supervisor, _ in cluster.places_of("a")} == {"s2"}
    seen = {beat.supervisor: beat.blacklisted for beat in cluster.places.supervisors()}
    assert seen == {"s1": True, "s2": False}
    # Another leader does not know what this one has seen.
    cluster.leader.resign()
    cluster.leader = cluster.another("two")
    cluster.look()
    assert not any(beat.blacklisted for beat in cluster.places.supervisors())


@pytest.mark.parametrize("event", ["fewer slots", "away"])
@pytest.mark.parametrize("then", ["a flow joins", "another is rebalanced", "it is rebalanced"])
def test_what_lives_on_a_host_that_is_left_out_stays(cluster: Cluster, event: str, then: str) -> None:
    """Nimbus rules 2.1.4. Its supervisor was started again, and all queries have beaten all the time."""
    fewer = event == "fewer slots"
    cluster.supervisors(s1=[1, 2, 3, 4], s2=[1])
    flows = [cluster.submit(name) for name in ("a", "c")]
    cluster.look(0)
    before = cluster.places_of("a")
    assert {supervisor for supervisor, _ in before} == {"s1"}
    rounds = 4 if fewer else 18
    for gone in [True] * rounds + [False]:
        cluster.supervisors(s2=[1], **({"s1": [1, 2]} if fewer else {} if gone else {"s1": [1, 2, 3, 4]}))
        for flow in flows:
            cluster.beat(flow)
        cluster.look()
    assert cluster.places_of("a") == before
    assert [beat.supervisor for beat in cluster.places.supervisors() if beat.blacklisted] == ["s1"]
    if then == "a flow joins":
        cluster.submit("b")
    else:
        for name in ("a", "c") if then == "it is rebalanced" else ("c",):
            cluster.registry.rebalance(name, wait_seconds=0)
    cluster.look(1)
    # Who asks for it leaves the host, with all that share its application.
    assert (cluster.places_of("a") == before) is (then != "it is rebalanced")


@pytest.mark.parametrize("what", ["kill", "rebalance"])
def test_many_delays_at_once_are_over_in_one_round(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Each write takes its time, all together longer than a lease lasts: the lease is renewed among them."""
    monkeypatch.setattr("pipelines.nimbus.processes.leader._FIRED_AT_ONCE", 7)
    cluster.supervisors(s1=[1])
    flows = [cluster.submit(f"f{number}") for number in range(20)]
    cluster.look(0)
    for flow in flows:
        getattr(cluster.registry, what)(flow.name, wait_seconds=100_000)
    cluster.clock.now += 1
    for flow in flows:
        cluster.beat(flow, "drained")
    due = cluster.registry.submit("due", Content(definition("due", ["q0"]), {"q0": 1}))
    getattr(cluster.registry, what)(due.name, wait_seconds=0)
    registry, places = cluster.leader._registry, cluster.leader._places
    hurried: list[str] = []
    fired: list[int] = []
    hurry, fire = registry.hurry, registry.fire

    def slowly(flow: DeployedFlow, *, under: Lease | None = None) -> bool:
        hurried.append(flow.name)
        cluster.clock.now += 2
        return hurry(flow, under=under)

    def also_slowly(*given: Any, **more: Any) -> Any:
        done = fire(*given, **more)
        cluster.clock.now += 10
        fired.append(len(done))
        return done

    def never(*_: object) -> None:
        raise AssertionError("a query a flow")

    monkeypatch.setattr(registry, "hurry", slowly)
    monkeypatch.setattr(registry, "fire", also_slowly)
    for name in ("beats", "assignment"):
        monkeypatch.setattr(places, name, never)
    cluster.leader.tick()
    assert sorted(hurried) == sorted(flow.name for flow in flows), "not the one that is due"
    assert sum(fired) == 21
    assert max(fired) == 7
    assert [flow.status for flow in cluster.registry.flows()] == ([] if what == "kill" else ["ACTIVE"] * 21)
    assert cluster.holder() == "supervisor:one"


def test_figures_that_cannot_be_read_are_those_of_a_task_that_has_not_drained(cluster: Cluster) -> None:
    """Another release has written them: the leader leads on."""
    cluster.supervisors(s1=[1])
    flow = cluster.submit("a")
    cluster.look(0)
    cluster.beat(flow)
    cluster.registry.rebalance("a", wait_seconds=20)
    cluster.look(1)
    cluster.beat(flow, "drained")
    with cluster.store.write() as connection:
        connection.execute(update(beats).values(figures=["drained"]))
    cluster.look(1)
    assert cluster.registry.flow("a").status == "REBALANCING"
    cluster.look(20)
    assert cluster.registry.flow("a").status == "ACTIVE"


def test_old_records_go_by_themselves(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1])
    cluster.submit("a")
    cluster.registry.kill("a", wait_seconds=0)
    cluster.look()
    assert cluster.registry.history("a")[-1].event == "REMOVE"
    cluster.clock.now += 31 * 86_400
    cluster.another("two").tick()
    assert cluster.registry.history("a") == []


@pytest.mark.parametrize(
    "settings",
    [
        {"user_workers": [1]},
        {"hosts": [1, "a"]},
        {"user_workers": [{"components": {"nobody": 1}}]},
        {"user_workers": 5},
        {"max_attempts": -5},
        {"isolated": True, "user_workers": [{"components": "q0"}]},
    ],
)
def test_settings_that_cannot_be_read_are_the_problem_of_their_flow_alone(
    cluster: Cluster, settings: dict[str, object]
) -> None:
    """Another release may have let them in: the leader leads on, and so would every other one."""
    cluster.supervisors(s1=[1, 2])
    cluster.submit("a")
    cluster.submit("b", **settings)
    cluster.submit("c")
    cluster.look()
    assert len(cluster.places_of("a")) == len(cluster.places_of("c")) == 1
    assert cluster.places_of("b") == {}
    problem = str(cluster.registry.flow("b").problem)
    assert "cannot be placed" in problem
    assert next(iter(settings)) in problem or "user_workers" in problem
    assert cluster.registry.flow("a").problem is None
    cluster.registry.rebalance(
        "b", Request(settings=dict.fromkeys(settings, ()) | {"max_attempts": 3, "isolated": False})
    )
    cluster.look(31)
    cluster.supervisors(s1=[1, 2])
    cluster.look()
    assert len(cluster.places_of("b")) == 1


def test_a_version_that_cannot_be_read_is_the_problem_of_its_flow_alone(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2])
    cluster.registry.submit("b", Content({"kind": "catalog", "queries": [{"group": 5}]}, {"q": 1}, 1, {}))
    cluster.submit("a")
    cluster.look()
    assert len(cluster.places_of("a")) == 1
    assert "version 1 in the registry cannot be read" in str(cluster.registry.flow("b").problem)


def test_a_problem_goes_with_its_cause_where_nothing_is_to_be_placed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(flow: DeployedFlow) -> None:
        raise DeployError(flow.name, "version 1 in the registry cannot be read")

    cluster.supervisors(s1=[1])
    flow = cluster.submit("a")
    cluster.look()
    cluster.beat(flow)
    with monkeypatch.context() as other_release:
        other_release.setattr("pipelines.nimbus.processes.leader.check_deployed", refuses)
        cluster.leader = cluster.another("two")
        cluster.look(60)
        assert "cannot be read" in str(cluster.registry.flow("a").problem)
    for _ in range(2):
        # The second time nobody is left for it, and then its supervisor and its worker are back, where they were.
        cluster.supervisors(s1=[1])
        cluster.beat(flow)
        cluster.look()
        assert cluster.registry.flow("a").problem is None
        cluster.clock.now += 1_000
        cluster.look()
        assert "no alive supervisor" in str(cluster.registry.flow("a").problem)
    cluster.supervisors(s1=[1])
    cluster.beat(flow)
    cluster.look()
    assert cluster.registry.flow("a").problem is None


def test_the_problem_of_a_worker_is_not_the_leaders_to_take_back(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1])
    flow = cluster.submit("a")
    cluster.look()
    cluster.beat(flow)
    cluster.registry.problem(cluster.registry.flow("a"), "version 1 was deployed from plan X")
    cluster.look()
    assert cluster.registry.flow("a").problem == "version 1 was deployed from plan X"


def test_what_nobody_foresaw_in_placing_is_the_problem_of_its_application(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.nimbus.processes import leader

    def planned(supervisors: object, demand: Demand, **_: object) -> Assignment:
        if demand.flow == "b":
            raise KeyError("odd")
        return plan_assignment(supervisors, demand, **_)  # type: ignore[arg-type]

    monkeypatch.setattr(leader, "plan_assignment", planned)
    cluster.supervisors(s1=[1, 2])
    cluster.submit("b", isolated=True)
    cluster.submit("a")
    cluster.look()
    assert len(cluster.places_of("a")) == 1
    assert "cannot be placed: KeyError: 'odd'" in str(cluster.registry.flow("b").problem)


def test_a_text_that_postgresql_cannot_read_back_is_the_problem_of_its_flow_alone(cluster: Cluster) -> None:
    """An earlier release has let it in: half a character, from the name of a folder that is not UTF-8."""
    cluster.supervisors(s1=[1, 2, 3])
    flows = {name: cluster.submit(name, isolated=True) for name in "abc"}
    odd = {**flows["b"].version.content.definition, "file": "/caf\udce9/b.yaml"}
    with cluster.store.write() as connection:
        connection.execute(update(versions).where(versions.c.flow == flows["b"].serial).values(definition=odd))
    for _ in range(3):
        cluster.look()
    assert [len(cluster.places_of(name)) for name in "ac"] == [1, 1]
    assert cluster.registry.flow("a").problem is None
    if cluster.store.engine.dialect.name == "postgresql":
        assert "it cannot be placed: InvalidTextRepresentation: invalid input syntax" in str(
            cluster.registry.flow("b").problem
        )
        assert "SELECT" not in str(cluster.registry.flow("b").problem)
        assert [line.event for line in cluster.registry.history("b")] == ["SUBMIT", "PROBLEM"]
    cluster.registry.update("b", Content(definition("b", ["q0"]), {"q0": 1}, settings={"isolated": True}))
    cluster.look()
    assert len(cluster.places_of("b")) == 1
    assert cluster.registry.flow("b").problem is None


def test_what_nobody_foresaw_when_places_are_written_is_the_problem_of_its_flow_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.supervisors(s1=[1, 2, 3], s2=[1, 2, 3])
    for name in "abc":
        cluster.submit(name, isolated=True, hosts=["s1"])
    cluster.look(0)
    assigned, stays = Places._assigned, cluster.places_of("b")

    def fails(places: Places, connection: Connection, flow: DeployedFlow, *rest: Any) -> AssignmentRecord | None:
        record = assigned(places, connection, flow, *rest)
        if flow.name == "b":
            raise KeyError("odd")
        return record

    def hosts() -> dict[str, set[str]]:
        return {name: {supervisor for supervisor, _ in cluster.places_of(name)} for name in "abc"}

    monkeypatch.setattr(Places, "_assigned", fails)
    for name in "abc":
        cluster.registry.rebalance(name, Request(settings={"hosts": ["s2"]}), wait_seconds=0)
    for _ in range(3):
        cluster.look()
    assert hosts() == {"a": {"s2"}, "b": {"s1"}, "c": {"s2"}}
    assert cluster.places_of("b") == stays
    assert cluster.registry.flow("b").problem == "it stays where it is: KeyError: 'odd'"
    assert [line.event for line in cluster.registry.history("b")].count("PROBLEM") == 1
    monkeypatch.undo()
    cluster.look()
    assert hosts()["b"] == {"s2"}
    assert cluster.registry.flow("b").problem is None


@pytest.mark.parametrize("what", ["kill", "rebalance"])
def test_what_nobody_foresaw_when_a_delay_is_over_is_the_problem_of_its_flow_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    cluster.supervisors(s1=[1])
    flows = {name: cluster.submit(name) for name in "abc"}
    cluster.look(0)
    apply = Registry._apply

    def fails(registry: Registry, connection: Connection, row: Row[Any], *rest: Any) -> DeployedFlow:
        if row.name == "b" and rest[1].action is not None:
            raise KeyError("odd")
        return apply(registry, connection, row, *rest)

    monkeypatch.setattr(Registry, "_apply", fails)
    for name in "abc":
        cluster.beat(flows[name])
        getattr(cluster.registry, what)(name, wait_seconds=2)
    for _ in range(3):
        cluster.look()
    ended = {"kill": ["b"], "rebalance": ["a", "b", "c"]}
    assert [flow.name for flow in cluster.registry.flows()] == ended[what]
    b = cluster.registry.flow("b")
    assert b.status == {"kill": "KILLED", "rebalance": "REBALANCING"}[what]
    assert b.problem == f"{b.standing.due.event} fails: KeyError: 'odd'"  # type: ignore[union-attr]
    assert [line.event for line in cluster.registry.history("b")].count("PROBLEM") == 1
    monkeypatch.undo()
    cluster.look(0)
    assert [flow.status for flow in cluster.registry.flows()] == ([] if what == "kill" else ["ACTIVE"] * 3)


def test_those_that_are_not_due_are_not_asked_one_by_one_where_one_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a transaction, and with each round: those that are due, and those that have just drained, are asked."""
    cluster.supervisors(s1=[1])
    flows = {name: cluster.submit(name) for name in ("fails", "due", "drained", "waits", "runs")}
    cluster.look(0)
    for flow in flows.values():
        cluster.beat(flow)
    for name, seconds in (("fails", 0), ("due", 0), ("drained", 100), ("waits", 100)):
        cluster.registry.rebalance(name, wait_seconds=seconds)
    cluster.clock.now += 1
    cluster.beat(flows["drained"], "drained")
    apply, fire, alone = Registry._apply, cluster.leader._registry.fire, list[str]()

    def fails(registry: Registry, connection: Connection, row: Row[Any], *rest: Any) -> DeployedFlow:
        if row.name == "fails":
            raise KeyError("odd")
        return apply(registry, connection, row, *rest)

    def asks(only: DeployedFlow | None = None, **more: Any) -> Any:
        alone.extend([only.name] if only else [])
        return fire(only, **more)

    monkeypatch.setattr(Registry, "_apply", fails)
    monkeypatch.setattr(cluster.leader._registry, "fire", asks)
    cluster.leader.tick()
    assert sorted(alone) == ["drained", "due", "fails"]
    still = {name for name in flows if cluster.registry.flow(name).status == "REBALANCING"}
    assert still == {"fails", "waits"}


def test_a_problem_that_came_since_a_flow_was_read_is_not_taken_back(cluster: Cluster) -> None:
    cluster.registry.problem(cluster.submit("a"), "one")
    seen = cluster.registry.flow("a")
    cluster.registry.problem(seen, "two")
    cluster.registry.problem(seen, None)
    assert cluster.registry.flow("a").problem == "two"
    cluster.registry.problem(cluster.registry.flow("a"), None)
    assert cluster.registry.flow("a").problem is None
