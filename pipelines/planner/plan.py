"""TopologyPlan: how a topology will run, as data; and the plan that the last run of a flow has stored. No Spark here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pipelines.errors import DefinitionError, PlanFileError, ResourceError
from pipelines.graph import nodes
from pipelines.graph.bolts import Bolt, Layout, Spout, SpoutGroup, batch_groups, layout
from pipelines.graph.drawing import to_mermaid
from pipelines.graph.expansion import PlannedOperation
from pipelines.graph.lineage import HasGraph, Lineage, lineage
from pipelines.graph.picture import to_svg
from pipelines.places.location import Place, by_name, put_whole

Resources = Mapping[str, float]
"""Amounts by kind, e.g. `{"cpu": 100.0, "memory": 2048.0}`: cpu in percent of a core, memory in MB."""

PLAN_FORMAT = 1
"""The version of what `TopologyPlan.to_json` gives."""


@dataclass(frozen=True)
class TopologyPlan:
    """The result of `TridentTopology.build()`.

    Attributes:
        name: the topology's name.
        spouts: where tuples enter, sources and queries, in the order of their definition.
        bolts: the groups of operations between repartitions, in the original's order (Trident rules 3.2-3.5, 3.7).
        batch_groups: which spouts share their txids (rule 3.6).
        parallelism: tasks by the name of a bolt or spout component, e.g. `b-0`, `spout-sentences` (rule 3.9).
        resources: needs by component, coordinators included: amounts by kind (rule 3.10).
        coordinators: the component that starts the batches of each batch group (`$mastercoord-bg0`), then those of the
            sources (`$spoutcoord-spout-sentences`). A query needs none: each is a batch of its own.
        lineage: the column lineage of each state, by the state's name.
        gate_lineage: the column lineage of what passes each gate, by the gate's name.
        query_lineage: the column lineage of each query's answer, by the query's name.
    """

    name: str
    spouts: tuple[nodes.SpoutNode | nodes.QuerySpoutNode, ...]
    bolts: tuple[Bolt, ...]
    batch_groups: tuple[SpoutGroup, ...]
    parallelism: Mapping[str, int]
    resources: Mapping[str, Resources]
    coordinators: tuple[str, ...]
    lineage: Mapping[str, Lineage]
    gate_lineage: Mapping[str, Lineage]
    query_lineage: Mapping[str, Lineage]
    _topology: HasGraph = field(repr=False, compare=False)
    _layout: Layout = field(repr=False, compare=False)

    @classmethod
    def of(cls, topology: HasGraph) -> TopologyPlan:
        """Return the plan of a topology.

        Raises:
            DefinitionError: if the topology has no stream.
            MixedSpoutsError: if a query stream meets a stream of another spout.
            ParallelismError: if bolts that must have the same number of tasks cannot.
            ResourceError: if the operations of a bolt name different kinds of resources.
        """
        graph = topology.graph
        if not any(isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode) for node in graph):
            raise DefinitionError(
                f'topology "{topology.name}" is empty',
                hint="start it with new_stream(name, source) or new_query_stream(name)",
            )
        structure, groups = layout(graph), batch_groups(graph)
        resources = _resources(topology, structure, groups)
        return cls(
            name=topology.name,
            spouts=tuple(node for node in graph if isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)),
            bolts=structure.bolts,
            batch_groups=groups,
            parallelism={bolt.name: bolt.tasks for bolt in structure.bolts}
            | {spout.name: spout.tasks for spout in structure.spouts},
            resources=resources,
            coordinators=tuple(name for name in resources if name.startswith("$")),
            lineage={n.state.name: lineage(topology, n.id) for n in graph if isinstance(n, nodes.PersistNode)},
            gate_lineage={n.gate.name: lineage(topology, n.id) for n in graph if isinstance(n, nodes.GateNode)},
            query_lineage={
                n.stream: lineage(topology, answer_node(graph, n.id).id)
                for n in graph
                if isinstance(n, nodes.QuerySpoutNode)
            },
            _topology=topology,
            _layout=structure,
        )

    def to_mermaid(self) -> str:
        """Return the topology as a Mermaid flowchart."""
        return to_mermaid(self._topology)

    def to_svg(self) -> str:
        """Return the topology as a picture: SVG that needs nothing from elsewhere."""
        return to_svg(self._topology)

    def digest(self) -> str:
        """Return twelve digits for all that the plan says."""
        text = json.dumps(self.to_json(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data: what a topology consists of, without its functions; the same for the same definition."""
        graph, components = self._topology.graph, self._layout.component_of()
        return {
            "format": PLAN_FORMAT,
            "name": self.name,
            "spouts": [_spout_json(spout, graph[spout.node]) for spout in self._layout.spouts],
            "bolts": [_bolt_json(bolt, self._layout, components) for bolt in self.bolts],
            "batch_groups": [
                {"name": group.name, "streams": list(group.streams), "query": group.query}
                for group in self.batch_groups
            ],
            "parallelism": dict(self.parallelism),
            "resources": {name: dict(amounts) for name, amounts in self.resources.items()},
            "coordinators": list(self.coordinators),
            "states": [state_json(node) for node in graph if isinstance(node, nodes.PersistNode)],
            "lineage": {name: _lineage_json(origins) for name, origins in self.lineage.items()},
            "gate_lineage": {name: _lineage_json(origins) for name, origins in self.gate_lineage.items()},
            "query_lineage": {name: _lineage_json(origins) for name, origins in self.query_lineage.items()},
        }


def answer_node(graph: nodes.Graph, query_id: int) -> nodes.Node:
    """Return the node whose rows answer a query: the last one defined behind its spout (Trident rule 3.8)."""
    return graph.descendants(query_id)[-1]


def state_json(node: nodes.PersistNode) -> dict[str, Any]:
    """Return what a flow says of a state that it writes, without types: Spark alone knows those."""
    aggregators = {aggregation.output: str(aggregation.aggregator) for aggregation in node.aggregations}
    return {
        "name": node.state.name,
        "kind": getattr(node.state, "kind", None),
        "layout": getattr(node.state, "layout", None),
        "partitions": getattr(node.state, "partitions", None),
        "keys": list(node.group),
        "fields": list(node.fields),
        "aggregators": aggregators,
        "updater": None if node.updater is None else type(node.updater).__name__,
    }


def _resources(topology: HasGraph, structure: Layout, groups: tuple[SpoutGroup, ...]) -> dict[str, Resources]:
    defaults: Resources = getattr(topology, "resource_defaults", {})
    coordinator: Resources = getattr(topology, "coordinator_resources", {})
    needs: dict[str, Resources] = {bolt.name: bolt_resources(bolt.operations, defaults) for bolt in structure.bolts}
    needs |= {spout.name: spout_resources(spout.operation, defaults) for spout in structure.spouts}
    master = {kind: float(amount) for kind, amount in {**defaults, **coordinator}.items()}
    needs |= {f"$mastercoord-{group.name}": master for group in groups if not group.query}
    sources = [spout for spout in structure.spouts if isinstance(topology.graph[spout.node], nodes.SpoutNode)]
    return needs | {f"$spoutcoord-{spout.name}": needs[spout.name] for spout in sources}


def _spout_json(spout: Spout, node: nodes.Node) -> dict[str, Any]:
    assert isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)
    source = type(node.source).__name__ if isinstance(node, nodes.SpoutNode) else None
    entry = {
        "name": spout.name,
        "stream": node.stream,
        "fields": list(node.fields),
        "source": source,
        "slice_by": node.slice_by if isinstance(node, nodes.SpoutNode) else None,
        "tasks": spout.tasks,
    }
    if isinstance(node, nodes.ChannelSpoutNode):
        entry["channels"] = list(node.reads)
        entry["operations"] = [step.label for step in node.steps]
    return entry


def _bolt_json(bolt: Bolt, structure: Layout, components: Mapping[int, str]) -> dict[str, Any]:
    inputs: list[dict[str, str]] = []
    for consumer in bolt.operations:
        for parent in (structure.operations[parent] for parent in consumer.parents):
            if parent.repartition is not None:
                entry = {"from": components[parent.parents[0]], "by": parent.label}
                inputs += [entry] if entry not in inputs else []
    return {
        "name": bolt.name,
        "nodes": list(bolt.nodes),
        "operations": [operation.label for operation in bolt.operations],
        "states": list(dict.fromkeys(operation.state for operation in bolt.operations if operation.state)),
        "inputs": inputs,
        "tasks": bolt.tasks,
    }


def _lineage_json(by_field: Lineage) -> dict[str, list[list[str]]]:
    return {name: [list(origin) for origin in origins] for name, origins in by_field.items()}


def bolt_resources(operations: Sequence[PlannedOperation], defaults: Resources) -> dict[str, float]:
    """Return the sum over a bolt's operations of the defaults overlaid by each operation's own values.

    A lower value of its own wins over a default, as in the original.

    Raises:
        ResourceError: if one operation has other kinds than the first. (In the original two that each have a kind which
            the other lacks are a crash; here they are this error.)
    """
    needs = [{**defaults, **dict(member.resources)} for member in operations]
    total = dict.fromkeys(needs[0], 0.0)
    for operation, amounts in zip(operations, needs, strict=True):
        if set(amounts) != set(total):
            more = [kind for kind in amounts if kind not in total]
            raise ResourceError(
                operation.label,
                more or [kind for kind in total if kind not in amounts],
                [(member.label, tuple(kinds)) for member, kinds in zip(operations, needs, strict=True)],
                missing=not more,
            )
        for kind, amount in amounts.items():
            total[kind] += float(amount)
    return total


def spout_resources(spout: PlannedOperation, defaults: Resources) -> dict[str, float]:
    """Return a spout's own values over the defaults; its coordinator gets the same."""
    return {kind: float(amount) for kind, amount in {**defaults, **dict(spout.resources)}.items()}


PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class StoredPlan:
    """A plan that a run has stored: when, and `TopologyPlan.to_json()`."""

    saved_at: datetime
    plan: dict[str, Any]


def save_plan(topology: HasGraph, folder: Place) -> Place:
    """Store a topology's plan in the checkpoint folder of one of its batch groups, in one piece.

    Args:
        folder: `<lake>/checkpoints/<flow>/<group>`; made if it is not there.
    """
    file = folder / PLAN_FILE
    stored = {
        "format": PLAN_FORMAT,
        "saved_at": datetime.now(UTC).isoformat(),
        "plan": TopologyPlan.of(topology).to_json(),
    }
    put_whole(file, json.dumps(stored, indent=1).encode())
    return file


def load_plan(folder: Place) -> StoredPlan | None:
    """Return the plan that is stored in a folder, or None if there is none.

    Raises:
        PlanFileError: if the file is damaged, or of a format that this version does not know.
    """
    file = folder / PLAN_FILE
    if not file.exists():
        return None
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["format"] != PLAN_FORMAT:
            raise PlanFileError(str(file), f"is of format {stored['format']}, and this version reads {PLAN_FORMAT}")
        return StoredPlan(datetime.fromisoformat(stored["saved_at"]), dict(stored["plan"]))
    except (ValueError, KeyError, TypeError) as error:
        raise PlanFileError(str(file), f"cannot be read: {error!r}") from error


def deployed_plan(checkpoints: Place) -> StoredPlan | None:
    """Read the plan stored last among those of a flow's batch groups (`<lake>/checkpoints/<flow>`); None if there is none."""
    folders = by_name(checkpoints.iterdir()) if checkpoints.is_dir() else []
    plans = [stored for stored in map(load_plan, folders) if stored is not None]
    return max(plans, key=lambda plan: plan.saved_at, default=None)
