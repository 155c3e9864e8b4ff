"""Functions that ask a state: the base for one's own, and the three of the original."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar


class QueryFunction:
    """Asks a state once a batch, then makes rows of each answer (Trident rules 4.3).

    Subclass it and define `batch_retrieve`, and `execute` where a tuple should give other than one row. The outputs'
    types are said by the operation (`state_query(..., "n bigint")`) or by `returns`.
    """

    returns: str | Sequence[str] | None = None
    """Spark SQL type of the one output, or a list of types."""
    in_spark: ClassVar[bool] = False
    """Whether Spark runs it as a join, so that it is not called."""

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Return the answer for each tuple of a batch, in order; called once a batch, not at all for an empty one.

        Args:
            state: a view of the state: `multi_get(keys)` gives the value at each key or None, `get()` the value of a
                state without keys, `tuples()` all of it, keys and values.
            arguments: the input fields of the batch's tuples.

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

    in_spark = True

    def batch_retrieve(self, state: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [state.tuples()] * len(arguments)

    def execute(self, arguments: tuple[Any, ...], result: Any) -> Iterable[Any] | None:
        return result
