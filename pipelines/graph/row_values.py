"""The values that users' Python code may give for its declared types: the same rows in a stream and in a query. No Spark here."""

from __future__ import annotations

import datetime
import decimal
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.graph.arrow_types import ARROW_TYPES
from pipelines.graph.plain_values import as_key, plain_time
from pipelines.graph.types import parts_of

Convert = Callable[[Any], Any]


def as_rows(width: int, convert: Convert | None, given: Any) -> list[tuple[Any, ...]]:
    """Return the rows that a function gave: what a generator yields, the items of a list, or one row.

    Args:
        convert: makes of a row what its types hold; None: nothing is to do.

    Raises:
        ValueError: a row has another number of values, or one that is none of its type.
    """
    items: Iterable[Any] = given if isinstance(given, list) or inspect.isgenerator(given) else [given]
    made = []
    for item in items:
        # Neither a text nor a dict is a row of several values.
        row = item if isinstance(item, tuple) else tuple(item) if width > 1 and isinstance(item, list) else (item,)
        if len(row) != width:
            raise ValueError(f"it gave {len(row)} value(s) for {width} field(s): {item!r}")
        made.append(convert(row) if convert else row)
    return made


@lru_cache(maxsize=256)
def to_plain(types: tuple[str, ...], text: Convert | None = None, time: Convert | None = None) -> Convert | None:
    """Return what makes plain values of the declared Spark SQL types of a row; None if nothing is to do.

    Args:
        types: the types.
        text: makes a string of a value; without: `own_text`.
        time: makes a timestamp of one; without: `moment`.
    """
    return of_all([_converter(kind, text or own_text, time or moment) for kind in types])


def of_all(converts: Sequence[Convert | None]) -> Convert | None:
    """Return what converts the values of a row, each by its own."""
    if not any(converts):
        return None
    if len(converts) == 1:
        first = converts[0]
        return lambda values: (one(first, *values),)
    return lambda values: tuple(one(convert, value) for convert, value in zip(converts, values, strict=True))


def one(convert: Convert | None, value: Any) -> Any:
    """Return a value converted; null is null of every type."""
    return convert(value) if convert and value is not None else value


def _converter(kind: str, text: Convert, time: Convert) -> Convert | None:
    kind = kind.strip().lower() if "<" not in kind else kind.strip()
    if kind in ("double", "float", "real"):
        return real
    if kind in _BITS:
        return whole(kind)
    if kind.startswith(("decimal", "dec(", "numeric")) or kind == "dec":
        return partial(exact, kind)
    if kind in ("timestamp", "timestamp_ltz"):
        return time
    if kind.startswith(("string", "varchar", "char")):
        return text
    if kind in _OTHERS:
        return _OTHERS[kind]
    outer, inner = parts_of(kind)
    return _NESTED[outer](*((name, _converter(part, text, time)) for name, part in inner)) if outer in _NESTED else None


Named = tuple[str, Convert | None]


def _array(inner: Named) -> Convert:
    each = inner[1]
    return lambda values: [one(each, value) for value in _parts(values, "array")]


def _map(*inner: Named) -> Convert:
    key, item = (each for _, each in inner)

    def convert(value: Any) -> dict[Any, Any]:
        try:
            known = dict(value)
        except (TypeError, ValueError) as error:
            raise _unfit(value, "map") from error
        return {as_key(one(key, name)): one(item, other) for name, other in known.items()}

    return convert


def _struct(*inner: Named) -> Convert:
    fields = dict(inner)

    def convert(value: Any) -> dict[str, Any]:
        known = value if isinstance(value, Mapping) else dict(zip(fields, _parts(value, "struct"), strict=True))
        return {name: one(each, known.get(name)) for name, each in fields.items()}

    return convert


def _parts(value: Any, kind: str) -> Iterable[Any]:
    """Return what has parts; a text has none, and those of a dict have names."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise _unfit(value, kind)
    return value


_NESTED: dict[str, Callable[..., Convert]] = {
    "array": _array,
    "map": _map,
    "struct": _struct,
}

_BITS = {"tinyint": 8, "byte": 8, "smallint": 16, "short": 16, "int": 32, "integer": 32, "bigint": 64, "long": 64}


def real(value: Any) -> float:
    """Return a number as a float."""
    if type(value) is float:
        return value
    # NumPy's numbers too, which Spark does not read.
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _unfit(value, "double")
    return float(value)


def whole(kind: str) -> Convert:
    """Return what takes whole numbers of an integer type."""
    most = 1 << (_BITS[kind] - 1)

    def convert(value: Any) -> int:
        if type(value) is not int:
            if not _is_whole(value):
                raise _unfit(value, kind)
            value = int(value)
        if not -most <= value < most:
            raise _unfit(value, kind)
        return value

    return convert


def _is_whole(value: Any) -> bool:
    if isinstance(value, numbers.Integral):
        return not isinstance(value, bool)
    if isinstance(value, decimal.Decimal):
        return value.is_finite() and value == value.to_integral_value()
    return isinstance(value, numbers.Real) and bool(value == value // 1)


def exact(kind: str, value: Any) -> decimal.Decimal:
    """Return a decimal, or a whole number as one."""
    if isinstance(value, decimal.Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _unfit(value, kind)
    return decimal.Decimal(int(value))


def boolean(value: Any) -> bool:
    """Return a truth value, NumPy's too."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _unfit(value, "boolean")


def day(value: Any) -> Any:
    """Return a date, or a midnight as one."""
    if isinstance(value, numbers.Number) or (isinstance(value, datetime.datetime) and value.time() != datetime.time()):
        raise _unfit(value, "date")
    return value.date() if isinstance(value, datetime.datetime) else value


def moment(value: Any) -> Any:
    """Return a time as one without a zone, in UTC."""
    if isinstance(value, numbers.Number):
        raise _unfit(value, "timestamp")
    return plain_time(value)


def own_text(value: Any) -> str:
    """Return a text, or the one that bytes are in UTF-8, as Arrow takes them."""
    if isinstance(value, str):
        return str.__str__(value)  # not the name that a member of an Enum has
    try:
        return blob(value).decode()
    except ValueError:
        raise _unfit(value, "string") from None


def as_text(value: Any) -> str:
    """Return a text; numbers and truth values as Spark writes them."""
    if type(value) is str:  # nearly all are, and the checks of the others cost
        return value
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, decimal.Decimal | numbers.Integral):
        return str(value)
    return _of_double(float(value)) if isinstance(value, numbers.Real) else own_text(value)


def _of_double(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if value != value else f"{'-' if value < 0 else ''}Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    first, *others = map(str, digits)
    return f"{'-' * sign}{first}.{''.join(others) or 0}E{int(exponent) + len(others)}"


def blob(value: Any) -> bytes:
    """Return bytes; of a text those of UTF-8."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _unfit(value, "binary")
    return bytes(value)


_OTHERS: dict[str, Convert] = {"boolean": boolean, "date": day, "binary": blob}


def _unfit(value: Any, kind: str) -> ValueError:
    return ValueError(f"it gave {value!r} ({type(value).__name__}), which is no {kind}")


def to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return plain values as an array. Arrow alone makes 0 of 0.5 for a bigint, a day of its noon, and a time of 5.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException: for a value that is none of the type.
    """
    if _fit(values, kind):
        try:
            return pa.array(values, type=kind)
        except pa.ArrowInvalid:
            pass  # for a double Arrow takes no int beyond 2**53, which `real` rounds
    convert = _of_arrow(kind)
    return pa.array([one(convert, value) for value in values], type=kind)


def _fit(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Check by the values' classes, which costs little, that none needs to be looked at."""
    if _of_arrow(kind) is None:
        return True
    if not pa.types.is_nested(kind):
        return _own_classes(kind).issuperset(map(type, values))
    there = [value for value in values if value is not None]
    if pa.types.is_list(kind):
        for own in {*map(type, there)}:
            _refuse_iterator(own)
        return _fit(chain.from_iterable(there), kind.value_type)
    if any(type(value) is not dict for value in there):
        return False
    if pa.types.is_map(kind):
        of_values = chain.from_iterable(value.values() for value in there)
        return _fit(chain.from_iterable(there), kind.key_type) and _fit(of_values, kind.item_type)
    return all(_fit([value.get(field.name) for value in there], field.type) for field in kind)


def _refuse_iterator(own: type) -> None:
    """Raise TypeError for what can be gone through only once: a check would eat it, and rows are tried twice."""
    if hasattr(own, "__next__"):
        raise TypeError(f"an iterator ({own.__name__}) is no array, map or struct")


@lru_cache(maxsize=256)
def _own_classes(kind: pa.DataType) -> frozenset[type]:
    own: dict[Callable[[pa.DataType], bool], set[type]] = {
        pa.types.is_integer: {int, np.int64},
        pa.types.is_floating: {float, int, np.float64},
        pa.types.is_decimal: {decimal.Decimal},
        pa.types.is_date: {datetime.date},
        pa.types.is_timestamp: {datetime.datetime},
    }
    return frozenset({type(None)}).union(*(known for is_own, known in own.items() if is_own(kind)))


_SQL = {kind: text for text, kind in ARROW_TYPES.items()}


@lru_cache(maxsize=256)
def _of_arrow(kind: pa.DataType) -> Convert | None:
    """Return what makes of a value one that Arrow takes for the type without a loss; None if Arrow loses nothing."""
    if pa.types.is_nested(kind):
        return _of_nested(kind)
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return None
    if pa.types.is_timestamp(kind):
        return moment
    text = f"decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else _SQL.get(kind) or ""
    return _converter(text, own_text, moment)


def _of_nested(kind: pa.DataType) -> Convert | None:
    make: Callable[..., Convert] = _struct
    if pa.types.is_struct(kind):
        inner = [(field.name, _of_arrow(field.type)) for field in kind]
    elif pa.types.is_map(kind):
        inner, make = [("", _of_arrow(kind.key_type)), ("", _of_arrow(kind.item_type))], _map
    else:
        inner, make = [("", _of_arrow(kind.value_type))] if pa.types.is_list(kind) else [], _array
    if not any(each for _, each in inner):
        return None
    convert = make(*inner)

    def of_lasting(given: Any) -> Any:
        _refuse_iterator(type(given))
        return convert(given)

    return of_lasting
