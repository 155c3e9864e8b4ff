"""Events that other queries of the flow have committed into channels.

Delta's source counts files. A commit into a channel is one file, so a limit cuts between commits and each batch is whole
commits, in their order. Where that is not so (a commit of an earlier release, a checkpoint in the middle of one), or where a
new reader finds files that were rewritten since, whose times say nothing of their rows, a batch takes all that is there: an
event's order names its txid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deltalake import DeltaTable

from pipelines.errors import MissingPathError
from pipelines.graph import events
from pipelines.graph.fields import parse_ddl
from pipelines.places.location import Place
from pipelines.sources.base import CORRUPT, FILE, Source
from pipelines.sources.offsets import offset_in_table
from pipelines.state.delta_log import actions, commit_file

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# What one batch takes of a channel that its reader is far behind: as much as two cores hold and work off in some seconds.
BYTES_A_BATCH = "256m"
FILES_A_BATCH = 1000
_ALL = {"maxFilesPerTrigger": "2147483639"}
"""No limit: without options a batch of Delta's takes 1,000 files. As much as Delta itself has where bytes alone are limited."""
_BEGINNING = -1
"""Delta's index in an offset that stands between two commits."""


@dataclass(frozen=True)
class ChannelInput:
    """A channel, the stream that sends through it, and the fields that it sends with their Spark SQL types.

    `numbered`: its events have the order of a source's rows, which each batch begins again: the batch's txid goes into it.
    `own`: the stream leads to itself, from one of its queries to the next: its events still come from where they came from.
    """

    origin: str
    channel: str
    numbered: bool = False
    types: tuple[tuple[str, str], ...] = ()
    own: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of its events, with the event's own columns."""
        return (*(name for name, _ in self.types), *events.COLUMNS)


@dataclass(frozen=True)
class Start:
    """The place where a query goes on that reads channels with a fresh checkpoint.

    Attributes:
        channels: the last txid of each channel that was read before.
        clock: of those, events up to this clock are done, in ms; later ones still waited in windows. None: all are done.
        left_out: of each channel the txids whose later events did not: they were in batches that were kept from the windows.
    """

    channels: dict[str, int]
    clock: int | None = None
    left_out: dict[str, list[int]] = field(default_factory=dict)


class ChannelSource(Source):
    """Events that other queries of the flow have committed into channels, with their watermark rows.

    Args:
        schema: DDL of the events' fields, the union of the inputs'; None: as the one channel's table has them.
        names: the fields, where there is no schema.
        commits_a_batch: at most so many commits of a channel per batch; None: as many as one batch can hold.
        ticks: whether the clock goes on while nothing comes: a stream then hears the time every second.
    """

    transactional = True
    tells_time = True

    def __init__(
        self,
        inputs: Sequence[ChannelInput],
        schema: str | None,
        *,
        names: Sequence[str] = (),
        commits_a_batch: int | None = None,
        ticks: bool = False,
    ) -> None:
        self.inputs, self._names, self._commits_a_batch = tuple(inputs), tuple(names), commits_a_batch
        self._ticks = ticks
        self._columns = parse_ddl(schema) if schema else ()
        self.schema = "" if schema is None else f"{schema}, {events.DDL}" if schema else events.DDL
        self._paths: dict[str, Path] = {}
        self._start: Start | None = None
        self._checkpoint: Place | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return (*(self._names or (name for name, _ in self._columns)), *events.COLUMNS)

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(one.channel for one in self.inputs)

    def __repr__(self) -> str:
        return f"channels {', '.join(self.channels)}"

    def locate(self, paths: dict[str, Path]) -> Self:
        """Return a copy that knows where the channels' tables are."""
        own = copy(self)
        own._paths = paths
        return own

    def start_at(self, start: Start | None, checkpoint: Place | None = None) -> Self:
        """Return a copy whose stream leaves out what was done before its checkpoint began, and goes on where that stands.

        Args:
            checkpoint: Spark's own.
        """
        own = copy(self)
        own._start, own._checkpoint = start, checkpoint
        return own

    def check(self, name: str, spark: SparkSession) -> None:
        """Check that the channels exist."""
        for channel in self.channels:
            if not DeltaTable.is_deltatable(str(self._paths[channel])):
                raise MissingPathError(name, str(self._paths[channel]))

    def stream(self, spark: SparkSession) -> DataFrame:
        frames = [self._not_done(channel, self._commits(spark, channel)) for channel in self.channels]
        frame = self._union(frames)
        return frame.unionByName(self._every_second(spark), allowMissingColumns=True) if self._ticks else frame

    def _commits(self, spark: SparkSession, channel: str) -> DataFrame:
        """Return the rows of a channel; a batch of them is whole commits, one after the other."""
        path, limits = self._paths[channel], {"maxFilesPerTrigger": str(self._commits_a_batch or FILES_A_BATCH)}
        if not self._commits_a_batch:
            limits["maxBytesPerTrigger"] = BYTES_A_BATCH
        table_id = str(DeltaTable(str(path)).metadata().id)
        offset = offset_in_table(self._checkpoint, table_id) if self._checkpoint else None
        # What rewrites a channel (retention deletes what all readers have taken) is not news to its readers.
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        return reader.options(**options(path, offset, limits)).load(str(path))

    def _every_second(self, spark: SparkSession) -> DataFrame:
        """Return watermark rows by the clock on the wall, for each channel."""
        from pyspark.sql import functions as F

        ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        channels = F.explode(F.array(*(F.lit(channel) for channel in self.channels)))
        return ticks.select(F.unix_millis("timestamp").alias(events.CLOCK), channels.alias(events.FROM))

    def _not_done(self, channel: str, frame: DataFrame) -> DataFrame:
        """Return the rows that a fresh checkpoint takes: watermark rows and the events that are not done."""
        from pyspark.sql import functions as F

        if self._start is None or channel not in self._start.channels:
            return frame
        left = F.col(events.ID).isNull() | (F.col("_txid") > F.lit(self._start.channels[channel]))
        if self._start.clock is not None:
            waits = F.col(events.CLOCK) > F.lit(self._start.clock)
            left |= waits & ~F.col("_txid").isin(self._start.left_out.get(channel, []))
        return frame.where(left)

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        return self._union([spark.read.format("delta").load(str(self._paths[c])) for c in self.channels]), frozenset()

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        return frozenset()

    def _union(self, frames: Sequence[DataFrame]) -> DataFrame:
        parts = [self._part(one, frame) for one, frame in zip(self.inputs, frames, strict=True)]
        from pyspark.sql import DataFrame

        return reduce(DataFrame.unionByName, parts)

    def _part(self, one: ChannelInput, frame: DataFrame) -> DataFrame:
        """Name the channel as the origin in watermark rows: of two from one stream each has a row of its own."""
        from pyspark.sql import functions as F

        types = dict(one.types)
        shown = [_as(name, types.get(name), kind) for name, kind in self._columns]
        shown = shown or [F.col(f"`{name}`") for name in self._names]
        sender = F.col(events.FROM) if one.own else F.lit(one.origin)
        origin = F.when(F.col(events.ID).isNull(), F.lit(one.channel)).otherwise(sender)
        order = F.col(events.ORDER)
        if one.numbered:
            batch = F.lpad(F.hex(F.greatest(F.col("_txid"), F.lit(0))), 8, "0")
            order = F.concat(order.substr(1, 4), batch, order.substr(F.lit(5), F.length(order)))
        own = [F.col(events.ID), F.col(events.TIME), F.col(events.CLOCK), origin.alias(events.FROM)]
        position = [F.lit(None).cast("string").alias(CORRUPT), F.lit(None).cast("string").alias(FILE)]
        return frame.select(*shown, *own, order.alias(events.ORDER), *position)


def _as(name: str, kind: str | None, wanted: str) -> Column:
    """Return a field as the type that holds it beside those of other channels; None: this channel does not have it.

    Beside events with several values in the field (those of a join) a value is the only one of its event.
    """
    from pyspark.sql import functions as F

    value = F.col(f"`{name}`") if kind is not None else F.lit(None)
    if kind is not None and wanted.startswith("array<") and not kind.startswith("array<"):
        value = F.when(value.isNotNull(), F.array(value))
    return value.cast(wanted).alias(name)


def options(path: Path, offset: Mapping[str, Any] | None, limits: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a stream over a channel.

    Args:
        offset: where the reader's last planned batch ends; None: it begins again.
        limits: how much a batch takes where files are commits.
    """
    start: dict[str, str] = {}
    if offset is None:
        commits, start = _commits(path, 0), {"startingVersion": "0"}
        if not commits or not all(commit.kept for commit in commits):
            return _ALL
    elif offset.get("isStartingVersion") or offset["index"] != _BEGINNING:
        return _ALL
    else:
        commits = _commits(path, int(offset["reservoirVersion"]))
    return {**start, **(limits if all(commit.files <= 1 for commit in commits) else _ALL)}


@dataclass(frozen=True)
class _Commit:
    """The number of files of new rows in a commit, and whether it kept every file of before."""

    files: int
    kept: bool


def _commits(table: Path, first: int) -> list[_Commit]:
    """Return the commits from a version on; none if that one is not in the log any more."""
    commits: list[_Commit] = []
    while commit_file(table, first + len(commits)).exists():
        commit = list(actions(table, first + len(commits), "add", "remove"))
        files = sum(name == "add" and bool(action.get("dataChange", True)) for name, action in commit)
        commits.append(_Commit(files, all(name != "remove" for name, _ in commit)))
    return commits
