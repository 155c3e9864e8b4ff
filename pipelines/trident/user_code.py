"""Base classes of what a user writes in Python beside functions and aggregators: updaters, multi-reducers, assemblies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from pipelines.aggregators.base import Parts
from pipelines.graph.fields import parse_ddl


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
