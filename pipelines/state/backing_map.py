"""Where map states keep their values: the backing maps of Trident, in plain Python (Trident rules 6)."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from pipelines.state.values import OpaqueValue, TransactionalValue


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
