"""Event flows as assets: channels between source and table, their events, checks and lineage."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.observe import observe
from pyspark.sql import SparkSession

from assets.factory import assets_of, flow_assets
from assets.sources import source_asset
from assets.view import FlowView
from ops.jobs.catch_up import catch_up_job
from ops.jobs.compaction import checkpoint_compaction_job
from pipelines.catalog import DailySlices, FlowSettings, FlowSpec, QueryAsset
from pipelines.errors import DefinitionError, TrideltaError
from pipelines.flowmix import Count, Flow, Policy, Sum
from pipelines.quality import drop
from pipelines.sources import JsonFiles
from pipelines.trident import DeltaState, TridentTopology
from resources import LakeResource, NimbusResource, QualityResource, SparkResource

pytestmark = pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")

CHANNEL = dg.AssetKey(["channels", "counts__rides__rides"])
FIELDS = "line string, n bigint, at bigint"


def spec(name: str = "counts", folder: str = "rides") -> FlowSpec:
    def build(settings: FlowSettings) -> Flow:
        return (
            Flow(name, windows="channels")
            .stream("rides", JsonFiles(settings.data / folder, FIELDS), timestamp="at")
                .gate(drop("column_values_to_not_be_null", column="line"), name="known")
                .partition("line")
                .aggregate(Count("rides"), Sum("n", "total"), trigger=Policy.count(2), evict=Policy.count(2))
                .persist(f"{name}_by_line")
            .build()
        )  # fmt: skip

    return FlowSpec(name, "Rides by line.", build=build)


@pytest.fixture
def view(tmp_path: Path) -> FlowView:
    return FlowView.of(spec(), FlowSettings(tmp_path))


def test_a_channel_stands_between_source_and_table(view: FlowView) -> None:
    made = flow_assets(view)
    deps = {one.key: {dep.asset_key for dep in one.deps} for one in made.states.specs}
    source = dg.AssetKey(["sources", "rides"])
    late, table = dg.AssetKey("late_counts_rides"), dg.AssetKey("counts_by_line")
    assert deps == {late: {source}, CHANNEL: {source}, table: {CHANNEL}}
    kinds = {one.key: one.kinds for one in made.states.specs}
    assert (kinds[CHANNEL], kinds[table]) == ({"spark", "delta", "channel"}, {"spark", "delta"})
    assert [one.asset for one in view.gate_checks] == [CHANNEL]
    assert [source.key for source in made.sources] == [source]
    assert (view.states, [spout.stream for spout in view.spouts]) == (
        ("late_counts_rides", "counts_by_line"),
        ["rides"],
    )


def test_flows_over_one_folder_share_its_asset(tmp_path: Path) -> None:
    settings = FlowSettings(tmp_path)
    one, two, other = (
        flow_assets(FlowView.of(made, settings)) for made in (spec(), spec("sums"), spec("others", folder="elsewhere"))
    )
    keys = [key for asset in assets_of([one, two]) for key in getattr(asset, "keys", None) or [asset.key]]
    assert keys.count(dg.AssetKey(["sources", "rides"])) == 1
    with pytest.raises(DefinitionError, match='streams "rides" of the flows counts and others read different sources'):
        assets_of([one, other])


def test_two_things_of_one_name_are_refused_with_both_names(tmp_path: Path) -> None:
    def made(name: str, state: str, *queries: str) -> FlowView:
        def build(settings: FlowSettings) -> TridentTopology:
            topology = TridentTopology(name)
            rows = topology.new_stream(f"{name}_in", JsonFiles(settings.data / name, "n int"))
            rows.partition_persist(DeltaState(state))
            return topology

        asked = tuple(QueryAsset(query, "", reads=(state,)) for query in queries)
        return FlowView.of(FlowSpec(name, "", build, queries=asked), FlowSettings(tmp_path))

    for views, said in (
        ([("a", "kept"), ("b", "kept")], 'the state "kept" of flow b has the name of the state "kept" of flow a'),
        (
            [("check_b", "x"), ("b_states", "y")],
            "a step of the jobs of flow b_states has the name of the step of the states",
        ),
        (
            [("a", "x", "top"), ("b", "y", "top")],
            'the query asset "top" of flow b has the name of the query asset "top"',
        ),
        ([("a", "kept", "kept")], 'flow "a": the query asset "kept" has the name of a state'),
        ([("a", "x", "top", "top")], 'flow "a": the query asset "top" is there twice'),
    ):
        with pytest.raises(DefinitionError, match=re.escape(said)):
            assets_of([flow_assets(made(*view)) for view in views])
    assert assets_of([flow_assets(made("a", "a_states", "top"))])


@pytest.mark.slow
def test_a_run_materializes_channel_and_table(spark: SparkSession, view: FlowView, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "rides"
    folder.mkdir(parents=True)
    rides = [{"line": line, "n": n, "at": n * 1000} for n, line in enumerate(["a", "b", "a", None, "b"])]
    (folder / "1.json").write_text("".join(json.dumps(ride) + "\n" for ride in rides))
    defs = dg.Definitions(
        assets=assets_of([flow_assets(view)]),
        jobs=[catch_up_job([view]), checkpoint_compaction_job([view])],
        resources={
            "spark": SparkResource(),
            "lake": LakeResource(root=str(view.settings.lake)),
            "nimbus": NimbusResource(store_url=f"sqlite:///{view.settings.home}/registry.db"),
            "quality": QualityResource(),
        },
        executor=dg.in_process_executor,
    )
    with dg.instance_for_test() as instance:
        assert defs.resolve_job_def("catch_up_job").execute_in_process(instance=instance).success
        rows = {}
        for key in (CHANNEL, dg.AssetKey("counts_by_line")):
            event = instance.get_latest_materialization_event(key)
            assert event is not None
            assert event.asset_materialization is not None
            metadata = event.asset_materialization.metadata
            rows[key] = metadata["dagster/row_count"].value
            lineage = metadata["dagster/column_lineage"].value
        # Four events reached the channel; its word about the clock is none.
        assert rows == {CHANNEL: 4, dg.AssetKey("counts_by_line"): 2}
        assert isinstance(lineage, dg.TableColumnLineage)
        assert lineage.deps_by_column["total"] == [dg.TableColumnDep(CHANNEL, "n")]
        (verdict,) = instance.event_log_storage.get_asset_check_execution_history(view.gate_checks[0].key, limit=5)
        assert verdict.status.value == "FAILED"
        config = {"ops": {"compact_counts": {"config": {"retention_hours": 0.0, "channel_retention_hours": 0.0}}}}
        job = defs.resolve_job_def("checkpoint_compaction_job")
        assert job.execute_in_process(instance=instance, run_config=config).success
        (seen,) = instance.fetch_observations(CHANNEL, limit=1).records
        assert seen.asset_observation is not None
        told = seen.asset_observation.metadata
        # The last word about the clock stays: windows go by it.
        assert told["rows let go"].value == 4
        assert str(told["files before and after"].value).startswith("![files before and after](data:image/png;base64,")


def test_the_last_day_of_all_may_be_the_last_slice(view: FlowView) -> None:
    sliced = replace(view, spec=replace(view.spec, slices=DailySlices(date(2024, 1, 1), date.max)))
    assert sliced.partitions is not None
    assert sliced.partitions.has_partition_key("2024-02-29")


def test_what_cannot_be_looked_at_is_told_plainly(view: FlowView, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise TrideltaError("it does not answer", hint="start it")

    monkeypatch.setattr("assets.sources.look_at", fails)
    with pytest.raises(dg.Failure, match="it does not answer"):
        observe([source_asset(view, view.arriving[0])])
