"""New columns for a table that is there."""

from __future__ import annotations

from deltalake import DeltaTable, Schema
from deltalake.schema import StructType

from pipelines.state.commits import HOOKS
from pipelines.state.schema import PREVIOUS, PROPERTY, StateSchema


def add_columns(table: DeltaTable, wanted: Schema, declared: StateSchema) -> None:
    """Add what `wanted` has beyond the table's columns, then have the table say `declared` of itself.

    Two commits. Killed between them the table has columns that it does not speak of; the next start says so.
    """
    there = {f.name: f.type for f in table.schema().fields}
    missing = [
        f for f in wanted.fields if f.name not in there or (f.name == PREVIOUS and _grows(there[f.name], f.type))
    ]
    if missing:
        table.alter.add_columns(missing, post_commithook_properties=HOOKS)
    table.alter.set_table_properties({PROPERTY: declared.dump()}, raise_if_not_exists=False)


def _grows(there: object, wanted: object) -> bool:
    assert isinstance(there, StructType)
    assert isinstance(wanted, StructType)
    return len(wanted.fields) > len(there.fields)
