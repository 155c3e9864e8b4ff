"""Logical partitions: which frames must carry the task and the order of their tuples, and the repartitions.

A batch is cut in tasks only in name: the hidden column `_task` says which one a tuple belongs to, and what works per
partition groups by it. So the answers do not depend on how Spark lays the rows out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipelines.graph import nodes
from pipelines.graph.traits import PASSES_ON, Asks, Passes
from pipelines.graph.types import check_whole, known_types
from pipelines.planner.functions import task_of
from pipelines.planner.step import ORDER, REPLAYED, TASK, Step, column, columns, hidden, task_by
from pipelines.state.schema import SLICE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOTHING: frozenset[str] = frozenset()


def hidden_needs(
    graph: nodes.Graph, sources: Mapping[int, tuple[int, ...]], tasks: Mapping[int, int]
) -> dict[int, frozenset[str]]:
    """Return for each of the nodes the hidden columns, beside the slice, that its consumers ask of its frame.

    Args:
        sources: by node the nodes whose frames it reads.
    """
    needs: dict[int, frozenset[str]] = dict.fromkeys(sources, NOTHING)
    for node in sorted((graph[node_id] for node_id in sources), key=lambda member: member.id, reverse=True):
        asks = PASSES_ON if _gives_tuples(node, graph) else node.asks
        for source in sources[node.id]:
            needs[source] |= _asked(asks, needs[node.id], tasks[node.id], tasks[source])
    return needs


def _gives_tuples(node: nodes.Node, graph: nodes.Graph) -> bool:
    """Check whether a node gives new values of a state of tuples: these are the tuples as they came."""
    persist = graph[node.parents[0]] if isinstance(node, nodes.NewValuesNode) else None
    return isinstance(persist, nodes.PersistNode) and not persist.aggregations and persist.updater is None


def _asked(asks: Asks, needed: frozenset[str], tasks: int, before: int) -> frozenset[str]:
    """Return what a node that asks so asks of the frames that it reads."""
    passed = {
        Passes.ALL: needed,
        Passes.BUT_TASK: needed - {TASK},
        Passes.BUT_NEW_TASK: needed if tasks == before else needed - {TASK},
        Passes.NONE: NOTHING,
    }[asks.passes]
    own = {column for column, asked in ((TASK, asks.task and tasks > 1), (ORDER, asks.order)) if asked}
    return passed | own


def keeps_tasks(node: nodes.PartitionNode, tasks: int, before: int) -> bool:
    """Check whether each tuple stays in its task."""
    passes = node.asks.passes
    return passes is Passes.ALL or (passes is Passes.BUT_NEW_TASK and tasks == before)


def entered(frame: DataFrame, fields: tuple[str, ...], needed: frozenset[str], tasks: int) -> DataFrame:
    """Return a spout's frame with its hidden columns: its tuples are dealt to tasks by a hash of all fields."""
    if ORDER in needed:
        frame = frame.withColumn(ORDER, F.monotonically_increasing_id())
    return frame.withColumn(TASK, task_by(frame, fields, tasks)) if TASK in needed else frame


def repartitioned(step: Step) -> DataFrame:
    """Run `shuffle`, `partition_by` and the others (Trident rules 1.5).

    Those that spread tuples over several tasks spread them over as many partitions of Spark's, too, so that a hint makes
    a function in Python run that many times at once.
    """
    node, frame, tasks = step.node, step.frame, step.tasks
    if tasks == 1:
        return frame.drop(TASK)
    if keeps_tasks(node, tasks, step.before[0]):
        return frame
    frame = frame.drop(TASK)
    if node.kind == nodes.BROADCAST:
        return frame.withColumn(TASK, F.explode(F.sequence(F.lit(0), F.lit(tasks - 1))))
    if node.kind in (nodes.GLOBAL, nodes.BATCH_GLOBAL):
        if TASK not in step.needed:
            return frame
        return frame.withColumn(TASK, F.lit(0) if node.kind == nodes.GLOBAL else step.batch_task(frame))
    if node.kind == nodes.CUSTOM:
        task = F.pmod(task_of(node, frame, node.fields).cast("bigint"), F.lit(tasks)).cast("int")
    elif node.kind == nodes.DIRECT:
        if known_types(step.graph, node.id)[node.by[0]] is None:
            check_whole(node.label, node.by[0], frame.schema[node.by[0]].dataType.simpleString())
        task = F.pmod(column(node.by[0]).cast("bigint"), F.lit(tasks)).cast("int")
    else:
        task = task_by(frame, node.by or node.fields, tasks)
    dealt = frame.withColumn(TASK, F.coalesce(task, F.lit(0))).repartition(tasks, TASK)
    return dealt if TASK in step.needed else dealt.drop(TASK)


def merged(step: Step) -> DataFrame:
    """Return all parents' tuples, by position, named as the merge's fields; the first parent's come first."""
    names = step.node.fields
    carried = [name for name in (SLICE_COLUMN, TASK, REPLAYED) if all(name in frame.columns for frame in step.frames)]
    parts, number, numbers = [], 0, _numbers(step.graph, step.node.id)
    for frame, parent in zip(step.frames, step.node.parents, strict=True):
        own = zip(step.graph[parent].fields, names, strict=True)
        picked = [column(name).alias(new) for name, new in own] + columns(carried)
        if ORDER in step.needed:
            # Beyond so many streams the order of the last ones is left open, which no rule asks for.
            own_first = min(number, _MOST_MERGED - numbers[parent])
            picked.append((arrival(frame) + F.lit(own_first << _PLACES)).alias(ORDER))
        number += numbers[parent]
        parts.append(frame.select(*picked))
    first, *others = parts
    for part in others:
        first = first.union(part)
    return first


_PLACES = 53
"""Bits for the place of a tuple in its stream: of a million partitions of Spark's. The others tell the merged streams apart."""
_MOST_MERGED = 1024


def _numbers(graph: nodes.Graph, node_id: int) -> dict[int, int]:
    """Return for a node and all above it how many merged streams its order may tell apart."""
    numbers: dict[int, int] = {}
    for node in graph.ancestors(node_id):
        above = [numbers[parent] for parent in node.parents]
        own = sum(above) if isinstance(node, nodes.MergeNode) else max(above, default=1)
        numbers[node.id] = min(own, _MOST_MERGED)
    return numbers


def arrival(frame: DataFrame) -> Column:
    """Return a number that grows in the order in which a frame's tuples arrived."""
    return column(ORDER) if ORDER in hidden(frame) else F.monotonically_increasing_id()
