"""Reports and retentions of housekeeping: typed, JSON-able."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pipelines.bounds import DAYS, HOURS, KEPT, WAIT_SECONDS, OutOfBoundsError
from pipelines.errors import TrideltaError

PREFIX = "TRIDELTA_KEEP_"
_NEEDED = ("state_hours", "wait_seconds")
_AS_STATES = "channel_hours"
"""None means something else there than for good."""
FOR_GOOD = math.inf
_LIMITS = {"hours": HOURS, "days": DAYS, "seconds": WAIT_SECONDS}
# Nimbus' own setting for both, where nothing more exact is said.
_ELSE = dict.fromkeys(("flow_days", "log_days"), "TRIDELTA_NIMBUS_RETENTION_DAYS")


class RetentionSettingError(TrideltaError):
    """A retention is not a number of days (or of what it counts) from 0 on."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value
        field_name = name.removeprefix(PREFIX).lower()
        empty = "" if field_name in _NEEDED else "; leave it empty, or None, to keep all"
        if field_name == _AS_STATES:
            empty = f"; leave it empty ({FOR_GOOD} in Python) to keep all"
        super().__init__(f"{name}: {value!r} is no retention", hint=f"write a number from 0 on{empty}")


@dataclass(frozen=True)
class Retention:
    """Retentions of everything that grows; None: for good. Each can come from the environment: TRIDELTA_KEEP_<NAME>.

    Attributes:
        state_hours: How far back states stay readable, by txid, version or time.
        channel_hours: Rows of a channel that all its readers have taken; None: as states; FOR_GOOD: they stay.
        quarantine_days: Rejected rows.
        copies_days: The newest copy of a checkpoint that a repartition made. Older ones go at once.
        replaced_days: Checkpoints that a change of a flow has put aside.
        state_versions: Versions of the windows' state that a query which does not run keeps. Spark keeps 100 itself, but
            only in runs of more than a minute.
        flow_days: Removed flows with their history, and supervisors that are silent.
        flow_events: Lines of history a flow.
        log_days: Logs of workers and supervisors.
        log_megabytes: All these logs together.
        run_days: Dagster's runs with their logs. Not by default: what assets have reported goes with them.
        wait_seconds: How long to wait for a backfill or a compaction of a flow before its tables are left for next time.
    """

    state_hours: float = 168.0
    channel_hours: float | None = None
    quarantine_days: float | None = 90.0
    copies_days: float | None = 7.0
    replaced_days: float | None = 30.0
    state_versions: float | None = 100
    flow_days: float | None = 30.0
    flow_events: float | None = 1000
    log_days: float | None = 30.0
    log_megabytes: float | None = 1000.0
    run_days: float | None = None
    wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        for retention in fields(self):
            value = getattr(self, retention.name)
            limit = _LIMITS.get(retention.name.rpartition("_")[2], KEPT)
            try:
                if (value is not None or retention.name in _NEEDED) and (retention.name, value) != (
                    _AS_STATES,
                    FOR_GOOD,
                ):
                    limit.taken(value)
            except OutOfBoundsError:
                raise RetentionSettingError(retention.name, value) from None

    @classmethod
    def from_environment(cls, default: Retention | None = None, **chosen: float | None) -> Retention:
        """Read the retentions of the environment, with `chosen` on top. An empty variable keeps for good.

        Args:
            default: What holds without a variable; None: the default of docs/maintenance.md.
            chosen: What holds whatever the environment says.

        Raises:
            RetentionSettingError: A value is no number from 0 on.
        """
        values: dict[str, float | None] = {}
        for retention in fields(cls):
            for variable in (PREFIX + retention.name.upper(), _ELSE.get(retention.name, "")):
                if variable in os.environ:
                    number = _number(variable, os.environ[variable])
                    values[retention.name] = FOR_GOOD if number is None and retention.name == _AS_STATES else number
                    break
        return replace(default or cls(), **values | chosen)  # type: ignore[arg-type]


@dataclass(frozen=True)
class HousekeepingItem:
    """The work on one thing that grows.

    Attributes:
        what: Its name, for people: `quarantine of flights`, `worker logs`.
        unit: What is counted: rows, files, folders, records, versions.
        before: How many there were.
        removed: How many went, or with `dry_run` would go.
        bytes: What that gave back on the disk; of rows 0: their files go with a later vacuum.
        seconds: how long the work took.
        note: Why less was done than asked for, in a sentence.
        failed: The note is of an error that the next round meets again, as long as nobody does anything about it.
        too_large: It says only that states are too large to be folded here; all else was done.
    """

    what: str
    unit: str
    before: int
    removed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    note: str = ""
    failed: bool = False
    too_large: bool = False

    @property
    def after(self) -> int:
        return self.before - self.removed

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "after": self.after}


@dataclass(frozen=True)
class HousekeepingReport:
    """One round over everything that grows.

    Attributes:
        things: A line each.
        compactions: reports of the flows that were compacted in the same round.
        dry_run: Nothing was changed: what would go was counted.
    """

    things: tuple[HousekeepingItem, ...]
    seconds: float
    dry_run: bool = False
    compactions: tuple[Any, ...] = field(default=())

    @property
    def removed(self) -> int:
        return sum(item.removed for item in self.things)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.things)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was left for next time, and why."""
        return tuple(f"{item.what}: {item.note}" for item in self.things if item.note)

    @property
    def failures(self) -> tuple[str, ...]:
        """Return the notes that somebody has to do something about."""
        return tuple(f"{item.what}: {item.note}" for item in self.things if item.failed)

    def to_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "seconds": self.seconds,
            "removed": self.removed,
            "bytes": self.bytes,
            "things": [item.to_json() for item in self.things],
            "compactions": [report.to_json() for report in self.compactions],
        }


def timed(work: Callable[[], HousekeepingItem]) -> HousekeepingItem:
    """Do a work and return the same with its seconds."""
    started = time.monotonic()
    item = work()
    return HousekeepingItem(**{**asdict(item), "seconds": round(time.monotonic() - started, 3)})


def _number(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        raise RetentionSettingError(name, text) from None
    if math.isinf(number):
        raise RetentionSettingError(name, text)
    return number
