"""Quarantine: the table of the rows that a flow refused, each with stage, rule and reason. No row is ever just lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipelines.graph import nodes
from pipelines.quality.compiled import FAILED
from pipelines.sources.base import CORRUPT, FILE
from pipelines.sources.events import WITHOUT_TIME
from pipelines.state.lake import Lake
from pipelines.state.literals import literal
from pipelines.state.schema import NO_SLICE, POISONED, SLICE_COLUMN, TXID, UNSLICED, StateSchema, struct_of
from pipelines.state.writer import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipelines.trident.topology import TridentTopology

GROUP = "batch_group"
COLUMNS = tuple((name, "string") for name in ("stage", "rule", "reason", "row", "file", "stream", GROUP))
"""stage: `source`, a gate's name, or `batch`; rule: what refused it; row: the row as JSON, or the raw text; file: its origin;
stream: of a source or a batch the stream that it came in by; batch_group: which of the batch groups refused it, for each has
txids and slices of its own. In rows of earlier releases the last two may be null (`rows_of`)."""
JSON = {
    "ignoreNullFields": "false",
    # To the microsecond, as Spark keeps them: the row can be read back as it was.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How a row is written, and read back."""
SOURCE, BATCH = "source", "batch"
MALFORMED, NO_TIME, WITHOUT_SLICE, POISON = "malformed", "no_time", "no_slice", "poison"
NAME = "quarantine"


def quarantine_writer(lake: Lake, flow: str) -> StateWriter:
    """The writer of a flow's quarantine table, which is created on first use."""
    table = lake.table(lake.quarantine_path(flow), f"quarantine of {flow}")
    return StateWriter(table, StateSchema(layout="rows", flow=flow, columns=COLUMNS, sliced=True))


def of_group(rows: pa.Table, group: str) -> pa.Table:
    """Refused rows with the batch group that refused them."""
    return rows.append_column(GROUP, pa.repeat(pa.scalar(group), rows.num_rows))


def rows_of(topology: TridentTopology, group: str, streams: Collection[str]) -> str:
    """The rows of one batch group, as a condition that is never null. Those of earlier releases do not name it: they are told by
    their stream, or by their gate; of a flow with one group there is no doubt.

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


def poison_rows(own: str, txid: int) -> str:
    """The rows of a poison batch, among those of its batch group."""
    return f"{own} AND stage IS NOT NULL AND stage = {_texts([BATCH])} AND {TXID} = {txid}"


def _texts(some: Iterable[str]) -> str:
    return ", ".join(literal("stage", one, pa.string()) for one in some)


def table_columns() -> StructType:
    return struct_of(", ".join(f"{name} {kind}" for name, kind in COLUMNS))


def as_json(fields: Sequence[str]) -> Column:
    """A row's fields as text."""
    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields)), JSON)


def refused_by_source(marked: DataFrame, fields: Sequence[str], stream: str, also: Sequence[str] = ()) -> DataFrame:
    """Malformed records with their text, events without a time, and rows whose slice is null.

    Args:
        also: further columns to keep.
    """
    untimed = F.col(CORRUPT).startswith(WITHOUT_TIME)
    malformed = F.col(CORRUPT).isNotNull()
    text = F.when(untimed, F.col(CORRUPT).substr(F.lit(len(WITHOUT_TIME) + 1), F.length(CORRUPT)))
    return marked.select(
        F.lit(SOURCE).alias("stage"),
        F.when(untimed, NO_TIME).when(malformed, MALFORMED).otherwise(WITHOUT_SLICE).alias("rule"),
        F.when(untimed, "the event has no time: what its stream's timestamp= says is null")
        .when(malformed, "the record does not parse as the declared schema")
        .otherwise("the row has no slice: its slice column is null, empty, or one of ? * !")
        .alias("reason"),
        F.coalesce(text, F.col(CORRUPT), as_json(fields)).alias("row"),
        F.col(FILE).alias("file"),
        F.lit(stream).alias("stream"),
        F.lit(NO_SLICE).alias(SLICE_COLUMN),
        *also,
    )


def refused_by_gate(
    dropped: DataFrame, gate: str, drops: Sequence[str], fields: Sequence[str], also: Sequence[str] = ()
) -> DataFrame:
    """Rows that a gate's drop checks refused; `rule` names those of `drops` that do not hold.

    Args:
        also: further columns to keep.
    """
    slice_ = F.col(SLICE_COLUMN) if SLICE_COLUMN in dropped.columns else F.lit(UNSLICED)
    rules = F.array_join(F.array_intersect(F.col(FAILED), F.array(*(F.lit(name) for name in drops))), ", ")
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


def refused_batch(source: DataFrame, fields: Sequence[str], stream: str, reason: str) -> DataFrame:
    """All rows of a poison batch."""
    return source.select(
        F.lit(BATCH).alias("stage"),
        F.lit(POISON).alias("rule"),
        F.lit(reason[:2000]).alias("reason"),
        F.coalesce(F.col(CORRUPT), as_json(fields)).alias("row"),
        F.col(FILE).alias("file"),
        F.lit(stream).alias("stream"),
        F.lit(POISONED).alias(SLICE_COLUMN),
    )
