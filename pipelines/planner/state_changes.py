"""What becomes of the states that a lake holds, if a flow starts as it is defined now. No Spark here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.graph import nodes
from pipelines.graph.bolts import SpoutGroup
from pipelines.graph.types import known_types, same_type

if TYPE_CHECKING:
    from pipelines.graph.lineage import HasGraph
    from pipelines.state.lake import Lake
    from pipelines.state.schema import StateSchema
    from pipelines.state.table import StateTable

FITS, EVOLVES, REFUSED = "fits", "evolves", "refused"

_UNKNOWN = "of a type that Spark finds"


@dataclass(frozen=True)
class StateChange:
    """A state beside its table.

    `change` is new, removed, changed or same; `verdict` what the engine would say at the flow's start: fits, evolves
    (columns are added) or refused; `details` why.
    """

    name: str
    change: str
    verdict: str
    details: tuple[str, ...] = ()


def state_changes(topology: HasGraph, groups: tuple[SpoutGroup, ...], lake: Lake) -> tuple[StateChange, ...]:
    """Return each state that the flow writes, in order, then those of the lake that it does not write any more.

    Names, keys, aggregators, kind and layout are compared; types where the definition says them, which is where they do
    not come out of a function over columns or a built-in aggregator: those Spark alone knows.
    """
    persists = [node for node in topology.graph if isinstance(node, nodes.PersistNode)]
    group_of = {node: group for group in groups for node in group.nodes}
    changes: list[StateChange] = []
    for node in persists:
        table = lake.written_by(node)
        group = _Group(topology, group_of[node.id], lake)
        changes.append(_of_table(node, table, group) if table.exists() else _of_none(node, group))
    written = {node.state.name for node in persists}
    return (*changes, *_removed(topology.name, written, lake))


class _Group:
    """A batch group with its checkpoint, as far as the engine's start looks at it."""

    def __init__(self, topology: HasGraph, group: SpoutGroup, lake: Lake) -> None:
        self.topology, self.group, self._lake = topology, group, lake
        self._folder = lake.checkpoint_path(topology.name, group.folder)

    @property
    def sliced(self) -> bool:
        return any(getattr(self.topology.graph[node], "slice_by", None) is not None for node in self.group.nodes)

    @property
    def slice_by(self) -> tuple[tuple[str, str], ...]:
        """By stream the expression that cuts its slices."""
        nodes_ = [self.topology.graph[node] for node in self.group.nodes]
        return tuple(
            (spout.stream, spout.slice_by) for spout in nodes_ if isinstance(spout, nodes.SpoutNode) and spout.slice_by
        )

    @property
    def has_run(self) -> bool:
        """Check whether its checkpoint is there, so that it goes on where it was."""
        return (self._folder / "epoch.json").exists() and (self._folder / "spark" / "metadata").exists()

    @property
    def batches(self) -> int:
        """Return how many batches it has finished in this life of its checkpoint."""
        commits: Path = self._folder / "spark" / "commits"
        done = (int(path.name) for path in commits.iterdir() if path.name.isdigit()) if commits.is_dir() else ()
        return max(done, default=-1) + 1

    def others_have_batches(self, state: str) -> bool:
        """Check whether another state of the group holds batches of the stream."""
        names = [self.topology.graph[node] for node in self.group.nodes]
        others = (node for node in names if isinstance(node, nodes.PersistNode) and node.state.name != state)
        tables = map(self._lake.written_by, others)
        return any(table.is_state() and table.last_txid() is not None for table in tables)


def _of_none(node: nodes.PersistNode, group: _Group) -> StateChange:
    """A state without a table: refused if the flow has run, since it would lack what came so far (StateBehindError)."""
    name = node.state.name
    if group.has_run and group.batches and group.others_have_batches(name):
        lacks = f"the flow has run {group.batches} batch(es), which it would lack: backfill it, or start over"
        return StateChange(name, "new", REFUSED, (lacks,))
    return StateChange(name, "new", FITS, ("its table is made",))


def _of_table(node: nodes.PersistNode, table: StateTable, group: _Group) -> StateChange:
    name = node.state.name
    if not table.is_state():
        return StateChange(name, "changed", REFUSED, (f"{table.path} is a table that the engine did not make",))
    added = table.declared.evolution(_declared(node, table.declared, group))
    if isinstance(added, str):
        return StateChange(name, "changed", REFUSED, (added,))
    if not group.has_run and table.last_txid() is not None:
        fresh = f"the checkpoint is fresh, and the table holds batches up to txid {table.last_txid()}"
        return StateChange(name, "changed", REFUSED, (f"{fresh}: see --on-fresh-checkpoint",))
    if added:
        return StateChange(
            name, "changed", EVOLVES, tuple(f"gets the column {column} ({kind})" for column, kind in added)
        )
    return StateChange(name, "same", FITS)


def _declared(node: nodes.PersistNode, there: StateSchema, group: _Group) -> StateSchema:
    """Return what the flow declares; a type that it leaves open is that of the table."""
    from pipelines.state.kinds import LOG
    from pipelines.state.schema import StateSchema, ValueColumn

    types, stored = known_types(group.topology.graph, node.id), dict(there.columns)
    over_columns = node.state.layout == LOG
    values = tuple(
        ValueColumn(name=aggregation.output, aggregator=type(aggregation.aggregator).__name__)
        for aggregation in node.aggregations
    )
    return StateSchema(
        layout=node.state.layout,
        kind=node.state.kind,
        flow=group.topology.name,
        keys=node.group,
        values=values if over_columns else (),
        columns=tuple((name, _type(types.get(name), stored.get(name))) for name in node.fields),
        sliced=group.sliced,
        slice_by=group.slice_by,
    )


def _type(known: str | None, stored: str | None) -> str:
    if stored is not None and same_type(known, stored):
        return stored
    return known or _UNKNOWN


def _removed(flow: str, written: set[str], lake: Lake) -> Iterator[StateChange]:
    tables = [*map(lake.state, lake.states()), *map(lake.channel, lake.channels())]
    for table in tables:
        if table.name not in written and table.is_state() and table.declared.flow == flow:
            yield StateChange(table.name, "removed", FITS, ("its table stays as it is",))
