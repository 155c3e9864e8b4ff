"""Slices that are computed from slices: of a flow that reads another flow's table each waits for that table's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import TrideltaError
from pipelines.execution.report import SliceReport
from pipelines.sources.delta import DeltaTableSource
from pipelines.state.slices import made_slices
from pipelines.state.table import StateTable

if TYPE_CHECKING:
    from pipelines.graph import nodes


class UpstreamSliceError(TrideltaError):
    """A slice was not computed: a table that it is computed from does not hold that slice, or holds one that failed.

    Attributes:
        flow: the flow whose slice it is.
        slice: the slice.
        table: the table of the other flow.
        upstream: the other flow.
        seen: what was seen of the slice there.
    """

    def __init__(self, flow: str, slice_: str, table: str, upstream: str, seen: str) -> None:
        self.flow, self.slice, self.table, self.upstream, self.seen = flow, slice_, table, upstream, seen
        super().__init__(
            f'flow "{flow}": slice {slice_} was not computed: it reads "{table}" of the flow "{upstream}", and {seen}',
            hint=f"make it there first: tridelta backfill {upstream} --from {slice_} --to {slice_}; then this one again",
        )


@dataclass(frozen=True)
class UpstreamTable:
    """A sliced table that a flow reads as a source.

    Attributes:
        name: the table's name.
        flow: the flow that writes it.
        made: the slices that it holds.
    """

    name: str
    flow: str
    made: frozenset[str]

    def missing(self, flow: str, slice_: str) -> UpstreamSliceError:
        """That it does not hold a slice, with what it holds."""
        held = f"it holds {len(self.made)} others, {min(self.made)} to {max(self.made)}" if self.made else "it has none"
        return UpstreamSliceError(flow, slice_, self.name, self.flow, f"that slice is not there ({held})")


def upstream_tables(spouts: Iterable[nodes.SpoutNode]) -> tuple[UpstreamTable, ...]:
    """The sliced tables of the lake among the sources of some spouts."""
    found = []
    for table in _read(spouts):
        made = made_slices(table)
        if made is not None and table.is_state():
            found.append(UpstreamTable(table.name, table.declared.flow, made))
    return tuple(found)


def versions_read(spouts: Iterable[nodes.SpoutNode]) -> dict[str, int]:
    """The versions of these tables, by name, before anything of them is read: what is read is no older."""
    return {table.name: table.version() for table in _read(spouts) if table.is_state() and table.declared.sliced}


def _read(spouts: Iterable[nodes.SpoutNode]) -> list[StateTable]:
    sources = [spout.source.inner for spout in spouts]
    return [StateTable(Path(one.path).name, Path(one.path)) for one in sources if isinstance(one, DeltaTableSource)]


def refused(flow: str, spouts: Iterable[nodes.SpoutNode], slices: Sequence[str]) -> dict[str, SliceReport]:
    """The slices that cannot be computed, because a table that they are computed from does not hold them: each as failed."""
    tables = upstream_tables(spouts)
    found = {}
    for slice_ in slices:
        missing = [str(table.missing(flow, slice_)) for table in tables if slice_ not in table.made]
        if missing:
            found[slice_] = SliceReport(
                flow=flow, slice=slice_, received=0, quarantined=0, commits=(), seconds=0.0, error="; ".join(missing)
            )
    return found
