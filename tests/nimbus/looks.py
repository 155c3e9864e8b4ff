"""Looks at deployed flows as a Nimbus would give them, for tests of what people see."""

from __future__ import annotations

from pipelines.nimbus.status import ClusterStatus, FlowStatus, SupervisorStatus, TaskStatus

NOW = 1_800_000_000.0

GATE = {
    "gate": "accepted",
    "success": False,
    "checks": [
        {"name": "origin_is_there", "action": "drop", "success": False, "rows": 500, "unexpected": 3},
        {"name": "few_are_cancelled", "action": "warn", "success": True, "rows": 500, "unexpected": 0},
        {"name": "table_is_long", "action": "warn", "success": True, "rows": None, "unexpected": None},
    ],
}

RUNNING = TaskStatus(
    task=1,
    group="flights",
    state="running",
    supervisor="s1",
    port=6900,
    pid=4711,
    beat_age_seconds=0.4,
    txid=41,
    attempt=1,
    batches=12,
    rows=6000,
    rows_per_second=250.5,
    batch_seconds=2.0,
    trigger_seconds=5.0,
    lag_seconds=7.5,
    backlog={"files": 3.0, "bytes": 4096.0},
    state_rows=64,
    partitions=4,
    skew=1.25,
    quarantined=9,
    gates=(GATE,),
    checks={
        "accepted/origin_is_there": {"batches": 12, "rows": 6000, "unexpected": 9, "failures": 4, "last_failed": 41},
        "accepted/table_is_long": {"batches": 12, "rows": 0, "unexpected": 0, "failures": 0, "last_failed": None},
    },
    last_error=None,
    last_batch_at=NOW - 3,
    memory_bytes=900_000_000,
    restarts=1,
)
SILENT = TaskStatus(
    task=2, group="weather", state="silent", supervisor="s1", port=6900, beat_age_seconds=31.0, memory_bytes=900_000_000
)


def flow(name: str = "flights", *tasks: TaskStatus, **other: object) -> FlowStatus:
    """A deployed flow."""
    values: dict[str, object] = {
        "id": f"{name}-1-{int(NOW)}",
        "status": "ACTIVE",
        "version": 2,
        "workers": 1,
        "parallelism": {"flights": 2, "departures": 1},
        "settings": {"trigger_seconds": 5.0},
        "submitted_at": NOW - 3600,
    }
    return FlowStatus(name=name, tasks=tuple(tasks), **(values | other))  # type: ignore[arg-type]


def cluster(*flows: FlowStatus) -> ClusterStatus:
    """Two supervisors, of which one is dead."""
    used = {6900: tuple(one.name for one in flows)} if flows else {}
    return ClusterStatus(
        at=NOW,
        leader="s1",
        supervisors=(
            SupervisorStatus("s1", "here", (6900, 6901), used, True, 0.5, NOW - 7200, leader=True),
            SupervisorStatus("s2", "there", (6900,), {}, False, 90.0, NOW - 7200, blacklisted=True),
        ),
        flows=flows,
    )
