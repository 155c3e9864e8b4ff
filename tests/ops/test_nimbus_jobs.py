"""The jobs of deployed flows: their forms, what they ask of Nimbus, and how they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.deployment import deployment_key
from assets.view import FlowView
from ops.flow_definitions import fixed
from ops.jobs.nimbus_jobs import nimbus_jobs
from ops.schedules import REBALANCE_EVERY, rebalance_schedule
from pipelines.catalog import FlowSettings
from pipelines.catalog import flow as flow_of
from pipelines.maintenance.rebalance import CLUSTER, Decision, Figures
from pipelines.nimbus import periodic_rebalance
from pipelines.nimbus.errors import NoTransitionError, RegistryError
from pipelines.nimbus.periodic_rebalance import Judged
from pipelines.nimbus.status import FlowStatus
from pipelines.state.sums import StateOverflowError
from resources import NimbusResource
from tests.fake_nimbus import FakeNimbus
from tests.nimbus.looks import RUNNING, flow

JOBS = {
    job.name: job
    for job in nimbus_jobs(
        [FlowView.of(flow_of(name), FlowSettings(Path("/nowhere"))) for name in ("flights", "late_departures")]
    )
}


@pytest.fixture
def nimbus(monkeypatch: pytest.MonkeyPatch) -> FakeNimbus:
    fake = FakeNimbus(flow("flights", RUNNING))
    monkeypatch.setattr(NimbusResource, "nimbus", lambda _: fake)
    return fake


def run(verb: str, config: dict[str, Any]) -> dg.ExecuteInProcessResult:
    return JOBS[f"{verb}_job"].execute_in_process(
        run_config={"ops": {f"{verb}_flow": {"config": config}}},
        resources={"nimbus": NimbusResource()},
        raise_on_error=False,
    )


def metadata(done: dg.ExecuteInProcessResult) -> dict[str, Any]:
    seen = [one.asset_observation_data.asset_observation for one in done.all_events if one.is_asset_observation]
    made = [one.materialization for one in done.all_events if one.is_step_materialization]
    (told,) = [one for one in (*seen, *made) if one.asset_key == deployment_key("flights")]
    return {name: value.value for name, value in told.metadata.items()}


def refusal(done: dg.ExecuteInProcessResult, verb: str) -> str:
    assert not done.success
    failed = done.failure_data_for_node(f"{verb}_flow")
    assert failed is not None
    return str(failed.user_failure_data.description if failed.user_failure_data else failed.error)


@pytest.mark.parametrize(
    ("verb", "config", "asked", "status"),
    [
        (
            "deploy",
            {"trigger_seconds": 2.0, "wait_at_most": 0},
            ("update", "flights", {"trigger_seconds": 2.0, "inactive": False}),
            "ACTIVE",
        ),
        ("activate", {}, ("activate", "flights"), "ACTIVE"),
        ("deactivate", {}, ("deactivate", "flights"), "INACTIVE"),
        ("deactivate", {"wait_at_most": 0}, ("deactivate", "flights"), "INACTIVE"),
        ("kill", {"wait_seconds": 5.0}, ("kill", "flights", 5.0), "KILLED"),
        ("update", {"trigger_seconds": 2.0}, ("update", "flights", {"trigger_seconds": 2.0}), "ACTIVE"),
        ("update", {"settings": {"max_attempts": 5}}, ("update", "flights", {"max_attempts": 5}), "ACTIVE"),
        ("rollback", {}, ("roll_back", "flights", None), "ACTIVE"),
        ("rollback", {"to": 1}, ("roll_back", "flights", 1), "ACTIVE"),
        (
            "rebalance",
            {"parallelism": {"flights": 3}, "wait_seconds": 1.0},
            ("rebalance", "flights", {"workers": None, "parallelism": {"flights": 3}, "wait_seconds": 1.0}),
            "ACTIVE",
        ),
    ],
)
def test_a_job_asks_waits_and_observes_the_deployment(
    nimbus: FakeNimbus, verb: str, config: dict[str, Any], asked: tuple[Any, ...], status: str
) -> None:
    done = run(verb, {"flow": "flights", **config})
    assert done.success
    assert [one for one in nimbus.asked if one[0] not in ("wait", "ensure_supervisor")] == [asked]
    assert metadata(done)["status"] == status
    waits = [one for one in nimbus.asked if one[0] == "wait"]
    assert bool(waits) == (config.get("wait_at_most") != 0)
    assert nimbus.closed == 1


def test_a_flow_that_is_new_is_submitted(nimbus: FakeNimbus) -> None:
    nimbus.flows.clear()
    assert run("deploy", {"flow": "flights", "workers": 2, "inactive": True}).success
    assert nimbus.asked[0] == ("submit", "flights", {"workers": 2, "inactive": True})
    assert "greater than" in refusal(run("deploy", {"flow": "flights", "workers": 0}), "deploy")


def test_a_dry_rebalance_changes_nothing(nimbus: FakeNimbus) -> None:
    assert run("rebalance", {"flow": "flights", "workers": 2, "dry_run": True}).success
    assert nimbus.asked == []


@pytest.mark.parametrize("dry_run", [False, True])
def test_without_parallelism_the_figures_decide(
    nimbus: FakeNimbus, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    nimbus.flows["late_departures"] = flow("late_departures", RUNNING)
    look = Figures("flights/flights", 5.0, (9.0,) * 3, (1.0, 2.0), 100.0, 2, 8)
    decided = (Decision("flights/flights", "scale_out", 2, 4, ("it is slow",)), look)
    judged = [
        Judged("late_departures", why_not="no query of it runs"),
        Judged("flights", (decided,), {"parallelism": {"flights": 4}}),
        Judged("gone", (decided,), {"parallelism": {"flights": 4}}),
    ]
    monkeypatch.setattr(periodic_rebalance, "judge", lambda _, flows: judged[:2])
    done = run("rebalance", {"dry_run": dry_run})
    assert done.success
    (output,) = [one for one in done.all_events if one.event_type_value == "STEP_OUTPUT"]
    shown = {name: value.value for name, value in output.step_output_data.metadata.items()}
    assert "| flights/flights | scale_out | 2 -> 4 |" in shown["decisions"]
    assert shown["applied"] == (0 if dry_run else 1)
    asked = ("rebalance", "flights", {"wait_seconds": None, "parallelism": {"flights": 4}})
    assert [one for one in nimbus.asked if one[0] == "rebalance"] == ([] if dry_run else [asked])
    monkeypatch.setattr(periodic_rebalance, "judge", lambda _, flows: [judged[2], judged[1]])
    if not dry_run:
        nimbus.asked.clear()
        assert "gone is not alive" in refusal(run("rebalance", {}), "rebalance")
        assert asked in nimbus.asked


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (StateOverflowError("totals", "cents_sum", "bigint"), 'the total "cents_sum" does not fit'),
        # As of delta-rs and of Spark, whose errors are none of the engine's.
        (RuntimeError("the table has changed"), "late_departures: RuntimeError: the table has changed"),
    ],
)
def test_what_fails_for_one_flow_ends_the_rebalance_of_no_other(
    nimbus: FakeNimbus, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def fails(*_: Any) -> None:
        raise error

    look = Figures("flights/flights", 5.0, (9.0,) * 3, (1.0, 2.0), 100.0, 2, 8)
    sorts = Decision("late_departures/flights", CLUSTER, 2, 2, ("asked by",), tables={"totals": ("shop",)})
    scales = Decision("flights/flights", "scale_out", 2, 4, ("it is slow",))
    judged = [
        Judged("late_departures", ((sorts, look),)),
        Judged("flights", ((scales, look),), {"parallelism": {"flights": 4}}),
    ]
    monkeypatch.setattr(nimbus, "lake", None, raising=False)
    monkeypatch.setattr(periodic_rebalance, "judge", lambda _, flows: judged)
    monkeypatch.setattr(periodic_rebalance, "recluster_all", fails)
    assert says in refusal(run("rebalance", {}), "rebalance")
    asked = ("rebalance", "flights", {"wait_seconds": None, "parallelism": {"flights": 4}})
    assert [one for one in nimbus.asked if one[0] == "rebalance"] == [asked]


def test_what_nimbus_refuses_is_the_failure_in_its_own_words(
    nimbus: FakeNimbus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, **_: Any) -> FlowStatus:
        raise NoTransitionError("REBALANCE", "KILLED", name)

    monkeypatch.setattr(nimbus, "rebalance", refused)
    text = refusal(run("rebalance", {"flow": "flights", "workers": 2}), "rebalance")
    assert text.startswith("No transition for event: REBALANCE, status: KILLED storm-id: flights")
    assert "submit it again afterwards" in text
    assert "late_departures is not alive" in refusal(run("activate", {"flow": "late_departures"}), "activate")
    assert "name it" in refusal(run("rebalance", {"workers": 2}), "rebalance")


def test_the_form_offers_the_flows_of_the_catalog_and_checks_numbers(nimbus: FakeNimbus) -> None:
    for job in JOBS.values():
        (snapshot,) = [
            one for one in job.get_job_snapshot().config_schema_snapshot.all_config_snaps_by_key.values()
            if one.enum_values and {value.value for value in one.enum_values} == {"flights", "late_departures"}
        ]  # fmt: skip
        assert snapshot is not None
    with pytest.raises(dg.DagsterInvalidConfigError, match="fligths"):
        run("kill", {"flow": "fligths"})
    with pytest.raises(dg.DagsterInvalidConfigError, match='not valid for expected type "Int"'):
        run("rollback", {"flow": "flights", "to": "one"})
    assert "greater than or equal to 1" in refusal(run("rollback", {"flow": "flights", "to": 0}), "rollback")
    assert nimbus.asked == []


def tick(monkeypatch: pytest.MonkeyPatch, *found: FlowStatus, error: Exception | None = None) -> Any:
    def deployed(_: NimbusResource) -> dict[str, FlowStatus]:
        if error is not None:
            raise error
        return {one.name: one for one in found}

    monkeypatch.setattr(NimbusResource, "deployed", deployed)
    schedule = rebalance_schedule(JOBS["rebalance_job"])
    assert (schedule.cron_schedule, schedule.default_status) == (REBALANCE_EVERY, dg.DefaultScheduleStatus.RUNNING)
    with dg.build_schedule_context(resources={"nimbus": NimbusResource()}) as context:
        return schedule(context)


def test_the_schedule_skips_while_nothing_is_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(tick(monkeypatch), dg.SkipReason)
    assert isinstance(tick(monkeypatch, flow("trips", status="INACTIVE")), dg.SkipReason)
    skipped = tick(monkeypatch, error=RegistryError("sqlite:///gone", "does not answer"))
    assert "does not answer" in skipped.skip_message
    asked = tick(monkeypatch, flow("trips"), replace(flow("flights"), status="KILLED"))
    assert isinstance(asked, dg.RunRequest)
    assert asked.tags["flows"] == "trips"


@pytest.mark.parametrize("verb", ["deploy", "update"])
@pytest.mark.parametrize("settings", [{"spark": {"spark.plugins": "evil.Plugin"}}, {"master": "spark://evil:7077"}])
def test_a_form_takes_no_setting_that_runs_code(nimbus: FakeNimbus, verb: str, settings: dict[str, Any]) -> None:
    said = refusal(run(verb, {"flow": "flights", "settings": settings}), verb)
    assert "it may run code or lead elsewhere" in said
    assert nimbus.asked == []


@pytest.mark.parametrize("verb", ["deploy", "update"])
@pytest.mark.parametrize(
    "settings", [{"file": "/tmp/x.yaml"}, {"inactive": True}, {"flow": "late_departures"}, {"workers": 9}]
)
def test_a_form_takes_settings_and_no_other_arguments(nimbus: FakeNimbus, verb: str, settings: dict[str, Any]) -> None:
    said = refusal(run(verb, {"flow": "flights", "settings": settings}), verb)
    assert f"a form has no setting '{next(iter(settings))}'" in said
    assert nimbus.asked == []


@pytest.mark.parametrize("verb", ["deploy", "update"])
def test_a_field_of_the_form_goes_before_a_setting_of_its_name(nimbus: FakeNimbus, verb: str) -> None:
    nimbus.flows["flights"] = flow("flights", RUNNING)
    given = {"flow": "flights", "trigger_seconds": 2.0, "settings": {"trigger_seconds": 9.0}, "wait_at_most": 0}
    assert run(verb, given).success
    assert next(one for one in nimbus.asked if one[0] == "update")[2]["trigger_seconds"] == 2.0


def test_a_run_names_no_other_registry(nimbus: FakeNimbus) -> None:
    refused = {"resources": {"nimbus": {"config": {"store_url": "sqlite:////elsewhere.db"}}}}
    config = {"ops": {"activate_flow": {"config": {"flow": "flights"}}}, **refused}
    with pytest.raises(dg.DagsterInvalidConfigError, match="store_url"):
        JOBS["activate_job"].execute_in_process(run_config=config, resources={"nimbus": fixed(NimbusResource())})
    assert nimbus.asked == []


def test_fixed_resources_are_what_they_were(nimbus: FakeNimbus) -> None:
    job, config = JOBS["activate_job"], {"ops": {"activate_flow": {"config": {"flow": "flights", "wait_at_most": 0}}}}
    assert job.execute_in_process(run_config=config, resources={"nimbus": fixed(NimbusResource())}).success
    assert nimbus.asked[0] == ("activate", "flights")
