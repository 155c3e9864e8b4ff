"""The blacklist of bad hosts: Nimbus rules 2.6, and the original's tests of them (rules 3, TestBlacklistScheduler)."""

from collections.abc import Iterable

import pytest

from pipelines.nimbus import Blacklist, Component, Demand, Supervisor, plan_assignment

ALL: dict[int, set[int]] = {}
GONE = {0, 1, 2, 3}


def cluster(missing: dict[int, set[int]], *, supervisors: int = 3, ports: int = 4) -> list[Supervisor]:
    """The supervisors of one round without the missing slots; one with none left is missing itself."""
    shown = {n: set(range(ports)) - missing.get(n, set()) for n in range(supervisors)}
    return [Supervisor(f"sup-{n}", sorted(left), host=f"host-{n}") for n, left in shown.items() if left]


def blacklist(*, bad_slots: bool = True) -> Blacklist:
    return Blacklist(tolerance_seconds=200, tolerance_count=2, resume_seconds=300, bad_slots=bad_slots)


def after(one: Blacklist, rounds: Iterable[dict[int, set[int]]]) -> list[tuple[str, ...]]:
    return [one.round(cluster(missing)) for missing in rounds]


BAD = [ALL, {0: GONE}, {0: GONE}, ALL]


def test_bad_supervisor() -> None:
    assert after(blacklist(), BAD)[-1] == ("host-0",)


@pytest.mark.parametrize(("bad_slots", "expected"), [(True, ("host-0",)), (False, ())])
def test_bad_slot(bad_slots: bool, expected: tuple[str, ...]) -> None:
    assert after(blacklist(bad_slots=bad_slots), [ALL, {0: {0}}, {0: {0}}, ALL])[-1] == expected


@pytest.mark.parametrize(("apart", "listed"), [(1, True), (19, True), (20, False)])
def test_failures_count_within_the_window_only(apart: int, listed: bool) -> None:
    """200 s are twenty rounds."""
    one = blacklist()
    after(one, [ALL, {0: GONE}, *[ALL] * (apart - 1), {0: GONE}])
    assert one.round(cluster(ALL)) == (("host-0",) if listed else ())


def test_who_was_never_there_is_not_missed() -> None:
    assert set(after(blacklist(), [{2: GONE}] * 9)) == {()}


def test_resume_blacklist() -> None:
    one = blacklist()
    after(one, BAD)
    assert after(one, [ALL] * 28)[-1] == ("host-0",)
    assert after(one, [ALL]) == [()]


def test_release_blacklist() -> None:
    """Hosts are released only when the others have too few slots: then they are grey."""
    one = blacklist()
    after(one, BAD)
    assert (one.round(cluster(ALL), wanted=8), one.grey) == (("host-0",), ())
    assert (one.round(cluster(ALL), wanted=9), one.grey) == ((), ("sup-0",))


def test_used_slots_are_not_free() -> None:
    one = blacklist()
    after(one, BAD)
    busy = [
        Supervisor(each.id, each.ports, used=[1] if each.id == "sup-2" else [], host=each.host) for each in cluster(ALL)
    ]
    assert one.round(busy, wanted=7) == ("host-0",)
    assert one.round(busy, wanted=8) == ()


def test_released_in_the_order_of_host_names() -> None:
    one = blacklist()
    after(one, [ALL, {0: GONE, 1: GONE}, {0: GONE, 1: GONE}])
    assert (one.round(cluster(ALL), wanted=5), one.grey) == (("host-1",), ("sup-0",))


def test_list() -> None:
    script = [ALL, {0: {0, 1}}, {0: GONE}, *[ALL] * 17, {0: {0, 1}}, {1: {1}}, *[ALL] * 8, {0: {1}}, {1: {1}}]
    found = after(blacklist(), [*script, *[ALL] * 30])
    assert len(found) == 62
    assert {n: found[n] for n in (0, 2, 3, 30)} == {0: (), 2: (), 3: ("host-0",), 30: ("host-0",)}
    assert [found[n] for n in (31, 32, 60)] == [("host-0", "host-1")] * 3
    assert found[61] == ("host-0",)


def test_what_is_missing_for_long_is_forgotten() -> None:
    one = blacklist()
    after(one, [ALL, *[{0: GONE}] * 20])
    assert one.known.keys() == {"sup-1", "sup-2"}
    after(one, [ALL, *[{0: {0}}] * 20])
    assert one.known["sup-0"] == {1, 2, 3}


def test_a_port_that_is_added_and_removed_again() -> None:
    one = blacklist()
    one.round(cluster(ALL))
    one.round(cluster(ALL, ports=5))
    assert one.round(cluster(ALL)) == ()
    assert one.round(cluster(ALL)) == ("host-0", "host-1", "host-2")


def test_failed_assignments_count() -> None:
    one = blacklist()
    one.round(cluster(ALL), failed=["sup-2"])
    assert one.round(cluster(ALL), failed=["sup-2"]) == ("host-2",)


def test_the_planner_leaves_its_hosts_out() -> None:
    one = blacklist()
    after(one, BAD)
    now = cluster(ALL)
    found = plan_assignment(now, Demand("f", [Component("b", 6)]), blacklist=one.round(now))
    assert {worker.host for worker in found.workers} == {"host-1", "host-2"}
