"""The place where quarantined rows enter the flow again, and what must not follow it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.errors import nearest
from pipelines.execution.batch.quarantine import BATCH, NO_TIME, SOURCE
from pipelines.execution.protocol.groups import spout_groups
from pipelines.execution.replays.selection import ReplayError
from pipelines.graph import nodes

if TYPE_CHECKING:
    from pipelines.execution.replays.selection import Lot
    from pipelines.trident.topology import TridentTopology

_UNIQUE = (
    "expect_column_values_to_be_unique",
    "expect_compound_columns_to_be_unique",
)


@dataclass(frozen=True)
class Entry:
    """A place in the flow.

    Attributes:
        node: the spout or the gate before which the rows enter.
        spouts: of its batch group.
        sinks: ids of the persist nodes behind it.
        drops: whether a gate behind it may refuse what a row has become.
    """

    node: nodes.SpoutNode | nodes.GateNode
    spouts: tuple[nodes.SpoutNode, ...]
    sinks: tuple[int, ...]
    drops: bool

    @property
    def sliced(self) -> bool:
        return self.spouts[0].slice_by is not None


def entry_of(topology: TridentTopology, lot: Lot) -> Entry:
    """Return the place of a lot's rows.

    Raises:
        ReplayError: the flow does not have it (any more), or something behind it works on whole batches.
    """
    node = _spout(topology, lot) if lot.stage in (SOURCE, BATCH) else _gate(topology, lot)
    graph = topology.graph
    (spouts,) = [
        group for group in spout_groups(topology) if any(node in graph.descendants(spout.id) for spout in group)
    ] or [()]
    sinks = tuple(behind.id for behind in graph.descendants(node.id) if isinstance(behind, nodes.PersistNode))
    if not sinks:
        raise ReplayError(topology.name, lot.what, "no state stands behind their place", instead(topology))
    between = list(_between(graph, node, sinks))
    for step in between:
        problem = step.alone or _compares(step)
        if problem:
            raise ReplayError(topology.name, lot.what, f'"{step.label}" at {step.at} {problem}', instead(topology))
    drops = any(isinstance(step, nodes.GateNode) and step.gate.drops for step in between)
    return Entry(node, spouts, sinks, drops)


def instead(topology: TridentTopology) -> str:
    """Return what to do about rows that cannot be replayed."""
    if any(spout.slice_by is not None for spout in topology.spouts):
        return f"backfill their slices (tridelta backfill {topology.name}): that judges the source's rows again, all together"
    return f"count the source's rows again: remove the checkpoint and tridelta run {topology.name} --on-fresh-checkpoint reset"


def _spout(topology: TridentTopology, lot: Lot) -> nodes.SpoutNode:
    spouts = [spout for spout in topology.spouts if spout.stream == lot.stream]
    if not spouts:
        known = ", ".join(spout.stream for spout in topology.spouts)
        seen = "they name no stream (an earlier release wrote them)" if lot.stream is None else "it has no such stream"
        raise ReplayError(topology.name, lot.what, f"{seen}; its streams are {known}", instead(topology))
    if spouts[0].source.inner is not spouts[0].source:
        problem = "they are events, whose id and order come from their place in the source"
        raise ReplayError(topology.name, lot.what, problem, instead(topology))
    if lot.rows["rule"].to_pylist().count(NO_TIME):
        raise ReplayError(topology.name, lot.what, "they are events without a time", instead(topology))
    return spouts[0]


def _gate(topology: TridentTopology, lot: Lot) -> nodes.GateNode:
    gates = {behind.gate.name: behind for behind in topology.graph if isinstance(behind, nodes.GateNode)}
    if lot.stage not in gates:
        known = ", ".join(gates) or "none"
        raise ReplayError(
            topology.name,
            lot.what,
            f"the flow has no such gate; its gates are {known}{nearest(lot.stage, gates)}",
            "give the gate its former name back, even without checks that drop; or " + instead(topology),
        )
    return gates[lot.stage]


def _between(graph: nodes.Graph, entry: nodes.Node, sinks: tuple[int, ...]) -> Iterator[nodes.Node]:
    """Yield the nodes that are worked out for the sinks: all that lead there, up to the entry."""
    seen, waiting = {entry.id}, list(sinks)
    yield entry
    while waiting:
        node_id = waiting.pop()
        if node_id not in seen:
            seen.add(node_id)
            yield graph[node_id]
            waiting += graph[node_id].parents


def _compares(node: nodes.Node) -> str | None:
    """Return why a gate cannot judge a row alone."""
    if not isinstance(node, nodes.GateNode):
        return None
    checks = [check.name for check in node.gate.checks if check.action == "drop" and check.expectation in _UNIQUE]
    return f"compares the rows of a batch ({checks[0]}), and theirs is over" if checks else None
