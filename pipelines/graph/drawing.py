"""A topology as a Mermaid flowchart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pipelines.graph import nodes
from pipelines.graph.bolts import Layout, layout
from pipelines.graph.expansion import PlannedOperation
from pipelines.graph.fields import distinct
from pipelines.graph.lineage import HasGraph
from pipelines.graph.nodes import QUERY_SPOUT, STATIC_STATE

# What Mermaid takes literally inside a quoted label. Everything else becomes an entity: quotes end the label, `#`
# starts an entity, backticks start Markdown, `<` HTML, `%%` a directive, and a colon sets off its style clean-up.
_SPECIAL = re.compile(r"[^\w .,+\-=()/>*]")

_LABEL_LENGTH = 80


def to_mermaid(topology: HasGraph) -> str:
    """Return the flowchart of a topology, left to right: its operations, as they are grouped into bolts.

    Spouts are rounded, bolts are boxes around the operations that run without a repartition between them, gates are
    diamonds, spouts of queries slanted. A state is a cylinder in the bolt that holds it; what a query reads is a
    dashed edge. A repartition is the text on an edge. More than one task is said behind the name. A channel is a cylinder
    too, with an edge to the stream that reads it, and what runs in that stream itself, its windows, is in a box behind it.
    """
    plan = layout(topology.graph)
    inside = {spout.operation.id: _steps(topology.graph[spout.node]) for spout in plan.spouts}
    lines = ["flowchart LR"]
    for spout in plan.spouts:
        lines.append(f"  {_shape(spout.operation, spout.tasks)}")
        lines += _in_stream(spout.operation, inside[spout.operation.id])
    for number, bolt in enumerate(plan.bolts):
        lines.append(f'  subgraph bolt{number}["{escape(_title(bolt.name, bolt.tasks))}"]')
        lines += [f"    {_shape(operation)}" for operation in bolt.operations if operation.kind != STATIC_STATE]
        lines += [
            f'    state_{name}[("{escape(name)}")]'
            for name in distinct(operation.state for operation in bolt.operations if operation.state)
        ]
        lines.append("  end")
    for spout in plan.spouts:
        lines += [f"  {edge}" for edge in _through(topology.graph[spout.node], spout.operation)]
    ends = {operation_id: _step_id(operation_id, steps[-1].id) for operation_id, steps in inside.items() if steps}
    lines += [f"  {edge}" for edge in _edges(plan, ends)]
    return "\n".join(lines) + "\n"


def _title(name: str, tasks: int) -> str:
    return name if tasks == 1 else f"{name} ({tasks} tasks)"


def escape(text: str) -> str:
    """Return `text` for a quoted Mermaid label: one line, not endless, special characters as entities."""
    text = " ".join(text.split())
    if len(text) > _LABEL_LENGTH:
        text = text[: _LABEL_LENGTH - 3] + "..."
    return _SPECIAL.sub(lambda match: f"#{ord(match[0])};", text)


def _shape(operation: PlannedOperation, tasks: int = 1) -> str:
    label = f'"{escape(_title(operation.label, tasks))}"'
    if operation.spout:
        return f"n{operation.id}[/{label}/]" if operation.kind == QUERY_SPOUT else f"n{operation.id}([{label}])"
    if operation.kind == "gate":
        return f"n{operation.id}{{{label}}}"
    return f"n{operation.id}[{label}]"


def _steps(node: nodes.Node) -> tuple[nodes.Node, ...]:
    """List what runs in a stream itself."""
    return node.steps if isinstance(node, nodes.ChannelSpoutNode) else ()


def _step_id(operation: int, node: int) -> str:
    return f"n{operation}_{node}"


def _in_stream(operation: PlannedOperation, steps: tuple[nodes.Node, ...]) -> Iterator[str]:
    if steps:
        yield f'  subgraph stream{operation.id}["{escape(operation.label)} in the stream itself"]'
        yield from (f'    {_step_id(operation.id, step.id)}["{escape(step.label)}"]' for step in steps)
        yield "  end"


def _through(node: nodes.Node, operation: PlannedOperation) -> Iterator[str]:
    """Yield the edges from channels to their reader, and on through its steps."""
    if not isinstance(node, nodes.ChannelSpoutNode):
        return
    yield from (f"state_{channel} --> n{operation.id}" for channel in node.reads)
    steps = {step.id for step in node.steps}
    for child in node.steps:
        for parent in child.parents:
            above = _step_id(operation.id, parent) if parent in steps else f"n{operation.id}"
            yield f"{above} --> {_step_id(operation.id, child.id)}"


def _edges(plan: Layout, ends: Mapping[int, str]) -> Iterator[str]:
    """Yield the edges between what is drawn: a repartition is the text of the edges through it.

    Args:
        ends: where the edges of an operation begin that is drawn as several.
    """
    for operation in plan.operations.values():
        if operation.repartition is not None:
            continue
        for parent in operation.parents:
            between = plan.operations[parent]
            if between.repartition is None:
                yield f"{ends.get(parent, f'n{parent}')} --> n{operation.id}"
            else:
                above = between.parents[0]
                yield f'{ends.get(above, f"n{above}")} -->|"{escape(between.label)}"| n{operation.id}'
        if operation.writes and operation.kind != STATIC_STATE:
            yield f"n{operation.id} --> state_{operation.writes}"
        if operation.reads:
            yield f"state_{operation.reads} -.-> n{operation.id}"
