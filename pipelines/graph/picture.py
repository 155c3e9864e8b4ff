"""A topology as a picture, for pages that do not draw Mermaid: SVG without scripts, fonts or anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from pipelines.graph import nodes
from pipelines.graph.bolts import Layout, layout
from pipelines.graph.fields import distinct
from pipelines.graph.lineage import HasGraph
from pipelines.graph.nodes import STATIC_STATE
from pipelines.printable import printable

# Boxes have a ground of their own and dark text, edges a grey between: readable on a light page and on a dark one.
_STYLE = (
    "text{font:11px ui-monospace,Menlo,monospace;fill:#1f2328}.t{font-weight:700}.e{font-size:10px;fill:#7b7b7b}"
    "rect{stroke:#7b7b7b}.spout{fill:#dbe9ff}.query{fill:#efe3fd}.bolt{fill:#f1f3f5}.state{fill:#d6f5e0}"
    "path{fill:none;stroke:#7b7b7b}.q{stroke-dasharray:4 3}"
)
_LETTER, _LINE, _PAD = 6.7, 15, 8
_BETWEEN, _BESIDE, _MARGIN = 120, 14, 6
_LONGEST, _LABEL = 34, 17
# Rows stay where they are: nothing to tell.
_UNSAID = "identity_partition"


@dataclass
class _Box:
    """A spout, a bolt, or a state."""

    kind: str
    lines: list[str]
    column: int = 0
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * _LETTER + 2 * _PAD

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + _PAD


@dataclass
class _Drawing:
    boxes: dict[str, _Box] = field(default_factory=dict)
    edges: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    """By both ends: what is written at it, and whether it is a query."""

    def edge(self, start: str, end: str, label: str = "", *, query: bool = False) -> None:
        if start != end:
            self.edges.setdefault((start, end), (label, query))


def to_svg(topology: HasGraph) -> str:
    """Return the picture of a topology, from left to right: spouts, bolts with their operations, states.

    What a query reads is a dashed edge, a repartition the text on an edge. Channels are states too.
    """
    plan = layout(topology.graph)
    drawing = _Drawing()
    _boxes(topology, plan, drawing)
    _edges(topology, plan, drawing)
    _columns(drawing)
    width, height = _place(drawing)
    parts = [*_drawn_edges(drawing), *_drawn_boxes(drawing)]
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{"".join(parts)}</svg>'


def _short(text: str, longest: int = _LONGEST) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _title(name: str, tasks: int) -> str:
    return _short(name) if tasks == 1 else f"{_short(name)} x {tasks}"


def _boxes(topology: HasGraph, plan: Layout, drawing: _Drawing) -> None:
    for spout in plan.spouts:
        node = topology.graph[spout.node]
        steps = [step.label for step in node.steps] if isinstance(node, nodes.ChannelSpoutNode) else []
        kind = "query" if isinstance(node, nodes.QuerySpoutNode) else "spout"
        drawing.boxes[spout.name] = _Box(kind, [_title(spout.operation.label, spout.tasks), *map(_short, steps)])
    for bolt in plan.bolts:
        steps = [operation.label for operation in bolt.operations if operation.kind != STATIC_STATE]
        if steps:
            drawing.boxes[bolt.name] = _Box("bolt", [_title(bolt.name, bolt.tasks), *map(_short, steps)])
        for state in distinct(operation.state for operation in bolt.operations if operation.state):
            drawing.boxes[f"state {state}"] = _Box("state", [_short(state)])


def _edges(topology: HasGraph, plan: Layout, drawing: _Drawing) -> None:
    home = plan.component_of()
    for operation in plan.operations.values():
        if operation.repartition is not None or operation.kind == STATIC_STATE:
            continue
        for parent in operation.parents:
            between = plan.operations[parent]
            above = parent if between.repartition is None else between.parents[0]
            drawing.edge(home[above], home[operation.id], "" if between.repartition is None else between.label)
        if operation.writes:
            drawing.edge(home[operation.id], f"state {operation.writes}")
        if operation.reads:
            drawing.edge(f"state {operation.reads}", home[operation.id], query=True)
    for spout in plan.spouts:
        node = topology.graph[spout.node]
        for channel in node.reads if isinstance(node, nodes.ChannelSpoutNode) else ():
            drawing.edge(f"state {channel}", spout.name)
    drawing.edges = {ends: what for ends, what in drawing.edges.items() if set(ends) <= set(drawing.boxes)}


def _columns(drawing: _Drawing) -> None:
    """Place each box right of all that lead to it; a query back to a state that it leads to itself does not count."""
    kept: dict[str, list[str]] = {name: [] for name in drawing.boxes}
    for (start, end), _ in sorted(drawing.edges.items(), key=lambda edge: edge[1][1]):
        if not _leads(kept, end, start):
            kept[start].append(end)
    waiting = list(kept)
    while waiting:
        name = waiting.pop()
        for after in kept[name]:
            if drawing.boxes[after].column <= drawing.boxes[name].column:
                drawing.boxes[after].column = drawing.boxes[name].column + 1
                waiting.append(after)


def _leads(edges: dict[str, list[str]], start: str, end: str) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        if name == end:
            return True
        waiting += [target for target in edges[name] if target not in seen]
        seen.update(edges[name])
    return False


def _place(drawing: _Drawing) -> tuple[float, float]:
    """Return where each box is, and the size of the whole."""
    columns: list[list[_Box]] = [[] for _ in range(max(box.column for box in drawing.boxes.values()) + 1)]
    for box in drawing.boxes.values():
        columns[box.column].append(box)
    above: dict[int, list[_Box]] = {id(box): [] for box in drawing.boxes.values()}
    for start, end in drawing.edges:
        above[id(drawing.boxes[end])].append(drawing.boxes[start])
    x, height = float(_MARGIN), 0.0
    for column in columns:
        # Beside what leads to it, as far as there is room.
        middles = {id(box): _middle(above[id(box)], box.column) for box in column}
        column.sort(key=lambda box: middles[id(box)])
        y = float(_MARGIN)
        for box in column:
            box.x = x
            box.y = max(y, middles[id(box)] - box.height / 2)
            y = box.y + box.height + _BESIDE
        height = max(height, y)
        x += max(box.width for box in column) + _BETWEEN
    return x - _BETWEEN + _MARGIN, height - _BESIDE + _MARGIN


def _middle(above: list[_Box], column: int) -> float:
    placed = [box.y + box.height / 2 for box in above if box.column < column]
    return sum(placed) / len(placed) if placed else 0.0


def _drawn_edges(drawing: _Drawing) -> Iterator[str]:
    for (start, end), (label, query) in drawing.edges.items():
        source, two = drawing.boxes[start], drawing.boxes[end]
        # Back to a box on the left: out of the left side and into the right one, below what leads there.
        back = two.column <= source.column
        way, below = (-1, 6) if back else (1, 0)
        x1, x2 = (source.x, two.x + two.width) if back else (source.x + source.width, two.x)
        y1, y2 = source.y + source.height / 2 + below, two.y + two.height / 2 + below
        bend = way * max(20.0, abs(x2 - x1) / 2)
        dashed = ' class="q"' if query else ""
        yield f'<path{dashed} d="M{x1:.0f} {y1:.0f}C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"/>'
        yield f'<path d="M{x2 - 5 * way:.0f} {y2 - 4:.0f}L{x2:.0f} {y2:.0f}L{x2 - 5 * way:.0f} {y2 + 4:.0f}"/>'
        if label and label != _UNSAID:
            # Before the box that it leads to, where edges do not lie upon each other.
            said = escape(_short(label, _LABEL))
            yield f'<text class="e" x="{x2 - 8:.0f}" y="{y2 - 6:.0f}" text-anchor="end">{said}</text>'


def _drawn_boxes(drawing: _Drawing) -> Iterator[str]:
    for box in drawing.boxes.values():
        radius = 12 if box.kind in ("spout", "query") else 3
        place = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="{radius}"'
        yield f'<rect class="{box.kind}" {place}/>'
        for number, line in enumerate(box.lines):
            title = "" if number else ' class="t"'
            y = box.y + (number + 1) * _LINE - 1
            yield f'<text{title} x="{box.x + _PAD:.0f}" y="{y:.0f}">{escape(line)}</text>'
