"""Sum of a numeric field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import spark_functions as F
from pipelines.aggregators.base import AddedUp
from pipelines.aggregators.exact import DIGITS, PLACES, in_column, plus
from pipelines.aggregators.values import RunningTotal
from pipelines.aggregators.window import WHOLE, EventAggregator, Types, numeric_type

if TYPE_CHECKING:
    from pyspark.sql import Column


class Sum(AddedUp, EventAggregator):
    """Sum of one field: bigint for integers, double or decimal otherwise. Nulls add nothing; a sum of none is 0.

    In an event flow `Sum("v", "total")`; the output is "sum" unless named. A sum of floats is exact, rounded once.
    """

    default_output: ClassVar[str] = "sum"
    numeric: ClassVar[bool] = True

    def accumulator(self) -> RunningTotal:
        return RunningTotal("Sum", str(self.field))

    def result_types(self, types: Types) -> list[tuple[str, str | None]]:
        kind = numeric_type("Sum", str(self.field), types)
        if kind is None:
            return [(self.named, None)]
        if kind.startswith("dec"):
            return [(self.named, wider(kind))]
        return [(self.named, "bigint" if kind in WHOLE else "double")]

    def init(self, *values: Any) -> Any:
        return 0 if values[0] is None else values[0]

    def combine(self, a: Any, b: Any) -> Any:
        return plus(a, b)

    def partial(self, *inputs: Column) -> Column:
        return F.coalesce(F.sum(inputs[0]), F.lit(0))

    def unrounded(self, *inputs: Column) -> Column:
        return F.sum(inputs[0])

    def in_column(self, value: Any) -> Any:
        """Return the sum of a batch as Spark makes it for a topology, where `partial` is rounded to 28 places."""
        return in_column(value)


def in_topology(kind: str | None) -> str | None:
    """Return the type that a sum has as a topology's field, where the zero of no tuples takes ten whole digits (ADR 90)."""
    scale = int(kind.rstrip(") ").rpartition(",")[2]) if kind and kind.startswith("dec") else 0
    return f"decimal({DIGITS}, {PLACES})" if scale > PLACES else kind


def wider(decimal: str) -> str:
    """Return the type of a sum of decimals, as Spark has it: ten digits more, 38 at most."""
    _, _, inside = decimal.partition("(")
    precision, _, scale = inside.rstrip(") ").partition(",")
    return f"decimal({min(38, int(precision or 10) + 10)}, {int(scale or 0)})"
