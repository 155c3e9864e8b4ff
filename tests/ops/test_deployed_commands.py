"""`tridelta submit`, `status`, `kill` ...: what is asked of Nimbus, and what the screen shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ops.cli import deployed, deployed_view
from ops.cli.app import app
from pipelines.nimbus.errors import RebalanceError, RegistryError, SettingError
from pipelines.nimbus.processes.supervisor import chosen_name
from pipelines.nimbus.registry.lifecycle import Status
from pipelines.nimbus.registry.records import Happened
from tests.fake_nimbus import FakeNimbus
from tests.nimbus.looks import NOW, RUNNING, SILENT, cluster, flow

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def nimbus(monkeypatch: pytest.MonkeyPatch) -> FakeNimbus:
    fake = FakeNimbus()

    @contextmanager
    def opened(**_: object) -> Iterator[FakeNimbus]:
        with fake:
            yield fake

    monkeypatch.setattr(deployed, "nimbus", opened)
    return fake


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output + str(done.exception)
    assert "Traceback" not in done.output
    return done


def said(result: Result) -> str:
    return re.sub(r"\s+", " ", result.stdout)


def test_submit_deploys_starts_a_supervisor_and_waits_until_the_flow_runs(nimbus: FakeNimbus) -> None:
    done = run("submit", "flights")
    assert nimbus.asked == [
        ("submit", "flights", {"inactive": False}),
        ("ensure_supervisor",),
        ("wait", "flights", "running", deployed.RUNS_WITHIN),
    ]
    assert "flights is submitted: ACTIVE, version 1, runs; batch 41, 250.5 rows per second" in said(done)
    assert nimbus.closed == 1


@pytest.mark.parametrize("options", [[], ["--no-supervisor"]], ids=["", "no supervisor"])
def test_submit_of_a_killed_flow_starts_who_removes_it(nimbus: FakeNimbus, options: list[str]) -> None:
    nimbus.flows, nimbus.alive = {"flights": flow("flights", status="KILLED")}, False
    done = run("submit", "flights", *options, code=1)
    assert "wait until it is removed" in re.sub(r"\s+", " ", done.stderr)
    assert nimbus.alive is not bool(options)


@pytest.mark.parametrize(
    ("status", "goes_on"),
    [
        (None, "Go on with: tridelta run trips"),
        ("ACTIVE", "It is deployed and goes on by itself."),
        ("INACTIVE", "It is deployed and inactive; go on with: tridelta activate trips"),
        ("KILLED", "It is being removed; go on afterwards with: tridelta submit trips"),
    ],
)
def test_skip_says_how_the_flow_goes_on(
    nimbus: FakeNimbus, home: Path, monkeypatch: pytest.MonkeyPatch, status: str | None, goes_on: str
) -> None:
    (home / "nimbus").mkdir()
    (home / "nimbus" / "registry.db").touch()
    nimbus.flows = {} if status is None else {"trips": flow("trips", status=status)}
    monkeypatch.setattr("ops.cli.app.topology_of", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr("pipelines.execution.batch.poison.skip", lambda *_, stream: stream)
    assert f"Batch 3 of rides in trips is left out. {goes_on} Once the cause" in said(
        run("skip", "trips", "3", "--stream", "rides")
    )


def test_skip_of_a_file_that_is_not_deployed_names_the_file(
    nimbus: FakeNimbus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known by its file alone."""
    monkeypatch.setattr("ops.cli.app.topology_of", lambda name: SimpleNamespace(name="trips"))
    monkeypatch.setattr("pipelines.execution.batch.poison.skip", lambda *_, stream: stream)
    assert "Go on with: tridelta submit trips.yaml" in said(run("skip", "trips.yaml", "3"))


def test_submit_passes_its_options_on(nimbus: FakeNimbus) -> None:
    options = [
        "--trigger-seconds",
        "2",
        "--workers",
        "2",
        "--parallelism",
        "flights=4",
        "--parallelism",
        "departures=2",
    ]
    settings = ["isolated=true", "max_attempts=5", "spark.executor.memory=2g", "rebalance.busy=0.5", "hosts=[a, b]"]
    more = [word for one in settings for word in ("--setting", one)]
    run("submit", "flights", *options, *more, "--inactive", "--no-supervisor", "--json")
    assert nimbus.asked == [
        (
            "submit",
            "flights",
            {
                "inactive": True,
                "trigger_seconds": 2.0,
                "workers": 2,
                "parallelism": {"flights": 4, "departures": 2},
                "isolated": True,
                "max_attempts": 5,
                "spark": {"spark.executor.memory": "2g"},
                "rebalance": {"busy": 0.5},
                "hosts": ["a", "b"],
            },
        )
    ]


def test_submit_takes_a_yaml_file(nimbus: FakeNimbus, tmp_path: Path) -> None:
    file = tmp_path / "late.yaml"
    file.write_text("flow: late\nstreams:\n  - {name: s, source: 'v bigint', operations: [{persist: kept}]}\n")
    found = json.loads(run("submit", str(file), "--no-wait", "--json").stdout)
    assert nimbus.asked == [("submit", "late", {"inactive": False, "file": file}), ("ensure_supervisor",)]
    assert (found["name"], found["status"], found["supervisor"]) == ("late", "ACTIVE", "s1")
    file.write_text("flow: late\nstreams: []\n")
    assert "FlowFileError" in run("submit", str(file), code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["submit", "flights", "--parallelism", "flights"], "write it as NAME=N"),
        (["submit", "flights", "--parallelism", "flights=many"], "not a parallelism: 'flights=many'"),
        (["submit", "flights", "--setting", "isolated"], "write it as K=V"),
        (["submit", "flights", "--setting", "hosts=[a"], "not a setting: 'hosts=[a'"),
        (["supervisor", "--ports", "6900,http"], "--ports must be a whole number from 1 to 65535, not 'http'"),
        (["status", "trips"], "trips is not alive"),
        (["kill", "trips"], "no flow is deployed; submit it first"),
        (["logs", "trips"], "trips is not alive"),
        (["logs", "trips", "--level", "loud"], "there are: debug, info, warning, error, critical"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(nimbus: FakeNimbus, arguments: list[str], text: str) -> None:
    done = run(*arguments, code=1)
    assert text in re.sub(r"\s+", " ", done.stderr)
    assert nimbus.asked in ([], [("kill", "trips", None)])
    assert done.stdout == ""


def test_a_flow_that_does_not_come_up_is_an_error_that_says_why(nimbus: FakeNimbus) -> None:
    nimbus.stuck = True
    done = run("submit", "flights", "--wait-at-most", "3", code=1)
    text = re.sub(r"\s+", " ", done.stderr)
    assert 'WaitError: flow "flights" is not running after 3 s: no slot is free' in text
    assert "tridelta logs flights" in text


@pytest.mark.parametrize(
    ("arguments", "asked", "shown"),
    [
        (["update", "flights"], ("update", "flights", {}), "flights is updated: ACTIVE, version 3, runs"),
        (["rollback", "flights"], ("roll_back", "flights", None), "flights is rolled back: ACTIVE, version 3"),
        (["rollback", "flights", "--to", "1"], ("roll_back", "flights", 1), "flights is rolled back"),
        (["activate", "flights"], ("activate", "flights"), "flights is active: ACTIVE"),
        (["deactivate", "flights"], ("deactivate", "flights"), "flights is inactive: INACTIVE, version 2; batch 41"),
        (["kill", "flights"], ("kill", "flights", None), "flights is removed."),
        (["kill", "flights", "--wait-seconds", "5"], ("kill", "flights", 5.0), "flights is removed."),
        (
            ["kill", "flights", "--no-wait"],
            ("kill", "flights", None),
            "flights: KILLED, version 2, REMOVE at 2027-01-15 08:00:30 UTC",
        ),
        (
            ["rebalance", "flights", "--workers", "2", "--parallelism", "flights=3", "--wait-seconds", "1"],
            ("rebalance", "flights", {"wait_seconds": 1.0, "workers": 2, "parallelism": {"flights": 3}}),
            "flights is rebalanced:",
        ),
    ],
)
def test_verbs_ask_wait_and_show(nimbus: FakeNimbus, arguments: list[str], asked: tuple[Any, ...], shown: str) -> None:
    nimbus.flows = {"flights": flow("flights", RUNNING)}
    done = run(*arguments)
    changes = [one for one in nimbus.asked if one[0] not in ("wait", "ensure_supervisor")]
    assert changes == [asked]
    assert shown in said(done)


def test_a_change_of_an_inactive_flow_says_too_that_nobody_makes_it(nimbus: FakeNimbus) -> None:
    nimbus.flows, nimbus.alive = {"flights": flow("flights", status="INACTIVE")}, False
    assert "No supervisor is alive" in run("rebalance", "flights", "--workers", "2").stderr


def test_without_a_supervisor_nothing_is_waited_for(nimbus: FakeNimbus) -> None:
    nimbus.flows, nimbus.alive = {"flights": flow("flights", RUNNING)}, False
    done = run("deactivate", "flights")
    assert nimbus.asked == [("deactivate", "flights")]
    assert "No supervisor is alive" in done.stderr
    nimbus.stuck = True
    done = run("update", "flights", "--no-supervisor", "--json")
    assert json.loads(done.stdout)["version"] == 3


@pytest.mark.parametrize("verb", ["rebalance", "update", "rollback"])
def test_a_change_that_is_not_carried_out_ends_with_code_1(nimbus: FakeNimbus, verb: str) -> None:
    unmet = "it stays where it is: there's no enough worker"
    nimbus.flows = {"flights": flow("flights", RUNNING, problem=unmet, waits=True)}
    options = ["--workers", "3"] if verb == "rebalance" else []
    assert f"Problem: {unmet}" in said(run(verb, "flights", *options, code=1))
    assert json.loads(run(verb, "flights", *options, "--json", code=1).stdout)["problem"] == unmet
    # What is only asked for is not yet due.
    nimbus.flows = {"flights": flow("flights", RUNNING, problem=unmet)}
    run("rebalance", "flights", "--workers", "3", "--no-wait")
    # The wish of a flow that shares its application.
    run(verb, "flights", *options)
    nimbus.flows = {"flights": flow("flights", problem="it cannot be placed: there's no enough worker")}
    run("update", "flights", "--no-wait", code=1)


def test_a_dry_rebalance_changes_nothing(nimbus: FakeNimbus) -> None:
    nimbus.flows = {"flights": flow("flights", RUNNING)}
    options = ["--workers", "1", "--parallelism", "flights=4", "--dry-run"]
    assert "│ flights │ 2 │ 4 │" in said(run("rebalance", "flights", *options))
    found = json.loads(run("rebalance", "flights", *options, "--json").stdout)
    assert found == {"flow": "flights", "changes": [{"what": "flights", "now": "2", "then": "4"}]}
    assert nimbus.asked == []


def test_a_dry_rebalance_is_refused_as_a_real_one(nimbus: FakeNimbus, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(name: str, **_: Any) -> None:
        raise RebalanceError(name, "a rebalance does not change owner")

    monkeypatch.setattr(nimbus, "check_rebalance", refuses)
    nimbus.flows = {"flights": flow("flights", RUNNING)}
    done = run("rebalance", "flights", "--setting", "owner=you", "--dry-run", code=1)
    assert done.stdout == ""
    assert "a rebalance does not change owner" in done.stderr


def test_status_shows_queries_gates_errors_and_history(nimbus: FakeNimbus) -> None:
    failed = replace(SILENT, last_error="PoisonBatchError: batch 7\nmore")
    nimbus.flows = {"flights": flow("flights", RUNNING, failed, problem="s2 does not beat")}
    nimbus.told = [
        Happened(NOW - 60, "SUBMIT", None, Status.ACTIVE, 1),
        Happened(NOW, "WORKER_DIED", Status.ACTIVE, Status.ACTIVE, 2, {"port": 6900, "code": -9}),
    ]
    text = said(run("status", "flights"))
    assert "flights: ACTIVE, version 2; batch 41, 250.5 rows per second Problem: s2 does not beat" in text
    assert (
        "│ flights │ running │ s1:6900 │ 41 │ 1 │ 6,000 │ 250.50 │ 2.0 s of 5.0 s │ 7.5 s │ 3 files, 4 kB │ 9 │ 64 │"
        in text
    )
    assert "│ weather │ silent │" in text
    assert "│ flights │ accepted │ origin_is_there │ drop │ 500 │ 3 │ no │ 4 of 12 │" in text
    assert "Last error of weather: PoisonBatchError: batch 7 more" in text
    assert "│ 2027-01-15 08:00:00 │ WORKER_DIED │ ACTIVE -> ACTIVE │ 2 │ port=6900, code=-9 │" in text
    found = json.loads(run("status", "flights", "--json", "-n", "1").stdout)
    assert (found["txid"], found["last_error"]) == (41, "PoisonBatchError: batch 7\nmore")
    assert [one["event"] for one in found["history"]] == ["WORKER_DIED"]
    assert found["tasks"][0]["gates"][0]["checks"][0]["unexpected"] == 3
    assert json.loads(run("status", "flights", "--json", "-n", "0").stdout)["history"] == []


def test_status_of_all_shows_flows_and_supervisors(nimbus: FakeNimbus) -> None:
    assert "Deployed flows: no rows" in said(run("status"))
    nimbus.flows = {"flights": flow("flights", RUNNING, SILENT), "trips": flow("trips", problem="not enough workers")}
    text = said(run("status"))
    assert "│ flights │ ACTIVE │ 2 │ 1 of 2 run │ 41 │ 7.5 s │ 250.50 │" in text
    assert "not enough workers" in text
    nimbus.flows = {"flights": flow("flights", replace(RUNNING, gone=["/data/in"]))}
    assert "what it reads is gone: /data/in" in said(run("status"))
    assert "Problem: what it reads is gone: /data/in" in said(run("status", "flights"))
    assert "flights: what it reads is gone: /data/in" in said(run("top"))
    ages = [deployed_view.supervisor_line(supervisor)["beat"] for supervisor in cluster().supervisors]
    assert ages == ["0.5 s", "90 s, dead, blacklisted"]
    nimbus.flows = {"flights": flow("flights", RUNNING, SILENT), "trips": flow("trips", problem="not enough workers")}
    assert "│ s1 │ here │ 0 of 2 used │ 0.5 s │ yes │" in text
    assert [one["name"] for one in json.loads(run("status", "--json").stdout)["flows"]] == ["flights", "trips"]


def test_top_once_and_as_json(nimbus: FakeNimbus) -> None:
    nimbus.flows = {"flights": flow("flights", RUNNING, SILENT), "trips": flow("trips", problem="not enough workers")}
    text = said(run("top", "--once"))
    assert "2027-01-15 08:00:00 UTC 2 flows 1 supervisors, 0 of 2 slots used leader: s1" in text
    assert "│ flights │ ACTIVE │ flights │ running │ s1:6900 │" in text
    assert "│ │ │ weather │ silent │" in text
    assert "trips: not enough workers" in text
    assert json.loads(run("top", "--json").stdout)["leader"] == "s1"
    # Nobody can end it in a pipe.
    assert said(run("top")) == text


def test_top_looks_again_until_it_is_ended(
    nimbus: FakeNimbus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ops.cli import deployed_view

    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("ops.cli.deployed_view.time", SimpleNamespace(sleep=pause))
    nimbus.flows = {"flights": flow("flights", RUNNING)}
    deployed_view.live(nimbus.cluster, 0.5)
    assert "q: end" in capsys.readouterr().out
    assert looks == [0.5] * 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0, "0.0 s"), (7.46, "7.5 s"), (12.4, "12 s"), (180, "3 min"), (9000, "2.5 h"), (400_000, "5 d")],
)
def test_times_as_people_say_them(seconds: float | None, text: str) -> None:
    assert deployed_view.span(seconds) == text


def log(home: Path, slot: str, *lines: dict[str, Any]) -> None:
    file = home / "nimbus" / slot
    file.parent.mkdir(parents=True, exist_ok=True)
    stamps = ({"timestamp": f"2026-01-01T00:00:0{number}.000000Z"} for number in range(10))
    file.write_text("".join(json.dumps(next(stamps) | one) + "\n" for one in lines))


def test_logs_come_from_every_slot_of_this_machine(nimbus: FakeNimbus, home: Path) -> None:
    nimbus.flows = {"flights": flow("flights", RUNNING)}
    batch = {"level": "info", "event": "batch", "flow": "flights", "group": "flights", "supervisor": "s1", "port": 6900}
    own = {"level": "warning", "event": "memory is short"}
    failed = {"level": "error", "event": "query failed", "flow": "flights", "reason": "no room", "exception": "a\nb"}
    other = {"level": "error", "event": "elsewhere", "flow": "trips"}
    log(home, "logs/s1/6900/worker.jsonl", batch | {"txid": 3}, own, other)
    log(home, "logs/s1/6901/worker.jsonl", batch | {"txid": 2, "port": 6901}, own | {"event": "not ours"}, failed)
    text = run("logs", "flights").stdout
    assert text.splitlines() == [
        "2026-01-01 00:00:00.000 INFO     s1:6900 flights/flights batch txid=3",
        "2026-01-01 00:00:00.000 INFO     s1:6901 flights/flights batch txid=2",
        "2026-01-01 00:00:01.000 WARNING  memory is short",
        '2026-01-01 00:00:02.000 ERROR    flights query failed reason="no room"',
        "    a",
        "    b",
    ]
    lines = [
        json.loads(one) for one in run("logs", "flights", "--json", "-n", "2", "--level", "warning").stdout.splitlines()
    ]
    assert [one["event"] for one in lines] == ["memory is short", "query failed"]


@pytest.mark.parametrize("opens", [False, True], ids=["not opened", "lost later"])
def test_logs_are_read_also_while_the_registry_does_not_answer(
    nimbus: FakeNimbus, home: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    def away(*_: object) -> Any:
        raise RegistryError("postgresql://me@db/r", "does not answer: refused")

    monkeypatch.setattr(*((nimbus, "flow") if opens else (deployed, "nimbus")), away)
    named = {"level": "error", "event": "query failed", "flow": "flights"}
    log(home, "logs/s1/6900/worker.jsonl", named, {"level": "warning", "event": "registry does not answer"})
    done = run("logs", "flights")
    assert [line.split(" ", 3)[3] for line in done.stdout.splitlines()] == [
        "   flights query failed",
        " registry does not answer",
    ]
    assert "postgresql://me@db/r does not answer: refused" in done.stderr
    assert "all logs of this machine are read" in re.sub(r"\s+", " ", done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "flights"], ["versions", "flights"], ["top"], ["kill", "flights"], ["update", "flights"]],
    ids=" ".join,
)
def test_a_look_makes_no_registry(home: Path, arguments: list[str]) -> None:
    done = run(*arguments, code=1)
    assert f"RegistryError: the registry sqlite:///{home}/nimbus/registry.db is not there" in done.stderr
    assert "TRIDELTA_HOME" in done.stderr
    assert done.stdout == ""
    assert not (home / "nimbus" / "registry.db").exists()


@pytest.mark.parametrize("name", ["a/b", "../../x", "a:b", "", "..", "a\nb"])
def test_a_supervisor_has_a_name_that_can_be_a_folder(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("pipelines.nimbus.processes.supervisor.run", lambda **_: pytest.fail("it runs"))
    done = run("supervisor", "--id", name, code=1)
    assert "SettingError: a supervisor cannot be called" in done.stderr
    assert not (home / "nimbus").exists()
    with pytest.raises(SettingError, match="cannot be called"):
        chosen_name(name)
    assert chosen_name("rack-2.host_1") == "rack-2.host_1"


def test_logs_of_another_machine_are_said_to_be_there(nimbus: FakeNimbus) -> None:
    nimbus.flows = {"flights": flow("flights", RUNNING)}
    done = run("logs", "flights")
    assert "s1:6900 has no log in" in done.stderr
    assert "Nothing is logged about flights." in done.stderr
    assert "about flights of level error or worse" in run("logs", "flights", "--level", "error").stderr
    assert done.stdout == ""


def test_a_setting_that_is_said_empty_is_passed_on(nimbus: FakeNimbus) -> None:
    nimbus.flows["flights"] = flow("flights")
    run("update", "flights", "--setting", "spark={}", "--setting", "message_timeout_seconds=null")
    assert nimbus.asked[0] == ("update", "flights", {"spark": {}, "message_timeout_seconds": None})


@pytest.mark.parametrize("setting", ["inactive=true", "flow=x", "self=x", "parallelism=3", "file=x", "colour=red"])
def test_what_is_no_setting_becomes_no_other_argument(nimbus: FakeNimbus, setting: str) -> None:
    done = CliRunner().invoke(app, ["submit", "flights", "--setting", setting])
    assert done.exit_code == 1
    assert f"unknown setting '{setting.partition('=')[0]}'" in re.sub(r"\s+", " ", done.output)
    assert nimbus.asked == []
