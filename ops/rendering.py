"""What the command line and the demo put on the screen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from resources.markdown import cell

if TYPE_CHECKING:
    from pipelines.execution.report import BackfillReport, RunReport
    from pipelines.execution.verify import VerifyReport
    from pipelines.maintenance.report import CompactionReport

console = Console(highlight=False)
Advance = Callable[[str], None]


@contextmanager
def bar(title: str, total: int | None, quiet: bool = False) -> Iterator[Advance]:
    """A progress bar on standard error; the block gets a function that advances it by one and says what was done."""
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[last]}"),
        console=Console(stderr=True),
        disable=quiet,
    )
    with shown as progress:
        task = progress.add_task(title, total=total, last="")

        def advance(last: str) -> None:
            progress.update(task, advance=1, last=last)

        yield advance


@contextmanager
def waiting(title: str, quiet: bool = False) -> Iterator[None]:
    """A turning sign while something starts."""
    if quiet:
        yield
        return
    with Console(stderr=True).status(title):
        yield


def say(text: str) -> None:
    """A line for people."""
    console.print(text, markup=False)


def rows(title: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a table; numbers to the right."""
    if not found:
        say(f"{title}: no rows")
        return
    columns = list(dict.fromkeys(name for row in found for name in row))
    # Not as the table's own title, which would be wrapped to the table's width.
    console.print(f"\n{title}", style="bold", markup=False)
    shown = Table()
    for name in columns:
        numeric = all(isinstance(row.get(name), int | float | None) for row in found)
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in found:
        shown.add_row(*(cell(row.get(name)) for name in columns))
    console.print(shown)


def flows(listed: Iterable[Mapping[str, Any]]) -> None:
    """The catalog."""
    lines = [
        {
            "flow": one["flow"],
            "what": one["description"],
            "state": state,
            "last txid": "not run yet" if txid is None else str(txid),
            "queries": ", ".join(one["queries"]),
            "deployed": _deployed(one["deployed"]),
        }
        for one in listed
        for state, txid in (
            one["states"] | {f"{name} (channel)": txid for name, txid in one["channels"].items()} or {"": ""}
        ).items()
    ]
    for before, after in zip(lines[-2::-1], lines[:0:-1], strict=False):
        if before["flow"] == after["flow"]:
            after.update({"flow": "", "what": "", "queries": "", "deployed": ""})
    rows("The catalog", lines)


def _deployed(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return f"{found['status']}, version {found['version']}" + (", runs" if found["running"] else "")


def run(report: RunReport) -> None:
    """A catch-up."""
    if not report.batches:
        say(f"{report.flow}: nothing new")
        return
    say(
        f"{report.flow}: {len(report.batches)} batches, {report.received:,} rows, "
        f"{report.quarantined:,} of them to quarantine, {report.seconds:.1f} s"
    )


def backfill(report: BackfillReport) -> None:
    """A backfill, slice by slice where that says more than a sum."""
    if report.failed or len(report.slices) <= 31:
        rows(
            f"{report.flow}: slices",
            [
                {
                    "slice": one.slice,
                    "rows": one.received,
                    "quarantined": one.quarantined,
                    "seconds": one.seconds,
                    "result": "failed" if one.error else "replaced",
                }
                for one in report.slices
            ],
        )
    total = sum(one.received for one in report.slices)
    say(f"{report.flow}: {len(report.slices)} slices, {total:,} rows, {report.seconds:.1f} s")


def verified(report: VerifyReport) -> None:
    """What verify found: a line a state and verdict, and each commit that differs."""
    tally: dict[tuple[str, str], int] = {}
    for one in report.findings:
        tally[one.state, one.verdict] = tally.get((one.state, one.verdict), 0) + 1
    rows(
        f"{report.flow}: commits verified",
        [{"state": state, "verdict": verdict, "commits": n} for (state, verdict), n in tally.items()],
    )
    if report.differing:
        rows(
            "these differ",
            [{"state": d.state, "txid": d.txid, "slice": d.slice, "why": d.reason} for d in report.differing],
        )


def compacted(report: CompactionReport) -> None:
    """A compaction: a line a table, figures before and after it."""
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
    """A compaction's report as one flat row a table: `before.files` becomes `files before`."""
    return [_flat(table) for table in report.tables]


def _flat(table: Any) -> dict[str, Any]:
    plain: Mapping[str, Any] = dataclasses.asdict(table) if dataclasses.is_dataclass(table) else dict(table)  # type: ignore[arg-type]
    row: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            row.update({f"{inner} {name}": one for inner, one in value.items()})
        else:
            row[name.replace("_", " ")] = value
    return row
