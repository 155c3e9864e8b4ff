"""Another number of state partitions for one streaming query, offline (docs/architecture.md#maintenance; docs/adr/0018).

The caller has drained the query and holds `checkpoint.running`. Spark's part of the checkpoint is copied, Spark deals the state
out again as a batch of its own (its id, and so a txid, is left out), and the state is read before and after. On any difference
or error the copy comes back. Cut off at any point, `recover` finishes it or brings the copy back.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines import logs
from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint import copy as copying
from pipelines.execution.checkpoint.belonging import Belonging, lake_of
from pipelines.execution.checkpoint.copy import Marker, Recovered, recover
from pipelines.execution.checkpoint.engine_files import MARKER, Checkpoint
from pipelines.execution.report import Report
from pipelines.places.lease import LeaseLostError
from pipelines.places.location import Location, Place
from pipelines.sources.offsets import offset_lines

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

PARTITION = "partition_id"


@dataclass(frozen=True)
class Digest:
    """One state variable.

    Attributes:
        rows: entries.
        xor: of the rows' hashes over key and value; `sum` of the same: together they tell two equal rows from none.
        misplaced: rows that lie in a partition where Spark will not look for their key.
        largest: rows of the fullest partition.
    """

    rows: int
    xor: int
    sum: int
    misplaced: int
    largest: int

    def same_as(self, other: Digest) -> bool:
        """Return whether both hold the same rows, wherever they lie."""
        return (self.rows, self.xor, self.sum) == (other.rows, other.xor, other.sum)


@dataclass(frozen=True)
class StateDigest:
    """The state of a query at its last finished batch.

    Attributes:
        partitions: as the state's own metadata has it.
        variables: by `<operator>/<store>/<variable>`.
    """

    partitions: int
    variables: Mapping[str, Digest]

    @property
    def rows(self) -> dict[str, int]:
        return {name: digest.rows for name, digest in self.variables.items()}

    def difference(self, other: StateDigest) -> str | None:
        """Return how a later digest differs, in a sentence; None: it holds the same."""
        if set(self.variables) != set(other.variables):
            lost = set(self.variables) ^ set(other.variables)
            return f"state variables are not the same ones: {', '.join(sorted(lost))}"
        for name, before in self.variables.items():
            after = other.variables[name]
            if not before.same_as(after):
                return f"{name}: {before.rows} rows before, {after.rows} after" + (
                    " with other contents" if before.rows == after.rows else ""
                )
            if after.misplaced:
                return f"{name}: {after.misplaced} of {after.rows} rows lie where Spark will not look for them"
        return None


def state_digest(spark: SparkSession, checkpoint: Place) -> StateDigest:
    """Read all state of a checkpoint (Spark's folder of it) at its last finished batch, in one job."""
    # Spark registers what coordinates its state stores with the first look at the session's streams, and not before.
    spark._jsparkSession.streams()
    stores = spark.read.format("state-metadata").load(str(checkpoint)).collect()
    partitions = max((store["numPartitions"] for store in stores), default=0)
    parts = [
        _digested(name, frame, store["numPartitions"])
        for store in stores
        for name, frame in _variables(spark, checkpoint, store)
    ]
    if not parts:
        return StateDigest(partitions, {})
    rows = reduce(DataFrame.unionByName, parts).collect()
    return StateDigest(
        partitions,
        {
            row["name"]: Digest(row["n"], row["x"] or 0, int(row["s"] or 0), row["misplaced"] or 0, row["largest"] or 0)
            for row in rows
        },
    )


def _variables(spark: SparkSession, checkpoint: Place, store: Row) -> Iterator[tuple[str, DataFrame]]:
    """Yield each column family of a state store, as the processor declared it; a store of another operation is one."""
    place = f"{store['operatorId']}/{store['stateStoreName']}"
    properties = json.loads(store["operatorProperties"] or "{}")
    reader = (
        spark.read.format("statestore")
        .option("operatorId", store["operatorId"])
        .option("storeName", store["stateStoreName"])
    )
    if "stateVariables" not in properties:
        yield place, reader.load(str(checkpoint))
        return
    for variable in properties["stateVariables"]:
        name = variable["stateName"]
        yield f"{place}/{name}", reader.option("stateVarName", name).load(str(checkpoint))
    if properties.get("timeMode", "NoTime") != "NoTime":
        plain = spark.read.format("statestore").option("operatorId", store["operatorId"])
        yield f"{place}/timers", plain.option("readRegisteredTimers", "true").load(str(checkpoint))


def _digested(name: str, frame: DataFrame, partitions: int) -> DataFrame:
    """Return one row of figures: hashes of the rows, first by partition."""
    contents = [column for column in frame.columns if column != PARTITION]
    hashed = F.xxhash64(*contents)
    # Keyed by Spark's own hash of the grouping columns, as its shuffle deals them; other stores have keys of their own kinds.
    keyed = name.count("/") == 2 and not name.endswith("/timers") and "key" in frame.columns
    away = F.col(PARTITION) != F.pmod(F.hash("key.*"), F.lit(partitions)) if keyed else F.lit(False)
    by_partition = frame.select(PARTITION, hashed.alias("h"), away.alias("away")).groupBy(PARTITION)
    figures = by_partition.agg(
        F.count(F.lit(1)).alias("n"),
        F.bit_xor("h").alias("x"),
        F.sum(F.col("h").cast("decimal(20,0)")).alias("s"),
        F.count_if("away").alias("misplaced"),
    )
    return figures.agg(
        F.lit(name).alias("name"),
        F.coalesce(F.sum("n"), F.lit(0)).alias("n"),
        F.bit_xor("x").alias("x"),
        F.sum("s").alias("s"),
        F.sum("misplaced").alias("misplaced"),
        F.max("n").alias("largest"),
    )


__all__ = ["Recovered", "RepartitionReport", "partitions_of", "recover", "repartition"]

logger = logs.logger(__name__)

# A compaction holds the flow's checkpoints for minutes at most.
_WAIT_SECONDS = 600.0
_CONF = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class RepartitionReport(Report):
    """The result of a repartition.

    Attributes:
        before: partitions before; None: nobody has said a number, and no batch has run.
        wanted: those asked for.
        stateful: whether there was state to be dealt out again; else the number counts from the next start on.
        batch: the batch id that Spark used for it, which is left out of the txids; None: none was.
        rows: entries by state variable.
        largest: entries of the fullest partition by state variable, afterwards.
        bytes: of the copy.
        copy: where it lies; None: there was none to make.
        seconds: by phase (`copying`, `copied` until Spark is done, `repartitioned` until it is verified, `rolling_back`).
        rolled_back: whether the checkpoint is the old one again; `reason`: why.
    """

    flow: str
    group: str
    before: int | None
    after: int | None
    wanted: int
    stateful: bool
    batch: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    copy: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    rolled_back: bool = False
    reason: str | None = None


def partitions_of(checkpoint: Checkpoint) -> int | None:
    """Return the number of partitions that a query has; None: no batch of it has run, and nobody has said one.

    A query with windows gives the number of its state's partitions, as Spark's offset log has it. A query without state runs
    with the number that was asked for last: Spark writes the first one into each later batch, and goes by the session's.
    """
    said = checkpoint.partitions
    if said is not None and not checkpoint.has_state:
        return said
    number = _of_batch(checkpoint, checkpoint.finished_batches() - 1)
    return number if number is not None else _of_batch(checkpoint, checkpoint.last_batch()) or said


def repartition(
    spark: SparkSession,
    checkpoint: Checkpoint,
    partitions: int,
    *,
    copies: Place,
    progress: Callable[[str], None] | None = None,
    wait_seconds: float = _WAIT_SECONDS,
) -> RepartitionReport:
    """Give a query another number of partitions.

    Args:
        spark: a session that does not run this query.
        checkpoint: of the query, which is drained; the caller holds `checkpoint.running`.
        partitions: how many; of a query with windows at most as many as windows have buckets.
        copies: the folder of copies; this one is `<copies>/<flow>/<group>/<time>`, and stays there.
        progress: called with the name of each phase that begins.
        wait_seconds: how long to wait for a compaction or a backfill that holds the flow.

    Returns:
        The report. An error or a difference on the way is in it: `rolled_back` and `reason`.

    Raises:
        RepartitionRefusedError: the number cannot be; nothing was changed.
        UnfinishedBatchError: a batch was begun and is not finished; nothing was changed.
        CopyError: the checkpoint is half-made and its copy is damaged; the query must not start.
        LockedError: a compaction or a backfill holds the flow for too long; nothing was changed.
        LeaseLostError: another process may run the query; the checkpoint is its own.
    """
    _check_held(checkpoint)
    recover(checkpoint, copies)
    Belonging(checkpoint, lake_of(checkpoint)).check()
    _check_number(checkpoint, partitions)
    work = _Repartitioning(spark, checkpoint, partitions, copies, progress or (lambda phase: None))
    if not checkpoint.has_state or partitions_of(checkpoint) == partitions:
        return work.only_said()
    begun = _begun(checkpoint)
    if begun is not None:
        raise UnfinishedBatchError(checkpoint.flow, checkpoint.folder.name, partitions, begun)
    with checkpoint.rewriting(wait_seconds):
        return work.run()


class _Repartitioning:
    """One change of a number."""

    def __init__(
        self, spark: SparkSession, checkpoint: Checkpoint, partitions: int, copies: Place, tell: Callable[[str], None]
    ) -> None:
        self._spark, self._checkpoint, self._wanted, self._tell = spark, checkpoint, partitions, tell
        self._group = checkpoint.folder.name
        copies = copies if isinstance(copies, Location) else copies.absolute()
        self._folder = copies / checkpoint.flow / self._group / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        self._before = partitions_of(checkpoint)
        self._seconds: dict[str, float] = {}

    def only_said(self) -> RepartitionReport:
        """Set the number, where there is nothing to deal out: the next start takes it."""
        self._checkpoint.set_partitions(self._wanted)
        return self._report(self._wanted, stateful=self._checkpoint.has_state)

    def run(self) -> RepartitionReport:
        marker, figures, size = self._copied()
        try:
            marker = marker.at(copying.COPIED, self._checkpoint)
            batch = self._repartitioned()
            marker = marker.at(copying.REPARTITIONED, self._checkpoint)
            after = self._verified(figures)
            marker.at(copying.VERIFIED, self._checkpoint)
            self._tell(copying.VERIFIED)
        except LeaseLostError:
            # Nothing here is this run's any more: who has it now has rolled it back.
            raise
        except Exception as error:
            return self._rolled_back(_reason(error), figures, size)
        self._checkpoint.set_partitions(self._wanted)
        Marker.remove(self._checkpoint)
        report = self._report(
            self._wanted,
            batch=batch,
            rows=after.rows,
            largest={name: digest.largest for name, digest in after.variables.items()},
            bytes=size,
            copy=str(self._folder),
        )
        logger.info("repartitioned", **_shown(report))
        return report

    def _copied(self) -> tuple[Marker, StateDigest, int]:
        """Make the copy, whole, and read what it holds. What goes wrong here has changed nothing."""
        assert self._before is not None  # there is state, so a batch has run
        checkpoint = self._checkpoint
        self._check_room()
        marker = Marker(copying.COPYING, str(self._folder), self._before, self._wanted).write(checkpoint)
        try:
            with self._phase(copying.COPYING):
                about = {"flow": checkpoint.flow, "group": self._group, "from": self._before, "to": self._wanted}
                size = copying.make_copy(checkpoint, self._folder, about)
                # Read from the copy: this also shows that Spark can.
                figures = state_digest(self._spark, self._folder / "spark")
                copying.check_copy(checkpoint, self._folder)
        except BaseException:
            copying.remove_tree(self._folder)
            Marker.remove(checkpoint)
            raise
        return marker, figures, size

    def _check_room(self) -> None:
        """Check the disk: the copy is as large as the checkpoint, and so is the state that Spark writes."""
        spark = self._checkpoint.spark
        if isinstance(spark, Location) or isinstance(self._folder, Location):
            return
        size = sum(path.stat().st_size for path in spark.rglob("*") if path.is_file())
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder.parent).free
        if free < 2 * size:
            problem = f"a copy of its checkpoint and the new state take {2 * size:,} bytes; the disk has {free:,} left"
            hint = f"make room on the disk of {self._folder.parent}"
            raise RepartitionRefusedError(self._checkpoint.flow, self._group, self._wanted, problem, hint)

    def _repartitioned(self) -> int:
        """Let Spark do its part. Return the batch id that it took."""
        checkpoint = self._checkpoint
        with self._phase(copying.COPIED):
            # A batch that was planned and not begun is left out with its offsets; its rows come with a later one. Spark by
            # itself cannot know that none of them is in a table: it would refuse.
            manager = self._spark._streamingCheckpointManager
            manager.repartition(str(checkpoint.spark), self._wanted, enforce_exactly_once_sink=False)
        return checkpoint.last_batch()

    def _verified(self, before: StateDigest) -> StateDigest:
        """Compare the state afterwards with the state before.

        Raises:
            TrideltaError: it is not the same.
        """
        checkpoint = self._checkpoint
        with self._phase(copying.REPARTITIONED):
            after = state_digest(self._spark, checkpoint.spark)
            problem = before.difference(after)
            if problem is None and (after.partitions, partitions_of(checkpoint)) != (self._wanted, self._wanted):
                problem = f"Spark made {after.partitions} partitions"
            if problem is not None:
                raise TrideltaError(f"the state is not the same: {problem}")
        return after

    def _rolled_back(self, reason: str, figures: StateDigest, size: int) -> RepartitionReport:
        marker = Marker.of(self._checkpoint)
        if marker is None or marker.copy != str(self._folder):
            file = str(self._checkpoint.folder / MARKER)
            raise LeaseLostError(self._checkpoint.flow, file, "another process has written or removed it")
        with self._phase(copying.ROLLING_BACK):
            copying.roll_back(self._checkpoint, marker, self._folder, reason)
        report = self._report(
            self._before, rows=figures.rows, bytes=size, copy=str(self._folder), rolled_back=True, reason=reason
        )
        logger.warning("repartition rolled back", **_shown(report), reason=reason)
        return report

    def _report(self, after: int | None, *, stateful: bool = True, **more: Any) -> RepartitionReport:
        return RepartitionReport(
            flow=self._checkpoint.flow,
            group=self._group,
            before=self._before,
            after=after,
            wanted=self._wanted,
            stateful=stateful,
            seconds={name: round(seconds, 3) for name, seconds in self._seconds.items()},
            **more,
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        self._tell(name)
        try:
            yield
        finally:
            self._seconds[name] = time.monotonic() - started


def _check_held(checkpoint: Checkpoint) -> None:
    """Refuse beside a query that may run."""
    if not checkpoint.is_running():
        raise TrideltaError(
            f'flow "{checkpoint.flow}": nobody holds the checkpoint {checkpoint.folder}',
            hint="repartition within `with checkpoint.running(seconds):`",
        )


def _check_number(checkpoint: Checkpoint, partitions: int) -> None:
    from pipelines.windows import BUCKETS

    problem = hint = ""
    if partitions < 1:
        problem = "a query has at least one partition"
    elif checkpoint.has_state and partitions > BUCKETS:
        problem = f"its windows lie in {BUCKETS} buckets, so that further partitions would be empty"
        hint = f"ask for {BUCKETS} at most"
    if problem:
        raise RepartitionRefusedError(checkpoint.flow, checkpoint.folder.name, partitions, problem, hint)


def _begun(checkpoint: Checkpoint) -> int | None:
    """Return a batch that Spark has planned and not finished, if the batch protocol knows of an attempt at it.

    An attempt is on the disk before any work on a table, so a batch without one is in no table. One that died in its windows
    before that has left state behind that no later batch reads. One whose plan is gone comes again under its number, unless a
    batch before it may have its rows and quarantine has none.
    """
    last, done, epoch = checkpoint.last_batch(), checkpoint.finished_batches(), checkpoint.epoch
    if last >= done and (done == 0 or epoch is None):
        return last  # the first batch: there is no state yet that it could be dealt from
    unmarked = [txid for txid, record in checkpoint.unmarked().items() if not record.plan_lost]
    return min(unmarked) - epoch.first_txid if epoch is not None and unmarked else None


def _of_batch(checkpoint: Checkpoint, batch: int) -> int | None:
    """Return the number of partitions in the offset log: its second line is Spark's own, as JSON."""
    lines = offset_lines(checkpoint.spark, batch)
    if len(lines) < 2 or not lines[1].startswith("{"):
        return None
    number = json.loads(lines[1]).get("conf", {}).get(_CONF)
    return None if number is None else int(number)


def _reason(error: Exception) -> str:
    """Return the first line of what went wrong, without Java's frames."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # py4j says first that an error occurred, and then which.
    causes = [line.split(": ", 1)[1] for line in lines if line.startswith(": ") and ": " in line[2:]]
    return (causes or lines or [repr(error)])[0]


def _shown(report: RepartitionReport) -> dict[str, Any]:
    shown = ("flow", "group", "before", "after", "wanted", "batch", "bytes", "seconds")
    return {name: getattr(report, name) for name in shown} | {"rows": sum(report.rows.values())}


class RepartitionRefusedError(TrideltaError):
    """The number of partitions of a query cannot become this one; nothing was changed."""

    def __init__(self, flow: str, group: str, partitions: int, problem: str, hint: str = "") -> None:
        self.flow, self.group, self.partitions, self.problem = flow, group, partitions, problem
        super().__init__(f'flow "{flow}", query "{group}": not repartitioned to {partitions}: {problem}', hint=hint)


class UnfinishedBatchError(RepartitionRefusedError):
    """A batch of the query was begun and is not finished: its rows may be in some of the tables."""

    def __init__(self, flow: str, group: str, partitions: int, batch: int) -> None:
        self.batch = batch
        super().__init__(
            flow,
            group,
            partitions,
            f"its batch {batch} was begun and is not finished",
            hint="run the query until that batch is done (catch_up with max_batches=1), then repartition",
        )
