"""Trident's map states over a backing map, in plain Python: what `kind` means, value by value (Trident rules 6).

Delta tables of layout map do the same with a MERGE; these are for the reference engine, for tests, and for whoever keeps a
state elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pipelines.state.backing_map import BackingMap, CachedBatchReadsMap, DictMap, Read
from pipelines.state.values import OpaqueValue, TransactionalValue

Updater = Callable[[Any], Any]
"""From the stored value, None for none, to the new one."""

SNAPSHOT_KEY = "$MEMORY-MAP-STATE-GLOBAL$"


class CommittingMap(ABC):
    """A map from keys to values that commits batch by batch: `begin_commit`, reads and changes, `commit`."""

    @abstractmethod
    def begin_commit(self, txid: int | None) -> None:
        """The changes of a batch begin; None: changes outside any batch (a query)."""

    @abstractmethod
    def commit(self, txid: int | None) -> None:
        """The batch's changes are complete."""

    @abstractmethod
    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        """The value of each key, None where there is none."""

    @abstractmethod
    def multi_update(self, keys: Sequence[Hashable], updaters: Sequence[Updater]) -> list[Any]:
        """Replace each key's value by `updater(stored)`; gives the values that the keys have then."""

    @abstractmethod
    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        """Set the value of each key."""


class NonTransactionalMap(CommittingMap):
    """Values as they are. A replayed batch counts twice."""

    def __init__(self, backing: BackingMap) -> None:
        self._backing = backing

    def begin_commit(self, txid: int | None) -> None:
        pass

    def commit(self, txid: int | None) -> None:
        pass

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        return self._backing.multi_get(keys)

    def multi_update(self, keys: Sequence[Hashable], updaters: Sequence[Updater]) -> list[Any]:
        now = dict(zip(keys, self._backing.multi_get(keys), strict=True))
        given = []
        for key, updater in zip(keys, updaters, strict=True):
            now[key] = updater(now[key])
            given.append(now[key])
        self._backing.multi_put(list(now), list(now.values()))
        return given

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self._backing.multi_put(keys, values)


class _BatchMap(CommittingMap):
    """A map that knows which batch it is in and which keys that has written."""

    def __init__(self, backing: BackingMap) -> None:
        self._reads = CachedBatchReadsMap(backing)
        self._txid: int | None = None

    def begin_commit(self, txid: int | None) -> None:
        self._txid = txid
        self._reads.reset()

    def commit(self, txid: int | None) -> None:
        self._txid = None
        self._reads.reset()

    def multi_update(self, keys: Sequence[Hashable], updaters: Sequence[Updater]) -> list[Any]:
        now = dict(zip(keys, self._reads.multi_get(keys), strict=True))
        changed: dict[Hashable, Any] = {}
        for key, updater in zip(keys, updaters, strict=True):
            stored = self._updated(now[key], updater)
            if stored is not now[key].value:
                changed[key] = stored
                now[key] = Read(stored, True)
        if changed:
            self._reads.multi_put(list(changed), list(changed.values()))
        return [self._shown(now[key].value) for key in keys]

    @abstractmethod
    def _updated(self, read: Read, updater: Updater) -> Any:
        """What to store: the very value that is stored, where nothing changes."""

    @abstractmethod
    def _shown(self, stored: Any) -> Any:
        """The value, without what is kept beside it."""


class TransactionalMap(_BatchMap):
    """Values with the batch that wrote them: a key that the batch has written in an earlier attempt is left alone.

    Right as long as a txid always carries the same tuples.
    """

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        return [None if read.value is None else read.value.value for read in self._reads.multi_get(keys)]

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self._reads.multi_put(keys, [TransactionalValue(self._txid, value) for value in values])

    def _updated(self, read: Read, updater: Updater) -> TransactionalValue:
        stored: TransactionalValue | None = read.value
        if stored is None:
            return TransactionalValue(self._txid, updater(None))
        if self._txid is not None and stored.txid == self._txid and not read.cached:
            return stored
        return TransactionalValue(self._txid, updater(stored.value))

    def _shown(self, stored: TransactionalValue) -> Any:
        return stored.value


class OpaqueMap(_BatchMap):
    """Values with the batch that wrote them and the value before it: a replay starts from that, whatever it carries.

    Raises:
        BehindStateError: (of reads and changes) a later batch has written the key.
    """

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        return [self._base(read) for read in self._reads.multi_get(keys)]

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self.multi_update(keys, [_constant(value) for value in values])

    def _base(self, read: Read) -> Any:
        stored: OpaqueValue | None = read.value
        if stored is None:
            return None
        return stored.curr if read.cached else stored.get(self._txid)

    def _updated(self, read: Read, updater: Updater) -> OpaqueValue:
        stored: OpaqueValue | None = read.value
        value = updater(self._base(read))
        return OpaqueValue(self._txid, value) if stored is None else stored.update(self._txid, value)

    def _shown(self, stored: OpaqueValue) -> Any:
        return stored.curr


def _constant(value: Any) -> Updater:
    return lambda stored: value


class SnapshottableMap(CommittingMap):
    """A map state with one value that has no key of its own: it lies under a fixed one."""

    def __init__(self, delegate: CommittingMap, key: Hashable = SNAPSHOT_KEY) -> None:
        self._delegate, self._key = delegate, key

    def get(self) -> Any:
        """The value, None where there is none."""
        return self._delegate.multi_get([self._key])[0]

    def update(self, updater: Updater) -> Any:
        """Replace the value; gives the new one."""
        return self._delegate.multi_update([self._key], [updater])[0]

    def set(self, value: Any) -> None:
        """Set the value."""
        self._delegate.multi_put([self._key], [value])

    def begin_commit(self, txid: int | None) -> None:
        self._delegate.begin_commit(txid)

    def commit(self, txid: int | None) -> None:
        self._delegate.commit(txid)

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        return self._delegate.multi_get(keys)

    def multi_update(self, keys: Sequence[Hashable], updaters: Sequence[Updater]) -> list[Any]:
        return self._delegate.multi_update(keys, updaters)

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self._delegate.multi_put(keys, values)


class MemoryMapState(SnapshottableMap):
    """An opaque map state in memory: a snapshot value, keys that can be removed, and all tuples.

    `multi_remove` takes effect at once for reads; the key itself goes when a batch of another txid begins, since a replay
    may need the value before. Fixed against the original: a key that is put again after it was removed stays, and a
    removed key is no tuple.

    Args:
        max_size: how many keys are kept, those that were used last; None: all.
    """

    def __init__(self, max_size: int | None = None) -> None:
        self._backing = DictMap(max_size)
        super().__init__(OpaqueMap(self._backing))
        self._removed: dict[Hashable, None] = {}
        self._last: int | None = None

    def begin_commit(self, txid: int | None) -> None:
        if txid is None or txid != self._last:
            held = self._backing.held
            self._backing.multi_remove([key for key in self._removed if key in held and held[key].curr is None])
            self._removed.clear()
        self._last = txid
        super().begin_commit(txid)

    def multi_remove(self, keys: Sequence[Hashable]) -> None:
        """Remove keys; one that is not there stays so."""
        there = [key for key in keys if key in self._backing.held]
        self.multi_put(there, [None] * len(there))
        self._removed.update(dict.fromkeys(there))

    def tuples(self) -> list[tuple[Any, ...]]:
        """All keys and values that are there. A key that is a tuple gives its parts."""
        held = [(key, stored.curr) for key, stored in self._backing.held.items() if key != self._key]
        return [(*(key if isinstance(key, tuple) else (key,)), value) for key, value in held if value is not None]


class LRUMemoryMapState(MemoryMapState):
    """A `MemoryMapState` of the `max_size` keys that were used last."""

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
