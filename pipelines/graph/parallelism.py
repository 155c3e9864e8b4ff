"""How many tasks each bolt has (Trident rule 3.9)."""

from __future__ import annotations

from pipelines.errors import ParallelismError
from pipelines.graph import nodes
from pipelines.graph.expansion import Operation
from pipelines.graph.grouping import Grouping


def tasks(grouping: Grouping) -> dict[int, int]:
    """The tasks of each operation that is in a bolt, and of each spout, by operation id.

    Bolts and spouts that identity partitions join form a class, and a class has one number of tasks: the largest hint in
    it, at most what its sources can use; or what a state in it demands.

    Raises:
        ParallelismError: if a state demands more than a source of its class can use, or two states differ.
    """
    found: dict[int, int] = {}
    for members in _classes(grouping):
        number = _tasks_of([grouping.operations[one] for one in sorted(members)])
        found.update(dict.fromkeys(members, number))
    return found


def _tasks_of(members: list[Operation]) -> int:
    maximum = min((one.max_parallelism for one in members if one.max_parallelism is not None), default=None)
    fixed = [(str(one.writes), one.partitions) for one in members if one.partitions is not None]
    if fixed:
        names, numbers = [name for name, _ in fixed], [number for _, number in fixed]
        if len(set(numbers)) > 1:
            raise ParallelismError(names, numbers)
        if maximum is not None and maximum < numbers[0]:
            raise ParallelismError(names, numbers, maximum)
        return numbers[0]
    hinted = max((one.hint for one in members if one.hint is not None), default=1)
    wanted = max(hinted, 1)
    return wanted if maximum is None else min(wanted, maximum)


def _classes(grouping: Grouping) -> list[set[int]]:
    """The operations of groups and spouts that identity partitions join."""
    home: dict[int, set[int]] = {}
    for found in (*grouping.groups, *({one.id} for one in grouping.operations.values() if one.spout)):
        members = set(found)
        home.update(dict.fromkeys(members, members))
    for child in grouping.operations.values():
        for parent in child.parents if child.id in home else ():
            between = grouping.operations[parent]
            if between.repartition is not None and between.repartition.kind == nodes.IDENTITY:
                _join(home, between.parents[0], child.id)
    return list({id(members): members for members in home.values()}.values())


def _join(home: dict[int, set[int]], one: int, other: int) -> None:
    joined, added = home[one], home[other]
    if joined is not added:
        joined |= added
        home.update(dict.fromkeys(added, joined))
