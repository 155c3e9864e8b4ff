"""The identity of a process of this host, however the host's clock is set.

A process id is used again. The time at which a process has begun tells two apart, but as seconds since 1970 it is computed
from the clock: when that is set, every live process seems to be another. The kernel counts ticks from the boot instead, and
names the boot.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PROC = Path("/proc")

# For a process that was recorded without a boot: within this the clock's own corrections may have moved its time.
_SECONDS = 0.5

_ENDED = "ZXx"
_STOPPED = "Tt"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, also after its end.

    Attributes:
        created: When it began, as seconds since 1970; what tells it where neither this nor another host's kernel tells more.
        boot: The boot of its host's kernel; empty where there is no `/proc`, and in records of earlier releases.
        ticks: When it began, in the kernel's ticks since the boot; 0 without a boot.
    """

    pid: int
    created: float
    boot: str = ""
    ticks: int = 0

    @classmethod
    def of(cls, pid: int | None = None) -> ProcessIdentity:
        """Identify a process of this host, by default the own one. One that has ended has an identity that no process has."""
        number = os.getpid() if pid is None else pid
        stat = _stat(number)
        try:
            created = float(psutil.Process(number).create_time())
        except psutil.Error:
            created = 0.0
        return cls(number, created, boot_id() if stat else "", stat[1] if stat and boot_id() else 0)

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> ProcessIdentity:
        """Read what `to_json` gave, among other fields, or what an earlier release wrote.

        Raises:
            KeyError, TypeError, ValueError, OverflowError, AttributeError: It is neither.
        """
        boot, ticks = str(written.get("boot", "")), int(written.get("ticks", 0))
        pid, created = int(written["pid"]), float(written["created"])
        if not 0 < pid < 2**31 or not math.isfinite(created):
            raise ValueError(f"no process has the number {pid} since {created}")
        return cls(pid, created, boot, ticks)

    def to_json(self) -> dict[str, Any]:
        """Return fields for a record."""
        return {"pid": self.pid, "created": self.created, "boot": self.boot, "ticks": self.ticks}

    def process(self) -> psutil.Process | None:
        """Return the process, while it is there (a stopped one is)."""
        return self._found(_ENDED)

    @property
    def runs(self) -> bool:
        """Return whether the process exists and is not stopped."""
        return self._found(_ENDED + _STOPPED) is not None

    def left_behind(self, seen: float) -> list[psutil.Process]:
        """Return what this process, the leader of a session, has left in it at its end; nothing where that is not sure.

        The kernel gives its number to no other process while the session has one. So all of them are its own if one is: one that
        began while it was alive, or all if its zombie is still there. Where all processes of a session began later, nobody can
        say: the number may be another's meanwhile, which has left something too, as a daemon does.

        Args:
            seen: When it was seen alive for the last time, in seconds since 1970; 0: not known.
        """
        if not self.boot or boot_id() != self.boot:
            return []
        leader = _fields(self.pid)
        if leader is not None and _ticks(leader) != self.ticks:
            return []
        members = {pid: stat for pid in psutil.pids() if (stat := _fields(pid)) and int(stat[_SESSION]) == self.pid}
        until = _ticks_at(seen)
        if leader is None and not any(self.ticks <= _ticks(stat) < until for stat in members.values()):
            return []
        found = []
        for pid, stat in members.items():
            with suppress(psutil.Error):
                if stat[0] not in _ENDED:
                    found.append(psutil.Process(pid))
        return found

    def _found(self, unless: str) -> psutil.Process | None:
        try:
            if self.boot:
                stat = _stat(self.pid)
                there = stat is not None and (boot_id(), stat[1]) == (self.boot, self.ticks)
                return psutil.Process(self.pid) if there and stat and stat[0] not in unless else None
            process = psutil.Process(self.pid)
            there = abs(process.create_time() - self.created) < _SECONDS
            return process if there and _LETTERS.get(process.status(), "R") not in unless else None
        except psutil.Error:
            return None


_LETTERS = {
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
}


def boot_id() -> str:
    """Return the kernel's name of the time since it was booted; empty where there is none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _stat(pid: int) -> tuple[str, int] | None:
    """Return a process' state and when it began, in ticks since the boot; None if it is gone, or there is no `/proc`."""
    fields = _fields(pid)
    return None if fields is None else (fields[0], _ticks(fields))


# Places among the fields behind a process' name.
_SESSION, _BEGAN = 3, 19


def _fields(pid: int) -> list[str] | None:
    """Return what the kernel tells of a process, behind its name; None if it is gone, or there is no `/proc`."""
    try:
        text = (PROC / str(pid) / "stat").read_text("utf-8", errors="replace")
        # The second field is its name in brackets, which may hold anything. The state is the first field after it.
        fields = text[text.rindex(")") + 1 :].split()
        return fields if fields[_BEGAN].isdecimal() and fields[_SESSION].isdecimal() else None
    except (OSError, ValueError, IndexError):
        return None


def _ticks(fields: list[str]) -> int:
    return int(fields[_BEGAN])


def _ticks_at(moment: float) -> float:
    """Return a time of the host's clock, in seconds since 1970, as ticks since the boot; 0 for one that is yet to come."""
    ago = time.time() - moment
    # If the clock was set back meanwhile, nobody knows when that moment was.
    return (time.clock_gettime(time.CLOCK_BOOTTIME) - ago) * os.sysconf("SC_CLK_TCK") if ago >= 0 else 0.0
