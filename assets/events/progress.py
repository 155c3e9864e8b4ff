"""The progress of deployed flows since the last look, as Dagster's events: one look over all flows, and a cursor.

A flow whose batches have not come forward costs nothing but the look at the registry. For the others the new commits are read
off their log files, one file per commit; the rows of all commits since the last look are one materialization per table and slice.

A look is short, and tells no more than Dagster writes in a moment. Where more flows have come forward than that, those that
waited longest come first, and the others' batches are reported together by one of the next looks; trouble is reported at once.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from assets.deployment import RUNS_WITHIN, deployment_key, registered, version_of
from assets.events import failed_rows, plots, table_metadata
from assets.events.liveness import liveness, trouble
from assets.events.reporting import refuses, slices_of
from assets.events.table_plots import LAST, TablePlots
from assets.view import FlowView, GateCheck
from pipelines import logs
from pipelines.places.location import Place
from pipelines.state.delta_log import actions, commit_file, versions
from pipelines.state.record import BATCH, CommitRecord, parse_commit

if TYPE_CHECKING:
    from pipelines import Lake
    from pipelines.nimbus.status import FlowStatus, TaskStatus
    from pipelines.state.table import StateTable

logger = logs.logger(__name__)

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation

MOST_COMMITS = 200
"""Commits of a table that one look reads: a flow that was not looked at for a day is caught up with over some looks."""

MOST_EVENTS = 30
"""Events of one look, but for trouble: each costs Dagster's SQLite some 15 ms, and a tick is to be over in a second."""

LOOK_SECONDS = 0.4
"""After that a look begins no other flow."""

OVER_SECONDS = 15.0
"""After that a look reads on in no table, and begins with no further flow. Dagster gives a tick up after a minute, and the next
one would begin where it began: on a store a first look at a hundred flows takes longer, or one at tables of a day."""

DRAWING_SECONDS = 0.15
"""Seconds of a look that may go into plots; among flows that waited equally long, those longest without one come first."""

ALIVE_SECONDS = 6.0
"""Times the number of deployed flows: how often the check `alive` is reported for one that comes forward and is well. The
verdict stays the same, so with a hundred flows each is reported every ten minutes; with a few, at every look."""

SETTLES_SECONDS = RUNS_WITHIN + 20.0
"""After a new version: the run that deploys it waits so long, and behind its materialization an older verdict counts no more."""


@dataclass
class SeenFlow:
    """The state of a flow as it was reported.

    Attributes:
        id: The submission; another one begins again.
        mark: What changes when a batch ends.
        tables: The last Delta version of each table that was looked at.
        committed_at: When these were committed: a table that is created again has another commit at that version, or none.
        checks: By query and check: how many batches and failures were reported, and of which process (its pid).
        wrong: What was wrong, by kind.
        unread: By table that could not be read: why.
        looks: the last looks at which it had come forward: lag in seconds, and rows per second.
        drawn_at: When its tables had plots last, in seconds since 1970.
        told_at: When all that it had done was reported last.
        alive_at: When the check `alive` was reported last.
        settles_at: When the run that has deployed this version is over, and the check is reported once more after it; 0: it was.
    """

    id: str = ""
    version: int = 0
    mark: str = ""
    tables: dict[str, int] = field(default_factory=dict)
    committed_at: dict[str, float] = field(default_factory=dict)
    checks: dict[str, list[int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    looks: list[tuple[float | None, float]] = field(default_factory=list)
    drawn_at: float = 0.0
    told_at: float = 0.0
    alive_at: float = 0.0
    settles_at: float = 0.0

    def plots(self) -> dict[str, plots.Bars]:
        """Plot how late and how fast the flow was."""
        first = f"{len(self.looks)} looks ago" if len(self.looks) > 1 else ""
        return {
            "lag": plots.Bars([lag for lag, _ in self.looks], "seconds", first, "now"),
            "rows per second": plots.Bars([speed for _, speed in self.looks], "rows/s", first, "now"),
        }


@dataclass
class KnownTables:
    """The tables that looks have read, by folder: a look reads of each no more than what is new.

    Attributes:
        schemas: The columns.
        plots: The plots that were drawn.
    """

    schemas: dict[Place, dg.TableSchema] = field(default_factory=dict)
    plots: dict[Place, TablePlots] = field(default_factory=dict)

    def forget(self, path: Place) -> None:
        """Forget a table that may be another one now."""
        self.schemas.pop(path, None)
        self.plots.pop(path, None)


def _read(cursor: str) -> dict[str, SeenFlow]:
    """Return what a cursor holds. One of another release may have more fields, and one that was set by hand anything."""
    try:
        return TypeAdapter(dict[str, SeenFlow]).validate_json(cursor)
    except ValidationError:
        return {}


def follows(cursor: str | None) -> bool:
    """Check whether a cursor holds a flow that was deployed at the last look."""
    return bool(cursor and _read(cursor))


class Progress:
    """Follows deployed flows.

    Args:
        cursor: What the last look gave; None for the first one. One that cannot be read is none.
        known: What looks before this one have kept of tables.
        most: How many events a look tells, but for trouble; MOST_EVENTS without it. A commit is not cut in two.
        others: Whether deployed flows that are not among the views are looked at for trouble, and for nothing else.
    """

    def __init__(
        self,
        views: Sequence[FlowView],
        lake: Lake,
        cursor: str | None,
        known: KnownTables | None = None,
        most: int | None = None,
        *,
        others: bool = False,
    ) -> None:
        self._views, self._lake = {view.name: view for view in views}, lake
        self._known = KnownTables() if known is None else known
        self._most = MOST_EVENTS if most is None else most
        self._others = others
        self._seen = _read(cursor) if cursor else {}
        self._drawing = 0.0
        self.changed: list[tuple[str, list[str]]] = []
        """Flows that are in trouble now and were not, or in another, or are well again: with what is wrong."""

    @property
    def cursor(self) -> str:
        """Return the cursor for the next look."""
        return json.dumps({name: asdict(seen) for name, seen in self._seen.items()})

    def look(self, deployed: Mapping[str, FlowStatus], now: float) -> list[Event]:
        """Return the events since the last look.

        Args:
            deployed: The deployed flows; those that the catalog does not have give no events.
            now: Seconds since 1970.
        """
        events: list[Event] = []
        started = time.perf_counter()
        self._last_until, self._over_at = started + LOOK_SECONDS, started + OVER_SECONDS
        for name in [name for name in self._seen if name not in deployed]:
            if name in self._views:
                made, all_read = self._last_of_tables(self._views[name], now)
                events += made
                if not all_read:
                    continue
                events.append(registered(name, None))
            del self._seen[name]
        known: list[tuple[FlowView, FlowStatus]] = []
        new = 0
        # Before other limits: what a flow writes from now on is reported, however long that waits.
        for view, flow in [(self._views[name], flow) for name, flow in deployed.items() if name in self._views]:
            if self._is_new(flow):
                if new and time.perf_counter() > self._over_at:
                    continue
                new += 1
                events += self._begin(view, flow, now)
            known.append((view, flow))
        self._left, self._until = self._most, time.perf_counter() + LOOK_SECONDS
        self._alive_every = ALIVE_SECONDS * len(known)
        for view, flow in sorted(known, key=lambda pair: self._turn(pair[0])):
            for event in self._of_flow(view, flow, now):
                events.append(event)
                self._left -= 1
        for name in [name for name in deployed if name not in self._views and self._others]:
            self._of_other(deployed[name], now)
        return events

    def _of_other(self, flow: FlowStatus, now: float) -> None:
        seen = self._seen.get(flow.name)
        if seen is None or seen.id != flow.id:
            self._seen[flow.name] = seen = SeenFlow(id=flow.id)
        wrong = trouble(flow, now)
        self._change(flow.name, seen, list(wrong), list(wrong.values()))

    def _change(self, name: str, seen: SeenFlow, kinds: list[str], wrong: list[str]) -> None:
        if kinds != seen.wrong:
            self.changed.append((name, wrong))
            seen.wrong = kinds

    def _turn(self, view: FlowView) -> tuple[float, float]:
        seen = self._seen[view.name]
        return seen.told_at, seen.drawn_at

    def _is_new(self, flow: FlowStatus) -> bool:
        seen = self._seen.get(flow.name)
        return seen is None or seen.id != flow.id

    def _begin(self, view: FlowView, flow: FlowStatus, now: float) -> list[dg.AssetMaterialization]:
        """Begin with a flow that is new, or was submitted again since the last look: then tell what its life before has written.

        What is left of that the looks at this one report.
        """
        seen = self._seen.get(view.name)
        made = self._last_of_tables(view, now)[0] if seen is not None else []
        for name in view.writers:
            self._known.forget(view.table(self._lake, name).path)
        tables = seen.tables if seen is not None else {}
        committed_at = seen.committed_at if seen is not None else {}
        self._seen[view.name] = seen = SeenFlow(id=flow.id, tables=tables, committed_at=committed_at)
        for name in [name for name in view.writers if name not in tables]:
            with _guarded(view.name, name, seen):
                seen.tables[name] = self._before(view, name, flow.submitted_at)
        return made

    def _last_of_tables(self, view: FlowView, now: float) -> tuple[list[dg.AssetMaterialization], bool]:
        """Report what a flow that is gone has written since the last look, and whether that is all of it.

        On a store a log of a day takes longer to read than Dagster lets a tick last, which would begin from its start again.
        """
        made: list[dg.AssetMaterialization] = []
        seen, began = self._seen[view.name], False
        # What was not looked at until now is history.
        for name in [name for name in view.writers if name in seen.tables]:
            all_read = False
            with _guarded(view.name, name, seen):
                while not all_read:
                    if began and time.perf_counter() > self._last_until:
                        return made, False
                    began = True
                    events, all_read = self._of_table(view, name, seen, now, self._most)
                    made += events
        return made, True

    def _of_flow(self, view: FlowView, flow: FlowStatus, now: float) -> Iterator[Event]:
        seen = self._seen[view.name]
        mark = json.dumps([[task.group, task.txid, task.last_batch_at] for task in flow.tasks])
        in_turn = self._left > 0 and time.perf_counter() < self._until
        moved, other = in_turn and (mark != seen.mark or bool(seen.unread)), in_turn and flow.version != seen.version
        if moved:
            # Cut off, it has come forward at the next look too, and then it is its turn before the others.
            moved = yield from self._of_tables(view, flow, now)
        if moved:
            yield from self._of_checks(view, flow, seen)
            seen.mark, seen.told_at = mark, now
        # Reported until it can be read again: a look that has no turn for the flow reads nothing.
        unread = {f"{name}: unread": f"its tables cannot be read: {name}: {why}" for name, why in seen.unread.items()}
        faults, refused = trouble(flow, now) | unread, _refused(view, flow)
        # A check that refuses what failed before for another cause is a fault more.
        kinds = [*faults, *(f"{task.group}: {check.gate}/{check.check.name}" for task, check in refused)]
        wrong, changed = list(faults.values()), kinds != seen.wrong
        if changed:
            yield from self._of_refused(view, refused)
        if other:
            yield registered(view.name, flow)
            seen.version, seen.settles_at = flow.version, now + SETTLES_SECONDS
        if moved or changed or other:
            yield self._observation(flow, seen)
        settled = in_turn and 0 < seen.settles_at <= now
        if changed or other or settled or (moved and now - seen.alive_at >= self._alive_every):
            yield liveness(flow, wrong)
            seen.alive_at = now
        if settled:
            seen.settles_at = 0.0
        self._change(view.name, seen, kinds, wrong)

    # --- tables -----------------------------------------------------------------------------------------------------

    def _of_tables(self, view: FlowView, flow: FlowStatus, now: float) -> Generator[Event, None, bool]:
        """Yield what a flow has written; return whether that is all of it."""
        seen, all_of_them = self._seen[view.name], True
        seen.looks = [*seen.looks, (flow.lag_seconds, round(flow.rows_per_second, 1))][-LAST:]
        seen.unread = {}
        for number, name in enumerate(view.writers):
            events: list[dg.AssetMaterialization] = []
            all_read = False
            with _guarded(view.name, name, seen):
                if name not in seen.tables:
                    seen.tables[name] = self._before(view, name, flow.submitted_at)
                events, all_read = self._of_table(view, name, seen, now, self._left // (len(view.writers) - number))
            yield from events
            all_of_them = all_of_them and all_read
        return all_of_them

    def _before(self, view: FlowView, name: str, submitted_at: float) -> int:
        """Return the last version of before the submission: what the table held then was reported by whoever wrote it.

        The first batch may end before the first look. Where the cursor was lost, no more than MOST_COMMITS are reported again.
        """
        path = view.table(self._lake, name).path
        found = versions(path)[-MOST_COMMITS:]
        behind = bisect_left(found, submitted_at, key=lambda version: _committed_at(path, version))
        return found[behind] - 1 if behind < len(found) else max(found, default=-1)

    def _next(self, view: FlowView, name: str, seen: SeenFlow) -> int:
        """Return the version behind which to read on.

        Not the last one where the log was cleaned meanwhile, or the table is another one: made again, or an older copy, of
        which all that was committed up to the last look was reported.
        """
        path, version = view.table(self._lake, name).path, seen.tables.get(name, -1)
        then = seen.committed_at.get(name)
        now = then if then is None else _committed_at(path, version)
        if now != then:
            # Cleaned or another one: its plots show commits by their versions.
            self._known.forget(path)
        if now in (then, 0.0):
            if commit_file(path, version + 1).exists():
                return version
            there = versions(path)
            if not there or there[-1] >= version:
                return min((later for later in there if later > version), default=version + 1) - 1
        return self._behind(path, 0.0 if then is None else then)

    def _behind(self, path: Place, at: float) -> int:
        """Return the last version that was committed up to a time; the one before the first, where all came later."""
        self._known.forget(path)
        found = versions(path)
        behind = bisect_right(found, at, key=lambda version: _committed_at(path, version))
        return found[behind] - 1 if behind < len(found) else max(found, default=-1)

    def _of_table(
        self, view: FlowView, name: str, seen: SeenFlow, now: float, most: int
    ) -> tuple[list[dg.AssetMaterialization], bool]:
        """Report what new commits have written, by slice, and whether these are all commits: else of `most` slices."""
        path = view.table(self._lake, name).path
        rows: dict[str | None, int] = {}
        facts: dict[str, Any] = {}
        began = version = self._next(view, name, seen)
        all_read = True
        while True:
            late = version > began and time.perf_counter() > self._over_at
            if len(rows) >= max(most, 1) or version == began + MOST_COMMITS or late:
                all_read = not commit_file(path, version + 1).exists()
                break
            if (read := self._commit(path, version + 1)) is None:
                break
            version += 1
            commit, added = read
            if commit.kind != BATCH:
                continue  # a backfill or a compaction: its own run reports it
            for slice_, count in slices_of(added).items():
                rows[slice_] = rows.get(slice_, 0) + count
            facts.setdefault("txid_first", commit.txid)
            facts |= {"txid_last": commit.txid, "attempt": commit.attempt, "delta_version": version}
        in_order = sorted(rows.items(), key=lambda item: str(item[0]))
        events = []
        for slice_, count in in_order:
            # A page shows the last event: it carries the plots.
            drawn = self._drawn(view, name, version, now) if slice_ == in_order[-1][0] else {}
            own = view.event_metadata(name, self._columns(view.table(self._lake, name)))
            events.append(view.materialization(name, slice_, {"dagster/row_count": count, **own, **facts, **drawn}))
        if version > began or name not in seen.committed_at:
            # Else an older copy may still be coming back, commit by commit: the time of what was reported stays known.
            seen.tables[name], seen.committed_at[name] = version, _committed_at(path, version)
        return events, all_read

    def _commit(self, path: Place, version: int) -> tuple[CommitRecord, list[dict[str, Any]]] | None:
        """Return a commit and the files that it added, by one reading: on a store each is a request. None: it is not there.

        What is kept of a table that it makes or changes is forgotten.
        """
        info: dict[str, Any] = {}
        added: list[dict[str, Any]] = []
        try:
            for name, action in actions(path, version, "metaData", "commitInfo", "add"):
                if name == "add":
                    added.append(action)
                elif name == "commitInfo":
                    info = action
                else:
                    self._known.forget(path)
        except FileNotFoundError:
            return None
        return parse_commit(version, info), added

    def _columns(self, table: StateTable) -> dg.TableSchema:
        """Return the columns of a table; a table that was opened before is not opened again."""
        schemas = self._known.schemas
        if table.path not in schemas:
            schemas[table.path] = table_metadata.column_schema(table.schema)
        return schemas[table.path]

    def _drawn(self, view: FlowView, name: str, version: int, now: float) -> dict[str, Any]:
        if self._drawing > DRAWING_SECONDS:
            return {}
        started, seen, path = time.perf_counter(), self._seen[view.name], view.table(self._lake, name).path
        drawing = self._known.plots.setdefault(path, TablePlots(view, self._lake, name))
        made = drawing.metadata(version) | plots.entries({"lag": seen.plots()["lag"]})
        self._drawing += time.perf_counter() - started
        seen.drawn_at = now
        return made

    # --- the flow itself --------------------------------------------------------------------------------------------

    def _of_checks(self, view: FlowView, flow: FlowStatus, seen: SeenFlow) -> Iterator[Event]:
        known = {f"{gate_check.gate}/{gate_check.check.name}": gate_check for gate_check in view.gate_checks}
        for task in flow.tasks:
            for name, figures in task.checks.items():
                check = known.get(name)
                key = f"{task.group}:{name}"
                # A cursor of an earlier release does not know the process.
                batches, failures, pid = [*seen.checks.get(key, [0, 0]), 0][:3]
                if (
                    (pid and pid != task.pid)
                    or int(figures["batches"]) < batches
                    or int(figures["failures"]) < failures
                ):
                    batches = failures = 0  # its worker was started again
                seen.checks[key] = [int(figures["batches"]), int(figures["failures"]), task.pid or 0]
                if check is None or figures["batches"] == batches:
                    continue
                failed = int(figures["failures"]) > failures
                metadata: dict[str, Any] = {
                    "action": check.check.action,
                    "expectation": check.check.expectation,
                    "rows": int(figures["rows"]),
                    "unexpected": int(figures["unexpected"]),
                }
                if failed:
                    metadata |= {"last_failed_txid": figures["last_failed"], "said": str(figures["said"])}
                    metadata |= self._failed_rows(view, check, figures["last_failed"], figures.get("detail"))
                yield dg.AssetCheckEvaluation(**check.judged(not failed, metadata))

    def _failed_rows(
        self, view: FlowView, check: GateCheck, txid: int | None, detail: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return rows in quarantine, else those that the beats brought along."""
        rows: list[dict[str, Any]] = []
        with _guarded(view.name, f"quarantine/{view.name}"):
            rows = failed_rows.of_gate(view, self._lake, check, () if txid is None else (txid,))
        rows = rows or failed_rows.of_detail(check.check, detail or {})
        return failed_rows.failed_metadata(view, check, rows)

    def _of_refused(self, view: FlowView, refused: list[tuple[TaskStatus, GateCheck]]) -> Iterator[Event]:
        for task, check in refused:
            # The batch after the last one that came through.
            rows = self._failed_rows(view, check, (task.txid if task.txid is not None else -1) + 1)
            said = {"action": check.check.action, "said": str(task.last_error), **rows}
            yield dg.AssetCheckEvaluation(**check.judged(False, said))

    @staticmethod
    def _observation(flow: FlowStatus, seen: SeenFlow) -> dg.AssetObservation:
        metadata: dict[str, Any] = {
            "status": flow.status,
            "version": flow.version,
            "rows_per_second": float(flow.rows_per_second),
            "batches": sum(task.batches for task in flow.tasks),
            "restarts": sum(task.restarts for task in flow.tasks),
        }
        known = {
            "txid": flow.txid,
            "lag_seconds": flow.lag_seconds,
            "batch_seconds": max((task.batch_seconds or 0.0 for task in flow.tasks), default=None),
            "last_error": flow.last_error,
        }
        metadata |= {name: value for name, value in known.items() if value is not None} | plots.entries(seen.plots())
        tags = {"dagster/data_version": version_of(flow)}
        return dg.AssetObservation(deployment_key(flow.name), metadata=metadata, tags=tags)


def _refused(view: FlowView, flow: FlowStatus) -> list[tuple[TaskStatus, GateCheck]]:
    """Return the checks that have stopped a query: its batch never ends, so that no figures show it."""
    return [
        (task, check)
        for task in flow.tasks
        for check in view.gate_checks
        if task.failing and refuses(str(task.last_error), check.gate, check.check.name)
    ]


@contextmanager
def _guarded(flow: str, table: str, seen: SeenFlow | None = None) -> Iterator[None]:
    """Keep a table that cannot be read, whatever its error, from the other tables and flows, and from alerts."""
    try:
        yield
    except Exception as error:
        logger.error("table cannot be read", flow=flow, table=table, exc_info=True)
        if seen is not None:
            seen.unread[table] = f"{type(error).__name__}: {error}".splitlines()[0]


def _committed_at(table: Place, version: int) -> float:
    """Return when a commit was made, in seconds since 1970; 0 for one that does not say so, or that a cleaning has taken."""
    try:
        return float(dict(actions(table, version, "commitInfo"))["commitInfo"]["timestamp"]) / 1000
    except (FileNotFoundError, KeyError):
        return 0.0
