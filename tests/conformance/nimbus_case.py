"""Small clusters, flows and standing assignments, for the rules of the planner."""

from collections.abc import Iterable

from pipelines.nimbus import (
    Assignment,
    Component,
    Demand,
    Supervisor,
    Worker,
)

MASTER = Component("__topology_master", 1)


def hosts(*ports: int) -> list[Supervisor]:
    """Empty supervisors s1, s2, ... with so many slots."""
    return [Supervisor(f"s{n}", range(1, count + 1)) for n, count in enumerate(ports, start=1)]


def flow(tasks: int = 4, workers: int | None = 2, **more: object) -> Demand:
    """A flow of one bolt."""
    return Demand("f", [Component("b", tasks)], workers, **more)  # type: ignore[arg-type]


def stood(*workers: tuple[str, int, Iterable[int]], name: str = "b", started: float = 1.0) -> Assignment:
    """An old assignment of a flow of one component."""
    made = tuple(Worker(supervisor, port, tuple(tasks)) for supervisor, port, tasks in workers)
    tasks = [task for one in made for task in one.tasks]
    return Assignment("f", made, dict.fromkeys(tasks, name), dict.fromkeys(tasks, started))


def loads(found: Assignment) -> list[int]:
    return sorted(len(one.tasks) for one in found.workers)


def spread(found: Assignment) -> dict[str, int]:
    """The number of workers on each supervisor."""
    on = [one.supervisor for one in found.workers]
    return {name: on.count(name) for name in sorted(set(on))}


def placed(found: Assignment) -> dict[tuple[str, int], tuple[int, ...]]:
    return {one.slot: one.tasks for one in found.workers}


def groups(found: Assignment) -> list[tuple[int, ...]]:
    return sorted(one.tasks for one in found.workers)
