"""Count: tuples, whatever they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.aggregators.base import ColumnAggregator

if TYPE_CHECKING:
    from pyspark.sql import Column


class Count(ColumnAggregator):
    """Number of tuples, as bigint (Trident rules 1.3: init 1, zero 0). Takes no input field.

    In an event flow `Count("n")` names the output; here both forms are taken.
    """

    arity: ClassVar[int] = 0

    def __init__(self, output: str | None = None) -> None:
        super().__init__(None, output)

    def init(self, *values: Any) -> int:
        return 1

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0

    def partial(self, *inputs: Column) -> Column:
        from pyspark.sql import functions as F

        return F.count(F.lit(1))

    def fold(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.sum(value)

    def fold_sql(self, column: str) -> str:
        return f"sum({column})"
