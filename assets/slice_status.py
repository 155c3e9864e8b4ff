"""The status of a table's slices, from Dagster's events and the lake's commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from resources.dagster_internals import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    FINISHED_STATUSES,
    NOT_FINISHED_STATUSES,
    get_and_update_asset_status_cache_value,
)

# Statuses of runs that are on: they end by themselves, so one may wait for them. A queued one may wait for us.
RUNNING = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
# Verdicts of a check that are looked through for those on the slices: of a year of days, made three times.
VERDICTS = 1000


@dataclass(frozen=True)
class Said:
    """The last verdict on a check: whether one may go on, and when it was said. A warning does not stop anybody."""

    passed: bool
    at: datetime


@dataclass(frozen=True)
class Partitions:
    """What Dagster says of an asset's partitions. `failed` and `running` are those whose latest run failed, or is not over."""

    materialized: frozenset[str]
    failed: frozenset[str]
    running: frozenset[str]


def partitions_of(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: dg.TimeWindowPartitionsDefinition
) -> Partitions:
    """Read the status of an asset's partitions, as the UI's partitions page shows it.

    The function is not a public one of Dagster's, which is held below 1.14; tests/assets/test_backfill_over_flows.py uses it.
    """
    status = get_and_update_asset_status_cache_value(instance, key, partitions)
    if status is None:
        return Partitions(frozenset(), frozenset(), frozenset())
    return Partitions(
        frozenset(status.deserialize_materialized_partition_subsets(partitions).get_partition_keys()),
        frozenset(status.deserialize_failed_partition_subsets(partitions).get_partition_keys()),
        frozenset(status.deserialize_in_progress_partition_subsets(partitions).get_partition_keys()),
    )


def failed_at(instance: dg.DagsterInstance, key: dg.AssetKey, slices: Collection[str]) -> dict[str, datetime]:
    """Return when the run ended that was to make each of these partitions and did not."""
    tried = instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations(key)
    runs = {slice_: run for slice_, (run, _) in tried.items() if slice_ in slices}
    ends = {}
    for run in set(runs.values()):
        record = instance.get_run_record_by_id(run)
        if record is not None and record.dagster_run.status in FINISHED_STATUSES:
            ends[run] = datetime.fromtimestamp(record.end_time or record.create_timestamp.timestamp(), UTC)
    return {slice_: ends[run] for slice_, run in runs.items() if run in ends}


def runs_over(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    slices: Collection[str],
    statuses: Iterable[dg.DagsterRunStatus] = tuple(NOT_FINISHED_STATUSES),
) -> dict[str, str]:
    """Slice by slice the run that is to make it and is not over, though it may have made it already."""
    runs = {}
    for run in instance.get_runs(dg.RunsFilter(statuses=list(statuses))):
        planned = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
        for entry in planned:
            event = entry.dagster_event
            if event is not None and event.asset_key == key and event.partition in slices:
                runs[str(event.partition)] = run.run_id
    return runs


def verdicts_on(instance: dg.DagsterInstance, check: dg.AssetCheckKey) -> dict[str | None, Said]:
    """Return the last verdicts on a check: by slice where it was judged slice by slice, else under None."""
    verdicts: dict[str | None, Said] = {}
    for record in instance.event_log_storage.get_asset_check_execution_history(
        check, limit=VERDICTS, status=set(COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES)
    ):
        said, event = record.evaluation, record.event
        passed = said is None or said.passed or said.severity != dg.AssetCheckSeverity.ERROR
        # The record is as old as the run's plan; its event is the verdict.
        at = record.create_timestamp if event is None else event.timestamp
        verdicts.setdefault(record.partition, Said(passed, datetime.fromtimestamp(at, UTC)))
    return verdicts
