"""The change feed of a Delta table: rows as they were inserted, updated and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pipelines.bounds import COMMIT, required
from pipelines.errors import SourceError, TrideltaError
from pipelines.graph.fields import added
from pipelines.places.location import Place
from pipelines.sources.base import StoredSource, file_key
from pipelines.sources.delta import DeltaTableSource
from pipelines.sources.offsets import offset_behind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHANGE_FIELDS = "change_type string, commit_version bigint, commit_timestamp timestamp"
_ENABLED = "delta.enableChangeDataFeed"


class DeltaChangeFeed(StoredSource):
    """The changes of a Delta table, commit by commit.

    Gives: the fields of `schema`, then `change_type string` (`insert`, `update_preimage`, `update_postimage`, `delete`),
    `commit_version bigint`, `commit_timestamp timestamp`. Without `starting_version` the table as it is at the start comes
    first, as inserts.
    Positions: the commits, `delta:<path>@<version>`, of the table at the start its version. It has no slices.
    Transactional: a replayed batch reads the same files of the same commits; if VACUUM has removed them the flow stops with
    LostRowsError.

    Args:
        path: the table's folder.
        schema: DDL of the columns to read, a subset of the table's.
        starting_version: the first commit whose changes are read; None: the whole table, then its changes.
        max_files_per_batch: at most so many files per batch, a commit's changes undivided; None: 1,000, unless bytes are limited.
        max_bytes_per_batch: about so many bytes per batch.

    Raises:
        DefinitionError: for a starting version that no table has.
        DuplicateFieldError: if the schema names one of the three fields itself.
    """

    def __init__(
        self,
        path: str | Place,
        schema: str,
        *,
        starting_version: int | None = None,
        max_files_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
    ) -> None:
        self.starting_version = required("DeltaChangeFeed: starting_version", COMMIT, starting_version)
        self._table = DeltaTableSource(path, schema)
        added("DeltaChangeFeed", ("change_type", "commit_version", "commit_timestamp"), self._table.fields)
        super().__init__(
            path,
            f"{schema}, {CHANGE_FIELDS}",
            max_files_per_batch=max_files_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
        )

    def prepare(self, name: str, spool: Place) -> Self:
        own = super().prepare(name, spool)
        own._table = self._table.prepare(name, spool)
        return own

    def check(self, name: str, spark: SparkSession) -> None:
        """Check that the table exists, has the columns, and records its changes.

        Raises:
            MissingPathError, SourceSchemaError
            SourceError: if it records no changes.
        """
        self.check_place(name)
        self._table.check(name, spark)
        if not self._records_changes(name, None):
            raise SourceError(
                f'source "{name}": the table {self.path} records no changes',
                hint=f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ({_ENABLED} = true); changes are recorded from then on",
            )

    def check_first(self, name: str, *, begun: bool = False) -> None:
        """Check that the table recorded its changes at the starting version; a stream that is past it needs it no more.

        Raises:
            SourceError: if it did not yet, or its log does not have that version.
        """
        if not begun and self.starting_version is not None and not self._records_changes(name, self.starting_version):
            raise SourceError(
                f'source "{name}": the table {self.path} recorded no changes yet at version {self.starting_version}',
                hint="start at the version that switched the recording on (DESCRIBE HISTORY shows it), or later",
            )

    def check_same(self, name: str, spark: SparkSession, checkpoint: Place, index: int) -> None:
        self._table.check_same(name, spark, checkpoint, index)

    def _records_changes(self, name: str, version: int | None) -> bool:
        try:
            table = DeltaTable(self.path, version=version)
        except DeltaError as error:
            raise SourceError(
                f'source "{name}": the table {self.path} has no version {version}',
                hint="DESCRIBE HISTORY shows the versions that are there",
            ) from error
        return table.metadata().configuration.get(_ENABLED) == "true"

    def stream(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        reader = spark.readStream.format("delta").options(readChangeFeed="true", **self._limits)
        if self.starting_version is not None:
            reader = reader.option("startingVersion", self.starting_version)
        renamed = [F.col(f"_{field}").alias(field) for field in ("change_type", "commit_version", "commit_timestamp")]
        changes = self._table.without_removed(reader.load(self.path))
        frame = changes.select(*(f"`{field}`" for field in self._table.fields), *renamed)
        return self._with_position(frame, F.concat(F.lit(self._address("")), F.col("commit_version")))

    def positions(self, checkpoint: Place, first: int, last: int, index: int = 0) -> frozenset[str]:
        """Return the commits that the batches read, in whole or in part.

        Without a starting version the table's snapshot comes first, whose rows are all of its version. Where the first batch took
        it to its end, and commits behind it, no offset says which that was: of those the last one is returned.
        """
        end = offset_behind(checkpoint, last, index) if first <= last else None
        if end is None:
            return frozenset()
        before = offset_behind(checkpoint, first - 1, index) if first > 0 else None
        if before:
            start = int(before["reservoirVersion"])
        elif self.starting_version is not None:
            start = self.starting_version
        else:
            begin = offset_behind(checkpoint, first, index) or end
            start = max(0, int(begin["reservoirVersion"]) - (0 if begin["isStartingVersion"] else 1))
        behind = end["reservoirVersion"] + (1 if end["index"] >= 0 or end["isStartingVersion"] else 0)
        return frozenset(file_key(self._address(version)) for version in range(start, behind))

    def file_number(self) -> Column:
        from pyspark.sql import functions as F

        return F.col("commit_version")

    def fault(self, name: str, error: BaseException) -> TrideltaError | None:
        return self._table.fault(name, error)

    def _address(self, version: int | str) -> str:
        return f"delta:{quote(self.path)}@{version}"
