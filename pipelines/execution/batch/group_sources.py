"""Read the sources of a batch group as one Spark query, so that their batches share a txid (rules 3.6, 8).

A group of one source is that source's own stream. Several are one stream of tagged rows: `_source int`, then a struct of
each source's fields (null but for the row's own), `_corrupt` and `_file`; `frames` takes them apart again. The rows of a batch
before the windows of its query are read again for quarantine. A row's slice is the name of a folder in every table that keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipelines.execution.checkpoint.engine_files import Checkpoint
from pipelines.execution.protocol.groups import group_name
from pipelines.graph import events, nodes
from pipelines.graph.expressions import spark_sql
from pipelines.places.location import Place
from pipelines.planner.compile import Compiler
from pipelines.planner.windows import StreamContext
from pipelines.sources.base import CORRUPT, FILE, Source, marked
from pipelines.sources.events import EventSource
from pipelines.state.schema import LONGEST_SLICE, NO_SLICE, RESERVED, SLICE_COLUMN, struct_of

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from pipelines.errors import TrideltaError
    from pipelines.graph.lineage_names import Dataset
    from pipelines.sources.channels import Start
    from pipelines.state.lake import Lake

SOURCE = "_source"

Frames = dict[int, DataFrame]
"""By spout node the rows of its source: its fields, `_corrupt string`, `_file string`."""


class GroupSources:
    """The sources of one batch group, in the order of their definition (which is that of Spark's offset log).

    Args:
        spouts: the group's spout nodes, at least one.

    Attributes:
        prelude: what the part of the plan that runs in the stream itself reported when `stream` made it.
    """

    def __init__(self, spouts: tuple[nodes.SpoutNode, ...]) -> None:
        self.spouts = spouts
        self._sources: dict[int, Any] = {spout.id: spout.source for spout in spouts}
        """By spout its source as this group reads it; the spout's own is of the topology, which may run on other lakes."""
        self._schemas: dict[int, StructType] = {}
        self._slices: dict[str, Column] = {}
        self._corrupt: dict[int, Column | None] = {}
        self.prelude = StreamContext()

    @property
    def sliced(self) -> bool:
        """Return whether the rows have slices; of several spouts all have, or none."""
        return self.spouts[0].slice_by is not None

    @property
    def kept(self) -> bool:
        """Return whether a batch must be computed once and kept.

        Several parts read it, or windows have moved on behind it, or the source gives other rows when it is read again.
        """
        opaque = any(not spout.source.transactional for spout in self.spouts)
        return opaque or len(self.spouts) > 1 or bool(self.channels)

    @property
    def rejected(self) -> str:
        """Return whether the plan cannot take a row, as SQL over what `with_slice` gives."""
        no_slice = f" OR {SLICE_COLUMN} = '{NO_SLICE}'" if self.sliced else ""
        return f"({CORRUPT} IS NOT NULL{no_slice})"

    @property
    def channels(self) -> tuple[nodes.ChannelSpoutNode, ...]:
        """Return the spouts that read channels of the flow."""
        return tuple(spout for spout in self.spouts if isinstance(spout, nodes.ChannelSpoutNode))

    @property
    def has_windows(self) -> bool:
        """Return whether windows run in the stream itself: then each batch, also one that is left out, must run to its end."""
        return any(isinstance(node, nodes.WindowNode) for spout in self.channels for node in spout.steps)

    def with_slice(self, spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
        """Return a source's rows with `_slice`, `?` for those without one; of a flow without slices without it.

        A row with a date or time that is too far is marked in `_corrupt`.
        """
        source = self._marked(spout, source)
        if spout.slice_by is None:
            return source
        if spout.slice_by not in self._slices:
            # Some forty calls of the JVM, and the same in each batch.
            value = said(spout.slice_by)
            slice_ = F.when(F.col(CORRUPT).isNull() & is_legal(value), value)
            self._slices[spout.slice_by] = F.coalesce(slice_, F.lit(NO_SLICE))
        return source.withColumn(SLICE_COLUMN, self._slices[spout.slice_by])

    def _marked(self, spout: nodes.SpoutNode, source: DataFrame) -> DataFrame:
        """Mark rows that no state could hold; what comes from a channel has been looked at when it came in."""
        if spout.id not in self._corrupt:
            plain = isinstance(spout, nodes.ChannelSpoutNode)
            self._corrupt[spout.id] = None if plain else marked(self.schema(spout))
        corrupt = self._corrupt[spout.id]
        return source if corrupt is None else source.withColumn(CORRUPT, corrupt)

    def prepare(self, spark: SparkSession, lake: Lake, flow: str) -> None:
        """Make each source ready and refuse what cannot be read."""
        self._spark = spark
        begun = Checkpoint(flow, lake.checkpoint_path(flow, group_name(self.spouts))).last_batch() >= 0
        for spout in self.spouts:
            source = spout.source.prepare(spout.stream, lake.root / "spool" / flow / spout.stream)
            if isinstance(spout, nodes.ChannelSpoutNode):
                source = source.locate({name: lake.channel_path(name) for name in spout.reads})
            self._sources[spout.id] = source
            source.check(spout.stream, spark)
            source.check_first(spout.stream, begun=begun)

    def start_at(self, start: Start | None, checkpoint: Place) -> None:
        """Set where the stream of a checkpoint reads its channels on from.

        Args:
            start: if it took the place of another one.
            checkpoint: Spark's own.
        """
        for channel in self.channels:
            self._sources[channel.id] = self._sources[channel.id].start_at(start, checkpoint)

    def check_same(self, checkpoint: Place) -> None:
        """Refuse to go on with a source whose positions mean other rows by now.

        Args:
            checkpoint: Spark's own.
        """
        for index, spout in enumerate(self.spouts):
            self._sources[spout.id].check_same(spout.stream, self._spark, checkpoint, index)

    def schema(self, spout: nodes.SpoutNode) -> StructType:
        if not isinstance(spout, nodes.ChannelSpoutNode):
            return struct_of(spout.source.schema)
        if spout.schema:
            return struct_of(spout.schema)
        if spout.id not in self._schemas:
            # Only the channel's table knows the types of its fields, and so only Spark those of the results.
            frame, _ = self._sources[spout.id].bounded(self._spark)
            fields = self._read(spout, frame).schema.fields
            self._schemas[spout.id] = StructType([field for field in fields if field.name not in (CORRUPT, FILE)])
        return self._schemas[spout.id]

    def hashed(self, spout: nodes.SpoutNode) -> StructType:
        """Return what of a row is hashed: its fields, and of an event its id. The rest is derived."""
        left_out = set(events.COLUMNS) - ({events.ID} if spout in self.channels else set())
        return StructType([field for field in self.schema(spout).fields if field.name not in left_out])

    def stream(self, spark: SparkSession, left_out: frozenset[int] = frozenset()) -> DataFrame:
        """Return the one streaming frame of the group's query.

        Args:
            left_out: batches (Spark's ids) whose rows do not go into the windows.
        """
        frames = [self._read(spout, self._begun(spout, spark, left_out)) for spout in self.spouts]
        if len(frames) == 1:
            return frames[0]
        return reduce(DataFrame.unionByName, (self._tagged(number, frame) for number, frame in enumerate(frames)))

    def _begun(self, spout: nodes.SpoutNode, spark: SparkSession, left_out: frozenset[int]) -> DataFrame:
        """Return a source's own streaming frame, of which windows may be made."""
        frame: DataFrame = self._sources[spout.id].stream(spark)
        return without_batches(named(frame, spout.id), left_out) if self.has_windows else frame

    def before_windows(self, spark: SparkSession) -> Frames:
        """Return per spout the rows of the running batch before the windows, rows about the watermark left out.

        Args:
            spark: the session that the query was started in.
        """
        frames = rows_before_windows(spark, [spout.id for spout in self.spouts])
        return {
            id_: frame.where(F.col(events.ID).isNotNull()) if events.ID in frame.columns else frame
            for id_, frame in frames.items()
        }

    def _read(self, spout: nodes.SpoutNode, frame: DataFrame) -> DataFrame:
        """Return a source's frame, of channels behind the operations that run in the stream itself."""
        if not isinstance(spout, nodes.ChannelSpoutNode) or spout.prelude is None:
            return frame
        first, *_, last = spout.prelude
        compiler = Compiler(spout.prelude, (last.id,), self.prelude, {first.id: frame.drop(CORRUPT, FILE)})
        nothing = F.lit(None).cast("string")
        return compiler.frames()[last.id].select("*", nothing.alias(CORRUPT), nothing.alias(FILE))

    def _tagged(self, number: int, frame: DataFrame) -> DataFrame:
        structs = []
        for other, spout in enumerate(self.spouts):
            own = F.struct(*(F.col(f"`{name}`") for name in spout.fields))
            kind = self.schema(spout)
            structs.append((own if other == number else F.lit(None)).cast(kind).alias(f"_source{other}"))
        return frame.select(F.lit(number).alias(SOURCE), *structs, CORRUPT, FILE)

    def frames(self, batch: DataFrame, files: Sequence[frozenset[str]], txid: int) -> Frames:
        """Return a stream's batch by spout, watermark rows included. One that is `kept` should be kept first.

        Args:
            files: what each source took (`positions_by_source`): two may read one folder.
        """
        if len(self.spouts) == 1:
            only = self.spouts[0]
            return {only.id: _of_batch(self._sources[only.id], batch, files[0], txid)}
        frames = {}
        for number, spout in enumerate(self.spouts):
            own = [F.col(f"_source{number}.`{name}`").alias(name) for name in spout.fields]
            rows = batch.where(F.col(SOURCE) == number).select(*own, CORRUPT, FILE)
            frames[spout.id] = _of_batch(self._sources[spout.id], rows, files[number], txid)
        return frames

    def bounded(self, spark: SparkSession) -> tuple[Frames, frozenset[str]]:
        """Return all that the sources hold now, by spout, and its positions. Watermark rows are included."""
        frames, positions = {}, frozenset[str]()
        for spout in self.spouts:
            frame, own = self._sources[spout.id].bounded(spark)
            frames[spout.id] = self._read(spout, frame)
            positions |= own
        return frames, positions

    def clocks(self, frames: Mapping[int, DataFrame]) -> dict[str, int]:
        """Return how far the clocks of the channels' origins have come, by the words in these frames."""
        clocks: dict[str, int] = {}
        for spout in self.spouts:
            if not self._sources[spout.id].tells_time:
                continue
            words = frames[spout.id].where(F.col(events.ID).isNull())
            for row in words.groupBy(events.FROM).agg(F.max(events.CLOCK).alias("clock")).collect():
                clocks[row[events.FROM]] = max(row["clock"], clocks.get(row[events.FROM], row["clock"]))
        return clocks

    def events(self, frames: Frames) -> Frames:
        """Return the frames without watermark rows."""
        own = {spout.id for spout in self.spouts if events.ID in spout.fields}
        return {
            id_: frame.where(F.col(events.ID).isNotNull()) if id_ in own else frame for id_, frame in frames.items()
        }

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the inputs whose watermarks decide how far the group is."""
        origins: list[str] = []
        for spout in self.spouts:
            origins += spout.origins if isinstance(spout, nodes.ChannelSpoutNode) else [spout.stream]
        return tuple(origins)

    def positions(self, checkpoint: Place, first: int, last: int) -> frozenset[str]:
        """Return the positions (as `file_key`) that the stream's batches `first..last` (Spark's ids) took."""
        return frozenset().union(*self.positions_by_source(checkpoint, first, last))

    def positions_by_source(self, checkpoint: Place, first: int, last: int) -> list[frozenset[str]]:
        """Return `positions` of each spout's source."""
        sources = [self._sources[spout.id] for spout in self.spouts]
        return [source.positions(checkpoint, first, last, n) for n, source in enumerate(sources)]

    def lack(self, taken: Sequence[frozenset[str]]) -> bool:
        """Return whether files are gone that a batch took, so that it comes without their rows.

        Args:
            taken: of the batch what `positions_by_source` returns; nothing: it is not known.
        """
        return any(
            self._sources[spout.id].inner.absent(files) for spout, files in zip(self.spouts, taken, strict=False)
        )

    def datasets(self) -> dict[str, tuple[Dataset, ...]]:
        """Return what each spout's source reads, by its stream, in OpenLineage's names; a group on channels has none."""
        return {spout.stream: self._sources[spout.id].datasets() for spout in self.spouts}

    def fault(self, error: BaseException) -> TrideltaError | None:
        """Return what an error of Spark's says about one of the sources; None if it says nothing."""
        for spout in self.spouts:
            fault: TrideltaError | None = self._sources[spout.id].fault(spout.stream, error)
            if fault is not None:
                return fault
        return None

    def __repr__(self) -> str:
        return ", ".join(repr(self._sources[spout.id]) for spout in self.spouts)


def _of_batch(source: Source, frame: DataFrame, files: frozenset[str], txid: int) -> DataFrame:
    if isinstance(source, EventSource):
        return source.events_of_batch(frame, files, txid)
    return source.of_batch(frame, files)


def clock_of(clocks: Mapping[str, int], origins: Iterable[str]) -> int | None:
    """Return the watermark of what waits for all inputs; None as long as one input has none."""
    marks = [clocks.get(origin) for origin in origins]
    return None if not marks or None in marks else min(mark for mark in marks if mark is not None)


_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets for the jobs of a stream's batch."""


def named(frame: DataFrame, spout: int) -> DataFrame:
    """Return a source's streaming frame under a name by which `rows_before_windows` finds it in the plan of a batch."""
    return frame.alias(_name(spout))


def without_batches(frame: DataFrame, left_out: frozenset[int]) -> DataFrame:
    """Return a source's streaming frame without the rows of some batches (Spark's ids).

    A batch that is left out is known when the query starts, and the workers ask which batch they work for: so a batch that
    is replayed after a crash is left out again.
    """
    if not left_out:
        return frame

    # Not a function with type hints, from which Spark would infer another kind of UDF. Workers have a task, and it a batch.
    wanted = F.udf(lambda _: int(TaskContext.get().getLocalProperty(_BATCH)) not in left_out, "boolean")  # type: ignore[union-attr,arg-type]
    return frame.where(wanted.asNondeterministic()(F.lit(True)))


def rows_before_windows(spark: SparkSession, spouts: Iterable[int]) -> dict[int, DataFrame]:
    """Return the rows of the batch that this thread works on, as its sources gave them. To be called in `foreachBatch`.

    The frame that Spark gives to `foreachBatch` is what the windows made. What went into them is in the plan of the batch,
    below the names that `named` has put there.

    Args:
        spark: the session that the query was started in.
        spouts: ids of the spouts whose frames are `named`.

    Raises:
        LookupError: the plan does not have them.
    """
    query = spark.streams.get(spark.sparkContext.getLocalProperty(_QUERY) or "")
    assert query is not None
    execution = query._jsq.streamingQuery().lastExecution()
    plans = {plan.alias(): plan for plan in _named_parts(execution.analyzed())}
    # The batch's own plan says of its source that it streams, which a query of its own must not say.
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
    jvm: Any = spark._jvm
    make = jvm.org.apache.spark.sql.classic.Dataset.ofRows
    return {spout: DataFrame(make(session._jsparkSession, plans[_name(spout)]), session) for spout in spouts}


def _name(spout: int) -> str:
    return f"before_windows_{spout}"


def _named_parts(plan: Any) -> Iterator[Any]:
    """Yield the parts of a plan of Spark's (a JVM object) that have a name."""
    if plan.nodeName() == "SubqueryAlias" and plan.alias().startswith(_name(0)[:-1]):
        yield plan
        return
    children = plan.children().iterator()
    while children.hasNext():
        yield from _named_parts(children.next())


# What stays as it is in a folder's name (`slice_problem` says the same of one value).
_PLAIN = "[^A-Za-z0-9_.~-]"


def said(slice_by: str) -> Column:
    """Return what a row says for its slice."""
    return F.expr(spark_sql("slice_by", slice_by)).cast("string")


def is_legal(value: Column) -> Column:
    """Return whether a text can be a slice: the same rule as `slice_problem`, and it is text at all (UTF-8). Null for null."""
    size = F.octet_length(value)
    # The letters of a long value are counted only there: it is rare.
    encoded = F.when(size * 3 <= LONGEST_SLICE, F.lit(0)).otherwise(
        size * 3 - F.length(F.regexp_replace(value, _PLAIN, "")) * 2
    )
    return (
        ~value.isin(*RESERVED) & F.is_valid_utf8(value) & ~F.contains(value, F.lit("\0")) & (encoded <= LONGEST_SLICE)
    )
