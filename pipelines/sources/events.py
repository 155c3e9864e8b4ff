"""Events from a source."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Self

from pipelines.errors import BadNameError
from pipelines.graph import events
from pipelines.graph.expressions import fields_of_sql, spark_sql
from pipelines.graph.lineage_names import Dataset
from pipelines.places.location import Place
from pipelines.sources.base import CORRUPT, FILE, Source, file_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pipelines.errors import TrideltaError

PROCESSING = "processing"
_BATCH = "_batch"
"""string: the batch of a row whose position may be of several."""
WITHOUT_TIME = "\x00time"
"""What `_corrupt` begins with where a record is well formed and says no time."""


class EventSource(Source):
    """A source whose rows are events: it adds the event's columns (`pipelines.graph.events`) to the source's own.

    Args:
        inner: any source.
        stream: the stream's name, where the events come from.
        number: the stream's place in its flow: events of one clock come in the order of the streams.
        id: SQL over the source's fields that gives an event's id; None: made from the row's place in the source, the same
            in a replay on as many cores.
        timestamp: SQL that gives the event's time: bigint milliseconds, or a timestamp or date; None: its arrival.
        clock: `"event"` or `"processing"`.
    """

    def __init__(
        self,
        inner: Source,
        stream: str,
        number: int = 0,
        *,
        id: str | None = None,
        timestamp: str | None = None,
        clock: str = "event",
    ) -> None:
        self.number = number
        self._inner, self.stream_name, self.id, self.timestamp, self.clock = inner, stream, id, timestamp, clock
        for name in inner.fields:
            if name in events.COLUMNS:
                raise BadNameError("field", name, "is the engine's")
        self.schema = f"{inner.schema}, {events.DDL}"
        self.max_parallelism, self.sliceable = inner.max_parallelism, inner.sliceable
        self._kept: list[Column | str] | None = None

    @property
    def inner(self) -> Source:
        return self._inner

    @property
    def transactional(self) -> bool:
        return self._inner.transactional

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.inner.fields, *events.COLUMNS)

    @property
    def lineage(self) -> dict[str, tuple[str, ...]]:
        """Return the fields from which the event's columns come; none for what the engine makes."""
        at = fields_of_sql("timestamp", self.timestamp) if self.timestamp else ()
        own = fields_of_sql("id", self.id) if self.id else ()
        clock = () if self.clock == PROCESSING else at
        return {events.ID: own, events.TIME: at, events.CLOCK: clock, events.FROM: (), events.ORDER: ()}

    def __repr__(self) -> str:
        return repr(self.inner)

    def prepare(self, name: str, spool: Place) -> Self:
        own = super().prepare(name, spool)
        own._inner, own._kept = self.inner.prepare(name, spool), None
        return own

    def check(self, name: str, spark: SparkSession) -> None:
        self.inner.check(name, spark)

    def check_first(self, name: str, *, begun: bool = False) -> None:
        self.inner.check_first(name, begun=begun)

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the source's own frame; `events_of_batch` adds the event's columns, one of which no stream may compute."""
        return self.inner.stream(spark)

    def bounded(self, spark: SparkSession) -> tuple[DataFrame, frozenset[str]]:
        frame, positions = self.inner.bounded(spark)
        return self._with_events(frame, frozenset(file_key(position) for position in positions)), positions

    def events_of_batch(self, frame: DataFrame, files: frozenset[str], txid: int) -> DataFrame:
        """Return `of_batch` with the event's columns.

        Args:
            txid: the batch's, the same in every replay.
        """
        from pyspark.sql import functions as F

        rows = self.inner.of_batch(frame, files)
        if not self.sliceable:
            # Batches begin again with the numbers of the rows of a position. As a text: a number would be compiled in each batch.
            rows = rows.withColumn(_BATCH, F.lit(str(txid)))
        return self._with_events(rows, files)

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        return self.inner.positions(checkpoint, first, last, index)

    def datasets(self) -> tuple[Dataset, ...]:
        return self.inner.datasets()

    def check_same(self, name: str, spark: SparkSession, checkpoint: Place, index: int) -> None:
        self.inner.check_same(name, spark, checkpoint, index)

    def fault(self, name: str, error: BaseException) -> TrideltaError | None:
        return self.inner.fault(name, error)

    def _with_events(self, frame: DataFrame, files: frozenset[str]) -> DataFrame:
        if self.timestamp is None or self.clock == PROCESSING or len(files) > 1:
            return frame.select(*self._event_columns(frame, files))
        # Some hundred calls of the JVM, and the same columns in each batch of one file.
        if self._kept is None:
            self._kept = self._event_columns(frame, files)
        return frame.select(*self._kept)

    def _event_columns(self, frame: DataFrame, files: frozenset[str]) -> list[Column | str]:
        from pyspark.sql import functions as F

        now = F.lit(int(time.time() * 1000)).cast("bigint")
        order = self._order(files)
        given = F.expr(spark_sql("id", self.id)).cast("string") if self.id else F.lit(None).cast("string")
        place = (FILE, order, _BATCH) if _BATCH in frame.columns else (FILE, order)
        made = F.concat(F.lit(f"{self.stream_name}-"), F.hex(F.xxhash64(*place)))
        at = self._time(milliseconds(frame, self.timestamp)) if self.timestamp else now
        # By the clock of its events a row without a time is rejected. The time of a batch in its plan would be compiled again.
        own = {
            events.ID: F.coalesce(given, made),
            events.TIME: F.coalesce(at, now) if self.clock == PROCESSING else at,
            events.CLOCK: now if self.clock == PROCESSING else at,
            events.FROM: F.lit(self.stream_name),
            events.ORDER: order,
        }
        shown = [column.alias(name) for name, column in own.items()]
        return [*(f"`{name}`" for name in self.inner.fields), *shown, self._rejected(at), FILE]

    @staticmethod
    def _time(at: Column) -> Column:
        """Return a time that an event can have; null for another."""
        from pyspark.sql import functions as F

        return F.when((at >= F.lit(events.EARLIEST)) & (at < F.lit(events.BEYOND)), at)

    def _rejected(self, at: Column) -> Column:
        """Return `_corrupt`, also of a row without a time: taken for now it would make all that follows late."""
        from pyspark.sql import functions as F

        if self.timestamp is None or self.clock == PROCESSING:
            return F.col(CORRUPT)
        row = F.to_json(F.struct(*(F.col(f"`{name}`") for name in self.inner.fields)), {"ignoreNullFields": "false"})
        untimed = F.when(at.isNull(), F.concat(F.lit(WITHOUT_TIME), row))
        return F.coalesce(F.col(CORRUPT), untimed).alias(CORRUPT)

    def _order(self, files: frozenset[str]) -> Column:
        """Return the place of a row: the number of its file (`file_number`; else in the batch, by name), then its place there."""
        from pyspark.sql import functions as F

        place = F.lpad(F.hex(F.monotonically_increasing_id()), 14, "0")
        number = self.inner.file_number()
        if number is not None:
            # Hexadecimal: six digits are enough for sixteen million, and sort as their numbers do.
            number = F.hex(F.coalesce(number, F.lit(0)))
            return F.concat(F.lit(f"{self.number:03d}."), F.lpad(number, 6, "0"), place)
        if len(files) < 2:
            return F.concat(F.lit(f"{self.number:03d}.000000"), place)
        names = F.array(*(F.lit(file) for file in sorted(files, key=_natural)))
        # The positions are paths; a row's own file is an address, which may be encoded.
        own = F.regexp_replace(F.url_decode(F.replace(F.col(FILE), F.lit("+"), F.lit("%2B"))), "^file:/+", "/")
        file = F.coalesce(F.array_position(names, own), F.lit(0)).cast("string")
        return F.concat(F.lit(f"{self.number:03d}."), F.lpad(file, 6, "0"), place)


def milliseconds(frame: DataFrame, expression: str) -> Column:
    """Return an expression over a frame as bigint ms: numbers as they are, times and dates (UTC) converted.

    A value that is no such number (a double of 1e30, a text) is a time before all events; null stays null.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    value = F.expr(spark_sql("timestamp", expression))
    kind = frame.select(value).schema.fields[0].dataType
    if isinstance(kind, DateType | TimestampNTZType | TimestampType):
        return F.unix_millis(value.cast("timestamp"))
    return F.coalesce(value.try_cast("bigint"), F.when(value.isNotNull(), F.lit(events.EARLIEST - 1)))


def _natural(name: str) -> tuple[Any, ...]:
    """Return file names in the order of people: `part-9` before `part-10`."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))
