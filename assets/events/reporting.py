"""Turn the engine's reports into Dagster's events: one materialization per state and slice, one verdict per check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.events import table_metadata
from assets.events.results_page import page_facts, write
from assets.events.table_plots import TablePlots
from assets.events.verdicts import GateVerdict, materialization_of
from assets.view import FlowView
from pipelines.errors import PoisonBatchError, TrideltaError
from pipelines.execution.report import BatchReport, SliceReport, StateCommit
from pipelines.graph import events
from pipelines.places.location import Place
from pipelines.state.delta_log import adds

if TYPE_CHECKING:
    from pipelines import Lake


_watchers: list[Callable[[Any], None]] = []


@contextmanager
def watching(watcher: Callable[[Any], None]) -> Iterator[None]:
    """Hand every BatchReport and SliceReport of runs in this process to `watcher` while the block runs."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _pass_on(report: Any) -> None:
    for watcher in tuple(_watchers):
        watcher(report)


def written_slices(table: Place, version: int) -> dict[str | None, int]:
    """Read the slices that a commit wrote, with their rows, off the log file of that version."""
    return slices_of(adds(table, version))


def slices_of(added: Iterable[Mapping[str, Any]]) -> dict[str | None, int]:
    """Return the slices of the data files that a commit added, with their rows.

    Rows of a channel that are no events but watermark rows do not count.
    """
    rows: dict[str | None, int] = {}
    for file in added:
        stats = json.loads(file.get("stats") or "{}")
        slice_ = file["partitionValues"].get("_slice")
        words = stats.get("nullCount", {}).get(events.ID, 0)
        rows[slice_] = rows.get(slice_, 0) + int(stats.get("numRecords", 0)) - int(words)
    return rows


def refuses(said: str, gate: str, check: str) -> bool:
    """Check whether an error's text says that a check of a gate has refused a batch."""
    return f'gate "{gate}" refused' in said and f" {check}: " in said


def _results(gates: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """Iterate over the results of all checks, each with its gate and name."""
    for gate in gates:
        for result in gate["checks"]:
            yield (gate["gate"], result["name"]), result


def log_evaluation(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, evaluation: dg.AssetCheckEvaluation
) -> None:
    """Log a check's verdict from a step that does not own the check; Dagster takes it, only its type hint leaves it out."""
    context.log_event(evaluation)  # type: ignore[arg-type]


class Reporter:
    """Tells Dagster of each batch or slice when it is committed.

    An event costs Dagster's SQLite some 30 ms, mostly waiting for the disk, and a batch of nine days makes 36 of them: a
    thread writes them while Spark runs the next batch. What was reported stays if the run is killed later.
    """

    def __init__(self, context: dg.OpExecutionContext | dg.AssetExecutionContext, view: FlowView, lake: Lake) -> None:
        self._context, self._view, self._lake = context, view, lake
        sliced = view.partitions is not None
        # What a run over one partition says at its end is of that slice; another run tells of each slice when it is there.
        own = context.partition_key if sliced and context.has_partition_key else None
        self._each_slice = sliced and own is None
        self._verdicts = {
            (check.gate, check.check.name): GateVerdict(check, view, lake, own) for check in view.gate_checks
        }
        self._fixed: dict[str, dict[str, Any]] = {}
        self._plots = {name: TablePlots(view, lake, name) for name in view.writers}
        self._seconds: dict[str, dict[int, float]] = {name: {} for name in view.writers}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dagster-events")
        self._pending: list[Future[None]] = []

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.shutdown(wait=True)
        if error is None:
            for event in self._pending:
                event.result()

    # --- what the engine calls --------------------------------------------------------------------------------------

    def batch(self, report: BatchReport) -> None:
        """Report a committed batch."""
        self._take(report.txid, report.gates)
        txids = {"txid_first": report.txid, "txid_last": report.txid, "attempt": report.attempt}
        self._committed(f"batch {report.txid}", report, txids)
        _pass_on(report)

    def slice(self, report: SliceReport) -> None:
        """Report a slice: replaced in every state, or failed. A failed slice is not materialized."""
        self._take(report.slice, report.gates)
        if report.error is None:
            self._committed(report.slice, report, {}, report.slice)
        else:
            self._context.log.error(f"{report.slice}: {report.error}")
        if self._each_slice:
            self._pending.append(self._writer.submit(self._judge, report))
        _pass_on(report)

    # --- what Dagster gets ------------------------------------------------------------------------------------------

    def _committed(
        self, what: str, report: BatchReport | SliceReport, txids: Mapping[str, int], slice_: str | None = None
    ) -> None:
        self._context.log.info(
            f"{what}: {report.received:,} rows, {report.quarantined:,} to quarantine, {report.seconds:.1f} s"
        )
        for commit in report.commits:
            self._seconds[commit.state][commit.version] = report.seconds
            self._pending.append(self._writer.submit(self._write, commit, txids, slice_))

    def _write(self, commit: StateCommit, txids: Mapping[str, int], slice_: str | None) -> None:
        table = self._view.table(self._lake, commit.state)
        written = written_slices(table.path, commit.version)
        if slice_ is not None:
            written = {slice_: written.get(slice_, commit.rows)}
            txids = self._covered(commit)
        in_order = sorted(written.items(), key=lambda slice_rows: str(slice_rows[0]))
        for name, rows in in_order:
            metadata = {
                "dagster/row_count": rows,
                **self._table(commit.state),
                "delta_version": commit.version,
                **txids,
                "seconds": round(commit.seconds, 3),
            }
            if name == in_order[-1][0]:
                # A page shows the last event: one of a commit's slices carries the plots.
                metadata |= self._plots[commit.state].metadata(commit.version, dict(self._seconds[commit.state]))
            self._context.log_event(self._view.materialization(commit.state, name, metadata))

    def _covered(self, commit: StateCommit) -> dict[str, int]:
        """Return the txids of the stream that a slice's replacement covers."""
        records = [
            record
            for record in self._view.table(self._lake, commit.state).history()
            if record.version == commit.version
        ]
        last = records[0].txid if records else None
        return {} if last is None or last < 0 else {"txid_first": 0, "txid_last": last}

    def _table(self, state: str) -> dict[str, Any]:
        """Return the metadata that all materializations of a table in this run share."""
        if state not in self._fixed:
            schema = table_metadata.column_schema(self._view.table(self._lake, state).schema)
            self._fixed[state] = self._view.event_metadata(state, schema)
        return self._fixed[state]

    # --- checks -----------------------------------------------------------------------------------------------------

    def _judge(self, report: SliceReport) -> None:
        """Log one verdict per check on a slice, behind the slice's own materializations.

        Not of what stands behind a gate that refuses the slice, nor of what judges another stream's part of it.
        """
        asked: list[GateVerdict] = []
        for name, result in _results(report.gates):
            if name in self._verdicts:
                asked.append(GateVerdict(self._verdicts[name].check, self._view, self._lake, report.slice))
                asked[-1].add(report.slice, result)
        self._log(asked)

    def _log(self, verdicts: Iterable[GateVerdict]) -> None:
        judged: dict[tuple[dg.AssetKey, str], Any] = {}
        for verdict in verdicts:
            if verdict.slice is None:
                log_evaluation(self._context, verdict.evaluation())
                continue
            table = verdict.check.key.asset_key, verdict.slice
            if table not in judged:
                judged[table] = materialization_of(self._context.instance, *table)
            log_evaluation(self._context, verdict.evaluation(judged[table]))

    def _take(self, where: int | str, gates: tuple[Mapping[str, Any], ...]) -> None:
        for name, result in _results(gates):
            if name in self._verdicts:
                self._verdicts[name].add(where, result)

    def refused(self, error: TrideltaError) -> None:
        """Take in a gate's refusal that ended the run: by itself, or as the reason why a batch is poison."""
        said = error.reason if isinstance(error, PoisonBatchError) else str(error)
        for (gate, name), verdict in self._verdicts.items():
            if refuses(said, gate, name) and not verdict.failed:
                verdict.failed.append({"where": "the batch that stopped the run", "unexpected": said})
                verdict.txids += [error.txid] if isinstance(error, PoisonBatchError) else []

    def check_results(self) -> Iterator[dg.AssetCheckResult]:
        """Return one result per check, for the step that owns the checks."""
        self._settle()
        yield from (verdict.result(self._context.instance) for verdict in self._verdicts.values())

    def log_checks(self) -> None:
        """Log one evaluation per check, for a step that does not own them, or that fails."""
        self._settle()
        self._log(verdict for verdict in self._verdicts.values() if verdict.was_asked)

    def _settle(self) -> None:
        """Write one page for all gates of the run, if any was asked, after all reports on slices."""
        # A verdict names the materialization that it is about: that must be there.
        wait(self._pending)
        asked = [verdict for verdict in self._verdicts.values() if verdict.was_asked]
        if not asked:
            return
        run, view = self._context.run.run_id, self._view
        folder = view.settings.home / "checks" / view.name
        page = write(
            folder, run, f"Gates of {view.name}", page_facts(view.name, run), [verdict.checked() for verdict in asked]
        )
        for verdict in asked:
            verdict.page = page


@contextmanager
def plain_failures(reporter: Reporter | None = None) -> Iterator[None]:
    """Turn an error of the engine into the run's failure, its text first; a gate's refusal becomes a red check as well.

    Raises:
        Failure: For every TrideltaError of the block.
    """
    try:
        yield
    except TrideltaError as error:
        if reporter is not None:
            reporter.refused(error)
            reporter.log_checks()
        raise dg.Failure(
            description=str(error), metadata={"error": type(error).__name__, "next": error.hint or "see the text"}
        ) from error
