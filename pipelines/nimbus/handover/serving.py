"""Requests that a worker serves in its Spark: catch-ups, backfills, queries of runs that need not start a Spark of their own.

A connection is one request: `{"verb", "flow", ...}` as JSON, answered by lines of progress and then `{"report"}` or `{"error"}`.
It is on the loopback, and both sides prove that they know the key in the endpoint's file (which its owner alone can read).
A request with `"waits"` is answered by `{"taken"}` at once and begins with `BEGIN`: whoever got no answer in time and does the
work itself can be sure that it is not done twice.
When the other side goes away, the request ends after the batch or slice that it is in: what is committed is whole. When it
says `STOP`, it ends the same way, and gets a report of that slice, then one of the end (`{"stopped"}`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines import logs
from pipelines.bounds import PORT
from pipelines.catalog.flow import FlowSettings
from pipelines.errors import TrideltaError
from pipelines.execution.checkpoint.engine_files import REFUSE, write_json
from pipelines.nimbus.deployed import plan_digest, source_digest
from pipelines.nimbus.errors import HandedOverError, OtherCodeError, WorkerBusyError
from pipelines.nimbus.handover.loopback import KeyedServer, hang_up
from pipelines.nimbus.handover.wire import from_wire, to_wire
from pipelines.processes import ProcessIdentity

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pyspark.sql import SparkSession

    from pipelines.execution.report import BatchReport, SliceReport
    from pipelines.execution.runtime import Runtime
    from pipelines.trident.topology import TridentTopology

logger = logs.logger(__name__)

Send = Callable[[Mapping[str, Any]], None]
T = TypeVar("T")


STOP = b"stop"
"""What whoever asked may say after the request."""

BEGIN = b"begin"
"""What whoever waits says when it has heard that its request is taken."""

REQUESTS_LIMIT = 32
"""So many requests are under way in a worker at once; more are refused."""


class GoneError(Exception):
    """Whoever asked has gone away, or wants no more."""


class _NotBegun:
    """A listener that ends a backfill before its first commit, if nobody wants it any more."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._begun = connection, False

    def __call__(self, moment: str, state: str, txid: int) -> None:
        if not self._begun and self._connection.poll():
            raise GoneError
        self._begun = True


@dataclass(frozen=True)
class Endpoint:
    """The address at which a worker answers.

    Attributes:
        port: On 127.0.0.1.
        key: What both sides must know, as hex digits.
        waits: Whether it answers that a request is taken; workers of earlier releases do not.
        typed: Whether it takes and gives the values of queries with their types; workers of earlier releases do not.
    """

    port: int
    key: str
    worker: ProcessIdentity
    waits: bool = False
    typed: bool = False

    @classmethod
    def read(cls, file: Path) -> Endpoint | None:
        """Return what a worker of this or an earlier release has written; None if that is no endpoint."""
        try:
            written = json.loads(file.read_text("utf-8"))
            bytes.fromhex(written["key"])
            port = PORT.taken(written["port"])
            knows = {name: bool(written.get(name)) for name in ("waits", "typed")}
            return cls(port, written["key"], ProcessIdentity.read(written), **knows)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return what `read` takes."""
        return {"port": self.port, "key": self.key, "waits": self.waits, "typed": self.typed, **self.worker.to_json()}

    @property
    def alive(self) -> bool:
        """Return whether its process exists and runs."""
        return self.worker.runs


class Server:
    """Serves requests in threads of their own.

    Args:
        file: Where its endpoint is written to.
    """

    def __init__(self, spark: SparkSession, file: Path) -> None:
        self._spark, self._file = spark, file
        self._serving, self._limit, self._ended = 0, REQUESTS_LIMIT, False
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Return whether a request is under way."""
        return self._serving > 0

    def start(self) -> None:
        """Listen, and say where."""
        from pipelines.catalog import found

        specs, faults = found()
        # Flows of other files run; whoever hands over one of these gets an error that says what is wrong.
        for fault in faults:
            logger.error("catalog not loaded", reason=str(fault))
        for spec in specs:
            try:
                source_digest(spec.name, loaded=True)
            except (TrideltaError, OSError) as error:
                logger.error("catalog not loaded", flow=spec.name, reason=str(error))
        key = secrets.token_bytes(32)
        self._listener = KeyedServer(key, self._serve)
        endpoint = Endpoint(self._listener.port, key.hex(), ProcessIdentity.of(), waits=True, typed=True)
        # Whoever knows the key can write to the lake: nobody else is to read it.
        write_json(self._file, endpoint.to_json(), mode=0o600)
        self._listener.start()

    def refuse(self) -> None:
        """Take no new request: who asks starts a Spark of its own. Those that are under way go on."""
        with self._lock:
            self._limit = 0

    def take(self) -> None:
        """Take requests again."""
        with self._lock:
            self._limit = REQUESTS_LIMIT

    def end_if_idle(self) -> bool:
        """Take no request from now on, unless one is under way. Returns whether none is."""
        with self._lock:
            self._ended = self._serving == 0
            return self._ended

    def stop(self) -> None:
        """Take no more requests."""
        with self._lock:
            self._ended = True
        self._file.unlink(missing_ok=True)
        self._listener.close()

    def _serve(self, connection: Connection, admitted: Callable[[], None]) -> None:
        asked = json.loads(connection.recv_bytes())
        with self._lock:
            if self._ended:
                return
            refused = self._serving >= self._limit
            self._serving += 0 if refused else 1
        if refused:
            _refuse(connection, WorkerBusyError(str(asked.get("flow")), self._limit))
            return
        try:
            if asked.get("waits") and not _told_to_begin(connection):
                return
            admitted()
            self._answer(connection, asked)
        finally:
            with self._lock:
                self._serving -= 1

    def _answer(self, connection: Connection, asked: Mapping[str, Any]) -> None:
        one_at_a_time = threading.Lock()

        def send(line: Mapping[str, Any]) -> None:
            with one_at_a_time:
                try:
                    connection.send_bytes(json.dumps(line, default=str).encode())
                except OSError:
                    # It may have been half sent: nothing more can follow it.
                    hang_up(connection)
                    raise GoneError from None

        request = {"verb": asked.get("verb"), "flow": asked.get("flow")}
        logger.info("request", **request)
        passed_on = _PassedOn(str(asked.get("flow")), send)
        logging.getLogger("pipelines").addHandler(passed_on)
        try:
            send({"report": self._done(asked, send, connection)})
            logger.info("request done", **request)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, GoneError):
                cause = cause.__cause__ or cause.__context__
            if cause is not None:
                logger.warning("request given up", **request, reason="whoever asked has gone, or wants no more")
                with contextlib.suppress(GoneError):
                    send({"stopped": True})
                return
            known = isinstance(error, TrideltaError)
            logger.warning("request failed", **request, reason=str(error), kind=type(error).__name__)
            with contextlib.suppress(GoneError):
                send({"error": str(error), "kind": type(error).__name__, "known": known})
        finally:
            logging.getLogger("pipelines").removeHandler(passed_on)

    def _done(self, asked: Mapping[str, Any], send: Send, connection: Connection) -> Any:
        from pipelines import Lake, Runtime

        topology = _same_code(asked)
        # A batch of a stream that is broken off would be tried again; slices are not.
        listeners = [_NotBegun(connection)] if asked["verb"] == "backfill" else []
        runtime = Runtime(self._spark, Lake(asked["lake"]), listeners=listeners)
        verbs: dict[str, Callable[[Runtime, TridentTopology, Mapping[str, Any], Send, Connection], Any]] = {
            "catch_up": _catch_up,
            "backfill": _backfill,
            "query": _query,
        }
        if asked["verb"] not in verbs:
            raise HandedOverError(asked["flow"], f"there is no request {asked['verb']!r}")
        # Jobs of a request share the cores evenly with those of the queries.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"request {asked['flow']}")
        return verbs[asked["verb"]](runtime, topology, asked, send, connection)


def _told_to_begin(connection: Connection) -> bool:
    """Say that a request is taken; whether the other side has heard it, and still wants it."""
    connection.send_bytes(json.dumps({"taken": True}).encode())
    return connection.recv_bytes() == BEGIN


def _refuse(connection: Connection, error: TrideltaError) -> None:
    connection.send_bytes(json.dumps({"error": str(error), "kind": type(error).__name__, "known": True}).encode())


class _PassedOn(logging.Handler):
    """Passes what is logged of a flow on to whoever asked for it."""

    def __init__(self, flow: str, send: Send) -> None:
        super().__init__(logging.INFO)
        self._flow, self._send = flow, send

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        if getattr(record, logs.FIELDS, {}).get("flow") == self._flow:
            with contextlib.suppress(GoneError):
                self._send({"log": record.getMessage(), "level": record.levelname})


def _same_code(asked: Mapping[str, Any]) -> TridentTopology:
    """Return the flow as it is defined here."""
    from pipelines.catalog import flow

    name = asked["flow"]
    topology = flow(name).topology(FlowSettings(Path(asked["home"]), asked["lake"]))
    if (asked["plan"], asked["code"]) != (plan_digest(topology), source_digest(name, loaded=True)):
        raise OtherCodeError(name)
    return topology


# What is there to read after the request is STOP, or the end of the connection.


def _catch_up(
    runtime: Runtime, topology: TridentTopology, asked: Mapping[str, Any], send: Send, connection: Connection
) -> Any:
    def report_batch(batch: BatchReport) -> None:
        # A batch that ends here is not marked as done: the next run meets it again, finds it committed, and tells it.
        if connection.poll():
            raise GoneError
        send({"progress": asdict(batch)})

    report = runtime.catch_up(
        topology,
        on_fresh_checkpoint=asked["on_fresh_checkpoint"],
        changed_windows=asked.get("changed_windows", REFUSE),
        max_batches=asked["max_batches"],
        progress=report_batch,
    )
    return report.to_json()


def _backfill(
    runtime: Runtime, topology: TridentTopology, asked: Mapping[str, Any], send: Send, connection: Connection
) -> Any:
    def report_slice(slice_report: SliceReport) -> None:
        # Nobody meets this slice again: it is reported before the backfill ends.
        send({"progress": asdict(slice_report)})
        if connection.poll():
            raise GoneError

    report = runtime.backfill(topology, asked["slices"], stream=asked["stream"], progress=report_slice)
    return report.to_json()


def _query(
    runtime: Runtime, topology: TridentTopology, asked: Mapping[str, Any], send: Send, connection: Connection
) -> Any:
    rows = runtime.query(topology, asked["query"], from_wire(asked["args"]), txid=asked["txid"])
    # Who is of an earlier release reads texts.
    return to_wire(rows) if asked.get("typed") else rows


def restored(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return a report from its JSON form."""
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    made: T = _ADAPTERS[kind].validate_python(values)
    return made


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
