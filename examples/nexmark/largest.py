"""An aggregator of the example's own: the tuples that come first in an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.trident import CombinerAggregator


class Largest(CombinerAggregator):
    """The tuple with the largest values of some fields, as one struct, or the first `number` of them as a list.

    Args:
        fields: of the input tuples, with their types.
        by: fields to compare, the largest first.
        then_first: fields to compare where those are equal, the least first.
        number: how many tuples; None: one, not as a list.
    """

    def __init__(
        self, fields: Mapping[str, str], *, by: Sequence[str], then_first: Sequence[str] = (), number: int | None = None
    ) -> None:
        self._names, self._by, self._then, self._number = tuple(fields), tuple(by), tuple(then_first), number
        row = f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"
        super().__init__(returns=row if number is None else f"array<{row}>")

    def init(self, *values: Any) -> Any:
        row = dict(zip(self._names, values, strict=True))
        return row if self._number is None else [row]

    def combine(self, a: Any, b: Any) -> Any:
        if self._number is None:
            return a if self._before(a, b) else b
        merged, left, right = list[Any](), 0, 0
        while len(merged) < self._number and (left < len(a) or right < len(b)):
            if right == len(b) or (left < len(a) and self._before(a[left], b[right])):
                merged.append(a[left])
                left += 1
            else:
                merged.append(b[right])
                right += 1
        return merged

    def zero(self) -> Any:
        return None

    def _before(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        for name in self._by:
            if a[name] != b[name]:
                return a[name] > b[name]
        return [a[name] for name in self._then] <= [b[name] for name in self._then]
