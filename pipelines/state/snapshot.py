"""One version of a Delta table, open for reading by delta-rs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from pipelines.errors import ReadPointError
from pipelines.places.location import Location, Place
from pipelines.state.damage import is_vacuumed, read_damage
from pipelines.state.schema import GEN, PROPERTY, ROLL_UP, SLICE_COLUMN, StateSchema

_PART_ROWS = 100_000


class Snapshot:
    """One version of the table, opened: its DataFusion query context and its roll-up, if compaction left one."""

    def __init__(self, table: DeltaTable, name: str = "") -> None:
        self.name = name
        self.version = table.version()
        self.table = table
        self.roll_up: int | None = None
        self._newer, self._several = True, False
        if SLICE_COLUMN in table.metadata().partition_columns:
            parts = [(part[SLICE_COLUMN], int(part[GEN])) for part in table.partitions() if part[GEN] is not None]
            roll_ups = {gen for slice_, gen in parts if slice_ == ROLL_UP}
            self.roll_up, self._several = max(roll_ups, default=None), len(roll_ups) > 1
            if self.roll_up is not None:
                self._newer = any(gen > self.roll_up for slice_, gen in parts if slice_ != ROLL_UP)

    @classmethod
    def open(cls, path: str | Place, version: int | None = None) -> Snapshot:
        """Return the version of the table in this folder, or its last one."""
        return cls(DeltaTable(str(path), version=version))

    @cached_property
    def declared(self) -> StateSchema | None:
        """Read the schema that the table declares at this version; None for a table that the engine did not make."""
        text = self.table.metadata().configuration.get(PROPERTY)
        return StateSchema.model_validate_json(text) if text else None

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """Return the stored columns and their Arrow types, the engine's included."""
        return {f.name: f.type for f in pa.schema(self.table.schema().to_arrow())}

    @property
    def live(self) -> str:
        """SQL over the engine's columns: the rows that together make a log state, each counted once.

        The roll-up stands for all slices up to its generation; without one the slices speak for themselves.
        """
        if self.roll_up is None:
            return "true"
        if self._several:
            # A compaction of an earlier release has left one below it, which the highest one stands for as well.
            return f"({GEN} >= {self.roll_up} AND ({SLICE_COLUMN} = '{ROLL_UP}' OR {GEN} > {self.roll_up}))"
        if not self._newer:
            # One partition, so that a reader need not look at the files of the slices at all.
            return f"{SLICE_COLUMN} = '{ROLL_UP}'"
        return f"({SLICE_COLUMN} = '{ROLL_UP}' OR {GEN} > {self.roll_up})"

    def query(self, sql: str) -> pa.Table:
        """Return the answer to a query over the stored rows, which are called `state`."""
        with self._diagnosed():
            return plain(pa.table(self._builder.execute(sql).read_all()))

    def stream(self, sql: str) -> Iterator[pa.Table]:
        """Run a query as `query` does, in parts of some 100,000 rows as they are read."""
        parts: list[pa.Table] = []
        with self._diagnosed():
            for batch in self._builder.execute(sql):
                parts.append(plain(pa.table(batch)))
                if sum(part.num_rows for part in parts) >= _PART_ROWS:
                    yield pa.concat_tables(parts)
                    parts = []
        if parts:
            yield pa.concat_tables(parts)

    @contextmanager
    def _diagnosed(self) -> Iterator[None]:
        """Name the file that cannot be read; an error of another cause stays as it is.

        Raises:
            ReadPointError: it was deleted by a VACUUM that is not the engine's, which says beforehand what it keeps.
        """
        try:
            yield
        except Exception as error:  # DataFusion has one class for all of them
            path = _folder(self.table.table_uri)
            damage = read_damage(self.name or path.name, self.table, path)
            if damage is not None and is_vacuumed(self.table, path):
                raise ReadPointError(
                    damage.table,
                    f"version {self.version}",
                    "it is too old: a VACUUM has deleted data files of it since",
                    hint="read a later one; leave old files to checkpoint_compaction_job, which keeps them for retention_hours",
                ) from error
            if damage is not None:
                raise damage from error
            raise

    @cached_property
    def _builder(self) -> QueryBuilder:
        return QueryBuilder().register("state", self.table)

    @cached_property
    def stored_rows(self) -> int | None:
        """Rows that the version's files hold, None where a file does not say."""
        counts = pa.table(self.table.get_add_actions(flatten=True))["num_records"]
        return None if counts.null_count else int(pc.sum(counts).as_py() or 0)


def _folder(uri: str) -> Place:
    """Return the folder of a table by what delta-rs calls it, encoded. No name on a store has a `%` of its own."""
    return Path(unquote(urlparse(uri).path)) if urlparse(uri).scheme in ("", "file") else Location.of(unquote(uri))


def plain(rows: pa.Table) -> pa.Table:
    """Cast DataFusion's view types to the plain ones, which Spark and pandas know; those inside lists and structs, too."""
    return rows.cast(pa.schema([pa.field(f.name, _plain_type(f.type), f.nullable) for f in rows.schema]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    return pa.struct([_plain_field(field) for field in kind]) if pa.types.is_struct(kind) else kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))
