"""The rows that a flow puts into quarantine, each with stage, rule and reason. No row is ever just lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipelines.execution.batch.group_sources import said
from pipelines.graph import nodes
from pipelines.quality.compiled import FAILED
from pipelines.sources.base import CORRUPT, FAR_TIME, FILE, OWN_TEXT, ROW_JSON
from pipelines.sources.events import WITHOUT_TIME
from pipelines.sources.layouts import NOT_READ, OTHER_FIELDS
from pipelines.state.lake import Lake
from pipelines.state.literals import literal
from pipelines.state.quarantine import (
    BAD_SLICE,
    BATCH,
    COLUMNS,
    FILE_GONE,
    GROUP,
    MALFORMED,
    NAMED_OTHERWISE,
    NO_TIME,
    POISON,
    SOURCE,
    TOO_FAR,
    UNREAD,
    WITHOUT_SLICE,
)
from pipelines.state.schema import (
    LONGEST_SLICE,
    NO_SLICE,
    POISONED,
    RESERVED,
    SLICE_COLUMN,
    TXID,
    UNSLICED,
    StateSchema,
    struct_of,
)
from pipelines.state.writer import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipelines.trident.topology import TridentTopology


def quarantine_writer(lake: Lake, flow: str) -> StateWriter:
    """Return the writer of a flow's quarantine table, which is created on first use."""
    table = lake.table(lake.quarantine_path(flow), f"quarantine of {flow}")
    return StateWriter(table, StateSchema(layout="rows", flow=flow, columns=COLUMNS, sliced=True))


def of_group(rows: pa.Table, group: str) -> pa.Table:
    """Return rejected rows with the batch group that rejected them."""
    return rows.append_column(GROUP, pa.repeat(pa.scalar(group), rows.num_rows))


def rows_of(topology: TridentTopology, group: str, streams: Collection[str]) -> str:
    """Return the rows of one batch group, as a condition that is never null.

    Rows of earlier releases do not name it: their stream does, or their gate; of a flow with one group there is no doubt.

    Args:
        streams: the streams of its spouts.
    """
    old = "true"
    if any(spout.stream not in streams for spout in topology.spouts):
        reach = {
            node.id
            for spout in topology.spouts
            if spout.stream in streams
            for node in topology.graph.descendants(spout.id)
        }
        gates = {node.gate.name for node in topology.graph if isinstance(node, nodes.GateNode) and node.id in reach}
        named = (("stream", sorted(streams)), ("stage", sorted(gates)))
        old = " OR ".join(f"({name} IS NOT NULL AND {name} IN ({_texts(some)}))" for name, some in named if some)
    return f"(({GROUP} IS NOT NULL AND {GROUP} = {_texts([group])}) OR ({GROUP} IS NULL AND ({old})))"


def poison_rows(own: str, txid: int | None = None, *, alone: bool = False) -> str:
    """Return the rows of a poison batch (None: of all of them), among those of its batch group.

    Args:
        alone: with those that no batch brings again, whose file is gone.
    """
    of_batch = "" if txid is None else f" AND {TXID} = {txid}"
    comes = "" if alone else f" AND (rule IS NULL OR rule <> {_texts([FILE_GONE])})"
    return f"{own} AND stage IS NOT NULL AND stage = {_texts([BATCH])}{of_batch}{comes}"


def refused_rows(own: str, txid: int | None = None) -> str:
    """Return what gates and the source's format have rejected of a batch (None: of any), among the rows of its batch group."""
    # Those of backfills have the txid -1.
    of_batch = f"{TXID} >= 0" if txid is None else f"{TXID} = {txid}"
    return f"{own} AND {of_batch} AND (stage IS NULL OR stage <> {_texts([BATCH])})"


def txids_of(writer: StateWriter, rows: str) -> set[int]:
    """Return the txids of some rows of quarantine (`poison_rows`, `refused_rows`); none where it has no table."""
    if not writer.table.exists():
        return set()
    writer.prepare(table_columns())
    return set(writer.table.stored(rows, f"DISTINCT {TXID}")[TXID].to_pylist())


def _texts(some: Iterable[str]) -> str:
    return ", ".join(literal("stage", text, pa.string()) for text in some)


def table_columns() -> StructType:
    return struct_of(", ".join(f"{name} {kind}" for name, kind in COLUMNS))


def as_json(fields: Sequence[str]) -> Column:
    """Return a row's fields as text."""
    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields)), ROW_JSON)


def rejected_by_source(marked: DataFrame, spout: nodes.SpoutNode, also: Sequence[str | Column] = ()) -> DataFrame:
    """Return malformed records with their text, files that are not read, events without a time, rows with a date or time that
    is too far, and rows whose slice is none, or cannot be one.

    Args:
        also: further columns to keep.
    """
    untimed, malformed = F.col(CORRUPT).startswith(WITHOUT_TIME), F.col(CORRUPT).isNotNull()
    otherwise = F.col(CORRUPT).startswith(OTHER_FIELDS)
    far, unread = F.col(CORRUPT).startswith(FAR_TIME), F.col(CORRUPT).startswith(NOT_READ)
    seen, names, why = (F.substring_index(_after(mark), "\0", 1) for mark in (OTHER_FIELDS, FAR_TIME, NOT_READ))
    value = said(spout.slice_by) if spout.slice_by else F.lit(None).cast("string")
    unfit = value.isNotNull() & ~value.isin(*RESERVED)
    return marked.select(
        F.lit(SOURCE).alias("stage"),
        F.when(untimed, NO_TIME)
        .when(otherwise, NAMED_OTHERWISE)
        .when(far, TOO_FAR)
        .when(unread, UNREAD)
        .when(malformed, MALFORMED)
        .when(unfit, BAD_SLICE)
        .otherwise(WITHOUT_SLICE)
        .alias("rule"),
        F.when(
            untimed, "the event has no time: what its stream's timestamp= says is null, or not of the years 100 to 9899"
        )
        .when(otherwise, F.concat(F.lit("the file's fields are others than the schema's: "), seen))
        .when(far, F.concat(F.lit("a date or time outside the years 1 to 9999, in: "), names))
        .when(unread, F.concat(F.lit("the file is not read: "), why))
        .when(malformed, "the record does not parse as the declared schema")
        .when(
            unfit,
            f"its slice cannot name a folder: over {LONGEST_SLICE} bytes URL-encoded, a character of code 0, or not UTF-8",
        )
        .otherwise("the row has no slice: its slice column is null, empty, or a reserved name (? * !)")
        .alias("reason"),
        # Text that is not UTF-8 could not be kept: the whole batch would fail by it.
        F.make_valid_utf8(F.coalesce(_text(), as_json(spout.fields))).alias("row"),
        F.col(FILE).alias("file"),
        F.lit(spout.stream).alias("stream"),
        F.lit(NO_SLICE).alias(SLICE_COLUMN),
        *also,
    )


def _after(mark: str) -> Column:
    """Return the rest of `_corrupt` behind a mark."""
    return F.col(CORRUPT).substr(F.lit(len(mark) + 1), F.length(CORRUPT))


def _text() -> Column:
    """Return a rejected record's own text, without the engine's marks; null for what was read."""
    untimed = F.when(F.col(CORRUPT).startswith(WITHOUT_TIME), _after(WITHOUT_TIME))
    text = F.coalesce(untimed, _behind(OTHER_FIELDS), _behind(FAR_TIME), _behind(NOT_READ), F.col(CORRUPT))
    return F.when(text.startswith(OWN_TEXT), text.substr(F.lit(len(OWN_TEXT) + 1), F.length(text))).otherwise(text)


def _behind(mark: str) -> Column:
    """Return what follows a mark and its names; null where there is no such mark."""
    rest = _after(mark)
    line = rest.substr(F.length(F.substring_index(rest, "\0", 1)) + 2, F.length(rest))
    return F.when(F.col(CORRUPT).startswith(mark), line)


def rejected_by_gate(
    dropped: DataFrame, gate: str, drops: Sequence[str], fields: Sequence[str], also: Sequence[str | Column] = ()
) -> DataFrame:
    """Return rows that a gate's drop checks rejected; `rule` names those of `drops` that do not hold.

    Args:
        also: further columns to keep.
    """
    slice_ = F.col(SLICE_COLUMN) if SLICE_COLUMN in dropped.columns else F.lit(UNSLICED)
    rules = F.array_join(_violated(drops), ", ")
    return dropped.select(
        F.lit(gate).alias("stage"),
        rules.alias("rule"),
        F.concat(F.lit(f'gate "{gate}": does not hold: '), rules).alias("reason"),
        as_json(fields).alias("row"),
        F.lit(None).cast("string").alias("file"),
        F.lit(None).cast("string").alias("stream"),
        slice_.alias(SLICE_COLUMN),
        *also,
    )


def violated(drops: Sequence[str]) -> Column:
    """Return how many of a gate's drop checks a row violates that was rejected by it."""
    return F.size(_violated(drops))


def _violated(drops: Sequence[str]) -> Column:
    return F.array_intersect(F.col(FAILED), F.array(*(F.lit(name) for name in drops)))


def rejected_batch(source: DataFrame, fields: Sequence[str], stream: str, reason: str) -> DataFrame:
    """Return all rows of a poison batch."""
    return source.select(
        F.lit(BATCH).alias("stage"),
        F.lit(POISON).alias("rule"),
        F.lit(reason[:2000]).alias("reason"),
        F.make_valid_utf8(F.coalesce(_text(), as_json(fields))).alias("row"),
        F.col(FILE).alias("file"),
        F.lit(stream).alias("stream"),
        F.lit(POISONED).alias(SLICE_COLUMN),
    )
