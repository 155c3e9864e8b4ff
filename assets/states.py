"""The tables of a flow, states and channels: one multi-asset, made slice by slice."""

import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

from assets.failures import told_plainly
from assets.reporting import Reporter
from assets.view import FlowView, table_key
from pipelines.execution.report import SliceReport
from pipelines.graph import nodes
from resources import LakeResource, SparkResource

# Dagster gives one materialization to every partition of a run, all alike, when an asset's output is there. Ours are
# reported when each slice is committed, with facts of their own, and the slice that failed must have none. An output
# that carries this key makes no event and lets what comes after it run. It is not a public name of Dagster's, which is
# held below 1.14 for that; tests/assets/test_backfill.py counts the events.
ALREADY_REPORTED = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}


# Every flow has something to read each day; a day and a half without is worth a look even after a night's backfill.
FRESH = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=36), warn_window=timedelta(hours=25))


def state_assets(view: FlowView) -> dg.AssetsDefinition:
    """The tables that a flow writes. A batch or slice is committed to all of them, so they are made together."""

    @dg.multi_asset(
        name=f"{view.name}_states",
        specs=[_spec(view, name) for name in view.writers],
        check_specs=[
            dg.AssetCheckSpec(
                one.name,
                asset=one.key.asset_key,
                description=f"Gate {one.gate}, {one.check.action}: {one.check.expectation}",
                blocking=one.check.action == "fail",
            )
            for one in view.gate_checks
        ],
        backfill_policy=dg.BackfillPolicy.single_run() if view.partitions else None,
        op_tags={"flow": view.name},
        pool=view.pool,
    )
    def states(context: dg.AssetExecutionContext, spark: SparkResource, lake: LakeResource) -> Iterator[Any]:
        with Reporter(context, view, lake.lake()) as reporter, told_plainly(reporter):
            runtime = lake.runtime(spark, context.log)
            failed: tuple[SliceReport, ...] = ()
            if view.partitions is None:
                runtime.catch_up(view.topology, progress=reporter.batch)
            else:
                failed = runtime.backfill(view.topology, context.partition_keys, progress=reporter.slice).failed
        if failed:
            reporter.log_checks()
            raise failure(view, failed, len(context.partition_keys))
        yield from reporter.check_results()
        for node in view.writers.values():
            yield dg.MaterializeResult(asset_key=table_key(node), metadata=ALREADY_REPORTED)

    return states


def failure(view: FlowView, failed: tuple[SliceReport, ...], asked: int) -> dg.Failure:
    """What a run says at its end when slices failed: which ones, why, and how to get them."""
    shown = "\n".join(f"  {one.slice}: {(one.error or '').splitlines()[0]}" for one in failed)
    days = ", ".join(one.slice for one in failed)
    first, last = min(one.slice for one in failed), max(one.slice for one in failed)
    return dg.Failure(
        description=f'flow "{view.name}": {len(failed)} of {asked} slices failed; the others are committed\n{shown}\n'
        f"  Next: correct the data or the flow, then materialize these partitions again, or: "
        f"tridelta backfill {view.name} --from {first} --to {last}",
        metadata={"failed_slices": days, "committed_slices": asked - len(failed)},
    )


def _spec(view: FlowView, name: str) -> dg.AssetSpec:
    writer = view.writers[name]
    return dg.AssetSpec(
        table_key(writer),
        deps=view.sources_of(name),
        description=f"{_what(view, writer)} Fields: {', '.join(writer.fields)}.",
        metadata={**view.table_metadata(name), **_written_at(writer)},
        group_name=view.name,
        owners=view.spec.owners,
        tags=dict(view.spec.tags),
        kinds={"spark", "delta", "channel"} if isinstance(writer, nodes.ChannelNode) else {"spark", "delta"},
        partitions_def=view.partitions,
        freshness_policy=FRESH,
    )


def _written_at(writer: nodes.PersistNode) -> dict[str, Any]:
    """The line that defines the table's operation, where it is in a file: a link in the asset's page."""
    if not Path(writer.at.file).is_file():
        return {}
    with warnings.catch_warnings():
        # Beta in Dagster 1.13; the dependency is held below 1.14.
        warnings.simplefilter("ignore", dg.BetaWarning)
        line = dg.LocalFileCodeReference(file_path=str(Path(writer.at.file).absolute()), line_number=writer.at.line)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[line])}


def _what(view: FlowView, writer: nodes.PersistNode) -> str:
    if isinstance(writer, nodes.ChannelNode):
        return f"Channel of the flow {view.name}: events on their way from one query to the next."
    if isinstance(writer, nodes.LatePersistNode):
        return f"Of the flow {view.name}: events that came behind the watermark, as the source gave them."
    keyed = f"one row a {', '.join(writer.group)}" if writer.group else "the rows themselves"
    return f"State of the flow {view.name}: {keyed}."
