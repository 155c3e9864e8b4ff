"""Maintenance: what keeps a lake fast and small while its flows run. Functions that return typed reports."""

from pipelines.maintenance.compaction import compact
from pipelines.maintenance.housekeeping import tidy
from pipelines.maintenance.housekeeping_report import HousekeepingReport, Retention, Tidied
from pipelines.maintenance.report import CompactionReport, TableFigures, TableReport

__all__ = [
    "CompactionReport",
    "HousekeepingReport",
    "Retention",
    "TableFigures",
    "TableReport",
    "Tidied",
    "compact",
    "tidy",
]
