"""What deployed flows do, as Dagster sees it: events since the last look, trouble, alerts."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from assets.deployment import registry_key
from assets.events import liveness
from assets.events import progress as progress_module
from assets.events.liveness import ALERT, ALIVE, alert, alert_all, trouble
from assets.events.progress import MOST_COMMITS, SETTLES_SECONDS, KnownTables, Progress
from assets.events.table_plots import TablePlots
from assets.factory import flow_assets
from assets.view import FlowView
from benchmarks.sensor_tick import shops, spec
from ops.flow_definitions import FlowGroup, flow_definitions
from ops.schedules import flows_sensor, limit_pools
from ops.web.ui import prepare_home
from pipelines import Lake, Runtime
from pipelines.catalog.flow import FlowSettings
from pipelines.nimbus.status import FlowStatus, TaskStatus
from pipelines.state.record import BATCH, BatchRecord, parse_commit
from pipelines.state.schema import SLICE_COLUMN
from resources import LakeResource, NimbusResource
from tests.nimbus.sliced_flows import FLOWS, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = 1_800_000_000.0
NAME = "amounts_are_positive"


def status(**task: Any) -> FlowStatus:
    """The flow "days" with one running query."""
    given = {"state": "running", "supervisor": "s1", "port": 6900, "beat_age_seconds": 1.0, **task}
    given = {"failing": given["state"] == "failed" or bool(given.get("last_error")), **given}
    return FlowStatus("days", "days-1-1", "ACTIVE", 1, 1, {}, {}, NOW, tasks=(TaskStatus(1, "days", **given),))


@pytest.fixture
def view(tmp_path: Path) -> FlowView:
    return FlowView.of(FLOWS[0], FlowSettings(tmp_path))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.mark.slow
def test_batches_become_materializations_of_the_slices_that_they_wrote(
    spark: SparkSession, view: FlowView, lake: Lake, tmp_path: Path
) -> None:
    progress = Progress([view], lake, None)
    progress.look({"days": status()}, NOW)
    write(tmp_path, "2026-01-01", [1, 2, 3])
    write(tmp_path, "2026-01-02", [4, 5])
    runtime = Runtime(spark, lake)
    runtime.catch_up(view.topology)
    # Another look, in another process: all that it knows is the cursor.
    progress = Progress([view], lake, progress.cursor)
    checks = {f"accepted/{NAME}": {"batches": 1, "rows": 5, "unexpected": 0, "failures": 0, "last_failed": None}}
    told = status(txid=0, last_batch_at=NOW, batches=1, rows=5, rows_per_second=2.5, lag_seconds=3.0, checks=checks)
    events = progress.look({"days": told}, NOW)
    made = [event for event in events if isinstance(event, dg.AssetMaterialization)]
    assert [(one.asset_key.to_user_string(), one.partition) for one in made] == [
        ("day_sums", "2026-01-01"),
        ("day_sums", "2026-01-02"),
    ]
    assert [one.metadata["txid_last"].value for one in made] == [0, 0]
    drawn = {"rows per batch", "batch seconds", "table size", "files", "lag"}
    assert [drawn & set(one.metadata) for one in made] == [set(), drawn]
    observed = [event for event in events if isinstance(event, dg.AssetObservation)]
    assert [(one.asset_key.to_user_string(), one.metadata["rows_per_second"].value) for one in observed] == [
        ("deployments/days", 2.5)
    ]
    verdicts = {one.check_name: one.passed for one in events if isinstance(one, dg.AssetCheckEvaluation)}
    # The deployment was told to be alive a moment ago.
    assert verdicts == {f"accepted__{NAME}": True}
    # Nothing new: nothing is told. What a backfill writes its own run tells.
    assert progress.look({"days": told}, NOW + 15) == []
    runtime.backfill(view.topology, ["2026-01-01"])
    moved = replace(told, tasks=(replace(told.tasks[0], last_batch_at=NOW + 20),))
    assert not [one for one in progress.look({"days": moved}, NOW + 30) if isinstance(one, dg.AssetMaterialization)]


@pytest.mark.slow
def test_a_batch_that_ended_before_the_first_look_is_told(
    spark: SparkSession, view: FlowView, lake: Lake, tmp_path: Path
) -> None:
    """A tick takes its time on a busy machine, and the first batch of a new deployment may be faster."""
    runtime = Runtime(spark, lake)
    write(tmp_path, "2026-01-01", [1, 2, 3])
    runtime.catch_up(view.topology)  # by a run: it has told of it
    submitted_at = time.time()
    write(tmp_path, "2026-01-02", [4, 5])
    runtime.catch_up(view.topology)
    told = replace(status(txid=1, last_batch_at=submitted_at + 1), submitted_at=submitted_at)
    progress = Progress([view], lake, None)
    events = progress.look({"days": told}, submitted_at + 2)
    made = [one for one in events if isinstance(one, dg.AssetMaterialization) and one.partition]
    assert [(one.partition, one.metadata["txid_first"].value) for one in made] == [("2026-01-02", 1)]
    # Submitted again, it begins behind what was told of the one before.
    again = replace(told, id="days-2-2", submitted_at=time.time())
    events = progress.look({"days": again}, NOW)
    assert not [one for one in events if isinstance(one, dg.AssetMaterialization) and one.partition]


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["gone", "submitted again"])
def test_what_a_flow_wrote_before_it_was_removed_is_told(
    spark: SparkSession, view: FlowView, lake: Lake, tmp_path: Path, again: bool
) -> None:
    progress = Progress([view], lake, None)
    progress.look({"days": status()}, NOW)
    write(tmp_path, "2026-01-01", [1, 2, 3])
    Runtime(spark, lake).catch_up(view.topology)
    # Its worker drained, and it was removed, within a tick.
    deployed = {"days": replace(status(), id="days-2-2", submitted_at=time.time() + 1)} if again else {}
    events = progress.look(deployed, NOW + 10)
    made = [one for one in events if isinstance(one, dg.AssetMaterialization) and one.partition]
    assert [(one.partition, one.metadata["txid_last"].value) for one in made] == [("2026-01-01", 0)]
    events = progress.look(deployed, NOW + 20)
    assert not [one for one in events if isinstance(one, dg.AssetMaterialization) and one.partition]


def test_a_check_that_fails_in_a_new_worker_is_told_to_fail(view: FlowView, lake: Lake) -> None:
    """Its figures begin anew, and may have overtaken what the worker before had at the next look."""
    progress, verdicts = Progress([view], lake, None), []
    for pid, batches, failures in ((7, 3, 3), (8, 8, 3), (8, 9, 3), (8, 10, 4)):
        counted = {"batches": batches, "rows": 9, "unexpected": 1, "failures": failures, "last_failed": 1, "said": "no"}
        told = status(txid=batches, last_batch_at=NOW + batches, pid=pid, checks={f"accepted/{NAME}": counted})
        progress = Progress([view], lake, progress.cursor)
        events = progress.look({"days": told}, NOW + batches)
        names = {one.check_name: one.passed for one in events if isinstance(one, dg.AssetCheckEvaluation)}
        verdicts.append(names[f"accepted__{NAME}"])
    assert verdicts == [False, False, True, False]


def test_one_of_few_flows_is_told_to_be_alive_at_each_look(view: FlowView, lake: Lake) -> None:
    """A verdict from before a materialization counts no more in Dagster; the next look's does."""
    progress = Progress([view], lake, None)
    told = []
    for number in range(3):
        at = NOW + 10 * number
        events = progress.look({"days": status(txid=number, last_batch_at=at)}, at)
        told.append([one.check_name for one in events if isinstance(one, dg.AssetCheckEvaluation)])
    assert told == [[ALIVE]] * 3


def test_an_idle_flow_is_told_to_be_alive_once_more_behind_the_run_that_deployed_it(view: FlowView, lake: Lake) -> None:
    progress, told = Progress([view], lake, None), []
    for at in (0, 30, SETTLES_SECONDS, SETTLES_SECONDS + 10, 9 * SETTLES_SECONDS):
        progress = Progress([view], lake, progress.cursor)
        events = progress.look({"days": status()}, NOW + at)
        told.append(sum(isinstance(one, dg.AssetCheckEvaluation) and one.check_name == ALIVE for one in events))
    assert told == [1, 0, 1, 0, 0]


def test_pools_have_their_limit_before_a_run_asks_for_it(view: FlowView, tmp_path: Path) -> None:
    home = prepare_home(FlowSettings(tmp_path))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for _ in range(2):
            limit_pools(instance, [view])
            found = [(one.name, one.limit, one.from_default) for one in instance.event_log_storage.get_pool_limits()]
            assert found == [("checkpoint_days", 1, True)]
    with dg.DagsterInstance.ephemeral() as instance:
        limit_pools(instance, [view])


def test_a_check_that_failed_since_the_last_look_is_told_once(view: FlowView, lake: Lake) -> None:
    progress = Progress([view], lake, None)

    def verdict(batches: int, failures: int, at: float) -> list[bool]:
        figures = {"batches": batches, "rows": 9, "unexpected": 1, "failures": failures, "last_failed": 3, "said": "1"}
        seen = status(txid=batches, last_batch_at=at, checks={f"accepted/{NAME}": figures, "gone/x": figures})
        events = progress.look({"days": seen}, at)
        return [one.passed for one in events if isinstance(one, dg.AssetCheckEvaluation) and one.check_name != ALIVE]

    assert verdict(3, 1, NOW) == [False]
    assert verdict(5, 1, NOW + 1) == [True]
    assert verdict(1, 1, NOW + 2) == [False]  # counted anew by another worker
    assert verdict(1, 1, NOW + 3) == []


def test_a_gate_that_has_stopped_a_query_is_red(view: FlowView, lake: Lake) -> None:
    progress = Progress([view], lake, None)
    said = f'batch 3 is poison: gate "accepted" refused batch 3: {NAME}: 1 of 2 rows; it was tried 3 times'
    seen = status(state="failed", last_error=said)
    events = [one for one in progress.look({"days": seen}, NOW) if isinstance(one, dg.AssetCheckEvaluation)]
    assert {one.check_name: one.passed for one in events} == {f"accepted__{NAME}": False, ALIVE: False}
    assert progress.look({"days": seen}, NOW + 15) == []


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        (status(), []),
        (status(state="silent", beat_age_seconds=40.0), ["days: its worker has not beaten for 40 s"]),
        (status(state="failed", last_error="no such column: x\nmore"), ["days: no such column: x"]),
        (
            status(state="failed", last_error="BatchError: no\nmore\n  Next: correct it"),
            ["days: BatchError: no\n  Next: correct it"],
        ),
        (status(gone=["/in"]), ["days: what it reads is gone: /in"]),
        (
            status(backlog={"files": 3.0}, last_batch_at=NOW - 700, lag_seconds=700.0),
            ["days: it has something to read and no batch since 700 s"],
        ),
        (status(backlog={"files": 3.0}, last_batch_at=NOW - 500, lag_seconds=500.0), []),
        (status(backlog={"files": 3.0}, last_batch_at=NOW - 700, lag_seconds=700.0, trigger_seconds=300.0), []),
        (replace(status(state="failed", last_error="x"), status="INACTIVE"), []),
        *(
            (
                status(state=state, backlog={"files": 12.0}, last_batch_at=NOW - 7200, begun_at=NOW - 9000),
                ["days: it has something to read and no batch since 7200 s"],
            )
            for state in ("draining", "starting", "repartitioning", "assigned")
        ),
        # Of a worker of an earlier release.
        (
            status(state="draining", backlog={"files": 12.0}, last_batch_at=NOW - 7200),
            ["days: it has something to read and no batch since 7200 s"],
        ),
        # Activated a moment ago: its worker has not seen it, or starts it.
        (status(state="drained", backlog={"files": 12.0}, last_batch_at=NOW - 7200), []),
        *(
            (status(state=state, backlog={"files": 12.0}, last_batch_at=NOW - 7200, begun_at=NOW - 60), [])
            for state in ("starting", "repartitioning", "running")
        ),
        # A worker that has just begun has counted nothing yet.
        *(
            (
                status(state=state, begun_at=NOW - 7200, no_trigger_since=NOW - 7200),
                ["days: it has not come through a trigger since 7200 s"],
            )
            for state in ("starting", "repartitioning", "running", "draining")
        ),
        (status(state="starting", begun_at=NOW - 500, no_trigger_since=NOW - 500), []),
        (status(state="starting", no_trigger_since=NOW - 700, trigger_seconds=300.0), []),
        (status(state="drained", no_trigger_since=NOW - 7200), []),
        # It waits for the version before, is idle, or its worker is of an earlier release.
        *((status(state=state, begun_at=NOW - 7200), []) for state in ("starting", "running")),
        (replace(status(), problem="no place"), ["no place"]),
        (replace(status(state="silent", beat_age_seconds=40.0), problem="cannot be loaded"), ["cannot be loaded"]),
        (
            replace(status(state="silent", beat_age_seconds=40.0), problem="it stays where it is: no worker"),
            ["it stays where it is: no worker", "days: its worker has not beaten for 40 s"],
        ),
    ],
)
def test_what_trouble_is(seen: FlowStatus, wrong: list[str]) -> None:
    assert list(trouble(seen, NOW).values()) == wrong


def test_trouble_is_told_when_it_begins_and_when_it_ends(view: FlowView, lake: Lake) -> None:
    cursor: str | None = None
    changes = []
    for state, error in (("running", None), ("failed", "disk"), ("failed", "disk"), ("running", None)):
        progress = Progress([view], lake, cursor)
        events = progress.look({"days": status(state=state, last_error=error)}, NOW)
        alive = [one.passed for one in events if isinstance(one, dg.AssetCheckEvaluation) and one.check_name == ALIVE]
        changes.append((alive, progress.changed))
        cursor = progress.cursor
    assert changes == [
        ([True], []),
        ([False], [("days", ["days: disk"])]),
        ([], []),
        ([True], [("days", [])]),
    ]


REFUSED = f'GateError: gate "accepted" refused batch {{}}: {NAME}: 1 of 2 rows\n  Next: correct it'


def failing(error: str, restarts: int) -> list[FlowStatus]:
    """An attempt more: it has failed, starts again, and runs its batch."""
    states = ("failed", "starting", "running")
    return [status(state=state, last_error=error, restarts=restarts) for state in states]


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([status(state="silent", beat_age_seconds=30.0 + 10 * tick) for tick in range(4)], 1),
        ([status(backlog={"files": 1.0}, last_batch_at=NOW - 700 - 10 * tick) for tick in range(4)], 1),
        ([*failing("at 12:01: disk", 0), *failing("at 12:02: disk", 1), status(state="failed"), status()], 2),
        ([*failing(REFUSED.format(3), 0), *failing(REFUSED.format(3), 1)], 1),
        ([*failing(REFUSED.format(3), 0), *failing(REFUSED.format(4), 0)], 2),
        ([status(state="silent"), status(state="failed", last_error="disk"), status(gone=["/in"])], 3),
    ],
    ids=["silent", "stuck", "failing", "refused", "the next is refused, too", "one after the other"],
)
def test_what_lasts_is_told_once(view: FlowView, lake: Lake, looks: list[FlowStatus], told: int, others: bool) -> None:
    cursor, events, changes = None, 0, 0
    for seen in looks:
        progress = Progress([] if others else [view], lake, cursor, others=others)
        alive = [one for one in progress.look({"days": seen}, NOW) if getattr(one, "check_name", "") == ALIVE]
        events, changes, cursor = events + len(alive), changes + len(progress.changed), progress.cursor
    assert (events, changes) == (0 if others else told, told)


def test_a_gate_that_refuses_what_failed_before_for_another_cause_is_red(view: FlowView, lake: Lake) -> None:
    first = Progress([view], lake, None)
    first.look({"days": status(state="failed", last_error="disk")}, NOW)
    seen = status(state="failed", last_error=REFUSED.format(3))
    events = Progress([view], lake, first.cursor).look({"days": seen}, NOW + 15)
    checks = [one.check_name for one in events if isinstance(one, dg.AssetCheckEvaluation)]
    assert f"accepted__{NAME}" in checks


def test_an_alert_goes_to_a_command(tmp_path: Path) -> None:
    out = tmp_path / "alert.json"
    code = f"import sys, pathlib; pathlib.Path({str(out)!r}).write_text(sys.stdin.read())"
    assert alert("days", ["it stands"], {ALERT: f'{sys.executable} -c "{code}"'})
    assert json.loads(out.read_text()) == {"flow": "days", "status": "trouble", "trouble": ["it stands"]}
    assert not alert("days", [], {ALERT: "/nonexistent"})
    assert not alert("days", [], {})


@pytest.mark.parametrize(
    "where",
    [
        "http://127.0.0.1:1/ hook",
        "http://127.0.0.1:x/",
        "http://[",
        "http:///nowhere",
        "HTTP://127.0.0.1:1/",
        "'unbalanced",
        "no such command",
        "false --token hunter2",
        "\0",
        "''",
    ],
)
def test_an_alert_that_cannot_be_sent_stops_nothing(where: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not alert("days", ["it stands"], {ALERT: where})
    assert "alert not delivered" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_garbage_answer_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"garbage\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        assert not alert("days", [], {ALERT: f"http://127.0.0.1:{server.getsockname()[1]}/services/hunter2"})
        answering.join()
    assert "hunter2" not in caplog.text


def test_alerts_that_nobody_takes_cost_a_tick_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, answers = [], threading.Event()

    def hangs(flow: str, wrong: list[str]) -> bool:
        sent.append(flow)
        return answers.wait(60)

    monkeypatch.setattr(liveness, "alert", hangs)
    monkeypatch.setattr(liveness, "_ALERT_SECONDS", 0.2)
    alert_all([(f"flow {number}", ["it stands"]) for number in range(7)])
    assert sorted(sent) == [f"flow {number}" for number in range(7)]
    assert not answers.is_set()
    answers.set()


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes]]]:
    taken: list[bytes] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", taken
        server.shutdown()


def test_an_alert_goes_to_a_url(hook: tuple[str, list[bytes]]) -> None:
    url, taken = hook
    assert alert("days", [], {ALERT: url})
    assert json.loads(taken[0]) == {"flow": "days", "status": "well", "trouble": []}


@pytest.mark.slow
def test_the_sensor_over_a_registry(view: FlowView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_HOME", str(tmp_path))
    monkeypatch.setenv("TRIDELTA_FLOWS", "tests.nimbus.sliced_flows")
    sensor = flows_sensor([view])
    nimbus = NimbusResource(store_url=f"sqlite:///{tmp_path}/registry.db", root=str(tmp_path / "lake"))
    given = {"nimbus": nimbus, "lake": LakeResource(root=str(tmp_path / "lake"))}

    def tick(cursor: str | None) -> Any:
        with dg.instance_for_test() as instance, dg.build_sensor_context(instance, cursor, resources=given) as context:
            return sensor(context)

    assert isinstance(tick(None), dg.SkipReason)
    with nimbus.nimbus() as opened:
        opened.submit("days")
    first = tick(None)
    kinds = ["AssetMaterialization", "AssetObservation", "AssetCheckEvaluation"]
    assert [type(event).__name__ for event in first.asset_events] == kinds
    assert first.asset_events[0].asset_key == registry_key("days")
    assert tick(first.cursor).asset_events == []


def test_a_registry_that_does_not_answer_skips_the_tick(view: FlowView, tmp_path: Path) -> None:
    away = NimbusResource(store_url="postgresql://me@127.0.0.1:1/x", root=str(tmp_path / "lake"))
    given = {"nimbus": away, "lake": LakeResource(root=str(tmp_path / "lake"))}
    with dg.instance_for_test() as instance, dg.build_sensor_context(instance, "{}", resources=given) as context:
        skipped = flows_sensor([view])(context)
    assert isinstance(skipped, dg.SkipReason)
    assert "127.0.0.1" in str(skipped.skip_message)


@pytest.mark.parametrize("how", ["its file is missing", "its tables are being restored"])
def test_a_registry_that_is_missing_removes_no_flow(how: str, view: FlowView, lake: Lake, tmp_path: Path) -> None:
    """All flows passed for removed; with the registry back what they had written was reported once more."""
    file = tmp_path / "registry.db"
    nimbus = NimbusResource(store_url=f"sqlite:///{file}", root=str(tmp_path / "lake"))
    given = {"nimbus": nimbus, "lake": LakeResource(root=str(tmp_path / "lake"))}
    last = Progress([view], lake, None)
    last.look({"days": status()}, NOW)

    def tick(cursor: str) -> dg.SensorResult | dg.SkipReason:
        with dg.instance_for_test() as instance, dg.build_sensor_context(instance, cursor, resources=given) as context:
            said = flows_sensor([view])(context)
        assert isinstance(said, dg.SensorResult | dg.SkipReason)
        return said

    missing = how == "its file is missing"
    if not missing:
        file.touch()
    skipped = tick(last.cursor)
    assert isinstance(skipped, dg.SkipReason)
    assert ("is missing" if missing else "has no tables") in str(skipped.skip_message)
    # No flow was deployed: nobody misses a registry.
    assert not (isinstance(said := tick("{}"), dg.SkipReason) and "registry" in str(said.skip_message))
    # One that is there and holds no flow tells that they were removed.
    with nimbus.nimbus():
        pass
    removed = tick(last.cursor)
    assert isinstance(removed, dg.SensorResult)
    assert registry_key("days") in [event.asset_key for event in removed.asset_events]
    assert json.loads(removed.cursor or "") == {}


def test_trouble_of_a_flow_that_the_catalog_does_not_have(view: FlowView, lake: Lake) -> None:
    """Deployed from a YAML file, or lost by the catalog since: it has no page, and alerts all the same."""

    def look(cursor: str | None, *, others: bool = True, **task: Any) -> Progress:
        progress = Progress([view], lake, cursor, others=others)
        assert progress.look({"orders": replace(status(**task), name="orders")}, NOW) == []
        return progress

    failed: dict[str, Any] = {"state": "failed", "last_error": "boom"}
    first = look(None, **failed)
    assert first.changed == [("orders", ["days: boom"])]
    assert look(first.cursor, **failed).changed == []
    well = look(first.cursor)
    assert well.changed == [("orders", [])]
    assert look(well.cursor).changed == []
    # The sensor of a component follows its own flows.
    assert look(None, others=False, **failed).changed == []
    # Removed and submitted again it begins again, and if the catalog has it (again) it is followed as any other.
    again = replace(status(**failed), id="orders-2", name="orders")
    progress = Progress([], lake, first.cursor, others=True)
    progress.look({"orders": again}, NOW)
    assert progress.changed == [("orders", ["days: boom"])]
    orders = replace(view, spec=replace(view.spec, name="orders"))
    taken = Progress([orders], lake, progress.cursor).look({"orders": again}, NOW)
    assert registry_key("orders") in [one.asset_key for one in taken]


@pytest.mark.parametrize(("group", "alerts"), [("", [("orders", ["days: boom"])]), ("days", [])])
def test_the_sensor_of_the_whole_code_location_alerts_of_every_flow(
    view: FlowView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, alerts: list[Any]
) -> None:
    sent: list[Any] = []
    orders = replace(status(state="failed", last_error="boom"), name="orders")
    monkeypatch.setattr(NimbusResource, "deployed", lambda _, expected=False: {"orders": orders})
    monkeypatch.setattr("ops.schedules.alert_all", sent.extend)
    made = flow_definitions([FlowGroup([flow_assets(view)], group)], str(tmp_path / "lake"))
    (sensor,) = [one for one in made.sensors or () if isinstance(one, dg.SensorDefinition)]
    nimbus = NimbusResource(store_url=f"sqlite:///{tmp_path}/registry.db", root=str(tmp_path / "lake"))
    given = {"nimbus": nimbus, "lake": LakeResource(root=str(tmp_path / "lake"))}
    with dg.instance_for_test() as instance, dg.build_sensor_context(instance, None, resources=given) as context:
        sensor(context)
    assert sent == alerts


@pytest.mark.parametrize(
    ("cursor", "kept"),
    [
        ('{"days": {"id": "days-1", "tables": {"t": 3}, "looks": [[null, 2.5]], "of_a_newer_release": 1}}', ["days"]),
        ('{"days": {"id": "days-1", "tables": "by hand"}}', []),
        ("nonsense", []),
        ("[]", []),
        ('{"days": 3}', []),
    ],
)
def test_a_cursor_of_another_release_or_by_hand_fails_no_tick(lake: Lake, cursor: str, kept: list[str]) -> None:
    seen = json.loads(Progress([], lake, cursor).cursor)
    assert list(seen) == kept
    for flow in seen.values():
        assert (flow["id"], flow["tables"], flow["looks"]) == ("days-1", {"t": 3}, [[None, 2.5]])
        assert "of_a_newer_release" not in flow


def test_a_look_at_a_hundred_flows_reads_no_table_that_has_not_moved(
    view: FlowView, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [replace(view, spec=replace(view.spec, name=f"flow{n}")) for n in range(100)]
    flows = {one.name: replace(status(txid=1, last_batch_at=NOW), name=one.name) for one in views}
    progress = Progress(views, lake, None)
    while progress.look(flows, NOW):
        pass
    monkeypatch.setattr(Lake, "written_by", lambda *_: pytest.fail("a table was looked at"))
    started = time.monotonic()
    assert Progress(views, lake, progress.cursor).look(flows, NOW + 15) == []
    print(f"{time.monotonic() - started:.3f} s for a look at 100 flows")


@pytest.mark.slow
def test_each_batch_is_told_once_however_looks_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three flows with two tables, each read from its own log; a look tells five events."""
    monkeypatch.setattr("assets.events.progress.MOST_EVENTS", 5)
    with shops(3, before=3, more=29) as here:
        ticks = [here.tick()]
        for batches in (1, 22, 2, 4):
            # Of 22 batches of three days one look cannot tell all.
            here.move(batches)
            ticks.append(here.tick())
        assert here.differences() != []
        while ticks[-1].events:
            ticks.append(here.tick())
        assert here.differences() == []
        # The last flow of a look may go over the limit, by what is told of the flow itself.
        assert max(one.events for one in ticks) < 5 + 6
        assert len(ticks) > 8


@pytest.mark.slow
def test_a_tick_reads_no_more_commits_of_an_old_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit per five seconds makes 121,000 of them in a week: read one by one, no tick came to its end."""
    opened: list[str] = []
    original = Path.open

    def counted(path: Path, *args: Any, **named: Any) -> Any:
        if path.parent.name == "_delta_log":
            opened.append(str(path))
        return original(path, *args, **named)

    monkeypatch.setattr(Path, "open", counted)
    # However busy the machine is: both tables are drawn.
    for limit in ("DRAWING_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(progress_module, limit, 60.0)
    read = []
    for before in (100, 250):
        with shops(1, before=before, more=6) as here:
            here.tick()
            for _ in range(2):
                here.move()
                opened.clear()
                assert here.tick().plots == 2
                read.append(len(opened))
    assert read[:2] == read[2:]
    # What is drawn again is read in part.
    assert read[1] < read[0] / 3


@pytest.mark.slow
def test_each_batch_is_told_once_where_each_look_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a store, where a first look at many flows, or one after a day, takes longer than Dagster lets a tick last."""
    monkeypatch.setattr(progress_module, "OVER_SECONDS", -1.0)
    with shops(3, before=3, more=9) as here:
        for begun in (1, 2, 3):
            here.tick()
            assert here._cursor is not None
            assert len(json.loads(here._cursor)) == begun
        here.move(9)
        # A commit of each table at a time.
        ticks = [here.tick()]
        while ticks[-1].events:
            ticks.append(here.tick())
        assert here.differences() == []
        assert len(ticks) >= 9


def test_a_submission_that_waits_for_its_first_look_is_not_mixed_with_the_one_before(
    view: FlowView, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = FlowView.of(spec(1), FlowSettings(tmp_path))
    flows = {"days": status(), "shop001": replace(status(), name="shop001", id="shop001-1-1")}
    progress = Progress([view, shop], lake, None)
    progress.look(flows, NOW)
    monkeypatch.setattr(progress_module, "OVER_SECONDS", -1.0)
    again = {name: replace(one, id=f"{name}-2-2", problem="no place") for name, one in flows.items()}
    progress = Progress([view, shop], lake, progress.cursor)
    for known, told in ((["days-2-2", "shop001-1-1"], ["days"]), (["days-2-2", "shop001-2-2"], ["days", "shop001"])):
        progress.look(again, NOW + 10)
        assert [seen["id"] for seen in json.loads(progress.cursor).values()] == known
        assert [name for name, _ in progress.changed] == told


def test_trouble_is_told_at_once_whoever_waits(view: FlowView, lake: Lake) -> None:
    views = [replace(view, spec=replace(view.spec, name=f"flow{n}")) for n in range(9)]
    flows = {one.name: replace(status(txid=1, last_batch_at=NOW), name=one.name) for one in views}
    progress = Progress(views, lake, None, most=2)
    told = {event.asset_key.path[-1] for event in progress.look(flows, NOW)}
    assert len(told) == 1
    flows["flow8"] = replace(flows["flow8"], problem="no place")
    told |= {event.asset_key.path[-1] for event in progress.look(flows, NOW + 10)}
    assert "flow8" in told
    assert progress.changed == [("flow8", ["no place"])]
    for look in range(9):
        told |= {event.asset_key.path[-1] for event in progress.look(flows, NOW + 20 + look)}
    assert told == set(flows)


def test_it_reads_on_behind_a_log_that_was_cleaned(view: FlowView, lake: Lake) -> None:
    log = lake.state_path("day_sums") / "_delta_log"
    log.mkdir(parents=True)
    progress = Progress([view], lake, None)
    progress.look({"days": status()}, NOW)
    record = {"kind": "compaction", "flow": "days"}
    for version in (7, 8):
        info = {"commitInfo": {"operation": "OPTIMIZE", "userMetadata": json.dumps(record)}}
        (log / f"{version:020d}.json").write_text(json.dumps(info), "utf-8")
    progress.look({"days": status(txid=0, last_batch_at=NOW)}, NOW)
    assert json.loads(progress.cursor)["days"]["tables"] == {"day_sums": 8}


def test_tables_lead_to_the_line_that_defines_them(view: FlowView) -> None:
    from assets.factory import flow_assets
    from tests.nimbus import sliced_flows

    spec = next(iter(flow_assets(view).states.specs))
    references = spec.metadata["dagster/code_references"].code_references
    lines = Path(str(sliced_flows.__file__)).read_text("utf-8").splitlines()
    assert "persistent_aggregate" in lines[references[0].line_number - 1]


@pytest.mark.parametrize("known_before", [True, False])
def test_a_table_that_cannot_be_read_is_trouble_of_its_flow_alone(
    view: FlowView, lake: Lake, tmp_path: Path, known_before: bool
) -> None:
    shop = FlowView.of(spec(1), FlowSettings(tmp_path))
    flows = {"days": status(), "shop001": replace(status(), name="shop001")}
    cursor = None
    if known_before:
        progress = Progress([view, shop], lake, None)
        progress.look(flows, NOW)
        cursor = progress.cursor
    torn = lake.state_path("day_sums") / "_delta_log" / f"{0:020d}.json"
    torn.parent.mkdir(parents=True)
    torn.write_text('{"commitInfo":{"timestamp":17', "utf-8")
    flows["days"] = status(txid=0, last_batch_at=NOW)
    flows["shop001"] = replace(status(state="silent", beat_age_seconds=40.0), name="shop001")
    changed, alive = [], []
    for look in range(4):
        if look == 3:
            torn.unlink()
        # A look that has no turn for the flow does not take the trouble for over.
        progress = Progress([view, shop], lake, cursor, most=0 if look == 2 else None)
        events = progress.look(flows, NOW + 10 * look)
        cursor = progress.cursor
        changed.append(dict(progress.changed))
        verdicts = [one for one in events if isinstance(one, dg.AssetCheckEvaluation) and one.check_name == ALIVE]
        alive.append({one.asset_key.path[-1]: one.passed for one in verdicts})
    (unread,) = changed[0].pop("days")
    assert unread.startswith("its tables cannot be read: day_sums: JSONDecodeError: ")
    assert changed == [{"shop001": ["days: its worker has not beaten for 40 s"]}, {}, {}, {"days": []}]
    assert alive == [{"days": False, "shop001": False}, {}, {}, {"days": True}]


def test_a_table_that_cannot_be_read_keeps_no_removed_flow_and_no_new_submission(view: FlowView, lake: Lake) -> None:
    progress = Progress([view], lake, None)
    progress.look({"days": status()}, NOW)
    torn = lake.state_path("day_sums") / "_delta_log" / f"{0:020d}.json"
    torn.parent.mkdir(parents=True)
    torn.write_text('{"commitInfo":{"timestamp":17', "utf-8")
    progress.look({"days": replace(status(), id="days-2-2")}, NOW + 10)
    assert json.loads(progress.cursor)["days"]["id"] == "days-2-2"
    assert [one.asset_key for one in progress.look({}, NOW + 20)] == [registry_key("days")]
    assert json.loads(progress.cursor) == {}


@pytest.mark.parametrize("again", [False, True], ids=["gone", "submitted again"])
def test_a_long_log_of_a_flow_that_is_gone_is_read_over_some_looks(
    view: FlowView, lake: Lake, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """On a store it takes longer than Dagster lets a tick last, and one that fails begins from its start again."""
    progress = Progress([view], lake, None)
    progress.look({"days": status()}, NOW)
    log = Path(str(lake.state_path("day_sums"))) / "_delta_log"
    log.mkdir(parents=True)
    for version in range(2 * MOST_COMMITS + 5):
        record = json.dumps({"kind": "compaction", "flow": "days"})
        info = {"commitInfo": {"timestamp": version, "operation": "OPTIMIZE", "userMetadata": record}}
        (log / f"{version:020d}.json").write_text(json.dumps(info), "utf-8")
    monkeypatch.setattr(progress_module, "LOOK_SECONDS", -1.0)
    deployed = {"days": replace(status(), id="days-2-2")} if again else {}
    read = []
    for look in range(1, 4):
        progress = Progress([view], lake, progress.cursor)
        told = [one.asset_key for one in progress.look(deployed, NOW + 10 * look)]
        seen = json.loads(progress.cursor).get("days")
        read.append((seen and seen["tables"]["day_sums"], not again and registry_key("days") in told))
        if again:
            # From here on it is read in its turn, like any other.
            monkeypatch.undo()
    last = (2 * MOST_COMMITS + 4, False) if again else (None, True)
    assert read == [(MOST_COMMITS - 1, False), (2 * MOST_COMMITS - 1, False), last]


@pytest.mark.parametrize("commits", [range(3), range(9)], ids=["fewer", "more"])
def test_a_table_that_was_made_anew_is_told_from_its_first_commit(
    view: FlowView, lake: Lake, monkeypatch: pytest.MonkeyPatch, commits: range
) -> None:
    log, read = Path(str(lake.state_path("day_sums"))) / "_delta_log", list[int]()
    log.mkdir(parents=True)

    def write_commits(versions: range, at: int) -> None:
        for version in versions:
            record = json.dumps({"kind": "compaction", "flow": "days"})
            info = {"commitInfo": {"timestamp": at + version, "operation": "OPTIMIZE", "userMetadata": record}}
            (log / f"{version:020d}.json").write_text(json.dumps(info), "utf-8")

    def parse(version: int, info: Any) -> Any:
        read.append(version)
        return parse_commit(version, info)

    monkeypatch.setattr("assets.events.progress.parse_commit", parse)
    cursor = None
    for look in range(3):
        if look == 1:
            write_commits(range(6), at=2_000_000_000_000)
        if look == 2:
            assert read == list(range(6))
            read.clear()
            for file in log.iterdir():
                file.unlink()
            write_commits(commits, at=2_000_000_100_000)
        progress = Progress([view], lake, cursor)
        progress.look({"days": status(txid=look, last_batch_at=NOW + look)}, NOW + look)
        cursor = progress.cursor
    assert read == list(commits)
    assert json.loads(cursor)["days"]["tables"] == {"day_sums": commits[-1]}


def _batch(table: Path, txid: int, rows: int) -> None:
    time.sleep(0.005)  # commits are told apart by their times, in ms
    record = BatchRecord(kind=BATCH, flow="days", txid=txid, rows=rows).dump()
    data = pa.table({SLICE_COLUMN: ["2026-01-01"] * rows, "v": [1] * rows})
    told = CommitProperties(custom_metadata={"userMetadata": record})
    write_deltalake(table, data, mode="append", partition_by=[SLICE_COLUMN], commit_properties=told)


@pytest.fixture
def foreign(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table that is written without a flow, so that nobody has said its columns."""
    monkeypatch.setattr(Progress, "_columns", lambda *_: dg.TableSchema(columns=[]))
    return Path(str(lake.state_path("day_sums")))


def _told(view: FlowView, lake: Lake, cursor: str | None, look: int, known: KnownTables) -> tuple[str, list[Any]]:
    progress = Progress([view], lake, cursor, known)
    events = progress.look({"days": status(txid=look, last_batch_at=NOW + look)}, NOW + look)
    return progress.cursor, [one for one in events if isinstance(one, dg.AssetMaterialization) and one.partition]


def _txids(events: list[Any]) -> list[tuple[Any, Any]]:
    return [(one.metadata["txid_first"].value, one.metadata["txid_last"].value) for one in events]


@pytest.mark.parametrize("batches", [1, 3, 5], ids=["fewer", "as many", "more"])
@pytest.mark.parametrize("looks", [False, True], ids=["unseen", "seen as it came back"])
def test_of_a_table_that_came_back_from_a_copy_only_what_is_new_is_told(
    view: FlowView, lake: Lake, foreign: Path, tmp_path: Path, batches: int, looks: bool
) -> None:
    table, known = foreign, KnownTables()
    cursor, _ = _told(view, lake, None, 0, known)
    for txid in range(6):
        if txid == 3:
            shutil.copytree(table, tmp_path / "copy")
        _batch(table, txid, 1)
    cursor, events = _told(view, lake, cursor, 1, known)
    assert _txids(events) == [(0, 5)], json.loads(cursor)["days"]["unread"]
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "copy", table)
    if looks:
        last = table / "_delta_log" / f"{2:020d}.json"
        # Of a copy that is still being made some commits come later.
        last.rename(tmp_path / "later")
        cursor, events = _told(view, lake, cursor, 2, known)
        assert events == []
        (tmp_path / "later").rename(last)
        cursor, events = _told(view, lake, cursor, 3, known)
        assert events == []
    for txid in range(10, 10 + batches):
        _batch(table, txid, 1)
    cursor, events = _told(view, lake, cursor, 4, known)
    assert _txids(events) == [(10, 9 + batches)]
    assert json.loads(cursor)["days"]["tables"] == {"day_sums": 2 + batches}
    assert _told(view, lake, cursor, 5, known)[1] == []


def test_plots_of_a_table_that_came_back_from_a_copy_are_of_its_own_commits(
    view: FlowView, lake: Lake, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "DRAWING_SECONDS", 60.0)
    drawn: list[Any] = []
    original = TablePlots._plots

    def plots(self: TablePlots, *given: Any) -> Any:
        made = original(self, *given)
        drawn.append(made["rows per batch"].values)
        return made

    monkeypatch.setattr(TablePlots, "_plots", plots)
    table, known = foreign, KnownTables()
    cursor, _ = _told(view, lake, None, 0, known)
    for version in range(7):
        if version == 5:
            shutil.copytree(table, tmp_path / "copy")
        _batch(table, version, 1 + version)
    cursor, _ = _told(view, lake, cursor, 1, known)
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "copy", table)
    DeltaTable(table).create_checkpoint()
    for version in range(2):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    for txid, rows in ((15, 60), (16, 70)):
        _batch(table, txid, rows)
    _told(view, lake, cursor, 2, known)
    assert drawn == [[1, 2, 3, 4, 5, 6, 7], [3, 4, 5, 60, 70]]


def test_on_demand_a_registry_that_does_not_answer_is_told_plainly(view: FlowView, tmp_path: Path) -> None:
    away = NimbusResource(store_url="postgresql://me@127.0.0.1:1/x", root=str(tmp_path / "lake"))
    check = liveness.liveness_check(view)
    with pytest.raises(dg.Failure, match=r"127\.0\.0\.1") as told:
        check(away)
    assert told.value.metadata["error"].value == "RegistryError"
