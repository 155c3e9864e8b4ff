"""Dates and times beyond the years 1 to 9999, which a flow may compute: readable as texts, where Python has no value."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pipelines.errors import FarTimeError

_DAYS_OF_400_YEARS = 146_097
# 0000-03-01, from which leap days come last.
_EPOCH = 719_468
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# delta-rs counts days in its statistics with chrono, whose last year this is.
_MOST_DAYS = 95_026_236
_LEAST_DAYS = -96_465_292


def shown_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows for people: a date or time that Python does not have as text, like +12345-01-01T00:00:00."""
    try:
        return rows.to_pylist()
    except (OverflowError, ValueError):
        names = rows.column_names
        columns = [[_shown(value) for chunk in column.chunks for value in chunk] for column in rows.columns]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def plain_rows(rows: pa.Table, table: str, keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return rows as Python has them.

    Raises:
        FarTimeError: as `times_named`.
    """
    with times_named(rows, table, keys):
        return rows.to_pylist()


@contextmanager
def times_named(rows: pa.Table, table: str, keys: Iterable[str]) -> Iterator[None]:
    """Turn what Python says of a row that it cannot have into an error that names column and key.

    Args:
        table: its name, for the error.
        keys: the key columns, for the error.

    Raises:
        FarTimeError: a value is a date or time that Python does not have.
    """
    try:
        yield
    except (OverflowError, ValueError):
        known = [name for name in keys if name in rows.column_names]
        for row in range(rows.num_rows):
            for name in rows.column_names:
                value = rows[name][row]
                if not _is_plain(value):
                    key = {column: _shown(rows[column][row]) for column in known}
                    raise FarTimeError(table, name, str(_shown(value)), key) from None
        raise


def far_date(rows: pa.Table) -> tuple[str, str] | None:
    """Return a column with a date that delta-rs cannot take, and the date; None: all can be taken."""
    for name in rows.column_names:
        for chunk in rows[name].chunks:
            for dates in _dates(chunk):
                ends = pc.min_max(dates.cast(pa.int32()))
                for days in (ends["min"].as_py(), ends["max"].as_py()):
                    if days is not None and not _LEAST_DAYS <= days <= _MOST_DAYS:
                        return name, _date(days)
    return None


@contextmanager
def dates_named(table: str, rows: pa.Table) -> Iterator[None]:
    """Turn delta-rs' panic over a date that it was to write into an error that names the column."""
    try:
        yield
    except DeltaError as error:
        far = far_date(rows)
        if far is None:
            raise
        raise FarTimeError(table, *far, written=True) from error


def rank(value: Any) -> tuple[int, Any]:
    """Return a value of a column as it is sorted: a time that is a text (`shown_rows`) before or behind all others."""
    if isinstance(value, str) and value[:1] in ("+", "-"):
        return (-1 if value[0] == "-" else 1), value
    return 0, value


def _dates(values: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_date32(values.type):
        yield values
    elif pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _dates(part)


def _is_plain(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (OverflowError, ValueError):
        return False
    return True


def _shown(value: pa.Scalar) -> Any:
    if _is_plain(value):
        return value.as_py()
    kind = value.type
    if pa.types.is_date32(kind):
        return _date(value.value)
    if pa.types.is_timestamp(kind):
        second, fraction = divmod(value.value, _PER_SECOND[kind.unit])
        days, second = divmod(second, 86_400)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        digits = len(str(_PER_SECOND[kind.unit])) - 1
        return f"{_date(days)}T{clock}{f'.{fraction:0{digits}}' if fraction else ''}{'+00:00' if kind.tz else ''}"
    if pa.types.is_struct(kind):
        return {field.name: _shown(value[field.name]) for field in kind}
    if pa.types.is_map(kind):
        return [(_shown(entry["key"]), _shown(entry["value"])) for entry in value.values]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_shown(part) for part in value.values]
    return str(value)


def _date(days: int) -> str:
    """Return a day since 1970 as text, of any year (Howard Hinnant's civil_from_days)."""
    if datetime.date.min.toordinal() <= days + 719_163 <= datetime.date.max.toordinal():
        return str(datetime.date.fromordinal(days + 719_163))
    era, day = divmod(days + _EPOCH, _DAYS_OF_400_YEARS)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    of_month = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{year + era * 400 + (month <= 2):+05d}-{month:02}-{of_month:02}"
