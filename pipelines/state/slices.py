"""Which slices a table holds, and when each was made last: read off its partitions and its ledger, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from pipelines.state.record import RESET, SLICE
from pipelines.state.schema import MAP, RESERVED, SLICE_COLUMN

if TYPE_CHECKING:
    from pipelines.state.table import StateTable


def made_slices(table: StateTable) -> frozenset[str] | None:
    """The slices that a table holds: those with rows, and those that a backfill made of no rows.

    Returns:
        None for a table that has no slices: one of another program, or of a flow that names no slice column.
    """
    if not table.is_state():
        return frozenset() if not table.exists() else None
    if not table.declared.sliced:
        return None
    found = set(slice_times(table)) | set(table.commits.claims())
    if table.declared.layout != MAP:
        found |= {part[SLICE_COLUMN] for part in DeltaTable(str(table.path)).partitions()}
    return frozenset(one for one in found if one is not None and one not in RESERVED)


def slice_times(table: StateTable) -> Mapping[str, datetime]:
    """When a backfill committed each slice last, as far back as the table's log goes."""
    found: dict[str, datetime] = {}
    for commit in table.history() if table.exists() else ():
        if commit.kind == RESET:
            found.clear()
        elif commit.kind == SLICE and commit.slice is not None:
            found[commit.slice] = commit.time
    return found
