"""Settings of Nimbus on a host: slots, beats, time-outs. Each can come from the environment: TRIDELTA_NIMBUS_<NAME>."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from pipelines.bounds import (
    DAYS,
    LOG_FILES,
    LOG_MEGABYTES,
    MEMORY_MB,
    PORT,
    PORT_OR_NONE,
    TIMEOUT_SECONDS,
    WAIT_SECONDS,
    OutOfBoundsError,
    limits,
    shown,
    switch,
)
from pipelines.catalog.flow import FlowSettings
from pipelines.nimbus.errors import SettingError

PREFIX = "TRIDELTA_NIMBUS_"
_SQLITE = "sqlite:///"
_HINTS = {"ports": "e.g. TRIDELTA_NIMBUS_PORTS=6900,6901"}
WARM = 0
"""In place of a port: of the application that runs no flow."""


@dataclass(frozen=True)
class NimbusSettings:
    """The settings of Nimbus' processes.

    Attributes:
        home: The folder of their files; `<TRIDELTA_HOME>/nimbus` by default.
        ports: The slots that a supervisor of this host offers, by the original's numbers. Nothing listens on them.
        task_timeout_seconds: A task that has not beaten for so long is placed again.
        task_launch_seconds: So long a task may take to its first beat: a Spark application starts first. Ten times that, and
            600 s at least, a worker may be at one thing, such as the load of a flow, before it counts as one that hangs.
        supervisor_timeout_seconds: A supervisor that has not beaten for so long is dead.
        monitor_seconds: How often the leader looks for dead tasks.
        beat_seconds: How often workers and supervisors beat.
        lease_seconds: How long a worker owns its queries without a beat. Shorter than `task_timeout_seconds`, so that a
            lease has run out when the query is started elsewhere.
        worker_memory_mb: Heap of a worker's Spark driver, in MiB.
        metrics_port: Where a supervisor answers Prometheus on 127.0.0.1; 0: nowhere.
        log_megabytes: A worker's log file is turned over at this size.
        log_files: So many turned-over log files are kept.
        retention_days: How long removed flows and old logs are kept.
        warm: Whether a supervisor keeps an application up that runs no flow and takes requests: runs of Dagster then need not
            start a Spark of their own.
        standby: Whether a supervisor keeps a Spark up that takes the place of a worker that dies or restarts.
        stop_seconds: How long a worker may take to end once it is asked to; then it is killed. So long, but 5 s at least, a query
            that is stopped in mid-batch may take before its worker restarts, and the flows beside it may drain for that.
        back_off_seconds: The longest pause between two starts of a worker that dies again and again.
    """

    home: Path
    ports: tuple[int, ...] = (6900, 6901, 6902, 6903)
    task_timeout_seconds: Annotated[float, TIMEOUT_SECONDS] = 30.0
    task_launch_seconds: Annotated[float, TIMEOUT_SECONDS] = 120.0
    supervisor_timeout_seconds: Annotated[float, TIMEOUT_SECONDS] = 60.0
    monitor_seconds: Annotated[float, TIMEOUT_SECONDS] = 5.0
    beat_seconds: Annotated[float, TIMEOUT_SECONDS] = 1.0
    lease_seconds: Annotated[float, TIMEOUT_SECONDS] = 20.0
    worker_memory_mb: Annotated[int, MEMORY_MB] = 2048
    metrics_port: Annotated[int, PORT_OR_NONE] = 0
    log_megabytes: Annotated[float, LOG_MEGABYTES] = 20.0
    log_files: Annotated[int, LOG_FILES] = 5
    retention_days: Annotated[float, DAYS] = 30.0
    warm: bool = False
    standby: bool = True
    stop_seconds: Annotated[float, WAIT_SECONDS] = 60.0
    back_off_seconds: Annotated[float, WAIT_SECONDS] = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _taken(field.name, field.name, getattr(self, field.name)))
        if self.lease_seconds > self.task_timeout_seconds:
            raise SettingError(
                f"lease_seconds {self.lease_seconds:g} is more than task_timeout_seconds {self.task_timeout_seconds:g}",
                hint="a query would be started elsewhere while its old worker still owns it",
            )
        for name in ("lease_seconds", "supervisor_timeout_seconds"):
            if getattr(self, name) < 2 * self.beat_seconds:
                raise SettingError(
                    f"{name} {getattr(self, name):g} is less than two beats of {self.beat_seconds:g} s (beat_seconds)",
                    hint="one beat that is late would end what works",
                )

    @classmethod
    def from_environment(cls, **chosen: Any) -> NimbusSettings:
        """Read the environment, with `chosen` on top of it (None: not chosen).

        Raises:
            SettingError: A value is not of its kind.
        """
        home = nimbus_home(FlowSettings.from_environment())
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = os.environ.get(PREFIX + field.name.upper())
            if text:
                values[field.name] = _taken(field.name, PREFIX + field.name.upper(), text)
        return cls(**{"home": home, **values, **{name: value for name, value in chosen.items() if value is not None}})

    def worker_folder(self, supervisor: str, port: int) -> Path:
        """Return the folder of a slot's logs."""
        return self.home / "logs" / supervisor / str(port)

    def supervisor_folder(self, supervisor: str) -> Path:
        """Return a supervisor's own files."""
        return self.home / "supervisors" / supervisor


def nimbus_home(settings: FlowSettings) -> Path:
    """Return TRIDELTA_NIMBUS_HOME, else `nimbus` in a deployment's home."""
    chosen = os.environ.get(PREFIX + "HOME")
    return Path(chosen) if chosen else settings.home / "nimbus"


def registry_url(settings: FlowSettings | None = None) -> str:
    """Return TRIDELTA_REGISTRY, else a SQLite file in the home: that of the settings, or of the environment."""
    if chosen := os.environ.get("TRIDELTA_REGISTRY"):
        return chosen
    file = str((settings or FlowSettings.from_environment()).home / "nimbus" / "registry.db")
    # What a URL of SQLite would not take as a part of the path.
    return _SQLITE + file.replace("%", "%25").replace("?", "%3F")


def registry_exists(url: str) -> bool:
    """Return whether the registry may be there; False for a SQLite file that is missing. Opens no database and makes none."""
    return not url.startswith(_SQLITE) or Path(unquote(url.removeprefix(_SQLITE).partition("?")[0])).exists()


def _taken(name: str, told_as: str, given: Any) -> Any:
    """Return the value of a setting; texts of the environment are read."""
    try:
        if name == "ports":
            return _ports(given)
        if name in (ranges := limits(NimbusSettings)):
            return ranges[name].taken(given)
        if name in ("warm", "standby"):
            return given if isinstance(given, bool) else switch(given)
        return Path(given)
    except (OutOfBoundsError, TypeError, AttributeError) as error:
        raise SettingError(f"{told_as} {error}", hint=_HINTS.get(name, "docs/deploy.md has the defaults")) from None


def _ports(given: Any) -> tuple[int, ...]:
    asked = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    ports = tuple(PORT.taken(port) for port in asked)
    if not ports:
        raise OutOfBoundsError("are none, and a supervisor needs at least one port")
    if len(set(ports)) != len(ports):
        raise OutOfBoundsError(f"name one twice: {shown(given)}")
    return ports
