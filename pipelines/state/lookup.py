"""Rows of a state or a channel, by a key whose values are texts: for the command line and for Dagster's forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.errors import DefinitionError
from pipelines.graph.fields import checked_name
from pipelines.state.far_times import shown_rows

if TYPE_CHECKING:
    from pipelines.state.lake import Lake
    from pipelines.state.table import StateTable


def named_table(lake: Lake, name: str) -> StateTable:
    """Open a channel of the lake by its name, or a state."""
    checked_name("state", name)
    return lake.channel(name) if name in lake.channels() else lake.state(name)


def look_up(
    table: StateTable, key: Mapping[str, str] | None, most: int, txid: int | None = None, version: int | None = None
) -> list[dict[str, Any]]:
    """Read the rows of a key, or of the whole table from its start.

    Args:
        key: Values by column, as texts; empty: all keys.
        most: How many rows at most: a table without keys has any number of rows per value.
        txid: Read the table as of this batch.
        version: Read the table at this version instead.
    """
    if key:
        return table.get([typed_key(table, key)], txid=txid, version=version)[:most]
    return shown_rows(table.scan(txid=txid, version=version).slice(0, most))


def typed_key(table: StateTable, key: Mapping[str, str]) -> dict[str, Any]:
    """Convert the values of a key from texts to their columns' types."""
    import pyarrow as pa

    from pipelines.state.literals import of_text

    types = {field.name: field.type for field in table.schema}
    typed: dict[str, Any] = {}
    for name, value in key.items():
        try:
            typed[name] = of_text(value, types.get(name, pa.string()))
        except (pa.ArrowNotImplementedError, ValueError, OverflowError):
            raise DefinitionError(f"not a key: {f'{name}={value}'!r}; {name} is {types[name]}") from None
    return typed
