"""A runtime that is warm: requests go to a worker that is up, where a Spark of one's own would have to start first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from pipelines.catalog.flow import FlowSettings
from pipelines.errors import TrideltaError
from pipelines.execution.batch.deferred_signals import unbroken
from pipelines.execution.checkpoint.engine_files import REFUSE
from pipelines.execution.report import BackfillReport, BatchReport, RunReport, SliceReport
from pipelines.nimbus.deployed import plan_digest, source_digest
from pipelines.nimbus.errors import HandedOverError, NobodyWarmError
from pipelines.nimbus.handover.loopback import connected
from pipelines.nimbus.handover.serving import BEGIN, STOP, Endpoint, restored
from pipelines.nimbus.handover.wire import from_wire, to_wire
from pipelines.nimbus.settings import NimbusSettings

if TYPE_CHECKING:
    from pipelines.execution.runtime import Runtime
    from pipelines.places.location import Place
    from pipelines.trident.topology import TridentTopology

# Refusals after which one's own Spark does it: nothing was begun.
_NOT_BEGUN = ("OtherCodeError", "UnknownFlowError", "WorkerBusyError", "SessionWithoutS3Error", "SessionZoneError")

ANSWER_SECONDS = 20.0
"""So long a worker may take to connect, shake hands and say that it takes a request; on a busy host it needs a second."""


class _NotTaken(Exception):  # noqa: N818 (nobody but this module meets it)
    """A worker has not taken a request."""


class WarmRuntime:
    """`catch_up`, `backfill` and `query` of `pipelines.Runtime`, done by a worker that is up.

    Args:
        lake: The lake's root.
        endpoints: Where workers answer, the likeliest first.
        otherwise: Makes the runtime that does what no worker takes; None: that is an error.
        log: Takes the worker's log lines: a line and its level's name.
        answer_seconds: A worker that has not taken the request after so long is passed over.
    """

    def __init__(
        self,
        lake: Place,
        endpoints: Sequence[Endpoint],
        *,
        otherwise: Callable[[], Runtime] | None = None,
        log: Callable[[str, str], None] | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._lake, self._endpoints, self._otherwise = lake, tuple(endpoints), otherwise
        self._answer_seconds = answer_seconds
        self._log = log or (lambda line, level: None)

    def catch_up(
        self,
        topology: TridentTopology,
        *,
        on_fresh_checkpoint: str = REFUSE,
        changed_windows: str = REFUSE,
        max_batches: int | None = None,
        progress: Callable[[BatchReport], None] | None = None,
    ) -> RunReport:
        """Do as `Runtime.catch_up`.

        Raises:
            NobodyWarmError: No worker takes it; nothing was begun.
            HandedOverError: What failed there.
        """
        asked: dict[str, Any] = {
            "on_fresh_checkpoint": on_fresh_checkpoint,
            "changed_windows": changed_windows,
            "max_batches": max_batches,
        }
        try:
            answer = self._ask("catch_up", topology, asked, BatchReport, progress)
        except NobodyWarmError as error:
            return self._own(error).catch_up(topology, **asked, progress=progress)
        return restored(RunReport, answer)

    def backfill(
        self,
        topology: TridentTopology,
        slices: Sequence[str],
        *,
        stream: str | None = None,
        progress: Callable[[SliceReport], None] | None = None,
    ) -> BackfillReport:
        """Do as `Runtime.backfill`. Raises as `catch_up`."""
        try:
            answer = self._ask("backfill", topology, {"slices": list(slices), "stream": stream}, SliceReport, progress)
        except NobodyWarmError as error:
            return self._own(error).backfill(topology, slices, stream=stream, progress=progress)
        return restored(BackfillReport, answer)

    def query(
        self, topology: TridentTopology, name: str, args: Sequence[Sequence[Any]], *, txid: int | None = None
    ) -> list[dict[str, Any]]:
        """Do as `Runtime.query`. Raises as `catch_up`."""
        asked = {"query": name, "args": to_wire(args), "txid": txid, "typed": True}
        try:
            rows: list[dict[str, Any]] = from_wire(self._ask("query", topology, asked, None, None))
        except NobodyWarmError as error:
            return self._own(error).query(topology, name, args, txid=txid)
        return rows

    def _own(self, error: NobodyWarmError) -> Runtime:
        if self._otherwise is None:
            raise error
        self._log(f"{error}; a Spark of this process's own starts", "INFO")
        return self._otherwise()

    def _ask(
        self,
        verb: str,
        topology: TridentTopology,
        asked: Mapping[str, Any],
        kind: type[Any] | None,
        progress: Callable[[Any], None] | None,
    ) -> Any:
        try:
            code = source_digest(topology.name)
        except TrideltaError as error:
            # Workers load flows of the catalog, and this one is none: a component of Dagster has it from elsewhere.
            raise NobodyWarmError(topology.name, str(error)) from error
        request = {
            "verb": verb,
            "flow": topology.name,
            "lake": str(self._lake),
            "home": str(FlowSettings.from_environment().home),
            "plan": plan_digest(topology),
            "code": code,
            **asked,
        }
        reason = "none is up"
        for endpoint in self._endpoints:
            if verb == "query" and not endpoint.typed:
                reason = "the worker is of an earlier release, which answers in texts"
                continue
            try:
                answer = self._answer_of(endpoint, request, kind, progress)
            except _NotTaken as error:
                reason = str(error)
                self._log(f"a worker (process {endpoint.worker.pid}) is passed over: {reason}", "WARNING")
                continue
            if "error" not in answer:
                return answer["report"]
            if answer["kind"] not in _NOT_BEGUN:
                raise HandedOverError(topology.name, f"{answer['kind']}: {answer['error']}", kind=answer["kind"])
            reason = answer["error"]
        raise NobodyWarmError(topology.name, reason)

    def _answer_of(
        self,
        endpoint: Endpoint,
        request: dict[str, Any],
        kind: type[Any] | None,
        progress: Callable[[Any], None] | None,
    ) -> dict[str, Any]:
        """Return the last line of a worker's answer.

        Raises:
            _NotTaken: It has not taken the request in time, and will not begin it any more.
        """
        with ExitStack() as stack:
            try:
                connection, deadline = stack.enter_context(
                    connected(endpoint.port, bytes.fromhex(endpoint.key), self._answer_seconds)
                )
                asked = {**request, "waits": endpoint.waits}
                connection.send_bytes(json.dumps(asked, default=str).encode())
                if endpoint.waits:
                    first: dict[str, Any] = json.loads(connection.recv_bytes())
                    if "taken" not in first:
                        return first
                deadline.met()
                if endpoint.waits:
                    connection.send_bytes(BEGIN)
            except (OSError, EOFError, ValueError) as error:
                raise _NotTaken(str(error) or "it does not answer") from error
            # Closed on the way out of an interrupt too: that is how the worker hears of it.
            return self._heard(connection, request["flow"], kind, progress)

    def _heard(
        self, connection: Any, flow: str, kind: type[Any] | None, progress: Callable[[Any], None] | None
    ) -> dict[str, Any]:
        """Return an answer's last line. Asked to end (a cancelled run, Ctrl-C), it lets the worker end what that commits, and
        takes that in: what is committed is reported. Asked again it ends at once.
        """
        asked: BaseException | None = None
        while True:
            answer = None
            try:
                # The wait may be broken off; a line that is half read or half written may not.
                with suppress(OSError):
                    connection.poll(None)
                with unbroken():
                    answer = self._taken(_line(connection, flow), kind, progress)
            except Exception as error:
                if asked is not None:
                    raise asked from error
                raise
            except BaseException as error:
                if asked is not None:
                    raise
                asked = error
                with suppress(OSError):
                    connection.send_bytes(STOP)
            if answer is not None:
                if asked is not None:
                    raise asked
                return answer

    def _taken(
        self, line: dict[str, Any], kind: type[Any] | None, progress: Callable[[Any], None] | None
    ) -> dict[str, Any] | None:
        """Take in a line; the last one is given back."""
        if "log" in line:
            self._log(line["log"], line["level"])
        elif "progress" not in line:
            return line
        elif progress is not None and kind is not None:
            progress(restored(kind, line["progress"]))
        return None


def _line(connection: Any, flow: str) -> dict[str, Any]:
    try:
        line: dict[str, Any] = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        raise HandedOverError(
            flow, "the worker ended before it was done", hint="what was committed stays; run it again"
        ) from None
    return line


def find_warm(
    lake: Place,
    settings: NimbusSettings | None = None,
    *,
    otherwise: Callable[[], Runtime] | None = None,
    log: Callable[[str, str], None] | None = None,
) -> WarmRuntime | None:
    """Return a runtime over the workers of this host that answer; None if none is up."""
    chosen = settings or NimbusSettings.from_environment()
    endpoints = []
    for file in sorted(chosen.home.glob("supervisors/*/*.endpoint.json")):
        endpoint = Endpoint.read(file)
        if endpoint is not None and endpoint.alive:
            endpoints.append(endpoint)
    return WarmRuntime(lake, endpoints, otherwise=otherwise, log=log) if endpoints else None
