"""The view of a state that functions get: a map from keys to values at a fixed version, in plain Python.

`StateView` is read by query functions, `MapState` is read and changed by state updaters. Neither needs Spark: a view is
its table's path and version, so it travels to Spark's workers and is opened there by delta-rs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from numbers import Real
from typing import Any

import pyarrow as pa

from pipelines.errors import StateAccessError
from pipelines.graph.plain_values import Convert, converter, plain_list, plain_time
from pipelines.state.far_times import times_named
from pipelines.state.kinds import ROWS
from pipelines.state.literals import as_held, canonical, may_hold, nearest
from pipelines.state.reading import Key, Reader
from pipelines.state.schema import HIDDEN, StateSchema
from pipelines.state.snapshot import Snapshot

Value = Any
"""A bare value where the state has one value column, else a tuple in the columns' order; None where there is none."""


class StateView(ABC):
    """A state as a map, at one version: `keys` and `values` are its column names.

    Made by `StateTable.view` or `StateView.of_rows`. It may be pickled.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def key_types(self) -> Sequence[pa.DataType | None]:
        """Return the types of the key columns, none of them where they are not known."""
        return ()

    @property
    def by_key(self) -> bool:
        """Return whether there is one value per key, or one value; else there are rows, any number of them."""
        return True

    @staticmethod
    def of_rows(
        keys: Sequence[str],
        values: Sequence[str],
        rows: Iterable[Sequence[Any] | Mapping[str, Any]],
        key_types: Sequence[pa.DataType | None] = (),
    ) -> RowsView:
        """Hold rows in memory: dicts, or tuples of keys, then values. The last row of a key counts.

        Args:
            key_types: what the keys are, to which asked ones are brought; without: they are asked as they are.
        """
        names = (*keys, *values)
        tuples = [tuple(row[name] for name in names) if isinstance(row, Mapping) else tuple(row) for row in rows]
        held = {_key(row[: len(keys)]): row[len(keys) :] for row in tuples}
        return RowsView(tuple(keys), tuple(values), held, tuple(key_types))

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[Value]:
        """Return the value of each key, None where there is none; one read for all of them.

        Raises:
            StateAccessError: a key has not as many parts as there are key columns.
            KeyValueError: a part has not the type of its column.
        """
        asked = self._checked(keys)
        return self._values(self._find(list(dict.fromkeys(asked))), asked)

    def get(self) -> Value:
        """Return the value of a state without keys (Trident's Snapshottable); of a table of rows the only one.

        Raises:
            StateAccessError: the state has keys, or more than one row.
        """
        if self.by_key:
            return self.multi_get([()])[0]
        rows = self.tuples()
        if len(rows) > 1:
            raise StateAccessError("this state keeps rows and has no one value; use tuples()")
        return self._values(dict(zip([()], rows, strict=False)), [()])[0]

    @abstractmethod
    def tuples(self) -> list[tuple[Any, ...]]:
        """Return all that is there: keys, then values, in no order (Trident's ITupleCollection)."""

    @abstractmethod
    def _find(self, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return the values of those keys that are there."""

    def _checked(self, keys: Sequence[Sequence[Any]]) -> list[Key]:
        names = self.keys
        for key in keys:
            if isinstance(key, str) or not isinstance(key, Sequence) or len(key) != len(names):
                columns = ", ".join(names) or "none"
                raise StateAccessError(f"a key of this state is a tuple of its key columns ({columns}); got {key!r}")
        return [_key(key) for key in keys]

    def _values(self, held: Mapping[Key, tuple[Any, ...]], keys: Sequence[Key]) -> list[Value]:
        if len(self.values) == 1:
            return [held[key][0] if key in held else None for key in keys]
        return [held.get(key) for key in keys]


@dataclass(frozen=True, eq=False)
class RowsView(StateView):
    """A state of rows in memory."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    held: Mapping[Key, tuple[Any, ...]]
    key_types: Sequence[pa.DataType | None] = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A NaN that has travelled is another one than that of keys.
        self.__dict__.update(state, held={_key(key): values for key, values in state["held"].items()})

    def tuples(self) -> list[tuple[Any, ...]]:
        return [(*key, *values) for key, values in self.held.items()]

    def _find(self, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        kinds = self.key_types or (None,) * len(self.keys)
        found = {}
        for key in keys:
            # As Spark's join: 5.5 is just not there among bigints.
            with suppress(ValueError, ArithmeticError):
                own = tuple(v if kind is None else as_held(kind, v) for kind, v in zip(kinds, key, strict=True))
                if own in self.held:
                    found[key] = self.held[own]
        return found


@dataclass(frozen=True)
class TableView(StateView):
    """A state of a table at a version.

    Attributes:
        before: of opaque states, what the state held before this txid wrote: what a replay of it starts from.
        made: what tells the version from that of another table at its place.
    """

    path: str
    version: int
    before: int | None = None
    made: str = ""
    later: str | None = None
    """The state's schema as of a later version, as text; None: as the version itself declares it."""

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._reader.keys

    @property
    def values(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._reader.declared.value_names

    @property
    def key_types(self) -> Sequence[pa.DataType | None]:
        return [self._reader.snapshot.types[name] for name in self.keys]

    @property
    def by_key(self) -> bool:
        return bool(self.keys) or self._reader.declared.layout != ROWS

    @property
    def _reader(self) -> Reader:
        return _opened(self.path, self.version, self.before, self.made, self.later)

    def tuples(self) -> list[tuple[Any, ...]]:
        rows = self._reader.scan().select([*self.keys, *self.values])
        with times_named(rows, self._reader.name, self.keys):
            return list(zip(*map(plain_list, rows.columns), strict=True))

    def _find(self, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        if not self.by_key:
            return {}
        reader, values, kinds = self._reader, self.values, self.key_types
        # As Spark's join: 5.5 is just not there among bigints.
        keys = [key for key in keys if all(map(may_hold, kinds, key))]
        named = [dict(zip(reader.keys, key, strict=True)) for key in keys]
        normal = reader.normal(named)
        rows = reader.find(named)
        if not self.keys and not rows and reader.declared.values:
            rows = {(): reader.zero()}
        plain = _plain(reader)
        return {
            key: tuple(plain[name](rows[there][name]) if name in plain else rows[there][name] for name in values)
            for key, there in zip(keys, normal, strict=True)
            if there in rows
        }


def _key(values: Iterable[Any]) -> Key:
    """Return a key as a state gives it: a time is without zone, in UTC."""
    return tuple(canonical(plain_time(value)) for value in values)


def _rounded(kind: pa.DataType | None, value: Any) -> Any:
    """Return a number as a `float` or `double` column holds it."""
    if kind is None or not pa.types.is_floating(kind) or not isinstance(value, Real) or isinstance(value, bool):
        return value
    with suppress(OverflowError):
        return canonical(nearest(float(value), kind))
    return value


def _plain(reader: Reader) -> dict[str, Convert]:
    """Return how values of columns become plain, by name; columns that are left out are so already."""
    stored, kinds = {value.name: value.make() for value in reader.declared.values}, reader.snapshot.types
    found: dict[str, Convert] = {}
    for name in reader.declared.value_names:
        convert = converter(kinds[name]) if name in kinds else None
        if convert is not None and (name not in stored or stored[name].shown_as_stored):
            found[name] = convert
        elif convert is not None:
            found[name] = partial(_finished, convert)
    return found


def _finished(convert: Convert, value: Any) -> Any:
    """Convert what a reader has finished: only lists are of the type that is stored."""
    return convert(value) if isinstance(value, list) else value


@lru_cache(maxsize=8)
def _opened(path: str, version: int, before: int | None, made: str, later: str | None) -> Reader:
    """Return a version, opened once in a process for all copies of a view; `made` tells it from another table's."""
    snapshot = Snapshot.open(path, version)
    declared = StateSchema.model_validate_json(later) if later else snapshot.declared
    if declared is None:
        columns = tuple((name, "") for name in snapshot.types if name not in HIDDEN)
        declared = StateSchema(layout=ROWS, flow="", columns=columns)
    return Reader(snapshot, declared, before)


class MapState:
    """A state that a function changes: reads see its own changes, and nothing is written before the batch commits.

    Args:
        view: what the state held before the batch.
        key_types: what the key columns are written as; None: as the view has them.
    """

    def __init__(self, view: StateView, key_types: Sequence[pa.DataType | None] | None = None) -> None:
        self._view = view
        types = view.key_types if key_types is None else key_types
        self._rounding = types if any(kind is not None and pa.types.is_floating(kind) for kind in types) else None
        self.keys, self.values = view.keys, view.values
        self.puts: dict[Key, tuple[Any, ...]] = {}
        """The values of the keys that were put, as tuples."""
        self.removed: dict[Key, None] = {}
        """The keys that were removed, in order."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[Value]:
        """Return the value of each key, None where there is none."""
        asked = self._keys(keys)
        unknown = [key for key in dict.fromkeys(asked) if key not in self.puts and key not in self.removed]
        held = {**(self._view._find(unknown) if unknown else {}), **self.puts}
        return self._view._values(held, asked)

    def get(self) -> Value:
        """Return the value of a state without keys."""
        return self.multi_get([()])[0]

    def tuples(self) -> list[tuple[Any, ...]]:
        """Return all that is there: keys, then values."""
        width = len(self.keys)
        changed = {**self.puts, **self.removed}
        kept = [row for row in self._view.tuples() if _key(row[:width]) not in changed]
        return kept + [(*key, *values) for key, values in self.puts.items()]

    # --- changing ---------------------------------------------------------------------------------------------------

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[Value]) -> None:
        """Set the value of each key.

        Raises:
            StateAccessError: there are not as many values as keys, or a value does not fit the value columns.
        """
        if len(keys) != len(values):
            raise StateAccessError(f"multi_put: {len(keys)} key(s) but {len(values)} value(s)")
        for checked, value in zip(self._keys(keys), values, strict=True):
            self.removed.pop(checked, None)
            self.puts[checked] = self._row(value)

    def multi_update(self, keys: Sequence[Sequence[Any]], updaters: Sequence[Callable[[Value], Value]]) -> list[Value]:
        """Replace each key's value by `updater(stored)`, None where there is none; gives the new values.

        A key that is named twice is updated twice, the second time from the first one's value.
        """
        if len(keys) != len(updaters):
            raise StateAccessError(f"multi_update: {len(keys)} key(s) but {len(updaters)} updater(s)")
        asked = self._keys(keys)
        now = dict(zip(asked, self.multi_get(asked), strict=True))
        given = []
        for key, updater in zip(asked, updaters, strict=True):
            now[key] = updater(now[key])
            given.append(now[key])
        self.multi_put(list(now), list(now.values()))
        return given

    def multi_remove(self, keys: Sequence[Sequence[Any]]) -> None:
        """Remove keys; one that is not there stays so."""
        for checked in self._keys(keys):
            self.puts.pop(checked, None)
            self.removed[checked] = None

    def set(self, value: Value) -> None:
        """Set the value of a state without keys."""
        self.multi_put([()], [value])

    def update(self, updater: Callable[[Value], Value]) -> Value:
        """Replace the value of a state without keys by `updater(stored)`; gives the new one."""
        return self.multi_update([()], [updater])[0]

    # --- committing -------------------------------------------------------------------------------------------------

    def changes(self) -> list[tuple[Any, ...]]:
        """Return the changes as rows to commit: keys, values, and last whether the key was removed (column `_removed`)."""
        nothing = (None,) * len(self.values)
        return [(*key, *values, False) for key, values in self.puts.items()] + [
            (*key, *nothing, True) for key in self.removed
        ]

    def _keys(self, keys: Sequence[Sequence[Any]]) -> list[Key]:
        """Return keys as they are written, so that what is read is what a commit replaces."""
        checked, kinds = self._view._checked(keys), self._rounding
        return checked if kinds is None else [tuple(map(_rounded, kinds, key)) for key in checked]

    def _row(self, value: Value) -> tuple[Any, ...]:
        if len(self.values) == 1:
            return (value,)
        if not isinstance(value, tuple | list) or len(value) != len(self.values):
            columns = ", ".join(self.values)
            raise StateAccessError(f"a value of this state is a tuple of its value columns ({columns}); got {value!r}")
        return tuple(value)
