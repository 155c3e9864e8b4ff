"""Slices through Dagster: each reported by itself, the one that fails alone not materialized."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from pyspark.sql import SparkSession

from assets.view import FlowView
from pipelines import Lake
from pipelines.catalog import FlowSettings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")]

Lay = Callable[[str, list[tuple[str | None, int]]], None]
DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as one:
        yield one


def run(defs: dg.Definitions, instance: dg.DagsterInstance, first: str, last: str) -> dg.ExecuteInProcessResult:
    """One run over a range of days, as a backfill makes it."""
    return defs.resolve_job_def("trips_slices_job").execute_in_process(
        instance=instance,
        tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
        raise_on_error=False,
    )


def materializations(instance: dg.DagsterInstance, asset: str) -> list[dg.AssetMaterialization]:
    records = instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
    return [one.asset_materialization for one in reversed(records) if one.asset_materialization]


def failed_partitions(view: FlowView, instance: dg.DagsterInstance, asset: str) -> set[str]:
    assert view.partitions is not None
    context = LoadingContextForTest(instance)
    status = get_and_update_asset_status_cache_value(
        instance, dg.AssetKey(asset), view.partitions, loading_context=context
    )
    assert status is not None
    return set(status.deserialize_failed_partition_subsets(view.partitions).get_partition_keys())


def verdicts(
    instance: dg.DagsterInstance, asset: str, name: str, slice_: str | None = None
) -> list[tuple[bool, Mapping[str, Any]]]:
    """The verdicts on a check, of a slice or of runs as a whole, the last first: whether it holds, and what it shows."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), name)
    found = instance.event_log_storage.get_asset_check_execution_history(
        key, limit=20, partition_filter=PartitionKeyFilter(key=slice_)
    )
    # Dagster plans a check once a partition of the run.
    told = [one.evaluation for one in found if one.status.value != "PLANNED"]
    return [(one.passed, one.metadata) for one in told if one is not None]


def checks(instance: dg.DagsterInstance, asset: str, name: str, slice_: str | None = None) -> list[bool]:
    return [passed for passed, _ in verdicts(instance, asset, name, slice_)]


def told(instance: dg.DagsterInstance, asset: str, name: str, slice_: str | None = None) -> Mapping[str, Any]:
    """What the last verdict on a check shows."""
    return verdicts(instance, asset, name, slice_)[0][1]


def partitions(view: FlowView, instance: dg.DagsterInstance, asset: str, name: str) -> dict[str, set[str]]:
    """The slices of a check by status, as its page and `partitionStatuses` of Dagster's GraphQL have them."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), name)
    state = instance.event_log_storage.get_asset_check_state([(key, view.partitions)])[key]
    by_status = {status.value: set(one.subset_value.get_partition_keys()) for status, one in state.subsets.items()}
    return {status: slices for status, slices in by_status.items() if slices}


def test_a_range_is_one_run_and_every_slice_is_reported_once(
    spark: SparkSession,
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    lay: Lay,
    view: FlowView,
    settings: FlowSettings,
) -> None:
    for n, day in enumerate(DAYS, start=1):
        lay(day, [("a", n), ("b", 10 * n)])
    result = run(defs, instance, DAYS[0], DAYS[-1])

    assert result.success
    for asset in ("rides", "lines"):
        found = materializations(instance, asset)
        assert [one.partition for one in found] == DAYS
        assert [one.metadata["dagster/row_count"].value for one in found] == [2, 2, 2]
        assert len({one.metadata["delta_version"].value for one in found}) == 3
    assert Lake(settings.lake).state("lines").get([{"line": "a"}]) == [
        {"line": "a", "trips": 3, "n_sum": 6, "n_avg": 2.0}
    ]
    # What comes after the states ran in the same run.
    (answer,) = materializations(instance, "line_answers")
    assert "| b | 3 | 60 |" in str(answer.metadata["answer"].value)
    assert checks(instance, "rides", "plausible__fits") == [True]
    assert [told(instance, "rides", "plausible__fits", day)["rows"].value for day in DAYS] == [2, 2, 2]
    assert partitions(view, instance, "rides", "plausible__not_empty") == {"SUCCEEDED": set(DAYS)}
    assert checks(instance, "lines", "suite__values_to_be_unique_line") == [True]
    assert checks(instance, "lines", "suite__values_to_be_between_trips") == [False]
    shown = told(instance, "lines", "suite__values_to_be_between_trips")
    assert [row.data["reason"] for row in shown["failed_rows"].records] == [
        "trips is 3; expected values to be between (max_value=2)"
    ] * 2
    page = Path(str(shown["page"].value))
    assert page.parent == settings.home / "checks" / "lines"
    assert "trips is 3; expected values to be between" in page.read_text("utf-8")


def test_metadata_of_a_slice(
    spark: SparkSession, defs: dg.Definitions, instance: dg.DagsterInstance, lay: Lay, view: FlowView
) -> None:
    lay(DAYS[0], [("a", 1)])
    assert run(defs, instance, DAYS[0], DAYS[0]).success

    (found,) = materializations(instance, "lines")
    schema = found.metadata["dagster/column_schema"].value
    assert isinstance(schema, dg.TableSchema)
    assert [(c.name, c.type) for c in schema.columns][:2] == [("line", "string"), ("trips", "int64")]
    lineage = found.metadata["dagster/column_lineage"].value
    assert isinstance(lineage, dg.TableColumnLineage)
    assert lineage.deps_by_column["n_sum"] == [dg.TableColumnDep(dg.AssetKey(["sources", "trips"]), "n")]
    assert lineage.deps_by_column["trips"] == []
    assert "| n_avg | trips.n |" in str(found.metadata["lineage"].value)
    # The plan is the page's, not each event's.
    assert "plan" not in found.metadata
    assert str(view.table_metadata("lines")["plan"].value).startswith("![plan](data:image/svg+xml;base64,")
    assert found.metadata["dagster/table_name"].value == "lake.lines"
    assert found.metadata["seconds"].value is not None
    assert found.tags is not None
    assert found.tags["dagster/data_version"].startswith("delta-")


def test_the_slice_that_fails_is_the_only_one_not_materialized(
    spark: SparkSession,
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    lay: Lay,
    view: FlowView,
    settings: FlowSettings,
) -> None:
    lay(DAYS[0], [("a", 1)])
    lay(DAYS[1], [("a", 2), ("b", 5000)])
    lay(DAYS[2], [("a", 3), ("b", 0), ("c", 0)])
    result = run(defs, instance, DAYS[0], DAYS[-1])

    assert not result.success
    for asset in ("rides", "lines"):
        assert [one.partition for one in materializations(instance, asset)] == [DAYS[0], DAYS[2]]
        assert failed_partitions(view, instance, asset) == {DAYS[1]}
    failure = result.failure_data_for_node("trips_states")
    assert failure is not None
    assert failure.user_failure_data is not None
    said = failure.user_failure_data.description
    assert said is not None
    assert said.startswith('flow "trips": 1 of 3 slices failed; the others are committed\n  2024-01-02: ')
    assert "tridelta backfill trips --from 2024-01-02 --to 2024-01-02" in said
    assert materializations(instance, "top_line") == []

    # Of each day its own verdict, and one of the whole run.
    assert [checks(instance, "rides", "plausible__fits", day) for day in [None, *DAYS]] == [
        [False], [True], [False], [True]
    ]  # fmt: skip
    assert partitions(view, instance, "rides", "plausible__fits") == {
        "SUCCEEDED": {DAYS[0], DAYS[2]},
        "FAILED": {DAYS[1]},
    }
    refused = told(instance, "rides", "plausible__fits", DAYS[1])
    assert (refused["rows"].value, refused["unexpected"].value) == (2, 1)
    (row,) = refused["failed_rows"].records
    assert row.data == {
        "reason": "n is 5000; expected values to be between (max_value=1000)",
        "slice": DAYS[1], "day": DAYS[1], "line": "b", "n": 5000,
    }  # fmt: skip
    # What was only warned of shows its rows as well.
    assert partitions(view, instance, "rides", "plausible__not_empty")["FAILED"] == {DAYS[2]}
    warned = told(instance, "rides", "plausible__not_empty", DAYS[2])
    assert sorted(row.data["line"] for row in warned["failed_rows"].records) == ["b", "c"]
    assert "replay" not in warned
    page = Path(str(told(instance, "rides", "plausible__not_empty")["page"].value)).read_text("utf-8")
    assert "n is 0; expected values to be between (min_value=1)" in page
    assert Lake(settings.lake).state("lines").get([{"line": "a"}])[0]["n_sum"] == 4

    # Corrected, that day alone is made again: the run of one day has one verdict, the day's.
    lay(DAYS[1], [("a", 2), ("b", 50)])
    job = defs.resolve_job_def("trips_slices_job")
    assert job.execute_in_process(instance=instance, partition_key=DAYS[1]).success
    assert failed_partitions(view, instance, "lines") == set()
    assert checks(instance, "rides", "plausible__fits", DAYS[1]) == [True, False]
    assert checks(instance, "rides", "plausible__fits") == [False]
    assert partitions(view, instance, "rides", "plausible__fits") == {"SUCCEEDED": set(DAYS)}
    assert Lake(settings.lake).state("lines").get([{"line": "a"}])[0]["n_sum"] == 6


def test_dropped_rows_make_a_warning_and_do_not_block(
    spark: SparkSession, defs: dg.Definitions, instance: dg.DagsterInstance, lay: Lay
) -> None:
    lay(DAYS[0], [("a", 1), (None, 2)])
    assert run(defs, instance, DAYS[0], DAYS[0]).success
    assert checks(instance, "rides", "plausible__line_is_there") == [False]
    assert len(materializations(instance, "top_line")) == 1


def test_no_folder_is_a_failure_in_one_sentence(
    spark: SparkSession, defs: dg.Definitions, instance: dg.DagsterInstance, settings: FlowSettings
) -> None:
    result = run(defs, instance, DAYS[0], DAYS[0])
    failure = result.failure_data_for_node("trips_states")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert str(settings.data / "trips") in str(failure.user_failure_data.description)
