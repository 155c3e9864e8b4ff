"""Commits of the maintenance of a state table: rows rewritten, files merged, old files deleted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipelines.errors import StateSchemaError
from pipelines.state.commits import HOOKS, properties
from pipelines.state.kinds import MAP, OPAQUE
from pipelines.state.record import BatchRecord
from pipelines.state.schema import GEN, REMOVED, TXID, StateSchema
from pipelines.state.table import StateTable
from pipelines.state.turns import Transactions, of_rewrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REMEMBERED = "delta.deletedFileRetentionDuration"
CLUSTERED = "tridelta.clusteredBy"
"""The table's property that names the columns by which its rewritten files are sorted, as a JSON list."""
# Rows a row group in folded files: they are sorted by key, and a read of a few keys decodes one row group of each.
ROW_GROUP_ROWS = 65_536
# Spark names its files without the slice: delta-rs removes a file under the percent-encoded name, which is not the one that
# Spark wrote where a slice has other characters than ASCII, and its rows would stay.
PLAIN_NAMES = {"delta.randomizeFilePrefixes": "true"}

# What Spark takes from a log and works out as it writes: in a column's metadata, and in the table's configuration.
_SQL_OF_COLUMNS = re.compile(
    r'"(delta\.(?:generationExpression|invariants|identity\.\w+)|GENERATION_EXPRESSION|CURRENT_DEFAULT|EXISTS_DEFAULT)":',
    re.I,
)
_SQL_OF_TABLES = "delta.constraints."


def check_no_sql(table: DeltaTable, state: str) -> None:
    """Refuse a table whose log has SQL in it: the engine writes none, and Spark's functions reach the JVM."""
    found = [name for name in table.metadata().configuration if name.lower().startswith(_SQL_OF_TABLES)]
    found += _SQL_OF_COLUMNS.findall(table.schema().to_json())
    if found:
        raise StateSchemaError(
            state, f"its log has {found[0]}, which Spark would work out as it writes; the engine has none"
        )


def clustered_by(table: DeltaTable) -> tuple[str, ...]:
    """Return the columns by which a table's files are sorted when rewritten; empty: the order of its layout."""
    return tuple(json.loads(table.metadata().configuration.get(CLUSTERED, "[]")))


def version_of(table: StateTable, record: BatchRecord, since: int) -> int | None:
    """Return the version of the commit that a record names, behind another; None if it is not in the log."""
    assert record.commit is not None
    later = (commit for commit in reversed(table.history()) if commit.version > since and commit.record is not None)
    return next((commit.version for commit in later if commit.record and commit.record.commit == record.commit), None)


@contextmanager
def known_by_name(table: StateTable, opened: DeltaTable, record: BatchRecord) -> Iterator[None]:
    """Take a commit for made that Delta refuses though it is in the log.

    A store has kept it, and its answer was lost: asked again, it says that there is such a version, which Delta then takes for
    that of another process.

    Args:
        opened: the version that the commit starts from; it is brought to that of the commit.
        record: of the commit, with a name of its own.
    """
    since = opened.version()
    try:
        yield
    except CommitFailedError:
        version = version_of(table, record, since)
        if version is None:
            raise
        opened.load_as_version(version)


def delete_rows(table: StateTable, opened: DeltaTable, where: str, record: BatchRecord) -> int:
    """Delete the rows that a condition names, if there are any. Return how many there were.

    Args:
        opened: the version to start from, opened before the record was made: Delta refuses the commit if what it says is out of
            date (CommitFailedError).
    """
    rows = table.count(where)
    if rows:
        record = record.with_commit_name()
        said: Any = {"commit_properties": properties(record, of_rewrite(opened)), "post_commithook_properties": HOOKS}
        with known_by_name(table, opened, record):
            opened.delete(where, **said)
    return rows


class TableKeeper:
    """Rewrites one state table without changing what it holds.

    Args:
        declared: the schema that the flow declares for it.
    """

    def __init__(self, table: StateTable, declared: StateSchema) -> None:
        self.table, self.declared = table, declared

    def name_files_plainly(self, table: DeltaTable) -> None:
        """Have a table of an older version take Spark's files without slices in their names.

        Raises:
            StateSchemaError: it holds files of Spark's under names that delta-rs can't remove.
        """
        if PLAIN_NAMES.items() <= table.metadata().configuration.items():
            return
        paths = pa.table(table.get_add_actions())["path"].to_pylist()
        if any(not path.isascii() for path in paths):
            problem = "Spark wrote slices under names that are not ASCII, and delta-rs can't remove those"
            raise StateSchemaError(self.table.name, problem)
        table.alter.set_table_properties(PLAIN_NAMES, raise_if_not_exists=False)

    def rewrite_arrow(self, table: DeltaTable, rows: pa.Table, record: BatchRecord, where: str, file_bytes: int) -> int:
        """Put `rows` (all columns, in order) in the place of those that `where` names at the version in `table`.

        Returns the version. Refused by Delta (CommitFailedError) if a later commit touched what `where` names, or is no batch:
        the rows may be made of more than they replace.
        """
        record = record.model_copy(update={"rows": rows.num_rows}).with_commit_name()
        with known_by_name(self.table, table, record):
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                predicate=where,
                target_file_size=file_bytes,
                writer_properties=WriterProperties(max_row_group_size=ROW_GROUP_ROWS),
                commit_properties=properties(record, of_rewrite(table)),
                post_commithook_properties=HOOKS,
            )
        return table.version()

    def rewrite_spark(
        self, table: DeltaTable, frame: DataFrame, record: BatchRecord, where: str, *, same_rows: bool = False
    ) -> int:
        """Rewrite as `rewrite_arrow` does, with Spark; `where` may name partition columns only. Return the version.

        Args:
            table: the version that the frame reads.
            same_rows: whether rows only move between files, so that a stream of the table reads nothing again.
        """
        check_no_sql(self.table.opened(), self.table.name)
        record = record.with_commit_name()
        ((app_id, number),) = of_rewrite(table).items()
        (
            frame.write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", where)
            .option("dataChange", str(not same_rows).lower())
            .option("userMetadata", record.dump())
            .option("txnAppId", app_id)
            .option("txnVersion", number)
            .save(str(self.table.path))
        )
        version = version_of(self.table, record, table.version())
        if version is None:
            # Behind another rewrite Spark has left it out.
            raise CommitFailedError(f"{self.table.name} was rewritten behind version {table.version()}")
        return version

    def _note(self, table: DeltaTable, record: BatchRecord, carried: Transactions) -> None:
        """Commit no rows, for the record and the transaction ids."""
        none = pa.schema(table.schema().to_arrow()).empty_table()
        said = properties(record, carried, unchanged=True)
        write_deltalake(table, none, mode="append", commit_properties=said, post_commithook_properties=HOOKS)

    def say(self, table: DeltaTable, record: BatchRecord) -> None:
        """Commit a record alone, behind the version that it was made from."""
        record = record.with_commit_name()
        with known_by_name(self.table, table, record):
            self._note(table, record, of_rewrite(table))

    def optimize(
        self,
        table: DeltaTable,
        generations: list[int] | None,
        record: BatchRecord,
        file_bytes: int,
        by: tuple[str, ...] | None = None,
    ) -> None:
        """Merge small files within the partitions of some generations, or of the table; the rows stay as they are.

        Args:
            by: columns to sort by, along a curve if there are several, which rewrites large files too; none: no sorting;
                None: as the table is clustered.
        """
        if record.claims or record.claims_of:
            # delta-rs gives an OPTIMIZE no transaction id: a commit that has one says what may be out of date.
            self.say(table, record)
            record = record.model_copy(update={"claims": None, "claims_of": None})
        record = record.with_commit_name()
        given: dict[str, Any] = {
            "partition_filters": None
            if generations is None
            else [(GEN, "in", [str(generation) for generation in generations])],
            "target_size": file_bytes,
            "writer_properties": WriterProperties(max_row_group_size=ROW_GROUP_ROWS),
            "commit_properties": properties(record, None),
            "post_commithook_properties": HOOKS,
        }
        by = clustered_by(table) if by is None else by
        with known_by_name(self.table, table, record):
            if by:
                table.optimize.z_order(list(by), **given)
            else:
                table.optimize.compact(**given)

    def cluster_by(self, columns: tuple[str, ...]) -> None:
        """Say by which columns the table's files are to be sorted when they are rewritten; none: as its layout has it."""
        said = {CLUSTERED: json.dumps(columns)}
        DeltaTable(str(self.table.path)).alter.set_table_properties(said, raise_if_not_exists=False)

    def forget_removed(self, opened: DeltaTable, record: BatchRecord) -> int:
        """Delete the rows that an opaque map state keeps of removed keys, but those of its last batch. Returns how many."""
        if (self.declared.layout, self.declared.kind) != (MAP, OPAQUE):
            return 0
        return delete_rows(self.table, opened, f"{REMOVED} AND {TXID} < {record.txid}", record)

    def remember_removed(self, hours: int) -> None:
        """Have the log's checkpoints remember removed files for so long: what is forgotten is never vacuumed."""
        DeltaTable(str(self.table.path)).alter.set_table_properties({REMEMBERED: f"interval {hours} hours"})

    def vacuum(
        self,
        table: DeltaTable,
        record: BatchRecord | None,
        hours: int,
        left_overs: bool,
        *,
        keep: list[int] | None = None,
    ) -> list[str]:
        """Delete data files that were removed more than `hours` ago; without a record only list them.

        Args:
            left_overs: also files of that age that no commit names.
            keep: versions whose files stay, however long ago they were removed.
        """
        return table.vacuum(
            retention_hours=hours,
            dry_run=record is None,
            # Delta's own floor (a week) guards tables with unknown writers; here the caller's retention decides.
            enforce_retention_duration=False,
            commit_properties=properties(record, None) if record else None,
            post_commithook_properties=HOOKS,
            full=left_overs,
            keep_versions=keep or None,
        )
