"""relaunch_slices_job: find the slices of all flows that failed, are missing or stale, and make them again in one backfill."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.events import markdown
from assets.events.reporting import plain_failures
from assets.upstream import Upstream, failed_at, partitions_of, verdicts_on
from assets.view import FlowView, table_key
from ops.jobs.forms import one_step_job
from pipelines import bounds
from pipelines.errors import DefinitionError, UnknownFlowError
from pipelines.graph import nodes
from resources import LakeResource
from resources.dagster_internals import (
    AssetGraph,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
    make_new_backfill_id,
)

if TYPE_CHECKING:
    from pipelines import Lake

FAILED, MISSING, STALE = "failed", "missing", "stale"
AGAIN, RUNNING, WAITS, LATER, LEFT = "again", "running", "waits", "later", "left"
_UNDER_WAY = (BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING)


@dataclass(frozen=True)
class Found:
    """A slice that failed, is missing, or is stale.

    Attributes:
        flow: whose slice it is.
        was: `failed` (its last run made it not), `missing` (a table does not hold it), or `stale` (the slice of another
            flow that it is made of was written since, or is made again now).
        why: in which table, and what was seen.
        now: `again`, `running` (a run or a backfill makes it now: left alone), `waits` (what it is made of has failed),
            `later` (there are more than may be launched at once), or `left` (it is stale, and nobody asked for those).
    """

    flow: str
    slice: str
    was: str
    why: str
    now: str = AGAIN

    @property
    def is_launched(self) -> bool:
        return self.now == AGAIN

    def row(self) -> dict[str, Any]:
        """Return a row of the report."""
        return {"flow": self.flow, "slice": self.slice, "was": self.was, "why": self.why}


@dataclass(frozen=True)
class SliceRecords:
    """The records that say what became of a slice.

    Attributes:
        instance: Whose events and backfills count.
        graph: The assets of the code location.
        lake: Whose commits count.
    """

    instance: dg.DagsterInstance
    graph: AssetGraph
    lake: "Lake"


def find_slices(
    records: SliceRecords,
    views: Sequence[FlowView],
    slices: Mapping[str, Sequence[str]],
    most: int,
    *,
    stale: bool = True,
) -> list[Found]:
    """Find the slices that failed, are missing or stale, by day, and within a day in the order of the flows.

    Args:
        views: The flows, those before whose slices others are made of.
        most: How many are to be made again at most.
        stale: Whether stale ones are to be made again.
    """
    asked = _asked_for(records)
    faulty: list[Found] = []
    for view in views:
        mine = _of_flow(records, view, slices[view.name], asked)
        if view.by_slices:
            coming = _coming(view, views, faulty)
            mine = sorted(
                [*mine, *_made_again(view, coming, slices[view.name], mine)], key=lambda slice_found: slice_found.slice
            )
            if not stale:
                mine = [
                    replace(slice_found, now=LEFT) if slice_found.was == STALE else slice_found for slice_found in mine
                ]
            mine = _behind(Upstream(view, records.graph, records.instance, records.lake), mine, coming)
        faulty += mine
    order = {view.name: number for number, view in enumerate(views)}
    faulty.sort(key=lambda slice_found: (slice_found.slice, order[slice_found.flow]))
    return list(_at_most(faulty, most))


def _of_flow(
    records: SliceRecords,
    view: FlowView,
    slices: Sequence[str],
    asked: Mapping[dg.AssetKey, set[str]],
) -> list[Found]:
    """Find a flow's slices: one that failed or is missing in one table is made again in all, as a backfill does it."""
    from pipelines.state.slices import made_slices, outdated, slice_times

    instance, lake = records.instance, records.lake
    was: dict[str, tuple[str, str]] = {}
    under_way: set[str] = set()
    assert view.partitions is not None
    for node in view.writers.values():
        key, table = table_key(node), view.table(lake, node.state.name)
        known = partitions_of(instance, key, view.partitions)
        under_way |= known.running | asked.get(key, set())
        made = made_slices(table)
        # Not a table whose slices are unknown, nor one of late events, which has no more than came late.
        if made is not None and not isinstance(node, nodes.LatePersistNode):
            for slice_ in (name for name in slices if name not in made):
                was.setdefault(slice_, (MISSING, f"not in {table.name}"))
        at = slice_times(table)
        for slice_, ended in failed_at(instance, key, slices).items():
            already = was.get(slice_, (MISSING, ""))[0] == FAILED
            if not already and (slice_ not in at or at[slice_] <= ended):
                was[slice_] = (FAILED, f"{table.name}: its run failed at {ended:%Y-%m-%d %H:%M} UTC")
        for source in (view.upstream_table(lake, key) for key in view.upstream):
            for slice_, commit in outdated(table, source, slices).items():
                said = f"{table.name}: {source.name} has got other rows at {commit.time:%Y-%m-%d %H:%M} UTC"
                was.setdefault(slice_, (STALE, f"{said} (version {commit.version})"))
    for slice_, check in _refused(instance, view, [name for name, (kind, _) in was.items() if kind == FAILED]):
        was[slice_] = (FAILED, f'{was[slice_][1]}, its check "{check}" fails')
    return [
        Found(view.name, slice_, *was[slice_], now=RUNNING if slice_ in under_way else AGAIN) for slice_ in sorted(was)
    ]


def _refused(instance: dg.DagsterInstance, view: FlowView, failed: Collection[str]) -> Iterator[tuple[str, str]]:
    """Find the failed slices that a gate has refused, and its check, by the verdict on the slice itself."""
    for gate_check in view.gate_checks if failed else ():
        if gate_check.check.action == "fail":
            said = verdicts_on(instance, gate_check.key)
            yield from ((slice_, gate_check.name) for slice_ in failed if slice_ in said and not said[slice_].passed)


def _asked_for(records: SliceRecords) -> dict[dg.AssetKey, set[str]]:
    """Return the partitions that backfills are still to make: nobody needs to ask for them twice."""
    asked: dict[dg.AssetKey, set[str]] = {}
    for backfill in records.instance.get_backfills(BulkActionsFilter(statuses=list(_UNDER_WAY))):
        if backfill.is_asset_backfill:
            data = backfill.get_asset_backfill_data(records.graph)
            left = data.target_subset - data.materialized_subset - data.failed_and_downstream_subset
            for partition in left.iterate_asset_partitions():
                asked.setdefault(partition.asset_key, set()).add(str(partition.partition_key))
    return asked


def _coming(view: FlowView, views: Iterable[FlowView], before: Sequence[Found]) -> set[str]:
    """Return the slices that are made again now in the flows that a flow reads."""
    writers = {
        other.name for other in views if {table_key(node) for node in other.writers.values()} & set(view.upstream)
    }
    return {other.slice for other in before if other.flow in writers and other.is_launched}


def _made_again(view: FlowView, coming: set[str], slices: Iterable[str], mine: Sequence[Found]) -> list[Found]:
    """Return sound slices that turn stale when those that they are made of are made again."""
    known = {slice_.slice for slice_ in mine}
    return [
        Found(view.name, slice_, STALE, "what it is made of is made again now")
        for slice_ in slices
        if slice_ in coming and slice_ not in known
    ]


def _behind(upstream: Upstream, mine: Sequence[Found], coming: set[str]) -> list[Found]:
    """Let slices behind failed ones wait, unless those are made again now: then the backfill puts them in order."""
    refused = upstream.refused([slice_found.slice for slice_found in mine if slice_found.is_launched])
    waits = {slice_: why for slice_, why in refused.items() if slice_ not in coming}
    return [
        replace(slice_found, now=WAITS, why=waits[slice_found.slice].splitlines()[0])
        if slice_found.slice in waits
        else slice_found
        for slice_found in mine
    ]


def _at_most(faulty: Iterable[Found], most: int) -> Iterable[Found]:
    """Return all slices, of which the oldest so many are to be made again."""
    left = most
    for slice_found in faulty:
        if slice_found.is_launched and left <= 0:
            yield replace(slice_found, now=LATER)
            continue
        left -= slice_found.is_launched
        yield slice_found


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
    """The slices to look at, and how many to make again."""

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
    """Return the flows asked for, those before whose slices others are made of."""
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
    """Return the slices of a flow from the first to the last day asked for; none of one whose days have ended by then.

    Raises:
        DefinitionError: if one is no day, or they are in the wrong order.
    """
    assert view.partitions is not None
    try:
        # The end of a flow's days counts where nothing else was asked for: a flow of 2013 has no last week.
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        own = view.spec.slices.end if view.spec.slices else None
        asked = date.fromisoformat(last) if last else yesterday
        end = asked if last else min(asked, own or asked)
        begin = date.fromisoformat(first) if first else end - timedelta(days=DAYS_BACK - 1)
    except ValueError as error:
        raise DefinitionError(f"not a day: {error}; write it as 2013-01-31") from None
    if begin > asked:
        raise DefinitionError(f"no days between {begin} and {asked}: the first is after the last")
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
