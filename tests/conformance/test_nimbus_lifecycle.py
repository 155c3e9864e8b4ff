"""The life cycle of a deployed flow, rule by rule: submission (1.2), the state machine (1.3) and the original's tests (3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.nimbus.errors import (
    AlreadyAliveError,
    DeployNameError,
    NotAliveError,
    NoTransitionError,
    RebalanceError,
    SubmitError,
)
from pipelines.nimbus.registry.lifecycle import (
    PROTECTED_SETTINGS,
    SYSTEM_EVENTS,
    Action,
    Due,
    FlowEvent,
    Request,
    Standing,
    Status,
    Transition,
    check_request,
    delay_seconds,
    fire,
    step,
)
from pipelines.nimbus.registry.records import Content
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store

ASKED = Request(workers=3, parallelism={"counts": 2})

STANDINGS = {
    Status.ACTIVE: Standing("counts-1-0"),
    Status.INACTIVE: Standing("counts-1-0", Status.INACTIVE),
    Status.REBALANCING: Standing(
        "counts-1-0", Status.REBALANCING, Status.INACTIVE, 20.0, Due(FlowEvent.DO_REBALANCE, 70.0), ASKED
    ),
    Status.KILLED: Standing("counts-1-0", Status.KILLED, None, 20.0, Due(FlowEvent.REMOVE, 70.0)),
}

# The table of 1.3: status, event -> status afterwards ("gone", "refused", "silent").
TABLE = {
    "ACTIVE": {"INACTIVATE": "INACTIVE", "ACTIVATE": "ACTIVE", "REBALANCE": "REBALANCING", "KILL": "KILLED"},
    "INACTIVE": {"ACTIVATE": "ACTIVE", "INACTIVATE": "INACTIVE", "REBALANCE": "REBALANCING", "KILL": "KILLED"},
    "REBALANCING": {"GAIN_LEADERSHIP": "REBALANCING", "KILL": "KILLED", "DO_REBALANCE": "INACTIVE"},
    "KILLED": {"GAIN_LEADERSHIP": "KILLED", "KILL": "KILLED", "REMOVE": "gone"},
}
SYSTEM = {"GAIN_LEADERSHIP", "DO_REBALANCE", "REMOVE"}
ALL = [(status, event) for status in Status for event in FlowEvent]


class Cluster:
    """A registry with a clock of its own and one flow of components spout and counts."""

    def __init__(self, folder: Path) -> None:
        self.now, self.store = 0.0, Store.migrated(f"sqlite:///{folder}/registry.db")
        self.registry = Registry(self.store, clock=lambda: self.now)

    def submit(self, name: str = "test", timeout: float | None = None, **options: Status) -> None:
        settings = {} if timeout is None else {"message_timeout_seconds": timeout}
        content = Content({}, {"spout": 1, "counts": 4}, 2, settings)
        self.registry.submit(name, content, **options)

    def at(self, now: float) -> list[str]:
        """Lets the time come; the names of the flows that are there then."""
        self.now = now
        self.registry.fire()
        return [flow.name for flow in self.registry.flows()]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.store.close()


# --- 1.2 submission


@pytest.mark.parametrize("name", ["test/aaa", "a.b", "a:b", "a\\b", "", None, "a/b\n", 7])
def test_1_2_a_name_that_is_not_possible(cluster: Cluster, name: str) -> None:
    with pytest.raises(DeployNameError) as caught:
        cluster.submit(name)
    shown = "null" if name is None else name
    assert str(caught.value) == (
        f"Topology name '{shown}' is not valid. It can't be null and it must match ^[^/.:\\\\]+$"
    )


@pytest.mark.parametrize("name", ["flights", "With Spaces-and_more", "é"])
def test_1_2_a_name_that_is_possible(cluster: Cluster, name: str) -> None:
    cluster.submit(name)
    assert cluster.at(0) == [name]


def test_1_2_an_id_is_name_counter_seconds(cluster: Cluster) -> None:
    cluster.now = 1234.9
    cluster.submit("a")
    cluster.submit("b")
    assert [flow.id for flow in cluster.registry.flows()] == ["a-1-1234", "b-2-1234"]


def test_1_2_the_counter_goes_on_behind_a_removal(cluster: Cluster) -> None:
    cluster.submit("a")
    cluster.registry.kill("a", wait_seconds=0)
    assert cluster.at(9.99) == []
    cluster.submit("a")
    assert cluster.registry.flow("a").id == "a-2-9"


def test_1_2_a_live_name_is_refused_a_killed_one_too(cluster: Cluster) -> None:
    cluster.submit("a")
    for status in ("ACTIVE", "KILLED"):
        with pytest.raises(AlreadyAliveError, match=r"^a is already alive") as caught:
            cluster.submit("a")
        assert (caught.value.flow, caught.value.status) == ("a", status)
        cluster.registry.kill("a")


@pytest.mark.parametrize("status", [Status.KILLED, Status.REBALANCING])
def test_1_2_a_flow_starts_active_or_inactive(cluster: Cluster, status: Status) -> None:
    with pytest.raises(SubmitError, match=f"ACTIVE or INACTIVE, not {status}"):
        cluster.submit(status=status)
    cluster.submit(status=Status.INACTIVE)
    assert cluster.registry.flow("test").status is Status.INACTIVE


# --- 1.3 the table


@pytest.mark.parametrize(("status", "event"), ALL)
def test_1_3_every_status_and_event(status: Status, event: FlowEvent) -> None:
    expected = TABLE[status].get(event, "silent" if event in SYSTEM else "refused")
    standing = STANDINGS[status]
    if expected == "refused":
        with pytest.raises(NoTransitionError) as caught:
            step(standing, event, now=50)
        first = str(caught.value).splitlines()[0]
        assert first == f"No transition for event: {event}, status: {status} storm-id: counts-1-0"
        assert (caught.value.event, caught.value.status, caught.value.flow) == (event, status, "counts-1-0")
    elif expected == "silent":
        assert step(standing, event, now=50) == Transition(standing)
    elif expected == "gone":
        assert step(standing, event, now=50) == Transition(None, Action.REMOVE)
    else:
        after = step(standing, event, now=50).standing
        assert after is not None
        assert after.status == expected


def test_1_3_the_table_is_whole() -> None:
    assert {str(event) for event in SYSTEM_EVENTS} == SYSTEM


@pytest.mark.parametrize("status", [Status.ACTIVE, Status.INACTIVE])
def test_1_3_activate_and_inactivate_of_one_that_is_so_change_nothing(status: Status) -> None:
    event = FlowEvent.ACTIVATE if status is Status.ACTIVE else FlowEvent.INACTIVATE
    assert step(STANDINGS[status], event, now=50) == Transition(STANDINGS[status])


@pytest.mark.parametrize("previous", [Status.ACTIVE, Status.INACTIVE])
def test_1_3_a_rebalance_returns_to_the_status_before_it(previous: Status) -> None:
    begun = step(STANDINGS[previous], FlowEvent.REBALANCE, now=50, wait_seconds=5, request=ASKED).standing
    assert begun == Standing("counts-1-0", Status.REBALANCING, previous, 5, Due(FlowEvent.DO_REBALANCE, 55), ASKED)
    assert fire(begun, now=54.9) is None
    assert fire(begun, now=55) == Transition(STANDINGS[previous], Action.REASSIGN, ASKED)


def test_1_3_kill_drops_a_rebalance_under_way() -> None:
    killed = step(STANDINGS[Status.REBALANCING], FlowEvent.KILL, now=60, wait_seconds=30).standing
    assert killed == Standing("counts-1-0", Status.KILLED, None, 30, Due(FlowEvent.REMOVE, 90))
    assert fire(killed, now=70) is None, "the rebalance was due at 70"


@pytest.mark.parametrize(("wait", "due"), [(1, 61), (100, 160), (0, 60)])
def test_1_3_kill_again_gives_a_new_delay(wait: float, due: float) -> None:
    killed = step(STANDINGS[Status.KILLED], FlowEvent.KILL, now=60, wait_seconds=wait).standing
    assert killed == replace(STANDINGS[Status.KILLED], wait_seconds=wait, due=Due(FlowEvent.REMOVE, due))


@pytest.mark.parametrize("status", [Status.REBALANCING, Status.KILLED])
def test_1_3_a_new_leader_waits_the_delay_again(status: Status) -> None:
    before = STANDINGS[status]
    assert before.due is not None
    after = step(before, FlowEvent.GAIN_LEADERSHIP, now=65)
    assert after == Transition(replace(before, due=Due(before.due.event, 85)))


@pytest.mark.parametrize(
    ("wait", "timeout", "expected"),
    [(None, None, 30), (None, 60, 60), (10, 100, 10), (0, 100, 0), (-1, 100, 30), (None, -1, 30), (2.5, None, 2.5)],
)
@pytest.mark.parametrize("event", [FlowEvent.KILL, FlowEvent.REBALANCE])
def test_1_3_and_4_the_delay(wait: float | None, timeout: float | None, expected: float, event: FlowEvent) -> None:
    assert delay_seconds(wait, timeout) == expected
    after = step(STANDINGS[Status.ACTIVE], event, now=100, wait_seconds=wait, message_timeout_seconds=timeout).standing
    assert after is not None
    assert after.due is not None
    assert after.due.at == 100 + expected


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), float("-inf")])
def test_1_3_a_delay_without_an_end_is_refused(wait: float) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        step(STANDINGS[Status.ACTIVE], FlowEvent.KILL, now=0, wait_seconds=wait)


def test_1_3_only_an_active_flow_opens_batches() -> None:
    assert [status for status in Status if STANDINGS[status].accepting] == [Status.ACTIVE]


@pytest.mark.parametrize("status", Status)
def test_1_3_a_request_survives_its_store(status: Status) -> None:
    request = STANDINGS[status].request
    assert request is None or Request.from_json(request.to_json()) == request


# --- 1.3 a rebalance's checks


def test_1_3_an_unknown_component() -> None:
    with pytest.raises(RebalanceError) as caught:
        check_request("test", Request(parallelism={"nobody": 2}), {"spout", "counts"})
    assert str(caught.value) == "Invalid component nobody for topology test, valid values are counts,spout"
    assert caught.value.component == "nobody"


def test_1_3_ids_of_the_system_are_components_too() -> None:
    request = Request(parallelism={"__acker": 2})
    assert check_request("test", request, {"spout"}) == request


@pytest.mark.parametrize("executors", [0, -1, True, 1.5, "2", None])
def test_1_3_no_executors(executors: int) -> None:
    with pytest.raises(RebalanceError, match=r"^Number of executors must be greater than 0$"):
        check_request("test", Request(parallelism={"spout": executors}), {"spout"})


@pytest.mark.parametrize("workers", [0, -1, True])
def test_1_3_no_workers(workers: int) -> None:
    with pytest.raises(RebalanceError, match=r"^Number of workers must be greater than 0$"):
        check_request("test", Request(workers=workers), {"spout"})


def test_1_3_protected_settings_are_left_out() -> None:
    settings = {**dict.fromkeys(PROTECTED_SETTINGS, "x"), "trigger_seconds": 5}
    assert check_request("test", Request(settings=settings), {"spout"}).settings == {"trigger_seconds": 5}
    assert {"topology.submitter.user", "topology.submitter.principal", "storm.local.hostname"} <= PROTECTED_SETTINGS


def test_1_3_a_killed_rebalance_is_never_applied(cluster: Cluster) -> None:
    cluster.submit(timeout=60)
    cluster.registry.rebalance("test", Request(workers=7, parallelism={"counts": 9}))
    cluster.now = 10
    cluster.registry.kill("test", wait_seconds=60)
    assert cluster.at(60) == ["test"], "the rebalance was due here"
    seen = cluster.registry.flow("test")
    assert (seen.status, seen.workers, seen.parallelism["counts"], seen.scratch) == (Status.KILLED, 2, 4, False)
    assert cluster.at(70) == []


def test_1_3_an_inactive_flow_is_rebalanced_and_stays_so(cluster: Cluster) -> None:
    cluster.submit(status=Status.INACTIVE)
    cluster.registry.rebalance("test", Request(workers=3), wait_seconds=0)
    cluster.at(0)
    seen = cluster.registry.flow("test")
    assert (seen.status, seen.workers, seen.scratch) == (Status.INACTIVE, 3, True)


def test_1_3_a_rebalance_waits_the_time_out_of_before(cluster: Cluster) -> None:
    cluster.submit(timeout=20)
    cluster.registry.rebalance("test", Request(settings={"message_timeout_seconds": 90}))
    for now, status in ((19, Status.REBALANCING), (20, Status.ACTIVE)):
        cluster.at(now)
        assert cluster.registry.flow("test").status is status
    cluster.registry.kill("test")
    assert (cluster.at(109), cluster.at(110)) == (["test"], [])


def test_1_3_a_new_leader_delays_only_what_waits(cluster: Cluster) -> None:
    for name in ("killed", "moves", "runs"):
        cluster.submit(name)
    cluster.registry.kill("killed", wait_seconds=10)
    cluster.registry.rebalance("moves", wait_seconds=20)
    cluster.now = 9
    cluster.registry.gain_leadership()
    assert cluster.at(18.9) == ["killed", "moves", "runs"]
    assert cluster.at(28.9) == ["moves", "runs"]
    statuses = [cluster.registry.flow("moves").status]
    cluster.at(29)
    statuses += [cluster.registry.flow(name).status for name in ("moves", "runs")]
    assert statuses == [Status.REBALANCING, Status.ACTIVE, Status.ACTIVE]


# --- 3 the original's tests


def test_3_bogus_id(cluster: Cluster) -> None:
    cluster.submit("other")
    registry = cluster.registry
    for call in (
        registry.activate,
        registry.deactivate,
        registry.kill,
        registry.rebalance,
        registry.flow,
        registry.versions,
        registry.roll_back,
    ):
        with pytest.raises(NotAliveError, match=r"^bogus is not alive") as caught:
            call("bogus")
        assert caught.value.alive == ("other",)
    with pytest.raises(NotAliveError):
        registry.rebalance("bogus", Request(parallelism={"spout": 0}))


def test_3_kill_storm(cluster: Cluster) -> None:
    """Time-out 20: KILLED at once, there at +18 s, gone at +21; submitted again meanwhile: already alive."""
    cluster.submit(timeout=20)
    cluster.registry.kill("test")
    assert cluster.registry.flow("test").status is Status.KILLED
    assert cluster.at(18) == ["test"]
    with pytest.raises(AlreadyAliveError):
        cluster.submit()
    assert cluster.at(21) == []
    with pytest.raises(NotAliveError):
        cluster.registry.kill("test")
    cluster.submit()


def test_3_kill_wait_beats_the_time_out(cluster: Cluster) -> None:
    """Wait 10, time-out 100: there at 9, gone at 11."""
    cluster.submit(timeout=100)
    cluster.registry.kill("test", wait_seconds=10)
    assert cluster.at(9) == ["test"]
    assert cluster.at(11) == []


def test_3_kill_again_while_killed(cluster: Cluster) -> None:
    cluster.submit()
    cluster.registry.kill("test", wait_seconds=10)
    cluster.now = 5
    cluster.registry.kill("test", wait_seconds=10)
    assert cluster.at(14) == ["test"]
    assert cluster.at(15) == []


def test_3_rebalance_waits_the_time_out(cluster: Cluster) -> None:
    """testRebalance: the default wait is the flow's time-out of 60."""
    cluster.submit(timeout=60)
    cluster.registry.rebalance("test", Request(workers=6, parallelism={"counts": 8}))
    cluster.at(30)
    seen = cluster.registry.flow("test")
    assert (seen.status, seen.workers, seen.scratch) == (Status.REBALANCING, 2, False), "nothing is applied yet"
    cluster.at(60)
    seen = cluster.registry.flow("test")
    assert (seen.status, seen.workers, seen.scratch) == (Status.ACTIVE, 6, True)
    assert seen.parallelism == {"spout": 1, "counts": 8}
    cluster.registry.rebalance("test", Request(parallelism={"counts": 1}), wait_seconds=30)
    cluster.at(92)
    seen = cluster.registry.flow("test")
    assert (seen.workers, seen.parallelism["counts"]) == (6, 1), "what it does not name stays"


@pytest.mark.parametrize("call", ["activate", "deactivate", "rebalance"])
@pytest.mark.parametrize("status", ["KILLED", "REBALANCING"])
def test_3_activate_of_one_that_drains(cluster: Cluster, status: str, call: str) -> None:
    cluster.submit()
    cluster.registry.kill("test") if status == "KILLED" else cluster.registry.rebalance("test")
    event = {"activate": "ACTIVATE", "deactivate": "INACTIVATE", "rebalance": "REBALANCE"}[call]
    with pytest.raises(NoTransitionError) as caught:
        getattr(cluster.registry, call)("test")
    assert str(caught.value).startswith(f"No transition for event: {event}, status: {status} storm-id: test-1-0")
    assert cluster.registry.flow("test").status == status


def test_3_actions_in_order(cluster: Cluster) -> None:
    """testTopologyActionNotifier: submit, activate, deactivate, activate, rebalance, kill."""
    cluster.submit(status=Status.INACTIVE)
    registry = cluster.registry
    for act in (registry.activate, registry.deactivate, registry.activate):
        act("test")
    registry.rebalance("test", wait_seconds=0)
    registry.fire()
    registry.kill("test", wait_seconds=0)
    registry.fire()
    assert [line.event for line in registry.history("test")] == [
        *("SUBMIT", "ACTIVATE", "INACTIVATE", "ACTIVATE"),
        *("REBALANCE", "DO_REBALANCE", "KILL", "REMOVE"),
    ]
