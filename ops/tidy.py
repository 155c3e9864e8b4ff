"""`tridelta tidy`, and the same as an op: one round of housekeeping over everything that grows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli import rendering
from ops.cli.parts import AsJson, emit, plainly
from pipelines.catalog import FlowSettings, flows

if TYPE_CHECKING:
    import dagster as dg

    from pipelines.maintenance import HousekeepingReport, Retention, Tidied
    from pipelines.nimbus.registry.store import Store
    from pipelines.state.lake import Lake

app = typer.Typer()


@app.command()
@plainly
def tidy(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; count what would go.")] = False,
    compact: Annotated[
        bool, typer.Option(help="Compact the tables of all flows too; large ones want `tridelta compact FLOW`.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Remove what nobody needs any more: old rows of quarantine, copies, logs, records. Needs no Spark.

    How long things stay is said by TRIDELTA_KEEP_QUARANTINE_DAYS, ..._COPIES_DAYS and so on: see docs/maintenance.md.
    """
    from pipelines import Lake
    from pipelines.maintenance import Retention

    settings = FlowSettings.from_environment()
    lake = Lake(settings.lake)
    with rendering.waiting("tidying", as_json):
        report = tidied(lake, settings, Retention.from_environment(), dry_run=dry_run, compacts=compact)
    if as_json:
        emit(report.to_json())
    else:
        show(report)


def tidied(
    lake: Lake, settings: FlowSettings, kept: Retention, *, dry_run: bool = False, compacts: bool = False
) -> HousekeepingReport:
    """One round over a deployment: its lake, its registry, its logs, and Dagster's runs where a retention says so.

    Args:
        compacts: also compact the tables of every flow, without Spark.

    Raises:
        TrideltaError: the registry cannot be opened.
    """
    from pipelines.maintenance import tidy as tidy_all
    from pipelines.maintenance.housekeeping import flows_in

    known = {spec.name: spec for spec in flows()}
    named = flows_in(lake) if compacts else []
    with _store(settings) as store:
        report = tidy_all(
            lake,
            store,
            kept,
            nimbus_home=settings.home / "nimbus",
            flows=[known[name].topology(settings) if name in known else name for name in named],
            dry_run=dry_run,
        )
    if kept.run_days is None:
        return report
    runs = _runs(settings.dagster, kept.run_days, dry_run)
    return replace(report, things=(*report.things, *([runs] if runs else ())))


@contextmanager
def _store(settings: FlowSettings) -> Iterator[Store | None]:
    """The registry; None where none was ever made: housekeeping makes none."""
    from pipelines.nimbus.settings import registry_exists

    url = os.environ.get("TRIDELTA_REGISTRY") or f"sqlite:///{settings.home / 'nimbus' / 'registry.db'}"
    if not registry_exists(url):
        yield None
        return
    from pipelines.nimbus.registry.store import Store

    store = Store(url)
    try:
        yield store
    finally:
        store.close()


# --- Dagster's runs -------------------------------------------------------------------------------------------------


def _runs(home: Path, days: float, dry_run: bool) -> Tidied | None:
    """Remove Dagster's runs of this deployment that ended long ago. None: it has no Dagster."""
    from pipelines.maintenance.housekeeping_report import timed

    if not (home / "dagster.yaml").exists():
        return None
    import dagster as dg

    with dg.DagsterInstance.from_config(str(home)) as instance:
        return timed(lambda: remove_runs(instance, days, dry_run=dry_run))


def remove_runs(instance: dg.DagsterInstance, days: float, *, dry_run: bool = False) -> Tidied:
    """Remove the runs that ended more than `days` ago: their records, events and logs.

    What they have told of assets goes with them, so an asset that no later run has made counts as never made.
    """
    import dagster as dg

    from pipelines.maintenance import Tidied
    from resources.dagster_internals import FINISHED_STATUSES

    before = instance.get_runs_count()
    oldest = time.time() - days * 86_400
    ended = instance.get_run_records(dg.RunsFilter(statuses=list(FINISHED_STATUSES)))
    old = [one.dagster_run.run_id for one in ended if (one.end_time or one.create_timestamp.timestamp()) < oldest]
    for run in old if not dry_run else ():
        instance.compute_log_manager.delete_logs(prefix=[run])
        instance.delete_run(run)
    return Tidied("Dagster's runs", "runs", before, len(old))


# --- what the screen shows ------------------------------------------------------------------------------------------


def show(report: HousekeepingReport) -> None:
    """A line a thing that grows."""
    rendering.rows("what would go" if report.dry_run else "tidied", lines(report))
    verb = "would go" if report.dry_run else "removed"
    rendering.say(f"{report.removed:,} {verb}, {report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s")


def lines(report: HousekeepingReport) -> list[dict[str, Any]]:
    """The report as a flat row a thing."""
    notes = any(one.note for one in report.things)
    return [
        {
            "what": one.what,
            "unit": one.unit,
            "before": one.before,
            "removed": one.removed,
            "after": one.after,
            "bytes": one.bytes,
            "seconds": one.seconds,
            **({"note": one.note} if notes else {}),
        }
        for one in report.things
    ]
