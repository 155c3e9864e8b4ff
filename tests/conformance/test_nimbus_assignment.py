"""The assignment planner, rule by rule: Nimbus rules 4, 5 and their executed tables.

Where the original has a fault that is fixed here, the test says so.
"""

import pytest

from pipelines.errors import AssignmentError, NotEnoughNodesError, NotEnoughWorkersError
from pipelines.nimbus import (
    Assignment,
    Component,
    Demand,
    Supervisor,
    UserWorker,
    Worker,
    number_tasks,
    plan_assignment,
    worker_count,
)
from pipelines.nimbus.placement.model import ComponentKind, Kind
from tests.conformance.nimbus_case import MASTER, flow, groups, hosts, loads, placed, spread, stood

# --- 4: task ids


def test_rule_4_task_ids_bolts_first_then_spouts() -> None:
    components = [Component("a", 2, "spout"), Component("z", 2), Component("m", 1), Component("__acker", 1)]
    assert number_tasks(components) == {1: "__acker", 2: "m", 3: "z", 4: "z", 5: "a", 6: "a"}


def test_rule_4_new_tasks_follow_the_highest_and_the_highest_go() -> None:
    old = number_tasks([Component("b", 3), Component("s", 2, "spout")])
    assert number_tasks([Component("b", 4), Component("s", 3, "spout")], old) == {
        **{1: "b", 2: "b", 3: "b", 6: "b"},
        **{4: "s", 5: "s", 7: "s"},
    }
    assert number_tasks([Component("b", 1), Component("s", 2, "spout")], old) == {1: "b", 4: "s", 5: "s"}


def test_rule_4_an_id_does_not_pass_from_one_component_to_another() -> None:
    old = number_tasks([Component("b", 1), Component("s", 2, "spout")])
    assert number_tasks([Component("b", 2), Component("s", 1, "spout")], old) == {1: "b", 4: "b", 2: "s"}


# --- 5.1: what is to be assigned


def test_rule_5_1_1_no_supervisor_alive() -> None:
    with pytest.raises(AssignmentError, match="Failed to make assignment f, due to no alive supervisor"):
        plan_assignment([Supervisor("s1", [1], silent_seconds=181)], flow(1, 1))
    assert plan_assignment([Supervisor("s1", [1], silent_seconds=180)], flow(1, 1)).workers


@pytest.mark.parametrize("up", [[], [Supervisor("s1", [])], [Supervisor("s1", [1], used=[1])]])
@pytest.mark.parametrize("kind", ["NEW", "REBALANCE", "MONITOR"])
def test_rule_5_1_1_nothing_to_place_on(up: list[Supervisor], kind: Kind) -> None:
    with pytest.raises(AssignmentError):
        plan_assignment(up, flow(), kind=kind)


@pytest.mark.parametrize("kind", ["REBALANCE", "MONITOR"])
def test_rule_5_1_2_without_an_assignment_it_is_new(kind: Kind) -> None:
    assert plan_assignment(hosts(4), flow(), kind=kind) == plan_assignment(hosts(4), flow())


def test_rule_5_1_3_all_tasks_of_a_dead_tasks_worker_are_dead() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    found = plan_assignment(hosts(4, 4), flow(), kind="MONITOR", old=old, dead=[3])
    assert found.moved == {3, 4}
    assert placed(found)["s1", 1] == (1, 2)


def test_rule_5_1_3_all_tasks_of_two_dead_workers_move_and_no_other() -> None:
    old = stood(("s1", 1, [1, 2]), ("s1", 2, [3, 4]), ("s2", 1, [5, 6]), ("s2", 2, [7]))
    found = plan_assignment(hosts(4, 4), flow(7, 4), kind="MONITOR", old=old, dead=[2, 7], now=9.0)
    assert found.moved == {1, 2, 7} == {task for task, at in found.started.items() if at == 9.0}


def test_rule_5_1_3_a_silent_supervisor_is_lost() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    up = [Supervisor("s1", [1, 2]), Supervisor("s2", [1, 2], silent_seconds=500)]
    assert placed(plan_assignment(up, flow(), kind="MONITOR", old=old)) == {("s1", 1): (1, 2), ("s1", 2): (3, 4)}


@pytest.mark.parametrize("kind", [None, "bolt", "master"])
def test_rule_5_1_3_a_dead_master_moves_the_tasks_of_its_worker_only(kind: ComponentKind | None) -> None:
    demand = Demand("f", [Component(MASTER.id, 1, kind), Component("b", 3)], 2, single_master=False)
    old = Assignment("f", (Worker("s1", 1, (1, 2)), Worker("s2", 1, (3, 4))), {1: MASTER.id, 2: "b", 3: "b", 4: "b"})
    found = plan_assignment(hosts(4, 4), demand, kind="MONITOR", old=old, dead=[1, 2, 3, 4])
    assert found.moved == {1, 2}


@pytest.mark.parametrize("kind", ["MONITOR", "REBALANCE"])
def test_rule_5_1_4_live_workers_of_a_dead_supervisor_are_left_alone(kind: str) -> None:
    old = stood(("s1", 1, [1, 2]), ("s9", 1, [3, 4]))
    found = plan_assignment(hosts(4), flow(), kind=kind, old=old, alive=[3, 4])  # type: ignore[arg-type]
    assert placed(found)["s9", 1] == (3, 4)


def test_rule_5_1_4_a_rebalanced_flow_gets_its_own_slots_again() -> None:
    full = [Supervisor("s1", [1, 2], used=[1, 2])]
    old = stood(("s1", 1, [1, 2]), ("s1", 2, [3, 4]))
    assert groups(plan_assignment(full, flow(), kind="REBALANCE", old=old, reassign=True)) == [(1, 3), (2, 4)]
    with pytest.raises(NotEnoughWorkersError):
        plan_assignment(full, flow())


@pytest.mark.parametrize("used", [[], [1], [1, 2]])
@pytest.mark.parametrize("kind", ["REBALANCE", "MONITOR"])
def test_rule_5_1_4_own_slots_may_be_among_the_used_ones(used: list[int], kind: Kind) -> None:
    old = stood(("s1", 1, [1, 2]), ("s1", 2, [3, 4]))
    found = plan_assignment([Supervisor("s1", [1, 2, 3], used=used)], flow(), kind=kind, old=old)
    assert placed(found) == placed(old)


def test_rule_5_1_4_a_dead_workers_slot_serves_again_only_where_there_is_no_other() -> None:
    """The original never used it again: a full cluster could not replace a worker."""
    old = stood(("s1", 1, [1, 2]), ("s1", 2, [3, 4]))
    assert placed(plan_assignment(hosts(3), flow(), kind="MONITOR", old=old, dead=[1]))["s1", 3] == (1, 2)
    assert placed(plan_assignment(hosts(2), flow(), kind="MONITOR", old=old, dead=[1]))["s1", 1] == (1, 2)


def test_rule_5_1_5_monitor_moves_only_the_dead() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]), ("s3", 1, [5, 6]))
    found = plan_assignment(hosts(4, 4), flow(6, 3), kind="MONITOR", old=old)
    assert found.moved == {5, 6}
    assert {placed(found)["s1", 1], placed(found)["s2", 1]} == {(1, 2), (3, 4)}


def test_rule_5_1_6_all_workers_are_fine() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    found = plan_assignment(hosts(4, 4), flow(), kind="MONITOR", old=old)
    assert (found.workers, found.moved) == (old.workers, frozenset())
    assert found.notes == ("Don't need assign worker, all workers are fine",)


def test_rule_5_1_6_dead_tasks_are_placed_though_as_many_workers_stand_as_are_wanted() -> None:
    """The original found all workers fine, and the tasks stayed dead."""
    old = stood(("s1", 1, [1]), ("s1", 2, [2]), ("s1", 3, [3]))
    found = plan_assignment(hosts(4), flow(3, 2), kind="MONITOR", old=old, dead=[3])
    assert groups(found) == [(1,), (2,), (3,)]


def test_rule_5_1_6_a_lost_worker_without_a_free_slot() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    with pytest.raises(NotEnoughWorkersError, match="allocWorkerNum=1, availableWorkerNum=0"):
        plan_assignment(hosts(1), flow(), kind="MONITOR", old=old)


def test_rule_5_1_6_a_bad_kind() -> None:
    with pytest.raises(AssignmentError, match="Invalid assign type 4"):
        plan_assignment(hosts(4), flow(), kind="4")  # type: ignore[arg-type]


def test_rule_5_1_7_start_times() -> None:
    assert set(plan_assignment(hosts(4), flow(), now=9.0).started.items()) == {(n, 9.0) for n in (1, 2, 3, 4)}
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4, 5]))
    found = plan_assignment(hosts(4, 4), flow(4), kind="MONITOR", old=old, dead=[1], now=9.0)
    assert found.started == {1: 9.0, 2: 9.0, 3: 1.0, 4: 1.0}


def test_rule_5_1_7_a_rebalance_gives_new_times_to_what_moves() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    found = plan_assignment(hosts(2, 2), flow(5), kind="REBALANCE", old=old, now=8.0)
    assert found.started == {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 8.0}
    assert set(plan_assignment(hosts(2, 2), flow(), old=old, now=8.0).started.values()) == {8.0}


def test_rule_5_1_8_local_mode_is_one_worker() -> None:
    assert groups(plan_assignment(hosts(4, 4), flow(5, 3), local=True)) == [(1, 2, 3, 4, 5)]


# --- 5.2: the number of workers


@pytest.mark.parametrize(
    ("workers", "single", "expected"),
    [
        (9, None, (9, False)),
        (10, None, (11, True)),
        (3, True, (4, True)),
        (10, False, (10, False)),
        (None, None, (41, True)),
        (50, False, (40, False)),
    ],
)
def test_rule_5_2_worker_count(workers: int | None, single: bool | None, expected: tuple[int, bool]) -> None:
    for kind in (None, "bolt"):
        system = [Component(MASTER.id, 1, kind), Component("__acker", 2, kind)]
        components = [*system, Component("b", 30), Component("s", 8, "spout")]
        assert worker_count(Demand("f", components, workers, single_master=single)) == expected


@pytest.mark.parametrize("kind", ["Spout", "acker", ""])
def test_a_kind_of_component_that_there_is_not_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=f"component s: its kind is one of spout, bolt, system, master, not '{kind}'"):
        Component("s", 1, kind)  # type: ignore[arg-type]


# --- 5.3: workers and where they go


def test_rule_5_3_1_not_enough_workers() -> None:
    with pytest.raises(NotEnoughWorkersError, match="there's no enough worker") as refused:
        plan_assignment(hosts(2, 2), flow(5, 5))
    assert "allocWorkerNum=5, availableWorkerNum=4,reserveWorkerNum=0" in str(refused.value)
    assert (refused.value.wanted, refused.value.available, refused.value.reserved) == (5, 4, 0)


def test_rule_5_3_1_the_reserve_is_left_free() -> None:
    with pytest.raises(NotEnoughWorkersError, match="allocWorkerNum=4, availableWorkerNum=4,reserveWorkerNum=1"):
        plan_assignment(hosts(2, 2), flow(4, 4), reserve=1)
    assert len(plan_assignment(hosts(2, 2), flow(3, 3), reserve=1).workers) == 3


def test_rule_5_3_1_with_isolation_only_the_named_hosts_count() -> None:
    with pytest.raises(NotEnoughWorkersError, match="availableWorkerNum=4"):
        plan_assignment(hosts(4, 4, 4), flow(5, 5, hosts=["s2"]))


def test_rule_5_3_1_the_named_hosts_are_in_the_refusal() -> None:
    """None of them may have a supervisor: a word mistyped is not a lack of slots."""
    with pytest.raises(NotEnoughWorkersError) as refused:
        plan_assignment(hosts(4, 4), flow(1, 1, hosts=["vm-7", "vm-8"]))
    numbers = "there's no enough worker. allocWorkerNum=1, availableWorkerNum=0,reserveWorkerNum=0"
    assert refused.value.problem == f"{numbers} on the hosts vm-7, vm-8 (supervisors are on: s1, s2)"
    assert "name other hosts" in refused.value.hint
    with pytest.raises(NotEnoughWorkersError) as refused:
        plan_assignment(hosts(*[1] * 12), flow(1, 1, hosts=["vm-7"]))
    assert refused.value.problem.endswith(" s5, s6, s7, ...)")


def test_rule_5_3_2_user_defined_workers() -> None:
    wanted = [UserWorker({"b": 2}, "s2", 3), UserWorker({"b": 1}, "s1")]
    found = plan_assignment(hosts(4, 4), flow(4, 3, user_workers=wanted))
    assert placed(found) == {("s2", 3): (1, 2), ("s1", 1): (3,), ("s1", 2): (4,)}


def test_rule_5_3_2_a_worker_that_names_a_port_alone_gets_it_where_it_is_placed() -> None:
    found = plan_assignment(hosts(4, 4), flow(1, 1, user_workers=[UserWorker({"b": 1}, port=3)]))
    assert placed(found) == {("s1", 3): (1,)}


def test_rule_5_3_2_too_many_user_defined_workers_are_dropped() -> None:
    """[run]: three with two wanted, two plain workers."""
    found = plan_assignment(hosts(4, 4), flow(4, 2, user_workers=[UserWorker({"b": 1})] * 3))
    assert groups(found) == [(1, 3), (2, 4)]
    assert found.notes == ("3 user-defined workers are too many for 2: none is followed",)


def test_rule_5_3_2_a_user_worker_takes_what_there_is() -> None:
    """[run]: nine of four tasks."""
    assert groups(plan_assignment(hosts(4, 4), flow(4, 2, user_workers=[UserWorker({"b": 9})]))) == [(1, 2, 3, 4)]


def test_rule_5_3_2_no_task_is_left_for_an_entry() -> None:
    wanted = [UserWorker({"b": 4}, "s2"), UserWorker({"b": 1}, "s1", 2)]
    assert placed(plan_assignment(hosts(2, 2), flow(user_workers=wanted))) == {("s2", 1): (1, 2, 3, 4)}


def test_rule_5_3_2_tasks_of_several_components() -> None:
    wanted = [UserWorker({"c": 2, "b": 1}, "s2"), UserWorker({"c": 5}, "s1")]
    demand = Demand("f", [Component("b", 3), Component("c", 3)], 3, user_workers=wanted)
    found = plan_assignment(hosts(2, 2), demand)
    assert placed(found)["s2", 1] == (1, 4, 5)
    assert (found.places()[6][0], loads(found)) == ("s1", [1, 2, 3])


def test_rule_5_3_2_a_user_worker_whose_tasks_run_is_skipped() -> None:
    wanted = [UserWorker({"b": 2}, "s1"), UserWorker({"b": 2}, "s2", 4)]
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    found = plan_assignment(hosts(4, 4), flow(user_workers=wanted), kind="MONITOR", old=old, dead=[4])
    assert placed(found) == {("s1", 1): (1, 2), ("s2", 4): (3, 4)}


@pytest.mark.parametrize("kind", ["REBALANCE", "MONITOR"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("running", [(1, 2), (3, 4)])
def test_rule_5_3_2_an_entry_equal_to_an_unstopped_worker_is_skipped(
    running: tuple[int, int], first: bool, kind: Kind
) -> None:
    """Its tasks beat on s9, whose supervisor is dead. The other entry gets the others, whatever their numbers are."""
    wanted = [UserWorker({"b": 2}, "s9", 1), UserWorker({"b": 2}, "s2", 3)]
    others = tuple({1, 2, 3, 4} - {*running})
    old = stood(("s1", 1, others), ("s9", 1, running))
    demand = flow(user_workers=wanted if first else wanted[::-1])
    found = plan_assignment(hosts(4, 4), demand, kind=kind, old=old, alive=running, dead=others)
    assert placed(found) == {("s9", 1): running, ("s2", 3): others}


def test_rule_5_3_2_one_unstopped_worker_is_one_entry() -> None:
    old = stood(("s1", 1, [1, 2]), ("s9", 1, [3, 4]))
    demand = flow(6, 3, user_workers=[UserWorker({"b": 2})] * 2)
    found = plan_assignment(hosts(4, 4), demand, kind="REBALANCE", old=old, alive=[3, 4])
    assert groups(found) == [(1, 2), (3, 4), (5, 6)]


def test_rule_5_3_2_user_workers_take_nothing_from_the_demand() -> None:
    """The original consumed its own lists of tasks and workers (rule 5.5)."""
    demand = flow(user_workers=[UserWorker({"b": 2}), UserWorker({"b": 2})])
    assert plan_assignment(hosts(4, 4), demand) == plan_assignment(hosts(4, 4), demand)


def test_rule_5_3_2_a_second_user_worker_is_not_ignored() -> None:
    demand = flow(5, 3, user_workers=[UserWorker({"b": 1}, "s1"), UserWorker({"b": 2}, "s1")])
    assert {("s1", 1): (1,), ("s1", 2): (2, 3)}.items() <= placed(plan_assignment(hosts(4, 4), demand)).items()


def test_rule_5_3_2_user_workers_name_known_components() -> None:
    with pytest.raises(ValueError, match="no component of it: c"):
        flow(user_workers=[UserWorker({"c": 1})])


@pytest.mark.parametrize("tasks", [-1, 2.0, True])
def test_a_number_of_tasks_that_there_cannot_be_is_refused(tasks: int) -> None:
    with pytest.raises(ValueError, match=f"^user-defined worker: component b: {tasks} tasks$"):
        UserWorker({"b": tasks})
    with pytest.raises(ValueError, match=f"^component b: {tasks} tasks$"):
        Component("b", tasks)


def test_rule_5_3_3_old_workers_come_up_where_they_were() -> None:
    old = stood(("s2", 3, [1, 4]), ("s1", 2, [2, 3]))
    demand = flow(use_old_assignment=True)
    assert placed(plan_assignment(hosts(4, 4), demand, old=old)) == {("s2", 3): (1, 4), ("s1", 2): (2, 3)}
    assert placed(plan_assignment(hosts(4, 4), flow(), old=old)).keys() == {("s1", 1), ("s2", 1)}


def test_rule_5_3_3_too_many_old_workers_are_dropped() -> None:
    old = stood(*((f"s{n}", 1, [n]) for n in (1, 2, 3)))
    found = plan_assignment(hosts(4, 4, 4), flow(3, 2, use_old_assignment=True), old=old)
    assert loads(found) == [1, 2]


def test_rule_5_3_3_an_old_worker_does_not_come_back_against_different_nodes() -> None:
    """Its slot is gone, and elsewhere its task would stand beside another of the same component."""
    old = stood(("s1", 1, [1]), ("s2", 1, [2]))
    demand = Demand("f", [Component("b", 2, different_nodes=True)], 2, use_old_assignment=True)
    with pytest.raises(NotEnoughNodesError):
        plan_assignment(hosts(3), demand, old=old)
    assert placed(plan_assignment(hosts(3, 3), demand, old=old)) == placed(old)
    elsewhere = plan_assignment([Supervisor("s3", [1, 2, 3]), Supervisor("s4", [1])], demand, old=old)
    assert spread(elsewhere) == {"s3": 1, "s4": 1}


def test_rule_5_3_3_rebalance_takes_old_slots_and_fills_up_with_blank_workers() -> None:
    old = stood(("s1", 4, [1, 2]))
    found = plan_assignment(hosts(4, 4), flow(4, 2), kind="REBALANCE", old=old)
    assert placed(found) == {("s1", 4): (1, 2), ("s2", 1): (3, 4)}


def test_rule_5_3_3_rebalance_beside_user_defined_workers() -> None:
    """In the original they and the old slots together were always "too many"."""
    demand = flow(user_workers=[UserWorker({"b": 2})])
    old = stood(("s1", 4, [1, 2]), ("s2", 3, [3, 4]))
    found = plan_assignment(hosts(4, 4), demand, kind="REBALANCE", old=old)
    assert placed(found) == placed(old)


@pytest.mark.parametrize("as_before", [False, True])
@pytest.mark.parametrize("wanted", [("s9", 1), ("s2", 1), ("s1", 1), ("s1", None), ("", 1)])
def test_rule_5_3_3_a_user_worker_whose_wish_cannot_be_followed_stays(
    wanted: tuple[str, int | None], as_before: bool
) -> None:
    """There is no such host, it is full, or another flow has the port: a worker that moves would gain nothing."""
    old = stood(("s1", 3, [1, 3]), ("s1", 4, [2, 4]))
    up = [Supervisor("s1", range(1, 5), used=[1]), Supervisor("s2", [1], used=[1])]
    demand = flow(user_workers=[UserWorker({"b": 1}), UserWorker({"b": 1}, *wanted)], use_old_assignment=as_before)
    assert placed(plan_assignment(up, demand, kind="REBALANCE", old=old)) == placed(old)


def test_rule_5_3_3_a_user_worker_moves_when_its_wish_can_be_followed() -> None:
    old = stood(("s1", 3, [1, 3]), ("s1", 4, [2, 4]))
    demand = flow(user_workers=[UserWorker({"b": 1}, "s2", 2)])
    found = plan_assignment(hosts(4, 4), demand, kind="REBALANCE", old=old)
    assert found.places()[1] == ("s2", 2)
    assert placed(found)["s1", 4] == (2, 4)


def test_rule_5_3_3_a_user_worker_gives_up_the_slot_with_fewest_other_tasks() -> None:
    old = stood(("s1", 1, [1, 3]), ("s3", 1, [4]), ("s4", 1, [2]))
    demand = flow(4, 3, user_workers=[UserWorker({"b": 2}, "s2", 2)])
    found = plan_assignment(hosts(1, 1, 1, 1), demand, kind="REBALANCE", old=old)
    assert placed(found) == {("s1", 1): (3,), ("s2", 1): (1, 2), ("s3", 1): (4,)}
    assert found.moved == {1, 2}


def test_rule_5_3_3_user_workers_come_up_where_they_were_too() -> None:
    old = stood(("s2", 3, [1, 4]), ("s1", 2, [2, 3]))
    demand = flow(user_workers=[UserWorker({"b": 1}, "s9")], use_old_assignment=True)
    assert placed(plan_assignment(hosts(4, 4), demand, old=old)).keys() == placed(old).keys()


def test_rule_5_3_4_a_full_host_sends_a_user_worker_elsewhere() -> None:
    """[run]: two user-defined workers on a host of one slot."""
    found = plan_assignment(hosts(1, 2), flow(user_workers=[UserWorker({"b": 2}, "s1")] * 2))
    assert spread(found) == {"s1": 1, "s2": 1}


def test_rule_5_3_4_a_worker_does_not_take_the_port_that_another_wants() -> None:
    wanted = [UserWorker({"b": 2}, "s1"), UserWorker({"b": 2}, "s1", 1)]
    assert placed(plan_assignment(hosts(4), flow(user_workers=wanted)))["s1", 1] == (3, 4)


def test_rule_5_3_4_the_wanted_port_or_any_other_of_the_host() -> None:
    up = [Supervisor("s1", [1, 2, 3], used=[2]), Supervisor("s2", [1, 2, 3])]
    wanted = [UserWorker({"b": 2}, "s1", 2), UserWorker({"b": 2}, "s1", 9)]
    assert placed(plan_assignment(up, flow(user_workers=wanted))) == {("s1", 1): (1, 2), ("s1", 3): (3, 4)}


@pytest.mark.parametrize(("free", "expected"), [(4, {"s2": 3}), (2, {"s1": 1, "s2": 2})])
def test_rule_5_3_4_a_host_over_the_theory_comes_last(free: int, expected: dict[str, int]) -> None:
    """With six of eight slots used it has more than (6 + 3) / 2 + 1."""
    up = [Supervisor("s1", range(8), used=range(6)), Supervisor("s2", range(free))]
    assert spread(plan_assignment(up, flow(3, 3))) == expected


@pytest.mark.parametrize(
    ("supervisors", "workers", "expected"),
    [
        (hosts(4, 4, 4), 6, {"s1": 2, "s2": 2, "s3": 2}),
        (hosts(4, 4, 4), 5, {"s1": 2, "s2": 2, "s3": 1}),
        (hosts(4, 4, 4), 3, {"s1": 1, "s2": 1, "s3": 1}),
        ([Supervisor("s1", [1, 2, 3, 4], used=[1, 2, 3]), Supervisor("s2", [1])], 2, {"s1": 1, "s2": 1}),
        (hosts(2, 4, 8), 7, {"s1": 2, "s2": 2, "s3": 3}),
        (hosts(2, 4, 8), 14, {"s1": 2, "s2": 4, "s3": 8}),
    ],
)
def test_rule_5_3_5_placement(supervisors: list[Supervisor], workers: int, expected: dict[str, int]) -> None:
    assert spread(plan_assignment(supervisors, flow(workers, workers))) == expected


def test_rule_5_3_5_isolation_to_one_host() -> None:
    assert spread(plan_assignment(hosts(4, 4, 4), flow(3, 3, hosts=["s2"]))) == {"s2": 3}


def test_rule_5_4_2_masters_that_take_every_worker() -> None:
    """A worker of a dead supervisor counts, but gets nothing: what is new has no place beside the masters."""
    old = Assignment("f", (Worker("s1", 1, (1,)), Worker("s2", 1, (2,))), {1: MASTER.id, 2: "b"}, {1: 1.0, 2: 1.0})
    demand = Demand("f", [Component("b", 2), Component(MASTER.id, 2)], 1, single_master=True)
    with pytest.raises(AssignmentError, match=r"no worker is left for component: b"):
        plan_assignment([Supervisor("s1", [1, 2, 3], used=[1])], demand, kind="REBALANCE", old=old, alive=[2])


def test_rule_5_3_6_user_workers_on_every_free_slot() -> None:
    """The original divided by zero (issue #524)."""
    demand = flow(user_workers=[UserWorker({"b": 2}, "s1"), UserWorker({"b": 2}, "s2")])
    assert groups(plan_assignment(hosts(1, 1), demand)) == [(1, 2), (3, 4)]
