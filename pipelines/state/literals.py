"""Values from outside as literals of DataFusion's: typed first, then written, so that nothing unchecked becomes SQL."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from numbers import Real
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.aggregators.ordering import freeze
from pipelines.errors import FieldError, TrideltaError
from pipelines.graph.dialects import DATAFUSION
from pipelines.graph.plain_values import as_float32


class KeyFieldsError(TrideltaError):
    """The keys of a read are no list of mappings, or one leaves out a key column of the state."""

    def __init__(self, keys: object, fault: str, hint: str) -> None:
        self.keys, self.fault = keys, fault
        super().__init__(f"not a key to read by: {keys!r}; {fault}", hint=hint)


class KeyValueError(TrideltaError):
    """A key of a read does not have the type of its column."""

    def __init__(self, column: str, value: object, kind: str) -> None:
        self.column, self.value, self.kind = column, value, kind
        super().__init__(f'key "{column}" is {kind}; got {value!r}')


def quoted(name: str) -> str:
    """Return a column name for DataFusion."""
    return DATAFUSION.name(name)


def literal(column: str, value: Any, kind: pa.DataType) -> str:
    """Return a value as a literal of the column's Arrow type, for DataFusion; Spark reads texts differently."""
    known = typed(column, value, kind)
    if isinstance(known, bool):
        return str(known).lower()
    if isinstance(known, decimal.Decimal):
        # Without the type a literal of more than 15 digits or so is a double to DataFusion.
        return f"CAST('{known:f}' AS DECIMAL({kind.precision}, {kind.scale}))"
    if isinstance(known, int | float):
        return f"CAST({str(known)!r} AS DOUBLE)" if isinstance(known, float) else str(known)
    if isinstance(known, datetime.datetime):
        # SQL's TIMESTAMP counts nanoseconds, and so ends in 2262.
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        return f"arrow_cast('{known.isoformat()}', 'Timestamp(Microsecond, {zone})')"
    if isinstance(known, datetime.date):
        return f"DATE '{known.isoformat()}'"
    if isinstance(known, bytes):
        return f"X'{known.hex()}'"
    return DATAFUSION.text(str(known))


NAN = float("nan")
"""The one that keys have: Python's are equal to nothing, and found in a dict only if they are the same object."""


def canonical(value: Any) -> Any:
    """Return a key's value as all of its kind are: as in Spark's groups NaN is one value, and -0.0 is 0.0.

    For a struct or array, return a stand-in that is hashable.
    """
    if not isinstance(value, float):
        return freeze(value) if isinstance(value, list | dict) else value
    return NAN if value != value else value + 0.0


def canonical_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return `canonical` of a whole column."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(NAN, column.type), pc.add(column, pa.scalar(0.0, column.type)))


def of_text(text: str, kind: pa.DataType) -> Any:
    """Return a text as a column of the Arrow type gives it back; a time without a zone is UTC.

    Raises:
        ValueError, OverflowError, pa.ArrowNotImplementedError: if it is no such value.
    """
    given = pa.scalar(text)
    if pa.types.is_timestamp(kind) and kind.tz:
        with suppress(pa.ArrowInvalid):
            given = given.cast(pa.timestamp(kind.unit))
    return given.cast(kind).as_py()


def typed(column: str, value: Any, kind: pa.DataType) -> Any:
    """Return a value as a column of the Arrow type gives it back."""
    if pa.types.is_nested(kind):
        # DataFusion has no literal of them.
        raise KeyValueError(column, value, f"{kind}, which cannot be asked for")
    try:
        return canonical(pa.scalar(as_held(kind, value), type=kind).as_py())
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError):
        pass
    raise KeyValueError(column, value, str(kind))


def typed_all(column: str, values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """Return `typed` of many values."""
    try:
        if not pa.types.is_nested(kind):
            held = pa.array([as_held(kind, value) for value in values], type=kind)
            return [canonical(value) for value in cast(list[Any], held.to_pylist())]
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError):
        pass
    # Once more one by one, to name the one that does not fit.
    return [typed(column, value, kind) for value in values]


def may_hold(kind: pa.DataType, value: Any) -> bool:
    """Return whether a number or time can be in a column; of other values Arrow says it."""
    try:
        as_held(kind, value)
    except (ValueError, ArithmeticError):
        return False
    return True


def as_held(kind: pa.DataType, value: Any) -> Any:
    """Return a number or time of the class that a column gives back, with nothing lost; anything else as it is.

    Arrow alone makes 5 of 5.5 for a bigint, a day of its noon or of a number, and takes no decimal for a double.

    Raises:
        ValueError, ArithmeticError: if the column cannot hold it.
    """
    if type(value) is str:
        return value
    if isinstance(value, Real | decimal.Decimal):
        if pa.types.is_temporal(kind) or (isinstance(value, bool) and pa.types.is_floating(kind)):
            raise ValueError(f"a number is no {kind}")
        if isinstance(value, bool):
            return value
        if pa.types.is_integer(kind):
            return _whole(value, 2 ** (kind.bit_width - 1))
        if pa.types.is_floating(kind):
            return _real(value, kind)
        return _exact(value, kind) if pa.types.is_decimal(kind) else value
    if pa.types.is_date(kind) and isinstance(value, datetime.datetime):
        if value.time() != datetime.time():
            raise ValueError("a time is no day")
        return value.date()
    if pa.types.is_timestamp(kind) and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return datetime.datetime.combine(value, datetime.time())
    return value


def _whole(value: Any, limit: int) -> int:
    # Of nan and inf `int` makes none.
    known = int(value)
    if known != value or not -limit <= known < limit:
        raise ValueError("no such whole number")
    return known


def nearest(value: float, kind: pa.DataType) -> float:
    """Return a number as a `float` or `double` column holds it."""
    return as_float32(value) if pa.types.is_float32(kind) else value


def _real(value: Any, kind: pa.DataType) -> float:
    known = float(value)
    if type(value) is float and pa.types.is_float64(kind):
        return known
    # A decimal is the double that is written so: to Spark 0.1 is one number.
    same = known == value or known != known or decimal.Decimal(repr(known)) == value
    if not same or (known == known and nearest(known, kind) != known):
        raise ValueError("rounded, it would be another number")
    return known


def _exact(value: Any, kind: pa.DataType) -> decimal.Decimal:
    known = value if isinstance(value, decimal.Decimal) else decimal.Decimal(str(value))
    if not known.is_finite():
        raise ValueError("no decimal")
    return known.quantize(*_digits(kind))


@lru_cache(maxsize=64)
def _digits(kind: pa.DataType) -> tuple[decimal.Decimal, None, decimal.Context]:
    exactly = decimal.Context(prec=kind.precision, traps=[decimal.InvalidOperation, decimal.Inexact])
    return decimal.Decimal(1).scaleb(-kind.scale), None, exactly


def check_mappings(keys: object) -> None:
    """See that keys are a list of mappings; a key alone, or values without names, is what people give by mistake."""
    if keys is None or (
        isinstance(keys, Sequence) and not isinstance(keys, str) and all(isinstance(key, Mapping) for key in keys)
    ):
        return
    raise KeyFieldsError(keys, "keys are a list, a mapping of names to values each", 'for instance [{"carrier": "UA"}]')


def check_names(keys: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """See that each key has exactly the key columns.

    Raises:
        FieldError: if a key names a column that the state does not have as a key.
        KeyFieldsError: if it leaves one out.
    """
    for key in keys:
        for name in key:
            if name not in names:
                raise FieldError("get", name, names, where="the key of this state")
        if any(name not in key for name in names):
            missing = ", ".join(name for name in names if name not in key)
            fault = f"it lacks {missing}; the key of this state: {', '.join(names)}"
            raise KeyFieldsError(dict(key), fault, "give a value for each of them, or read the whole state")


# More conditions in a row than this and the query's text is deeply nested.
_KEYS_ONE_BY_ONE = 50


def keys_condition(keys: Sequence[Mapping[str, Any]], names: Sequence[str], types: Mapping[str, pa.DataType]) -> str:
    """Return `a = 1 AND b = 2 OR ...` over the asked keys; `IN` where there is one key column.

    With many keys of several columns: `a IN (...) AND b IN (...)`, which some other keys meet as well.
    """
    check_names(keys, names)
    if len(names) == 1 or (names and len(keys) > _KEYS_ONE_BY_ONE):
        return " AND ".join(_any_of(name, [key[name] for key in keys], types[name]) for name in names)
    return "(" + " OR ".join(f"({_one(key, names, types)})" for key in keys) + ")" if keys else "false"


def range_condition(keys: Sequence[Mapping[str, Any]], names: Sequence[str], types: Mapping[str, pa.DataType]) -> str:
    """Bound each plain key column by the least and the greatest asked value; other keys may match as well."""
    check_names(keys, names)
    parts = []
    for name in names:
        if pa.types.is_nested(types[name]):
            continue
        values = typed_all(name, [key[name] for key in keys], types[name])
        known = [value for value in values if value is not None]
        # Floats know no order with NaN.
        if known and not isinstance(known[0], float) and not is_wide(types[name]):
            least, greatest = (literal(name, end(known), types[name]) for end in (min, max))
            between = f"({quoted(name)} >= {least} AND {quoted(name)} <= {greatest})"
            parts.append(f"({between} OR {quoted(name)} IS NULL)" if len(known) < len(values) else between)
    return " AND ".join(parts) or "true"


def _any_of(name: str, values: Sequence[Any], kind: pa.DataType) -> str:
    known = [value for value in values if value is not None and not _is_nan(value)]
    some = ", ".join(dict.fromkeys(_comparable(name, value, kind) for value in known))
    parts = [f"{_compared(name, kind)} IN ({some})"] if some else []
    parts += [f"isnan({quoted(name)})"] if any(_is_nan(value) for value in values) else []
    parts += [f"{quoted(name)} IS NULL"] if any(value is None for value in values) else []
    return "(" + " OR ".join(parts or ["false"]) + ")"


def _one(key: Mapping[str, Any], names: Sequence[str], types: Mapping[str, pa.DataType]) -> str:
    return " AND ".join(_is(name, key[name], types[name]) for name in names) or "true"


def _is(name: str, value: Any, kind: pa.DataType) -> str:
    if value is None:
        return f"{quoted(name)} IS NULL"
    # Nothing is equal to NaN, itself not either.
    if _is_nan(value):
        return f"isnan({quoted(name)})"
    return f"{_compared(name, kind)} = {_comparable(name, value, kind)}"


# delta-rs writes the least and the greatest decimal of a file as doubles, which hold so many digits. To compare such a column
# itself would leave out files that have the key; as text nothing is left out.
EXACT_DIGITS = 15


def is_wide(kind: pa.DataType) -> bool:
    """Return whether a column's statistics may be rounded."""
    return bool(pa.types.is_decimal(kind)) and kind.precision > EXACT_DIGITS


def _compared(name: str, kind: pa.DataType) -> str:
    return f"CAST({quoted(name)} AS VARCHAR)" if is_wide(kind) else quoted(name)


def _comparable(name: str, value: Any, kind: pa.DataType) -> str:
    return f"'{typed(name, value, kind):f}'" if is_wide(kind) else literal(name, value, kind)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | decimal.Decimal) and value != value
