"""The registry's values (flows, versions, assignments, beats), and the checks before a flow is deployed (Nimbus rules 1.2)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Row

from pipelines.bounds import MESSAGE_TIMEOUT_SECONDS, TASKS, WORKERS, OutOfBoundsError, Range, shown
from pipelines.nimbus.errors import DeployNameError, RebalanceError, SubmitError
from pipelines.nimbus.registry.lifecycle import Due, FlowEvent, Request, Standing, Status, check_timeout


@dataclass(frozen=True)
class Content:
    """The content of a version of a flow.

    Attributes:
        definition: The flow, or where it is found; Nimbus does not look inside. Plain JSON values.
        components: Every component with its number of executors.
        settings: The flow's settings. `message_timeout_seconds` is the delay of a kill or rebalance that names none.
    """

    definition: Mapping[str, Any]
    components: Mapping[str, int]
    workers: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """One version of a deployed flow.

    Attributes:
        number: From 1; only grows.
        created_at: Seconds since 1970.
        before: The version that a roll back from this one returns to; None for the first.
        copy_of: The version whose content a roll back brought back; None for a submission or an update.
    """

    number: int
    content: Content
    created_at: float
    before: int | None = None
    copy_of: int | None = None


@dataclass(frozen=True)
class DeployedFlow:
    """A deployed flow.

    Attributes:
        serial: The number of its submission; larger than every earlier one.
        submitted_at: Seconds since 1970.
        standing: Its status and what is due.
        scale: What rebalances have set on top of the version.
        scratch: Its next assignment is to be made from scratch, not only for the tasks that are dead.
        removed_at: When it was removed; None while it is alive.
        problem: Why it has no place, or not the one that was asked for, in a sentence.
    """

    serial: int
    name: str
    submitted_at: float
    standing: Standing
    version: Version
    scale: Request
    scratch: bool = False
    removed_at: float | None = None
    problem: str | None = None

    @property
    def id(self) -> str:
        """`name-serial-seconds`, as the original names it (Nimbus rules 1.2)."""
        return flow_id(self.name, self.serial, self.submitted_at)

    @property
    def status(self) -> Status:
        """Return the flow's status."""
        return self.standing.status

    @property
    def workers(self) -> int:
        """The number of workers that it is to have now."""
        return self.scale.workers or self.version.content.workers

    @property
    def parallelism(self) -> dict[str, int]:
        """Every component with the number of executors that it is to have now."""
        return {**self.version.content.components, **self.scale.parallelism}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that hold now."""
        return {**self.version.content.settings, **self.scale.settings}

    def with_content(self, content: Content, said: Request) -> DeployedFlow:
        """Return it with another content.

        Args:
            said: The part of it that was named: there, what rebalances have set holds no more. The rest stays, but for
                components that are gone.
        """
        scale = self.scale
        there = {c: n for c, n in scale.parallelism.items() if c in content.components or c.startswith("__")}
        kept = Request(
            scale.workers if said.workers is None else None,
            {component: number for component, number in there.items() if component not in said.parallelism},
            without_gone(
                _rebalanced(scale.settings, said.settings, self.version.content.settings, content.settings),
                content.components,
                query_of_task(content.definition.get("queries")).values(),
            ),
        )
        return replace(self, version=replace(self.version, content=content), scale=kept)


@dataclass(frozen=True)
class Happened:
    """One line of a flow's history; `detail` is plain data, by the event."""

    at: float
    event: str
    from_status: Status | None
    to_status: Status | None
    version: int
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerRecord:
    """A worker of one flow: its slot and the tasks that run in it.

    Attributes:
        started_at: Task to the time since when it is here.
    """

    supervisor: str
    port: int
    tasks: tuple[int, ...]
    started_at: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AssignmentRecord:
    """The assignment of a flow: where it runs.

    Attributes:
        revision: From 1; grows with each new assignment of the flow.
        kind: NEW, REBALANCE or MONITOR.
        version: The flow's version that it was made for.
        made_at: Seconds since 1970.
        workers: By supervisor and port.
        queries: The query of each task, in that version: another one may give other numbers.
    """

    revision: int
    kind: str
    version: int
    made_at: float
    workers: tuple[WorkerRecord, ...]
    queries: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SupervisorBeat:
    """A supervisor at its last beat; `blacklisted`: the leader leaves its host out (Nimbus rules 2.6)."""

    supervisor: str
    host: str
    ports: tuple[int, ...]
    started_at: float
    beat_at: float
    blacklisted: bool = False


@dataclass(frozen=True)
class TaskBeat:
    """The last beat of a task, with the token it ran under and its figures (batch, lag, rows per second)."""

    task: int
    supervisor: str
    port: int
    token: int
    beat_at: float
    figures: Mapping[str, Any]


def merged(before: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others on top: of a table its entries, and nothing of it under one that is empty."""
    tables = {
        name: {**before[name], **table}
        for name, table in asked.items()
        if table and isinstance(table, Mapping) and isinstance(before.get(name), Mapping)
    }
    return {**before, **asked, **tables}


def without_gone(settings: Mapping[str, Any], components: Collection[str], queries: Collection[str]) -> dict[str, Any]:
    """Return settings without what they say of components and queries that are gone."""
    kept = dict(settings)
    try:
        if columns := settings.get("clustering"):
            kept["clustering"] = {state: named for state, named in columns.items() if state in components}
        if workers := settings.get("user_workers"):
            parts = [{query: n for query, n in worker["components"].items() if query in queries} for worker in workers]
            kept["user_workers"] = [
                {**worker, "components": part} for worker, part in zip(workers, parts, strict=True) if part
            ]
    except (AttributeError, KeyError, TypeError):
        # Written by another release: the error comes where it is used.
        return dict(settings)
    # One of which nothing is left says nothing. Empty from the start it says "none".
    return {name: value for name, value in kept.items() if value or not settings[name]}


def _rebalanced(
    scale: Mapping[str, Any], said: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what rebalances have set, but for what is said; a table is kept whole, and goes over entry by entry.

    Args:
        before, now: The settings of the version that they were set on, and of the next.
    """
    settings = {name: value for name, value in scale.items() if name not in said}
    for name, held in scale.items():
        named = said.get(name, ())
        if not isinstance(held, Mapping) or (name in said and not (named and isinstance(named, Mapping))):
            continue
        old, new = _table(before, name), _table(now, name)
        there = {entry: value for entry, value in new.items() if entry in held or entry not in old or entry in named}
        own = {
            entry: value
            for entry, value in held.items()
            if entry not in named and (entry not in old or old[entry] != value)
        }
        settings[name] = there | own
        if settings[name] == new:
            del settings[name]
    return settings


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    # Another release may have written the settings.
    table = settings.get(name) if isinstance(settings, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def flow_id(name: str, serial: int, submitted_at: float) -> str:
    """Return the id of a submission."""
    return f"{name}-{serial}-{int(submitted_at)}"


def standing_of(row: Row[Any]) -> Standing:
    """Return the standing that a row of `flows` keeps."""
    return Standing(
        flow=flow_id(row.name, row.serial, row.submitted_at),
        status=Status(row.status),
        previous=Status(row.previous_status) if row.previous_status else None,
        wait_seconds=row.wait_seconds,
        due=Due(FlowEvent(row.due_event), row.due_at) if row.due_event else None,
        request=Request.from_json(row.request) if row.request is not None else None,
    )


def standing_columns(standing: Standing) -> dict[str, Any]:
    """Return the inverse of `standing_of`, as columns of `flows`."""
    return {
        "status": standing.status.value,
        "previous_status": standing.previous.value if standing.previous else None,
        "wait_seconds": standing.wait_seconds,
        "due_event": standing.due.event.value if standing.due else None,
        "due_at": standing.due.at if standing.due else None,
        "request": standing.request.to_json() if standing.request else None,
    }


def query_of_task(queries: Any) -> dict[int, str]:
    """Return the query of each task, from `queries` of a version's definition; none where they cannot be read."""
    try:
        return {task: query["group"] for task, query in enumerate(queries or (), start=1)}
    except (KeyError, TypeError):
        return {}


def version_of(row: Row[Any]) -> Version:
    """Return a row of `versions`."""
    content = Content(row.definition, row.components, row.workers, row.settings)
    return Version(row.number, content, row.created_at, row.before, row.copy_of)


NAME_PATTERN = r"^[^/.:\\]+$"


def check_name(name: object) -> str:
    """Check that a flow can be deployed under a name. Returns the name.

    Raises:
        DeployNameError: It is not text, is empty, or has one of `/ . : \\` in it.
    """
    # A full match: a bare `$` would let a line break at the end pass.
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN[1:-1], name):
        raise DeployNameError("null" if name is None else name, NAME_PATTERN)
    return name


def check_first(name: str, status: Status) -> None:
    """Check that a flow can start with a status."""
    if status not in (Status.ACTIVE, Status.INACTIVE):
        raise SubmitError(name, f"Initial status of a topology must be ACTIVE or INACTIVE, not {status}")


def check_content(name: str, content: Content) -> None:
    """Check that the content asks for what a flow may have.

    Raises:
        SubmitError: There are no components, a number is not above 0, or a value is not JSON.
    """
    if not content.components:
        raise SubmitError(name, "a topology needs at least one component")
    for what, number in [("workers", content.workers), *content.components.items()]:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SubmitError(name, f"the number of {what} must be greater than 0, not {shown(number)}")
        _check(name, f"the number of {what}", number, WORKERS if what == "workers" else TASKS)
    _check_values(name, content)


def wait_taken(name: str, wait_seconds: float | None) -> float | None:
    """Return for how long to wait, also of a number as text; a negative one means the default (Nimbus rules 4)."""
    return None if wait_seconds is None else _check(name, "wait_seconds", wait_seconds, MESSAGE_TIMEOUT_SECONDS)


def _check(name: str, what: str, number: object, limit: Range) -> Any:
    try:
        return limit.taken(number)
    except OutOfBoundsError as error:
        raise SubmitError(name, f"{what} {error}") from None


def _check_values(name: str, content: Content) -> None:
    try:
        # NaN is not JSON, and PostgreSQL refuses it where SQLite takes it.
        json.dumps([dict(content.definition), dict(content.settings)], allow_nan=False)
        _check_texts(name, content)
        check_timeout(name, content.settings)
    except (TypeError, ValueError) as error:
        raise SubmitError(name, f"definition and settings must be plain JSON values: {error}") from error
    except RebalanceError as error:
        raise SubmitError(name, error.problem) from error


# Half of a surrogate pair: what Python makes of a file's name that is not UTF-8.
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


def _check_texts(name: str, content: Content) -> None:
    """Refuse texts that PostgreSQL takes and does not give back: each query that looks into such a value fails."""
    parts = {"definition": content.definition, "settings": content.settings, "components": content.components}
    for what, part in parts.items():
        for text in _texts(part):
            if _UNREADABLE.search(text):
                problem = (
                    "half a character or one of code 0, which no registry can keep: give files and folders other names"
                )
                raise SubmitError(name, f"its {what} holds {shown(text)}: {problem}")


def _texts(value: object) -> Iterator[str]:
    """Return the texts in a JSON value, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from _texts(key)
            yield from _texts(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _texts(held)
