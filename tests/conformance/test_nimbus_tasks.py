"""The planner's choice of workers for tasks, rule by rule: Nimbus rules 5.4 and what follows, with their executed table.

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
    plan_assignment,
    plan_flows,
)
from pipelines.nimbus.placement.model import ComponentKind
from tests.conformance.nimbus_case import MASTER, flow, groups, hosts, loads, placed, spread, stood

# --- 5.4: tasks


def test_rule_5_4_table_four_tasks_three_workers() -> None:
    demand = Demand("f", [Component("s", 4, "spout")], 3)
    assert loads(plan_assignment(hosts(4, 4), demand)) == [1, 1, 2]


def test_rule_5_4_table_bolt_and_spout() -> None:
    demand = Demand("f", [Component("b", 4, inputs=["s"]), Component("s", 5, "spout")], 3)
    found = plan_assignment(hosts(4, 4), demand)
    assert loads(found) == [3, 3, 3]
    bolts = [sum(found.components[task] == "b" for task in one.tasks) for one in found.workers]
    assert sorted(bolts) == [1, 1, 2]


@pytest.mark.parametrize(("tasks", "workers", "expected"), [(10, 4, [2, 2, 3, 3]), (2, 4, [1, 1])])
def test_rule_5_4_table_loads(tasks: int, workers: int, expected: list[int]) -> None:
    assert loads(plan_assignment(hosts(4, 4), flow(tasks, workers))) == expected


def test_rule_5_4_table_different_nodes() -> None:
    def demand(tasks: int) -> Demand:
        return Demand("f", [Component("b", tasks, different_nodes=True)], tasks)

    assert spread(plan_assignment(hosts(2, 2, 2), demand(3))) == {"s1": 1, "s2": 1, "s3": 1}
    with pytest.raises(NotEnoughNodesError, match="making component: b 's tasks on different node"):
        plan_assignment(hosts(2, 2, 2), demand(6))


def test_rule_5_4_table_user_defined() -> None:
    demand = flow(user_workers=[UserWorker({"b": 2}, "s1"), UserWorker({"b": 2}, "s2")])
    assert groups(plan_assignment(hosts(2, 2), demand)) == [(1, 2), (3, 4)]


def test_rule_5_4_table_scale_out() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    found = plan_assignment(hosts(2, 2), flow(6), kind="REBALANCE", old=old)
    assert placed(found) == {("s1", 1): (1, 2, 5), ("s2", 1): (3, 4, 6)}
    assert found.moved == {5, 6}


def test_rule_5_4_table_scale_out_to_more_workers_with_reassign() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    found = plan_assignment(hosts(2, 2), flow(6, 3), kind="REBALANCE", old=old, reassign=True)
    assert loads(found) == [2, 2, 2]


@pytest.mark.parametrize(
    ("old", "tasks", "workers", "expected"),
    [
        ([[1, 2, 3], [4]], 5, 2, [2, 3]),
        ([[1], [2], [3]], 7, 3, [2, 2, 3]),
        ([[1, 2, 3, 4]], 8, 3, [2, 2, 4]),
        ([[1, 2, 3, 4], [5], [6]], 6, 3, [1, 1, 4]),
    ],
)
def test_rule_5_4_6_scale_out_moves_only_new_tasks(
    old: list[list[int]], tasks: int, workers: int, expected: list[int]
) -> None:
    before = stood(*((f"s{n}", 1, part) for n, part in enumerate(old, start=1)))
    found = plan_assignment(hosts(3, 3, 3), flow(tasks, workers), kind="REBALANCE", old=before)
    assert loads(found) == expected
    assert found.moved == {*range(1, tasks + 1)} - before.components.keys()


def test_rule_5_4_table_scale_in() -> None:
    """In the original the removed tasks stayed (rule 5.5, issue #497)."""
    old = Assignment(
        "f", (Worker("s1", 1, (1, 2)), Worker("s2", 1, (3, 4, 5))), {1: "b", 2: "b", 3: "b", 4: "c", 5: "c"}
    )
    found = plan_assignment(hosts(2, 2), flow(3), kind="REBALANCE", old=old)
    assert placed(found) == {("s1", 1): (1, 2), ("s2", 1): (3,)}
    assert found.components == {1: "b", 2: "b", 3: "b"}
    assert found.started.keys() == {1, 2, 3}


def test_rule_5_4_2_the_master_has_a_worker_of_its_own_on_the_host_with_most_workers() -> None:
    demand = Demand("f", [MASTER, Component("b", 6)], 3, single_master=True)
    found = plan_assignment(hosts(1, 4), demand)
    assert spread(found) == {"s1": 1, "s2": 3}
    assert next(one for one in found.workers if 1 in one.tasks) == Worker("s2", 1, (1,))
    assert loads(found) == [1, 2, 2, 2]


def test_rule_5_4_2_no_worker_for_the_master() -> None:
    demand = Demand("f", [MASTER, Component("b", 2)], 1, user_workers=[UserWorker({"b": 1})] * 2, single_master=True)
    with pytest.raises(AssignmentError, match="no enough workers for the assignment of topology master"):
        plan_assignment(hosts(4), demand)


def test_rule_5_4_2_a_rebalanced_master_stays_alone_where_it_is() -> None:
    demand = Demand("f", [MASTER, Component("b", 4)], 2, single_master=True)
    old = plan_assignment(hosts(4, 4), demand)
    more = Demand("f", [MASTER, Component("b", 6)], 2, single_master=True)
    found = plan_assignment(hosts(4, 4), more, kind="REBALANCE", old=old)
    assert found.moved == {6, 7}
    assert loads(found) == [1, 3, 3]
    assert found.places()[1] == old.places()[1]


def test_rule_5_4_3_system_components_come_last() -> None:
    demand = Demand("f", [Component("__acker", 2), Component("b", 2), Component("s", 2, "spout")], 2)
    assert groups(plan_assignment(hosts(4), demand)) == [(1, 3, 5), (2, 4, 6)]


@pytest.mark.parametrize("kind", [None, "bolt"])
def test_rule_5_4_3_system_components_come_last_by_their_ids(kind: ComponentKind | None) -> None:
    parts = [Component("__acker", 2, kind), Component("b", 1)]
    assert groups(plan_assignment(hosts(4), Demand("f", parts, 2))) == [(1,), (2, 3)]
    assert [part.system for part in parts] == [True, False]


def test_rule_5_4_3_different_nodes_count_what_stands() -> None:
    """The original looked at the workers that it placed, not at those it left alone."""
    demand = Demand("f", [Component("b", 2, different_nodes=True)], 2)
    old = stood(("s1", 1, [1]), ("s3", 1, [2]))
    busy = [Supervisor("s1", range(9), used=[1]), Supervisor("s2", [1])]
    assert placed(plan_assignment(busy, demand, kind="MONITOR", old=old)) == {("s1", 1): (1,), ("s2", 1): (2,)}


def test_rule_5_4_3_different_nodes_come_before_user_defined_workers() -> None:
    """The original never looked at tasks that a worker has beforehand (5.3.2). What it wants otherwise is followed."""
    b, c = Component("b", 2, different_nodes=True), Component("c", 1)
    demand = Demand("f", [b, c], 2, user_workers=[UserWorker({"b": 2, "c": 1}, "s1", 2)])
    found = plan_assignment(hosts(2, 2), demand)
    assert placed(found) == {("s1", 2): (1, 3), ("s2", 1): (2,)}
    assert found.notes == ("tasks of b go to different nodes, not where a user-defined or an old worker had them",)
    assert placed(plan_assignment(hosts(2, 2), demand, kind="REBALANCE", old=found)) == placed(found)
    with pytest.raises(NotEnoughNodesError):
        plan_assignment(hosts(4), demand)


def test_rule_5_4_3_different_nodes_come_before_old_workers() -> None:
    demand = Demand("f", [Component("b", 2, different_nodes=True)], 2, use_old_assignment=True)
    assert spread(plan_assignment(hosts(2, 2), demand, old=stood(("s1", 1, [1, 2])))) == {"s1": 1, "s2": 1}


def test_rule_5_4_3_workers_go_where_different_nodes_need_them() -> None:
    """The original put both on the emptier host, and then found too few nodes."""
    busy = [Supervisor("s1", range(10)), Supervisor("s2", range(10), used=range(9))]
    demand = Demand("f", [Component("b", 2, different_nodes=True)], 2)
    assert spread(plan_assignment(busy, demand)) == {"s1": 1, "s2": 1}


def test_rule_5_4_4_fewest_of_the_component_on_the_worker_then_on_its_host() -> None:
    found = plan_assignment(hosts(4, 1), flow(4, 3))
    assert placed(found) == {("s1", 1): (1,), ("s1", 2): (3,), ("s2", 1): (2, 4)}


@pytest.mark.parametrize(("a", "b", "workers"), [(3, 3, 3), (2, 4, 3), (5, 1, 2), (4, 4, 4)])
def test_rule_5_4_4_tasks_of_one_component_are_spread(a: int, b: int, workers: int) -> None:
    demand = Demand("f", [Component("a", a), Component("b", b, inputs=["a"])], workers)
    found = plan_assignment(hosts(4, 4, 4), demand)
    for name in ("a", "b"):
        counts = [sum(found.components[task] == name for task in one.tasks) for one in found.workers]
        assert max(counts) - min(counts) <= 1, name


def test_rule_5_4_4_related_tasks_come_together() -> None:
    """Where components and loads are even, a bolt goes to what it reads."""
    demand = Demand(
        "f",
        [Component("a", 1), Component("b", 1), Component("y", 1, inputs=["b"]), Component("z", 1, inputs=["a"])],
        2,
    )
    found = plan_assignment(hosts(4, 4), demand)
    assert groups(found) == [(1, 4), (2, 3)]


def test_rule_5_4_6_tasks_stay_where_they_were() -> None:
    old = stood(("s1", 1, [1, 2, 3]), ("s2", 1, [4]))
    found = plan_assignment(hosts(2, 2), flow(6), kind="REBALANCE", old=old)
    assert placed(found) == {("s1", 1): (1, 2, 3), ("s2", 1): (4, 5, 6)}


def test_rule_5_4_6_fewer_workers_move_only_what_the_others_held() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]), ("s2", 2, [5, 6]))
    found = plan_assignment(hosts(2, 2), flow(6, 2), kind="REBALANCE", old=old)
    assert loads(found) == [3, 3]
    assert len(found.moved) == 2


def test_rule_5_4_6_tasks_move_where_different_nodes_demand_it() -> None:
    demand = Demand("f", [Component("b", 2, different_nodes=True)], 2)
    old = stood(("s1", 1, [1]), ("s1", 2, [2]))
    assert spread(plan_assignment(hosts(2, 2), demand, kind="REBALANCE", old=old)) == {"s1": 1, "s2": 1}


def test_rule_5_4_7_a_worker_without_tasks_is_dropped() -> None:
    found = plan_assignment(hosts(4), flow(4, 2, user_workers=[UserWorker({"b": 4})]))
    assert len(found.workers) == 1


# --- 5.5: faults of the original


def test_rule_5_5_rebalance_leaves_a_dead_supervisor() -> None:
    """[run]: the original put 3 and 4 on s9 again."""
    old = stood(("s1", 1, [1, 2]), ("s9", 1, [3, 4]))
    found = plan_assignment(hosts(4, 4), flow(), kind="REBALANCE", old=old)
    assert placed(found) == {("s1", 1): (1, 2), ("s2", 1): (3, 4)}


def test_rule_5_5_rebalance_leaves_two_lost_hosts() -> None:
    old = stood(("s1", 1, [1, 2]), ("s8", 1, [3, 4]), ("s9", 1, [5, 6]))
    found = plan_assignment(hosts(2, 2), flow(6, 3), kind="REBALANCE", old=old)
    assert found.moved == {3, 4, 5, 6}
    assert loads(found) == [2, 2, 2]
    assert spread(found).keys() == {"s1", "s2"}


def test_rule_5_5_ties_do_not_depend_on_the_order_of_supervisors() -> None:
    assert plan_assignment(hosts(4, 2, 4), flow(9, 5)) == plan_assignment(hosts(4, 2, 4)[::-1], flow(9, 5))


# --- 2.6 and 2.4: blacklist and isolation


def test_rule_2_6_blacklisted_hosts_get_nothing() -> None:
    assert spread(plan_assignment(hosts(4, 4, 4), flow(8, 8), blacklist=["s2"])) == {"s1": 4, "s3": 4}


def test_rule_2_6_blacklisted_hosts_are_released_by_name_when_slots_are_short() -> None:
    found = plan_assignment(hosts(2, 4, 4, 4), flow(5, 5), blacklist=["s4", "s3", "s2"])
    assert (found.released, set(spread(found))) == (("s2",), {"s1", "s2"})


def test_rule_2_6_what_runs_on_a_blacklisted_host_stays_until_rebalanced() -> None:
    old = stood(("s1", 1, [1, 2]), ("s2", 1, [3, 4]))
    assert not plan_assignment(hosts(4, 4), flow(), kind="MONITOR", old=old, blacklist=["s2"]).moved
    assert spread(plan_assignment(hosts(4, 4), flow(), kind="REBALANCE", old=old, blacklist=["s2"])) == {"s1": 2}


def test_rule_2_4_isolated_hosts_take_no_other_flow() -> None:
    alone, other = Demand("a", [Component("b", 3)], hosts=["s2"]), Demand("o", [Component("b", 8)])
    plan = plan_flows(hosts(4, 4, 4), [other, alone], blacklist=["s2"])
    assert spread(plan.assignments["a"]) == {"s2": 3}
    assert spread(plan.assignments["o"]) == {"s1": 4, "s3": 4}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_rule_2_4_isolated_flows_are_disjoint_in_any_order(order: tuple[int, ...]) -> None:
    demands = [
        Demand("one", [Component("b", 6)], 6, hosts=["s1", "s2"]),
        Demand("two", [Component("b", 6)], 6, hosts=["s3", "s4"]),
        Demand("plain", [Component("b", 4)], 4),
    ]
    plan = plan_flows(hosts(4, 4, 4, 4, 4), [demands[n] for n in order])
    on = {name: set(spread(found)) for name, found in plan.assignments.items()}
    assert on == {"one": {"s1", "s2"}, "two": {"s3", "s4"}, "plain": {"s5"}}


def test_a_flow_that_does_not_fit_leaves_the_others_their_slots() -> None:
    plan = plan_flows(hosts(2), [Demand(name, [Component("b", n)]) for name, n in (("x", 1), ("y", 2), ("z", 1))])
    assert plan.assignments.keys() == {"x", "z"}
    assert isinstance(plan.refused["y"], NotEnoughWorkersError)
