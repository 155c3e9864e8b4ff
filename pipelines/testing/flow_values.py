"""Values as the engines on Spark have them between two steps, for the reference engine of flows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

from pipelines.aggregators.ordering import SEVERAL
from pipelines.flowmix.values import fitted
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.plain_values import in_utc, plain_time
from pipelines.graph.row_values import as_text, to_arrow, to_plain
from pipelines.graph.types import parts_of
from pipelines.windows.event import Event

# No decimal that fits a column has more digits on the way; what has does not fit.
_WIDE = Context(prec=1000)


def held(value: Any, kind: str | None, *, of_each: bool = False) -> Any:
    """Return what a column of a Spark SQL type holds of a value; None: of a type that nobody knows.

    Args:
        of_each: whether the function of an `each` gave it. Of that Spark rounds decimals and makes texts of numbers.

    Raises:
        ValueError, TypeError, AttributeError, ArithmeticError: the value is none of the type.
    """
    if value is None or kind is None:
        return _parts(value, in_utc)
    outer, inner = parts_of(kind)
    if outer == "array":
        items = value if isinstance(value, SEVERAL) else [value]
        return [held(item, inner[0][1], of_each=of_each) for item in items]
    if outer == "struct":
        fields = value if isinstance(value, Mapping) else dict(zip((name for name, _ in inner), value, strict=True))
        return {name: held(fields.get(name), part, of_each=of_each) for name, part in inner}
    if outer == "map":
        of_key, of_item = (part for _, part in inner)
        return {
            key if isinstance(key, tuple) else held(key, of_key): held(item, of_item, of_each=of_each)
            for key, item in dict(value).items()
        }
    convert = to_plain((kind,), as_text if of_each else None)
    made = fitted(convert((value,))[0] if convert else value, kind)
    if kind in ("timestamp", "timestamp_ltz"):
        return in_utc(made)
    known = arrow_type(kind) if isinstance(made, Decimal) else None
    if known is None:
        return made
    return to_arrow([_rounded(made, known) if of_each else made], known)[0].as_py()


def _rounded(value: Decimal, kind: pa.DataType) -> Decimal:
    """Return a decimal as Spark takes it of an `each`."""
    return value.quantize(Decimal((0, (1,), -kind.scale)), ROUND_HALF_UP, _WIDE) if value.is_finite() else value


def held_if_fit(value: Any, kind: str | None) -> Any:
    """Return the same, and of a value that is none of the type what comes nearest: itself."""
    try:
        return held(value, kind)
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        return fitted(value, kind)


def copy_of(event: Event) -> Event:
    """Return an event for a user's code: what that does to it stays there."""
    return _changed(event, lambda value: value)


def without_zones(event: Event) -> Event:
    """Return a copy as functions and predicates get it: times are without a zone, in UTC."""
    return _changed(event, plain_time)


def _changed(event: Event, change: Callable[[Any], Any]) -> Event:
    return event.with_fields({name: _parts(value, change) for name, value in event.items()})


def _parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a value, with a change of all that is no list or dict in it."""
    if isinstance(value, Mapping):
        return {change(name): _parts(item, change) for name, item in value.items()}
    return [_parts(item, change) for item in value] if isinstance(value, list | tuple) else change(value)
