"""Base classes of what a user writes in Python beside functions and aggregators: queries, updaters, assemblies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol

from pipelines.aggregators.base import Parts
from pipelines.errors import FunctionError
from pipelines.graph.fields import parse_ddl


def check_defines(operation: str, given: object, base: type, method: str) -> None:
    """Refuse what leaves out the method that its base class asks for.

    Raises:
        FunctionError: if it does.
    """
    found = getattr(given, method, None)
    if not callable(found) or getattr(found, "__func__", None) is getattr(base, method):
        raise FunctionError(operation, f"{given} has no {method}", hint=f"define {method} in its class")


class QueryFunction:
    """Asks a state once per batch and task, then makes rows of each answer (Trident rules 4.3).

    Subclass it and define `batch_retrieve`, and `execute` where a tuple should give other than one row. The outputs'
    types are said by the operation (`state_query(..., "n bigint")`) or by `returns`.
    """

    returns: str | Sequence[str] | None = None
    """Spark SQL type of the one output, or a list of types."""
    in_spark: ClassVar[bool] = False
    """Whether Spark runs it as a join, so that it is not called."""
    shows_keys: ClassVar[bool] = False
    """Whether one that Spark runs shows the state's keys, too, and not its values alone."""

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Return the answer for each tuple of a task, in order; called once a batch and task, not at all for an empty one.

        Args:
            state: a view of the state: `multi_get(keys)` gives the value at each key or None, `get()` the value of a
                state without keys, `tuples()` all of it, keys and values.
            arguments: the input fields of the task's tuples.

        Returns:
            A list of the length of `arguments`; anything else raises StateQueryError.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define batch_retrieve")

    def execute(self, arguments: tuple[Any, ...], result: Any) -> Iterable[Any] | None:
        """Return the rows that a tuple gets for its answer: none drops the tuple, n rows repeat it n times."""
        return [result]

    def __str__(self) -> str:
        return type(self).__name__


class MapGet(QueryFunction):
    """The value at a key: the input fields are matched, in order, with the state's key fields (Trident's MapGet)."""

    in_spark = True

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return state.multi_get(arguments)


class SnapshotGet(QueryFunction):
    """The one value of a state without keys (Trident's SnapshotGet)."""

    in_spark = True

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [state.get()] * len(arguments)


class TupleCollectionGet(QueryFunction):
    """All that a state holds, for each input tuple: keys and values, one row each (Trident's TupleCollectionGet).

    The outputs are the state's fields by name, or all of them by position. Input fields are of no account. Behind a
    `broadcast()` each task gives its own part of the state, so that a tuple that went to all of them gets all of it once.
    """

    in_spark = shows_keys = True

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [state.tuples()] * len(arguments)

    def execute(self, arguments: tuple[Any, ...], result: Any) -> Iterable[Any] | None:
        return result


class StateUpdater:
    """Writes a state from the tuples of a batch, for `partition_persist(state, fields, updater, outputs)`.

    Subclass it, say the state's columns, define `update_state`. It runs once per batch and task that has tuples.
    """

    keys: str = ""
    """The state's key columns as DDL, e.g. `"word string"`; empty: a state of one value."""
    values: str = ""
    """The state's value columns as DDL, e.g. `"n bigint"`."""
    returns: str | Sequence[str] | None = None
    """Types of the outputs, where the operation names them without types."""

    def update_state(self, state: Any, tuples: list[tuple[Any, ...]]) -> Iterable[Any] | None:
        """Update the state.

        Args:
            state: `multi_get(keys)`, `multi_put(keys, values)`, `multi_update(keys, updaters)`, `multi_remove(keys)`;
                of a state without keys `get()`, `set(value)`, `update(updater)`. A key is a tuple; a value is bare
                where there is one value column, else a tuple. An updater takes the stored value or None.
            tuples: the input fields of the batch's tuples.

        Returns:
            The rows that `new_values_stream()` gives, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define update_state")

    @property
    def key_columns(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the key columns."""
        return parse_ddl(self.keys) if self.keys.strip() else ()

    @property
    def value_columns(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the value columns."""
        return parse_ddl(self.values) if self.values.strip() else ()

    def __str__(self) -> str:
        return type(self).__name__


class MultiReducer(Parts):
    """Reduces the tuples of several streams together, for `TridentTopology.multi_reduce`.

    The parts are given as callables, or a subclass defines methods of the same names:

    - `init()` makes the state of a partition of a batch; of grouped streams `init(*group)` that of a group;
    - `execute(state, stream_index, *values)` takes in one tuple of the stream with that number (from 0), grouped
      `execute(state, stream_index, group, *values)`; it returns the new state, or None if it changed the state in
      place, or is a generator of rows, which are emitted at once;
    - `complete(state)`, grouped `complete(state, group)`, gives rows as an `Aggregator` does.

    The tuples of the first stream come first, then those of the second, and so on.

    Raises:
        FunctionError: if a part is neither given nor defined.
    """

    returns: Any = None
    init: Callable[..., Any]
    execute: Callable[..., Any]
    complete: Callable[..., Any]

    def __init__(
        self,
        init: Callable[..., Any] | None = None,
        execute: Callable[..., Any] | None = None,
        complete: Callable[..., Any] | None = None,
        *,
        returns: str | Sequence[str] | None = None,
    ) -> None:
        self._take({"init": init, "execute": execute, "complete": complete}, returns)


class Assembly(Protocol):
    """A piece of a topology, for `Stream.apply_assembly`: `apply(stream)` gives the stream behind it."""

    def apply(self, stream: Any) -> Any: ...
