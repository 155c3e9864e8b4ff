"""The statuses of deployed flows for people and scripts. Values of one look; plain data by `to_json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipelines.private import masked_settings

# Where a task stands, as its worker says; the last two nobody says: they follow from what is missing.
STARTING, REPARTITIONING, RUNNING = "starting", "repartitioning", "running"
DRAINING, DRAINED, FAILED = "draining", "drained", "failed"
ASSIGNED, SILENT = "assigned", "silent"
# How a flow's problem begins where it is one of its places: its queries may run meanwhile, or die.
UNPLACED, STAYS = "it cannot be placed: ", "it stays where it is: "


@dataclass
class CheckStatus:
    """The results of a gate's check since the query started.

    Attributes:
        batches: How often it was asked.
        rows: Rows that it has checked.
        unexpected: How many of these violate it.
        failures: Batches in which it did not hold.
        last_failed: The last of these, by txid.
        said: What it said there.
        detail: Some of the rows that it found wrong last, if the result brought any: up to 4,000 characters of JSON.
    """

    batches: int = 0
    rows: int = 0
    unexpected: int = 0
    failures: int = 0
    last_failed: int | None = None
    said: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskStatus:
    """One streaming query of a deployed flow.

    Attributes:
        task: Its number in the flow, from 1.
        group: Its batch group.
        state: assigned (its worker has not said anything yet), starting (also while the version before reads to its end),
            repartitioning, running, draining, drained, failed (it will be tried again), silent (its worker has not beaten
            within the task time-out).
        supervisor, port, pid: Its worker. Without a place the supervisor is empty and the port 0.
        beat_age_seconds: Since its last beat; None before the first.
        txid, attempt: Its last finished batch; None before the first.
        batches, rows: Since its worker started it.
        rows_per_second: Over the last batches.
        batch_seconds: What the last batch took.
        trigger_seconds: How often a batch is to begin.
        lag_seconds: How long ago it had nothing left to read; 0 while it keeps up.
        backlog: What waits at its sources, in the sources' own measures (files, bytes, records).
        gone: Folders and tables that it reads and that are not there.
        state_rows: Rows of its windows' state: in Spark's state store where they read a channel, else one per key or open span;
            None for a query without windows.
        partitions: Shuffle partitions; None before the first batch, and where Spark keeps no state.
        skew: Rows of the largest partition of Spark's state over the average one; windows in the batch have none.
        quarantined: Rows, since its worker started it.
        gates: The last batch's gate results.
        checks: By `gate/check` what each check has said since its worker started it (`CheckStatus`).
        last_error: Why it failed last; None if it has not since it last came through.
        last_batch_at: When its last batch ended, in seconds since 1970.
        begun_at: Since when it is to run: it came to its worker then, or its flow was activated. Workers of earlier releases do
            not say it.
        no_trigger_since: Since when it starts, or runs, and no trigger of it has ended; None: one has, or it waits for the
            version before. Workers of earlier releases do not say it.
        memory_bytes: memory of its worker's processes, shared by all that runs in it.
        restarts: How often its query was started again after a failure.
        version: The flow's version that it runs; None before the first beat.
        failing: Whether it has failed and not come through since: also in its next attempts.
    """

    task: int
    group: str
    state: str
    supervisor: str = ""
    port: int = 0
    pid: int | None = None
    beat_age_seconds: float | None = None
    txid: int | None = None
    attempt: int | None = None
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    batch_seconds: float | None = None
    trigger_seconds: float = 0.0
    lag_seconds: float | None = None
    backlog: Mapping[str, float] = field(default_factory=dict)
    gone: Sequence[str] = ()
    state_rows: int | None = None
    partitions: int | None = None
    skew: float | None = None
    quarantined: int = 0
    gates: tuple[Mapping[str, Any], ...] = ()
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    last_error: str | None = None
    last_batch_at: float | None = None
    begun_at: float | None = None
    no_trigger_since: float | None = None
    memory_bytes: int | None = None
    restarts: int = 0
    version: int | None = None
    failing: bool = False


@dataclass(frozen=True)
class FlowStatus:
    """A deployed flow and its queries.

    Attributes:
        name, id: The flow, and this submission of it.
        status: ACTIVE, INACTIVE, REBALANCING or KILLED.
        previous: While REBALANCING: what it returns to.
        version: Its current version.
        workers: How many it may have.
        parallelism: By component (streams and states).
        settings: Those that hold now.
        submitted_at: Seconds since 1970.
        tasks: By number.
        problem: Why it has no place, or what else is wrong, in a sentence.
        due_event, due_at: What comes by itself (DO_REBALANCE, REMOVE), and when, in seconds since 1970.
        waits: Whether it asks, by an update or a rebalance of its own, for places that it does not have yet.
    """

    name: str
    id: str
    status: str
    version: int
    workers: int
    parallelism: Mapping[str, int]
    settings: Mapping[str, Any]
    submitted_at: float
    tasks: tuple[TaskStatus, ...] = ()
    previous: str | None = None
    problem: str | None = None
    due_event: str | None = None
    due_at: float | None = None
    waits: bool = False

    @property
    def running(self) -> bool:
        """Return whether every query runs, in the current version: after a change the former one runs on for a moment."""
        return bool(self.tasks) and all(
            task.state == RUNNING and task.version in (None, self.version) for task in self.tasks
        )

    @property
    def active(self) -> bool:
        """Return whether it is ACTIVE, or returns to that after its rebalance."""
        return "ACTIVE" in (self.status, self.previous)

    @property
    def stopped(self) -> bool:
        """Return whether no query runs, and none is starting or stopping."""
        return all(task.state in (DRAINED, ASSIGNED) for task in self.tasks)

    @property
    def txid(self) -> int | None:
        """The highest finished batch of its queries."""
        return max((task.txid for task in self.tasks if task.txid is not None), default=None)

    @property
    def rows_per_second(self) -> float:
        """Rows per second of all its queries together."""
        return sum(task.rows_per_second for task in self.tasks)

    @property
    def lag_seconds(self) -> float | None:
        """The longest lag of its queries."""
        return max((task.lag_seconds for task in self.tasks if task.lag_seconds is not None), default=None)

    @property
    def gone(self) -> str | None:
        """The sources of its queries that are not there, in a sentence."""
        paths = list(dict.fromkeys(path for task in self.tasks for path in task.gone))
        return f"what it reads is gone: {', '.join(paths)}" if paths else None

    @property
    def last_error(self) -> str | None:
        """The last error of the first query that has one."""
        return next((task.last_error for task in self.tasks if task.last_error), None)

    @property
    def whereabouts(self) -> str:
        """Return where it stands, in words: its status, its queries, what is wrong."""
        states = ", ".join(f"{task.group} {task.state}" for task in self.tasks) or "no queries"
        why = self.problem or self.last_error
        return f"{self.status}; {states}" + (f"; {why}" if why else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the properties."""
        derived = {
            "running": self.running,
            "txid": self.txid,
            "rows_per_second": self.rows_per_second,
            "lag_seconds": self.lag_seconds,
            "last_error": self.last_error,
        }
        return asdict(self) | derived | {"settings": masked_settings(self.settings)}


@dataclass(frozen=True)
class SupervisorStatus:
    """A host's supervisor.

    Attributes:
        id, host: Its name, and where it stands.
        ports: Its slots.
        used: Slot to the flows that run there.
        alive: Whether it has beaten within the supervisor time-out.
        beat_age_seconds: Since its last beat.
        started_at: Seconds since 1970.
        leader: Whether it leads: fires what is due, watches, plans.
        blacklisted: Whether its host has failed again and again: for a while it gets flows only if others have no slots.
    """

    id: str
    host: str
    ports: tuple[int, ...]
    used: Mapping[int, tuple[str, ...]]
    alive: bool
    beat_age_seconds: float
    started_at: float
    leader: bool = False
    blacklisted: bool = False


@dataclass(frozen=True)
class ClusterStatus:
    """All of one registry at one time (seconds since 1970)."""

    at: float
    leader: str | None
    supervisors: tuple[SupervisorStatus, ...]
    flows: tuple[FlowStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "at": self.at,
            "leader": self.leader,
            "supervisors": [asdict(supervisor) for supervisor in self.supervisors],
            "flows": [flow.to_json() for flow in self.flows],
        }
