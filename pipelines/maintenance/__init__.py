"""Keep a lake fast and small while its flows run: functions that return typed reports. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.maintenance.compaction import compact
    from pipelines.maintenance.housekeeping import run_housekeeping
    from pipelines.maintenance.housekeeping import run_housekeeping as tidy
    from pipelines.maintenance.housekeeping_report import HousekeepingItem, HousekeepingReport, Retention
    from pipelines.maintenance.housekeeping_report import HousekeepingItem as Tidied
    from pipelines.maintenance.report import CompactionReport, TableFigures, TableReport

__all__ = [
    "CompactionReport",
    "HousekeepingItem",
    "HousekeepingReport",
    "Retention",
    "TableFigures",
    "TableReport",
    "Tidied",
    "compact",
    "run_housekeeping",
    "tidy",
]

_FORMER = {"Tidied": "HousekeepingItem", "tidy": "run_housekeeping"}
_load = lazy(
    __name__,
    {
        ".compaction": ("compact",),
        ".housekeeping": ("run_housekeeping",),
        ".housekeeping_report": ("HousekeepingItem", "HousekeepingReport", "Retention"),
        ".report": ("CompactionReport", "TableFigures", "TableReport"),
    },
)


def __getattr__(name: str) -> Any:
    return _load(_FORMER.get(name, name))
