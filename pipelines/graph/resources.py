"""What each component needs, summed over its operations (Trident rule 3.10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.errors import ResourceError
from pipelines.graph.expansion import Operation

Resources = Mapping[str, float]
"""Amounts by kind, e.g. `{"cpu": 100.0, "memory": 2048.0}`: cpu in percent of a core, memory in MB."""


def bolt_resources(operations: Sequence[Operation], defaults: Resources) -> dict[str, float]:
    """The sum over a bolt's operations of the defaults overlaid by each operation's own values.

    A lower value of its own wins over a default, as in the original.

    Raises:
        ResourceError: if one operation has other kinds than the first. (In the original two that each have a kind which
            the other lacks are a crash; here they are this error.)
    """
    found = [{**defaults, **dict(one.resources)} for one in operations]
    total = dict.fromkeys(found[0], 0.0)
    for operation, amounts in zip(operations, found, strict=True):
        if set(amounts) != set(total):
            more = [kind for kind in amounts if kind not in total]
            raise ResourceError(
                operation.label,
                more or [kind for kind in total if kind not in amounts],
                [(one.label, tuple(kinds)) for one, kinds in zip(operations, found, strict=True)],
                missing=not more,
            )
        for kind, amount in amounts.items():
            total[kind] += float(amount)
    return total


def spout_resources(spout: Operation, defaults: Resources) -> dict[str, float]:
    """A spout's own values over the defaults; its coordinator gets the same."""
    return {kind: float(amount) for kind, amount in {**defaults, **dict(spout.resources)}.items()}
