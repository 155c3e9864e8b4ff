"""Housekeeping: one round over everything that grows, beside whatever runs.

| what grows | what keeps it small |
|---|---|
| states, channels, their Delta logs | `compact`, of each flow |
| quarantine | rows go with their age; files are joined, vacuumed, the log cleaned |
| state of windows | old versions go, of queries that do not run |
| copies of checkpoints, replaced checkpoints, folders of bounded runs | go with their age, or their process |
| the registry | removed flows, silent supervisors, long histories go |
| logs of workers and supervisors | go with their age, or their size |

Each takes the locks that it needs, and what it cannot have at once is left for the next round, with a note: nothing here is
needed for an answer to be right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import logs
from pipelines.errors import LockedError, NotCompactedError, TooLargeToFoldError, TrideltaError
from pipelines.execution.runners.bounded_inputs import RUN_PREFIX
from pipelines.maintenance.compaction import compact, compact_quarantine
from pipelines.maintenance.housekeeping_report import HousekeepingItem, HousekeepingReport, Retention, timed
from pipelines.maintenance.old_files import (
    DEAD_RUN_DAYS,
    StoreFolders,
    remove_dead_runs,
    remove_old_copies,
    remove_old_copies_there,
    remove_old_logs,
    remove_old_objects,
    remove_old_state,
    remove_replaced,
)
from pipelines.maintenance.rejected import old_rows
from pipelines.maintenance.report import CompactionReport
from pipelines.places.location import Location
from pipelines.state.lake import Lake, tables_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.trident.topology import TridentTopology

logger = logs.logger(__name__)

Work = tuple[str, str, Callable[[], HousekeepingItem]]
"""A thing that grows, the unit in which it is counted, and what is done about it."""

RegistryWork = Callable[[Retention, bool], HousekeepingItem]
"""Removes old records of a registry, or with True only counts them."""


@dataclass(frozen=True)
class Flows:
    """Flows to compact.

    Attributes:
        flows: as `compact` takes them.
        spark: gives a session, once a flow is compacted; None: that is done without Spark.
    """

    flows: Sequence[TridentTopology | str] = ()
    spark: Callable[[], SparkSession] | None = None


def run_housekeeping(
    lake: Lake,
    registry: RegistryWork | None = None,
    retention: Retention | None = None,
    *,
    nimbus_home: Path | None = None,
    flows: Flows | Sequence[TridentTopology | str] = (),
    dry_run: bool = False,
) -> HousekeepingReport:
    """Run one round over everything that grows. Killed at any point, the next round takes up what is left.

    Args:
        lake: where the tables and checkpoints are.
        registry: removes old records of the registry; None: there is none.
        retention: how long things are kept; None: as the environment says.
        nimbus_home: `<home>/nimbus`, for the logs; None: leave them alone.
        flows: those to compact in the same round, without Spark where they are given alone. Channels of a flow given by its
            name alone keep their rows.
        dry_run: change nothing; tell what would go. Compaction is left out.

    Raises:
        RetentionSettingError: the environment holds a retention that is none.
    """
    started = time.monotonic()
    given = flows if isinstance(flows, Flows) else Flows(flows)
    work = _Round(lake, retention or Retention.from_environment(), dry_run, given)
    things = [
        timed(partial(_or_note, work_on, what, unit)) for what, unit, work_on in work.works(registry, nimbus_home)
    ]
    return HousekeepingReport(tuple(things), round(time.monotonic() - started, 3), dry_run, tuple(work.compactions))


@dataclass
class _Round:
    """One round over the lake."""

    lake: Lake
    kept: Retention
    dry_run: bool
    flows: Flows
    compactions: list[CompactionReport] = field(default_factory=list)

    def works(self, registry: RegistryWork | None, nimbus_home: Path | None) -> Iterator[Work]:
        """Yield what is to be done, one after the other: a flow that was compacted needs no more for its quarantine."""
        lake, kept, dry_run = self.lake, self.kept, self.dry_run
        for flow in self.flows.flows if not dry_run else ():
            yield _tables_of(flow), "files", partial(self._compacted, flow)
        yield from _unreadable(lake)
        whole = {report.flow for report in self.compactions}
        for name in quarantines(lake):
            if name not in whole:
                yield f"quarantine of {name}", "rows", partial(self._quarantine, name)
        yield from self._on_store(lake.root) if isinstance(lake.root, Location) else self._on_disk()
        if registry is not None:
            yield "registry", "records", partial(registry, kept, dry_run)
        if nimbus_home is not None:
            limits = (kept.log_days, kept.log_megabytes)
            yield "worker logs", "files", partial(remove_old_logs, nimbus_home, *limits, dry_run=dry_run)

    def _on_disk(self) -> Iterator[Work]:
        lake, kept, dry_run = self.lake, self.kept, self.dry_run
        yield "state of windows", "versions", partial(remove_old_state, lake, kept.state_versions, dry_run=dry_run)
        yield "copies of checkpoints", "folders", partial(remove_old_copies, lake, kept.copies_days, dry_run=dry_run)
        yield "replaced checkpoints", "folders", partial(remove_replaced, lake, kept.replaced_days, dry_run=dry_run)
        yield "folders of bounded runs", "folders", partial(remove_dead_runs, lake, dry_run=dry_run)

    def _on_store(self, root: Location) -> Iterator[Work]:
        """Yield what goes with its age there. Spark sees to the state of its windows."""
        lake, kept, dry_run = self.lake, self.kept, self.dry_run
        copies = partial(remove_old_copies_there, lake, root, kept.copies_days, dry_run=dry_run)
        yield "copies of checkpoints", "folders", copies
        replaced = StoreFolders("replaced checkpoints", root / "replaced", "*/*.replaced")
        # A source may keep its own files beside them.
        runs = StoreFolders("folders of bounded runs", root / "spool", f"*/{RUN_PREFIX}*")
        for folders, days in ((replaced, kept.replaced_days), (runs, DEAD_RUN_DAYS)):
            yield folders.what, "folders", partial(remove_old_objects, folders, days, dry_run=dry_run)

    def _compacted(self, flow: TridentTopology | str) -> HousekeepingItem:
        spark = None if self.flows.spark is None else self.flows.spark()
        report = compact(spark, self.lake, flow, self.kept)
        self.compactions.append(report)
        files = sum(table.files_removed + table.log_files_removed for table in report.tables)
        before = sum(table.before.files + table.before.log_files for table in report.tables)
        freed = report.total.bytes_before - report.total.bytes_after
        return HousekeepingItem(_tables_of(flow), "files", before, files, max(0, freed))

    def _quarantine(self, flow: str) -> HousekeepingItem:
        what, days = f"quarantine of {flow}", self.kept.quarantine_days
        if self.dry_run:
            table = self.lake.quarantine(flow)
            where = None if days is None else old_rows(table, days)
            return HousekeepingItem(what, "rows", table.count(), table.count(where) if where else 0)
        report = compact_quarantine(self.lake, flow, self.kept)
        freed = max(0, report.before.bytes - report.after.bytes)
        return HousekeepingItem(what, "rows", report.after.rows + report.rows_let_go, report.rows_let_go, freed)


def flows_in(lake: Lake) -> list[str]:
    """Return the flows that have tables in the lake."""
    names = set(quarantines(lake))
    for table in lake.tables():
        try:
            if table.is_state():
                names.add(table.declared.flow)
        except TrideltaError:
            # The round itself reports it; the tables of other flows are compacted all the same.
            continue
    return sorted(names)


def _unreadable(lake: Lake) -> Iterator[Work]:
    """Yield the tables that cannot be read: each is a line with the reason."""
    for table in lake.tables():
        try:
            if table.is_state():
                _ = table.declared
        except TrideltaError as error:
            yield f"table {table.name}", "files", partial(_raise, error)


def _raise(error: TrideltaError) -> HousekeepingItem:
    raise error


def quarantines(lake: Lake) -> list[str]:
    """Return the flows that have a quarantine."""
    return tables_in(lake.root / "quarantine", "the lake's quarantine")


def _tables_of(flow: TridentTopology | str) -> str:
    return f"tables of {flow if isinstance(flow, str) else flow.name}"


def _or_note(work: Callable[[], HousekeepingItem], what: str, unit: str) -> HousekeepingItem:
    """Do a work, or note that it was left for the next round; the other things are not held up by it."""
    try:
        return work()
    except LockedError:
        return HousekeepingItem(
            what, unit, 0, note="a backfill, a compaction or a batch is at work; left for the next round"
        )
    except (TrideltaError, OSError) as error:
        return HousekeepingItem(what, unit, 0, note=str(error), failed=True, too_large=_too_large(error))
    except Exception as error:
        logger.exception("housekeeping failed", what=what)
        return HousekeepingItem(what, unit, 0, note=f"{type(error).__name__}: {error}", failed=True)


def _too_large(error: Exception) -> bool:
    """Return whether all that failed is that states are too large to be folded here."""
    errors = error.failed.values() if isinstance(error, NotCompactedError) else (error,)
    return all(isinstance(one, TooLargeToFoldError | LockedError) for one in errors)
