"""`tridelta logs`: what the workers and supervisors of this machine have written about a flow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.cli.parts import errors
from pipelines.nimbus.errors import NotAliveError, RegistryError
from pipelines.nimbus.telemetry.log_files import read
from pipelines.printable import printable

if TYPE_CHECKING:
    from pipelines.nimbus.nimbus import Nimbus
    from pipelines.nimbus.settings import NimbusSettings

Line = dict[str, Any]
_KNOWN = ("timestamp", "level", "logger", "event", "flow", "group", "supervisor", "port", "exception")


class FlowLogs:
    """The logs of a flow: those of every slot on this machine, for it may have run in any.

    Args:
        nimbus: Says where the flow runs; None: nobody can say, and it may be any slot of this machine.
        settings: Say where the logs lie.
    """

    def __init__(self, nimbus: Nimbus | None, settings: NimbusSettings, flow: str) -> None:
        self._nimbus, self._home, self._flow = nimbus, settings.home, flow
        self._folder = settings.worker_folder

    def files(self) -> list[Path]:
        """Return the logs of this machine's workers and supervisors."""
        return [*sorted(self._home.glob("logs/*/*/worker.jsonl")), *sorted(self._home.glob("supervisors/*/*.jsonl"))]

    def slots(self) -> list[tuple[str, int]]:
        """Return where the flow runs, or ran last."""
        if self._nimbus is None:
            return []
        try:
            places = {(task.supervisor, task.port) for task in self._nimbus.flow(self._flow).tasks if task.supervisor}
        except NotAliveError:
            last = self._nimbus.places.last_assignment(self._flow)
            if last is None:
                raise
            places = {(worker.supervisor, worker.port) for worker in last.workers}
        return sorted(places)

    def lines(self, *, level: str | None, follow: bool, last: int) -> Iterator[Line]:
        """Return the last lines, then what comes. Warnings of a worker itself count where the flow runs or ran last."""
        own = {self._folder(*slot) / "worker.jsonl" for slot in self.slots()}

        def named() -> Sequence[Path]:
            if follow:
                own.update(self._folder(*slot) / "worker.jsonl" for slot in self._now())
            return self.files()

        concerns: Callable[[Path], bool] = own.__contains__
        if self._nimbus is None:
            return read(named, self._flow, level, follow, last=last)
        return read(named, self._flow, level, follow, last=last, concerns=concerns)

    def _now(self) -> list[tuple[str, int]]:
        try:
            return self.slots()
        except (NotAliveError, RegistryError):
            return []

    def tell_what_is_elsewhere(self) -> None:
        """Say on standard error which logs this machine does not have."""
        for supervisor, port in self.slots():
            folder = self._folder(supervisor, port)
            if not folder.is_dir():
                errors.print(f"{supervisor}:{port} has no log in {folder}: it runs on another machine", style="dim")


def text(line: Line) -> str:
    """Format a line for people, with an error's trace indented below it."""
    stamp = str(line.get("timestamp", ""))[:23].replace("T", " ")
    of = "/".join(str(line[name]) for name in ("flow", "group") if line.get(name))
    facts = " ".join(
        f"{name}={_value(value)}" for name, value in line.items() if name not in _KNOWN and value is not None
    )
    place = ":".join(str(line[name]) for name in ("supervisor", "port") if line.get(name))
    parts = [stamp, f"{str(line.get('level', '')).upper():<8}", place, of, str(line.get("event", "")), facts]
    trace = str(line.get("exception") or "")
    said = " ".join(part for part in parts if part) + "".join(f"\n    {frame}" for frame in trace.splitlines())
    return printable(said)


def _value(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, default=str)
