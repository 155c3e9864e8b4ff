"""Folders of JSON lines, CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import SourceSchemaError
from pipelines.sources.base import CORRUPT, FILE, FileSource, literal_path
from pipelines.sources.layouts import first_objects, has_other_fields, header_of, named_otherwise, refused_lines

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class JsonFiles(FileSource):
    """A folder of JSON-lines files.

    A line that is torn, or whose values do not fit the types, goes to quarantine; so does each line with none of the declared
    fields, in files that begin (the first 64 KB) with such a line among others. `"NaN"` and `"Infinity"` are values of a
    double: a gate can refuse them (`column_values_to_be_between` with a largest value).
    """

    format = "json"

    def parsed(self, text: Column) -> Column | None:
        """A line as a struct. One that is an array would be several records, and stays malformed."""
        from pyspark.sql import functions as F

        options = self._text_options()
        single = F.when(~F.startswith(F.ltrim(text), F.lit("[")), text)
        return None if options is None else F.from_json(single, self._read_schema(), options)

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        given = {name.lower() for name in self.options}
        if self._text_options() is None or given & {"encoding", "charset", "linesep"}:
            return {None: files}
        found: dict[Any, list[str]] = {}
        for file in files:
            found.setdefault("lines" if has_other_fields(file, self.fields) else None, []).append(file)
        return found

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """Line by line, so that each is seen as it is."""
        from pyspark.sql import functions as F

        lines = spark.read.format("text").load([literal_path(file) for file in files]).where(F.trim("value") != "")
        record = self.parsed(F.col("value"))
        assert record is not None
        frame = lines.select("value", "_metadata.file_path", record.alias("_record"))
        torn = F.when(F.col("_record").isNull(), F.col("value"))
        corrupt = F.coalesce(F.col(f"_record.{CORRUPT}"), torn, named_otherwise(F.col("value"), self.fields))
        fields = (F.col(f"_record.`{field}`").alias(field) for field in self.fields)
        return frame.select(*fields, corrupt.alias(CORRUPT), F.col("file_path").alias(FILE))

    def check_file(self, name: str, file: Path) -> None:
        """The first good lines share at least one field with the schema; if none does, the schema is wrong."""
        seen: dict[str, None] = {}
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            for _, record in zip(range(20), first_objects(lines), strict=False):
                seen.update(dict.fromkeys(record))
        if seen and not {s.lower() for s in seen} & {f.lower() for f in self.fields}:
            raise SourceSchemaError(name, str(file), "no declared field occurs in it", self.fields, tuple(seen))


class CsvFiles(FileSource):
    """A folder of CSV files, with a header line unless `header=False`. A malformed line goes to quarantine.

    The columns of each file are told by its header's names, in any order and among others. The lines of a file that lacks a
    declared field go to quarantine. Without a header columns are told by their places.
    """

    format = "csv"

    def parsed(self, text: Column) -> Column | None:
        from pyspark.sql import functions as F

        options = self._text_options()
        return None if options is None else F.from_csv(text, self._read_schema(), options)

    def __init__(self, path: str | Path, schema: str, *, header: bool = True, **options: object) -> None:
        # Without column pruning Spark parses every column of each line: it is malformed for all readers or none.
        super().__init__(path, schema, header=header, columnPruning=False, **options)  # type: ignore[arg-type]

    def check_file(self, name: str, file: Path) -> None:
        """The header names all declared fields."""
        header = header_of(str(file), self.options) if self._has_header else None
        if header is not None and header.lacks(self.fields):
            problem = f"its header lacks {', '.join(header.lacks(self.fields))}"
            raise SourceSchemaError(name, str(file), problem, self.fields, header.names)

    @property
    def _has_header(self) -> bool:
        return str(self.options["header"]).lower() == "true"

    def layouts(self, files: list[str]) -> dict[Any, list[str]]:
        found: dict[Any, list[str]] = {}
        for file in files:
            header = header_of(file, self.options) if self._has_header else None
            plain = header is None or header.is_as_declared(self.fields)
            found.setdefault(None if plain else header, []).append(file)
        return found

    def _laid_out(self, spark: SparkSession, layout: Any, files: list[str]) -> DataFrame:
        """By the names of the header; without all declared ones among them, each line as it is, as malformed."""
        from pyspark.sql import functions as F

        paths = [literal_path(file) for file in files]
        if not layout.lacks(self.fields):
            schema = f"{layout.schema(self._columns)}, {CORRUPT} string"
            return self._with_position(spark.read.schema(schema).format("csv").options(**self._options()).load(paths))
        lines = spark.read.format("text").load(paths).where(F.col("value") != layout.line)
        *fields, corrupt = refused_lines(layout, self._columns)
        return lines.select(*fields, corrupt.alias(CORRUPT), F.col("_metadata.file_path").alias(FILE))


class ParquetFiles(FileSource):
    """A folder of Parquet files. Their columns must be those of the schema; a file that is torn fails its batch."""

    format = "parquet"
    text = False

    def check_file(self, name: str, file: Path) -> None:
        import pyarrow.lib
        import pyarrow.parquet as pq

        try:
            seen = pq.read_schema(file)
        except (pyarrow.lib.ArrowException, OSError) as error:
            said = str(error).splitlines()[0]
            raise SourceSchemaError(name, str(file), f"not a Parquet file ({said})", self.fields, ()) from None
        missing = [f for f in self.fields if f.lower() not in {n.lower() for n in seen.names}]
        if missing:
            raise SourceSchemaError(name, str(file), f"it lacks {', '.join(missing)}", self.fields, tuple(seen.names))
