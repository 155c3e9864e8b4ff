"""One lake, the sources of its flow, and the runs over them: where a program of operations takes place."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema

from pipelines import Lake, Runtime
from pipelines.execution.protocol import failures
from pipelines.execution.runners import bounded
from pipelines.maintenance import compaction, retention
from pipelines.places.location import Place, put_whole
from pipelines.quality import Check, drop, fail
from pipelines.sources import CsvFiles, DeltaTableSource, JsonFiles, ParquetFiles
from pipelines.state import record
from pipelines.trident import Count, DeltaState, Max, ReducerAggregator, Sum, TridentTopology
from tests import lakes
from tests.histories.model import BAD, BEFORE, CHANNEL, LOG, MAP, REDUCED, ROWS, Event, File, Row, Rules, Sink
from tests.lakes import lake_place, removed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.execution.report import BatchReport

FLOW = "history"
FILES, TABLE = "files", "table"
ARROW = pa.schema([("i", pa.int64()), ("day", pa.string()), ("key", pa.string()), ("v", pa.int64())])
WINDOWS = f"{FLOW}__window1"
"""The channel into the windows of the flow, which is also the name of their batch group."""
OTHERS = ("j", "d", "k", "w")
"""Fields of files that have none of the declared ones. A header of CSV that names none at all would be a record, too."""
_OTHERS = pa.schema([("j", pa.int64()), ("d", pa.string()), ("k", pa.string()), ("w", pa.int64())])
FORMATS: dict[str, Callable[..., Any]] = {"json": JsonFiles, "csv": CsvFiles, "parquet": ParquetFiles}
KEYS: dict[str, tuple[Any, ...]] = {
    "string": ("a", "b", None),
    "decimal(30,0)": (Decimal(10**25 + 7), Decimal(10**25 + 8), Decimal(3)),
    "double": (0.5, float("nan"), -1.25),
}
MOMENTS = ("opened", "committing", "committed", "closed")
STEPS: dict[str, Any] = {
    **dict.fromkeys(("fold_arrow", "merge", "compact_map"), compaction),
    **dict.fromkeys(("vacuum", "clean_log", "remove_left_overs"), retention),
    "check_unread": bounded,
}
"""Steps that tell no listener, with the module that calls each: those of a compaction, and the last one of a backfill before it
commits. Here each tells before it begins and when it is done."""
# Beyond any number of kills that a program has: that a batch becomes poison by deaths is tested elsewhere.
ATTEMPTS = 15
PATIENCE = 120.0


class Killed(BaseException):
    """As good as SIGKILL: what runs on the way out gives locks back, as the end of a process does, and frees memory."""


class Cancelled(KeyboardInterrupt):
    """As Ctrl-C, or the end of a run of Dagster's: what must be whole ends first."""


class StuckError(AssertionError):
    """Something that must come to pass does not."""


def _checks(rules: Rules, *, fails: bool) -> list[Check]:
    checks = [drop("column_values_to_be_between", column="v", max_value=rules.most, name="high")]
    if fails:
        # A batch with such a row is poison.
        checks.append(fail("column_values_to_not_be_in_set", column="v", value_set=[BAD], name="bad"))
    return checks


def added(total: int, value: int | None) -> int:
    """The reducer of `reduced` states."""
    return total + (value or 0)


@dataclass
class Witness:
    """A listener that keeps what it is told, and at one of these moments kills the run or halts it.

    Attributes:
        kill: at the event of this number (from 0) the run dies.
        halt: at the event of this number the run stands still until `go`.
        cancel: at the event of this number the run is asked to end, by a signal.
        fail: at the event of this number the disk is full.
        moments: of which events it takes notice.
    """

    kill: int | None = None
    halt: int | None = None
    cancel: int | None = None
    fail: int | None = None
    moments: tuple[str, ...] = MOMENTS
    events: list[Event] = field(default_factory=list)
    halted: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, moment: str, state: str, txid: int) -> None:
        if moment not in self.moments:
            return
        self.events.append((moment, state, txid))
        number = len(self.events) - 1
        if number == self.kill:
            raise Killed
        if number == self.cancel:
            signal.raise_signal(signal.SIGINT)
        if number == self.fail:
            raise OSError(errno.ENOSPC, "No space left on device")
        if number == self.halt:
            self.halted.set()
            self.go.wait(PATIENCE)


@dataclass
class Outcome:
    """What a run told its listeners, and how it ended."""

    events: list[Event]
    error: BaseException | None = None
    report: Any = None

    @property
    def killed(self) -> bool:
        return isinstance(self.error, Killed)


class World:
    """A lake with one flow over folders of files.

    Args:
        spark: the session.
        home: a folder of its own.
        key: the type of the key field.
        sliced: whether the streams name a slice.
        states: by stream its states; those of the windows by the name of their channel.
        window: how many tuples a window of the first stream holds, 0: there are no windows.
        source: what the streams read: folders of files, or a Delta table each.
        kind: the format of the files.
    """

    def __init__(
        self,
        spark: SparkSession,
        home: Path,
        *,
        key: str,
        sliced: bool,
        states: dict[str, list[Sink]],
        window: int = 0,
        source: str = FILES,
        kind: str = "json",
    ) -> None:
        self.spark, self.home, self.key, self.sliced, self.states = spark, home, key, sliced, states
        self.window, self.source, self.kind = window, source, kind
        self.lake = Lake(lake_place(home / "lake"))
        for stream in states:
            # Of windows it stays empty.
            (home / stream).mkdir(parents=True, exist_ok=True)
            if source == TABLE and stream != WINDOWS and not DeltaTable.is_deltatable(str(home / stream)):
                DeltaTable.create(str(home / stream), DeltaSchema.from_arrow(ARROW))

    @property
    def copies(self) -> Place:
        """Where copies of the lake's folders are kept."""
        return lake_place(self.home / "copies")

    # --- the flow ---------------------------------------------------------------------------------------------------

    def topology(self, rules: Rules) -> TridentTopology:
        """The flow as it is now."""
        found = TridentTopology(FLOW)
        for stream, sinks in self.states.items():
            if stream != WINDOWS:
                self._stream(found, stream, sinks, rules)
        return found

    def _stream(self, found: TridentTopology, stream: str, sinks: list[Sink], rules: Rules) -> None:
        schema = f"i bigint, day string, key {self.key}, v bigint"
        source = (
            DeltaTableSource(self.home / stream, schema)
            if self.source == TABLE
            else FORMATS[self.kind](self.home / stream, schema, max_files_per_batch=rules.per_batch)
        )
        rows = found.new_stream(stream, source, slice_by="day" if self.sliced else None)
        for sink in sinks:
            if sink.at == BEFORE and sink.form != CHANNEL:
                self._persist(rows, sink, rules)
        behind = rows.gate(*_checks(rules, fails=rules.fails and not self.window), name=f"sane_{stream}")
        for sink in sinks:
            if sink.at != BEFORE and (sink.name != "further" or rules.further):
                self._persist(behind, sink, rules)
        if self.window:
            sums = rows.tumbling_window(self.window, "v", Sum(), "v").gate(
                *_checks(rules, fails=rules.fails), name=f"sane_{WINDOWS}"
            )
            for sink in self.states[WINDOWS]:
                sums.partition_persist(DeltaState(sink.name))

    def _persist(self, rows: Any, sink: Sink, rules: Rules) -> None:
        state, further = DeltaState(sink.name, sink.kind), [Max("v", "m")] if rules.wide else []
        if sink.form == ROWS:
            fields = ["i", "day", "key", "v"]
            wide = rows.each("v", lambda v: v * 2, "w") if rules.wide else rows
            wide.partition_persist(state, [*fields, "w"] if rules.wide else fields)
        elif sink.form == LOG:
            rows.group_by(sink.by).persistent_aggregate(state, [Count("n"), Sum("v", "s"), *further])
        elif sink.form == MAP:
            mapped = DeltaState(sink.name, sink.kind, layout="map")
            rows.group_by(sink.by).persistent_aggregate(mapped, [Sum("v", "s"), *further])
        elif sink.form == REDUCED:
            rows.group_by(sink.by).persistent_aggregate(state, "v", ReducerAggregator(int, added), "s")

    # --- files ------------------------------------------------------------------------------------------------------

    def remove(self, stream: str, name: str) -> None:
        """Take a file away, as retention does."""
        (self.home / stream / name).unlink()

    def put(self, stream: str, file: File) -> None:
        """Lay a file down, whole at once, with its time."""
        if self.source == TABLE:
            rows = [{"i": row.number, "day": row.day, "key": row.key, "v": row.v} for row in file.rows]
            write_deltalake(str(self.home / stream), pa.Table.from_pylist(rows, schema=ARROW), mode="append")
            return
        target = self.home / stream / file.name
        hidden = target.with_name(f".{file.name}")
        if self.kind == "parquet":
            self._write_parquet(hidden, file)
        else:
            first = [",".join(_fields(file, "csv"))] if self.kind == "csv" else []
            lines = [*first, *(self.line(row, file.fields) for row in file.rows)]
            hidden.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        if file.cut:
            hidden.write_bytes(hidden.read_bytes()[: hidden.stat().st_size // 2])
        os.utime(hidden, (file.time, file.time))
        hidden.replace(target)

    def line(self, row: Row, fields: str = "") -> str:
        """A row as a line of JSON or CSV."""
        if row.text is not None:
            return row.text
        key = row.key
        if self.kind == "csv":
            shown = "NaN" if key != key else key
            values = ["" if one is None else str(one) for one in (row.number, row.day, shown, row.v)]
            return ",".join(reversed(values) if fields == "turned" else values)
        shown = "null" if key is None else f'"{key}"' if isinstance(key, str) else '"NaN"' if key != key else str(key)
        parts = [f'"i": {row.number}', f'"day": {json.dumps(row.day)}', f'"key": {shown}']
        parts += [] if row.v is None else [f'"v": {row.v}']
        return f"{{{', '.join(reversed(parts) if fields == 'turned' else parts)}}}"

    def refused(self, number: int, day: str | None, v: int | None) -> Row:
        """A row under names that no field has, as quarantine shows it."""
        if self.kind == "csv":
            text = ",".join("" if one is None else str(one) for one in (number, day, "x", v))
        else:
            text = json.dumps(dict(zip(OTHERS, (number, day, "x", v), strict=True)), separators=(",", ":"))
        return Row(number, None, None, None, text, "other_fields")

    def _write_parquet(self, target: Path, file: File) -> None:
        if file.fields == "others":
            table = pa.Table.from_pylist([json.loads(row.text or "") for row in file.rows], schema=_OTHERS)
        else:
            rows = [{"i": row.number, "day": row.day, "key": row.key, "v": row.v} for row in file.rows]
            keys = {"double": pa.float64(), "string": pa.string()}.get(self.key, pa.decimal128(30, 0))
            table = pa.Table.from_pylist(rows, schema=ARROW.set(2, pa.field("key", keys)))
            table = table.select(_fields(file, "parquet"))
        pq.write_table(table, target)

    # --- runs -------------------------------------------------------------------------------------------------------

    def runtime(self, witness: Witness) -> Runtime:
        return Runtime(
            self.spark, Lake(self.lake.root), listeners=[witness], max_attempts=ATTEMPTS, lock_wait_seconds=20
        )

    def run(
        self, do: Callable[[Runtime], Any], *, kill: int | None = None, moments: tuple[str, ...] = MOMENTS
    ) -> Outcome:
        """One run in a life of its own, which may end at the moment of a number."""
        return self.witnessed(do, Witness(kill, moments=moments))

    def witnessed(self, do: Callable[[Runtime], Any], witness: Witness) -> Outcome:
        """One run in a life of its own, with what a witness does to it."""
        try:
            with told_of_steps(witness), nullcontext() if witness.cancel is None else _cancelled_by_signals():
                report = do(self.runtime(witness))
        except (Exception, Killed, Cancelled) as error:
            return Outcome(witness.events, error)
        finally:
            # A life has its own handles of the tables.
            self.lake = Lake(self.lake.root)
        return Outcome(witness.events, None, report)

    def checkpoint(self, group: str) -> Place:
        return self.lake.checkpoint_path(FLOW, group)

    def planned(self, group: str, number: int) -> dict[str, Any] | None:
        """Where a batch of a table or a channel ends, as Spark planned it; None: it did not."""
        file = self.checkpoint(group) / "spark" / "offsets" / str(number)
        if not file.exists() or (self.source != TABLE and group != WINDOWS):
            return None
        found: dict[str, Any] = json.loads(file.read_text("utf-8").splitlines()[-1])
        return found

    def whole(self, group: str) -> int | None:
        """The last txid that the first batch of windows, just planned, has taken, if it took all that their channel had then."""
        end = self.planned(group, 0)
        if end is None or end["index"] >= 0:
            return None
        commits = self.lake.channel(group).commits.batches()
        taken = [commit.txid for commit in commits if commit.version < end["reservoirVersion"]]
        return taken[-1] if taken else None

    def idle(self, group: str, number: int) -> bool:
        """Whether Spark planned a batch for commits that bring no file of new rows: tables made or rewritten, properties."""
        end, before = self.planned(group, number), self.planned(group, number - 1)
        if end is None or end["index"] >= 0:
            return False
        table = self.lake.channel_path(group) if group == WINDOWS else self.home / group
        first = before["reservoirVersion"] if before else 0
        return not any(_brings_rows(table, version) for version in range(first, end["reservoirVersion"]))

    def as_on_another_host(self) -> None:
        """Take the locks of files away, which do not reach other hosts; Spark's own guard within a process, too."""
        folders: list[Place] = [*(self.lake.root / "checkpoints" / FLOW).iterdir()]
        for folder in folders:
            locks: list[Place] = [*folder.glob("*.lock")]
            for lock in locks:
                lock.unlink()
            metadata = folder / "spark" / "metadata"
            if metadata.exists():
                # A file that is replaced, as the frozen writer holds what it has read. Copies share the old one.
                put_whole(metadata, json.dumps({"id": str(uuid.uuid4())}).encode())
                metadata.with_name(".metadata.crc").unlink(missing_ok=True)


def _fields(file: File, kind: str) -> list[str]:
    """The names of a file's columns, in its order."""
    if file.fields == "others":
        return ["i", *OTHERS[1:]] if kind == "csv" else [*OTHERS]
    return ARROW.names[::-1] if file.fields == "turned" else ARROW.names


def _brings_rows(table: Place, version: int) -> bool:
    """Whether a commit adds rows and takes none away."""
    file = table / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    adds = any("add" in one and one["add"].get("dataChange", True) for one in actions)
    return adds and not any("remove" in one for one in actions)


@contextmanager
def told_of_steps(listener: Callable[[str, str, int], None]) -> Iterator[None]:
    """Tell a listener of the steps in this thread that tell none by themselves."""
    thread = threading.get_ident()

    def told(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def telling(*given: Any, **named: Any) -> Any:
            mine = threading.get_ident() == thread
            if mine:
                listener(name, "begins", -1)
            found = step(*given, **named)
            if mine:
                listener(name, "done", -1)
            return found

        return telling

    with ExitStack() as stack:
        for name, home in STEPS.items():
            stack.enter_context(mock.patch.object(home, name, told(name, getattr(home, name))))
        yield


@contextmanager
def _cancelled_by_signals() -> Iterator[None]:
    """Let an interrupt that a witness asks for be told from one of whoever runs the programs: that one ends them."""

    def cancel(number: int, frame: FrameType | None) -> None:
        raise Cancelled

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def copied(source: Place, target: Place) -> None:
    """A copy of a folder by links: whatever the engine writes it writes into new files."""
    lakes.copied(source, target, links=True)


def put_back(copy: Place, target: Place) -> None:
    """Put a copy in the place of a folder; the copy stays."""
    removed(target)
    copied(copy, target)


def running_batches(seen: Sequence[BatchReport], wanted: int, running: Callable[[], bool]) -> None:
    """Wait until a stream has finished so many batches, or has ended."""
    waited = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if len(seen) >= wanted or not running():
            return
        waited.wait(0.02)
    raise StuckError(f"{len(seen)} of {wanted} batches after {PATIENCE:g} s")


_CONF = {
    # For plans over a handful of rows compiling them costs more than running them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # A stream that waits looks for files a hundred times a second by default: a third of the time of all programs.
    "spark.sql.streaming.pollingDelay": "250ms",
    # Nobody reads how a plan is shown.
    "spark.sql.ui.explainMode": "simple",
}


@contextmanager
def small_and_quick(spark: SparkSession) -> Iterator[None]:
    """Four txids per generation, no pauses between attempts, and a session for small plans; all put back afterwards."""
    before = {name: spark.conf.get(name, None) for name in _CONF}
    generations = record.GENERATION, compaction.GENERATION
    pause = failures._BACK_OFF
    try:
        for name, value in _CONF.items():
            spark.conf.set(name, value)
        record.GENERATION = compaction.GENERATION = 4
        failures._BACK_OFF = lambda state: 0.0  # type: ignore[assignment]
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
        record.GENERATION, compaction.GENERATION = generations
        failures._BACK_OFF = pause
