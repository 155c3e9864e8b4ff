"""Log states that group the same tuples alike: one aggregate of Spark's gives the rows of all of them.

Each key of a batch has one row in each of these states, so their partial values stand beside each other, and the tuples are
read, shuffled and grouped once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from pipelines.graph import nodes
from pipelines.planner.aggregates import over_columns
from pipelines.planner.persists import grouped
from pipelines.planner.step import columns
from pipelines.state.kinds import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipelines.planner.step import Step


@dataclass(frozen=True)
class Siblings:
    """At least two persists of one parent, with the same group and built-in aggregators, into states of layout log."""

    members: tuple[nodes.PersistNode, ...]

    @property
    def first(self) -> nodes.PersistNode:
        """Return the member in whose place the rows of all are computed."""
        return self.members[0]

    def place(self, member: nodes.PersistNode, name: str) -> str:
        """Return the column of the common rows that has a member's value. States may name their values alike."""
        return f"_{self.members.index(member)} {name}"

    def rows(self, step: Step) -> DataFrame:
        """Return the common rows: the group's fields, the slice, and all partial values, named by `place`."""
        made = [
            a.aggregator.partial(*columns(a.inputs)).alias(self.place(member, a.output))
            for member in self.members
            for a in member.aggregations
        ]
        return grouped(step, step.batch(), made)


def siblings_of(persists: Iterable[nodes.Node]) -> list[Siblings]:
    """Return the siblings among some nodes, in their order."""
    alike: dict[tuple[tuple[int, ...], tuple[str, ...]], list[nodes.PersistNode]] = {}
    for node in persists:
        if _stores_partials(node):
            alike.setdefault((node.parents, node.group), []).append(node)
    return [Siblings(tuple(members)) for members in alike.values() if len(members) > 1]


def _stores_partials(node: nodes.Node) -> TypeGuard[nodes.PersistNode]:
    """Check whether Spark alone makes what the state stores, without what it held before."""
    # No channel, whose rows are accounted for otherwise.
    if not isinstance(node, nodes.PersistNode) or type(node) is not nodes.PersistNode:
        return False
    plain = node.updater is None and node.state.layout == LOG
    return plain and bool(node.aggregations) and over_columns(node.aggregations)
