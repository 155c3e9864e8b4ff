"""Folders of JSON lines, CSV, Parquet and text files."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from pipelines.errors import DefinitionError, SourceError, SourceSchemaError
from pipelines.graph.fields import checked_name
from pipelines.places.location import Place
from pipelines.sources.base import CORRUPT, FILE, ROW_JSON, one_value, place_of, unmarked
from pipelines.sources.folder import FileSource, Unread, literal_path
from pipelines.sources.layouts import (
    LONG_FOOTER,
    Header,
    LongFooterError,
    ParquetLayout,
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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MOST_COLUMNS = 1 << 18
"""Of a line of CSV: with one more Spark ends the read, where a line with too many is malformed. A reader takes 8 bytes for each
from the start, 2 MB of these; Spark's own limit, 20,480, is reached by 20 KB of commas."""
_NO_TEXT = Unread("a column's name is not UTF-8, not read")
_LONG = Unread(LONG_FOOTER)
_NO_COLUMNS = Unread("Spark takes its columns for none of a table, by their types or names; not read")
_GONE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
"""What Spark says of a schema where there is no file any more: nothing is wrong with what was in it."""
_UNSEEN = "only Spark can unpack it, so its header cannot be looked at"


def _ddl(columns: Mapping[str, str]) -> list[str]:
    return [f"`{name}` {kind}" for name, kind in columns.items()]


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

    The rows of a file that lacks one go to quarantine, or the file unread, where Spark makes no table of its columns or a name is
    not UTF-8; a file that is torn fails its batch. A file of a store is not read if its last bytes name a footer of more than
    64 MB.
    """

    format = "parquet"
    text = False

    def check_file(self, name: str, file: Place) -> None:
        """Check that it has all declared columns."""
        import pyarrow.lib

        try:
            seen, _ = parquet_columns(file)
        except (pyarrow.lib.ArrowException, OSError, UnicodeError) as error:
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
            seen, footer = parquet_columns(place_of(file))
            return ParquetLayout.of(footer) if self._missing(seen, file) else None
        except LongFooterError:
            return _LONG
        except UnicodeError:
            return _NO_TEXT
        except (pyarrow.lib.ArrowException, OSError):
            return None

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Return each row as JSON, as rejected, or each file, unread, of whose columns Spark makes no table."""
        from pyspark.errors import AnalysisException

        try:
            return self._as_json(spark, layout, files)
        except AnalysisException as error:
            if error.getCondition() in _GONE:
                raise
        # By the layout alone, so it is the same of each.
        return self._rejected(spark, files, _NO_COLUMNS)

    def _as_json(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Return each row as JSON, as rejected: as null no state could tell it from a null that was written."""
        from pyspark.sql import functions as F

        rows = spark.read.format("parquet").options(**self._options()).load([literal_path(file) for file in files])
        # Not by its name, which a column of the file may have.
        address = rows.metadataColumn("_metadata").getField("file_path")
        texts = rows.select(F.to_json(F.struct("*"), ROW_JSON).alias("value"), address.alias(FILE))
        *fields, corrupt = rejected_lines(Header(layout.names, ""), self._columns)
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
