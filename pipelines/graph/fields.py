"""Field names and schemas of streams: parsing and validation, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pipelines.ddl import FieldNames as FieldNames
from pipelines.ddl import added as added
from pipelines.ddl import as_names as as_names
from pipelines.ddl import parse_ddl as parse_ddl
from pipelines.errors import BadNameError, DuplicateFieldError, FieldError

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def is_name(text: str) -> bool:
    """Check whether a text is a legal name of a flow, state, stream or gate."""
    return _NAME.fullmatch(text) is not None


def checked_name(kind: str, name: object) -> str:
    """Return `name` if it is a legal name of a flow, state, stream or gate.

    Such names become folders and identifiers, so nothing but `[a-z][a-z0-9_]*` is let through (docs/architecture.md#safety).
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadNameError(kind, name)
    return name


def require(operation: str, names: FieldNames | None, available: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple, all of them fields of the stream.

    Raises:
        FieldError: at the first name that the stream does not have (Trident rules, section 2, field projection).
        DuplicateFieldError: a name comes twice (Trident rules, section 2).
    """
    wanted = as_names(names, operation)
    for at, name in enumerate(wanted):
        if name not in available:
            raise FieldError(operation, str(name), available)
        if name in wanted[:at]:
            raise DuplicateFieldError(operation, str(name), ())
    return wanted


def require_shown(operation: str, outputs: Sequence[str], columns: Sequence[str], where: str) -> None:
    """Check that outputs show columns of a state: those of their names, or all of them by position.

    Args:
        where: what has the columns, as the text says it.

    Raises:
        FieldError: an output is no column, and the outputs are not as many as the columns, or one has another column's name:
            a wrong name among right ones must not show another column.
    """
    foreign = [name for name in outputs if name not in columns]
    by_position = len(outputs) == len(columns) and not any(
        output in columns and output != column for output, column in zip(outputs, columns, strict=True)
    )
    if foreign and not by_position:
        raise FieldError(operation, foreign[0], columns, where)


def storable(names: Sequence[str]) -> None:
    """Check that the names can be columns of a Delta table."""
    for name in names:
        if set(name) & set(" ,;{}()\n\t="):
            raise BadNameError("field", name, "cannot be a column of a Delta table: it holds a space or one of ,;{}()=")


def distinct(items: Iterable[T]) -> tuple[T, ...]:
    """Return the items in order, each once."""
    return tuple(dict.fromkeys(items))
