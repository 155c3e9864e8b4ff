"""`tridelta housekeeping`, the op of the compaction job, and Dagster's runs."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from typer.testing import CliRunner

from ops.cli import app as cli
from ops.cli.app import app
from ops.flow_definitions import catalog_group
from ops.housekeeping import remove_runs, run_round
from ops.jobs.compaction import checkpoint_compaction_job, housekeeping_op
from pipelines.catalog import FlowSettings, FlowSpec
from pipelines.errors import TrideltaError
from pipelines.maintenance import Retention, compaction, retention
from pipelines.sources import JsonFiles
from pipelines.state.kinds import LOG, TRANSACTIONAL
from pipelines.state.lake import Lake
from pipelines.state.record import GENERATION
from pipelines.trident import DeltaState, TridentTopology
from resources import LakeResource, SparkResource
from tests.assets import two_flows
from tests.maintenance.small_state import SmallState
from tests.state.small_kinds import SmallTable

DAY = 86_400.0


def _old_log(home: Path, nimbus: str = "nimbus") -> Path:
    file = home / nimbus / "logs" / "host" / "6900" / "worker.jsonl.1"
    file.parent.mkdir(parents=True)
    file.write_text("{}\n")
    os.utime(file, (1, 1))
    return file


def test_a_dry_run_counts_and_a_run_removes(home: Path) -> None:
    state, log = SmallState(home / "lake"), _old_log(home)
    for n in range(3):
        state.batch([("d", "a", 0, n)])
    counted = json.loads(CliRunner().invoke(app, ["housekeeping", "--dry-run", "--json"]).stdout)
    assert (counted["dry_run"], counted["removed"], counted["compactions"]) == (True, 1, [])
    assert log.exists()
    done = CliRunner().invoke(app, ["housekeeping"])
    assert done.exit_code == 0, done.output
    assert "tables of shop" in done.stdout
    assert not log.exists()
    assert state.scanned() == state.expected()
    assert not (home / "nimbus" / "registry.db").exists()


def test_the_former_name_is_an_alias_that_help_does_not_list(home: Path) -> None:
    done = CliRunner().invoke(app, ["tidy", "--dry-run", "--json"])
    assert json.loads(done.stdout)["dry_run"]
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert ("housekeeping" in shown, "tidy" in shown) == (True, False)


def test_a_wrong_retention_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_KEEP_LOG_DAYS", "long")
    done = CliRunner().invoke(app, ["housekeeping"])
    assert done.exit_code == 1
    assert "TRIDELTA_KEEP_LOG_DAYS" in done.stderr


def test_the_registry_is_tidied_where_there_is_one(home: Path) -> None:
    from pipelines.nimbus.registry.store import Store
    from pipelines.nimbus.settings import registry_url

    Store.migrated(registry_url()).close()
    report = run_round(Lake(home / "lake"), FlowSettings(home), Retention())
    assert "registry" in {one.what for one in report.things}


def test_logs_are_removed_where_they_are_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDELTA_NIMBUS_HOME", str(home / "var"))
    elsewhere, log = _old_log(home), _old_log(home, "var")
    run_round(Lake(home / "lake"), FlowSettings(home), Retention())
    assert (elsewhere.exists(), log.exists()) == (True, False)


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_the_command_fails_where_a_table_fails(home: Path, arguments: tuple[str, ...]) -> None:
    """Cron tells nobody of a note."""
    log = _old_log(home)
    (home / "lake" / "states" / "torn" / "_delta_log").mkdir(parents=True)
    (home / "lake" / "states" / "torn" / "_delta_log" / f"{0:020}.json").touch()
    done = CliRunner().invoke(app, ["housekeeping", *arguments])
    assert done.exit_code == 1
    assert "table torn" in done.stdout
    assert not log.exists()


def test_what_another_command_is_for_does_not_fail_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DRIVER_ROWS", 0)
    state, other = SmallState(home / "lake"), SmallTable(home / "lake", LOG, TRANSACTIONAL)
    for n in range(3):
        state.batch([("d", "a", 0, n)], gap=GENERATION)
    done = CliRunner().invoke(app, ["housekeeping", "--json"])
    assert done.exit_code == 0
    assert "rows to fold" in done.stdout
    # Two of them, too; but not beside what nobody mends there.
    for n in range(3):
        other.commit(n * GENERATION, ("a", n))
    told = CliRunner().invoke(app, ["housekeeping", "--json"])
    assert told.exit_code == 0
    assert "2 tables were not compacted" in told.stdout

    def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(retention, "vacuum", fails)
    assert CliRunner().invoke(app, ["housekeeping"]).exit_code == 1


def _spec(name: str, *, where: str = "in", fails: bool = False) -> FlowSpec:
    def build(settings: FlowSettings) -> TridentTopology:
        if fails:
            raise ValueError("no such table of prices")
        topology = TridentTopology(name)
        topology.new_stream("orders", JsonFiles(settings.data / where, "v bigint")).partition_persist(DeltaState(name))
        return topology

    return FlowSpec(name, "Keeps orders.", build)


def test_a_flow_that_cannot_be_built_holds_up_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.housekeeping.found", lambda: ((_spec("shop", fails=True),), ()))
    state, log = SmallState(home / "lake"), _old_log(home)
    state.batch([("d", "a", 0, 1)])
    done = CliRunner().invoke(app, ["housekeeping", "--json"])
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    (failed,) = [one for one in told["things"] if one["failed"]]
    assert (failed["what"], "no such table of prices" in failed["note"]) == ("flow shop", True)
    assert [one["flow"] for one in told["compactions"]] == ["shop"]
    assert not log.exists()


@pytest.mark.parametrize("deployed", [("rides", "shop"), ()], ids=["deployed", "run by hand"])
def test_a_flow_that_dagster_cannot_load_is_compacted_at_night(
    home: Path, monkeypatch: pytest.MonkeyPatch, deployed: tuple[str, ...]
) -> None:
    """It has no step, for its names are those of another one."""
    catalog = (_spec("rides"), _spec("shop", where="elsewhere"))
    for module in ("ops.housekeeping", "ops.flow_definitions"):
        monkeypatch.setattr(f"{module}.found", lambda: (catalog, ()))
    monkeypatch.setattr("ops.housekeeping.deployed_flows", lambda _: dict.fromkeys(deployed))
    monkeypatch.setattr(SparkResource, "session", lambda _: None)
    group = catalog_group(FlowSettings(home))
    assert ([view.name for view in group.views], len(group.faults)) == (["rides"], 1)
    SmallState(home / "lake").batch([("d", "a", 0, 1)])
    resources = {"spark": SparkResource(), "lake": LakeResource(root=str(home / "lake"), warm=False)}
    job = checkpoint_compaction_job(group.views)
    result = job.execute_in_process(resources=resources, op_selection=["housekeeping"])
    (event,) = [one for one in result.all_events if one.event_type_value == "STEP_OUTPUT"]
    assert "tables of shop" in str(event.step_output_data.metadata["housekeeping"].value)


def _job_of(home: Path) -> dg.JobDefinition:
    @dg.job(resource_defs={"lake": LakeResource(root=str(home / "lake")), "spark": SparkResource()})
    def job() -> None:
        housekeeping_op(FlowSettings(home))()

    return job


def test_a_fault_that_the_next_round_meets_again_fails_the_op(home: Path) -> None:
    """The rest is done, and told."""
    log = _old_log(home)
    (home / "lake" / "states" / "torn" / "_delta_log").mkdir(parents=True)
    (home / "lake" / "states" / "torn" / "_delta_log" / f"{0:020}.json").touch()
    result = _job_of(home).execute_in_process(raise_on_error=False)
    assert not result.success
    failure = result.failure_data_for_node("housekeeping")
    assert failure is not None
    told = failure.user_failure_data
    assert told is not None
    assert 'table torn: table "torn"' in str(told.description)
    assert told.metadata["removed"].value == 1
    assert not log.exists()


@pytest.mark.slow
def test_the_op_tells_what_it_did(home: Path) -> None:
    log = _old_log(home)

    job = _job_of(home)
    with dg.instance_for_test() as instance:
        config = {"ops": {"housekeeping": {"config": {"log_days": 100_000.0}}}}
        assert job.execute_in_process(instance=instance, run_config=config).success
        assert log.exists()
        result = job.execute_in_process(instance=instance)
    (event,) = [one for one in result.all_events if one.event_type_value == "STEP_OUTPUT"]
    told = event.step_output_data.metadata
    assert (told["removed"].value, told["dry_run"].value) == (1, False)
    assert "worker logs" in str(told["housekeeping"].value)
    assert not log.exists()


@pytest.mark.slow
def test_only_old_runs_of_dagster_go(monkeypatch: pytest.MonkeyPatch) -> None:
    @dg.op
    def nothing() -> None:
        pass

    @dg.job
    def job() -> None:
        nothing()

    with dg.instance_for_test() as instance:
        for _ in range(2):
            assert job.execute_in_process(instance=instance).success
        assert remove_runs(instance, 1).removed == 0
        now = time.time()
        monkeypatch.setattr("ops.housekeeping.time", SimpleNamespace(time=lambda: now + 2 * DAY))
        assert remove_runs(instance, 1, dry_run=True).removed == 2
        found = remove_runs(instance, 1)
        assert (found.before, found.removed) == (2, 2)
        assert instance.get_runs_count() == 0


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Retention]:
    """The retentions that compactions were asked for; the first ends with an error."""
    taken: list[Retention] = []

    def compact(_spark: object, _lake: object, _topology: object, keep: Retention) -> None:
        taken.append(keep)
        raise TrideltaError("seen")

    monkeypatch.setattr(compaction, "compact", compact)
    monkeypatch.setattr(SparkResource, "session", lambda _: None)
    monkeypatch.setattr(cli, "engine", lambda _: nullcontext(SimpleNamespace(spark=None, lake=None)))
    return taken


def _of_the_job(home: Path, config: dict[str, float]) -> None:
    view = two_flows.views(home)[0]
    job = checkpoint_compaction_job([view], tidies=False)
    resources = {"spark": SparkResource(), "lake": LakeResource(root=str(home / "lake"), warm=False)}
    run_config = {"ops": {f"compact_{view.name}": {"config": config}}}
    assert not job.execute_in_process(run_config, resources=resources, raise_on_error=False).success


def test_the_nightly_job_and_compact_keep_what_the_environment_says(
    home: Path, given: list[Retention], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(*arguments: str, **config: float) -> None:
        CliRunner().invoke(app, ["compact", "flights", *arguments])
        _of_the_job(home, config)

    kept()
    for name, value in (
        ("STATE_HOURS", "8760"),
        ("CHANNEL_HOURS", "24"),
        ("WAIT_SECONDS", "5"),
        ("QUARANTINE_DAYS", "1"),
    ):
        monkeypatch.setenv(f"TRIDELTA_KEEP_{name}", value)
    kept()
    kept("--retention-hours", "2", "--channel-retention-hours", "1", retention_hours=2, channel_retention_hours=1)
    found = [(one.state_hours, one.channel_hours, one.wait_seconds, one.quarantine_days) for one in given]
    assert found == [(168, None, 600, None)] * 2 + [(8760, 24, 5, None)] * 2 + [(2, 1, 5, None)] * 2
