"""Folders of JSON lines, CSV, Parquet and text files."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from pipelines.errors import DefinitionError, MissingPathError, MovedSourceError, SourceError, SourceSchemaError
from pipelines.graph.fields import checked_name
from pipelines.places.location import S3, Location, Place, path_below
from pipelines.sources.base import (
    CORRUPT,
    FILE,
    ROW_JSON,
    StoredSource,
    file_address,
    file_key,
    one_value,
    place_of,
    unmarked,
)
from pipelines.sources.layouts import (
    LONG_FOOTER,
    NOT_READ,
    Header,
    LongFooterError,
    as_text,
    first_objects,
    first_value,
    has_other_fields,
    header_of,
    is_packed,
    named_otherwise,
    of_each,
    parquet_columns,
    rejected_lines,
    why_not_read,
    with_any,
    without_first,
)
from pipelines.sources.linked_folders import endless
from pipelines.sources.offsets import files_of_batches, last_file, log_offset
from pipelines.sources.reader_options import check_options
from pipelines.surroundings import may_hold_private

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PATTERN = re.compile(r"[\\\[\]{}?*]")
# Spark's default forgets files a week older than the newest: one that comes late with its old time would never be read, and
# behind one from a clock that was far ahead no other. So many days in milliseconds are just within a long.
_MAX_FILE_AGE = "100000000d"


_MOST_COLUMNS = 1 << 18
"""Of a line of CSV: with one more Spark ends the read, where a line with too many is malformed. A reader takes 8 bytes for each
from the start, 2 MB of these; Spark's own limit, 20,480, is reached by 20 KB of commas."""
_LOOKED_AT = 36
"""So many files are compared with the schema before it is refused."""


def literal_path(path: str) -> str:
    """Return a path as Spark reads it, which takes `?`, `*`, `[` and `{` for patterns."""
    return _PATTERN.sub(r"\\\g<0>", path)


class _Unread:
    """The layout of files that are not read: links out of the source's folder, pipes and the like, odd names."""


_UNREAD = _Unread()
_UNSEEN = "only Spark can unpack it, so its header cannot be looked at"


def passed_over(name: str) -> bool:
    """Return whether Spark passes over files and folders of a name: hidden ones, and what `hdfs dfs -put` is writing."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


@dataclass(frozen=True)
class FilesRead:
    """The files of a folder that Spark reads: it passes over some names, and other folders than `key=value`.

    Attributes:
        glob: a pattern of their names.
        any_folder: whether it looks into other folders, too (`recursiveFileLookup`).
    """

    glob: str = "*"
    any_folder: bool = False

    def takes(self, below: Path | None) -> bool:
        """Return whether it reads a file, by the path that leads to it from the folder."""
        if below is None or passed_over(below.name) or not fits(below.name, self.glob):
            return False
        return all(map(self.enters, below.parts[:-1]))

    def enters(self, name: str) -> bool:
        """Return whether it looks into a folder of a name."""
        return (self.any_folder or "=" in name) and not passed_over(name)


def fits(name: str, glob: str) -> bool:
    """Return whether a file's name fits a pattern of Hadoop's: that of `fnmatch`, and `{a,b}`."""
    choice = re.search(r"\{([^{}]*)\}", glob)
    if choice is None:
        return fnmatchcase(name, glob)
    return any(fits(name, glob[: choice.start()] + one + glob[choice.end() :]) for one in choice[1].split(","))


def links_out(folder: str, files: Iterable[str]) -> list[str]:
    """Return the files that lie elsewhere: who may put files into a folder could have any file read that the flow may read."""
    base = os.path.realpath(folder).rstrip("/") + "/"
    return [file for file in files if not os.path.realpath(file).startswith(base)]


def unordinary(files: Iterable[str]) -> list[str]:
    """Return the files that are pipes, devices or sockets: Spark lists them, and who opens a pipe waits for its other end."""
    return [file for file in files if not Path(file).is_file() and Path(file).exists()]


def _oddly_named(files: Iterable[str]) -> dict[str, str]:
    """Return the files of a bucket that Spark alone would read, and why."""
    from pipelines.places.bucket import UNREAD

    return {file: "its name is not read" for file in files if UNREAD.search(file.partition("://")[2])}


def _ddl(columns: Mapping[str, str]) -> list[str]:
    return [f"`{name}` {kind}" for name, kind in columns.items()]


def _address(file: str) -> str:
    return quote(file, safe="/:") if isinstance(place_of(file), Location) else file_address(Path(file).as_uri())


class FileSource(StoredSource):
    """A folder of immutable files; a batch is the next files by modification time.

    A link that leads out of the folder is not followed, and a pipe not read: it goes to quarantine as one record, `not_read`. So
    does an object of a bucket with a control character in its name; where one is there at the start, the start is refused.
    A start is refused, too, where links lead to folders that they lie in.

    Args:
        path: the folder. Files whose names start with `_` or `.`, or end with `._COPYING_`, are left out, as Spark does.
        schema: DDL, e.g. `"sentence string, n bigint"`.
        max_files_per_batch: at most so many files per batch; None: no limit.
        max_bytes_per_batch: instead of that, at most so many bytes per batch (at least one file).
        options: further options of Spark's reader, of those that say how a record is written (`reader_options`).

    Raises:
        DefinitionError: for any other option, or two limits.
    """

    text: bool = True
    sliceable: bool = True
    _else_unread = "not read"
    """Why files are not read of which `layouts` says so."""

    def __init__(
        self,
        path: str | Place,
        schema: str,
        *,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, schema, max_files_per_batch=max_files_per_batch, max_bytes_per_batch=max_bytes_per_batch)
        if max_files_per_batch is not None and max_bytes_per_batch is not None:
            problem = (
                f"{type(self).__name__}: max_files_per_batch and max_bytes_per_batch are given, and Spark takes one"
            )
            raise DefinitionError(problem, hint="leave one of them out")
        check_options(type(self).__name__, self.format, options)
        self.options = options
        self._seen: tuple[list[Place], Place | None] = ([], None)
        """The first files that `check` has found, and one whose name Spark cannot read."""
        self._known_in: set[tuple[Place, int]] = set()
        """The checkpoints that were asked: in a run the folder stays."""

    def prepare(self, name: str, spool: Place) -> Self:
        own = super().prepare(name, spool)
        own._known_in = set()
        return own

    def check(self, name: str, spark: SparkSession) -> None:
        """Check that the folder exists, and that Spark sees all its files.

        Raises:
            MissingPathError, SourceError
        """
        folder = place_of(self.path)
        if isinstance(folder, Path) and not folder.is_dir():
            raise MissingPathError(name, self.path)
        self.check_place(name)
        if isinstance(folder, Path) and (why := endless(folder, self.reads.enters)):
            raise SourceError(f'source "{name}": {self.path} cannot be listed: {why}', hint="remove such links")
        files = self._found(folder)
        # A folder of a bucket in which there are empty folders alone is there, too.
        if isinstance(folder, Location) and not files and not any(map(str, folder.iterdir())):
            raise MissingPathError(name, self.path)
        for file in files:
            if any("\ud800" <= letter <= "\udfff" for letter in str(file)):
                raise SourceError(
                    f'source "{name}": Spark does not see a file whose name is not UTF-8: {str(file)!r}',
                    hint="rename the file",
                )
        outside = set() if isinstance(folder, Location) else set(links_out(self.path, map(str, files)))
        first = list(islice((file for file in files if str(file) not in outside), _LOOKED_AT))
        self._seen = first, next((file for file in files if ":" in file.name), None)

    def _found(self, folder: Place) -> list[Place]:
        """Return the files of the folder that `check` looks at, in order."""
        read = FilesRead(self.reads.glob)

        def is_looked_at(file: Place) -> bool:
            return read.takes(path_below(file, folder))

        if isinstance(folder, Location):
            return sorted(folder.files(is_looked_at), key=str)
        return sorted((file for file in folder.rglob("*") if is_looked_at(file) and file.is_file()), key=str)

    @property
    def reads(self) -> FilesRead:
        """Return which files of the folder the stream takes."""
        return FilesRead(str(self._option("pathGlobFilter", "*")), self._is_recursive)

    def check_first(self, name: str, *, begun: bool = False) -> None:
        """Check that the files have readable names, and the first one fits the schema; later ones go to quarantine.

        In the folder of a stream that has begun one of the first files must fit, else a backfill would empty its slices.

        Raises:
            SourceError, SourceSchemaError
        """
        first, unreadable = self._seen
        if unreadable is not None and not begun:
            raise SourceError(
                f'source "{name}": Spark cannot read a file with a colon in its name: {unreadable}',
                hint="rename the file",
            )
        refused: list[SourceError] = []
        for file in first if begun else first[:1]:
            try:
                self.check_file(name, file)
            except SourceError as error:
                refused.append(error)
            else:
                return
        if refused:
            raise refused[0]

    def check_same(self, name: str, spark: SparkSession, checkpoint: Place, index: int) -> None:
        """Refuse to go on where the stream has taken files of another folder: Spark knows them by their paths.

        Raises:
            MovedSourceError
        """
        if (checkpoint, index) in self._known_in:
            return
        last = last_file(checkpoint / "sources" / str(index))
        if last is not None and self._has_moved(file_key(last)):
            raise MovedSourceError(name, file_key(last), self.path)
        self._known_in.add((checkpoint, index))

    def _has_moved(self, last: str) -> bool:
        """Return whether a file that was taken has another path now; a source of fewer folders than before keeps its files'."""
        path = self.path.rstrip("/")
        folder, _, name = last.rpartition("/")
        if last.startswith(f"{path}/"):
            return False
        return not path.startswith(f"{folder}/") or (place_of(path) / name).exists()

    def check_file(self, name: str, file: Place) -> None:
        """Compare one file with the schema; the formats override it."""

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self._read_schema()).format(self.format)
        reader = reader.options(**{**self._options(), "maxFileAge": _MAX_FILE_AGE, **self._limits})
        return self._with_file(reader.load(literal_path(self.path)))

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        frame = self._read(spark, [self.path])
        files = frozenset(file_address(file) for file in frame.inputFiles())
        layouts = self._all_layouts(sorted(file_key(file) for file in files))
        return (self._by_layout(spark, layouts) if self._differ(layouts) else self._with_file(frame)), files

    def gone(self, files: Iterable[str]) -> frozenset[str]:
        keys = {file_key(file): file for file in files}
        return frozenset(keys[key] for key in self.absent(keys))

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        return frozenset(key for key, there in of_each(lambda key: place_of(key).exists(), [*keys]) if not there)

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        """Return the frame; if a file is not laid out as declared, or its name looks like a pattern, read those files apart.

        Spark's stream then reads the batch's other files twice.
        """
        layouts = self._all_layouts(sorted(files))
        if not self._differ(layouts) and not any(_PATTERN.search(file) for file in files):
            return frame
        return self._by_layout(frame.sparkSession, layouts)

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        """Group the files by layout; None is the declared one. The formats override it."""
        return {None: files}

    def _all_layouts(self, files: list[str]) -> dict[Any, list[str]]:
        """Return `layouts` with what is not read apart."""
        unread = list(self._unread(files))
        if not unread:
            return self.layouts(files)
        others = [file for file in files if file not in unread]
        layouts = self.layouts(others) if others else {}
        return {**layouts, _UNREAD: [*unread, *layouts.get(_UNREAD, ())]}

    def _unread(self, files: list[str]) -> dict[str, str]:
        """Return the files that are not read, and why."""
        if isinstance(folder := place_of(self.path), Location):
            return _oddly_named(files) if folder.scheme == S3 else {}
        unread = {file: "a colon in its name, which Spark cannot read" for file in files if ":" in Path(file).name}
        unread |= dict.fromkeys(unordinary(files), "no ordinary file, not read")
        # What lies outside is not read anyway.
        if self.confined and may_hold_private(self.path):
            unread |= dict.fromkeys(self.kept_out(files), "a file of the system or of the deployment, not read")
        return unread | dict.fromkeys(links_out(self.path, files), "a link out of the folder, not followed")

    def _rejected(self, spark: SparkSession, files: list[str]) -> DataFrame:
        """Return a rejected record for each file that is not read."""
        from pyspark.sql import functions as F

        # Unless a file has become another one meanwhile, each has its reason.
        reasons = {**dict.fromkeys(files, self._else_unread), **self._unread(files)}
        said = [(f"{NOT_READ}{why}\0{file}: {why}", _address(file)) for file, why in reasons.items()]
        rejected = spark.createDataFrame(said, f"{CORRUPT} string, {FILE} string")
        return rejected.select(*(F.lit(None).cast(kind).alias(name) for name, kind in self._columns), CORRUPT, FILE)

    def _by_layout(self, spark: SparkSession, layouts: dict[Any, list[str]]) -> DataFrame:
        """Return each file as it is laid out, in an order that a replay repeats."""
        alike: dict[Any, list[str]] = {}
        for layout, files in layouts.items():
            for file in files:
                alike.setdefault((layout, self._of_folders(file)), []).append(file)
        parts = [
            self._with_file(self._read(spark, files))
            if layout is None
            else self._rejected(spark, files)
            if layout is _UNREAD
            else self._laid_out(spark, layout, files)
            for (layout, _), files in sorted(alike.items(), key=lambda item: min(item[1]))
        ]
        return reduce(lambda part, other: part.unionByName(other), parts)

    def _differ(self, layouts: dict[Any, list[str]]) -> bool:
        """Return whether files must be read apart: what lies beside folders `key=value` Spark leaves out of a read of these."""
        return bool(set(layouts) - {None}) or len(set(map(self._of_folders, layouts.get(None, ())))) > 1

    def _of_folders(self, file: str) -> tuple[str, ...]:
        """Return the columns, in small letters, whose values a file has from the folders `key=value` that it lies in."""
        if self._is_recursive:
            return ()
        folders = file.removeprefix(self.path).split("/")[:-1]
        return tuple(folder.partition("=")[0].lower() for folder in folders if "=" in folder)

    @property
    def _is_recursive(self) -> bool:
        return str(self._option("recursiveFileLookup", False)).lower() == "true"

    def _own_and_given(self, file: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the fields, with their types, whose values stand in a file, and those that it has from its folders."""
        of_folders, columns = self._of_folders(file), dict(self._columns)
        own = {name: kind for name, kind in columns.items() if name.lower() not in of_folders}
        return own, {name: kind for name, kind in columns.items() if name not in own}

    def _option(self, name: str, default: Any) -> Any:
        """Return what the user gave for an option of Spark's, in any case of letters."""
        return next((value for given, value in self.options.items() if given.lower() == name.lower()), default)

    @property
    def _line_ends(self) -> dict[str, Any]:
        """Return the option for a reader of lines as they are."""
        return {name: value for name, value in self.options.items() if name.lower() == "linesep"}

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Return the rows of files of one layout; for the formats that tell any apart."""
        raise NotImplementedError

    def _read(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        reader = spark.read.schema(self._read_schema()).format(self.format).options(**self._options())
        return reader.option("basePath", self.path).load([literal_path(path) for path in paths])

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        start, end = log_offset(checkpoint, first - 1, index) + 1, log_offset(checkpoint, last, index)
        return frozenset(file_key(file) for file in files_of_batches(checkpoint / "sources" / str(index), start, end))

    def _read_schema(self) -> str:
        return f"{self.schema}, {CORRUPT} string" if self.text else self.schema

    def _options(self) -> dict[str, Any]:
        if not self.text:
            return self.options
        return {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}

    def _text_options(self) -> dict[str, str] | None:
        """Return the options for a single record; None: a record of this source can be more than a line."""
        given = {name.lower(): value for name, value in self._options().items()}
        if str(given.pop("multiline", False)).lower() == "true":
            return None
        shown = {name: value for name, value in given.items() if name not in ("header", "encoding", "charset")}
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in shown.items()}

    def _with_file(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return self._with_position(frame, F.col("_metadata.file_path"), F.col(CORRUPT) if self.text else None)


class JsonFiles(FileSource):
    """A folder of JSON-lines files.

    A line that is torn, or whose values do not fit the types, goes to quarantine; so does each line with none of the declared
    fields, or with more than one value, in files that begin (the first 64 KB) with such a line among others. In others what
    follows a line's first value is not seen. With another `encoding` than UTF-8 such a file is not read at all. With `multiLine`
    a file with more than one value, or with a record that has none of the declared fields, is not read, if the first value ends
    within 64 KB. `"NaN"` and `"Infinity"` are values of a double: a gate can refuse them (`column_values_to_be_between` with a
    largest value).
    """

    format = "json"

    def parsed(self, text: Column) -> Column | None:
        """Return a line as a struct. One that is an array would be several records, and stays malformed."""
        record = self._parsed(text)
        return None if record is None else with_any(text, record, self.fields)

    def _parsed(self, text: Column) -> Column | None:
        """Return a line as a struct, an object with none of the declared fields as one of nulls."""
        from pyspark.sql import functions as F

        options = self._text_options()
        if options is None:
            return None
        single = F.when(~F.startswith(F.ltrim(text), F.lit("[")), one_value(text, options))
        return F.from_json(single, self._read_schema(), options)

    @property
    def _by_line(self) -> bool:
        """Return whether a record can be looked at by itself: Spark's text reader decodes no other encoding."""
        encoding = self._option("encoding", None) or self._option("charset", None) or "UTF-8"
        return self._text_options() is not None and str(encoding).lower() in ("utf-8", "utf8")

    def _unread(self, files: list[str]) -> dict[str, str]:
        unread = super()._unread(files)
        if self._by_line:
            return unread
        looked_at = of_each(self._why_not_read, [file for file in files if file not in unread])
        return unread | {file: why for file, why in looked_at if why is not None}

    def _why_not_read(self, file: str) -> str | None:
        if self._text_options() is None:
            return why_not_read(file, self.fields, self.options)
        other = has_other_fields(file, self.fields, self.options)
        return "a line with none of the declared fields or more than one value, not read" if other else None

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        if not self._by_line:
            return {None: files}
        by_layout: dict[Any, list[str]] = {}
        for file in files:
            other = has_other_fields(file, self.fields, self.options)
            by_layout.setdefault("lines" if other else None, []).append(file)
        return by_layout

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Read line by line, so that each is seen as it is."""
        from pyspark.sql import functions as F

        _, given = self._own_and_given(files[0])
        schema = ", ".join(["value string", *_ddl(given)])
        reader = spark.read.schema(schema).format("text").options(**self._line_ends).option("basePath", self.path)
        lines = reader.load([literal_path(file) for file in files])
        lines = lines.where(F.trim(F.col("value"), F.lit(" \t\r\n")) != "")
        record = self._parsed(F.col("value"))
        assert record is not None
        frame = lines.select("value", *(f"`{name}`" for name in given), "_metadata.file_path", record.alias("_record"))
        torn = F.when(F.col("_record").isNull(), F.col("value"))
        malformed = unmarked(F.coalesce(F.col(f"_record.{CORRUPT}"), torn))
        corrupt = F.coalesce(malformed, named_otherwise(F.col("value"), self.fields))
        fields = (F.col(f"`{name}`" if name in given else f"_record.`{name}`").alias(name) for name in self.fields)
        return frame.select(*fields, corrupt.alias(CORRUPT), F.col("file_path").alias(FILE))

    def check_file(self, name: str, file: Place) -> None:
        """Check that the first good records share at least one field with the schema; if none does, the schema is wrong."""
        if self._text_options() is None:
            value, _ = first_value(str(file), self.options) or (None, "")
            records = [record for record in (value if isinstance(value, list) else [value]) if isinstance(record, dict)]
        else:
            with as_text(file, "utf-8-sig") as lines:
                records = list(islice(first_objects(lines), 20))
        seen = list(dict.fromkeys(name for record in records for name in record))
        if seen and not {s.lower() for s in seen} & {f.lower() for f in self.fields}:
            raise SourceSchemaError(name, str(file), "no declared field occurs in it", self.fields, tuple(seen))


class CsvFiles(FileSource):
    """A folder of CSV files, with a header line unless `header=False`. A malformed line goes to quarantine.

    One of more than 262,144 columns fails its batch; the option `maxColumns` is another limit.

    The columns of each file are found by its header's names, in any order and among others. The lines of a file that lacks a
    declared field go to quarantine, the first, too, if it names no declared field. Without a header columns go by position. Only
    `.gz`, `.bz2` and `.deflate` files can be looked at so: files with a header that are packed otherwise are not read.
    """

    format = "csv"

    def parsed(self, text: Column) -> Column | None:
        from pyspark.sql import functions as F

        options = self._text_options()
        return None if options is None else F.from_csv(text, self._read_schema(), options)

    def __init__(self, path: str | Place, schema: str, *, header: bool = True, **options: Any) -> None:
        super().__init__(path, schema, **options)
        # Without column pruning Spark parses every column of each line: it is malformed for all readers or none.
        most = self._option("maxColumns", _MOST_COLUMNS)
        others = {name: value for name, value in self.options.items() if name.lower() != "maxcolumns"}
        self.options = {**others, "maxColumns": most, "header": header, "columnPruning": False}

    def check_file(self, name: str, file: Place) -> None:
        """Check that the header names all declared fields."""
        if self._unseen([str(file)]):
            raise SourceError(
                f'source "{name}": {file}: {_UNSEEN}', hint="pack it as .gz, .bz2 or .deflate, or not at all"
            )
        header = header_of(str(file), self.options) if self._has_header else None
        own, _ = self._own_and_given(str(file))
        if header is not None and header.lacks(tuple(own)):
            problem = f"its header lacks {', '.join(header.lacks(tuple(own)))}"
            raise SourceSchemaError(name, str(file), problem, self.fields, header.names)

    @property
    def _has_header(self) -> bool:
        return str(self.options["header"]).lower() == "true"

    def _unseen(self, files: list[str]) -> list[str]:
        """Return the files that nobody can read by name: only Spark unpacks them."""
        return [file for file in files if self._has_header and is_packed(file)]

    def _unread(self, files: list[str]) -> dict[str, str]:
        return {**dict.fromkeys(self._unseen(files), _UNSEEN), **super()._unread(files)}

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        by_layout: dict[Any, list[str]] = {}
        for file in files:
            header = header_of(file, self.options) if self._has_header else None
            # Where folders give a field, a replay would read a malformed line by more fields than it has.
            _, given = self._own_and_given(file)
            plain = header is None or (header.is_as_declared(self.fields) and not given)
            by_layout.setdefault(None if plain else header, []).append(file)
        return by_layout

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Read by the names of the header; without all declared ones among them, each line as it is, as rejected."""
        from pyspark.sql import functions as F

        paths = [literal_path(file) for file in files]
        own, given = self._own_and_given(files[0])
        if not layout.lacks(tuple(own)):
            schema = ", ".join([layout.schema(tuple(own.items())), *_ddl(given), f"{CORRUPT} string"])
            reader = spark.read.schema(schema).format("csv").options(**self._options()).option("basePath", self.path)
            rows = self._with_file(reader.load(paths))
            # A malformed line says so, too: by the declared order a replay would read other fields.
            return rows.withColumn(CORRUPT, F.concat(layout.mark, CORRUPT))
        text = spark.read.format("text").options(**self._line_ends).load(paths)
        lines = text.select("value", F.col("_metadata.file_path").alias(FILE))
        if layout.names_any(self.fields):
            lines = without_first(lines, layout.line)
        *fields, corrupt = rejected_lines(layout, self._columns)
        return lines.select(*fields, corrupt.alias(CORRUPT), FILE)


class ParquetFiles(FileSource):
    """A folder of Parquet files, with all columns of the schema, in any order and among others.

    The rows of a file that lacks one go to quarantine; a file that is torn fails its batch. A file of a store is not
    read if its last bytes name a footer of more than 64 MB.
    """

    format = "parquet"
    text = False
    _else_unread = LONG_FOOTER

    def check_file(self, name: str, file: Place) -> None:
        """Check that it has all declared columns."""
        import pyarrow.lib

        try:
            seen = parquet_columns(file)
        except (pyarrow.lib.ArrowException, OSError) as error:
            if file.exists() and file.stat().st_size == 0:  # Spark passes over it
                return
            said = str(error).splitlines()[0]
            raise SourceSchemaError(name, str(file), f"not a Parquet file ({said})", self.fields, ()) from None
        missing = self._missing(seen, str(file))
        if missing:
            raise SourceSchemaError(name, str(file), f"it lacks {', '.join(missing)}", self.fields, tuple(seen))

    def _missing(self, seen: Iterable[str], file: str) -> list[str]:
        there = {name.lower() for name in (*seen, *self._of_folders(file))}
        return [field for field in self.fields if field.lower() not in there]

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        by_layout: dict[Any, list[str]] = {}
        for file, layout in of_each(self._layout, files):
            by_layout.setdefault(layout, []).append(file)
        return by_layout

    def _layout(self, file: str) -> Any:
        import pyarrow.lib

        # Where this cannot read a file otherwise, Spark says what is wrong with it.
        try:
            seen = parquet_columns(place_of(file))
        except LongFooterError:
            return _UNREAD
        except (pyarrow.lib.ArrowException, OSError):
            return None
        return tuple(seen.items()) if self._missing(seen, file) else None

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Return each row as JSON, as rejected: as null no state could tell it from a null that was written."""
        from pyspark.sql import functions as F

        rows = spark.read.format("parquet").options(**self._options()).load([literal_path(file) for file in files])
        texts = rows.select(F.to_json(F.struct("*"), ROW_JSON).alias("value"), F.col("_metadata.file_path").alias(FILE))
        *fields, corrupt = rejected_lines(Header(tuple(name for name, _ in layout), ""), self._columns)
        return texts.select(*fields, corrupt.alias(CORRUPT), FILE)


_ENCODINGS = {"utf-8": "UTF-8", "ascii": "US-ASCII", "iso8859-1": "ISO-8859-1"}
"""Those of `TextFiles`, by Python's names: Spark looks for the end of a line among bytes, and decodes few others."""


class TextFiles(FileSource):
    """A folder of text files (UTF-8); each line is a tuple of one string field.

    Gives: `<field> string`, the line without its end; an empty line is an empty string, no line is malformed: bytes that are
    not UTF-8 are replaced by U+FFFD.
    Positions: the files. Transactional: the files are immutable, so a replayed batch reads the same lines.

    Args:
        path: the folder. Files whose names start with `_` or `.`, or end with `._COPYING_`, are left out; `.gz` and `.bz2`
            files are unpacked.
        field: the name of the field.
        max_files_per_batch: at most so many files per batch; None: no limit.
        max_bytes_per_batch: instead of that, at most so many bytes per batch (at least one file).
        options: further options of Spark's text reader, e.g. `lineSep`, or `encoding="ISO-8859-1"`.

    Raises:
        BadNameError: if the field's name is not legal.
        DefinitionError: for an option that says something else than how a line is written, another encoding, or two limits.
    """

    format = "text"
    text = False

    def __init__(
        self,
        path: str | Place,
        field: str = "line",
        *,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            path,
            f"{checked_name('field', field)} string",
            max_files_per_batch=max_files_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            **options,
        )
        given = str(self._option("encoding", "UTF-8"))
        try:
            self._encoding = _ENCODINGS[codecs.lookup(given).name]
        except (LookupError, ValueError):
            raise DefinitionError(
                f"{type(self).__name__}: encoding {given!r} is none that it reads",
                hint=f"it reads {', '.join(_ENCODINGS.values())}; write the files in UTF-8 (iconv)",
            ) from None

    def _options(self) -> dict[str, Any]:
        return {**self.options, "encoding": self._encoding, "wholetext": "false"}

    def _with_file(self, frame: DataFrame) -> DataFrame:
        """Decode lines, which Spark does not do: it keeps any bytes in a string; no table does."""
        from pyspark.sql import functions as F

        line = F.col(f"`{self.fields[0]}`")
        latin = self._encoding == "ISO-8859-1"
        text = F.decode(line.cast("binary"), self._encoding) if latin else F.make_valid_utf8(line)
        return super()._with_file(frame.select(text.alias(self.fields[0]), "_metadata"))
