"""The signature of a stateful operation, in a few bytes: windows that another operation has made are not taken for its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pipelines.aggregators.ordering import order_key

# Raised when what a window keeps changes its meaning: then windows of an older release start again.
RELEASE = 1
SIZE = 16
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def signature(operation: Any, partition: tuple[str, ...], form: str) -> bytes:
    """Return sixteen bytes that change with the operation, its key, and the form in which its windows are kept.

    Args:
        operation: one of `pipelines.windows.operations`.
        partition: the fields of the key.
        form: the class that keeps the windows.
    """
    text = f"{RELEASE}|{form}|{partition}|{_shown(operation)}"
    return hashlib.blake2b(text.encode(), digest_size=SIZE).digest()


def _shown(value: Any) -> str:
    """Return a value's own data, without addresses: equal in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{field.name}={_shown(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__qualname__}({inside})"
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: order_key(item[0]))
        return f"{{{', '.join(f'{key!r}: {_shown(item)}' for key, item in items)}}}"
    # Numbers have the same order in every process.
    if (
        isinstance(value, set | frozenset)
        and len(value) > 1
        and not all(isinstance(item, int | float) for item in value)
    ):
        return f"{{{', '.join(map(_shown, sorted(value, key=order_key)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, type) or (isinstance(value, Callable) and hasattr(value, "__qualname__")):  # type: ignore[arg-type]
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "__dict__"):
        return f"{type(value).__module__}.{type(value).__qualname__}{_shown(vars(value))}"
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__:
        # Without a `__dict__`: its slots, if it has any.
        return f"{kind.__module__}.{kind.__qualname__}{_shown(object.__getstate__(value))}"
    # What shows itself may hold an object that does not.
    return repr(value) if isinstance(value, str | bytes) else _ADDRESS.sub("", repr(value))
