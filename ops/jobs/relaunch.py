"""relaunch_slices_job: find the slices of all flows that failed, are missing or stale, and make them again in one backfill."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from assets.events import markdown
from assets.events.reporting import plain_failures
from assets.slices_found import FAILED, LATER, MISSING, STALE, WAITS, Found, SliceRecords, find_slices
from assets.view import FlowView, table_key
from ops.jobs.forms import one_step_job
from pipelines import bounds
from pipelines.errors import DefinitionError, UnknownFlowError
from resources import LakeResource
from resources.dagster_internals import (
    AssetGraph,
    PartitionBackfill,
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
    make_new_backfill_id,
)

# It looks and asks; the slices are made by the runs of the backfill.
MAX_RUNTIME_SECONDS = 1800
# A week: what failed on a Friday is found on Monday, and what was given up long ago is left alone.
DAYS_BACK = 7
# Slices that one launch asks for: a day of them keeps two cores busy for some minutes.
MOST_AT_ONCE = 50
# Rows of the report; the counts are of all.
LISTED = 200
TAG = "relaunch_slices"


class RelaunchConfig(dg.Config):
    """Which slices to look at, and how many to make again."""

    flows: list[str] = Field([], description="The flows; empty: all that have slices.")
    first: str = Field("", description=f"The first day (2013-01-31); empty: {DAYS_BACK} days before the last.")
    last: str = Field("", description="The last day, included; empty: yesterday, or a flow's own last day.")
    # On: a table that disagrees with what it is made of is as wrong as one that lacks a day, only that nobody sees it.
    stale: bool = Field(
        True,
        description="Also slices older than their source slices of another flow; else they are only listed.",
    )
    dry_run: bool = Field(False, description="Say what would be made again, and launch nothing.")
    most_at_once: int = bounds.ROWS.field(
        MOST_AT_ONCE, description="The most slices to make again; the oldest come first."
    )


def relaunch_slices_job(views: Sequence[FlowView], name: str = "relaunch_slices_job") -> dg.JobDefinition:
    """Make one job over the slices of all these flows."""
    sliced = [view for view in views if view.partitions is not None]

    @dg.op(
        name=name.removesuffix("_job"),
        description="Find slices that failed, are missing or stale, and launch one backfill of them.",
    )
    def relaunch_slices(context: dg.OpExecutionContext, config: RelaunchConfig, lake: LakeResource) -> None:
        graph = context.repository_def.asset_graph
        with plain_failures():
            chosen = _chosen(sliced, config.flows)
            wanted = {view.name: days(view, config.first, config.last) for view in chosen}
            records = SliceRecords(context.instance, graph, lake.lake())
            faulty = find_slices(records, chosen, wanted, config.most_at_once, stale=config.stale)
        launched = [slice_found for slice_found in faulty if slice_found.is_launched]
        backfill = None
        if launched and not config.dry_run:
            backfill = launch(context.instance, graph, chosen, launched)
            context.log.info(f"backfill {backfill}: {len(launched)} slices")
        context.add_output_metadata(report(faulty, wanted, backfill, dry_run=config.dry_run))

    what = "Find slices of all flows that failed, are missing or stale, and make them again in one backfill."
    return one_step_job(name.removesuffix("_job"), what, relaunch_slices, MAX_RUNTIME_SECONDS)


def _chosen(sliced: Sequence[FlowView], names: Sequence[str]) -> list[FlowView]:
    """Return the flows asked for, those before whose slices others are made of.

    Raises:
        UnknownFlowError: if there is no such flow, or it has no slices.
    """
    known = [view.name for view in sliced]
    for name in names:
        if name not in known:
            raise UnknownFlowError(name, known)
    writers = {table_key(node): view for view in sliced for node in view.writers.values()}

    def depth(view: FlowView) -> int:
        above = [writers[key] for key in view.upstream if key in writers and writers[key] is not view]
        return 1 + max(map(depth, above), default=0)

    return sorted((view for view in sliced if not names or view.name in names), key=depth)


def days(view: FlowView, first: str, last: str) -> list[str]:
    """Return the slices of a flow from the first to the last day asked for.

    Raises:
        DefinitionError: if one is no day, or they are in the wrong order.
    """
    assert view.partitions is not None
    try:
        # The end of a flow's days counts where nothing else was asked for: a flow of 2013 has no last week.
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        own = view.spec.slices.end if view.spec.slices else None
        end = date.fromisoformat(last) if last else min(yesterday, own or yesterday)
        begin = date.fromisoformat(first) if first else end - timedelta(days=DAYS_BACK - 1)
    except ValueError as error:
        raise DefinitionError(f"not a day: {error}; write it as 2013-01-31") from None
    if begin > end:
        raise DefinitionError(f"no days between {begin} and {end}: the first is after the last")
    return [day for day in view.partitions.get_partition_keys() if begin.isoformat() <= day <= end.isoformat()]


def launch(instance: dg.DagsterInstance, graph: AssetGraph, views: Iterable[FlowView], slices: Sequence[Found]) -> str:
    """Launch one backfill over all of them: the daemon puts the flows in order.

    Returns:
        Its id.
    """
    backfill = make_new_backfill_id()
    selected = []
    for view in views:
        own = [finding.slice for finding in slices if finding.flow == view.name]
        assert view.partitions is not None
        ranges = view.partitions.subset_with_partition_keys(own).get_partition_key_ranges(view.partitions)
        picked = PartitionsSelector([PartitionRangeSelector(key_range.start, key_range.end) for key_range in ranges])
        if own:
            selected += [
                PartitionsByAssetSelector(asset_key=table_key(node), partitions=picked)
                for node in view.writers.values()
            ]
    instance.add_backfill(
        PartitionBackfill.from_partitions_by_assets(
            backfill_id=backfill,
            asset_graph=graph,
            backfill_timestamp=time.time(),
            tags={TAG: "true"},
            dynamic_partitions_store=instance,
            partitions_by_assets=selected,
            title="Failed, missing and stale slices",
            description=f"{len(slices)} slices, found by relaunch_slices_job",
            run_config=None,
        )
    )
    return backfill


def report(
    faulty: Sequence[Found], looked_at: Mapping[str, Sequence[str]], backfill: str | None, *, dry_run: bool
) -> dict[str, Any]:
    """Return what was seen and done, as Dagster shows it: counts, and one row per faulty slice."""
    done = "would be made again" if dry_run else "launched"
    rows = [
        {**slice_found.row(), "now": done if slice_found.is_launched else slice_found.now} for slice_found in faulty
    ]
    counts = Counter(slice_found.was for slice_found in faulty)
    shown: dict[str, Any] = {
        "looked_at": sum(map(len, looked_at.values())),
        "failed": counts[FAILED],
        "missing": counts[MISSING],
        "stale": counts[STALE],
        "launched": 0 if dry_run else sum(slice_found.is_launched for slice_found in faulty),
        "waiting": sum(slice_found.now == WAITS for slice_found in faulty),
        "left_for_later": sum(slice_found.now == LATER for slice_found in faulty),
    }
    if rows:
        text = markdown.table(["flow", "slice", "was", "now", "why"], rows[:LISTED])
        more = len(rows) - LISTED
        shown["slices"] = dg.MetadataValue.md(text + (f"\n\nand {more} more" if more > 0 else ""))
    return {**shown, "backfill": backfill} if backfill else shown
