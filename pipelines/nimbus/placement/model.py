"""The input and output of the assignment planner: supervisors, what a flow demands, and its assignment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["NEW", "REBALANCE", "MONITOR"]
ComponentKind = Literal["spout", "bolt", "system", "master"]

MASTER = "__topology_master"
SUPERVISOR_TIMEOUT_SECONDS = 180.0
"""How long a supervisor may be silent (Nimbus rules 4)."""


@dataclass(frozen=True)
class Supervisor:
    """A host's supervisor and its slots.

    Args:
        id: Its name in assignments.
        ports: All its slots.
        used: Slots that any flow holds. Those of the planned flow itself may be among them or not.
        host: The host that it stands on; by default its id.
        silent_seconds: How long ago it was last heard of.
    """

    id: str
    ports: Sequence[int]
    used: Sequence[int] = ()
    host: str = ""
    silent_seconds: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ports", tuple(dict.fromkeys(self.ports)))
        object.__setattr__(self, "used", tuple(self.used))
        object.__setattr__(self, "host", self.host or self.id)


@dataclass(frozen=True)
class Component:
    """A kind of task of a flow.

    Args:
        id: Its name in the flow.
        tasks: How many of it there are.
        kind: spout, bolt, system or master (the flow's own watcher). No id that begins with `__` is a bolt's, whatever is
            said: `__topology_master` is the master's, the others are system components'. Other ids are bolts' by default.
        inputs: The components that a bolt reads.
        different_nodes: No two of its tasks may stand on one host.
    """

    id: str
    tasks: int
    kind: ComponentKind | None = None
    inputs: Sequence[str] = ()
    different_nodes: bool = False

    def __post_init__(self) -> None:
        _check_tasks(f"component {self.id}", self.tasks)
        object.__setattr__(self, "inputs", tuple(self.inputs))
        kind = "bolt" if self.kind is None else self.kind
        if kind not in get_args(ComponentKind):
            raise ValueError(
                f"component {self.id}: its kind is one of {', '.join(get_args(ComponentKind))}, not {kind!r}"
            )
        if kind == "bolt" and self.id.startswith("__"):
            # Rules 5.1.3, 5.2 and 5.4 go by the id.
            kind = "master" if self.id == MASTER else "system"
        object.__setattr__(self, "kind", kind)

    @property
    def system(self) -> bool:
        """Placed last, and without regard to what it reads."""
        return self.kind in ("system", "master")


@dataclass(frozen=True)
class UserWorker:
    """A worker as the user wants it (Nimbus rules 5.3.2).

    Args:
        components: How many tasks of each component: the first ones that no earlier worker of the list takes.
        host: Where (a supervisor's host or id); anywhere if empty, and elsewhere if the host is full.
        port: Which slot, if it is free.
    """

    components: Mapping[str, int]
    host: str = ""
    port: int | None = None

    def __post_init__(self) -> None:
        for name, tasks in self.components.items():
            _check_tasks(f"user-defined worker: component {name}", tasks)


@dataclass(frozen=True)
class Demand:
    """A flow's request to the planner.

    Args:
        flow: Its name.
        components: What it consists of.
        workers: The most workers it wants; one per task if None (Nimbus rules 5.2).
        user_workers: Workers that the user defines.
        hosts: The only hosts it may use (isolation); all if empty.
        use_old_assignment: Workers come up where they were, with the tasks that they had.
        single_master: Whether the master has a worker of its own; if None, when there are ten workers or more. Nimbus' own
            flows have no master (ADR 125).
    """

    flow: str
    components: Sequence[Component]
    workers: int | None = None
    user_workers: Sequence[UserWorker] = ()
    hosts: Sequence[str] = ()
    use_old_assignment: bool = False
    single_master: bool | None = None

    def __post_init__(self) -> None:
        for name in ("components", "user_workers", "hosts"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        ids = [component.id for component in self.components]
        if twice := sorted({component_id for component_id in ids if ids.count(component_id) > 1}):
            raise ValueError(f"flow {self.flow}: components defined twice: {', '.join(twice)}")
        named = {name for worker in self.user_workers for name in worker.components}
        if unknown := sorted(named - set(ids)):
            raise ValueError(f"flow {self.flow}: user-defined workers name no component of it: {', '.join(unknown)}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"flow {self.flow}: {self.workers} workers")


@dataclass(frozen=True)
class Worker:
    """A worker in its slot, with the ids of its tasks in order."""

    supervisor: str
    port: int
    tasks: tuple[int, ...]
    host: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(sorted(self.tasks)))
        object.__setattr__(self, "host", self.host or self.supervisor)

    @property
    def slot(self) -> tuple[str, int]:
        return self.supervisor, self.port


@dataclass(frozen=True)
class Assignment:
    """The worker of each task of a flow.

    Attributes:
        flow: The flow.
        workers: Its workers, ordered by supervisor and port; none is empty.
        components: The component of each task.
        started: When each task was last put where it is, in seconds of the clock that the planner was given.
        moved: Tasks that stand elsewhere than before, new ones among them.
        released: Hosts of the blacklist that had to be used.
        notes: What the planner could not follow, in sentences.
    """

    flow: str
    workers: tuple[Worker, ...]
    components: Mapping[int, str]
    started: Mapping[int, float] = field(default_factory=dict)
    moved: frozenset[int] = frozenset()
    released: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def places(self) -> dict[int, tuple[str, int]]:
        """Return the slot of each task."""
        return {task: worker.slot for worker in self.workers for task in worker.tasks}


def _check_tasks(of: str, tasks: int) -> None:
    """Check a number of tasks: the planner deals them by slices, to which -1 is all but the last."""
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 0:
        raise ValueError(f"{of}: {tasks!r} tasks")


def in_order(workers: Iterable[Worker]) -> tuple[Worker, ...]:
    """Return workers that have tasks, by supervisor and port (Nimbus rules 5.4.7)."""
    return tuple(sorted((worker for worker in workers if worker.tasks), key=lambda worker: worker.slot))
