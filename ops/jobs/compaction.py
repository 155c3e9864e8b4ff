"""checkpoint_compaction_job: fold closed generations, join small files, drop what no reader needs any more."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg

from assets.events import markdown, plots
from assets.events.reporting import plain_failures
from assets.events.table_plots import before_and_after
from assets.view import FlowView, table_key
from ops import housekeeping as housekeeping_round
from ops.cli.rendering import flat_tables
from ops.jobs.forms import flow_step
from pipelines.catalog import FlowSettings
from resources import LakeResource, SparkResource

MAX_RUNTIME_SECONDS = 3 * 3600
FILES = "files before and after"
COMPACTIONS = 20
"""How many compactions of a table its plot shows."""


class CompactionConfig(dg.Config):
    """The settings of a compaction. Empty: as TRIDELTA_KEEP_<NAME> says, else the default of docs/maintenance.md."""

    retention_hours: float | None = None
    """How far back a state can be read afterwards (by txid, version or time)."""
    channel_retention_hours: float | None = None
    """How long a channel keeps rows that all its readers have taken."""


def compaction_op(view: FlowView) -> dg.OpDefinition:
    """Make the op that compacts a flow's tables; its metadata reports before and after."""

    @flow_step(view, "compact", f"Compact the states and the checkpoint of {view.name}.", alone=True)
    def compact(
        context: dg.OpExecutionContext, config: CompactionConfig, spark: SparkResource, lake: LakeResource
    ) -> None:
        from pipelines.maintenance import compaction

        with plain_failures():
            keep = compaction.kept_here(config.retention_hours, config.channel_retention_hours)
            report = compaction.compact(spark.session(), lake.lake(), view.topology, keep)
        rows = flat_tables(report)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        pairs = [(row["files before"], row["files after"]) for row in rows]
        names = [f"{row['state']:.18}" for row in rows]
        files = before_and_after(pairs, "files", *dict.fromkeys(names[:1] + names[-1:]))
        context.add_output_metadata(
            {"tables": dg.MetadataValue.md(markdown.table(columns, rows)), **plots.entries({FILES: files})}
        )
        for row in rows:
            if row["state"] in view.writers:
                context.log_event(_observed(context.instance, table_key(view.writers[row["state"]]), row))

    return compact


def _observed(instance: dg.DagsterInstance, key: dg.AssetKey, row: Mapping[str, Any]) -> dg.AssetObservation:
    """Report what a compaction did to a table, beside the earlier compactions."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    earlier = [record.asset_observation for record in instance.fetch_observations(key, limit=COMPACTIONS - 1).records]
    compactions = [
        record.metadata for record in reversed(earlier) if record is not None and "files before" in record.metadata
    ]
    pairs = [
        (float(str(record["files before"].value)), float(str(record["files after"].value))) for record in compactions
    ]
    pairs.append((row["files before"], row["files after"]))
    first = f"{len(pairs)} compactions" if len(pairs) > 1 else ""
    return dg.AssetObservation(
        key, metadata={**numbers, **plots.entries({FILES: before_and_after(pairs, "files", first, "now")})}
    )


class HousekeepingConfig(dg.Config):
    """The ages up to which things stay. Empty: as TRIDELTA_KEEP_<NAME> says, else the default of docs/maintenance.md."""

    quarantine_days: float | None = None
    """Rejected rows."""
    copies_days: float | None = None
    """The newest copy of a checkpoint that a repartition made; older ones are removed at once."""
    replaced_days: float | None = None
    """Checkpoints that a changed flow has left behind."""
    flow_days: float | None = None
    """Removed flows and silent supervisors in the registry."""
    log_days: float | None = None
    """Logs of workers and supervisors."""
    log_megabytes: float | None = None
    """All these logs together."""
    run_days: float | None = None
    """Dagster's runs that have ended, with their events of assets. Empty: they stay."""
    dry_run: bool = False
    """Change nothing; count what would be removed."""


def housekeeping_op(settings: FlowSettings, compacted: Collection[str] = ()) -> dg.OpDefinition:
    """Make the op that tidies all that grows beside the tables of flows; its metadata has one line per thing.

    Args:
        compacted: The flows whose tables have a step of their own.
    """

    @dg.op(
        name="housekeeping",
        description="Remove what is old: rows of quarantine, copies of checkpoints, records of the registry, logs.",
        out=dg.Out(dg.Nothing),
    )
    def housekeeping(
        context: dg.OpExecutionContext, config: HousekeepingConfig, spark: SparkResource, lake: LakeResource
    ) -> None:
        from pipelines.maintenance import Retention

        chosen = {name: value for name, value in config.model_dump().items() if value is not None}
        dry_run = chosen.pop("dry_run")
        with plain_failures():
            kept = Retention.from_environment(**chosen)
            night = housekeeping_round.Night(spark.session, compacted)
            report = housekeeping_round.run_round(lake.lake(), settings, kept, dry_run=dry_run, night=night)
        rows = housekeeping_round.lines(report)
        for note in report.notes:
            (context.log.error if note in report.failures else context.log.warning)(note)
        told: dict[str, Any] = {
            "housekeeping": dg.MetadataValue.md(markdown.table(list(rows[0]), rows)),
            "removed": report.removed,
            "bytes": report.bytes,
            "dry_run": report.dry_run,
        }
        if report.failures:
            # What was busy is left for the next round; these are there then, too, so the run is not green.
            raise dg.Failure("\n".join(report.failures), metadata=told, allow_retries=False)
        context.add_output_metadata(told)

    return housekeeping


def checkpoint_compaction_job(
    views: Sequence[FlowView], name: str = "checkpoint_compaction_job", *, tidies: bool = True
) -> dg.JobDefinition:
    """Make one job for all flows; each op holds its flow's pool, so no flow is compacted while a run of it writes.

    Housekeeping (`tidies`) needs no pool: it takes the locks of a flow itself, and waits only briefly for each.
    """

    @dg.job(
        name=name,
        description="Fold closed generations, join small files, vacuum, write Delta checkpoints; then housekeeping.",
        tags={"dagster/max_runtime": str(MAX_RUNTIME_SECONDS)},
    )
    def job() -> None:
        for view in views:
            compaction_op(view)()
        if views and tidies:
            housekeeping_op(views[0].settings, [view.name for view in views])()

    return job
