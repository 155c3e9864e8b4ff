"""Folders of JSON lines, CSV and Parquet files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import SourceSchemaError
from pipelines.sources.base import FileSource

if TYPE_CHECKING:
    from pyspark.sql import Column


class JsonFiles(FileSource):
    """A folder of JSON-lines files. A line that is torn, or whose values do not fit the types, goes to quarantine."""

    format = "json"

    def parsed(self, text: Column) -> Column | None:
        """A line as a struct. One that is an array would be several records, and stays malformed."""
        from pyspark.sql import functions as F

        options = self._text_options()
        single = F.when(~F.startswith(F.ltrim(text), F.lit("[")), text)
        return None if options is None else F.from_json(single, self._read_schema(), options)

    def check_file(self, name: str, file: Path) -> None:
        """The first good lines share at least one field with the schema; if none does, the schema is wrong."""
        seen: dict[str, None] = {}
        with file.open(encoding="utf-8", errors="replace") as lines:
            for _, line in zip(range(20), lines, strict=False):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                seen.update(dict.fromkeys(record if isinstance(record, dict) else ()))
        if seen and not {s.lower() for s in seen} & {f.lower() for f in self.fields}:
            raise SourceSchemaError(name, str(file), "no declared field occurs in it", self.fields, tuple(seen))


class CsvFiles(FileSource):
    """A folder of CSV files, with a header line unless `header=False`. A malformed line goes to quarantine."""

    format = "csv"

    def parsed(self, text: Column) -> Column | None:
        from pyspark.sql import functions as F

        options = self._text_options()
        return None if options is None else F.from_csv(text, self._read_schema(), options)

    def __init__(self, path: str | Path, schema: str, *, header: bool = True, **options: object) -> None:
        # Without column pruning Spark parses every column of each line: it is malformed for all readers or none.
        super().__init__(path, schema, header=header, columnPruning=False, **options)  # type: ignore[arg-type]

    def check_file(self, name: str, file: Path) -> None:
        if not self.options["header"]:
            return
        with file.open(encoding="utf-8", errors="replace", newline="") as lines:
            seen = next(csv.reader(lines, delimiter=str(self.options.get("sep", ","))), [])
        if [s.strip().lower() for s in seen] != [f.lower() for f in self.fields]:
            raise SourceSchemaError(name, str(file), "its header differs", self.fields, tuple(seen))


class ParquetFiles(FileSource):
    """A folder of Parquet files. Their columns must be those of the schema; a file that is torn fails its batch."""

    format = "parquet"
    text = False

    def check_file(self, name: str, file: Path) -> None:
        import pyarrow.lib
        import pyarrow.parquet as pq

        try:
            seen = pq.read_schema(file)
        except pyarrow.lib.ArrowInvalid as error:
            raise SourceSchemaError(name, str(file), f"not a Parquet file ({error})", self.fields, ()) from None
        missing = [f for f in self.fields if f.lower() not in {n.lower() for n in seen.names}]
        if missing:
            raise SourceSchemaError(name, str(file), f"it lacks {', '.join(missing)}", self.fields, tuple(seen.names))
