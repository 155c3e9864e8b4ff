"""The end of all that Nimbus runs on this host: supervisors first, so that nothing is started again, then their workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.nimbus.processes.life import Life, LifeRecord
from pipelines.nimbus.settings import NimbusSettings

SUPERVISOR = "supervisor"


@dataclass(frozen=True)
class Ended:
    """What has ended.

    Attributes:
        supervisors: By name.
        workers: As `supervisor:port`; those that drained.
        killed: Those that had not ended within the time that they have.
    """

    supervisors: tuple[str, ...]
    workers: tuple[str, ...]
    killed: tuple[str, ...]


def shut_down(settings: NimbusSettings) -> Ended:
    """Ends the supervisors of this host and drains their workers. Flows stay deployed: a supervisor runs them again.

    Args:
        settings: Whose home says which processes are meant, and how long they have (`stop_seconds`).
    """
    found = {
        (folder.name, file.stem): record
        for folder in sorted((settings.home / "supervisors").glob("*"))
        for file in sorted(folder.glob("*.json"))
        if not file.stem.endswith(".endpoint")
        and (record := Life(settings, folder.name, file.stem).read()) is not None
        and record.process() is not None
    }
    leaders = {key: record for key, record in found.items() if key[1] == SUPERVISOR}
    workers = {key: record for key, record in found.items() if key[1] != SUPERVISOR}
    late = _end(list(leaders.values()), settings.stop_seconds) + _end(list(workers.values()), settings.stop_seconds)
    return Ended(
        tuple(name for name, _ in leaders),
        tuple(f"{name}:{port}" for (name, port), record in workers.items() if record not in late),
        tuple(f"{name}:{port}" for (name, port), record in found.items() if record in late),
    )


def _end(records: Sequence[LifeRecord], seconds: float) -> list[LifeRecord]:
    """SIGTERM, patience, SIGKILL; those that needed the last."""
    for record in records:
        os.kill(record.pid, signal.SIGTERM)
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(record.process() for record in records):
        time.sleep(0.1)
    late = [record for record in records if record.process() is not None]
    for record in late:
        record.kill()
    return late
