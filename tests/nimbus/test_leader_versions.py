"""The leader and a version with other queries: those that stay have their places, whatever their numbers are by now."""

from __future__ import annotations

import pytest

from pipelines.nimbus.registry.lifecycle import Request
from tests.nimbus.led_cluster import Cluster


def test_a_version_with_other_queries_gets_places_for_all(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1, 2])
    cluster.submit("a", queries=1)
    cluster.look()
    (slot,) = cluster.places_of("a")
    # The same streams and states, in two queries in place of one.
    cluster.change("a", "q0", "q1")
    cluster.look()
    assert cluster.places_of("a") == {slot: (1, 2)}


def spread(cluster: Cluster, **settings: object) -> dict[str, tuple[str, int]]:
    """A flow of three queries, each in a worker of its own; where they are."""
    cluster.supervisors(s1=[1, 2], s2=[1, 2])
    flow = cluster.submit("f", ["a", "b", "c"], 3, **settings)
    cluster.look()
    cluster.beat(flow)
    return cluster.slots_of("f")


@pytest.mark.parametrize("groups", ["bc", "cba", "zbc", "bcz", "zyx"])
def test_queries_that_stay_keep_their_places_in_a_version_with_others(cluster: Cluster, groups: str) -> None:
    before = spread(cluster)
    cluster.change("f", *groups)
    cluster.look()
    after = cluster.slots_of("f")
    assert set(after) == set(groups)
    assert {group: after[group] for group in groups if group in before} == {
        group: slot for group, slot in before.items() if group in groups
    }
    # New ones take the places of those that are gone.
    assert set(after.values()) <= set(before.values())
    assert len(set(after.values())) == len(groups)


def test_a_query_is_not_taken_for_the_one_that_had_its_number(cluster: Cluster) -> None:
    """Neither its start nor its beat are the other's."""
    spread(cluster)
    flow = cluster.change("f", "c", "b", "a")
    cluster.look()
    record = cluster.places.assignment(flow)
    assert record is not None
    started = {task: at for worker in record.workers for task, at in worker.started_at.items()}
    assert {task for task, at in started.items() if at == cluster.clock.now} == {1, 3}
    assert cluster.places.beats(flow).keys() == {2}


def test_of_a_version_with_other_queries_the_dead_are_placed_again(cluster: Cluster) -> None:
    before = spread(cluster)
    gone = before["b"][0]
    cluster.change("f", "b", "c", "d")
    cluster.clock.now += 61
    cluster.supervisors(**{name: [1, 2, 3] for name in ("s1", "s2") if name != gone})
    cluster.leader.tick()
    assert {supervisor for supervisor, _ in cluster.slots_of("f").values()} == {"s1", "s2"} - {gone}


def test_a_cluster_without_a_free_slot_takes_a_version_with_other_queries(cluster: Cluster) -> None:
    cluster.supervisors(s1=[1])
    cluster.submit("f", ["a"], isolated=True)
    cluster.look()
    cluster.change("f", "b")
    cluster.look()
    assert cluster.slots_of("f") == {"b": ("s1", 1)}


@pytest.mark.parametrize("groups", ["abc", "bc", "cba"])
def test_queries_of_a_flow_that_is_submitted_again_go_where_they_were(cluster: Cluster, groups: str) -> None:
    before = spread(cluster, use_old_assignment=True)
    cluster.registry.kill("f", wait_seconds=0)
    cluster.look(1)
    cluster.submit("f", list(groups), 3, use_old_assignment=True)
    cluster.look(1)
    assert cluster.slots_of("f") == {group: before[group] for group in groups}


def test_a_record_of_an_earlier_version_goes_on_after_a_rebalance(cluster: Cluster) -> None:
    """A version with the same queries does not change the record; the one after that reads it all the same."""
    before = spread(cluster)
    cluster.update("f", trigger_seconds=9)
    cluster.look()
    cluster.registry.rebalance("f", Request(parallelism={"b": 2}), wait_seconds=0)
    cluster.look()
    assert cluster.slots_of("f") == before
    cluster.change("f", "c", "a")
    cluster.look()
    assert cluster.slots_of("f") == {"c": before["c"], "a": before["a"]}
