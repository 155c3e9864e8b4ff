"""TopologyPlan: how a topology will run, as data. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.errors import DefinitionError
from pipelines.graph import nodes
from pipelines.graph.bolts import BatchGroup, Bolt, batch_groups, bolts
from pipelines.graph.drawing import to_mermaid
from pipelines.graph.lineage import HasGraph, Lineage, lineage


@dataclass(frozen=True)
class TopologyPlan:
    """What `TridentTopology.build()` returns.

    Attributes:
        name: the topology's name.
        spouts: where tuples enter, sources and queries, in the order of their definition.
        bolts: the groups of operations between shuffles.
        batch_groups: which spouts share their txids.
        parallelism: tasks a bolt, by its name.
        lineage: the column lineage of each state, by the state's name.
        gate_lineage: the column lineage of what passes each gate, by the gate's name.
        query_lineage: the column lineage of each query's answer, by the query's name.
    """

    name: str
    spouts: tuple[nodes.SpoutNode | nodes.QuerySpoutNode, ...]
    bolts: tuple[Bolt, ...]
    batch_groups: tuple[BatchGroup, ...]
    parallelism: Mapping[str, int]
    lineage: Mapping[str, Lineage]
    gate_lineage: Mapping[str, Lineage]
    query_lineage: Mapping[str, Lineage]
    _topology: HasGraph = field(repr=False, compare=False)

    @classmethod
    def of(cls, topology: HasGraph) -> TopologyPlan:
        """The plan of a topology.

        Raises:
            DefinitionError: if the topology has no stream.
        """
        graph = topology.graph
        if not len(graph):
            raise DefinitionError(
                f'topology "{topology.name}" is empty',
                hint="start it with new_stream(name, source) or new_query_stream(name)",
            )
        grouped = bolts(graph)
        return cls(
            name=topology.name,
            spouts=tuple(node for node in graph if isinstance(node, nodes.SpoutNode | nodes.QuerySpoutNode)),
            bolts=grouped,
            batch_groups=batch_groups(graph),
            parallelism={bolt.name: 1 for bolt in grouped},
            lineage={n.state.name: lineage(topology, n.id) for n in graph if isinstance(n, nodes.PersistNode)},
            gate_lineage={n.gate.name: lineage(topology, n.id) for n in graph if isinstance(n, nodes.GateNode)},
            query_lineage={
                n.stream: lineage(topology, answer_node(graph, n.id).id)
                for n in graph
                if isinstance(n, nodes.QuerySpoutNode)
            },
            _topology=topology,
        )

    def to_mermaid(self) -> str:
        """The topology as a Mermaid flowchart."""
        return to_mermaid(self._topology)


def answer_node(graph: nodes.Graph, query_id: int) -> nodes.Node:
    """The node whose rows answer a query: the last one defined behind its entrance (Trident rule 3.8)."""
    return graph.descendants(query_id)[-1]
