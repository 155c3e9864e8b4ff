"""The contract of a source."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from copy import copy
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote, urlsplit

from pipelines.bounds import BYTES, FILES, required
from pipelines.errors import NotSliceableError, SourceError, TrideltaError
from pipelines.graph.fields import parse_ddl
from pipelines.graph.lineage_names import Dataset, dataset_of
from pipelines.places.location import HDFS, S3, Location, Place
from pipelines.surroundings import any_folder, private_among

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

CORRUPT = "_corrupt"
"""string: the text of a malformed record, null for a good one. Every source frame has it."""
FILE = "_file"
"""string: the position unit that a row came from (a file's address). Every source frame has it."""

ROW_JSON = {
    "ignoreNullFields": "false",
    # To the microsecond, as Spark keeps them: the row can be read back as it was.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How quarantine keeps a row that was read: as JSON by these options, and reads it back by them."""


class Source(ABC):
    """A source of tuples.

    A source of its own says `transactional`, `stream` and `positions`, and overrides what else it can do.

    Attributes:
        schema: the fields of the tuples with their types, as DDL.
        path: the folder or the table that it reads; None: it reads no such thing.
        format: Spark's name of the format, where tuples come from files.
        max_parallelism: in how many tasks its tuples can start at most; None: no limit (Trident rules 3.9, 7).
        sliceable: whether all of it can be read again by position (`bounded`), so that a backfill can replace a slice.
        transactional: whether a replayed batch has the same rows (Trident rules 6); otherwise its states must be opaque.
        text: whether records are parsed from text, so that they can be malformed.
        tells_time: whether some of its rows are no events but say how far the time of its events has come.
        confined: whether a flow's file states it: then it reads nothing of the system's own, nor of the deployment's.

    Args:
        schema: DDL of the fields.
    """

    schema: str
    path: str | None = None
    format: str = ""
    max_parallelism: int | None = None
    sliceable: bool = False
    text: bool = False
    tells_time: bool = False
    confined: bool = False

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._columns = parse_ddl(schema)

    # --- what it gives ----------------------------------------------------------------------------------------------

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of the tuples, in order."""
        return tuple(name for name, _ in self._columns)

    @property
    @abstractmethod
    def transactional(self) -> bool: ...

    @property
    def inner(self) -> Source:
        """Return the source as the user gave it: the engine puts columns of its own around a stream of events."""
        return self

    @property
    def lineage(self) -> Mapping[str, tuple[str, ...]]:
        """Return the fields from which a computed field comes; a field that is not among them comes from itself."""
        return {}

    def datasets(self) -> tuple[Dataset, ...]:
        """Return what it reads, by the names that collectors of lineage have for it; empty: it has no such names."""
        return ()

    # --- before the start -------------------------------------------------------------------------------------------

    def prepare(self, name: str, spool: Place) -> Self:
        """Return a copy that is ready to be read in one lake; the source itself is in the topology, which others may run.

        Args:
            spool: a folder of the source's own in the lake.
        """
        return copy(self)

    def check(self, name: str, spark: SparkSession) -> None:  # noqa: B027 (most sources need none of it)
        """Refuse before the start what cannot be read at all.

        Raises:
            SourceError
        """

    def check_first(self, name: str, *, begun: bool = False) -> None:  # noqa: B027 (as above)
        """Refuse behind `check` a schema that the rows do not fit.

        Args:
            begun: whether the stream has taken some: it goes on beside rows that do not fit, unless all of them do not.

        Raises:
            SourceError
        """

    def check_same(self, name: str, spark: SparkSession, checkpoint: Place, index: int) -> None:  # noqa: B027
        """Refuse to go on with a checkpoint whose offsets mean other rows by now.

        Args:
            checkpoint: Spark's own.
            index: which source of its Spark query this is, from 0.

        Raises:
            LostRowsError, MovedSourceError
        """

    # --- reading ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def stream(self, spark: SparkSession) -> DataFrame:
        """Return a streaming frame: the fields, then `_corrupt string` and `_file string`."""

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        """Return a frame of all that is there now (same columns), and its positions: the `_file` values that it can hold.

        Raises:
            NotSliceableError: it can only be streamed.
        """
        raise NotSliceableError(repr(self), "a bounded read")

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        """Return the rows of a stream's batch: the frame that Spark hands over, or one that reads the same `files` (keys).

        Args:
            files: what this source took, and no other of its query.
        """
        return frame

    @abstractmethod
    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        """Return the positions (as `file_key`) that the stream's batches `first..last` (Spark's ids) took.

        Args:
            index: which source of its Spark query this is, from 0.
        """

    def gone(self, files: Iterable[str]) -> frozenset[str]:
        """Return those of files (as `_file` has them) without which a stream goes on that has yet to read them, with no word."""
        return frozenset()

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        """Return what `gone` does, of keys (`file_key`): with `#` or `%` in it a key is no address."""
        return frozenset()

    def file_number(self) -> Column | None:
        """Return what orders the position units (`_file`) of a batch, a bigint of each row; None: their names do."""
        return None

    def parsed(self, text: Column) -> Column | None:
        """Return a record's text as a struct of the fields and `_corrupt`, as the source's own reader does it.

        None: this reader cannot be given a single record.
        """
        return None

    def fault(self, name: str, error: BaseException) -> TrideltaError | None:
        """Return what an error of Spark's says about this source, in words a user can act on; None if it says nothing."""
        return None

    def _with_position(self, frame: DataFrame, position: Column, corrupt: Column | None = None) -> DataFrame:
        """Return the fields, then `_corrupt` (null where no record can be malformed) and `_file`."""
        from pyspark.sql import functions as F

        bad = F.lit(None).cast("string") if corrupt is None else unmarked(corrupt)
        return frame.select(*(f"`{field}`" for field in self.fields), bad.alias(CORRUPT), position.alias(FILE))


class StoredSource(Source):
    """A source of what lies in a folder or a Delta table: a batch is its next files.

    Args:
        path: the folder.
        schema: DDL of the fields.
        max_files_per_batch: at most so many files per batch; None: no limit, of a table 1,000 where bytes are not limited either.
        max_bytes_per_batch: about so many bytes per batch (at least one file).
    """

    path: str
    transactional: bool = True

    def __init__(
        self,
        path: str | Place,
        schema: str,
        *,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
    ) -> None:
        super().__init__(schema)
        self.path = stored_path(path)
        required(f"{type(self).__name__}: max_files_per_batch", FILES, max_files_per_batch)
        required(f"{type(self).__name__}: max_bytes_per_batch", BYTES, max_bytes_per_batch)
        self.max_files_per_batch, self.max_bytes_per_batch = max_files_per_batch, max_bytes_per_batch

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @property
    def folder(self) -> str:
        """Return the folder, as its files' addresses begin."""
        place = place_of(self.path)
        if isinstance(place, Location):
            return str(place)
        return f"file:{quote(os.path.normpath(place.absolute()))}"

    def datasets(self) -> tuple[Dataset, ...]:
        return (dataset_of(self.path),) if self.path else ()

    def kept_out(self, files: Iterable[str]) -> list[str]:
        """Return the files and folders of this host that are not for whoever states the source."""
        return private_among(files) if self.confined and not isinstance(place_of(self.path), Location) else []

    def check_place(self, name: str) -> None:
        """Refuse a path that is not for whoever states the source.

        Raises:
            SourceError
        """
        if self.kept_out([self.path]):
            raise SourceError(
                f'source "{name}": {self.path} leads to files of the system or of the deployment',
                hint="name a folder of the flow's own files",
            )

    @property
    def _limits(self) -> dict[str, int]:
        """Return Spark's options for how much a batch takes."""
        limits = {"maxFilesPerTrigger": self.max_files_per_batch, "maxBytesPerTrigger": self.max_bytes_per_batch}
        return {name: most for name, most in limits.items() if most}


def stored_path(path: str | Place) -> str:
    """Return a path that means the same to Python, which may change its folder, and to Spark's JVM, which does not.

    Spark's addresses of what lies there begin with it: as these, it has no `..`, and links in it stay.
    """
    place = any_folder(path, "what a source reads")
    if isinstance(place, Location):
        return str(place)
    return os.path.normpath(place.absolute()) if str(path) else ""


def place_of(file: str) -> Place:
    """Return a file by its key (`file_key`), which may have any name."""
    scheme, _, rest = file.partition("://")
    bucket, _, key = rest.partition("/")
    known = {"s3a": S3, HDFS: HDFS}.get(scheme)
    return Location(known, bucket, key) if rest and known else Path(file)


def file_key(address: str) -> str:
    """Return one form for a file's address, to compare: Spark writes `file:/a%20b`, `file:///a%20b`, `/a b` for one file."""
    parts = urlsplit(address)
    return unquote(parts.path) if parts.scheme in ("", "file") else unquote(address)


def file_address(address: str) -> str:
    """Return a file's address as Spark's `_metadata.file_path` has it: `file:/a%20b` (listings have `file:///a%20b`)."""
    return "file:/" + address[5:].lstrip("/") if address.startswith("file:") else address


def shown(error: BaseException) -> str:
    """Return all that an error of Spark's says, its causes' texts included."""
    texts, seen = [], error
    while seen is not None:
        texts.append(str(seen))
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return "\n".join(texts)


_SECOND = "_tridelta_second"


def _braces(deep: int) -> str:
    """Return the pattern of braces that are closed. Outside of strings no `'` or `/`: an option may give them a meaning."""
    inner = f"|{_braces(deep - 1)}" if deep > 1 else ""
    return rf"""\{{(?:[^{{}}"'/]++|"(?:[^"\\]++|\\[\s\S])*+"{inner})*+\}}"""


_CLOSED = rf"\A[ \t\r\n]*+{_braces(8)}\z"


def one_value(text: Column, options: Mapping[str, str]) -> Column:
    """Return a text of JSON; null if anything follows its first value, which Spark's parser passes over without a word.

    Where its only `}` is its end, nothing does, nor where its first `{` is closed by its end. Any other text must make, with a
    value behind it, a list of two. Codes 0 at the end, as programs in C send, are passed over.
    """
    from pyspark.sql import functions as F

    # The line break ends a comment, where the options take any.
    bare = F.rtrim(text, F.lit("\x00 \t\r\n"))
    listed = F.concat(F.lit("["), bare, F.lit(f'\n,{{"{_SECOND}":true}}]'))
    second = F.get(F.from_json(listed, f"array<struct<{_SECOND}:boolean>>", dict(options)), F.lit(1))
    # By bytes: `instr` goes by characters, which takes twice as long.
    before = bare.cast("binary").substr(F.lit(1), F.octet_length(bare) - 1)
    alone = F.endswith(bare, F.lit("}")) & ~F.contains(before, F.lit(b"}"))
    return F.when(alone | F.rlike(bare, F.lit(_CLOSED)) | second.getField(_SECOND), text)


OWN_TEXT = "\x00text"
"""What stands before a rejected record's text that itself begins with the code 0, as marks of the engine do."""


def unmarked(text: Column) -> Column:
    """Return a rejected record's text for `_corrupt`, so that it cannot be taken for a mark of the engine's."""
    from pyspark.sql import functions as F

    return F.when(F.startswith(text, F.lit("\x00")), F.concat(F.lit(OWN_TEXT), text)).otherwise(text)


FAR_TIME = "\x00far"
"""What `_corrupt` begins with in a row with such a value: then the names of its fields, `\\x00`, the row as JSON."""
_FIRST, _LAST = "0001-01-01", "9999-12-31"


def marked(schema: StructType) -> Column | None:
    """Return `_corrupt` of rows with these fields, also of rows with a date or time too far; None: no field can hold one.

    Spark parses dates and times beyond the years 1 to 9999, Python has no value for them, so no state may hold them.
    """
    from pyspark.sql import functions as F

    beyond = {field.name: _beyond(F.col(f"`{field.name}`"), field.dataType) for field in schema.fields}
    far = {name: condition for name, condition in beyond.items() if condition is not None}
    if not far:
        return None
    names = F.concat_ws(", ", *(F.when(condition, F.lit(name)) for name, condition in far.items()))
    row = F.to_json(F.struct(*(F.col(f"`{field.name}`") for field in schema.fields)), ROW_JSON)
    mark = F.when(reduce(or_, far.values()), F.concat(F.lit(FAR_TIME), names, F.lit("\x00"), row))
    return F.coalesce(F.col(CORRUPT), mark).alias(CORRUPT)


def _beyond(value: Column, kind: DataType) -> Column | None:
    """Return whether a value holds a time too far (null where it is null itself); None: none of its type can."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, MapType, StructType, TimestampNTZType, TimestampType

    if isinstance(kind, DateType):
        return ~value.between(F.lit(_FIRST).cast("date"), F.lit(_LAST).cast("date"))
    if isinstance(kind, TimestampType):
        first, last = f"{_FIRST}T00:00:00Z", f"{_LAST}T23:59:59.999999Z"
        return ~value.between(F.lit(first).cast("timestamp"), F.lit(last).cast("timestamp"))
    if isinstance(kind, TimestampNTZType):
        first, last = f"{_FIRST}T00:00:00", f"{_LAST}T23:59:59.999999"
        return ~value.between(F.lit(first).cast("timestamp_ntz"), F.lit(last).cast("timestamp_ntz"))
    if isinstance(kind, StructType):
        parts = [_beyond(value.getField(field.name), field.dataType) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [_in_any(value, kind.elementType)]
    elif isinstance(kind, MapType):
        parts = [_in_any(F.map_keys(value), kind.keyType), _in_any(F.map_values(value), kind.valueType)]
    else:
        parts = []
    found = [part for part in parts if part is not None]
    return reduce(or_, found) if found else None


def _in_any(values: Column, kind: DataType) -> Column | None:
    from pyspark.sql import functions as F

    if _beyond(F.lit(None).cast(kind), kind) is None:
        return None

    def beyond(value: Column) -> Column:
        found = _beyond(value, kind)
        assert found is not None
        return found

    return F.exists(values, beyond)
