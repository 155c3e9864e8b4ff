"""The traits of each operation: what it asks of its parents' frames, and whether a tuple may come to it alone.

Nothing here has a default. A class of nodes that does not say its traits cannot be defined (`nodes.Node`), so that none is
taken for one that asks nothing, or for one that works on each tuple by itself, because somebody forgot to say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Passes(Enum):
    """The hidden columns that a node asks of its parents in turn when its consumers ask for them."""

    ALL = "all"
    BUT_TASK = "all but the task"
    BUT_NEW_TASK = "all, the task where the number of tasks stays"
    NONE = "none"


@dataclass(frozen=True)
class Asks:
    """A node's demands on its parents' frames beside their fields.

    Attributes:
        task: the logical partition of each tuple.
        order: the order in which the tuples arrived.
        passes: what is asked of the node itself, and it does not make.
    """

    task: bool
    order: bool
    passes: Passes


PASSES_ON = Asks(task=False, order=False, passes=Passes.ALL)
"""Each tuple by itself: what it makes has the task and the place of what it is made of."""
NOTHING = Asks(task=False, order=False, passes=Passes.NONE)
IN_TASKS = Asks(task=True, order=True, passes=Passes.NONE)
"""The tuples of each task, in order."""

AsksOf = Asks | Callable[[Any], Asks]
"""What a class of nodes asks; or what one of them asks, computed from its own fields."""

REPLAYABLE = ""
"""A tuple that comes alone, and later than those that it came with, is treated as it would have been."""


def of_query(node: Any) -> Asks:
    """Ask for the order: a query function in Python gets a batch's tuples in order, by task unless they are grouped."""
    in_python = not getattr(node.function, "in_spark", False)
    task = (in_python and not node.group) or node.parted
    return Asks(task=task, order=in_python, passes=Passes.BUT_TASK if node.group else Passes.ALL)


def of_repartition(node: Any) -> Asks:
    passes = {"identity_partition": Passes.ALL, "local_or_shuffle": Passes.BUT_NEW_TASK}
    return Asks(task=False, order=False, passes=passes.get(node.kind, Passes.BUT_TASK))


def of_aggregate(node: Any) -> Asks:
    return Asks(task=node.partitioned, order=in_order(node.aggregations), passes=Passes.NONE)


def of_reduce(node: Any) -> Asks:
    return Asks(task=not any(node.groups), order=True, passes=Passes.NONE)


def of_persist(node: Any) -> Asks:
    """Return an updater sees tuples by task and in order; aggregators only where the order can matter."""
    if node.updater is not None:
        return IN_TASKS
    return Asks(task=False, order=in_order(node.aggregations), passes=Passes.NONE)


def in_order(aggregations: tuple[Any, ...]) -> bool:
    """Check whether the order of the tuples can matter to one of the aggregators; to combiners, which say so, it does not."""
    return not all(getattr(aggregation.aggregator, "in_any_order", False) for aggregation in aggregations)
