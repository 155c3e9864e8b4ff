"""Figures of deployed flows for Prometheus, on a port of this host alone.

Each scrape looks at the registry again, so any supervisor can answer for the whole of it. Counters are those of the workers:
they begin at 0 again when a worker starts, as Prometheus expects of counters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from pipelines.nimbus.errors import NimbusError, SettingError
from pipelines.nimbus.handover.loopback import HOST, BoundedThreads
from pipelines.nimbus.registry.lifecycle import Status
from pipelines.nimbus.status import RUNNING, ClusterStatus, TaskStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from pipelines.nimbus.cluster import Cluster
    from pipelines.nimbus.nimbus import Nimbus


@dataclass(frozen=True)
class _Figure:
    """One figure of a status: its metric's name, help and kind, and how it is read; None is left out."""

    name: str
    help: str
    read: Callable[[Any], float | None]
    counter: bool = False


_SUPERVISOR = (
    _Figure("supervisor_up", "1 if it beats.", lambda task: task.alive),
    _Figure("supervisor_leader", "1 for the one that leads.", lambda task: task.leader),
    _Figure("supervisor_beat_age_seconds", "Seconds since its last beat.", lambda task: task.beat_age_seconds),
    _Figure("supervisor_slots", "Slots that it offers.", lambda task: len(task.ports)),
    _Figure("supervisor_slots_used", "Slots in which flows run.", lambda task: len(task.used)),
)
_FLOW = (
    _Figure("flow_version", "Its current version.", lambda flow: flow.version),
    _Figure("flow_workers", "Workers that it may have.", lambda flow: flow.workers),
    _Figure("flow_queries", "Its queries.", lambda flow: len(flow.tasks)),
    _Figure("flow_running", "1 if all its queries run.", lambda flow: flow.running),
    _Figure("flow_problem", "1 if it has no place, or fails: see its status.", lambda flow: bool(flow.problem)),
)


_TASK = (
    _Figure("batches", "Batches finished since the worker started the query.", lambda task: task.batches, True),
    _Figure("rows", "Rows read from the sources since the worker started the query.", lambda task: task.rows, True),
    _Figure("quarantined", "Rows that gates and readers sent to quarantine.", lambda task: task.quarantined, True),
    _Figure("restarts", "Starts of the query after a failure.", lambda task: task.restarts, True),
    _Figure("rows_per_second", "Rows per second over the last batches.", lambda task: task.rows_per_second),
    _Figure("batch_seconds", "Seconds that the last batch took.", lambda task: task.batch_seconds),
    _Figure("trigger_seconds", "Seconds from the begin of one batch to the next.", lambda task: task.trigger_seconds),
    _Figure(
        "lag_seconds", "Seconds since the query had nothing left to read; 0: it keeps up.", lambda t: t.lag_seconds
    ),
    _Figure("txid", "Number of the last finished batch.", lambda task: task.txid),
    _Figure("attempt", "Attempt of the last finished batch, from 0.", lambda task: task.attempt),
    _Figure("last_batch_timestamp_seconds", "When the last batch ended, since 1970.", lambda one: one.last_batch_at),
    _Figure("state_rows", "Rows of the state of the query's windows.", lambda one: one.state_rows),
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


def collector(nimbus: Nimbus | Cluster) -> Collector:
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
            supervisors = [([supervisor.id, supervisor.host], supervisor) for supervisor in seen.supervisors]
            yield from _of_each(_SUPERVISOR, ("supervisor", "host"), supervisors)
            yield from _of_flows(seen)
            tasks = [(flow.name, task) for flow in seen.flows for task in flow.tasks]
            yield from _of_tasks(tasks)
            yield from _of_gates(tasks)
            yield from _of_workers(tasks)

        def describe(self) -> Iterable[Metric]:
            # Else the names are found out by a scrape when the collector is registered.
            return []

    return Deployed()


def _metric(
    name: str,
    help_: str,
    labels: Iterable[str],
    samples: Iterable[tuple[list[str], float | None]],
    *,
    counter: bool = False,
) -> Metric:
    """Return a metric with its samples; those that are None are left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made = (CounterMetricFamily if counter else GaugeMetricFamily)(f"tridelta_{name}", help_, labels=list(labels))
    for values, number in samples:
        if number is not None:
            made.add_metric(values, float(number))
    return made


def _of_each(
    figures: Iterable[_Figure], labels: tuple[str, ...], listed: Sequence[tuple[list[str], Any]]
) -> Iterator[Metric]:
    """Return a metric per figure, with a sample per labelled status."""
    for figure in figures:
        samples = [(at, figure.read(status)) for at, status in listed]
        yield _metric(figure.name, figure.help, labels, samples, counter=figure.counter)


def _of_flows(seen: ClusterStatus) -> Iterator[Metric]:
    flows = seen.flows
    statuses = [([flow.name, status.value], flow.status == status) for flow in flows for status in Status]
    yield _metric("flow_status", "1 for the status that the flow has.", ("flow", "status"), statuses)
    yield from _of_each(_FLOW, ("flow",), [([flow.name], flow) for flow in flows])
    ages = [([flow.name], seen.at - flow.submitted_at) for flow in flows]
    yield _metric("flow_uptime_seconds", "Seconds since it was submitted.", ("flow",), ages)


def _of_tasks(tasks: list[tuple[str, TaskStatus]]) -> Iterator[Metric]:
    yield from _of_each(_TASK, ("flow", "group"), [([flow, task.group], task) for flow, task in tasks])
    waiting = [([flow, task.group, what], n) for flow, task in tasks for what, n in task.backlog.items()]
    yield _metric("backlog", "What waits at the sources, by measure.", ("flow", "group", "measure"), waiting)


def _of_gates(tasks: list[tuple[str, TaskStatus]]) -> Iterator[Metric]:
    checks: list[tuple[list[str], Mapping[str, Any]]] = [
        ([flow, task.group, str(gate.get("gate", "")), str(check.get("name", "")), str(check.get("action", ""))], check)
        for flow, task in tasks
        for gate in task.gates
        for check in gate.get("checks", ())
    ]
    by = ("flow", "group", "gate", "check", "action")
    held = [(at, not check.get("success", True)) for at, check in checks]
    yield _metric("gate_failing", "1 for a check that the last batch did not hold.", by, held)
    totals = [
        ([flow, task.group, *name.partition("/")[::2]], counts)
        for flow, task in tasks
        for name, counts in task.checks.items()
    ]
    for name, field, help_ in _CHECKS:
        yield _metric(name, help_, by[:4], [(at, counts.get(field) or 0) for at, counts in totals], counter=True)


def _of_workers(tasks: list[tuple[str, TaskStatus]]) -> Iterator[Metric]:
    """Report memory once per worker, however many queries share it."""
    memory = {
        (task.supervisor, str(task.port)): task.memory_bytes
        for _, task in tasks
        if task.memory_bytes is not None and task.supervisor
    }
    samples = [(list(at), number) for at, number in sorted(memory.items())]
    yield _metric("worker_memory_bytes", "Memory of a worker's processes.", ("supervisor", "port"), samples)


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


def serve(nimbus: Nimbus | Cluster, port: int) -> MetricsServer:
    """Answer Prometheus on 127.0.0.1, in a thread.

    Figures tell names of hosts and flows: whoever wants them elsewhere puts a proxy in front that asks for a password.

    Args:
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
