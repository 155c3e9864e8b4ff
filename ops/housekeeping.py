"""One round of housekeeping over a deployment: its lake, its registry, its logs, and Dagster's runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.known_flows import as_deployed, deployed_flows, is_file
from pipelines.catalog import FlowSettings, found
from pipelines.errors import TrideltaError

if TYPE_CHECKING:
    import dagster as dg
    from pyspark.sql import SparkSession

    from pipelines.catalog.flow import FlowSpec
    from pipelines.maintenance import HousekeepingItem, HousekeepingReport, Retention
    from pipelines.maintenance.housekeeping import RegistryWork
    from pipelines.nimbus.registry.records import DeployedFlow
    from pipelines.state.lake import Lake
    from pipelines.trident import TridentTopology


@dataclass(frozen=True)
class Night:
    """The round of a job that has a step for each flow that Dagster could load.

    Attributes:
        spark: Gives a session for what else is compacted.
        compacted: The flows that have a step.
    """

    spark: Callable[[], SparkSession]
    compacted: Collection[str] = ()


def run_round(
    lake: Lake,
    settings: FlowSettings,
    kept: Retention,
    *,
    dry_run: bool = False,
    compacts: bool = False,
    night: Night | None = None,
) -> HousekeepingReport:
    """Clean up a deployment: its lake, its registry, its logs, and Dagster's runs where a retention says so.

    Args:
        dry_run: Change nothing; count what would go.
        compacts: Also compact the tables of every flow.
        night: With it the tables of flows are compacted at least that are deployed here or that the catalog has, and that have
            no step of their own: of those that come from a file, and those that do not load. Others in the lake are of another
            deployment, with retentions of its own, or were removed.
    """
    from pipelines.maintenance import run_housekeeping
    from pipelines.maintenance.housekeeping import Flows, flows_in
    from pipelines.nimbus.settings import nimbus_home, registry_url

    url = registry_url(settings)
    known = {spec.name: spec for spec in found()[0]}
    at_all = compacts or night is not None
    deployed = deployed_flows(url) if at_all else {}
    ours = (deployed.keys() | known.keys()).difference(night.compacted if night else ())
    named = [name for name in (flows_in(lake) if at_all else ()) if compacts or name in ours]
    built = {name: _built(known.get(name), deployed.get(name), name, settings) for name in named}
    flows, home = Flows([flow for flow, _ in built.values()], night.spark if night else None), nimbus_home(settings)
    with _registry(url) as registry:
        report = run_housekeeping(lake, registry, kept, nimbus_home=home, flows=flows, dry_run=dry_run)
    things = [*report.things, *(fault for _, fault in built.values() if fault)]
    runs = None if kept.run_days is None else _runs(settings.dagster, kept.run_days, dry_run)
    return replace(report, things=(*things, *([runs] if runs else ())))


def _built(
    spec: FlowSpec | None, deployed: DeployedFlow | None, name: str, settings: FlowSettings
) -> tuple[TridentTopology | str, HousekeepingItem | None]:
    """Return a flow to compact: its name, where it cannot be built here; and the fault, where its author can mend that."""
    from pipelines.maintenance import HousekeepingItem

    if spec is None:
        return _other(deployed, name), None
    try:
        return spec.topology(settings), None
    except Exception as error:
        # Compaction needs no more than the name; the rows of channels stay.
        why = str(error) if isinstance(error, TrideltaError) else f"{type(error).__name__}: {error}"
        return name, HousekeepingItem(f"flow {name}", "flows", 1, note=f"compacted by its name: {why}", failed=True)


def _other(deployed: DeployedFlow | None, name: str) -> TridentTopology | str:
    """Return a flow that the catalog does not have; its name, where it cannot be built here either."""
    try:
        return as_deployed(deployed) if deployed is not None and is_file(deployed) else name
    except TrideltaError:
        return name


@contextmanager
def _registry(url: str) -> Iterator[RegistryWork | None]:
    """Open the registry and yield its part of a round; None where it was never made: housekeeping makes none."""
    from pipelines.nimbus.errors import NoTablesError
    from pipelines.nimbus.settings import registry_exists

    if not registry_exists(url):
        yield None
        return
    from pipelines.nimbus.registry.pruning import remove_old_records
    from pipelines.nimbus.registry.store import Store

    try:
        store = Store(url)
    except NoTablesError:
        yield None
        return
    with closing(store):
        yield partial(remove_old_records, store)


# --- Dagster's runs -------------------------------------------------------------------------------------------------


def _runs(home: Path, days: float, dry_run: bool) -> HousekeepingItem | None:
    """Remove Dagster's runs of this deployment that ended long ago. None: it has no Dagster."""
    from pipelines.maintenance.housekeeping_report import timed

    if not (home / "dagster.yaml").exists():
        return None
    import dagster as dg

    with dg.DagsterInstance.from_config(str(home)) as instance:
        return timed(lambda: remove_runs(instance, days, dry_run=dry_run))


def remove_runs(instance: dg.DagsterInstance, days: float, *, dry_run: bool = False) -> HousekeepingItem:
    """Remove the runs that ended more than `days` ago: their records, events and logs.

    Their events of assets go with them, so an asset that no later run has made counts as never made.
    """
    import dagster as dg

    from pipelines.maintenance import HousekeepingItem
    from resources.dagster_internals import FINISHED_STATUSES

    before = instance.get_runs_count()
    oldest = time.time() - days * 86_400
    ended = instance.get_run_records(dg.RunsFilter(statuses=list(FINISHED_STATUSES)))
    old = [
        record.dagster_run.run_id
        for record in ended
        if (record.end_time or record.create_timestamp.timestamp()) < oldest
    ]
    for run in old if not dry_run else ():
        instance.compute_log_manager.delete_logs(prefix=[run])
        instance.delete_run(run)
    return HousekeepingItem("Dagster's runs", "runs", before, len(old))


def lines(report: HousekeepingReport) -> list[dict[str, Any]]:
    """Return the report as one flat row per thing."""
    names = ["what", "unit", "before", "removed", "after", "bytes", "seconds"]
    names += ["note"] if any(thing.note for thing in report.things) else []
    return [{name: getattr(thing, name) for name in names} for thing in report.things]
