"""The figures of a task, as its beats carry them, and what waits at its sources."""

from __future__ import annotations

import glob
import json
import os
import re
import stat
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipelines import logs
from pipelines.causes import shortened
from pipelines.execution.checkpoint.window_state import partition_rows
from pipelines.maintenance.rebalance import skew_of
from pipelines.nimbus.status import (
    ASSIGNED,
    DRAINED,
    DRAINING,
    FAILED,
    REPARTITIONING,
    RUNNING,
    STARTING,
    CheckStatus,
)
from pipelines.places.location import Location, Place
from pipelines.places.store import Entry, StoreError
from pipelines.sources.base import Source, place_of
from pipelines.sources.folder import FileSource, FilesRead
from pipelines.state.delta_log import adds, commit_file

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.execution.checkpoint.engine_files import Checkpoint
    from pipelines.execution.report import BatchReport


logger = logs.logger(__name__)

FILES, COMMITS, RECORDS = "files", "commits", "records"
_MOST_COMMITS = 200
"""Commits that are looked into: a query that is farther behind is far behind."""


def waiting(
    progress: Mapping[str, Any], checkpoint: Place, folders: Mapping[str, FilesRead] = MappingProxyType({})
) -> dict[str, float]:
    """Count what waits at a query's sources: `files` of folders, `commits` of Delta tables, `records` of Kafka.

    Args:
        progress: Spark's report of the query (`StreamingQueryProgress` as JSON).
        checkpoint: Spark's checkpoint of the query.
        folders: of folders of files, by their paths, which files their sources read; of others, those that Spark reads by itself.
    """
    counts: dict[str, float] = {}
    for index, source in enumerate(progress.get("sources") or ()):
        for measure, number in _of_source(source, checkpoint / "sources" / str(index), folders):
            if number > 0:
                counts[measure] = counts.get(measure, 0.0) + number
    return counts


def gone(progress: Mapping[str, Any]) -> list[str]:
    """Return folders and Delta tables that a query reads and that are missing: Spark reads nothing then, silently.

    Args:
        progress: Spark's report of the query.
    """
    described = [str(source.get("description") or "") for source in progress.get("sources") or ()]
    paths = [_path(text) for text in described if text.startswith(("FileStreamSource[", "DeltaSource["))]
    # For a pattern or another file system nobody knows it here.
    return [path for path in paths if path.startswith("/") and not glob.has_magic(path) and not Path(path).exists()]


def _of_source(source: Mapping[str, Any], log: Place, folders: Mapping[str, FilesRead]) -> Iterator[tuple[str, float]]:
    described, end = str(source.get("description") or ""), _offset(source.get("endOffset"))
    metrics = source.get("metrics") or {}
    if "maxOffsetsBehindLatest" in metrics:
        yield RECORDS, float(metrics["maxOffsetsBehindLatest"])
    elif described.startswith("FileStreamSource[") and "logOffset" in end:
        path = _path(described)
        yield FILES, float(_files(path, folders.get(path, FilesRead()), log, int(end["logOffset"])))
    elif described.startswith("DeltaSource[") and "reservoirVersion" in end:
        yield COMMITS, float(_commits(_path(described), int(end["reservoirVersion"])))


def _offset(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _path(described: str) -> str:
    kind, inside = described.removesuffix("]").split("[", 1)
    if kind == "FileStreamSource":
        inside = re.sub(r"\\(.)", r"\1", inside)  # as `literal_path` has escaped it
    # A path's text, no URL: nothing in it is quoted.
    return inside.removeprefix("file:").replace("///", "/", 1) if inside.startswith("file:") else inside


def _files(path: str, reads: FilesRead, log: Place, listing: int) -> int:
    """Count a folder's files that are newer than all that the query has listed: Spark takes them by their times."""
    newest = _newest(log, listing)
    if newest is None:
        return 0
    place = place_of(path)
    if isinstance(place, Location):

        def waits(entry: Entry) -> bool:
            file = Location(place.scheme, place.bucket, entry.key)
            return entry.modified * 1000 > newest and reads.takes(file.relative_to(place))

        return sum(1 for _ in place.store.entries(place.key, waits))
    count = 0
    for file, below in _of_disk(path, reads):
        try:
            facts = os.stat(file)  # noqa: PTH116
        except OSError:
            continue  # gone again
        # For most of them the time is enough.
        is_newer = int(facts.st_mtime * 1000) > newest and stat.S_ISREG(facts.st_mode)
        count += is_newer and reads.takes(Path(below))
    return count


def _of_disk(path: str, reads: FilesRead) -> Iterator[tuple[str, str]]:
    """Yield what lies in a folder of this host, or what fits a pattern, with the paths from there."""
    if os.path.isdir(path):  # noqa: PTH112
        yield from _of_folder(path, reads)
        return
    for place in glob.glob(path):  # noqa: PTH207
        if os.path.isdir(place):  # noqa: PTH112
            yield from _of_folder(place, reads)
        else:
            yield place, place.rpartition("/")[2]


def _of_folder(path: str, reads: FilesRead) -> Iterator[tuple[str, str]]:
    """Yield what lies in a folder of this host, and in those folders of it that are looked into, with the paths from there."""
    folders = [""]
    while folders:
        below = folders.pop()
        # It may be gone again.
        with suppress(OSError), os.scandir(f"{path}/{below}") as entries:
            for entry in entries:
                # Who follows links may go round in a circle; the check of a source follows none, either.
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.path, f"{below}{entry.name}"
                elif reads.enters(entry.name):
                    folders.append(f"{below}{entry.name}/")


def _newest(log: Place, listing: int) -> int | None:
    """Return the time of the newest file that was listed, in ms; None if the log does not say."""
    for number in range(listing, max(-1, listing - 20), -1):
        for name in (str(number), f"{number}.compact"):
            try:
                lines = (log / name).read_text("utf-8").split("\n")[1:]
            except OSError:
                continue
            times = [int(json.loads(line)["timestamp"]) for line in lines if line.startswith("{")]
            if times:
                return max(times)
    return None


def _commits(path: str, version: int) -> int:
    """Count commits of a Delta table from a version on that have brought rows."""
    table, count = place_of(path), 0
    for number in range(version, version + _MOST_COMMITS):
        try:
            if not commit_file(table, number).exists():
                break
            # A compaction writes the same rows again, and says so.
            count += any(add.get("dataChange") for add in adds(table, number))
        except (OSError, ValueError):
            break
    return count


LAST_BATCHES = 20
"""So many batches are remembered: what a rebalance looks at."""

# Asking Spark and counting what waits, which lists folders, are not for every beat.
_LOOK_SECONDS = 5.0
# Whoever counts has a query to drain: a count that takes long is followed by a pause ten times as long, up to this.
_LONGEST_PAUSE_SECONDS = 300.0

# Rows of the state by partition change slowly, and cost a file per partition.
_ROWS_SECONDS = 60.0

# Those details of a gate's result that are rows. Beats are written every few seconds: they carry each rule's rows once, and
# no more of them than this, which is ten rows of a hundred letters, or few wide ones.
_ROWS_OF_A_RESULT = ("sample", "partial_unexpected_list")
_MOST_CHARACTERS = 4000


class CheckFigures(CheckStatus):
    """A check's results as they are counted."""

    def add(self, txid: int, result: Mapping[str, Any]) -> None:
        """Take in the result of one batch (`CheckResult.to_json`)."""
        self.batches += 1
        self.rows += result.get("rows") or 0
        self.unexpected += result.get("unexpected") or 0
        if not result["success"]:
            self.failures, self.last_failed = self.failures + 1, txid
            self.said = str(result.get("error") or result.get("unexpected") or result.get("observed"))
            self.detail = _small(result.get("detail") or {}) or self.detail


def _small(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of a result's detail, as many as fit."""
    rows: dict[str, Any] = {}
    for name in _ROWS_OF_A_RESULT:
        left, kept = _MOST_CHARACTERS, []
        for row in detail.get(name) or ():
            left -= len(json.dumps(row))
            if left < 0:
                break
            kept.append(row)
        rows |= {name: kept} if kept else {}
    return rows


def _without_rows(gate: Mapping[str, Any]) -> dict[str, Any]:
    """Return a gate's result as a beat carries it."""
    checks = [
        {**check, "detail": {key: value for key, value in check["detail"].items() if key not in _ROWS_OF_A_RESULT}}
        if check.get("detail")
        else check
        for check in gate["checks"]
    ]
    return {**gate, "checks": checks}


class TaskFigures:
    """The figures of a running query. Written by the thread that runs batches, read by the one that beats.

    Args:
        sources: those of its flow.
    """

    def __init__(self, group: str, trigger_seconds: float, sources: Iterable[Source] = ()) -> None:
        self._folders: dict[str, FilesRead] = {}
        for source in sources:
            if isinstance(source, FileSource) and source.path is not None:
                # Of two sources of one folder nobody knows here which is whose.
                self._folders[source.path] = FilesRead() if source.path in self._folders else source.reads
        self.state = ASSIGNED
        self._group, self._trigger = group, trigger_seconds
        self.last_error: str | None = None
        self._begun_at = time.time()
        self._no_trigger_since: float | None = None
        self._restarts = self._batches = self._rows = self._quarantined = 0
        self._seconds: deque[float] = deque(maxlen=LAST_BATCHES)
        self._ends: deque[tuple[float, int]] = deque(maxlen=LAST_BATCHES)
        self._backlogs: deque[float] = deque(maxlen=LAST_BATCHES)
        self._last: BatchReport | None = None
        self._before: int | None = None
        self._checks: dict[str, CheckFigures] = {}
        self._progress: Mapping[str, Any] = {}
        self._behind_since: float | None = None
        self._next_look = self._next_count = self._rows_at = float("-inf")
        self._partition_rows: tuple[int, ...] = ()
        self.window_rows: int | None = None
        """How many windows hold something that run in the query's batch; None: none run there."""
        self.backlog: dict[str, float] = {}
        self.gone: list[str] = []

    def stands_at(self, checkpoint: Checkpoint) -> None:
        """Take in the last batch that an earlier life has finished."""
        done, epoch = checkpoint.finished_batches(), checkpoint.epoch
        self._before = epoch.txid(done - 1) if done and epoch else None

    def begins(self) -> None:
        """Note that its query is to run from now on, unless it is tried again after a failure."""
        anew = self.state in (ASSIGNED, DRAINED)
        if anew:
            self._begun_at = time.time()
        if anew or self._no_trigger_since is None:
            self._no_trigger_since = time.time()

    def started(self, again: bool) -> None:
        """Note that its query runs; `again` after a failure."""
        self.state = RUNNING
        self._restarts += again

    def failed(self, reason: str) -> None:
        """Note that its query has ended with an error."""
        self.state, self.last_error = FAILED, shortened(reason)

    def batch(self, report: BatchReport) -> None:
        """Take in a batch that has come through."""
        self._last, self.last_error = report, None
        self._came_through()
        self._batches += 1
        self._rows += report.received
        self._quarantined += report.quarantined
        for gate in report.gates:
            for result in gate["checks"]:
                self._checks.setdefault(f"{gate['gate']}/{result['name']}", CheckFigures()).add(report.txid, result)
        self._seconds.append(report.seconds)
        self._ends.append((time.time(), report.received))

    def _came_through(self) -> None:
        """Note that a trigger has ended: of the query, or of what its start reads ahead, behind which the start goes on."""
        if self._no_trigger_since is not None:
            self._no_trigger_since = None if self.state in (RUNNING, DRAINING) else time.time()

    def look(self, streaming: StreamingQuery, checkpoint: Place) -> None:
        """Take in what Spark says of the query."""
        if time.monotonic() < self._next_look:
            return
        # As one text: PySpark's own `lastProgress` asks the JVM for each of its fields.
        progress = streaming._jsq.lastProgress()
        if progress is None:
            return
        # Spark tells of the first trigger also where that had nothing to read.
        self._came_through()
        self._progress = json.loads(progress.json())
        self._next_look = time.monotonic() + _LOOK_SECONDS
        # Of this run of the query: a trigger has ended well, be it without a batch.
        self.last_error = None
        try:
            self.gone = gone(self._progress)
        except OSError as error:
            # Nobody knows whether it is missing, and no figure is to end a query.
            logger.warning("what is missing was not looked for", reason=str(error))
        if time.monotonic() >= self._next_count:
            self._count(checkpoint)
        # On a store its snapshots are not opened for a figure.
        if (
            isinstance(checkpoint, Path)
            and self._progress.get("stateOperators")
            and time.monotonic() - self._rows_at >= _ROWS_SECONDS
        ):
            # An empty answer is asked for again: the first snapshot comes with the first batch.
            self._partition_rows = partition_rows(checkpoint)
            self._rows_at = time.monotonic() if self._partition_rows else float("-inf")

    def _count(self, checkpoint: Place) -> None:
        """Count what waits in the query's sources."""
        begun = time.monotonic()
        try:
            self.backlog = waiting(self._progress, checkpoint, self._folders)
        except (OSError, StoreError) as error:
            # The batches find out for themselves whether the store, or the disk, answers.
            logger.warning("what waits was not counted", reason=str(error))
        took = time.monotonic() - begun
        self._next_count = time.monotonic() + min(10 * took, _LONGEST_PAUSE_SECONDS)
        much = sum(self.backlog.values())
        self._backlogs.append(much)
        if not much:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = time.time()

    @property
    def rows_per_second(self) -> float:
        """Over the remembered batches, from the end of the first to now (an idle query falls to 0)."""
        if len(self._ends) < 2:
            return 0.0
        since, until = self._ends[0][0], max(self._ends[-1][0], time.time() - self._trigger)
        return sum(rows for _, rows in list(self._ends)[1:]) / max(until - since, 1e-3)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a beat carries them; `TaskStatus` says what they mean."""
        operators = self._progress.get("stateOperators") or ()
        rows = [int(operator["numRowsTotal"]) for operator in operators]
        rows += [self.window_rows] if self.window_rows is not None else []
        last = self._last
        return {
            "state": self.state,
            "group": self._group,
            "pid": os.getpid(),
            "txid": last.txid if last else self._before,
            "attempt": last.attempt if last else None,
            "batches": self._batches,
            "rows": self._rows,
            "rows_per_second": round(self.rows_per_second, 1),
            "batch_seconds": round(self._seconds[-1], 3) if self._seconds else None,
            "median_batch_seconds": round(statistics.median(self._seconds), 3) if self._seconds else None,
            "last_batch_seconds": [round(seconds, 3) for seconds in list(self._seconds)],
            "trigger_seconds": self._trigger,
            "lag_seconds": round(time.time() - self._behind_since, 1) if self._behind_since else 0.0,
            "backlog": self.backlog,
            "gone": self.gone,
            "last_backlogs": list(self._backlogs),
            "state_rows": sum(rows) if rows else None,
            "window_rows": self.window_rows,
            "partition_rows": list(self._partition_rows),
            "skew": round(skew_of(self._partition_rows), 2) if any(self._partition_rows) else None,
            "partitions": max((int(operator["numShufflePartitions"]) for operator in operators), default=None),
            "quarantined": self._quarantined,
            "checks": {name: asdict(figures) for name, figures in list(self._checks.items())},
            "gates": [_without_rows(gate) for gate in last.gates] if last else [],
            "last_error": self.last_error,
            "failing": self.state == FAILED
            or (bool(self.last_error) and self.state in (STARTING, REPARTITIONING, RUNNING)),
            "last_batch_at": self._ends[-1][0] if self._ends else None,
            "begun_at": self._begun_at,
            "no_trigger_since": self._no_trigger_since,
            "restarts": self._restarts,
        }
