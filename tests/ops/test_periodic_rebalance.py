"""The periodic rebalance: what deployed flows tell of themselves, looked at again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops.cli.app import app
from pipelines.maintenance.rebalance import Figures
from pipelines.nimbus import periodic_rebalance
from pipelines.nimbus.deployed import check_deployed
from pipelines.nimbus.errors import NotAliveError, SubmitError
from pipelines.nimbus.nimbus import Nimbus
from pipelines.nimbus.periodic_rebalance import Judged, LookBook, judge
from pipelines.nimbus.registry.records import DeployedFlow
from tests.nimbus import beats

pytestmark = pytest.mark.usefixtures("home")

SLOW = {
    "group": "flights",
    "state": "running",
    "trigger_seconds": 5.0,
    "last_batch_seconds": [9.0] * 10,
    "last_backlogs": [float(n) for n in range(10)],
    "rows_per_second": 1000.0,
    "partitions": 2,
}
IDLE = SLOW | {"last_batch_seconds": [0.1] * 10, "last_backlogs": [0.0] * 10}


class Clock:
    """Starts long after the flow was submitted."""

    def __init__(self) -> None:
        import time

        self.now = time.time() + 10_000

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_rebalance, "_cores", lambda _: 8)


@pytest.fixture
def nimbus(home: Path) -> Iterator[Nimbus]:
    with Nimbus.from_environment() as opened:
        opened.submit("flights", parallelism={"flights": 2})
        yield opened


def beat(nimbus: Nimbus, figures: dict[str, Any], *, flow: str = "flights") -> None:
    deployed = nimbus.registry.flow(flow)
    holder = nimbus.registry.leases.take(f"beat {json.dumps(figures)[:200]} {id(figures)}", "worker", 60)
    beats.beat(nimbus.places, deployed, 1, ("s1", 6900), holder, lease_seconds=60, figures=figures)


def looked(nimbus: Nimbus, clock: Clock, times: int) -> Judged:
    for _ in range(times):
        clock.now += 900
        (one,) = judge(nimbus, clock=clock)
    return one


def test_the_third_look_in_a_row_scales_out(nimbus: Nimbus, clock: Clock) -> None:
    beat(nimbus, SLOW)
    for _ in range(2):
        waits = looked(nimbus, clock, 1)
        assert waits.request == {}
        assert "of the last 3 looks say so, all must" in waits.sentence
    decided = looked(nimbus, clock, 1)
    ((decision, look),) = decided.decisions
    assert (decision.action, decision.before, decision.after) == ("scale_out", 2, 4)
    assert (look.query, look.cores, look.batch_seconds) == ("flights/flights", 8, (9.0,) * 10)
    components = ("flights", "departures", "carrier_delay", "route_traffic", "airport_hour")
    assert decided.request == {"parallelism": dict.fromkeys(components, 4)}
    assert decided.rows()[0]["partitions"] == "2 -> 4"
    assert json.loads(json.dumps(decided.to_json()))["decisions"][0]["action"] == "scale_out"
    # What it asks for is what a rebalance takes.
    assert nimbus.rebalance("flights", **decided.request).status == "REBALANCING"


def test_looks_in_quick_succession_count_as_one(nimbus: Nimbus, clock: Clock) -> None:
    beat(nimbus, SLOW)
    for _ in range(5):
        clock.now += 5
        (one,) = judge(nimbus, clock=clock)
        assert one.request == {}


def test_idle_partitions_are_given_back(nimbus: Nimbus, clock: Clock) -> None:
    beat(nimbus, IDLE)
    assert looked(nimbus, clock, 3).request["parallelism"]["flights"] == 1


def test_a_flow_has_thresholds_of_its_own(nimbus: Nimbus, clock: Clock) -> None:
    nimbus.update("flights", rebalance={"looks": 1})
    clock.now += 10
    beat(nimbus, SLOW)
    assert looked(nimbus, clock, 1).request["parallelism"]["flights"] == 4
    with pytest.raises(SubmitError, match="idel"):
        nimbus.update("flights", rebalance={"idel": 0.1})


def test_what_does_not_run_is_not_judged(nimbus: Nimbus, clock: Clock) -> None:
    assert judge(nimbus, clock=clock)[0].sentence == "flights: none: no query of it runs"
    beat(nimbus, SLOW | {"state": "starting"})
    assert judge(nimbus, clock=clock)[0].decisions == ()
    nimbus.deactivate("flights")
    beat(nimbus, dict(SLOW))
    (one,) = judge(nimbus, clock=clock)
    assert one.sentence == "flights: none: it is INACTIVE"
    assert one.rows() == [{"query": "flights", "decision": "none", "why": "it is INACTIVE"}]
    with pytest.raises(NotAliveError):
        judge(nimbus, ["trips"])


def test_a_flow_that_cannot_be_judged_holds_up_no_other(
    nimbus: Nimbus, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(nimbus, SLOW)

    def damaged(flow: DeployedFlow) -> None:
        if flow.name == "flights":
            raise SubmitError(flow.name, "another release wrote it")
        check_deployed(flow)

    monkeypatch.setattr(periodic_rebalance, "check_deployed", damaged)
    nimbus.registry.submit("trips", nimbus.registry.flow("flights").version.content)
    judged = {verdict.flow: verdict.why_not for verdict in judge(nimbus, clock=clock)}
    assert "another release wrote it" in judged["flights"]
    assert judged["trips"] == "no query of it runs"
    with pytest.raises(SubmitError):
        judge(nimbus, ["flights"])


def test_after_a_change_nothing_is_judged(nimbus: Nimbus) -> None:
    beat(nimbus, SLOW)
    (one,) = judge(nimbus)
    assert "nothing is judged" in one.sentence


def test_a_book_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "looks" / "flights.json"
    look = Figures("flights/flights", 5.0, (1.0, 2.0), (0.0,), 10.0, 2, 8)
    assert LookBook(file).add([look], 0.0) == {"flights/flights": [look]}
    assert LookBook(file).add([look], 100.0) == {"flights/flights": [look, look]}
    for spoilt in ("{", "[]"):
        file.write_text(spoilt)
        assert LookBook(file).add([look], 200.0) == {"flights/flights": [look]}
    assert [one.name for one in file.parent.iterdir()] == ["flights.json"]


def test_the_command_line_tells_the_decision(nimbus: Nimbus) -> None:
    beat(nimbus, SLOW)
    done = CliRunner().invoke(app, ["rebalance", "flights", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("flights/flights: none: the last change was ")
    found = json.loads(CliRunner().invoke(app, ["rebalance", "flights", "--json"]).stdout)
    assert (found["request"], found["decisions"][0]["action"]) == ({}, "none")


def test_a_decision_that_is_applied_is_one_document(
    nimbus: Nimbus, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    nimbus.update("flights", rebalance={"looks": 1})
    beat(nimbus, SLOW)
    monkeypatch.setattr(periodic_rebalance, "judge", partial(judge, clock=clock))
    done = CliRunner().invoke(app, ["rebalance", "flights", "--no-wait", "--json"])
    found = json.loads(done.stdout)
    assert (found["status"], found["decided"]["decisions"][0]["action"]) == ("REBALANCING", "scale_out")
