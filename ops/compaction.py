"""checkpoint_compaction_job: fold closed generations, join small files, drop what no reader needs any more."""

from collections.abc import Sequence

import dagster as dg

from assets.failures import told_plainly
from assets.view import FlowView, table_key
from ops.rendering import flat_tables
from resources import LakeResource, SparkResource, markdown

MAX_RUNTIME_SECONDS = 3 * 3600


class CompactionConfig(dg.Config):
    """How to compact."""

    retention_hours: float = 168.0
    """How far back a state can be read afterwards (by txid, version or time)."""
    channel_retention_hours: float | None = None
    """How long a channel keeps rows that all its readers have taken; none: as long as states stay readable."""


def compaction_op(view: FlowView) -> dg.OpDefinition:
    """Compacts a flow's tables; the report of before and after is the op's metadata."""

    @dg.op(
        name=f"compact_{view.name}",
        description=f"Compact the states and the checkpoint of {view.name}.",
        out=dg.Out(dg.Nothing),
        tags={"flow": view.name},
        pool=view.pool,
    )
    def compact(
        context: dg.OpExecutionContext, config: CompactionConfig, spark: SparkResource, lake: LakeResource
    ) -> None:
        from pipelines.maintenance import compact as compact_tables

        with told_plainly():
            report = compact_tables(
                spark.session(),
                lake.lake(),
                view.topology,
                retention_hours=config.retention_hours,
                channel_retention_hours=config.channel_retention_hours,
            )
        rows = flat_tables(report)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        context.add_output_metadata({"tables": dg.MetadataValue.md(markdown.table(columns, rows))})
        for row in rows:
            if row.get("state") in view.writers:
                numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
                context.log_event(dg.AssetObservation(table_key(view.writers[row["state"]]), metadata=numbers))

    return compact


def checkpoint_compaction_job(views: Sequence[FlowView]) -> dg.JobDefinition:
    """One job for all flows; each holds its own pool, so that none is compacted while a run of it writes."""

    @dg.job(
        name="checkpoint_compaction_job",
        description="Fold closed generations, join small files, vacuum, write Delta checkpoints; before and after.",
        tags={"dagster/max_runtime": str(MAX_RUNTIME_SECONDS)},
    )
    def job() -> None:
        for view in views:
            compaction_op(view)()

    return job
