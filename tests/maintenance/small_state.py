"""A state table driven through its writer, without Spark, beside a plain model of what it must hold."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipelines.aggregators import BUILT_IN
from pipelines.state.commits import properties
from pipelines.state.lake import Lake
from pipelines.state.literals import literal
from pipelines.state.record import BATCH, COMPACTION, RESET, SLICE, BatchRecord
from pipelines.state.schema import GEN, SLICE_COLUMN, StateSchema, ValueColumn
from pipelines.state.turns import stream_id
from pipelines.state.writer import StateWriter

FLOW, STATE, APP = "shop", "sales", "shop/sales/1"
KINDS = ("Count", "Sum", "Min", "Max", "Average")
_LONG = LongType()
_PAIR = StructType([StructField("sum", _LONG, False), StructField("count", _LONG, False)])
_COLUMNS = StructType(
    [
        StructField("key", StringType()),
        StructField("part", LongType()),
        *(StructField(kind.lower(), _PAIR if kind == "Average" else _LONG) for kind in KINDS),
    ]
)

Row = tuple[str, str | None, int | None, int]
"""slice, key, part, value"""
Key = tuple[str | None, int | None]


Slices = dict[str, dict[Key, list[int]]]


@dataclass(frozen=True)
class Moment:
    """The model at a version of the table."""

    txid: int
    slices: Slices
    by_txid: dict[int, list[dict[str, Any]]]
    claims: dict[str, frozenset[str]]


class SmallState:
    """The table and its model: what each slice holds, as plain values by key."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        schema = StateSchema(
            layout="log",
            flow=FLOW,
            keys=("key", "part"),
            values=tuple(ValueColumn(name=kind.lower(), aggregator=kind) for kind in KINDS),
            columns=tuple((f.name, f.dataType.simpleString()) for f in _COLUMNS.fields),
            sliced=True,
        )
        self.writer = StateWriter(self.lake.table(self.lake.state_path(STATE), STATE), schema)
        self.writer.prepare(_COLUMNS)
        self.txid, self.epoch = -1, 1
        self.slices: Slices = {}
        self.by_txid: dict[int, list[dict[str, Any]]] = {}
        self.claims: dict[str, frozenset[str]] = {}
        self._next = self._highest = 0

    @property
    def table(self) -> Any:
        return self.writer.table

    # --- what happens to it -----------------------------------------------------------------------------------------

    def batch(self, rows: list[Row], gap: int = 1) -> None:
        """The next batch of the stream; a gap leaves txids out."""
        self.txid = self._next + gap - 1
        self._next, self._highest = self.txid + 1, max(self._highest, self.txid)
        record = BatchRecord(kind=BATCH, flow=FLOW, epoch=self.epoch, txid=self.txid)
        self.writer.append_arrow(_arrow(rows), record, stream_id(FLOW, STATE, self.epoch))
        for slice_, key, part, value in rows:
            self.slices.setdefault(slice_, defaultdict(list))[key, part].append(value)
        self.by_txid[self.txid] = self.expected()

    def replace(self, slice_: str, rows: list[Row], claims: tuple[str, ...] = ()) -> None:
        """A backfill of a slice."""
        rows = [(slice_, *row[1:]) for row in rows]
        record = BatchRecord(kind=SLICE, flow=FLOW, epoch=self.epoch, txid=self.txid, slice=slice_, claims=claims)
        self.writer.replace_slice(_arrow(rows), record)
        self.claims[slice_] = frozenset(claims)
        self.slices[slice_] = defaultdict(list)
        for _, key, part, value in rows:
            self.slices[slice_][key, part].append(value)

    def reset(self) -> None:
        """A fresh start: the table is emptied."""
        self.epoch += 1
        self.writer.reset(BatchRecord(kind=RESET, flow=FLOW, epoch=self.epoch))
        self.txid, self._next = -1, 0
        self.slices, self.by_txid, self.claims = {}, {}, {}

    def moment(self) -> Moment:
        """What is to be there after a RESTORE to the present version."""
        return deepcopy(Moment(self.txid, self.slices, self.by_txid, self.claims))

    def restore(self, version: int, moment: Moment) -> None:
        """A RESTORE, and the next life of the checkpoint, as `tridelta adopt` begins it: with txids beyond all others."""
        DeltaTable(str(self.table.path)).restore(version)
        then = deepcopy(moment)
        self.txid, self.slices, self.by_txid, self.claims = then.txid, then.slices, then.by_txid, then.claims
        self.epoch, self._next = self.epoch + 1, self._highest + 1

    def in_many_files(self, slice_: str, gen: int) -> None:
        """Lay a partition as Spark does where it folds by ranges of several slices: in more files than it needs."""
        opened = DeltaTable(str(self.table.path))
        schema = pa.schema(opened.schema().to_arrow())
        where = f"{literal(SLICE_COLUMN, slice_, pa.string())} = {SLICE_COLUMN} AND {GEN} = {gen}"
        rows = self.table.stored(where).select(schema.names).cast(schema)
        said = properties(BatchRecord(kind=COMPACTION, flow=FLOW, epoch=self.epoch, txid=self.txid))
        write_deltalake(opened, rows.slice(0, 1), mode="overwrite", predicate=where, commit_properties=said)
        for number in range(1, rows.num_rows):
            write_deltalake(opened, rows.slice(number, 1), mode="append", commit_properties=said)

    # --- what it must hold ------------------------------------------------------------------------------------------

    def expected(self) -> list[dict[str, Any]]:
        merged: dict[Key, list[int]] = defaultdict(list)
        for held in self.slices.values():
            for key, values in held.items():
                merged[key] += values
        return in_order([{"key": key, "part": part, **_folded(values)} for (key, part), values in merged.items()])

    def scanned(self, **at: Any) -> list[dict[str, Any]]:
        return in_order(self.table.scan(**at).to_pylist())

    def got(self, **at: Any) -> list[dict[str, Any]]:
        keys = [{"key": row["key"], "part": row["part"]} for row in self.expected()]
        return in_order(self.table.get([*keys, {"key": "nobody", "part": 9}], **at)) if keys else []


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["key"] or "", row["key"] is None, row["part"] or 0, row["part"] is None))


def _folded(values: list[int]) -> dict[str, Any]:
    average = sum(values) / len(values)
    return {"count": len(values), "sum": sum(values), "min": min(values), "max": max(values), "average": average}


def _arrow(rows: list[Row]) -> pa.Table:
    """Partial values by slice and key, as a batch computes them."""
    partial: dict[tuple[str, str | None, int | None], dict[str, Any]] = {}
    makers = {kind: BUILT_IN[kind]() for kind in KINDS}
    for slice_, key, part, value in rows:
        known = partial.setdefault((slice_, key, part), {kind: maker.zero() for kind, maker in makers.items()})
        for kind, maker in makers.items():
            known[kind] = maker.combine(known[kind], maker.init(*([] if kind == "Count" else [value])))
    pair = pa.struct([("sum", pa.int64()), ("count", pa.int64())])
    schema = pa.schema(
        [("key", pa.string()), ("part", pa.int64())]
        + [(kind.lower(), pair if kind == "Average" else pa.int64()) for kind in KINDS]
        + [(SLICE_COLUMN, pa.string())]
    )
    return pa.Table.from_pylist(
        [
            {"key": key, "part": part, SLICE_COLUMN: slice_, **{kind.lower(): one for kind, one in values.items()}}
            for (slice_, key, part), values in partial.items()
        ],
        schema=schema,
    )


__all__ = ["FLOW", "KINDS", "STATE", "Row", "SmallState", "in_order"]
