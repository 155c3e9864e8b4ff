"""Figures of deployed flows for Prometheus, on a port of this host alone.

Each scrape looks at the registry again, so any supervisor can answer for the whole of it. Counters are those of the workers:
they begin at 0 again when a worker starts, as Prometheus expects of counters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from pipelines.nimbus.errors import NimbusError, SettingError
from pipelines.nimbus.handover.loopback import HOST, BoundedThreads
from pipelines.nimbus.registry.lifecycle import Status
from pipelines.nimbus.status import RUNNING, ClusterStatus, FlowStatus, SupervisorStatus, TaskStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector


class Watched(Protocol):
    """The source of the figures: a `Nimbus`, or its `Cluster`."""

    def cluster(self) -> ClusterStatus:
        """Return all of one registry at one time."""


@dataclass(frozen=True)
class _Figure:
    """One figure of a task: its metric's name, help and kind, and how it is read; None is left out."""

    name: str
    help: str
    read: Callable[[TaskStatus], float | None]
    counter: bool = False


_TASK = (
    _Figure("batches", "Batches finished since the worker started the query.", lambda one: one.batches, True),
    _Figure("rows", "Rows read from the sources since the worker started the query.", lambda one: one.rows, True),
    _Figure("quarantined", "Rows that gates and readers sent to quarantine.", lambda one: one.quarantined, True),
    _Figure("restarts", "Starts of the query after a failure.", lambda one: one.restarts, True),
    _Figure("rows_per_second", "Rows a second over the last batches.", lambda one: one.rows_per_second),
    _Figure("batch_seconds", "Seconds that the last batch took.", lambda one: one.batch_seconds),
    _Figure("trigger_seconds", "Seconds from the begin of one batch to the next.", lambda one: one.trigger_seconds),
    _Figure(
        "lag_seconds", "Seconds since the query had nothing left to read; 0: it keeps up.", lambda t: t.lag_seconds
    ),
    _Figure("txid", "Number of the last finished batch.", lambda one: one.txid),
    _Figure("attempt", "Attempt of the last finished batch, from 0.", lambda one: one.attempt),
    _Figure("last_batch_timestamp_seconds", "When the last batch ended, since 1970.", lambda one: one.last_batch_at),
    _Figure("state_rows", "Rows in the query's state store.", lambda one: one.state_rows),
    _Figure("partitions", "Shuffle partitions of the query.", lambda one: one.partitions),
    _Figure("partition_skew_ratio", "Rows of the largest partition over the average one.", lambda one: one.skew),
    _Figure("beat_age_seconds", "Seconds since the query's worker said that it lives.", lambda t: t.beat_age_seconds),
    _Figure("query_running", "1 while the query runs.", lambda one: float(one.state == RUNNING)),
)


_CHECKS = (
    ("gate_failures", "failures", "Batches in which a check did not hold."),
    ("gate_rows", "rows", "Rows that a check has looked at."),
    ("gate_unexpected_rows", "unexpected", "Of these, rows that violate it."),
)


def collector(nimbus: Watched) -> Collector:
    """Return the collector that a Prometheus registry asks on each scrape.

    A registry that does not answer is a figure too: `tridelta_registry_up` 0, and nothing else.
    """
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Deployed(Collector):
        def collect(self) -> Iterator[Metric]:
            up = GaugeMetricFamily("tridelta_registry_up", "1 if the registry answers.")
            try:
                seen = nimbus.cluster()
            except NimbusError:
                up.add_metric([], 0)
                yield up
                return
            up.add_metric([], 1)
            yield up
            yield from _of_supervisors(seen.supervisors)
            yield from _of_flows(seen)
            tasks = [(flow.name, task) for flow in seen.flows for task in flow.tasks]
            yield from _of_tasks(tasks)
            yield from _of_gates(tasks)
            yield from _of_workers(tasks)

        def describe(self) -> Iterable[Metric]:
            # Else the names are found out by a scrape when the collector is registered.
            return []

    return Deployed()


def _gauge(name: str, help_: str, labels: Iterable[str], samples: Iterable[tuple[list[str], float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    made = GaugeMetricFamily(f"tridelta_{name}", help_, labels=list(labels))
    for values, number in samples:
        made.add_metric(values, number)
    return made


def _counter(name: str, help_: str, labels: Iterable[str], samples: Iterable[tuple[list[str], float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    made = CounterMetricFamily(f"tridelta_{name}", help_, labels=list(labels))
    for values, number in samples:
        made.add_metric(values, number)
    return made


def _of_supervisors(found: Iterable[SupervisorStatus]) -> Iterator[Metric]:
    listed = [([one.id, one.host], one) for one in found]
    by = ("supervisor", "host")
    yield _gauge("supervisor_up", "1 if it beats.", by, [(at, float(one.alive)) for at, one in listed])
    yield _gauge("supervisor_leader", "1 for the one that leads.", by, [(at, float(one.leader)) for at, one in listed])
    ages = [(at, one.beat_age_seconds) for at, one in listed]
    yield _gauge("supervisor_beat_age_seconds", "Seconds since its last beat.", by, ages)
    slots = [(at, float(len(one.ports))) for at, one in listed]
    yield _gauge("supervisor_slots", "Slots that it offers.", by, slots)
    used = [(at, float(len(one.used))) for at, one in listed]
    yield _gauge("supervisor_slots_used", "Slots in which flows run.", by, used)


def _of_flows(seen: ClusterStatus) -> Iterator[Metric]:
    found, by = seen.flows, ("flow",)
    statuses = [([one.name, status.value], float(one.status == status)) for one in found for status in Status]
    yield _gauge("flow_status", "1 for the status that the flow has.", ("flow", "status"), statuses)
    yield _of_flow("flow_version", "Its current version.", found, lambda one: one.version)
    yield _of_flow("flow_workers", "Workers that it may have.", found, lambda one: one.workers)
    yield _of_flow("flow_queries", "Its queries.", found, lambda one: len(one.tasks))
    yield _of_flow("flow_running", "1 if all its queries run.", found, lambda one: one.running)
    yield _of_flow(
        "flow_problem", "1 if it has no place, or fails: see its status.", found, lambda one: bool(one.problem)
    )
    yield _gauge(
        "flow_uptime_seconds",
        "Seconds since it was submitted.",
        by,
        [([o.name], seen.at - o.submitted_at) for o in found],
    )


def _of_flow(name: str, help_: str, found: Iterable[FlowStatus], read: Callable[[FlowStatus], float]) -> Metric:
    return _gauge(name, help_, ("flow",), [([one.name], float(read(one))) for one in found])


def _of_tasks(tasks: list[tuple[str, TaskStatus]]) -> Iterator[Metric]:
    for figure in _TASK:
        told = [([flow, task.group], figure.read(task)) for flow, task in tasks]
        known = [(at, number) for at, number in told if number is not None]
        yield (_counter if figure.counter else _gauge)(figure.name, figure.help, ("flow", "group"), known)
    waiting = [([flow, task.group, what], float(n)) for flow, task in tasks for what, n in task.backlog.items()]
    yield _gauge("backlog", "What waits at the sources, by measure.", ("flow", "group", "measure"), waiting)


def _of_gates(tasks: list[tuple[str, TaskStatus]]) -> Iterator[Metric]:
    found: list[tuple[list[str], Mapping[str, Any]]] = [
        ([flow, task.group, str(gate.get("gate", "")), str(check.get("name", "")), str(check.get("action", ""))], check)
        for flow, task in tasks
        for gate in task.gates
        for check in gate.get("checks", ())
    ]
    by = ("flow", "group", "gate", "check", "action")
    held = [(at, float(not check.get("success", True))) for at, check in found]
    yield _gauge("gate_failing", "1 for a check that the last batch did not hold.", by, held)
    totals = [
        ([flow, task.group, *name.partition("/")[::2]], told)
        for flow, task in tasks
        for name, told in task.checks.items()
    ]
    for name, field, help_ in _CHECKS:
        yield _counter(name, help_, by[:4], [(at, float(told.get(field) or 0)) for at, told in totals])


def _of_workers(tasks: list[tuple[str, TaskStatus]]) -> Iterator[Metric]:
    """Report memory once per worker, however many queries share it."""
    memory = {
        (task.supervisor, str(task.port)): float(task.memory_bytes)
        for _, task in tasks
        if task.memory_bytes is not None and task.supervisor
    }
    samples = [(list(at), number) for at, number in sorted(memory.items())]
    yield _gauge("worker_memory_bytes", "Memory of a worker's processes.", ("supervisor", "port"), samples)


class _Scrapes(BoundedThreads, WSGIServer):
    """Answers each scrape in a thread of its own. None is ever admitted: all of it, answer included, has its time."""

    admit_seconds = 60.0
    waiting_limit = 32


class _Quiet(WSGIRequestHandler):
    """Logs no line per scrape."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class MetricsServer:
    """Answers Prometheus until it is closed; also a context manager.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server, self._thread = server, thread
        self.port = int(server.server_port)

    def close(self) -> None:
        """Stop; a scrape under way is answered."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(nimbus: Watched, port: int) -> MetricsServer:
    """Answer Prometheus on 127.0.0.1, in a thread.

    Figures tell names of hosts and flows: whoever wants them elsewhere puts a proxy in front that asks for a password.

    Args:
        nimbus: Whose figures.
        port: Where; 0: any that is free.

    Raises:
        SettingError: The port is taken, or may not be used.
    """
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry()
    registry.register(collector(nimbus))
    try:
        server = make_server(HOST, port, make_wsgi_app(registry), _Scrapes, handler_class=_Quiet)
    except OSError as error:
        raise SettingError(
            f"metrics cannot be served on port {port} of {HOST}: {error.strerror or error}",
            hint="choose another: TRIDELTA_NIMBUS_METRICS_PORT, or --metrics-port",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return MetricsServer(server, thread)
