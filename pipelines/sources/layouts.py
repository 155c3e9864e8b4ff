"""The layout of a file that does not follow the schema: a CSV header in another order, JSON under other names, Parquet that lacks
a column.

The driver looks at the beginning of each new file, of Parquet at its end. Where all is as declared, which is nearly always,
Spark's own reading of the batch stands; the others are read again, each as it is laid out, and what cannot be read by name is
rejected line by line.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from io import BytesIO, TextIOWrapper
from operator import and_
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pipelines.places.location import Location, Place
from pipelines.private import ordinary_opener
from pipelines.sources.base import FILE, place_of, unmarked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

T = TypeVar("T")

OTHER_FIELDS = "\x00fields"
"""What `_corrupt` begins with in a line whose fields are others than the schema's: then the fields seen, `\\x00`, the line."""
NOT_READ = "\x00unread"
"""What `_corrupt` begins with in the record for a file that is not read: then why, `\\x00`, the file and why."""
_LOOKED_AT = 64 * 1024
_SHOWN = 200
_LONGEST_HEADER = 1 << 20
_AT_ONCE = 16
_LONGEST_FOOTER = 64 << 20
"""Of a Parquet file of a store: its last bytes say how long it is, and may say 4 GB. One of 1,000 columns and 100 row groups has
8 MB."""
_FOLLOWED = object()
_JSON = json.JSONDecoder()


def _inflated(packed: Path | BytesIO, _mode: str, **text: Any) -> IO[str]:
    """Open the beginning of a file of zlib's, which is Hadoop's `.deflate`."""
    with packed if isinstance(packed, BytesIO) else packed.open("rb") as file:
        beginning = zlib.decompressobj().decompress(file.read(_LONGEST_HEADER), _LONGEST_HEADER)
    return TextIOWrapper(BytesIO(beginning), **text)


_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".deflate": _inflated}
_UNREADABLE = (OSError, EOFError, zlib.error, UnicodeError)
"""What reading the beginning of a torn, mispacked or gone file raises. Spark says then what is wrong."""
_MARKS = {"utf-16": ("\xff\xfe", "\xfe\xff"), "utf-32": ("\xff\xfe\0\0", "\0\0\xfe\xff")}
_PACKED = frozenset({".zst", ".zstd", ".lz4", ".snappy", ".xz"})


LONG_FOOTER = f"a footer of more than {_LONGEST_FOOTER >> 20} MB, not read"


class LongFooterError(OSError):
    """The end of a Parquet file names a footer that is longer than what is asked of a store."""


@dataclass(frozen=True)
class Header:
    """A CSV file's header."""

    names: tuple[str, ...]
    line: str

    @property
    def mark(self) -> Column:
        """Return what `_corrupt` begins with in lines that have these fields."""
        from pyspark.sql import functions as F

        names = ", ".join(self.names)[:_SHOWN].replace("\x00", "")
        return F.lit(f"{OTHER_FIELDS}{names}\x00")

    def lacks(self, fields: Sequence[str]) -> list[str]:
        """Return the declared fields that it does not name, or names twice."""
        there = [name.lower() for name in self.names]
        return [field for field in fields if there.count(field.lower()) != 1]

    def names_any(self, fields: Sequence[str]) -> bool:
        """Return whether it is a header at all, and no line like others."""
        return not {name.lower() for name in self.names}.isdisjoint(field.lower() for field in fields)

    def is_as_declared(self, fields: Sequence[str]) -> bool:
        """Return whether reading by position is reading by name."""
        return [name.lower() for name in self.names] == [field.lower() for field in fields]

    def schema(self, columns: Sequence[tuple[str, str]]) -> str:
        """Return the declared columns in the order of this file, what it has beside them as text."""
        kinds = {name.lower(): (name, kind) for name, kind in columns}
        fields = [kinds.get(name.lower(), (f"_other{n}", "string")) for n, name in enumerate(self.names)]
        return ", ".join(f"`{name}` {kind}" for name, kind in fields)


def header_of(file: str, options: Mapping[str, Any]) -> Header | None:
    """Read a CSV file's header; None if the file is empty, missing, or compressed in a way that only Spark reads.

    A file of which nothing but empty lines and comments is seen has a header without names: it is not read by position.
    """
    given = {name.lower(): value for name, value in options.items()}
    comment = str(given.get("comment") or "")
    try:
        with _opened(file, _encoding(given)) as lines:
            for line in _first_lines(lines, str(given.get("linesep") or "")):
                if line.strip() and not (comment and line.startswith(comment)):
                    return Header(_names(line, given), line.rstrip("\r\n"))
            return Header((), "") if lines.read(1) else None
    except (*_UNREADABLE, LookupError):
        return None


def _first_lines(file: IO[str], sep: str, left: int = _LONGEST_HEADER) -> Iterator[str]:
    """Yield a file's lines: so many characters at the most, for it may have no end of a line at all.

    Args:
        sep: what ends a line; empty: what ends it in text files.
    """
    if sep not in ("", "\n", "\r", "\r\n"):  # those are one to Python, also within a longer one
        ends = sep.replace("\r\n", "\n").replace("\r", "\n")
        yield from file.read(left).removeprefix("\ufeff").split(ends)
        return
    while left > 0 and (line := file.readline(left).removeprefix("\ufeff")):
        yield line
        left -= len(line)


def _encoding(given: Mapping[str, Any]) -> str:
    """Return Python's name of the encoding."""
    return codecs.lookup(str(given.get("encoding") or given.get("charset") or "utf-8")).name


def _names(line: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    sep = str(given.get("sep", given.get("delimiter", ",")))
    sep = "\t" if sep == "\\t" else sep
    text = line.rstrip("\r\n")
    if not sep:  # Spark says that there is none
        return (text,)
    if len(sep) != 1:
        return tuple(name.strip().strip('"') for name in text.split(sep))
    quote = str(given.get("quote") or '"')
    try:
        return tuple(name.strip() for name in next(csv.reader([text], delimiter=sep, quotechar=quote), []))
    except (csv.Error, TypeError, ValueError):  # a name of more than 128 KB, a quote of two characters
        return tuple(name.strip().strip(quote) for name in text.split(sep))


def first_objects(lines: IO[str]) -> Iterator[dict[str, Any]]:
    """Read the objects among the first lines of a JSON file; skip what cannot be read, is nested too deep or is too long."""
    return (record for record in _first_values(lines) if isinstance(record, dict))


def _first_values(lines: IO[str], sep: str = "", *, comments: bool = False) -> Iterator[Any]:
    """Read the values of the first lines; `_FOLLOWED` for a line in which more than a comment follows an object or a list.

    What follows any other value, Spark says itself: the line is torn.

    Args:
        comments: whether a line may end with one.
    """
    for line in _first_lines(lines, sep, _LOOKED_AT):
        text = line.rstrip("\0 \t\r\n").lstrip(" \t\r\n")
        try:
            value, end = _JSON.raw_decode(text)
        except (ValueError, RecursionError):
            continue
        behind = text[end:].lstrip()
        if not behind or (comments and behind.startswith("/")):
            yield value
        elif isinstance(value, (dict, list)):
            yield _FOLLOWED


def is_named_otherwise(value: Any, fields: Iterable[str]) -> bool:
    """Return whether a value of JSON is an object that has none of some fields."""
    return isinstance(value, dict) and bool(value) and set(fields).isdisjoint(value)


def has_other_fields(file: str, fields: Iterable[str], options: Mapping[str, Any]) -> bool:
    """Return whether one of the first lines of a JSON file is an object that has none of some fields, or more than a value."""
    given = {name.lower(): value for name, value in options.items()}
    known = set(fields)
    try:
        with _opened(file, _encoding(given)) as lines:
            values = _first_values(lines, str(given.get("linesep") or ""), comments=_with_comments(options))
            return any(value is _FOLLOWED or is_named_otherwise(value, known) for value in values)
    except (*_UNREADABLE, LookupError):
        return False


def first_value(file: str, options: Mapping[str, Any]) -> tuple[Any, str] | None:
    """Read the first value of a JSON file and what follows it; None if it does not end within what is looked at."""
    given = {name.lower(): value for name, value in options.items()}
    try:
        with _opened(file, _encoding(given)) as lines:
            seen = lines.read(_LOOKED_AT).removeprefix("\ufeff").lstrip()
        if "\0" in seen[:4] and given.keys().isdisjoint(("encoding", "charset")):
            # Spark's reader sees by the first bytes that they are UTF-16 or UTF-32.
            with _opened(file, "latin-1") as lines:
                found = json.detect_encoding(lines.read(4).encode("latin-1"))
            return first_value(file, {**options, "encoding": found})
        value, end = _JSON.raw_decode(seen)
    except (*_UNREADABLE, LookupError, ValueError, RecursionError):
        return None
    return value, seen[end:]


def why_not_read(file: str, fields: Iterable[str], options: Mapping[str, Any]) -> str | None:
    """Return why a JSON file is not read that is one value, where that ends within what is looked at; None: it is read."""
    value, behind = first_value(file, options) or (None, "")
    rest = behind.strip().rstrip("\0")
    if rest != "" and not (rest.startswith("/") and _with_comments(options)):
        return "more than one JSON value, not read"
    other = any(is_named_otherwise(record, fields) for record in (value if isinstance(value, list) else [value]))
    return "a record with none of the declared fields, not read" if other else None


def _with_comments(options: Mapping[str, Any]) -> bool:
    return any(str(value).lower() == "true" for name, value in options.items() if name.lower() == "allowcomments")


def as_text(file: Place, encoding: str) -> IO[str]:
    """Open a file as the text that it is; of a store's file its beginning."""
    if isinstance(file, Location):
        return TextIOWrapper(BytesIO(_beginning(file)), encoding=encoding, errors="replace")
    return open(file, encoding=encoding, errors="replace", opener=ordinary_opener)


def is_packed(file: str) -> bool:
    """Return whether a file is compressed in a way that only Spark reads."""
    return Path(file).suffix.lower() in _PACKED


def _opened(file: str, encoding: str) -> IO[str]:
    """Open a file by its key (`file_key`) as text; one that is packed is unpacked.

    Raises:
        OSError: it cannot be read, or only by Spark.
    """
    suffix = Path(file).suffix.lower()
    if is_packed(file):
        raise OSError(file)
    if encoding in _MARKS:
        with _opened(file, "latin-1") as beginning:
            # Java takes a text without a mark for big-endian; Python refuses it.
            encoding += "" if beginning.read(4).startswith(_MARKS[encoding]) else "-be"
    place = place_of(file)
    if suffix not in _OPENERS:
        return as_text(place, encoding)
    if not isinstance(place, Location) and not place.is_file():
        raise OSError(file)
    packed: Path | BytesIO = BytesIO(_beginning(place)) if isinstance(place, Location) else place
    unpacked: IO[str] = _OPENERS[suffix](packed, "rt", encoding=encoding, errors="replace", newline=None)
    return unpacked


def _beginning(file: Location) -> bytes:
    """Return as much of a file of a store as is looked at."""
    return file.beginning(_LONGEST_HEADER)


def of_each(look: Callable[[str], T], files: Sequence[str]) -> Iterator[tuple[str, T]]:
    """Look at files by their keys (`file_key`); at a store's, of which each takes a request, at several at once."""
    if not any(isinstance(place_of(file), Location) for file in files[:1]):
        yield from ((file, look(file)) for file in files)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from zip(files, pool.map(look, files), strict=True)


def parquet_columns(file: Place) -> dict[str, str]:
    """Read the names of a Parquet file's columns and their types; of a store's file its end.

    Raises:
        ArrowException, OSError
        UnicodeError: a column's name is not UTF-8.
        LongFooterError: it is a store's, and its end names a footer of more than 64 MB.
    """
    import pyarrow.parquet as pq
    from pyarrow.lib import ArrowInvalid

    end: Path | BytesIO
    if isinstance(file, Location):
        tail = file.store.end(file.key, _LOOKED_AT)
        footer = int.from_bytes(tail[-8:-4], "little") + 8
        if tail[-4:] != b"PAR1":  # nor does an encrypted one say its columns
            raise ArrowInvalid("no footer of a Parquet file at its end")
        if footer > _LONGEST_FOOTER:
            raise LongFooterError(LONG_FOOTER)
        end = BytesIO(tail if footer <= len(tail) else file.store.end(file.key, footer))
    else:
        end = file
    return {column.name: str(column.type) for column in pq.read_schema(end)}


def rejected_lines(header: Header, fields: Sequence[tuple[str, str]]) -> list[Column]:
    """Return the columns of a source's frame for a text frame whose lines cannot be read by name."""
    from pyspark.sql import functions as F

    corrupt = F.concat(header.mark, unmarked(F.col("value")))
    return [*(F.lit(None).cast(kind).alias(name) for name, kind in fields), corrupt]


def without_first(lines: DataFrame, line: str) -> DataFrame:
    """Return a text frame (`value`, `_file`) without one line of each file: of those that are like it, all but one stay."""
    from pyspark.sql import functions as F

    like = lines.where(F.col("value") == line).groupBy("value", FILE).count()
    more = F.explode(F.array_repeat("value", F.col("count").cast("int") - 1)).alias("value")
    return lines.where(F.col("value") != line).unionByName(like.select(more, FILE))


def nothing_read(text: Column, record: Column, fields: Sequence[str]) -> Column:
    """Mark a line as `named_otherwise` does: its keys are looked for only where the struct that it was read as holds nothing."""
    from pyspark.sql import functions as F

    empty = reduce(and_, (record.getField(field).isNull() for field in fields))
    return F.when(empty, named_otherwise(text, fields))


def with_any(text: Column, record: Column, fields: Sequence[str]) -> Column:
    """Return the struct that a line was read as; null for an object with none of some fields."""
    from pyspark.sql import functions as F

    return F.when(nothing_read(text, record, fields).isNull(), record)


def named_otherwise(text: Column, fields: Sequence[str]) -> Column:
    """Mark a line of JSON, whole, if it is an object with none of some fields; else null."""
    from pyspark.sql import functions as F

    keys = F.json_object_keys(text)
    other = F.size(keys) > 0
    other &= ~F.arrays_overlap(keys, F.array(*(F.lit(field) for field in fields)))
    seen = F.replace(F.substring(F.array_join(keys, ", "), 1, _SHOWN), F.lit("\x00"), F.lit(""))
    return F.when(other, F.concat(F.lit(OTHER_FIELDS), seen, F.lit("\x00"), text))
