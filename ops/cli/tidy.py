"""`tridelta tidy`: one round of housekeeping over everything that grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ops import housekeeping
from ops.cli import rendering
from ops.cli.parts import AsJson, answer, opened_lake, verb
from pipelines.catalog import FlowSettings

if TYPE_CHECKING:
    from pipelines.maintenance import HousekeepingReport

app = typer.Typer()


@verb(app)
def tidy(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; count what would be removed.")] = False,
    compact: Annotated[
        bool, typer.Option(help="Compact the tables of all flows, too; for large ones use `tridelta compact FLOW`.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Remove old rows of quarantine, copies, logs and records. Needs no Spark.

    TRIDELTA_KEEP_QUARANTINE_DAYS, ..._COPIES_DAYS and so on set how long things stay: see docs/maintenance.md.
    """
    from pipelines.maintenance import Retention

    with rendering.waiting("tidying", as_json):
        report = housekeeping.tidied(
            opened_lake(),
            FlowSettings.from_environment(),
            Retention.from_environment(),
            dry_run=dry_run,
            compacts=compact,
        )
    answer(as_json, report.to_json(), lambda: show(report))


def show(report: HousekeepingReport) -> None:
    """Print one line per thing that grows."""
    rendering.rows("what would go" if report.dry_run else "tidied", housekeeping.lines(report))
    verb = "would go" if report.dry_run else "removed"
    rendering.say(f"{report.removed:,} {verb}, {report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s")
