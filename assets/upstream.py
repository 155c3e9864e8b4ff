"""The status of slices; those made of another flow's slices wait for them, and are refused where they are missing or failed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.view import FlowView
from pipelines.execution.report import SliceReport
from resources.dagster_internals import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    FINISHED_STATUSES,
    NOT_FINISHED_STATUSES,
    AssetChecksDefinition,
    AssetGraph,
    BaseAssetGraph,
    get_and_update_asset_status_cache_value,
)

if TYPE_CHECKING:
    from pipelines import Lake

# Statuses of runs that are on: they end by themselves, so one may wait for them. A queued one may wait for us.
RUNNING = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
# Verdicts of a check that are looked through for those on the slices: of a year of days, made three times.
VERDICTS = 1000
# Events of Dagster that one query reads: it gives no more.
RECORDS = 1000


@dataclass(frozen=True)
class Said:
    """The last verdict on a check: whether one may go on, and when it was said. A warning does not stop anybody."""

    passed: bool
    at: datetime


@dataclass(frozen=True)
class Partitions:
    """The partitions of an asset in Dagster. `failed` and `running` are those whose latest run failed, or is not over."""

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
    """Return when the run ended that was last to make each of these partitions and did not.

    Dagster's own status forgets the failure with the next materialization, also with that of a late row from a stream or a
    catch-up, which makes no slice again. So what counts is what that run itself has materialized.
    """
    tried = _last_tried(instance, key, slices)
    ends = _failed_runs(instance, {run for run, _ in tried.values()})
    tried = {slice_: attempt for slice_, attempt in tried.items() if attempt[0] in ends}
    made = _made_by(instance, key, tried)
    return {slice_: ends[run] for slice_, (run, _) in tried.items() if slice_ not in made}


Attempt = tuple[str, int]
"""The run that was to make a partition, and the place of its plan in Dagster's event log."""


def _last_tried(instance: dg.DagsterInstance, key: dg.AssetKey, slices: Collection[str]) -> dict[str, Attempt]:
    storage, planned = instance.event_log_storage, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    last = storage.get_latest_storage_id_by_partition(key, planned, set(slices)) if slices else {}
    if not last:
        return {}
    wanted = dg.EventRecordsFilter(planned, asset_key=key, storage_ids=list(last.values()))
    runs = {record.storage_id: record.run_id for record in storage.get_event_records(wanted)}
    return {slice_: (runs[place], place) for slice_, place in last.items() if place in runs}


def _failed_runs(instance: dg.DagsterInstance, runs: Collection[str]) -> dict[str, datetime]:
    """Return those that are over and have failed or were cancelled, with when; one that succeeded has made all its slices."""
    if not runs:
        return {}
    over = [status for status in FINISHED_STATUSES if status is not dg.DagsterRunStatus.SUCCESS]
    records = instance.get_run_records(dg.RunsFilter(run_ids=list(runs), statuses=over))
    return {
        record.dagster_run.run_id: datetime.fromtimestamp(record.end_time or record.create_timestamp.timestamp(), UTC)
        for record in records
    }


def _made_by(instance: dg.DagsterInstance, key: dg.AssetKey, tried: Mapping[str, Attempt]) -> set[str]:
    """Return the partitions that their runs have materialized, whatever came after it."""
    if not tried:
        return set()
    storage, materialized = instance.event_log_storage, dg.DagsterEventType.ASSET_MATERIALIZATION
    last = storage.get_latest_storage_id_by_partition(key, materialized, set(tried))
    later = [slice_ for slice_, (_, planned) in tried.items() if last.get(slice_, 0) > planned]
    since = min((tried[slice_][1] for slice_ in later), default=0)
    wanted = dg.AssetRecordsFilter(key, asset_partitions=later, after_storage_id=since)
    made: set[str] = set()
    cursor, more = None, bool(later)
    while more:
        found = instance.fetch_materializations(wanted, limit=RECORDS, cursor=cursor)
        made |= {str(one.partition_key) for one in found.records if one.run_id == tried[str(one.partition_key)][0]}
        cursor, more = found.cursor, found.has_more
    return made


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


# A look at the runs that are on costs some ten milliseconds; a slice takes seconds.
LOOK_EVERY_SECONDS = 2.0


class Upstream:
    """The slices of other flows that a flow's slices are made of.

    Args:
        view: the flow that reads them.
        graph: all assets and checks of the code location.
        instance: Dagster's, which knows what became of them.
    """

    def __init__(self, view: FlowView, graph: BaseAssetGraph[Any], instance: dg.DagsterInstance, lake: Lake) -> None:
        self._view, self._graph, self._instance, self._lake = view, graph, instance, lake
        self._read = {key: flow for key in view.upstream if (flow := self._partitions(key)) is not None}

    def _partitions(self, key: dg.AssetKey) -> dg.TimeWindowPartitionsDefinition | None:
        partitions = self._graph.get(key).partitions_def if self._graph.has(key) else None
        return partitions if isinstance(partitions, dg.TimeWindowPartitionsDefinition) else None

    # --- waiting ----------------------------------------------------------------------------------------------------

    def ahead(
        self, slices: Sequence[str], besides: str = "", statuses: Sequence[dg.DagsterRunStatus] = RUNNING
    ) -> dict[str, str]:
        """Slice by slice a run that makes it in a table that is read, or checks it now.

        Args:
            besides: A run that does not count: one's own, whose steps Dagster has put in order.
            statuses: the statuses of the runs that count.
        """
        runs: dict[str, str] = {}
        for key in self._read:
            runs |= runs_over(self._instance, key, slices, statuses)
        return {slice_: run for slice_, run in runs.items() if run != besides}

    def wait(self, slices: Sequence[str], context: dg.AssetExecutionContext) -> None:
        """Wait until no run is on that makes these slices there, or still checks them."""
        logged = False
        while ahead := self.ahead(slices, besides=context.run.run_id):
            if not logged:
                runs = ", ".join(sorted({run[:8] for run in ahead.values()}))
                context.log.info(f"waiting for run {runs}: it makes and checks {len(ahead)} of the slices to be read")
                logged = True
            time.sleep(LOOK_EVERY_SECONDS)

    # --- refusing ---------------------------------------------------------------------------------------------------

    def refused(self, slices: Sequence[str]) -> dict[str, str]:
        """Return the slices that cannot be made, and why: a slice read is missing, has failed, or its table fails a check."""
        reasons: dict[str, list[str]] = {}
        for key in self._read:
            unmade, unsound = self._unmade(key, slices), self._unsound(key, slices)
            for slice_ in {**unmade, **unsound}:
                seen = ", ".join(words[slice_] for words in (unmade, unsound) if slice_ in words)
                reasons.setdefault(slice_, []).append(self._said(key, slice_, seen))
        return {slice_: "; ".join(said) for slice_, said in reasons.items()}

    def reports(self, slices: Sequence[str]) -> tuple[SliceReport, ...]:
        """Return the same as reports of failed slices."""
        name = self._view.name
        return tuple(
            SliceReport(flow=name, slice=slice_, received=0, quarantined=0, commits=(), seconds=0.0, error=why)
            for slice_, why in sorted(self.refused(slices).items())
        )

    def _unmade(self, key: dg.AssetKey, slices: Sequence[str]) -> dict[str, str]:
        """Return slices that failed since their last commit, and those that neither Dagster nor the lake knows."""
        from pipelines.state.slices import made_slices, slice_times

        table = self._view.upstream_table(self._lake, key)
        made, at = made_slices(table) or frozenset(), slice_times(table)
        failed = failed_at(self._instance, key, slices)
        missing = {slice_name: "that slice is not there" for slice_name in slices if slice_name not in made}
        # One that was made since by the command line is whole, though Dagster has not heard of it.
        late = {
            slice_name: ended for slice_name, ended in failed.items() if slice_name not in at or at[slice_name] <= ended
        }
        return missing | {
            slice_name: f"its last run for that slice failed ({ended:%Y-%m-%d %H:%M} UTC)"
            for slice_name, ended in late.items()
        }

    def _unsound(self, key: dg.AssetKey, slices: Sequence[str]) -> dict[str, str]:
        """Return slices that fail a blocking check: their own verdict where there is one, else the whole table's.

        A gate's check is about what came to it: it counts for the slice that it judged, until that is committed.
        """
        from pipelines.state.slices import slice_times

        reasons: dict[str, str] = {}
        graph = self._graph
        if not isinstance(graph, AssetGraph):
            return reasons
        blocking = [check for check in graph.get_check_keys_for_assets({key}) if graph.get_check_spec(check).blocking]
        at = slice_times(self._view.upstream_table(self._lake, key)) if blocking else {}
        for check in blocking:
            verdicts = verdicts_on(self._instance, check)
            of_gate = not isinstance(graph.assets_def_for_key(check), AssetChecksDefinition)
            for slice_ in slices:
                said = verdicts.get(slice_, None if of_gate else verdicts.get(None))
                if said is None or said.passed:
                    continue
                if not of_gate or slice_ not in at or at[slice_] <= said.at:
                    reasons[slice_] = f'its check "{check.name}" fails'
        return reasons

    def _said(self, key: dg.AssetKey, slice_: str, seen: str) -> str:
        from pipelines.execution.runners.bounded_inputs import UpstreamSliceError

        table = self._view.upstream_table(self._lake, key)
        writer = table.declared.flow if table.is_state() else self._graph.get(key).group_name
        return str(UpstreamSliceError(self._view.name, slice_, table.name, writer, seen))
