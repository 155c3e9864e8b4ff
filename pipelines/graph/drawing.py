"""A topology as a Mermaid flowchart."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelines.graph import nodes
from pipelines.graph.bolts import bolts, is_spout
from pipelines.graph.lineage import HasGraph

# What Mermaid takes literally inside a quoted label. Everything else becomes an entity: quotes end the label, `#`
# starts an entity, backticks start Markdown, `<` HTML, `%%` a directive, and a colon sets off its style clean-up.
_SPECIAL = re.compile(r"[^\w .,+\-=()/>*]")

_LABEL_LENGTH = 80


def to_mermaid(topology: HasGraph) -> str:
    """The flowchart of a topology, left to right.

    Spouts are rounded, bolts are boxes around the operations that run without a shuffle between them, states are
    cylinders, gates diamonds, entrances of queries slanted; what a query reads is a dashed edge from the state.
    """
    graph = topology.graph
    lines = ["flowchart LR"]
    lines += [f"  {_shape(node)}" for node in graph if is_spout(node)]
    for number, bolt in enumerate(bolts(graph)):
        lines.append(f'  subgraph bolt{number}["{escape(bolt.name)}"]')
        lines += [f"    {_shape(graph[node_id])}" for node_id in bolt.nodes]
        lines.append("  end")
    lines += [f'  state_{name}[("{escape(name)}")]' for name in _states(graph)]
    lines += [f"  {edge}" for edge in _edges(graph)]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """`text` for a quoted Mermaid label: one line, not endless, special characters as entities."""
    text = " ".join(text.split())
    if len(text) > _LABEL_LENGTH:
        text = text[: _LABEL_LENGTH - 3] + "..."
    return _SPECIAL.sub(lambda found: f"#{ord(found[0])};", text)


def _shape(node: nodes.Node) -> str:
    label = f'"{escape(node.label)}"'
    if isinstance(node, nodes.SpoutNode):
        return f"n{node.id}([{label}])"
    if isinstance(node, nodes.QuerySpoutNode):
        return f"n{node.id}[/{label}/]"
    if isinstance(node, nodes.GateNode):
        return f"n{node.id}{{{label}}}"
    return f"n{node.id}[{label}]"


def _states(graph: nodes.Graph) -> tuple[str, ...]:
    """Every state that the topology writes or reads, each once."""
    names = [node.state.name for node in graph if isinstance(node, nodes.PersistNode)]
    names += [node.state for node in graph if isinstance(node, nodes.StateQueryNode)]
    return tuple(dict.fromkeys(names))


def _edges(graph: nodes.Graph) -> Iterator[str]:
    for node in graph:
        for parent in node.parents:
            yield f"n{parent} --> n{node.id}"
        if isinstance(node, nodes.PersistNode):
            yield f"n{node.id} --> state_{node.state.name}"
        if isinstance(node, nodes.StateQueryNode):
            yield f"state_{node.state} -.-> n{node.id}"
