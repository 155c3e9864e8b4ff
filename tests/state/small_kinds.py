"""States of every layout and kind, made and written without a topology."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipelines.places.location import Place
from pipelines.state.kinds import LOG, MAP, ROWS
from pipelines.state.lake import Lake
from pipelines.state.reading import Reader
from pipelines.state.record import BATCH, BatchRecord
from pipelines.state.schema import REMOVED, StateSchema, ValueColumn
from pipelines.state.snapshot import Snapshot
from pipelines.state.table import StateTable
from pipelines.state.writer import StateWriter
from tests.lakes import lake_place

FLOW, APP = "shop", "shop/counts/1"
COLUMNS = StructType([StructField("word", StringType()), StructField("n", LongType())])
WIDER = StructType([*COLUMNS.fields, StructField("total", LongType())])
ARROW = pa.schema([("word", pa.string()), ("n", pa.int64())])


def declared(layout: str, kind: str, columns: StructType = COLUMNS, **more: Any) -> StateSchema:
    names = [f.name for f in columns.fields]
    sums = tuple(ValueColumn(name=name, aggregator="Sum") for name in names if name != "word")
    given: dict[str, Any] = {
        "layout": layout,
        "kind": kind,
        "flow": FLOW,
        "keys": () if layout == ROWS else ("word",),
        "values": sums if layout == LOG else (),
        "columns": tuple((f.name, f.dataType.simpleString()) for f in columns.fields),
    }
    return StateSchema(**(given | more))


class SmallTable:
    """A table of words and numbers. The same folder twice is the same table."""

    def __init__(
        self, root: Place, layout: str, kind: str, columns: StructType = COLUMNS, *, name: str = "counts", **more: Any
    ) -> None:
        lake = Lake(lake_place(root))
        self.writer = StateWriter(lake.table(lake.state_path(name), name), declared(layout, kind, columns, **more))
        self.columns = columns
        self.writer.prepare(columns)

    @property
    def table(self) -> StateTable:
        return self.writer.table

    def commit(self, txid: int, *rows: tuple[Any, ...], known: bool = False, epoch: int = 1) -> int:
        """A batch. A row whose values are all None removes its key, in a map state."""
        names = [f.name for f in self.columns.fields]
        found = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=self.arrow)
        if self.writer.declared.layout == MAP:
            gone = [all(value is None for value in row[1:]) for row in rows]
            found = found.append_column(REMOVED, pa.array(gone, pa.bool_()))
        return self.writer.commit_batch(found, record(txid, epoch), APP, known=known)

    @property
    def arrow(self) -> pa.Schema:
        return cast(pa.Schema, to_arrow_schema(self.columns, timezone="UTC"))

    def held(self, **at: Any) -> list[tuple[Any, ...]]:
        return in_order(self.table.scan(**at))

    def base(self, txid: int) -> list[tuple[Any, ...]]:
        return in_order(Reader(Snapshot.open(self.table.path), self.table.declared, txid).scan())


def record(txid: int, epoch: int = 1) -> BatchRecord:
    return BatchRecord(kind=BATCH, flow=FLOW, epoch=epoch, txid=txid)


def in_order(found: pa.Table) -> list[tuple[Any, ...]]:
    rows = [tuple(row.values()) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: [(one is None, str(one)) for one in row])
