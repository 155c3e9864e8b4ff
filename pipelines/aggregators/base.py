"""The aggregator contracts of Trident (rules 1.3) and the base of the built-in ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import spark_functions as F
from pipelines.errors import FunctionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column


Returns = str | Sequence[str]
"""Spark SQL type of the one output, or for several outputs a list of types."""
Total = Callable[[str, str], str]
"""From SQL for numbers, and the part of the partial value that they are ("" for the whole), to SQL for their sum."""


def plain_total(numbers: str, part: str) -> str:
    """Return DataFusion's own sum, which takes integers round the corner."""
    return f"sum({numbers})"


class ByValue:
    """Equal to another of its class with the same arguments, which its `repr` shows."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), repr(self)))


class Parts:
    """The base of the contracts: the parts are given as callables, or a subclass defines methods of the same names."""

    returns: Returns = "bigint"
    field: str | Sequence[str] | None = None
    output: str | Sequence[str] | None = None

    def _take(
        self,
        given: dict[str, Callable[..., Any] | None],
        returns: Returns | None,
        field: str | Sequence[str] | None = None,
        output: str | Sequence[str] | None = None,
    ) -> None:
        for name, call in given.items():
            if call is not None:
                setattr(self, name, call)
            if not callable(getattr(self, name, None)):
                raise FunctionError(
                    type(self).__name__,
                    f"has no {name}",
                    hint=f"give the callables {', '.join(given)}, or define methods of these names",
                )
        for name, value in (("returns", returns), ("field", field), ("output", output)):
            if value is not None:
                setattr(self, name, value)

    def __str__(self) -> str:
        return type(self).__name__


class CombinerAggregator(Parts):
    """Associative aggregation: `init(*inputs)` of a tuple, `combine(a, b)`, and `zero()` for none.

    Per partition the value starts from `zero()` and each tuple's `init` is combined into it; the partial values are
    combined after the shuffle. A state folds partial values in any order, so `combine` must be associative and
    commutative. None stands for no value: it is never given to `combine` (see `merge`).

    Args:
        init: called with the values of the input fields of one tuple.
        combine: merges two values.
        zero: the value of nothing.
        returns: Spark SQL type of the value, e.g. `"bigint"`.
        field: the input field or fields, where the operation does not name them.
        output: the output field, where the operation does not name it.

    Raises:
        FunctionError: if a part is neither given nor defined by the subclass.
    """

    in_any_order: ClassVar[bool] = True
    """The order of the tuples does not matter (`pipelines.graph.traits`)."""

    init: Callable[..., Any]
    combine: Callable[[Any, Any], Any]
    zero: Callable[[], Any]

    def __init__(
        self,
        init: Callable[..., Any] | None = None,
        combine: Callable[[Any, Any], Any] | None = None,
        zero: Callable[[], Any] | None = None,
        *,
        returns: str | None = None,
        field: str | Sequence[str] | None = None,
        output: str | None = None,
    ) -> None:
        self._take({"init": init, "combine": combine, "zero": zero}, returns, field, output)

    def merge(self, a: Any, b: Any) -> Any:
        """Merge two partial values; None is the value of nothing (Trident rules 1.3)."""
        if a is None or b is None:
            return b if a is None else a
        return self.combine(a, b)

    def finish(self, value: Any) -> Any:
        """Return the value that a reader sees."""
        return value

    @property
    def shown_as_stored(self) -> bool:
        """Check whether a reader sees the folded value itself; else it can only be kept in a log, whose readers finish it."""
        return type(self).finish is CombinerAggregator.finish


class ReducerAggregator(Parts):
    """Aggregation by `reduce(current, *inputs)` from `init()`; not splittable into partial values.

    The arguments and errors are those of `CombinerAggregator`.
    """

    init: Callable[[], Any]
    reduce: Callable[..., Any]

    def __init__(
        self,
        init: Callable[[], Any] | None = None,
        reduce: Callable[..., Any] | None = None,
        *,
        returns: str | None = None,
        field: str | Sequence[str] | None = None,
        output: str | None = None,
    ) -> None:
        self._take({"init": init, "reduce": reduce}, returns, field, output)


class Aggregator(Parts):
    """General: `init`, `aggregate` and `complete`, which may give any number of rows at any time (Trident rules 1.3).

    - `init()` or `init(batch_id)`, by its signature, makes the state of one partition or group of a batch; `batch_id` is a
      txid (int), in a backfill, whose batches are slices, the slice's name (str), in `run_bounded` "all";
    - `aggregate(state, *inputs)` returns the new state, or None if it changed the state in place, or is a generator:
      then what it yields are rows, emitted at once;
    - `complete(state)` gives rows: a generator, a list of rows, one value, or None for no row.

    A row is a tuple, or a bare value where there is one output field. With `returns=None` in a subclass the outputs
    have the types of the inputs, in order.

    Args:
        returns: Spark SQL type of the output, or a list with one for each output.
        field, output: as of `CombinerAggregator`; a list for several outputs.

    Raises:
        FunctionError: if a part is neither given nor defined by the subclass.
    """

    init: Callable[..., Any]
    aggregate: Callable[..., Any]
    complete: Callable[[Any], Any]

    def __init__(
        self,
        init: Callable[..., Any] | None = None,
        aggregate: Callable[..., Any] | None = None,
        complete: Callable[[Any], Any] | None = None,
        *,
        returns: Returns | None = None,
        field: str | Sequence[str] | None = None,
        output: str | Sequence[str] | None = None,
    ) -> None:
        self._take({"init": init, "aggregate": aggregate, "complete": complete}, returns, field, output)


class ColumnAggregator(ByValue, CombinerAggregator, ABC):
    """A combiner that Spark computes by itself: nothing runs a row in Python.

    It has the same meaning twice: over plain values (`init`, `combine`, `zero`, `finish`: the reference engine and the
    fold of a few keys in `get`) and over columns (`partial`, `fold`, `result`: the batch, compaction and `frame`).

    Args:
        field: the input field, where the operation does not name it.
        output: the output field, where the operation does not name it.
    """

    arity: ClassVar[int] = 1
    numeric: ClassVar[bool] = False
    """Whether its fields must be numbers: of a field that is known to be none it is refused."""

    @property
    def shown_as_stored(self) -> bool:
        """Check the same of both meanings."""
        return super().shown_as_stored and type(self).result is ColumnAggregator.result

    def __init__(self, field: str | None = None, output: str | None = None) -> None:
        self.field, self.output = field, output

    @abstractmethod
    def init(self, *values: Any) -> Any:
        """Return the value of one tuple."""

    @abstractmethod
    def combine(self, a: Any, b: Any) -> Any:
        """Combine two values."""

    @abstractmethod
    def zero(self) -> Any:
        """Return the value of nothing."""

    @abstractmethod
    def partial(self, *inputs: Column) -> Column:
        """Return the aggregate expression over a batch's tuples that gives the partial value to store."""

    def unrounded(self, *inputs: Column) -> Column:
        """Return an expression of the type that holds a part of a batch's partial value."""
        return self.partial(*inputs)

    @abstractmethod
    def fold(self, value: Column) -> Column:
        """Return the aggregate expression over stored partial values."""

    def result(self, value: Column) -> Column:
        """Return the scalar expression from a folded value to what a reader sees."""
        return value

    def result_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        """Return SQL (DataFusion's) that folds the stored partial values of a column and gives what a reader sees.

        Args:
            total: how numbers are added up, where they are.
            kind: the column's stored type; None: one whose `min` and `max` DataFusion orders as Spark does.
        """
        return self.fold_sql(column, total, kind)

    @abstractmethod
    def fold_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        """Return SQL (DataFusion's) that folds the stored partial values of a column into one partial value.

        Args:
            total: how numbers are added up, where they are.
            kind: the column's stored type; None: one whose `min` and `max` DataFusion orders as Spark does.
        """

    def __repr__(self) -> str:
        inside = ", ".join(repr(x) for x in (self.field, self.output) if x is not None)
        return f"{type(self).__name__}({inside})"


class AddedUp(ColumnAggregator):
    """An aggregator whose partial values are numbers that are added up."""

    def zero(self) -> int:
        return 0

    def fold(self, value: Column) -> Column:
        return F.sum(value)

    def fold_sql(self, column: str, total: Total = plain_total, kind: pa.DataType | None = None) -> str:
        return total(column, "")
