"""Spark SQL types of fields, as far as the definition says them: without Spark, which alone knows the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pipelines.aggregators.window import WHOLE
from pipelines.errors import DefinitionError, FunctionError
from pipelines.graph.fields import parse_ddl

if TYPE_CHECKING:
    from pipelines.graph import nodes

Types = Mapping[str, str | None]
"""The type of each field, `None` where only Spark can tell."""


def known_types(graph: nodes.Graph, node_id: int) -> dict[str, str | None]:
    """Return the types of a node's fields that follow from schemas and declared types: `{"word": "string", "n": None}`.

    What a function over columns or a built-in aggregator makes is not known here; its partial value least of all.
    """
    node_types: dict[int, Types] = {}
    for node in graph.ancestors(node_id):
        node_types[node.id] = node.field_types(tuple(node_types[parent] for parent in node.parents))
    return dict(node_types[node_id])


def same_type(first: str | None, other: str | None) -> bool:
    """Check whether two types may be the same: one is not known, or they differ in spelling alone.

    Names of fields in structs are no spelling: a field of another name is another field, in capitals too.
    """
    if first is None or other is None:
        return True
    (mine, read), (its, its_read) = _spelled(first), _spelled(other)
    return mine == its if read and its_read else _bare(mine) == _bare(its)


def nullable(kind: str) -> str:
    """Return a type whose fields in structs may be null."""
    parts = _NAMES.split(kind)
    parts[::2] = [_NOT_NULL.sub("", part) for part in parts[::2]]
    return "".join(parts)


_NAMES = re.compile(r"(`(?:[^`]|``)*`|\w+\s*:|\bcomment\s+'(?:[^'\\]|\\.)*')")
"""Names of fields, in quotes or in front of a colon, and comments: what is no word of a type."""
_QUOTED = re.compile("`((?:[^`]|``)*)`")
"""A name in quotes; a quote within is written twice."""
_NOT_NULL = re.compile(r"\s+not null\b", re.IGNORECASE)
_OTHER_SPELLINGS = (
    (re.compile(r"\bdecimal\b(?!\s*\()"), "decimal(10,0)"),
    (re.compile(r"\bdecimal\s*\(\s*(\d+)\s*\)"), r"decimal(\1,0)"),
    (re.compile(r"\btimestamp_ltz\b"), "timestamp"),
    (re.compile(r"\s+not null\b|\s"), ""),
)
"""What the parser leaves of a type's spellings: the digits that a decimal has by itself, another name, what is no type."""


DECIMAL = re.compile(r"decimal(?:\((\d+)(?:, *(\d+))?\))?")
WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""As many digits as Spark gives a whole number beside a decimal."""


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return the precision and scale of a decimal, or of a whole number beside one."""
    if decimal := DECIMAL.fullmatch(kind):
        return int(decimal[1] or 10), int(decimal[2] or 0)
    return (WHOLE_DIGITS[kind], 0) if kind in WHOLE_DIGITS else None


@lru_cache(maxsize=1024)
def _spelled(kind: str) -> tuple[str, bool]:
    """Return a type in one spelling, to compare, and whether it was read: what only Spark writes stays as it is."""
    try:
        ((_, text),) = parse_ddl(f"x {kind}")
    except (DefinitionError, ValueError):
        return kind if "<" in kind else kind.lower(), False
    words = _NAMES.split(text)
    return "".join(_named(word) if place % 2 else _typed(word) for place, word in enumerate(words)), True


def _named(word: str) -> str:
    """Return a name in quotes; a comment is left out."""
    if word.startswith("`"):
        return word
    return f"`{word[:-1].rstrip()}`:" if word.endswith(":") else ""


def _typed(words: str) -> str:
    words = words.lower()
    for spelling, ours in _OTHER_SPELLINGS:
        words = spelling.sub(ours, words)
    return words


def _bare(text: str) -> str:
    """Return a spelling as PySpark writes it: without quotes around names, whatever is in them."""
    unquoted = _QUOTED.sub(lambda quoted: quoted[1].replace("``", "`"), text)
    return re.sub(r"([,:])\s+", r"\1", unquoted)


def check_said(operation: str, said: Types, comes: Types) -> None:
    """Check that outputs come in the types that the user wrote for them.

    Args:
        comes: the types in which they come; what is not known is not checked.
    """
    for name, kind in said.items():
        if not same_type(kind, comes.get(name)):
            raise FunctionError(
                operation,
                f"gives {_shown(name, str(comes[name]))}; got {_shown(name, str(kind))}",
                hint="write the type that comes, or none, and cast the field before it or behind it for another",
            )


_WHOLE = re.compile(r"tinyint|smallint|int|bigint|decimal\(\d+,0\)|void|null")


def check_whole(operation: str, field: str, kind: str | None) -> None:
    """Check that a field whose type is known holds whole numbers, or nothing."""
    if kind is not None and not _WHOLE.fullmatch(_spelled(kind)[0]):
        raise FunctionError(
            operation, f"takes a field of whole numbers; got {_shown(field, kind)}", hint="cast it to bigint before it"
        )


_SORTS = {
    "text": ("string", "varchar", "char"),
    "number": (*WHOLE, "float", "real", "double", "decimal", "dec", "numeric"),
    "time": ("date", "timestamp", "timestamp_ntz", "timestamp_ltz"),
    "boolean": ("boolean",),
}


def check_meeting(operation: str, places: Iterable[Iterable[tuple[str, str | None]]]) -> None:
    """Check that fields that meet hold values of one sort: a text equals no number, a number no date.

    Args:
        operation: what brings them together.
        places: for each place where fields meet their names and types.
    """
    for fields in places:
        known = [(name, kind, sort) for name, kind in fields if kind and (sort := _sort(kind))]
        for name, kind, sort in known:
            first, its_kind, its_sort = known[0]
            if sort != its_sort:
                raise FunctionError(
                    operation,
                    f"{_shown(first, its_kind)} meets {_shown(name, kind)}",
                    hint="cast one of them before it",
                )


def _sort(kind: str) -> str | None:
    word = kind.lower().split("(")[0].strip()
    return next((sort for sort, kinds in _SORTS.items() if word in kinds), None)


def _shown(name: str, kind: str) -> str:
    return f'"{name} {kind}"'


@lru_cache(maxsize=256)
def parts_of(kind: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return what a type is made of, with the names of a struct's fields.

    `map<string, int>` -> ("map", (("", "string"), ("", "int"))); `struct<a: int>` -> ("struct", (("a", "int"),)).
    """
    if "<" not in kind:
        return kind, ()
    outer, inside = kind.split("<", 1)
    outer, depth, start, quoted = outer.strip().lower(), 0, 0, False
    parts = []
    inside = inside.rstrip()[:-1]
    for at, letter in enumerate(inside + ","):
        # A quote within quotes is written twice, so it ends them and begins them again.
        quoted ^= letter == "`"
        depth += 0 if quoted else (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0 and not quoted:
            parts.append(inside[start:at].strip())
            start = at + 1
    return outer, tuple(_field(part) if outer == "struct" else ("", part) for part in parts)


def _field(part: str) -> tuple[str, str]:
    """Return name and type of `a: int`, `a:int`, `a int` or "`a b`: int"; a quote in a quoted name is written twice."""
    if (quoted := _QUOTED.match(part)) is not None:
        name, rest = quoted[1].replace("``", "`"), part[quoted.end() :]
    else:
        name, rest = part.replace(":", " ", 1).split(None, 1)
    return name, rest.lstrip(": ").strip()


def of_ddl(ddl: str) -> dict[str, str | None]:
    """Return the types of a schema; of an empty text no fields."""
    return dict(parse_ddl(ddl)) if ddl.strip() else {}


def named(fields: Iterable[str], types: Sequence[str]) -> dict[str, str | None]:
    """Return fields with their types; without types they are not known."""
    names = tuple(fields)
    return dict(zip(names, types, strict=True)) if len(types) == len(names) else dict.fromkeys(names)


def of_aggregations(chain: Iterable[nodes.Aggregation]) -> dict[str, str | None]:
    """Return the types of the outputs of aggregators."""
    types: dict[str, str | None] = {}
    for aggregation in chain:
        types |= named(aggregation.outputs, aggregation.types)
    return types


def common(types: Iterable[str | None]) -> str | None:
    """Return the one type that all have, else None."""
    distinct = set(types)
    return distinct.pop() if len(distinct) == 1 else None
