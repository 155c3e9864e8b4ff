"""`tridelta housekeeping`: one round of housekeeping over everything that grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ops import housekeeping as rounds
from ops.cli import rendering
from ops.cli.parts import AsJson, answer, opened_lake, verb
from pipelines.catalog import FlowSettings

if TYPE_CHECKING:
    from pipelines.maintenance import HousekeepingReport

app = typer.Typer()


@verb(app)
def housekeeping(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; count what would be removed.")] = False,
    compact: Annotated[
        bool, typer.Option(help="Compact the tables of all flows, too; for large ones use `tridelta compact FLOW`.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Remove old rows of quarantine, copies, logs and records. Needs no Spark.

    Exits with 1 if something failed that the next round meets again; all else was done.

    TRIDELTA_KEEP_QUARANTINE_DAYS, ..._COPIES_DAYS and so on set how long things stay: see docs/maintenance.md.
    """
    from pipelines.maintenance import Retention

    with rendering.waiting("housekeeping", as_json):
        report = rounds.run_round(
            opened_lake(),
            FlowSettings.from_environment(),
            Retention.from_environment(),
            dry_run=dry_run,
            compacts=compact,
        )
    answer(as_json, report.to_json(), lambda: show(report))
    # What is too large to be folded here is for another command, or for the night's job.
    if any(item.failed and not item.too_large for item in report.things):
        raise typer.Exit(1)


# The former name; it goes with version 0.3.
app.command("tidy", hidden=True)(housekeeping)


def show(report: HousekeepingReport) -> None:
    """Print one line per thing that grows."""
    rendering.rows("what would go" if report.dry_run else "housekeeping", rounds.lines(report))
    verb = "would go" if report.dry_run else "removed"
    rendering.say(f"{report.removed:,} {verb}, {report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s")
