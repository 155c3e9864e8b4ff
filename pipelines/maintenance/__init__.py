"""Keep a lake fast and small while its flows run: functions that return typed reports. Names load on first use."""

from typing import TYPE_CHECKING

from pipelines.lazy import lazy

if TYPE_CHECKING:
    from pipelines.maintenance.compaction import compact as compact
    from pipelines.maintenance.housekeeping import run_housekeeping as run_housekeeping
    from pipelines.maintenance.housekeeping import run_housekeeping as tidy  # noqa: F401 (a former name)
    from pipelines.maintenance.housekeeping_report import HousekeepingItem as HousekeepingItem
    from pipelines.maintenance.housekeeping_report import HousekeepingItem as Tidied  # noqa: F401 (a former name)
    from pipelines.maintenance.housekeeping_report import HousekeepingReport as HousekeepingReport
    from pipelines.maintenance.housekeeping_report import Retention as Retention
    from pipelines.maintenance.report import CompactionReport as CompactionReport
    from pipelines.maintenance.report import TableFigures as TableFigures
    from pipelines.maintenance.report import TableReport as TableReport

__getattr__, __all__ = lazy(__name__, __file__)
