"""Events from a source, and events from channels."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from pipelines.errors import BadNameError, MissingPathError
from pipelines.graph import events
from pipelines.graph.expressions import fields_of_sql, spark_sql
from pipelines.graph.fields import parse_ddl
from pipelines.sources.base import CORRUPT, FILE, file_key
from pipelines.sources.channel_log import last_offset, options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pipelines.errors import TrideltaError

PROCESSING = "processing"
WITHOUT_TIME = "\x00time"
"""What `_corrupt` begins with where a record is well formed and says no time."""
# What one batch takes of a channel that its reader is far behind: as much as two cores hold and work off in some seconds.
BYTES_A_BATCH = "256m"
FILES_A_BATCH = 1000


@dataclass(frozen=True)
class Edge:
    """A channel, the stream that sends through it, and the fields that it sends with their Spark SQL types.

    `numbered`: its events have the order of a source's rows, which each batch begins anew: the batch's txid goes into it.
    """

    origin: str
    channel: str
    numbered: bool = False
    types: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of its events, with the event's own columns."""
        return (*(name for name, _ in self.types), *events.COLUMNS)


@dataclass(frozen=True)
class Start:
    """Where a query goes on that reads channels with a fresh checkpoint.

    Attributes:
        channels: the last txid of each channel that was read before.
        clock: of those, events up to this clock are done, in ms; later ones still waited in windows. None: all are done.
    """

    channels: dict[str, int]
    clock: int | None = None


class EventSource:
    """A source whose rows are events: it adds the event's columns (`pipelines.graph.events`) to the source's own.

    Args:
        inner: any source.
        stream: the stream's name, where the events come from.
        number: the stream's place in its flow: events of one clock come in the order of the streams.
        id: SQL over the source's fields that gives an event's id; None: made from the row's place in the source, the same
            in every replay.
        timestamp: SQL that gives the event's time: bigint milliseconds, or a timestamp or date; None: its arrival.
        clock: `"event"` or `"processing"`.
    """

    def __init__(
        self,
        inner: Any,
        stream: str,
        number: int = 0,
        *,
        id: str | None = None,
        timestamp: str | None = None,
        clock: str = "event",
    ) -> None:
        self.number = number
        self.inner, self.stream_name, self.id, self.timestamp, self.clock = inner, stream, id, timestamp, clock
        for name in inner.fields:
            if name in events.COLUMNS:
                raise BadNameError("field", name, "is the engine's")
        self.schema = f"{inner.schema}, {events.DDL}"

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.inner.fields, *events.COLUMNS)

    @property
    def lineage(self) -> dict[str, tuple[str, ...]]:
        """The fields from which the event's columns come; none for what the engine makes."""
        at = fields_of_sql("timestamp", self.timestamp) if self.timestamp else ()
        own = fields_of_sql("id", self.id) if self.id else ()
        clock = () if self.clock == PROCESSING else at
        return {events.ID: own, events.TIME: at, events.CLOCK: clock, events.FROM: (), events.ORDER: ()}

    @property
    def max_parallelism(self) -> int | None:
        found: int | None = getattr(self.inner, "max_parallelism", None)
        return found

    @property
    def sliceable(self) -> bool:
        return bool(getattr(self.inner, "sliceable", True))

    @property
    def transactional(self) -> bool:
        return bool(getattr(self.inner, "transactional", True))

    def __repr__(self) -> str:
        return repr(self.inner)

    def prepare(self, name: str, spool: Path) -> None:
        self.inner.prepare(name, spool)

    def check(self, name: str, spark: SparkSession) -> None:
        self.inner.check(name, spark)

    def stream(self, spark: SparkSession) -> DataFrame:
        """The source's own frame; `of_batch` adds the event's columns, one of which no stream may compute."""
        frame: DataFrame = self.inner.stream(spark)
        return frame

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        frame, positions = self.inner.bounded(spark)
        return self._with_events(frame, frozenset(file_key(one) for one in positions)), positions

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        return self._with_events(self.inner.of_batch(frame, files), files)

    def positions(self, checkpoint: Path, first: int, last: int, index: int = 0) -> frozenset[str]:
        found: frozenset[str] = self.inner.positions(checkpoint, first, last, index)
        return found

    def fault(self, name: str, error: BaseException) -> TrideltaError | None:
        ask = getattr(self.inner, "fault", None)
        return ask(name, error) if ask else None

    def _with_events(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        from pyspark.sql import functions as F

        now = F.lit(int(time.time() * 1000)).cast("bigint")
        order = self._order(files)
        given = F.expr(spark_sql("id", self.id)).cast("string") if self.id else F.lit(None).cast("string")
        made = F.concat(F.lit(f"{self.stream_name}-"), F.hex(F.xxhash64(F.col(FILE), order)))
        at = milliseconds(frame, self.timestamp) if self.timestamp else now
        own = {
            events.ID: F.coalesce(given, made),
            events.TIME: F.coalesce(at, now),
            events.CLOCK: now if self.clock == PROCESSING else F.coalesce(at, now),
            events.FROM: F.lit(self.stream_name),
            events.ORDER: order,
        }
        shown = [column.alias(name) for name, column in own.items()]
        return frame.select(*(f"`{name}`" for name in self.inner.fields), *shown, self._refused(at), FILE)

    def _refused(self, at: Column) -> Column:
        """`_corrupt`, also of a row without a time: taken for now it would make all that follows late."""
        from pyspark.sql import functions as F

        if self.timestamp is None or self.clock == PROCESSING:
            return F.col(CORRUPT)
        row = F.to_json(F.struct(*(F.col(f"`{name}`") for name in self.inner.fields)), {"ignoreNullFields": "false"})
        untimed = F.when(at.isNull(), F.concat(F.lit(WITHOUT_TIME), row))
        return F.coalesce(F.col(CORRUPT), untimed).alias(CORRUPT)

    def _order(self, files: frozenset[str]) -> Column:
        """The place of a row: the number of its file among the batch's, by name, then its place there."""
        from pyspark.sql import functions as F

        place = F.lpad(F.hex(F.monotonically_increasing_id()), 14, "0")
        if len(files) < 2:
            return F.concat(F.lit(f"{self.number:03d}.000000"), place)
        names = F.array(*(F.lit(file) for file in sorted(files, key=_natural)))
        # The positions are paths; a row's own file is an address, which may be encoded.
        own = F.regexp_replace(F.url_decode(F.replace(F.col(FILE), F.lit("+"), F.lit("%2B"))), "^file:/+", "/")
        file = F.coalesce(F.array_position(names, own), F.lit(0)).cast("string")
        return F.concat(F.lit(f"{self.number:03d}."), F.lpad(file, 6, "0"), place)


class ChannelSource:
    """Events that other queries of the flow have committed into channels, with their words about the clock.

    Args:
        edges: the channels.
        schema: DDL of the events' fields, the union of the edges'; None: as the one channel's table has them.
        names: the fields, where there is no schema.
        commits_a_batch: at most so many commits of a channel a batch; None: as many as one batch can hold.
        ticks: whether the clock goes on while nothing comes: a stream then hears the time every second.
    """

    max_parallelism: int | None = None
    sliceable = False
    transactional = True
    tells_time = True
    """Some rows are words about the clock."""

    def __init__(
        self,
        edges: Sequence[Edge],
        schema: str | None,
        *,
        names: Sequence[str] = (),
        commits_a_batch: int | None = None,
        ticks: bool = False,
    ) -> None:
        self.edges, self._names, self._commits_a_batch = tuple(edges), tuple(names), commits_a_batch
        self._ticks = ticks
        self._columns = parse_ddl(schema) if schema else ()
        self.schema = "" if schema is None else f"{schema}, {events.DDL}" if schema else events.DDL
        self._paths: dict[str, Path] = {}
        self._start: Start | None = None
        self._checkpoint: Path | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return (*(self._names or (name for name, _ in self._columns)), *events.COLUMNS)

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(edge.channel for edge in self.edges)

    def __repr__(self) -> str:
        return f"channels {', '.join(self.channels)}"

    def locate(self, paths: dict[str, Path]) -> None:
        """Where the channels' tables are."""
        self._paths = paths

    def start_at(self, start: Start | None, checkpoint: Path | None = None) -> None:
        """Have the stream leave out what was done before its checkpoint began, and go on where that stands.

        Args:
            checkpoint: Spark's own.
        """
        self._start, self._checkpoint = start, checkpoint

    def prepare(self, name: str, spool: Path) -> None:
        """Nothing to make ready."""

    def check(self, name: str, spark: SparkSession) -> None:
        """The channels are there.

        Raises:
            MissingPathError
        """
        for channel in self.channels:
            if not DeltaTable.is_deltatable(str(self._paths[channel])):
                raise MissingPathError(name, str(self._paths[channel]))

    def stream(self, spark: SparkSession) -> DataFrame:
        frames = [self._not_done(channel, self._commits(spark, channel)) for channel in self.channels]
        found = self._union(frames)
        return found.unionByName(self._every_second(spark), allowMissingColumns=True) if self._ticks else found

    def _commits(self, spark: SparkSession, channel: str) -> DataFrame:
        """The rows of a channel; a batch of them is whole commits, one after the other."""
        path, limits = self._paths[channel], {"maxFilesPerTrigger": str(self._commits_a_batch or FILES_A_BATCH)}
        if not self._commits_a_batch:
            limits["maxBytesPerTrigger"] = BYTES_A_BATCH
        table_id = str(DeltaTable(str(path)).metadata().id)
        offset = last_offset(self._checkpoint, table_id) if self._checkpoint else None
        # What rewrites a channel (retention deletes what all readers have taken) is not news to its readers.
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        return reader.options(**options(path, offset, limits)).load(str(path))

    def _every_second(self, spark: SparkSession) -> DataFrame:
        """Words about the clock by the clock on the wall, for each channel."""
        from pyspark.sql import functions as F

        ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        channels = F.explode(F.array(*(F.lit(channel) for channel in self.channels)))
        return ticks.select(F.unix_millis("timestamp").alias(events.CLOCK), channels.alias(events.FROM))

    def _not_done(self, channel: str, frame: DataFrame) -> DataFrame:
        """The rows that a fresh checkpoint takes: words about the clock and the events that are not done."""
        from pyspark.sql import functions as F

        if self._start is None or channel not in self._start.channels:
            return frame
        left = F.col(events.ID).isNull() | (F.col("_txid") > F.lit(self._start.channels[channel]))
        if self._start.clock is not None:
            left |= F.col(events.CLOCK) > F.lit(self._start.clock)
        return frame.where(left)

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        return self._union([spark.read.format("delta").load(str(self._paths[c])) for c in self.channels]), frozenset()

    def of_batch(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        return frame

    def positions(self, checkpoint: Path, first: int, last: int, index: int = 0) -> frozenset[str]:
        return frozenset()

    def _union(self, frames: Sequence[DataFrame]) -> DataFrame:
        parts = [self._part(edge, frame) for edge, frame in zip(self.edges, frames, strict=True)]
        from pyspark.sql import DataFrame

        return reduce(DataFrame.unionByName, parts)

    def _part(self, edge: Edge, frame: DataFrame) -> DataFrame:
        """Words about the clock say for their origin the channel: of two from one stream each has a word of its own."""
        from pyspark.sql import functions as F

        shown = [
            (F.col(f"`{name}`") if name in dict(edge.types) else F.lit(None)).cast(kind).alias(name)
            for name, kind in self._columns
        ] or [F.col(f"`{name}`") for name in self._names]
        origin = F.when(F.col(events.ID).isNull(), F.lit(edge.channel)).otherwise(F.lit(edge.origin))
        order = F.col(events.ORDER)
        if edge.numbered:
            batch = F.lpad(F.hex(F.greatest(F.col("_txid"), F.lit(0))), 8, "0")
            order = F.concat(order.substr(1, 4), batch, order.substr(F.lit(5), F.length(order)))
        own = [F.col(events.ID), F.col(events.TIME), F.col(events.CLOCK), origin.alias(events.FROM)]
        position = [F.lit(None).cast("string").alias(CORRUPT), F.lit(None).cast("string").alias(FILE)]
        return frame.select(*shown, *own, order.alias(events.ORDER), *position)


def milliseconds(frame: DataFrame, expression: str) -> Column:
    """An expression over a frame as bigint ms: numbers as they are, times and dates (UTC) converted."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    found = F.expr(spark_sql("timestamp", expression))
    kind = frame.select(found).schema.fields[0].dataType
    if isinstance(kind, DateType | TimestampNTZType | TimestampType):
        return F.unix_millis(found.cast("timestamp"))
    return found.cast("bigint")


def _natural(name: str) -> tuple[Any, ...]:
    """File names in the order of people: `part-9` before `part-10`."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))
