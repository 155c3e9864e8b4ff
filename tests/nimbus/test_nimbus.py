"""Nimbus' own calls: what is written into the registry, what is refused, what is told. No Spark, no processes."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, update

from pipelines import Lake
from pipelines.catalog.flow import FlowSettings, FlowSpec
from pipelines.errors import FlowFileError, UnknownFlowError
from pipelines.execution.checkpoint.ownership import host_name
from pipelines.flowmix.compile import as_topology
from pipelines.flowmix.flow import default_windows
from pipelines.flowmix.yaml_form import load_flow
from pipelines.nimbus import Nimbus, NimbusSettings
from pipelines.nimbus.deployed import application_of, check_deployed, load, plan_digest, queries_of, source_digest
from pipelines.nimbus.errors import (
    AlreadyAliveError,
    DeployError,
    NimbusError,
    NotAliveError,
    NoTransitionError,
    RebalanceError,
    SettingError,
    SubmitError,
    VersionError,
    WaitError,
)
from pipelines.nimbus.periodic_rebalance import judge
from pipelines.nimbus.processes import supervisor
from pipelines.nimbus.processes.life import Life
from pipelines.nimbus.registry.lifecycle import Request
from pipelines.nimbus.registry.placements import Placing
from pipelines.nimbus.registry.records import Version
from pipelines.nimbus.registry.registry import Registry
from pipelines.nimbus.registry.store import Store
from pipelines.nimbus.registry.tables import beats, versions
from pipelines.nimbus.settings import registry_exists, registry_url
from pipelines.nimbus.status import FlowStatus

YAML = """
flow: delays
streams:
  - name: departures
    source:
      json_files: {path: data, schema: "id string, timestamp bigint, origin string, dep_delay double"}
    operations:
      - partition: origin
      - aggregate:
          aggregators:
            - average: {field: dep_delay, output: avg_delay}
          trigger: {count: 50}
          evict: {count: 100}
      - persist: delays
"""


@pytest.fixture
def nimbus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nimbus]:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.setenv("TRIDELTA_FLOWS", "tests.nimbus.deployed_flows")
    settings = NimbusSettings(tmp_path / "nimbus")
    with Nimbus(f"sqlite:///{tmp_path}/registry.db", Lake(tmp_path / "lake"), settings=settings) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "delays.yaml"
    made.write_text(YAML, "utf-8")
    (tmp_path / "data").mkdir()
    return made


def test_a_flow_of_several_queries(nimbus: Nimbus) -> None:
    flow = nimbus.submit("readings", parallelism={"readings__1": 3}, inactive=True)
    assert flow.status == "INACTIVE"
    assert [(task.task, task.group, task.state) for task in flow.tasks] == [
        (1, "readings", "assigned"),
        (2, "readings__1", "assigned"),
        (3, "readings__2", "assigned"),
    ]
    found = queries_of(nimbus.registry.flow("readings"))
    assert [(one.inputs, one.partitions, one.stateful) for one in found] == [
        ((), None, False),
        (("readings",), 3, True),
        (("readings__1",), None, True),
    ]
    assert flow.parallelism["reading_sums"] >= 1


def test_what_a_flow_shares(nimbus: Nimbus) -> None:
    nimbus.submit("numbers")
    nimbus.submit("readings", isolated=True)
    nimbus.submit("flights", workers=2)
    flows = {flow.name: flow for flow in nimbus.registry.flows()}
    assert {name: application_of(flow) for name, flow in flows.items()} == {
        "numbers": "shared",
        "readings": "readings",
        "flights": "flights",
    }


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"flow": "nights"}, UnknownFlowError, "nights"),
        ({"flow": "flights", "colour": "red"}, SubmitError, "unknown setting .colour"),
        ({"flow": "flights", "trigger_seconds": 0.0}, SubmitError, "from 0.05 to 86400"),
        ({"flow": "flights", "trigger_seconds": "5"}, SubmitError, "must be a number"),
        ({"flow": "flights", "isolated": 1}, SubmitError, "must be true or false"),
        ({"flow": "flights", "max_attempts": True}, SubmitError, "must be a whole number"),
        ({"flow": "flights", "parallelism": {"delay": 2}}, SubmitError, "Invalid component delay"),
        ({"flow": "flights", "parallelism": {"delays": 0}}, SubmitError, "greater than 0"),
        ({"flow": "flights", "workers": -1}, SubmitError, "greater than 0"),
        ({"flow": "readings", "parallelism": {"readings__1": 33}}, RebalanceError, "32 at most"),
        ({"flow": "flights", "message_timeout_seconds": float("nan")}, SubmitError, "not nan"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    nimbus: Nimbus, asked: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        nimbus.submit(**asked)  # type: ignore[arg-type]
    assert nimbus.registry.flows() == []


def test_versions_come_and_go_back(nimbus: Nimbus) -> None:
    nimbus.submit("numbers", trigger_seconds=5, parallelism={"numbers": 2})
    with pytest.raises(AlreadyAliveError):
        nimbus.submit("numbers")
    assert nimbus.deploy("numbers")[1] == "unchanged"
    changed, what = nimbus.deploy("numbers", trigger_seconds=1)
    assert (what, changed.version, changed.settings, changed.parallelism["numbers"]) == (
        "updated", 2, {"trigger_seconds": 1}, 2
    )  # fmt: skip
    assert nimbus.update("numbers", max_attempts=5).settings == {"trigger_seconds": 1, "max_attempts": 5}
    back = nimbus.roll_back("numbers", 1)
    assert (back.version, back.settings) == (4, {"trigger_seconds": 5})
    assert [one.copy_of for one in nimbus.versions("numbers")] == [None, None, None, 1]
    with pytest.raises(VersionError):
        nimbus.roll_back("numbers", 9)
    assert nimbus.deploy("readings")[1] == "submitted"


def test_a_flow_that_is_being_removed_is_not_taken_for_deployed(nimbus: Nimbus) -> None:
    nimbus.submit("numbers")
    nimbus.rebalance("numbers", wait_seconds=30)
    assert nimbus.deploy("numbers")[1] == "unchanged"
    nimbus.kill("numbers", 30)
    with pytest.raises(NoTransitionError, match="event: UPDATE, status: KILLED"):
        nimbus.deploy("numbers")


def test_a_flow_from_a_file_keeps_its_text(nimbus: Nimbus, file: Path, tmp_path: Path) -> None:
    assert nimbus.submit(file=file).name == "delays"
    file.write_text(YAML.replace("count: 50", "count: 60"), "utf-8")
    assert nimbus.update("delays").version == 2
    nimbus.roll_back("delays")
    flow = nimbus.registry.flow("delays")
    topology = load(flow, tmp_path / "kept")
    assert topology.name == "delays"
    assert "count: 50" in flow.version.content.definition["text"]
    # Its sources are still beside the file that it came from.
    assert str(tmp_path / "data") in repr(topology.spouts[0].source)


def test_a_file_that_is_no_flow_is_refused(nimbus: Nimbus, file: Path) -> None:
    file.write_text("flow: x\nstreams: 3\n", "utf-8")
    with pytest.raises(FlowFileError):
        nimbus.submit(file=file)
    file.write_text(YAML, "utf-8")
    with pytest.raises(DeployError, match="holds the flow delays"):
        nimbus.submit("other", file=file)


def test_code_that_is_not_what_was_deployed_is_not_run(nimbus: Nimbus, tmp_path: Path) -> None:
    nimbus.submit("numbers")
    flow = nimbus.registry.flow("numbers")
    assert load(flow, tmp_path).name == "numbers"
    content = flow.version.content
    other = replace(content, definition={**content.definition, "plan": "0123456789ab"})
    with pytest.raises(DeployError, match="was deployed from plan 0123456789ab"):
        load(replace(flow, version=replace(flow.version, content=other)), tmp_path)


def test_a_version_of_a_release_before_keeps_its_windows_on_channels(
    nimbus: Nimbus, file: Path, tmp_path: Path
) -> None:
    nimbus.submit(file=file)
    flow = nimbus.registry.flow("delays")
    assert [spout.name for spout in load(flow, tmp_path).spouts] == ["departures"]
    content = flow.version.content
    definition = {name: value for name, value in content.definition.items() if name != "windows"}
    with default_windows("channels"):
        definition["plan"] = plan_digest(as_topology(load_flow(file)))
    before = replace(flow, version=replace(flow.version, content=replace(content, definition=definition)))
    assert [spout.name for spout in load(before, tmp_path).spouts] == ["departures", "departures__1"]
    # Until it is updated.
    nimbus.update("delays", max_attempts=5)
    assert len(load(nimbus.registry.flow("delays"), tmp_path).spouts) == 1


def test_an_unknown_flow_is_said_with_those_that_are_there(nimbus: Nimbus) -> None:
    nimbus.submit("numbers")
    with pytest.raises(NotAliveError, match="number is not alive") as raised:
        nimbus.kill("number")
    assert "numbers" in str(raised.value)
    assert nimbus.wait("number", until="gone", seconds=1) is None


@pytest.mark.parametrize("number", ["4", None, True, 1.5, 0])
def test_a_rebalance_to_no_whole_number_of_a_component_is_refused(nimbus: Nimbus, number: Any) -> None:
    nimbus.submit("readings")
    with pytest.raises(RebalanceError, match="Number of executors must be greater than 0"):
        nimbus.rebalance("readings", parallelism={"readings__1": number})
    with pytest.raises(RebalanceError, match=r"parallelism must be values by name, not \['readings__1'\]"):
        nimbus.rebalance("readings", parallelism=["readings__1"])  # type: ignore[arg-type]
    assert nimbus.flow("readings").status == "ACTIVE"


def test_seconds_to_wait_may_be_a_text(nimbus: Nimbus) -> None:
    nimbus.submit("readings")
    nimbus.rebalance("readings", wait_seconds="7")  # type: ignore[arg-type]
    assert nimbus.registry.flow("readings").standing.wait_seconds == 7
    nimbus.kill("readings", wait_seconds="5")  # type: ignore[arg-type]
    assert nimbus.registry.flow("readings").standing.wait_seconds == 5


def test_a_rebalance_is_checked_before_anything_drains(nimbus: Nimbus) -> None:
    nimbus.submit("readings")
    for asked, error in (
        ({"parallelism": {"readings__1": 33}}, RebalanceError),
        ({"parallelism": {"nothing": 2}}, RebalanceError),
        ({"workers": 0}, RebalanceError),
        ({"settings": {"colour": "red"}}, SubmitError),
    ):
        with pytest.raises(error):
            nimbus.rebalance("readings", **asked)  # type: ignore[arg-type]
    assert nimbus.flow("readings").status == "ACTIVE"
    nimbus.kill("readings", 30)
    with pytest.raises(NoTransitionError):
        nimbus.activate("readings")


def test_settings_that_no_rebalance_overrides(nimbus: Nimbus) -> None:
    """Nimbus rules 1.3: the original's are removed and the rebalance goes on. The owner is an update's to change."""
    nimbus.submit("flights", owner="me")
    for given in ({"owner": "you"}, {"lake": "/elsewhere"}):
        for ask in (nimbus.rebalance, nimbus.check_rebalance):
            with pytest.raises((RebalanceError, SubmitError), match=r"tridelta update flights|unknown setting"):
                ask("flights", settings=given)  # type: ignore[operator]
    assert nimbus.flow("flights").status == "ACTIVE"
    nimbus.rebalance("flights", settings={"storm.local.hostname": "x", "trigger_seconds": 2}, wait_seconds=0)
    nimbus.registry.fire()
    settings = nimbus.flow("flights").settings
    assert (settings["trigger_seconds"], settings["owner"]) == (2, "me")
    assert "storm.local.hostname" not in settings


def test_who_waits_in_vain_hears_why(nimbus: Nimbus) -> None:
    nimbus.submit("numbers")
    with pytest.raises(WaitError, match="not running after 0 s: ACTIVE; numbers assigned"):
        nimbus.wait("numbers", until="running", seconds=0)
    stopped = nimbus.wait("numbers", until="stopped", seconds=0)
    assert stopped is not None
    assert stopped.name == "numbers"


def test_what_nobody_can_wait_for_is_said_with_what_one_can(nimbus: Nimbus) -> None:
    nimbus.submit("numbers")
    with pytest.raises(ValueError, match=r"'drained'.*running, stopped, batch, gone"):
        nimbus.wait("numbers", until="drained", seconds=0)


def test_a_batch_is_one_that_the_checkpoint_has_finished(nimbus: Nimbus) -> None:
    nimbus.submit("numbers")
    with pytest.raises(WaitError, match="not batch after 0 s"):
        nimbus.wait("numbers", until="batch", seconds=0)
    commits = nimbus.lake.checkpoint_path("numbers", "numbers") / "spark" / "commits"
    commits.mkdir(parents=True)
    timer = threading.Timer(0.3, lambda: (commits / "0").write_text("v1", "utf-8"))
    timer.start()
    found = nimbus.wait("numbers", until="batch", seconds=30)
    timer.join()
    assert found is not None


def test_settings_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.setenv("TRIDELTA_NIMBUS_PORTS", "1,2")
    monkeypatch.setenv("TRIDELTA_NIMBUS_LEASE_SECONDS", "3.5")
    found = NimbusSettings.from_environment(metrics_port=9100, ports=None)
    assert (found.ports, found.lease_seconds, found.metrics_port) == ((1, 2), 3.5, 9100)
    monkeypatch.setenv("TRIDELTA_NIMBUS_LEASE_SECONDS", "soon")
    with pytest.raises(SettingError, match=r"LEASE_SECONDS must be a number from 0.05 to .*, not 'soon'"):
        NimbusSettings.from_environment()
    with pytest.raises(SettingError, match="more than task_timeout_seconds"):
        NimbusSettings(tmp_path, lease_seconds=40.0)


@pytest.mark.parametrize("name", ["a%20b", "100%", "what?x=1", "a#b", "u@h:1", "\u00fc x"], ids=ascii)
def test_a_registry_is_where_its_url_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """SQLite's URL decodes %20 and ends at ?; who asks whether the file is there reads it in the same way."""
    home = tmp_path / name
    monkeypatch.setenv("TRIDELTA_HOME", str(home))
    assert not registry_exists(registry_url())
    Store.migrated(registry_url()).close()
    assert (home / "nimbus" / "registry.db").is_file()
    assert registry_exists(registry_url())
    chosen = make_url("sqlite://").set(database=str(home / "nimbus" / "registry.db"))
    assert registry_exists(chosen.render_as_string())


@pytest.mark.parametrize("id_", [None, "mine"])
def test_a_supervisor_that_was_killed_a_moment_ago_is_none(
    nimbus: Nimbus, monkeypatch: pytest.MonkeyPatch, id_: str | None
) -> None:
    """Its lease has yet to run out. One that lives is enough, whatever its id is."""
    name, started = id_ or supervisor.default_name(), []

    def start(store: Store, settings: NimbusSettings) -> None:
        other = supervisor.SupervisorProcess(store, settings)
        started.append(other)
        other.take_name()

    monkeypatch.setattr(supervisor, "start_detached", start)
    nimbus.registry.leases.take(f"supervisor:{name}", "first", 60)
    nimbus.places.beat_supervisor(name, host_name(), (6900,), started_at=1.0)
    Life(nimbus.settings, name, "supervisor").begun("first")
    assert nimbus.ensure_supervisor() == name
    assert started == []
    file = nimbus.settings.supervisor_folder(name) / "supervisor.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pid": 2**22, "ticks": 1}))
    assert nimbus.ensure_supervisor() == supervisor.default_name()
    assert len(started) == 1


@pytest.mark.slow
def test_looking_at_flows_loads_neither_spark_nor_dagster() -> None:
    code = "import sys, pipelines.nimbus.nimbus, pipelines.nimbus.processes.supervisor"
    code += "; print({'pyspark', 'dagster'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_two_updates_at_once_keep_what_both_ask_for(nimbus: Nimbus, monkeypatch: pytest.MonkeyPatch) -> None:
    nimbus.submit("flights")
    content_of, others = Nimbus._content, iter([["s2"]])

    def interrupted(self: Nimbus, asked: Any, current: Any = None) -> Any:
        made = content_of(self, asked, current)
        for hosts in others:
            self.update("flights", hosts=hosts)
        return made

    monkeypatch.setattr(Nimbus, "_content", interrupted)
    updated = nimbus.update("flights", max_attempts=9)
    assert (updated.settings["max_attempts"], updated.settings["hosts"]) == (9, ["s2"])
    assert len(nimbus.versions("flights")) == 3


def test_what_an_update_says_goes_before_what_a_rebalance_has_set(nimbus: Nimbus) -> None:
    def rebalanced(**request: Any) -> None:
        nimbus.rebalance("flights", wait_seconds=0, **request)
        Registry(nimbus.store).fire()

    def now(seen: FlowStatus) -> tuple[int, int, object, object]:
        return seen.workers, seen.parallelism["delays"], seen.settings["trigger_seconds"], seen.settings.get("hosts")

    nimbus.submit("flights", trigger_seconds=5, workers=1, parallelism={"delays": 2})
    rebalanced(workers=2, parallelism={"delays": 4}, settings={"trigger_seconds": 1, "hosts": ["s2"]})
    nimbus.places.assign_all([Placing(nimbus.registry.flow("flights"), {}, "REBALANCE")])
    assert now(nimbus.update("flights", max_attempts=7)) == (2, 4, 1, ["s2"])
    assert not nimbus.registry.flow("flights").scratch
    # As its version says already: only the rebalance stands in the way.
    assert now(nimbus.update("flights", workers=1)) == (1, 4, 1, ["s2"])
    assert nimbus.registry.flow("flights").scratch
    assert now(nimbus.update("flights", parallelism={"delays": 8}, trigger_seconds=10)) == (1, 8, 10, ["s2"])
    rebalanced(settings={"trigger_seconds": 1})
    assert nimbus.deploy("flights")[1] == "unchanged"
    seen, done = nimbus.deploy("flights", trigger_seconds=10)
    assert (done, now(seen)) == ("updated", (1, 8, 10, ["s2"]))
    rebalanced(settings={"trigger_seconds": 10})
    assert nimbus.deploy("flights", trigger_seconds=10)[1] == "unchanged"


@pytest.mark.parametrize("now", [b"caf\xe9", None], ids=["no text", "unreadable"])
def test_a_file_that_is_no_text_any_more_changes_nothing(nimbus: Nimbus, file: Path, now: bytes | None) -> None:
    nimbus.submit(file=file)
    if now is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(now)
    flow = nimbus.registry.flow("delays")
    assert plan_digest(load(flow, nimbus.settings.home / "flows")) == flow.version.content.definition["plan"]


def test_code_of_any_callable_has_a_digest(nimbus: Nimbus, monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        def __call__(self, settings: FlowSettings) -> Any:
            raise AssertionError

    def plain(number: int, settings: FlowSettings) -> Any:
        raise AssertionError

    for build in (functools.partial(plain, 1), functools.partial(functools.partial(plain), 1), Made()):
        spec = FlowSpec("made", "A flow.", build)
        monkeypatch.setattr("pipelines.catalog.flow", lambda name, spec=spec: spec)
        assert source_digest("made") == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


ODD_RECORDS: list[dict[str, Any]] = [
    {"definition": {"kind": "catalog", "queries": [{"group": "q"}], "explicit": {}}},
    {"definition": {"queries": [5]}},
    {"definition": {"queries": 5}},
    {"definition": {"queries": [], "explicit": 3}},
    {"definition": []},
    {"components": [1]},
]


@pytest.mark.parametrize("odd", ODD_RECORDS, ids=str)
def test_a_record_that_cannot_be_read_hides_no_other_flow(nimbus: Nimbus, odd: dict[str, Any]) -> None:
    """Another release may have written it."""
    nimbus.submit("flights")
    nimbus.submit("numbers")
    with nimbus.store.write() as connection:
        serial = nimbus.registry.flow("numbers").serial
        connection.execute(update(versions).where(versions.c.flow == serial).values(**odd))
    seen = {flow.name: flow for flow in nimbus.cluster().flows}
    assert seen["flights"].tasks
    assert seen["flights"].problem is None
    assert (seen["numbers"].tasks, seen["numbers"].status, seen["numbers"].version) == ((), "ACTIVE", 1)
    problem = str(seen["numbers"].problem)
    assert problem.startswith('DeployError: flow "numbers": version 1 in the registry cannot be read')
    assert nimbus.flow("numbers") == seen["numbers"]
    # It is told, and the leader places the others.
    with pytest.raises(NimbusError, match="cannot be read"):
        check_deployed(nimbus.registry.flow("numbers"))
    assert {one.flow: bool(one.why_not) for one in judge(nimbus)}.keys() == {"flights", "numbers"}
    assert nimbus.kill("numbers").status == "KILLED"


@pytest.mark.parametrize(
    "odd",
    [
        *ODD_RECORDS,
        {"settings": {"colour": "red"}},
        {"settings": {"colour": "red", "isolated": True, "spark": {"spark.ui.enabled": False}}},
        {"settings": {"rebalance": {"new_threshold": 3, "busy": 0.9}}},
        {"settings": ["red"]},
        {"settings": 5},
        {"definition": {"kind": "catalog", "queries": [], "asked": [1]}},
        {"definition": {"kind": "catalog", "queries": [], "asked": {"delays": "four"}}},
    ],
    ids=str,
)
def test_an_update_mends_what_another_release_wrote(nimbus: Nimbus, odd: dict[str, Any]) -> None:
    nimbus.submit("flights")
    with nimbus.store.write() as connection:
        connection.execute(update(versions).values(**odd))
    updated = nimbus.update("flights")
    assert (updated.version, updated.problem) == (2, None)
    check_deployed(nimbus.registry.flow("flights"))
    held = odd.get("settings")
    kept = {name: value for name, value in held.items() if name != "colour"} if isinstance(held, dict) else {}
    if "rebalance" in kept:
        kept["rebalance"] = {"busy": 0.9}
    assert kept.items() <= updated.settings.items()
    assert "colour" not in updated.settings


def test_a_threshold_of_another_release_is_left_out_beside_those_that_are_named(nimbus: Nimbus) -> None:
    nimbus.submit("flights")
    with nimbus.store.write() as connection:
        connection.execute(update(versions).values(settings={"rebalance": {"new_threshold": 3, "looks": 4}}))
    assert nimbus.update("flights", rebalance={"busy": 0.9}).settings == {"rebalance": {"looks": 4, "busy": 0.9}}


def test_a_value_of_another_release_is_for_who_updates_to_say(nimbus: Nimbus) -> None:
    nimbus.submit("flights")
    with nimbus.store.write() as connection:
        connection.execute(update(versions).values(settings={"max_attempts": "three", "hosts": ["a"]}))
    with pytest.raises(
        SubmitError, match=r"not 'three'; another release wrote it: name it, --setting max_attempts=VALUE"
    ):
        nimbus.update("flights")
    assert nimbus.update("flights", max_attempts=4).settings == {"max_attempts": 4, "hosts": ["a"]}


BEAT = {
    "group": "q",
    "state": "running",
    "pid": 1,
    "txid": 1,
    "checks": {"gate/check": {"batches": 2, "rows": 9, "of_a_newer": 1}},
}
ODD_FIGURES: list[Any] = [
    {"rows_per_second": None},
    {"rows": "many"},
    {"checks": None},
    {"checks": {"gate/check": {"batches": "two"}}},
    {"checks": {"gate/check": 2}},
    {"gates": [5]},
    {"backlog": None},
    {"gone": None},
    {"lag_seconds": "long"},
    {"last_batch_at": "now"},
    {"last_error": 5},
    {"state": None},
]


def put_beat(nimbus: Nimbus, flow: str, figures: Any) -> None:
    with nimbus.store.write() as connection:
        given = {"flow": nimbus.registry.flow(flow).serial, "task": 1, "supervisor": "s", "port": 6900, "token": 1}
        connection.execute(beats.insert().values(**given, beat_at=time.time(), figures=figures))


@pytest.mark.parametrize("odd", ODD_FIGURES, ids=str)
def test_a_beat_that_cannot_be_read_hides_no_other_flow(nimbus: Nimbus, odd: Any) -> None:
    """A worker of another release may have written it; whoever looks at flows counts on what `TaskStatus` says."""
    nimbus.submit("flights")
    nimbus.submit("numbers")
    put_beat(nimbus, "flights", BEAT)
    put_beat(nimbus, "numbers", BEAT | odd)
    seen = {flow.name: flow for flow in nimbus.cluster().flows}
    assert (seen["flights"].problem, seen["flights"].tasks[0].txid) == (None, 1)
    assert (seen["numbers"].tasks, seen["numbers"].status) == ((), "ACTIVE")
    fact, following = str(seen["numbers"].problem).splitlines()
    assert "the beat of " in fact
    assert f"{next(iter(odd))}" in fact
    assert "tridelta update numbers" in following


@pytest.mark.parametrize(
    ("said", "failing"),
    [
        ({"state": "running"}, False),
        ({"state": "failed"}, True),
        ({"state": "running", "failing": True}, True),
        ({"state": "running", "failing": False}, False),
    ],
    ids=str,
)
def test_an_error_of_a_worker_of_the_release_before_is_over_once_it_runs(
    nimbus: Nimbus, said: dict[str, Any], failing: bool
) -> None:
    """It takes back no error before it ends: only a later one says whether its query has come through."""
    nimbus.submit("flights")
    put_beat(nimbus, "flights", BEAT | {"last_error": "disk"} | said)
    assert nimbus.flow("flights").tasks[0].failing is failing


def test_a_check_of_another_release_has_all_its_figures(nimbus: Nimbus) -> None:
    nimbus.submit("flights")
    put_beat(nimbus, "flights", BEAT)
    blank = {"unexpected": 0, "failures": 0, "last_failed": None, "said": None, "detail": {}}
    assert nimbus.flow("flights").problem is None
    assert nimbus.flow("flights").tasks[0].checks == {"gate/check": {"batches": 2, "rows": 9, **blank}}


def test_a_setting_that_is_a_table_is_changed_by_its_entries(nimbus: Nimbus) -> None:
    def spark() -> dict[str, Any]:
        return dict(nimbus.registry.flow("flights").settings["spark"])

    def rebalance(**table: str) -> None:
        nimbus.rebalance("flights", settings={"spark": table}, wait_seconds=0)
        nimbus.registry.fire()

    nimbus.submit("flights", spark={"a": "1", "b": "1"})
    rebalance(b="2", c="2")
    nimbus.update("flights", spark={"c": "3"})
    assert nimbus.registry.flow("flights").version.content.settings["spark"] == {"a": "1", "b": "1", "c": "3"}
    assert spark() == {"a": "1", "b": "2", "c": "3"}
    rebalance()
    assert spark() == {}
    rebalance(d="4")
    assert spark() == {"d": "4"}
    nimbus.update("flights", spark={"a": "5"})
    assert spark() == {"a": "5", "d": "4"}
    nimbus.update("flights", spark={})
    assert spark() == {}
    nimbus.update("flights", spark={"e": "6"})
    assert spark() == {"e": "6"}


def test_a_table_of_a_rebalance_is_kept_whole_as_every_release_reads_it(nimbus: Nimbus) -> None:
    nimbus.submit("flights", rebalance={"busy": 1.2, "overloaded": 1.5})
    submitted = nimbus.registry.flow("flights")
    # What a release before stored for `rebalance.busy=0.9`: it took the place of the version's table.
    flow = replace(submitted, scale=Request(settings={"rebalance": {"busy": 0.9}}))
    assert flow.settings["rebalance"] == {"busy": 0.9}
    other = replace(flow.version.content, settings={"rebalance": {"busy": 1.2, "overloaded": 1.5, "idle": 0.1}})
    said = Request(settings={"rebalance": {"idle": 0.1}})
    assert flow.with_content(other, said).settings["rebalance"] == {"busy": 0.9, "idle": 0.1}
    nimbus.rebalance("flights", settings={"rebalance": {}}, wait_seconds=0)
    nimbus.registry.fire()
    nimbus.rebalance("flights", settings={"rebalance": {"idle": 0.1}}, wait_seconds=0)
    nimbus.registry.fire()
    assert nimbus.registry.flow("flights").scale.settings == {"rebalance": {"idle": 0.1}}


def test_a_rollback_takes_back_what_an_update_said_of_a_table_and_keeps_what_a_rebalance_did(nimbus: Nimbus) -> None:
    nimbus.submit("flights", spark={"a": "1", "b": "1"})
    nimbus.rebalance("flights", settings={"spark": {"c": "2"}}, wait_seconds=0)
    nimbus.registry.fire()
    nimbus.update("flights", spark={"b": "3"})
    assert nimbus.registry.flow("flights").settings["spark"] == {"a": "1", "b": "3", "c": "2"}
    nimbus.roll_back("flights")
    assert nimbus.registry.flow("flights").settings["spark"] == {"a": "1", "b": "1", "c": "2"}


def test_a_threshold_is_checked_beside_those_that_hold(nimbus: Nimbus) -> None:
    nimbus.submit("flights", rebalance={"busy": 1.2})
    with pytest.raises(SubmitError, match="busy below overloaded"):
        nimbus.rebalance("flights", settings={"rebalance": {"overloaded": 1.1}})
    nimbus.rebalance("flights", settings={"rebalance": {"idle": 0.3}}, wait_seconds=0)
    nimbus.registry.fire()
    assert nimbus.registry.flow("flights").settings["rebalance"] == {"busy": 1.2, "idle": 0.3}


TWO = f"""{YAML}
  - name: other
    source:
      json_files: {{path: data, schema: "id string, timestamp bigint, n bigint"}}
    operations:
      - persist: others
"""


def test_what_was_said_of_a_component_that_is_gone_stops_no_update(nimbus: Nimbus, file: Path) -> None:
    file.write_text(TWO, "utf-8")
    said: dict[str, Any] = {
        "user_workers": [{"components": {"departures": 1, "other": 1}}],
        "clustering": {"others": "id"},
    }
    nimbus.submit(file=file, parallelism={"others": 2, "departures": 3}, **said)
    file.write_text(YAML, "utf-8")
    with pytest.raises(SubmitError, match="Invalid component others"):
        nimbus.update("delays", parallelism={"others": 4})
    with pytest.raises(SubmitError, match="no query 'other'"):
        nimbus.update("delays", user_workers=said["user_workers"])
    with pytest.raises(SubmitError, match='no state "others"'):
        nimbus.update("delays", clustering=said["clustering"])
    nimbus.update("delays")
    content = nimbus.registry.flow("delays").version.content
    assert content.definition["asked"] == {"departures": 3}
    assert content.settings["user_workers"] == [{"components": {"departures": 1}}]
    assert "clustering" not in content.settings


def test_what_a_rebalance_has_said_of_a_query_that_is_gone_stops_no_rollback(nimbus: Nimbus, file: Path) -> None:
    nimbus.submit(file=file)
    file.write_text(TWO, "utf-8")
    nimbus.update("delays")
    workers = [{"components": {"other": 1}}, {"components": {"departures": 1}}]
    nimbus.rebalance("delays", settings={"user_workers": workers, "clustering": {"others": "id"}}, wait_seconds=0)
    nimbus.registry.fire()
    nimbus.roll_back("delays")
    flow = nimbus.registry.flow("delays")
    check_deployed(flow)
    assert flow.settings["user_workers"] == [{"components": {"departures": 1}}]
    assert "clustering" not in flow.settings


def test_a_version_that_a_rebalance_does_not_fit_is_refused(nimbus: Nimbus) -> None:
    nimbus.submit("flights", rebalance={"overloaded": 0.85})
    nimbus.update("flights", rebalance={"overloaded": 1.5})
    nimbus.rebalance("flights", settings={"rebalance": {"busy": 0.9}}, wait_seconds=0)
    nimbus.registry.fire()
    with pytest.raises(SubmitError, match="busy below overloaded"):
        nimbus.roll_back("flights")
    with pytest.raises(SubmitError, match="busy below overloaded"):
        nimbus.update("flights", rebalance={"overloaded": 0.85})
    assert nimbus.flow("flights").version == 2


@pytest.mark.parametrize("to", [None, 1])
def test_a_rollback_takes_back_no_update_that_it_has_not_seen(
    nimbus: Nimbus, monkeypatch: pytest.MonkeyPatch, to: int | None
) -> None:
    """Version 2 is bad. Another brings its mend while the rollback looks: the one before that is the bad one."""
    nimbus.submit("flights", trigger_seconds=5)
    nimbus.update("flights", trigger_seconds=1)
    there = nimbus.registry.versions

    def versions_and_then_another_updates(name: str) -> list[Version]:
        monkeypatch.setattr(nimbus.registry, "versions", there)
        found = there(name)
        nimbus.update("flights", trigger_seconds=7)
        return found

    monkeypatch.setattr(nimbus.registry, "versions", versions_and_then_another_updates)
    with pytest.raises(VersionError, match="version 2: another has taken its place; the current version is 3"):
        nimbus.roll_back("flights", to)
    assert nimbus.flow("flights").settings == {"trigger_seconds": 7}
    assert nimbus.roll_back("flights", to).version == 4


@pytest.mark.parametrize("again", [False, True])
def test_nor_one_that_came_behind_the_look_by_which_it_was_asked_for(nimbus: Nimbus, again: bool) -> None:
    nimbus.submit("flights", trigger_seconds=5)
    seen = nimbus.update("flights", trigger_seconds=1)
    problem = "another has taken its place"
    if again:
        nimbus.kill("flights", wait_seconds=0)
        nimbus.registry.fire()
        nimbus.submit("flights", trigger_seconds=5)
        problem = "the flow was submitted again"
    last = nimbus.update("flights", trigger_seconds=7)
    with pytest.raises(VersionError, match=f"version 2: {problem}; the current version is {last.version}"):
        nimbus.roll_back("flights", 1, seen=seen)
    assert nimbus.flow("flights").settings == {"trigger_seconds": 7}
    assert nimbus.roll_back("flights", 1, seen=last).settings == {"trigger_seconds": 5}


def test_a_flow_that_was_renamed_in_its_file_is_told_by_its_new_name(nimbus: Nimbus, file: Path) -> None:
    nimbus.submit(file=file)
    file.write_text(YAML.replace("flow: delays", "flow: delays_new"), "utf-8")
    with pytest.raises(DeployError, match=r"(?s)delays.yaml holds the flow delays_new.*kill"):
        nimbus.update("delays")
