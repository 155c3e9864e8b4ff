"""Calls of a user's Python code by the engines, and the rows that it gives. No Spark, no topology."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) >= count


def emitted(label: str, given: Any, width: int) -> list[Row]:
    """Return the rows that a Python function gave: of a generator, a list, one row, or None for no row.

    A row is a tuple of `width` values, or a bare value where one field is made.
    """
    if given is None:
        return []
    items: Iterable[Any] = given if inspect.isgenerator(given) or isinstance(given, list | Iterator) else [given]
    return [row_of(label, item, width) for item in items]


def row_of(label: str, item: Any, width: int) -> Row:
    """Return one row as a tuple."""
    row = item if isinstance(item, tuple) else tuple(item) if width > 1 and isinstance(item, list) else (item,)
    if len(row) != width:
        raise FunctionError(label, f"gives {len(row)} value(s) for {width} field(s): {item!r}")
    return row
