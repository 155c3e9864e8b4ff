"""Calls of a user's Python code by the engines, and the rows that it gives. No Spark, no topology."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipelines.aggregators.base import Aggregator, CombinerAggregator, ReducerAggregator
from pipelines.errors import FunctionError

Row = tuple[Any, ...]


def taking(call: Callable[..., Any], leading: int, inputs: int) -> Callable[..., Any]:
    """Return the callable as it takes `leading` arguments and the values of the input fields.

    Without input fields one that demands one argument more gets the empty tuple for it (Trident rules 1.2: a function
    without input fields sees an empty tuple).
    """
    if inputs or not _demands(call, leading + 1):
        return call
    return lambda *first: call(*first, ())


def initial(call: Callable[..., Any], batch: Any) -> Any:
    """Return what `init()` or `init(batch_id)` gives, by its signature."""
    return call(batch) if _demands(call, 1) else call()


def _demands(call: Callable[..., Any], count: int) -> bool:
    """Return whether a callable needs at least `count` positional arguments."""
    try:
        found = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    needed = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) >= count


def emitted(label: str, given: Any, width: int) -> list[Row]:
    """Return the rows that a Python function gave: of a generator, a list, one row, or None for no row.

    A row is a tuple of `width` values, or a bare value where one field is made.

    Raises:
        FunctionError: if a row has another number of values.
    """
    if given is None:
        return []
    items: Iterable[Any] = given if inspect.isgenerator(given) or isinstance(given, list | Iterator) else [given]
    return [row_of(label, item, width) for item in items]


def row_of(label: str, item: Any, width: int) -> Row:
    """One row as a tuple.

    Raises:
        FunctionError: if it has another number of values than there are fields.
    """
    row = item if isinstance(item, tuple) else tuple(item) if width > 1 and isinstance(item, list) else (item,)
    if len(row) != width:
        raise FunctionError(label, f"gives {len(row)} value(s) for {width} field(s): {item!r}")
    return row


class Running:
    """One aggregator at work on the tuples of one partition, group or batch (Trident rules 1.3).

    Args:
        aggregator: any of the three contracts; those over columns too, by their plain form.
        inputs: how many input fields.
        outputs: how many fields it makes.
        batch: the batch's id, for `init(batch_id)`.
    """

    def __init__(self, aggregator: Any, inputs: int, outputs: int, batch: Any = None) -> None:
        self.aggregator, self._outputs, self._label = aggregator, outputs, str(aggregator)
        self._rows: list[Row] = []
        if isinstance(aggregator, CombinerAggregator):
            self._of_tuple = taking(aggregator.init, 0, inputs)
            self.state = aggregator.zero()
        elif isinstance(aggregator, ReducerAggregator):
            self._of_tuple = taking(aggregator.reduce, 1, inputs)
            self.state = aggregator.init()
        else:
            self._of_tuple = taking(aggregator.aggregate, 1, inputs)
            self.state = initial(aggregator.init, batch)

    def go_on_from(self, value: Any) -> None:
        """Go on from a value that a state holds: what is taken in is merged into it or reduced onto it."""
        self.state = value

    def add(self, values: Row) -> None:
        """Take in one tuple's input values."""
        if isinstance(self.aggregator, CombinerAggregator):
            self.state = self.aggregator.merge(self.state, self._of_tuple(*values))
        elif isinstance(self.aggregator, ReducerAggregator):
            self.state = self._of_tuple(self.state, *values)
        else:
            changed = self._changed(self._of_tuple(self.state, *values))
            self.state = self.state if changed is None else changed

    def complete(self) -> list[Row]:
        """Return the rows: exactly one of a combiner or reducer, any number of a general aggregator."""
        if isinstance(self.aggregator, CombinerAggregator):
            return [(self.aggregator.finish(self.state),)]
        if isinstance(self.aggregator, Aggregator):
            return self._rows + emitted(self._label, self.aggregator.complete(self.state), self._outputs)
        return [(self.state,)]

    def _changed(self, given: Any) -> Any:
        """The new state, or None; the rows that a generator yields are emitted at once."""
        if not inspect.isgenerator(given):
            return given
        while True:
            try:
                self._rows.append(row_of(self._label, next(given), self._outputs))
            except StopIteration as end:
                return end.value
