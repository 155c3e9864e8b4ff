"""Logs of workers and supervisors: what is old goes, then the oldest until the rest fits; never a file that is open."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipelines.maintenance.tidied import Tidied

_DAY = 86_400.0
_LOG = re.compile(r"\.(jsonl|out)(\.\d+)?$")
_TURNED_OVER = re.compile(r"\.\d+$")


@dataclass(frozen=True)
class _Log:
    path: Path
    changed: float
    size: int
    key: tuple[int, int]

    def may_go(self, now: float) -> bool:
        """A process on another host, which is not seen from here, may have it open unless it was turned over long ago."""
        return bool(_TURNED_OVER.search(self.path.name)) or now - self.changed > _DAY


def tidy_logs(
    nimbus_home: Path,
    days: float | None,
    megabytes: float | None,
    *,
    dry_run: bool = False,
    now: float | None = None,
) -> Tidied:
    """Remove logs under `<home>/nimbus/logs` and `<home>/nimbus/supervisors`.

    Args:
        nimbus_home: `<home>/nimbus`.
        days: how long a log stays after its last line; None: for good.
        megabytes: how much all of them may take; None: any.
    """
    now = time.time() if now is None else now
    logs = _logs(nimbus_home)
    wanted = _to_go([one for one in logs if one.may_go(now)], sum(one.size for one in logs), days, megabytes, now)
    held = open_files() if wanted else set()
    gone = [one for one in wanted if one.key not in held]
    note = "some are open: a process still writes them" if len(gone) < len(wanted) else ""
    for one in gone if not dry_run else ():
        one.path.unlink(missing_ok=True)
    return Tidied("worker logs", "files", len(logs), len(gone), sum(one.size for one in gone), note=note)


def open_files() -> set[tuple[int, int]]:
    """The files that a process of this machine has open, as device and inode, as far as one may look."""
    import psutil

    found = set()
    for process in psutil.process_iter():
        try:
            opened = process.open_files()
        except (psutil.Error, OSError):
            continue
        for one in opened:
            try:
                seen = Path(one.path).stat()
            except OSError:
                continue
            found.add((seen.st_dev, seen.st_ino))
    return found


def _logs(nimbus_home: Path) -> list[_Log]:
    found = []
    for folder in (nimbus_home / "logs", nimbus_home / "supervisors"):
        for path in sorted(folder.rglob("*")):
            try:
                seen = path.lstat()
            except OSError:
                continue  # turned over in this moment
            if _LOG.search(path.name) and path.is_file() and not path.is_symlink():
                found.append(_Log(path, seen.st_mtime, seen.st_size, (seen.st_dev, seen.st_ino)))
    return found


def _to_go(logs: Iterable[_Log], total: int, days: float | None, megabytes: float | None, now: float) -> list[_Log]:
    """Those that are too old, and the oldest of the others until all fits."""
    gone = []
    for one in sorted(logs, key=lambda log: log.changed):
        too_old = days is not None and now - one.changed > days * _DAY
        too_much = megabytes is not None and total > megabytes * 1_000_000
        if too_old or too_much:
            gone.append(one)
            total -= one.size
    return gone
