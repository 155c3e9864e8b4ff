"""Rows between two steps, and the one order in which results are shown."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """Tuples of named fields. `types` holds each field's Spark SQL type, or None where only Spark would know it.

    `tasks` is each row's task, None if all are in task 0.
    """

    fields: tuple[str, ...]
    types: tuple[str | None, ...]
    rows: tuple[Row, ...]
    tasks: tuple[int, ...] | None = None

    def column(self, field: str) -> list[Any]:
        """Return the values of one field."""
        at = self.fields.index(field)
        return [row[at] for row in self.rows]

    def type_of(self, field: str) -> str | None:
        return self.types[self.fields.index(field)]

    def type_or_guess(self, field: str) -> str:
        """Return a field's type, from its values where nobody said it."""
        return self.type_of(field) or sql_type_of(self.column(field))

    def task_of(self, number: int) -> int:
        """Return the task of a row."""
        return 0 if self.tasks is None else self.tasks[number]

    def select(self, fields: Sequence[str]) -> Table:
        """Return these fields, in this order."""
        at = [self.fields.index(field) for field in fields]
        rows = tuple(tuple(row[i] for i in at) for row in self.rows)
        return Table(tuple(fields), tuple(self.types[i] for i in at), rows, self.tasks)

    def take(self, numbers: Sequence[int]) -> Table:
        """Return the rows with these numbers."""
        tasks = None if self.tasks is None else tuple(self.tasks[i] for i in numbers)
        return Table(self.fields, self.types, tuple(self.rows[i] for i in numbers), tasks)

    def numbers(self, tasks: int) -> list[list[int]]:
        """Return the numbers of each task's rows."""
        numbers: list[list[int]] = [[] for _ in range(tasks)]
        for i in range(len(self.rows)):
            numbers[self.task_of(i)].append(i)
        return numbers

    def by_task(self, tasks: int) -> list[Table]:
        """Return the rows of each task, one table each, empty ones too."""
        return [self.take(places) for places in self.numbers(tasks)]

    def dealt(self, tasks: Iterable[int] | None) -> Table:
        """Return the same rows in other tasks."""
        return Table(self.fields, self.types, self.rows, None if tasks is None else tuple(tasks))

    def within(self, tasks: int) -> Table:
        """Return the same rows in so many tasks."""
        return self.dealt(None if tasks == 1 or self.tasks is None else (task % tasks for task in self.tasks))

    def replaced(self, fields: Sequence[str], types: Sequence[str | None], of_row: Sequence[Sequence[Row]]) -> Table:
        """Return what a function made: `of_row` holds the new rows of each row, which stay in its task."""
        tasks = None
        if self.tasks is not None:
            tasks = tuple(task for task, rows in zip(self.tasks, of_row, strict=True) for _ in rows)
        return Table(tuple(fields), tuple(types), tuple(row for rows in of_row for row in rows), tasks)

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dicts."""
        return [dict(zip(self.fields, row, strict=True)) for row in self.rows]


def plain(value: Any) -> Any:
    """Return a value as every engine shows it: timestamps without time zone, in UTC; no Arrow or numpy types."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, datetime.datetime):  # pandas' Timestamp is one
        return datetime.datetime(*value.timetuple()[:6], value.microsecond)
    if isinstance(value, Mapping):
        return {plain(key) if isinstance(key, datetime.datetime) else key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def order(value: Any) -> tuple[Any, ...]:
    """Return a sort key that takes every value of one column: None first, then by value, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    if isinstance(value, Mapping):
        return (1, tuple(order(item) for item in value.values()))
    if isinstance(value, list | tuple):
        return (1, tuple(order(item) for item in value))
    return (1, value)


def in_order(rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows with plain values, sorted by the given fields, None first."""
    shown = [{name: plain(value) for name, value in row.items()} for row in rows]
    return sorted(shown, key=lambda row: tuple(order(row[field]) for field in fields))


def sql_type_of(values: Iterable[Any]) -> str:
    """Return the Spark SQL type of Python values whose type nobody declared; `void` if all are None."""
    for value in values:
        for python, sql in _SQL_TYPES:
            if isinstance(value, python):
                return sql
        if isinstance(value, list):
            return f"array<{sql_type_of(value)}>"
        if isinstance(value, Mapping):
            return f"struct<{', '.join(f'`{k}`: {sql_type_of([v])}' for k, v in value.items())}>"
    return "void"


# In this order: True is an int, and a datetime is a date.
_SQL_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double"),
    (str, "string"),
    (bytes, "binary"),
    (Decimal, "decimal(38,18)"),
    (datetime.datetime, "timestamp"),
    (datetime.date, "date"),
)
