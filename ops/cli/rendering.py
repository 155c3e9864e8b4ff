"""The output of the command line and the demo."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Column, Table

from pipelines.printable import plain, printable

if TYPE_CHECKING:
    from pipelines.execution.report import BackfillReport, RunReport
    from pipelines.execution.verify import VerifyReport
    from pipelines.maintenance.report import CompactionReport
    from pipelines.planner.changes import Change, PlanChanges, StateChange


class Screen(Console):
    """A console on which only rich itself writes control characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with control characters of texts written out."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


class PlainLines(logging.Formatter):
    """Lines of a log, with traces, as a terminal may show them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        return printable(super().format(record))


console = Screen(highlight=False)
Advance = Callable[[str], None]


def bars(quiet: bool = False) -> Progress:
    """Make progress bars on standard error; each has a field `last` that says what was done last, cut at the line's end."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=16),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn(
            "{task.fields[last]}",
            style="dim",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        console=Screen(stderr=True),
        disable=quiet,
        expand=True,
    )


@contextmanager
def bar(title: str, total: int | None, quiet: bool = False) -> Iterator[Advance]:
    """Show a progress bar on standard error; the block gets a function that advances it and says what was done."""
    with bars(quiet) as progress:
        task = progress.add_task(title, total=total, last="")

        def advance(last: str) -> None:
            progress.update(task, advance=1, last=last)

        yield advance


@contextmanager
def waiting(title: str, quiet: bool = False) -> Iterator[None]:
    """Show a spinner while something starts."""
    if quiet:
        yield
        return
    with Screen(stderr=True).status(title):
        yield


def say(text: str) -> None:
    """Print a line for people; a terminal breaks it where it must, so that commands in it can be copied."""
    console.print(text, markup=False, soft_wrap=True)


def rows(title: str, listed: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table; numbers to the right."""
    if not listed:
        say(f"{title}: no rows")
        return
    columns = list(dict.fromkeys(name for row in listed for name in row))
    # Not as the table's own title, which would be wrapped to the table's width.
    console.print(f"\n{title}", style="bold", markup=False)
    texts = [{name: plain(row.get(name)) for name in columns} for row in listed]
    numeric = {name for name in columns if all(isinstance(row.get(name), int | float | None) for row in listed)}
    room = console.width if console.is_terminal or "COLUMNS" in os.environ else None
    widths = column_widths({name: [name, *(text[name] for text in texts)] for name in columns}, room)
    if widths is None:
        console.print(_one_below_another(columns, texts))
        return
    shown = Table()
    for name, width in widths.items():
        shown.add_column(escape(name), justify="right" if name in numeric else "left", width=width, overflow="fold")
    for text in texts:
        shown.add_row(*(escape(text[name]) for name in columns))
    # Into a file or a pipe each row goes as one line, however long.
    wide = console if room is not None else Screen(highlight=False, file=console.file, width=_edges(widths.values()))
    wide.print(shown)


def column_widths(texts: Mapping[str, Sequence[str]], room: int | None) -> dict[str, int] | None:
    """Return how wide each column is, such that no word is broken; None if the room is too small for that.

    Args:
        texts: The texts of each column, its name among them.
        room: The width of the screen; None: there is no bound.
    """
    natural = {name: max(map(cell_len, column)) for name, column in texts.items()}
    if room is None or _edges(natural.values()) <= room:
        return natural
    # The longest word of each column; what is left goes to the columns that want most.
    widths = {
        name: max(cell_len(word) for text in column for word in text.split() or [""]) for name, column in texts.items()
    }
    left = room - _edges(widths.values())
    if left < 0:
        return None
    while left > 0:
        most = max(widths, key=lambda name: natural[name] - widths[name])
        widths[most] += 1
        left -= 1
    return widths


def _edges(widths: Iterable[int]) -> int:
    """Return the width of a table: its columns, with a blank on both sides of each and a line between them."""
    return sum(width + 3 for width in widths) + 1


def _one_below_another(columns: Sequence[str], texts: Sequence[Mapping[str, str]]) -> Table:
    """Lay out rows of too many columns for the screen: one block per row, one line per column with a value."""
    shown = Table(show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for text in texts:
        for name in columns:
            if text[name]:
                shown.add_row(escape(name), escape(text[name]))
        shown.add_section()
    return shown


def flows(listed: Iterable[Mapping[str, Any]]) -> None:
    """Print the catalog: one heading per flow, and one line for each of its states and channels."""
    for entry in listed:
        console.print(f"\n{entry['flow']}", style="bold", markup=False, end=": " if entry["description"] else "\n")
        if entry["description"]:
            say(entry["description"])
        if entry["deployed"] is not None:
            say(f"  deployed: {_deployed(entry['deployed'])}")
        tables = [(name, "state", txid) for name, txid in entry["states"].items()]
        tables += [(name, "channel", txid) for name, txid in entry["channels"].items()]
        longest = max((len(name) for name, _, _ in tables), default=0)
        for name, kind, txid in tables:
            progress = "not run yet" if txid is None else f"up to batch {txid}"
            progress = "cannot be read" if name in entry["unread"] else progress
            console.print(f"  {kind:<8} {name:<{longest}}  {progress}", markup=False, soft_wrap=True)
        for query in entry["queries"]:
            say(f"  query    {query}")


def _deployed(deployed: Mapping[str, Any]) -> str:
    return f"{deployed['status']}, version {deployed['version']}" + (", runs" if deployed["running"] else "")


def plan(changes: PlanChanges) -> None:
    """Print what would change, part by part, then the verdict in one line. Parts that stay are only counted."""
    if changes.deployed_at:
        at = datetime.fromisoformat(changes.deployed_at)
        say(f"{changes.flow}, compared with its plan of {at:%Y-%m-%d %H:%M:%S} UTC, the last that ran:")
    else:
        say(f"{changes.flow}, for the first time here (no earlier run has stored its plan):")
    _changed_part("sources and queries", changes.spouts)
    _changed_part("bolts", changes.bolts)
    _changed_part("batch groups", changes.batch_groups)
    if changes.parallelism:
        rows(
            "parallelism",
            [{"component": name, "tasks": tasks, "then": two} for name, (tasks, two) in changes.parallelism.items()],
        )
    rows("states", [_state_change(state) for state in changes.states])
    say(_plan_verdict(changes))


def _changed_part(title: str, parts: Sequence[Change]) -> None:
    changed = [
        {"name": change.name, "change": change.change, "was": change.before or "", "what": "; ".join(change.details)}
        for change in parts
        if change.change != "same"
    ]
    if changed:
        rows(f"{title} ({len(parts) - len(changed)} stay as they are)", changed)


def _state_change(change: StateChange) -> dict[str, str]:
    return {"state": change.name, "change": change.change, "verdict": change.verdict, "why": "; ".join(change.details)}


def _plan_verdict(changes: PlanChanges) -> str:
    if changes.refused:
        return (
            f"\nThe flow would be refused at its start because of: {', '.join(state.name for state in changes.refused)}"
        )
    return "\nNothing would change." if changes.nothing else "\nThe flow can be deployed."


def run(report: RunReport) -> None:
    """Print the result of a catch-up."""
    if not report.batches:
        say(f"{report.flow}: nothing new")
        return
    say(
        f"{report.flow}: {len(report.batches)} batches, {report.received:,} rows, "
        f"{report.quarantined:,} of them to quarantine, {report.seconds:.1f} s"
    )


def backfill(report: BackfillReport) -> None:
    """Print the result of a backfill, slice by slice where that says more than a sum."""
    if report.failed or len(report.slices) <= 31:
        rows(
            f"{report.flow}: slices",
            [
                {
                    "slice": made.slice,
                    "rows": made.received,
                    "quarantined": made.quarantined,
                    "seconds": made.seconds,
                    "result": "failed" if made.error else "replaced",
                }
                for made in report.slices
            ],
        )
    total = sum(made.received for made in report.slices)
    say(f"{report.flow}: {len(report.slices)} slices, {total:,} rows, {report.seconds:.1f} s")


def verified(report: VerifyReport) -> None:
    """Print the result of verify: one line per state and verdict, and each commit that differs."""
    tally = Counter((finding.state, finding.verdict) for finding in report.findings)
    rows(
        f"{report.flow}: commits verified",
        [{"state": state, "verdict": verdict, "commits": n} for (state, verdict), n in tally.items()],
    )
    for fault in report.faults:
        say(str(fault))
    if report.differing:
        rows(
            "these differ",
            [{"state": d.state, "txid": d.txid, "slice": d.slice, "why": d.reason} for d in report.differing],
        )


def compacted(report: CompactionReport) -> None:
    """Print the result of a compaction: one line per table, figures before and after it."""
    lines = []
    for table in report.tables:
        before, after = table.before, table.after
        line: dict[str, Any] = {"state": table.state, "layout": table.layout}
        for name in ("files", "bytes", "rows", "log_files"):
            line[name.replace("_", " ")] = f"{getattr(before, name):,} -> {getattr(after, name):,}"
        if table.rows_let_go:
            line["rows let go"] = table.rows_let_go
        lines.append(line | {"files removed": table.files_removed, "seconds": table.seconds})
    rows(f"{report.flow}: before and after", lines)


def flat_tables(report: Any) -> list[dict[str, Any]]:
    """Return a compaction's report as one flat row per table: `before.files` becomes `files before`."""
    return [_flat(table) for table in report.tables]


def _flat(table: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in dataclasses.asdict(table).items():
        if isinstance(value, Mapping):
            row.update({f"{inner} {name}": inner_value for inner, inner_value in value.items()})
        else:
            row[name.replace("_", " ")] = value
    return row
