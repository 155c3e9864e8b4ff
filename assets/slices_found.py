"""Faulty slices (failed, missing, or older than their sources), and what is to become of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.slice_status import failed_at, partitions_of, verdicts_on
from assets.upstream import Upstream
from assets.view import FlowView, table_key
from pipelines.graph import nodes
from resources.dagster_internals import AssetGraph, BulkActionsFilter, BulkActionStatus

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
        slice: the slice.
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
    lake: Lake


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
        records: What became of the slices.
        views: The flows, those before whose slices others are made of.
        slices: The slices to look at, by flow.
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
        # A table whose slices cannot be told, and one of late events, which has no more than came late.
        if made is not None and not isinstance(node, nodes.LatePersistNode):
            for slice_ in (name for name in slices if name not in made):
                was.setdefault(slice_, (MISSING, f"not in {table.name}"))
        at = slice_times(table)
        for slice_, ended in failed_at(instance, key, known.failed & set(slices)).items():
            told = was.get(slice_, (MISSING, ""))[0] == FAILED
            if not told and (slice_ not in at or at[slice_] <= ended):
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
