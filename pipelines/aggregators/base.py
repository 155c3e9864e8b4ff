"""The aggregator contracts of Trident (rules 1.3) and the base of the built-in ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import Column


class CombinerAggregator:
    """Associative aggregation: `init(*inputs)` of a tuple, `combine(a, b)`, and `zero()` for none.

    Per partition the value starts from `zero()` and each tuple's `init` is combined into it; the partial values are
    combined after the shuffle. A state folds partial values in any order, so `combine` must be associative and
    commutative.

    Args:
        init: called with the values of the input fields of one tuple.
        combine: merges two values.
        zero: the value of nothing.
        returns: Spark SQL type of the value, e.g. `"bigint"`.
    """

    def __init__(
        self,
        init: Callable[..., Any],
        combine: Callable[[Any, Any], Any],
        zero: Callable[[], Any],
        *,
        returns: str = "bigint",
        output: str | None = None,
    ) -> None:
        self.init, self.combine, self.zero = init, combine, zero
        self.returns, self.field, self.output = returns, None, output

    field: str | None
    output: str | None

    def finish(self, value: Any) -> Any:
        """The value that a reader sees."""
        return value

    def __str__(self) -> str:
        return type(self).__name__


class ReducerAggregator:
    """Aggregation by `reduce(current, *inputs)` from `init()`; not splittable into partial values."""

    def __init__(
        self, init: Callable[[], Any], reduce: Callable[..., Any], *, returns: str = "bigint", output: str | None = None
    ) -> None:
        self.init, self.reduce, self.returns, self.output = init, reduce, returns, output
        self.field: str | None = None

    def __str__(self) -> str:
        return type(self).__name__


class Aggregator:
    """General: `init()`, `aggregate(state, *inputs)`, and `complete(state)`, which yields any number of rows."""

    def __init__(
        self,
        init: Callable[[], Any],
        aggregate: Callable[..., Any],
        complete: Callable[[Any], Any],
        *,
        returns: str = "bigint",
        output: str | None = None,
    ) -> None:
        self.init, self.aggregate, self.complete = init, aggregate, complete
        self.returns, self.output = returns, output
        self.field: str | None = None

    def __str__(self) -> str:
        return type(self).__name__


class ColumnAggregator(CombinerAggregator, ABC):
    """A combiner that Spark computes by itself: nothing runs a row in Python.

    It has the same meaning twice: over plain values (`init`, `combine`, `zero`, `finish`: the reference engine and the
    fold of a few keys in `get`) and over columns (`partial`, `fold`, `result`: the batch, compaction and `frame`).

    Args:
        field: the input field, where the operation does not name it.
        output: the output field, where the operation does not name it.
    """

    arity: ClassVar[int] = 1

    def __init__(self, field: str | None = None, output: str | None = None) -> None:
        self.field, self.output = field, output

    @abstractmethod
    def init(self, *values: Any) -> Any:
        """The value of one tuple."""

    @abstractmethod
    def combine(self, a: Any, b: Any) -> Any:
        """Two values as one."""

    @abstractmethod
    def zero(self) -> Any:
        """The value of nothing."""

    @abstractmethod
    def partial(self, *inputs: Column) -> Column:
        """The aggregate expression over a batch's tuples that gives the partial value to store."""

    @abstractmethod
    def fold(self, value: Column) -> Column:
        """The aggregate expression over stored partial values."""

    def result(self, value: Column) -> Column:
        """The scalar expression from a folded value to what a reader sees."""
        return value

    def result_sql(self, column: str) -> str:
        """SQL (DataFusion's) that folds the stored partial values of a column and gives what a reader sees."""
        return self.fold_sql(column)

    @abstractmethod
    def fold_sql(self, column: str) -> str:
        """SQL (DataFusion's) that folds the stored partial values of a column into one partial value."""

    def __repr__(self) -> str:
        inside = ", ".join(repr(x) for x in (self.field, self.output) if x is not None)
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), self.field, self.output))
