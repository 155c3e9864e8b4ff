"""Deployed flows on the screen: their state, their queries, their gates, what happened to them."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ops.cli import rendering
from pipelines.nimbus.errors import RegistryError
from pipelines.printable import plain
from pipelines.private import masked_settings

if TYPE_CHECKING:
    from pipelines.nimbus.registry.records import Happened, Version
    from pipelines.nimbus.status import ClusterStatus, FlowStatus, SupervisorStatus, TaskStatus

_COLOURS = {
    "ACTIVE": "green",
    "running": "green",
    "REBALANCING": "yellow",
    "INACTIVE": "dim",
    "KILLED": "red",
    "failed": "red",
    "silent": "red",
}

# Columns of queries that are empty on a good day.
_RARE = ("attempt", "waiting", "quarantined", "state rows", "restarts")
_NOTHING = ("", "0", 0, None)


def span(seconds: float | None) -> str:
    """Format a time for people: `0.4 s`, `12 s`, `3 min`, `2.5 h`, `4 d`."""
    if seconds is None:
        return ""
    for limit, unit, measure in ((10, "s", 1.0), (120, "s", 1.0), (7200, "min", 60.0), (172_800, "h", 3600.0)):
        if abs(seconds) < limit:
            return f"{seconds / measure:.1f} {unit}" if limit in (10, 172_800) else f"{seconds / measure:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def clock(seconds: float | None) -> str:
    """Format a time of day, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}" if seconds is not None else ""


def size(number: float | None) -> str:
    """Format bytes for people."""
    if number is None:
        return ""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:.0f} {unit}"


def flow_line(flow: FlowStatus) -> dict[str, Any]:
    """Return a flow as one line."""
    running = sum(task.state == "running" for task in flow.tasks)
    return {
        "flow": flow.name,
        "status": flow.status,
        "version": flow.version,
        "queries": f"{running} of {len(flow.tasks)} run" if flow.tasks else "",
        "batch": "" if flow.txid is None else str(flow.txid),
        "lag": span(flow.lag_seconds),
        "rows/s": round(flow.rows_per_second, 1),
        "problem": flow.problem or flow.gone or _first_line(flow.last_error),
    }


def listed(flow: FlowStatus) -> dict[str, Any]:
    """Return what the list of all flows says of a deployed one."""
    row = {"status": flow.status, "version": flow.version, "running": flow.running, "txid": flow.txid}
    return row | {"problem": flow.problem}


def task_line(task: TaskStatus) -> dict[str, Any]:
    """Return a query as one line."""
    return {
        "query": task.group,
        "state": task.state,
        "where": f"{task.supervisor}:{task.port}" if task.supervisor else "",
        "batch": "" if task.txid is None else str(task.txid),
        "attempt": "" if task.attempt is None else str(task.attempt),
        "rows": task.rows,
        "rows/s": task.rows_per_second,
        "batch time": f"{span(task.batch_seconds)} of {span(task.trigger_seconds)}" if task.batch_seconds else "",
        "lag": span(task.lag_seconds),
        "waiting": ", ".join(_waiting(what, number) for what, number in task.backlog.items()),
        "quarantined": task.quarantined,
        "state rows": task.state_rows,
        "memory": size(task.memory_bytes),
        "restarts": task.restarts,
        "beat": span(task.beat_age_seconds),
    }


def lean(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines without the columns that say nothing in any of them: a terminal is narrow."""
    empty = {name for name in _RARE if all(line.get(name) in _NOTHING for line in lines)}
    return [{name: value for name, value in line.items() if name not in empty} for line in lines]


def gate_lines(flow: FlowStatus) -> list[dict[str, Any]]:
    """Return what the gates said of each query's last batch."""
    return [
        {
            "query": task.group,
            "gate": gate.get("gate"),
            "check": check.get("name"),
            "action": check.get("action"),
            "rows": check.get("rows"),
            "unexpected": check.get("unexpected"),
            "holds": "yes" if check.get("success") else "no",
            "failed batches": _failures(task, gate, check),
        }
        for task in flow.tasks
        for gate in task.gates
        for check in gate.get("checks", ())
    ]


def _failures(task: TaskStatus, gate: Mapping[str, Any], check: Mapping[str, Any]) -> str:
    """Return in how many batches a check failed, since its worker started it."""
    counts = task.checks.get(f"{gate.get('gate')}/{check.get('name')}")
    return f"{counts['failures']} of {counts['batches']}" if counts else ""


def supervisor_line(supervisor: SupervisorStatus) -> dict[str, Any]:
    """Return a supervisor as one line."""
    return {
        "supervisor": supervisor.id,
        "host": supervisor.host,
        "slots": f"{len(supervisor.used)} of {len(supervisor.ports)} used",
        "beat": span(supervisor.beat_age_seconds)
        + ("" if supervisor.alive else ", dead")
        + (", blacklisted" if supervisor.blacklisted else ""),
        "leads": "yes" if supervisor.leader else "",
    }


def cluster(seen: ClusterStatus) -> None:
    """Show all flows and supervisors."""
    rendering.rows("Deployed flows", [flow_line(flow) for flow in seen.flows])
    rendering.rows("Supervisors", [supervisor_line(supervisor) for supervisor in seen.supervisors])


def flow(seen: FlowStatus, history: Sequence[Happened]) -> None:
    """Show one flow, in full."""
    rendering.say(f"{seen.name}: {sentence(seen)}")
    for problem in filter(None, (seen.problem, seen.gone)):
        rendering.say(f"Problem: {problem}")
    if seen.parallelism:
        parallelism = ", ".join(f"{name}={number}" for name, number in seen.parallelism.items())
        rendering.say(f"workers {seen.workers}, parallelism {parallelism}")
    if seen.settings:
        rendering.say(
            "settings " + ", ".join(f"{name}={value}" for name, value in masked_settings(seen.settings).items())
        )
    rendering.rows("Queries", lean([task_line(task) for task in seen.tasks]))
    gates = gate_lines(seen)
    if gates:
        rendering.rows("Gates, last batch", gates)
    for task in seen.tasks:
        if task.last_error:
            rendering.say(f"\nLast error of {task.group}: {task.last_error}")
    rendering.rows("History (times in UTC)", [happened_line(entry) for entry in history])


def sentence(seen: FlowStatus) -> str:
    """Return where a flow stands: `ACTIVE, version 2, runs; batch 41, 250.5 rows per second`."""
    parts = [seen.status, f"version {seen.version}"]
    if seen.due_event and seen.due_at is not None:
        parts.append(f"{seen.due_event} at {clock(seen.due_at)} UTC")
    if seen.running:
        parts.append("runs")
    text = ", ".join(parts)
    return text if seen.txid is None else f"{text}; batch {seen.txid}, {seen.rows_per_second:g} rows per second"


def happened_line(entry: Happened) -> dict[str, Any]:
    """Return a line of a flow's history."""
    return {
        "at": clock(entry.at),
        "event": entry.event,
        "status": " -> ".join(str(part) for part in (entry.from_status, entry.to_status) if part),
        "version": entry.version,
        # What is nested is for scripts.
        "detail": ", ".join(
            f"{name}={value}"
            for name, value in entry.detail.items()
            if name != "flow" and value not in (None, "", False) and not isinstance(value, Mapping | list)
        ),
    }


def version_json(version: Version, current: int) -> dict[str, Any]:
    """Return a version for a script; `created_at` in seconds since 1970."""
    return {
        "version": version.number,
        "current": version.number == current,
        "created_at": version.created_at,
        "before": version.before,
        "copy_of": version.copy_of,
        "definition": dict(version.content.definition),
        "components": dict(version.content.components),
        "workers": version.content.workers,
        "settings": masked_settings(version.content.settings),
    }


def version_line(version: Version, current: int) -> dict[str, Any]:
    """Return a version as one line."""
    definition = version.content.definition
    return {
        "version": f"{version.number}" + (" (current)" if version.number == current else ""),
        "at": clock(version.created_at),
        "from": definition.get("file") or definition.get("kind") or "",
        "plan": definition.get("plan", ""),
        "workers": version.content.workers,
        "parallelism": ", ".join(f"{name}={number}" for name, number in definition.get("explicit", {}).items()),
        "settings": ", ".join(f"{name}={value}" for name, value in masked_settings(version.content.settings).items()),
        "copy of": "" if version.copy_of is None else str(version.copy_of),
    }


def top(seen: ClusterStatus) -> RenderableType:
    """Return the live table, one line per query."""
    alive = sum(supervisor.alive for supervisor in seen.supervisors)
    used = sum(len(supervisor.used) for supervisor in seen.supervisors if supervisor.alive)
    slots = sum(len(supervisor.ports) for supervisor in seen.supervisors if supervisor.alive)
    head = Text(
        f"{clock(seen.at)} UTC   {len(seen.flows)} flows   {alive} supervisors, {used} of {slots} slots used   "
        f"leader: {next((supervisor.id for supervisor in seen.supervisors if supervisor.leader), 'none')}"
    )
    lines = lean([line for flow in seen.flows for line in _top_lines(flow)])
    problems = [
        Text(f"{flow.name}: {problem}", style="yellow")
        for flow in seen.flows
        for problem in (flow.problem, flow.gone)
        if problem
    ]
    return Group(head, _table(lines), *problems)


_TOP = (
    "flow", "status", "query", "state", "where", "batch", "attempt", "rows/s", "batch time", "lag", "waiting", "restarts",
    "memory", "beat",
)  # fmt: skip


def _top_lines(flow: FlowStatus) -> Iterable[dict[str, Any]]:
    for number, task in enumerate(flow.tasks):
        yield {"flow": "" if number else flow.name, "status": "" if number else flow.status, **task_line(task)}
    if not flow.tasks:
        yield {"flow": flow.name, "status": flow.status}


def _table(lines: Sequence[Mapping[str, Any]]) -> Table:
    shown = Table(expand=False)
    columns = [name for name in _TOP if any(name in line for line in lines) or not lines]
    for name in columns:
        right = all(isinstance(line.get(name), int | float | None) for line in lines)
        shown.add_column(name, justify="right" if right else "left", no_wrap=name != "waiting")
    for line in lines:
        shown.add_row(*(_coloured(line.get(name)) for name in columns))
    return shown


def _coloured(value: Any) -> Text:
    return Text(plain(value), style=_COLOURS.get(value, "") if isinstance(value, str) else "")


def _waiting(what: str, number: float) -> str:
    return size(number) if what == "bytes" else f"{number:,.0f} {what}"


def _first_line(text: str | None) -> str:
    return text.strip().splitlines()[0] if text and text.strip() else ""


# --- the live table, until q or Ctrl-C ----------------------------------------------------------------------

_HINT = Text("q: end", style="dim")


def live(look: Callable[[], ClusterStatus], seconds: float) -> None:
    """Show what `look` returns, again and again. A registry that does not answer is shown as such, and asked again."""
    screen = rendering.console.is_terminal
    with _keys() as pressed, suppress(KeyboardInterrupt), Live(console=rendering.console, screen=screen) as shown:
        while True:
            try:
                shown.update(Group(top(look()), _HINT), refresh=True)
            except RegistryError as error:
                shown.update(Text(str(error), style="red"), refresh=True)
            if pressed(seconds) in ("q", "Q"):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Return a function that waits for a key at most so many seconds; "" if none came. Without a terminal it only waits."""

    def wait(seconds: float) -> str:
        time.sleep(seconds)
        return ""

    if not sys.stdin.isatty():
        yield wait
        return
    import termios
    import tty

    def key(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
