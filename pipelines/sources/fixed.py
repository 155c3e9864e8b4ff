"""Fixed batches: rows given in the program; each list is one batch."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pipelines.errors import SourceSchemaError
from pipelines.graph.arrow_types import arrow_type
from pipelines.graph.fields import parse_ddl
from pipelines.graph.plain_values import plain_list
from pipelines.graph.row_values import to_arrow
from pipelines.places.location import Location, Place, put_whole
from pipelines.sources.base import FILE, place_of, stored_path
from pipelines.sources.folder import FileSource
from pipelines.state.schema import struct_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


BATCH_NUMBER = f"regexp_extract({FILE}, '([0-9]+)[.]parquet$', 1)"
"""SQL that gives the number of a fixed batch, which its file carries: in slices by it what counts per batch is as in a stream."""


class FixedBatches(FileSource):
    """Batches of rows, for tests and examples: batch i has txid i (Storm's FixedBatchSpout).

    The batches are laid out as one Parquet file each in the lake, so that a replay after a crash delivers the same
    rows. More batches given later are appended; batches that are there already must not change.

    Args:
        schema: DDL, e.g. `"sentence string"`.
        batches: a list of batches, each a list of tuples (in field order) or dicts. An empty batch is a batch.

    Raises:
        SourceSchemaError: if a row does not have the schema's number of fields, or names others.
    """

    format = "parquet"
    text = False
    max_parallelism: int | None = 1

    def __init__(self, schema: str, batches: Sequence[Sequence[Sequence[Any] | Mapping[str, Any]]]) -> None:
        super().__init__("", schema, max_files_per_batch=1)
        self.batches = [[self._row(row) for row in batch] for batch in batches]

    def _row(self, row: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        if isinstance(row, Mapping):
            if set(row) - set(self.fields):
                raise SourceSchemaError("fixed batches", "a row", "it names other fields", self.fields, tuple(row))
            return tuple(row.get(name) for name in self.fields)
        _check_width("fixed batches", row, len(self.fields), self.fields)
        return tuple(row)

    def prepare(self, name: str, spool: Place) -> Self:
        own = super().prepare(name, spool)
        own.path = stored_path(spool)
        return own

    def check(self, name: str, spark: SparkSession) -> None:
        """Lay the batches out; modification times that do not descend keep their order, and names that of one time.

        Raises:
            SourceSchemaError: if a value does not fit its type, or a batch that is laid out already has changed.
        """
        folder = place_of(self.path)
        folder.mkdir(parents=True, exist_ok=True)
        marks = folder / "_batches.json"
        known = json.loads(marks.read_text()) if marks.exists() else []
        digests = [hashlib.sha256(repr((self.schema, batch)).encode()).hexdigest() for batch in self.batches]
        if known[: len(digests)] != digests[: len(known)]:
            raise SourceSchemaError(
                name, self.path, "its fixed batches have changed since an earlier run", self.fields, ()
            )
        for number in range(len(known), len(digests)):
            self._lay_out(name, folder / f"{number:08d}.parquet", number)
        if len(digests) > len(known):
            put_whole(marks, json.dumps(digests).encode())

    def _lay_out(self, name: str, file: Place, number: int) -> None:
        import pyarrow.parquet as pq

        table, written = arrow_rows(f"{name}, batch {number}", self.schema, self.batches[number]), io.BytesIO()
        pq.write_table(table, written)
        data = written.getvalue()
        if isinstance(file, Location):
            # A store dates files itself: one that is there keeps its date, for those behind it may be there, too.
            if file.store.put_if_absent(file.key, data) is None and file.read_bytes() != data:
                file.write_bytes(data)
            return
        temporary = file.with_name(f".{file.name}.tmp")
        temporary.write_bytes(data)
        os.utime(temporary, (1_000_000_000 + number, 1_000_000_000 + number))
        temporary.rename(file)

    def __repr__(self) -> str:
        return f"FixedBatches({self.schema!r}, {len(self.batches)} batches)"


def _check_width(name: str, row: Sequence[Any], width: int, declared: Sequence[str]) -> None:
    if isinstance(row, str) or len(row) != width:
        seen = (row,) if isinstance(row, str) else tuple(map(str, row))
        raise SourceSchemaError(name, "a row", "it has another number of values", declared, seen)


def checked_rows(name: str, schema: str, rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return rows of the program as Spark would read them by a DDL schema; types that Spark alone knows are not looked into."""
    columns = parse_ddl(schema)
    for row in rows:
        _check_width(name, row, len(columns), (schema,))
    read = []
    for at, (_, kind) in enumerate(columns):
        values, known = [row[at] for row in rows], arrow_type(kind)
        read.append(values if known is None else plain_list(_array(name, schema, values, known)))
    return list(zip(*read, strict=True))


def arrow_rows(name: str, schema: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Convert rows of the program to an Arrow table of a DDL schema; naive times are UTC. Needs a running session."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(struct_of(schema), timezone="UTC")
    for row in rows:
        _check_width(name, row, len(arrow.names), (schema,))
    arrays = [_array(name, schema, [row[at] for row in rows], field.type) for at, field in enumerate(arrow)]
    return pa.Table.from_arrays(arrays, schema=arrow)


def _array(name: str, schema: str, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return to_arrow(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError) as error:
        raise SourceSchemaError(name, "a row", str(error), (schema,), ()) from None
