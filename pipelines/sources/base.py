"""What the engine asks of a source, and what every source of files shares."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from pipelines.bounds import BYTES, FILES, required
from pipelines.errors import MissingPathError, SourceError
from pipelines.graph.fields import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CORRUPT = "_corrupt"
"""string: the text of a malformed record, null for a good one. Every source frame has it."""
FILE = "_file"
"""string: the position unit that a row came from (a file's address). Every source frame has it."""


class Source(Protocol):
    """Where tuples enter.

    Attributes:
        fields: the fields of the tuples, in order.
        schema: the same as DDL with types.
        max_parallelism: in how many tasks its tuples can start at most; None: no limit (Trident rules 3.9, 7).
        sliceable: whether all of it can be read again by position, so that a backfill can replace a slice.
        transactional: whether a replayed batch has the same rows (Trident rules 6); otherwise its states must be opaque.
    """

    schema: str
    max_parallelism: int | None
    sliceable: bool
    transactional: bool

    @property
    def fields(self) -> tuple[str, ...]: ...

    def prepare(self, name: str, spool: Path) -> None:
        """Make ready to be read; `spool` is a folder of the source's own in the lake."""

    def check(self, name: str, spark: SparkSession) -> None:
        """Refuse before the start what can't be read at all (SourceError)."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """A streaming frame: the fields, then `_corrupt string` and `_file string`."""

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        """A frame of all that is there now (same columns), and its positions: the `_file` values that it can hold."""

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        """The rows of a stream's batch: the frame that Spark hands over, or one that reads the same `files` (keys)."""

    def positions(self, checkpoint: Path, first: int, last: int, index: int = 0) -> frozenset[str]:
        """The positions (as `file_key`) that the stream's batches `first..last` (Spark's ids) took.

        Args:
            index: which source of its Spark query this is, from 0.
        """


_PATTERN = re.compile(r"[\\\[\]{}?*]")
# Spark's default forgets files a week older than the newest: one that comes late with its old time would never be read.
_MAX_FILE_AGE = "36500d"


def local_path(path: str | Path) -> str:
    """A path that means the same to Python, which may change its folder, and to Spark's JVM, which stays where it started."""
    text = str(path)
    return text if not text or ":" in text.split("/")[0] else str(Path(text).absolute())


def literal_path(path: str) -> str:
    """A path as Spark reads it, which takes `?`, `*`, `[` and `{` for patterns."""
    return _PATTERN.sub(r"\\\g<0>", path)


def file_key(address: str) -> str:
    """One form for a file's address, to compare: Spark writes `file:/a%20b`, `file:///a%20b`, `/a b` for one file."""
    parts = urlsplit(address)
    return unquote(parts.path) if parts.scheme in ("", "file") else unquote(address)


def file_address(address: str) -> str:
    """A file's address as Spark's `_metadata.file_path` has it: `file:/a%20b` (listings have `file:///a%20b`)."""
    return "file:/" + address[5:].lstrip("/") if address.startswith("file:") else address


class _Outside:
    """The layout of files that are links out of the source's folder."""


_OUTSIDE = _Outside()


def links_out(folder: str, files: Iterable[str]) -> list[str]:
    """The files that lie elsewhere: who may put files into a folder could have any file read that the flow may read."""
    base = os.path.realpath(folder).rstrip("/") + "/"
    return [file for file in files if not os.path.realpath(file).startswith(base)]


class FileSource:
    """A folder of immutable files; a batch is the next files by modification time.

    A link that leads out of the folder is not followed: it goes to quarantine as one malformed record.

    Args:
        path: the folder. Files whose names start with `_` or `.` are left out, as Spark does.
        schema: DDL, e.g. `"sentence string, n bigint"`.
        max_files_per_batch: at most so many files a batch; None: no limit.
        max_bytes_per_batch: at most so many bytes a batch (at least one file).
        options: further options of Spark's reader.
    """

    format: str = ""
    text: bool = True
    """Whether records are parsed from text, so that they can be malformed."""
    max_parallelism: int | None = None
    sliceable: bool = True
    transactional: bool = True

    def __init__(
        self,
        path: str | Path,
        schema: str,
        *,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        **options: Any,
    ) -> None:
        self.path, self.schema = local_path(path), schema
        self.max_files_per_batch, self.max_bytes_per_batch = max_files_per_batch, max_bytes_per_batch
        required(f"{type(self).__name__}: max_files_per_batch", FILES, max_files_per_batch)
        required(f"{type(self).__name__}: max_bytes_per_batch", BYTES, max_bytes_per_batch)
        self.options = options
        self._columns = parse_ddl(schema)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def prepare(self, name: str, spool: Path) -> None:
        """Nothing to make ready: the files are the user's."""

    def check(self, name: str, spark: SparkSession) -> None:
        """The folder is there, its files have names that can be read, and the first one fits the schema.

        Raises:
            MissingPathError, SourceError, SourceSchemaError
        """
        if not Path(self.path).is_dir():
            raise MissingPathError(name, self.path)
        files = sorted(p for p in Path(self.path).rglob("*") if p.is_file() and p.name[0] not in "._")
        for file in files:
            if ":" in file.name:
                raise SourceError(
                    f'source "{name}": Spark cannot read a file with a colon in its name: {file}',
                    hint="rename the file",
                )
        outside = set(links_out(self.path, map(str, files)))
        first = next((file for file in files if str(file) not in outside), None)
        if first is not None:
            self.check_file(name, first)

    def check_file(self, name: str, file: Path) -> None:
        """Compare one file with the schema; the formats override it."""

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self._read_schema()).format(self.format)
        reader = reader.options(**{"maxFileAge": _MAX_FILE_AGE, **self._options()})
        if self.max_bytes_per_batch:
            reader = reader.option("maxBytesPerTrigger", self.max_bytes_per_batch)
        if self.max_files_per_batch:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_batch)
        return self._with_position(reader.load(literal_path(self.path)))

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        frame = self._read(spark, [self.path])
        files = frozenset(file_address(file) for file in frame.inputFiles())
        layouts = self._all_layouts(sorted(file_key(file) for file in files))
        return (self._by_layout(spark, layouts) if set(layouts) - {None} else self._with_position(frame)), files

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        """The frame, unless a file is not laid out as declared, or a name looks like a pattern: then Spark's stream reads the
        batch's other files twice.
        """
        folder = (file_key(self.path) if self.path.startswith("file:") else self.path).rstrip("/") + "/"
        # Beside other sources a batch has files of theirs, too.
        own = sorted(file for file in files if file.startswith(folder))
        layouts = self._all_layouts(own)
        if not set(layouts) - {None} and not any(_PATTERN.search(file) for file in own):
            return frame
        return self._by_layout(frame.sparkSession, layouts)

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        """The files by how they are laid out, None: as declared. The formats override it."""
        return {None: files}

    def _all_layouts(self, files: list[str]) -> dict[Any, list[str]]:
        """`layouts` with the links out of the folder apart."""
        folder = file_key(self.path) if self.path.startswith("file:") else self.path
        outside = [] if ":" in folder.split("/")[0] else links_out(folder, files)
        if not outside:
            return self.layouts(files)
        inside = [file for file in files if file not in outside]
        return {**(self.layouts(inside) if inside else {}), _OUTSIDE: outside}

    def _links(self, spark: SparkSession, files: list[str]) -> DataFrame:
        """A malformed record for each link."""
        from pyspark.sql import functions as F

        said = [
            (f"{file}: a link out of the folder, not followed", file_address(Path(file).as_uri())) for file in files
        ]
        links = spark.createDataFrame(said, f"{CORRUPT} string, {FILE} string")
        return links.select(*(F.lit(None).cast(kind).alias(name) for name, kind in self._columns), CORRUPT, FILE)

    def _by_layout(self, spark: SparkSession, layouts: dict[Any, list[str]]) -> DataFrame:
        """Each file as it is laid out, in an order that a replay repeats."""
        parts = [
            self._with_position(self._read(spark, files))
            if layout is None
            else self._links(spark, files)
            if layout is _OUTSIDE
            else self._laid_out(spark, layout, files)
            for layout, files in sorted(layouts.items(), key=lambda one: min(one[1], default=""))
            if files
        ]
        return reduce(lambda one, other: one.unionByName(other), parts)

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """The rows of files of one layout; for the formats that tell any apart."""
        raise NotImplementedError

    def _read(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        reader = spark.read.schema(self._read_schema()).format(self.format).options(**self._options())
        return reader.load([literal_path(path) for path in paths])

    def parsed(self, text: Column) -> Column | None:
        """A record's text as a struct of the fields and `_corrupt`, as the source's own reader does it.

        None: this reader cannot be given a single record. The formats override it.
        """
        return None

    def positions(self, checkpoint: Path, first: int, last: int, index: int = 0) -> frozenset[str]:
        from pipelines.sources.file_log import files_of_batches, log_offset

        start, end = log_offset(checkpoint, first - 1, index) + 1, log_offset(checkpoint, last, index)
        return frozenset(file_key(file) for file in files_of_batches(checkpoint / "sources" / str(index), start, end))

    def _read_schema(self) -> str:
        return f"{self.schema}, {CORRUPT} string" if self.text else self.schema

    def _options(self) -> dict[str, Any]:
        if not self.text:
            return self.options
        return {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **self.options}

    def _text_options(self) -> dict[str, str] | None:
        """The options for a single record; None: a record of this source can be more than a line."""
        given = {name.lower(): value for name, value in self._options().items()}
        if str(given.pop("multiline", False)).lower() == "true":
            return None
        shown = {name: value for name, value in given.items() if name not in ("header", "encoding", "charset")}
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in shown.items()}

    def _with_position(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        corrupt = F.col(CORRUPT) if self.text else F.lit(None).cast("string").alias(CORRUPT)
        return frame.select(*(f"`{f}`" for f in self.fields), corrupt, F.col("_metadata.file_path").alias(FILE))
