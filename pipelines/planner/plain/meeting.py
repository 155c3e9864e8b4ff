"""The type in which Spark brings together values of several types of one sort, in merges, joins and comparisons."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Sequence
from decimal import Decimal

from pipelines.flowmix.schemas import common
from pipelines.graph.row_values import Convert, of_all
from pipelines.graph.types import WHOLE_DIGITS, digits_of
from pipelines.planner.plain.table import Table

_TIMES = ("date", "timestamp_ntz", "timestamp", "timestamp_ltz")


def common_of(kinds: Iterable[str | None]) -> str | None:
    """Return the common type of columns, by whose hash tuples are dealt; those of no known type are left out."""
    known = [kind for kind in kinds if kind]
    return functools.reduce(_wider, known) if known else None


def brought(table: Table, kinds: Sequence[str | None]) -> Table:
    """Return a table with its values in these types, column by column."""
    convert = of_all([None if own == kind else _into(kind) for own, kind in zip(table.types, kinds, strict=True)])
    rows = table.rows if convert is None else tuple(map(convert, table.rows))
    return Table(table.fields, tuple(kinds), rows, table.tasks)


def _wider(kind: str, other: str) -> str:
    pair = (kind, other)
    if kind in _TIMES and other in _TIMES:
        return max(pair, key=_TIMES.index)
    digits = [known for known in map(digits_of, pair) if known]
    if len(digits) < 2:
        # No float holds a whole number or a decimal.
        return "double" if digits and {*pair} & {"float", "double"} else common(kind, other) or kind
    if kind in WHOLE_DIGITS and other in WHOLE_DIGITS:
        return max(pair, key=WHOLE_DIGITS.__getitem__)
    scale = max(own for _, own in digits)
    whole = max(precision - own for precision, own in digits)
    # Of more digits than there are, those behind the point go first.
    return f"decimal({min(whole + scale, 38)},{max(min(scale, 38 - whole), 0)})"


def _into(kind: str | None) -> Convert | None:
    """Return what makes a value of another type one of this; None where Python's values of both are equal."""
    if kind is None or kind == "date":
        return None
    if kind == "double":
        return lambda value: float(value) if type(value) in (int, Decimal) else value
    if kind in _TIMES:
        midnight = datetime.time()
        return lambda value: datetime.datetime.combine(value, midnight) if type(value) is datetime.date else value
    return (lambda value: Decimal(value) if type(value) is int else value) if kind.startswith("decimal") else None
