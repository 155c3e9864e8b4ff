"""A model of Trident's map states in plain Python (Trident rules 6), which tables of layout map must equal."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pipelines.errors import BehindStateError

# --- stored values --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransactionalValue:
    """A value and the batch that wrote it; None: written outside any batch."""

    txid: int | None
    value: Any


@dataclass(frozen=True)
class OpaqueValue:
    """A value, the batch that wrote it, and the value before that batch.

    A value written outside any batch has no `curr_txid` and stands before every batch. (In the original it broke the next
    read: LATENT there.)
    """

    curr_txid: int | None
    curr: Any
    prev: Any = None

    def get(self, txid: int | None) -> Any:
        """What `txid` starts from: the value before it, if the txid wrote this one.

        Raises:
            BehindStateError: a later batch wrote it.
        """
        return self.prev if self._is_own(txid) else self.curr

    def update(self, txid: int | None, value: Any) -> OpaqueValue:
        """This with a new value; itself it stays as it is.

        Raises:
            BehindStateError: a later batch wrote it.
        """
        return OpaqueValue(txid, value, self.prev if self._is_own(txid) else self.curr)

    def _is_own(self, txid: int | None) -> bool:
        if txid is None or self.curr_txid is None:
            return False
        if txid < self.curr_txid:
            raise BehindStateError(txid, self.curr_txid)
        return txid == self.curr_txid


# --- backing maps ---------------------------------------------------------------------------------------------------


class BackingMap(Protocol):
    """What a map state stands on: reads give None for a key that is not there."""

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]: ...

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None: ...


class DictMap:
    """A dict as a backing map, of any size, or of the `max_size` keys that were used last."""

    def __init__(self, max_size: int | None = None) -> None:
        self.held: OrderedDict[Hashable, Any] = OrderedDict()
        self._max_size = max_size

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        for key in keys:
            if key in self.held:
                self.held.move_to_end(key)
        return [self.held.get(key) for key in keys]

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.held[key] = value
            self.held.move_to_end(key)
            if self._max_size is not None and len(self.held) > self._max_size:
                self.held.popitem(last=False)

    def multi_remove(self, keys: Sequence[Hashable]) -> None:
        """Remove keys; one that is not there stays so."""
        for key in keys:
            self.held.pop(key, None)


class CachedMap:
    """The `size` keys that were used last, in front of a backing map. Only right for its sole writer.

    Fixed against the original: values enter the cache when the delegate has taken them. If it fails, the cache forgets
    their keys, since the delegate may hold the old or the new value then.
    """

    def __init__(self, delegate: BackingMap, size: int) -> None:
        self._delegate, self._cache = delegate, DictMap(size)

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        """The delegate is asked for what the cache lacks, also if that is nothing."""
        found = {key: self._cache.multi_get([key])[0] for key in keys if key in self._cache.held}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        fetched = self._delegate.multi_get(missing)
        self._cache.multi_put(missing, fetched)
        found.update(zip(missing, fetched, strict=True))
        return [found[key] for key in keys]

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        try:
            self._delegate.multi_put(keys, values)
        except BaseException:
            self._cache.multi_remove(keys)
            raise
        self._cache.multi_put(keys, values)


class Read(NamedTuple):
    """A value and whether it was put in this commit."""

    value: Any
    cached: bool


class CachedBatchReadsMap:
    """A backing map that remembers what was put since the last `reset`, so that one commit sees its own values."""

    def __init__(self, delegate: BackingMap) -> None:
        self._delegate = delegate
        self._put: dict[Hashable, Any] = {}

    def reset(self) -> None:
        """Forget: a commit begins or ends."""
        self._put.clear()

    def multi_get(self, keys: Sequence[Hashable]) -> list[Read]:
        """The delegate is always asked; what was put in this commit comes from here."""
        stored = self._delegate.multi_get(keys)
        return [
            Read(self._put[key], True) if key in self._put else Read(value, False)
            for key, value in zip(keys, stored, strict=True)
        ]

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self._delegate.multi_put(keys, values)
        self._put.update(zip(keys, values, strict=True))


class MicroBatchMap:
    """Splits reads and writes into calls of at most so many keys; 0: one call."""

    def __init__(self, delegate: BackingMap, max_get: int = 0, max_put: int = 0) -> None:
        self._delegate, self._max_get, self._max_put = delegate, max_get, max_put

    def multi_get(self, keys: Sequence[Hashable]) -> list[Any]:
        size = self._max_get or max(len(keys), 1)
        return [
            value
            for start in range(0, len(keys), size)
            for value in self._delegate.multi_get(keys[start : start + size])
        ]

    def multi_put(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        size = self._max_put or max(len(keys), 1)
        for start in range(0, len(keys), size):
            self._delegate.multi_put(keys[start : start + size], values[start : start + size])


# --- values as bytes ------------------------------------------------------------------------------------------------


class JsonSerializer:
    """A stored value as JSON bytes and back: the value itself (of a map state that is not transactional)."""

    def serialize(self, stored: Any) -> bytes:
        return json.dumps(stored).encode()

    def deserialize(self, data: bytes) -> Any:
        return json.loads(data)


class JsonTransactionalSerializer(JsonSerializer):
    """`[txid, value]`"""

    def serialize(self, stored: TransactionalValue) -> bytes:
        return super().serialize([stored.txid, stored.value])

    def deserialize(self, data: bytes) -> TransactionalValue:
        return TransactionalValue(*super().deserialize(data))


class JsonOpaqueSerializer(JsonSerializer):
    """`[curr_txid, curr, prev]`"""

    def serialize(self, stored: OpaqueValue) -> bytes:
        return super().serialize([stored.curr_txid, stored.curr, stored.prev])

    def deserialize(self, data: bytes) -> OpaqueValue:
        return OpaqueValue(*super().deserialize(data))


# --- map states -----------------------------------------------------------------------------------------------------

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
