"""The one way of a commit into a state table: what is judged is the table that commits, and what it carries goes with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipelines.state.commits import HOOKS, properties
from pipelines.state.far_times import dates_named
from pipelines.state.lake import refuse_unwritten
from pipelines.state.maintenance_commits import TableKeeper, check_no_sql, version_of
from pipelines.state.open_table import OpenTable
from pipelines.state.record import BATCH, EPOCH, BatchRecord, generation
from pipelines.state.schema import GEN, SLICE_COLUMN, TXID, UNSLICED, StateSchema
from pipelines.state.sums import Room, checked_bounds
from pipelines.state.texts import check_texts
from pipelines.state.turns import REWRITES, LateWriterError, Transactions, Turn, check_unchanged, named, of_rewrite

if TYPE_CHECKING:
    from pipelines.state.table import StateTable

Judge = Callable[[DeltaTable], Transactions]
"""Sees that a commit may be made from a snapshot, and gives what it carries."""
_ONE_FILE = 2**40


class JudgedWriter(TableKeeper):
    """Commits into one state table, by delta-rs or by Spark, what is judged to be its turn.

    Args:
        declared: the schema that the flow declares for it.

    Raises:
        LocationError: it lies where delta-rs writes none.
    """

    def __init__(self, table: StateTable, declared: StateSchema) -> None:
        refuse_unwritten(table.path)
        super().__init__(table, declared)
        self._open = OpenTable(table.name, table.path)

    def _judge(
        self, record: BatchRecord, app_id: str | None, *, replaces: bool = False, seen: int | None = None
    ) -> Judge:
        turn = None if app_id is None else Turn(self.table, record, app_id, self.declared.kind, replaces, seen)

        def judge(table: DeltaTable) -> Transactions:
            check_no_sql(table, self.table.name)
            if turn is not None:
                return turn.judge(table)
            check_unchanged(table, self.table, named(record), seen, record.group)
            return of_rewrite(table, record)

        return judge

    def _commit(
        self, commit: Callable[[DeltaTable, Transactions], object], record: BatchRecord, judge: Judge, tries: int = 1
    ) -> int:
        """Commit by delta-rs: what is judged is the table that commits. Returns the version.

        Args:
            record: of the commit, with a name of its own: a store that has kept it and whose answer was lost says, asked again,
                that there is such a version, which delta-rs then takes for that of another process.
            tries: more than one where others' commits, of other rows, may come between: quarantine is shared.

        Raises:
            LateWriterError: another process has committed, before the table was opened or since.
        """
        table = self._open.now()
        before, carried = table.version(), judge(table)
        # Of other rows than these where it may be tried again.
        known = {name: table.transaction_version(name) for name in carried if tries == 1 or name != REWRITES}
        try:
            commit(table, carried)
            self._open.noted(before, carried)
        except BaseException as error:
            self._open.close()
            if not isinstance(error, CommitFailedError):
                raise
            own = version_of(self.table, record, before)
            if own is not None:
                return own
            now = DeltaTable(str(self.table.path))
            judge(now)
            if any(now.transaction_version(name) != version for name, version in known.items()):
                seen = f"another process has committed version {now.version()} meanwhile"
                raise LateWriterError(self.table.name, "a commit", seen) from error
            if tries > 1:
                return self._commit(commit, record, judge, tries - 1)
            raise
        return table.version()

    def _commit_spark(
        self, commit: Callable[[BatchRecord, Transactions], None], record: BatchRecord, judge: Judge
    ) -> int:
        """Commit by Spark. Delta leaves out what comes under a version that its own snapshot knows, or a lower one, without a
        word: so the commit is looked for in the log. Returns the version.
        """
        from pyspark.errors import PySparkException

        table = self._open.now()
        since, carried = table.version(), judge(table)
        if len(carried) > 1 and record.epoch > 1:
            # Spark's commit carries the first id alone: those of the epochs before go ahead.
            begins = BatchRecord(kind=EPOCH, flow=record.flow, epoch=record.epoch).with_commit_name()
            self._commit(lambda t, of: self._note(t, begins, of), begins, lambda t: dict([*judge(t).items()][1:]))
        record = record.with_commit_name()
        try:
            commit(record, carried)
        except PySparkException:
            version = version_of(self.table, record, since)
            if version is None:
                judge(DeltaTable(str(self.table.path)))
                raise
        else:
            version = version_of(self.table, record, since)
        if version is None:
            judge(DeltaTable(str(self.table.path)))
            raise LateWriterError(self.table.name, f"batch {record.txid}", "Delta has left it out")
        return version

    def _write(
        self,
        rows: Callable[[DeltaTable], pa.Table],
        record: BatchRecord,
        judge: Judge,
        where: str | None = None,
        tries: int = 1,
        room: Room | None = None,
    ) -> int:
        record = record.with_commit_name()

        def write(table: DeltaTable, carried: Transactions) -> None:
            given = rows(table)
            check_texts(self.table.name, given)
            fits = room is not None and room.version == table.version()
            bounds = room.bounds if room and fits else checked_bounds(table, self.table, self.declared, given, where)
            said = record.model_copy(update={"rows": given.num_rows, "bounds": bounds})
            with dates_named(self.table.name, given):
                write_deltalake(  # type: ignore[call-overload]  # its overloads want the mode as a literal
                    table,
                    given,
                    mode="overwrite" if where else "append",
                    predicate=where,
                    # A batch is one file per partition: readers of a channel take it whole.
                    target_file_size=_ONE_FILE if record.kind == BATCH else None,
                    commit_properties=properties(said, carried),
                    post_commithook_properties=HOOKS,
                )

        return self._commit(write, record, judge, tries)

    def _complete(
        self, table: DeltaTable, rows: pa.Table, txid: int, since: int, *, own_txids: bool = False
    ) -> pa.Table:
        """Return all columns of the table: rows of `txid`, in the generation of `since`.

        Args:
            own_txids: keep what rows name themselves. Else such columns may come from a user's code, which knows no batches.
        """
        schema = pa.schema(table.schema().to_arrow())
        count = rows.num_rows
        columns = {name: rows[name] for name in rows.column_names}
        columns.setdefault(SLICE_COLUMN, pa.repeat(pa.scalar(UNSLICED), count))
        for name, value in ((TXID, txid), (GEN, generation(since))):
            own = pa.scalar(value, pa.int64())
            columns[name] = pc.fill_null(columns[name], own) if own_txids and name in columns else pa.repeat(own, count)
        return pa.table({f.name: columns[f.name] for f in schema}).cast(schema)
