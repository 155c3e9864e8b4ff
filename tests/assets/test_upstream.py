"""Slices of a flow that are made of another flow's: what Dagster is told of them, without anything running."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent, DagsterEventType
from dagster._core.events import StepMaterializationData as Materialized
from dagster._core.events.log import EventLogEntry
from dagster._core.test_utils import create_run_for_test

from assets.factory import backfill_policy, flow_assets
from assets.upstream import Upstream
from assets.view import FlowView
from ops.flow_definitions import slices_job
from ops.jobs.relaunch import SliceRecords, find_slices
from ops.schedules import _Looks, slices_schedule
from pipelines import Lake
from pipelines.catalog import DailySlices, FlowSettings, FlowSpec
from pipelines.errors import DefinitionError
from pipelines.places import location
from pipelines.sources import DeltaTableSource, Rate
from pipelines.sources.base import Source
from pipelines.trident import DeltaState, TridentTopology
from tests.assets import two_flows

pytestmark = pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")

KEPT, PASSENGERS = dg.AssetKey("kept_rides"), dg.AssetKey("passengers")


ON_STORES = ("s3://bucket/lake", "s3a://bucket/lake/", "s3://bucket", "hdfs://name:8020/lake")


@pytest.fixture(autouse=True)
def not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Spark's session of later tests as it is: it is another where a place on HDFS was named."""
    monkeypatch.setattr(location, "_asked", set(location._asked))


@pytest.fixture
def rides(tmp_path: Path) -> FlowView:
    return two_flows.views(tmp_path)[0]


@pytest.fixture
def days(tmp_path: Path) -> FlowView:
    return two_flows.views(tmp_path)[1]


@pytest.mark.parametrize("lake", ["", *ON_STORES])
def test_the_table_that_is_read_is_the_asset_that_is_read(lake: str, tmp_path: Path) -> None:
    rides, days = two_flows.views(tmp_path, lake=lake)
    graph = two_flows.definitions(tmp_path, lake=lake).resolve_asset_graph()
    assert graph.get(PASSENGERS).parent_keys == {KEPT}
    assert not graph.has(dg.AssetKey(["sources", "of_rides"]))
    assert isinstance(graph.get_partition_mapping(PASSENGERS, KEPT), dg.TimeWindowPartitionMapping)
    assert (days.upstream, days.by_slices, days.arriving) == ((KEPT,), True, ())
    assert (rides.upstream, rides.by_slices) == ((), False)
    assert days.keys["of_rides"] == KEPT


STATE, CHANNEL, NEITHER = dg.AssetKey("t"), dg.AssetKey(["channels", "t"]), dg.AssetKey(["sources", "in"])


@pytest.mark.parametrize(
    ("lake", "path", "key"),
    [
        ("/data/lake", "/data/lake/states/t/", STATE),
        ("/data/lake", "/data/lake/channels/t", CHANNEL),
        ("/data/here/../lake", "/data/lake/states/t", STATE),
        ("lake", "./lake/states/t", STATE),
        ("file:///data/a%20lake", "file:/data/a%20lake/states/t", STATE),
        ("/data/lake", "/data/lake/states/sub/t", NEITHER),
        ("/data/lake", "/data/lake/states", NEITHER),
        ("/data/lake", "/data/other/states/t", NEITHER),
        ("/data/lake", "", NEITHER),
        ("/data/lake", "s3://data/lake/states/t", NEITHER),
        ("s3://data/lake", "/data/lake/states/t", NEITHER),
        ("s3://data/lake", "s3a://data/lake/states/t/", STATE),
        ("s3a://data/lake/", "s3://data/lake/channels/t", CHANNEL),
        ("s3://data", "s3://data/states/t", STATE),
        ("s3://data/lake", "s3://data/lake2/states/t", NEITHER),
        ("s3://data/lake", "s3://other/lake/states/t", NEITHER),
        ("s3://data/lake", "s3://data", NEITHER),
        ("hdfs://name:8020/lake", "hdfs://name:8020/lake/channels/t", CHANNEL),
        ("hdfs://name:8020/lake", "hdfs://other:8020/lake/states/t", NEITHER),
        ("hdfs://name/lake", "s3://name/lake/states/t", NEITHER),
    ],
)
def test_a_table_of_the_lake_is_found_however_both_are_spelled(lake: str, path: str, key: dg.AssetKey) -> None:
    assert _read_by(DeltaTableSource(path, "k string"), lake) == key


def test_a_source_without_a_folder_reads_no_table() -> None:
    assert _read_by(Rate(rows_per_second=1), "s3://data/lake") == NEITHER


@pytest.mark.parametrize("lake", ["", *ON_STORES])
def test_runs_of_a_backfill_hold_days_of_one_flow_unless_the_catalog_says_otherwise(lake: str, tmp_path: Path) -> None:
    rides, days = map(backfill_policy, two_flows.views(tmp_path, lake=lake))
    assert rides == dg.BackfillPolicy.single_run()
    assert days not in (None, rides)
    assert days is not None
    assert (days.max_partitions_per_run or 0) > 365 * 100
    assert set(map(backfill_policy, two_flows.views(tmp_path, 1, lake))) == {dg.BackfillPolicy.multi_run(1)}
    with pytest.raises(DefinitionError, match="days_a_run is 0"):
        DailySlices(datetime(2024, 1, 1, tzinfo=UTC).date(), days_a_run=0)


@pytest.mark.parametrize("lake", ["", *ON_STORES])
def test_catch_up_leaves_what_is_made_by_slices(lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = two_flows.views(tmp_path, lake=lake)[1]
    folder = tmp_path / "lake" / "states" / "kept_rides"
    folder.mkdir(parents=True)
    (folder / "part.parquet").write_text(json.dumps({}))
    monkeypatch.setattr("ops.schedules.look_at", lambda spout: pytest.fail(f"{spout.stream} is looked at"))
    with dg.instance_for_test() as instance:
        assert _Looks().arrived(instance, [days]) == ({}, [], [])


def test_its_schedule_comes_later_and_waits(days: FlowView, rides: FlowView, tmp_path: Path) -> None:
    defs = two_flows.definitions(tmp_path)
    schedule = slices_schedule(days, slices_job(flow_assets(days)))
    assert schedule.cron_schedule == "20-59/10 1-5 * * *"
    with (
        dg.instance_for_test() as instance,
        dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2024, 1, 3, 1, 20, tzinfo=UTC),
            repository_def=defs.get_repository_def(),
        ) as context,
    ):
        said = schedule(context)
    assert isinstance(said, dg.SkipReason)
    assert 'flow "days": slice 2024-01-02 was not computed: it reads "kept_rides" of the flow "rides"' in str(
        said.skip_message
    )
    assert slices_schedule(rides, slices_job(flow_assets(rides))).cron_schedule == "0 1 * * *"


def test_its_schedule_asks_for_a_slice_once(days: FlowView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.schedules.waits", lambda *_: None)
    schedule = slices_schedule(days, slices_job(flow_assets(days)))
    with dg.instance_for_test() as instance:
        for minute, asks in ((20, True), (30, False)):
            at = datetime(2024, 1, 3, 1, minute, tzinfo=UTC)
            with dg.build_schedule_context(instance=instance, scheduled_execution_time=at) as context:
                said = schedule(context)
            assert isinstance(said, dg.RunRequest if asks else dg.SkipReason)
            # As the daemon launches what is asked for; it failed.
            tags = {"dagster/schedule_name": schedule.name, "dagster/run_key": "2024-01-02"}
            create_run_for_test(instance, status=dg.DagsterRunStatus.FAILURE, tags=tags)


def test_it_waits_for_the_run_that_makes_or_checks_what_it_reads(days: FlowView, tmp_path: Path) -> None:
    defs, day = two_flows.definitions(tmp_path), "2024-01-02"
    repository = defs.get_repository_def()
    with dg.instance_for_test() as instance:
        run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED)
        planned = AssetMaterializationPlannedData(KEPT, partition=day)
        instance.report_dagster_event(
            DagsterEvent(
                DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value, run.job_name, event_specific_data=planned
            ),
            run.run_id,
        )
        upstream = Upstream(days, repository.asset_graph, instance, Lake(tmp_path / "lake"))
        assert upstream.ahead([day, "2024-01-03"]) == {day: run.run_id}
        assert upstream.ahead([day], besides=run.run_id) == {}
        with dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2024, 1, 3, 1, 20, tzinfo=UTC),
            repository_def=repository,
        ) as context:
            said = slices_schedule(days, slices_job(flow_assets(days)))(context)
        assert isinstance(said, dg.SkipReason)
        assert said.skip_message == f"run {run.run_id[:8]} makes what it reads"

        instance.handle_new_event(_ended(run.run_id, run.job_name))
        assert upstream.ahead([day]) == {}


@pytest.mark.slow
def test_the_own_verdict_of_a_slice_counts_before_the_tables(days: FlowView, tmp_path: Path) -> None:
    graph = two_flows.definitions(tmp_path).get_repository_def().asset_graph
    gate, suite = "plausible__fits", "suite__values_to_not_be_null_line"
    first, second, third = "2024-01-01", "2024-01-02", "2024-01-03"

    with dg.instance_for_test() as instance:

        def say(check: str, slice_: str | None, *, passed: bool) -> None:
            one = dg.AssetCheckEvaluation(asset_key=KEPT, check_name=check, passed=passed, partition=slice_)
            run = create_run_for_test(instance)
            event = DagsterEvent(DagsterEventType.ASSET_CHECK_EVALUATION.value, run.job_name, event_specific_data=one)
            instance.report_dagster_event(event, run.run_id)

        say(suite, first, passed=True)
        say(suite, None, passed=False)
        say(gate, second, passed=False)
        # What a gate said over a run's batches is no verdict on slices: it refused what is not there.
        say(gate, None, passed=False)
        refused = Upstream(days, graph, instance, Lake(tmp_path / "lake")).refused([first, second, third])
        assert "that slice is not there" in refused[first]
        assert f'its check "{gate}" fails' in refused[second] or f'its check "{suite}" fails' in refused[second]
        # Of this one nothing else is known than what the table says.
        assert f'its check "{suite}" fails' in refused[third]

        say(suite, None, passed=True)
        refused = Upstream(days, graph, instance, Lake(tmp_path / "lake")).refused([first, second])
        assert f'its check "{gate}" fails' in refused[second]
        say(gate, second, passed=True)
        refused = Upstream(days, graph, instance, Lake(tmp_path / "lake")).refused([first, second])
        assert "that slice is not there" in refused[second]


@pytest.mark.parametrize("late", ["during the run", "after it", "never"])
def test_a_late_row_makes_up_for_no_failed_slice(
    late: str, days: FlowView, rides: FlowView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream, or a catch-up, reports a past day whenever a row of it comes late; that makes no slice again."""
    graph = two_flows.definitions(tmp_path).get_repository_def().asset_graph
    made, failed, whole = "2024-01-01", "2024-01-02", "2024-01-03"
    lines = dg.AssetKey("ride_lines")
    monkeypatch.setattr("pipelines.state.slices.made_slices", lambda _: frozenset({made, failed, whole}))
    with dg.instance_for_test() as instance:

        def say(
            run: dg.DagsterRun, kind: DagsterEventType, data: AssetMaterializationPlannedData | Materialized
        ) -> None:
            instance.report_dagster_event(DagsterEvent(kind.value, run.job_name, event_specific_data=data), run.run_id)

        def come_late() -> None:
            for key in (KEPT, lines):
                for day in (made, failed, whole):
                    instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=day))

        def plan(*days: str) -> dg.DagsterRun:
            run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED)
            for key in (KEPT, lines):
                for day in days:
                    say(run, DagsterEventType.ASSET_MATERIALIZATION_PLANNED, AssetMaterializationPlannedData(key, day))
            return run

        def make(run: dg.DagsterRun, day: str) -> None:
            for key in (KEPT, lines):
                one = Materialized(dg.AssetMaterialization(key, partition=day))
                say(run, DagsterEventType.ASSET_MATERIALIZATION, one)

        before, run = plan(whole), plan(made, failed)
        for day in (whole, failed):
            make(before, day)
        make(run, made)
        if late == "during the run":
            come_late()
        for ended, how in ((before, DagsterEventType.RUN_SUCCESS), (run, DagsterEventType.RUN_FAILURE)):
            instance.handle_new_event(_ended(ended.run_id, ended.job_name, how))
        if late == "after it":
            come_late()

        records = SliceRecords(instance, graph, Lake(tmp_path / "lake"))
        (found,) = find_slices(records, [rides], {"rides": [made, failed, whole]}, 5)
        assert (found.slice, found.was) == (failed, "failed")
        refused = Upstream(days, graph, instance, Lake(tmp_path / "lake")).refused([made, failed, whole])
        assert set(refused) == {failed}
        assert "its last run for that slice failed" in refused[failed]


def _read_by(source: Source, lake: str) -> dg.AssetKey:
    topology = TridentTopology("reader")
    topology.new_stream("in", source).partition_persist(DeltaState("kept", kind="opaque"))
    view = FlowView.of(FlowSpec("reader", "", lambda _: topology), FlowSettings(Path("/nowhere"), lake))
    return view.key_of(view.spouts[0])


def _ended(run: str, job: str, how: DagsterEventType = DagsterEventType.RUN_SUCCESS) -> EventLogEntry:
    event = DagsterEvent(how.value, job)
    return EventLogEntry(None, "DEBUG", "", run, datetime.now(UTC).timestamp(), job_name=job, dagster_event=event)
