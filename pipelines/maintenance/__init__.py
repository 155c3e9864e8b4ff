"""Keep a lake fast and small while its flows run: functions that return typed reports."""

from pipelines.maintenance.compaction import compact
from pipelines.maintenance.housekeeping import run_housekeeping
from pipelines.maintenance.housekeeping_report import HousekeepingItem, HousekeepingReport, Retention
from pipelines.maintenance.report import CompactionReport, TableFigures, TableReport

Tidied, tidy = HousekeepingItem, run_housekeeping
"""The former names."""

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
