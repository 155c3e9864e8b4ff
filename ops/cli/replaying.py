"""`tridelta replay-quarantine`: replay rejected rows, count them, and show earlier replays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli import rendering
from ops.cli.parts import AsJson, KnownFlow, answer, emit, engine, opened_lake, verb
from ops.known_flows import topology_of

if TYPE_CHECKING:
    from pipelines.execution.checkpoint.replay_records import Record
    from pipelines.execution.replays.report import ReplayReport
    from pipelines.execution.replays.selection import Selection
    from pipelines.state.lake import Lake
    from pipelines.trident import TridentTopology

app = typer.Typer()


@verb(app, "replay-quarantine")
def replay_quarantine(
    name: KnownFlow,
    gate: Annotated[list[str] | None, typer.Option(help="Rejected by this gate; may be repeated.")] = None,
    spout: Annotated[
        list[str] | None, typer.Option(help="Rejected at the source of this stream, or in a poison batch of it.")
    ] = None,
    reason: Annotated[
        list[str] | None,
        typer.Option(
            help="Rejected by this check, or as malformed, other_fields, far_time, not_read, no_slice, bad_slice, no_time, "
            "poison, waiting or file_gone."
        ),
    ] = None,
    txids: Annotated[str, typer.Option(help="Rejected in these batches: 40, 40-57, or backfills.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; count what there is. Needs no Spark.")
    ] = False,
    history: Annotated[bool, typer.Option("--history", help="Show what was replayed when. Needs no Spark.")] = False,
    as_json: AsJson = False,
) -> None:
    """Replay rejected rows through a corrected flow: each lands once, or stays with its new reason."""
    from pipelines.execution.checkpoint.replay_records import Records
    from pipelines.execution.replays.runner import look

    topology, lake = topology_of(name), opened_lake()
    selection = selected(gate or (), spout or (), reason or (), txids)
    if history:
        show_history(topology.name, Records(lake.quarantine_path(topology.name)).all(), as_json)
    else:
        report = look(lake, topology, selection) if dry_run else replayed(lake, topology, selection, quiet=as_json)
        answer(as_json, report.to_json(), lambda: show(report))


def selected(gates: Iterable[str], spouts: Iterable[str], reasons: Iterable[str], txids: str) -> Selection:
    """Return a selection from the words of a form."""
    from pipelines.execution.replays.selection import Selection, txids_of

    first, last = txids_of(txids)
    return Selection(tuple(gates), tuple(spouts), first, last, tuple(reasons))


def replayed(lake: Lake, topology: TridentTopology, selection: Selection, *, quiet: bool) -> ReplayReport:
    """Look, then replay: Spark starts only if there is something that can be replayed."""
    from pipelines.execution.replays.runner import planned, unfinished

    report = planned(lake, topology, selection)
    if not report.lots and not unfinished(lake, topology):
        return report
    with engine(quiet) as runtime, rendering.bar(f"{topology.name}: places", len(report.lots), quiet) as advance:
        return runtime.replay_quarantine(
            topology, selection, progress=lambda lot: advance(f"{lot.stage}, {lot.selected:,} rows")
        )


# --- what the screen shows ------------------------------------------------------------------------------------------


def show(report: ReplayReport) -> None:
    """Print one line per place and rule, then what was left and why."""
    verb = "in quarantine" if report.dry_run else "replayed"
    rendering.rows(f"{report.flow}: {verb}", lines(report))
    for lot in report.lots:
        for why, rows in lot.left.items():
            word = "cannot be replayed" if report.dry_run else "left"
            rendering.say(f"{rows:,} rows of {_place(lot.stage, lot.stream)} {word}: {why}")
        if lot.left and lot.hint:
            rendering.say(f"  Next: {lot.hint}")
    if report.resumed:
        rendering.say(f"Finished an interrupted replay: {', '.join(map(str, report.resumed))}")
    if not report.dry_run and report.lots:
        rendering.say(f"{report.landed:,} landed, {report.refused:,} rejected again, {report.left:,} left")


def lines(report: ReplayReport) -> list[dict[str, Any]]:
    """Return the report as flat rows: what there is by rule, or what became of each place."""
    if report.dry_run:
        return [
            {"rejected by": _place(lot.stage, lot.stream), "reason": rule, "rows": rows, "replayable": not lot.left}
            for lot in report.lots
            for rule, rows in sorted(lot.rows.items())
        ]
    return [
        {
            "replay": "" if lot.number is None else lot.number,
            "rejected by": _place(lot.stage, lot.stream),
            "rows": lot.selected,
            "landed": lot.landed,
            "counted by a backfill": lot.counted,
            "rejected again": _counts(lot.refused),
            "left": sum(lot.left.values()),
            "states": ", ".join(f"{commit.state} +{commit.rows:,}" for commit in lot.commits),
        }
        for lot in report.lots
    ]


def show_history(name: str, records: list[Record], as_json: bool) -> None:
    """Print what was replayed when."""
    if as_json:
        emit([record.to_json() for record in records])
        return
    rendering.rows(
        f"{name}: replays (times in UTC)",
        [
            {
                "replay": record.number,
                "started": record.started[:19].replace("T", " "),
                "finished": (record.finished or "cut off")[:19].replace("T", " "),
                "rejected by": _place(record.stage, record.stream),
                "rows": record.rows,
                "landed": record.landed,
                "rejected again": _counts(record.refused),
            }
            for record in records
        ],
    )


def _place(stage: str, stream: str | None) -> str:
    return {"source": f"source {stream}", "batch": f"poison batches of {stream}"}.get(stage, f"gate {stage}")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{rule}: {rows:,}" for rule, rows in sorted(counts.items()))
